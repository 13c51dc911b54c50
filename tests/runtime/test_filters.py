"""What a call's target sees: filters over chat messages, and the way there and back."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime.engine import ModelRequest, ToolSchema
from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.filters import (
    ChatMessage,
    Filter,
    HandoffInputData,
    as_chat,
    compress_history,
    from_chat,
    keep_last_n_messages,
    remove_all_tools,
    remove_system_messages,
    settled,
)
from chatflow_runtime.history import faults
from chatflow_runtime.types import AssistantMessage, Message, ToolCall, ToolResult, UserMessage


def called(*ids: str, text: str | None = None) -> ChatMessage:
    calls = [{"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "name": "A", "content": text, "tool_calls": calls}


def result(call_id: str) -> ChatMessage:
    return {"role": "tool", "tool_call_id": call_id, "name": "look", "content": f"found {call_id}"}


def user(text: str) -> ChatMessage:
    return {"role": "user", "content": text}


SYSTEM: ChatMessage = {"role": "system", "content": "Be kind."}
ONE, TWO = user("one"), user("two")
EXCHANGE = [ONE, called("c1"), result("c1"), TWO]


def filtered(messages: list[ChatMessage], *filters: Filter) -> list[ChatMessage]:
    data = HandoffInputData(messages)
    for each in filters:
        data = each(data)
    return data.messages


@pytest.mark.parametrize(
    ("n", "kept"),
    [
        (0, []),
        (1, [TWO]),
        (2, [TWO]),
        (3, EXCHANGE[1:]),
        (4, EXCHANGE),
        (1000, EXCHANGE),
    ],
)
def test_the_last_messages_are_kept_with_whole_exchanges_only(n: int, kept: list[ChatMessage]) -> None:
    """B040, PR-15: 0 is none; a result never stands without its call."""
    assert filtered(EXCHANGE, keep_last_n_messages(n)) == kept


def test_an_exchange_of_several_results_is_whole_or_out() -> None:
    messages = [ONE, called("c1", "c2"), result("c1"), result("c2")]
    assert filtered(messages, keep_last_n_messages(2)) == []
    assert filtered(messages, keep_last_n_messages(3)) == messages[1:]


@pytest.mark.parametrize("n", [-1, 1.5, True, "2", None])
def test_a_number_of_messages_is_a_whole_number(n: Any) -> None:
    """B040."""
    with pytest.raises(DefinitionError, match="whole number of 0 or more"):
        keep_last_n_messages(n)


def test_tools_are_removed_and_what_was_said_beside_them_stays() -> None:
    messages = [ONE, called("c1", text="One moment."), result("c1"), called("c2"), result("c2"), TWO]
    said = {"role": "assistant", "name": "A", "content": "One moment."}
    assert filtered(messages, remove_all_tools) == [ONE, said, TWO]


def test_system_messages_are_removed() -> None:
    developer: ChatMessage = {"role": "developer", "content": "Be brief."}
    assert filtered([SYSTEM, ONE, developer], remove_system_messages) == [ONE]


def test_a_history_is_compressed_to_one_message() -> None:
    messages = [SYSTEM, ONE, called("c1", text="Wait."), result("c1")]
    (summary,) = filtered(messages, compress_history)
    assert summary == user(
        "Previous conversation summary:\n[system]: Be kind.\n[user]: one\n[assistant]: Wait.\n"
        "[assistant called look]: {}\n[tool]: found c1"
    )
    assert filtered([], compress_history) == []


def test_the_parts_of_a_message_are_told_as_text() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": "x"}]}
    assert filtered([parts], compress_history)[0]["content"].endswith("[user]: see")


FILTERS: dict[str, Filter] = {
    "remove_all_tools": remove_all_tools,
    "keep_last_n_messages": keep_last_n_messages(3),
    "remove_system_messages": remove_system_messages,
    "compress_history": compress_history,
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_are_pure_and_keep_every_other_field(name: str) -> None:
    """B037."""
    messages = [SYSTEM, *EXCHANGE]
    data = HandoffInputData(messages, {"order": 7}, None, 2, ("A", "B"), 10)
    before = copy.deepcopy(data)
    after = FILTERS[name](data)
    assert data == before
    assert (after.context, after.handoff_depth, after.handoff_chain, after.max_depth) == (
        {"order": 7},
        2,
        ("A", "B"),
        10,
    )
    for message in after.messages:
        message.clear()
    assert data == before


@pytest.mark.parametrize("names", list(itertools.permutations(FILTERS, 2)), ids="-".join)
def test_filters_in_any_order_give_a_valid_history(names: tuple[str, str]) -> None:
    """B037: tool data does not reappear."""
    messages = [SYSTEM, *EXCHANGE, called("c2", "c3"), result("c2"), result("c3"), user("three")]
    after = filtered(messages, *(FILTERS[name] for name in names))
    assert_valid(from_chat(after, "A")[1])
    if "remove_all_tools" in names:
        assert not [message for message in after if message.get("tool_calls") or message["role"] == "tool"]


def test_other_names_of_chain_and_depth() -> None:
    """The second document's aliases."""
    data = HandoffInputData([], handoff_depth=2, handoff_chain=("A",), max_depth=3)
    assert (data.depth, data.chain, data.max_depth) == (2, ("A",), 3)


