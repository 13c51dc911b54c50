"""What is sent is valid for every provider, and the validator knows what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime.history import conversation, faults, project, refusals
from chatflow_runtime.types import AssistantMessage, Json, Message, ToolCall, ToolResult, UserMessage

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "lookup", "parameters": PARAMETERS}}


def called(*ids: str, content: object = None, **function: object) -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "lookup", "arguments": "{}", **function}}
        for call_id in ids
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def answered(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


USER: dict[str, Any] = {"role": "user", "content": "hi"}
REPLY: dict[str, Any] = {"role": "assistant", "content": "hello"}


def codes(*messages: dict[str, Any], tools: list[dict[str, Any]] | None = None, model: str = "gpt-4o") -> list[str]:
    return [fault.code for fault in faults({"model": model, "messages": messages, "tools": [TOOL, *(tools or [])]})]


def test_a_whole_history_has_no_faults() -> None:
    system = {"role": "system", "content": "Be kind."}
    assert codes(system, USER, called("a", "b"), answered("a"), answered("b"), REPLY, USER) == []


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], ["no_messages"]),
        ([{"role": "system", "content": "x"}], ["no_messages"]),
        ([USER, called("a"), REPLY], ["unanswered_call"]),
        ([USER, called("a")], ["unanswered_call"]),
        ([USER, called("a", "b"), answered("b"), USER], ["unanswered_call"]),
        ([USER, answered("a")], ["orphan_result"]),
        ([USER, called("a"), answered("a"), REPLY, answered("a")], ["orphan_result"]),
        ([USER, called("a"), answered("a"), answered("a")], ["answered_twice"]),
        ([USER, called("a"), USER, answered("a")], ["unanswered_call", "orphan_result"]),
        ([USER, called("a"), answered("a"), called("a"), answered("a")], ["duplicate_id"]),
        ([USER, called("a", "a"), answered("a")], ["duplicate_id"]),
        ([USER, {"role": "assistant", "content": ""}], ["blank_content"]),
        ([USER, {"role": "assistant"}], ["blank_content"]),
        ([{"role": "user", "content": " \n"}], ["blank_content"]),
        ([{"role": "user", "content": [{"type": "text", "text": ""}]}], ["blank_content"]),
        ([USER, called("a", content=""), answered("a")], ["blank_content"]),
        ([USER, called("a", name="2nd line"), answered("a")], ["bad_name"]),
        ([USER, called("a", name=None), answered("a")], ["bad_name"]),
        ([USER, called("a", arguments=""), answered("a")], ["bad_arguments"]),
        ([USER, called("a", arguments=None), answered("a")], ["bad_arguments"]),
        ([USER, called("a", arguments="[]"), answered("a")], ["bad_arguments"]),
        ([USER, called("a", arguments={}), answered("a")], ["bad_arguments"]),
        ([USER, called("x" * 41), answered("x" * 41)], ["bad_id"]),
        ([USER, called(""), answered("")], ["bad_id"]),
        ([USER, called("a.b"), answered("a.b")], ["bad_id"]),
        ([USER, {"role": "function", "content": "x"}], ["unknown_role"]),
    ],
)
def test_what_a_provider_refuses_is_a_fault(messages: list[dict[str, Any]], expected: list[str]) -> None:
    """B036, B055, CF-3, CF-19."""
    assert codes(*messages) == expected


@pytest.mark.parametrize(
    ("messages", "tools", "expected"),
    [
        ([USER, called("a", content=""), answered("a")], [TOOL], {"gpt-4o": [], "claude-x": ["blank_content"]}),
        ([USER, called("a"), answered("a")], [], {"gpt-4o": [], "claude-x": ["tools_missing"]}),
        ([USER, called("a", "b"), answered("a")], [TOOL], {"gpt-4o": ["unanswered_call"]}),
        ([USER, {"role": "assistant", "content": ""}, USER], [TOOL], {"gpt-4o": ["blank_content"]}),
    ],
)
def test_what_one_provider_refuses_is_held_against_its_own_models(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], expected: dict[str, list[str]]
) -> None:
    """B055, B057: a framework that only ever talks to another provider is not blamed for it."""
    for model, codes in expected.items():
        found = refusals({"model": model, "messages": messages, "tools": tools})
        assert [fault.code for fault in found] == codes


def test_text_beside_calls_and_other_content_are_fine() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
    assert codes(picture, called("a", content="One moment."), answered("a")) == []


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ({"name": "lookup", "parameters": PARAMETERS}, "duplicate_tool"),
        ({"name": "transfer_to_日本", "parameters": PARAMETERS}, "bad_name"),
        ({"name": "other"}, "bad_parameters"),
        ({"name": "other", "parameters": {"type": "object"}}, "bad_parameters"),
    ],
)
def test_what_a_provider_refuses_of_tools_is_a_fault(tool: dict[str, Any], code: str) -> None:
    """CF-6, B060."""
    assert codes(USER, tools=[{"type": "function", "function": tool}]) == [code]


def test_calls_without_tools_are_a_fault() -> None:
    """B057."""
    request = {"model": "gpt-4o", "messages": [USER, called("a"), answered("a")]}
    assert [fault.code for fault in faults(request)] == ["tools_missing"]


def test_a_fault_says_where_and_why() -> None:
    (fault,) = faults({"model": "gpt-4o", "messages": [USER, called("a"), USER], "tools": [TOOL]})
    assert (fault.index, fault.message) == (2, "The call 'a' has no result before the next message.")


@pytest.mark.parametrize(
    ("model", "call_id", "is_fine"),
    [
        ("mistral/mistral-large", "call_1", False),
        ("mistral/mistral-large", "abc123XYZ", True),
        ("gemini/gemini-2.5-flash", "call_1__thought__" + "x" * 500, True),
        ("gpt-4o", "call_1", True),
    ],
)
def test_ids_are_held_to_the_providers_rule(model: str, call_id: str, is_fine: bool) -> None:
    assert (codes(USER, called(call_id), answered(call_id), model=model) == []) is is_fine


CLAUDE, GEMINI, GPT = "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash", "gpt-4o"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([REPLY, USER], {CLAUDE: ["user_not_first"], GEMINI: ["user_not_first"], GPT: []}),
        ([USER, REPLY], {CLAUDE: ["nothing_to_answer"], GEMINI: ["nothing_to_answer"], GPT: []}),
        ([USER, REPLY, called("a"), answered("a")], {CLAUDE: [], GEMINI: ["misplaced_call"], GPT: []}),
        ([USER, called("a"), answered("a"), called("b"), answered("b")], {CLAUDE: [], GEMINI: [], GPT: []}),
        ([USER, REPLY, REPLY, USER, USER], {CLAUDE: [], GEMINI: [], GPT: []}),
        ([USER, called("a")], {CLAUDE: ["unanswered_call"], GEMINI: ["unanswered_call"], GPT: ["unanswered_call"]}),
    ],
)
def test_whose_turn_it_is_is_held_to_the_providers_rule(
    messages: list[dict[str, Any]], expected: dict[str, list[str]]
) -> None:
    """Anthropic and Gemini: the user begins, the assistant does not end; Gemini: calls follow the user or a result."""
    system = {"role": "system", "content": "Be kind."}
    assert {model: codes(system, *messages, model=model) for model in expected} == expected


@pytest.mark.parametrize("body", [{}, {"messages": 5}, {"messages": [None, 3, {}]}, {"messages": [{"role": []}]}])
def test_a_body_of_any_shape_can_be_looked_at(body: dict[str, Any]) -> None:
    assert faults(body)


# --- projection

HISTORY: list[Message] = [
    UserMessage("hi"),
    AssistantMessage("Triage", "One moment.", (ToolCall("call_1", "transfer_to_billing", '{"reason": "refund"}'),)),
    ToolResult("call_1", "transfer_to_billing", {"status": "HANDOFF_SUCCESS"}),
    AssistantMessage("Billing", "How much?"),
]


def test_messages_become_chat_completions_messages() -> None:
    function = {"name": "transfer_to_billing", "arguments": '{"reason": "refund"}'}
    assert project(HISTORY, has_tools=True, model="gpt-4o") == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "One moment.",
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": '{"status": "HANDOFF_SUCCESS"}'},
        {"role": "assistant", "content": "How much?"},
    ]


def test_a_leaf_without_tools_reads_calls_as_text() -> None:
    """B057: Bedrock, Anthropic and litellm refuse calls in a request without tools."""
    assert project(HISTORY, has_tools=False, model="gpt-4o") == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": 'One moment.\n[called transfer_to_billing {"reason": "refund"}]'},
        {"role": "user", "content": '[transfer_to_billing returned {"status": "HANDOFF_SUCCESS"}]'},
        {"role": "assistant", "content": "How much?"},
    ]


@pytest.mark.parametrize("arguments", ["", "null", "[]", '"x"', "12", '{"reason": ', '{"x": NaN}', "[" * 5000])
def test_unusable_arguments_go_back_as_an_object(arguments: str) -> None:
    """B048, B050."""
    said = AssistantMessage("A", None, (ToolCall("a", "t", arguments),))
    sent: Any = project([said, ToolResult("a", "t", 1)], has_tools=True, model="gpt-4o")
    assert sent[0]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert sent[0]["content"] is None


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_blank_text_beside_calls_is_not_sent(text: str | None) -> None:
    """B055."""
    said = AssistantMessage("A", text, (ToolCall("a", "t"),))
    assert project([said], has_tools=True, model="gpt-4o")[0]["content"] is None
    assert project([said], has_tools=False, model="gpt-4o")[0]["content"] == "[called t {}]"


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        ("text", "text"),
        ("", '""'),
        (" ", '" "'),
        (None, "null"),
        (5, "5"),
        ({"é": [1]}, '{"é": [1]}'),
    ],
)
def test_a_result_is_never_blank(content: Json, sent: str) -> None:
    assert project([ToolResult("a", "t", content)], has_tools=True, model="gpt-4o")[0]["content"] == sent


@pytest.mark.parametrize("call_id", ["x" * 41, "a.b", "toolu_01é", ""])
def test_an_id_that_the_provider_refuses_is_rewritten_the_same_way_every_time(call_id: str) -> None:
    """B058."""
    history: list[Message] = [AssistantMessage("A", None, (ToolCall(call_id, "t"),)), ToolResult(call_id, "t", 1)]
    first: Any = project(history, has_tools=True, model="gpt-4o")
    assert first == project(history, has_tools=True, model="anthropic/claude")
    assert first[0]["tool_calls"][0]["id"] == first[1]["tool_call_id"] != call_id
    assert len(first[1]["tool_call_id"]) == 9


def test_gemini_gets_its_ids_back_and_mistral_its_own_kind() -> None:
    """litellm carries Gemini's thought signatures in the ids."""
    call_id = "call_1__thought__" + "x" * 100
    history: list[Message] = [AssistantMessage("A", None, (ToolCall(call_id, "t"),)), ToolResult(call_id, "t", 1)]
    assert project(history, has_tools=True, model="gemini/gemini-3-pro")[1]["tool_call_id"] == call_id
    assert len(str(project(history, has_tools=True, model="mistral/large")[1]["tool_call_id"])) == 9


