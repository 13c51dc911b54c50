"""What is wrong in a trace though nobody asked: loops, limits, refused and undeclared handoffs, unknown tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.incidents import FAILING, KINDS, Incident, find, history_faults, repetitions
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
    moves = [step.target for step in steps if isinstance(step, Hop) and step.accepted and step.kind == "transfer"]
    return TurnTrace(user="hi", start_agent=start, end_agent=moves[-1] if moves else start, steps=steps)


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
    there_and_back = found(walk("A", "B"), walk("B", "A"), walk("A", "B"), walk("B", "A"))
    assert {incident.kind for incident in there_and_back} == {"bounce"}


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


def test_a_handoff_that_happened_to_somebody_nobody_declares_is_unregistered() -> None:
    known = Topology(start="A", agents=("A", "B"))
    (incident,) = find(Trace(topology=known, turns=(turn("A", hop("A", "Nobody")),)))
    assert (incident.kind, incident.agents) == ("unregistered_target", ("A", "Nobody"))


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


# What was said and done.

DESK = Topology(
    start="Triage",
    agents=("Triage", "BillingAgent", "Tech Support"),
    tools={"Triage": (), "BillingAgent": ("issue_refund", "get_invoice"), "Tech Support": ()},
    edges=(Edge(source="Triage", target="BillingAgent"), Edge(source="Triage", target="Tech Support")),
)


def said(reply: str, *steps: Step, start: str = "Triage") -> TurnTrace:
    told = turn(start, *steps)
    return TurnTrace(user="hi", start_agent=start, end_agent=told.end_agent, reply=reply, steps=told.steps)


def ran(result: object = "ok", *, error: bool = False, **arguments: object) -> ToolStep:
    return ToolStep(agent="BillingAgent", tool="issue_refund", arguments=arguments or {}, result=result, is_error=error)


def kinds(*turns: TurnTrace) -> list[str]:
    return [incident.kind for incident in found(*turns, topology=DESK)]


@pytest.mark.parametrize(
    "reply",
    [
        "I will hand you to Billing now.",
        "Transferring you to the billing team.",
        "Let me connect you with our Billing Agent.",
        "I am passing this on to BillingAgent. Please hold.",
        "You are being transferred to Tech Support.",
        "Thanks. I have forwarded your case to the tech-support department.",
    ],
)
def test_a_handoff_that_is_stated_and_not_made_is_found(reply: str) -> None:
    """B020."""
    (incident,) = found(said(reply), topology=DESK)
    assert incident.kind == "announced_not_made"
    assert incident.agents[0] == "Triage"
    assert incident.quotes[0] in reply


@pytest.mark.parametrize(
    "reply",
    [
        "Shall I transfer you to Billing?",
        "I can transfer you to Billing.",
        "If you want your money back, I will transfer you to Billing.",
        "I cannot transfer you to Billing.",
        "Before I transfer you to Billing, what is your order number?",
        "I recommend contacting Billing.",
        "I will connect you with our partner bank.",
        "BillingAgent handles refunds.",
    ],
)
def test_questions_offers_conditions_and_denials_announce_nothing(reply: str) -> None:
    """Real GPT-4o conversations have a hundred of these offers (tau-bench)."""
    assert kinds(said(reply)) == []


def test_what_is_announced_and_tried_was_made() -> None:
    """B022: before the handoff, and after it; a refused one is an incident of its own."""
    announced = ModelStep(agent="Triage", model="m", text="I will hand you to Billing now.", calls=("t",))
    assert kinds(said("Hello, this is Billing.", announced, hop("Triage", "BillingAgent"))) == []
    assert kinds(said("You have been transferred to Billing.", hop("Triage", "BillingAgent"))) == []
    refused = said("I will hand you to Billing now.", hop("Triage", "BillingAgent", "not_allowed"))
    assert kinds(refused) == ["not_allowed"]


@pytest.mark.parametrize(
    ("reply", "failed"),
    [
        ("Your refund has been processed.", ran("card expired", error=True)),
        ("Done!", ran("card expired", error=True)),
        ("I've issued the refund.", ran("Error: card expired")),
        ("The refund is complete.", ran({"status": "error"})),
    ],
)
def test_success_claimed_over_a_failure_is_found_with_both(reply: str, failed: ToolStep) -> None:
    (incident,) = found(said(reply, failed, start="BillingAgent"), topology=DESK)
    assert (incident.kind, incident.tool) == ("error_masked", "issue_refund")
    assert reply in incident.quotes[-1] or incident.quotes[-1] in reply


@pytest.mark.parametrize(
    ("reply", "steps"),
    [
        ("Unfortunately, the refund failed.", [ran("no", error=True)]),
        ("I'm sorry, it did not work. The rest is done.", [ran("no", error=True)]),
        ("Your refund has been processed.", [ran("no", error=True), ran("ok", card=2)]),
        ("Your refund has been processed.", [ran()]),
        ("Is it done?", [ran("no", error=True)]),
        ("Done.", [ToolStep(agent="BillingAgent", tool="get_invoice", result="Error: none", is_error=True)]),
    ],
)
def test_owned_up_repaired_or_only_looked_up_masks_nothing(reply: str, steps: list[Step]) -> None:
    assert kinds(said(reply, *steps, start="BillingAgent")) == []


def test_a_refused_handoff_is_masked_only_by_a_claim_about_it() -> None:
    """B024."""
    refused = hop("Triage", "BillingAgent", "invalid_arguments")
    assert kinds(said("Done.", refused)) == []
    assert kinds(said("Billing has been informed.", refused)) == ["error_masked"]


def test_the_same_call_with_the_same_answer_is_repeated_and_says_what_it_cost() -> None:
    steps = (asked("BillingAgent"), ran("no", id=1), asked("BillingAgent"), ran("no", id=1))
    (incident,) = found(said("Hm.", *steps, start="BillingAgent"), topology=DESK)
    assert (incident.kind, incident.tool, incident.times) == ("repeated_call", "issue_refund", 2)
    assert (incident.model_calls, incident.tokens) == (1, 20)
    assert incident.quotes == ('{"id": 1}', "no")


def test_other_arguments_another_answer_and_another_turn_are_no_repetition() -> None:
    assert kinds(said("Hm.", ran("no", id=1), ran("no", id=2), start="BillingAgent")) == []
    assert kinds(said("Hm.", ran("pending", id=1), ran("here", id=1), start="BillingAgent")) == []
    assert kinds(*[said("Hm.", ran("no", id=1), start="BillingAgent")] * 2) == []


def test_what_a_provider_would_refuse_is_found_once_a_turn() -> None:
    """B036: a call without its answer; every later request repeats the fault."""
    request = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "t", "arguments": "{}"}}]},
            {"role": "user", "content": "and?"},
        ],
        "tools": [{"function": {"name": "t", "parameters": {"type": "object", "properties": {}}}}],
    }
    faults = history_faults(request, "Triage")
    (incident,) = found(turn("Triage", *faults, *faults), topology=DESK)
    assert (incident.kind, incident.agents, incident.quotes) == ("invalid_history", ("Triage",), ("unanswered_call",))
    assert history_faults({**request, "messages": request["messages"][:1]}, "Triage") == ()


def test_nobody_is_stuck_who_can_still_get_there() -> None:
    """B071: a specialist without a way back, told once for the whole stretch."""
    trace = Trace(topology=DESK, turns=(walk("Triage", "Tech Support"), turn("Tech Support"), turn("Tech Support")))
    ends = (("Tech Support",), ("BillingAgent",), ("BillingAgent",))
    (incident,) = find(trace, ends)
    assert (incident.kind, incident.turn, incident.times) == ("stuck", 2, 2)
    assert incident.agents == ("Tech Support", "BillingAgent")
    assert find(trace) == find(trace, (("Tech Support",),)) == ()
    assert find(Trace(topology=DESK, turns=(turn("Triage"),)), (("BillingAgent",),)) == ()


def test_who_answers_again_after_another_bounced() -> None:
    turns = (turn("A"), walk("A", "B"), walk("B", "A"), turn("A"))
    (incident,) = found(*turns)
    assert (incident.kind, incident.turn, incident.agents) == ("bounce", 3, ("A", "B"))
    assert found(turn("A"), walk("A", "B"), walk("B", "C")) == ()


GOLD = Path(__file__).parents[3] / "shared" / "data" / "routing"


@pytest.mark.skipif(not GOLD.is_dir(), reason=f"needs the public dialogues in {GOLD}")
def test_the_right_routes_of_real_dialogues_are_no_loops() -> None:
    """Swarm style (to the next agent) and hub style (there through triage); real users do go back."""
    loops = dialogues = 0
    for file in GOLD.glob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            dialogue = json.loads(line)
            for hub in (False, True):
                trace = Trace(topology=UNDECLARED, turns=tuple(gold(dialogue, hub=hub)))
                loops += any(incident.kind == "loop" for incident in find(trace))
                dialogues += 1
    assert dialogues > 10_000
    assert loops == 0


def gold(dialogue: Any, *, hub: bool) -> Iterator[TurnTrace]:
    active = start = dialogue["start"]
    for each in dialogue["turns"]:
        wanted = active if active in each["accept"] else each["accept"][0]
        route = [active, *([start] if hub and start not in (active, wanted) else []), wanted]
        yield walk(*(agent for index, agent in enumerate(route) if index == 0 or route[index - 1] != agent))
        active = wanted
