"""Functions become tools; a call's arguments reach them checked."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any, Literal

import pytest

from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.tools import ArgumentsRefused, Tool, as_tool, tool
from chatflow_runtime.types import Json


class Tier(enum.StrEnum):
    GOLD = "gold"
    BASIC = "basic"


@tool
def issue_refund(transaction_id: str, amount: float, note: str | None = None, tier: Tier = Tier.BASIC) -> str:
    """Process a refund back to the original payment method.

    Only once per transaction.
    """
    return f"{transaction_id} {amount} {note} {tier!r}"


@tool
def ping() -> str:
    """Answer."""
    return "pong"


def test_a_tool_is_named_described_and_typed_by_its_function() -> None:
    assert issue_refund.name == "issue_refund"
    assert issue_refund.description.startswith("Process a refund back")
    assert issue_refund.parameters == {
        "type": "object",
        "properties": {
            "transaction_id": {"type": "string"},
            "amount": {"type": "number"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "tier": {"type": "string", "enum": ["gold", "basic"], "default": "basic"},
        },
        "required": ["transaction_id", "amount"],
    }


def test_a_tool_without_parameters_still_has_an_object_schema() -> None:
    """B060: no provider accepts a function without a parameter schema."""
    assert ping.parameters == {"type": "object", "properties": {}}
    assert Tool("ping", func=lambda: None).parameters == {"type": "object", "properties": {}}
    assert Tool("ping", parameters={"type": "object"}, func=lambda: None).parameters["properties"] == {}


def test_a_tool_can_still_be_called_as_the_function_it_is() -> None:
    assert issue_refund("t1", amount=2.0) == f"t1 2.0 None {Tier.BASIC!r}"


def test_a_decorator_can_say_another_name_and_description() -> None:
    @tool(name="refund", description="Give money back.")
    def anything(amount: int) -> None: ...

    assert (anything.name, anything.description) == ("refund", "Give money back.")


def test_plain_functions_are_made_tools_and_tools_stay() -> None:
    def plain(word: str) -> str:
        return word

    assert as_tool(plain).name == "plain"
    assert as_tool(ping) is ping


@pytest.mark.parametrize("name", ["2nd", "two words", "", "a" * 65, "naïve"])
def test_a_name_no_provider_accepts_is_refused_when_declared(name: str) -> None:
    """B006."""
    with pytest.raises(DefinitionError, match="expected at most 64 letters"):
        Tool(name, func=print)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(DefinitionError, match="<lambda>"):
        tool(lambda: None)


def test_what_is_no_function_is_no_tool() -> None:
    with pytest.raises(DefinitionError, match="expected a function"):
        as_tool(5)  # type: ignore[arg-type]


def test_an_annotation_without_a_schema_is_refused_by_name() -> None:
    def listen(to: Callable[[], None]) -> None: ...

    with pytest.raises(DefinitionError, match="'to' of the tool 'listen' has no JSON schema"):
        tool(listen)


def test_an_annotation_that_cannot_be_read_is_refused() -> None:
    def vague(word: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match="'vague' cannot be read: name 'Nowhere'"):
        tool(vague)


def test_a_parameter_without_a_name_is_refused() -> None:
    def nameless(word: str, /) -> None: ...

    with pytest.raises(DefinitionError, match="'word' of the tool 'nameless' cannot be given by name"):
        tool(nameless)


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": "object", "properties": []}])
def test_parameters_are_an_object_schema(parameters: dict[str, Json]) -> None:
    with pytest.raises(DefinitionError, match="no JSON schema of an object"):
        Tool("x", parameters=parameters, func=print)


def call(made: Tool, data: Json, context: dict[str, Json] | None = None) -> Any:
    return made.invoke(made.read(data), context or {})


def test_arguments_arrive_converted() -> None:
    assert call(issue_refund, {"transaction_id": "t", "amount": 20, "tier": "gold"}) == f"t 20.0 None {Tier.GOLD!r}"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"amount": 1}, "The argument 'transaction_id' is missing, expected string."),
        ({"transaction_id": "t", "amount": "20"}, "The argument 'amount' is \"20\", expected number."),
        (
            {"transaction_id": "t", "amount": 1, "tier": "tin"},
            'The argument \'tier\' is "tin", expected one of "gold", "basic".',
        ),
        (None, "The arguments are no JSON object, expected one with 'transaction_id' (string), 'amount' (number)."),
        ("{bad", "The arguments are no JSON object, expected one with 'transaction_id' (string), 'amount' (number)."),
    ],
)
def test_arguments_that_do_not_fit_are_told_what_was_expected(data: Json, text: str) -> None:
    with pytest.raises(ArgumentsRefused) as refusal:
        issue_refund.read(data)
    assert str(refusal.value) == text


@pytest.mark.parametrize("data", ["", None, [], 12, "text", True])
def test_a_tool_that_requires_nothing_takes_no_object_for_none(data: Json) -> None:
    """B048, B050, CF-12: with a warning."""
    arguments = ping.read(data)
    assert arguments.values == {}
    assert len(arguments.warnings) == 1
    assert call(ping, data) == "pong"


def test_an_extra_argument_is_left_out_with_a_warning() -> None:
    """CF-18."""
    arguments = ping.read({"extra": 1})
    assert arguments.values == {}
    assert arguments.warnings == ("'ping' has no argument 'extra'; it was left out.",)


def test_a_number_too_large_for_the_parameter_is_refused() -> None:
    @tool
    def wait(seconds: float) -> None: ...

    with pytest.raises(ArgumentsRefused, match="'seconds' does not fit"):
        wait.read({"seconds": 10**400})


def test_the_context_is_given_and_not_shown() -> None:
    @tool
    def tier_of(customer: str, context: dict[str, Json]) -> Json:
        """Tell the tier."""
        return [customer, context["tier"]]

    assert list(tier_of.parameters["properties"]) == ["customer"]  # type: ignore[arg-type]
    assert call(tier_of, {"customer": "c", "context": {"tier": "forged"}}, {"tier": "gold"}) == ["c", "gold"]


def test_a_declared_context_argument_is_the_models() -> None:
    parameters: dict[str, Json] = {"type": "object", "properties": {"context": {"type": "string"}}}
    echo = Tool("echo", parameters=parameters, func=lambda context: context)
    assert call(echo, {"context": "said"}, {"tier": "gold"}) == "said"


def test_an_open_function_takes_the_context_and_everything_else() -> None:
    def record(context: dict[str, Json], **rest: Json) -> Json:
        return [dict(context), dict(rest)]

    assert call(Tool("record", func=record), {"a": 1, "context": "forged"}, {"b": 2}) == [{"b": 2}, {"a": 1}]


def test_an_explicit_schema_decides_what_an_open_function_is_given() -> None:
    parameters: dict[str, Json] = {
        "type": "object",
        "properties": {"amount": {"type": "number"}},
        "required": ["amount"],
    }
    open_tool = Tool("record", parameters=parameters, func=lambda **given: given)
    closed_tool = Tool("record", parameters={**parameters, "additionalProperties": False}, func=lambda **given: given)
    assert call(open_tool, {"amount": 1, "note": "x"}) == {"amount": 1, "note": "x"}
    assert call(closed_tool, {"amount": 1, "note": "x"}) == {"amount": 1}
    with pytest.raises(ArgumentsRefused, match="'amount' is missing, expected number"):
        open_tool.read({})


def test_arguments_of_a_builtin_are_those_of_its_schema() -> None:
    parameters: dict[str, Json] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert call(Tool("make", parameters=parameters, func=dict), {"a": 1, "b": 2}) == {"a": 1, "b": 2}


def test_star_arguments_are_nobodys() -> None:
    def many(word: str, *words: str, **more: str) -> None: ...

    assert list(tool(many).parameters["properties"]) == ["word"]  # type: ignore[arg-type]


def test_methods_and_literals_work() -> None:
    class Desk:
        def set_mode(self, mode: Literal["on", "off"] = "off") -> str:
            return mode

    made = tool(Desk().set_mode)
    assert made.parameters["properties"] == {"mode": {"type": "string", "enum": ["on", "off"], "default": "off"}}
    assert call(made, {"mode": "on"}) == "on"


def test_a_default_that_is_no_json_is_not_shown() -> None:
    def wait(seconds: float = float("inf"), words: tuple[str, ...] = ()) -> None: ...

    assert "default" not in str(tool(wait).parameters)


def test_an_async_tool_is_to_be_awaited() -> None:
    @tool
    async def late(word: str) -> str:
        return word

    assert asyncio.run(call(late, {"word": "x"})) == "x"


def test_a_long_docstring_is_cut_where_providers_would_refuse_it() -> None:
    def wordy() -> None: ...

    wordy.__doc__ = "w" * 5000
    assert len(tool(wordy).description) == 1024
