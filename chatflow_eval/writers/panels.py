"""The pictures of the HTML report, as plain values: routing graph, heat map, incidents, coverage, cost of each hop."""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from markupsafe import Markup

from chatflow_eval.incidents import FAILING, Incident, IncidentKind
from chatflow_eval.metrics import (
    DEFINITIONS,
    AgentNumbers,
    Amount,
    ConfusionCell,
    Cost,
    HopNumbers,
    IncidentNumbers,
    Latency,
    Rate,
)
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import SUMMARY, Report
from chatflow_eval.tally import ENDS, Coverage, DecisionEnd, Traffic
from chatflow_eval.writers import links, words

MAX_NAME, MAX_TEXT = 120, 600
"""Characters of a name, and of a text, that are shown."""
MAX_LINKED = 1_000
"""Characters of a name that still gets a link."""
MAX_SWARMS, MAX_DRAWN, MAX_EDGES = 12, 30, 300
"""Graphs that are drawn, agents in one of them, and rows of their table."""
MAX_CELLS = 40
"""Rows and columns of the heat map."""
MAX_INCIDENTS, MAX_DISTINCT, MAX_PLACES = 100, 1_000, 3
"""Incidents shown, different ones of one kind held in memory, and places where each was found."""
MAX_RING, MAX_ROUTE = 12, 12
"""Agents of a cycle that is drawn, and of a route that is told whole."""
MAX_GAPS, MAX_ROWS = 40, 200
"""Names in one list of what is not covered, and rows of the tables of agents and hops."""

Edge: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """Everything that the panels' templates show."""

    graph: Graph
    heat: Heat
    incidents: Incidents
    coverage: CoveragePanel
    agents: AgentsPanel


def of(report: Report) -> Panels:
    """The panels of a report; reads the outcomes that have incidents, one after the other."""
    metrics = report.metrics
    return Panels(
        graph=graph_of(metrics.coverage),
        heat=heat_of(metrics.confusion, metrics.coverage),
        incidents=incidents_of(report),
        coverage=coverage_of(metrics.coverage),
        agents=agents_of(metrics.agents, metrics.edges),
    )


# The routing graph.

EdgeState: TypeAlias = Literal["undeclared", "mixed", "over", "under", "fine", "unjudged", "idle"]

STATES: dict[EdgeState, str] = {
    "fine": "as expected",
    "under": "expected, and missed",
    "over": "made, and not expected",
    "mixed": "missed, and made where not expected",
    "undeclared": "not declared by the agents",
    "unjudged": "made only where nothing was expected of the route",
    "idle": "declared, never used",
}
"""What became of an edge, in words, in the order of the legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRow:
    """One edge of a graph: what was expected of it, and what happened."""

    source: str
    target: str
    state: EdgeState
    verdict: str
    """What became of it, in words."""
    declared: str
    handoffs: int
    """That happened, in turns judged for their route and in others."""
    calls: int
    """Those of them that were calls, which come back."""
    refused: int
    wanted: int
    right: int
    missed: int
    extra: int
    """Made where something else, or nobody, was expected."""
    unjudged: int
    """Made in turns of which no route was expected."""
    precision: str
    recall: str
    made_link: str | None
    wanted_link: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """The agents that one target declares, and the edges between them."""

    name: str
    files: str
    edges: tuple[EdgeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Expected and actual traffic between agents, for a table and for `graph.js`."""

    swarms: tuple[Swarm, ...]
    left_out: int
    """Edges that the table has no room for."""
    data: Markup
    """What `graph.js` draws, as JSON that is safe inside a `script` element."""
    notes: tuple[str, ...]
    definitions: tuple[str, ...] = (DEFINITIONS["hop_precision"], DEFINITIONS["hop_recall"])
    summary_file: str = SUMMARY


def graph_of(coverage: Sequence[Coverage]) -> Graph:
    """The graphs of all targets; those of one target with the same agents are one."""
    merged = sorted((_merged(group) for group in _same_agents(coverage)), key=lambda one: (-one.handoffs, one.name))
    busiest = max((edge.transfers + edge.calls for one in merged for edge in one.traffic), default=0)
    swarms, room = [], MAX_EDGES
    for one in merged:
        rows = sorted((_edge_row(edge, one) for edge in one.traffic), key=_trouble)
        if rows[:room]:
            swarms.append(Swarm(name=one.name, files=one.files, edges=tuple(rows[:room])))
        room = max(room - len(rows), 0)
    notes = []
    if len(merged) > MAX_SWARMS:
        notes.append(f"The {MAX_SWARMS} busiest of {len(merged)} graphs are drawn.")
    notes += [
        f"{_name(one.name)}: the {MAX_DRAWN} busiest of {len(one.visits):,} agents are drawn."
        for one in merged[:MAX_SWARMS]
        if len(one.visits) > MAX_DRAWN
    ]
    return Graph(
        swarms=tuple(swarms),
        left_out=sum(len(one.traffic) for one in merged) - sum(len(swarm.edges) for swarm in swarms),
        data=_json([_drawing(one, busiest, titled=len(merged) > 1) for one in merged[:MAX_SWARMS]]),
        notes=tuple(notes),
    )


