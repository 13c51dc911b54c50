"""The loop: one user message in, one response out, whoever of the agents answers."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import re
import time
from collections.abc import Awaitable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType
from typing import TypedDict, Unpack, cast

from chatflow_runtime.agent import Agent, Toolbox, reachable
from chatflow_runtime.engine import Answer, Engine, ModelRequest, Settings, engine_in_use
from chatflow_runtime.events import (
    Event,
    HandoffAccepted,
    HandoffRefused,
    LimitHit,
    ModelAnswered,
    ModelAsked,
    Observer,
    Refusal,
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
    SessionError,
)
from chatflow_runtime.handoffs import names_of
from chatflow_runtime.limits import EXECUTIONS_EXCEEDED, HANDOFFS_EXCEEDED, Limits, exhausted_text
from chatflow_runtime.litellm_engine import LiteLLMEngine
from chatflow_runtime.memory import BaseSessionStore, SessionContext, SessionStore, copy_context
from chatflow_runtime.naming import tool_name
from chatflow_runtime.tools import ArgumentsRefused, Tool
from chatflow_runtime.types import (
    AgentResponse,
    AssistantMessage,
    Handoff,
    Json,
    LimitName,
    LimitReached,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    encodable,
    encodable_json,
)

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
        return any(isinstance(self._answerer(agent)[0], LiteLLMEngine) for agent in self._agents.values())

    def replace(self, **changes: Unpack[RunnerChanges]) -> Runner:
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
            raise SessionError(f"Session {session_id!r} cannot start at '{name}', expected {self._known()}.")
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
        if _is_loop_running():
            raise RunningLoopError("An event loop is running here: use `await runner.run_async(...)` instead of run().")
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
        _checked_id(session_id)
        async with self._store.turn(session_id):
            session = self._store.load(session_id) or SessionContext(session_id, self._starting_agent.name)
            if session.active_agent_name not in self._agents:
                raise SessionError(
                    f"Session {session_id!r} is with agent '{session.active_agent_name}', expected {self._known()}."
                )
            session.context.update(copy_context(metadata or {}))
            response = await _Turn(self, session, observer).run(user_message)
            self._store.save(session)
        return response

    def _checked_models(self, models: Mapping[str, str | Engine]) -> dict[str, str | Engine]:
        for name in models:
            if name != EVERYBODY and name not in self._agents:
                raise DefinitionError(f"models names agent '{name}', expected '*' or {self._known()}.")
        return dict(models)

    def _known(self) -> str:
        return "one of " + ", ".join(f"'{name}'" for name in self._agents)

    def _answerer(self, agent: Agent) -> tuple[Engine, str]:
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

    def _target_named_by(self, tool: str) -> str | None:
        """The agent that some registered agent's transfer tool of this name leads to, or whose own name it is."""
        for agent in self._agents.values():
            for name, each in zip(names_of(agent.handoff_tools), agent.handoff_tools, strict=True):
                if name == tool:
                    return each.agent.name
        return next((name for name in self._agents if tool_name(name) == tool), None)


@dataclass(frozen=True, slots=True)
class _Reply:
    """What the model is told about one call."""

    content: Json
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class _Objection:
    """Why a handoff does not happen, and what the model is told."""

    why: Refusal
    message: str


