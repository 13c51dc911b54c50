"""The page: everything that was asked for is on it, it stands alone, and nothing from outside can act in it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatflow_eval import incidents
from chatflow_eval.checks import Verdict
from chatflow_eval.errors import ReportError
from chatflow_eval.gate import Gate
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report, Run
from chatflow_eval.route import Aligned
from chatflow_eval.trace import (
    Failure,
    Hop,
    LimitStep,
    ModelStep,
    ToolStep,
    Topology,
    Trace,
    TurnTrace,
    WarningStep,
)
from chatflow_eval.writers import html


class Page(HTMLParser):
    """A page as a browser takes it apart: its elements, their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self.words: list[str] = []
        self._raw = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._raw = tag if tag in ("style", "script") else ""

    def handle_endtag(self, tag: str) -> None:
        self._raw = ""

    def handle_data(self, data: str) -> None:
        if self._raw:
            self.inside[self._raw] = self.inside.get(self._raw, "") + data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def attributes(self, name: str) -> list[str]:
        return [value for _, attributes in self.elements for key, value in attributes.items() if key == name and value]


def trial(page: str, number: int) -> Page:
    """One trial's part of the page."""
    found = re.search(rf"<details class=trial data-s=\w+ id=t{number}>.*?</details>", page, re.DOTALL)
    assert found
    return Page(found.group())


@pytest.fixture(scope="module")
def page(sample: Report) -> str:
    return html.render(sample, Gate(min_accuracy=0.9, max_errors=2).decide(sample))


# What is on it.


def test_the_head_says_how_it_went(page: str) -> None:
    text = Page(page).text
    assert "✗ 5 of 9 trials not as expected" in text
    assert "✓ 3 passed ✗ 5 failed ! 1 errored ○ 1 skipped" in text
    assert "2026-12-01 09:00 UTC · 14.00 s · chatflow-eval run scenarios/" in text


@pytest.mark.parametrize(
    ("outcomes", "headline"),
    [
        ([], "No trial ran"),
        (["passed"], "The one trial is as expected"),
        (["passed", "passed"], "All 2 trials as expected"),
        (["failed", "passed"], "1 of 2 trials not as expected"),
        (["skipped"], "No trial ran"),
    ],
)
def test_the_headline_fits_what_happened(outcomes: list[str], headline: str) -> None:
    trials = [
        Outcome(file="a", line=1, scenario="s", repeat=number, status=status)  # type: ignore[arg-type]
        for number, status in enumerate(outcomes, 1)
    ]
    assert headline in Page(html.render(Report.of(trials))).text


def test_numbers_have_intervals_and_definitions(page: str, sample: Report) -> None:
    """B109, B118."""
    text = Page(page).text
    total = sample.metrics.total
    assert "Routing accuracy 58.3 % 7/12 turns 95 % interval 24.1 to 86.1 % Turns whose route was accepted" in text
    assert "accuracy, errors counted as wrong 53.8 % 7/13 turns" in text
    for rate in (total.accuracy, total.accuracy_with_errors, total.pass_rate, total.pass_hat_k[2], total.hop_recall):
        assert rate.definition in text


def test_unknown_tokens_are_no_nought(page: str) -> None:
    """B119."""
    assert "tokens in at least 5,400 30 calls, unknown for 3" in Page(page).text


def test_the_gate_is_there_when_there_is_one(page: str, sample: Report) -> None:
    text = Page(page).text
    assert "Gate ✗ closed ✗ routing accuracy: 0.5833 (7/12) is not >= 0.9 ✓ errored trials: 1 is <= 2" in text
    assert 'href="#gate"' not in html.render(sample)


def test_confusion_has_a_row_for_each_expected_agent_and_columns_for_no_agent(page: str) -> None:
    """B115."""
    found = re.search(r'<table class="matrix">.*?</table>', page, re.DOTALL)
    assert found
    head, *rows = re.findall(r"<tr>(.*?)(?=<tr>|</thead>|</tbody>)", found.group(), re.DOTALL)
    columns = [Page(cell).text for cell in re.split("<th", head)[2:]]
    assert [column.partition(">")[2] or column for column in columns] == [
        "AccountAgent",
        "BillingAgent",
        "TechSupportAgent",
        "TriageAgent",
        "(stayed)",
        "(error)",
    ]
    cells = {Page(row).words[0].strip(): [Page("<td" + cell).text for cell in row.split("<td")[1:]] for row in rows}
    assert cells["BillingAgent"] == ["", "5", "", "", "1", "1"]
    assert cells["(stay)"] == ["2", "", "", "3", "1", ""]


