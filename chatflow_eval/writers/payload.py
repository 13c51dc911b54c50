"""Trials as data inside the HTML report: an index of all of them, and their details in blocks, compressed."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from chatflow_eval.checks import Verdict
from chatflow_eval.incidents import FAILING, Incident
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import TRIALS, Report
from chatflow_eval.tally import Place, places
from chatflow_eval.trace import Failure, HistoryFault, Hop, LimitStep, ModelStep, Step, ToolStep, TurnTrace
from chatflow_eval.writers import words

MAX_TEXT = 4_000
"""Characters of one text that are shown."""
MAX_NAME = 1_000
MAX_BRIEF = 240
"""Characters of a text that stand in the list of trials, and that a search finds."""
MAX_STEPS, MAX_TURNS = 200, 200
"""Steps of one turn, and turns of one trial, that are shown."""
MAX_TRIALS = 20_000
BLOCK = 100
"""Trials whose details are unpacked together."""

STATUSES: tuple[Status | Literal["yardstick"], ...] = ("passed", "failed", "errored", "skipped", "yardstick")

Json: TypeAlias = Any


class Block(NamedTuple):
    """One compressed block: JSON in gzip in base64."""

    name: str
    """`details-0`, `details-1`, ...; the last is `index`."""
    data: str


def blocks(report: Report, watch: Callable[[Outcome], None] = lambda _: None) -> Iterator[Block]:
    """The report's trials: details in the order of the run, then the index of all, those not as expected first.

    Every outcome is read once and shown to `watch`, also those of which there is no room.
    """
    index, waiting, number = _Index(), list[Json](), 0
    for outcome in _chosen(report, watch):
        index.add(outcome)
        waiting.append(detail(outcome))
        if len(waiting) == BLOCK:
            yield _block(f"details-{number}", waiting)
            waiting, number = [], number + 1
    if waiting:
        yield _block(f"details-{number}", waiting)
    yield _block("index", index.table(left_out=len(report.outcomes) - len(index.rows)))


def _chosen(report: Report, watch: Callable[[Outcome], None]) -> Iterator[Outcome]:
    """The outcomes that the page has room for, those not as expected before others."""
    unexpected = set(report.unexpected[:MAX_TRIALS])
    room = MAX_TRIALS - len(unexpected)
    for place, outcome in enumerate(report.outcomes):
        watch(outcome)
        if place in unexpected:
            yield outcome
        elif room and outcome.ok:
            room -= 1
            yield outcome


def _block(name: str, value: Json) -> Block:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    packed = gzip.compress(text.encode("utf-8", "backslashreplace"), compresslevel=6, mtime=0)
    return Block(name, base64.b64encode(packed).decode())


# The index: every column a number, each text and each list of texts said once.


@dataclass(slots=True)
class _Said:
    """Values, each said once, and named by its place."""

    places: dict[Any, int] = field(default_factory=dict)

    def __call__(self, value: Any) -> int:
        return self.places.setdefault(value, len(self.places))


@dataclass(slots=True)
class _Index:
    texts: _Said = field(default_factory=_Said)
    lists: _Said = field(default_factory=_Said)
    rows: list[tuple[tuple[Any, ...], tuple[float, ...]]] = field(default_factory=list)
    """The key that a trial is sorted by, and its columns."""

    def add(self, outcome: Outcome) -> None:
        total = tokens_of(step for turn in _turns(outcome) for step in turn.steps)
        wrong = first_wrong(outcome)
        self.rows.append(
            (
                (outcome.ok, outcome.baseline, *words.order(outcome)),
                (
                    len(self.rows),
                    STATUSES.index("yardstick" if outcome.baseline else outcome.status),
                    outcome.ok,
                    self._text(outcome.file),
                    self._text(outcome.scenario),
                    self._text(outcome.target),
                    self._text(outcome.model),
                    outcome.repeat,
                    self._list(outcome.tags),
                    self._routes(outcome),
                    *self._facts(outcome),
                    self._wrong(wrong),
                    self._text(_brief(" / ".join(outcome.users))),
                    self._text(_brief(words.one_line(_brief(outcome.why)))),
                    round(outcome.seconds, 4),
                    -1 if total is None else sum(total),
                ),
            )
        )

    def _text(self, text: str) -> int:
        return self.texts(text if len(text) <= MAX_NAME else text[:MAX_NAME])

    def _list(self, texts: Iterable[str]) -> int:
        return self.lists(tuple(map(self._text, texts)))

    def _pairs(self, pairs: Iterable[tuple[str, str]]) -> int:
        """Two texts after two others, each pair once."""
        return self._list(text for pair in dict.fromkeys(pairs) for text in pair)

    def _routes(self, outcome: Outcome) -> int:
        """The agents of each turn, -1 between turns."""
        routes: list[int] = []
        for turn in _turns(outcome)[:MAX_TURNS]:
            routes += [*(self._text(agent) for agent in turn.agents[:MAX_STEPS]), -1]
        return self.lists(tuple(routes))

    def _facts(self, outcome: Outcome) -> tuple[int, ...]:
        """Agents, handoffs made and expected, decisions, incidents: as the numbers count them, without yardsticks."""
        if outcome.baseline or outcome.status == "skipped":
            return (self.lists(()),) * 5
        turns, decisions = _turns(outcome), tuple(places(outcome))
        wanted = (
            (place.source_expected, place.expected)
            for place in decisions
            if place.wanted and place.source_expected is not None and place.expected is not None
        )
        return (
            self._list(dict.fromkeys(agent for turn in turns for agent in turn.agents)),
            self._pairs((hop.source, hop.target) for turn in turns for hop in turn.accepted),
            self._pairs(wanted),
            self._pairs(map(cell_of, decisions)),
            self._list(dict.fromkeys(incident.kind for incident in outcome.incidents)),
        )

    def _wrong(self, wrong: Wrong | None) -> int:
        if wrong is None:
            return self.lists(())
        told = (wrong.check, wrong.expected, wrong.actual or words.one_line(_brief(wrong.why)))
        if wrong.agent:
            told = (wrong.check, wrong.agent, wrong.came)
        return self.lists((wrong.turn or 0, bool(wrong.agent), *(self._text(_brief(text)) for text in told)))

    def table(self, *, left_out: int) -> dict[str, Json]:
        """The columns, the trials that are not as expected first."""
        rows = [columns for _, columns in sorted(self.rows)]
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
        return {
            "statuses": STATUSES,
            "left_out": left_out,
            "texts": list(self.texts.places),
            "lists": list(self.lists.places),
            **dict(zip(COLUMNS, columns, strict=True)),
        }


COLUMNS = (
    *("at", "status", "ok", "file", "scenario", "target", "model", "repeat", "tags", "routes", "agents", "made"),
    *("wanted", "cells", "incidents", "wrong", "users", "why", "seconds", "tokens"),
)
"""Of the index; `at` is the trial's place among the details, other names are places in `texts` or in `lists`."""


