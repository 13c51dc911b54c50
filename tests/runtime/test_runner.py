"""The loop, row by row: what each thing a model can do comes to."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from chatflow_runtime.agent import Agent
from chatflow_runtime.engine import (
    Answer,
    Call,
    Line,
    ModelRequest,
    Say,
    Scripted,
    ScriptedEngine,
    Settings,
    Transfer,
    using,
)
from chatflow_runtime.events import (
    Event,
    HandoffAccepted,
    HandoffRefused,
    LimitHit,
    ModelAnswered,
    ModelAsked,
    ToolAnswered,
    ToolCalled,
    TurnEnded,
    TurnStarted,
    Warned,
)
from chatflow_runtime.exceptions import (
    AgentHandoffError,
    DefinitionError,
    EmptyResponseError,
    RunningLoopError,
    ScriptError,
    SessionError,
)
from chatflow_runtime.handoffs import handoff
from chatflow_runtime.history import faults
from chatflow_runtime.keyword_engine import KeywordEngine
from chatflow_runtime.limits import EXECUTIONS_EXCEEDED, HANDOFFS_EXCEEDED
from chatflow_runtime.memory import SessionContext, SessionStore
from chatflow_runtime.runner import Runner
from chatflow_runtime.tools import Tool, tool
from chatflow_runtime.types import (
    AgentResponse,
    AssistantMessage,
    Handoff,
    Json,
    LimitReached,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)

E = TypeVar("E")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def ping() -> str:
    """Answer."""
    return "pong"


def swarm(*tools: Tool) -> Agent:
    """A, who has the tools, can hand off to B and C; B back to A and to C; C to nobody."""
    c = Agent("C", "Know all about cars.")
    b = Agent("B", "Know all about boats.", handoffs=[c])
    a = Agent("A", "Route.", tools=[add, ping, *tools], handoffs=[b, c])
    b.add_handoff(a)
    return a


@dataclasses.dataclass
class Said:
    """What a scripted turn came to."""

    runner: Runner
    engine: ScriptedEngine
    response: AgentResponse
    events: list[Event]

    @property
    def session(self) -> SessionContext:
        session = self.runner.get_session("s")
        assert session is not None
        return session

    @property
    def results(self) -> list[ToolResult]:
        return [message for message in self.session.history if isinstance(message, ToolResult)]

    def told(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


def converse(start: Agent, *script: Scripted, text: str = "hi", **settings: Any) -> Said:
    """One turn in which the model answers from a script, all of it."""
    engine = ScriptedEngine(script)
    runner = Runner(start, engine=engine, **settings)
    events: list[Event] = []
    response = runner.run("s", text, observer=events.append)
    engine.finish()
    assert [faults(request.projection()) for request in engine.requests] == [()] * len(script)
    return Said(runner, engine, response, events)


# --- one turn


def test_without_calls_the_text_is_the_reply_and_the_turn_ends() -> None:
    said = converse(swarm(), "Hello.")
    assert said.response == AgentResponse("Hello.", "A", usage=Usage(None, None))
    assert said.session.history == [UserMessage("hi"), AssistantMessage("A", "Hello.")]
    assert [type(event) for event in said.events] == [TurnStarted, ModelAsked, ModelAnswered, TurnEnded]


def test_the_active_agent_is_asked_with_its_own_instructions_tools_and_the_shared_history() -> None:
    """B023, B043: tools are the new agent's, the user's words are there once."""
    said = converse(swarm(), Transfer("B", "boats"), Transfer("C"), "Hello.", text="token-17")
    assert [(request.agent, request.instructions) for request in said.engine.requests] == [
        ("A", "Route."),
        ("B", "Know all about boats."),
        ("C", "Know all about cars."),
    ]
    assert [[each.name for each in request.tools] for request in said.engine.requests] == [
        ["add", "ping", "transfer_to_b", "transfer_to_c"],
        ["transfer_to_c", "transfer_to_a"],
        [],
    ]
    assert str(said.engine.requests[2].history).count("token-17") == 1


def test_a_transfer_moves_the_conversation_within_the_turn() -> None:
    said = converse(swarm(), Transfer("B", "boats"), "Which boat?")
    assert said.response == AgentResponse(
        content="Which boat?",
        active_agent_name="B",
        handoffs=(Handoff("B", "boats"),),
        tool_calls_executed=("transfer_to_b",),
        usage=Usage(None, None),
    )
    assert said.response.handoff == Handoff("B", "boats")
    content: Json = {"status": "HANDOFF_SUCCESS", "transferred_to": "B", "reason": "boats"}
    assert said.results == [ToolResult("call_1", "transfer_to_b", content)]
    assert said.told(HandoffAccepted) == [HandoffAccepted("A", "B", "transfer_to_b", "boats", "transfer", "call_1")]
    assert said.told(ToolCalled) == []


def test_there_and_back_again_in_one_turn() -> None:
    """B023."""
    said = converse(swarm(), Transfer("B"), Transfer("A"), Transfer("C"), "Hello.")
    assert [each.target_agent_name for each in said.response.handoffs] == ["B", "A", "C"]


def test_the_next_turn_is_with_the_last_active_agent() -> None:
    """B071, B072: sticky; and its handoff is that turn's own."""
    said = converse(swarm(), Transfer("B"), "Which boat?")
    response = said.runner.replace(engine=ScriptedEngine(["The red one."])).run("s", "red")
    assert (response.active_agent_name, response.handoff, response.handoffs) == ("B", None, ())


def test_a_domain_tool_is_run_and_its_value_answered() -> None:
    said = converse(swarm(), Call("add", {"a": 1, "b": 2}), "Three.")
    assert said.results == [ToolResult("call_1", "add", 3)]
    assert said.told(ToolCalled) == [ToolCalled("A", "call_1", "add", {"a": 1, "b": 2}, known=True)]
    assert said.told(ToolAnswered) == [ToolAnswered("A", "call_1", "add", 3, is_error=False)]


def test_async_tools_are_awaited_and_answers_keep_the_order_of_calls() -> None:
    @tool
    async def slow() -> str:
        """Take longer."""
        await asyncio.sleep(0.01)
        return "slow"

    said = converse(swarm(slow), [Call("slow"), Call("ping")], "Done.")
    assert [result.content for result in said.results] == ["slow", "pong"]


