"""The routing graph in a real browser: it fits, nothing in it covers anything else, and it leads to trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
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


@dataclass
class Screen:
    """A page of some width, with what the browser complained of."""

    page: Page
    complaints: list[str]


@pytest.fixture(scope="module")
def screens(browser: Browser) -> dict[int, Screen]:
    return {width: _screen(browser, width) for width in (1440, 390)}


def _screen(browser: Browser, width: int) -> Screen:
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    screen = Screen(context.new_page(), [])
    screen.page.on("console", lambda message: screen.complaints.append(message.text))
    screen.page.on("pageerror", lambda error: screen.complaints.append(str(error)))
    return screen


@pytest.fixture
def wide(screens: dict[int, Screen]) -> Iterator[Page]:
    """A wide page; no test may end with a complaint of the browser."""
    yield from _looked_at(screens[1440])


@pytest.fixture(params=[1440, 390], ids=["wide", "phone"])
def page(screens: dict[int, Screen], request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of one of two widths; no test may end with a complaint of the browser."""
    yield from _looked_at(screens[request.param])


def _looked_at(screen: Screen) -> Iterator[Page]:
    yield screen.page
    complaints, screen.complaints[:] = tuple(screen.complaints), []
    assert complaints == ()


@cache
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


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The page of a swarm of some size, written once."""
    return cache(lambda size: html.write(swarm(size), tmp_path_factory.mktemp("swarm")))


def shown(page: Page, file: Path) -> Page:
    page.goto(file.as_uri())
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


@pytest.mark.parametrize("size", [2, 12, 30])
def test_it_fits_its_place_and_nothing_covers_anything(page: Page, written: Callable[[int], Path], size: int) -> None:
    shown(page, written(size))
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


def test_names_that_are_cut_stay_different(page: Page, written: Callable[[int], Path]) -> None:
    shown(page, written(12))
    names = page.eval_on_selector_all("#graph .node .name", "all => all.map(each => each.textContent)")
    assert len(set(names)) == 12


def test_where_counts_have_no_room_it_says_where_they_are(page: Page, written: Callable[[int], Path]) -> None:
    shown(page, written(12))
    narrow = page.evaluate("innerWidth") < 400
    assert page.locator("#graph figure").get_by_text("no room for the counts").count() == narrow


def test_letters_stay_large_enough_to_be_read(page: Page, written: Callable[[int], Path]) -> None:
    shown(page, written(30))
    scale = page.evaluate(
        """() => { const drawing = document.querySelector("#graph figure > svg");
                   return drawing.getBoundingClientRect().width / drawing.viewBox.baseVal.width; }"""
    )
    assert 0.6 <= scale <= 1


def test_of_sixty_agents_thirty_are_drawn(wide: Page, written: Callable[[int], Path]) -> None:
    shown(wide, written(60))
    assert len(boxes(wide, "#graph .box")) == 30
    assert "the 30 busiest of 60 agents are drawn" in wide.locator("#graph").inner_text()


def test_an_edge_and_an_agent_lead_to_their_trials_by_click_and_by_key(
    wide: Page, written: Callable[[int], Path]
) -> None:
    shown(wide, written(2))
    edge = wide.locator("#graph a.edge").first
    assert edge.get_attribute("href") == links.to_trials(edge=("TriageAgent", "Specialist01Agent"))
    edge.focus()
    wide.keyboard.press("Enter")
    assert wide.evaluate("location.hash") == links.to_trials(edge=("TriageAgent", "Specialist01Agent"))
    wide.evaluate("location.hash = '#graph'")
    wide.locator("#graph a.node .box").first.click()
    assert wide.evaluate("location.hash") == links.to_trials(agent="TriageAgent")


def test_every_line_says_what_it_is(wide: Page, written: Callable[[int], Path]) -> None:
    """For who does not see it: each has a name, and those that lead somewhere are links."""
    shown(wide, written(12))
    titles = wide.eval_on_selector_all("#graph .edge", "all => all.map(each => each.firstChild.textContent)")
    assert len(titles) == len(set(titles))
    assert all(" to " in title and ": " in title for title in titles)
    unnamed = wide.eval_on_selector_all("#graph a.edge, #graph a.node", "all => all.filter(a => !a.ariaLabel).length")
    assert unnamed == 0


def test_names_of_others_are_text(wide: Page, tmp_path: Path) -> None:
    names = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>")
    turn = TurnTrace(
        user="hi", start_agent=names[0], end_agent=names[1], steps=(Hop(source=names[0], target=names[1]),)
    )
    trace = Trace(topology=Topology(start=names[0], agents=names), turns=(turn,))
    outcome = Outcome(file="a", line=1, scenario="s", status="passed", trace=trace)
    shown(wide, html.write(Report.of([outcome]), tmp_path))
    titles = wide.eval_on_selector_all("#graph .node", "all => all.map(each => each.firstChild.textContent)")
    assert [title.partition(":")[0] for title in titles] == [f"{names[0]}, where conversations start", names[1]]
    assert wide.locator("#graph img").count() == 0
    assert wide.locator("#graph script").count() == 1


def test_without_script_the_table_says_it_all(browser: Browser, written: Callable[[int], Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(written(2).as_uri())
    assert not page.locator("#graph-drawing").is_visible()
    assert "TriageAgent → Specialist01Agent" in page.locator("#graph table").inner_text()
    context.close()