def test_incidents_have_their_evidence_and_lead_to_their_trial(page: str) -> None:
    """B063, B065, B068."""
    text = Page(page).text
    assert "loop 1 in 1 trial, limit hit 1 in 1 trial" in text
    assert "TriageAgent -> AccountAgent went round 3 times in one turn (6 model calls, 1224 tokens)" in text
    assert "Reasons given: plan change, billing question" in text
    assert "TriageAgent reached max_handoffs_per_turn (6) after TriageAgent -> AccountAgent" in text
    assert "TriageAgent → AccountAgent → TriageAgent → AccountAgent → TriageAgent" in text
    assert "6 calls, 1,224 tokens" in text
    assert '<a href="#t1">plan-ping-pong [gpt-4o-mini, repeat 1], turn 1</a>' in page
    assert "plan-ping-pong" in trial(page, 1).text


def test_every_link_leads_somewhere_on_the_page(page: str) -> None:
    parsed = Page(page)
    assert set(parsed.attributes("href")) <= {f"#{name}" for name in parsed.attributes("id")}


def test_models_and_scenarios_have_their_rows(page: str) -> None:
    text = Page(page).text
    assert "keyword no language model 2 66.7 % 2/3" in text
    assert "gpt-4o-mini recorded 7 55.6 % 5/9" in text
    assert "refund-then-crash flaky gpt-4o-mini 1 1 0 50.0 % 75.0 % 3/4" in text
    assert "All in scenarios/support.scenario.yaml" in text


def test_keyword_and_recorded_values_are_named_as_such(page: str) -> None:
    text = Page(page).text
    assert "`keyword` is no language model" in text
    assert "Answers of 7 of 9 trials were replayed: tokens are recorded values, latencies those of replaying." in text


def test_unexpected_trials_come_first(page: str) -> None:
    statuses = re.findall(r"data-s=(\w+)", page)
    assert statuses == ["failed", "errored", *["failed"] * 3, "failed", "skipped", "passed", "passed", "passed"]
    assert "(expected to fail: billing has no way back yet)" in trial(page, 6).text


def test_expected_and_actual_route_stand_place_by_place(page: str) -> None:
    lane = re.findall(r"<table class=lane>.*?</table>", page, re.DOTALL)
    assert (
        "<tr><th>expected<td>TriageAgent<td>AccountAgent<td>BillingAgent\n"
        "<tr><th>actual<td>TriageAgent<td class=x>✗ TechSupportAgent<td class=o>nobody</table>" in "".join(lane)
    )
    assert "<td class=o>nobody<td class=o>nobody" in lane[0], "what nobody expected"


def test_the_transcript_shows_everything_that_happened(page: str) -> None:
    """B107: who transferred to whom, by which tool, why, and why not."""
    mixed = trial(page, 5).text
    for shown in (
        "user My password and my invoice are both wrong.",
        "! TriageAgent: arguments were no JSON object: taken as {}",
        "TriageAgent → TechSupportAgent transfer_to_techsupportagent · password",
        "✗ TriageAgent → BillingAgent refused (another transfer took effect): Another transfer already took effect.",
        "transfer_to_billingagent · invoice",
        "TechSupportAgent ✗ called unknown tool reset_password {} error This agent has: open_ticket",
        "TechSupportAgent I opened a ticket for you.",
        "✗ route expected AccountAgent after TriageAgent, and TechSupportAgent came.",
    ):
        assert shown in mixed
    looped = trial(page, 1).text
    assert "✗ TriageAgent reached the limit max_handoffs_per_turn (6)" in looped
    passed = trial(page, 9).text
    assert 'BillingAgent called issue_refund {"transaction_id": "TX-1042", "amount": 20.0} returned' in passed
    assert "Turn 1 ✓ route" in passed


def test_an_error_is_shown_with_its_reason_and_what_it_cost(page: str) -> None:
    """B108."""
    errored = trial(page, 2).text
    assert "! RateLimitError (model, HTTP 429) in turn 1: 429 Too Many Requests: slow down" in errored
    assert "○ route the turn errored" in errored
    assert "Turn 2 · not reached user And again." in errored


