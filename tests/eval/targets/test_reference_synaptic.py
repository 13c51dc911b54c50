"""The third document's agents as a target: swarms declared in files; graphs, swarms and supervisors of factories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chatflow_eval import loader
from chatflow_eval.errors import TargetError
from chatflow_eval.incidents import find
from chatflow_eval.outcome import collect
from chatflow_eval.scenario import Limits, Scenario, SettingsSpec, Swarm, Turn
from chatflow_eval.targets import Opening
from chatflow_eval.targets.reference import ReferenceTarget
from chatflow_eval.trace import Edge, LimitStep, Trace, TurnTrace
from chatflow_eval.trial import plan
from chatflow_runtime.dialects.synaptic import (
    END,
    FnNode,
    MessageState,
    StateGraph,
    SwarmAgent,
    create_agent,
    create_handoff_tool,
    create_supervisor,
    create_swarm,
)
from chatflow_runtime.graph import CompiledGraph, StateRunner
from chatflow_runtime.tools import Tool
from chatflow_runtime.types import AssistantMessage

ROOT = Path(__file__).parents[3]

DECLARED = Swarm.model_validate(
    {
        "dialect": "synaptic",
        "agents": {
            "Triage": {"handoffs": ["Billing-2", {"agent": "human_review", "description": "Escalate"}]},
            "Billing-2": {"handoffs": ["Triage"], "tools": {"refund": {"returns": "paid"}}},
            "human_review": {"instructions": "Decide."},
        },
    }
)


def to(name: str) -> Tool:
    return create_handoff_tool(name, f"Send to {name}")


def graph() -> CompiledGraph:
    """The document's topology, with a publisher that is a function."""

    def route(state: MessageState) -> str:
        last = state.last_message()
        names = [call.name for call in last.tool_calls] if last else []
        return next((each.removeprefix("transfer_to_") for each in names if each in ("transfer_to_reviewer",)), END)

    return (
        StateGraph()
        .add_node("drafter", create_agent("m", [to("reviewer"), to("human_review"), Tool("look", func=lambda: 1)]))
        .add_node("reviewer", create_agent("m", []))
        .add_node("publisher", FnNode(lambda state: state.adding(AssistantMessage("publisher", "Out."))))
        .set_entry_point("drafter")
        .add_conditional_edges("drafter", route, {"reviewer": "reviewer", END: "publisher"})
        .add_edge("reviewer", "drafter")
        .compile(step_limit=6)
    )


def team() -> StateRunner:
    return create_supervisor("m", [("billing", create_agent("m", [Tool("refund", func=lambda: "paid")]))])


async def said(*scripts: list[Any], target: Any, **opening: Any) -> list[TurnTrace]:
    given: dict[str, Any] = {"limits": Limits(), "settings": SettingsSpec(), **opening}
    async with ReferenceTarget(target).open(Opening(**given)) as conversation:
        return [await conversation.say("hello", script=Turn("hello", script=script).script) for script in scripts]


def hops(turn: TurnTrace) -> list[tuple[str, str, str, str | None]]:
    return [(hop.source, hop.target, hop.kind, hop.tool) for hop in turn.accepted]


# --- declared in a file


def test_names_and_handoffs_are_as_declared() -> None:
    declared = ReferenceTarget(DECLARED).topology()
    assert declared.edges == (
        Edge(source="Triage", target="Billing-2", tool="transfer_to_Billing-2"),
        Edge(source="Triage", target="human_review", tool="transfer_to_human_review"),
        Edge(source="Billing-2", target="Triage", tool="transfer_to_Triage"),
    )
    assert declared.tools["Billing-2"] == ("refund",)


async def test_a_declared_swarm_keeps_its_active_agent() -> None:
    first, second = await said(
        [{"transfer": "Billing-2"}, {"call": "refund"}, {"say": "Paid."}], [{"say": "Bye."}], target=DECLARED
    )
    assert (first.agents, first.end_agent) == (("Triage", "Billing-2"), "Billing-2")
    assert (second.start_agent, second.agents) == ("Billing-2", ("Billing-2",))


async def test_a_handoff_that_is_not_declared_is_not_allowed() -> None:
    """The document's swarm is a full mesh; a file says whom an agent can hand off to."""
    (turn,) = await said([{"transfer": "human_review"}, {"transfer": "Triage"}, {"say": "I decide."}], target=DECLARED)
    assert turn.agents == ("Triage", "human_review")
    assert [hop.why for hop in turn.hops if not hop.accepted] == ["not_allowed"]


def test_a_name_that_no_tool_can_have_is_an_error_of_the_target() -> None:
    agents = {"Triage": {"handoffs": ["Billing Agent"]}, "Billing Agent": {}}
    with pytest.raises(TargetError, match="'transfer_to_Billing Agent'"):
        ReferenceTarget(Swarm.model_validate({"dialect": "synaptic", "agents": agents})).topology()


# --- graphs