@pytest.mark.parametrize(
    ("lines", "contents"),
    [
        ([Call("ping"), Transfer("B")], ["pong", "HANDOFF_SUCCESS"]),
        ([Transfer("B"), Call("ping")], ["HANDOFF_SUCCESS", "pong"]),
    ],
)
def test_domain_tools_beside_a_transfer_run_with_the_old_agents_tools(lines: list[Any], contents: list[str]) -> None:
    """B013, B015: in either order, both answered."""
    said = converse(swarm(), lines, "Hello.")
    results = [
        result.content["status"] if isinstance(result.content, dict) else result.content for result in said.results
    ]
    assert results == contents
    assert said.response.active_agent_name == "B"
    assert said.told(ToolCalled)[0].agent == "A"


def test_text_beside_a_transfer_stays_with_the_old_agent() -> None:
    """B022: it is neither lost nor the reply."""
    said = converse(swarm(), [Say("One moment."), Transfer("B")], "Which boat?")
    assert said.response.content == "Which boat?"
    assert said.session.history[1] == AssistantMessage("A", "One moment.", (ToolCall("call_1", "transfer_to_b", "{}"),))


def test_saying_a_transfer_is_none() -> None:
    """B020."""
    said = converse(swarm(), "I will hand you to B now.")
    assert (said.response.active_agent_name, said.response.handoffs) == ("A", ())


@pytest.mark.parametrize("answer", [Answer(), Answer(""), Answer(" \n")])
def test_an_answer_without_text_and_calls_is_an_error(answer: Answer) -> None:
    with pytest.raises(EmptyResponseError, match=r"Model 'gemini-2\.5-flash' answered for agent 'A'"):
        converse(swarm(), answer)


def test_text_of_white_space_beside_calls_is_no_text() -> None:
    said = converse(swarm(), [Say(" "), Call("ping")], "Done.")
    assert said.told(ModelAnswered)[0].text is None
    assert said.session.history[1] == AssistantMessage("A", None, (ToolCall("call_1", "ping", "{}"),))


def test_a_reply_holds_no_half_characters() -> None:
    assert converse(swarm(), "Hello \ud83d").response.content == "Hello ?"


@pytest.mark.parametrize("text", ["", "  \n"])
def test_a_user_says_something(text: str) -> None:
    with pytest.raises(ValueError, match="expected some text"):
        Runner(swarm(), engine=ScriptedEngine([])).run("s", text)


# --- transfers that do not happen


def refused(said: Said) -> list[tuple[str, str, str]]:
    return [(event.source, event.target, event.why) for event in said.told(HandoffRefused)]


def test_of_two_transfers_in_one_response_the_first_wins() -> None:
    """B012, CF-5."""
    said = converse(swarm(), [Transfer("B"), Transfer("C")], "Hello.")
    assert said.response.active_agent_name == "B"
    assert [each.target_agent_name for each in said.response.handoffs] == ["B"]
    assert refused(said) == [("A", "C", "already_transferred")]
    assert said.results[1].is_error
    assert said.results[1].content == ("Another transfer of the same response already took effect: 'B' is active now.")


def test_the_same_transfer_twice_is_one() -> None:
    said = converse(swarm(), [Transfer("B"), Transfer("B")], "Hello.")
    assert refused(said) == [("A", "B", "already_transferred")]


def test_a_transfer_to_oneself_is_refused() -> None:
    """B018: Billing calls transfer_to_billing."""
    said = converse(swarm(), Transfer("B"), Transfer("B"), "Hello.")
    assert refused(said) == [("B", "B", "self")]
    assert [each.target_agent_name for each in said.response.handoffs] == ["B"]
    assert said.results[1].content == "Agent 'B' is already active. Tools of agent 'B': transfer_to_c, transfer_to_a."


def test_the_start_can_name_itself_though_nobody_leads_there() -> None:
    said = converse(Agent("A"), Transfer("A"), "Hello.")
    assert refused(said) == [("A", "A", "self")]


def test_another_agents_transfer_tool_is_not_allowed() -> None:
    """B035, CF-14: source and target the right way round, then what there is."""
    d = Agent("D")
    c = Agent("C", handoffs=[d])
    said = converse(Agent("A", tools=[ping], handoffs=[c]), Call("transfer_to_d", {"reason": "x"}), "Hello.")
    (event,) = said.told(HandoffRefused)
    assert (event.source, event.target, event.why, event.reason) == ("A", "D", "not_allowed", "x")
    assert (
        said.results[0].content
        == event.message
        == ("Agent 'A' may not hand off to 'D' with 'transfer_to_d'. Tools of agent 'A': ping, transfer_to_c.")
    )
    assert said.response.active_agent_name == "A"


def test_anothers_name_for_a_transfer_is_not_allowed_even_to_a_peer() -> None:
    b = Agent("B")
    said = converse(Agent("A", handoffs=[handoff(b, tool_name="escalate")]), Call("transfer_to_b"), "Hello.")
    assert refused(said) == [("A", "B", "not_allowed")]


@pytest.mark.parametrize("name", ["get_date", "transfer_to_nobody", "transfer_to_bb", "", "日本 !", "x" * 99])
def test_an_unknown_tool_is_an_error_that_names_the_known_ones(name: str) -> None:
    """B016, B017: the turn goes on."""
    said = converse(swarm(), Call(name, {"x": 1}), "Sorry.")
    content = f"Error: there is no tool '{name}'. Tools of agent 'A': add, ping, transfer_to_b, transfer_to_c."
    assert said.results == [ToolResult("call_1", name, content, is_error=True)]
    assert said.told(ToolCalled) == [ToolCalled("A", "call_1", name, {"x": 1}, known=False)]
    assert said.told(ToolAnswered) == [ToolAnswered("A", "call_1", name, content, is_error=True)]
    assert said.told(HandoffRefused) == []
    assert said.response.tool_calls_executed == (name,)


