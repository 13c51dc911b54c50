"""Outcome; run: trials to outcomes; the only step that talks to the world."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from chatflow_eval import checks, guard, incidents
from chatflow_eval.cassette import Origin
from chatflow_eval.checks import Verdict
from chatflow_eval.demand import Demand, demands
from chatflow_eval.errors import CassetteError, ChatflowEvalError, TargetError
from chatflow_eval.incidents import Incident
from chatflow_eval.matching import Ignore
from chatflow_eval.player import Player
from chatflow_eval.recorder import interception, keeping
from chatflow_eval.scenario import REFERENCE, Scenario
from chatflow_eval.tape import (
    ForkingTape,
    LiveTape,
    Parting,
    RecordingTape,
    Reel,
    ReplayTape,
    Tape,
    failure_of,
    open_tape,
    playing,
)
from chatflow_eval.targets import Conversation, Opening, Target, close_connections, target_of
from chatflow_eval.targets.failures import ends_the_run
from chatflow_eval.trace import Failure, Hop, ModelStep, Trace, TurnTrace
from chatflow_eval.trial import Trial

Status: TypeAlias = Literal["passed", "failed", "errored", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """Where a trial left its recording and went on live: before this hop of this turn."""

    turn: int | None
    """Counts from 1."""
    agent: str | None
    """Who asked first what had not been recorded."""
    hop: int
    """Handoffs that the conversation had made before, and that were replayed."""
    route: tuple[str, ...]
    """The agents of the turn so far."""
    why: str
    """What was not recorded: the first field that differs, with both values."""

    def __str__(self) -> str:
        route = " -> ".join(self.route) or "the start"
        return f"turn {self.turn or 'unknown'}, at {route} (hop {self.hop}): {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A trial with its trace and verdicts, or the error that stopped it; self-contained, as `trials.jsonl` holds it."""

    file: str
    """The scenario file from the project's root, with `/`; `<python>` for scenarios built in code."""
    line: int
    scenario: str
    """The scenario's id, unique in its file."""
    tags: tuple[str, ...] = ()
    target: str = "chatflow"
    model: str = "declared"
    """Label of the model choice: `declared`, a model's name, or a mapping spelled out."""
    repeat: int = 1
    """Counts from 1."""
    status: Status
    why: str = ""
    """Why it is not passed, in words."""
    xfail: str | None = None
    """Why the scenario's author expects it to fail; the status stays what happened."""
    replayed: bool = False
    """Model answers came from a recording: tokens are recorded values, latencies those of replaying."""
    users: tuple[str, ...] = ()
    """What the user says, every turn, also those that were not reached."""
    trace: Trace | None = None
    verdicts: tuple[Verdict, ...] = ()
    incidents: tuple[Incident, ...] = ()
    failure: Failure | None = None
    """Of an errored trial."""
    failed_turn: int | None = None
    """The turn in which an errored trial stopped; counts from 1."""
    seconds: float = 0.0
    demands: tuple[Demand, ...] = ()
    """What the scenario asks of the routing, turn by turn, then of the whole conversation; none without a trace."""
    parted: Parted | None = None
    """Where a trial that was replayed as far as it was recorded (`new_episodes`) went on live."""
    ignored: tuple[str, ...] = ()
    """The `ignore` rules that made requests and recordings alike that were not."""
    baseline: bool = False
    """Ran as a yardstick beside the models under test: in no total, and no gate."""

    @property
    def ok(self) -> bool:
        """True when nobody need look: passed, skipped, failed as its author expects, or a yardstick only."""
        expected = self.status in ("passed", "skipped") or (self.status == "failed" and self.xfail is not None)
        return expected or self.baseline

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What makes a trial itself: file, scenario, target, model, repeat."""
        return (self.file, self.scenario, self.target, self.model, self.repeat)


def key_of(trial: Trial) -> tuple[str, str, str, str, int]:
    """The key that the trial's outcome will have."""
    scenario = trial.scenario
    return (scenario.file, scenario.id, _target(trial).name, trial.label, trial.repeat)


async def run(trials: Sequence[Trial], *, concurrency: int = 8) -> AsyncGenerator[Outcome, None]:
    """The trials' outcomes as they finish, up to `concurrency` at once; closing the iterator stops the rest."""
    waiting = iter(trials)
    # Scripted and replayed trials never wait for anything: without a bound, all would run before one is handed out.
    finished: asyncio.Queue[Outcome | BaseException] = asyncio.Queue(maxsize=concurrency)

    async def work() -> None:
        for trial in waiting:
            try:
                outcome = await attempt(trial)
            except BaseException as bug:
                if ends_the_run(bug):
                    raise
                await finished.put(bug)
                return
            await finished.put(outcome)

    with _world(trials):
        workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(trials)))]
        try:
            for _ in trials:
                outcome = await finished.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await close_connections()