def test_half_an_emoji_does_not_poison_later_requests() -> None:
    sent = project([UserMessage("hi \ud83d"), ToolResult("a", "t", ["\ud83d"])], has_tools=True, model="gpt-4o")
    assert json.dumps(sent, ensure_ascii=False).encode()


def test_a_model_that_goes_on_after_an_assistants_words_reads_whose_they_are() -> None:
    """Agents that speak one after the other: Claude and Gemini refuse to answer an assistant, others imitate it."""
    sent = conversation([*HISTORY, AssistantMessage("Tech", "Anything else?")], has_tools=True, model=GPT)
    assert sent == [
        *project(HISTORY, has_tools=True, model=GPT),
        {"role": "user", "content": "Tech: Anything else?"},
    ]


@pytest.mark.parametrize("has_tools", [True, False])
def test_what_was_said_and_done_before_the_user_spoke_is_told(has_tools: bool) -> None:
    """As a filter may leave it: Claude and Gemini want the user to begin."""
    sent = conversation([*HISTORY[1:], UserMessage("Ten.")], has_tools=has_tools, model=CLAUDE)
    assert [(message["role"], message["content"]) for message in sent] == [
        ("user", 'Triage: One moment.\n[called transfer_to_billing {"reason": "refund"}]'),
        ("user", '[transfer_to_billing returned {"status": "HANDOFF_SUCCESS"}]'),
        ("assistant", "How much?"),
        ("user", "Ten."),
    ]


