"""Any swarm, any model: each turn ends, what is sent is valid, limits are exact, the session is what the events say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime import (
    Agent,
    AgentResponse,
    Answer,
    AssistantMessage,
    EmptyResponseError,
    Handoff,
    ModelRequest,
    Runner,
    SessionContext,
    SessionStore,
    Tool,
    ToolCall,
    ToolResult,
    UserMessage,
    handoff,
    tool,
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
)
from chatflow_runtime.history import faults
from chatflow_runtime.limits import EXECUTIONS_EXCEEDED, HANDOFFS_EXCEEDED, exhausted_text
from chatflow_runtime.memory import last_turns
from chatflow_runtime.naming import tool_name
from chatflow_runtime.types import Json, Message

PROVIDERS = ("gpt-4o", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash", "mistral/mistral-large")

# --- any swarm


@tool
def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


@tool
def remember(context: dict[str, Json], word: str = "") -> list[str]:
    """Keep a word."""
    context["words"] = [*sorted(str(each) for each in context), word]
    return [word]


@tool
async def later() -> None:
    """Take a while."""
    await asyncio.sleep(0)


def fail() -> None:
    raise ValueError("no")


def anywhere(to: str) -> Handoff:
    """Hand off to any agent, with something to remember."""
    return Handoff(to, "because", {"sent_to": to})


TOOLS = [add, remember, later, Tool("fail", func=fail), tool(anywhere)]
KNOWN = ("Billing", "billing", "Tech Support", "日本", "日本語", "Łódź", "odz", "a" * 70)
NAMES = st.sampled_from(KNOWN) | st.text(max_size=8).filter(str.strip)


@st.composite
def swarms(draw: st.DrawFn) -> Agent:
    """Up to 8 agents with any names, handing off to any others, with tools that work, fail and hand off."""
    names = draw(st.lists(NAMES, min_size=1, max_size=8, unique=True))
    tools = st.lists(st.sampled_from(TOOLS), max_size=3, unique=True)
    agents = [Agent(name, name, tools=draw(tools)) for name in names]
    for agent in agents:
        for peer in draw(st.lists(st.sampled_from(agents), min_size=len(agents) // 2, unique=True)):
            named = handoff(peer, tool_name=f"to_{agents.index(peer)}")
            if peer is not agent:
                agent.add_handoff(named if draw(st.integers(0, 9)) == 0 else peer)
    return agents[0]


# --- any model

BAD_ARGUMENTS = ("", "null", "[]", "12", '{"reason": ', '{"reason": 5, "extra": "\\ud83d"}')
"""All the shapes in which arguments arrive broken; the last is an object that fits no reason."""

Wanted: TypeAlias = tuple[int, str, str, str]
"""A call: which of the tools offered, or else this name; its id; its arguments."""

CALLS: st.SearchStrategy[Wanted] = st.tuples(
    st.integers(0, 8),
    st.sampled_from(["", "add", "transfer_to_nobody", *map(tool_name, KNOWN), *KNOWN]) | st.text(max_size=5),
    st.sampled_from(["", "call_1", "call_2", "x" * 50]) | st.text(max_size=4),
    st.sampled_from([*BAD_ARGUMENTS, "{}", '{"a": 1}', '{"reason": "x", "a": 2, "word": "w"}']) | st.text(max_size=4),
)


@dataclass(frozen=True)
class Line:
    """One answer of a model, as far as it does not depend on what it is asked."""

    text: str | None
    calls: list[Wanted]

    def answer(self, request: ModelRequest) -> Answer:
        return Answer(self.text, tuple(self._call(request, *wanted) for wanted in self.calls))

    def _call(self, request: ModelRequest, which: int, name: str, call_id: str, arguments: str) -> ToolCall:
        chosen = request.tools[which].name if which < len(request.tools) else name
        if chosen == "anywhere":
            places = [*(each.target for each in request.tools if each.target), name, request.agent]
            arguments = json.dumps({"to": places[len(arguments) % len(places)]})
        return ToolCall(call_id, chosen, arguments)


TEXTS = st.none() | st.sampled_from(["", " \n", "half \ud83d"]) | st.text(max_size=4)
REPLIES = st.builds(Line, st.just("Hello.") | TEXTS, st.just([]))
SCRIPTS = st.lists(REPLIES | st.builds(Line, TEXTS, st.lists(CALLS, min_size=1, max_size=4)), min_size=1, max_size=8)


@dataclass
class AnyModel:
    """Says its lines over and over, and keeps what it was asked."""

    lines: list[Line]
    requests: list[ModelRequest] = field(default_factory=list)

    async def answer(self, request: ModelRequest) -> Answer:
        self.requests.append(request)
        return self.lines[(len(self.requests) - 1) % len(self.lines)].answer(request)


# --- what the events say


@dataclass
class Retold:
    """A turn put together from what its observer was told."""

    active: str = ""
    reply: str = ""
    by_runner: bool = False
    messages: list[Message] = field(default_factory=list)
    accepted: list[HandoffAccepted] = field(default_factory=list)
    accepted_in: list[int] = field(default_factory=list)
    """Which answer of a model asked for each of those."""
    refused: list[HandoffRefused] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    hits: list[LimitHit] = field(default_factory=list)
    asked: int = 0

    @classmethod
    def of(cls, events: Sequence[Event]) -> Retold:
        told = cls()
        answered: list[tuple[ModelAnswered, list[ToolResult]]] = []
        domain: set[str] = set()
        """Calls of domain tools, whose results are told as such also where they hand off."""
        for event in events:
            result = None
            match event:
                case TurnStarted(agent=agent, text=text):
                    told.active = agent
                    told.messages.append(UserMessage(text))
                case ModelAsked(agent=agent):
                    told.asked += 1
                    assert agent == told.active
                case ModelAnswered():
                    answered.append((event, []))
                case ToolCalled(call_id=call_id):
                    domain.add(call_id)
                case ToolAnswered():
                    result = ToolResult(event.call_id, event.tool, event.content, event.is_error)
                case HandoffAccepted():
                    told.accepted.append(event)
                    told.accepted_in.append(len(answered))
                    told.active = event.target
                    content: Json = {
                        "status": "HANDOFF_SUCCESS",
                        "transferred_to": event.target,
                        "reason": event.reason,
                    }
                    result = ToolResult(event.call_id, event.tool, content)
                case HandoffRefused():
                    told.refused.append(event)
                    result = ToolResult(event.call_id, event.tool, event.message, is_error=True)
                case LimitHit():
                    told.hits.append(event)
                case TurnEnded(agent=agent, text=text, by_runner=by_runner):
                    assert agent == told.active
                    told.reply, told.by_runner = text, by_runner
            if result is not None and (isinstance(event, ToolAnswered) or result.call_id not in domain):
                answered[-1][1].append(result)
        for answer, results in answered:
            assert [call.name for call in answer.tool_calls] == [result.name for result in results]
            calls = tuple(
                replace(call, id=result.call_id) for call, result in zip(answer.tool_calls, results, strict=True)
            )
            told.messages += [AssistantMessage(answer.agent, answer.text, calls), *results]
            told.results += results
        if told.by_runner:
            told.messages.append(AssistantMessage(told.active, told.reply))
        return told


def check_limits(told: Retold, response: AgentResponse, *, handoffs: int, executions: int) -> None:
    """Both hold exactly: what they refuse came when they were used up, and nothing came after that."""
    past = [result.content == EXECUTIONS_EXCEEDED for result in told.results]
    assert past == [index >= executions for index in range(len(past))]
    assert told.by_runner == any(past)
    assert len(told.accepted) <= handoffs
    if any(event.message == HANDOFFS_EXCEEDED for event in told.refused):
        assert len(told.accepted) == handoffs
    if told.by_runner:
        assert told.reply == exhausted_text(told.active)
    hits = {event.limit for event in told.hits}
    assert hits == {hit.limit for hit in response.limit_hits}
    assert len(hits) == len(told.hits)
    assert ("max_tool_iterations" in hits) == told.by_runner
    assert told.asked <= executions + 2


def check_refusals(told: Retold, runner: Runner, *, handoffs: int) -> None:
    """Whoever was refused had asked for what cannot be, and whoever was not may go there."""
    assert len(set(told.accepted_in)) == len(told.accepted), "one transfer per answer"
    for event in told.accepted:
        assert event.target in {peer.name for peer in runner.agents[event.source].handoffs}
    for refusal in told.refused:
        source = runner.agents[refusal.source]
        assert (refusal.target == refusal.source) == (refusal.why == "self") or refusal.why == "limit"
        match refusal.why:
            case "self":
                pass
            case "already_transferred":
                assert any(event.source == refusal.source for event in told.accepted)
            case "not_allowed":
                is_peer = refusal.target in {peer.name for peer in source.handoffs}
                assert not is_peer or refusal.tool not in {each.name for each in source.get_all_tools()}
            case "unregistered":
                assert refusal.target not in runner.agents
            case "limit":
                assert len(told.accepted) == handoffs or refusal.message == EXECUTIONS_EXCEEDED
            case other:
                raise AssertionError(f"nothing here can be refused for {other}")


def check_context(before: Mapping[str, Json], after: Mapping[str, Json], response: AgentResponse) -> None:
    """Updates of handoffs are there, the last of each key, and so is all that nobody touched."""
    updates = {key: value for each in response.handoffs for key, value in each.context_updates.items()}
    untouched = {key: value for key, value in before.items() if key != "words"}
    assert {key: value for key, value in after.items() if key != "words"} == {**untouched, **updates}


@given(
    start=swarms(),
    script=SCRIPTS,
    max_handoffs=st.integers(0, 4),
    max_executions=st.integers(0, 12) | st.just(12),
    max_turns=st.none() | st.integers(0, 2),
)
def test_whatever_a_model_answers_the_session_is_what_the_events_say(
    start: Agent, script: list[Line], max_handoffs: int, max_executions: int, max_turns: int | None
) -> None:
    """B012 to B024, B036, B048, B050, B061, B067, B070, CF-1 to CF-14 and CF-19, and their whole kind."""
    model = AnyModel(script)
    runner = Runner(
        start,
        SessionStore(max_turns=max_turns),
        engine=model,
        max_handoffs_per_turn=max_handoffs,
        max_tool_iterations=max_executions,
    )
    runner.open_session("s", {"tier": "gold"})
    for number in range(3):
        before = runner.get_session("s")
        assert before is not None
        events: list[Event] = []
        try:
            response = runner.run("s", f"turn {number}", observer=events.append)
        except EmptyResponseError:
            assert runner.get_session("s") == before
            assert isinstance(events[-1], ModelAnswered)
            assert (events[-1].text, events[-1].tool_calls) == (None, ())
            continue
        session, told = runner.get_session("s"), Retold.of(events)
        assert session is not None
        check_limits(told, response, handoffs=max_handoffs, executions=max_executions)
        check_refusals(told, runner, handoffs=max_handoffs)
        check_context(before.context, session.context, response)
        assert [event.target for event in told.accepted] == [each.target_agent_name for each in response.handoffs]
        assert (response.content, response.active_agent_name) == (told.reply, told.active)
        assert response.tool_calls_executed == tuple(result.name for result in told.results)
        assert session.active_agent_name == told.active
        history = [*before.history, *told.messages]
        assert session.history == (history if max_turns is None else last_turns(history, max_turns))
    for request in model.requests:
        for provider in PROVIDERS:
            assert faults(replace(request, model=provider).projection()) == ()


# --- many conversations at once

SESSIONS = 1_000


class Attentive:
    """Answers with whatever it was told who is talking, and hands off in the second step of every odd session."""

    def __init__(self) -> None:
        self.at_once = self.most = 0

    async def answer(self, request: ModelRequest) -> Answer:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        texts = [message.text for message in request.history if isinstance(message, UserMessage)]
        (caller,) = set(texts)
        results = [message.content for message in request.history if isinstance(message, ToolResult)]
        answered = sum(isinstance(message, AssistantMessage) for message in request.history)
        if answered == 0:
            return Answer(None, (ToolCall("", "who"),))
        assert results[0] == caller
        if answered == 1 and int(caller) % 2:
            return Answer(None, (ToolCall("", "transfer_to_b", json.dumps({"reason": caller})),))
        return Answer(f"{request.agent} {request.instructions} {caller}")


def test_a_thousand_conversations_at_once_stay_apart() -> None:
    """B077, B143, B145: histories, contexts, active agents and limits, over two turns each on one Runner."""

    @tool
    async def who(context: Mapping[str, Json]) -> Json:
        """Tell who is talking."""
        await asyncio.sleep(0)
        return context["caller"]

    b = Agent("B", lambda context: f"for {context['caller']}")
    engine = Attentive()
    runner = Runner(Agent("A", lambda context: f"for {context['caller']}", tools=[who], handoffs=[b]), engine=engine)

    async def converse(caller: str) -> list[AgentResponse]:
        return [
            await runner.run_async(caller, caller, {"caller": caller}),
            await runner.run_async(caller, caller),
        ]

    async def main() -> list[list[AgentResponse]]:
        return await asyncio.gather(*(converse(str(number)) for number in range(SESSIONS)))

    for number, responses in enumerate(asyncio.run(main())):
        caller, agent = str(number), "B" if number % 2 else "A"
        assert [response.content for response in responses] == [f"{agent} for {caller} {caller}"] * 2
        reasons = [[each.reason for each in response.handoffs] for response in responses]
        assert reasons == [[caller] if number % 2 else [], []]
        session = runner.get_session(caller)
        assert isinstance(session, SessionContext)
        assert (session.context, session.active_agent_name) == ({"caller": caller}, agent)
        assert len(session.history) == (8 if number % 2 else 6)
    assert engine.most > SESSIONS / 2
