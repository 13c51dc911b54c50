"""The viewer in a real browser, from the real command: it follows runs, leads to reports and back, and asks nobody."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chatflow_eval import loader, trial
from chatflow_eval import outcome as outcomes
from chatflow_eval.gate import Gate
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import RunFolder, keep_ruling
from chatflow_eval.writers import html, links

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

ROOT = Path(__file__).parent.parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here"),
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed"),
]

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
SECONDS = 30_000
"""Milliseconds at most until the browser shows what it is told; it takes one of its own or less."""


@pytest.fixture(scope="module")
def judged() -> list[Outcome]:
    """Shipped scenarios as the keyword router answers them; some of its routes are wrong."""
    scenarios = loader.load([ROOT / "scenarios/support.scenario.yaml"])
    return outcomes.collect(trial.plan(scenarios, root=ROOT, models=("keyword",)))


def finished(folder: Path, found: list[Outcome]) -> None:
    """A run as the command leaves it: decided, with its page."""
    run = RunFolder.create(folder, command=["run", "scenarios/"], planned=len(found))
    for each in found:
        run.append(each)
    report = run.close()
    decision = Gate().decide(report)
    report = keep_ruling(report, decision.rules)
    html.write(report, folder, decision)


@pytest.fixture(scope="module")
def shown(judged: list[Outcome], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, one of which cannot be read."""
    folder = tmp_path_factory.mktemp("runs")
    finished(folder / "first", judged)
    finished(folder / "second", [replace(each, status="passed", why="", incidents=()) for each in judged])
    (folder / "second" / "report.html").unlink()
    (folder / "bad").mkdir()
    (folder / "bad" / "report.json").write_text("{", encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _as_it_was(shown: Path) -> Iterator[None]:
    """What a test put into the folder goes with it, also where it failed."""
    yield
    for run in shown.iterdir():
        if run.name not in ("first", "second", "bad"):
            shutil.rmtree(run)


@pytest.fixture(scope="module")
def address(shown: Path) -> Iterator[str]:
    """Where `chatflow-eval view` serves the folder; it may say nothing on the way."""
    quickly = "from chatflow_eval import cli, viewer; viewer.LOOK_SECONDS = 0.05; cli.main()"
    command = [sys.executable, "-c", quickly, "view", str(shown), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            said = process.stdout.readline()
            found = re.search(r"http://\S+/", said)
            assert found, said
            yield found[0]
        finally:
            process.terminate()
            assert process.communicate(timeout=30) == ("", "")


@dataclass
class Visitor:
    """A browser that looks at the viewer, with what it complained of, and whom it asked."""

    address: str
    page: Page
    context: BrowserContext
    complaints: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def go(self, path: str = "") -> Page:
        """Open a page of the viewer."""
        self.page.goto("about:blank")
        self.page.goto(self.address + path)
        return self.page


@pytest.fixture(scope="module")
def visitor(judged: list[Outcome], address: str) -> Iterator[Visitor]:
    """One browser for all; the trials come first, as they cannot run while playwright's event loop does."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport=WIDE)  # type: ignore[arg-type]
        context.set_default_timeout(SECONDS)
        made = Visitor(address, context.new_page(), context)
        context.on("request", lambda request: made.asked.add(request.url))
        made.page.on("console", lambda message: made.complaints.append(message.text))
        made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
        made.page.on("dialog", lambda dialog: made.complaints.append(f"dialog: {dialog.message}"))
        yield made
        browser.close()


@pytest.fixture
def visit(visitor: Visitor) -> Iterator[Visitor]:
    """The visitor; no test may end with a complaint, or a request to another origin."""
    yield visitor
    visitor.page.goto("about:blank")
    complaints, asked = visitor.complaints, visitor.asked
    visitor.complaints, visitor.asked = [], set()
    visitor.page.set_viewport_size(WIDE)  # type: ignore[arg-type]
    visitor.page.emulate_media(color_scheme="light")
    assert complaints == []
    assert {url for url in asked if not url.startswith((visitor.address, "about:blank"))} == set()


def wrong(judged: list[Outcome]) -> Outcome:
    return next(each for each in judged if each.status == "failed")


def test_the_list_leads_to_a_report_and_the_report_back(visit: Visitor, judged: list[Outcome]) -> None:
    page = visit.go()
    rows = page.locator(".runs tbody tr")
    assert rows.count() == 3
    row = rows.filter(has_text="first")
    assert "gate closed" in row.inner_text()
    assert "not a report" in rows.filter(has_text="bad").inner_text()
    row.get_by_role("link").click()
    page.wait_for_selector("body[data-ready]")
    assert "Gate ✗ closed" in page.locator("#gate").inner_text()
    way_back = page.get_by_role("link", name="All runs")
    assert way_back.is_visible()
    page.evaluate("to => { location.hash = to }", links.to_trial(wrong(judged)))
    page.wait_for_selector("#trial-name")
    assert wrong(judged).scenario in page.locator("#trial-name").inner_text()
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.evaluate("location.hash = '#trials'")
    assert way_back.is_visible()
    way_back.click()
    page.wait_for_selector(".runs")


@pytest.mark.parametrize("run", ["first", "second"])
def test_links_into_a_report_work_as_in_the_file(visit: Visitor, judged: list[Outcome], run: str) -> None:
    """In the page that was written, and in one that the viewer makes."""
    page = visit.go(f"runs/{run}/{links.to_trial(wrong(judged))}")
    page.wait_for_selector("#trial-name")
    assert wrong(judged).scenario in page.locator("#trial-name").inner_text()
    page = visit.go(f"runs/{run}/#trials&status=passed")
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#count").is_visible()


def test_two_chosen_runs_are_compared(visit: Visitor) -> None:
    page = visit.go()
    page.get_by_label("first as base").check()
    page.get_by_label("second as run").check()
    page.get_by_role("button", name="Compare the two chosen").click()
    page.wait_for_selector("body[data-ready]")
    assert "improved" in page.locator("#changes").locator("xpath=..").inner_text()
    assert page.get_by_role("link", name="All runs").is_visible()


def test_the_list_follows_a_run_and_keeps_what_is_chosen(visit: Visitor, shown: Path, judged: list[Outcome]) -> None:
    page = visit.go()
    page.evaluate("window.same = true")
    page.get_by_label("first as run").check()
    run = RunFolder.create(shown / "now", command=["run", "x"], planned=2)
    going = page.locator(".going li")
    going.wait_for()
    run.append(judged[0])
    going.filter(has_text="1 of 2 trials").wait_for()
    page.locator("h1").filter(has_text="4 runs").wait_for()
    run.append(judged[1])
    run.close()
    going.wait_for(state="detached")
    page.get_by_label("now as run").wait_for()
    assert page.get_by_label("first as run").is_checked()
    assert page.evaluate("document.activeElement.value") == "first"
    assert page.evaluate("window.same"), "it was not loaded again"
    shutil.rmtree(shown / "now")
    page.locator("h1").filter(has_text="3 runs").wait_for()


def test_a_run_is_followed_until_it_ends(visit: Visitor, shown: Path, judged: list[Outcome]) -> None:
    run = RunFolder.create(shown / "live", command=["run", "x"], planned=3)
    page = visit.go("live/live")
    heading = page.locator("h1")
    assert heading.inner_text() == "Going on: 0 of 3 trials"
    run.append(wrong(judged))
    heading.filter(has_text="1 of 3").wait_for()
    assert page.title() == "Going on: 1 of 3 trials - chatflow-eval"
    assert page.get_by_role("link", name=wrong(judged).scenario).count() == 2
    run.close(partial=True)
    heading.filter(has_text="Ended early: 1 of 3 trials").wait_for()
    page.locator("#link").filter(has_text="The run has ended.").wait_for()
    page.get_by_role("link", name="Open the report").click()
    page.wait_for_selector("body[data-ready]")
    shutil.rmtree(shown / "live")


def test_a_page_that_nobody_looks_at_asks_for_nothing(visit: Visitor, shown: Path) -> None:
    """A browser keeps six connections to one server: six lists in six tabs would leave none for a report."""
    page = visit.go()
    hide = "is => { Object.defineProperty(document, 'hidden', {value: is, configurable: true}); "
    hide += "document.dispatchEvent(new Event('visibilitychange')) }"
    page.evaluate(hide, True)
    visit.asked.clear()
    RunFolder.create(shown / "unseen").close()
    page.wait_for_timeout(300)
    assert page.locator("h1").inner_text() == "3 runs"
    assert visit.asked == set()
    page.evaluate(hide, False)
    page.locator("h1").filter(has_text="4 runs").wait_for()
    shutil.rmtree(shown / "unseen")
    page.locator("h1").filter(has_text="3 runs").wait_for()


def test_runs_are_searched_by_a_plain_form(visit: Visitor, shown: Path) -> None:
    for number in range(8):
        RunFolder.create(shown / f"many{number}", command=["run", "x"]).close()
    page = visit.go()
    page.get_by_role("searchbox").fill("first scenarios")
    page.get_by_role("searchbox").press("Enter")
    page.locator("h1").filter(has_text="1 of 11 runs").wait_for()
    assert page.get_by_role("searchbox").input_value() == "first scenarios"
    page.get_by_role("link", name="All 11 runs").click()
    page.locator("h1").filter(has_text=re.compile("^11 runs$")).wait_for()
    for number in range(8):
        shutil.rmtree(shown / f"many{number}")


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, as `axe-playwright-python` ships it."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("axe-playwright-python is not installed")
    return Path(spec.submodule_search_locations[0], "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ["?q=20", "live/now"])
def test_everybody_can_use_it_and_nothing_scrolls_sideways(
    visit: Visitor, shown: Path, judged: list[Outcome], axe: str, path: str
) -> None:
    run = RunFolder.create(shown / "now", command=["run", "x"], planned=3)
    run.append(wrong(judged))
    page = visit.go(path)
    page.evaluate(axe)
    for scheme, size in product(("light", "dark"), (WIDE, PHONE)):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
        assert [
            (each["id"], each["nodes"][0]["html"][:200], each["nodes"][0].get("failureSummary"))
            for each in found
            if each["impact"] in ("serious", "critical")
        ] == []
        assert page.evaluate("document.documentElement.scrollWidth") == size["width"]
    run.close()
    shutil.rmtree(shown / "now")
