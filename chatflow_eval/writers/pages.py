"""The viewer's own pages: all runs with their trend, and a run that goes on; everything from outside is escaped."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from markupsafe import Markup, escape

from chatflow_eval.history import PastModel, PastRate, PastRun
from chatflow_eval.incidents import FAILING
from chatflow_eval.listing import Entry, State
from chatflow_eval.outcome import Status
from chatflow_eval.progress import Standing
from chatflow_eval.writers import links, words
from chatflow_eval.writers.templates import environment, hash_source, source

RUNS_OF_TREND, MODELS_OF_TREND = 60, 6
"""How many are drawn, the newest of them."""
MANY = 10
"""Runs from which on they can be searched."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page, and the content security policy under which it works."""

    text: str
    policy: str


@dataclass(frozen=True, slots=True)
class Parts:
    """What the list of runs consists of, each a part of its page that may change by itself."""

    head: Markup
    trend: Markup
    runs: Markup
    going: Markup

    @property
    def seen(self) -> str:
        """A digest of them, save for what goes on."""
        return hashlib.sha256(f"{self.head}{self.trend}{self.runs}".encode()).hexdigest()[:16]


def index(parts: Parts, *, of: int, query: str = "") -> Page:
    """The list of runs; the page asks for what has changed. `of` says how many runs there are without the query."""
    return _page(
        "index",
        script="index.js",
        parts=parts,
        seen=parts.seen,
        of=of,
        query=query,
        searched=of >= MANY or bool(query),
        trends="<section" in parts.trend,
        rows="<table" in parts.runs,
    )


def parts(
    entries: Sequence[Entry], standings: Mapping[str, Standing], *, folder: Path, of: int, query: str = ""
) -> Parts:
    """The runs, the newest first; the standings are of those that go on, by their names."""
    rows = [_row(entry) for entry in entries]
    comparable = [row for row in rows if row.comparable]
    trends = _trends([entry.run for entry in entries if entry.run is not None], {e.folder: e for e in entries})
    run, base = (row.name for row in comparable[:2]) if len(comparable) > 1 else (None, None)
    return Parts(
        head=Markup(_render("head", rows=rows, of=of, query=query, folder=folder)),
        trend=Markup(_render("trend", trends=trends, column=COLUMN)),
        runs=Markup(_render("runs", rows=rows, states=STATES, run=run, base=base, query=query)),
        going=going(entries, standings),
    )


def going(entries: Sequence[Entry], standings: Mapping[str, Standing]) -> Markup:
    """How far the runs are that go on."""
    found = [(_row(entry), _progress(entry, standings.get(entry.name))) for entry in entries if entry.goes_on]
    return Markup(_render("going", going_on=found, states=STATES))


def live(entry: Entry, now: Standing) -> Page:
    """A run that goes on; the page asks for what has changed, and without script loads itself again."""
    return _page(
        "live", script="live.js", entry=entry, standing=Markup(standing(entry, now)), when=_when(entry.started)
    )


def standing(entry: Entry, now: Standing) -> str:
    """How a run stands, as the part of its page that changes."""
    run = entry.run
    planned = run.planned if run is not None else None
    of = max(planned or 0, now.trials)
    return _render(
        "standing",
        entry=entry,
        now=now,
        title=_live_title(entry, now, planned),
        parts=_parts(now.statuses, of),
        accuracy=now.right / now.judged if now.judged else None,
        percent=100 * now.trials / of if of and planned else None,
        left=max((planned or 0) - now.trials, 0),
        report=_to_report(entry.name),
        command=shlex.join(("chatflow-eval", *run.command)) if run is not None and run.command else "",
        resume=_resume(run.command, entry.folder) if run is not None else "",
    )


def gone(run: str) -> str:
    """What stands in the place of a run whose folder was removed while somebody watched."""
    return _render("gone", run=run)


def problem(text: str) -> Page:
    """A page that says what could not be shown."""
    return _page("problem", problem=text)


def _render(template: str, **values: Any) -> str:
    shared = {"words": words, "symbols": words.SYMBOLS, "links": links, "failing": FAILING}
    return environment().get_template(f"view/{template}.html.j2").render(**shared, **values)


def _page(template: str, *, script: str = "", **values: Any) -> Page:
    style = _colours() + source("view/view.css")
    program = source(f"view/{script}") if script else ""
    text = _render(template, style=Markup(style), script=Markup(program), **values)
    runs = f"script-src {hash_source(program)}; connect-src 'self'; " if script else ""
    loads = f"style-src {hash_source(style)}; {runs}img-src 'self'"
    return Page(text, f"default-src 'none'; {loads}; base-uri 'none'; form-action 'self'")