def _same_agents(coverage: Iterable[Coverage]) -> Iterator[list[Coverage]]:
    found: dict[tuple[str, frozenset[str]], list[Coverage]] = {}
    for one in coverage:
        found.setdefault((one.target, frozenset(one.agents)), []).append(one)
    yield from found.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """Graphs of the same agents, as one."""

    name: str
    files: str
    starts: frozenset[str]
    visits: Mapping[str, int]
    """Agent to how often it had the conversation; those declared first."""
    declared: frozenset[str]
    declares_edges: bool
    traffic: tuple[Traffic, ...]

    @property
    def handoffs(self) -> int:
        return sum(edge.transfers + edge.calls for edge in self.traffic)


def _merged(group: Sequence[Coverage]) -> _Merged:
    visits: Counter[str] = Counter(dict.fromkeys(group[0].agents, 0))
    edges: dict[Edge, list[Traffic]] = {}
    for one in group:
        visits.update(one.visits)
        for edge in one.traffic:
            edges.setdefault((edge.source, edge.target), []).append(edge)
    files = sorted({file for one in group for file in one.files})
    return _Merged(
        name=_swarm_name(group[0].target, files),
        files=_listed(files, 6),
        starts=frozenset(start for one in group for start in one.starts),
        visits=visits,
        declared=frozenset(group[0].agents),
        declares_edges=any(one.edges for one in group),
        traffic=tuple(_summed(same) for same in edges.values()),
    )


def _summed(edges: Sequence[Traffic]) -> Traffic:
    return Traffic(
        source=edges[0].source,
        target=edges[0].target,
        declared=tuple(sorted({kind for edge in edges for kind in edge.declared}, reverse=True)),
        transfers=sum(edge.transfers for edge in edges),
        calls=sum(edge.calls for edge in edges),
        refused=sum(edge.refused for edge in edges),
        wanted=sum(edge.wanted for edge in edges),
        made=sum(edge.made for edge in edges),
        right=sum(edge.right for edge in edges),
    )


def _swarm_name(target: str, files: Sequence[str]) -> str:
    """The files' names without what they have in common."""
    stems = [file.rsplit("/", 1)[-1].removesuffix(".yaml").removesuffix(".scenario") for file in files]
    name = _listed(stems, 3)
    return name if target == "chatflow" else f"{target}: {name}"


def _edge_row(edge: Traffic, of: _Merged) -> EdgeRow:
    handoffs, missed, extra = edge.transfers + edge.calls, edge.wanted - edge.right, edge.made - edge.right
    unjudged = max(handoffs - edge.made, 0)
    state, verdict = _state(edge, of)
    pair = (edge.source, edge.target)
    return EdgeRow(
        source=_name(edge.source),
        target=_name(edge.target),
        state=state,
        verdict=verdict,
        declared=" and ".join(edge.declared) or ("no" if of.declares_edges else "nothing is"),
        handoffs=handoffs,
        calls=edge.calls,
        refused=edge.refused,
        wanted=edge.wanted,
        right=edge.right,
        missed=missed,
        extra=extra,
        unjudged=unjudged,
        precision=_share(edge.right, edge.made),
        recall=_share(edge.right, edge.wanted),
        made_link=links.to_trials(edge=pair) if handoffs and _linked(*pair) else None,
        wanted_link=links.to_trials(expected=pair) if edge.wanted and _linked(*pair) else None,
    )


def _state(edge: Traffic, of: _Merged) -> tuple[EdgeState, str]:
    missed, extra = edge.wanted - edge.right, edge.made - edge.right
    said = [f"{missed:,} missed"] * bool(missed) + [f"{extra:,} not expected"] * bool(extra)
    state: EdgeState = "mixed" if len(said) == 2 else "under" if missed else "over" if extra else "fine"
    if not edge.wanted and not edge.made:
        state = "unjudged" if edge.transfers + edge.calls else "idle"
        said = ["not judged"] if state == "unjudged" else ["refused"] if edge.refused else ["never used"]
    if of.declares_edges and not edge.declared and {edge.source, edge.target} <= of.visits.keys():
        state = "undeclared"
        said = ["undeclared", *said]
    return state, ", ".join(said) or STATES["fine"]


def _trouble(row: EdgeRow) -> tuple[bool, int, int, str, str]:
    """The worst first."""
    return (
        row.state != "undeclared" or not row.handoffs,
        -row.missed - row.extra,
        -row.handoffs,
        row.source,
        row.target,
    )