def test_another_agents_domain_tool_is_unknown() -> None:
    b = Agent("B", tools=[ping])
    said = converse(Agent("A", handoffs=[b]), Call("ping"), "Sorry.")
    assert [event.known for event in said.told(ToolCalled)] == [False]


def test_an_agent_without_tools_says_so() -> None:
    said = converse(Agent("A"), Call("ping"), "Sorry.")
    assert said.results[0].content == "Error: there is no tool 'ping'. Tools of agent 'A': none."


def test_known_and_unknown_calls_of_one_response_are_all_answered() -> None:
    """B016."""
    said = converse(swarm(), [Call("ping"), Call("nothing"), Call("ping")], "Done.")
    assert [result.is_error for result in said.results] == [False, True, False]


def test_a_transfer_to_a_peer_that_is_not_registered_raises_and_rolls_back() -> None:
    """CF-13, B017."""
    start = swarm()
    runner = Runner(start, engine=ScriptedEngine([Transfer("B"), Transfer("A"), Transfer("D")]))
    late = Agent("D", handoffs=[Agent("E")])
    start.add_handoff(late)
    with pytest.raises(AgentHandoffError, match=r"'A' hands off to 'D', which is not registered.*'A', 'B', 'C'"):
        runner.run("s", "hi")
    assert runner.get_session("s") is None


def test_a_transfer_never_reaches_another_agent_of_the_same_name() -> None:
    """CF-8: B is registered, but it is not the B that C would hand off to."""
    start = swarm()
    runner = Runner(start, engine=ScriptedEngine([Transfer("C"), Transfer("B")]))
    start.handoffs[1].add_handoff(Agent("B", "Another one."))
    with pytest.raises(AgentHandoffError, match="'C' hands off to 'B'"):
        runner.run("s", "hi")


def test_registering_a_known_agent_again_finds_its_new_peers() -> None:
    """CF-13."""
    start = swarm()
    runner = Runner(start, engine=ScriptedEngine([Transfer("D"), "Hello."]))
    start.add_handoff(Agent("D", handoffs=[Agent("E")]))
    runner.register_agent(start)
    assert list(runner.agents) == ["A", "B", "C", "D", "E"]
    assert runner.run("s", "hi").active_agent_name == "D"


def returning(result: object) -> Tool:
    return Tool("route", func=lambda: result)


def test_a_domain_tool_can_hand_off_to_a_peer_and_bring_context() -> None:
    said = converse(swarm(returning(Handoff("C", "cars", {"tier": "gold"}))), Call("route"), "Hello.")
    assert said.response.handoffs == (Handoff("C", "cars", {"tier": "gold"}),)
    assert said.session.context == {"tier": "gold"}
    kinds = [type(event) for event in said.events if not isinstance(event, ModelAsked | ModelAnswered)]
    assert kinds == [TurnStarted, ToolCalled, HandoffAccepted, ToolAnswered, TurnEnded]
    assert said.told(HandoffAccepted) == [HandoffAccepted("A", "C", "route", "cars", "transfer", "call_1")]


@pytest.mark.parametrize(
    ("target", "why", "text"),
    [
        ("D", "not_allowed", "Agent 'A' may not hand off to 'D'. It can hand off to: 'B', 'C'."),
        ("Ghost", "unregistered", "There is no agent 'Ghost'. It can hand off to: 'B', 'C'."),
        ("A", "self", "Agent 'A' is already active."),
    ],
)
def test_a_domain_tools_wish_to_hand_off_goes_where_the_agent_may(target: str, why: str, text: str) -> None:
    """CF-14, B017, B035."""
    start = swarm(returning(Handoff(target, None, {"tier": "gold"})))
    start.handoffs[1].add_handoff(Agent("D"))
    said = converse(start, Call("route"), "Hello.")
    assert refused(said) == [("A", target, why)]
    assert said.results[0].content == text
    assert said.response.active_agent_name == "A"
    assert said.session.context == {}


def test_context_updates_that_are_no_data_are_the_tools_error() -> None:
    said = converse(swarm(returning(Handoff("B", None, {"x": object()}))), Call("route"), "Hello.")  # type: ignore[dict-item]
    assert said.results[0].is_error
    assert said.response.active_agent_name == "A"


def test_refused_transfers_use_no_handoff_slot() -> None:
    """B067: five refused, then one valid, under the default limit."""
    attempts: list[Scripted] = [
        Call("transfer_to_nobody"),
        Transfer("A"),
        [Transfer("B"), Transfer("C"), Transfer("C")],
        Transfer("B"),
    ]
    said = converse(swarm(), *attempts, Transfer("C"), "Hello.", max_handoffs_per_turn=2)
    assert [each.target_agent_name for each in said.response.handoffs] == ["B", "C"]
    assert said.response.limit_hits == ()


# --- arguments

ODD_ARGUMENTS = ["", "null", "[]", "12", '"x"', '{"reason": ', "true"]


@pytest.mark.parametrize("arguments", ODD_ARGUMENTS)
def test_an_untyped_transfer_routes_whatever_its_arguments(arguments: str) -> None:
    """B048, B050, CF-12: reason empty, a warning, and an object goes back."""
    said = converse(swarm(), Call("transfer_to_b", arguments), "Hello.")
    assert said.response.handoffs == (Handoff("B", None),)
    assert said.results[0].content == {"status": "HANDOFF_SUCCESS", "transferred_to": "B", "reason": ""}
    assert len(said.told(Warned)) == 1
    sent: Any = said.engine.requests[1].projection()["messages"]
    assert sent[2]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("arguments", "reason", "warnings"),
    [
        ('{"reason": "boats"}', "boats", 0),
        ("{}", None, 0),
        ('{"reason": null}', None, 0),
        ('{"reason": 5}', "5", 1),
        ('{"reason": "a", "extra": 1}', "a", 0),
        ('{"reason": "half \\ud83d"}', "half ?", 0),
    ],
)
def test_a_reason_is_text(arguments: str, reason: str | None, warnings: int) -> None:
    """B050, CF-18: an extra key does not stop a transfer."""
    said = converse(swarm(), Call("transfer_to_b", arguments), "Hello.")
    assert said.response.handoffs == (Handoff("B", reason),)
    assert len(said.told(Warned)) == warnings


