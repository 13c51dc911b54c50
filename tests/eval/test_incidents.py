"""What is wrong in a trace though nobody asked: loops, limits, refused and undeclared handoffs, unknown tools."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.incidents import FAILING, KINDS, Incident, find, repetitions
from chatflow_eval.trace import Edge, Hop, LimitStep, ModelStep, Step, ToolStep, Topology, Trace, TurnTrace

UNDECLARED = Topology(start="A", agents=("A", "B", "C", "D"))
"""Agents of a target that declares neither edges nor tools."""


def asked(agent: str, tokens: int | None = 10) -> ModelStep:
    return ModelStep(agent=agent, model="m", input_tokens=tokens, output_tokens=tokens)


def hop(source: str, target: str, why: str | None = None, reason: str = "", tool: str | None = None) -> Hop:
    return Hop(source=source, target=target, accepted=why is None, why=why, reason=reason, tool=tool)


def call(source: str, target: str, depth: int = 1) -> Hop:
    return Hop(source=source, target=target, kind="call", depth=depth)


def turn(start: str, *steps: Step) -> TurnTrace:
    return TurnTrace(user="hi", start_agent=start, end_agent=start, steps=steps)


def found(*turns: TurnTrace, topology: Topology = UNDECLARED) -> tuple[Incident, ...]:
    return find(Trace(topology=topology, turns=turns))


def walk(*agents: str) -> TurnTrace:
    """A turn in which each agent is asked once and hands off to the next."""
    steps: list[Step] = []
    for source, target in pairwise(agents):
        steps += [asked(source), hop(source, target, reason=f"{source} cannot")]
    return turn(agents[0], *steps, asked(agents[-1]))


# Loops (B061, B065).


@pytest.mark.parametrize(
    ("route", "cycle", "times"),
    [
        ("ABAB", "AB", 2),
        ("ABABAB", "AB", 3),
        ("ABABA", "AB", 2),
        ("ABCABC", "ABC", 2),
        ("DABAB", "AB", 2),
        ("ABABD", "AB", 2),
        ("ABACABAC", "ABAC", 2),
        ("ABABABAB", "AB", 4),
    ],
)
def test_a_cycle_that_stands_twice_in_a_row_is_one_loop(route: str, cycle: str, times: int) -> None:
    """B065: cycles of three agents and more, and cycles after or before other agents, too."""
    (loop,) = found(walk(*route))
    assert (loop.kind, "".join(loop.agents), loop.times) == ("loop", cycle, times)


@pytest.mark.parametrize("route", ["A", "AB", "ABA", "ABCA", "ABCDA", "ABCBA", "ABCDABC", "ABACA"])
def test_going_back_once_is_no_loop(route: str) -> None:
    """B065: `A,B,C,D,A` is legitimate."""
    assert found(walk(*route)) == ()


def test_each_stretch_is_reported_once_even_when_two_overlap() -> None:
    loops = found(walk(*"ABABCBC"))
    assert [("".join(loop.agents), "".join(loop.route)) for loop in loops] == [("AB", "ABAB"), ("BC", "ABABCBC")]


def test_a_loop_says_what_it_cost_and_which_reasons_were_given() -> None:
    """B068: the reasons make the cause visible; the answer after the loop is no part of its cost."""
    (loop,) = found(walk(*"DABAB"))
    assert loop.route == ("D", "A", "B", "A", "B")
    assert (loop.model_calls, loop.tokens) == (3, 60)
    assert loop.reasons == ("A cannot", "B cannot", "A cannot")
    assert loop.message == "A -> B went round 2 times in one turn (3 model calls, 60 tokens)."


def test_the_cost_is_unknown_when_one_call_did_not_report_its_tokens() -> None:
    """B119: unknown is not 0."""
    steps = (asked("A"), hop("A", "B"), asked("B", None), hop("B", "A"), asked("A"), hop("A", "B"), asked("B"))
    (loop,) = found(turn("A", *steps))
    assert (loop.model_calls, loop.tokens) == (3, None)
    assert loop.message.endswith("(3 model calls).")


def test_a_loop_is_within_one_turn() -> None:
    """Users do go back and forth between turns."""
    assert found(walk("A", "B"), walk("B", "A"), walk("A", "B"), walk("B", "A")) == ()


def test_agents_called_again_and_again_are_no_loop() -> None:
    """A call comes back by itself: A calls B, A calls B is not A, B, A, B."""
    assert found(turn("A", *[call("A", "B")] * 3)) == ()
    assert found(turn("A", *[call("A", "B", depth=0)] * 3, hop("A", "C"))) == ()


def test_a_call_in_between_does_not_hide_a_loop_of_transfers() -> None:
    route = (hop("A", "B"), call("B", "C"), hop("B", "A"), call("A", "C"), hop("A", "B"))
    (loop,) = found(turn("A", *route))
    assert loop.agents == ("A", "B")


def test_transfers_inside_a_call_loop_apart_from_those_outside() -> None:
    def inside(source: str, target: str) -> Hop:
        return Hop(source=source, target=target, depth=1)

    looping = (call("A", "B"), inside("B", "C"), inside("C", "B"), inside("B", "C"))
    (loop,) = found(turn("A", *looping, hop("A", "D")))
    assert loop.agents == ("B", "C")
    twice = (call("A", "B"), inside("B", "C"), call("A", "B"), inside("B", "C"))
    assert found(turn("A", *twice)) == ()


def test_refused_handoffs_go_round_nowhere() -> None:
    steps = [
        step for _ in range(3) for step in (hop("A", "B", "invalid_arguments"), hop("B", "A", "invalid_arguments"))
    ]
    assert found(turn("A", *steps)) == ()


def test_the_same_agent_again_is_a_self_handoff_and_no_loop() -> None:
    assert [incident.kind for incident in found(walk(*"AAAA"))] == ["self_handoff"] * 3


def naive(route: str) -> set[tuple[int, int]]:
    """Every stretch that repeats and cannot be made longer, by trying all of them."""
    periods = range(1, len(route) // 2 + 1)
    stretches = {
        (start, stop, period)
        for start in range(len(route))
        for stop in range(start + 1, len(route) + 1)
        for period in periods
        if stop - start >= 2 * period and all(route[i] == route[i + period] for i in range(start, stop - period))
    }
    return {
        (start, stop)
        for start, stop, period in stretches
        if not any((s, e) != (start, stop) and s <= start and stop <= e and p == period for s, e, p in stretches)
    }


@given(st.text("AB", max_size=14) | st.text("ABC", max_size=14))
def test_repetitions_are_all_those_there_are(route: str) -> None:
    got = repetitions(route)
    assert {(start, stop) for start, stop, _ in got} == naive(route)
    assert len(got) == len({(start, stop) for start, stop, _ in got})


@given(st.text("ABC", min_size=1, max_size=5), st.integers(2, 4))
def test_a_repeated_cycle_is_found_whole_by_its_shortest_period(cycle: str, times: int) -> None:
    route = cycle * times
    start, stop, period = max(repetitions(route), key=lambda found: found[1] - found[0])
    assert (start, stop) == (0, len(route))
    assert len(cycle) % period == 0
    assert route == route[:period] * (len(route) // period)


@given(st.lists(st.sampled_from("ABCD"), max_size=6, unique=True))
def test_a_route_without_a_repeated_agent_has_no_repetition(route: list[str]) -> None:
    assert repetitions(route) == []


# Limits.


def test_a_limit_hit_says_which_limit_its_value_and_the_route_so_far() -> None:
    """B063: even if the reply afterwards looks fine."""
    steps = (asked("A"), hop("A", "B"), asked("B"), hop("B", "C", "limit"))
    limit = LimitStep(agent="B", limit="max_handoffs_per_turn", value=1)
    (hit,) = found(TurnTrace(user="hi", start_agent="A", end_agent="B", reply="All fine.", steps=(*steps, limit)))
    assert hit.kind == "limit_hit"
    assert (hit.limit, hit.value, hit.agents, hit.route) == ("max_handoffs_per_turn", 1, ("B",), ("A", "B"))
    assert (hit.model_calls, hit.tokens) == (2, 40)
    assert hit.message == "B reached max_handoffs_per_turn (1) after A -> B."


def test_every_hit_of_a_limit_counts() -> None:
    limit = LimitStep(agent="A", limit="max_tool_iterations", value=10)
    assert [hit.turn for hit in found(turn("A", limit, limit), turn("A", limit))] == [1, 1, 2]


# Handoffs and tools that should not be.

DECLARED = Topology(
    start="A",
    agents=("A", "B", "C"),
    tools={"A": (), "B": ("refund",)},
    edges=(Edge(source="A", target="B"), Edge(source="B", target="A")),
)


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("not_allowed", "not_allowed"),
        ("unregistered", "unregistered_target"),
        ("self", "self_handoff"),
        ("already_transferred", "multiple_transfers"),
    ],
)
def test_a_refused_handoff_is_an_incident_of_its_reason(why: str, kind: str) -> None:
    """B012, B017, B018, B101."""
    (incident,) = found(turn("A", hop("A", "C", why, "please", tool="transfer_to_c")), topology=DECLARED)
    assert (incident.kind, incident.agents, incident.tool) == (kind, ("A", "C"), "transfer_to_c")
    assert incident.route == ("A",)
    assert incident.reasons == ("please",)
    assert "A was refused a handoff to C" in incident.message


def test_bad_arguments_alone_are_no_incident() -> None:
    assert found(turn("A", hop("A", "B", "invalid_arguments")), topology=DECLARED) == ()


def test_a_handoff_that_happened_along_an_edge_nobody_declares_is_not_allowed() -> None:
    """B101: a framework that lets it happen is found out."""
    (incident,) = found(turn("A", hop("A", "C")), topology=DECLARED)
    assert (incident.kind, incident.agents, incident.route) == ("not_allowed", ("A", "C"), ("A", "C"))
    assert "it happened all the same" in incident.message


def test_a_target_that_declares_nothing_breaks_no_rule() -> None:
    ran = ToolStep(agent="A", tool="refund")
    assert found(turn("A", hop("A", "C"), ran)) == ()


def test_a_tool_of_another_agent_that_ran_is_not_allowed() -> None:
    """B101."""
    (incident,) = found(turn("A", ToolStep(agent="A", tool="refund")), topology=DECLARED)
    assert (incident.kind, incident.agents, incident.tool) == ("not_allowed", ("A",), "refund")
    assert found(turn("B", ToolStep(agent="B", tool="refund")), topology=DECLARED) == ()


def test_a_tool_that_does_not_exist_is_unknown() -> None:
    """B016."""
    (incident,) = found(turn("A", ToolStep(agent="A", tool="get_date", known=False)), topology=DECLARED)
    assert (incident.kind, incident.tool) == ("unknown_tool", "get_date")
    assert incident.message == "A called get_date, which it does not have."


def test_a_handoff_to_oneself_that_happened_is_one_too() -> None:
    """B018."""
    (incident,) = found(turn("A", hop("A", "A")), topology=DECLARED)
    assert incident.kind == "self_handoff"


def test_two_transfers_out_of_one_answer_are_multiple() -> None:
    """B012: some runtimes let the last one win."""
    (incident,) = found(turn("A", asked("A"), hop("A", "B"), hop("A", "C"), asked("C")))
    assert (incident.kind, incident.agents) == ("multiple_transfers", ("A", "C"))


def test_calls_out_of_one_answer_and_transfers_out_of_two_are_not() -> None:
    assert found(turn("A", asked("A"), call("A", "B"), call("A", "C"), asked("A"))) == ()
    assert found(turn("A", asked("A"), hop("A", "B"), asked("B"), hop("B", "C"))) == ()


def test_a_trace_that_shows_no_model_is_not_suspected() -> None:
    """Where nothing says who was asked, handoffs cannot be laid at one answer's door."""
    assert found(turn("A", hop("A", "B"), hop("B", "C"))) == ()