def test_a_call_that_came_back_and_checks_of_the_whole_conversation_show_too() -> None:
    hop = Hop(source="A", target="B", kind="call", depth=1, tool="ask_b")
    turn = TurnTrace(user="hi", start_agent="A", end_agent="A", reply="Done.", steps=(hop,))
    whole = Verdict(check="handoffs", turn=None, status="failed", expected="at most 0", actual="1", why="too many")
    outcome = Outcome(
        file="a",
        line=0,
        scenario="s",
        status="failed",
        users=("hi",),
        trace=Trace(topology=Topology(start="A", agents=("A", "B")), turns=(turn,)),
        verdicts=(whole,),
    )
    shown = trial(html.render(Report.of([outcome])), 1).text
    assert "A ⇒ B ask_b" in shown
    assert "A Done." in shown, "a reply that no model step shows"
    assert "Whole conversation ✗ handoffs too many expected at most 0, actual 1" in shown


def test_an_answer_without_text_or_calls_is_shown_as_empty() -> None:
    steps = (ModelStep(agent="A", model="m"), ModelStep(agent="A", model="m", calls=("t",)))
    turn = TurnTrace(user="hi", start_agent="A", end_agent="A", steps=steps)
    outcome = said("x", turn)
    assert trial(html.render(Report.of([outcome])), 1).text.count("empty answer") == 1


def test_a_partial_run_says_so(sample: Report) -> None:
    partial = replace(sample, run=Run(started="2026-12-01T09:00:00+00:00", partial=True))
    assert "Partial run" in Page(html.render(partial)).text


# It stands alone.


def test_it_asks_nobody_for_anything(page: str) -> None:
    parsed = Page(page)
    assert not {"link", "img", "iframe", "object", "embed", "base", "audio", "video", "source"} & {
        tag for tag, _ in parsed.elements
    }
    assert not parsed.attributes("src")
    assert not re.search(r"url\(|@import", parsed.inside["style"])
    assert "fetch(" not in parsed.inside["script"]


