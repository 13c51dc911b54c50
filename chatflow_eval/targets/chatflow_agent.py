"""The published package chatflow-agent (0.3) as a target: its own agents and runners, or ours made again with it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import chatflow_agent

from chatflow_eval.errors import TargetError
from chatflow_eval.matching import Ignore
from chatflow_eval.recorder import interception
from chatflow_eval.scenario import ScriptedAnswer, SettingsSpec, Swarm, TargetSpec
from chatflow_eval.tape import ForkingTape, ReplayTape, Tape
from chatflow_eval.targets import Conversation, Opening, factory
from chatflow_eval.targets.chatflow_agent_models import Answering, Models, chosen_models
from chatflow_eval.targets.chatflow_agent_steps import TRACE_ID, Watching, everybody, listening, topology
from chatflow_eval.targets.failures import failure_of, missed_on
from chatflow_eval.targets.reference import ReferenceTarget, prepared, runner_of
from chatflow_eval.targets.scripts import scripted
from chatflow_eval.targets.translation import translate
from chatflow_eval.trace import Failure, Topology, TurnTrace
from chatflow_runtime.agent import Agent as ReferenceAgent
from chatflow_runtime.engine import Engine, ScriptedEngine, Settings
from chatflow_runtime.keyword_engine import KeywordEngine
from chatflow_runtime.litellm_engine import LiteLLMEngine
from chatflow_runtime.runner import Runner as ReferenceRunner

_REFUSED = re.compile(r"API request failed \((\d{3})\)")


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
                await conversation.models.client.aclose()

    def _built(self) -> ReferenceRunner | chatflow_agent.Runner:
        """The runner under test, fresh.

        Raises:
            TargetError: the factory failed, or gave something else.
        """
        if isinstance(self.spec, Swarm):
            return ReferenceTarget(self.spec).runner()
        built, label = factory.build(self.spec)
        if isinstance(built, chatflow_agent.Agent):
            return chatflow_agent.Runner(built)
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
    session: chatflow_agent.SessionContext | None = None
    turn: int = 0
    session_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def begin(cls, built: ReferenceRunner | chatflow_agent.Runner, opening: Opening) -> ChatflowAgentConversation:
        """The conversation that a runner holds as the scenario says.

        Raises:
            TargetError: the scenario says something that chatflow-agent cannot do.
        """
        context = dict(opening.context)
        engines: dict[str, Engine]
        if isinstance(built, ReferenceRunner):
            ours = prepared(built, opening)
            runner, settings = translate(ours, context), _as_given(ours.settings)
            asked = {name: ours.answerer(agent) for name, agent in ours.agents.items()}
            chosen = {name: model for name, (_, model) in asked.items()}
            engines = {name: engine for name, (engine, _) in asked.items() if not isinstance(engine, LiteLLMEngine)}
        else:
            runner, settings = _copied(built), opening.settings
            chosen = chosen_models(runner, opening.models)
            engines = {name: KeywordEngine() for name, model in chosen.items() if model == "keyword"}
            for name, value in opening.limits:
                if value is not None:
                    setattr(runner, name, value)
        models = Models.begin(settings, opening.calls, Watching(runner), opening.tape)
        conversation = cls(runner, models, context)
        runner.session_store = _WatchedStore(runner.session_store, conversation)
        for agent in everybody(runner):
            model, engine = chosen.get(agent.name), engines.get(agent.name)
            agent.engine = Answering(models, agent, model=model, engine=engine, default=runner.engine)
        return conversation

    @property
    def topology(self) -> Topology:
        return topology(self.runner)

    async def say(
        self, text: str, *, script: Sequence[ScriptedAnswer] | None = None, within: float | None = None
    ) -> TurnTrace:
        self.turn += 1
        tape, started, began = self.models.tape, self._active(), time.perf_counter()
        if tape is not None:
            tape.turn = self.turn
        engine = None if script is None else ScriptedEngine(scripted(script))
        self.models.script = engine
        self.models.watching = watching = Watching(self.runner)
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
        except TargetError:
            raise
        except Exception as error:
            watching.broken_off(error)
            failure = _failure(error, tape)
        return TurnTrace(
            user=text,
            start_agent=started,
            end_agent=self._active(),
            reply=reply,
            steps=tuple(watching.steps),
            failure=failure,
            context=dict(self.session.metadata) if self.session is not None else dict(self.context),
            seconds=time.perf_counter() - began,
        )

    def _active(self) -> str:
        return (self.runner.starting_agent if self.session is None else self.session.active_agent).name


def _failure(error: Exception, tape: Tape | None) -> Failure:
    """What ended a turn; chatflow-agent tells of a provider's refusal in words alone."""
    failure = failure_of(error, tape)
    if failure.kind == "agent" and isinstance(error, chatflow_agent.ProviderError):
        status = _REFUSED.search(str(error))
        code = int(status[1]) if status else None
        return replace(failure, kind="model" if status else "network", status_code=code)
    return failure


def _as_given(settings: Settings) -> SettingsSpec:
    return SettingsSpec(**{name: value for name, value in asdict(settings).items() if value is not None})


class _WatchedStore(chatflow_agent.BaseSessionStore):
    """A runner's store whose sessions tell a conversation of what happens in them."""

    def __init__(self, inner: Any, conversation: ChatflowAgentConversation) -> None:
        self._inner = inner
        self._conversation = conversation
        self._watched: list[chatflow_agent.SessionContext] = []

    def get_or_create(
        self, session_id: str, default_agent: chatflow_agent.Agent, metadata: dict[str, Any] | None = None
    ) -> chatflow_agent.SessionContext:
        session: chatflow_agent.SessionContext = self._inner.get_or_create(
            session_id=session_id, default_agent=default_agent, metadata=metadata
        )
        conversation = self._conversation
        # A store that is kept knows agents by name, and may find another copy of one.
        known = conversation.runner._agents_registry
        session.active_agent = known.get(session.active_agent.name, session.active_agent)
        conversation.session = session
        if not any(session is each for each in self._watched):
            self._watched.append(session)
            _watch(session, conversation)
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


def _watch(session: chatflow_agent.SessionContext, conversation: ChatflowAgentConversation) -> None:
    """Has the session tell the conversation of every message, and of every change of the active agent."""
    add_message, set_active_agent = session.add_message, session.set_active_agent

    def add(message: chatflow_agent.Message) -> None:
        if message.role is chatflow_agent.Role.MODEL:
            conversation.models.said_by[id(message)] = conversation.models.watching.asking
        add_message(message)
        conversation.models.watching.message(message)

    def activate(agent: chatflow_agent.Agent) -> None:
        set_active_agent(agent)
        conversation.models.watching.swaps.append(agent.name)

    vars(session).update(add_message=add, set_active_agent=activate)


def _copied(runner: chatflow_agent.Runner) -> chatflow_agent.Runner:
    """The runner over copies of its agents, as a factory may give the same ones to every trial."""
    copies = {id(agent): copy.copy(agent) for agent in everybody(runner)}
    for agent in copies.values():
        agent.handoffs = [copies[id(peer)] for peer in agent.handoffs]
        agent.tools = list(agent.tools)
    other = copy.copy(runner)
    other.starting_agent = copies[id(runner.starting_agent)]
    other._agents_registry = {name: copies[id(agent)] for name, agent in runner._agents_registry.items()}
    return other
