"""What the second seed document shows, feature by feature; docs/features-praisonai.md leads here."""

from __future__ import annotations

import asyncio
import enum
import inspect
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from chatflow_runtime import agent as runtime
from chatflow_runtime.dialects import praisonai
from chatflow_runtime.dialects.praisonai import (
    RECOMMENDED_PROMPT_PREFIX,
    Agent,
    AgentRunOutcome,
    ContextPolicy,
    Handoff,
    HandoffConfig,
    HandoffCycleError,
    HandoffDepthError,
    HandoffError,
    HandoffInputData,
    HandoffResult,
    HandoffTimeoutError,
    HandoffToolPolicy,
    HandoffValidationError,
    TypedHandoff,
    handoff,
    handoff_filters,
    parallel_handoffs,
    prompt_with_handoff_instructions,
)
from chatflow_runtime.engine import Answer, Call, ModelRequest, Say, ScriptedEngine, Transfer, using
from chatflow_runtime.events import (
    Event,
    HandoffAccepted,
    HandoffRefused,
    HandoffReturned,
    LimitHit,
    ModelAnswered,
    ModelAsked,
    ToolAnswered,
    ToolCalled,
    TurnEnded,
    TurnStarted,
)
from chatflow_runtime.exceptions import DefinitionError, RunningLoopError, ScriptError
from chatflow_runtime.handoffs import HandoffTool
from chatflow_runtime.keyword_engine import KeywordEngine
from chatflow_runtime.limits import EXECUTIONS_EXCEEDED, HANDOFFS_EXCEEDED
from chatflow_runtime.runner import Runner
from chatflow_runtime.tools import Tool, tool
from chatflow_runtime.types import AssistantMessage, Json, LimitReached, ToolCall, ToolResult, UserMessage
from chatflow_runtime.types import Handoff as Wish

Converse = Callable[..., Any]


def line(*names: str, **options: Any) -> list[Agent]:
    """Agents, each of which can hand off to the next."""
    agents = [Agent(name) for name in names]
    for source, target in pairwise(agents):
        source.handoffs = [handoff(target, **options)]
    return agents


# --- a handoff is a call that comes back


def test_a_handoff_comes_back_and_the_source_says_the_last_word(converse: Converse) -> None:
    """Detect, transfer, run, return."""
    a, _ = line("A", "B")
    said = converse(a, Transfer("B", "boats"), "A red one.", "B says: a red one.", text="Which boat?")
    assert [request.agent for request in said.requests] == ["A", "B", "A"]
    assert said.results == [ToolResult("call_1", "transfer_to_b", "A red one.")]
    assert (said.response.content, said.response.active_agent_name) == ("B says: a red one.", "A")
    assert said.response.handoffs == (Wish("B", "boats"),)
    assert said.runner.replace(engine=ScriptedEngine(["Hm."])).run("s", "Thanks.").active_agent_name == "A"


def test_observers_are_told_of_the_call_and_of_what_happens_inside(converse: Converse) -> None:
    a, _ = line("A", "B")
    said = converse(a, Transfer("B", "boats"), "A red one.", "Red.")
    assert [type(event) for event in said.events] == [
        TurnStarted,
        ModelAsked,
        ModelAnswered,
        HandoffAccepted,
        ModelAsked,
        ModelAnswered,
        HandoffReturned,
        ModelAsked,
        ModelAnswered,
        TurnEnded,
    ]
    assert said.told(HandoffAccepted) == [HandoffAccepted("A", "B", "transfer_to_b", "boats", "call", "call_1")]
    assert said.told(HandoffReturned) == [HandoffReturned("A", "B", "call_1")]
    assert [(event.agent, event.within) for event in said.told(ModelAsked)] == [
        ("A", ()),
        ("B", ("call_1",)),
        ("A", ()),
    ]


def test_calls_inside_calls_are_told_with_all_calls_around_them(converse: Converse) -> None:
    """B117."""
    a, *_ = line("A", "B", "C")
    said = converse(a, Transfer("B"), Transfer("C"), "C.", "B.", "A.")
    assert [(event.target, event.within) for event in said.told(HandoffAccepted)] == [("B", ()), ("C", ("call_1",))]
    assert [event.within for event in said.told(ModelAsked)] == [
        (),
        ("call_1",),
        ("call_1", "call_1"),
        ("call_1",),
        (),
    ]


def test_several_calls_of_one_answer_all_run_in_order(converse: Converse) -> None:
    """First wins is for transfers."""
    a = Agent("A", tools=[ping], handoffs=[Agent("B"), Agent("C")])
    said = converse(a, [Transfer("C"), Call("ping"), Transfer("B"), Transfer("C")], "C1", "B1", "C2", "Done.")
    assert [result.content for result in said.results] == ["C1", "pong", "B1", "C2"]
    assert len(said.response.handoffs) == 3


@tool
def ping() -> str:
    """Answer."""
    return "pong"


@tool
def look() -> str:
    """Look something up."""
    return "found"


def test_the_tool_is_named_and_described_after_its_target() -> None:
    """The default of both overrides."""
    a = Agent("A", handoffs=[Agent("Billing Team", "Handle billing inquiries.")])
    (made,) = a.get_all_tools()
    assert made.name == "transfer_to_billing_team"
    assert made.description == (
        "Hand off the dialogue to 'Billing Team'. Target agent specialty: Handle billing inquiries."
    )
    assert made.parameters == {"type": "object", "properties": {"reason": {"type": "string"}}}


def test_the_tool_takes_a_name_and_a_description_of_its_own(converse: Converse) -> None:
    """tool_name_override, tool_description_override."""
    manager = handoff(Agent("Manager"), tool_name_override="escalate", tool_description_override="Hard cases.")
    said = converse(Agent("A", handoffs=[manager]), Call("escalate"), "Yes?", "Done.")
    assert [(each.name, each.description) for each in said.requests[0].tools] == [("escalate", "Hard cases.")]
    assert [event.tool for event in said.told(HandoffAccepted)] == ["escalate"]


