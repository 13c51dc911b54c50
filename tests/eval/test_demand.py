"""What expectations ask of the routing: change or stay, who may end a turn, and what a mere yardstick would score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from chatflow_eval.demand import Demand, demands
from chatflow_eval.scenario import Scenario, Turn
from chatflow_eval.trace import Topology

SWARM = Topology(start="A", agents=("A", "B", "C"))


def asked(*expects: Mapping[str, Any] | None, overall: Mapping[str, Any] | None = None) -> tuple[Demand, ...]:
    turns = [Turn("hi", expect="none" if expect is None else dict(expect)) for expect in expects]
    scenario = Scenario(id="s", target=lambda: None, turns=turns, expect=dict(overall) if overall else None)
    return demands(scenario, SWARM)


def kinds(*expects: Mapping[str, Any] | None) -> list[str | None]:
    return [demand.asks for demand in asked(*expects)]


@pytest.mark.parametrize(
    ("expect", "kind", "ends"),
    [
        ({"route": "A -> B"}, "first", ("B",)),
        ({"route": "B -> C"}, "switch", ("C",)),
        ({"route": "A"}, "stay", ("A",)),
        ({"stay": True}, "stay", ()),
        ({"route": "A -> B?"}, "either", ("A", "B")),
        ({"route": "A -> C | B"}, "first", ("C", "B")),
        ({"route": "A => B"}, "first", ("A",)),
        ({"route": "A -> B?-> C"}, "first", ("C",)),
        ({"route": "A -> ..."}, "either", ()),
        ({"route": "A -> ~B"}, "first", ("A", "C")),
        ({"ends_at": "B"}, "first", ("B",)),
        ({"ends_at": "A"}, "stay", ("A",)),
        ({"ends_at": ["C", "A"]}, "either", ("C", "A")),
        ({"starts_at": "A"}, "either", ()),
        ({"handoffs": 1}, None, ()),
    ],
)
def test_a_turn_asks_for_what_its_expectation_accepts(
    expect: Mapping[str, Any], kind: str | None, ends: tuple[str, ...]
) -> None:
    (demand,) = asked(expect)
    assert (demand.turn, demand.asks, demand.ends) == (1, kind, ends)


def test_only_the_first_change_leaves_the_start_for_the_first_time() -> None:
    assert kinds({"route": "A -> B"}, {"stay": True}, {"route": "B -> A"}, {"route": "A -> C"}) == [
        "first",
        "stay",
        "switch",
        "switch",
    ]


def test_an_end_is_held_against_where_the_conversation_was_expected_before() -> None:
    assert kinds({"ends_at": "B"}, {"ends_at": "B"}, {"ends_at": ["B", "C"]}, {"ends_at": "C"}, {"ends_at": "A"}) == [
        "first",
        "stay",
        "either",
        "either",
        "switch",
    ]


def test_after_a_turn_without_expectations_anybody_may_have_the_conversation() -> None:
    assert kinds({"ends_at": "B"}, None, {"ends_at": "B"}) == ["first", None, "either"]


def test_the_yardstick_goes_right_the_first_time_and_then_stays() -> None:
    """'Right first agent, then never hand off': of several accepted agents, the first that is named."""
    found = asked({"stay": True}, {"ends_at": ["B", "C"]}, {"ends_at": "B"}, {"route": "B -> C"}, {"ends_at": "C"})
    assert [demand.unmoved for demand in found] == [True, True, True, False, False]


def test_agents_and_handoffs_expected_by_name_are_known_and_wildcards_name_nobody() -> None:
    turn, overall = asked({"route": "A -> B? -> C"}, overall={"visits": ["B -> A"], "route": "A -> ... -> C"})
    assert turn.hops == (("A", "B"), ("A", "C"), ("B", "C"))
    assert turn.agents == ("A", "B", "C")
    assert (overall.turn, overall.hops, overall.agents) == (None, (("A", "C"), ("B", "A")), ("A", "B", "C"))