def _drawing(of: _Merged, busiest: int, *, titled: bool) -> dict[str, Any]:
    """What `graph.js` needs of one graph; of too many agents, those that were busiest."""
    names = list(of.visits)
    if len(names) > MAX_DRAWN:
        wanted: Counter[str] = Counter()
        for edge in of.traffic:
            wanted[edge.target] += edge.wanted
        kept = sorted(names, key=lambda name: (name not in of.starts, -of.visits[name], -wanted[name], name))
        chosen = set(kept[:MAX_DRAWN])
        names = [name for name in names if name in chosen]
    places = {name: place for place, name in enumerate(names)}
    edges = []
    for edge in of.traffic:
        if edge.source not in places or edge.target not in places:
            continue
        row = _edge_row(edge, of)
        if not row.handoffs and not row.wanted and not edge.declared:
            continue
        edges.append(
            {
                "from": places[edge.source],
                "to": places[edge.target],
                "share": row.handoffs / busiest if busiest else 0,
                "state": row.state,
                "call": bool(edge.calls) if row.handoffs else "call" in edge.declared,
                "label": _edge_label(row),
                "title": _edge_title(row),
                "href": row.made_link or row.wanted_link,
            }
        )
    return {
        "name": words.printable(_name(of.name)) if titled else "",
        "nodes": [
            {
                "name": words.one_line(_name(name)),
                "start": name in of.starts,
                "visits": of.visits[name],
                "declared": name in of.declared,
                "href": links.to_trials(agent=name) if of.visits[name] and _linked(name) else None,
            }
            for name in names
        ],
        "edges": edges,
    }


def _edge_label(row: EdgeRow) -> list[tuple[str, str]]:
    """The parts of what stands at an edge, each with its class."""
    parts = [("✗", "bad")] if row.state == "undeclared" else []
    if row.wanted:
        parts.append((f"{row.right:,} of {row.wanted:,}", ""))
    if row.missed:
        parts.append((f"\u2212{row.missed:,}", "warn"))
    if row.extra:
        parts.append((f"+{row.extra:,}", "bad"))
    if row.unjudged:
        parts.append((f"~{row.unjudged:,}", "muted"))
    if row.state == "idle":
        parts.append(("refused" if row.refused else "never", "muted"))
    return parts


def _edge_title(row: EdgeRow) -> str:
    told = [f"{row.right:,} of {words.counted(row.wanted, 'expected handoff')} made"] if row.wanted else []
    told += [f"{row.extra:,} made and not expected"] if row.extra else []
    told += [f"{row.unjudged:,} made in turns not judged for their route"] if row.unjudged else []
    told += [f"{row.refused:,} refused"] if row.refused else []
    told += ["never used"] if row.state == "idle" and not row.refused else []
    told += ["not declared"] if row.state == "undeclared" else []
    kind = " (call)" if row.calls or row.declared == "call" else ""
    return words.one_line(f"{row.source} to {row.target}{kind}: {', '.join(told)}")


def _json(value: Any) -> Markup:
    """JSON that a `script` element can hold, whatever it says."""
    text = json.dumps(value, separators=(",", ":"))  # ASCII only: line separators and lone surrogates are escaped
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


# The heat map.


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """How often one agent was expected and another came."""

    count: int
    shade: str
    """`r1` to `r5` for what is right, `w1` to `w5` for what is wrong: the more of its row, the higher; empty for 0."""
    title: str
    link: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """What came where one agent was expected."""

    name: str
    special: bool
    """No agent's name."""
    cells: tuple[HeatCell, ...]
    total: int
    right: int
    recall: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatColumn:
    """One agent that came, or how the turn went on without one."""

    name: str
    special: bool
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """The confusion matrix; no rows where nothing was decided."""

    columns: tuple[HeatColumn, ...] = ()
    rows: tuple[HeatRow, ...] = ()
    total: int = 0
    right: int = 0
    recall: str = ""
    notes: tuple[str, ...] = ()
    definition: str = DEFINITIONS["confusion"]


_STAY, _OTHERS = "(stay)", "(others)"


