"""Runners: who is registered, who answers for whom, and one user message in, one response out."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Self, TypedDict, Unpack

from chatflow_runtime.agent import Agent, reachable
from chatflow_runtime.engine import Engine, Settings, engine_in_use
from chatflow_runtime.events import Observer
from chatflow_runtime.exceptions import DefinitionError, RunningLoopError, SessionError
from chatflow_runtime.handoffs import HandoffTool, names_of
from chatflow_runtime.limits import Limits
from chatflow_runtime.litellm_engine import LiteLLMEngine
from chatflow_runtime.memory import BaseSessionStore, SessionContext, SessionStore, copy_context
from chatflow_runtime.naming import tool_name
from chatflow_runtime.turn import BY_PROGRAM, Turn, turn_under_way
from chatflow_runtime.types import AgentResponse, Handoff, Json, Message, ToolCall, UserMessage

KEYWORD_MODEL = "keyword"
"""The model name that stands for the built-in keyword router, wherever a model is named."""

EVERYBODY = "*"
"""The key of `models` that stands for every agent not named in it."""


class RunnerChanges(TypedDict, total=False):
    """What `Runner.replace` can change."""

    engine: Engine | None
    models: Mapping[str, str | Engine]
    settings: Settings
    max_handoffs_per_turn: int
    max_tool_iterations: int


class Runner:
    """Runs conversations between a user and the agents reachable from the starting one (first seed document).

    An agent is answered for by what `models` says for its name or `"*"` (a model's name or an engine), else by its own
    engine, else by the runner's, else by the one set by `using`, else by litellm. Raises DefinitionError for two agents
    with one name, an unknown name in `models`, and a limit that is no whole number.
    """

    def __init__(
        self,
        starting_agent: Agent,
        session_store: BaseSessionStore | None = None,
        *,
        engine: Engine | None = None,
        models: Mapping[str, str | Engine] | None = None,
        settings: Settings | None = None,
        max_handoffs_per_turn: int = 5,
        max_tool_iterations: int = 10,
    ) -> None:
        self._starting_agent = starting_agent
        self._agents: dict[str, Agent] = {}
        self._store = SessionStore() if session_store is None else session_store
        self._engine = engine
        self._settings = settings or Settings()
        self._limits = Limits(max_handoffs_per_turn, max_tool_iterations)
        self.register_agent(starting_agent)
        self._models = self._checked_models(models or {})

    @property
    def starting_agent(self) -> Agent:
        """Who answers a new session's first message."""
        return self._starting_agent

    @property
    def agents(self) -> Mapping[str, Agent]:
        """The registered agents by name: breadth first from the starting one, then those registered later."""
        return MappingProxyType(self._agents)

    @property
    def session_store(self) -> BaseSessionStore:
        """Where the sessions are kept."""
        return self._store

    @property
    def engine(self) -> Engine | None:
        """The engine that answers for agents without one of their own."""
        return self._engine

    @property
    def models(self) -> Mapping[str, str | Engine]:
        """Who answers instead of what agents declare: agent name, or `"*"`, to a model's name or an engine."""
        return MappingProxyType(self._models)

    @property
    def limits(self) -> Limits:
        """What one turn may do."""
        return self._limits

    @property
    def settings(self) -> Settings:
        """How models are called."""
        return self._settings

    @property
    def needs_litellm(self) -> bool:
        """Whether some agent is answered for by litellm, as nobody else is said to."""
        return any(isinstance(self.answerer(agent)[0], LiteLLMEngine) for agent in self._agents.values())

    def replace(self, **changes: Unpack[RunnerChanges]) -> Self:
        """A runner over the same agents and sessions, with another engine, models, settings or limits."""
        unknown = changes.keys() - RunnerChanges.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"replace() got {sorted(unknown)}, expected some of {sorted(RunnerChanges.__annotations__)}."
            )
        other = copy.copy(self)
        if "engine" in changes:
            other._engine = changes["engine"]
        if "models" in changes:
            other._models = self._checked_models(changes["models"])
        if "settings" in changes:
            other._settings = changes["settings"]
        other._limits = Limits(
            changes.get("max_handoffs_per_turn", self._limits.max_handoffs_per_turn),
            changes.get("max_tool_iterations", self._limits.max_tool_iterations),
        )
        return other

    def register_agent(self, agent: Agent) -> None:
        """Adds an agent and all that it leads to; a known agent's new peers are found as well (first seed document)."""
        added: dict[str, tuple[Agent, ...]] = {}
        for way in reachable(agent).values():
            found = way[-1]
            known = self._agents.get(found.name)
            if known is None and found.name in added:
                known = added[found.name][-1]
            if known is not None and known is not found:
                ways = [_way(added.get(found.name, (known,))), _way(way)]
                raise DefinitionError(f"Two different agents are named '{found.name}': {ways[0]} and {ways[1]}.")
            added.setdefault(found.name, way)
        self._agents.update((name, way[-1]) for name, way in added.items())

    def get_session(self, session_id: str) -> SessionContext | None:
        """A copy of the session as its last finished turn left it; `None` when there is none."""
        return self._store.load(_checked_id(session_id))

    def open_session(
        self, session_id: str, context: Mapping[str, Json] | None = None, *, active_agent: Agent | str | None = None
    ) -> SessionContext:
        """Starts a session with a context, and at another agent than the starting one where given.

        Raises SessionError when the session exists or the agent is not registered.
        """
        if self.get_session(session_id) is not None:
            raise SessionError(f"Session {session_id!r} exists already.")
        start = self._starting_agent if active_agent is None else active_agent
        name = start if isinstance(start, str) else start.name
        if name not in self._agents:
            raise SessionError(f"Session {session_id!r} cannot start at '{name}', expected {self.known_agents()}.")
        session = SessionContext(session_id, name, context=copy_context(context or {}))
        self._store.save(session)
        return session

    def run(
        self,
        session_id: str,
        user_message: str,
        metadata: Mapping[str, Json] | None = None,
        *,
        observer: Observer | None = None,
    ) -> AgentResponse:
        """One user turn, from code that is not async; raises RunningLoopError where an event loop runs already."""
        forbid_running_loop("run()", instead="await runner.run_async(...)")
        return asyncio.run(self.run_async(session_id, user_message, metadata, observer=observer))

    async def run_async(
        self,
        session_id: str,
        user_message: str,
        metadata: Mapping[str, Json] | None = None,
        *,
        observer: Observer | None = None,
    ) -> AgentResponse:
        """One user turn; `metadata` is merged into the session's context, the observer is told every event in order.

        Any exception leaves the session as it was: history, active agent and context. Raises ValueError for a message
        without text, SessionError when the session's active agent is not registered, AgentHandoffError when a transfer
        tool leads to an agent that is not, EmptyResponseError, and whatever an engine raises.
        """
        if not user_message.strip():
            raise ValueError(f"The user message is {user_message!r}, expected some text.")
        message = UserMessage(user_message)
        response, _ = await self._go_on(session_id, [message], metadata=metadata or {}, observer=observer)
        return response

    async def _go_on(
        self,
        session_id: str,
        messages: Sequence[Message],
        *,
        metadata: Mapping[str, Json],
        observer: Observer | None,
    ) -> tuple[AgentResponse, SessionContext]:
        """One turn on a working copy of the session, which is kept unless something raises."""
        async with self._store.turn(_checked_id(session_id)):
            session = self._store.load(session_id) or SessionContext(session_id, self._starting_agent.name)
            if session.active_agent_name not in self._agents:
                raise SessionError(
                    f"Session {session_id!r} is with agent '{session.active_agent_name}', "
                    f"expected {self.known_agents()}."
                )
            session.context.update(copy_context(metadata))
            session.history.extend(messages)
            response = await self._take_turn(session, observer)
            self._store.save(session)
        return response, session

    async def _take_turn(self, session: SessionContext, observer: Observer | None) -> AgentResponse:
        """Answers a session's last message, whoever of the agents does."""
        turn = Turn(self, session, observer)
        turn.begin()
        while turn.last_word is None:
            await turn.advance()
        return turn.end()

    def _checked_models(self, models: Mapping[str, str | Engine]) -> dict[str, str | Engine]:
        for name in models:
            if name != EVERYBODY and name not in self._agents:
                raise DefinitionError(f"models names agent '{name}', expected '*' or {self.known_agents()}.")
        return dict(models)

    def known_agents(self) -> str:
        """The registered agents, for messages."""
        return "one of " + ", ".join(f"'{name}'" for name in self._agents)

    def answerer(self, agent: Agent) -> tuple[Engine, str]:
        """The engine that answers for an agent, and the name of the model it is asked for."""
        chosen = self._models.get(agent.name, self._models.get(EVERYBODY))
        if chosen is not None and not isinstance(chosen, str):
            return chosen, agent.model
        if chosen is None and agent.engine is not None:
            return agent.engine, agent.model
        model = agent.model if chosen is None else chosen
        if model == KEYWORD_MODEL:
            return _keyword_engine(), model
        for engine in (self._engine, engine_in_use()):
            if engine is not None:
                return engine, model
        return _litellm_engine(), model

    def target_named_by(self, tool: str) -> str | None:
        """The agent that some registered agent's transfer tool of this name leads to, or whose own name it is."""
        for agent in self._agents.values():
            for name, each in zip(names_of(agent.handoff_tools), agent.handoff_tools, strict=True):
                if name == tool:
                    return each.agent.name
        return next((name for name in self._agents if tool_name(name) == tool), None)