def test_an_assistants_words_before_its_calls_are_one_message() -> None:
    """Gemini: a call right after the assistant's own words is refused."""
    call = AssistantMessage("B", None, (ToolCall("b", "lookup"),))
    said = [AssistantMessage("A", "One."), AssistantMessage("B", "Two."), call]
    sent = conversation([UserMessage("hi"), *said, ToolResult("b", "lookup", 1)], has_tools=True, model=GEMINI)
    assert [(message["role"], message["content"]) for message in sent] == [
        ("user", "hi"),
        ("assistant", "One.\nTwo."),
        ("tool", "1"),
    ]
    assert faults({"model": GEMINI, "messages": sent, "tools": [TOOL]}) == ()


TEXTS = st.none() | st.text(max_size=8)
ARGUMENTS = st.sampled_from(["{}", "", "null", '{"a": 1}', '{"a": ']) | st.text(max_size=5)
CONTENTS: st.SearchStrategy[Any] = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=3))


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """What may have been said: calls answered in order, ids unique, all else at will, whoever begins and ends."""
    history: list[Message] = []
    made = 0
    for _ in range(draw(st.integers(1, 4))):
        history.append(UserMessage(draw(st.text(min_size=1).filter(str.strip))))
        for _ in range(draw(st.integers(0, 3))):
            calls = []
            for _ in range(draw(st.integers(1, 3))):
                made += 1
                call_id = f"{draw(st.text(max_size=50))}-{made:03}"
                calls.append(ToolCall(call_id, draw(st.text(max_size=70)), draw(ARGUMENTS)))
            history.append(AssistantMessage("A", draw(TEXTS), tuple(calls)))
            history.extend(ToolResult(call.id, call.name, draw(CONTENTS)) for call in calls)
        texts = draw(st.lists(st.text(min_size=1).filter(str.strip), max_size=3))
        history.extend(AssistantMessage(agent, text) for agent, text in zip("ABA", texts, strict=False))
    return history[draw(st.integers(0, 1)) :] or history


@given(histories(), st.booleans(), st.sampled_from(["gpt-4o", "claude-x", "gemini/gemini-2.5-flash", "mistral/large"]))
def test_every_history_is_sent_in_a_form_that_is_valid(history: list[Message], has_tools: bool, model: str) -> None:
    """B036, B048, B055, B057 and their whole kind."""
    body: dict[str, Any] = {"model": model, "messages": conversation(history, has_tools=has_tools, model=model)}
    if has_tools:
        body["tools"] = [TOOL]
    assert faults(body) == ()
    assert json.dumps(body, ensure_ascii=False).encode()