def cell_of(place: Place) -> tuple[str, str]:
    """The row and the column of a decision in the confusion table."""
    return (
        "(stay)" if place.expected is None else place.expected,
        place.actual if place.end == "agent" and place.actual is not None else f"({place.end})",
    )


# Where it went wrong.


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """The first thing that went wrong in a trial, in words for a list, and where it is."""

    turn: int | None
    """Counts from 1; `None` for the whole conversation."""
    step: int | None = None
    """Counts from 0, one more than there are for the end of the turn; `None` where no step is to blame."""
    check: str
    """The check that failed, or the exception."""
    expected: str = ""
    actual: str = ""
    why: str = ""
    agent: str = ""
    """Who was expected at the step, where the route went wrong."""
    came: str = ""
    """Who came there."""


def first_wrong(outcome: Outcome) -> Wrong | None:
    """What went wrong first, in a trial that failed or errored."""
    turns = _turns(outcome)
    if outcome.status == "errored":
        turn = outcome.failed_turn
        exception = outcome.failure.exception if outcome.failure else "error"
        step = len(turns[turn - 1].steps) if turn and turn <= len(turns) else None
        why = outcome.why.removeprefix(f"turn {turn}: ").removeprefix(f"{exception}: ")
        return Wrong(turn=turn, step=step, check=exception, why=why)
    verdict = words.first_failed(outcome.verdicts)
    if outcome.status != "failed" or verdict is None:
        return None
    turn, step, agent, came = verdict.turn, None, "", ""
    if turn is None and verdict.check == "incidents":
        turn = next((found.turn for found in outcome.incidents if found.kind in FAILING), None)
    if verdict.turn is not None and verdict.turn <= len(turns):
        step, agent, came = _step_of(turns[verdict.turn - 1], verdict)
    return Wrong(
        turn=turn,
        step=step,
        check=verdict.check,
        expected=verdict.expected,
        actual=verdict.actual,
        why=verdict.why,
        agent=agent,
        came=came,
    )