@contextlib.contextmanager
def _world(trials: Sequence[Trial]) -> Iterator[None]:
    """What holds for the process while trials run: HTTP is intercepted for those that record, sockets are watched."""
    modes = {trial.mode for trial in trials}
    with contextlib.ExitStack() as stack:
        stack.enter_context(keeping())
        if "all" in modes:
            stack.enter_context(interception())
        if modes & {"none", "once"}:
            stack.enter_context(guard.watching())
        yield


def collect(trials: Sequence[Trial], *, concurrency: int = 8) -> list[Outcome]:
    """The outcomes of all trials, from code that is not async."""

    async def finish() -> list[Outcome]:
        return [outcome async for outcome in run(trials, concurrency=concurrency)]

    return asyncio.run(finish())


async def attempt(trial: Trial) -> Outcome:
    """One trial, from opening its target to its verdicts."""
    scenario = trial.scenario
    target = _target(trial)
    blank = Outcome(
        file=scenario.file,
        line=scenario.line,
        scenario=scenario.id,
        tags=scenario.tags,
        target=target.name,
        model=trial.label,
        repeat=trial.repeat,
        status="skipped",
        xfail=scenario.xfail,
        users=tuple(turn.user for turn in scenario.turns),
        baseline=trial.baseline,
    )
    if scenario.skip is not None:
        return replace(blank, why=f"skipped: {scenario.skip}")
    began = time.perf_counter()
    tape = _tape(trial, target)
    opening = Opening(
        models=trial.models,
        limits=scenario.limits,
        settings=scenario.settings,
        context=scenario.context,
        tape=tape,
        calls=trial.calls,
    )
    try:
        if scenario.record_tools and tape is not None and not getattr(target, "replays_tools", False):
            raise TargetError(f"target {target.name!r} cannot replay what tools return: leave out `record_tools`")
        with playing(tape or LiveTape()):
            async with target.open(opening) as conversation:
                trace = await _converse(conversation, scenario, tape)
        if isinstance(tape, RecordingTape | ForkingTape) and _stopped(scenario, trace) is None:
            await asyncio.to_thread(tape.save)
        seconds = time.perf_counter() - began
        return judged(_recorded(replace(blank, seconds=seconds), scenario, tape, trace), scenario, trace)
    except ChatflowEvalError as error:
        failure = failure_of(error)
        return replace(blank, status="errored", why=str(error), failure=failure, seconds=time.perf_counter() - began)


def judged(blank: Outcome, scenario: Scenario, trace: Trace) -> Outcome:
    """The outcome with the trace, what was found in it, and what the scenario's expectations say of it."""
    asked = demands(scenario, trace.topology)
    found = incidents.find(trace, [demand.ends for demand in asked if demand.turn is not None])
    verdicts = _verdicts(scenario, trace, found)
    stopped = _stopped(scenario, trace)
    failed = next((verdict for verdict in verdicts if verdict.status == "failed"), None)
    outcome = replace(blank, trace=trace, incidents=found, verdicts=verdicts, demands=asked)
    if stopped is not None:
        number, failure = stopped
        why = f"turn {number}: {failure.exception}: {failure.message}"
        return replace(outcome, status="errored", why=why, failure=failure, failed_turn=number)
    if failed is not None:
        place = f"turn {failed.turn}: " if failed.turn else ""
        return replace(outcome, status="failed", why=f"{place}{failed.why}")
    return replace(outcome, status="passed")


def rejudge(outcomes: Iterable[Outcome], scenarios: Sequence[Scenario]) -> Iterator[Outcome | None]:
    """Each outcome, its trace judged by what its scenario expects now.

    `None` where no scenario has its file and id, or the users of that one say something else by now. An outcome without
    a trace is what it was.
    """
    known = {(scenario.file, scenario.id): scenario for scenario in scenarios}
    for old in outcomes:
        scenario = known.get((old.file, old.scenario))
        if scenario is None or old.users != tuple(turn.user for turn in scenario.turns):
            yield None
            continue
        blank = replace(
            old,
            line=scenario.line,
            tags=scenario.tags,
            xfail=scenario.xfail,
            status="skipped",
            why=f"skipped: {scenario.skip}" if scenario.skip else "",
            failure=None,
            failed_turn=None,
        )
        if scenario.skip is not None:
            yield replace(blank, trace=None, verdicts=(), incidents=(), demands=())
        else:
            yield old if old.trace is None else judged(blank, scenario, old.trace)