def test_the_same_agent_twice_is_one_handoff_and_two_settings_are_two() -> None:
    b = Agent("B")
    assert len(Agent("A", handoffs=[b, b]).handoff_tools) == 1
    a = Agent("A", handoffs=[b, handoff(b, tool_name_override="ask_b"), handoff(b, max_concurrent=1)])
    assert [made.name for made in a.get_all_tools()] == ["transfer_to_b", "ask_b", "transfer_to_b_2"]


def test_one_handoff_can_be_several_agents() -> None:
    to_b = handoff(Agent("B"))
    assert to_b in {to_b}
    assert Agent("A", handoffs=[to_b]).handoff_tools == Agent("C", handoffs=[to_b]).handoff_tools == (to_b,)


def test_a_domain_tools_wish_to_hand_off_is_carried_out_the_same_way(converse: Converse) -> None:
    route = Tool("route", func=lambda: Wish("B", "boats", {"tier": "gold"}))
    tier = Tool("tier", func=lambda context: context["tier"])
    b = Agent("B", tools=[tier])
    a = Agent("A", tools=[route], handoffs=[handoff(b, tool_policy_mode="passthrough")])
    said = converse(a, Call("route"), Call("tier"), "B.", "A.")
    assert said.results == [ToolResult("call_1", "route", "B.")]
    assert said.asked("B")[1].history[-1].content == "gold"
    assert said.runner.get_session("s").context == {"tier": "gold"}


def test_a_models_text_beside_the_call_stays_with_the_source(converse: Converse) -> None:
    """B022."""
    a, _ = line("A", "B")
    said = converse(a, [Say("One moment."), Transfer("B")], "B.", "A.")
    assert said.asked("B")[0].history == (UserMessage("hi"), AssistantMessage("A", "One moment."))


# --- the agent


def test_an_agent_answers_in_a_conversation_of_its_own() -> None:
    """start, chat, astart, achat."""
    a = Agent("A", "Be kind.")
    engine = ScriptedEngine(["One.", "Two.", "Three.", "Four."])
    with using(engine):
        assert a.start("1") == "One."
        assert a.chat("2") == "Two."
        assert asyncio.run(a.astart("3")) == "Three."
        assert asyncio.run(a.achat("4")) == "Four."
    texts = [text for pair in zip("1234", ["One.", "Two.", "Three.", "Four."], strict=True) for text in pair]
    assert [message["content"] for message in a.chat_history] == texts
    assert [len(request.history) for request in engine.requests] == [1, 3, 5, 7]


async def test_in_a_running_loop_the_error_names_the_async_form() -> None:
    """B147."""
    a = Agent("A")
    for call in (a.chat, a.start):
        with pytest.raises(RunningLoopError, match=r"await agent\.achat\("):
            call("hi")


def test_instructions_are_optional() -> None:
    engine = ScriptedEngine(["Hello."])
    with using(engine):
        Agent(name="A").start("hi")
    assert engine.requests[0].instructions == ""


def test_the_model_has_two_names() -> None:
    assert (Agent("A", llm="gpt-4.1").model, Agent("A", model="gpt-4.1").model) == ("gpt-4.1", "gpt-4.1")
    assert Agent("A", llm="m", model="m").model == "m"
    with pytest.raises(DefinitionError, match="the model 'a' and the llm 'b'"):
        Agent("A", model="a", llm="b")


def test_allow_delegation_warns_and_names_what_replaced_it() -> None:
    with pytest.warns(DeprecationWarning, match=r"handoffs=\[\.\.\.\]"):
        Agent("A", allow_delegation=True)


def test_a_setting_that_there_is_none_of_is_an_error() -> None:
    """B033."""
    with pytest.raises(TypeError):
        Agent("A", verbose=True)  # type: ignore[call-arg]


def test_routing_instructions_come_before_the_agents_own() -> None:
    """RECOMMENDED_PROMPT_PREFIX, prompt_with_handoff_instructions: added by themselves."""
    b = Agent("B", "Know boats.")
    a = Agent("A", "Route.", handoffs=[handoff(b, tool_name_override="ask_b")])
    engine = ScriptedEngine([Call("ask_b"), "B.", "A."])
    with using(engine):
        a.start("hi")
    told = f"{RECOMMENDED_PROMPT_PREFIX}\n\nAvailable agents:\n- B: ask_b\n\nRoute."
    assert [request.instructions for request in engine.requests] == [told, "Know boats.", told]
    assert prompt_with_handoff_instructions("Route.", a) == told
    assert prompt_with_handoff_instructions("Route.", b) == "Route."
    assert a.get_instructions() == "Route."


def test_routing_instructions_are_no_specialty() -> None:
    b = Agent("B", "Know boats.", handoffs=[Agent("C")])
    assert Agent("A", handoffs=[b]).get_all_tools()[0].description.endswith("specialty: Know boats.")


def test_running_changes_no_agent_but_for_its_own_conversation(converse: Converse) -> None:
    """B145."""
    a, b = line("A", "B")
    before = [(each.handoffs, each.tools, list(each.chat_history), each.get_all_tools()) for each in (a, b)]
    converse(a, Transfer("B"), "B.", "A.")
    assert [(each.handoffs, each.tools, list(each.chat_history), each.get_all_tools()) for each in (a, b)] == before


def test_every_way_to_name_an_engine_works(converse: Converse) -> None:
    own = Agent("B", engine=ScriptedEngine(["Own."]))
    said = converse(Agent("A", handoffs=[own]), Transfer("B"), "A.")
    assert said.results[0].content == "Own."
    runner = Runner(Agent("A", handoffs=[Agent("B")]), models={"B": ScriptedEngine(["Chosen."]), "*": "keyword"})
    assert runner.run("s", "Ask B, please.").content == "Chosen."


