"""The summary for terminals and pipes: the verdict, what failed, the numbers, where to read more, on any console."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chatflow_eval.checks import Verdict
from chatflow_eval.gate import Decision, Gate
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report, RunFolder
from chatflow_eval.route import Aligned
from chatflow_eval.trace import Failure
from chatflow_eval.writers import console, links
from chatflow_eval.writers.screen import Screen, columns

FAILED = Outcome(
    file="a.scenario.yaml",
    line=1,
    scenario="refund",
    status="failed",
    why="turn 1: no",
    users=("I want a refund.",),
    verdicts=(
        Verdict(
            check="route",
            turn=1,
            status="failed",
            expected="A -> B",
            actual="A",
            why="B did not come.",
            alignment=(Aligned(expected="A", actual="A", ok=True), Aligned(expected="B", actual=None, ok=False)),
        ),
    ),
)
PASSED = replace(FAILED, status="passed", verdicts=())


def render(*outcomes: Outcome, decision: Decision | None = None, screen: Screen = console.PLAIN) -> str:
    return console.render(Report.of(outcomes), decision, screen=screen)


def routed(expected: str, actual: str, *places: tuple[str | None, str | None], screen: Screen = console.PLAIN) -> str:
    """What is shown of a route check that failed: both lanes."""
    alignment = tuple(Aligned(expected=want, actual=came, ok=want == came) for want, came in places)
    verdict = replace(FAILED.verdicts[0], expected=expected, actual=actual, alignment=alignment)
    return lanes(render(replace(FAILED, verdicts=(verdict,)), screen=screen))


def lanes(text: str) -> str:
    return "\n".join(
        line.strip() for line in text.splitlines() if line.startswith(("      expected ", "      actual "))
    )


# The verdict.


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([PASSED], "✓ Gate open: the one trial is as expected"),
        ([PASSED, replace(PASSED, repeat=2)], "✓ Gate open: all 2 trials as expected"),
        ([FAILED, replace(PASSED, repeat=2)], "✗ Gate closed: 1 of 2 trials not as expected"),
        ([replace(FAILED, xfail="not yet")], "✓ Gate open: the one trial is as expected"),
        ([], "✗ Gate closed: no trial ran"),
    ],
)
def test_the_first_line_is_the_verdict(outcomes: list[Outcome], verdict: str) -> None:
    decision = Gate().decide(Report.of(outcomes))
    assert render(*outcomes, decision=decision).splitlines()[0] == verdict


def test_without_a_gate_the_verdict_is_how_many_are_not_as_expected() -> None:
    assert render(FAILED).splitlines()[:2] == [
        "✗ 1 of 1 trial not as expected",
        "  1 trial of 1 scenario: 0 passed, 1 failed",
    ]
    assert render(PASSED).startswith("✓ The one trial is as expected\n")


def test_a_gate_with_rules_may_open_although_some_failed(sample: Report) -> None:
    text = console.render(sample, Gate(min_accuracy=0.1, max_errors=9).decide(sample))
    assert text.startswith(
        "✓ Gate open: 5 of 9 trials not as expected\n"
        "  10 trials of 7 scenarios: 3 passed, 5 failed, 1 errored, 1 skipped\n"
        "  1 trial failed as expected (xfail)\n"
    )


# What failed.


def test_a_scenario_that_failed_comes_with_its_place_its_words_the_reason_and_both_routes() -> None:
    assert "\n".join(render(FAILED).splitlines()[3:9]) == (
        "Not as expected  1 scenario, 1 trial\n"
        "  ✗ refund [declared] a.scenario.yaml:1, turn 1\n"
        "      user      I want a refund.\n"
        "      route: B did not come.\n"
        "      expected  A -> [B]\n"
        "      actual    A -> [nobody]"
    )


def test_trials_of_one_scenario_are_told_together(sample: Report) -> None:
    text = console.render(sample)
    assert "Not as expected  4 scenarios, 5 trials" in text
    assert "✗ refund-then-crash [gpt-4o-mini 1/2, keyword] scenarios/support.scenario.yaml:12, turn 2" in " ".join(
        text.split()
    )
    assert re.search(r"expected  TriageAgent -> AccountAgent -> \[nobody\]\n +actual    TriageAgent -> Acc", text)
    assert (
        "! rate-limited [gpt-4o-mini] scenarios/support.scenario.yaml:12, turn 1\n      turn 1: RateLimitError" in text
    )
    assert "known-gap" not in text, "it failed as its author expects"


def test_a_check_without_a_route_says_why() -> None:
    verdict = replace(FAILED.verdicts[0], check="reply", alignment=(), why="the reply lacks `sorry`")
    assert "\n      reply: the reply lacks `sorry`\n" in render(replace(FAILED, verdicts=(verdict,)))


@pytest.mark.parametrize(
    ("expected", "actual", "places", "shown"),
    [
        ("A -> B", "A -> C", [("A", "A"), ("B", "C")], ("A -> [B]", "A -> [C]")),
        ("A -> B -> C", "A -> C", [("A", "A"), ("B", None), ("C", "C")], ("A -> [B] -> C", "A -> [nobody] -> C")),
        ("A", "A => B -> C", [("A", "A"), (None, "B"), (None, "C")], ("A -> [nobody]", "A => [B] -> C")),
        ("A -> B", "B", [("A", None), ("B", "B")], ("[A] -> B", "[nobody] -> B")),
        ("A", "B -> A", [(None, "B"), ("A", "A")], ("[nobody] -> A", "[B] -> A")),
        ("A -> X? -> B | C", "A -> D", [("A", "A"), ("B | C", "D")], ("A -> X? -> [B | C]", "A -> [D]")),
        ("A -> (B -> A)+ -> B", "A", [("A", "A"), ("B", None)], ("A -> (B -> A)+ -> B", "A -> [nobody]")),
    ],
)
def test_the_place_where_the_routes_part_is_in_brackets(
    expected: str, actual: str, places: list[tuple[str | None, str | None]], shown: tuple[str, str]
) -> None:
    """A pattern that is not written stop by stop stays as it was written."""
    assert routed(expected, actual, *places) == f"expected  {shown[0]}\nactual    {shown[1]}"


def test_a_call_that_was_no_call_is_told_by_its_arrow() -> None:
    alignment = (Aligned(expected="A", actual="A", ok=True), Aligned(expected="B", actual="B", ok=False))
    verdict = replace(FAILED.verdicts[0], expected="A => B", actual="A -> B", alignment=alignment)
    assert lanes(render(replace(FAILED, verdicts=(verdict,)))) == "expected  A => [B]\nactual    A -> [B]"


def test_the_brackets_of_a_long_route_are_never_cut_off() -> None:
    agents = [f"Agent{number}" for number in range(40)]
    places: list[tuple[str | None, str | None]] = [(agent, agent) for agent in agents]
    places[20] = ("Agent20", "Wrong")
    actual = " -> ".join(came or "" for _, came in places)
    shown = routed(" -> ".join(agents), actual, *places).splitlines()
    assert re.fullmatch(r"expected  ….*Agent19 -> \[Agent20\].*…?", shown[0])
    assert re.fullmatch(r"actual    ….*Agent19 -> \[Wrong\].*…", shown[1])


def test_of_many_scenarios_the_first_are_shown_and_the_others_counted_with_what_they_share() -> None:
    many = [replace(FAILED, scenario=f"s-{number}", line=number) for number in range(300)]
    errors = [
        replace(e, status="errored", failure=Failure(kind="model", exception="Slow", message="")) for e in many[:9]
    ]
    text = render(*errors, *many[9:], decision=Gate().decide(Report.of(many)))
    assert "! s-5 [declared] a.scenario.yaml:5" in text
    assert "s-6" not in text
    assert "  … and 294 more scenarios, 294 trials: see the report\n" in text
    assert "of all, most often: B expected and nobody came (291), Slow (9)" in text
    assert len(text.splitlines()) <= 40


def test_a_large_run_is_told_in_as_many_lines_as_a_small_one() -> None:
    def lines(count: int) -> int:
        models = [replace(FAILED, scenario=f"s{i}", model=f"m{i % 9}", incidents=()) for i in range(count)]
        return len(render(*models).splitlines())

    assert lines(200) == lines(2_000)


# Recordings.

EDIT = "agent Triage: instructions: recorded 'a', now 'b'"


def unserved(scenario: str, exception: str = "CassetteMismatch", edit: str | None = EDIT) -> Outcome:
    failure = Failure(kind="cassette", exception=exception, message="no", edit=edit)
    return replace(FAILED, scenario=scenario, status="errored", verdicts=(), failure=failure)


def test_stale_recordings_are_grouped_by_the_edit_that_made_them_so() -> None:
    text = render(unserved("one"), unserved("two"))
    assert "Not as expected\n" not in text
    assert text.count(EDIT) == 1
    assert "    2 trials: one, two\n  record again with: chatflow-eval record a.scenario.yaml --only-stale\n" in text


def test_what_was_not_recorded_is_told_together() -> None:
    text = render(*(unserved(f"s{number}", "CassetteMissing", None) for number in range(300)))
    assert "Not recorded\n  300 trials: s0, s1, " in text
    assert "  record with: chatflow-eval record a.scenario.yaml --missing\n" in text
    assert len(text.splitlines()) <= 20


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": "gpt-4o"}, ["--model", "gpt-4o"]),
        ({"model": "declared"}, []),
        ({"model": "Triage=x, *=y"}, []),
        ({"repeat": 3}, ["--repeats", "3"]),
        ({"target": "chatflow_agent"}, ["--framework", "chatflow_agent"]),
        ({"file": "a b.scenario.yaml"}, []),
    ],
)
def test_the_command_records_with_the_model_and_the_framework_that_ran(
    changes: dict[str, Any], told: list[str]
) -> None:
    """B136: a file's name may hold spaces. A choice of several models is made in the file only."""
    stale = replace(unserved("one"), **changes)
    [command] = re.findall("record again with: (.*)", render(stale))
    assert shlex.split(command) == ["chatflow-eval", "record", stale.file, "--only-stale", *told]