@pytest.mark.parametrize("arguments", ODD_ARGUMENTS)
def test_a_tool_that_requires_nothing_runs_whatever_its_arguments(arguments: str) -> None:
    said = converse(swarm(), Call("ping", arguments), "Hello.")
    assert said.results == [ToolResult("call_1", "ping", "pong")]
    assert len(said.told(Warned)) == 1


@pytest.mark.parametrize("arguments", [*ODD_ARGUMENTS, "{}", '{"a": "1", "b": 2}'])
def test_a_tool_with_required_parameters_says_what_was_expected(arguments: str) -> None:
    said = converse(swarm(), Call("add", arguments), "Sorry.")
    assert said.results[0].is_error
    assert "integer" in str(said.results[0].content)
    assert [event.known for event in said.told(ToolCalled)] == [True]


def test_events_show_arguments_parsed_and_raw_text_where_they_are_none() -> None:
    said = converse(swarm(), Call("ping", "{cut"), Call("ping", "[1]"), "Done.")
    assert [event.arguments for event in said.told(ToolCalled)] == ["{cut", [1]]


# --- results


class Colour(enum.Enum):
    RED = "red"


class Model(BaseModel):
    colour: Colour


@dataclasses.dataclass
class Pair:
    left: int
    right: list[int]


@pytest.mark.parametrize(
    ("result", "content"),
    [
        (None, None),
        ("", ""),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        (Colour.RED, "red"),
        (Pair(1, [2]), {"left": 1, "right": [2]}),
        ([Model(colour=Colour.RED)], [{"colour": "red"}]),
        ({1: "x"}, {"1": "x"}),
    ],
)
def test_a_result_becomes_json_data(result: object, content: Json) -> None:
    assert converse(swarm(returning(result)), Call("route"), "Done.").results[0].content == content


def test_nothing_that_is_told_holds_half_characters() -> None:
    arguments = '{"\\ud83d": ["\\ud83d", 1, null]}'
    said = converse(swarm(returning({"x": ["\ud83d"]})), Call("route", arguments), Call("route", "\ud83d"), "Done.")
    assert [event.arguments for event in said.told(ToolCalled)] == [{"?": ["?", 1, None]}, "?"]
    assert said.results[0].content == {"x": ["?"]}


def test_a_result_shares_nothing_with_what_the_tool_keeps() -> None:
    kept = [1]
    said = converse(swarm(returning(kept)), Call("route"), "Done.")
    kept.append(2)
    assert said.results[0].content == [1]


def loop_of_lists() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize("result", [object(), b"bytes", float("nan"), {(1, 2): 3}, loop_of_lists(), iter([1])])
def test_a_result_that_is_no_data_is_an_error_result(result: object) -> None:
    said = converse(swarm(returning(result)), Call("route"), "Sorry.")
    assert said.results[0].is_error
    assert "tool 'route' failed" in str(said.results[0].content)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "Error: tool 'route' failed: ValueError: no such order"),
        (ValueError(), "Error: tool 'route' failed: ValueError"),
        (SystemExit(3), "Error: tool 'route' failed: SystemExit: 3"),
        (TimeoutError(), "Error: tool 'route' failed: TimeoutError"),
        (StopIteration(), "Error: tool 'route' failed: StopIteration"),
        (Unprintable(), "Error: tool 'route' failed: Unprintable"),
        (KeyError("<object at 0x7f00deadbeef>"), "Error: tool 'route' failed: KeyError: '<object at 0x...>'"),
    ],
)
def test_a_tools_exception_is_an_error_result_that_reads_the_same_every_time(error: BaseException, text: str) -> None:
    def fail() -> None:
        raise error

    said = converse(swarm(Tool("route", func=fail)), Call("route"), "Sorry.")
    assert said.results == [ToolResult("call_1", "route", text, is_error=True)]


def test_a_keyboard_interrupt_passes_and_rolls_back() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    runner = Runner(swarm(Tool("route", func=interrupt)), engine=ScriptedEngine([Call("route")]))
    with pytest.raises(KeyboardInterrupt):
        runner.run("s", "hi")
    assert runner.get_session("s") is None


def test_a_tool_that_takes_the_context_reads_and_writes_the_sessions() -> None:
    """B078."""

    @tool
    def upgrade(context: dict[str, Any]) -> str:
        """Upgrade the customer."""
        context["history"].append("upgraded")
        context["tier"] = "gold"
        return str(context["name"])

    start = Agent("A", lambda context: f"Tier {context['tier']}.", tools=[upgrade])
    engine = ScriptedEngine([Call("upgrade"), "Done.", "Hello."])
    runner = Runner(start, engine=engine)
    opened: dict[str, Json] = {"name": "x", "tier": "basic", "history": []}
    runner.open_session("s", opened)
    runner.run("s", "hi")
    session = runner.get_session("s")
    assert session is not None
    assert session.context == {"name": "x", "tier": "gold", "history": ["upgraded"]}
    assert opened["history"] == []
    assert [request.instructions for request in engine.requests] == ["Tier basic.", "Tier gold."]
    runner.open_session("t", {"tier": "silver"})
    runner.run("t", "hi")
    assert engine.requests[2].instructions == "Tier silver."


# --- limits


def ping_pong() -> Agent:
    a = Agent("A")
    b = Agent("B", handoffs=[a])
    a.add_handoff(b)
    return a


def always_transfer(request: ModelRequest) -> Answer:
    return Answer(None, (ToolCall("", request.tools[0].name, '{"reason": "again"}'),))