def test_the_keyword_engine_asks_who_fits_and_says_what_came_back() -> None:
    billing = Agent("Billing", "Handle billing inquiries and payments.")
    refunds = Agent("Refunds", "Process refund requests.")
    triage = Agent("Triage", "Route customers.", handoffs=[billing, refunds])
    for agent in (billing, refunds):
        agent.handoffs = [triage]
    events: list[Event] = []
    response = Runner(triage, engine=KeywordEngine()).run("s", "I need a refund.", observer=events.append)
    assert [event.target for event in events if isinstance(event, HandoffAccepted)] == ["Refunds"]
    assert response.content == "[keyword router] Refunds keeps this conversation."


# --- what the target sees


@pytest.mark.parametrize(
    ("policy", "texts"),
    [
        (ContextPolicy.FULL, ["1", "One.", "2", "Two.", "3", "Three.", "4"]),
        ("summary", ["3", "Three.", "4"]),
        ("none", ["4"]),
        ("last_n", ["2", "Two.", "3", "Three.", "4"]),
    ],
)
def test_the_context_policy_says_how_much(policy: Any, texts: list[str]) -> None:
    """summary: the last three messages, no model asked."""
    b = Agent("B")
    a = Agent("A", handoffs=[handoff(b, config=HandoffConfig(max_context_messages=5), context_policy=policy)])
    engine = ScriptedEngine(["One.", "Two.", "Three.", Transfer("B"), "B.", "A."])
    with using(engine):
        for text in "1234":
            a.chat(text)
    assert [message.text for message in engine.requests[4].history if not isinstance(message, ToolResult)] == texts


def test_the_target_sees_the_sources_tools_and_their_results(converse: Converse) -> None:
    """B013: those of the same answer too, in order, the open call aside."""
    a = Agent("A", tools=[ping, look], handoffs=[Agent("B")])
    said = converse(a, Call("look"), [Call("ping"), Transfer("B"), Call("look")], "B.", "A.")
    first = AssistantMessage("A", None, (ToolCall("call_1", "look", "{}"),))
    second = AssistantMessage("A", None, (ToolCall("call_2", "ping", "{}"),))
    assert said.asked("B")[0].history == (
        UserMessage("hi"),
        second,
        ToolResult("call_2", "ping", "pong"),
    )
    assert first in said.requests[1].history


def test_a_history_never_begins_with_a_call(converse: Converse) -> None:
    """Gemini refuses one."""
    b = Agent("B")
    a = Agent(
        "A", tools=[look], handoffs=[handoff(b, config=HandoffConfig(context_policy="last_n", max_context_messages=4))]
    )
    engine = ScriptedEngine([[Say("Wait."), Call("look")], "Found.", Transfer("B"), "B.", "A."])
    with using(engine):
        a.chat("one")
        a.chat("two")
    assert engine.requests[3].history == (
        AssistantMessage("A", "Wait."),
        AssistantMessage("A", "Found."),
        UserMessage("two"),
    )


def test_a_filter_or_a_chain_of_them_decides_what_is_seen(converse: Converse) -> None:
    """input_filter."""
    filters: list[Any] = [
        handoff_filters.remove_all_tools,
        [handoff_filters.remove_all_tools, handoff_filters.keep_last_n_messages(1)],
    ]
    for given in filters:
        a = Agent("A", tools=[look], handoffs=[handoff(Agent("B"), input_filter=given)])
        said = converse(a, Call("look"), Transfer("B"), "B.", "A.")
        assert said.asked("B")[0].history == (UserMessage("hi"),)


def test_a_filter_of_ones_own_sees_who_hands_off_and_what_it_does_to_its_argument_is_its_own_affair(
    converse: Converse,
) -> None:
    seen: list[HandoffInputData] = []

    def mask(data: HandoffInputData) -> HandoffInputData:
        seen.append(data)
        for message in data.messages:
            message["content"] = message["content"].replace("4111", "****")
        data.context["reason"] = "changed"
        return data

    told: list[object] = []
    b = Agent("B")
    a = Agent("A", handoffs=[handoff(b, input_filter=mask, on_handoff=lambda source, data: told.append(data))])
    said = converse(a, Transfer("B", "money"), "B.", "A.", text="My card is 4111.")
    assert said.asked("B")[0].history == (UserMessage("My card is ****."),)
    assert (seen[0].source_agent, seen[0].handoff_chain, seen[0].handoff_depth, seen[0].max_depth) == (a, ("A",), 1, 10)
    assert told == [{"reason": "money"}]


def test_a_filters_system_message_is_read_after_the_targets_instructions(converse: Converse) -> None:
    def brief(data: HandoffInputData) -> HandoffInputData:
        return replace(data, messages=[{"role": "system", "content": "Be brief."}, *data.messages])

    b = Agent("B", "Know boats.")
    said = converse(Agent("A", handoffs=[handoff(b, input_filter=brief)]), Transfer("B"), "B.", "A.")
    assert said.asked("B")[0].instructions == "Know boats.\n\nBe brief."
    both = [brief, handoff_filters.remove_system_messages]
    said = converse(Agent("A", handoffs=[handoff(b, input_filter=both)]), Transfer("B"), "B.", "A.")
    assert said.asked("B")[0].instructions == "Know boats."


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (lambda data: 1 / 0, "ZeroDivisionError"),
        (lambda data: None, "returned None, expected HandoffInputData"),
        (lambda data: replace(data, messages=[{"role": "robot"}]), "the role 'robot'"),
        (lambda data: replace(data, messages=["hi"]), "AttributeError"),
    ],
)
def test_a_filter_that_fails_stops_its_handoff(converse: Converse, broken: Any, text: str) -> None:
    said = converse(Agent("A", handoffs=[handoff(Agent("B"), input_filter=broken)]), Transfer("B"), "Sorry.")
    (refusal,) = said.told(HandoffRefused)
    assert refusal.why == "callback_failed"
    assert text in refusal.message


@pytest.mark.parametrize("given", ["remove_all_tools", 7, [handoff_filters.remove_all_tools, None]])
def test_a_filter_is_a_function(given: Any) -> None:
    with pytest.raises(DefinitionError, match="expected a function or a list of functions"):
        handoff(Agent("B"), input_filter=given)


