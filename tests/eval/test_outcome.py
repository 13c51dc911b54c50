"""Trials to outcomes: passed, failed, errored and skipped are told apart, and finished trials stream out."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from chatflow_eval.outcome import Outcome, collect, run
from chatflow_eval.scenario import Scenario, Turn
from chatflow_eval.testing import Reply, ScriptedServer
from chatflow_eval.trial import Mode, plan
from chatflow_runtime import Agent, tool
from chatflow_runtime.engine import Answer, ModelRequest

ROUTED = [{"transfer": "Billing"}, {"say": "Done."}]


def swarm() -> Agent:
    billing = Agent("Billing", "Handle refunds.")
    triage = Agent("Triage", "Welcome the user.", handoffs=[billing])
    billing.add_handoff(triage)
    return triage


def scenario(*turns: Turn, target: Callable[[], Any] = swarm, **more: Any) -> Scenario:
    return Scenario(id="x", turns=turns, target=target, **more)


def outcomes(*scenarios: Scenario, root: Path = Path("/nowhere"), mode: Mode = "none", **options: Any) -> list[Outcome]:
    return collect(plan(scenarios, root=root, mode=mode, **options))


def one(*turns: Turn, **more: Any) -> Outcome:
    (outcome,) = outcomes(scenario(*turns, **more))
    return outcome


def routed(user: str = "refund", route: str = "Triage -> Billing") -> Turn:
    return Turn(user, script=ROUTED, expect={"route": route})


def test_a_right_route_passes() -> None:
    outcome = one(routed())
    assert (outcome.status, outcome.why) == ("passed", "")
    assert outcome.trace is not None
    assert outcome.trace.turns[0].agents == ("Triage", "Billing")


def test_a_wrong_route_fails_with_the_turn_and_the_reason() -> None:
    outcome = one(routed(route="Triage"))
    assert outcome.status == "failed"
    assert outcome.why.startswith("turn 1: ")


def test_an_incident_nobody_asked_for_fails() -> None:
    round_and_round = [{"transfer": "Billing"}, {"transfer": "Triage"}] * 2
    outcome = one(Turn("hi", script=[*round_and_round, {"say": "dizzy"}], expect={"ends_at": "Triage"}))
    assert outcome.status == "failed"
    assert [incident.kind for incident in outcome.incidents] == ["loop"]


def test_an_exception_of_the_agents_is_an_error_and_no_wrong_route() -> None:
    """B024, B030."""

    @tool
    def explode() -> str:
        """Ends the process."""
        raise KeyError("boom")

    def broken() -> Agent:
        return Agent("Triage", lambda: (_ for _ in ()).throw(RuntimeError("no instructions")), tools=[explode])

    outcome = one(
        Turn("hi", script=[{"say": "x"}], expect={"stay": True}), Turn("more", expect={"stay": True}), target=broken
    )
    assert outcome.status == "errored"
    assert outcome.failed_turn == 1
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.exception) == ("agent", "RuntimeError")
    assert {verdict.status for verdict in outcome.verdicts} == {"skipped"}
    assert outcome.users == ("hi", "more")


def test_an_expected_exception_is_no_error() -> None:
    outcome = one(Turn("hi", script=[{"transfer": "Billing"}], expect={"error": "ScriptError"}))
    assert outcome.status == "passed"


def test_script_left_over_is_an_error_of_the_harness() -> None:
    outcome = one(Turn("hi", script=[{"say": "one"}, {"say": "two"}], expect={"stay": True}))
    assert outcome.status == "errored"
    assert outcome.failure is not None
    assert outcome.failure.kind == "harness"


def test_a_factory_that_fails_is_an_error_of_the_harness() -> None:
    def broken() -> Agent:
        raise ValueError("no config")

    outcome = one(routed(), target=broken)
    assert outcome.status == "errored"
    assert "no config" in outcome.why


def test_a_skipped_scenario_says_why_and_opens_nothing() -> None:
    def never() -> Agent:
        raise AssertionError("opened")

    outcome = one(routed(), target=never, skip="not today")
    assert (outcome.status, outcome.why) == ("skipped", "skipped: not today")


def test_an_expected_failure_keeps_its_status_and_is_ok() -> None:
    failed = one(routed(route="Triage"), xfail="known")
    assert (failed.status, failed.ok) == ("failed", True)
    assert one(routed(), xfail="known").status == "passed"


def test_on_failure_stop_leaves_later_turns_unreached() -> None:
    """B128."""
    turns = (routed(route="Triage"), Turn("more", script=[{"say": "ok"}], expect={"stay": True}))
    went_on, stopped = one(*turns), one(*turns, on_failure="stop")
    assert went_on.trace is not None
    assert stopped.trace is not None
    assert (len(went_on.trace.turns), len(stopped.trace.turns)) == (2, 1)
    assert [verdict.after_failure for verdict in went_on.verdicts if verdict.turn == 2] == [True]
    assert [verdict.status for verdict in stopped.verdicts if verdict.turn == 2] == ["skipped"]


def test_trials_share_nothing() -> None:
    """B074, B077: the same target, and every trial starts at its start."""
    starts = [
        outcome.trace.turns[0].start_agent
        for outcome in outcomes(scenario(routed()), scenario(routed()), repeats=5)
        if outcome.trace
    ]
    assert starts == ["Triage"] * 10


def test_context_reaches_instructions_and_tools_of_its_scenario_only() -> None:
    """B078."""
    seen: list[object] = []

    def build() -> Agent:
        @tool
        def tier(context: dict[str, object]) -> str:
            """The customer's tier."""
            seen.append(context.get("tier"))
            return str(context.get("tier"))

        return Agent("Triage", lambda context: f"Tier {context.get('tier')}.", tools=[tier])

    turn = Turn("hi", script=[{"call": "tier"}, {"say": "ok"}], expect={"stay": True})
    outcomes(scenario(turn, target=build, context={"tier": "gold"}), scenario(turn, target=build))
    assert sorted(map(str, seen)) == ["None", "gold"]


