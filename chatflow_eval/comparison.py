"""A report against a baseline, paired by scenario: what got better, worse, came and went, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from chatflow_eval import statistics
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report
from chatflow_eval.tally import judged_turns

LEVEL = 0.05
"""A difference with a smaller chance than this, were the runs alike, is one."""

Change: TypeAlias = Literal["regressed", "gone", "flaky", "inconclusive", "improved", "new", "unchanged"]
CHANGES: tuple[Change, ...] = get_args(Change)
"""In the order in which people want to see them."""

Conclusion: TypeAlias = Literal["improved", "regressed", "unchanged", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How the trials of one scenario ended in one run."""

    passed: int = 0
    failed: int = 0
    errored: int = 0
    skipped: int = 0

    @property
    def tried(self) -> int:
        """Trials that passed or failed."""
        return self.passed + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioChange:
    """What became of one scenario on one model."""

    file: str
    line: int
    scenario: str
    tags: tuple[str, ...]
    target: str
    model: str
    """Of the newer run; of the baseline where the scenario is gone."""
    change: Change
    base: Side
    run: Side
    p: float | None = None
    """Of Fisher's exact test on trials that passed; `None` where there is nothing to compare."""
    p_adjusted: float | None = None
    """The same, adjusted for all scenarios that were compared (Holm)."""
    settled: bool = False
    """Whether the difference is significant by the adjusted value."""
    more_repeats: int | None = None
    """The fewest further repeats, of both runs, that would settle a difference that stayed as it is."""
    edited: bool = False
    """The user's words or the expectations are not those of the baseline."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One share in both runs, over the scenarios that have results in both."""

    base: tuple[float, int]
    """Numerator and denominator."""
    run: tuple[float, int]
    p: float | None
    """Of the exact permutation test, paired by scenario; `None` where there is nothing to compare."""
    conclusion: Conclusion
    more_repeats: int | None = None
    """About how many further repeats of every scenario would settle an inconclusive difference."""

    @property
    def value(self) -> float | None:
        """The newer share less that of the baseline."""
        if not self.base[1] or not self.run[1]:
            return None
        return self.run[0] / self.run[1] - self.base[0] / self.base[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs of a suite."""

    scenarios: tuple[ScenarioChange, ...]
    accuracy: Difference
    """Turns whose route was accepted, of those judged for routing in trials that passed or failed."""
    passing: Difference
    """Trials that passed, of those that passed or failed."""
    incidents: Mapping[str, tuple[int, int]]
    """Kind to how often it was found in the baseline and in the newer run, over all of both."""

    @property
    def counts(self) -> dict[Change, int]:
        """How many scenarios changed in each way."""
        counted = Counter(row.change for row in self.scenarios)
        return {change: counted[change] for change in CHANGES}

    def of(self, *changes: Change) -> tuple[ScenarioChange, ...]:
        """The scenarios that changed in one of these ways."""
        return tuple(row for row in self.scenarios if row.change in changes)


def compare(base: Report, run: Report) -> Comparison:
    """The newer run against the baseline; reports of one model each are compared whatever the models are called."""
    before, after = _collect(base.outcomes), _collect(run.outcomes)
    if len({key[2:] for key in before}) == len({key[2:] for key in after}) == 1:
        model = next(iter(after))[2:]
        before = {(*key[:2], *model): trials for key, trials in before.items()}
    rows = [_change(key, before.get(key), after.get(key)) for key in dict.fromkeys((*after, *before))]
    paired = [key for key in after if key in before and before[key].rights and after[key].rights]
    return Comparison(
        scenarios=tuple(sorted(_with_hints(_adjusted(rows), before, after), key=_order)),
        accuracy=_difference(
            [(before[key].rights, after[key].rights) for key in paired],
            sizes=(sum(before[key].judged for key in paired), sum(after[key].judged for key in paired)),
        ),
        passing=_difference(
            [(before[key].passes, after[key].passes) for key in paired],
            sizes=(sum(len(before[key].passes) for key in paired), sum(len(after[key].passes) for key in paired)),
        ),
        incidents={
            one.kind: (one.count, other.count)
            for one, other in zip(base.metrics.total.incidents, run.metrics.total.incidents, strict=True)
            if one.count or other.count
        },
    )


_Key: TypeAlias = tuple[str, str, str, str]
"""File, scenario, target, model."""


@dataclass(slots=True)
class _Trials:
    """What a run holds of one scenario on one model."""

    first: Outcome
    """Without its trace."""
    statuses: Counter[str] = field(default_factory=Counter)
    passes: list[int] = field(default_factory=list)
    """1 or 0 for each trial that passed or failed."""
    rights: list[int] = field(default_factory=list)
    """How many turns of each such trial were right."""
    judged: int = 0
    """Turns of these trials that were judged for routing."""

    @property
    def side(self) -> Side:
        return Side(**{status: self.statuses[status] for status in ("passed", "failed", "errored", "skipped")})

    @property
    def expected(self) -> tuple[object, ...]:
        """What was said and asked for; the same for every trial of one scenario."""
        return (self.first.users, tuple((each.turn, each.asks, each.ends, each.hops) for each in self.first.demands))


def _collect(outcomes: Iterable[Outcome]) -> dict[_Key, _Trials]:
    found: dict[_Key, _Trials] = {}
    for outcome in outcomes:
        if outcome.baseline:
            continue
        bare = replace(outcome, trace=None, verdicts=(), incidents=())
        trials = found.setdefault(outcome.key[:4], _Trials(bare))
        if outcome.demands and not trials.first.demands:
            trials.first = bare
        trials.statuses[outcome.status] += 1
        if outcome.status in ("passed", "failed"):
            turns = [turn for turn in judged_turns(outcome) if turn.judged]
            trials.passes.append(outcome.status == "passed")
            trials.rights.append(sum(turn.right for turn in turns))
            trials.judged += len(turns)
    return found


def _change(key: _Key, before: _Trials | None, after: _Trials | None) -> ScenarioChange:
    newest = after or before
    assert newest is not None
    base, run = before.side if before else Side(), after.side if after else Side()
    row = ScenarioChange(
        file=key[0],
        line=newest.first.line,
        scenario=key[1],
        tags=newest.first.tags,
        target=key[2],
        model=key[3],
        change="unchanged",
        base=base,
        run=run,
    )
    if after is None or (run.skipped and not run.tried and not run.errored):
        if before is None or not (base.tried or base.errored):
            return replace(row, change="unchanged" if before else "new", why="skipped")
        return replace(row, change="gone", why="it is skipped now" if after else "it is not in this run")
    if before is None or not base.tried:
        return replace(row, change="new", why="" if before is None else "it had no result in the baseline")
    if not run.tried:
        return replace(row, change="inconclusive", why="every trial errored")
    edited = bool(before.first.demands and after.first.demands) and before.expected != after.expected
    share, now = base.passed / base.tried, run.passed / run.tried
    if share == now:
        return replace(row, change="unchanged" if share in (0, 1) else "flaky", edited=edited, p=1.0)
    return replace(
        row,
        change="improved" if now > share else "regressed",
        edited=edited,
        p=statistics.paired([(before.passes, after.passes)]).p,
    )


def _adjusted(rows: Sequence[ScenarioChange]) -> list[ScenarioChange]:
    """The rows with their chances adjusted for one another: a mixed result that is not significant is flaky."""
    compared = [row for row in rows if row.p is not None]
    adjusted = dict(zip(map(id, compared), statistics.holm([row.p or 0.0 for row in compared]), strict=True))
    return [row if row.p is None else _settled(row, adjusted[id(row)], len(compared)) for row in rows]


def _settled(row: ScenarioChange, adjusted: float, compared: int) -> ScenarioChange:
    settled = adjusted <= LEVEL
    differs = row.change in ("improved", "regressed")
    mixed = any(0 < side.passed < side.tried for side in (row.base, row.run))
    more = None
    if differs and not settled:
        more = statistics.more_repeats_of_one(
            (row.base.passed, row.run.passed), (row.base.tried, row.run.tried), LEVEL / compared
        )
    change: Change = "flaky" if differs and mixed and not settled else row.change
    return replace(row, change=change, p_adjusted=adjusted, settled=settled, more_repeats=more)


def _with_hints(
    rows: Iterable[ScenarioChange], before: Mapping[_Key, _Trials], after: Mapping[_Key, _Trials]
) -> list[ScenarioChange]:
    """Scenarios that are gone, with the new one that says the same, where there is one: it may have been renamed."""
    new: dict[tuple[object, ...], list[ScenarioChange]] = {}
    rows = list(rows)
    for row in rows:
        if row.change == "new":
            new.setdefault(after[_key(row)].first.users, []).append(row)
    hinted = []
    for row in rows:
        alike = new.get(before[_key(row)].first.users, []) if row.change == "gone" else []
        if len(alike) == 1:
            row = replace(row, why=f"{row.why}; {alike[0].scenario!r}, which is new, says the same: was it renamed?")
        hinted.append(row)
    return hinted


def _key(row: ScenarioChange) -> _Key:
    return (row.file, row.scenario, row.target, row.model)


def _order(row: ScenarioChange) -> tuple[int, str, int, str, str]:
    return (CHANGES.index(row.change), row.file, row.line, row.scenario, row.model)


def _difference(strata: Sequence[statistics.Stratum], *, sizes: tuple[int, int]) -> Difference:
    base, run = (float(sum(sum(scores[side]) for scores in strata)) for side in (0, 1))
    if not all(sizes):
        return Difference(base=(base, sizes[0]), run=(run, sizes[1]), p=None, conclusion="inconclusive")
    found = statistics.paired(strata)
    moved = run / sizes[1] - base / sizes[0]
    conclusion: Conclusion = "inconclusive"
    if found.variance == 0:
        conclusion = "unchanged"
    elif found.p <= LEVEL and moved:
        conclusion = "improved" if moved > 0 else "regressed"
    repeats = max((max(map(len, scores)) for scores in strata), default=1)
    more = statistics.more_repeats(found, repeats, LEVEL) if conclusion == "inconclusive" else None
    return Difference(base=(base, sizes[0]), run=(run, sizes[1]), p=found.p, conclusion=conclusion, more_repeats=more)
