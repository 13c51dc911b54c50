"""Accuracy, latency and cost of every agent and every hop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chatflow_eval.metrics import DEFINITIONS, AgentNumbers, Amount, Cost, HopNumbers, Latency, Rate
from chatflow_eval.report import SUMMARY
from chatflow_eval.writers import links, words
from chatflow_eval.writers.panels import names

MAX_ROWS = 200
"""Rows of the tables of agents and of hops."""


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
        name=names.shorten(row.agent),
        link=links.to_trials(agent=row.agent) if came and names.may_link(row.agent) else None,
        accuracy=_rate(row.accuracy),
        precision=_rate(row.precision),
        recall=_rate(row.recall),
        f1=words.percent(row.f1.value),
        spent=_spent(row, slowest),
    )


def _hop_row(row: HopNumbers, slowest: float) -> HopRow:
    pair = (row.source, row.target)
    return HopRow(
        source=names.shorten(row.source),
        target=names.shorten(row.target),
        link=links.to_trials(edge=pair) if row.handoffs and names.may_link(*pair) else None,
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
    """In US dollars; what is known to cost nothing says nothing of the rest."""
    if cost.value is None or (cost.unknown and not cost.value):
        return "unknown"
    return f"{'≥ ' if cost.unknown else ''}{cost.value:.3g}"


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