def test_the_policy_lets_run_what_is_ours_and_nothing_else(page: str) -> None:
    parsed = Page(page)
    (policy,) = (each["content"] or "" for tag, each in parsed.elements if each.get("http-equiv"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(parsed.inside[kind].encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    assert (rules["default-src"], rules["base-uri"], rules["form-action"]) == ("'none'", "'none'", "'none'")
    assert not parsed.attributes("style")


def test_without_a_script_everything_is_there_and_no_dead_control(page: str) -> None:
    parsed = Page(page)
    assert parsed.count("details") == parsed.count("summary") == 10
    assert ("form", {"id": "filter", "hidden": None}) in parsed.elements


def test_it_adapts_to_dark_small_and_paper(page: str) -> None:
    style = Page(page).inside["style"]
    for query in ("prefers-color-scheme: dark", "max-width: 40rem", "print", "prefers-reduced-motion"):
        assert query in style
    assert 'name="viewport"' in page


# Nothing from outside acts in it (B103).

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)",
    "<b>bold</b>",
    "</style><script>alert(1)</script>",
    "javascript:alert(1)",
    "</details></table><h1>gone</h1>",
    "<!-- ",
    "-->]]>",
    "{{ 7*7 }}{% raw %}",
    "&lt;script&gt;",
    "x onclick=alert(1) y",
)


def hostile(text: str) -> Outcome:
    """An outcome that has one text wherever a text can be."""
    steps = (
        ModelStep(agent=text, model=text, text=text, calls=(text,)),
        ToolStep(agent=text, tool=text, arguments={text: [text]}, result=text),
        ToolStep(agent=text, tool=text, arguments=text, result={text: text}, is_error=True, known=False),
        Hop(source=text, target=text + "2", tool=text, reason=text),
        Hop(source=text, target=text, tool=text, reason=text, accepted=False, why=text, message=text),
        LimitStep(agent=text, limit=text, value=1),
        WarningStep(agent=text, message=text),
    )
    failure = Failure(kind="agent", exception=text, message=text)
    turn = TurnTrace(user=text, start_agent=text, end_agent=text, reply=text, steps=steps, failure=failure)
    trace = Trace(topology=Topology(start=text, agents=(text,)), turns=(turn,))
    aligned = Aligned(expected=text, actual=text + "2", ok=False)
    places = (replace(aligned, ok=True), aligned)
    verdicts = (
        Verdict(check="route", turn=1, status="failed", expected=text, actual=text, why=text, alignment=places),
        Verdict(check=text, turn=1, status="failed", expected=text, actual=text, why=text),
        Verdict(check=text, turn=None, status="passed", expected=text),
    )
    return Outcome(
        file=text,
        line=1,
        scenario=text,
        tags=(text,),
        target=text,
        model=text,
        status="failed",
        why=text,
        xfail=text,
        users=(text, text),
        trace=trace,
        verdicts=verdicts,
        incidents=incidents.find(trace),
        failure=failure,
    )


KNOWN_ATTRIBUTES = {
    *("aria-hidden", "aria-label", "aria-labelledby", "charset", "checked", "class", "colspan", "content", "data-l"),
    *("data-s", "fill", "height", "hidden", "href", "http-equiv", "id", "lang", "name", "placeholder"),
    *("preserveaspectratio", "role", "scope", "tabindex", "type", "value", "viewbox", "width", "x", "y"),
}


def page_with(text: str) -> str:
    report = Report.of([hostile(text)], run=Run(command=("run", text)))
    return html.render(report, Gate().decide(report))


def assert_harmless(text: str) -> None:
    """The page has the same elements and classes as one about nothing in particular, and shows the text."""
    parsed, harmless = Page(page_with(text)), Page(page_with("plain"))
    assert [tag for tag, _ in parsed.elements] == [tag for tag, _ in harmless.elements]
    assert {name for _, attributes in parsed.elements for name in attributes} <= KNOWN_ATTRIBUTES
    assert parsed.attributes("class") == harmless.attributes("class")
    assert all(value.startswith("#") for value in parsed.attributes("href"))
    assert " ".join(text.split()) in parsed.text


@pytest.mark.parametrize("text", HOSTILE)
def test_what_comes_from_outside_is_text_and_nothing_else(text: str) -> None:
    assert_harmless(text)


@settings(max_examples=25, deadline=None)
@given(st.text(st.sampled_from("<>\"'&=/ ;-!`{}%#abc\n"), min_size=1, max_size=30).filter(str.strip))
def test_no_mix_of_signs_breaks_out(text: str) -> None:
    assert_harmless(text)


def test_characters_that_turn_a_line_around_or_end_a_text_are_shown_as_escapes() -> None:
    shown = html.render(Report.of([hostile("a\u202eb\x00c\x1bd")]))
    assert r"a\u202eb\u0000c\u001bd" in shown
    assert not re.search("[\x00\x1b\u202e]", shown)


# It stays small (B105).


def said(text: str, *turns: TurnTrace) -> Outcome:
    turn = TurnTrace(user="hi", start_agent="A", end_agent="A", reply=text)
    trace = Trace(topology=Topology(start="A", agents=("A",)), turns=turns or (turn,))
    return Outcome(file="a", line=1, scenario="s", status="passed", users=("hi",), trace=trace)


def test_a_reply_of_five_megabytes_is_cut_with_a_note() -> None:
    page = html.render(Report.of([said("long " * 1_000_000)]))
    assert "[cut: 2,000 of 5,000,000 characters; the rest is in trials.jsonl]" in page
    assert len(page) < 50_000


def test_a_turn_of_a_thousand_steps_is_cut_with_a_note() -> None:
    warning = WarningStep(agent="A", message="again")
    turn = TurnTrace(user="hi", start_agent="A", end_agent="A", reply="x", steps=(warning,) * 1000)
    shown = trial(html.render(Report.of([said("", turn)])), 1).text
    assert shown.count("again") == html.MAX_STEPS
    assert "800 more steps are in trials.jsonl" in shown


def test_more_trials_than_a_browser_opens_are_left_out_with_a_note(
    sample: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_TRIALS", "MAX_SCENARIOS", "MAX_INCIDENTS"):
        monkeypatch.setattr(html, limit, 2)
    page = html.render(sample)
    assert re.findall(r"data-s=(\w+)", page) == ["failed", "errored"]
    text = Page(page).text
    assert "8 more trials are in trials.jsonl" in text
    assert "7 better ones are in report.json" in text
    assert "2 more are in trials.jsonl" in text


def test_a_trial_takes_little_more_than_its_own_text(sample: Report) -> None:
    passed = [replace(outcome, why="") for outcome in sample.outcomes if outcome.status == "passed"]
    one, many = ([replace(passed[0], repeat=number) for number in range(1, count)] for count in (2, 102))
    grown = len(html.render(Report.of(many)).encode()) - len(html.render(Report.of(one)).encode())
    assert grown / 100 < 2_000


# The file.


def test_the_page_is_written_into_the_folder_as_utf_8(sample: Report, tmp_path: Path) -> None:
    written = html.write(sample, tmp_path)
    assert written == tmp_path / "report.html"
    assert written.read_text(encoding="utf-8") == html.render(sample)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_cannot_be_written_is_one_clear_error(sample: Report, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"report\.html: cannot be written"):
        html.write(sample, tmp_path / "missing")
