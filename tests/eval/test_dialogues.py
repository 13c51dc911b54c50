"""Rows of dialogues become scenarios: texts as they are, who is right for each turn, and errors a person can act on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval import dialogues, loader, outcome, trial
from chatflow_eval.cli import cli
from chatflow_eval.document import parse, quoted
from chatflow_eval.errors import ScenarioError, ScenarioErrors
from chatflow_eval.scenario import Scenario, Swarm

AGENTS = {"HotelAgent": "hotel: book a room", "TaxiAgent": "taxi: rent a cab", "Café -> Bar": "food and drink"}
OTHER = 'TriageAgent | "Café -> Bar"'
SHARED = Path(__file__).parents[3] / "shared" / "data" / "routing"


def turn(user: str, *accept: str, **more: Any) -> dict[str, Any]:
    return {"user": user, "accept": list(accept), "tags": [], **more}


def row(*turns: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "d1", "source": "here", "start": "TriageAgent", "turns": list(turns), "tags": [], **more}


BOOKED = row(
    turn("a room please", "HotelAgent"),
    turn("a cab or a room", "TaxiAgent", "HotelAgent"),
    turn("something else", "TriageAgent", "Café -> Bar"),
    tags=["mixed"],
)


def write(folder: Path, *rows: object, agents: object = AGENTS, name: str = "trips.jsonl") -> tuple[Path, Path]:
    file, described = folder / name, folder / "agents.json"
    lines = (each if isinstance(each, str) else json.dumps(each) for each in rows)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    described.write_text(json.dumps(agents), encoding="utf-8")
    return file, described


def convert(
    folder: Path, *rows: object, style: dialogues.Style = "swarm", expect: dialogues.Expect = "ends_at"
) -> tuple[Scenario, ...]:
    """The scenarios that are read from the file that the rows become."""
    file, agents = write(folder, *rows)
    out = folder / "trips.scenario.yaml"
    out.write_bytes(dialogues.render(dialogues.read([file], agents), style, expect).encode())
    return loader.load([out], root=folder)


def complaints(folder: Path, *rows: object, agents: object = AGENTS) -> list[str]:
    file, described = write(folder, *rows, agents=agents)
    with pytest.raises(ScenarioError) as caught:
        dialogues.read([file], described)
    errors: Sequence[ScenarioError] = (
        caught.value.errors if isinstance(caught.value, ScenarioErrors) else [caught.value]
    )
    return [str(error).replace(f"{folder}/", "") for error in errors]


# What becomes of a row.


def test_a_turn_expects_any_of_its_accepted_agents_at_its_end(tmp_path: Path) -> None:
    [scenario] = convert(tmp_path, BOOKED)
    assert scenario.id == "d1"
    assert scenario.tags == ("mixed",)
    ends = [each.expect.ends_at for each in scenario.turns if each.expect]
    assert ends == [("HotelAgent",), ("TaxiAgent", "HotelAgent"), ("TriageAgent", "Café -> Bar")]


def edges(scenario: Scenario) -> dict[str, list[str]]:
    assert isinstance(scenario.target, Swarm)
    return {agent.name: [handoff.agent for handoff in agent.handoffs] for agent in scenario.target.agents}


def test_in_a_swarm_everybody_hands_off_to_everybody(tmp_path: Path) -> None:
    [scenario] = convert(tmp_path, BOOKED)
    everybody = ["TriageAgent", *AGENTS]
    assert edges(scenario) == {name: [each for each in everybody if each != name] for name in everybody}


def test_in_a_hub_specialists_hand_off_to_triage_alone(tmp_path: Path) -> None:
    [scenario] = convert(tmp_path, BOOKED, style="hub")
    assert edges(scenario) == {"TriageAgent": list(AGENTS), **{name: ["TriageAgent"] for name in AGENTS}}


@pytest.mark.parametrize(
    ("style", "routes"),
    [
        ("swarm", ["TriageAgent -> HotelAgent", None, f"TaxiAgent | HotelAgent -> {OTHER}"]),
        ("hub", ["TriageAgent -> HotelAgent", None, f"TaxiAgent | HotelAgent -> TriageAgent? -> {OTHER}"]),
    ],
)
def test_a_route_is_the_way_from_whoever_was_right_before(
    tmp_path: Path, style: dialogues.Style, routes: list[str | None]
) -> None:
    """Where that depends on which of several agents it was, only the end is expected."""
    [scenario] = convert(tmp_path, BOOKED, style=style, expect="route")
    found = [str(each.expect.route) if each.expect and each.expect.route else None for each in scenario.turns]
    assert found == routes


@pytest.mark.parametrize(("style", "way"), [("swarm", "HotelAgent -> TaxiAgent"),
                                            ("hub", "HotelAgent -> TriageAgent -> TaxiAgent")])  # fmt: skip
def test_a_hub_changes_agents_through_triage(tmp_path: Path, style: dialogues.Style, way: str) -> None:
    talk = row(
        turn("hello", "TriageAgent"), turn("room", "HotelAgent"), turn("it", "HotelAgent"), turn("cab", "TaxiAgent")
    )
    [scenario] = convert(tmp_path, talk, style=style, expect="route")
    routes = [str(each.expect.route) for each in scenario.turns if each.expect]
    assert routes == ["TriageAgent", "TriageAgent -> HotelAgent", "HotelAgent", way]


def test_triage_may_have_a_name_of_its_own_and_a_dialogue_may_start_elsewhere(tmp_path: Path) -> None:
    first = row(turn("hello", "TriageAgent"), start="Front Desk")
    second = row(turn("a cab", "TaxiAgent"), start="HotelAgent", id="d2")
    one, other = convert(tmp_path, first, second)
    assert isinstance(one.target, Swarm)
    assert isinstance(other.target, Swarm)
    assert (one.target.start, other.target.start) == ("Front Desk", "HotelAgent")
    assert one.turns[0].expect
    assert one.turns[0].expect.ends_at == ("Front Desk",)


def test_an_id_that_ends_like_a_phrasing_is_made_safe(tmp_path: Path) -> None:
    [scenario] = convert(tmp_path, row(turn("hi", "TriageAgent"), id="talk[7]"))
    assert scenario.id == "talk(7)"


def test_tags_of_turns_are_tags_of_the_scenario(tmp_path: Path) -> None:
    [scenario] = convert(tmp_path, row(turn("hi", "TriageAgent", tags=["stay", "no"]), tags=["stay"]))
    assert scenario.tags == ("stay", "no")


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_quoted_text_is_read_back_as_it_is(text: str) -> None:
    root = parse(f"- {quoted(text)}\n", Path("t.yaml")).root
    assert (root, len(quoted(text).splitlines())) == ([text], 1)


@pytest.mark.parametrize(
    "text",
    [
        "no",
        "12:30",
        " # not a comment",
        "{a: b}",
        "'\"\\",
        "two\nlines\r\n",
        "\ttab ",
        "\x85\u2028\ufeff\x00",
        "🙂",
        "",
    ],
)
def test_what_the_user_says_is_kept_byte_for_byte(tmp_path: Path, text: str) -> None:
    [scenario] = convert(tmp_path, row(turn(text, "TriageAgent")))
    assert scenario.turns[0].user == text


def test_the_scenarios_run_on_the_keyword_router(tmp_path: Path) -> None:
    scenarios = convert(tmp_path, row(turn("rent a cab", "TaxiAgent"), turn("book a room", "HotelAgent")))
    [found] = outcome.collect(trial.plan(scenarios, root=tmp_path, models=["keyword"]))
    assert found.ok, found.why
    assert [demand.asks for demand in found.demands] == ["first", "switch"]


# What is wrong with a row, and where.


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (row(turn("a room", "HotelAgnt")), "turn 1: `accept`: unknown agent `HotelAgnt`; did you mean `HotelAgent`?"),
        (row(turn("a", "TriageAgent"), {"user": "b", "acept": []}), "turn 2: `accept` is missing; is it `acept`?"),
        (row(turn("a room")), "turn 1: `accept`: expected at least one agent, found an empty list"),
        (row({"user": "a", "accept": "HotelAgent"}), "turn 1: `accept`: expected a list of names, found `HotelAgent`"),
        (row({"user": 3, "accept": ["HotelAgent"]}), "turn 1: `user`: expected text, found `3`"),
        (row({"user": "\ud800", "accept": ["HotelAgent"]}), "turn 1: `user`: half of a surrogate pair is no character"),
        (row(), "`turns`: expected a list of turns, found nothing"),
        (row(turn("a", "HotelAgent"), start="TriageAgnt"), "`start`: unknown agent `TriageAgnt`; did you mean `Triage"),
        (row(turn("a", "HotelAgent"), tags=["a\nb"]), "`tags`: `a\\u000ab` holds control characters"),
        (row(turn("a", "HotelAgent"), agents=["BoatAgent"]), "`agents`: unknown agent `BoatAgent`; did you mean"),
        ([], "expected an object with `id`, `start` and `turns`, found a list"),
        ('{"id": ', "no JSON: Expecting value"),
        (row(turn("a", "HotelAgent"), id="sound"), "`id` `sound` is given twice, here and at trips.jsonl:1"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_an_error_at_its_line(tmp_path: Path, wrong: object, said: str) -> None:
    [complaint] = complaints(tmp_path, row(turn("hi", "TriageAgent"), id="sound"), "", wrong)
    place, _, problem = complaint.partition(" ")
    assert place.startswith("trips.jsonl:3:")
    assert problem.replace(f"{tmp_path}/", "").startswith(said)


def test_all_wrong_rows_are_told_at_once(tmp_path: Path) -> None:
    assert len(complaints(tmp_path, row(), row(turn("a")), "{")) == 3


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        ({"trip": AGENTS}, "agents.json: no data set in it is called like `trips.jsonl`; did you mean `trip`?"),
        ({"HotelAgent": ""}, "agents.json: `HotelAgent`: expected a description, found nothing"),
        ({}, "agents.json: expected a JSON object of agents and their descriptions, found a mapping"),
        ({"trips": {}}, "agents.json: expected agents and their descriptions, found a mapping"),
    ],
)
def test_wrong_descriptions_are_an_error(tmp_path: Path, agents: object, said: str) -> None:
    [complaint] = complaints(tmp_path, BOOKED, agents=agents)
    assert complaint.startswith(said)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    [complaint] = complaints(tmp_path)
    assert complaint == "trips.jsonl: no dialogue in it, expected one JSON object a line"


# The command.


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["import-dialogues", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_command_writes_a_file_that_loads(tmp_path: Path) -> None:
    file, agents = write(tmp_path, BOOKED, agents={"trips": AGENTS, "other": {"X": "x"}})
    out = tmp_path / "trips.scenario.yaml"
    assert invoke(file, "--agents", agents, "--style", "hub", "--out", out) == (0, f"1 scenario, 3 turns: {out}\n")


def test_the_command_refuses_rows_that_are_wrong_and_names_that_no_run_finds(tmp_path: Path) -> None:
    file, agents = write(tmp_path, row())
    out = tmp_path / "trips.scenario.yaml"
    code, said = invoke(file, "--agents", agents, "--out", out)
    assert code == 2
    assert f"{file}:1: `turns`" in said
    assert not out.exists()
    code, said = invoke(file, "--agents", agents, "--out", tmp_path / "trips.yaml")
    assert code == 2
    assert ".scenario.yaml" in said


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is absent")
@pytest.mark.parametrize(("name", "scenarios", "turns"), [("bfcl_base", 200, 734), ("multiwoz_test", 1_000, 7_372)])
def test_public_dialogues_become_scenarios_turn_by_turn(tmp_path: Path, name: str, scenarios: int, turns: int) -> None:
    out = tmp_path / f"{name}.scenario.yaml"
    code, said = invoke(SHARED / f"{name}.jsonl", "--agents", SHARED / "agents.json", "--out", out)
    assert (code, said) == (0, f"{scenarios:,} scenarios, {turns:,} turns: {out}\n")
    lines = (SHARED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    said_there = [[each["user"] for each in json.loads(line)["turns"]] for line in lines]
    assert [[each.user for each in scenario.turns] for scenario in loader.load([out])] == said_there