def test_exactly_five_transfers_succeed_and_the_sixth_does_not_move_the_pointer() -> None:
    """B061, B063, CF-1, CF-2."""
    said = converse(ping_pong(), *[always_transfer] * 6, "I am B.")
    assert len(said.response.handoffs) == 5
    assert said.response.active_agent_name == "B"
    assert said.response.content == "I am B."
    assert said.results[5] == ToolResult("call_6", "transfer_to_a", HANDOFFS_EXCEEDED, is_error=True)
    assert refused(said) == [("B", "A", "limit")]
    assert said.told(LimitHit) == [LimitHit("B", "max_handoffs_per_turn", 5)]
    assert said.response.limit_hits == (LimitReached("max_handoffs_per_turn", 5, "B"),)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_the_handoff_limit_is_exact(limit: int) -> None:
    """B061, CF-1: 0 forbids all."""
    said = converse(ping_pong(), *[always_transfer] * (limit + 1), "Hello.", max_handoffs_per_turn=limit)
    assert len(said.response.handoffs) == limit
    assert len(said.told(HandoffRefused)) == 1
    assert said.response.active_agent_name == "AB"[limit % 2]


def test_a_limit_is_reported_once_per_turn_and_reset_with_the_next() -> None:
    said = converse(ping_pong(), always_transfer, always_transfer, "Hello.", max_handoffs_per_turn=0)
    assert len(said.told(HandoffRefused)) == 2
    assert len(said.told(LimitHit)) == 1
    again = said.runner.replace(engine=ScriptedEngine([always_transfer, "Hello."]), max_handoffs_per_turn=1)
    assert again.run("s", "hi").limit_hits == ()


def test_every_call_of_a_response_is_answered_past_a_limit() -> None:
    """CF-3."""
    said = converse(swarm(), [Transfer("B"), Call("ping")], "Hello.", max_handoffs_per_turn=0)
    assert [result.content for result in said.results] == [HANDOFFS_EXCEEDED, "pong"]


def test_a_model_that_transfers_for_ever_is_ended() -> None:
    """CF-2: by the limit on executions, since the turn goes on past the one on transfers."""
    said = converse(ping_pong(), *[always_transfer] * 11)
    assert len(said.response.handoffs) == 5
    assert said.response.content == "Execution iteration limit reached by agent 'B'."
    assert said.response.limit_hits == (
        LimitReached("max_handoffs_per_turn", 5, "B"),
        LimitReached("max_tool_iterations", 10, "B"),
    )


def test_exactly_ten_executions_happen_and_the_eleventh_ends_the_turn() -> None:
    """B064, B070, CF-4."""
    said = converse(swarm(), *[Call("ping")] * 11)
    assert [result.content for result in said.results] == ["pong"] * 10 + [EXECUTIONS_EXCEEDED]
    assert said.response.content == "Execution iteration limit reached by agent 'A'."
    assert said.session.history[-1] == AssistantMessage("A", said.response.content)
    assert said.told(TurnEnded) == [TurnEnded("A", said.response.content, by_runner=True)]
    assert said.told(LimitHit) == [LimitHit("A", "max_tool_iterations", 10)]
    assert len(said.response.tool_calls_executed) == 11


def test_ten_executions_and_a_text_are_within_the_limit() -> None:
    """B070."""
    said = converse(swarm(), *[Call("ping")] * 10, "Done.")
    assert (said.response.content, said.response.limit_hits) == ("Done.", ())


def test_executions_are_counted_not_responses() -> None:
    """B070, CF-4: 25 calls in one response."""
    said = converse(swarm(), [Call("ping")] * 25, max_tool_iterations=2)
    assert [result.content for result in said.results] == ["pong"] * 2 + [EXECUTIONS_EXCEEDED] * 23
    assert len(said.told(ToolCalled)) == len(said.told(ToolAnswered)) == 25
    assert len(said.told(LimitHit)) == 1


def test_a_transfer_past_the_execution_limit_is_a_refused_handoff() -> None:
    said = converse(swarm(), [Call("ping"), Transfer("B"), Call("nothing")], max_tool_iterations=1)
    assert refused(said) == [("A", "B", "limit")]
    assert [(event.tool, event.known) for event in said.told(ToolCalled)] == [("ping", True), ("nothing", False)]
    assert said.response.active_agent_name == "A"


def test_the_fallback_names_who_is_active_then() -> None:
    said = converse(swarm(), [Transfer("B"), Call("ping")], max_tool_iterations=1)
    assert said.response.content == "Execution iteration limit reached by agent 'B'."


def test_every_kind_of_call_is_an_execution() -> None:
    """B067: unknown, refused, failed and accepted alike."""
    lines: list[Line] = [
        Call("nothing"),
        Call("transfer_to_a"),
        Call("add", "{"),
        Transfer("B"),
        Transfer("C"),
        Call("ping"),
    ]
    said = converse(swarm(), lines, "Done.", max_tool_iterations=6)
    assert said.response.limit_hits == ()
    assert converse(swarm(), lines, max_tool_iterations=5).response.limit_hits


def test_no_executions_at_all_still_leaves_talking() -> None:
    assert converse(swarm(), "Hello.", max_tool_iterations=0).response.content == "Hello."
    said = converse(swarm(), Call("ping"), max_tool_iterations=0)
    assert said.results == [ToolResult("call_1", "ping", EXECUTIONS_EXCEEDED, is_error=True)]


# --- call ids


def test_missing_and_repeated_ids_are_filled_in_for_the_whole_session() -> None:
    """CF-19: call_0 in every response."""
    script: list[Scripted] = [
        Call("ping", id="call_0"),
        [Call("ping", id="call_0"), Call("ping", id="call_0")],
        "Done.",
    ]
    said = converse(swarm(), *script)
    assert [result.call_id for result in said.results] == ["call_0", "call_2", "call_3"]
    assert len(said.told(Warned)) == 2
    blank = ScriptedEngine([Answer(None, (ToolCall("", "ping"),)), "Done."])
    said.runner.replace(engine=blank).run("s", "hi")
    assert said.results[-1].call_id == "call_4"


def test_an_invented_id_makes_room_for_one_that_is_taken() -> None:
    said = converse(swarm(), [Call("ping", id="call_2"), Call("ping", id="call_2")], "Done.")
    assert [result.call_id for result in said.results] == ["call_2", "call_3"]


# --- what an exception leaves behind


def state(runner: Runner) -> SessionContext | None:
    return runner.get_session("s")


