"""The summary of a pull request, and GitHub's annotations: nothing from outside becomes markup or a command."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chatflow_eval.gate import Gate
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report
from chatflow_eval.writers import markdown


def test_the_summary_tells_the_gate_what_failed_and_the_numbers(sample: Report) -> None:
    text = markdown.render(sample, Gate(min_accuracy=0.9, max_loops=0).decide(sample))
    assert text.startswith("## ❌ Routing: 10 trials, 3 passed, 5 failed, 1 errored, 1 skipped\n")
    assert "| ❌ | `routing accuracy` | `>= 0.9` |" in text
    assert "`plan-ping-pong [gpt-4o-mini, repeat 1] scenarios/support.scenario.yaml:12`" in text
    assert "| routing accuracy |" in text
    assert "| loop | 1 |" in text


def test_a_baseline_shows_what_changed(sample: Report) -> None:
    better = Report.of([replace(outcome, status="passed") for outcome in sample.outcomes])
    text = markdown.render(better, Gate().decide(better, sample))
    assert "### Against the baseline" in text
    assert "| `plan-ping-pong` | improved | 0/1 | 1/1 |" in text


def test_an_empty_run_is_no_success() -> None:
    """B139."""
    assert markdown.render(Report.of([])).startswith("## ❌ Routing: 0 trials, nothing ran")


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "a | b\n| c",
    "``` `code` @everyone",
    "[x](javascript:alert(1)) ![y](http://a)",
    "\x1b[2J",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_from_outside_is_code_in_one_cell(text: str) -> None:
    """B103: in a code span nothing is a tag, a link or a mention; its fence is longer than any in the text."""
    code = markdown.code(text)
    fence = code[: len(code) - len(code.lstrip("`"))]
    inside = code.removeprefix(fence).removesuffix(fence)
    assert fence
    assert fence not in inside
    assert "\n" not in code
    assert "\x1b" not in code
    assert "|" not in inside.replace(r"\|", "")


def failing(scenario: str, *, line: int = 7, why: str = "turn 1: wrong") -> Outcome:
    return Outcome(file="scenarios/a.yaml", line=line, scenario=scenario, status="failed", why=why)


def test_annotations_point_at_the_line_of_each_scenario_once() -> None:
    report = Report.of([failing("a"), replace(failing("a"), repeat=2), failing("b", line=9)])
    assert list(markdown.annotate(report, "packages/desk")) == [
        "::error file=packages/desk/scenarios/a.yaml,line=7,title=a [declared%2C repeat 1]::failed: turn 1: wrong",
        "::error file=packages/desk/scenarios/a.yaml,line=9,title=b [declared%2C repeat 1]::failed: turn 1: wrong",
    ]


def test_an_annotation_is_one_command_whatever_is_in_it() -> None:
    report = Report.of([failing("a,b: c\n::error::d", why="50 %\n::set-output name=x::y")])
    (line,) = markdown.annotate(report)
    assert "\n" not in line
    assert line.endswith("::failed: 50 %25%0A::set-output name=x::y")
    assert "title=a%2Cb%3A c %3A%3Aerror%3A%3Ad" in line


def test_more_than_github_shows_are_counted() -> None:
    lines = list(markdown.annotate(Report.of([failing(str(number)) for number in range(13)])))
    assert len(lines) == markdown.SHOWN + 1
    assert lines[-1] == "::warning title=chatflow-eval::3 more scenarios not as expected"
