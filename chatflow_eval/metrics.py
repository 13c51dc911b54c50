"""Outcomes to numbers: accuracy, pass rates, hops, confusion, incidents, tokens, latency, each with its definition."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import fsum
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from chatflow_eval import statistics
from chatflow_eval.checks import Verdict
from chatflow_eval.incidents import KINDS, IncidentKind
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.route import Aligned, Route, Visit
from chatflow_eval.trace import ModelStep

STATUSES: tuple[Status, ...] = ("passed", "failed", "errored", "skipped")
ROUTING_CHECKS = frozenset({"route", "stay", "starts_at", "ends_at"})
MAX_K = 10

DEFINITIONS: dict[str, str] = {
    "accuracy": "Turns whose route was accepted, of the turns judged for routing (a route, stay, starts_at or ends_at "
    "check). Turns that errored, or that an error kept from being reached, are not counted.",
    "accuracy_with_errors": "The same, with errors counted as wrong: accepted turns, of the turns judged for routing, "
    "the turns that errored, and the turns that an error kept from being reached.",
    "accuracy_right_start": "Accepted turns, of those judged for routing whose last judged turn before was accepted "
    "(or that have none): an earlier mistake is not counted again.",
    "pass_rate": "The mean over scenarios of the share of their trials that passed; errored and skipped trials are not "
    "counted. A scenario counts once for each model.",
    "pass_hat_k": "pass^k: the chance that k trials of a scenario all pass, estimated without bias, mean over "
    "scenarios with at least k trials.",
    "pass_at_k": "pass@k: the chance that at least one of k trials of a scenario passes, estimated without bias, "
    "mean over scenarios with at least k trials.",
    "flaky": "Scenarios that passed in some of their trials and failed in others, of the scenarios tried "
    "more than once.",
    "hop_precision": "Handoffs that happened and were expected at that place, of the handoffs that happened, in turns "
    "with a route or stay check that were reached and did not error.",
    "hop_recall": "Handoffs that happened and were expected at that place, of the handoffs that were expected, in the "
    "same turns.",
    "hop_f1": "The harmonic mean of hop precision and hop recall.",
    "incident_trials": "Trials with at least one incident of the kind, of the trials that ran.",
    "errored": "Trials that ended in an error of a model, a network, a recording or the agents, of the trials "
    "that ran.",
    "confusion": "Rows: the agent that was expected next (stay: nobody else). Columns: the agent that came; stayed: "
    "the turn ended with no further handoff; none: this stop was left out; error: the turn errored. One count for each "
    "decision of a turn with a route, stay or ends_at check.",
    "model_calls": "Answers that models gave.",
    "tokens": "Tokens of the model calls that reported them; calls that did not are counted as unknown, not as 0.",
    "latency": "Seconds from a question to a model to its answer.",
}
"""What each number means, in words; shown beside it in every report."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its 95 % interval and its meaning; `value`, `low` and `high` are `None` for an empty set."""

    numerator: float
    denominator: int
    value: float | None
    low: float | None
    high: float | None
    definition: str