@pytest.mark.parametrize("error", [ConnectionError("429"), KeyboardInterrupt(), asyncio.CancelledError()])
def test_any_exception_rolls_back_history_active_agent_and_context(error: BaseException) -> None:
    """B024, B030, CF-9, CF-10."""
    start = swarm(returning(Handoff("B", None, {"tier": "gold"})))
    runner = Runner(start, engine=ScriptedEngine(["Hello.", Call("route"), error, "Again."]))
    runner.open_session("s", {"seen": [1]})
    runner.run("s", "first")
    before = state(runner)
    with pytest.raises(type(error)):
        runner.run("s", "second", {"more": 1})
    assert state(runner) == before
    assert runner.run("s", "third").active_agent_name == "A"


def test_a_cancelled_turn_leaves_the_session_and_lets_the_next_one_in() -> None:
    async def main() -> None:
        started = asyncio.Event()

        class Slow:
            async def answer(self, request: ModelRequest) -> Answer:
                started.set()
                await asyncio.sleep(60)
                return Answer("never")

        runner = Runner(swarm(), engine=Slow())
        task = asyncio.create_task(runner.run_async("s", "hi"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert runner.get_session("s") is None
        assert (await runner.replace(engine=ScriptedEngine(["Hello."])).run_async("s", "hi")).content == "Hello."

    asyncio.run(main())


def test_an_observer_that_raises_rolls_back_even_while_a_tool_hands_off() -> None:
    def observe(event: Event) -> None:
        if isinstance(event, HandoffAccepted):
            raise RuntimeError("seen enough")

    runner = Runner(swarm(returning(Handoff("B"))), engine=ScriptedEngine([Call("route"), "Hello."]))
    with pytest.raises(RuntimeError, match="seen enough"):
        runner.run("s", "hi", observer=observe)
    assert runner.get_session("s") is None


def test_a_context_that_is_no_data_any_more_rolls_back() -> None:
    @tool
    def spoil(context: dict[str, Any]) -> str:
        """Spoil it."""
        context["when"] = object()
        return "ok"

    runner = Runner(swarm(spoil), engine=ScriptedEngine([Call("spoil"), "Done."]))
    with pytest.raises(SessionError, match="context"):
        runner.run("s", "hi")
    assert runner.get_session("s") is None


def test_running_changes_no_agent() -> None:
    """B145."""
    start = swarm()
    before = [(agent, dict(vars(agent)), agent.get_all_tools()) for agent in Runner(start).agents.values()]

    async def main() -> None:
        runner = Runner(start)
        await asyncio.gather(
            *(
                runner.replace(engine=ScriptedEngine([Transfer("B"), "Hello."])).run_async(str(number), "hi")
                for number in range(20)
            )
        )

    asyncio.run(main())
    for agent, attributes, tools in before:
        assert {**vars(agent), "_toolbox": None} == {**attributes, "_toolbox": None}
        assert [each.schema for each in agent.get_all_tools()] == [each.schema for each in tools]


# --- sessions


def test_turns_of_one_session_never_mix() -> None:
    """B143, CF-11."""

    class Waiting:
        async def answer(self, request: ModelRequest) -> Answer:
            await asyncio.sleep(0.001)
            return Answer(f"{len(request.history)}")

    async def main(runner: Runner) -> list[AgentResponse]:
        return await asyncio.gather(*(runner.run_async("s", f"m{number}") for number in range(5)))

    runner = Runner(swarm(), engine=Waiting())
    assert [response.content for response in asyncio.run(main(runner))] == ["1", "3", "5", "7", "9"]


def test_two_runners_on_one_store_keep_to_their_own_agents() -> None:
    """CF-17."""
    store = SessionStore()
    first = Runner(swarm(), store, engine=ScriptedEngine([Transfer("B"), "Hello.", "Still here."]))
    first.run("s", "hi")
    Runner(Agent("Other"), store)
    assert first.run("s", "hi").active_agent_name == "B"


def test_an_active_agent_that_is_gone_is_an_error_that_lists_the_known() -> None:
    """B075: no silent return to the start, the stored session stays."""
    store = SessionStore()
    store.save(SessionContext("s", "Refunds", [UserMessage("hi")]))
    runner = Runner(swarm(), store, engine=ScriptedEngine([]))
    with pytest.raises(SessionError, match="is with agent 'Refunds', expected one of 'A', 'B', 'C'"):
        runner.run("s", "hi")
    assert store.load("s") == SessionContext("s", "Refunds", [UserMessage("hi")])


@pytest.mark.parametrize("session_id", ["", None, 5])
def test_session_ids_are_text(session_id: Any) -> None:
    runner = Runner(swarm(), engine=ScriptedEngine([]))
    for use in (runner.get_session, runner.open_session, lambda given: runner.run(given, "hi")):
        with pytest.raises(SessionError, match="A session id is"):
            use(session_id)


def test_a_session_can_start_elsewhere_with_a_context() -> None:
    """B078."""
    runner = Runner(swarm(), engine=ScriptedEngine(["Hello."]))
    opened = runner.open_session("s", {"tier": "gold"}, active_agent="B")
    assert opened == SessionContext("s", "B", context={"tier": "gold"})
    assert runner.run("s", "hi").active_agent_name == "B"
    with pytest.raises(SessionError, match="'s' exists already"):
        runner.open_session("s")
    with pytest.raises(SessionError, match="cannot start at 'Z', expected one of 'A', 'B', 'C'"):
        runner.open_session("t", active_agent=Agent("Z"))


def test_metadata_is_merged_into_the_context() -> None:
    runner = Runner(Agent("A", lambda context: str(context["tier"])), engine=ScriptedEngine(["Hello.", "Hello."]))
    runner.run("s", "hi", {"tier": "gold"})
    runner.run("s", "hi", metadata={"seen": True})
    session = runner.get_session("s")
    assert session is not None
    assert session.context == {"tier": "gold", "seen": True}


# --- the runner itself


def test_run_inside_a_running_loop_names_the_other_method() -> None:
    """B147, CF-16."""

    async def main() -> None:
        with pytest.raises(RunningLoopError, match=r"await runner\.run_async"):
            Runner(swarm()).run("s", "hi")

    asyncio.run(main())


def test_agents_are_registered_breadth_first_through_circles() -> None:
    """B026, B028."""
    d = Agent("D")
    start = swarm()
    start.handoffs[1].add_handoff(handoff(d, tool_name="to_d"))
    d.add_handoff(start)
    runner = Runner(start)
    assert list(runner.agents) == ["A", "B", "C", "D"]
    assert runner.starting_agent is runner.agents["A"] is start


def test_two_agents_with_one_name_are_refused_naming_both_ways() -> None:
    """CF-8."""
    mid = Agent("Mid", handoffs=[Agent("Helper", "two")])
    start = Agent("A", handoffs=[Agent("Helper", "one"), mid])
    with pytest.raises(DefinitionError, match="named 'Helper': A -> Helper and A -> Mid -> Helper"):
        Runner(start)
    runner = Runner(Agent("A"))
    with pytest.raises(DefinitionError, match="Two different agents are named 'A'"):
        runner.register_agent(Agent("B", handoffs=[Agent("A")]))
    assert list(runner.agents) == ["A"]


@pytest.mark.parametrize("limits", [{"max_handoffs_per_turn": -1}, {"max_tool_iterations": "many"}])
def test_limits_are_checked_when_given(limits: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=f"{next(iter(limits))} is"):
        Runner(swarm(), **limits)
    with pytest.raises(DefinitionError, match=f"{next(iter(limits))} is"):
        Runner(swarm()).replace(**limits)


def test_a_replaced_runner_shares_agents_and_sessions_and_nothing_else() -> None:
    runner = Runner(swarm(), engine=ScriptedEngine([]))
    settings = Settings(temperature=0.5)
    other = runner.replace(
        engine=ScriptedEngine([Transfer("B"), "Hello."]),
        settings=settings,
        max_handoffs_per_turn=1,
        max_tool_iterations=2,
    )
    other.run("s", "hi")
    assert runner.get_session("s") == other.get_session("s")
    assert runner.session_store is other.session_store
    assert (runner.limits.max_handoffs_per_turn, other.limits.max_handoffs_per_turn) == (5, 1)
    assert (runner.settings, other.settings) == (Settings(), settings)
    assert (runner.engine is other.engine, runner.models) == (False, {})
    other.register_agent(Agent("Z"))
    assert "Z" in runner.agents
    with pytest.raises(TypeError, match="session_store"):
        runner.replace(session_store=SessionStore())  # type: ignore[call-arg]


# --- who answers


def answering(text: str) -> ScriptedEngine:
    return ScriptedEngine([text])


def test_the_agents_engine_then_the_runners_then_the_one_in_use() -> None:
    own = Agent("A", engine=answering("own"))
    with using(ScriptedEngine(["in use", "in use"])):
        assert Runner(own, engine=answering("runner")).run("s", "hi").content == "own"
        assert Runner(Agent("A"), engine=answering("runner")).run("s", "hi").content == "runner"
        assert Runner(Agent("A")).run("s", "hi").content == "in use"
        assert Runner(Agent("A", model="keyword")).run("s", "hi").content.startswith("[keyword router]")
        assert Runner(Agent("A", engine=answering("own"), model="keyword")).run("s", "hi").content == "own"
        assert Runner(Agent("A"), engine=answering("x")).replace(engine=None).run("s", "hi").content == "in use"


@pytest.mark.parametrize(
    ("models", "content", "model"),
    [
        ({"*": "gpt-4o"}, "runner", "gpt-4o"),
        ({"A": "gpt-4o", "*": "other"}, "runner", "gpt-4o"),
        ({"B": "gpt-4o"}, "own", "declared"),
        ({"*": "keyword"}, "[keyword router] A keeps this conversation.", "keyword"),
        ({"A": "keyword"}, "[keyword router] A keeps this conversation.", "keyword"),
        ({"*": KeywordEngine()}, "[keyword router] A keeps this conversation.", "declared"),
    ],
)
def test_models_say_who_answers_instead_of_what_agents_declare(models: Any, content: str, model: str) -> None:
    start = Agent("A", model="declared", engine=answering("own"), handoffs=[Agent("B")])
    events: list[Event] = []
    for runner in (
        Runner(start, engine=answering("runner"), models=models),
        Runner(
            Agent("A", model="declared", engine=answering("own"), handoffs=[Agent("B")]), engine=answering("runner")
        ),
    ):
        events.clear()
        chosen = runner if runner.starting_agent is start else runner.replace(models=models)
        assert chosen.run("s", "hi", observer=events.append).content == content
        assert isinstance(events[1], ModelAsked)
        assert events[1].model == model


def test_models_name_agents_that_exist() -> None:
    with pytest.raises(DefinitionError, match=r"models names agent 'Z', expected '\*' or one of 'A', 'B', 'C'"):
        Runner(swarm(), models={"Z": "gpt-4o"})


def test_every_agents_declared_model_is_asked_for() -> None:
    """CF-15: gpt-4o does not go to Gemini."""
    start = Agent("A", model="gpt-4o", handoffs=[Agent("B", model="gemini-2.5-flash")])
    said = converse(start, Transfer("B"), "Hello.")
    assert [request.model for request in said.engine.requests] == ["gpt-4o", "gemini-2.5-flash"]
    assert [event.model for event in said.told(ModelAsked)] == ["gpt-4o", "gemini-2.5-flash"]


def test_a_runner_tells_whether_it_needs_litellm() -> None:
    start = Agent("A", model="keyword", handoffs=[Agent("B", engine=ScriptedEngine([]))])
    assert not Runner(start).needs_litellm
    assert Runner(start, models={"B": "gpt-4o"}).needs_litellm
    assert not Runner(start, models={"*": "keyword"}).needs_litellm
    assert Runner(Agent("A")).needs_litellm
    with using(ScriptedEngine([])):
        assert not Runner(Agent("A")).needs_litellm


def test_settings_reach_the_engine() -> None:
    settings = Settings(temperature=0.1, seed=3)
    assert converse(swarm(), "Hello.", settings=settings).engine.requests[0].settings == settings


def test_tokens_add_up_and_one_unknown_makes_the_sum_unknown() -> None:
    """B119."""
    known = Answer(None, (ToolCall("x", "ping"),), Usage(10, 2))
    assert converse(swarm(), known, Answer("Done.", usage=Usage(20, 0))).response.usage == Usage(30, 2)
    assert converse(swarm(), known, Answer("Done.", usage=Usage(20, None))).response.usage == Usage(30, None)


def test_a_script_that_runs_out_rolls_back() -> None:
    with pytest.raises(ScriptError):
        converse(swarm(), Transfer("B"))


def test_events_come_in_order() -> None:
    said = converse(swarm(), [Call("ping"), Transfer("B")], "Hello.")
    assert [type(event) for event in said.events] == [
        TurnStarted,
        ModelAsked,
        ModelAnswered,
        ToolCalled,
        ToolAnswered,
        HandoffAccepted,
        ModelAsked,
        ModelAnswered,
        TurnEnded,
    ]
    assert said.events[0] == TurnStarted("A", "hi")
    assert said.events[1] == ModelAsked("A", "gemini-2.5-flash", ("add", "ping", "transfer_to_b", "transfer_to_c"))
    assert said.events[-1] == TurnEnded("B", "Hello.")
    assert all(event.seconds >= 0 for event in said.told(ModelAnswered))


# --- any model, any swarm

NAMES = st.lists(
    st.text(max_size=12).filter(str.strip) | st.sampled_from(["Billing", "billing", "日本", "Łódź", "a" * 70]),
    min_size=1,
    max_size=5,
    unique=True,
)


@st.composite
def swarms(draw: st.DrawFn) -> Agent:
    """Agents with any names, handing off to any others, with tools that work and fail."""

    def fail() -> None:
        raise ValueError("no")

    def anywhere(to: str) -> Handoff:
        return Handoff(to, "because", {"seen": to})

    tools = [add, ping, Tool("fail", func=fail), tool(anywhere)]
    agents = [Agent(name, name, tools=draw(st.lists(st.sampled_from(tools), unique=True))) for name in draw(NAMES)]
    for agent in agents:
        for peer in draw(st.lists(st.sampled_from(agents), unique=True)):
            if peer is not agent:
                agent.add_handoff(peer)
    return agents[0]


ODD = st.sampled_from(["{}", '{"a": 1, "b": 2}', '{"reason": "x"}', '{"reason": 5}', *ODD_ARGUMENTS]) | st.text(
    max_size=6
)
IDS = st.sampled_from(["", "call_0", "call_1", "x" * 50]) | st.text(max_size=5)


@st.composite
def models(draw: st.DrawFn) -> Callable[[ModelRequest], Answer]:
    """A model that says and calls anything, its own tools most of all."""
    choices: list[Sequence[tuple[int, str, str, str]]] = draw(
        st.lists(
            st.lists(st.tuples(st.integers(0, 9), IDS, st.text(max_size=9), ODD), max_size=4), min_size=1, max_size=8
        )
    )
    texts: list[str | None] = draw(st.lists(st.none() | st.text(max_size=5), min_size=1, max_size=3))
    asked = 0

    def answer(request: ModelRequest) -> Answer:
        nonlocal asked
        names = [each.name for each in request.tools]
        calls = []
        for which, call_id, other, arguments in choices[asked % len(choices)]:
            name = names[which] if which < len(names) else other
            if name == "anywhere":
                arguments = json.dumps({"to": other})
            calls.append(ToolCall(call_id, name, arguments))
        text = texts[asked % len(texts)]
        asked += 1
        return Answer(text if calls or (text and text.strip()) else "Hello.", tuple(calls))

    return answer


def calls_of(history: Iterable[object]) -> list[ToolCall]:
    return [call for message in history if isinstance(message, AssistantMessage) for call in message.tool_calls]


@given(swarms(), models(), st.integers(0, 4), st.integers(0, 12), st.sampled_from(["gpt-4o", "mistral/x"]))
def test_whatever_a_model_answers_the_turn_ends_valid_and_within_its_limits(
    start: Agent, model: Callable[[ModelRequest], Answer], max_handoffs: int, max_executions: int, name: str
) -> None:
    """B036, B061, B067, B070 and their whole kind."""
    requests: list[ModelRequest] = []

    class Anything:
        async def answer(self, request: ModelRequest) -> Answer:
            requests.append(request)
            return model(request)

    runner = Runner(
        start,
        engine=Anything(),
        models={"*": name},
        max_handoffs_per_turn=max_handoffs,
        max_tool_iterations=max_executions,
    )
    for turn in range(2):
        events: list[Event] = []
        response = runner.run("s", f"turn {turn}", observer=events.append)
        session = runner.get_session("s")
        assert session is not None

        accepted = [event for event in events if isinstance(event, HandoffAccepted)]
        called = [event for event in events if isinstance(event, ToolCalled)]

        # Every call is told once: as a domain tool's, or as a transfer that was accepted or refused.
        attempts = [event for event in events if isinstance(event, HandoffAccepted | HandoffRefused)]
        by_transfer_tool = [event for event in attempts if event.tool != "anywhere"]
        assert len(called) + len(by_transfer_tool) == len(response.tool_calls_executed)
        # Limits hold exactly: whoever was refused by one found it used up.
        assert len(accepted) == len(response.handoffs) <= max_handoffs
        hits = {hit.limit for hit in response.limit_hits}
        if "max_handoffs_per_turn" in hits:
            assert len(accepted) == max_handoffs
        assert ("max_tool_iterations" in hits) == (len(response.tool_calls_executed) > max_executions)
        assert isinstance(events[-1], TurnEnded)
        assert (events[-1].text, events[-1].agent) == (response.content, response.active_agent_name)

        # Control is where the accepted handoffs left it.
        assert session.active_agent_name == response.active_agent_name
        if accepted:
            assert accepted[-1].target == session.active_agent_name
        assert all(event.target in {peer.name for peer in runner.agents[event.source].handoffs} for event in accepted)

        # Ids are unique, every call is answered, in order.
        ids = [call.id for call in calls_of(session.history)]
        assert len(set(ids)) == len(ids)
        assert [message.call_id for message in session.history if isinstance(message, ToolResult)] == ids
    assert [faults(request.projection()) for request in requests] == [()] * len(requests)
