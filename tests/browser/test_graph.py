"""The routing graph in a real browser: it fits, nothing in it covers anything else, and it leads to trials."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from chatflow_eval.checks import Verdict
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report
from chatflow_eval.route import Route, visits_of_turn
from chatflow_eval.trace import Edge, Hop, Topology, Trace, TurnTrace
from chatflow_eval.writers import html, links

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here"),
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(params=[1440, 390], ids=["wide", "phone"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of one of two widths; no test may end with a complaint of the browser."""
    context = browser.new_context(viewport={"width": request.param, "height": 900}, reduced_motion="reduce")
    shown, complaints = context.new_page(), list[str]()
    shown.on("console", lambda message: complaints.append(message.text))
    shown.on("pageerror", lambda error: complaints.append(str(error)))
    yield shown
    context.close()
    assert complaints == []


def swarm(size: int) -> Report:
    """A desk that hands off to all others, some of them to each other, and some back."""
    names = ["TriageAgent", *(f"Specialist{place:02}Agent" for place in range(1, size))]
    random = Random(size)
    edges = [Edge(source=names[0], target=name) for name in names[1:]]
    edges += [Edge(source=name, target=names[0]) for name in names[1::2]]
    for place in range(size // 2 if size > 2 else 0):
        source, target = random.sample(names[1:], 2)
        edges.append(Edge(source=source, target=target, kind="call" if place % 3 == 0 else "transfer"))
    outcomes = []
    for place in range(4 * size):
        edge = random.choice(edges)
        hops = (Hop(source=edge.source, target=edge.target, kind=edge.kind, depth=int(edge.kind == "call")),)
        turn = TurnTrace(user="hi", start_agent=edge.source, end_agent=edge.target, steps=hops)
        wanted = f"{edge.source} -> {random.choice(names[1:]) if place % 5 == 0 else edge.target}"
        alignment = Route(wanted).align(visits_of_turn(turn))
        verdict = Verdict(
            check="route",
            turn=1,
            status="passed" if all(each.ok for each in alignment) else "failed",
            expected=wanted,
            alignment=alignment,
        )
        outcomes.append(
            Outcome(
                file="desk.scenario.yaml",
                line=1,
                scenario=f"case-{place}",
                status=verdict.status,
                users=("hi",),
                trace=Trace(topology=Topology(start=names[0], agents=tuple(names), edges=tuple(edges)), turns=(turn,)),
                verdicts=(verdict,),
            )
        )
    return Report.of(outcomes)


def shown(page: Page, folder: Path, report: Report) -> Page:
    page.goto(html.write(report, folder).as_uri())
    page.wait_for_selector("#graph-drawing svg", state="attached")
    page.locator("#graph").scroll_into_view_if_needed()
    return page


BOXES = """selector => [...document.querySelectorAll(selector)].map(each => {
  const box = each.getBBox();
  return [box.x, box.y, box.x + box.width, box.y + box.height];
})"""


def boxes(page: Page, selector: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of what the selector finds, as the drawing counts."""
    found: list[Any] = page.evaluate(BOXES, selector)
    return [(left, top, right, bottom) for left, top, right, bottom in found]


def covered(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return min(one[2], other[2]) - max(one[0], other[0]) > 1 and min(one[3], other[3]) - max(one[1], other[1]) > 1


@pytest.mark.parametrize("size", [2, 5, 12, 30])
def test_it_fits_its_place_and_nothing_covers_anything(page: Page, tmp_path: Path, size: int) -> None:
    shown(page, tmp_path, swarm(size))
    agents, counts = boxes(page, "#graph .box"), boxes(page, "#graph .count")
    assert len(agents) == size
    laid = [*agents, *counts]
    assert not [(a, b) for place, a in enumerate(laid) for b in laid[:place] if covered(a, b)]
    inside, outside = page.evaluate(
        """() => { const figure = document.querySelector("#graph figure");
                   return [figure.scrollWidth, figure.clientWidth]; }"""
    )
    assert inside <= outside
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_letters_stay_large_enough_to_be_read(page: Page, tmp_path: Path) -> None:
    shown(page, tmp_path, swarm(30))
    scale = page.evaluate(
        """() => { const drawing = document.querySelector("#graph figure > svg");
                   return drawing.getBoundingClientRect().width / drawing.viewBox.baseVal.width; }"""
    )
    assert 0.6 <= scale <= 1


def test_of_sixty_agents_thirty_are_drawn(page: Page, tmp_path: Path) -> None:
    shown(page, tmp_path, swarm(60))
    assert len(boxes(page, "#graph .box")) == 30
    assert "the 30 busiest of 60 agents are drawn" in page.locator("#graph").inner_text()


def test_an_edge_and_an_agent_lead_to_their_trials_by_click_and_by_key(page: Page, tmp_path: Path) -> None:
    shown(page, tmp_path, swarm(2))
    edge = page.locator("#graph a.edge").first
    assert edge.get_attribute("href") == links.to_trials(edge=("TriageAgent", "Specialist01Agent"))
    edge.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == links.to_trials(edge=("TriageAgent", "Specialist01Agent"))
    page.evaluate("location.hash = '#graph'")
    page.locator("#graph a.node .box").first.click()
    assert page.evaluate("location.hash") == links.to_trials(agent="TriageAgent")


def test_every_line_says_what_it_is(page: Page, tmp_path: Path) -> None:
    """For who does not see it: each has a name, and those that lead somewhere are links."""
    shown(page, tmp_path, swarm(12))
    titles = page.eval_on_selector_all("#graph .edge", "all => all.map(each => each.firstChild.textContent)")
    assert len(titles) == len(set(titles))
    assert all(" to " in title and ": " in title for title in titles)
    unnamed = page.eval_on_selector_all("#graph a.edge, #graph a.node", "all => all.filter(a => !a.ariaLabel).length")
    assert unnamed == 0


def test_names_of_others_are_text(page: Page, tmp_path: Path) -> None:
    names = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>")
    turn = TurnTrace(
        user="hi", start_agent=names[0], end_agent=names[1], steps=(Hop(source=names[0], target=names[1]),)
    )
    trace = Trace(topology=Topology(start=names[0], agents=names), turns=(turn,))
    shown(page, tmp_path, Report.of([Outcome(file="a", line=1, scenario="s", status="passed", trace=trace)]))
    titles = page.eval_on_selector_all("#graph .node", "all => all.map(each => each.firstChild.textContent)")
    assert [title.partition(":")[0] for title in titles] == [f"{names[0]}, where conversations start", names[1]]
    assert page.locator("#graph img").count() == 0
    assert page.locator("#graph script").count() == 1


def test_without_script_the_table_says_it_all(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(html.write(swarm(2), tmp_path).as_uri())
    assert not page.locator("#graph-drawing").is_visible()
    assert "TriageAgent → Specialist01Agent" in page.locator("#graph table").inner_text()
    context.close()