def test_incidents_come_in_the_order_in_which_they_happened() -> None:
    first = turn("A", ToolStep(agent="A", tool="x", known=False), hop("A", "Ghost", "unregistered"))
    second = turn("A", hop("A", "A", "self"), LimitStep(agent="A", limit="max_handoffs_per_turn", value=0))
    assert [(incident.turn, incident.kind) for incident in found(first, second, topology=DECLARED)] == [
        (1, "unknown_tool"),
        (1, "unregistered_target"),
        (2, "self_handoff"),
        (2, "limit_hit"),
    ]


steps = st.lists(
    st.builds(
        hop, st.sampled_from("AB"), st.sampled_from("ABC"), st.sampled_from([None, "self", "limit", "unregistered"])
    )
    | st.builds(call, st.sampled_from("AB"), st.sampled_from("ABC"), st.integers(0, 2))
    | st.builds(asked, st.sampled_from("AB"), st.none() | st.integers(0, 9))
    | st.builds(LimitStep, agent=st.just("A"), limit=st.just("max_tool_iterations"), value=st.integers(0, 9))
    | st.builds(ToolStep, agent=st.just("A"), tool=st.just("t"), known=st.booleans()),
    max_size=12,
)


@given(steps, st.sampled_from([UNDECLARED, DECLARED]))
def test_whatever_happened_is_judged_the_same_way_twice(happened: list[Step], topology: Topology) -> None:
    once = found(turn("A", *happened), topology=topology)
    assert once == found(turn("A", *happened), topology=topology)
    assert all(incident.message and incident.agents and incident.kind in KINDS for incident in once)


def test_the_kinds_that_fail_stand_before_those_that_warn() -> None:
    assert set(KINDS[: len(FAILING)]) == FAILING