def test_what_a_target_sees_is_on_its_chat_history_for_the_length_of_the_handoff() -> None:
    """Seeded, then restored."""
    seen: list[list[Any]] = []
    peek = Tool("peek", func=lambda: seen.append(list(b.chat_history)))
    b = Agent("B", tools=[peek])
    a = Agent("A", handoffs=[handoff(b, tool_policy_mode="passthrough")])
    b.chat_history = [{"role": "user", "content": "mine"}]
    with using(ScriptedEngine(["One.", Transfer("B"), Call("peek"), "B.", "A."])):
        a.chat("1")
        a.chat("2")
    assert seen == [
        [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "2"},
        ]
    ]
    assert b.chat_history == [{"role": "user", "content": "mine"}]


def test_a_chat_history_under_way_is_the_one_of_this_task() -> None:
    seen: list[list[Any]] = []
    peek = Tool("peek", func=lambda: seen.append([[each["content"] for each in who.chat_history] for who in (a, b, c)]))
    b, c = Agent("B", tools=[peek]), Agent("C")
    a = Agent("A", tools=[peek], handoffs=[b])
    c.chat_history = [{"role": "user", "content": "mine"}]
    with using(ScriptedEngine([Transfer("B"), Call("peek"), "B.", "A."])):
        a.chat("1")
    assert seen == [[["1"], ["1"], ["mine"]]]
    assert [each["content"] for each in a.chat_history] == ["1", "A."]


def test_chat_history_is_a_view_that_is_assigned_to() -> None:
    a = Agent("A")
    assert a.chat_history == []
    a.chat_history = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "One."}]
    assert a.chat_history[1]["content"] == "One."
    assert a.chat_history[:1] == [{"role": "user", "content": "1"}]
    assert repr(a.chat_history).startswith("[{'role': 'user'")
    assert not hasattr(a.chat_history, "append")
    with pytest.raises(DefinitionError, match="system messages"):
        a.chat_history = [{"role": "system", "content": "x"}]
    engine = ScriptedEngine(["Two."])
    with using(engine):
        a.chat("2")
    assert engine.requests[0].history[1] == AssistantMessage("A", "One.")


# --- typed handoffs


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Place(BaseModel):
    street: str


class Job(BaseModel):
    model_config = ConfigDict(extra="forbid")

    level: Level
    places: list[Place]
    note: str = "none"


@dataclass
class Ticket:
    number: int
    open: bool = True


def test_a_nested_model_is_on_the_wire_without_references() -> None:
    """B060."""
    (made,) = Agent("A", handoffs=[TypedHandoff(agent=Agent("B"), input_schema=Job)]).get_all_tools()
    assert "$" not in str(made.parameters)
    assert made.parameters["required"] == ["level", "places"]


def test_a_payload_comes_in_as_its_type_has_it(converse: Converse) -> None:
    """input_type: models, dataclasses and mappings, with a callback or without."""
    seen: list[object] = []
    job: dict[str, Json] = {"level": 2, "places": [{"street": "Quay"}]}
    ticket: dict[str, Json] = {"number": 7}
    for kind, given in ((Job, job), (Ticket, ticket), (dict, ticket)):
        for callback in (None, lambda source, data: seen.append(data)):
            a = Agent("A", handoffs=[handoff(Agent("B"), input_type=kind, on_handoff=callback)])
            said = converse(a, Call("transfer_to_b", given), "B.", "A.")
            assert said.asked("B")[0].history[-1].text.startswith("Payload:\n{")
    assert seen == [Job(level=Level.HIGH, places=[Place(street="Quay")]), Ticket(7), {"number": 7}]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"places": []}, "The payload lacks 'level', expected one of 1, 2. Agent 'B' was not asked."),
        (
            {"level": 2, "places": [{}]},
            "The payload.places[0] lacks 'street', expected string. Agent 'B' was not asked.",
        ),
        ({"level": 2, "places": [], "x": 1}, "The payload does not fit: x: Extra inputs are not permitted. Agent"),
        ([], "The payload is [], expected object. Agent 'B' was not asked."),
    ],
)
def test_what_does_not_fit_is_said(converse: Converse, given: Any, text: str) -> None:
    a = Agent("A", handoffs=[handoff(Agent("B"), input_type=Job)])
    said = converse(a, Call("transfer_to_b", json.dumps(given)), "Sorry.")
    assert said.results[0].content.startswith(text)


@pytest.mark.parametrize("kind", [int, list, "Job", Callable])
def test_a_type_that_is_no_objects_is_refused(kind: Any) -> None:
    with pytest.raises(DefinitionError, match="The handoff to 'B'"):
        handoff(Agent("B"), input_type=kind)


class Node(BaseModel):
    children: list[Node]


def test_a_model_that_refers_to_itself_is_refused() -> None:
    with pytest.raises(DefinitionError, match="refers to itself"):
        handoff(Agent("B"), input_type=Node)


@pytest.mark.parametrize("schema", [dict, Ticket, {"type": "object"}])
def test_a_typed_handoff_takes_a_model(schema: Any) -> None:
    with pytest.raises(TypeError, match="expected a pydantic model's class"):
        TypedHandoff(agent=Agent("B"), input_schema=schema)


# --- settings


def test_what_is_given_stands_in_for_what_the_config_says_and_changes_nothing_in_it() -> None:
    config = HandoffConfig(max_depth=3, tool_policy=HandoffToolPolicy("passthrough", ["x"]))
    made = handoff(
        Agent("B"),
        config=config,
        context_policy="full",
        timeout_seconds=1,
        max_concurrent=2,
        detect_cycles=False,
        blocked_tools=["y"],
    )
    assert made.config == HandoffConfig(
        context_policy=ContextPolicy.FULL,
        timeout_seconds=1,
        max_concurrent=2,
        detect_cycles=False,
        max_depth=3,
        tool_policy=HandoffToolPolicy("passthrough", ("y",)),
    )
    assert config == HandoffConfig(max_depth=3, tool_policy=HandoffToolPolicy("passthrough", ["x"]))


