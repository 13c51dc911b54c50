"""Handoff tools, and states: messages, the calls that are open, and their answers."""

from __future__ import annotations

from typing import Any

import pytest

from chatflow_runtime.dialects.synaptic import create_agent
from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.handoffs import transfer_tool
from chatflow_runtime.states import MessageState, create_handoff_tool
from chatflow_runtime.types import AssistantMessage, ToolCall, ToolResult, UserMessage


def results(state: MessageState) -> list[tuple[str, object]]:
    return [(each.call_id, each.content) for each in state.messages if isinstance(each, ToolResult)]


# --- handoff tools


def test_a_handoff_tool_is_what_the_document_says() -> None:
    handoff = create_handoff_tool("billing", "Transfer to the billing specialist")
    assert handoff.name == "transfer_to_billing"
    assert handoff.description == "Transfer to the billing specialist"
    assert handoff.parameters == {"type": "object", "properties": {}}
    assert handoff() == handoff({}) == handoff(reason="x") == "Transferring to agent 'billing'."


def test_names_are_used_as_given() -> None:
    assert create_handoff_tool("BillingAgent", "").name == "transfer_to_BillingAgent"
    assert create_handoff_tool("human-review_2", "").name == "transfer_to_human-review_2"


@pytest.mark.parametrize("name", ["Billing Agent", "日本", "a.b", "x" * 53, "", " ", "é"])
def test_names_that_some_provider_refuses_are_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="named"):
        create_handoff_tool(name, "")


def test_a_transfer_tool_of_another_kind_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"'escalate' leads to 'b', expected a tool of create_handoff_tool\(\)"):
        create_agent("m", [transfer_tool("escalate", target="b", description="")])


# --- states


def test_a_state_is_its_messages() -> None:
    assert MessageState().last_message() is None
    state = MessageState([UserMessage("hi")]).adding(AssistantMessage("a", "ho"), UserMessage("again"))
    assert state.last_message() == UserMessage("again")
    assert len(state.messages) == 3
    assert [message.tool_calls for message in state.messages] == [(), (), ()]


def test_what_is_no_message_is_refused_by_its_place() -> None:
    wrong: Any = [UserMessage("hi"), {"role": "user"}]
    with pytest.raises(TypeError, match=r"messages\[1\] is a dict, expected a UserMessage"):
        MessageState(wrong)


def test_open_calls_are_those_of_the_last_exchange_that_nothing_answers() -> None:
    first, second = ToolCall("1", "look"), ToolCall("2", "transfer_to_b")
    asked = MessageState([AssistantMessage("a", None, (first, second))])
    assert asked.open_calls == (first, second)
    half = asked.answering([ToolResult("2", "transfer_to_b", "yes")])
    assert half.open_calls == (first,)
    assert half.last_message() == asked.last_message()
    whole = half.answering([ToolResult("1", "look", 5)])
    assert results(whole) == [("1", 5), ("2", "yes")]
    assert (whole.open_calls, whole.answers) == ((), ())


def test_going_on_with_a_state_answers_what_is_open() -> None:
    asked = MessageState([AssistantMessage("a", None, (ToolCall("1", "look"), ToolCall("2", "transfer_to_b")))])
    state = asked.adding(UserMessage("well?"))
    assert results(state) == [("1", "Error: this call was not answered."), ("2", "Transferring to agent 'b'.")]
    assert state.closed() == state


def test_results_that_a_function_gave_itself_are_kept() -> None:
    call, other = ToolCall("1", "look"), ToolCall("2", "transfer_to_b")
    asked = MessageState([AssistantMessage("a", None, (call, other)), ToolResult("2", "transfer_to_b", "yes")])
    assert asked.open_calls == (call,)
    assert [name for name, _ in results(asked.closed())] == ["1", "2"]
