"""The page in a real browser: it asks nobody, runs nothing foreign, follows its links, and everybody can use it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from chatflow_eval import incidents
from chatflow_eval.checks import Verdict
from chatflow_eval.gate import Gate
from chatflow_eval.outcome import Outcome, Parted
from chatflow_eval.report import Report, Run
from chatflow_eval.route import Aligned
from chatflow_eval.trace import (
    Edge,
    Failure,
    HistoryFault,
    Hop,
    LimitStep,
    ModelStep,
    ToolStep,
    Topology,
    Trace,
    TurnTrace,
    WarningStep,
)
from chatflow_eval.writers import html, links, words

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
ZOOMED = {"width": 720, "height": 450}
"""The wide screen at 200 %."""


@pytest.fixture(scope="module")
def page_file(suite: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    first = [replace(each, status="failed") if each.ok and not each.repeat % 7 else each for each in suite.outcomes]
    return html.write(suite, tmp_path_factory.mktemp("run"), Gate(max_loops=0).decide(suite, Report.of(first[:40])))


def until(page: Page, true: str, arg: object = None) -> None:
    """Wait; asked from outside, as the page's policy lets nothing be evaluated inside."""
    deadline = monotonic() + 10
    while not page.evaluate(true, arg):
        assert monotonic() < deadline, true
        page.wait_for_timeout(10)


@dataclass
class Visitor:
    """A page that is looked at, with what the browser complained of, and whom it asked."""

    page: Page
    context: BrowserContext
    complaints: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def go(self, file: Path, fragment: str = "") -> Page:
        """Open the page afresh and wait until it has unpacked its trials."""
        self.page.goto("about:blank")
        self.page.goto(file.as_uri() + fragment)
        until(self.page, "document.body.dataset.ready")
        return self.page

    def turn(self, file: Path, fragment: str) -> Page:
        """The same, where the page may be open already."""
        if self.page.url.partition("#")[0] != file.as_uri():
            return self.go(file, fragment)
        followed(self.page, ["#top", fragment or "#"])
        return self.page

    def follow(self, fragment: str) -> None:
        """Follow a link within the page."""
        self.page.evaluate("to => { location.hash = to }", fragment)


