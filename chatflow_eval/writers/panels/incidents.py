"""What went wrong in traces, by kind: each with its evidence, its cost, and where it was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chatflow_eval.incidents import FAILING, Incident, IncidentKind
from chatflow_eval.metrics import DEFINITIONS, IncidentNumbers
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report
from chatflow_eval.writers import links, words
from chatflow_eval.writers.panels import names, rings
from chatflow_eval.writers.panels.rings import Ring

MAX_INCIDENTS, MAX_DISTINCT, MAX_PLACES = 100, 1_000, 3
"""Incidents shown, different ones of one kind held in memory, and places where each was found."""
MAX_ROUTE = 12
"""Agents of a route that is told whole."""


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
            label = f"{names.shorten(words.trial_name(outcome))}, turn {incident.turn}"
            alike.places.append(Place(label, links.to_trial(outcome, incident.turn)))


def _shortened(incident: Incident) -> Incident:
    """The incident with texts that are safe to keep many of."""
    return Incident(
        kind=incident.kind,
        turn=incident.turn,
        agents=tuple(map(names.shorten, incident.agents)),
        message=names.cut(incident.message),
        route=tuple(map(names.shorten, _middle_out(incident.route))),
        limit=incident.limit and names.shorten(incident.limit),
        value=incident.value,
        tool=incident.tool and names.shorten(incident.tool),
        times=incident.times,
        reasons=tuple(names.cut(reason) for reason in dict.fromkeys(incident.reasons[:200]) if reason)[:6],
        quotes=tuple(map(names.cut, incident.quotes)),
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
        ring=rings.draw(first.agents, first.times or 0) if first.kind == "loop" else None,
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