def test_the_defaults_are_the_documents() -> None:
    made = handoff(Agent("B"))
    assert (made.tool_name, made.description, made.input_type, made.input_filter) == (None, None, None, ())
    config = made.config
    assert (config.on_handoff, config.allowed_agents) == (None, None)
    assert config.tool_policy == HandoffToolPolicy(mode="intersect", blocked_tools=())
    assert (config.context_policy, config.max_context_messages) == ("summary", 10)
    assert (config.timeout_seconds, config.max_concurrent) == (300.0, None)
    assert (config.detect_cycles, config.max_depth) == (True, 10)
    options = inspect.signature(handoff).parameters
    assert list(options)[:7] == [
        "agent",
        "tool_name_override",
        "tool_description_override",
        "on_handoff",
        "input_type",
        "input_filter",
        "config",
    ]
    assert all(each.default is None for name, each in options.items() if name != "agent")


@pytest.mark.parametrize(
    "options",
    [
        {"context_policy": "all"},
        {"timeout_seconds": -1},
        {"max_concurrent": 0},
        {"max_depth": -1},
        {"tool_policy_mode": "union"},
        {"blocked_tools": "danger"},
        {"on_handoff": 7},
        {"config": {"max_depth": 1}},
    ],
)
def test_an_option_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    """B033: every option has an effect or raises."""
    with pytest.raises((DefinitionError, TypeError)):
        handoff(Agent("B"), **options)
    with pytest.raises((DefinitionError, TypeError)):
        Handoff(Agent("B"), **options)


def test_only_tools_that_the_source_may_use_itself_are_shared_further_on(converse: Converse) -> None:
    """B101: no agent gets more through another one than it had."""
    a, b, c = Agent("A", tools=[ping]), Agent("B", tools=[ping, look]), Agent("C", tools=[ping, look])
    a.handoffs, b.handoffs = [b], [c]
    said = converse(a, Transfer("B"), Transfer("C"), Call("look"), "C.", "B.", "A.")
    assert [event.withheld for event in said.told(HandoffAccepted)] == [("look",), ("look",)]
    assert [each.name for each in said.asked("C")[0].tools] == ["ping"]


def test_a_blocked_tool_stays_blocked_in_calls_that_the_target_makes(converse: Converse) -> None:
    a, b, c = Agent("A"), Agent("B"), Agent("C", tools=[ping, look])
    a.handoffs = [handoff(b, blocked_tools=["look"])]
    b.handoffs = [handoff(c, tool_policy_mode="passthrough")]
    said = converse(a, Transfer("B"), Transfer("C"), "C.", "B.", "A.")
    assert [each.name for each in said.asked("C")[0].tools] == ["ping"]


def test_transfer_tools_are_not_subject_to_the_policy(converse: Converse) -> None:
    a, *_ = line("A", "B", "C", blocked_tools=["transfer_to_c"])
    assert [each.name for each in converse(a, Transfer("B"), "B.", "A.").asked("B")[0].tools] == ["transfer_to_c"]


def test_callbacks_are_told_of_the_end_too(converse: Converse) -> None:
    """on_complete, on_error."""
    ends: list[tuple[str, object, str]] = []

    async def completed(source: Agent, result: HandoffResult) -> None:
        ends.append(("complete", source.name, result.response))

    def failed(result: HandoffResult) -> None:
        ends.append(("error", result.source_agent, result.error))

    config = HandoffConfig(on_complete=completed, on_error=failed)
    a = Agent("A", handoffs=[handoff(Agent("B"), config=config)])
    said = converse(a, Transfer("B"), "B.", Transfer("B"), RuntimeError("down"), "A.")
    assert ends == [("complete", "A", "B."), ("error", "A", "RuntimeError: down")]
    assert [event.error for event in said.told(HandoffReturned)] == ["", "RuntimeError: down"]


def test_a_script_that_ends_too_early_is_the_tests_own_fault() -> None:
    """It is no failure of the target's that an agent could answer."""
    a, _ = line("A", "B")
    with pytest.raises(ScriptError, match="Agent 'B' asked"), using(ScriptedEngine([Transfer("B")])):
        a.chat("hi")


def test_an_observer_that_raises_ends_the_turn_even_inside_a_call() -> None:
    def observe(event: Event) -> None:
        if isinstance(event, ModelAnswered) and event.agent == "B":
            raise RuntimeError("seen enough")

    a, _ = line("A", "B")
    runner = Runner(a, engine=ScriptedEngine([Transfer("B"), "B.", "A."]))
    with pytest.raises(RuntimeError, match="seen enough"):
        runner.run("s", "hi", observer=observe)
    assert runner.get_session("s") is None


# --- limits


def test_every_call_counts_and_coming_back_does_not(converse: Converse) -> None:
    """B061: exactly five, the sixth is refused."""
    a, *_ = line("A", "B", "C")
    rounds: list[Any] = [Transfer("B"), Transfer("C"), "C.", "B."]
    said = converse(a, *rounds, *rounds, Transfer("B"), Transfer("C"), "B alone.", Transfer("B"), "A.")
    assert len(said.response.handoffs) == 5
    refusals = said.told(HandoffRefused)
    assert [(each.source, each.why, each.message, each.kind) for each in refusals] == [
        ("B", "limit", HANDOFFS_EXCEEDED, "call"),
        ("A", "limit", HANDOFFS_EXCEEDED, "call"),
    ]
    assert said.response.limit_hits == (LimitReached("max_handoffs_per_turn", 5, "B"),)
    assert said.told(LimitHit) == [LimitHit("B", "max_handoffs_per_turn", 5, ("call_3",))]


def test_a_limit_of_0_forbids_all(converse: Converse) -> None:
    a, _ = line("A", "B")
    said = converse(a, Transfer("B"), "Alone.", max_handoffs_per_turn=0)
    assert said.response.handoffs == ()


