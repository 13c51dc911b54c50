"""States that go through agents: the conversation so far, the calls that ask for a handoff, and who takes it on.

A handoff tool only says where its agent wants to go (third seed document); its call stays open until somebody decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import cast

from chatflow_runtime.agent import Agent
from chatflow_runtime.events import Observer
from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.handoffs import HandoffTool
from chatflow_runtime.history import faults, project
from chatflow_runtime.memory import SessionContext
from chatflow_runtime.naming import PREFIX
from chatflow_runtime.runner import EVERYBODY, Runner, RunnerChanges, forbid_running_loop
from chatflow_runtime.tools import Tool
from chatflow_runtime.turn import Turn
from chatflow_runtime.types import (
    AgentResponse,
    AssistantMessage,
    Handoff,
    Json,
    Message,
    ToolCall,
    ToolResult,
    UserMessage,
)

UNANSWERED = "Error: this call was not answered."
"""What stands for the result of a call that nobody answers."""

_NO_PARAMETERS: Mapping[str, Json] = {"type": "object", "properties": {}}


# --- handoff tools


def create_handoff_tool(name: str, description: str) -> Tool:
    """The tool `transfer_to_<name>`, by which a model says that it wants agent `name` to go on (third seed document).

    It takes no arguments and returns `Transferring to agent '<name>'.`; where the conversation goes is for the graph's
    edges to say. Raises DefinitionError for a name with which some provider would refuse the tool.
    """
    if not name:
        raise DefinitionError("A handoff tool leads to an agent named '', expected some text.")

    def transfer(*_: object, **__: object) -> str:
        return acknowledgement(name)

    return Tool(PREFIX + name, description, _NO_PARAMETERS, func=transfer, target=name)


def handoff_by(tool: Tool, agent: Agent, *, is_wish: bool = False) -> HandoffTool:
    """The handoff to `agent` by a tool of `create_handoff_tool`."""
    words = acknowledgement(agent.name)
    return HandoffTool(
        agent, tool.name, tool.description, parameters=tool.parameters, acknowledgement=words, is_wish=is_wish
    )


def acknowledgement(name: str) -> str:
    """What a handoff tool returns (third seed document)."""
    return f"Transferring to agent '{name}'."


def wished_by(call: ToolCall) -> str | None:
    """The agent that a call asks for, by the naming convention; `None` for a call of another kind."""
    return call.name.removeprefix(PREFIX) if call.name.startswith(PREFIX) else None


# --- states


@dataclass(frozen=True, slots=True)
class MessageState:
    """A conversation on its way through a graph."""

    messages: Sequence[Message] = ()
    answers: Sequence[ToolResult] = field(default=(), kw_only=True)
    """Results of the last message's calls; they join the messages when its other calls are answered too."""

    def __post_init__(self) -> None:
        for index, message in enumerate(self.messages):
            if not isinstance(message, UserMessage | AssistantMessage | ToolResult):
                kind = type(message).__name__
                raise TypeError(
                    f"messages[{index}] is a {kind}, expected a UserMessage, AssistantMessage or ToolResult."
                )
        object.__setattr__(self, "messages", tuple(self.messages))
        object.__setattr__(self, "answers", tuple(self.answers))

    def last_message(self) -> Message | None:
        """What was said last; `None` when nothing was."""
        return self.messages[-1] if self.messages else None

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last assistant message that nothing answers yet, in order."""
        asked, results = self._exchange()
        answered = {result.call_id for result in (*results, *self.answers)}
        return tuple(call for call in asked if call.id not in answered)

    def adding(self, *messages: Message) -> MessageState:
        """The state with more messages, after answers to all its open calls."""
        return MessageState((*self.closed().messages, *messages))

    def closed(self) -> MessageState:
        """The state with its open calls answered: a handoff tool's by its own text, another's by an error."""
        return self.answering(
            ToolResult(call.id, call.name, UNANSWERED, is_error=True)
            if (name := wished_by(call)) is None
            else ToolResult(call.id, call.name, acknowledgement(name))
            for call in self.open_calls
        )

    def answering(self, answers: Iterable[ToolResult]) -> MessageState:
        """The state with more answers, which join the messages in order of the calls if they are the last ones."""
        known = replace(self, answers=(*self.answers, *answers))
        if known.open_calls or not known.answers:
            return known
        asked, results = self._exchange()
        given = {result.call_id: result for result in (*known.answers, *results)}
        before = self.messages[: len(self.messages) - len(results)]
        return MessageState((*before, *(given[call.id] for call in asked)))

    def _exchange(self) -> tuple[tuple[ToolCall, ...], tuple[ToolResult, ...]]:
        """The calls that the messages end with, and the results that follow them."""
        end = len(self.messages)
        while end and isinstance(self.messages[end - 1], ToolResult):
            end -= 1
        asked = self.messages[end - 1].tool_calls if end else ()
        return asked, cast(tuple[ToolResult, ...], tuple(self.messages[end:])) if asked else ()


@dataclass(frozen=True, slots=True)
class GraphEvent:
    """One step: the node that ran, and the state it left."""

    node: str
    state: MessageState


# --- from state to state


turn_around: ContextVar[Turn | None] = ContextVar("chatflow_runtime.turn_around", default=None)
"""The graph's turn whose function is at work in this task."""


