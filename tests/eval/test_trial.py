"""Which trials a suite makes, in which order, and where their recordings lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from chatflow_eval.errors import TargetError
from chatflow_eval.scenario import ModelChoice, Scenario, Service, Turn
from chatflow_eval.trial import Trial, plan

ROOT = Path("/project")


def scenario(name: str, *, models: tuple[ModelChoice, ...] = (), repeats: int | None = None) -> Scenario:
    turns = [Turn("hi", expect={"stay": True})]
    return Scenario(id=name, turns=turns, target=lambda: None, models=models, repeats=repeats, file="a.scenario.yaml")


def told(trials: tuple[Trial, ...]) -> list[tuple[str, str, int]]:
    return [(trial.scenario.id, trial.label, trial.repeat) for trial in trials]


def test_scenario_by_scenario_each_model_each_repeat() -> None:
    trials = plan([scenario("x"), scenario("y")], root=ROOT, models=("a", "b"), repeats=2)
    assert told(trials) == [(name, model, n) for name in "xy" for model in "ab" for n in (1, 2)]


def test_without_models_every_agent_keeps_what_it_declares() -> None:
    (trial,) = plan([scenario("x")], root=ROOT)
    assert (trial.label, dict(trial.models), trial.repeat) == ("declared", {}, 1)


def test_the_command_line_wins_over_the_file() -> None:
    trials = plan([scenario("x", models=("a",), repeats=3)], root=ROOT, models=("b",), repeats=1)
    assert told(trials) == [("x", "b", 1)]


def test_the_file_says_models_and_repeats() -> None:
    assert told(plan([scenario("x", models=("a", "b"), repeats=2)], root=ROOT)) == [
        ("x", "a", 1),
        ("x", "a", 2),
        ("x", "b", 1),
        ("x", "b", 2),
    ]


def test_a_mapping_mixes_models_and_is_spelled_out() -> None:
    (trial,) = plan([scenario("x", models=({"Triage": "a", "*": "b"},))], root=ROOT)
    assert trial.label == "Triage=a, *=b"
    assert dict(trial.models) == {"Triage": "a", "*": "b"}
    assert trial.cassette.name.startswith("mixed-")


def test_every_trial_has_a_recording_of_its_own() -> None:
    trials = plan([scenario("x"), scenario("y")], root=ROOT, models=("a", "b", "a/b"), repeats=3)
    assert len({trial.cassette for trial in trials}) == len(trials)
    assert trials[0].cassette == ROOT / "cassettes" / "a" / "x" / "a.json"
    assert trials[1].cassette == ROOT / "cassettes" / "a" / "x" / "a.2.json"


def test_each_framework_is_a_trial_of_its_own_with_a_recording_of_its_own() -> None:
    on_both = Scenario(
        id="x",
        turns=[Turn("hi", expect={"stay": True})],
        target=lambda: None,
        frameworks=["chatflow", "chatflow_agent"],
    )
    trials = plan([on_both], root=ROOT, models=("a",), repeats=2)
    assert [(trial.framework, trial.repeat) for trial in trials] == [
        ("chatflow", 1),
        ("chatflow", 2),
        ("chatflow_agent", 1),
        ("chatflow_agent", 2),
    ]
    names = [trial.cassette.name for trial in trials]
    assert names == ["a.json", "a.2.json", "chatflow_agent.a.json", "chatflow_agent.a.2.json"]


def test_the_command_lines_frameworks_win_over_the_files() -> None:
    on_one = Scenario(id="x", turns=[Turn("hi", expect={"stay": True})], target=lambda: None, frameworks=["chatflow"])
    (trial,) = plan([on_one], root=ROOT, frameworks=("chatflow_agent",))
    assert trial.framework == "chatflow_agent"


def test_a_service_runs_on_no_framework_of_ours() -> None:
    talked_to = Scenario(
        id="x", turns=[Turn("hi", expect={"stay": True})], target=Service(http="http://127.0.0.1:8000/chat")
    )
    with pytest.raises(TargetError, match="'x' talks to http://"):
        plan([talked_to], root=ROOT, frameworks=("chatflow_agent",))


def test_no_router_of_ours_stands_in_for_a_service() -> None:
    turns = [Turn("hi", expect={"stay": True})]
    both = [
        Scenario(id="agents", turns=turns, target=lambda: None),
        Scenario(id="service", turns=turns, target=Service(http="http://127.0.0.1:8000/chat")),
    ]
    trials = plan(both, root=ROOT, baseline=True)
    assert [(trial.scenario.id, trial.label) for trial in trials] == [
        ("agents", "declared"),
        ("agents", "keyword"),
        ("service", "declared"),
    ]