async def _converse(conversation: Conversation, scenario: Scenario, tape: Tape | None) -> Trace:
    spent = 0.0
    missed: CassetteError | None = None
    turns: tuple[TurnTrace, ...] = ()
    for turn in scenario.turns:
        left = None if scenario.timeout is None else max(0.0, scenario.timeout - spent)
        said = await conversation.say(turn.user, script=turn.script, within=left)
        if tape is not None and tape.error is not None and tape.error is not missed:
            # However clients wrapped it, and whoever made do without an answer.
            missed = tape.error
            said = replace(said, failure=failure_of(missed))
        spent += said.seconds
        # A service may say only while it answers who its agents are, and agents may be hired on the way.
        turns = (*turns, said)
        trace = Trace(topology=conversation.topology, turns=turns)
        if _stopped(scenario, trace) or (scenario.on_failure == "stop" and _failed(scenario, trace)):
            break
    return trace


def _stopped(scenario: Scenario, trace: Trace) -> tuple[int, Failure] | None:
    """The turn that an exception ended without anybody expecting it, and the exception."""
    for number, (turn, said) in enumerate(zip(scenario.turns, trace.turns, strict=False), 1):
        if said.failure is not None and checks.unjudged(checks.Span(trace, number), (turn.expect, scenario.expect)):
            return number, said.failure
    return None


def _failed(scenario: Scenario, trace: Trace) -> bool:
    reached = len(trace.turns)
    verdicts = _verdicts(scenario, trace, incidents.find(trace))
    return any(verdict.status == "failed" and verdict.turn == reached for verdict in verdicts)


def _verdicts(scenario: Scenario, trace: Trace, found: tuple[Incident, ...]) -> tuple[Verdict, ...]:
    return checks.judge(
        trace,
        found,
        turns=[turn.expect for turn in scenario.turns],
        overall=scenario.expect,
        policy=scenario.incidents,
    )


def _target(trial: Trial) -> Target:
    return target_of(trial.scenario.target, trial.framework)


def _tape(trial: Trial, target: Target) -> ReplayTape | RecordingTape | ForkingTape | None:
    if trial.mode == "live":
        return None
    scenario = trial.scenario
    reel = Reel(
        path=trial.cassette,
        origin=Origin(
            file=scenario.file, scenario=scenario.id, model=trial.label, repeat=trial.repeat, target=target.name
        ),
        rerecord=record_command(trial),
        ignore=(*(Ignore(rule.matches, rule.path) for rule in scenario.ignore), *target.varies),
        allow_hosts=scenario.allow_hosts,
        tools=scenario.record_tools,
    )
    return open_tape(reel, trial.mode)


def _recorded(outcome: Outcome, scenario: Scenario, tape: Tape | None, trace: Trace) -> Outcome:
    """The outcome with what is to be said of its recording."""
    if not isinstance(tape, ReplayTape | ForkingTape) or not isinstance(tape.player, Player):
        return outcome
    ignored = tuple(str(rule) for rule in tape.player.matcher.rules if rule in tape.player.matcher.used)
    parted = _parted(tape, scenario, trace) if isinstance(tape, ForkingTape) else None
    return replace(outcome, replayed=tape.has_played and parted is None, parted=parted, ignored=ignored)


def _parted(tape: ForkingTape, scenario: Scenario, trace: Trace) -> Parted | None:
    """Where the trace left the recording: the handoffs before the first answer that was not replayed."""
    if tape.parted is None:
        return None
    replayed, hops = tape.parted.replayed, 0
    route: tuple[str, ...] = ()
    for number, (turn, said) in enumerate(zip(scenario.turns, trace.turns, strict=False), 1):
        route = (said.start_agent,)
        if replayed <= 0 and number == tape.parted.turn:
            return _parted_at(tape.parted, hops, route)
        for step in said.steps:
            if isinstance(step, ModelStep) and turn.script is None:
                if replayed <= 0 and number >= (tape.parted.turn or 1):
                    return _parted_at(tape.parted, hops, route)
                replayed -= 1
            elif isinstance(step, Hop) and step.accepted:
                hops += 1
                route = (*route, step.target)
    return _parted_at(tape.parted, hops, route)


def _parted_at(parting: Parting, hops: int, route: tuple[str, ...]) -> Parted:
    return Parted(turn=parting.turn, agent=parting.agent, hop=hops, route=route, why=parting.why)


def record_command(trial: Trial) -> str:
    """The command line that records this trial."""
    words = ["chatflow-eval", "record", trial.scenario.file, "--only", trial.scenario.id]
    if isinstance(trial.model, str):
        words += ["--model", trial.model]
    if trial.framework != REFERENCE:
        words += ["--framework", trial.framework]
    if trial.repeat > 1:
        words += ["--repeats", str(trial.repeat)]
    return shlex.join(words)
