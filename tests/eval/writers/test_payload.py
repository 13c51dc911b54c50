"""Trials as data: nothing of them is lost but what is too long, and what went wrong first is found."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatflow_eval.checks import Verdict
from chatflow_eval.outcome import Outcome, Parted
from chatflow_eval.report import Report
from chatflow_eval.route import Aligned
from chatflow_eval.trace import (
    Failure,
    HistoryFault,
    Hop,
    LimitStep,
    ModelStep,
    Step,
    ToolStep,
    Topology,
    Trace,
    TurnTrace,
    WarningStep,
)
from chatflow_eval.writers import payload


def unpacked(block: payload.Block) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(block.data)))


def packed(report: Report) -> tuple[list[Any], dict[str, Any]]:
    """The details of all trials in their order, and the index."""
    *details, index = payload.blocks(report)
    assert [block.name for block in details] == [f"details-{number}" for number in range(len(details))]
    assert index.name == "index"
    return [trial for block in details for trial in unpacked(block)], unpacked(index)


def bare(outcomes: list[Outcome]) -> Report:
    """A report of which only the trials matter."""
    return replace(EMPTY, outcomes=outcomes)


EMPTY = Report.of([])


def texts(index: dict[str, Any], column: str) -> list[str]:
    return [index["texts"][place] for place in index[column]]


def lists(index: dict[str, Any], column: str) -> list[list[str]]:
    return [[index["texts"][place] for place in index["lists"][code]] for code in index[column]]


def said(*steps: Step, verdicts: tuple[Verdict, ...] = (), reply: str = "", start: str = "A", **more: Any) -> Outcome:
    """A trial of one turn."""
    turn = TurnTrace(user="hi", start_agent=start, end_agent=more.pop("end", start), reply=reply, steps=steps)
    return Outcome(
        file="a",
        line=1,
        scenario="s",
        users=("hi",),
        trace=Trace(topology=Topology(start="A", agents=("A",)), turns=(replace(turn, **more.pop("turn", {})),)),
        verdicts=verdicts,
        **{"status": "passed", **more},
    )


def route(*places: tuple[str | None, str | None], check: str = "route", turn: int | None = 1) -> Verdict:
    aligned = tuple(Aligned(expected=one, actual=other, ok=one == other) for one, other in places)
    right = all(place.ok for place in aligned)
    return Verdict(
        check=check, turn=turn, status="passed" if right else "failed", expected="E", actual="A", alignment=aligned
    )


# The index.


def test_every_trial_has_its_row_those_not_as_expected_first(sample: Report) -> None:
    """B104."""
    _, index = packed(sample)
    assert [index["statuses"][code] for code in index["status"]] == [
        *("failed", "errored", "failed", "failed", "failed"),
        *("failed", "skipped", "passed", "passed", "passed"),
    ]
    assert index["ok"] == [False] * 5 + [True] * 5
    assert sorted(index["at"]) == list(range(10))
    assert texts(index, "scenario")[:2] == ["plan-ping-pong", "rate-limited"]
    assert {len(index[column]) for column in payload.COLUMNS} == {10}


def test_the_index_leads_to_the_details_of_its_trials(sample: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "BLOCK", 3)
    details, index = packed(sample)
    outcomes = list(sample.outcomes)
    for place, scenario in zip(index["at"], texts(index, "scenario"), strict=True):
        assert outcomes[place].scenario == scenario
        assert details[place] == json.loads(json.dumps(payload.detail(outcomes[place])))


def test_what_filters_ask_about_is_in_the_index(sample: Report) -> None:
    _, index = packed(sample)
    rows = {
        (scenario, model, repeat): place
        for place, (scenario, model, repeat) in enumerate(
            zip(texts(index, "scenario"), texts(index, "model"), index["repeat"], strict=True)
        )
    }
    stayed = rows[("refund-then-crash", "gpt-4o-mini", 2)]
    triage, billing, tech = "TriageAgent", "BillingAgent", "TechSupportAgent"
    assert lists(index, "tags")[stayed] == ["billing", "smoke"]
    assert lists(index, "agents")[stayed] == [triage, billing]
    assert lists(index, "made")[stayed] == [triage, billing]
    assert lists(index, "wanted")[stayed] == [triage, billing, billing, triage, triage, tech]
    assert lists(index, "cells")[stayed] == [billing, billing, triage, "(stayed)", tech, "(stayed)"]
    assert lists(index, "incidents")[rows[("plan-ping-pong", "gpt-4o-mini", 1)]] == ["loop", "limit_hit"]
    assert index["tokens"][rows[("not-yet", "gpt-4o-mini", 1)]] == -1, "unknown is not 0"


def test_decisions_in_the_index_are_those_of_the_confusion_table(sample: Report) -> None:
    _, index = packed(sample)
    cells = {
        ("(stay)" if cell.expected is None else cell.expected, cell.actual or f"({cell.end})")
        for cell in sample.metrics.confusion
    }
    found = {tuple(flat[place : place + 2]) for flat in lists(index, "cells") for place in range(0, len(flat), 2)}
    assert found == cells


def test_handoffs_in_the_index_are_those_that_the_numbers_count(sample: Report) -> None:
    _, index = packed(sample)
    found = {
        tuple(flat[place : place + 2])
        for column in ("made", "wanted")
        for flat in lists(index, column)
        for place in range(0, len(flat), 2)
    }
    assert found == {(edge.source, edge.target) for edge in sample.metrics.edges}


def test_a_yardstick_is_listed_and_in_no_number() -> None:
    hop = Hop(source="A", target="B")
    _, index = packed(Report.of([replace(said(hop, verdicts=(route(("A", "A"), ("B", "B")),)), baseline=True)]))
    assert [index["statuses"][code] for code in index["status"]] == ["yardstick"]
    assert lists(index, "made") == lists(index, "cells") == lists(index, "agents") == [[]]


def test_too_many_trials_leave_out_those_as_expected(sample: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_TRIALS", 6)
    seen: list[Outcome] = []
    *_, block = payload.blocks(sample, seen.append)
    index = unpacked(block)
    assert index["left_out"] == 4
    assert index["ok"] == [False] * 5 + [True]
    assert seen == list(sample.outcomes)


def test_no_trial_at_all() -> None:
    details, index = packed(EMPTY)
    assert details == []
    assert index["at"] == []


# What went wrong first.


@pytest.mark.parametrize(
    ("places", "steps", "step", "agent", "came"),
    [
        ([("A", "A"), ("C", "B")], "A>B", 1, "C", "B"),
        ([("A", "A"), ("B", "B"), (None, "C")], "A>B>C", 3, "nobody else", "C"),
        ([("A", "A"), ("B", None)], "A", 0, "B", "nobody"),
        ([("A", "A"), ("C", None), ("B", "B")], "A>B", 0, "C", "nobody"),
        ([("A", "A"), ("B", "B"), ("C", None)], "A>B", 2, "C", "nobody"),
        ([("B", "A")], "A", None, "B", "A"),
    ],
    ids=["wrong agent", "one too many", "stayed", "one left out", "ended early", "wrong start"],
)
def test_the_step_that_left_the_route_is_found(
    places: list[tuple[str | None, str | None]], steps: str, step: int | None, agent: str, came: str
) -> None:
    agents = steps.split(">")
    made: list[Step] = [ModelStep(agent=agents[0], model="m")]
    for source, target in pairwise(agents):
        made += [Hop(source=source, target=target), ModelStep(agent=target, model="m")]
    wrong = payload.first_wrong(said(*made, verdicts=(route(*places),), status="failed"))
    assert wrong is not None
    assert (wrong.turn, wrong.step, wrong.agent, wrong.came) == (1, step, agent, came)


def test_the_end_of_a_turn_is_to_blame_for_who_replied() -> None:
    verdict = Verdict(check="ends_at", turn=1, status="failed", expected="B", actual="A")
    wrong = payload.first_wrong(said(ModelStep(agent="A", model="m"), verdicts=(verdict,), status="failed"))
    assert wrong is not None
    assert (wrong.turn, wrong.step, wrong.agent) == (1, 1, "B")


def test_an_error_is_where_its_turn_ended(sample: Report) -> None:
    errored = next(outcome for outcome in sample.outcomes if outcome.status == "errored")
    wrong = payload.first_wrong(errored)
    assert wrong is not None
    assert (wrong.turn, wrong.step, wrong.check) == (1, 0, "RateLimitError")
    assert payload.first_wrong(replace(errored, trace=None)) is not None


def test_an_incident_of_the_whole_conversation_leads_to_its_turn(sample: Report) -> None:
    looped = next(outcome for outcome in sample.outcomes if outcome.incidents)
    whole = Verdict(check="incidents", turn=None, status="failed", expected="none", why="loop")
    wrong = payload.first_wrong(replace(looped, verdicts=(whole,)))
    assert wrong is not None
    assert (wrong.turn, wrong.step) == (1, None)


def test_nothing_went_wrong_in_a_trial_that_passed(sample: Report) -> None:
    assert payload.first_wrong(next(each for each in sample.outcomes if each.status == "passed")) is None


# The details.


def only_turn(outcome: Outcome) -> Any:
    return json.loads(json.dumps(payload.detail(outcome)))["turns"][0]


def test_the_details_say_everything_that_happened() -> None:
    """B107: who transferred to whom, by which tool, why, and why not."""
    steps = (
        ModelStep(
            agent="A", model="m", text="One moment.", calls=("go",), input_tokens=7, output_tokens=3, seconds=0.5
        ),
        Hop(source="A", target="B", tool="go", reason="because", kind="call", depth=1, withheld=("t",), error="no"),
        Hop(source="A", target="C", accepted=False, why="already_transferred", message="too late"),
        Hop(source="A", target="D", accepted=False, why="strange"),
        ToolStep(agent="B", tool="find", arguments={"x": [1]}, result="", is_error=True, known=False),
        LimitStep(agent="B", limit="max_handoffs_per_turn", value=6),
        WarningStep(agent="B", message="repaired"),
        HistoryFault(agent="B", code="dangling_call", message="no answer"),
    )
    turn = only_turn(said(*steps, reply="Bye.", end="B", turn={"context": {"tier": "gold"}, "seconds": 2.0}))
    assert turn["steps"] == [
        {"is": "model", "agent": "A", "model": "m", "text": "One moment.", "calls": ["go"], "seconds": 0.5}
        | {"tokens": [7, 3]},
        {"is": "hop", "source": "A", "target": "B", "call": True, "tool": "go", "reason": "because", "depth": 1}
        | {"withheld": ["t"], "failed": "no"},
        {"is": "hop", "source": "A", "target": "C", "refused": "another transfer took effect", "message": "too late"},
        {"is": "hop", "source": "A", "target": "D", "refused": "strange"},
        {"is": "tool", "agent": "B", "tool": "find", "arguments": '{"x": [1]}', "error": True, "unknown": True},
        {"is": "limit", "agent": "B", "limit": "max_handoffs_per_turn", "value": 6},
        {"is": "warning", "agent": "B", "message": "repaired"},
        {"is": "fault", "agent": "B", "code": "dangling_call", "message": "no answer"},
    ]
    assert (turn["reply"], turn["ends"]) == ("Bye.", "B"), "a reply that no model step shows"
    assert (turn["context"], turn["seconds"], turn["tokens"]) == ('{"tier": "gold"}', 2.0, [7, 3])


def test_a_handoff_that_was_refused_and_happened_all_the_same_says_both() -> None:
    (step,) = only_turn(said(Hop(source="A", target="B", why="limit", message="too many")))["steps"]
    assert (step["against"], step["message"], "refused" in step) == ("limit", "too many", False)


def test_data_that_is_nested_too_deeply_is_no_reason_to_have_no_report() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    (step,) = only_turn(said(ToolStep(agent="A", tool="t", arguments={}, result=deep)))["steps"]
    assert "nested too deeply" in step["result"]


def test_what_an_error_left_unjudged_does_not_repeat_its_message() -> None:
    failure = Failure(kind="model", exception="RateLimitError", message="slow down")
    lost = replace(route(), status="skipped", why="turn 1 ended with RateLimitError: slow down")
    outcome = replace(said(), status="errored", failure=failure, failed_turn=1, verdicts=(lost,))
    assert payload.detail(outcome)["turns"][0]["verdicts"][0]["why"] == "turn 1 ended with RateLimitError"


def test_a_reply_that_a_step_shows_is_said_once() -> None:
    assert "reply" not in only_turn(said(ModelStep(agent="A", model="m", text="Bye."), reply="Bye."))
    assert "reply" in only_turn(said(ModelStep(agent="B", model="m", text="Bye."), reply="Bye."))


def test_a_turn_that_was_not_reached_says_what_was_expected() -> None:
    outcome = replace(said(), users=("hi", "and?"), verdicts=(replace(route(), turn=2, status="skipped"),))
    turn = payload.detail(outcome)["turns"][1]
    assert "reached" not in turn
    assert (turn["user"], turn["expected"]) == ("and?", "E")


def test_what_is_known_of_a_trial_and_its_recording() -> None:
    parted = Parted(turn=1, agent="A", hop=0, route=("A",), why="other words")
    failure = Failure(kind="model", exception="RateLimitError", message="slow down", status_code=429)
    outcome = replace(
        said(turn={"failure": failure}), parted=parted, ignored=("body.x",), failure=failure, xfail="known"
    )
    shown = payload.detail(outcome)
    assert shown["parted"] == "turn 1, at A (hop 0): other words"
    assert (shown["ignored"], shown["xfail"]) == (["body.x"], "known")
    assert shown["failure"] == shown["turns"][0]["failure"] == "RateLimitError (model, HTTP 429): slow down"


def test_checks_of_who_begins_and_who_replies_stand_on_the_lanes() -> None:
    starts = Verdict(check="starts_at", turn=1, status="passed", expected="A")
    ends = Verdict(check="ends_at", turn=1, status="failed", expected="C", actual="A")
    called = said(Hop(source="A", target="B", kind="call", depth=1), verdicts=(starts, ends))
    assert only_turn(called)["places"] == [["A", "A", True], ["", "B", True], ["C", "A", False]]
    moved = said(Hop(source="A", target="B"), verdicts=(ends,), end="B")
    assert only_turn(moved)["places"] == [["", "A", True], ["C", "B", False]]


def test_a_route_of_the_whole_conversation_has_lanes_too() -> None:
    shown = payload.detail(said(verdicts=(route(("A", "A"), ("B", None), turn=None),)))
    assert shown["overall_route"] == [("A", "A", True), ("B", None, False)]


# It stays small (B105).

LONG = "long " * 1_000_000
NOTE = "of 5,000,000 characters; the rest is in trials.jsonl]"


@pytest.mark.parametrize(
    "make",
    [
        lambda text: said(reply=text),
        lambda text: said(ModelStep(agent=text, model=text, text=text, calls=(text,))),
        lambda text: said(ToolStep(agent="A", tool=text, arguments=text, result=text)),
        lambda text: said(Hop(source="A", target="B", reason=text, tool=text, message=text)),
        lambda text: said(WarningStep(agent="A", message=text), turn={"user": text, "context": {"x": text}}),
        lambda text: replace(said(), why=text, users=(text,), xfail=text, ignored=(text,)),
        lambda text: said(
            verdicts=(Verdict(check=text, turn=1, status="failed", expected=text, actual=text, why=text),)
        ),
    ],
    ids=["reply", "answer", "tool", "reason", "context", "trial", "verdict"],
)
def test_a_text_of_five_megabytes_is_cut_with_a_note(make: Callable[[str], Outcome]) -> None:
    details, index = packed(bare([make(LONG)]))
    shown = json.dumps([details, index])
    assert NOTE in shown or "5,000," in shown
    assert len(shown) < 50_000


def test_many_steps_and_turns_are_cut_with_a_note() -> None:
    turn = only_turn(said(*[WarningStep(agent="A", message="again")] * 1_000))
    assert len(turn["steps"]) == payload.MAX_STEPS
    assert turn["steps_left_out"] == 1_000 - payload.MAX_STEPS
    shown = payload.detail(replace(said(), users=("hi",) * 1_000))
    assert len(shown["turns"]) == payload.MAX_TURNS
    assert shown["turns_left_out"] == 1_000 - payload.MAX_TURNS


def test_a_trial_takes_little_more_than_its_own_text(sample: Report) -> None:
    passed = [replace(outcome, why="") for outcome in sample.outcomes if outcome.status == "passed"]

    def size(count: int) -> int:
        many = [replace(passed[0], repeat=number) for number in range(1, count + 1)]
        return sum(len(block.data) for block in payload.blocks(bare(many)))

    assert (size(300) - size(200)) / 100 < 100


@settings(max_examples=50, deadline=None)
@given(st.text(), st.recursive(st.none() | st.booleans() | st.text(), lambda inner: st.lists(inner), max_leaves=5))
def test_any_text_and_any_data_can_be_packed(text: str, data: Any) -> None:
    steps = (
        ModelStep(agent=text, model=text, text=text),
        ToolStep(agent=text, tool=text, arguments=data, result=data),
    )
    outcome = replace(said(*steps, reply=text), scenario=text, tags=(text,))
    details, index = packed(bare([outcome]))
    assert details[0]["turns"][0]["steps"][0].get("text") in (text, text.encode("utf-8", "backslashreplace").decode())
    assert len(index["at"]) == 1
