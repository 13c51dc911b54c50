"""The reference runtime as a target: `chatflow_runtime` agents, from a factory or declared in the file."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from chatflow_eval.cassette import Asked
from chatflow_eval.errors import CassetteError, CassetteMismatch, TargetError
from chatflow_eval.fields import subset
from chatflow_eval.recorder import ReplayTape, Tape, interception, playing
from chatflow_eval.scenario import Factory, ScriptedAnswer, ScriptedCall, SettingsSpec, Swarm, TargetSpec, ToolSpec
from chatflow_eval.scrub import scrub_text
from chatflow_eval.targets import Conversation, Opening, factory
from chatflow_eval.trace import (
    Edge,
    Failure,
    Hop,
    LimitStep,
    ModelStep,
    Step,
    ToolStep,
    Topology,
    TurnTrace,
    WarningStep,
)
from chatflow_runtime import events, litellm_engine
from chatflow_runtime.agent import DEFAULT_MODEL, Agent
from chatflow_runtime.completions import parse_completion
from chatflow_runtime.engine import Answer, Call, ModelRequest, Say, ScriptedEngine, Settings, Transfer, using
from chatflow_runtime.exceptions import DefinitionError, EmptyResponseError, ScriptError
from chatflow_runtime.handoffs import handoff
from chatflow_runtime.litellm_engine import LiteLLMEngine
from chatflow_runtime.memory import SessionContext
from chatflow_runtime.naming import tool_name
from chatflow_runtime.runner import Runner
from chatflow_runtime.tools import Tool

_SESSION = "trial"


@dataclass(frozen=True, slots=True)
class ReferenceTarget:
    """Agents of the reference runtime; a factory is called anew for every conversation."""

    spec: TargetSpec
    name: str = "chatflow"

    def topology(self) -> Topology:
        return topology(self.runner())

    @contextlib.asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[Conversation]:
        runner = _prepared(self.runner(), opening)
        runner.open_session(_SESSION, context=opening.context)
        with interception() if _needs_http(runner, opening) else contextlib.nullcontext():
            yield ReferenceConversation(runner, opening)

    def runner(self) -> Runner:
        """The Runner under test, fresh.

        Raises:
            TargetError: the factory failed, or returned neither an Agent nor a Runner.
        """
        if isinstance(self.spec, Swarm):
            if self.spec.dialect != "chatflow":
                raise TargetError(f"dialect {self.spec.dialect!r} cannot be run by this version, expected 'chatflow'")
            return Runner(starting_agent=_declared(_Same(self.spec)))
        build = factory.load(self.spec.reference, self.spec.base) if isinstance(self.spec, Factory) else self.spec
        label = self.spec.reference if isinstance(self.spec, Factory) else getattr(build, "__qualname__", repr(build))
        try:
            built = build() if callable(build) else build
            if isinstance(built, Agent):
                built = Runner(starting_agent=built)
        except Exception as error:
            raise TargetError(f"target {label!r} failed: {factory.where(error)}") from error
        if not isinstance(built, Runner):
            raise TargetError(f"target {label!r} gave a {type(built).__name__}, expected an Agent or a Runner")
        return built


@dataclass(slots=True)
class ReferenceConversation:
    """One session of a Runner, told as traces."""

    runner: Runner
    opening: Opening
    turn: int = 0

    @property
    def topology(self) -> Topology:
        return topology(self.runner)

    async def say(
        self, text: str, *, script: Sequence[ScriptedAnswer] | None = None, within: float | None = None
    ) -> TurnTrace:
        self.turn += 1
        if script is None and not isinstance(self.opening.tape, ReplayTape) and self.runner.needs_litellm:
            litellm_engine.load()
        start = self._session().active_agent_name
        watching = _Watching(self.opening.tape, self.turn)
        began = time.perf_counter()
        reply, failure = "", None
        try:
            with self._answering(script) as runner:
                async with asyncio.timeout(within):
                    response = await runner.run_async(_SESSION, text, observer=watching.see)
            reply = response.content
        except Exception as error:
            failure = _failure(error, self.opening.tape)
        session = self._session()
        return TurnTrace(
            user=text,
            start_agent=start,
            end_agent=session.active_agent_name,
            reply=reply,
            steps=tuple(watching.steps),
            failure=failure,
            context=session.context,
            seconds=time.perf_counter() - began,
        )

    def _session(self) -> SessionContext:
        session = self.runner.get_session(_SESSION)
        assert session is not None
        return session

    @contextlib.contextmanager
    def _answering(self, script: Sequence[ScriptedAnswer] | None) -> Iterator[Runner]:
        """The runner to use for one turn, with the tape and the engine that answer within it."""
        if script is not None:
            engine = ScriptedEngine(_answers(script))
            yield self.runner.replace(models={"*": engine})
            engine.finish()
            return
        tape = self.opening.tape
        with contextlib.ExitStack() as stack:
            if tape is not None:
                stack.enter_context(playing(tape))
            if isinstance(tape, ReplayTape):
                stack.enter_context(using(ReplayEngine(tape) if tape.only_chat else LiteLLMEngine(api_key="replayed")))
            yield self.runner


@dataclass(frozen=True, slots=True)
class ReplayEngine:
    """Answers from recorded chat completions, without a provider's client."""

    tape: ReplayTape

    async def answer(self, request: ModelRequest) -> Answer:
        asked = Asked(request.projection(), agent=request.agent, turn=self.tape.turn)
        return parse_completion(json.loads(self.tape.replay(asked).answer))