def test_tool_executions_of_all_agents_count_together(converse: Converse) -> None:
    """B070: the call that is one too many ends the turn, every call answered."""
    b = Agent("B", tools=[ping])
    a = Agent("A", handoffs=[handoff(b, tool_policy_mode="passthrough")])
    said = converse(a, [Transfer("B"), Transfer("B")], [Call("ping"), Call("ping")], max_tool_iterations=2)
    assert said.response.content == "Execution iteration limit reached by agent 'A'."
    assert said.response.limit_hits == (LimitReached("max_tool_iterations", 2, "B"),)
    first, second = said.results
    assert first.content == "Error: the handoff to 'B' failed: Execution iteration limit reached by agent 'B'."
    assert (second.content, second.is_error) == (EXECUTIONS_EXCEEDED, True)
    assert [event.content for event in said.told(ToolAnswered)] == ["pong", EXECUTIONS_EXCEEDED]
    assert said.response.tool_calls_executed == ("transfer_to_b", "ping", "ping", "transfer_to_b")


def test_refused_handoffs_use_no_slot(converse: Converse) -> None:
    """B067: neither of the turn's limit nor of the chain."""
    b, c = Agent("B"), Agent("C")
    a = Agent("A", handoffs=[handoff(b, config=HandoffConfig(allowed_agents=[])), handoff(c, max_depth=1)])
    attempts = [Transfer("B")] * 3
    said = converse(a, attempts, Transfer("C"), "C.", "A.", max_handoffs_per_turn=1)
    assert [each.target_agent_name for each in said.response.handoffs] == ["C"]
    assert said.response.limit_hits == ()


@pytest.mark.parametrize(("depth", "refused"), [(0, ["B"]), (1, ["C"]), (2, ["D"]), (3, [])])
def test_max_depth_counts_handoffs_inside_one_another(converse: Converse, depth: int, refused: list[str]) -> None:
    a, *_ = line("A", "B", "C", "D", max_depth=depth)
    asked = ["B", "C", "D"][: depth + len(refused)]
    answers = ["x"] * (1 + min(depth, 3))
    said = converse(a, *(Transfer(name) for name in asked), *answers)
    refusals = said.told(HandoffRefused)
    assert [event.target for event in refusals] == refused
    if refused:
        source = "ABC"[depth]
        text = f"The handoff from '{source}' to '{refused[0]}' is {depth + 1} deep, at most {depth} are allowed."
        assert (refusals[0].why, refusals[0].message) == ("limit", text)
        assert said.response.limit_hits == (LimitReached("max_depth", depth, source),)


def test_cycles_are_allowed_where_they_are_not_detected(converse: Converse) -> None:
    """And a handoff inside itself does not wait for its own place."""
    a, b = Agent("A"), Agent("B")
    a.handoffs = [handoff(b, detect_cycles=False, max_concurrent=1)]
    b.handoffs = [handoff(a, detect_cycles=False, max_concurrent=1)]
    said = converse(a, Transfer("B"), Transfer("A"), Transfer("B"), "B2", "A2", "B1", "A1")
    assert said.response.content == "A1"
    assert [event.target for event in said.told(HandoffAccepted)] == ["B", "A", "B"]


# --- programs that hand off


def test_a_programs_handoff_tells_how_it_ended() -> None:
    """Every field of HandoffResult."""
    a, b = line("A", "B")
    engine = ScriptedEngine(["It was a mistake."])
    with using(engine):
        result = a.handoff_to(b, "Why was I charged twice?")
    assert (result.success, result.response, result.target_agent, result.source_agent, result.error) == (
        True,
        "It was a mistake.",
        "B",
        "A",
        "",
    )
    assert result.duration_seconds > 0
    assert result.outcome == AgentRunOutcome("success", "It was a mistake.")
    assert (result.outcome.output, result.outcome.is_retryable()) == ("It was a mistake.", False)
    assert result.raise_for_error() is result
    assert result.handed_off_to == "B"
    assert engine.requests[0].history == (UserMessage("Why was I charged twice?"),)
    assert (a.chat_history, b.chat_history) == ([], [])


def test_a_programs_handoff_brings_the_sources_conversation_and_data_along() -> None:
    a, b = line("A", "B")
    a.chat_history = [{"role": "user", "content": str(number)} for number in range(5)]
    engine = ScriptedEngine(["B."])
    with using(engine):
        a.handoff_to(b, "And?", context={"order": 42})
    assert [message.text for message in engine.requests[0].history if isinstance(message, UserMessage)] == [
        "2",
        "3",
        "4",
        'And?\n\nContext:\n{\n  "order": 42\n}',
    ]


def test_a_programs_handoff_is_carried_out_as_it_was_declared() -> None:
    b = Agent("B", tools=[look])
    seen: list[str] = []
    to_b = handoff(b, tool_policy_mode="passthrough", on_handoff=lambda source: seen.append(source.name))
    a = Agent("A", handoffs=[to_b])
    engine = ScriptedEngine(["One.", "Two."])
    with using(engine):
        a.handoff_to(b, "hi")
        a.handoff_to(b, "hi", config=HandoffConfig())
    assert seen == ["A"]
    assert [[each.name for each in request.tools] for request in engine.requests] == [["look"], []]


def test_a_program_hands_off_to_whom_it_likes() -> None:
    engine = ScriptedEngine(["Yes?"])
    with using(engine):
        assert Agent("A").handoff_to(runtime.Agent("B"), "hi").success


@pytest.mark.parametrize(
    ("target", "prompt", "context", "text"),
    [
        (Agent("B"), "  ", None, "ValueError: The prompt is '  ', expected some text."),
        ("B", "hi", None, "A handoff leads to 'B', expected an Agent."),
        (Agent("B"), "hi", [1], "TypeError: The context is a list, expected a mapping or a pydantic model."),
        (Agent("B"), "hi", {"x": object()}, "TypeError: Object of type object is not JSON serializable"),
    ],
)
def test_a_program_is_told_and_nothing_is_raised(target: Any, prompt: str, context: Any, text: str) -> None:
    result = Agent("A").handoff_to(target, prompt, context)
    assert (result.success, result.error, result.outcome.error) == (False, text, text)
    with pytest.raises(HandoffError):
        result.raise_for_error()