def _step_of(turn: TurnTrace, verdict: Verdict) -> tuple[int | None, str, str]:
    """The step that parted from the expected route, who was expected there, and who came.

    It is the wrong handoff, or the answer that should have handed off.
    """
    if verdict.check == "ends_at":
        return len(turn.steps), verdict.expected, verdict.actual
    if verdict.check == "starts_at":
        return None, verdict.expected, verdict.actual
    hops = [index for index, step in enumerate(turn.steps) if isinstance(step, Hop) and step.accepted]
    visited = 0
    for place in verdict.alignment:
        if place.actual is not None:
            visited += 1
        if place.ok:
            continue
        expected = "nobody else" if place.expected is None else place.expected
        if place.actual is not None:
            return (hops[visited - 2] if 2 <= visited <= len(hops) + 1 else None), expected, place.actual
        following = hops[visited - 1] if visited and visited <= len(hops) else len(turn.steps)
        answers = (index for index in range(following - 1, -1, -1) if isinstance(turn.steps[index], ModelStep))
        return next(answers, following), expected, "nobody"
    return None, "", ""


# The details of one trial.


def detail(outcome: Outcome) -> Json:
    """A trial as the page shows it, its texts cut; what is empty is left out."""
    turns, wrong = _turns(outcome), first_wrong(outcome)
    users = outcome.users or tuple(turn.user for turn in turns)
    return _lean(
        line=outcome.line,
        why=cut(outcome.why),
        xfail=cut(outcome.xfail or ""),
        replayed=outcome.replayed,
        parted=cut(str(outcome.parted)) if outcome.parted else None,
        ignored=[cut(rule) for rule in outcome.ignored],
        failure=cut(words.failure(outcome.failure, outcome.failed_turn)) if outcome.failure else None,
        wrong=None if wrong is None else (wrong.turn, wrong.step, cut(wrong.agent, MAX_NAME)),
        turns=[
            _turn(number, user, turns[number - 1] if number <= len(turns) else None, outcome)
            for number, user in enumerate(users[:MAX_TURNS], 1)
        ],
        turns_left_out=max(len(users) - MAX_TURNS, 0),
        overall=_verdicts((verdict for verdict in outcome.verdicts if verdict.turn is None), outcome.failure),
        overall_route=next(
            (_aligned(verdict) for verdict in outcome.verdicts if verdict.turn is None and verdict.alignment), None
        ),
    )


def _turn(number: int, user: str, trace: TurnTrace | None, outcome: Outcome) -> Json:
    own = [verdict for verdict in outcome.verdicts if verdict.turn == number]
    head = {
        "user": cut(user),
        "after_failure": any(verdict.after_failure for verdict in own),
        "verdicts": _verdicts(own, outcome.failure),
    }
    if trace is None:
        return _lean(**head, expected=_expected(own))
    spent = tokens_of(trace.steps)
    return _lean(
        **head,
        reached=True,
        expected=_expected(own),
        places=lane(trace, own),
        steps=[_step(step) for step in trace.steps[:MAX_STEPS]],
        steps_left_out=max(len(trace.steps) - MAX_STEPS, 0),
        ends=cut(trace.end_agent, MAX_NAME),
        reply=None if _is_shown(trace) else cut(trace.reply),
        failure=None if trace.failure is None else cut(words.failure(trace.failure, None)),
        incidents=[_incident(found) for found in outcome.incidents if found.turn == number],
        context=cut(_data(trace.context)) if trace.context else None,
        seconds=round(trace.seconds, 4),
        tokens=spent,
    )


def _expected(verdicts: Iterable[Verdict]) -> str:
    routing = ("route", "stay", "starts_at", "ends_at")
    return next((cut(verdict.expected, MAX_NAME) for verdict in verdicts if verdict.check in routing), "")


def lane(trace: TurnTrace, verdicts: Sequence[Verdict]) -> list[tuple[str | None, str | None, bool]]:
    """Expected and actual agent, and whether they agree, place by place; an empty text where anybody is right."""
    aligned = next((verdict for verdict in verdicts if verdict.alignment), None)
    if aligned is not None:
        return _aligned(aligned)
    found: list[tuple[str | None, str | None, bool]] = [
        ("", cut(agent, MAX_NAME), True) for agent in trace.agents[:MAX_STEPS]
    ]
    for verdict in verdicts:
        right, expected = verdict.status != "failed", cut(verdict.expected, MAX_NAME)
        if verdict.check == "starts_at":
            found[0] = (expected, found[0][1], right)
        elif verdict.check == "ends_at" and trace.failure is None:
            last = (expected, cut(trace.end_agent, MAX_NAME), right)
            found[-1:] = [last] if found[-1][1] == last[1] else [found[-1], last]
    return found


def _aligned(verdict: Verdict) -> list[tuple[str | None, str | None, bool]]:
    return [
        (
            None if place.expected is None else cut(place.expected, MAX_NAME),
            None if place.actual is None else cut(place.actual, MAX_NAME),
            place.ok,
        )
        for place in verdict.alignment[:MAX_STEPS]
    ]