class StateRunner(Runner):
    """A Runner that also goes from a state to a state; each answer of a model is a step.

    Inside a function of a graph it is a part of that graph's turn: the graph's observer sees it, as a call that comes
    back, and the graph's engine, settings and limits hold for it.
    """

    def invoke(
        self, state: MessageState, *, session_id: str | None = None, observer: Observer | None = None
    ) -> MessageState:
        """`invoke_async` from code that is not async; raises RunningLoopError where an event loop runs already."""
        forbid_running_loop("invoke()", instead="await graph.invoke_async(...)")
        return asyncio.run(self.invoke_async(state, session_id=session_id, observer=observer))

    async def invoke_async(
        self, state: MessageState, *, session_id: str | None = None, observer: Observer | None = None
    ) -> MessageState:
        """The state at the end; with a session, what is given comes after all that the session holds, and is kept.

        An exception leaves the session as it was. Raises ValueError for a history that no provider takes, GraphError,
        StepLimitError, EmptyResponseError, and whatever an engine or a node raises.
        """
        if session_id is None:
            async for event in self.stream_async(state, observer=observer):
                state = event.state
            return state
        _, session = await self._go_on(session_id, _valid(state).messages, metadata={}, observer=observer)
        return MessageState(session.history)

    def stream(self, state: MessageState, *, observer: Observer | None = None) -> Iterator[GraphEvent]:
        """`stream_async` from code that is not async; raises RunningLoopError where an event loop runs already."""
        forbid_running_loop("stream()", instead="async for event in graph.stream_async(...)")
        return _iterated(self.stream_async(state, observer=observer))

    async def stream_async(self, state: MessageState, *, observer: Observer | None = None) -> AsyncIterator[GraphEvent]:
        """Each step as it is done, with the whole state that it left; raises what `invoke_async` raises."""
        history = _valid(state).messages
        if (outer := turn_around.get()) is not None:
            runner = self._inside(outer)
            with outer.part(runner, runner._going_on(history)) as turn:
                async for event in runner._steps(turn):
                    yield event
            return
        turn = Turn(self, self._going_on(history), observer)
        turn.begin()
        async for event in self._steps(turn):
            yield event
        turn.end()

    async def process(self, state: MessageState) -> MessageState:
        """What makes this a node of another graph."""
        return await self.invoke_async(state)

    async def _take_turn(self, session: SessionContext, observer: Observer | None) -> AgentResponse:
        turn = Turn(self, session, observer)
        turn.begin()
        state = MessageState(session.history)
        async for event in self._steps(turn):
            state = event.state
        session.history[:] = self._closed(turn, state).messages
        return turn.end()

    def _inside(self, outer: Turn) -> StateRunner:
        """The runner that does this one's work as a part of another's turn."""
        runner = outer.runner
        changes: RunnerChanges = {
            "settings": runner.settings,
            "max_handoffs_per_turn": runner.limits.max_handoffs_per_turn,
            "max_tool_iterations": runner.limits.max_tool_iterations,
        }
        if runner.engine is not None:
            changes["engine"] = runner.engine
        if EVERYBODY in runner.models:
            changes["models"] = {**self.models, EVERYBODY: runner.models[EVERYBODY]}
        return self.replace(**changes)

    def _going_on(self, history: Sequence[Message]) -> SessionContext:
        """A conversation with whoever spoke last in it, and else with the starting agent."""
        spoke = (message.agent for message in reversed(history) if isinstance(message, AssistantMessage))
        last = next(spoke, self.starting_agent.name)
        return SessionContext("", last if last in self.agents else self.starting_agent.name, list(history))

    async def _steps(self, turn: Turn) -> AsyncIterator[GraphEvent]:
        if not turn.session.history:
            raise ValueError(f"Agent '{turn.session.active_agent_name}' has nothing to answer: there are no messages.")
        while turn.last_word is None:
            name = turn.session.active_agent_name
            await turn.advance()
            yield GraphEvent(name, MessageState(turn.session.history))

    def _closed(self, turn: Turn, state: MessageState) -> MessageState:
        """The state at the end of a session's turn: nobody is left to decide about wishes that are still open."""
        agent = self.agents[turn.session.active_agent_name]
        answers = []
        for call in state.open_calls:
            wish = wish_of(turn, call, wished_by(call) or call.name)
            message = f"There is no agent '{wish.target_agent_name}'."
            turn.refuse(agent, call, wish, why="unregistered", message=message)
            answers.append(ToolResult(call.id, call.name, message, is_error=True))
        return state.answering(answers)


def _iterated(events: AsyncIterator[GraphEvent]) -> Iterator[GraphEvent]:
    async def following() -> GraphEvent | None:
        return await anext(events, None)

    with asyncio.Runner() as loop:
        while (event := loop.run(following())) is not None:
            yield event


def _valid(state: MessageState) -> MessageState:
    """The state with nothing left open; raises ValueError for a history that no provider takes."""
    closed = state.closed()
    if fault := fault_of(closed.messages):
        raise ValueError(f"The state holds a history that no provider takes: {fault}")
    return closed


def fault_of(history: Sequence[Message]) -> str | None:
    """Why some provider would refuse a history, whichever tools go with it."""
    request = {"messages": project(history, has_tools=True, model="")}
    found = (fault for fault in faults(request) if fault.code not in ("no_messages", "tools_missing"))
    return next((fault.message for fault in found), None)


def wish_of(turn: Turn, call: ToolCall, target: str) -> Handoff:
    """A call's wish to hand off, with the reason that a model gave for it."""
    told = turn.wishes.get(call.id)
    return Handoff(target, None if told is None else told.reason)