# --- the way there and back


def look(call_id: str) -> ToolCall:
    return ToolCall(call_id, "look", '{"x": 1}')


HISTORY: list[Message] = [
    UserMessage("one"),
    AssistantMessage("A", "Wait.", (look("c1"), look("c2"))),
    ToolResult("c1", "look", "one"),
    ToolResult("c2", "look", "gone", is_error=True),
    AssistantMessage("A", "There."),
]


def test_messages_come_back_as_they_went() -> None:
    assert from_chat(as_chat(HISTORY), "B") == ("", HISTORY)


def test_data_comes_back_as_its_json() -> None:
    data = [HISTORY[1], ToolResult("c1", "look", {"a": ["é"]}), ToolResult("c2", "look", 1)]
    assert [each.content for each in from_chat(as_chat(data), "A")[1] if isinstance(each, ToolResult)] == [
        '{"a": ["é"]}',
        "1",
    ]


def test_a_message_of_nobodys_is_the_speakers() -> None:
    assert from_chat([{"role": "assistant", "content": "Hm."}], "B")[1] == [AssistantMessage("B", "Hm.")]


def test_system_messages_are_instructions() -> None:
    assert from_chat([SYSTEM, ONE, {"role": "developer", "content": "Be brief."}], "A") == (
        "Be kind.\n\nBe brief.",
        [UserMessage("one")],
    )


def test_an_unknown_role_is_an_error() -> None:
    with pytest.raises(ValueError, match="the role 'robot'"):
        from_chat([{"role": "robot"}], "A")


def test_what_is_open_orphaned_blank_or_repeated_is_left_out() -> None:
    open_call, done = AssistantMessage("A", None, (look("c1"), look("c2"))), ToolResult("c1", "look", 1)
    assert settled([open_call, done]) == [AssistantMessage("A", None, (look("c1"),)), done]
    assert settled([AssistantMessage("A", None, (look("c1"),)), UserMessage("x"), done]) == [UserMessage("x")]
    assert settled([AssistantMessage("A", "Wait.", (look("c1"),))]) == [AssistantMessage("A", "Wait.")]
    assert settled([done, UserMessage(" "), AssistantMessage("A", "")]) == []
    assert settled([*HISTORY, *HISTORY]) == [*HISTORY, UserMessage("one"), AssistantMessage("A", "Wait."), HISTORY[-1]]


ids = st.sampled_from(["c1", "c2", "c3"])
messages = st.one_of(
    st.builds(UserMessage, st.sampled_from(["hi", " "])),
    st.builds(
        AssistantMessage,
        st.just("A"),
        st.sampled_from([None, "", "well"]),
        st.lists(st.builds(look, ids), max_size=3, unique_by=lambda call: call.id).map(tuple),
    ),
    st.builds(ToolResult, ids, st.just("look"), st.just("found")),
)


@given(st.lists(messages, max_size=12))
def test_whatever_it_was_a_settled_history_is_valid(history: list[Message]) -> None:
    assert_valid(settled(history))
    assert settled(settled(history)) == settled(history)


def assert_valid(history: list[Message]) -> None:
    """For every provider, once there is something to answer."""
    tool = ToolSchema("look", "", {"type": "object", "properties": {}})
    request = ModelRequest(
        agent="A", model="gpt-4.1", instructions="", history=(*history, UserMessage("end")), tools=(tool,)
    )
    assert faults(request.projection()) == ()