@pytest.fixture(scope="module")
def visitors(browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """A visitor for each kind of screen, kept for the next test that wants the same."""
    known: dict[str, Visitor] = {}

    def make(**settings: Any) -> Visitor:
        key = json.dumps(settings, sort_keys=True)
        if key not in known:
            context = browser.new_context(**{"viewport": WIDE, **settings})
            visitor = known[key] = Visitor(context.new_page(), context)
            context.route(re.compile("^(?!file:)"), lambda route: route.abort())
            context.on("request", lambda request: visitor.asked.add(request.url.partition("#")[0]))
            visitor.page.on("console", lambda message: visitor.complaints.append(message.text))
            visitor.page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
            visitor.page.on("dialog", lambda dialog: visitor.complaints.append(f"dialog: {dialog.message}"))
        return known[key]

    yield make
    for visitor in known.values():
        visitor.context.close()


@pytest.fixture
def visit(visitors: Callable[..., Visitor]) -> Iterator[Callable[..., Visitor]]:
    """Visitors; no test may end with a complaint, or a request that leaves the page."""
    used: list[Visitor] = []

    def make(**settings: Any) -> Visitor:
        used.append(visitors(**settings))
        return used[-1]

    yield make
    for visitor in used:
        complaints, asked = visitor.complaints, visitor.asked
        visitor.complaints, visitor.asked = [], set()
        assert complaints == []
        assert {url for url in asked if not re.fullmatch(r"(file:.*\.html|about:blank)", url)} == set()


def rows(page: Page) -> list[str]:
    """The rows of the list that are drawn, in their order."""
    found: list[str] = page.eval_on_selector_all(
        ".row", "all => all.sort((a, b) => a.ariaPosInSet - b.ariaPosInSet).map(row => row.innerText)"
    )
    return found


def count(page: Page) -> str:
    return page.locator("#count").inner_text()


def followed(page: Page, fragments: Sequence[str]) -> list[tuple[str, str]]:
    """What is counted and what is listed after each of the links."""
    told: list[tuple[str, str]] = page.evaluate(
        """async (fragments) => {
          const told = [];
          for (const fragment of fragments) {
            const before = location.hash;
            location.hash = fragment;
            if (location.hash !== before) {
              await new Promise((done) => addEventListener("hashchange", () => setTimeout(done), { once: true }));
            }
            told.push(["count", "list"].map((id) => document.getElementById(id).innerText));
          }
          return told;
        }""",
        fragments,
    )
    return told


def title(page: Page) -> str:
    """The trial that is shown."""
    return page.locator("#trial-name").inner_text()


def scrolled(page: Page, element: str) -> bool:
    """True when the element can be seen in the panel."""
    seen: bool = page.eval_on_selector(
        element,
        """node => {
          const [one, frame] = [node.getBoundingClientRect(), document.getElementById("panel").getBoundingClientRect()];
          return one.top >= frame.top - 1 && one.top < frame.bottom;
        }""",
    )
    return seen


def wrong_route(suite: Report) -> Outcome:
    """A trial of two turns or more whose route went wrong."""
    return next(
        each
        for each in suite.outcomes
        if not each.ok and each.verdicts and len(each.users) > 1 and each.why[:4] == "turn"
    )


# What is on it.


def test_the_overview_opens_without_complaint(visit: Callable[..., Visitor], page_file: Path, suite: Report) -> None:
    page = visit().go(page_file)
    assert f"{len(suite.unexpected)} of" in page.locator("#headline").inner_text()
    assert page.locator("#broken").is_visible()
    assert page.locator("#trials").is_hidden()
    for section in (
        "graph",
        "confusion",
        "incidents",
        "classes",
        "models",
        "agents",
        "coverage",
        "scenarios",
        "changes",
    ):
        assert page.locator(f"#{section}").is_visible(), section


def test_sections_have_links(visit: Callable[..., Visitor], page_file: Path) -> None:
    page = visit(reduced_motion="reduce").go(page_file, "#scenarios")
    assert page.evaluate("document.getElementById('scenarios').getBoundingClientRect().top") < 200


def test_without_a_script_the_numbers_are_there_and_where_the_trials_are(
    browser: Browser, page_file: Path, suite: Report
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.locator("#headline").is_visible()
    assert page.get_by_text("They are all in trials.jsonl").is_visible()
    assert page.locator("#browse").is_hidden()
    context.close()


# Links and filters.


def test_the_list_has_every_trial_those_not_as_expected_first(
    visit: Callable[..., Visitor], page_file: Path, suite: Report
) -> None:
    page = visit().turn(page_file, links.to_trials())
    assert count(page) == f"{len(suite.outcomes)} of {len(suite.outcomes)} trials"
    first = min((suite.outcomes[place] for place in suite.unexpected), key=words.order)
    assert first.scenario in rows(page)[0]
    assert page.locator("#list").get_attribute("role") == "listbox"
    assert page.locator(".row").first.get_attribute("aria-setsize") == str(len(suite.outcomes))


@pytest.mark.parametrize(
    ("link", "matches"),
    [
        (links.to_trials(status="failed"), lambda each: each.status == "failed"),
        (links.to_trials(status="unexpected"), lambda each: not each.ok),
        (links.to_trials(tag="smoke"), lambda each: "smoke" in each.tags),
        (links.to_trials(incident="loop"), lambda each: any(found.kind == "loop" for found in each.incidents)),
        (links.to_trials(agent="BillingAgent"), lambda each: "BillingAgent" in agents(each)),
        (
            links.to_trials(edge=("TriageAgent", "BillingAgent"), status="passed"),
            lambda each: ("TriageAgent", "BillingAgent") in made(each) and each.status == "passed",
        ),
        (links.to_trials(q="REFUND charge"), lambda each: all(word in said(each) for word in ("refund", "charge"))),
        (links.to_trials(model="nobody"), lambda each: False),
    ],
)
def test_filters_find_what_they_ask_for(
    visit: Callable[..., Visitor], page_file: Path, suite: Report, link: str, matches: Callable[[Outcome], bool]
) -> None:
    page = visit().turn(page_file, link)
    assert count(page) == f"{sum(map(matches, suite.outcomes))} of {len(suite.outcomes)} trials"


def agents(outcome: Outcome) -> set[str]:
    return {agent for turn in (outcome.trace.turns if outcome.trace else ()) for agent in turn.agents}


def made(outcome: Outcome) -> set[tuple[str, str]]:
    turns = outcome.trace.turns if outcome.trace else ()
    return {(hop.source, hop.target) for turn in turns for hop in turn.accepted}


def said(outcome: Outcome) -> str:
    parts = (f"{outcome.file}::{outcome.scenario}", " / ".join(outcome.users)[:240], outcome.why, outcome.status)
    return "\n".join((*parts, *outcome.tags, *agents(outcome))).lower()


def test_every_cell_of_the_confusion_table_leads_to_its_turns(
    visit: Callable[..., Visitor], page_file: Path, suite: Report
) -> None:
    page = visit().turn(page_file, "#trials")
    cells = suite.metrics.confusion
    pairs = [(cell.expected or "(stay)", cell.actual or f"({cell.end})") for cell in cells]
    told = followed(page, [links.to_trials(cell=pair) for pair in pairs])
    for cell, (counted, _) in zip(cells, told, strict=True):
        assert 0 < int(counted.split()[0]) <= cell.count
    assert page.get_by_role("button", name=re.compile("Remove Decision: expected")).is_visible()


def test_choices_are_counted_combined_and_taken_back(
    visit: Callable[..., Visitor], page_file: Path, suite: Report
) -> None:
    page = visit().turn(page_file, "#trials")
    failed = sum(each.status == "failed" for each in suite.outcomes)
    page.get_by_label("Status", exact=True).select_option("failed")
    assert count(page).startswith(f"{failed} of")
    assert f"failed ({failed})" in page.get_by_label("Status", exact=True).inner_text()
    both = sum(each.status == "failed" and "smoke" in each.tags for each in suite.outcomes)
    assert f"smoke ({both})" in page.get_by_label("Tag", exact=True).inner_text()
    page.get_by_label("Tag", exact=True).select_option("smoke")
    assert count(page).startswith(f"{both} of")
    assert page.evaluate("location.hash") == "#trials&status=failed&tag=smoke"
    page.go_back()
    assert count(page).startswith(f"{failed} of")
    page.get_by_role("button", name="Clear all").click()
    assert count(page).startswith(f"{len(suite.outcomes)} of")


def test_the_link_of_a_turn_opens_it_and_back_returns(
    visit: Callable[..., Visitor], page_file: Path, suite: Report
) -> None:
    outcome = wrong_route(suite)
    visitor = visit()
    page = visitor.go(page_file, links.to_trials(status="failed"))
    found = count(page)
    visitor.follow(links.to_trial(outcome, 2))
    page.wait_for_selector("#turn-2")
    assert outcome.scenario in title(page)
    assert page.locator("#panel nav a[aria-current]").inner_text().endswith("Turn 2")
    assert scrolled(page, "#turn-2")
    page.go_back()
    until(page, "location.hash.startsWith('#trials')")
    assert count(page) == found


def test_a_trial_that_went_wrong_opens_at_the_words_where_it_did(
    visit: Callable[..., Visitor], page_file: Path, suite: Report
) -> None:
    outcome = wrong_route(suite)
    page = visit().turn(page_file, links.to_trial(outcome))
    page.wait_for_selector(".wrong")
    assert scrolled(page, ".wrong")
    assert "Here it went wrong" in page.locator(".wrong").inner_text()
    verdict = words.first_failed(outcome.verdicts)
    assert verdict is not None
    assert verdict.why in page.locator(f"#turn-{verdict.turn} .checks").inner_text()
    lanes = page.locator(f"#turn-{verdict.turn} .lane")
    assert lanes.locator("li.off").count() >= 1
    assert [text.strip() for text in lanes.locator(".came").all_inner_texts() if "nobody" not in text] != []


def test_a_link_from_the_overview_leads_to_the_turn_and_back_to_the_same_place(
    visit: Callable[..., Visitor], page_file: Path
) -> None:
    page = visit(reduced_motion="reduce").go(page_file)
    link = page.locator("#broken ~ ol h3 a").last
    link.scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    link.click()
    page.wait_for_selector("#trial-name")
    page.go_back()
    page.wait_for_selector("#headline", state="visible")
    assert page.evaluate("scrollY") == pytest.approx(before, abs=2)


def test_a_link_may_leave_out_what_all_trials_share(
    visit: Callable[..., Visitor], page_file: Path, suite: Report
) -> None:
    outcome = suite.outcomes[0]
    page = visit().turn(page_file, f"#trial={outcome.file}::{outcome.scenario}&repeat=2")
    page.wait_for_selector("#trial-name")
    assert outcome.scenario in title(page)
    assert "keyword · repeat 2" in page.locator(".facts").inner_text()


@pytest.mark.parametrize(
    ("fragment", "place", "told"),
    [
        ("#trial=a.yaml::gone&repeat=%ZZ", "#panel", "no such trial: a.yaml::gone, repeat %ZZ"),
        ("#trial=scenarios/support.scenario.yaml::crash&model=other", "#panel", "The trials of this scenario"),
        ("#trial=scenarios/support.scenario.yaml::crash&turn=77", "#panel", "This trial has no turn 77."),
        ("#trials&status=broken", "#remarks", "No trial of this run has: Status broken."),
        ("#trials&colour=red", "#remarks", "There is no filter “colour”."),
        ("#trials&q=nobody+said+this", "#remarks", "No trial is all of this."),
        ("#colours", "#notice", "This page has no section “colours”."),
        ("#%ZZ=&&", "#notice", "This page has no section “%ZZ”."),
    ],
)
def test_what_a_link_asks_for_in_vain_is_said(
    visit: Callable[..., Visitor], page_file: Path, fragment: str, place: str, told: str
) -> None:
    page = visit().turn(page_file, fragment)
    page.locator(place, has_text=told).wait_for(timeout=2_000)
    assert page.locator("#headline" if place == "#notice" else "#list").is_visible(), "and the rest is there"


def test_the_title_names_what_is_shown(visit: Callable[..., Visitor], page_file: Path, suite: Report) -> None:
    """Of several tabs, and in the history."""
    visitor, outcome = visit(), wrong_route(suite)
    page = visitor.turn(page_file, links.to_trial(outcome))
    assert page.title() == f"✗ {outcome.scenario} - chatflow-eval"
    visitor.follow("#top")
    until(page, "document.title.includes('not as expected')")


# Keyboard.


def test_the_keyboard_is_enough(visit: Callable[..., Visitor], page_file: Path, suite: Report) -> None:
    page = visit().go(page_file, "#trials")
    page.keyboard.press("/")
    page.keyboard.type("refund")
    assert not count(page).startswith(f"{len(suite.outcomes)} of")
    assert page.evaluate("location.hash") == "#trials&q=refund"
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#trial-name")
    page.keyboard.press("ArrowDown")
    second = page.locator(".row[aria-selected=true]")
    assert second.get_attribute("aria-posinset") == "2"
    second_id = second.get_attribute("id")
    assert page.locator("#list").get_attribute("aria-activedescendant") == second_id
    until(page, "id => `row-${document.getElementById('panel').dataset.trial}` === id", arg=second_id)
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate("[location.hash, document.activeElement.id]") == ["#trials&q=refund", "list"]
    page.keyboard.press("End")
    assert page.locator(".row[aria-selected=true]").get_attribute("aria-posinset") == count(page).split()[0]


def test_a_key_held_down_walks_the_list_and_opens_the_trial_where_it_stops(
    visit: Callable[..., Visitor], page_file: Path
) -> None:
    page = visit().go(page_file, "#trials")
    page.locator("#list").focus()
    opened = page.evaluate(
        """async () => {
          const [push, replace] = [history.pushState, history.replaceState];
          let opened = 0;
          history.pushState = (...to) => { opened += 1; push.apply(history, to); };
          history.replaceState = (...to) => { opened += 1; replace.apply(history, to); };
          const down = () => new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true, cancelable: true });
          for (let pressed = 0; pressed < 30; pressed++) document.getElementById("list").dispatchEvent(down());
          while (!location.hash.startsWith("#trial=")) await new Promise((done) => setTimeout(done, 20));
          delete history.pushState;
          delete history.replaceState;
          return opened;
        }"""
    )
    assert opened == 1
    assert page.locator(".row[aria-selected=true]").get_attribute("aria-posinset") == "31"


def test_the_focus_goes_along_and_comes_back(visit: Callable[..., Visitor], page_file: Path) -> None:
    page = visit(reduced_motion="reduce").go(page_file)
    link = page.locator("#broken ~ ol h3 > a").last
    link.focus()
    page.keyboard.press("Enter")
    until(page, "document.activeElement.id === 'trial-name'")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "list"
    page.go_back()
    page.go_back()
    page.wait_for_selector("#headline", state="visible")
    assert link.evaluate("link => link === document.activeElement")


def test_what_a_trial_covers_on_a_phone_cannot_be_reached(visit: Callable[..., Visitor], page_file: Path) -> None:
    page = visit(viewport=PHONE).turn(page_file, "#trials")
    page.locator(".row").first.click()
    until(page, "document.activeElement.id === 'trial-name'")
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.closest('#panel, body').id"))
    assert reached <= {"panel", ""}
    assert page.locator("#filters").evaluate("form => form.inert")
    page.go_back()
    until(page, "document.activeElement.id === 'list'")
    assert not page.locator("#filters").evaluate("form => form.inert")


def test_copy_link_gives_the_link_of_the_trial(visit: Callable[..., Visitor], page_file: Path, suite: Report) -> None:
    visitor = visit()
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    outcome = wrong_route(suite)
    page = visitor.turn(page_file, links.to_trial(outcome, 1))
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page_file.as_uri() + links.to_trial(outcome, 1)


# Everybody can use it.


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, as `axe-playwright-python` ships it."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("axe-playwright-python is not installed")
    return Path(spec.submodule_search_locations[0], "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def short_file(suite: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every panel, and few rows in each."""
    wrong = wrong_route(suite)
    few = [each for each in suite.outcomes if "support" in each.file or "loop" in each.scenario][::2][-24:]
    report = Report.of([wrong, *(each for each in few if each.key != wrong.key)])
    base = Report.of(replace(each, status="passed") for each in few)
    return html.write(report, tmp_path_factory.mktemp("short"), Gate(max_loops=0).decide(report, base))


@pytest.mark.parametrize(
    ("size", "settings", "rules"),
    [
        (WIDE, {}, None),
        (PHONE, {}, None),
        (WIDE, {"color_scheme": "dark"}, "color-contrast"),
        (WIDE, {"contrast": "more"}, "color-contrast"),
        (WIDE, {"color_scheme": "dark", "contrast": "more"}, "color-contrast"),
    ],
    ids=["1440", "390", "dark", "contrast", "dark-contrast"],
)
def test_axe_finds_nothing(
    visit: Callable[..., Visitor],
    short_file: Path,
    suite: Report,
    axe: str,
    size: dict[str, int],
    settings: dict[str, str],
    rules: str | None,
) -> None:
    visitor = visit(viewport=size)
    page = visitor.turn(short_file, "#top")
    page.emulate_media(**settings)  # type: ignore[arg-type]
    page.evaluate(axe)
    for fragment in ("#top", *(() if rules else ("#trials&status=failed",)), links.to_trial(wrong_route(suite))):
        visitor.follow(fragment)
        if fragment.startswith("#trial="):
            page.wait_for_selector("#trial-name")
        found = page.evaluate(
            """async (rules) => {
              const only = rules ? { runOnly: [rules] } : {};
              return (await axe.run(document, { resultTypes: ["violations"], ...only })).violations;
            }""",
            rules,
        )
        assert [
            (each["id"], each["nodes"][0]["html"][:200], each["nodes"][0].get("failureSummary"))
            for each in found
            if each["impact"] != "minor"
        ] == []
    page.emulate_media(color_scheme="light", contrast="no-preference")


@pytest.mark.parametrize("size", [PHONE, ZOOMED], ids=["390", "zoomed"])
@pytest.mark.parametrize("fragment", ["", "#trials", "a trial"])
def test_nothing_scrolls_sideways_on_a_phone_or_when_zoomed(
    visit: Callable[..., Visitor], page_file: Path, suite: Report, fragment: str, size: dict[str, int]
) -> None:
    page = visit(viewport=size).turn(page_file, fragment.replace("a trial", links.to_trial(wrong_route(suite))))
    if fragment == "a trial":
        page.wait_for_selector("#trial-name")
        assert page.evaluate("(panel => panel.scrollWidth - panel.clientWidth)(document.getElementById('panel'))") == 0
        assert page.locator("#panel").bounding_box() == {"x": 0, "y": 0, **size}, "it covers the screen"
    assert page.evaluate("document.documentElement.scrollWidth") == size["width"]


def test_on_a_phone_the_way_back_is_a_button(visit: Callable[..., Visitor], page_file: Path, suite: Report) -> None:
    page = visit(viewport=PHONE).turn(page_file, "#trials")
    page.locator(".row").first.click()
    page.get_by_role("button", name="← Trials").click()
    assert page.locator("#panel").is_hidden()
    assert page.locator("#list").is_visible()


def test_print_has_the_overview_and_the_trial_that_is_open(
    visit: Callable[..., Visitor], page_file: Path, suite: Report
) -> None:
    visitor = visit()
    page = visitor.turn(page_file, links.to_trial(wrong_route(suite)))
    page.wait_for_selector("#trial-name")
    page.emulate_media(media="print")
    for shown in ("#headline", "#trial-name"):
        assert page.locator(shown).is_visible()
    for hidden in ("#list", "#filters", "#bar"):
        assert page.locator(hidden).is_hidden()
    page.emulate_media(media="screen")


def test_paper_is_wide_enough(visit: Callable[..., Visitor], page_file: Path) -> None:
    """A4 between margins of one centimetre, in CSS pixels."""
    page = visit(viewport={"width": 718, "height": 1000}).go(page_file)
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") == 718
    assert page.locator(".scenarios").last.is_visible(), "what is folded on a screen is open"
    page.emulate_media(media="screen")


# Nothing from outside acts in it (B103).

HOSTILE = (
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>",
    '" onmouseover="window.pwned = 1" autofocus onfocus=\'window.pwned = 1\' x="',
    "javascript:window.pwned=1",
    "<!--<script>",
    "a\u2028b\u2029c",
    "\u202eabc\u202d \u2066x\u2069",
    "נתב את השיחה (refund)",
    "${window.pwned = 1} {{ 7*7 }} %3E>%>%25",
    "a&turn=2&status=failed#trial=x",
    "__proto__",
    "constructor",
    "toString",
    "Agent" * 80,
    "🚀\x00\x1b[31m",
    "\ud800 alone",
)


def hostile(text: str) -> Outcome:
    """An outcome that has one text wherever a text can be."""
    steps = (
        ModelStep(agent=text, model=text, text=text, calls=(text,), input_tokens=1),
        ToolStep(agent=text, tool=text, arguments={text: [text]}, result=text),
        ToolStep(agent=text, tool=text, arguments=text, result={text: text}, is_error=True, known=False),
        Hop(source=text, target=text + "2", tool=text, reason=text, withheld=(text,), error=text),
        Hop(source=text, target=text, tool=text, reason=text, accepted=False, why=text, message=text),
        LimitStep(agent=text, limit=text, value=1),
        WarningStep(agent=text, message=text),
        HistoryFault(agent=text, code=text, message=text),
    )
    failure = Failure(kind="agent", exception=text, message=text)
    turn = TurnTrace(
        user=text, start_agent=text, end_agent=text, reply=text, steps=steps, failure=failure, context={text: text}
    )
    topology = Topology(start=text, agents=(text, text + "2"), edges=(Edge(source=text, target=text + "2", tool=text),))
    trace = Trace(topology=topology, turns=(turn,))
    aligned = Aligned(expected=text + "2", actual=text, ok=False)
    places = (replace(aligned, expected=text, ok=True), aligned)
    return Outcome(
        file=text,
        line=1,
        scenario=text,
        tags=(text,),
        target=text,
        model=text,
        status="failed",
        why=text,
        users=(text, text),
        trace=trace,
        verdicts=(
            Verdict(check="route", turn=1, status="failed", expected=text, actual=text, why=text, alignment=places),
            Verdict(check=text, turn=1, status="failed", expected=text, actual=text, why=text),
            Verdict(check=text, turn=None, status="passed", expected=text),
        ),
        incidents=incidents.find(trace),
        failure=failure,
        parted=Parted(turn=1, agent=text, hop=0, route=(text,), why=text),
        ignored=(text,),
    )


@pytest.fixture(scope="module")
def hostile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = Report.of(map(hostile, HOSTILE), run=Run(command=("run", *HOSTILE)))
    base = Report.of(replace(hostile(text), status="passed") for text in HOSTILE)
    gate = Gate(must_pass=HOSTILE)
    return html.write(report, tmp_path_factory.mktemp("hostile"), gate.decide(report, base))


def visible(text: str) -> str:
    """The text as a browser lays it out in one line."""
    return " ".join(words.printable(text).split())


def test_hostile_texts_stay_texts_in_every_trial(visit: Callable[..., Visitor], hostile_file: Path) -> None:
    visitor = visit()
    page = visitor.turn(hostile_file, "#top")
    scripts = page.locator("script").count()
    for text in HOSTILE:
        outcome = hostile(text)
        visitor.follow(links.to_trial(outcome, 1))
        until(page, "name => document.getElementById('trial-name')?.innerText.includes(name)", arg=visible(text))
        for place in (".steps", ".checks", ".lane", ".facts", ".found", "header"):
            shown = " ".join(page.locator(f"#panel {place}").all_text_contents())
            assert visible(text) in " ".join(shown.split()), place
    assert page.evaluate("window.pwned") is None
    assert page.locator("script").count() == scripts
    assert page.locator("img, iframe, object, embed, [onerror], [onmouseover], [onfocus], [autofocus]").count() == 0
    assert page.evaluate("[...document.querySelectorAll('a')].every(link => link.getAttribute('href').startsWith('#'))")
    assert not re.search("[\u2028\u2029\u202a-\u202e\u2066-\u2069\x00\x1b]", page.locator("#panel").inner_text())


def test_links_of_hostile_names_find_their_trial(visit: Callable[..., Visitor], hostile_file: Path) -> None:
    page = visit().turn(hostile_file, "#trials")
    sought = [
        (text, link)
        for text in HOSTILE
        for link in (
            links.to_trials(tag=text),
            links.to_trials(agent=text),
            links.to_trials(edge=(text, text + "2")),
            links.to_trials(expected=(text, text + "2")),
            links.to_trials(cell=(text + "2", text)),
            links.to_trials(model=text, target=text),
            links.to_trials(scenario=(text, text)),
        )
    ]
    for (text, link), (told, listed) in zip(sought, followed(page, [link for _, link in sought]), strict=True):
        assert told == f"1 of {len(HOSTILE)} trials", link
        assert visible(text) in visible(listed)


def test_hostile_names_can_be_chosen(visit: Callable[..., Visitor], hostile_file: Path) -> None:
    page = visit().turn(hostile_file, "#trials")
    tag = page.get_by_label("Tag", exact=True)
    values = tag.evaluate("select => [...select.options].map(option => option.value)")
    assert set(values) == {"", *(text.encode(errors="backslashreplace").decode() for text in HOSTILE)}
    told = tag.evaluate(
        """select => [...select.options].map((_, place) => {
          select.selectedIndex = place;
          select.dispatchEvent(new Event("change"));
          return document.getElementById("count").innerText;
        })"""
    )
    assert set(told[1:]) == {f"1 of {len(HOSTILE)} trials"}


# It stays fast: what is not in view does not exist.


def test_ten_thousand_trials_are_listed_and_filtered(
    visit: Callable[..., Visitor], tmp_path: Path, suite: Report
) -> None:
    wrong, right = wrong_route(suite), next(each for each in suite.outcomes if each.status == "passed")
    many = [replace(right if number % 20 else wrong, scenario=f"s-{number}") for number in range(10_000)]
    report = replace(suite, outcomes=many, unexpected=tuple(range(0, 10_000, 20)), with_incidents=())
    page = visit().go(html.write(report, tmp_path), links.to_trials())
    assert count(page) == "10,000 of 10,000 trials"
    assert len(rows(page)) < 60
    page.get_by_label("Status", exact=True).select_option("failed")
    assert count(page) == "500 of 10,000 trials"
    page.get_by_role("button", name="Clear all").click()
    page.locator("#list").focus()
    page.keyboard.press("End")
    assert page.locator(".row[aria-selected=true]").get_attribute("aria-posinset") == "10000"
    heights = page.eval_on_selector_all(".row", "all => [...new Set(all.map(row => row.offsetHeight))]")
    assert heights == [56]


def test_a_filter_offers_the_most_frequent_of_many_values(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    outcomes = [Outcome(file="a", line=1, scenario=f"s{n}", tags=(f"t{n}", "all"), status="passed") for n in range(400)]
    page = visit().go(html.write(Report.of(outcomes), tmp_path), links.to_trials(tag="t399"))
    offered = page.get_by_label("Tag", exact=True).locator("option").all_inner_texts()
    assert len(offered) == 303
    assert {"all (400)", "t399 (1)", "100 more: search for them"} <= set(offered)


def test_a_reply_of_five_megabytes_is_cut_with_a_note(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    turn = TurnTrace(user="hi", start_agent="A", end_agent="A", reply="long " * 1_000_000)
    trace = Trace(topology=Topology(start="A", agents=("A",)), turns=(turn,))
    outcome = Outcome(file="a", line=1, scenario="s", status="passed", users=("hi",), trace=trace)
    page = visit().go(html.write(Report.of([outcome]), tmp_path), links.to_trial(outcome))
    page.wait_for_selector(".reply")
    reply = page.locator(".reply").inner_text()
    assert "of 5,000,000 characters; the rest is in trials.jsonl" in reply
    assert len(reply) < 5_000


def test_long_names_and_hostile_ones_do_not_make_a_phone_scroll_sideways(
    visit: Callable[..., Visitor], hostile_file: Path
) -> None:
    visitor = visit(viewport=PHONE)
    page = visitor.turn(hostile_file, "#top")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    for text in HOSTILE:
        visitor.follow(links.to_trial(hostile(text)))
        until(page, "() => document.getElementById('trial-name')")
        assert page.evaluate("(panel => panel.scrollWidth - panel.clientWidth)(document.getElementById('panel'))") == 0


def test_right_to_left_words_run_from_right_to_left(visit: Callable[..., Visitor], hostile_file: Path) -> None:
    text = next(text for text in HOSTILE if "נתב" in text)
    page = visit().turn(hostile_file, links.to_trial(hostile(text)))
    page.wait_for_selector(".step.user .words")
    assert page.eval_on_selector(".step.user .words", "node => getComputedStyle(node).direction") == "rtl"


def test_damaged_data_is_said_to_be_damaged(visit: Callable[..., Visitor], page_file: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.html"
    text = page_file.read_text(encoding="utf-8")
    damaged.write_text(re.sub(r'(id="data-index">)[\w+/=]{40}', r"\1", text), encoding="utf-8")
    page = visit().page
    page.goto(damaged.as_uri() + "#trials")
    page.get_by_text("could not be unpacked").wait_for()
    assert json.dumps(page.locator("#browse").inner_text()).count("trials.jsonl") == 1