_ROOT = re.compile(r"(@media[^{}]*\{)?\s*(:root\s*\{[^{}]*\})")


@cache
def _colours() -> str:
    """Those of the report, in light, in dark and on paper: the rules in its style that are of the root alone."""
    found = _ROOT.findall(source("report.css"))
    return "".join(f"{medium}{rule}}}\n" if medium else f"{rule}\n" for medium, rule in found)


# All runs.

STATES: Mapping[State, tuple[str, str]] = {
    "finished": ("", ""),
    "partial": ("partial", "It ended before every planned trial had finished."),
    "going on": ("going on", "Trials are being run."),
    "broken off": ("broken off", "It did not finish, and nothing runs any more."),
    "unfinished": ("unfinished", "It goes on, or was broken off; this system does not tell."),
    "damaged": ("damaged", "It cannot be read."),
}
"""What each state is called, and what that means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """A rate as it is shown, and its interval in percent for drawing."""

    value: str
    fraction: str
    interval: str
    bar: tuple[float, float, float] | None
    """Low, value and high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One run in the list."""

    name: str
    value: Markup
    """The name as it is, which nobody sees: a form gives it back."""
    when: str
    took: str
    state: State
    problem: str
    report: str
    live: str | None
    """The way to its progress, where it has not finished."""
    gate: bool | None
    """Whether it opened."""
    command: str
    models: tuple[str, ...]
    trials: int | None
    parts: tuple[_Part, ...]
    accuracy: _Share | None
    pass_rate: _Share | None
    loops: int | None
    limits: int | None
    others: int | None
    """Other incidents."""
    errors: int | None
    comparable: bool


def _progress(entry: Entry, now: Standing | None) -> str:
    planned = entry.run.planned if entry.run is not None else None
    return f"{now.trials if now else 0:,}{'' if planned is None else f' of {planned:,}'}"


def _row(entry: Entry) -> _Row:
    run = entry.run
    numbers = run is not None and bool(run.trials)
    statuses = {status: run.trials.get(status, 0) for status in words.SYMBOLS} if run is not None and numbers else {}
    incidents = run.incidents if run is not None else {}
    others = sum(count for kind, count in incidents.items() if kind not in ("loop", "limit_hit"))
    return _Row(
        name=entry.name,
        value=Markup(escape(entry.name).replace("\r", "&#13;")),
        when=_when(entry.started),
        took=_took(run),
        state=entry.state,
        problem=entry.problem.replace(f"{entry.folder}/", ""),
        report=_to_report(entry.name),
        live=f"/live/{quote(entry.name, safe='')}" if entry.goes_on or entry.state == "broken off" else None,
        gate=run.gate if run is not None else None,
        command=shlex.join(run.command) if run is not None else "",
        models=tuple(words.model_name(each.target, each.model) for each in run.of_models) if run is not None else (),
        trials=sum(statuses.values()) if numbers else None,
        parts=_parts(statuses, sum(statuses.values())),
        accuracy=_share(run.accuracy) if run is not None else None,
        pass_rate=_share(run.pass_rate) if run is not None else None,
        loops=incidents.get("loop", 0) if numbers else None,
        limits=incidents.get("limit_hit", 0) if numbers else None,
        others=others if numbers else None,
        errors=statuses["errored"] if numbers else None,
        comparable=numbers,
    )


def _share(rate: PastRate | None) -> _Share | None:
    if rate is None:
        return None
    low, value, high = (rate[name] for name in ("low", "value", "high"))
    known = low is not None and value is not None and high is not None
    return _Share(
        value=words.percent(value),
        fraction=f"{words.number(rate['numerator'] or 0)}/{rate['denominator'] or 0:,}",
        interval=f"{100 * low:.1f} to {100 * high:.1f} %" if low is not None and high is not None else "",
        bar=(_percent(low), _percent(value), _percent(high)) if known else None,
    )


def _percent(share: float | None) -> float:
    """Within what can be drawn."""
    return 100 * min(max(share or 0.0, 0.0), 1.0)


def _when(time: str) -> str:
    return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M}"


def _took(run: PastRun | None) -> str:
    try:
        if run is None or run.finished is None:
            return ""
        seconds = (datetime.fromisoformat(run.finished) - datetime.fromisoformat(run.started)).total_seconds()
    except (ValueError, TypeError):
        return ""
    if seconds < 10:
        return words.seconds(seconds)
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


def _to_report(name: str) -> str:
    return f"/runs/{quote(name, safe='')}/"


# How trials ended.


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of the bar of how the trials ended, in percent of its length."""

    status: Status
    count: int
    start: float
    width: float


