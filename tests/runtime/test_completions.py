"""Whatever a provider leaves out or gets wrong, its answer is read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime.completions import parse_completion
from chatflow_runtime.engine import Answer
from chatflow_runtime.types import ToolCall, Usage

CALL: dict[str, Any] = {
    "id": "call_a",
    "type": "function",
    "function": {"name": "transfer_to_billing", "arguments": '{"reason": "refund"}'},
}


def body(message: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}}], **rest}


def test_text_calls_and_tokens_are_read() -> None:
    payload = body({"content": "Hi", "tool_calls": [CALL]}, usage={"prompt_tokens": 7, "completion_tokens": 2})
    assert parse_completion(payload) == Answer(
        "Hi", (ToolCall("call_a", "transfer_to_billing", '{"reason": "refund"}'),), Usage(7, 2)
    )


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": "none"},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"message": None}]},
        body({"content": None}),
        body({"content": "", "tool_calls": []}),
        body({"content": " \n", "tool_calls": None}),
        body({"content": []}),
        body({"content": [{"type": "text", "text": None}, None]}),
        body({"content": None, "function_call": {"name": "old", "arguments": "{}"}}),
        {"error": {"message": "overloaded"}},
    ],
)
def test_an_answer_that_says_nothing_is_empty(payload: dict[str, Any]) -> None:
    """E05."""
    assert parse_completion(payload) == Answer()


@pytest.mark.parametrize("reason", ["stop", "end_turn", "length", None, "tool_calls"])
def test_calls_count_because_they_are_there(reason: str | None) -> None:
    """B051: finish_reason lies."""
    payload = body({"content": None, "tool_calls": [CALL]})
    payload["choices"][0]["finish_reason"] = reason
    assert len(parse_completion(payload).tool_calls) == 1


def test_no_calls_are_none_even_if_announced() -> None:
    """B051."""
    payload = body({"content": "Hi", "tool_calls": []})
    payload["choices"][0]["finish_reason"] = "tool_calls"
    assert parse_completion(payload) == Answer("Hi")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("", ""),
        (None, ""),
        ("null", "null"),
        ('{"reason": ', '{"reason": '),
        ({"reason": "x"}, '{"reason": "x"}'),
        ([], "[]"),
        (5, "5"),
    ],
)
def test_arguments_stay_as_they_came(given: Any, read: str) -> None:
    """B048, B050: also as an object instead of text."""
    call = copy.deepcopy(CALL)
    call["function"]["arguments"] = given
    assert parse_completion(body({"tool_calls": [call]})).tool_calls[0].arguments == read


def test_missing_parts_of_a_call_are_empty() -> None:
    """B048, CF-19, E05."""
    calls = [{}, None, {"id": None, "function": None}, {"id": 5, "function": {"name": None}}]
    assert parse_completion(body({"tool_calls": calls})).tool_calls == (ToolCall("", "", ""),) * 4


def test_an_id_that_the_client_invented_is_missing() -> None:
    """It would be another one each time, so that no recording matched."""
    call = {**CALL, "id": "3b241101-e2bb-4255-8caf-4136c566a962"}
    assert parse_completion(body({"tool_calls": [call]})).tool_calls[0].id == ""


def test_text_in_parts_is_joined_and_a_refusal_is_text() -> None:
    parts = [{"type": "text", "text": "One "}, {"type": "image"}, {"type": "text", "text": "moment."}]
    assert parse_completion(body({"content": parts})).text == "One moment."
    assert parse_completion(body({"content": None, "refusal": "I cannot."})).text == "I cannot."


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        (None, Usage()),
        ({}, Usage()),
        ("many", Usage()),
        ({"prompt_tokens": None, "completion_tokens": 3}, Usage()),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage()),
        ({"prompt_tokens": 5}, Usage(5, None)),
        ({"prompt_tokens": 5, "completion_tokens": 0}, Usage(5, 0)),
    ],
)
def test_tokens_nobody_counted_are_unknown(usage: Any, read: Usage) -> None:
    """B119: not 0, which litellm says where the provider says nothing."""
    assert parse_completion(body({"content": "Hi"}, usage=usage)).usage == read


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SHAPES = st.recursive(
    JSON,
    lambda inner: (
        st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                ["choices", "message", "content", "tool_calls", "function", "name", "arguments", "id", "usage"], inner
            ),
        )
        | st.lists(inner, max_size=2)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["choices", "usage", "error"]), SHAPES))
def test_no_body_is_too_odd_to_read(payload: dict[str, Any]) -> None:
    assert isinstance(parse_completion(payload), Answer)
