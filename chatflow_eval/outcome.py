"""Outcome; run: trials to outcomes; the only step that talks to the world."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from chatflow_eval import checks, incidents
from chatflow_eval.checks import Verdict
from chatflow_eval.errors import ChatflowEvalError
from chatflow_eval.incidents import Incident
from chatflow_eval.recorder import RecordingTape, ReplayTape, Tape, interception
from chatflow_eval.scenario import Scenario
from chatflow_eval.targets import Conversation, Opening, close_connections, target_of
from chatflow_eval.trace import Failure, Trace
from chatflow_eval.trial import Trial

Status: TypeAlias = Literal["passed", "failed", "errored", "skipped"]


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
    """Model answers came from a recording: tokens and latency are recorded values."""
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

    @property
    def ok(self) -> bool:
        """True when nobody need look: passed, skipped, or failed as its author expects."""
        return self.status in ("passed", "skipped") or (self.status == "failed" and self.xfail is not None)

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What makes a trial itself: file, scenario, target, model, repeat."""
        return (self.file, self.scenario, self.target, self.model, self.repeat)


async def run(trials: Sequence[Trial], *, concurrency: int = 8) -> AsyncGenerator[Outcome, None]:
    """The trials' outcomes as they finish, up to `concurrency` at once; closing the iterator stops the rest."""
    waiting = iter(trials)
    finished: asyncio.Queue[Outcome | Exception] = asyncio.Queue()

    async def work() -> None:
        for trial in waiting:
            try:
                finished.put_nowait(await attempt(trial))
            except Exception as bug:
                finished.put_nowait(bug)
                return

    with interception() if any(trial.mode == "all" for trial in trials) else contextlib.nullcontext():
        workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(trials)))]
        try:
            for _ in trials:
                outcome = await finished.get()
                if isinstance(outcome, Exception):
                    raise outcome
                yield outcome
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await close_connections()


def collect(trials: Sequence[Trial], *, concurrency: int = 8) -> list[Outcome]:
    """The outcomes of all trials, from code that is not async."""

    async def finish() -> list[Outcome]:
        return [outcome async for outcome in run(trials, concurrency=concurrency)]

    return asyncio.run(finish())


async def attempt(trial: Trial) -> Outcome:
    """One trial, from opening its target to its verdicts."""
    scenario = trial.scenario
    target = target_of(scenario.target)
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
    )
    if scenario.skip is not None:
        return replace(blank, why=f"skipped: {scenario.skip}")
    began = time.perf_counter()
    tape = _tape(trial)
    opening = Opening(
        models=trial.models,
        limits=scenario.limits,
        settings=scenario.settings,
        context=scenario.context,
        tape=tape,
    )
    try:
        async with target.open(opening) as conversation:
            trace = await _converse(conversation, scenario)
        if isinstance(tape, RecordingTape) and tape.exchanges and not any(turn.failure for turn in trace.turns):
            tape.save()
        replayed = isinstance(tape, ReplayTape) and tape.has_played
        return judged(replace(blank, replayed=replayed, seconds=time.perf_counter() - began), scenario, trace)
    except ChatflowEvalError as error:
        failure = Failure(kind="harness", exception=type(error).__name__, message=str(error))
        return replace(blank, status="errored", why=str(error), failure=failure, seconds=time.perf_counter() - began)


def judged(blank: Outcome, scenario: Scenario, trace: Trace) -> Outcome:
    """The outcome with the trace, what was found in it, and what the scenario's expectations say of it."""
    found = incidents.find(trace)
    verdicts = _verdicts(scenario, trace, found)
    stopped = _stopped(scenario, trace)
    failed = next((verdict for verdict in verdicts if verdict.status == "failed"), None)
    outcome = replace(blank, trace=trace, incidents=found, verdicts=verdicts)
    if stopped is not None:
        number, failure = stopped
        why = f"turn {number}: {failure.exception}: {failure.message}"
        return replace(outcome, status="errored", why=why, failure=failure, failed_turn=number)
    if failed is not None:
        place = f"turn {failed.turn}: " if failed.turn else ""
        return replace(outcome, status="failed", why=f"{place}{failed.why}")
    return replace(outcome, status="passed")


async def _converse(conversation: Conversation, scenario: Scenario) -> Trace:
    spent = 0.0
    trace = Trace(topology=conversation.topology)
    for turn in scenario.turns:
        left = None if scenario.timeout is None else max(0.0, scenario.timeout - spent)
        said = await conversation.say(turn.user, script=turn.script, within=left)
        spent += said.seconds
        trace = replace(trace, turns=(*trace.turns, said))
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


def _tape(trial: Trial) -> Tape | None:
    if trial.mode == "live" or all(turn.script is not None for turn in trial.scenario.turns):
        return None
    if trial.mode == "all":
        return RecordingTape(trial.cassette)
    return ReplayTape.load(trial.cassette, rerecord=record_command(trial))


def record_command(trial: Trial) -> str:
    """The command line that records this trial."""
    words = ["chatflow-eval", "record", trial.scenario.file, "--only", trial.scenario.id]
    if isinstance(trial.model, str):
        words += ["--model", trial.model]
    if trial.repeat > 1:
        words += ["--repeats", str(trial.repeat)]
    return shlex.join(words)
