"""The published package chatflow-agent (0.3) as a target: its own agents and runners, or ours made again with it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import chatflow_agent

from chatflow_eval import scrub
from chatflow_eval.errors import TargetError
from chatflow_eval.matching import Ignore
from chatflow_eval.recorder import interception
from chatflow_eval.scenario import ScriptedAnswer, SettingsSpec, Swarm, TargetSpec
from chatflow_eval.tape import ForkingTape, ReplayTape, Tape
from chatflow_eval.targets import Conversation, Opening, factory
from chatflow_eval.targets.chatflow_agent_models import Models, check_chosen
from chatflow_eval.targets.chatflow_agent_steps import TRACE_ID, Watching, everybody, joined, listening, plain, topology
from chatflow_eval.targets.failures import ends_the_run, failure_of, missed_on
from chatflow_eval.targets.reference import ReferenceTarget, prepared, runner_of
from chatflow_eval.targets.scripts import scripted
from chatflow_eval.targets.translation import translate
from chatflow_eval.trace import Failure, Topology, TurnTrace
from chatflow_runtime.agent import Agent as ReferenceAgent
from chatflow_runtime.engine import Engine, ScriptedEngine, Settings
from chatflow_runtime.exceptions import EmptyResponseError
from chatflow_runtime.litellm_engine import LiteLLMEngine
from chatflow_runtime.runner import Runner as ReferenceRunner

_WATCHED = ("add_message", "set_active_agent")
_STATUS = re.compile(r"API (?:error|request failed|request was redirected)(?: \(HTTP |: | \()(\d{3})\b")


@dataclass(frozen=True, slots=True)
class ChatflowAgentTarget:
    """Agents on chatflow-agent: a factory's own, or those of the reference runtime made again with it."""

    spec: TargetSpec
    name: str = "chatflow_agent"

    varies: ClassVar[tuple[Ignore, ...]] = (Ignore(TRACE_ID),)

    def topology(self) -> Topology:
        built = self._built()
        return topology(translate(built, {}) if isinstance(built, ReferenceRunner) else built)

    @contextlib.asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[Conversation]:
        replaying = isinstance(opening.tape, ReplayTape | ForkingTape)
        with interception(replaying=replaying) if opening.tape is not None else contextlib.nullcontext():
            conversation = ChatflowAgentConversation.begin(self._built(), opening)
            try:
                yield conversation
            finally:
                await conversation.close()

    def _built(self) -> ReferenceRunner | chatflow_agent.Runner:
        """The runner under test, fresh.

        Raises:
            TargetError: the factory failed, or gave something else.
        """
        if isinstance(self.spec, Swarm):
            return ReferenceTarget(self.spec).runner()
        built, label = factory.build(self.spec)
        if isinstance(built, chatflow_agent.Agent):
            try:
                return chatflow_agent.Runner(built)
            except Exception as error:
                raise TargetError(f"target {label!r} failed: {factory.where(error)}") from error
        if isinstance(built, chatflow_agent.Runner):
            return built
        if not isinstance(built, ReferenceAgent | ReferenceRunner):
            gave = f"target {label!r} gave a {type(built).__name__}"
            raise TargetError(f"{gave}, expected an Agent or a Runner of chatflow_agent or of chatflow_runtime")
        return runner_of(built, label)


@dataclass(slots=True)
class ChatflowAgentConversation:
    """One session of a chatflow-agent Runner, told as traces."""

    runner: chatflow_agent.Runner
    models: Models
    context: dict[str, Any]
    """What the scenario begins with; of agents made again, what their tools write to."""
    is_translated: bool = False
    session: chatflow_agent.SessionContext | None = None
    watched: list[chatflow_agent.SessionContext] = field(default_factory=list)
    """A store on disk makes a new one for each turn."""
    turn: int = 0
    session_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _topology: Topology | None = None

    @classmethod
    def begin(cls, built: ReferenceRunner | chatflow_agent.Runner, opening: Opening) -> ChatflowAgentConversation:
        """The conversation that a runner holds as the scenario says.

        Raises:
            TargetError: the scenario says something that chatflow-agent cannot do.
        """
        context = dict(opening.context)
        chosen, settings, engines = opening.models, opening.settings, dict[str, Engine]()
        if isinstance(built, ReferenceRunner):
            ours = prepared(built, opening)
            runner, settings = translate(ours, context), _as_given(ours.settings)
            asked = {name: ours.answerer(agent) for name, agent in ours.agents.items()}
            chosen = {name: model for name, (_, model) in asked.items()}
            engines = {name: engine for name, (engine, _) in asked.items() if not isinstance(engine, LiteLLMEngine)}
        else:
            runner = copy.copy(built)  # a factory may give the same one to every trial
            check_chosen(runner, chosen)
            for name, value in opening.limits:
                if value is not None:
                    setattr(runner, name, value)
        models = Models(
            settings=settings,
            limits=opening.calls,
            watching=Watching(runner),
            default=runner.engine,
            chosen=chosen,
            engines=engines,
            tape=opening.tape,
        )
        holders = [each for agent in everybody(runner) for each in (agent, agent.engine)]
        scrub.declare_values(getattr(holder, "api_key", None) for holder in (*holders, runner.engine))
        conversation = cls(runner, models, context, isinstance(built, ReferenceRunner))
        runner.engine = models
        runner.session_store = _WatchedStore(runner.session_store, conversation)
        return conversation

    @property
    def topology(self) -> Topology:
        """What has been declared so far: a tool may hire agents, and part from others."""
        self._topology = (
            topology(self.runner) if self._topology is None else joined(self._topology, topology(self.runner))
        )
        return self._topology

    async def say(
        self, text: str, *, script: Sequence[ScriptedAnswer] | None = None, within: float | None = None
    ) -> TurnTrace:
        self.turn += 1
        models, tape, started, began = self.models, self.models.tape, self._active(), time.perf_counter()
        if tape is not None:
            tape.turn = self.turn
        models.script = engine = None if script is None else ScriptedEngine(scripted(script))
        models.watching = watching = Watching(self.runner)
        models.said_by.clear()
        before = missed_on(tape)
        reply, failure = "", None
        try:
            with listening(watching):
                async with asyncio.timeout(within):
                    response = await self.runner.run_async(self.session_id, text, metadata=self.context)
            watching.ended(self._active())
            reply = response.content
            if engine is not None:
                engine.finish()
            if (missed := missed_on(tape)) is not None and missed is not before:
                # A tool asked something that was not recorded, and its agent made do without.
                raise missed
            if not reply.strip():
                raise EmptyResponseError(
                    f"The model of agent {watching.asking!r} said nothing, and the user is told that."
                )
        except TargetError:
            raise
        except BaseException as error:
            if ends_the_run(error):
                raise
            watching.broken_off(error, self.session)
            failure = _failure(error, tape)
        return TurnTrace(
            user=text,
            start_agent=watching.start or started,
            end_agent=self._active(),
            reply=reply,
            steps=tuple(watching.steps),
            failure=failure,
            context=self._context(),
            seconds=time.perf_counter() - began,
        )

    async def close(self) -> None:
        """Closes its connections, and leaves its sessions to their store as they would be without it."""
        await self.models.close()
        for session in self.watched:
            for name in _WATCHED:
                vars(session).pop(name, None)

    def _context(self) -> dict[str, Any]:
        shown = plain(self.context if self.is_translated or self.session is None else self.session.metadata)
        return shown if isinstance(shown, dict) else {}

    def _active(self) -> str:
        return (self.runner.starting_agent if self.session is None else self.session.active_agent).name