def topology(runner: Runner) -> Topology:
    """What a Runner's agents declare."""
    return Topology(
        start=runner.starting_agent.name,
        agents=tuple(runner.agents),
        tools={
            agent.name: tuple(tool.name for tool in agent.get_all_tools() if tool.target is None)
            for agent in runner.agents.values()
        },
        edges=tuple(
            Edge(source=agent.name, target=tool.target, tool=tool.name)
            for agent in runner.agents.values()
            for tool in agent.get_all_tools()
            if tool.target is not None
        ),
    )


def inline(swarm: Swarm) -> Agent:
    """The starting agent of a swarm declared in a scenario file, with everyone it can reach."""
    agents = {
        spec.name: Agent(
            name=spec.name,
            instructions=spec.instructions,
            tools=[_tool(name, tool) for name, tool in spec.tools.items()],
            model=spec.model or DEFAULT_MODEL,
        )
        for spec in swarm.agents
    }
    for spec in swarm.agents:
        for peer in spec.handoffs:
            agents[spec.name].add_handoff(
                handoff(agents[peer.agent], tool_name=peer.tool_name, description=peer.description)
                if peer.tool_name or peer.description
                else agents[peer.agent]
            )
    return agents[swarm.start]


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A swarm that equals itself alone, as comparing two costs more than building agents."""

    swarm: Swarm

    def __hash__(self) -> int:
        return id(self.swarm)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.swarm is other.swarm


@lru_cache(maxsize=64)
def _declared(spec: _Same) -> Agent:
    """The swarm's agents, the same ones for every conversation: running agents changes nothing in them."""
    return inline(spec.swarm)


class _Watching:
    """Turns a runner's events into a trace's steps."""

    def __init__(self, tape: Tape | None, turn: int) -> None:
        self.steps: list[Step] = []
        self._tape = tape
        self._turn = turn
        self._arguments: dict[str, tuple[Any, bool]] = {}
        self._depth = 0

    def see(self, event: events.Event) -> None:
        match event:
            case events.ModelAsked():
                if self._tape is not None:
                    self._tape.agent, self._tape.turn = event.agent, self._turn
            case events.ModelAnswered():
                self.steps.append(
                    ModelStep(
                        agent=event.agent,
                        model=event.model,
                        text=event.text,
                        calls=tuple(call.name for call in event.tool_calls),
                        input_tokens=event.usage.input_tokens,
                        output_tokens=event.usage.output_tokens,
                        seconds=event.seconds,
                    )
                )
            case events.ToolCalled():
                self._arguments[event.call_id] = (event.arguments, event.known)
            case events.ToolAnswered():
                arguments, known = self._arguments.pop(event.call_id)
                self.steps.append(
                    ToolStep(
                        agent=event.agent,
                        tool=event.tool,
                        arguments=arguments,
                        result=event.content,
                        is_error=event.is_error,
                        known=known,
                    )
                )
            case events.HandoffAccepted():
                self._depth += event.kind == "call"
                self.steps.append(_hop(event, depth=self._depth))
            case events.HandoffReturned():
                self._depth -= 1
            case events.HandoffRefused():
                self.steps.append(_hop(event, depth=self._depth, why=event.why, message=event.message))
            case events.LimitHit():
                self.steps.append(LimitStep(agent=event.agent, limit=event.limit, value=event.value))
            case events.Warned():
                self.steps.append(WarningStep(agent=event.agent, message=event.message))
            case events.TurnStarted() | events.TurnEnded():
                pass


