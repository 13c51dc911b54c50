"""Whatever a provider leaves out or gets wrong, its answer is read."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime.completions import join_completion, parse_completion
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
KEYS = ("choices", "message", "content", "tool_calls", "function", "name", "arguments", "id", "usage")
STREAM_KEYS = ("delta", "index", "finish_reason", "error")
SHAPES = st.recursive(
    JSON,
    lambda inner: (
        st.fixed_dictionaries(
            {},
            optional=dict.fromkeys((*KEYS, *STREAM_KEYS), inner),
        )
        | st.lists(inner, max_size=2)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["choices", "usage", "error"]), SHAPES))
def test_no_body_is_too_odd_to_read(payload: dict[str, Any]) -> None:
    assert isinstance(parse_completion(payload), Answer)


# --- streams


def chunk(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(index: int | None = None, call_id: str | None = None, **function: Any) -> dict[str, Any]:
    """A chunk with one piece of a tool call, without what is not given."""
    given = {"index": index, "id": call_id}
    return chunk(tool_calls=[{**{k: v for k, v in given.items() if v is not None}, "function": function}])


END = chunk("stop")
USAGE: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def joined(*pieces: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(call.id, call.name, call.arguments) for call in join_completion([*pieces, END]).tool_calls]


def test_a_streamed_text_is_joined_with_its_white_space() -> None:
    chunks = [chunk(role="assistant", content=""), *(chunk(content=text) for text in ("Hello", " ", "you")), END]
    assert join_completion(chunks) == Answer("Hello you")
    assert join_completion([chunk(content=[{"type": "text", "text": "Hi"}]), chunk(content=None), END]).text == "Hi"
    assert join_completion([chunk(refusal="I "), chunk(refusal="cannot."), END]).text == "I cannot."


def test_a_character_may_come_in_two_halves() -> None:
    assert join_completion([chunk(content="\ud83d"), chunk(content="\ude00!"), END]).text == "\N{GRINNING FACE}!"
    assert join_completion([chunk(content="cut \ud83d"), END]).text == "cut \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        ([piece(0, "a", name="f", arguments=""), piece(0, arguments='{"x"'), piece(0, arguments=": 1}")], ["a f {x}"]),
        ([piece(1, "a", name="f", arguments=""), piece(1, arguments='{"x": 1}')], ["a f {x}"]),
        ([piece(0, "a", name="f"), piece(1, "b", name="g"), piece(0, arguments='{"x": 1}')], ["a f {x}", "b g"]),
        ([piece(0, "a", name="f", arguments="{}"), piece(0, "b", name="g", arguments="{}")], ["a f {}", "b g {}"]),
        ([piece(0, "a", name="f", arguments="{}"), piece(0, "b", name="f", arguments="{}")], ["a f {}", "b f {}"]),
        ([piece(0, "", name="f", arguments="{}"), piece(0, "", name="g", arguments="{}")], [" f {}", " g {}"]),
        ([piece(0, name="f", arguments="{}"), piece(0, name="f", arguments='{"x": 1}')], [" f {}", " f {x}"]),
        ([piece(0, "a", name="f"), piece(0, "b", name="g"), piece(0, "a", arguments="{}")], ["a f {}", "b g"]),
        ([piece(None, "a", name="f"), piece(arguments="{}"), piece(None, "b", name="g")], ["a f {}", "b g"]),
        ([piece(None, "a", name="f", arguments="{}"), piece(None, "b", name="g")], ["a f {}", "b g"]),
        ([piece(None, name="f", arguments="{"), piece(arguments="}"), piece(name="g")], [" f {}", " g"]),
        ([piece(0, "a", name="f"), piece(None, arguments="{}")], ["a f {}"]),
        ([piece(0, "a", name="f", arguments="{"), piece(0, "a", name="f", arguments="}")], ["a f {}"]),
        ([piece(0, name="f", arguments="{"), piece(0, name="f", arguments="}")], [" f {}"]),
        ([piece(0, "a", name="f", arguments="{}"), piece(0, "a", name="f", arguments="")], ["a f {}"]),
        ([piece(0, "a", name="f", arguments="{}"), piece(0, "a", name="g", arguments="{}")], ["a f {}", "a g {}"]),
        ([piece(0, name="f"), piece(0, "a", arguments="{}")], ["a f {}"]),
        ([piece(0, "a", name="f", arguments=None)], ["a f"]),
        ([piece(0, "a", name="f", arguments={"x": 1})], ["a f {x}"]),
        ([piece(0, "a", name="f", arguments="{}"), piece(1, arguments=""), piece(2)], ["a f {}"]),
    ],
)
def test_the_pieces_of_calls_are_put_together(pieces: list[dict[str, Any]], calls: list[str]) -> None:
    """B048, B050, B052, B053: indices missing, all 0, from 1; ids only at first, or never; arguments empty or null."""
    told = [f"{call_id} {name} {arguments}".rstrip() for call_id, name, arguments in joined(*pieces)]
    assert told == [call.replace("{x}", '{"x": 1}') for call in calls]


def test_several_pieces_may_come_in_one_chunk_beside_text() -> None:
    both = [{"index": index, "id": str(index), "function": {"name": "f", "arguments": "{}"}} for index in (0, 1)]
    answer = join_completion([chunk(content="One moment.", tool_calls=both), END])
    assert answer == Answer("One moment.", (ToolCall("0", "f"), ToolCall("1", "f")))


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "end_turn", "length"])
def test_calls_of_a_stream_count_because_they_are_there(reason: str) -> None:
    """B051: finish_reason lies."""
    assert len(join_completion([piece(0, "a", name="f"), chunk(reason)]).tool_calls) == 1
    assert join_completion([chunk(content="Hi"), chunk(reason)]) == Answer("Hi")


@pytest.mark.parametrize(
    ("chunks", "usage"),
    [
        ([chunk(content="Hi"), END], Usage()),
        ([chunk(content="Hi"), END, USAGE], Usage(7, 2)),
        ([{**chunk(content="Hi"), "usage": {"prompt_tokens": 7, "completion_tokens": 1}}, END, USAGE], Usage(7, 2)),
        ([chunk(content="Hi"), {**END, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}], Usage(7, 2)),
        ([{**chunk(content="Hi"), "usage": None}, END, {"choices": [], "usage": None}], Usage()),
    ],
)
def test_tokens_of_a_stream_are_what_was_said_last(chunks: list[dict[str, Any]], usage: Usage) -> None:
    """B119."""
    assert join_completion(chunks) == Answer("Hi", usage=usage)


@pytest.mark.parametrize(
    ("chunks", "told"),
    [
        ([], "after 0 chunks, before its finish_reason"),
        ([chunk(content="Hel"), chunk(content="lo")], "after 2 chunks, before its finish_reason"),
        ([piece(0, "a", name="transfer_to_billing", arguments="{"), chunk("")], "after 2 chunks"),
        ([chunk(content="Hel"), {"error": {"message": "overloaded"}}, END], "after 1 chunks: overloaded"),
        ([{"error": "overloaded"}], "overloaded"),
    ],
)
def test_a_stream_that_breaks_off_is_an_error_and_no_short_answer(chunks: list[dict[str, Any]], told: str) -> None:
    """B088."""
    with pytest.raises(ConnectionError, match=told):
        join_completion(chunks)


def test_only_the_first_choice_is_the_answer() -> None:
    second = {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}
    assert join_completion([chunk(content="Hi"), second, END]) == Answer("Hi")
    with pytest.raises(ConnectionError):
        join_completion([chunk(content="Hi"), second])


CALLS = st.lists(
    st.tuples(st.sampled_from(["f", "g"]), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)), max_size=4
)


def cut(text: str, places: list[int]) -> Iterator[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    yield from (text[start:end] for start, end in itertools.pairwise(ends))


@given(st.text(max_size=9), CALLS, st.lists(st.integers(0, 99), max_size=6), st.sampled_from(["counted", "zero", "no"]))
def test_however_an_answer_is_cut_it_is_joined_to_the_same(
    text: str, calls: list[tuple[str, dict[str, int]]], places: list[int], index: str
) -> None:
    """B052, B053, B088 and their whole kind."""
    chunks = [chunk(content=part) for part in cut(text, places)]
    for number, (name, arguments) in enumerate(calls):
        at = {"counted": number, "zero": 0, "no": None}[index]
        chunks.append(piece(at, f"id_{number}", name=name, arguments=""))
        chunks += [piece(at, arguments=part) for part in cut(json.dumps(arguments), places)]
    expected = tuple(ToolCall(f"id_{n}", name, json.dumps(given)) for n, (name, given) in enumerate(calls))
    assert join_completion([*chunks, END, USAGE]) == Answer(text if text.strip() else None, expected, Usage(7, 2))


@given(st.lists(st.dictionaries(st.sampled_from(["choices", "usage", "error"]), SHAPES), max_size=3))
def test_no_stream_is_too_odd_to_read(chunks: list[dict[str, Any]]) -> None:
    with contextlib.suppress(ConnectionError):
        assert isinstance(join_completion(chunks), Answer)
