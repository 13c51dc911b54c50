"""What each target declares, what of it scenarios expect, and what happened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chatflow_eval.metrics import DEFINITIONS
from chatflow_eval.report import SUMMARY
from chatflow_eval.tally import Coverage
from chatflow_eval.writers import links
from chatflow_eval.writers.panels import names
from chatflow_eval.writers.panels.names import Edge

MAX_GRAPHS, MAX_GAPS = 30, 40
"""Graphs shown, and names in one list of what is not covered."""


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


def coverage_of(coverage: Sequence[Coverage]) -> CoveragePanel:
    """What each target declares, what of it is expected, and what happened."""
    graphs = sorted((_covered(one) for one in coverage), key=lambda one: (-_uncovered(one), one.name))
    return CoveragePanel(graphs=tuple(graphs[:MAX_GRAPHS]), left_out=max(len(graphs) - MAX_GRAPHS, 0))


def _uncovered(one: Covered) -> int:
    return sum(2 * part.declared - part.expected - part.exercised for part in one.parts)


def _covered(one: Coverage) -> Covered:
    def agent(name: str) -> Item:
        return Item(
            names.shorten(name), links.to_trials(agent=name) if one.visits.get(name) and names.may_link(name) else None
        )

    happened = set(one.edges_exercised)

    def edge(pair: Edge) -> Item:
        name = f"{names.shorten(pair[0])} → {names.shorten(pair[1])}"
        return Item(name, links.to_trials(edge=pair) if pair in happened and names.may_link(*pair) else None)

    return Covered(
        name=names.name_swarm(one.target, one.files),
        files=names.list_some(one.files, 6),
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
