"""The reference runtime as a target: agents from files, factories and values, and events told as steps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chatflow_eval.errors import TargetError
from chatflow_eval.scenario import Factory, Limits, SettingsSpec, Swarm, Turn
from chatflow_eval.targets import Opening
from chatflow_eval.targets.reference import ReferenceTarget
from chatflow_eval.trace import Edge, Hop, LimitStep, ModelStep, ToolStep, TurnTrace
from chatflow_runtime import Agent, Runner

SWARM = Swarm.model_validate(
    {
        "agents": {
            "Triage": {
                "instructions": "Welcome the user.",
                "handoffs": ["Billing", {"agent": "Manager", "tool_name": "escalate", "description": "Hard cases."}],
            },
            "Billing": {
                "tools": {
                    "refund": {
                        "description": "Pays back.",
                        "parameters": {"id": "string", "amount": "number?"},
                        "returns": [
                            {"when": {"id": "A"}, "returns": {"status": "REFUNDED"}},
                            {"when": {"id": "B"}, "raises": "already refunded"},
                        ],
                    }
                },
                "handoffs": ["Triage"],
            },
            "Manager": {},
        }
    }
)


async def said(*script: Any, target: Any = SWARM, **opening: Any) -> TurnTrace:
    given: dict[str, Any] = {"limits": Limits(), "settings": SettingsSpec(), **opening}
    turn = Turn("hello", script=list(script))
    async with ReferenceTarget(target).open(Opening(**given)) as conversation:
        return await conversation.say("hello", script=turn.script)


def steps(turn: TurnTrace) -> list[str]:
    return [type(step).__name__ for step in turn.steps]


def test_topology_is_what_the_agents_declare() -> None:
    declared = ReferenceTarget(SWARM).topology()
    assert declared.start == "Triage"
    assert declared.agents == ("Triage", "Billing", "Manager")
    assert declared.tools["Billing"] == ("refund",)
    assert Edge(source="Triage", target="Manager", tool="escalate") in declared.edges
    assert Edge(source="Billing", target="Triage", tool="transfer_to_triage") in declared.edges


async def test_a_transfer_is_a_hop_between_two_model_steps() -> None:
    turn = await said({"transfer": {"to": "Billing", "reason": "money"}}, {"say": "Done."})
    assert steps(turn) == ["ModelStep", "Hop", "ModelStep"]
    (hop,) = turn.hops
    assert (hop.source, hop.target, hop.tool, hop.reason, hop.kind) == (
        "Triage",
        "Billing",
        "transfer_to_billing",
        "money",
        "transfer",
    )
    assert (turn.start_agent, turn.end_agent, turn.reply) == ("Triage", "Billing", "Done.")


async def test_a_configured_handoff_keeps_its_tool_name() -> None:
    turn = await said({"call": "escalate"}, {"say": "Hm."})
    assert turn.agents == ("Triage", "Manager")


async def test_inline_tools_answer_by_their_arguments() -> None:
    turn = await said(
        {"transfer": "Billing"},
        [{"call": {"refund": {"id": "A"}}}, {"call": {"refund": {"id": "B"}}}, {"call": {"refund": {"id": "C"}}}],
        {"say": "Done."},
    )
    paid, refused, unknown = (step for step in turn.steps if isinstance(step, ToolStep))
    assert (paid.result, paid.is_error, paid.arguments) == ({"status": "REFUNDED"}, False, {"id": "A"})
    assert refused.is_error
    assert "already refunded" in str(refused.result)
    assert unknown.is_error


async def test_refused_hops_and_limits_are_steps_too() -> None:
    turn = await said({"transfer": "Billing"}, {"say": "Hm."}, limits=Limits(max_handoffs_per_turn=0))
    assert [type(step) for step in turn.steps] == [ModelStep, Hop, LimitStep, ModelStep]
    (hop,) = turn.hops
    assert (hop.accepted, hop.why, hop.message) == (
        False,
        "limit",
        "Maximum agent transfers exceeded for a single turn.",
    )
    assert turn.agents == ("Triage",)


async def test_an_unknown_tool_is_told_as_such() -> None:
    turn = await said({"call": {"fly": {}}}, {"say": "Hm."})
    (step,) = (step for step in turn.steps if isinstance(step, ToolStep))
    assert (step.tool, step.known, step.is_error) == ("fly", False, True)


async def test_a_failed_turn_keeps_its_steps_and_where_it_is_rolled_back_to() -> None:
    turn = await said({"transfer": "Billing"})
    assert turn.failure is not None
    assert turn.failure.exception == "ScriptError"
    assert steps(turn)[:2] == ["ModelStep", "Hop"]
    assert turn.end_agent == "Triage"


async def test_context_is_given_and_told() -> None:
    turn = await said({"say": "Hi."}, context={"tier": "gold"})
    assert turn.context == {"tier": "gold"}


@pytest.mark.parametrize("built", [Agent("Solo"), Runner(Agent("Solo")), lambda: Agent("Solo")])
async def test_agents_runners_and_factories_are_targets(built: Any) -> None:
    assert (await said({"say": "Hi."}, target=built)).agents == ("Solo",)


async def test_a_factorys_runner_keeps_its_limits_unless_the_file_says_otherwise() -> None:
    def build() -> Runner:
        other = Agent("Other")
        return Runner(Agent("Solo", handoffs=[other]), max_handoffs_per_turn=0)

    script = [{"transfer": "Other"}, {"say": "Hi."}]
    assert (await said(*script, target=build)).agents == ("Solo",)
    assert (await said(*script, target=build, limits=Limits(max_handoffs_per_turn=1))).agents == ("Solo", "Other")


def test_models_for_unknown_agents_are_refused() -> None:
    with pytest.raises(TargetError, match="'Nobody'"):
        asyncio.run(said({"say": "x"}, models={"Nobody": "keyword"}))


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder, name in (("a", "One"), ("b", "Two")):
        (tmp_path / folder).mkdir()
        text = f"from chatflow_runtime import Agent\ndef build():\n    return Agent('{name}')\n"
        (tmp_path / folder / "support.py").write_text(text, encoding="utf-8")
    starts = [
        ReferenceTarget(Factory(reference="support.py:build", base=tmp_path / folder)).topology().start
        for folder in ("a", "b")
    ]
    assert starts == ["One", "Two"]
