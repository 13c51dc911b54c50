"""The pictures of the HTML report, as plain values: routing graph, heat map, incidents, coverage, cost of each hop."""

from __future__ import annotations

from dataclasses import dataclass

from chatflow_eval.report import Report
from chatflow_eval.writers.panels.agents import AgentsPanel, agents_of
from chatflow_eval.writers.panels.coverage import CoveragePanel, coverage_of
from chatflow_eval.writers.panels.graph import Graph, graph_of
from chatflow_eval.writers.panels.heat import Heat, heat_of
from chatflow_eval.writers.panels.incidents import Incidents, incidents_of


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