def _failure(error: BaseException, tape: Tape | None) -> Failure:
    """What ended a turn; chatflow-agent tells of a provider's trouble in words alone."""
    failure = failure_of(error, tape)
    if failure.kind != "agent":
        return failure
    if isinstance(error, json.JSONDecodeError):
        return replace(failure, kind="model", message=f"the provider's answer is no JSON: {failure.message}")
    if not isinstance(error, chatflow_agent.ProviderError):
        return failure
    if isinstance(error.__cause__, TimeoutError):
        return replace(
            failure, kind="timeout", message=f"{failure.message.rstrip()} no answer in the time that was given"
        )
    status = _STATUS.search(str(error))
    if status:
        return replace(failure, kind="model", status_code=int(status[1]))
    return replace(failure, kind="network") if "connection error" in str(error) else failure


def _as_given(settings: Settings) -> SettingsSpec:
    return SettingsSpec(**{name: value for name, value in asdict(settings).items() if value is not None})


class _WatchedStore(chatflow_agent.BaseSessionStore):
    """A runner's store whose sessions tell a conversation of what happens in them."""

    def __init__(self, inner: Any, conversation: ChatflowAgentConversation) -> None:
        self._inner = inner
        self._conversation = conversation

    def get_or_create(
        self, session_id: str, default_agent: chatflow_agent.Agent, metadata: dict[str, Any] | None = None
    ) -> chatflow_agent.SessionContext:
        session: chatflow_agent.SessionContext = self._inner.get_or_create(
            session_id=session_id, default_agent=default_agent, metadata=metadata
        )
        self._conversation.session = session
        if not any(session is each for each in self._conversation.watched):
            self._conversation.watched.append(session)
            _watch(session, self._conversation)
        return session

    def get(self, session_id: str) -> chatflow_agent.SessionContext | None:
        found: chatflow_agent.SessionContext | None = self._inner.get(session_id)
        return found

    def delete(self, session_id: str) -> bool:
        return bool(self._inner.delete(session_id))

    def list_sessions(self) -> list[str]:
        return list(self._inner.list_sessions())

    def clear(self) -> None:
        self._inner.clear()

    def is_message_processed(self, message_id: str) -> bool:
        return bool(self._inner.is_message_processed(message_id))

    def record_processed_message(self, message_id: str) -> bool:
        return bool(self._inner.record_processed_message(message_id))

    def __getattr__(self, name: str) -> Any:
        # What a store has beyond the interface, for a runner of the user's own class.
        return getattr(self._inner, name)


def _watch(session: chatflow_agent.SessionContext, conversation: ChatflowAgentConversation) -> None:
    """Has the session tell the conversation of every message, and of every change of the active agent."""
    add_message, set_active_agent = session.add_message, session.set_active_agent

    def add(message: chatflow_agent.Message) -> None:
        if message.role is chatflow_agent.Role.USER:
            conversation.models.watching.began(session)
        elif message.role is chatflow_agent.Role.MODEL:
            conversation.models.said_by[id(message)] = conversation.models.watching.asking
        add_message(message)
        conversation.models.watching.message(message)

    def activate(agent: chatflow_agent.Agent) -> None:
        set_active_agent(agent)
        conversation.models.watching.swaps.append(agent.name)

    vars(session).update(zip(_WATCHED, (add, activate), strict=True))
