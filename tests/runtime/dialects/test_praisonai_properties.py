"""Any swarm of agents that call one another, any model: turns end, what is sent is valid, limits and policies hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from chatflow_runtime.dialects.praisonai import Agent, ContextPolicy, HandoffConfig, HandoffToolPolicy, handoff
from chatflow_runtime.dialects.praisonai import handoff_filters as filters
from chatflow_runtime.engine import Answer, ModelRequest
from chatflow_runtime.events import (
    Event,
    HandoffAccepted,
    HandoffRefused,
    HandoffReturned,
    ModelAnswered,
    ModelAsked,
    ToolAnswered,
    ToolCalled,
)
from chatflow_runtime.exceptions import EmptyResponseError
from chatflow_runtime.history import faults
from chatflow_runtime.limits import EXECUTIONS_EXCEEDED, HANDOFFS_EXCEEDED
from chatflow_runtime.runner import Runner
from chatflow_runtime.tools import Tool
from chatflow_runtime.types import AssistantMessage, Message, ToolCall, ToolResult, UserMessage

PROVIDERS = ("gpt-4.1", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash", "mistral/mistral-large")
NAMES = ("Billing", "Tech Support", "日本", "Łódź", "odz", "a" * 70, "B", "C")


class Task(BaseModel):
    priority: int


def fail() -> None:
    raise ValueError("no")


TOOLS = [Tool("one", func=lambda: 1), Tool("two", func=lambda: "2"), Tool("fail", func=fail)]
FILTERS: list[Any] = [
    filters.remove_all_tools,
    filters.keep_last_n_messages(0),
    filters.keep_last_n_messages(2),
    filters.compress_history,
    filters.remove_system_messages,
    lambda data: None,
]
CONFIGS = st.builds(
    HandoffConfig,
    context_policy=st.sampled_from(ContextPolicy),
    max_context_messages=st.integers(0, 4),
    tool_policy=st.builds(
        HandoffToolPolicy,
        st.sampled_from(["intersect", "passthrough"]),
        st.lists(st.sampled_from(["one", "two", "transfer_to_b"]), max_size=1),
    ),
    max_concurrent=st.none() | st.just(1),
    detect_cycles=st.booleans(),
    max_depth=st.integers(0, 4) | st.just(10),
)


@st.composite
def swarms(draw: st.DrawFn) -> Agent:
    """Up to 8 agents, each with handoffs to any others, however configured."""
    agents = [
        Agent(name, name, tools=draw(st.lists(st.sampled_from(TOOLS), max_size=3, unique=True)))
        for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=8, unique=True))
    ]
    for agent in agents:
        peers = draw(st.lists(st.sampled_from(agents), min_size=len(agents) // 2, unique=True))
        agent.handoffs = [
            handoff(
                peer,
                config=draw(CONFIGS),
                input_type=draw(st.sampled_from([None, None, None, Task])),
                input_filter=draw(st.lists(st.sampled_from(FILTERS), max_size=2)),
            )
            for peer in peers
            if peer is not agent
        ]
    return agents[0]


@dataclass(frozen=True)
class Line:
    """One answer of a model: a text, and calls of the tools offered, or of others."""

    text: str | None
    calls: list[tuple[int, str, str, str]]

    def answer(self, request: ModelRequest) -> Answer:
        offered = [each.name for each in request.tools]
        return Answer(
            self.text,
            tuple(
                ToolCall(call_id, offered[which] if which < len(offered) else name, arguments)
                for which, name, call_id, arguments in self.calls
            ),
        )


TEXTS = st.sampled_from([None, "", " ", "Hello.", "half \ud83d"])
CALLS = st.tuples(
    st.integers(0, 8),
    st.sampled_from(["one", "two", "fail", "transfer_to_b", "transfer_to_billing", "nothing"]),
    st.sampled_from(["", "call_1", "x" * 50]),
    st.sampled_from(["", "{}", '{"priority": 1}', '{"reason": "x", "task": "y"}', "[]", "{bad"]),
)
LINES = st.builds(Line, st.just("Hello."), st.just([])) | st.builds(Line, TEXTS, st.lists(CALLS, max_size=4))


@dataclass
class AnyModel:
    """Says its lines over and over, and keeps what it was asked."""

    lines: Sequence[Line]
    requests: list[ModelRequest] = field(default_factory=list)

    async def answer(self, request: ModelRequest) -> Answer:
        self.requests.append(request)
        return self.lines[(len(self.requests) - 1) % len(self.lines)].answer(request)


@given(
    swarms(), st.lists(LINES, min_size=1, max_size=8), st.integers(0, 5), st.integers(0, 12), st.sampled_from(PROVIDERS)
)
def test_whatever_the_model_does(
    start: Agent, lines: list[Line], max_handoffs: int, max_executions: int, model: str
) -> None:
    engine, events = AnyModel(lines), list[Event]()
    runner = Runner(
        start,
        engine=engine,
        models={"*": model},
        max_handoffs_per_turn=max_handoffs,
        max_tool_iterations=max_executions,
    )
    failed = False
    try:
        response = runner.run("s", "hi", observer=events.append)
    except EmptyResponseError:
        failed = True

    # It ends, and what is sent is valid wherever it goes.
    assert len(engine.requests) <= 1 + max_executions + max_handoffs
    assert [faults(request.projection()) for request in engine.requests] == [()] * len(engine.requests)

    # Each call comes back once, and what happens inside it is told between.
    open_calls: list[tuple[str, ...]] = [()]
    for event in events:
        if isinstance(event, HandoffAccepted):
            assert event.kind == "call"
            open_calls.append((*event.within, event.call_id))
        elif isinstance(event, HandoffReturned):
            assert open_calls.pop() == (*event.within, event.call_id)
        assert event.within == open_calls[-1] or isinstance(event, HandoffAccepted)
    assert open_calls == [()]

    # Both limits are exact.
    accepted = 0
    executions = 0
    for event in events:
        accepted += isinstance(event, HandoffAccepted)
        if isinstance(event, HandoffRefused) and event.message == HANDOFFS_EXCEEDED:
            assert accepted == max_handoffs
        executions += _counts(event)
    assert accepted <= max_handoffs
    assert executions <= max_executions
    if any(_is_exceeding(event) for event in events):
        assert executions == max_executions

    # No agent uses what is withheld from it, and none is called inside its own call where that is looked for.
    chains: dict[tuple[str, ...], tuple[str, ...]] = {(): (start.name,)}
    withheld: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}
    for event in events:
        if isinstance(event, HandoffAccepted):
            inside = (*event.within, event.call_id)
            source = next(agent for agent in runner.agents.values() if agent.name == event.source)
            by = source.toolbox(None).handoffs[event.tool]
            assert isinstance(config := getattr(by, "config", None), HandoffConfig)
            assert not config.detect_cycles or event.target not in chains[event.within]
            assert len(inside) <= config.max_depth
            chains[inside] = (*chains[event.within], event.target)
            withheld[inside] = event.withheld
        if isinstance(event, ToolCalled) and event.known:
            assert event.tool not in withheld[event.within]
        if isinstance(event, ModelAsked):
            assert not set(withheld[event.within]) & set(event.tools)
            assert event.agent == chains[event.within][-1]

    # The session is what the events say, or as it was; and agents are as they were.
    session = runner.get_session("s")
    assert (session is None) == failed
    if session is not None:
        assert (session.active_agent_name, response.active_agent_name) == (start.name, start.name)
        assert session.history == _retold(events, response.content)
        assert len(response.handoffs) == accepted
    assert [agent.chat_history for agent in runner.agents.values() if isinstance(agent, Agent)] == [[]] * len(
        runner.agents
    )


def _counts(event: Event) -> bool:
    """Whether an event stands for a tool execution: each call is told of by one."""
    if isinstance(event, ToolAnswered):
        return event.content != EXECUTIONS_EXCEEDED
    if isinstance(event, HandoffRefused):
        return event.message != EXECUTIONS_EXCEEDED
    return isinstance(event, HandoffAccepted)


def _is_exceeding(event: Event) -> bool:
    told = (
        event.content if isinstance(event, ToolAnswered) else event.message if isinstance(event, HandoffRefused) else ""
    )
    return told == EXECUTIONS_EXCEEDED


def _retold(events: Sequence[Event], reply: str) -> list[Message]:
    """The session's history put together from what happened outside of calls."""
    messages: list[Message] = [UserMessage("hi")]
    calls: list[ToolCall] = []
    said: dict[str, str] = {}
    for index, event in enumerate(events):
        if isinstance(event, ModelAnswered) and event.within:
            said["last"] = event.text or ""
        if event.within:
            continue
        if isinstance(event, ModelAnswered) and event.tool_calls:
            ids = _ids_after(events[index + 1 :], len(event.tool_calls))
            calls = [
                ToolCall(each, call.name, call.arguments) for each, call in zip(ids, event.tool_calls, strict=True)
            ]
            messages.append(AssistantMessage(event.agent, event.text, tuple(calls)))
        elif isinstance(event, ToolAnswered):
            messages.append(ToolResult(event.call_id, event.tool, event.content, event.is_error))
        elif isinstance(event, HandoffRefused):
            messages.append(ToolResult(event.call_id, event.tool, event.message, is_error=True))
        elif isinstance(event, HandoffReturned):
            name = next(call.name for call in calls if call.id == event.call_id)
            error = f"Error: the handoff to '{event.target}' failed: {event.error}"
            content = error if event.error else said["last"]
            messages.append(ToolResult(event.call_id, name, content, bool(event.error)))
    return [*messages, AssistantMessage(_speaker(events), reply)]


def _ids_after(events: Sequence[Event], number: int) -> list[str]:
    """The ids under which the calls of an answer were answered."""
    answers = (ToolAnswered, HandoffRefused, HandoffReturned)
    ids = [event.call_id for event in events if isinstance(event, answers) and not event.within]
    return ids[:number]


def _speaker(events: Sequence[Event]) -> str:
    return next(event.agent for event in reversed(events) if isinstance(event, ModelAsked) and not event.within)