class _Turn:
    """One user turn on a working copy of its session."""

    def __init__(self, runner: Runner, session: SessionContext, observer: Observer | None) -> None:
        self._runner = runner
        self._session = session
        self._tell = observer or _tell_nobody
        self._limits = runner._limits
        self._executions = 0
        self._handoffs: list[Handoff] = []
        self._has_transferred = False
        """Whether a transfer of the response being answered took effect."""
        self._is_exhausted = False
        self._called: list[str] = []
        self._hits: list[LimitReached] = []
        self._usage = Usage(0, 0)
        self._used_ids: set[str] | None = None
        self._made_calls = 0

    @property
    def _active(self) -> Agent:
        return self._runner._agents[self._session.active_agent_name]

    async def run(self, text: str) -> AgentResponse:
        self._tell(TurnStarted(self._active.name, text))
        self._session.add_message(UserMessage(text))
        while True:
            agent = self._active
            box = agent.toolbox(self._session.context)
            answer = await self._ask(agent, box)
            if not answer.tool_calls:
                return self._end(answer.text or "", by_runner=False)
            self._session.add_message(AssistantMessage(agent.name, answer.text, answer.tool_calls))
            self._has_transferred = False
            for call in answer.tool_calls:
                reply = await self._answer(agent, box, call)
                self._session.add_message(ToolResult(call.id, call.name, reply.content, reply.is_error))
            if self._is_exhausted:
                return self._end(exhausted_text(self._active.name), by_runner=True)

    async def _ask(self, agent: Agent, box: Toolbox) -> Answer:
        engine, model = self._runner._answerer(agent)
        request = ModelRequest(
            agent=agent.name,
            model=model,
            instructions=agent.get_instructions(self._session.context),
            history=tuple(self._session.history),
            tools=box.schemas,
            settings=self._runner._settings,
        )
        self._tell(ModelAsked(agent.name, model, box.names))
        asked = time.perf_counter()
        answer = await engine.answer(request)
        seconds = time.perf_counter() - asked
        text = encodable(answer.text) if answer.text and answer.text.strip() else None
        calls = tuple(answer.tool_calls)
        self._usage += answer.usage
        self._tell(ModelAnswered(agent.name, model, text, calls, answer.usage, seconds))
        if text is None and not calls:
            raise EmptyResponseError(f"Model '{model}' answered for agent '{agent.name}' with neither text nor calls.")
        return Answer(text, self._with_unique_ids(agent, calls), answer.usage)

    def _end(self, text: str, *, by_runner: bool) -> AgentResponse:
        active = self._active.name
        self._session.add_message(AssistantMessage(active, text))
        self._tell(TurnEnded(active, text, by_runner))
        return AgentResponse(
            content=text,
            active_agent_name=active,
            handoffs=tuple(self._handoffs),
            tool_calls_executed=tuple(self._called),
            limit_hits=tuple(self._hits),
            usage=self._usage,
        )

    async def _answer(self, agent: Agent, box: Toolbox, call: ToolCall) -> _Reply:
        """The result for one call, which there always is."""
        self._called.append(call.name)
        tool = box.tools.get(call.name)
        target = self._runner._target_named_by(call.name) if tool is None else tool.target
        if self._executions >= self._limits.max_tool_iterations:
            return self._refuse_execution(agent, call, target=target, known=tool is not None)
        self._executions += 1
        if tool is None:
            return self._refuse_unknown(agent, box, call, target)
        if target is not None:
            return self._transfer(agent, call, target)
        return await self._execute(agent, tool, call)

    # --- handing off: the one place where control moves

    def _transfer(self, agent: Agent, call: ToolCall, target: str) -> _Reply:
        """A call of one of the agent's own transfer tools."""
        peer = next(peer for peer in agent.handoffs if peer.name == target)
        if self._runner._agents.get(target) is not peer:
            raise AgentHandoffError(
                f"Agent '{agent.name}' hands off to '{target}', which is not registered: "
                f"expected {self._runner._known()}, or call register_agent()."
            )
        return self._hand_off(agent, call, Handoff(target, self._reason(agent, call)))

    def _hand_off(self, agent: Agent, call: ToolCall, wish: Handoff) -> _Reply:
        """Moves control, or says why not."""
        if objection := self._objection(agent, wish):
            reply = self._refuse_handoff(agent, call, wish, why=objection.why, message=objection.message)
            if objection.why == "limit":
                self._hit("max_handoffs_per_turn")
            return reply
        self._session.set_active_agent(wish.target_agent_name, wish.context_updates)
        self._has_transferred = True
        self._handoffs.append(wish)
        reason = wish.reason or ""
        self._tell(HandoffAccepted(agent.name, wish.target_agent_name, call.name, reason, "transfer", call.id))
        return _Reply({"status": "HANDOFF_SUCCESS", "transferred_to": wish.target_agent_name, "reason": reason})

    def _objection(self, agent: Agent, wish: Handoff) -> _Objection | None:
        target = wish.target_agent_name
        if target == agent.name:
            return _Objection("self", f"Agent '{target}' is already active.")
        if target not in self._runner._agents:
            return _Objection("unregistered", f"There is no agent '{target}'. {_reach(agent)}")
        if all(peer.name != target for peer in agent.handoffs):
            return _Objection("not_allowed", f"Agent '{agent.name}' may not hand off to '{target}'. {_reach(agent)}")
        if self._has_transferred:
            text = f"Another transfer of the same response already took effect: '{self._active.name}' is active now."
            return _Objection("already_transferred", text)
        if len(self._handoffs) >= self._limits.max_handoffs_per_turn:
            return _Objection("limit", HANDOFFS_EXCEEDED)
        return None

    def _refuse_handoff(self, agent: Agent, call: ToolCall, wish: Handoff, *, why: Refusal, message: str) -> _Reply:
        self._tell(
            HandoffRefused(
                source=agent.name,
                target=wish.target_agent_name,
                tool=call.name,
                reason=wish.reason or "",
                kind="transfer",
                call_id=call.id,
                why=why,
                message=message,
            )
        )
        return _Reply(message, is_error=True)

    def _reason(self, agent: Agent, call: ToolCall) -> str | None:
        """The reason a model gave; whatever else it sent instead, the transfer it wanted is clear."""
        data = call.parsed()
        if not isinstance(data, dict):
            self._warn(agent, f"The arguments of '{call.name}' are no JSON object and were taken for none.")
            return None
        reason = data.get("reason")
        if reason is None or isinstance(reason, str):
            return reason
        self._warn(agent, f"The reason given to '{call.name}' is no text and was taken for its JSON.")
        return json.dumps(reason, ensure_ascii=False)

    # --- everything else that a call can be

    async def _execute(self, agent: Agent, tool: Tool, call: ToolCall) -> _Reply:
        data = call.parsed()
        self._tell(ToolCalled(agent.name, call.id, tool.name, data, known=True))
        try:
            arguments = tool.read(data)
        except ArgumentsRefused as refusal:
            return self._told(agent, call, _Reply(f"Error: {refusal}", is_error=True))
        for warning in arguments.warnings:
            self._warn(agent, warning)
        try:
            result = tool.invoke(arguments, self._session.context)
            if inspect.isawaitable(result):
                result = await cast(Awaitable[object], result)
            returned = _checked_wish(result) if isinstance(result, Handoff) else _as_json(result)
        except (Exception, SystemExit) as error:
            text = f"Error: tool '{tool.name}' failed: {_stable_text(error)}"
            return self._told(agent, call, _Reply(text, is_error=True))
        # A domain tool's wish to hand off is as good as a transfer tool's, to the same agents.
        reply = self._hand_off(agent, call, returned) if isinstance(returned, Handoff) else _Reply(returned)
        return self._told(agent, call, reply)

    def _refuse_unknown(self, agent: Agent, box: Toolbox, call: ToolCall, target: str | None) -> _Reply:
        has = f"Tools of agent '{agent.name}': {', '.join(box.names) or 'none'}."
        if target is None:
            self._tell(ToolCalled(agent.name, call.id, call.name, call.parsed(), known=False))
            return self._told(agent, call, _Reply(f"Error: there is no tool '{call.name}'. {has}", is_error=True))
        wish = Handoff(target, self._reason(agent, call))
        if target == agent.name:
            message = f"Agent '{target}' is already active. {has}"
            return self._refuse_handoff(agent, call, wish, why="self", message=message)
        message = f"Agent '{agent.name}' may not hand off to '{target}' with '{call.name}'. {has}"
        return self._refuse_handoff(agent, call, wish, why="not_allowed", message=message)

    def _refuse_execution(self, agent: Agent, call: ToolCall, *, target: str | None, known: bool) -> _Reply:
        self._is_exhausted = True
        if target is None:
            self._tell(ToolCalled(agent.name, call.id, call.name, call.parsed(), known=known))
            reply = self._told(agent, call, _Reply(EXECUTIONS_EXCEEDED, is_error=True))
        else:
            wish = Handoff(target, self._reason(agent, call))
            reply = self._refuse_handoff(agent, call, wish, why="limit", message=EXECUTIONS_EXCEEDED)
        self._hit("max_tool_iterations")
        return reply

    def _told(self, agent: Agent, call: ToolCall, reply: _Reply) -> _Reply:
        self._tell(ToolAnswered(agent.name, call.id, call.name, reply.content, reply.is_error))
        return reply

    def _warn(self, agent: Agent, message: str) -> None:
        self._tell(Warned(agent.name, message))

    def _hit(self, limit: LimitName) -> None:
        """A limit is reported once per turn, however much it refuses."""
        if any(hit.limit == limit for hit in self._hits):
            return
        hit = LimitReached(limit, getattr(self._limits, limit), self._active.name)
        self._hits.append(hit)
        self._tell(LimitHit(hit.agent, hit.limit, hit.value))

    def _with_unique_ids(self, agent: Agent, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        if not calls:
            return calls
        if self._used_ids is None:
            made = [
                call.id
                for message in self._session.history
                if isinstance(message, AssistantMessage)
                for call in message.tool_calls
            ]
            self._used_ids, self._made_calls = set(made), len(made)
        unique = []
        for call in calls:
            self._made_calls += 1
            if call.id and call.id not in self._used_ids:
                self._used_ids.add(call.id)
                unique.append(call)
                continue
            number = self._made_calls
            while f"call_{number}" in self._used_ids:
                number += 1
            self._used_ids.add(f"call_{number}")
            what = f"repeats the call id {call.id!r}" if call.id else "has no call id"
            self._warn(agent, f"The call of '{call.name}' {what}; it is now 'call_{number}'.")
            unique.append(replace(call, id=f"call_{number}"))
        return tuple(unique)


def _tell_nobody(event: Event) -> None:
    """Stands in where nobody observes."""


def _checked_wish(wish: Handoff) -> Handoff:
    reason = None if wish.reason is None else str(wish.reason)
    return Handoff(str(wish.target_agent_name), reason, copy_context(wish.context_updates))


def _as_json(result: object) -> Json:
    """A tool's result as the model reads it, sharing nothing with what the tool keeps."""
    if type(result) in (NoneType, bool, int):
        return cast(Json, result)
    text = json.dumps(result, allow_nan=False, default=_as_data)
    data: Json = json.loads(text)
    return encodable_json(data) if "\\u" in text else data


def _as_data(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"it returned a {type(value).__name__}, expected JSON data")


_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


def _stable_text(error: BaseException) -> str:
    """An exception in words that are the same on every run."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {_ADDRESS.sub('0x...', text)}" if text else type(error).__name__


def _reach(agent: Agent) -> str:
    peers = ", ".join(f"'{peer.name}'" for peer in agent.handoffs)
    return f"It can hand off to: {peers}." if peers else "It can hand off to nobody."


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


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
