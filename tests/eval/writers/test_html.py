"""The page: everything that was asked for is on it, it stands alone, and nothing from outside can act in it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatflow_eval import incidents
from chatflow_eval.checks import Verdict
from chatflow_eval.comparison import compare
from chatflow_eval.demand import Demand
from chatflow_eval.errors import ReportError
from chatflow_eval.gate import Gate
from chatflow_eval.metrics import DEFINITIONS
from chatflow_eval.outcome import Outcome, Parted
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
from chatflow_eval.writers import html, links, payload, words


class Page(HTMLParser):
    """A page as a browser takes it apart: its elements, their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"style": [], "script": []}
        """Styles, and scripts that run."""
        self.words: list[str] = []
        self._raw = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._raw = tag if tag in self.inside else ""
        if self._raw and not dict(attrs).get("type"):
            self.inside[tag].append("")
        elif self._raw:
            self._raw = "data"

    def handle_endtag(self, tag: str) -> None:
        self._raw = ""

    def handle_data(self, data: str) -> None:
        if not self._raw:
            self.words.append(data)
        elif self._raw in self.inside:
            self.inside[self._raw][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def attributes(self, name: str) -> list[str]:
        return [value for _, attributes in self.elements for key, value in attributes.items() if key == name and value]


@pytest.fixture(scope="module")
def page(sample: Report) -> str:
    return html.render(sample, Gate(min_accuracy=0.9, max_errors=2).decide(sample))


# What is on it.


def test_the_head_says_how_it_went(page: str) -> None:
    text = Page(page).text
    assert "✗ 5 of 9 trials not as expected" in text
    assert "✓ 3 passed ✗ 5 failed 1 of them as expected (xfail) ! 1 errored ○ 1 skipped" in text
    assert "2026-12-01 09:00 UTC · 14.00 s chatflow-eval run scenarios/" in text


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
    assert "Routing accuracy 58.3 % 7/12 turns 0 25 50 75 100 % 95 % interval 24.1 to 86.1 % Turns whose route" in text
    assert "accuracy, errors counted as wrong 53.8 % 7/13 turns" in text
    for rate in (total.accuracy, total.accuracy_with_errors, total.pass_rate, total.pass_hat_k[2], total.hop_recall):
        assert rate.definition in text


def test_unknown_tokens_are_no_nought(page: str) -> None:
    """B119."""
    assert "tokens in at least 5,400 30 calls, unknown for 3" in Page(page).text


def test_the_gate_is_there_when_there_is_one(page: str, sample: Report) -> None:
    text = Page(page).text
    assert "Gate ✗ closed ✗ routing accuracy: 0.5833 (7/12) is not >= 0.9 ✓ errored trials: 1 is <= 2" in text
    assert 'id="gate"' not in html.render(sample)


def test_the_verdict_is_that_of_the_gate(sample: Report) -> None:
    closed, opened = (html.render(sample, Gate(min_accuracy=rate).decide(sample)) for rate in (1.0, 0.1))
    assert '<span class="failed">✗</span> 5 of 9 trials not as expected</h1>' in closed
    assert '<span class="passed">✓</span> Gate open: 5 of 9 trials not as expected</h1>' in opened
    good = Report.of([outcome for outcome in sample.outcomes if outcome.ok])
    assert "✗ Gate closed: all 4 trials as expected" in Page(html.render(good, Gate(max_cost=0).decide(good))).text


def test_what_broke_stands_on_top_with_both_routes_and_leads_to_the_turn(page: str) -> None:
    found = re.search(r'<ol class="broken">.*?</ol>\n</section>', page, re.DOTALL)
    assert found
    broken = Page(found.group())
    assert broken.attributes("href")[0] == (
        "#trial=scenarios/support.scenario.yaml::refund-then-crash&model=gpt-4o-mini&repeat=2&turn=2"
    )
    assert "✗ refund-then-crash turn 2 · route · gpt-4o-mini, keyword · 2 trials" in broken.text
    assert "user Also, the app crashes when I upload a file." in broken.text
    assert "expected BillingAgent , actual BillingAgent" in broken.text
    assert "expected TriageAgent , actual nobody …" in broken.text, "as far as the first place that is wrong"
    assert "BillingAgent kept the conversation; expected TriageAgent, then TechSupportAgent." in broken.text
    assert broken.text.endswith(
        "! rate-limited turn 1 · RateLimitError · gpt-4o-mini user Refund me. 429 Too Many Requests: slow down"
    ), "errors are no wrong routes"


def test_a_run_in_which_nothing_broke_has_no_such_list(sample: Report) -> None:
    passed = [outcome for outcome in sample.outcomes if outcome.status == "passed"]
    assert 'id="broken"' not in html.render(Report.of(passed))


def test_more_ways_to_break_than_there_is_room_for_are_counted(sample: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_SCENARIOS", "MAX_BROKEN"):
        monkeypatch.setattr(html, limit, 2)
    text = Page(html.render(sample)).text
    assert "2 more ways to go wrong" in text
    assert "7 better ones are among the trials , and in report.json" in text


def test_all_panels_are_on_it(page: str) -> None:
    parsed = Page(page)
    assert {"graph", "confusion", "incidents", "coverage", "agents", "classes", "models", "scenarios", "trials"} <= set(
        parsed.attributes("id")
    )


def test_every_link_leads_somewhere_on_the_page(page: str) -> None:
    parsed = Page(page)
    names = {f"#{name}" for name in parsed.attributes("id")}
    assert {href for href in parsed.attributes("href") if not href.startswith(("#trials&", "#trial="))} <= names


def test_links_lead_to_trials_that_are_there(page: str, sample: Report) -> None:
    for href in Page(page).attributes("href"):
        if href.startswith("#trial="):
            assert any(href in (links.to_trial(each, turn) for turn in (None, 1, 2)) for each in sample.outcomes)


def test_models_and_scenarios_have_their_rows(page: str) -> None:
    text = Page(page).text
    assert "keyword no language model 2 66.7 % 2/3" in text
    assert "gpt-4o-mini recorded 7 55.6 % 5/9" in text
    assert "refund-then-crash flaky gpt-4o-mini 1 1 50.0 % 75.0 % 3/4" in text
    assert "All in scenarios/support.scenario.yaml" in text
    assert text.index("Flaky: neither always nor never") < text.index("All, the worst first")


def test_frameworks_stand_side_by_side_and_each_row_leads_to_its_own_trials(sample: Report) -> None:
    other = [replace(each, target="chatflow_agent", status="passed", why="") for each in sample.outcomes[:2]]
    page = html.render(Report.of([*sample.outcomes, *other]))
    assert "framework and model trials" in Page(page).text
    assert "chatflow_agent: gpt-4o-mini recorded 2" in Page(page).text
    hrefs = Page(page).attributes("href")
    link = links.to_trials(scenario=(other[0].file, other[0].scenario), model=other[0].model, target="chatflow_agent")
    assert link in hrefs


def test_scenarios_that_never_failed_are_folded_and_counted(sample: Report) -> None:
    text = Page(html.render(sample)).text
    assert "3 scenarios without a failed or errored trial" in text
    passed = Report.of([replace(sample.outcomes[0], scenario=f"s{number}") for number in range(13)])
    assert ("details", {}) in Page(html.render(passed)).elements, "many are folded"
    assert ("details", {"open": None}) in Page(html.render(sample)).elements, "a few are not"


def test_a_route_of_which_nothing_was_expected_has_one_line(sample: Report) -> None:
    calls = Verdict(check="calls", turn=1, status="failed", expected="refund by A", why="it was not called")
    page = html.render(Report.of([replace(sample.outcomes[0], status="failed", verdicts=(calls,))]))
    assert '<ol class="lane bare"><li class="names" aria-hidden="true"><span>actual</span></li>' in page


def test_turns_stand_by_what_they_ask_for_beside_both_baselines(sample: Report) -> None:
    """B116."""
    asked = Demand(turn=1, asks="first", unmoved=True)
    outcomes = [replace(each, demands=(asked,)) for each in sample.outcomes]
    text = Page(html.render(Report.of([*outcomes, replace(outcomes[3], baseline=True, model="keyword")]))).text
    assert "keyword" in text
    assert "this run 95 % interval, and the baselines never hands off again keyword meaning" in text
    assert DEFINITIONS["first"] in text


def test_what_changed_is_told_with_the_test_and_links(sample: Report) -> None:
    outcomes = list(sample.outcomes)
    other = replace(outcomes[0], scenario="new-one")
    base = Report.of([replace(outcomes[1], repeat=1), replace(outcomes[1], scenario="gone-one"), outcomes[3]])
    run = Report.of([outcomes[0], outcomes[3], other])
    comparison = compare(base, run)
    page = html.render(run, comparison=comparison)
    text = Page(page).text
    assert words.difference(comparison.accuracy) in text
    assert "1 gone 1 improved 1 new 1 unchanged" in text
    for told in ("▲ improved 0/1 1/1", "gone 0/1", "+ new"):
        assert told in text
    changes = re.search(r'aria-labelledby="changes">.*?</section>', page, re.DOTALL)
    assert changes
    hrefs = Page(changes.group()).attributes("href")
    assert any("&scenario=scenarios/support.scenario.yaml::new-one" in href for href in hrefs)
    assert not any("gone-one" in href for href in hrefs), "it has no trials here"
    assert 'id="changes"' not in html.render(run)


def test_a_gate_with_a_baseline_tells_what_changed(sample: Report) -> None:
    assert 'id="changes"' in html.render(sample, Gate().decide(sample, sample))


def test_many_changes_are_cut_with_a_note(sample: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_CHANGES", 1)
    run = Report.of([replace(sample.outcomes[0], scenario=name) for name in "abc"])
    assert (
        "2 more new; chatflow-eval compare counts them all"
        in Page(html.render(run, comparison=compare(EMPTY, run))).text
    )


def test_keyword_and_recorded_values_are_named_as_such(page: str) -> None:
    text = Page(page).text
    assert "`keyword` is no language model" in text
    assert "Answers of 7 of 9 trials were replayed: tokens are recorded values, latencies those of replaying." in text


def test_what_is_to_be_known_of_recordings_is_noted() -> None:
    parted = Parted(turn=1, agent="A", hop=0, route=("A",), why="other words")
    page = html.render(Report.of([replace(said("x"), parted=parted, ignored=("body.user",))]))
    text = Page(page).text
    assert "Live from where the recording did not match: 1 trial. s: turn 1, at A (hop 0): other words" in text
    assert "Ignored where requests differ from recordings (1 trial): body.user" in text
    assert 'href="#trial=a::s&amp;turn=1"' in page


def test_a_partial_run_says_so(sample: Report) -> None:
    partial = replace(sample, run=Run(started="2026-12-01T09:00:00+00:00", partial=True))
    assert "Partial run" in Page(html.render(partial)).text


def test_trials_are_in_it_as_data(page: str, sample: Report) -> None:
    found = dict(re.findall(r'<script type="application/octet-stream" id="data-([\w-]+)">([\w+/=]+)</script>', page))
    assert list(found.items()) == [tuple(block) for block in payload.blocks(sample)]


def test_without_a_script_it_says_where_the_trials_are(page: str) -> None:
    assert "They are all in trials.jsonl, one a line." in Page(page).text
    assert ("div", {"id": "browse", "hidden": None}) in Page(page).elements, "no dead control"


# It stands alone.


def test_it_asks_nobody_for_anything(page: str) -> None:
    parsed = Page(page)
    assert not {"link", "img", "iframe", "object", "embed", "base", "audio", "video", "source"} & {
        tag for tag, _ in parsed.elements
    }
    assert not parsed.attributes("src")
    assert not any(re.search(r"url\(|@import", style) for style in parsed.inside["style"])
    assert not any("fetch(" in script or "XMLHttpRequest" in script for script in parsed.inside["script"])


def test_the_policy_lets_run_what_is_ours_and_nothing_else(page: str) -> None:
    parsed = Page(page)
    (policy,) = (each["content"] or "" for tag, each in parsed.elements if each.get("http-equiv"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for kind in ("style", "script"):
        digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in parsed.inside[kind]]
        assert rules[f"{kind}-src"] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert (rules["default-src"], rules["base-uri"], rules["form-action"]) == ("'none'", "'none'", "'none'")
    assert not parsed.attributes("style")


def test_it_adapts_to_dark_small_and_paper(page: str) -> None:
    style = "".join(Page(page).inside["style"])
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
        parted=Parted(turn=1, agent=text, hop=0, route=(text,), why=text),
        ignored=(text,),
    )


# Of ours: what may act, or lead away, is not among them.
KNOWN_ATTRIBUTES = {
    *("aria-hidden", "aria-label", "aria-labelledby", "charset", "class", "colspan", "content", "cx", "cy", "d"),
    *("data-l", "dir", "fill", "height", "hidden", "href", "http-equiv", "id", "lang", "name", "points"),
    *(
        "preserveaspectratio",
        "r",
        "role",
        "rowspan",
        "scope",
        "stroke-width",
        "tabindex",
        "text-anchor",
        "title",
        "transform",
    ),
    *("type", "viewbox", "width", "x", "y"),
}


def page_with(text: str) -> str:
    """Every panel has something to show: a trial that broke, one that was expected to, a baseline that was better."""
    expected = hostile(text)
    broken = replace(expected, xfail=None, repeat=2, model="other", parted=None)
    report = Report.of([expected, broken], run=Run(command=("run", text)))
    base = Report.of([replace(expected, status="passed"), replace(expected, scenario=text + "2")])
    return html.render(report, Gate(must_pass=(text,)).decide(report, base))


@cache
def nothing_in_particular() -> Page:
    return Page(page_with("plain"))


def assert_harmless(text: str) -> None:
    """The page has the same elements and classes as one about nothing in particular, and shows the text."""
    parsed, harmless = Page(page_with(text)), nothing_in_particular()
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


EMPTY = Report.of([])


def test_a_reply_of_five_megabytes_does_not_make_it_larger() -> None:
    long, short = (len(html.render(Report.of([said(text)]))) for text in ("long " * 1_000_000, "long"))
    assert long - short < 1_000


def test_what_is_there_without_a_script_is_bounded(sample: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_SCENARIOS", 10)
    passed = [outcome for outcome in sample.outcomes if outcome.status == "passed"]

    def size(count: int) -> int:
        outcomes = [replace(passed[0], scenario=f"s{number}") for number in range(count)]
        return len(html.render(Report.of(outcomes)))

    assert (size(400) - size(200)) / 200 < 150


# The file.


def test_the_page_is_written_into_the_folder_as_utf_8(sample: Report, tmp_path: Path) -> None:
    written = html.write(sample, tmp_path)
    assert written == tmp_path / "report.html"
    assert written.read_text(encoding="utf-8") == html.render(sample)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_cannot_be_written_is_one_clear_error(sample: Report, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"report\.html: cannot be written"):
        html.write(sample, tmp_path / "missing")


def test_a_page_can_be_any_file(sample: Report, tmp_path: Path) -> None:
    assert html.save(sample, tmp_path / "other.html").read_text(encoding="utf-8") == html.render(sample)
