"""The routing graph: what was expected of every handoff, and what happened, for a table and for `graph.js`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from markupsafe import Markup

from chatflow_eval.metrics import DEFINITIONS
from chatflow_eval.report import SUMMARY
from chatflow_eval.tally import Coverage, Traffic
from chatflow_eval.writers import links, words
from chatflow_eval.writers.panels import names
from chatflow_eval.writers.panels.names import Edge

MAX_SWARMS, MAX_DRAWN, MAX_EDGES = 12, 30, 300
"""Graphs that are drawn, agents in one of them, and rows of their table."""


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
        f"{names.shorten(one.name)}: the {MAX_DRAWN} busiest of {len(one.visits):,} agents are drawn."
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
        name=names.name_swarm(group[0].target, files),
        files=names.list_some(files, 6),
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


def _edge_row(edge: Traffic, of: _Merged) -> EdgeRow:
    handoffs, missed, extra = edge.transfers + edge.calls, edge.wanted - edge.right, edge.made - edge.right
    unjudged = max(handoffs - edge.made, 0)
    state, verdict = _state(edge, of)
    pair = (edge.source, edge.target)
    return EdgeRow(
        source=names.shorten(edge.source),
        target=names.shorten(edge.target),
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
        precision=names.share(edge.right, edge.made),
        recall=names.share(edge.right, edge.wanted),
        made_link=links.to_trials(edge=pair) if handoffs and names.may_link(*pair) else None,
        wanted_link=links.to_trials(expected=pair) if edge.wanted and names.may_link(*pair) else None,
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
    agents = list(of.visits)
    if len(agents) > MAX_DRAWN:
        wanted: Counter[str] = Counter()
        for edge in of.traffic:
            wanted[edge.target] += edge.wanted
        kept = sorted(agents, key=lambda name: (name not in of.starts, -of.visits[name], -wanted[name], name))
        chosen = set(kept[:MAX_DRAWN])
        agents = [name for name in agents if name in chosen]
    places = {name: place for place, name in enumerate(agents)}
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
        "name": words.printable(names.shorten(of.name)) if titled else "",
        "nodes": [
            {
                "name": words.one_line(names.shorten(name)),
                "start": name in of.starts,
                "visits": of.visits[name],
                "declared": name in of.declared,
                "href": links.to_trials(agent=name) if of.visits[name] and names.may_link(name) else None,
            }
            for name in agents
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