def heat_of(cells: Sequence[ConfusionCell], coverage: Sequence[Coverage]) -> Heat:
    """The matrix with its agents swarm by swarm, so that what is right stands on the diagonal."""
    if not cells:
        return Heat()
    counts: Counter[tuple[str | None, tuple[DecisionEnd, str | None]]] = Counter()
    for cell in cells:
        counts[cell.expected, (cell.end, cell.actual)] += cell.count
    order = {agent: place for place, agent in enumerate(_agents_in_order(coverage, cells))}
    expected, came = Counter[str | None](), Counter[tuple[DecisionEnd, str | None]]()
    for (row, column), count in counts.items():
        expected[row] += count
        came[column] += count
    for name in expected:
        if name in order:
            came[("agent", name)] += 0
    rows = sorted(_busiest(expected), key=lambda name: (name is None, order.get(name or "", len(order)), name or ""))
    columns = sorted(
        _busiest(came), key=lambda end: (ENDS.index(end[0]), order.get(end[1] or "", len(order)), end[1] or "")
    )
    more_rows, more_columns = len(expected) - len(rows), len(came) - len(columns)
    right = _right(counts, expected)
    total = sum(expected.values())
    shown = [_heat_row(name, columns, counts, expected[name], right[name], bool(more_columns)) for name in rows]
    if more_rows:
        shown.append(_other_rows(set(expected).difference(rows), columns, counts, right, bool(more_columns)))
    heads = [
        HeatColumn(name=f"({end})" if name is None else _name(name), special=name is None, total=came[end, name])
        for end, name in columns
    ]
    if more_columns:
        rest = sum(count for column, count in came.items() if column not in columns)
        heads.append(HeatColumn(name=_OTHERS, special=True, total=rest))
    notes = [
        f"The {len(some)} busiest of {len(some) + more:,} {what} are shown one by one; the others are summed."
        for some, more, what in ((rows, more_rows, "rows"), (columns, more_columns, "columns"))
        if more
    ]
    return Heat(
        columns=tuple(heads),
        rows=tuple(shown),
        total=total,
        right=sum(right.values()),
        recall=_share(sum(right.values()), total),
        notes=tuple(notes),
    )


_Counts: TypeAlias = Mapping[tuple[str | None, tuple[DecisionEnd, str | None]], int]


def _agents_in_order(coverage: Iterable[Coverage], cells: Iterable[ConfusionCell]) -> dict[str, None]:
    named = {agent: None for one in coverage for agent in one.agents}
    return named | dict.fromkeys(sorted({cell.actual for cell in cells if cell.actual is not None}.difference(named)))


_Key: TypeAlias = Any


def _busiest(counts: Counter[_Key]) -> list[_Key]:
    if len(counts) <= MAX_CELLS:
        return list(counts)
    return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))[: MAX_CELLS - 1]]


def _right(counts: _Counts, expected: Iterable[str | None]) -> dict[str | None, int]:
    """How often the row's own column came."""
    return {name: counts.get((name, ("stayed", None) if name is None else ("agent", name)), 0) for name in expected}


def _heat_row(
    name: str | None,
    columns: Sequence[tuple[DecisionEnd, str | None]],
    counts: _Counts,
    total: int,
    right: int,
    more: bool,
) -> HeatRow:
    said = _STAY if name is None else name
    cells = [_heat_cell(said, column, counts.get((name, column), 0), total) for column in columns]
    if more:
        rest = total - sum(cell.count for cell in cells)
        cells.append(HeatCell(count=rest, shade=_shade("w", rest, total), title="", link=None))
    return HeatRow(
        name=_name(said),
        special=name is None,
        cells=tuple(cells),
        total=total,
        right=right,
        recall=_share(right, total),
    )


def _heat_cell(expected: str, column: tuple[DecisionEnd, str | None], count: int, total: int) -> HeatCell:
    if not count:
        return HeatCell(count=0, shade="", title="", link=None)
    end, name = column
    came = f"({end})" if name is None else name
    right = (expected, end) == (_STAY, "stayed") or (end == "agent" and expected == came)
    return HeatCell(
        count=count,
        shade=_shade("r" if right else "w", count, total),
        title=f"{_name(expected)} expected, {_name(came)} came: {count:,}, {'right' if right else 'wrong'}",
        link=links.to_trials(cell=(expected, came)) if _linked(expected, came) else None,
    )


def _other_rows(
    names: Iterable[str | None],
    columns: Sequence[tuple[DecisionEnd, str | None]],
    counts: _Counts,
    right: Mapping[str | None, int],
    more: bool,
) -> HeatRow:
    names = set(names)
    sums: Counter[tuple[DecisionEnd, str | None]] = Counter()
    for (name, column), count in counts.items():
        if name in names:
            sums[column] += count
    total = sum(sums.values())
    shown = [sums[column] for column in columns]
    if more:
        shown.append(total - sum(shown))
    return HeatRow(
        name=_OTHERS,
        special=True,
        cells=tuple(HeatCell(count=count, shade="", title="", link=None) for count in shown),
        total=total,
        right=sum(right[name] for name in names),
        recall=_share(sum(right[name] for name in names), total),
    )


def _shade(kind: str, count: int, total: int) -> str:
    return f"{kind}{math.ceil(5 * count / total)}" if count else ""


