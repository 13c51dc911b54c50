"""Annotations become JSON schemas, and values are held against them."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel

from chatflow_runtime.schemas import Schema, converter_of, expected, mismatch, schema_of
from chatflow_runtime.types import Json


class Tier(enum.Enum):
    GOLD = "gold"
    BASIC = "basic"


class Address(BaseModel):
    city: str


class Order(BaseModel):
    number: int
    to: Address


class Node(BaseModel):
    children: list[Node]


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (list, {"type": "array", "items": {}}),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping, {"type": "object"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Tier, {"type": "string", "enum": ["gold", "basic"]}),
        (Annotated[str, "The order's number."], {"type": "string", "description": "The order's number."}),
        (datetime.date, {"type": "string", "format": "date"}),
    ],
)
def test_an_annotation_has_a_schema(annotation: object, schema: Schema) -> None:
    assert schema_of(annotation) == schema


def test_references_of_models_are_resolved() -> None:
    """B060: nested models with $defs are not accepted everywhere."""
    schema = schema_of(Order)
    assert "$ref" not in str(schema)
    assert "$defs" not in schema
    assert mismatch({"number": 1, "to": {}}, schema, "order") == "order.to lacks 'city', expected string."


def test_a_model_that_refers_to_itself_is_refused() -> None:
    with pytest.raises(TypeError, match="Node refers to itself"):
        schema_of(Node)


@pytest.mark.parametrize(
    ("annotation", "data", "value"),
    [
        (int, 20.0, 20),
        (float, 20, 20.0),
        (Tier, "gold", Tier.GOLD),
        (list[Tier], ["gold"], [Tier.GOLD]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (set[str], ["a", "a"], {"a"}),
        (dict[str, Tier], {"x": "basic"}, {"x": Tier.BASIC}),
        (Tier | None, "gold", Tier.GOLD),
        (Tier | None, None, None),
        (Annotated[Tier, "How valued."], "basic", Tier.BASIC),
        (datetime.date, "2026-01-02", datetime.date(2026, 1, 2)),
        (Order, {"number": 1, "to": {"city": "Ulm"}}, Order(number=1, to=Address(city="Ulm"))),
    ],
)
def test_data_becomes_what_the_annotation_promises(annotation: object, data: Json, value: object) -> None:
    convert = converter_of(annotation)
    assert convert is not None
    assert convert(data) == value
    assert type(convert(data)) is type(value)


@pytest.mark.parametrize(
    "annotation", [str, bool, None, Any, list[str], dict[str, str], Literal["a"], str | None, list]
)
def test_data_that_is_the_type_already_is_not_touched(annotation: object) -> None:
    assert converter_of(annotation) is None


def test_what_a_model_refuses_is_told_without_versions_and_addresses() -> None:
    convert = converter_of(Order)
    assert convert is not None
    with pytest.raises(ValueError, match=r"^to\.city: Field required$"):
        convert({"number": 1, "to": {}})


@pytest.mark.parametrize(
    ("value", "schema", "fault"),
    [
        ("20", {"type": "number"}, 'x is "20", expected number.'),
        (True, {"type": "integer"}, "x is true, expected integer."),
        (1.5, {"type": "integer"}, "x is 1.5, expected integer."),
        (None, {"type": ["string", "integer"]}, "x is null, expected string or integer."),
        ("c", {"enum": ["a", "b"]}, 'x is "c", expected one of "a", "b".'),
        ([1, "b"], {"type": "array", "items": {"type": "integer"}}, 'x[1] is "b", expected integer.'),
        ([], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x is [], expected integer or null."),
        ({"a": 1}, {"additionalProperties": {"type": "string"}}, "x.a is 1, expected string."),
        ({}, {"required": ["a"], "properties": {"a": {"type": "string"}}}, "x lacks 'a', expected string."),
        ("y" * 100, {"type": "null"}, 'x is "' + "y" * 56 + "..., expected null."),
    ],
)
def test_a_mismatch_says_where_what_and_what_was_expected(value: Json, schema: Schema, fault: str) -> None:
    assert mismatch(value, schema, "x") == fault


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (20.0, {"type": "integer"}),
        (20, {"type": "number"}),
        (None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ({"b": 1}, {"properties": {"a": {"type": "string"}}}),
        ("anything", {"type": "of-tomorrow"}),
        ([1], {"type": "array"}),
        (True, {"type": "boolean"}),
        ("a", {}),
    ],
)
def test_what_fits_is_not_a_mismatch(value: Json, schema: Schema) -> None:
    assert mismatch(value, schema, "x") is None


def test_a_schema_that_asks_for_nothing_is_any_value() -> None:
    assert expected({}) == "any value"
