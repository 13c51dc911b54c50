"""Outcomes to numbers: accuracy, pass rates, hops, confusion, incidents, cost, coverage, each with its definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import fsum
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from chatflow_eval import prices, statistics
from chatflow_eval.demand import ASKS
from chatflow_eval.incidents import KINDS, IncidentKind
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.tally import ENDS, STATUSES, Coverage, DecisionEnd, Frames, Tally
from chatflow_eval.trial import KEYWORD

MAX_K = 10

DEFINITIONS: dict[str, str] = {
    "accuracy": "Turns whose route was accepted, of the turns judged for routing (a route, stay, starts_at or ends_at "
    "check). Turns that errored, or that an error kept from being reached, are not counted.",
    "accuracy_with_errors": "The same, with errors counted as wrong: accepted turns, of the turns judged for routing, "
    "the turns that errored, and the turns that an error kept from being reached.",
    "accuracy_right_start": "Accepted turns, of those judged for routing whose last judged turn before was accepted "
    "(or that have none): an earlier mistake is not counted again.",
    "first": "Routing accuracy of the turns that are to leave the conversation's start for the first time: the first "
    "turn of a scenario whose expectation asks that somebody hands off.",
    "switch": "Routing accuracy of the later turns that are to change agent.",
    "stay": "Routing accuracy of the turns in which nobody is to hand off.",
    "either": "Routing accuracy of the turns whose expectation accepts both, or where it depends on an earlier turn "
    "that accepts several agents or says nothing.",
    "agent_accuracy": "Routing accuracy of the turns that may end at the agent by what is expected of them.",
    "switching": "Changes of the agent who replies, per boundary between two turns that were both answered.",
    "switching_expected": "Boundaries between two turns that no one agent may both reply to, of the boundaries whose "
    "two turns say who may.",
    "bounce": "Times that one agent replied, another one, and the first again, in three turns in a row, of all three "
    "turns in a row that were answered.",
    "bounce_expected": "Three turns in a row of which the first and the last may be one agent's, and that between "
    "neither of theirs, of those that all say who may reply.",
    "baseline_unmoved": "What 'right first agent, then never hand off' scores on the turns judged for routing: it goes "
    "to the first agent that the expectation names when somebody is first to hand off, and stays there.",
    "baseline_keyword": "What the built-in keyword router scores: one trial of each scenario, in no other number.",
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
    "hop_f1": "The harmonic mean of hop precision and hop recall: twice the handoffs that were both, of those that "
    "happened and those that were expected, counted together.",
    "wrong_route_calls": "Model calls by an agent who was not expected at that place of the route, until the route is "
    "joined again, of the model calls in turns with a route or stay check.",
    "wrong_route_tokens": "Tokens of those calls, as far as they are known.",
    "coverage_expected": "Agents, and handoffs, of those that the target declares, that some expectation names.",
    "coverage_exercised": "Agents that were given the conversation, and handoffs that happened, of those declared. No "
    "sample, and so without an interval.",
    "incident_trials": "Trials with at least one incident of the kind, of the trials that ran.",
    "errored": "Trials that ended in an error of a model, a network, a recording or the agents, of the trials "
    "that ran.",
    "confusion": "Rows: the agent that was expected next (stay: nobody else). Columns: the agent that came; stayed: "
    "the turn ended with no further handoff; none: this stop was left out; error: the turn errored. One count for each "
    "decision of a turn with a route, stay or ends_at check.",
    "model_calls": "Answers that models gave.",
    "tokens": "Tokens of the model calls that reported them; calls that did not are counted as unknown, not as 0.",
    "cost": "US dollars for the tokens of the model calls whose tokens and price are known (litellm's price list; the "
    "keyword router costs nothing); the others are counted as unknown, not as 0.",
    "latency": "Seconds from a question to a model to its answer.",
    "hop_latency": "Seconds that models took for an agent while it had the conversation by one handoff, all its calls "
    "together; of handoffs after which it asked a model, and whose times are all known.",
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
class Cost:
    """US dollars over what is known; `value` is `None` when nothing is."""

    value: float | None
    known: int
    """How many model calls it holds."""
    unknown: int
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
    first: Rate
    switch: Rate
    stay: Rate
    either: Rate
    switching: Rate
    switching_expected: Rate
    bounce: Rate
    bounce_expected: Rate
    pass_rate: Rate
    pass_hat_k: dict[int, Rate]
    pass_at_k: dict[int, Rate]
    flaky: Rate
    hop_precision: Rate
    hop_recall: Rate
    hop_f1: Rate
    wrong_route_calls: Rate
    wrong_route_tokens: Amount
    errored: Rate
    incidents: tuple[IncidentNumbers, ...]
    model_calls: int
    input_tokens: Amount
    output_tokens: Amount
    cost: Cost
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
    line: int
    scenario: str
    tags: tuple[str, ...]
    target: str
    model: str
    trials: dict[Status, int]
    pass_rate: Rate
    flaky: bool
    accuracy: Rate
    incidents: int
    model_calls: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HopNumbers:
    """The handoffs along one edge, in all graphs that have it, and the model calls that they led to."""

    source: str
    target: str
    handoffs: int
    """How many happened, in turns judged for their route and in others."""
    precision: Rate
    recall: Rate
    f1: Rate
    model_calls: int
    """Of the target, while it had the conversation by such a handoff."""
    replayed: int
    """Of these, answers that came from a recording."""
    input_tokens: Amount
    output_tokens: Amount
    cost: Cost
    latency: Latency
    """Of a whole visit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentNumbers:
    """The numbers of one agent: turns that may end at it, handoffs to it, and its own model calls."""

    agent: str
    accuracy: Rate
    precision: Rate
    recall: Rate
    f1: Rate
    model_calls: int
    replayed: int
    """Of these, answers that came from a recording."""
    input_tokens: Amount
    output_tokens: Amount
    cost: Cost
    latency: Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNumbers:
    """The numbers of the trials that share a tag, or a scenario file."""

    name: str
    trials: dict[Status, int]
    scenarios: int
    accuracy: Rate
    pass_rate: Rate
    errored: Rate
    incidents: dict[IncidentKind, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineNumbers:
    """What a yardstick scores: `keyword`, or `unmoved`, who goes right the first time and then never hands off."""

    name: Literal["keyword", "unmoved"]
    accuracy: Rate
    first: Rate
    switch: Rate
    stay: Rate
    either: Rate


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
    """All numbers of a run: in total, by model, file, tag, scenario, agent and edge; yardsticks only in `baselines`."""

    total: Numbers
    answering: tuple[str, ...]
    """Names of the models that gave answers."""
    models: tuple[ModelNumbers, ...]
    files: tuple[GroupNumbers, ...]
    tags: tuple[GroupNumbers, ...]
    """A trial counts for each of its tags."""
    scenarios: tuple[ScenarioNumbers, ...]
    agents: tuple[AgentNumbers, ...]
    edges: tuple[HopNumbers, ...]
    confusion: tuple[ConfusionCell, ...]
    coverage: tuple[Coverage, ...]
    baselines: tuple[BaselineNumbers, ...]


def measure(outcomes: Iterable[Outcome]) -> Metrics:
    """The numbers of the outcomes."""
    tally = Tally()
    for outcome in outcomes:
        tally.add(outcome)
    return summarise(tally.frames())


def summarise(frames: Frames) -> Metrics:
    """The numbers behind the rows."""
    yardstick, everything = _of_baseline(frames), frames
    frames = everything if yardstick is None else _only(frames, frames.trials[frames.trials["baseline"] == 0])
    groups = frames.trials.groupby(["target", "model"], observed=True, sort=False)
    return Metrics(
        total=_numbers(frames),
        answering=tuple(sorted(frames.answering)),
        models=tuple(
            ModelNumbers(str(target), str(model), _numbers(_only(frames, group))) for (target, model), group in groups
        ),
        files=tuple(_files(frames)),
        tags=tuple(_tags(frames)),
        scenarios=tuple(_scenarios(frames)),
        agents=tuple(_agents(frames)),
        edges=tuple(_edges(frames)),
        confusion=tuple(_confusion(frames.hops)),
        coverage=frames.coverage,
        baselines=tuple(_baselines(frames, yardstick)),
    )


def _of_baseline(frames: Frames) -> Frames | None:
    rows = frames.trials[frames.trials["baseline"] == 1]
    return _only(frames, rows) if len(rows) else None


def _only(frames: Frames, trials: pd.DataFrame) -> Frames:
    chosen = np.zeros(int(frames.trials.index.max()) + 1 if len(frames.trials) else 0, dtype=bool)
    chosen[trials.index.to_numpy()] = True

    def rows(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.take(np.flatnonzero(chosen[frame["trial"].to_numpy()]))

    return replace(
        frames,
        trials=trials,
        turns=rows(frames.turns),
        hops=rows(frames.hops),
        calls=rows(frames.calls),
        incidents=rows(frames.incidents),
        switches=rows(frames.switches),
        bounces=rows(frames.bounces),
    )


def _numbers(frames: Frames) -> Numbers:
    trials, turns, hops, calls = frames.trials, frames.turns, frames.hops, frames.calls
    ran = trials[trials["status"] != STATUSES.index("skipped")]
    judged, lost = turns[turns["judged"] == 1], (turns["errored"] == 1) | (turns["unreached"] == 1)
    units = _units(trials)
    ks = range(2, min(int(units["tried"].max()), MAX_K) + 1) if len(units) else ()
    again = units[units["tried"] > 1]
    flaky = (again["passed"] > 0) & (again["passed"] < again["tried"])
    made, wanted = hops[hops["made"] == 1], hops[hops["wanted"] == 1]
    off = calls[calls["off"] == 1]
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
        **_by_asks(judged, "right"),
        switching=_rate(frames.switches[frames.switches["seen"] >= 0], "seen", "switching"),
        switching_expected=_rate(frames.switches[frames.switches["wanted"] >= 0], "wanted", "switching_expected"),
        bounce=_rate(frames.bounces[frames.bounces["seen"] >= 0], "seen", "bounce"),
        bounce_expected=_rate(frames.bounces[frames.bounces["wanted"] >= 0], "wanted", "bounce_expected"),
        pass_rate=_pass_rate(units),
        pass_hat_k={k: _mean(units, partial(statistics.pass_hat_k, k=k), "pass_hat_k") for k in ks},
        pass_at_k={k: _mean(units, partial(statistics.pass_at_k, k=k), "pass_at_k") for k in ks},
        flaky=_rate(again.assign(flaky=flaky, trial=again.index), "flaky", "flaky"),
        hop_precision=_rate(made, "ok", "hop_precision"),
        hop_recall=_rate(wanted, "ok", "hop_recall"),
        hop_f1=_f1(made, wanted),
        wrong_route_calls=_rate(calls[calls["off"] >= 0], "off", "wrong_route_calls"),
        wrong_route_tokens=_tokens_of(off),
        errored=_trials_with(ran, ran.index[ran["status"] == STATUSES.index("errored")], "errored"),
        incidents=tuple(_incidents(ran, frames.incidents)),
        model_calls=len(calls),
        input_tokens=_amount(calls["input"]),
        output_tokens=_amount(calls["output"]),
        cost=_cost(calls),
        latency=_latency(calls["seconds"]),
    )


def _by_asks(judged: pd.DataFrame, column: str) -> dict[str, Rate]:
    """The accuracy of each class of turns, by what is asked of them."""
    return {asks: _rate(judged[judged["asks"] == code], column, asks) for code, asks in enumerate(ASKS)}


def _pass_rate(units: pd.DataFrame) -> Rate:
    trials = float(units["tried"].mean()) if len(units) else 1.0
    return _mean(units, lambda passed, tried: passed / tried, "pass_rate", weight=trials)


def _units(trials: pd.DataFrame) -> pd.DataFrame:
    """One row for each scenario on one model with at least one trial that passed or failed: cluster, passed, tried."""
    concluded = trials[trials["status"] <= STATUSES.index("failed")]
    units, first, places = np.unique(concluded["unit"], return_index=True, return_inverse=True)
    passed = np.bincount(places, weights=concluded["status"] == STATUSES.index("passed"))
    cluster = concluded["cluster"].to_numpy()[first]
    return pd.DataFrame(
        {"cluster": cluster, "passed": passed.astype("int64"), "tried": np.bincount(places)}, index=units
    )


def _rate(rows: pd.DataFrame, column: str, name: str, *, weight: float = 1) -> Rate:
    return _clustered(rows[column].to_numpy(), rows["cluster"].to_numpy(), rows["trial"].to_numpy(), name, weight)


def _f1(made: pd.DataFrame, wanted: pd.DataFrame) -> Rate:
    """Each handoff that happened and was expected is in both sets, and so counts half in either."""
    both = pd.concat([made, wanted])
    return _rate(both, "ok", "hop_f1", weight=0.5)


def _trials_with(ran: pd.DataFrame, having: Iterable[int], name: str) -> Rate:
    return _clustered(ran.index.isin(list(having)), ran["cluster"].to_numpy(), ran.index.to_numpy(), name)


_Numbers: TypeAlias = npt.NDArray[Any]


def _clustered(right: _Numbers, clusters: _Numbers, trials: _Numbers, name: str, weight: float = 1) -> Rate:
    """The share that is right; clusters are scenarios, or trials where there is one scenario only.

    `weight`: how many members of its own each one counts for.
    """
    if len(right) == 0:
        return Rate(0, 0, None, None, None, DEFINITIONS[name])
    groups = clusters if (clusters != clusters[0]).any() else trials
    _, places = np.unique(groups, return_inverse=True)
    sums, sizes = np.bincount(places, weights=right) * weight, np.bincount(places) * weight
    counts = zip(sums.tolist(), sizes.tolist(), strict=True)
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


def _incidents(ran: pd.DataFrame, incidents: pd.DataFrame) -> Iterator[IncidentNumbers]:
    for code, kind in enumerate(KINDS):
        of_kind = incidents[incidents["kind"] == code]
        yield IncidentNumbers(
            kind,
            len(of_kind),
            len(of_kind) / len(ran) if len(ran) else None,
            _trials_with(ran, of_kind["trial"].unique(), "incident_trials"),
        )


def _amount(tokens: pd.Series[int], name: str = "tokens") -> Amount:
    known = tokens[tokens >= 0]
    total = int(known.sum()) if len(known) else None
    return Amount(total, len(known), len(tokens) - len(known), DEFINITIONS[name])


def _tokens_of(calls: pd.DataFrame) -> Amount:
    """Tokens in and out together, of the calls that reported both."""
    both = (calls["input"] + calls["output"]).where((calls["input"] >= 0) & (calls["output"] >= 0), -1)
    return _amount(both, "wrong_route_tokens")


def _cost(calls: pd.DataFrame) -> Cost:
    known = calls[(calls["input"] >= 0) & (calls["output"] >= 0)]
    sums, priced = [], 0
    free = int((calls["model"] == KEYWORD).sum())
    for model, rows in known.groupby("model", observed=True):
        price = prices.price(str(model)) if model != KEYWORD else None
        if price is not None:
            sums.append(int(rows["input"].sum()) * price.read + int(rows["output"].sum()) * price.written)
            priced += len(rows)
    counted = priced + free
    return Cost(fsum(sums) if counted else None, counted, len(calls) - counted, DEFINITIONS["cost"])


def _latency(seconds: pd.Series[float], name: str = "latency") -> Latency:
    known = seconds.dropna()
    if known.empty:
        return Latency(None, None, None, 0, DEFINITIONS[name])
    return Latency(
        float(known.median()),
        float(known.quantile(0.95)),
        float(known.max()),
        len(known),
        DEFINITIONS[name],
    )


def _scenarios(frames: Frames) -> Iterator[ScenarioNumbers]:
    """One row for each scenario on one model, in the order in which they came."""
    trials = frames.trials
    numbers = trials.index.to_numpy()  # With gaps, where yardsticks were left out.
    judged = frames.turns[frames.turns["judged"] == 1]

    def of_each_trial(rows: pd.DataFrame, weights: _Numbers | None = None) -> _Numbers:
        counted = np.bincount(rows["trial"], weights=weights, minlength=int(numbers.max(initial=-1)) + 1)
        of_trials: _Numbers = counted[numbers].astype("int64")
        return of_trials

    sizes, right = of_each_trial(judged), of_each_trial(judged, judged["right"].to_numpy())
    incidents, calls = of_each_trial(frames.incidents), of_each_trial(frames.calls)
    status, seconds = trials["status"].to_numpy(), trials["seconds"].to_numpy()
    units = [places for _, places in sorted(trials.groupby("unit").indices.items())]
    # Column by column: a row of a frame costs as much as all the rest of what is done for a scenario.
    heads = trials.iloc[[places[0] for places in units]]
    names = zip(
        *(heads[column].tolist() for column in ("file", "line", "scenario", "tags", "target", "model")), strict=True
    )
    for places, (file, line, scenario, tags, target, model) in zip(units, names, strict=True):
        counts = np.bincount(status[places], minlength=len(STATUSES)).tolist()
        passed, tried = counts[0], counts[0] + counts[1]
        clusters = tuple(zip(right[places].tolist(), sizes[places].tolist(), strict=True))
        yield ScenarioNumbers(
            file=str(file),
            line=int(line),
            scenario=str(scenario),
            tags=frames.tuples[int(tags)],
            target=str(target),
            model=str(model),
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


def _files(frames: Frames) -> Iterator[GroupNumbers]:
    """The numbers of each scenario file."""
    codes = frames.trials["file"].cat.codes.to_numpy()
    names = frames.trials["file"].cat.categories
    yield from _groups(frames, codes, {str(names[code]): (int(code),) for code in np.unique(codes)})


def _tags(frames: Frames) -> Iterator[GroupNumbers]:
    """The numbers of each tag; a trial counts for each of its tags."""
    codes = frames.trials["tags"].to_numpy()
    having: dict[str, list[int]] = {}
    for code in np.unique(codes).tolist():
        for tag in frames.tuples[code]:
            having.setdefault(tag, []).append(code)
    yield from _groups(frames, codes, having)


def _groups(frames: Frames, codes: _Numbers, having: Mapping[str, Sequence[int]]) -> Iterator[GroupNumbers]:
    """The numbers of groups of trials, each made of the trials with some codes; linear in rows."""
    by_trial = np.full(int(frames.trials.index.max()) + 1 if len(frames.trials) else 0, -1)
    by_trial[frames.trials.index.to_numpy()] = codes
    judged = frames.turns[frames.turns["judged"] == 1]
    tables = (frames.trials, judged, frames.incidents)
    codes_of = (codes, *(by_trial[rows["trial"].to_numpy()] for rows in tables[1:]))
    places = [pd.Series(each).groupby(each).indices for each in codes_of]
    for name, group in sorted(having.items()):
        trials, turns, incidents = (
            rows.iloc[np.concatenate([found.get(code, _NOWHERE) for code in group])]
            for rows, found in zip(tables, places, strict=True)
        )
        ran = trials[trials["status"] != STATUSES.index("skipped")]
        kinds = np.bincount(incidents["kind"].to_numpy(), minlength=len(KINDS)).tolist()
        yield GroupNumbers(
            name=name,
            trials={status: int((trials["status"] == code).sum()) for code, status in enumerate(STATUSES)},
            scenarios=int(trials["cluster"].nunique()),
            accuracy=_rate(turns, "right", "accuracy"),
            pass_rate=_pass_rate(_units(trials)),
            errored=_trials_with(ran, ran.index[ran["status"] == STATUSES.index("errored")], "errored"),
            incidents={kind: count for kind, count in zip(KINDS, kinds, strict=True) if count},
        )


_NOWHERE = np.array([], dtype="int64")


def _agents(frames: Frames) -> Iterator[AgentNumbers]:
    """The numbers of every agent that was expected, came, or asked a model."""
    hops, calls = frames.hops, frames.calls
    judged = frames.turns[frames.turns["judged"] == 1]
    made, wanted = _by(hops[hops["made"] == 1], "actual"), _by(hops[hops["wanted"] == 1], "expected")
    asked, ending = _by(calls, "agent"), judged["ends"].to_numpy()
    turns: dict[str, list[_Numbers]] = {}
    for code in np.unique(ending).tolist():
        for agent in frames.tuples[code]:
            turns.setdefault(agent, []).append(np.flatnonzero(ending == code))
    for agent in sorted({*made, *wanted, *asked, *turns}):
        came, due, own = made.get(agent, hops[:0]), wanted.get(agent, hops[:0]), asked.get(agent, calls[:0])
        yield AgentNumbers(
            agent=agent,
            accuracy=_rate(judged.iloc[np.concatenate(turns.get(agent, [_NOWHERE]))], "right", "agent_accuracy"),
            precision=_rate(came, "ok", "hop_precision"),
            recall=_rate(due, "ok", "hop_recall"),
            f1=_f1(came, due),
            model_calls=len(own),
            replayed=int(own["replayed"].sum()),
            input_tokens=_amount(own["input"]),
            output_tokens=_amount(own["output"]),
            cost=_cost(own),
            latency=_latency(own["seconds"]),
        )


def _edges(frames: Frames) -> Iterator[HopNumbers]:
    """Precision over the handoffs made along each edge, recall over those wanted along it, and what they led to."""
    made, wanted = (
        rows.assign(ok=rows["ok"] * (rows["source"].cat.codes == rows["source_expected"].cat.codes).astype("int8"))
        for rows in (frames.hops[frames.hops["made"] == 1], frames.hops[frames.hops["wanted"] == 1])
    )
    came, due = _by_edge(made, "source", "actual"), _by_edge(wanted, "source_expected", "expected")
    asked, handoffs = _by_edge(frames.calls, "source", "agent"), Counter[tuple[str, str]]()
    for covered in frames.coverage:
        handoffs.update({(edge.source, edge.target): edge.transfers + edge.calls for edge in covered.traffic})
    for source, target in dict.fromkeys((*due, *came, *(edge for edge, count in handoffs.items() if count))):
        happened, asked_for = came.get((source, target), made[:0]), due.get((source, target), wanted[:0])
        own = asked.get((source, target), frames.calls[:0])
        yield HopNumbers(
            source=source,
            target=target,
            handoffs=handoffs[source, target],
            precision=_rate(happened, "ok", "hop_precision"),
            recall=_rate(asked_for, "ok", "hop_recall"),
            f1=_f1(happened, asked_for),
            model_calls=len(own),
            replayed=int(own["replayed"].sum()),
            input_tokens=_amount(own["input"]),
            output_tokens=_amount(own["output"]),
            cost=_cost(own),
            latency=_latency(_by_visit(own), "hop_latency"),
        )


def _by_visit(calls: pd.DataFrame) -> pd.Series[float]:
    """Seconds of all calls of each visit together; NaN where one is unknown."""
    _, visits = np.unique(calls[["trial", "visit"]].to_numpy(), axis=0, return_inverse=True)
    return pd.Series(np.bincount(visits, weights=calls["seconds"]))


def _by(rows: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    return {str(name): group for name, group in rows.groupby(column, observed=True)}


def _by_edge(rows: pd.DataFrame, source: str, target: str) -> dict[tuple[str, str], pd.DataFrame]:
    groups = rows.groupby([source, target], observed=True)
    return {(str(names[0]), str(names[1])): group for names, group in groups}


def _baselines(frames: Frames, yardstick: Frames | None) -> Iterator[BaselineNumbers]:
    """What the yardsticks score: on the turns of the models under test, and in the trials of their own."""
    known = frames.turns[(frames.turns["judged"] == 1) & (frames.turns["unmoved"] >= 0)]
    if len(known):
        accuracy = _rate(known, "unmoved", "baseline_unmoved")
        yield BaselineNumbers(name="unmoved", accuracy=accuracy, **_by_asks(known, "unmoved"))
    if yardstick is not None:
        judged = yardstick.turns[yardstick.turns["judged"] == 1]
        accuracy = _rate(judged, "right", "baseline_keyword")
        yield BaselineNumbers(name="keyword", accuracy=accuracy, **_by_asks(judged, "right"))


def _confusion(hops: pd.DataFrame) -> Iterator[ConfusionCell]:
    counts = Counter(zip(hops["expected"].astype(object), hops["end"], hops["actual"].astype(object), strict=True))
    for (expected, end, actual), count in counts.items():
        yield ConfusionCell(_text(expected), ENDS[end], _text(actual), count)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