# Incidents.


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One agent on the ring of a loop, with its label."""

    x: float
    y: float
    label_x: float
    label_y: float
    anchor: Literal["start", "middle", "end"]
    text: str
    full: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A loop as a small picture, in the coordinates of its view box; clockwise."""

    view: str
    width: int
    height: int
    nodes: tuple[Node, ...]
    arcs: tuple[str, ...]
    """Paths from each agent to the next."""
    heads: tuple[str, ...]
    """The arrows' heads: points of triangles."""
    times: str
    title: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where an incident was found."""

    label: str
    link: str


@dataclass(frozen=True, slots=True)
class Fact:
    """One piece of evidence."""

    name: str
    text: str
    quoted: bool = False
    """Words of a user, a model or a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One incident, or several that are alike."""

    message: str
    count: int
    facts: tuple[Fact, ...]
    ring: Ring | None
    places: tuple[Place, ...]
    more_places: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KindGroup:
    """The incidents of one kind."""

    kind: IncidentKind
    name: str
    failing: bool
    """Fails a scenario, unless the scenario or the suite says otherwise."""
    counts: str
    rate: str
    link: str
    found: tuple[Found, ...]
    left_out: int
    """Different ones that are not shown."""
    at_least: bool
    """There may be more different ones than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incidents:
    """The incidents of a run by kind, those that fail a scenario first."""

    groups: tuple[KindGroup, ...]
    definition: str = DEFINITIONS["incident_trials"]


def incidents_of(report: Report) -> Incidents:
    """The incidents of the outcomes that have any; alike ones are told once."""
    numbers = [kind for kind in report.metrics.total.incidents if kind.count]
    folded: dict[IncidentKind, _Kind] = {kind.kind: _Kind() for kind in numbers}
    for index in report.with_incidents:
        outcome = report.outcomes[index]
        for incident in outcome.incidents:
            folded.setdefault(incident.kind, _Kind()).add(incident, outcome)
    shares = _allotted([len(folded[kind.kind].alike) for kind in numbers], MAX_INCIDENTS)
    return Incidents(
        groups=tuple(_group(kind, folded[kind.kind], share) for kind, share in zip(numbers, shares, strict=True))
    )


@dataclass(slots=True)
class _Alike:
    """Incidents that are the same but for where they were found and what they cost."""

    first: Incident
    places: list[Place] = field(default_factory=list)
    count: int = 0
    model_calls: int = 0
    tokens: int | None = 0


@dataclass(slots=True)
class _Kind:
    alike: dict[tuple[object, ...], _Alike] = field(default_factory=dict)
    overfull: bool = False

    def add(self, incident: Incident, outcome: Outcome) -> None:
        # What a loop cost stands in its message, and differs from repeat to repeat.
        said = "" if incident.kind == "loop" else incident.message
        key = (incident.agents, incident.times, incident.limit, incident.value, said)
        if key not in self.alike:
            if len(self.alike) >= MAX_DISTINCT:
                self.overfull = True
                return
            self.alike[key] = _Alike(_shortened(incident))
        alike = self.alike[key]
        alike.count += 1
        alike.model_calls += incident.model_calls
        known = alike.tokens is not None and incident.tokens is not None
        alike.tokens = (alike.tokens or 0) + (incident.tokens or 0) if known else None
        if len(alike.places) < MAX_PLACES:
            label = f"{_name(words.trial_name(outcome))}, turn {incident.turn}"
            alike.places.append(Place(label, links.to_trial(outcome, incident.turn)))


def _shortened(incident: Incident) -> Incident:
    """The incident with texts that are safe to keep many of."""
    return Incident(
        kind=incident.kind,
        turn=incident.turn,
        agents=tuple(map(_name, incident.agents)),
        message=_cut(incident.message),
        route=tuple(map(_name, _middle_out(incident.route))),
        limit=incident.limit and _name(incident.limit),
        value=incident.value,
        tool=incident.tool and _name(incident.tool),
        times=incident.times,
        reasons=tuple(_cut(reason) for reason in dict.fromkeys(incident.reasons[:200]) if reason)[:6],
        quotes=tuple(map(_cut, incident.quotes)),
    )


def _middle_out(route: Sequence[str]) -> tuple[str, ...]:
    if len(route) <= MAX_ROUTE:
        return tuple(route)
    half = MAX_ROUTE // 2
    return (*route[:half], f"… {len(route) - 2 * half:,} more …", *route[-half:])