def test_files_that_ran_on_other_models_are_recorded_by_a_command_of_their_own() -> None:
    """Else each would be recorded on the other's model, too, which may cost money."""
    ran = (("a", "x"), ("a", "y"), ("b", "z"), ("c", "x"), ("c", "y"), ("d", "declared"), ("d", "x"))
    text = render(*(replace(unserved("one", "CassetteMissing", None), file=file, model=model) for file, model in ran))
    assert re.findall("record with: chatflow-eval record (.*)", text) == [
        "a c --missing --model x --model y",
        "b --missing --model z",
        "d --missing --model declared --model x",
    ]


def test_of_many_edits_the_first_are_told() -> None:
    text = render(*(unserved("one", edit=f"agent A{number}: instructions") for number in range(50)))
    assert "agent A2: instructions" in text
    assert "agent A3:" not in text
    assert "  … and 47 more edits\n" in text


def test_an_error_however_long_is_told_in_a_few_lines() -> None:
    endless = replace(unserved("one", "Boom", None), why="turn 1: Boom: " + "a; chatflow-eval record b; " * 100_000)
    assert len(render(endless)) < 4_000
    command = "record again with: chatflow-eval record a.scenario.yaml --only one --model " + "m" * 80
    damaged = replace(unserved("one", "CassetteDamaged", None), why=f"a.json: damaged: cut; restore it; {command}")
    assert f"      a.json: damaged: cut; restore it\n      {command}\n" in render(damaged)