def _parts(statuses: Mapping[Status, int], of: int) -> tuple[_Part, ...]:
    start, parts = 0.0, []
    for status in words.SYMBOLS:
        if count := statuses.get(status, 0):
            parts.append(_Part(status, count, start, 100 * count / of))
            start += parts[-1].width
    return tuple(parts)


def _live_title(entry: Entry, now: Standing, planned: int | None) -> str:
    of = f"{now.trials:,} of {words.counted(planned, 'trial')}" if planned else words.counted(now.trials, "trial")
    if entry.state in ("finished", "partial"):
        return f"Finished: {of}" if entry.state == "finished" else f"Ended early: {of}"
    if entry.state == "damaged":
        return "Cannot be read"
    return f"{'Broken off after' if entry.state == 'broken off' else 'Going on:'} {of}"


def _resume(command: Sequence[str], folder: Path) -> str:
    """The command that goes on with a run: what it was started with, save for where it was to be."""
    if command[:1] != ("run",):
        return ""
    left, kept = iter(command), []
    for word in left:
        if word in ("--out", "--resume"):
            next(left, None)
        elif not word.startswith(("--out=", "--resume=")):
            kept.append(word)
    return shlex.join(("chatflow-eval", *kept, "--resume", str(folder)))


# The trend.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """One run of one model, as it is drawn: 0 is the top."""

    x: float
    y: float
    low: float
    high: float
    incidents: float
    """The height of the bar, in percent."""
    said: str
    report: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trend:
    """How a model's routing accuracy went, run by run."""

    model: str
    points: tuple[_Point, ...]
    columns: int
    """How many places for runs the drawing has."""
    last: _Share
    moved: str
    """In words, since the run before."""
    most: int
    """Incidents in one run at most."""
    first_day: str
    last_day: str


COLUMN = 10
"""The width of one run's column, in units of the drawing."""

_Model: TypeAlias = tuple[str, str]


def _trends(runs: Sequence[PastRun], entries: Mapping[Path, Entry]) -> tuple[_Trend, ...]:
    """Those of the models that were run last; runs come the newest first."""
    shown = [run for run in runs if any(_drawn(each) for each in run.of_models)][:RUNS_OF_TREND][::-1]
    if len(shown) < 2:
        return ()
    seen = Counter((each.target, each.model) for run in shown for each in run.of_models if _drawn(each))
    newest = dict.fromkeys((each.target, each.model) for run in reversed(shown) for each in run.of_models)
    models = sorted((model for model in newest if seen[model]), key=lambda model: -seen[model])[:MODELS_OF_TREND]
    return tuple(_trend(model, shown, entries) for model in models)


def _drawn(each: PastModel) -> bool:
    return each.accuracy is not None and all(each.accuracy[name] is not None for name in ("low", "value", "high"))


def _trend(model: _Model, shown: Sequence[PastRun], entries: Mapping[Path, Entry]) -> _Trend:
    found = list(_places(model, shown))
    most = max(sum(each.incidents.values()) for _, _, each in found)
    *before, (_, _, last) = found
    assert last.accuracy is not None
    days = [_when(entries[run.folder].started) for _, run, _ in found]
    return _Trend(
        model=words.model_name(*model),
        points=tuple(_point(place, run, each, most, entries[run.folder]) for place, run, each in found),
        columns=max(len(shown), 8),
        last=_shown(last.accuracy),
        moved=_moved(before[-1][2].accuracy, last.accuracy) if before else "",
        most=most,
        first_day=days[0][:10],
        last_day=days[-1][:10],
    )


def _places(model: _Model, shown: Sequence[PastRun]) -> Iterator[tuple[int, PastRun, PastModel]]:
    for place, run in enumerate(shown):
        for each in run.of_models:
            if (each.target, each.model) == model and _drawn(each):
                yield place, run, each
                break


def _shown(rate: PastRate) -> _Share:
    share = _share(rate)
    assert share is not None
    return share


def _moved(before: PastRate | None, now: PastRate) -> str:
    if before is None:
        return ""
    points = 100 * ((now["value"] or 0) - (before["value"] or 0))
    return f"{points:+.1f} points since the run before" if abs(points) >= 0.05 else "as in the run before"


def _point(place: int, run: PastRun, each: PastModel, most: int, entry: Entry) -> _Point:
    assert each.accuracy is not None
    share, count = _shown(each.accuracy), sum(each.incidents.values())
    low, value, high = (100 - _percent(each.accuracy[name]) for name in ("low", "value", "high"))
    return _Point(
        x=COLUMN * (place + 0.5),
        y=value,
        low=low,
        high=high,
        incidents=100 * count / most if most else 0.0,
        said=f"{_when(entry.started)}: {share.value} ({share.fraction} turns, {share.interval}), "
        f"{words.counted(count, 'incident')}",
        report=_to_report(entry.name),
    )