def _allotted(sizes: Sequence[int], room: int) -> list[int]:
    """How many of each are shown: the same share for all, and what some do not need for the others, first to last."""
    shares = [0] * len(sizes)
    while room and shares != list(sizes):
        hungry = [place for place, size in enumerate(sizes) if shares[place] < size]
        for place in hungry:
            more = min(max(room // len(hungry), 1), sizes[place] - shares[place], room)
            shares[place] += more
            room -= more
    return shares


def _group(numbers: IncidentNumbers, kind: _Kind, share: int) -> KindGroup:
    alike = sorted(kind.alike.values(), key=lambda same: -same.count)
    trials = int(numbers.trials.numerator)
    return KindGroup(
        kind=numbers.kind,
        name=words.incident_name(numbers.kind),
        failing=numbers.kind in FAILING,
        counts=f"{numbers.count:,} in {words.counted(trials, 'trial')}",
        rate=f"{words.percent(numbers.trials.value)} of trials, 95 % interval {words.interval(numbers.trials)}",
        link=links.to_trials(incident=numbers.kind),
        found=tuple(_found(same) for same in alike[:share]),
        left_out=len(alike) - share,
        at_least=kind.overfull,
    )


def _found(alike: _Alike) -> Found:
    first = alike.first
    return Found(
        message=_message(first),
        count=alike.count,
        facts=tuple(_facts(alike)),
        ring=_ring(first.agents, first.times or 0) if first.kind == "loop" else None,
        places=tuple(alike.places),
        more_places=alike.count - len(alike.places),
    )


def _message(incident: Incident) -> str:
    if incident.kind != "loop":
        return incident.message
    return f"{' → '.join(incident.agents)} went round {incident.times or 0:,} times in one turn."


def _told(incident: Incident) -> bool:
    """Whether the message says the route already."""
    round_and_round = (*incident.agents * (incident.times or 0), incident.agents[0]) if incident.agents else ()
    return incident.kind in ("limit_hit", "bounce") or incident.route == round_and_round[: len(incident.route)]


_QUOTES: dict[IncidentKind, tuple[str, ...]] = {
    "error_masked": ("failed with", "said"),
    "announced_not_made": ("said",),
    "repeated_call": ("called with", "answered"),
    "invalid_history": ("rule",),
}


def _facts(alike: _Alike) -> Iterator[Fact]:
    incident = alike.first
    if incident.limit is not None:
        yield Fact("limit", f"{incident.limit} = {incident.value}")
    if incident.tool is not None:
        yield Fact("tool", incident.tool)
    if alike.model_calls:
        spent = "tokens unknown" if alike.tokens is None else words.counted(alike.tokens, "token")
        together = ", all together" if alike.count > 1 else ""
        yield Fact("cost", f"{words.counted(alike.model_calls, 'model call')}, {spent}{together}")
    if incident.route and not _told(incident):
        yield Fact("route so far", " → ".join(incident.route))
    if incident.kind == "stuck" and incident.times:
        yield Fact("for", words.counted(incident.times, "turn"))
    if incident.reasons:
        yield Fact("reasons given", "\n".join(incident.reasons), quoted=True)
    for name, quote in zip((*_QUOTES.get(incident.kind, ()), *["said"] * 9), incident.quotes, strict=False):
        yield Fact(name, quote, quoted=True)


_GAP, _HEAD, _AWAY = 11.0, 7.0, 13.0
"""Pixels that an arc keeps from an agent, length of an arrow's head, and a label's distance from the ring."""


def _ring(cycle: Sequence[str], times: int) -> Ring | None:
    """The agents of a cycle evenly on a circle, with an arrow from each to the next; of too many, nothing."""
    count = len(cycle)
    if not 2 <= count <= MAX_RING:
        return None
    radius = {2: 26.0, 3: 30.0}.get(count, 22.0 + 5.5 * count)
    first = math.pi if count == 2 else -math.pi / 2
    angles = [first + 2 * math.pi * place / count for place in range(count)]
    texts = [words.one_line(name if len(name) <= 18 else f"{name[:17]}…") for name in cycle]
    labels = [_label(angle, radius) for angle in angles]
    left = max(_wide(text) + abs(x) for text, (x, _, anchor) in zip(texts, labels, strict=True) if anchor != "start")
    right = max(_wide(text) + abs(x) for text, (x, _, anchor) in zip(texts, labels, strict=True) if anchor != "end")
    sides = max(left, right, radius + 8)
    height = radius + (10 if count == 2 else 26)
    nodes = tuple(
        Node(
            x=_round(radius * math.cos(angle)),
            y=_round(radius * math.sin(angle)),
            label_x=_round(x),
            label_y=_round(y),
            anchor=anchor,
            text=text,
            full=words.one_line(name),
        )
        for angle, (x, y, anchor), text, name in zip(angles, labels, texts, cycle, strict=True)
    )
    arcs, heads = [], []
    for angle in angles:
        start, end = angle + _GAP / radius, angle + 2 * math.pi / count - _GAP / radius
        tip, base = end + 2 / radius, end + (2 - _HEAD) / radius
        arcs.append(
            f"M{_at(radius, start)}A{_round(radius)} {_round(radius)} 0 {int(base - start > math.pi)} 1 "
            f"{_at(radius, base)}"
        )
        heads.append(f"{_at(radius, tip)} {_at(radius + _HEAD / 2, base)} {_at(radius - _HEAD / 2, base)}")
    return Ring(
        view=f"{_round(-sides)} {_round(-height)} {_round(2 * sides)} {_round(2 * height)}",
        width=round(2 * sides),
        height=round(2 * height),
        nodes=nodes,
        arcs=tuple(arcs),
        heads=tuple(heads),
        times=f"\u00d7{times}",
        title=words.one_line(f"{' to '.join((*cycle, cycle[0]))}, {times} times"),
    )


_Anchor: TypeAlias = Literal["start", "middle", "end"]


def _label(angle: float, radius: float) -> tuple[float, float, _Anchor]:
    x, y = (radius + _AWAY) * math.cos(angle), (radius + _AWAY) * math.sin(angle)
    if abs(math.cos(angle)) < 0.3:
        return x, y + (4 if y > 0 else 1), "middle"
    return x, y + 4, "start" if x > 0 else "end"


def _wide(text: str) -> float:
    """About how wide a label is, in pixels."""
    return 7.2 * sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text) + 2


def _round(value: float) -> float:
    return round(value, 1) + 0.0


def _at(radius: float, angle: float) -> str:
    return f"{_round(radius * math.cos(angle))},{_round(radius * math.sin(angle))}"


# Coverage.


@dataclass(frozen=True, slots=True)
class Item:
    """An agent or a handoff, with its trials where there are any."""

    name: str
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Agents or handoffs that lack something."""

    name: str
    items: tuple[Item, ...]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """How many of the declared agents, or handoffs, are covered."""

    what: str
    declared: int
    expected: int
    exercised: int
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """The coverage of one target's graph."""

    name: str
    files: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveragePanel:
    """The coverage of every graph, those with the most left to cover first."""

    graphs: tuple[Covered, ...]
    left_out: int
    definitions: tuple[str, ...] = (DEFINITIONS["coverage_expected"], DEFINITIONS["coverage_exercised"])
    summary_file: str = SUMMARY


MAX_GRAPHS = 30


def coverage_of(coverage: Sequence[Coverage]) -> CoveragePanel:
    """What each target declares, what of it is expected, and what happened."""
    graphs = sorted((_covered(one) for one in coverage), key=lambda one: (-_uncovered(one), one.name))
    return CoveragePanel(graphs=tuple(graphs[:MAX_GRAPHS]), left_out=max(len(graphs) - MAX_GRAPHS, 0))


def _uncovered(one: Covered) -> int:
    return sum(2 * part.declared - part.expected - part.exercised for part in one.parts)


def _covered(one: Coverage) -> Covered:
    def agent(name: str) -> Item:
        return Item(_name(name), links.to_trials(agent=name) if one.visits.get(name) and _linked(name) else None)

    happened = set(one.edges_exercised)

    def edge(pair: Edge) -> Item:
        name = f"{_name(pair[0])} → {_name(pair[1])}"
        return Item(name, links.to_trials(edge=pair) if pair in happened and _linked(*pair) else None)

    return Covered(
        name=_swarm_name(one.target, one.files),
        files=_listed(one.files, 6),
        parts=(
            Part(
                what="agents",
                declared=len(one.agents),
                expected=len(one.agents_expected),
                exercised=len(one.agents_exercised),
                gaps=tuple(_gaps(one.agents, one.agents_expected, one.agents_exercised, agent)),
            ),
            Part(
                what="handoffs",
                declared=len(one.edges),
                expected=len(one.edges_expected),
                exercised=len(one.edges_exercised),
                gaps=tuple(_gaps(one.edges, one.edges_expected, one.edges_exercised, edge)),
            ),
        ),
    )


def _gaps(declared: Sequence[Any], expected: Iterable[Any], exercised: Iterable[Any], item: Any) -> Iterator[Gap]:
    wanted, happened = set(expected), set(exercised)
    for name, found in (
        ("neither expected nor exercised", [one for one in declared if one not in wanted and one not in happened]),
        ("expected, never exercised", [one for one in declared if one in wanted and one not in happened]),
        ("exercised, expected by no scenario", [one for one in declared if one not in wanted and one in happened]),
    ):
        if found:
            yield Gap(name=name, items=tuple(map(item, found[:MAX_GAPS])), more=max(len(found) - MAX_GAPS, 0))


# Latency and cost.


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What model calls took."""

    calls: int
    recorded: str
    """How many answers came from a recording, in words; empty for none."""
    tokens_in: str
    tokens_out: str
    cost: str
    median: str
    p95: str
    bar: tuple[float, float] | None
    """Median and 95th percentile in percent of the slowest row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    """One agent."""

    name: str
    link: str | None
    accuracy: Share
    precision: Share
    recall: Share
    f1: str
    spent: Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class HopRow:
    """One edge."""

    source: str
    target: str
    link: str | None
    handoffs: int
    precision: Share
    recall: Share
    spent: Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rate as it is shown."""

    percent: str
    of: str
    interval: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsPanel:
    """Accuracy, latency and cost of every agent and every hop."""

    agents: tuple[AgentRow, ...]
    agents_left_out: int
    hops: tuple[HopRow, ...]
    hops_left_out: int
    recorded: bool
    definitions: Mapping[str, str] = field(default_factory=lambda: DEFINITIONS)
    summary_file: str = SUMMARY


def agents_of(agents: Sequence[AgentNumbers], hops: Sequence[HopNumbers]) -> AgentsPanel:
    """The busiest agents and hops."""
    asked = sorted(agents, key=lambda row: (-row.model_calls, row.agent))
    made = sorted(hops, key=lambda row: (-row.handoffs, row.source, row.target))
    slowest_agent = max((row.latency.p95 or 0 for row in asked[:MAX_ROWS]), default=0)
    slowest_hop = max((row.latency.p95 or 0 for row in made[:MAX_ROWS]), default=0)
    return AgentsPanel(
        agents=tuple(_agent_row(row, slowest_agent) for row in asked[:MAX_ROWS]),
        agents_left_out=max(len(asked) - MAX_ROWS, 0),
        hops=tuple(_hop_row(row, slowest_hop) for row in made[:MAX_ROWS]),
        hops_left_out=max(len(made) - MAX_ROWS, 0),
        recorded=any(row.replayed for row in agents),
    )


def _agent_row(row: AgentNumbers, slowest: float) -> AgentRow:
    came = row.model_calls or row.precision.denominator
    return AgentRow(
        name=_name(row.agent),
        link=links.to_trials(agent=row.agent) if came and _linked(row.agent) else None,
        accuracy=_rate(row.accuracy),
        precision=_rate(row.precision),
        recall=_rate(row.recall),
        f1=words.percent(row.f1.value),
        spent=_spent(row, slowest),
    )


def _hop_row(row: HopNumbers, slowest: float) -> HopRow:
    pair = (row.source, row.target)
    return HopRow(
        source=_name(row.source),
        target=_name(row.target),
        link=links.to_trials(edge=pair) if row.handoffs and _linked(*pair) else None,
        handoffs=row.handoffs,
        precision=_rate(row.precision),
        recall=_rate(row.recall),
        spent=_spent(row, slowest),
    )


def _spent(row: AgentNumbers | HopNumbers, slowest: float) -> Spent:
    times = row.latency
    return Spent(
        calls=row.model_calls,
        recorded=_recorded(row.replayed, row.model_calls),
        tokens_in=_amount(row.input_tokens) if row.model_calls else "",
        tokens_out=_amount(row.output_tokens) if row.model_calls else "",
        cost=_money(row.cost) if row.model_calls else "",
        median=_time(times.median, row.model_calls),
        p95=_time(times.p95, row.model_calls),
        bar=_bar(times, slowest),
    )


def _recorded(replayed: int, calls: int) -> str:
    if not replayed:
        return ""
    return "recorded" if replayed == calls else f"{replayed:,} recorded"


def _amount(tokens: Amount) -> str:
    """A sum; `≥` where something is unknown."""
    return "unknown" if tokens.value is None else f"{'≥ ' if tokens.unknown else ''}{tokens.value:,}"


def _money(cost: Cost) -> str:
    """In US dollars."""
    return "unknown" if cost.value is None else f"{'≥ ' if cost.unknown else ''}{cost.value:.3g}"


def _time(value: float | None, calls: int) -> str:
    if value is None:
        return "unknown" if calls else ""
    return words.seconds(value) if value >= 0.001 else "< 1 ms"


def _bar(times: Latency, slowest: float) -> tuple[float, float] | None:
    if times.median is None or times.p95 is None or not slowest:
        return None
    return round(100 * times.median / slowest, 1), round(100 * times.p95 / slowest, 1)


def _rate(rate: Rate) -> Share:
    if rate.value is None:
        return Share(percent="n/a", of="", interval="")
    return Share(percent=words.percent(rate.value), of=words.fraction(rate), interval=words.interval(rate))


# What all of them share.


def _name(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}… [cut: {MAX_TEXT:,} of {len(text):,} characters]"


def _linked(*names: str) -> bool:
    return all(len(name) <= MAX_LINKED for name in names)


def _share(part: int, whole: int) -> str:
    return words.percent(part / whole if whole else None)


def _listed(names: Sequence[str], room: int) -> str:
    shown = ", ".join(map(_name, names[:room]))
    return f"{shown} and {len(names) - room:,} more" if len(names) > room else shown