async def hand_off(
    by: HandoffTool, source: Agent, *, prompt: str, data: Mapping[str, Json], conversation: Sequence[Message]
) -> Json:
    """A program's handoff rather than a model's, in the turn under way in this task, or in one of its own.

    Returns what a model would be told. Raises HandoffRefusal when it does not happen, and what a target that fails
    raises.
    """
    turn = turn_under_way()
    if turn is None:
        turn = Turn(Runner(by.agent), SessionContext("program", source.name), None, active=source)
    call = ToolCall(turn.program_call_id(), BY_PROGRAM, json.dumps(data, allow_nan=False))
    wish = Handoff(by.agent.name)
    return await turn.hand_off(source, call, wish, by, prompt=prompt, conversation=conversation)


def forbid_running_loop(call: str, *, instead: str) -> None:
    """Raises RunningLoopError where only the async form of a call can work."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RunningLoopError(f"An event loop is running here: use `{instead}` instead of {call}.")


def _way(agents: tuple[Agent, ...]) -> str:
    return " -> ".join(agent.name for agent in agents)


def _checked_id(session_id: object) -> str:
    if isinstance(session_id, str) and session_id:
        return session_id
    raise SessionError(f"A session id is {session_id!r}, expected some text.")


@cache
def _keyword_engine() -> Engine:
    from chatflow_runtime.keyword_engine import KeywordEngine

    return KeywordEngine()


@cache
def _litellm_engine() -> Engine:
    return LiteLLMEngine()
