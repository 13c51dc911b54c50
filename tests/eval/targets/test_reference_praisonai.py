"""The second document's dialect under test: calls that come back, in traces, routes and reports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chatflow_eval import loader
from chatflow_eval.errors import CassetteMissing
from chatflow_eval.incidents import find
from chatflow_eval.outcome import collect
from chatflow_eval.route import Route, visits_of_turn
from chatflow_eval.scenario import Limits, SettingsSpec, Swarm, Turn
from chatflow_eval.tape import ReplayTape
from chatflow_eval.targets import Opening
from chatflow_eval.targets.reference import ReferenceTarget
from chatflow_eval.trace import Edge, ToolStep, Topology, Trace, TurnTrace
from chatflow_eval.trial import plan
from chatflow_runtime.dialects.praisonai import Agent, parallel_handoffs
from chatflow_runtime.engine import Answer, Call, ModelRequest, Scripted, ScriptedEngine, Transfer
from chatflow_runtime.runner import Runner
from chatflow_runtime.tools import tool
from chatflow_runtime.types import UserMessage

SWARM = Swarm.model_validate(
    {
        "dialect": "praisonai",
        "agents": {
            "Triage": {
                "instructions": "Route customers.",
                "handoffs": ["Billing", {"agent": "Manager", "tool_name": "escalate", "description": "Hard cases."}],
                "tools": {"refund": {"returns": "paid"}},
            },
            "Billing": {
                "instructions": "Handle billing.",
                "handoffs": ["Manager"],
                "tools": {"refund": {"returns": "paid"}, "void": {"returns": "gone"}},
            },
            "Manager": {"instructions": "Handle escalations.", "handoffs": ["Triage"]},
        },
    }
)


async def said(*script: Any, target: Any = SWARM, text: str = "hello", **opening: Any) -> TurnTrace:
    given: dict[str, Any] = {"limits": Limits(), "settings": SettingsSpec(), **opening}
    turn = Turn(text, script=list(script) or None)
    async with ReferenceTarget(target).open(Opening(**given)) as conversation:
        return await conversation.say(text, script=turn.script)


def accepts(turn: TurnTrace, pattern: str) -> bool:
    return Route(pattern).match(visits_of_turn(turn))


def test_edges_are_calls() -> None:
    assert ReferenceTarget(SWARM).topology() == Topology(
        start="Triage",
        agents=("Triage", "Billing", "Manager"),
        tools={"Triage": ("refund",), "Billing": ("refund", "void"), "Manager": ()},
        edges=(
            Edge(source="Triage", target="Billing", tool="transfer_to_billing", kind="call"),
            Edge(source="Triage", target="Manager", tool="escalate", kind="call"),
            Edge(source="Billing", target="Manager", tool="transfer_to_manager", kind="call"),
            Edge(source="Manager", target="Triage", tool="transfer_to_triage", kind="call"),
        ),
    )


async def test_a_call_comes_back_and_the_source_replies() -> None:
    turn = await said({"transfer": {"to": "Billing", "reason": "money"}}, {"say": "Paid."}, {"say": "Billing paid."})
    assert [type(step).__name__ for step in turn.steps] == ["ModelStep", "Hop", "ModelStep", "ModelStep"]
    (hop,) = turn.hops
    assert (hop.kind, hop.depth, hop.reason, hop.accepted, hop.error) == ("call", 1, "money", True, "")
    assert hop.withheld == ("void",)
    assert (turn.start_agent, turn.end_agent, turn.reply) == ("Triage", "Triage", "Billing paid.")
    assert accepts(turn, "Triage => Billing")
    assert accepts(turn, "Triage -> Billing")
    assert not accepts(turn, "Triage")


async def test_calls_one_after_the_other_and_inside_one_another_are_told_apart() -> None:
    nested = await said(
        *({"transfer": "Billing"}, {"transfer": "Manager"}, {"say": "Yes."}, {"say": "Yes."}, {"say": "Yes."})
    )
    assert [hop.depth for hop in nested.hops] == [1, 2]
    assert accepts(nested, "Triage => (Billing => Manager)")
    assert not accepts(nested, "Triage => Billing => Manager")
    flat = await said({"transfer": "Billing"}, {"say": "Yes."}, {"call": "escalate"}, {"say": "Yes."}, {"say": "Yes."})
    assert [hop.depth for hop in flat.hops] == [1, 1]
    assert accepts(flat, "Triage => Billing => Manager")
    assert not accepts(flat, "Triage => (Billing => Manager)")


async def test_refused_calls_and_limits_are_steps_inside_their_call() -> None:
    turn = await said({"transfer": "Billing"}, {"transfer": "Manager"}, {"transfer": "Triage"}, *[{"say": "x"}] * 3)
    assert [(hop.source, hop.target, hop.why, hop.depth) for hop in turn.hops] == [
        ("Triage", "Billing", None, 1),
        ("Billing", "Manager", None, 2),
        ("Manager", "Triage", "cycle", 2),
    ]
    limited = await said({"transfer": "Billing"}, {"say": "Hm."}, limits=Limits(max_handoffs_per_turn=0))
    assert [(hop.why, hop.kind) for hop in limited.hops] == [("limit", "call")]
    trace = Trace(topology=ReferenceTarget(SWARM).topology(), turns=(limited,))
    assert [incident.kind for incident in find(trace)] == ["limit_hit"]


async def test_a_call_that_failed_says_so() -> None:
    """B024: the hop was accepted, and nobody takes it for a success."""

    class Down:
        async def answer(self, request: ModelRequest) -> Answer:
            raise RuntimeError("HTTP 500")

    def build() -> Agent:
        return Agent("Triage", handoffs=[Agent("Billing", engine=Down())], engine=Says())

    turn = await said(target=build)
    assert [(hop.accepted, hop.error) for hop in turn.hops] == [(True, "RuntimeError: HTTP 500")]
    assert turn.failure is None


class Says:
    """A model that calls the first agent that it can, and then says so."""

    async def answer(self, request: ModelRequest) -> Answer:
        called = not isinstance(request.history[-1], UserMessage)
        target = next((each.target for each in request.tools if each.target), None)
        script: Scripted = Transfer(target) if target and not called else f"{request.agent} is done."
        return await ScriptedEngine([script]).answer(request)


async def test_withheld_tools_that_are_called_all_the_same_are_unknown() -> None:
    """B101."""
    turn = await said({"transfer": "Billing"}, [{"call": "void"}, {"call": "refund"}], {"say": "Hm."}, {"say": "Hm."})
    steps = [step for step in turn.steps if isinstance(step, ToolStep)]
    assert [(step.tool, step.known, step.is_error) for step in steps] == [
        ("void", False, True),
        ("refund", True, False),
    ]
    trace = Trace(topology=ReferenceTarget(SWARM).topology(), turns=(turn,))
    assert [incident.kind for incident in find(trace)] == ["unknown_tool"]


async def test_calls_at_one_time_are_told_one_after_the_other() -> None:
    """B117: each with what happened inside it, though they ran mixed."""

    def build() -> Agent:
        other = Agent("Other")
        left, right = Agent("Left", handoffs=[other]), Agent("Right", handoffs=[other])

        @tool
        async def both() -> str:
            """Ask both."""
            await parallel_handoffs(start, [(left, "hi"), (right, "hi")])
            return "asked"

        start = Agent("Start", tools=[both], engine=Both(), handoffs=[left, right])
        return start

    turn = await said(target=lambda: Runner(build(), engine=Mixed()))
    assert [(hop.source, hop.target, hop.depth) for hop in turn.hops] == [
        ("Start", "Left", 1),
        ("Left", "Other", 2),
        ("Start", "Right", 1),
        ("Right", "Other", 2),
    ]
    assert accepts(turn, "Start => (Left => Other) => (Right => Other)")


class Mixed(Says):
    """The same, letting the others go on at each answer."""

    async def answer(self, request: ModelRequest) -> Answer:
        await asyncio.sleep(0)
        return await super().answer(request)


class Both:
    """A model that calls its first tool once."""

    async def answer(self, request: ModelRequest) -> Answer:
        script: Scripted = "Done." if len(request.history) > 1 else Call(request.tools[0].name)
        return await ScriptedEngine([script]).answer(request)


@pytest.mark.parametrize("build", [lambda: Agent("Solo"), lambda: Runner(Agent("Solo")), Agent("Solo")])
async def test_agents_of_this_dialect_are_targets_like_others(build: Any) -> None:
    assert (await said({"say": "Hi."}, target=build)).agents == ("Solo",)


async def test_the_keyword_router_works_on_them() -> None:
    turn = await said(text="A question about billing, please.", models={"*": "keyword"})
    assert accepts(turn, "Triage => Billing")


async def test_a_recording_missed_inside_a_call_is_no_answer_of_the_agents() -> None:
    """The source goes on without it, and the trial would be judged by that."""
    tape = ReplayTape(CassetteMissing("nothing was recorded"))

    def build() -> Agent:
        return Agent("Triage", handoffs=[Agent("Billing")], engine=Says())

    async with ReferenceTarget(build).open(
        Opening(limits=Limits(), settings=SettingsSpec(), tape=tape)
    ) as conversation:
        first, second = await conversation.say("hello"), await conversation.say("hello again")
    assert first.failure is not None
    assert (first.failure.kind, first.failure.message) == ("cassette", "nothing was recorded")
    assert second.failure is None


def test_the_example_scenarios_pass() -> None:
    root = Path(__file__).parents[3]
    scenarios = loader.load([root / "scenarios" / "praisonai.scenario.yaml"])
    outcomes = list(collect(plan(scenarios, root=root)))
    assert [(outcome.status, outcome.why) for outcome in outcomes] == [("passed", "")] * len(scenarios)