@dataclass(frozen=True, slots=True)
class Amount:
    """A sum over what is known; `value` is `None` when nothing is."""

    value: int | None
    known: int
    """How many model calls reported it."""
    unknown: int
    """How many did not."""
    definition: str


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds that model calls took; `None` when no call reported them."""

    median: float | None
    p95: float | None
    longest: float | None
    known: int
    definition: str


@dataclass(frozen=True, slots=True)
class IncidentNumbers:
    """How often one kind of incident was found."""

    kind: IncidentKind
    count: int
    per_trial: float | None
    trials: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """All numbers of one set of trials."""

    trials: dict[Status, int]
    scenarios: int
    replayed: int
    """Trials whose model answers came from a recording."""
    turns_judged: int
    turns_errored: int
    turns_unreached: int
    """Turns that an error kept from being reached."""
    accuracy: Rate
    accuracy_with_errors: Rate
    accuracy_right_start: Rate
    pass_rate: Rate
    pass_hat_k: dict[int, Rate]
    pass_at_k: dict[int, Rate]
    flaky: Rate
    hop_precision: Rate
    hop_recall: Rate
    hop_f1: float | None
    errored: Rate
    incidents: tuple[IncidentNumbers, ...]
    model_calls: int
    input_tokens: Amount
    output_tokens: Amount
    latency: Latency

    @property
    def ran(self) -> int:
        """Trials that were not skipped."""
        return sum(count for status, count in self.trials.items() if status != "skipped")

    def incident(self, kind: IncidentKind) -> IncidentNumbers:
        """The numbers of one kind."""
        return self.incidents[KINDS.index(kind)]


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """The numbers of one model on one target."""

    target: str
    model: str
    numbers: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioNumbers:
    """The numbers of one scenario on one model."""

    file: str
    scenario: str
    target: str
    model: str
    trials: dict[Status, int]
    pass_rate: Rate
    flaky: bool
    accuracy: Rate
    incidents: int
    model_calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HopNumbers:
    """Precision and recall of the handoffs to one agent, or (with a source) along one edge."""

    source: str | None
    target: str
    precision: Rate
    recall: Rate
    f1: float | None


DecisionEnd: TypeAlias = Literal["agent", "stayed", "none", "error"]
ENDS: tuple[DecisionEnd, ...] = get_args(DecisionEnd)


@dataclass(frozen=True, slots=True)
class ConfusionCell:
    """How often one agent was expected and another came."""

    expected: str | None
    """The expected agent in the pattern's words; `None`: the conversation was to stay."""
    end: DecisionEnd
    actual: str | None
    """The agent that came, where `end` is `agent`."""
    count: int

    @property
    def right(self) -> bool:
        """True when what came is what was expected."""
        return self.end == "stayed" if self.expected is None else self.expected == self.actual


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """All numbers of a run: in total, by model, by scenario, by agent and by edge."""

    total: Numbers
    answering: tuple[str, ...]
    """Names of the models that gave answers."""
    models: tuple[ModelNumbers, ...]
    scenarios: tuple[ScenarioNumbers, ...]
    agents: tuple[HopNumbers, ...]
    edges: tuple[HopNumbers, ...]
    confusion: tuple[ConfusionCell, ...]


def measure(outcomes: Iterable[Outcome]) -> Metrics:
    """The numbers of the outcomes."""
    tally = Tally()
    for outcome in outcomes:
        tally.add(outcome)
    return tally.metrics()


@dataclass(frozen=True, slots=True)
class Frames:
    """The rows behind the numbers; texts are categories."""

    trials: pd.DataFrame
    """One row a trial: file, scenario, target, model, repeat, status, replayed, seconds; `cluster` numbers scenarios,
    `unit` scenarios on one model."""
    turns: pd.DataFrame
    """One row a turn with a routing check: judged, right, errored, unreached, fresh (the one before was right)."""
    hops: pd.DataFrame
    """One row a place of an alignment after the start: wanted, made, ok, and the agents before and at the place."""
    calls: pd.DataFrame
    """One row a model call: tokens (-1: unknown), seconds (NaN: unknown)."""
    incidents: pd.DataFrame
    """One row an incident: its kind as its place in `incidents.KINDS`."""
    answering: frozenset[str]
    """Names of the models that gave answers."""


@dataclass(slots=True)
class _Table:
    """Growing columns of numbers."""

    columns: dict[str, array[float]]

    @classmethod
    def of(cls, **types: str) -> _Table:
        return cls({name: array(code) for name, code in types.items()})

    def add(self, *values: float) -> None:
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame({name: np.array(column) for name, column in self.columns.items()})