def test_a_graphs_nodes_are_its_agents_and_its_ways_are_edges() -> None:
    declared = ReferenceTarget(graph).topology()
    assert (declared.start, declared.agents) == ("drafter", ("drafter", "reviewer", "publisher"))
    assert declared.tools == {"drafter": ("look",), "reviewer": (), "publisher": ()}
    assert declared.edges == (
        Edge(source="drafter", target="reviewer", tool="transfer_to_reviewer"),
        Edge(source="drafter", target="publisher"),
        Edge(source="reviewer", target="drafter"),
    )


async def test_a_graphs_hops_are_in_the_trace() -> None:
    (turn,) = await said([{"transfer": "reviewer"}, {"say": "Short."}, {"say": "Longer."}], target=graph)
    assert hops(turn) == [
        ("drafter", "reviewer", "transfer", "transfer_to_reviewer"),
        ("reviewer", "drafter", "transfer", None),
        ("drafter", "publisher", "transfer", None),
    ]
    assert (turn.start_agent, turn.end_agent, turn.reply) == ("drafter", "publisher", "Out.")
    assert find(Trace(topology=ReferenceTarget(graph).topology(), turns=(turn,))) == ()


async def test_every_turn_of_a_graph_starts_at_its_entry_point() -> None:
    first, second = await said([{"say": "One."}], [{"say": "Two."}], target=graph)
    assert (first.start_agent, first.end_agent) == (second.start_agent, second.end_agent) == ("drafter", "publisher")


async def test_a_wish_that_the_edges_do_not_grant_is_seen() -> None:
    (turn,) = await said([{"transfer": "human_review"}], target=create_agent("m", [to("human_review")]))
    trace = Trace(topology=ReferenceTarget(graph).topology(), turns=(turn,))
    assert [incident.kind for incident in find(trace)] == ["unregistered_target"]


async def test_the_step_limit_is_a_limit_and_an_error() -> None:
    back_and_forth = [{"transfer": "reviewer"}, {"say": "No."}] * 3
    (turn,) = await said(back_and_forth, target=graph)
    assert turn.failure is not None
    assert turn.failure.exception == "StepLimitError"
    assert [(step.limit, step.value) for step in turn.steps if isinstance(step, LimitStep)] == [("step_limit", 6)]
    assert turn.end_agent == "drafter"


async def test_limits_of_a_file_hold_in_a_graph() -> None:
    script = [{"transfer": "reviewer"}, {"say": "I keep it."}]
    (turn,) = await said(script, target=graph, limits=Limits(max_handoffs_per_turn=0))
    assert [hop.why for hop in turn.hops if not hop.accepted] == ["limit"]
    assert hops(turn) == [("drafter", "publisher", "transfer", None)]


async def test_a_graph_inside_a_graph_is_a_call_in_topology_and_trace() -> None:
    inner = create_swarm([SwarmAgent("x", "m", [Tool("look", func=lambda: 1)]), SwarmAgent("y", "m")])
    outer = StateGraph().add_node("team", inner).set_entry_point("team").compile()
    declared = ReferenceTarget(outer).topology()
    assert declared.agents == ("team", "x", "y")
    assert declared.edges[0] == Edge(source="team", target="x", kind="call")
    (turn,) = await said([{"call": "look"}, {"transfer": "y"}, {"say": "Done."}], target=outer)
    assert hops(turn)[1] == ("x", "y", "transfer", "transfer_to_y")
    assert [hop.depth for hop in turn.hops] == [1, 1]
    assert find(Trace(topology=declared, turns=(turn,))) == ()


# --- swarms and supervisors of factories


CALLED = [{"transfer": "billing"}, {"call": "refund"}, {"say": "Paid."}, {"say": "Done."}]


async def test_a_supervisors_calls_come_back() -> None:
    (turn,) = await said(CALLED, target=team)
    assert hops(turn) == [("supervisor", "billing", "call", "transfer_to_billing")]
    assert (turn.end_agent, turn.reply) == ("supervisor", "Done.")
    assert ReferenceTarget(team).topology().edges == (
        Edge(source="supervisor", target="billing", tool="transfer_to_billing", kind="call"),
    )


def test_the_route_language_tells_a_supervisors_calls() -> None:
    turn = Turn("hi", script=CALLED, expect={"route": "supervisor => billing", "ends_at": "supervisor"})
    (outcome,) = collect(plan([Scenario(id="x", target=team, turns=[turn])], root=ROOT))
    assert (outcome.status, outcome.why) == ("passed", "")


async def test_a_swarm_of_a_factory() -> None:
    made = create_swarm([SwarmAgent("a", "m"), SwarmAgent("b", "m")])
    (turn,) = await said([{"transfer": "b"}, {"say": "Hi."}], target=made)
    assert hops(turn) == [("a", "b", "transfer", "transfer_to_b")]


# --- the examples


@pytest.mark.parametrize("name", ["synaptic", "publishing"])
def test_the_example_scenarios_pass(name: str) -> None:
    scenarios = loader.load([ROOT / "scenarios" / f"{name}.scenario.yaml"])
    assert [(outcome.status, outcome.why) for outcome in collect(plan(scenarios, root=ROOT))] == [("passed", "")] * len(
        scenarios
    )
