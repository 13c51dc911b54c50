"""The reference runtime as a target: `chatflow_runtime` agents, from a factory or declared in the file."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, cast

from chatflow_eval import scrub
from chatflow_eval.errors import TargetError
from chatflow_eval.fields import subset
from chatflow_eval.incidents import history_faults
from chatflow_eval.matching import Ignore
from chatflow_eval.recorder import interception
from chatflow_eval.scenario import ScriptedAnswer, SettingsSpec, Swarm, TargetSpec, ToolSpec
from chatflow_eval.scrub import PLACEHOLDER
from chatflow_eval.tape import ForkingTape, ReplayTape, Tape, playing
from chatflow_eval.targets import Conversation, Opening, factory
from chatflow_eval.targets.engines import LiveEngine, ReplayEngine
from chatflow_eval.targets.failures import ends_the_run, failure_of, missed_on
from chatflow_eval.targets.scripts import scripted
from chatflow_eval.targets.tool_calls import ToolCalls
from chatflow_eval.trace import (
    Edge,
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
from chatflow_runtime.engine import ScriptedEngine, Settings, using
from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.graph import CompiledGraph
from chatflow_runtime.handoffs import HandoffTool, handoff
from chatflow_runtime.litellm_engine import LiteLLMEngine
from chatflow_runtime.memory import SessionContext
from chatflow_runtime.runner import Runner
from chatflow_runtime.tools import Tool, invoking

_SESSION = "trial"


@dataclass(frozen=True, slots=True)
class ReferenceTarget:
    """Agents of the reference runtime; a factory is called anew for every conversation."""

    spec: TargetSpec
    name: str = "chatflow"

    replays_tools: ClassVar = True
    varies: ClassVar[tuple[Ignore, ...]] = ()

    def topology(self) -> Topology:
        return topology(self.runner())

    @contextlib.asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[Conversation]:
        runner = prepared(self.runner(), opening)
        runner.open_session(_SESSION, context=opening.context)
        engines = [runner.answerer(agent)[0] for agent in runner.agents.values()]
        scrub.declare_values(engine._api_key for engine in engines if isinstance(engine, LiteLLMEngine))
        replaying = isinstance(opening.tape, ReplayTape | ForkingTape)
        with interception(replaying=replaying) if _needs_http(runner, opening) else contextlib.nullcontext():
            yield ReferenceConversation(runner, opening)

    def runner(self) -> Runner:
        """The Runner under test, fresh.

        Raises:
            TargetError: the factory failed, or returned neither an Agent nor a Runner.
        """
        if isinstance(self.spec, Swarm):
            try:
                return Runner(starting_agent=_declared(_Same(self.spec)))
            except DefinitionError as error:
                raise TargetError(str(error)) from None
        built, label = factory.build(self.spec)
        return runner_of(built, label)


def runner_of(built: object, label: str) -> Runner:
    """The Runner that a factory gave, or one for the Agent that it gave.

    Raises:
        TargetError: it gave something else, or agents that make no runner.
    """
    if isinstance(built, Runner):
        return built
    if isinstance(built, Agent):
        try:
            return Runner(starting_agent=built)
        except DefinitionError as error:
            raise TargetError(f"target {label!r} failed: {error}") from error
    foreign = type(built).__module__.partition(".")[0] == "chatflow_agent"
    hint = "; agents of chatflow_agent need `frameworks: chatflow_agent`, or --framework" if foreign else ""
    raise TargetError(f"target {label!r} gave a {type(built).__name__}, expected an Agent or a Runner{hint}")


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
        replays = isinstance(self.opening.tape, ReplayTape | ForkingTape)
        if script is None and not replays and self.runner.needs_litellm:
            litellm_engine.load()
        active = self._session().active_agent_name
        before = missed_on(self.opening.tape)
        watching = _Watching(self.opening.tape, self.turn)
        began = time.perf_counter()
        reply, failure = "", None
        try:
            with self._answering(script, watching) as runner:
                async with asyncio.timeout(within):
                    response = await runner.run_async(_SESSION, text, observer=watching.see)
            reply = response.content
            if (missed := missed_on(self.opening.tape)) is not None and missed is not before:
                # An agent that was called had no recording, and the one that called it made do without an answer.
                raise missed
        except BaseException as error:
            if ends_the_run(error):
                raise
            failure = failure_of(error, self.opening.tape)
        session = self._session()
        return TurnTrace(
            user=text,
            start_agent=watching.start or active,
            end_agent=session.active_agent_name,
            reply=reply,
            steps=watching.steps,
            failure=failure,
            context=session.context,
            seconds=time.perf_counter() - began,
        )

    def _session(self) -> SessionContext:
        session = self.runner.get_session(_SESSION)
        assert session is not None
        return session

    @contextlib.contextmanager
    def _answering(self, script: Sequence[ScriptedAnswer] | None, watching: _Watching) -> Iterator[Runner]:
        """The runner to use for one turn, with the tape and the engine that answer within it."""
        tape = self.opening.tape
        with contextlib.ExitStack() as stack:
            if tape is not None:
                stack.enter_context(playing(tape))
            if watching.tools is not None:
                stack.enter_context(invoking(watching.tools.through))
            if script is not None:
                engine = ScriptedEngine(scripted(script))
                yield self.runner.replace(models={"*": engine})
                engine.finish()
                return
            live = LiveEngine(self.opening.calls, watching.warn, watching.sent)
            if isinstance(tape, ReplayTape | ForkingTape) and tape.only_chat:
                stack.enter_context(using(ReplayEngine(tape, live)))
            elif isinstance(tape, ReplayTape):
                stack.enter_context(using(LiteLLMEngine(api_key=PLACEHOLDER)))
            else:
                stack.enter_context(using(live))
            yield self.runner


def topology(runner: Runner) -> Topology:
    """What a Runner's agents declare; of a graph, its nodes, and the graphs inside it."""
    graph = runner if isinstance(runner, CompiledGraph) else None
    agents = [runner.agents[name] for name in graph.nodes] if graph else list(runner.agents.values())
    names = tuple(agent.name for agent in agents)
    edges = [
        Edge(source=agent.name, target=by.agent.name, tool=tool, kind=by.kind)
        for agent in agents
        for tool, by in agent.toolbox(None).handoffs.items()
        if by.agent.name in names
    ]
    whole = Topology(
        start=runner.starting_agent.name,
        agents=names,
        tools={agent.name: tuple(tool.name for tool in agent.tools) for agent in agents},
        edges=(*edges, *_ways(graph, edges)) if graph else tuple(edges),
    )
    for node, inner in graph.graphs.items() if graph else ():
        part = topology(inner)
        whole = Topology(
            start=whole.start,
            agents=(*whole.agents, *part.agents),
            tools=whole.tools | part.tools,
            edges=(*whole.edges, Edge(source=node, target=part.start, kind="call"), *part.edges),
        )
    return whole


