"""Links into the page: what a reader of fragments finds in them is what was put in."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.outcome import Outcome
from chatflow_eval.writers import links

OUTCOME = Outcome(file="scenarios/a.scenario.yaml", line=3, scenario="refund", status="passed")


def read(link: str) -> dict[str, str]:
    """A fragment as `URLSearchParams` reads it."""
    return dict(parse_qsl(link[1:], keep_blank_values=True))


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (links.to_section("graph"), "#graph"),
        (links.to_trials(), "#trials"),
        (links.to_trials(status="failed", tag="smoke"), "#trials&status=failed&tag=smoke"),
        (links.to_trials(edge=("A", "B")), "#trials&edge=A%3EB"),
        (links.to_trials(cell=("(stay)", "Tech")), "#trials&cell=%28stay%29%3ETech"),
        (links.to_trials(q="a & b"), "#trials&q=a%20%26%20b"),
        (links.to_trials(scenario=("a.yaml", "x")), "#trials&scenario=a.yaml::x"),
        (links.to_trial(OUTCOME), "#trial=scenarios/a.scenario.yaml::refund"),
        (links.to_trial(OUTCOME, 2), "#trial=scenarios/a.scenario.yaml::refund&turn=2"),
    ],
)
def test_links_look_like_this(link: str, expected: str) -> None:
    assert link == expected


def test_a_trial_is_found_by_its_outcome_and_by_its_key() -> None:
    other = replace(OUTCOME, model="gpt-4o", repeat=3, target="agents")
    assert links.to_trial(other) == links.to_trial(other.key)
    assert read(links.to_trial(other)) == {
        "trial": "scenarios/a.scenario.yaml::refund",
        "model": "gpt-4o",
        "repeat": "3",
        "target": "agents",
    }


def test_trials_with_different_keys_have_different_links() -> None:
    variants = [
        OUTCOME,
        *(replace(OUTCOME, **{name: "x"}) for name in ("file", "scenario", "model", "target")),  # type: ignore[arg-type]
        replace(OUTCOME, repeat=2),
    ]
    assert len({links.to_trial(each) for each in variants}) == len(variants)


@given(st.text(), st.text())
def test_any_two_names_survive_being_joined(one: str, other: str) -> None:
    assert [unquote(part) for part in links.join((one, other)).split(">")] == [one, other]


@given(st.text(st.characters(codec="utf-8")))
def test_any_name_survives_being_a_filter_and_breaks_nothing(name: str) -> None:
    link = links.to_trials(agent=name, edge=(name, name))
    assert read(link) == {"trials": "", "agent": name, "edge": links.join((name, name))}
    assert not set(link) & set(" <>\"'")


def test_half_a_character_is_spelled_out() -> None:
    assert read(links.to_trials(tag="\ud800"))["tag"] == "\\ud800"