@dataclass(slots=True)
class Tally:
    """Outcomes counted as they stream by; keeps numbers in columns, and no trace."""

    unexpected: array[int] = field(default_factory=lambda: array("I"))
    """Which outcomes are not as expected, by their place."""
    with_incidents: array[int] = field(default_factory=lambda: array("I"))
    """Which outcomes have incidents, by their place."""
    _texts: dict[str, int] = field(default_factory=dict)
    _trials: _Table = field(
        default_factory=lambda: _Table.of(
            file="i", scenario="i", target="i", model="i", repeat="i", status="b", replayed="b", seconds="d"
        )
    )
    _turns: _Table = field(
        default_factory=lambda: _Table.of(trial="i", judged="b", right="b", errored="b", unreached="b", fresh="b")
    )
    _hops: _Table = field(
        default_factory=lambda: _Table.of(
            trial="i", wanted="b", made="b", ok="b", source_expected="i", source="i", expected="i", actual="i", end="b"
        )
    )
    _calls: _Table = field(default_factory=lambda: _Table.of(trial="i", input="q", output="q", seconds="d"))
    _incidents: _Table = field(default_factory=lambda: _Table.of(trial="i", kind="b"))
    _answering: set[str] = field(default_factory=set)

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        trial = len(self._trials)
        self._trials.add(
            *(self._code(text) for text in (outcome.file, outcome.scenario, outcome.target, outcome.model)),
            outcome.repeat,
            STATUSES.index(outcome.status),
            outcome.replayed,
            outcome.seconds,
        )
        if not outcome.ok:
            self.unexpected.append(trial)
        if outcome.incidents:
            self.with_incidents.append(trial)
        if outcome.status == "skipped":
            return
        self._add_turns(trial, outcome)
        for place in _places(outcome):
            self._hops.add(
                trial,
                place.wanted,
                place.made,
                place.ok,
                *(self._code(name) for name in (place.source_expected, place.source, place.expected, place.actual)),
                ENDS.index(place.end),
            )
        for incident in outcome.incidents:
            self._incidents.add(trial, KINDS.index(incident.kind))
        for step in _model_steps(outcome):
            self._calls.add(
                trial,
                -1 if step.input_tokens is None else step.input_tokens,
                -1 if step.output_tokens is None else step.output_tokens,
                float("nan") if step.seconds is None else step.seconds,
            )
            self._answering.add(step.model)

    def frames(self) -> Frames:
        """The rows counted so far."""
        trials, turns, hops = self._trials.frame(), self._turns.frame(), self._hops.frame()
        trials["cluster"] = trials.groupby(["file", "scenario"]).ngroup()
        trials["unit"] = trials.groupby(["file", "scenario", "target", "model"], sort=False).ngroup()
        for rows in (turns, hops):
            rows["cluster"] = trials["cluster"].to_numpy()[rows["trial"].to_numpy()]
        texts = pd.Index(list(self._texts), dtype="str")
        for rows, names in ((trials, _TRIAL_TEXTS), (hops, _HOP_TEXTS)):
            for name in names:
                rows[name] = pd.Categorical.from_codes(rows[name].to_numpy(), categories=texts)
        return Frames(trials, turns, hops, self._calls.frame(), self._incidents.frame(), frozenset(self._answering))

    def metrics(self) -> Metrics:
        """The numbers of what was counted so far."""
        return summarise(self.frames())

    def _add_turns(self, trial: int, outcome: Outcome) -> None:
        fresh = True
        for turn, verdicts in _routing_verdicts(outcome).items():
            unjudged = not verdicts or any(verdict.status == "skipped" for verdict in verdicts)
            lost = outcome.status == "errored" and turn >= _failed_turn(outcome) and unjudged
            judged = not lost and any(verdict.status != "skipped" for verdict in verdicts)
            right = judged and all(verdict.status != "failed" for verdict in verdicts)
            errored = lost and turn == _failed_turn(outcome)
            self._turns.add(trial, judged, right, errored, lost and not errored, fresh)
            fresh = right if judged else fresh

    def _code(self, text: str | None) -> int:
        return -1 if text is None else self._texts.setdefault(text, len(self._texts))


_TRIAL_TEXTS = ("file", "scenario", "target", "model")
_HOP_TEXTS = ("source_expected", "source", "expected", "actual")


