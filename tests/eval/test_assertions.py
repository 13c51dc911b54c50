"""Assertions about routing: what they accept, and what a failure shows."""

from __future__ import annotations

import pytest

from chatflow_eval import (
    assert_ends_at,
    assert_handed_off_to,
    assert_no_loops,
    assert_route,
    assert_within_limits,
)
from chatflow_eval.trace import Hop, LimitStep, Topology, Trace, TurnTrace

TOPOLOGY = Topology(start="Triage", agents=("Triage", "Billing", "Tech"))


def turn(*targets: str, start: str = "Triage", refused: str | None = None, limit: bool = False) -> TurnTrace:
    agents = (start, *targets)
    hops = [
        Hop(source=source, target=target, tool=f"transfer_to_{target.lower()}")
        for source, target in zip(agents, targets, strict=False)
    ]
    if refused:
        hops.append(Hop(source=agents[-1], target=refused, accepted=False, why="limit", message="no more transfers"))
    limits = [LimitStep(agent=agents[-1], limit="max_handoffs_per_turn", value=5)] if limit else []
    return TurnTrace(user="hello", start_agent=start, end_agent=agents[-1], reply="Sure.", steps=(*hops, *limits))


def trace(*turns: TurnTrace) -> Trace:
    return Trace(topology=TOPOLOGY, turns=turns)


def test_any_accepted_hop_of_the_last_turn_counts() -> None:
    assert_handed_off_to(trace(turn("Billing", "Tech")), "Billing")
    with pytest.raises(AssertionError, match="handed off to nobody"):
        assert_handed_off_to(trace(turn("Billing"), turn(start="Billing")), "Billing")


def test_a_refused_handoff_is_none_and_the_reason_is_shown() -> None:
    with pytest.raises(AssertionError, match=r"refused: no more transfers"):
        assert_handed_off_to(trace(turn(refused="Billing")), "Billing")


def test_a_failure_shows_route_and_transcript() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_route(trace(turn("Tech")), "Triage -> Billing")
    text = str(caught.value)
    assert "expected route Triage -> Billing, actual route Triage -> Tech" in text
    assert "user: hello" in text
    assert "Triage -> Tech by transfer_to_tech" in text
    assert "reply by Tech: Sure." in text


def test_the_whole_conversations_route_is_the_turns_joined() -> None:
    conversation = trace(turn("Billing"), turn("Triage", "Tech", start="Billing"))
    assert_route(conversation, "Billing -> Triage -> Tech")
    assert_route(conversation, "Triage -> Billing -> Triage -> Tech", whole=True)
    with pytest.raises(AssertionError):
        assert_route(conversation, "Triage -> Billing", whole=True)


def test_ends_at_is_who_replied() -> None:
    assert_ends_at(trace(turn("Billing")), "Billing")
    with pytest.raises(AssertionError, match="it ended at Billing"):
        assert_ends_at(trace(turn("Billing")), "Triage")


def test_loops_and_limits_of_any_turn_count() -> None:
    calm = turn("Billing")
    assert_no_loops(trace(calm))
    assert_within_limits(trace(calm))
    with pytest.raises(AssertionError, match="expected no loops: turn 1"):
        assert_no_loops(trace(turn("Billing", "Triage", "Billing"), calm))
    with pytest.raises(AssertionError, match="expected no limit to be hit: turn 1"):
        assert_within_limits(trace(turn(limit=True), calm))


def test_nothing_said_yet_is_a_mistake_of_the_test() -> None:
    with pytest.raises(ValueError, match="say something first"):
        assert_ends_at(trace(), "Triage")