async def test_in_a_running_loop_the_result_names_the_async_form() -> None:
    """B147: not even that is raised."""
    a, b = line("A", "B")
    result = a.handoff_to(b, "hi")
    assert "await agent.handoff_to_async(...)" in result.error


async def test_cancelling_is_no_result() -> None:
    class Never:
        async def answer(self, request: ModelRequest) -> Answer:
            await asyncio.Event().wait()
            raise AssertionError

    a, b = line("A", "B")
    with using(Never()):
        task = asyncio.create_task(a.handoff_to_async(b, "hi"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_raise_for_error_raises_what_went_wrong() -> None:
    a, b = line("A", "B")
    with (
        using(ScriptedEngine([RuntimeError("down")])),
        pytest.raises(HandoffError, match="RuntimeError: down") as error,
    ):
        a.handoff_to(b, "hi").raise_for_error()
    assert isinstance(error.value.__cause__, RuntimeError)
    assert error.value.context == {"source_agent": "A", "target_agent": "B"}


def test_errors_say_what_stood_against_a_handoff() -> None:
    """is_retryable, context.cycle_path, context.max_depth, and the other names chain and depth."""
    a, b = line("A", "B", max_depth=0)
    depth = a.handoff_to(b, "hi").exception
    assert isinstance(depth, HandoffDepthError)
    assert (depth.max_depth, depth.depth, depth.is_retryable) == (0, 1, False)
    assert depth.context == {"source_agent": "A", "target_agent": "B", "max_depth": 0, "depth": 1}
    cycle = a.handoff_to(a, "hi").exception
    assert isinstance(cycle, HandoffCycleError)
    assert cycle.context["cycle_path"] == cycle.context["chain"] == cycle.cycle_path == ["A", "A"]
    assert not cycle.is_retryable
    timeout = HandoffTimeoutError("late", timeout_seconds=3.0)
    assert (timeout.is_retryable, timeout.context["timeout_seconds"]) == (True, 3.0)
    assert not HandoffValidationError("wrong").is_retryable
    assert isinstance(pickle.loads(pickle.dumps(cycle)), HandoffCycleError)
    for kind in (HandoffCycleError, HandoffDepthError, HandoffTimeoutError, HandoffValidationError):
        assert issubclass(kind, HandoffError)


def test_an_outcomes_status_is_one_of_three() -> None:
    assert AgentRunOutcome("timeout").is_retryable()
    assert AgentRunOutcome("failure", retryable=True).is_retryable()
    with pytest.raises(DefinitionError, match="'success', 'failure', 'timeout'"):
        AgentRunOutcome("cancelled")  # type: ignore[arg-type]


class Waiting:
    """A model that answers when as many have asked as are waited for."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.asked: list[str] = []
        self._all = asyncio.Event()

    async def answer(self, request: ModelRequest) -> Answer:
        self.asked.append(request.agent)
        if len(self.asked) >= self._number:
            self._all.set()
        await self._all.wait()
        if request.agent == "Broken":
            raise RuntimeError("down")
        return Answer(f"{request.agent} answered")


async def test_parallel_handoffs_run_at_once_and_keep_their_order() -> None:
    """One that fails is a failed result, the others are unaffected."""
    targets = [Agent("Billing"), Agent("Broken"), Agent("Tech")]
    with using(Waiting(3)):
        results = await parallel_handoffs(Agent("Triage"), targets=[(each, "hi") for each in targets], max_concurrent=5)
    assert [(result.target_agent, result.success) for result in results] == [
        ("Billing", True),
        ("Broken", False),
        ("Tech", True),
    ]
    assert await parallel_handoffs(Agent("Triage"), []) == []


async def test_one_of_several_that_takes_too_long_leaves_the_others_alone() -> None:
    """B146."""

    class Stuck:
        async def answer(self, request: ModelRequest) -> Answer:
            await asyncio.Event().wait()
            raise AssertionError

    targets = [(Agent("Billing"), "hi"), (Agent("Slow", engine=Stuck()), "hi"), (Agent("Tech"), "hi")]
    with using(Waiting(2)):
        results = await parallel_handoffs(Agent("Triage"), targets, config=HandoffConfig(timeout_seconds=0.05))
    assert [result.outcome.status for result in results] == ["success", "timeout", "success"]
    assert results[1].error == "The handoff from 'Triage' to 'Slow' took longer than 0.05 s."


async def test_parallel_handoffs_take_so_many_at_a_time() -> None:
    most = inside = 0

    class Counting:
        async def answer(self, request: ModelRequest) -> Answer:
            nonlocal most, inside
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            return Answer("x")

    with using(Counting()):
        await parallel_handoffs(Agent("A"), [(Agent(f"T{number}"), "hi") for number in range(6)], max_concurrent=2)
    assert most == 2


@pytest.mark.parametrize(("targets", "most"), [([Agent("B")], 5), ([(Agent("B"), "hi")], 0), ([(Agent("B"),)], 5)])
async def test_parallel_handoffs_want_pairs_and_a_number(targets: Any, most: int) -> None:
    with pytest.raises(DefinitionError):
        await parallel_handoffs(Agent("A"), targets, max_concurrent=most)


async def test_siblings_have_chains_of_their_own(converse: Converse) -> None:
    """B141: what one hands off to is no cycle for the other, and no depth."""
    shared = Agent("Shared")
    left = Agent("Left", handoffs=[handoff(shared, max_depth=2)])
    right = Agent("Right", handoffs=[handoff(shared, max_depth=2)])

    class Sharing:
        async def answer(self, request: ModelRequest) -> Answer:
            await asyncio.sleep(0)
            first = isinstance(request.history[-1], UserMessage)
            return await ScriptedEngine([Transfer("Shared") if first and request.tools else "Done."]).answer(request)

    with using(Sharing()):
        one, two, both = await asyncio.gather(
            Agent("A").handoff_to_async(left, "hi"),
            Agent("A").handoff_to_async(right, "hi"),
            parallel_handoffs(Agent("A"), [(left, "hi"), (right, "hi")]),
        )
    assert [result.success for result in (one, two, *both)] == [True] * 4


async def test_a_tools_handoffs_are_a_part_of_its_turn() -> None:
    """B117: in the trace, in the chain and in the limits; calls at one time do not mix."""
    b, c, d = Agent("B"), Agent("C"), Agent("D")
    c.handoffs = [d]

    @tool
    async def fan_out() -> list[str]:
        """Ask everybody."""
        results = await parallel_handoffs(a, [(b, "hi"), (c, "hi"), (a, "hi")])
        return [result.response or result.error for result in results]

    a = Agent("A", tools=[fan_out])
    events: list[Event] = []

    def answer(request: ModelRequest) -> Answer:
        return Answer(f"{request.agent}.")

    class ByAgent:
        async def answer(self, request: ModelRequest) -> Answer:
            await asyncio.sleep(0)
            first = isinstance(request.history[-1], UserMessage)
            calls: Mapping[str, Any] = {"A": Call("fan_out"), "C": Transfer("D")}
            script = calls.get(request.agent, answer) if first else answer
            return await ScriptedEngine([script]).answer(request)

    response = await Runner(a, engine=ByAgent()).run_async("s", "hi", observer=events.append)
    assert response.content == "A."
    accepted = [event for event in events if isinstance(event, HandoffAccepted)]
    assert [(event.source, event.target, event.tool, event.within) for event in accepted] == [
        ("A", "B", "handoff_to", ()),
        ("A", "C", "handoff_to", ()),
        ("C", "D", "transfer_to_d", (accepted[1].call_id,)),
    ]
    (refused,) = [event for event in events if isinstance(event, HandoffRefused)]
    assert (refused.target, refused.why) == ("A", "cycle")
    assert len(response.handoffs) == 3
    (told,) = [event for event in events if isinstance(event, ToolAnswered)]
    assert told.content == ["B.", "C.", "Handoff cycle: A -> A."]
    assert [event.tool for event in events if isinstance(event, ToolCalled)] == ["fan_out"]


async def test_the_limit_of_a_turn_holds_for_a_tools_handoffs_at_one_time() -> None:
    class Slow:
        async def answer(self, request: ModelRequest) -> Answer:
            await asyncio.sleep(0)
            first = request.agent == "A" and isinstance(request.history[-1], UserMessage)
            return await ScriptedEngine([Call("fan_out") if first else "x"]).answer(request)

    async def on_handoff() -> None:
        await asyncio.sleep(0)

    targets = [handoff(Agent(f"T{number}"), on_handoff=on_handoff) for number in range(4)]

    @tool
    async def fan_out() -> int:
        """Ask everybody."""
        return sum(result.success for result in await parallel_handoffs(a, [(each.agent, "hi") for each in targets]))

    a = Agent("A", tools=[fan_out], handoffs=targets)
    response = await Runner(a, engine=Slow(), max_handoffs_per_turn=2).run_async("s", "hi")
    assert len(response.handoffs) == 2


async def test_a_task_that_outlives_its_turn_hands_off_on_its_own() -> None:
    b = Agent("B")
    tasks: list[asyncio.Task[HandoffResult]] = []

    @tool
    def later() -> str:
        """Start something."""

        async def work() -> HandoffResult:
            await done.wait()
            return await a.handoff_to_async(b, "hi")

        tasks.append(asyncio.create_task(work()))
        return "started"

    a, done = Agent("A", tools=[later]), asyncio.Event()
    events: list[Event] = []
    with using(ScriptedEngine([Call("later"), "A.", "B."])):
        await Runner(a, max_handoffs_per_turn=0).run_async("s", "hi", observer=events.append)
        done.set()
        assert (await tasks[0]).success
    assert isinstance(events[-1], TurnEnded)


# --- many at once


async def test_conversations_do_not_mix() -> None:
    """B145: each session's token stays in it."""

    class Echo:
        async def answer(self, request: ModelRequest) -> Answer:
            await asyncio.sleep(0)
            last = request.history[-1]
            script = Transfer("B") if request.agent == "A" and isinstance(last, UserMessage) else str(request.history)
            return await ScriptedEngine([script]).answer(request)

    a, _ = line("A", "B", max_concurrent=10)
    runner = Runner(a, engine=Echo())
    responses = await asyncio.gather(*(runner.run_async(f"s{n}", f"token-{n}-") for n in range(200)))
    for number, response in enumerate(responses):
        assert f"token-{number}-" in response.content
        assert response.content.count("token-") == response.content.count(f"token-{number}-")


async def test_each_handoff_has_a_lane_of_its_own() -> None:
    """Per-handoff concurrency."""
    inside: dict[str, int] = {}
    most: dict[str, int] = {}

    class Counting:
        async def answer(self, request: ModelRequest) -> Answer:
            inside[request.agent] = inside.get(request.agent, 0) + 1
            most[request.agent] = max(most.get(request.agent, 0), inside[request.agent])
            for _ in range(3):
                await asyncio.sleep(0)
            inside[request.agent] -= 1
            return Answer("x")

    billing, refunds = Agent("Billing"), Agent("Refunds")
    triage = Agent("Triage")
    triage.handoffs = [
        Handoff(billing, config=HandoffConfig(max_concurrent=10)),
        Handoff(refunds, config=HandoffConfig(max_concurrent=1)),
    ]
    with using(Counting()):
        await asyncio.gather(*(triage.handoff_to_async(each, "hi") for each in [billing, refunds] * 12))
    assert most == {"Billing": 10, "Refunds": 1}


def test_transfers_of_the_first_document_are_handoffs_here_too(converse: Converse) -> None:
    """One mechanism: a handoff tool says how control moves."""
    a = Agent("A", handoffs=[HandoffTool(Agent("B")), Agent("C")])
    said = converse(a, [Transfer("C"), Transfer("B"), Transfer("C")], "C1", "C2", "B.")
    assert [event.kind for event in said.told(HandoffAccepted)] == ["call", "transfer", "call"]
    assert said.response.active_agent_name == "B"


def test_every_public_name_is_there() -> None:
    assert all(hasattr(praisonai, name) for name in praisonai.__all__)