def _hop(
    event: events.HandoffAccepted | events.HandoffRefused, *, depth: int, why: str | None = None, message: str = ""
) -> Hop:
    return Hop(
        source=event.source,
        target=event.target,
        kind=event.kind,
        accepted=why is None,
        tool=event.tool,
        reason=event.reason,
        why=why,
        message=message,
        depth=depth,
    )


def _prepared(runner: Runner, opening: Opening) -> Runner:
    """The runner with what the scenario says of limits, models and settings; what it leaves open stays."""
    try:
        return runner.replace(
            **{name: value for name, value in opening.limits if value is not None},
            settings=_settings(runner.settings, opening.settings),
            models={**runner.models, **opening.models},
        )
    except DefinitionError as error:
        raise TargetError(str(error)) from None


def _settings(declared: Settings, wanted: SettingsSpec) -> Settings:
    return dataclasses.replace(declared, **{name: value for name, value in wanted if value is not None})


def _needs_http(runner: Runner, opening: Opening) -> bool:
    """Whether answers come over HTTP: while recording, and in replay where an engine of the user's own does it."""
    if isinstance(opening.tape, ReplayTape):
        engines = [runner.engine, *(agent.engine for agent in runner.agents.values())]
        return not opening.tape.only_chat or any(engine is not None for engine in engines)
    return opening.tape is not None


def _answers(script: Sequence[ScriptedAnswer]) -> Iterator[tuple[Say | Call | Transfer, ...]]:
    for answer in script:
        said = () if answer.say is None else (Say(answer.say),)
        yield (*said, *(_scripted(call) for call in answer.calls))


def _scripted(call: ScriptedCall) -> Call | Transfer:
    if call.transfer is not None and not call.arguments:
        return Transfer(call.transfer, call.reason)
    arguments: Any = call.arguments
    return Call(call.tool or tool_name(call.transfer or ""), arguments)


def _tool(name: str, spec: ToolSpec) -> Tool:
    def answer(**arguments: Any) -> Any:
        for entry in spec.returns:
            if entry.when is None or subset(arguments, entry.when):
                if entry.raises is not None:
                    raise ToolFailed(entry.raises)
                return entry.returns
        raise ToolFailed(f"{name} has no answer for these arguments")

    return Tool(name, spec.description, spec.parameters, func=answer)


class ToolFailed(Exception):
    """What a tool declared in a scenario file raises where the file says so."""


_TIMEOUTS = ("TimeoutError", "Timeout", "APITimeoutError", "ReadTimeout", "ConnectTimeout")
_BROKEN = ("APIConnectionError", "ConnectError", "ConnectionError", "ClientConnectorError", "ServiceUnavailableError")


def _failure(error: Exception, tape: Tape | None) -> Failure:
    """What ended a turn; a recording's miss counts as such however a client wrapped it."""
    missed = tape.error if isinstance(tape, ReplayTape) else None
    if missed is not None or isinstance(error, CassetteError):
        cause = missed or error
        edit = cause.edit if isinstance(cause, CassetteMismatch) else None
        return Failure(kind="cassette", exception=type(cause).__name__, message=str(cause), edit=edit)
    name, status = type(error).__name__, getattr(error, "status_code", None)
    kind: Literal["agent", "model", "network", "timeout", "harness"] = "agent"
    if name in _TIMEOUTS:
        kind = "timeout"
    elif name in _BROKEN:
        kind = "network"
    elif isinstance(error, ScriptError):
        kind = "harness"
    elif isinstance(status, int) or isinstance(error, EmptyResponseError):
        kind = "model"
    code = status if isinstance(status, int) else None
    return Failure(kind=kind, exception=name, message=scrub_text(str(error)), status_code=code)