def _ways(graph: CompiledGraph, made: Sequence[Edge]) -> Iterator[Edge]:
    """The hops that a graph's own edges make, those aside that agents ask for by a tool."""
    by_tool = {(edge.source, edge.target) for edge in made}
    return (Edge(source=source, target=target) for source, target in graph.ways if (source, target) not in by_tool)


def inline(swarm: Swarm) -> Agent:
    """The starting agent of a swarm declared in a scenario file, with everyone it can reach."""
    make = _dialect(swarm.dialect)
    agents = {
        spec.name: make.agent(
            spec.name,
            spec.instructions,
            tools=[_tool(name, tool) for name, tool in spec.tools.items()],
            model=spec.model or DEFAULT_MODEL,
        )
        for spec in swarm.agents
    }
    for spec in swarm.agents:
        for peer in spec.handoffs:
            agents[spec.name].add_handoff(make.handoff(agents[peer.agent], peer.tool_name, peer.description))
    return agents[swarm.start]


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What a swarm declared in a scenario file is made of."""

    agent: Callable[..., Agent]
    handoff: Callable[[Agent, str | None, str | None], HandoffTool]


def _dialect(name: str) -> _Dialect:
    """The dialect of that name, imported when somebody uses it."""
    match name:
        case "praisonai":
            from chatflow_runtime.dialects import praisonai

            return _Dialect(praisonai.Agent, praisonai.handoff)
        case "synaptic":
            from chatflow_runtime.dialects import synaptic

            return _Dialect(Agent, lambda peer, name, text: synaptic.handoff(peer, tool_name=name, description=text))
        case _:
            return _Dialect(Agent, lambda peer, name, text: handoff(peer, tool_name=name, description=text))


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
        self._tape = tape
        self._turn = turn
        self._steps: dict[tuple[str, ...], list[Step | tuple[str, ...]]] = {(): []}
        """By the calls around them; a call's own stand in it by their key, so that calls at one time do not mix."""
        self._arguments: dict[tuple[str, ...], tuple[Any, bool]] = {}
        self.start: str | None = None
        """Who was active first."""
        self.tools = ToolCalls(tape, turn) if tape is not None and tape.tools else None
        self._asking: dict[str, tuple[str, ...]] = {}
        """The calls around the last question of each agent."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in order, a call's after the hop that made it."""
        return tuple(self._inside(()))

    def _inside(self, calls: tuple[str, ...]) -> Iterator[Step]:
        for step in self._steps[calls]:
            if isinstance(step, tuple):
                yield from self._inside(step)
            else:
                yield step

    def warn(self, agent: str, message: str) -> None:
        """Something went wrong, and was put right, while an agent's model was asked."""
        self._steps[self._asking.get(agent, ())].append(WarningStep(agent=agent, message=message))

    def sent(self, agent: str, request: Mapping[str, object]) -> None:
        """An agent's model is asked this; what a provider would refuse of it is noted."""
        self._steps[self._asking.get(agent, ())].extend(history_faults(request, agent))

    def see(self, event: events.Event) -> None:
        steps = self._steps[event.within]
        if self.tools is not None:
            self.tools.see(event)
        match event:
            case events.ModelAsked():
                self._asking[event.agent] = event.within
                if self._tape is not None:
                    self._tape.agent, self._tape.turn = event.agent, self._turn
            case events.ModelAnswered():
                steps.append(
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
                self._arguments[(*event.within, event.call_id)] = (event.arguments, event.known)
            case events.ToolAnswered():
                arguments, known = self._arguments.pop((*event.within, event.call_id))
                steps.append(
                    ToolStep(
                        agent=event.agent,
                        tool=event.tool,
                        arguments=arguments,
                        result=event.content,
                        is_error=event.is_error,
                        known=known,
                    )
                )
            case events.HandoffAccepted(kind="call"):
                inside = (*event.within, event.call_id)
                self._steps[inside] = []
                steps += [_hop(event, depth=len(inside), withheld=event.withheld), inside]
            case events.HandoffAccepted():
                steps.append(_hop(event, depth=len(event.within)))
            case events.HandoffReturned():
                if event.error:
                    hop = steps.index((*event.within, event.call_id)) - 1
                    steps[hop] = dataclasses.replace(cast(Hop, steps[hop]), error=event.error)
            case events.HandoffRefused():
                steps.append(_hop(event, depth=len(event.within), why=event.why, message=event.message))
            case events.LimitHit():
                steps.append(LimitStep(agent=event.agent, limit=event.limit, value=event.value))
            case events.Warned():
                steps.append(WarningStep(agent=event.agent, message=event.message))
            case events.TurnStarted():
                self.start = event.agent
            case events.TurnEnded():
                pass


def _hop(
    event: events.HandoffAccepted | events.HandoffRefused,
    *,
    depth: int,
    why: str | None = None,
    message: str = "",
    withheld: tuple[str, ...] = (),
) -> Hop:
    return Hop(
        source=event.source,
        target=event.target,
        kind=event.kind,
        accepted=why is None,
        tool=event.tool or None,
        reason=event.reason,
        why=why,
        message=message,
        depth=depth,
        withheld=withheld,
    )


def prepared(runner: Runner, opening: Opening) -> Runner:
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
