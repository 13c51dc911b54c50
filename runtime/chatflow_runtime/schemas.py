"""JSON schemas of Python annotations, and values against schemas."""

from __future__ import annotations

import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal, TypeAlias, Union, cast

from chatflow_runtime.types import Json

Schema: TypeAlias = dict[str, Json]
Converter: TypeAlias = Callable[[Any], Any]
"""From JSON data that fits a schema to the Python value the annotation promises; raises ValueError."""

_SCALARS: dict[object, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def schema_of(annotation: object) -> Schema:
    """The JSON schema of an annotation; nothing is promised about an unannotated value."""
    if annotation in (inspect.Parameter.empty, Any, object):
        return {}
    if annotation is None:
        return {"type": "null"}
    if isinstance(annotation, type) and annotation in _SCALARS:
        return {"type": _SCALARS[annotation]}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enumeration([cast(Json, member.value) for member in annotation])
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        notes = [note for note in arguments[1:] if isinstance(note, str)]
        return {**schema_of(arguments[0]), **({"description": notes[0]} if notes else {})}
    if origin is Literal:
        return _enumeration(list(arguments))
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(argument) for argument in arguments]}
    container = origin or annotation
    if isinstance(container, type) and container in _ARRAYS:
        return {"type": "array", "items": schema_of(arguments[0]) if arguments else {}}
    if isinstance(container, type) and container in _OBJECTS:
        return {"type": "object", **({"additionalProperties": schema_of(arguments[1])} if arguments else {})}
    return _pydantic_schema(annotation)


def converter_of(annotation: object) -> Converter | None:
    """How JSON data becomes the annotated type; `None` where it already is."""
    if annotation is float:
        return float
    if annotation is int:
        return int
    if isinstance(annotation, type) and (annotation in _SCALARS or annotation in (inspect.Parameter.empty, object)):
        return None
    if annotation is None or annotation is Any:
        return None
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return converter_of(arguments[0])
    if origin is Literal:
        return None
    if origin in (Union, types.UnionType):
        return _union_converter(arguments)
    container = origin or annotation
    if isinstance(container, type) and container in _ARRAYS:
        return _array_converter(_ARRAYS[container], converter_of(arguments[0]) if arguments else None)
    if isinstance(container, type) and container in _OBJECTS:
        convert = converter_of(arguments[1]) if arguments else None
        return None if convert is None else lambda value: {key: convert(item) for key, item in value.items()}
    return _pydantic_converter(annotation)


def mismatch(value: Json, schema: Mapping[str, Json], where: str) -> str | None:
    """What is wrong with a value, in one sentence, by types, enums and structure; `None` when it fits."""
    options = schema.get("anyOf")
    if isinstance(options, list):
        faults = [mismatch(value, cast(Schema, option), where) for option in options]
        return None if None in faults else f"{where} is {_shown(value)}, expected {expected(schema)}."
    if "enum" in schema and value not in cast(list[Json], schema["enum"]):
        return f"{where} is {_shown(value)}, expected {expected(schema)}."
    kinds = schema.get("type")
    if kinds is not None and not any(_is_a(value, kind) for kind in (kinds if isinstance(kinds, list) else [kinds])):
        return f"{where} is {_shown(value)}, expected {expected(schema)}."
    if isinstance(value, dict):
        return _object_mismatch(value, schema, where)
    if isinstance(value, list) and isinstance(items := schema.get("items"), dict):
        faults = [mismatch(item, items, f"{where}[{index}]") for index, item in enumerate(value)]
        return next((fault for fault in faults if fault), None)
    return None


def expected(schema: Mapping[str, Json]) -> str:
    """A schema in a few words, for messages."""
    options = schema.get("anyOf")
    if isinstance(options, list):
        return " or ".join(expected(cast(Schema, option)) for option in options)
    if isinstance(values := schema.get("enum"), list):
        return "one of " + ", ".join(_shown(value) for value in values)
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return " or ".join(str(kind) for kind in kinds)
    return str(kinds) if kinds else "any value"


def _object_mismatch(value: Mapping[str, Json], schema: Mapping[str, Json], where: str) -> str | None:
    required = schema.get("required")
    for name in required if isinstance(required, list) else []:
        if name not in value:
            return f"{where} lacks '{name}', expected {expected(_property(schema, str(name)))}."
    extra = schema.get("additionalProperties")
    known = schema.get("properties")
    for name, item in value.items():
        if isinstance(known, dict) and name in known:
            inner = _property(schema, name)
        else:
            inner = extra if isinstance(extra, dict) else {}
        if fault := mismatch(item, inner, f"{where}.{name}"):
            return fault
    return None


def _property(schema: Mapping[str, Json], name: str) -> Schema:
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, dict) else None
    return found if isinstance(found, dict) else {}


def _is_a(value: Json, kind: Json) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return True


def _shown(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _enumeration(values: list[Json]) -> Schema:
    kinds = {_SCALARS.get(type(value)) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return {**({"type": kind} if kind else {}), "enum": values}


_ARRAYS: dict[type, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: tuple,
    AbstractSet: frozenset,
}
_OBJECTS = (dict, Mapping)


def _array_converter(build: Callable[[list[Any]], Any], convert: Converter | None) -> Converter | None:
    if convert is None:
        return None if build is list else build
    return lambda values: build([convert(value) for value in values])


def _union_converter(arguments: Sequence[object]) -> Converter | None:
    converters = [(schema_of(argument), converter_of(argument)) for argument in arguments]
    if all(convert is None for _, convert in converters):
        return None

    def convert_first(value: Json) -> Any:
        fitting = (convert for schema, convert in converters if mismatch(value, schema, "") is None)
        convert = next(fitting, None)
        return value if convert is None else convert(value)

    return convert_first


def _pydantic_schema(annotation: object) -> Schema:
    from pydantic import TypeAdapter

    schema = TypeAdapter(cast(type[Any], annotation)).json_schema()
    return cast(Schema, _inlined(schema, schema.get("$defs", {}), ()))


def _inlined(schema: Any, definitions: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, definitions, path) for item in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix("#/$defs/")
        if name in path:
            raise TypeError(f"{name} refers to itself, which providers refuse in a tool's parameters")
        return _inlined(definitions[name], definitions, (*path, name))
    return {key: _inlined(item, definitions, path) for key, item in schema.items() if key != "$defs"}


def _pydantic_converter(annotation: object) -> Converter:
    from pydantic import TypeAdapter, ValidationError

    adapter: TypeAdapter[Any] = TypeAdapter(cast(type[Any], annotation))

    def convert(value: Json) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            # pydantic's own text names its version and a web page; what the model reads must not depend on them.
            places = (".".join(str(part) for part in fault["loc"]) for fault in error.errors())
            faults = zip(places, (fault["msg"] for fault in error.errors()), strict=True)
            raise ValueError("; ".join(f"{place}: {text}" if place else text for place, text in faults)) from None

    return convert