def test_limits_of_the_scenario_win_over_the_factorys() -> None:
    outcome = one(
        Turn("hi", script=ROUTED, expect={"incidents": ["limit_hit"], "ends_at": "Triage"}),
        limits={"max_handoffs_per_turn": 0},
    )
    assert outcome.status == "passed", outcome.why


class Asleep:
    """A model that takes its time."""

    async def answer(self, _: ModelRequest) -> Answer:
        await asyncio.sleep(60)
        return Answer("late")


def test_a_timeout_is_an_error_with_its_turn() -> None:
    outcome = one(Turn("hi", expect={"stay": True}), target=lambda: Agent("Triage", engine=Asleep()), timeout=0.05)
    assert outcome.status == "errored"
    assert outcome.failure is not None
    assert outcome.failure.kind == "timeout"
    assert outcome.failed_turn == 1


def test_recorded_trials_replay_alike_and_say_that_they_were_recorded(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        first = "Welcome" in body["messages"][0]["content"]
        return Reply(calls=(("transfer_to_billing", {"reason": "money"}),)) if first else Reply(text="Done.")

    with ScriptedServer(answer) as server:
        asked = scenario(
            Turn("refund", expect={"route": "Triage -> Billing"}),
            models=("openai/m",),
            settings={"api_base": server.url},
        )
        recorded = outcomes(asked, root=tmp_path, mode="all", repeats=3)
    replayed = outcomes(asked, root=tmp_path, repeats=3)
    assert [(outcome.status, outcome.replayed) for outcome in recorded] == [("passed", False)] * 3
    assert [(outcome.status, outcome.replayed) for outcome in replayed] == [("passed", True)] * 3
    more = outcomes(asked, root=tmp_path, repeats=4)
    assert [outcome.status for outcome in sorted(more, key=lambda o: o.repeat)] == ["passed"] * 3 + ["errored"]
    assert "--repeats 4" in more[-1].why


async def test_outcomes_stream_as_they_finish_and_closing_stops_the_rest() -> None:
    built: list[Agent] = []

    def counted() -> Agent:
        built.append(swarm())
        return built[-1]

    trials = plan([scenario(routed(), target=counted)], root=Path("/nowhere"), repeats=50)
    async with aclosing(run(trials, concurrency=3)) as stream:
        first = await anext(stream)
        assert first.status == "passed"
        assert len(built) <= 2 * 3 + 1, "trials that wait for nothing leave no room for whoever keeps their outcomes"
    assert len(asyncio.all_tasks()) == 1


def test_outcomes_are_values_that_travel() -> None:
    outcome = one(routed())
    assert pickle.loads(pickle.dumps(outcome)) == outcome