# Incidents and numbers.


def test_incidents_are_told_by_kind_with_what_they_cost(sample: Report) -> None:
    """B063, B065."""
    lines = console.render(sample).splitlines()
    place = lines.index("Incidents")
    assert lines[place + 1].startswith("  loop 1 (6 calls, 1,224 tokens): TriageAgent -> AccountAgent went round 3")
    assert lines[place + 2].startswith("  limit hit 1 (")
    assert lines[place + 3].startswith("  multiple transfers 1: ")
    assert lines[place + 4 : place + 6] == ["  also unknown tool 1", ""]


def test_numbers_come_with_their_denominators_and_intervals(sample: Report) -> None:
    """B109: with errors left out, and with errors counted as wrong."""
    text = console.render(sample)
    assert re.search(r"routing accuracy +58\.3 % +7/12 turns +24\.1 to 86\.1 %", text)
    assert re.search(r"errors counted as wrong +53\.8 % +7/13 turns +[\d.]+ to [\d.]+ %", text)
    assert re.search(r"scenario pass rate +35\.7 % +2\.5/7 scenarios", text)
    assert "33 model calls, at least 5,400 tokens in, at least 720 out" in text


def test_models_are_compared_and_keyword_is_called_what_it_is(sample: Report) -> None:
    text = console.render(sample)
    assert re.search(r"keyword +66\.7 % +2/3 turns", text)
    assert "`keyword` is no language model" in text
    assert "Answers of 7 of 9 trials were replayed" in text


def test_a_single_real_model_needs_neither() -> None:
    text = render(replace(FAILED, model="gpt-4o-mini"))
    assert "By model" not in text
    assert "language model" not in text
    assert "replayed" not in text


def test_many_models_are_counted_where_they_are_not_shown() -> None:
    models = [replace(FAILED, model=f"model-{number}") for number in range(9)]
    text = render(*models)
    assert "model-5" in text
    assert "model-6" not in text.partition("By model")[2]
    assert "… and 3 more" in text


def test_a_right_start_is_told_apart_where_it_makes_a_difference() -> None:
    later = replace(FAILED.verdicts[0], turn=2, after_failure=True)
    text = render(replace(FAILED, verdicts=(*FAILED.verdicts, later)))
    assert re.search(r"given a right start +0\.0 % +0/1 turns", text)


def test_the_gate_shows_each_rule_with_its_number(sample: Report, capsys: pytest.CaptureFixture[str]) -> None:
    decision = Gate(min_accuracy=0.9, max_errors=2).decide(sample)
    shown = "Gate  closed\n  ✗ routing accuracy: 0.5833 (7/12) is not >= 0.9\n  ✓ errored trials: 1 is <= 2\n"
    assert shown in console.render(sample, decision) + "\n"
    console.show_gate(decision, sys.stdout)
    assert capsys.readouterr().out == shown