def _verdicts(verdicts: Iterable[Verdict], failure: Failure | None) -> list[Json]:
    """The verdicts; of those that an error left out, without its message, which is said once for all."""
    known = f": {failure.message}" if failure else ""
    return [
        _lean(
            check=cut(verdict.check, MAX_NAME),
            status=verdict.status,
            expected=cut(verdict.expected),
            actual=cut(verdict.actual),
            why=cut(verdict.why.removesuffix(known) if verdict.status == "skipped" else verdict.why),
        )
        for verdict in verdicts
    ]


def _incident(found: Incident) -> Json:
    return _lean(
        kind=found.kind,
        fails=found.kind in FAILING,
        message=cut(found.message),
        reasons=[cut(reason) for reason in dict.fromkeys(found.reasons) if reason],
        quotes=[cut(quote) for quote in found.quotes],
        cost="" if "model call" in found.message else words.incident_cost(found),
    )


def _step(step: Step) -> Json:
    match step:
        case ModelStep():
            return _lean(
                is_="model",
                agent=cut(step.agent, MAX_NAME),
                model=cut(step.model, MAX_NAME),
                text=None if step.text is None else cut(step.text),
                calls=[cut(name, MAX_NAME) for name in step.calls[:MAX_STEPS]],
                seconds=None if step.seconds is None else round(step.seconds, 4),
                tokens=tokens_of([step]),
            )
        case ToolStep():
            return _lean(
                is_="tool",
                agent=cut(step.agent, MAX_NAME),
                tool=cut(step.tool, MAX_NAME),
                arguments=cut(_data(step.arguments)),
                result=cut(_data(step.result)),
                error=step.is_error,
                unknown=not step.known,
            )
        case Hop():
            return _lean(
                is_="hop",
                source=cut(step.source, MAX_NAME),
                target=cut(step.target, MAX_NAME),
                call=step.kind == "call",
                tool=cut(step.tool or "", MAX_NAME),
                reason=cut(step.reason),
                refused=None if step.accepted else _refusal(step.why or "refused"),
                against=_refusal(step.why) if step.accepted and step.why else None,
                message=cut(step.message),
                depth=step.depth,
                withheld=[cut(name, MAX_NAME) for name in step.withheld[:MAX_STEPS]],
                failed=cut(step.error),
            )
        case LimitStep():
            return _lean(
                is_="limit", agent=cut(step.agent, MAX_NAME), limit=cut(step.limit, MAX_NAME), value=step.value
            )
        case HistoryFault():
            return _lean(
                is_="fault",
                agent=cut(step.agent, MAX_NAME),
                code=cut(step.code, MAX_NAME),
                message=cut(step.message),
            )
        case _:
            return _lean(is_="warning", agent=cut(step.agent, MAX_NAME), message=cut(step.message))


def _refusal(why: str) -> str:
    return words.REFUSALS.get(why, cut(why))


def _is_shown(trace: TurnTrace) -> bool:
    """True when the last answer of a model that is shown is the reply."""
    last = next((step for step in reversed(trace.steps[:MAX_STEPS]) if isinstance(step, ModelStep)), None)
    return not trace.reply or (last is not None and last.text == trace.reply and last.agent == trace.end_agent)


def tokens_of(steps: Iterable[Step]) -> tuple[int, int] | None:
    """Tokens in and out, of the calls that reported them; `None` when none did."""
    known = [
        (step.input_tokens or 0, step.output_tokens or 0)
        for step in steps
        if isinstance(step, ModelStep) and (step.input_tokens is not None or step.output_tokens is not None)
    ]
    return (sum(one for one, _ in known), sum(other for _, other in known)) if known else None


def _turns(outcome: Outcome) -> tuple[TurnTrace, ...]:
    return outcome.trace.turns if outcome.trace else ()


def _lean(**values: Json) -> dict[str, Json]:
    """What is not empty; a text that is empty says something only where it is `text`."""
    return {
        name.rstrip("_"): value
        for name, value in values.items()
        if (value is not None and value is not False and value not in ("", (), [], 0))
        or (name == "text" and value == "")
    }


def _brief(text: str) -> str:
    return text if len(text) <= MAX_BRIEF else f"{text[:MAX_BRIEF]}…"


def cut(text: str, length: int = MAX_TEXT) -> str:
    """The text, or its beginning and how long it is."""
    if len(text) <= length:
        return text
    return f"{text[:length]}… [cut: {length:,} of {len(text):,} characters; the rest is in {TRIALS}]"


def _data(value: Json) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return f"(nested too deeply to be shown; it is in {TRIALS})"
