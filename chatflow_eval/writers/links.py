"""Links into the HTML report: a section, a filtered list of trials, one trial, a turn in it."""

from __future__ import annotations

from typing import Literal, TypeAlias
from urllib.parse import quote, urlencode

from chatflow_eval.incidents import IncidentKind
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import OutcomeKey

Section: TypeAlias = Literal[
    "changes", "confusion", "graph", "incidents", "coverage", "agents", "scenarios", "models", "trials"
]

Pair: TypeAlias = tuple[str, str]
"""Two names, as from and to, or as expected and actual."""


def to_section(section: Section) -> str:
    """The link to a section of the page."""
    return f"#{section}"


def to_trials(
    *,
    status: Status | Literal["unexpected", "yardstick"] | None = None,
    tag: str | None = None,
    agent: str | None = None,
    edge: Pair | None = None,
    expected: Pair | None = None,
    cell: Pair | None = None,
    incident: IncidentKind | None = None,
    model: str | None = None,
    target: str | None = None,
    scenario: Pair | None = None,
    q: str | None = None,
) -> str:
    """The link to the trials that all of these are true of.

    `edge` is a handoff that was made, `expected` one that was expected, `cell` an expected and an actual agent of one
    routing decision (with `(stay)`, and `(stayed)`, `(none)`, `(error)`), `scenario` a file and an id, `q` searched
    words; a status of `unexpected` is every trial that is not as expected, `yardstick` the keyword baseline's.
    """
    pairs = {"edge": edge, "expected": expected, "cell": cell}
    wanted = {
        "status": status,
        "tag": tag,
        "agent": agent,
        **{name: None if pair is None else join(pair) for name, pair in pairs.items()},
        "incident": incident,
        "model": model,
        "target": target,
        "scenario": None if scenario is None else "::".join(scenario),
        "q": q,
    }
    return _fragment("trials", {name: value for name, value in wanted.items() if value is not None})


def to_trial(trial: Outcome | OutcomeKey, turn: int | None = None) -> str:
    """The link to a trial, or to one of its turns (from 1).

    Model `declared`, target `chatflow` and repeat 1 are left out; the page takes what is left out for these where the
    run has them, and for any other where it has not.
    """
    file, scenario, target, model, repeat = trial.key if isinstance(trial, Outcome) else trial
    wanted = {"trial": f"{file}::{scenario}"}
    if model != "declared":
        wanted["model"] = model
    if repeat != 1:
        wanted["repeat"] = str(repeat)
    if target != "chatflow":
        wanted["target"] = target
    if turn is not None:
        wanted["turn"] = str(turn)
    return _fragment("", wanted)


def join(pair: Pair) -> str:
    """Two names as one word, split again at its only plain `>`."""
    return ">".join(name.replace("%", "%25").replace(">", "%3E") for name in pair)


def _fragment(head: str, values: dict[str, str]) -> str:
    """What `URLSearchParams` reads back as the head and the values."""
    said = urlencode(values, quote_via=quote, errors="backslashreplace", safe="/:")
    return "#" + "&".join(part for part in (head, said) if part)