def test_without_rules_the_gate_is_the_verdict() -> None:
    assert "\nGate " not in render(FAILED, decision=Gate().decide(Report.of([FAILED])))


def test_what_changed_since_the_baseline_is_told() -> None:
    base = [replace(PASSED, scenario=name) for name in ("kept", "lost")]
    now = Report.of([replace(PASSED, scenario="kept"), replace(FAILED, scenario="lost")])
    text = console.render(now, Gate().decide(now, Report.of(base)))
    assert "Against the baseline  1 " in text
    assert "routing accuracy: " in text


# Where to look.


def test_it_ends_with_where_to_look(tmp_path: Path) -> None:
    folder = tmp_path / "my runs" / "x"
    run = RunFolder.create(folder)
    run.append(replace(FAILED, scenario="b", line=9))
    run.append(FAILED)
    page = folder / "report.html"
    assert console.render(run.close(partial=True)).splitlines()[-3:] == [
        f"First failed: {page.as_uri()}{links.to_trial(FAILED)}",
        f"All runs: chatflow-eval view '{folder.parent}'",
        f"Report: {page}",
    ]
    assert "Partial run" in console.render(Report.read(folder))


def test_nothing_failed_and_nothing_leads_to_it(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    run.append(PASSED)
    assert "First failed" not in console.render(run.close())


def test_notes_keep_their_indentation() -> None:
    text = console.render(Report.of([PASSED]), notes=["Live (1 trial):", "  refund: turn 2"])
    assert "Live (1 trial):\n  refund: turn 2\n" in text


# Consoles (B136).


def test_nothing_at_all_is_shown_as_such() -> None:
    text = render(decision=Gate().decide(Report.of([])))
    assert "0 trials of 0 scenarios" in text
    assert re.search(r"routing accuracy +n/a +0/0 turns", text)


@pytest.mark.parametrize("width", [40, 80])
def test_it_fits_the_screen(sample: Report, width: int) -> None:
    text = console.render(sample, Gate(max_loops=0).decide(sample), screen=Screen(width=width))
    assert max(map(columns, text.splitlines())) <= width


def test_it_is_short(sample: Report) -> None:
    assert len(console.render(sample, Gate(max_loops=0).decide(sample)).splitlines()) <= 50
    assert len(render(PASSED, decision=Gate().decide(Report.of([PASSED]))).splitlines()) <= 10


@pytest.mark.parametrize("name", ["規劃" * 60, "🚀" * 90, "e\u0301" * 200, "long " * 50, "שלום " * 40])
@pytest.mark.parametrize("width", [40, 80])
def test_wide_and_long_names_fit_the_columns_they_take(name: str, width: int) -> None:
    shown = routed(name, name, (name, None), (None, name), screen=Screen(width=width))
    text = render(replace(FAILED, scenario=name, model=name, users=(name,)), screen=Screen(width=width))
    assert all(columns(line) <= width for line in [*text.splitlines(), *shown.splitlines()])
    assert "…" in text


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1", "cp437", "utf-8"])
def test_every_encoding_shows_it(sample: Report, encoding: str) -> None:
    rocket = replace(FAILED, scenario="🚀 規劃", model="keyword", file="規.scenario.yaml")
    text = console.render(
        Report.of([*sample.outcomes, rocket]), Gate(max_loops=0).decide(sample), screen=Screen(encoding=encoding)
    )
    assert text.encode(encoding)
    assert "routing accuracy" in text
    if encoding == "ascii":
        assert "x plan-ping-pong" in text
        assert r"x \U0001f680" in text


def test_colours_change_nothing_but_colours(sample: Report) -> None:
    coloured = console.render(sample, screen=Screen(colour=True))
    assert "\x1b[31m✗\x1b[0m plan-ping-pong" in coloured
    assert "TriageAgent -> AccountAgent -> \x1b[31m[TriageAgent]\x1b[0m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == console.render(sample)


def test_a_pipe_gets_neither_colours_nor_cursor_moves(sample: Report, capsys: pytest.CaptureFixture[str]) -> None:
    console.show(sample, sys.stdout)
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", capsys.readouterr().out)


def test_what_agents_say_cannot_steer_the_terminal() -> None:
    hostile = "\x1b[2J\x07\r\x9b31m\u202eevil"
    verdict = replace(FAILED.verdicts[0], actual=hostile, why=hostile, alignment=())
    text = render(
        replace(FAILED, scenario=hostile, model=hostile, why=hostile, users=(hostile,), verdicts=(verdict,)),
        replace(FAILED, file=hostile, scenario="other"),
        replace(unserved(hostile, edit=hostile), file=hostile),
    )
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert r"\u001b[2J" in text