def _model_steps(outcome: Outcome) -> Iterator[ModelStep]:
    for turn in outcome.trace.turns if outcome.trace else ():
        for step in turn.steps:
            if isinstance(step, ModelStep):
                yield step


def _failed_turn(outcome: Outcome) -> int:
    """The turn an errored trial stopped in: the first, when it stopped before any."""
    return outcome.failed_turn or 1


def _routing_verdicts(outcome: Outcome) -> dict[int, list[Verdict]]:
    """The routing verdicts of each turn that has any.

    A trial that errored before anything was judged has none: then every turn that it did not get through counts.
    """
    if outcome.status == "errored" and not outcome.verdicts:
        return {turn: [] for turn in range(_failed_turn(outcome), len(outcome.users) + 1)}
    turns: dict[int, list[Verdict]] = {}
    for verdict in outcome.verdicts:
        if verdict.turn is not None and verdict.check in ROUTING_CHECKS:
            turns.setdefault(verdict.turn, []).append(verdict)
    return dict(sorted(turns.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One place of an alignment: was a hop to somebody wanted here, was one made, and between whom."""

    wanted: bool = False
    made: bool = False
    ok: bool = False
    source_expected: str | None = None
    source: str | None = None
    expected: str | None = None
    actual: str | None = None
    end: DecisionEnd = "agent"


def _places(outcome: Outcome) -> Iterator[_Place]:
    """The decisions of every turn: from route and stay checks; else from ends_at; else those of the conversation."""
    by_turn = _routing_verdicts(outcome)
    aligned = False
    for turn, verdicts in by_turn.items():
        alignments = [verdict for verdict in verdicts if verdict.check in ("route", "stay")]
        aligned |= bool(alignments)
        for verdict in alignments[:1] or [verdict for verdict in verdicts if verdict.check == "ends_at"][:1]:
            if verdict.status == "skipped":
                if outcome.status == "errored" and turn == _failed_turn(outcome):
                    yield from (_Place(expected=agent, end="error") for agent in _wanted(outcome, turn, verdict))
            elif verdict.check == "ends_at":
                yield _ending(outcome, turn, verdict)
            else:
                yield from _aligned_places(verdict.alignment)
    if not aligned:
        for verdict in outcome.verdicts:
            if verdict.turn is None and verdict.check == "route" and verdict.status != "skipped":
                yield from _aligned_places(verdict.alignment)


def _aligned_places(alignment: Sequence[Aligned]) -> Iterator[_Place]:
    expected_before = actual_before = None
    decided = False
    last_actual = max((index for index, item in enumerate(alignment) if item.actual is not None), default=-1)
    for index, item in enumerate(alignment):
        expected = item.actual if item.ok else item.expected
        wanted = expected is not None and expected_before is not None
        made = item.actual is not None and actual_before is not None
        if wanted or made:
            decided = True
            yield _Place(
                wanted=wanted,
                made=made,
                ok=wanted and made and item.ok,
                source_expected=expected_before,
                source=actual_before,
                expected=expected,
                actual=item.actual,
                end="agent" if item.actual is not None else "stayed" if index > last_actual else "none",
            )
        expected_before, actual_before = expected or expected_before, item.actual or actual_before
    if alignment and not decided:
        yield _Place(end="stayed", ok=True)


def _ending(outcome: Outcome, turn: int, verdict: Verdict) -> _Place:
    trace = outcome.trace.turns[turn - 1] if outcome.trace and turn <= len(outcome.trace.turns) else None
    actual = trace.end_agent if trace else verdict.actual
    if verdict.status == "passed":
        return _Place(expected=actual, actual=actual)
    stayed = trace is not None and actual == trace.start_agent
    return _Place(expected=verdict.expected, actual=None if stayed else actual, end="stayed" if stayed else "agent")


def _wanted(outcome: Outcome, turn: int, verdict: Verdict) -> Sequence[str | None]:
    """The agents that were to come in a turn that errored: what a route that stays at its start would leave out."""
    if verdict.check == "stay":
        return (None,)
    if verdict.check == "ends_at":
        return (verdict.expected,)
    if outcome.trace is None or turn > len(outcome.trace.turns):
        return (verdict.expected,)
    start = Visit(outcome.trace.turns[turn - 1].start_agent, "start")
    return [place.expected for place in Route(verdict.expected).align((start,)) if place.actual is None] or (None,)


def summarise(frames: Frames) -> Metrics:
    """The numbers behind the rows."""
    groups = frames.trials.groupby(["target", "model"], observed=True, sort=False)
    return Metrics(
        total=_numbers(frames),
        answering=tuple(sorted(frames.answering)),
        models=tuple(
            ModelNumbers(str(target), str(model), _numbers(_only(frames, group))) for (target, model), group in groups
        ),
        scenarios=tuple(_scenarios(frames)),
        agents=tuple(_hop_numbers(frames, by_edge=False)),
        edges=tuple(_hop_numbers(frames, by_edge=True)),
        confusion=tuple(_confusion(frames.hops)),
    )


def _only(frames: Frames, trials: pd.DataFrame) -> Frames:
    rows = (frames.turns, frames.hops, frames.calls, frames.incidents)
    turns, hops, calls, incidents = (frame[frame["trial"].isin(trials.index)] for frame in rows)
    return replace(frames, trials=trials, turns=turns, hops=hops, calls=calls, incidents=incidents)


def _numbers(frames: Frames) -> Numbers:
    trials, turns, hops = frames.trials, frames.turns, frames.hops
    ran = trials[trials["status"] != STATUSES.index("skipped")]
    judged, lost = turns[turns["judged"] == 1], (turns["errored"] == 1) | (turns["unreached"] == 1)
    units = _units(trials)
    ks = range(2, min(int(units["tried"].max()), MAX_K) + 1) if len(units) else ()
    again = units[units["tried"] > 1]
    flaky = (again["passed"] > 0) & (again["passed"] < again["tried"])
    precision = _rate(hops[hops["made"] == 1], "ok", "hop_precision")
    recall = _rate(hops[hops["wanted"] == 1], "ok", "hop_recall")
    return Numbers(
        trials={status: int((trials["status"] == code).sum()) for code, status in enumerate(STATUSES)},
        scenarios=int(trials["cluster"].nunique()),
        replayed=int(ran["replayed"].sum()),
        turns_judged=len(judged),
        turns_errored=int(turns["errored"].sum()),
        turns_unreached=int(turns["unreached"].sum()),
        accuracy=_rate(judged, "right", "accuracy"),
        accuracy_with_errors=_rate(turns[(turns["judged"] == 1) | lost], "right", "accuracy_with_errors"),
        accuracy_right_start=_rate(judged[judged["fresh"] == 1], "right", "accuracy_right_start"),
        pass_rate=_mean(units, lambda passed, tried: passed / tried, "pass_rate", weight=float(units["tried"].mean())),
        pass_hat_k={k: _mean(units, partial(statistics.pass_hat_k, k=k), "pass_hat_k") for k in ks},
        pass_at_k={k: _mean(units, partial(statistics.pass_at_k, k=k), "pass_at_k") for k in ks},
        flaky=_rate(again.assign(flaky=flaky, trial=again.index), "flaky", "flaky"),
        hop_precision=precision,
        hop_recall=recall,
        hop_f1=_f1(precision, recall),
        errored=_trials_with(ran, ran.index[ran["status"] == STATUSES.index("errored")], "errored"),
        incidents=tuple(_incidents(ran, frames.incidents)),
        model_calls=len(frames.calls),
        input_tokens=_amount(frames.calls["input"]),
        output_tokens=_amount(frames.calls["output"]),
        latency=_latency(frames.calls["seconds"]),
    )


def _units(trials: pd.DataFrame) -> pd.DataFrame:
    """One row for each scenario on one model with at least one trial that passed or failed: cluster, passed, tried."""
    concluded = trials[trials["status"] <= STATUSES.index("failed")]
    units, first, places = np.unique(concluded["unit"], return_index=True, return_inverse=True)
    passed = np.bincount(places, weights=concluded["status"] == STATUSES.index("passed"))
    cluster = concluded["cluster"].to_numpy()[first]
    return pd.DataFrame(
        {"cluster": cluster, "passed": passed.astype("int64"), "tried": np.bincount(places)}, index=units
    )


def _rate(rows: pd.DataFrame, column: str, name: str) -> Rate:
    return _clustered(rows[column].to_numpy(), rows["cluster"].to_numpy(), rows["trial"].to_numpy(), name)


def _trials_with(ran: pd.DataFrame, having: Iterable[int], name: str) -> Rate:
    return _clustered(ran.index.isin(list(having)), ran["cluster"].to_numpy(), ran.index.to_numpy(), name)


_Numbers: TypeAlias = npt.NDArray[Any]


def _clustered(right: _Numbers, clusters: _Numbers, trials: _Numbers, name: str) -> Rate:
    """The share that is right; clusters are scenarios, or trials where there is one scenario only."""
    if len(right) == 0:
        return Rate(0, 0, None, None, None, DEFINITIONS[name])
    groups = clusters if (clusters != clusters[0]).any() else trials
    _, places = np.unique(groups, return_inverse=True)
    counts = zip(np.bincount(places, weights=right).tolist(), np.bincount(places).tolist(), strict=True)
    return _with_interval(int(np.sum(right)), len(right), list(counts), name)


def _mean(units: pd.DataFrame, share: Callable[[int, int], float | None], name: str, weight: float = 1) -> Rate:
    """The mean of a share over scenarios; `weight` is how many trials the share of one scenario stands on."""
    rows = units[["cluster", "passed", "tried"]].to_numpy().tolist()
    shares = [(value, cluster) for cluster, passed, tried in rows if (value := share(passed, tried)) is not None]
    sums: dict[int, tuple[float, float]] = {}
    for value, cluster in sorted(shares):  # sorted, so that rounding does not depend on which trial finished first
        right, size = sums.get(cluster, (0.0, 0.0))
        sums[cluster] = (right + value * weight, size + weight)
    clusters = list(sums.values())
    if len(rows) == 1 and weight > 1:
        _, passed, tried = rows[0]
        clusters = [(1.0, 1.0)] * passed + [(0.0, 1.0)] * (tried - passed)
    return _with_interval(fsum(value for value, _ in shares), len(shares), clusters, name)


def _with_interval(right: float, size: int, clusters: Sequence[tuple[float, float]], name: str) -> Rate:
    found = statistics.interval(clusters)
    if found is None:
        return Rate(right, size, None, None, None, DEFINITIONS[name])
    return Rate(right, size, right / size, found.low, found.high, DEFINITIONS[name])


def _f1(precision: Rate, recall: Rate) -> float | None:
    if precision.value is None or recall.value is None:
        return None
    both = precision.value + recall.value
    return 2 * precision.value * recall.value / both if both else 0.0


def _incidents(ran: pd.DataFrame, incidents: pd.DataFrame) -> Iterator[IncidentNumbers]:
    for code, kind in enumerate(KINDS):
        of_kind = incidents[incidents["kind"] == code]
        yield IncidentNumbers(
            kind,
            len(of_kind),
            len(of_kind) / len(ran) if len(ran) else None,
            _trials_with(ran, of_kind["trial"].unique(), "incident_trials"),
        )


def _amount(tokens: pd.Series[int]) -> Amount:
    known = tokens[tokens >= 0]
    total = int(known.sum()) if len(known) else None
    return Amount(total, len(known), len(tokens) - len(known), DEFINITIONS["tokens"])


def _latency(seconds: pd.Series[float]) -> Latency:
    known = seconds.dropna()
    if known.empty:
        return Latency(None, None, None, 0, DEFINITIONS["latency"])
    return Latency(
        float(known.median()),
        float(known.quantile(0.95)),
        float(known.max()),
        len(known),
        DEFINITIONS["latency"],
    )


def _scenarios(frames: Frames) -> Iterator[ScenarioNumbers]:
    """One row for each scenario on one model, in the order in which they came."""
    trials = frames.trials
    judged = frames.turns[frames.turns["judged"] == 1]

    def of_each_trial(rows: pd.DataFrame, weights: _Numbers | None = None) -> _Numbers:
        return np.bincount(rows["trial"], weights=weights, minlength=len(trials)).astype("int64")

    sizes, right = of_each_trial(judged), of_each_trial(judged, judged["right"].to_numpy())
    incidents, calls = of_each_trial(frames.incidents), of_each_trial(frames.calls)
    status, seconds = trials["status"].to_numpy(), trials["seconds"].to_numpy()
    for _, places in sorted(trials.groupby("unit").indices.items()):
        first = trials.iloc[places[0]]
        counts = np.bincount(status[places], minlength=len(STATUSES)).tolist()
        passed, tried = counts[0], counts[0] + counts[1]
        clusters = tuple(zip(right[places].tolist(), sizes[places].tolist(), strict=True))
        yield ScenarioNumbers(
            file=str(first["file"]),
            scenario=str(first["scenario"]),
            target=str(first["target"]),
            model=str(first["model"]),
            trials=dict(zip(STATUSES, counts, strict=True)),
            pass_rate=_small_rate(((1, 1),) * passed + ((0, 1),) * (tried - passed), "pass_rate"),
            flaky=0 < passed < tried,
            accuracy=_small_rate(clusters, "accuracy"),
            incidents=int(incidents[places].sum()),
            model_calls=int(calls[places].sum()),
            seconds=float(seconds[places].sum()),
        )


@lru_cache(maxsize=1024)
def _small_rate(clusters: tuple[tuple[int, int], ...], name: str) -> Rate:
    """A rate over the trials of one scenario; many scenarios share the same few."""
    return _with_interval(sum(right for right, _ in clusters), sum(size for _, size in clusters), clusters, name)


def _hop_numbers(frames: Frames, *, by_edge: bool) -> Iterator[HopNumbers]:
    """Precision over the handoffs made, recall over those wanted, to each agent or along each edge."""
    made, wanted = frames.hops[frames.hops["made"] == 1], frames.hops[frames.hops["wanted"] == 1]
    if by_edge:
        made, wanted = (rows.assign(ok=rows["ok"] * _same_source(rows)) for rows in (made, wanted))
    made_by = _by_edge(made, "source", "actual") if by_edge else _by_agent(made, "actual")
    wanted_by = _by_edge(wanted, "source_expected", "expected") if by_edge else _by_agent(wanted, "expected")
    for source, target in dict.fromkeys((*wanted_by, *made_by)):
        precision = _rate(made_by.get((source, target), made[:0]), "ok", "hop_precision")
        recall = _rate(wanted_by.get((source, target), wanted[:0]), "ok", "hop_recall")
        yield HopNumbers(source, target, precision, recall, _f1(precision, recall))


def _same_source(rows: pd.DataFrame) -> _Numbers:
    same: _Numbers = rows["source"].cat.codes.to_numpy() == rows["source_expected"].cat.codes.to_numpy()
    return same.astype("int8")


def _by_agent(rows: pd.DataFrame, target: str) -> dict[tuple[str | None, str], pd.DataFrame]:
    return {(None, str(name)): group for name, group in rows.groupby(target, observed=True)}


def _by_edge(rows: pd.DataFrame, source: str, target: str) -> dict[tuple[str | None, str], pd.DataFrame]:
    groups = rows.groupby([source, target], observed=True)
    return {(str(names[0]), str(names[1])): group for names, group in groups}


def _confusion(hops: pd.DataFrame) -> Iterator[ConfusionCell]:
    counts = Counter(zip(hops["expected"].astype(object), hops["end"], hops["actual"].astype(object), strict=True))
    for (expected, end, actual), count in counts.items():
        yield ConfusionCell(_text(expected), ENDS[end], _text(actual), count)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
