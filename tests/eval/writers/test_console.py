"""The summary for terminals and pipes: what failed, the numbers, where to read more, on any console."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from chatflow_eval.checks import Verdict
from chatflow_eval.gate import Gate
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report, RunFolder
from chatflow_eval.writers import console

FAILED = Outcome(
    file="a.scenario.yaml",
    line=1,
    scenario="refund",
    status="failed",
    why="turn 1: no",
    verdicts=(Verdict(check="route", turn=1, status="failed", expected="A -> B", actual="A", why="B did not come."),),
)


class Terminal(io.TextIOWrapper):
    """A stream of one encoding that is a terminal, or is none."""

    def __init__(self, encoding: str, *, tty: bool = False) -> None:
        self.bytes = io.BytesIO()
        self.tty = tty
        super().__init__(self.bytes, encoding=encoding, newline="\n")

    def isatty(self) -> bool:
        return self.tty

    @property
    def text(self) -> str:
        return self.bytes.getvalue().decode(self.encoding)


def test_it_says_what_failed_with_the_expected_and_the_actual_route(sample: Report) -> None:
    text = console.render(sample)
    assert "10 trials of 7 scenarios: 3 passed, 5 failed, 1 errored, 1 skipped" in text
    assert "✗ plan-ping-pong [gpt-4o-mini, repeat 1]" in text
    assert re.search(r"turn 1, route: TriageAgent came after AccountAgent", text)
    assert re.search(r"expected  TriageAgent -> AccountAgent\n +actual    TriageAgent -> AccountAgent -> Tri", text)
    assert "! rate-limited [gpt-4o-mini, repeat 1]\n      turn 1: RateLimitError: 429 Too Many Requests" in text
    assert "… and 2 more" in text
    assert "known-gap" not in text, "it failed as its author expects"


def test_it_shows_incidents_with_their_cycle_and_cost(sample: Report) -> None:
    """B063, B065."""
    text = " ".join(console.render(sample).split())
    assert "Incidents loop 1, limit hit 1, multiple transfers 1, unknown tool 1" in text
    assert "loop: TriageAgent -> AccountAgent went round 3 times in one turn (6 model calls, 1224 tokens)" in text
    assert "limit hit: TriageAgent reached max_handoffs_per_turn (6) after TriageAgent -> AccountAgent" in text


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
    text = console.render(Report.of([replace(FAILED, model="gpt-4o-mini")]))
    assert "By model" not in text
    assert "language model" not in text
    assert "replayed" not in text


def test_many_models_are_counted_where_they_are_not_shown() -> None:
    models = [replace(FAILED, model=f"model-{number}") for number in range(9)]
    text = console.render(Report.of(models))
    assert "model-5" in text
    assert "model-6" not in text.partition("By model")[2]
    assert "… and 3 more" in text


def test_a_right_start_is_told_apart_where_it_makes_a_difference() -> None:
    later = replace(FAILED.verdicts[0], turn=2, after_failure=True)
    text = console.render(Report.of([replace(FAILED, verdicts=(*FAILED.verdicts, later))]))
    assert re.search(r"given a right start +0\.0 % +0/1 turns", text)


def test_the_gate_shows_each_rule_with_its_number(sample: Report) -> None:
    decision = Gate(min_accuracy=0.9, max_errors=2).decide(sample)
    shown = "Gate  closed\n  ✗ routing accuracy: 0.5833 (7/12) is not >= 0.9\n  ✓ errored trials: 1 is <= 2\n"
    assert shown in console.render(sample, decision) + "\n"
    stream = Terminal("utf-8")
    console.show_gate(decision, stream)
    assert stream.text == shown


def test_it_says_where_the_report_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("x")
    run = RunFolder.create(folder)
    run.append(FAILED)
    assert console.render(run.close(partial=True)).endswith(f"Report: {folder / 'report.html'}\n")
    assert "Partial run" in console.render(Report.read(folder))


def test_nothing_at_all_is_shown_as_such() -> None:
    text = console.render(Report.of([]), Gate().decide(Report.of([])))
    assert "0 trials of 0 scenarios" in text
    assert re.search(r"routing accuracy +n/a +0/0 turns", text)
    assert "nothing judged" in text


def test_it_is_short_and_fits_80_columns(sample: Report) -> None:
    lines = console.render(sample, Gate(max_loops=0).decide(sample)).splitlines()
    assert max(map(len, lines)) <= console.WIDTH
    assert len(lines) <= 50
    passed = Report.of([replace(FAILED, status="passed", verdicts=())])
    assert len(console.render(passed, Gate().decide(passed)).splitlines()) <= 10


@pytest.mark.parametrize("name", ["規劃" * 60, "🚀" * 90, "e\u0301" * 200, "long " * 50])
def test_wide_and_long_names_are_cut_to_the_columns_they_take(name: str) -> None:
    verdict = replace(FAILED.verdicts[0], expected=name, actual=name, why=name)
    text = console.render(Report.of([replace(FAILED, scenario=name, verdicts=(verdict,))]))
    assert max(sum(console._columns(character) for character in line) for line in text.splitlines()) <= console.WIDTH
    assert "…" in text


# Consoles (B136).


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1", "cp437", "utf-8"])
def test_every_encoding_shows_it(sample: Report, encoding: str) -> None:
    rocket = replace(FAILED, scenario="🚀 規劃", model="keyword")
    stream = Terminal(encoding)
    console.show(Report.of([*sample.outcomes, rocket]), stream, Gate().decide(sample))
    assert "routing accuracy" in stream.text
    if encoding == "ascii":
        assert "x plan-ping-pong" in stream.text


def test_what_an_encoding_lacks_is_escaped_and_our_signs_become_ascii() -> None:
    stream = Terminal("ascii")
    console.show(Report.of([replace(FAILED, scenario="🚀")]), stream)
    assert r"x \U0001f680 [declared, repeat 1]" in stream.text


def test_pipes_get_no_colour_and_terminals_do(monkeypatch: pytest.MonkeyPatch, sample: Report) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    pipe, terminal = Terminal("utf-8"), Terminal("utf-8", tty=True)
    for stream in (pipe, terminal):
        console.show(sample, stream)
    assert "\x1b[" not in pipe.text
    assert "\x1b[31m✗\x1b[0m plan-ping-pong" in terminal.text
    assert re.sub(r"\x1b\[\d+m", "", terminal.text) == pipe.text


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch, sample: Report) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal("utf-8", tty=True)
    console.show(sample, terminal)
    assert "\x1b[" not in terminal.text


def test_what_agents_say_cannot_steer_the_terminal() -> None:
    hostile = "\x1b[2J\x07\r\x9b31m\u202eevil"
    verdict = replace(FAILED.verdicts[0], actual=hostile, why=hostile)
    text = console.render(
        Report.of([replace(FAILED, scenario=hostile, model=hostile, why=hostile, verdicts=(verdict,))])
    )
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert r"\u001b[2J" in text
