"""The viewer's pages: the trend that they draw, and nothing in them that their own policy forbids."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.history import PastModel, PastRun
from chatflow_eval.listing import Entry
from chatflow_eval.progress import Standing
from chatflow_eval.writers import pages


def rate(value: float | None, of: int = 10) -> dict[str, Any]:
    low, high = (None, None) if value is None else (max(value - 0.2, 0), min(value + 0.2, 1))
    return {"numerator": of * (value or 0), "denominator": of, "value": value, "low": low, "high": high}


def entry(day: int, of_models: Mapping[str, float | None], *, loops: int = 0) -> Entry:
    folder, started = Path(f"/runs/r{day}"), f"2026-12-{day:02}T10:00:00+00:00"
    incidents = {"loop": loops} if loops else {}
    run = PastRun(
        folder=folder,
        started=started,
        finished=f"2026-12-{day:02}T10:01:30+00:00",
        command=("run", "x"),
        planned=None,
        partial=False,
        models=tuple(of_models),
        trials={"passed": 3, "failed": 1},
        accuracy=rate(0.5),
        pass_rate=rate(0.75, 4),
        incidents=incidents,
        cost=None,
        of_models=tuple(
            PastModel(target="chatflow", model=model, accuracy=rate(value), incidents=incidents)
            for model, value in of_models.items()
        ),
    )
    return Entry(name=folder.name, folder=folder, state="finished", started=started, run=run)


def page_of(*entries: Entry, query: str = "") -> pages.Page:
    newest = sorted(entries, key=lambda each: each.started, reverse=True)
    of = len(entries)
    return pages.index(pages.parts(newest, {}, folder=Path("reports"), of=of, query=query), of=of, query=query)


def index(*entries: Entry) -> str:
    return page_of(*entries).text


def lines(page: str) -> list[list[tuple[float, float]]]:
    drawn = re.findall(r'class="line" points="([^"]*)"', page)
    return [[(float(x), float(y)) for x, y in (at.split(",") for at in line.split())] for line in drawn]


def test_accuracy_is_drawn_run_by_run_upwards() -> None:
    (line,) = lines(index(entry(1, {"m": 0.25}), entry(2, {"m": 0.5}), entry(3, {"m": 1.0})))
    assert line == [(5.0, 75.0), (15.0, 50.0), (25.0, 0.0)]


def test_each_model_has_its_own_line_in_the_same_columns() -> None:
    first, second = lines(index(entry(1, {"m": 0.5}), entry(2, {"m": 0.6, "n": 0.4}), entry(3, {"m": 0.7, "n": 0.5})))
    assert [x for x, _ in first] == [5.0, 15.0, 25.0]
    assert [x for x, _ in second] == [15.0, 25.0]


def test_incidents_stand_below_as_tall_as_they_are_many() -> None:
    page = index(entry(1, {"m": 0.5}, loops=1), entry(2, {"m": 0.5}), entry(3, {"m": 0.5}, loops=4))
    assert re.findall(r'class="incidents" .* height="([^"]*)"', page) == ["25.00", "100.00"]


def test_one_run_is_no_trend_and_nothing_to_compare() -> None:
    page = index(entry(1, {"m": 0.5}))
    assert "Trend" not in page
    assert "radio" not in page


def test_a_run_without_an_accuracy_is_left_out_of_the_trend() -> None:
    (line,) = lines(index(entry(1, {"m": 0.5}), entry(2, {"m": None}), entry(3, {"m": 0.5})))
    assert len(line) == 2


def test_it_says_what_moved_since_the_run_before() -> None:
    assert "+12.0 points since the run before" in index(entry(1, {"m": 0.5}), entry(2, {"m": 0.62}))
    assert "as in the run before" in index(entry(1, {"m": 0.5}), entry(2, {"m": 0.5}))


def test_the_trend_is_bounded() -> None:
    days = [entry(day, {f"m{number}": 0.5 for number in range(9)}) for day in range(1, 29)]
    many = [*days, *days, *days]
    drawn = lines(index(*many))
    assert len(drawn) == pages.MODELS_OF_TREND
    assert {len(line) for line in drawn} == {pages.RUNS_OF_TREND}


def test_the_two_newest_runs_are_chosen_to_compare() -> None:
    page = index(entry(1, {"m": 0.5}), entry(3, {"m": 0.5}), entry(2, {"m": 0.5}))
    assert re.findall(r'name="(base|run)" value="(\w+)"[^>]* checked', page) == [("run", "r3"), ("base", "r2")]


@pytest.mark.parametrize(
    ("command", "resumed"),
    [
        (("run", "a b"), "chatflow-eval run 'a b' --resume /runs/r1"),
        (("run", "--out", "x", "a", "--resume=y"), "chatflow-eval run a --resume /runs/r1"),
        (("run", "a", "--out"), "chatflow-eval run a --resume /runs/r1"),
        (("record", "a"), ""),
        ((), ""),
    ],
)
def test_it_says_how_to_go_on_with_a_run_that_was_broken_off(command: tuple[str, ...], resumed: str) -> None:
    assert pages._resume(command, Path("/runs/r1")) == resumed


@pytest.mark.parametrize("kind", ["index", "live", "problem"])
def test_a_page_is_allowed_what_it_holds_and_nothing_else(kind: str) -> None:
    one = entry(1, {"m": 0.5}, loops=2)
    page = {
        "index": lambda: page_of(one, entry(2, {"m": 0.5})),
        "live": lambda: pages.live(one, Standing(trials=1, statuses={"passed": 1})),
        "problem": lambda: pages.problem("no <b>"),
    }[kind]()
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        inline = re.findall(rf"<{tag}>(.*?)</{tag}>", page.text, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in inline]
        allowed = re.search(rf"{directive} ([^;]*)", page.policy)
        assert (allowed[1] if allowed else "") == " ".join(f"'sha256-{each}'" for each in hashes)
    assert page.policy.startswith("default-src 'none'; ")
    assert " style=" not in page.text
    assert not re.search(r"\son\w+=", page.text)
    assert not re.search(r"(src|href)=\"(https?:)?//|url\(|@import", page.text)


def test_the_colours_are_those_of_the_report_in_light_in_dark_and_on_paper() -> None:
    style = pages._colours()
    assert style.count("--paper:") == 3
    assert style.count("--good:") >= 3
    assert style.count("{") == style.count("}")
    page = pages.problem("x").text
    used, known = set(re.findall(r"var\((--[\w-]+)\)", page)), set(re.findall(r"(--[\w-]+):", style))
    assert used <= known


@given(st.text(), st.text(), st.text())
def test_texts_stay_text(name: str, command: str, problem: str) -> None:
    one = entry(1, {command: 0.5})
    bad = Entry(name=name, folder=Path("/runs/bad"), state="damaged", started=one.started, run=None, problem=problem)
    tags = re.compile(r"<(/?[a-zA-Z][\w-]*)")
    plain = Entry(name="n", folder=Path("/runs/bad"), state="damaged", started=one.started, run=None, problem="p")
    shown, wanted = (
        page_of(one, each, entry(2, {model: 0.5}), query=f"q{model}").text
        for each, model in ((bad, command), (plain, "m"))
    )
    assert sorted(set(tags.findall(shown))) == sorted(set(tags.findall(wanted)))
    shown.encode()
