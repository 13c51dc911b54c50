"""A browser for each module of tests of the page, and the run that most of them look at."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chatflow_eval import loader, trial
from chatflow_eval import outcome as outcomes
from chatflow_eval.report import Report, Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parent.parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Closed with the module: no test elsewhere could run an event loop of its own beside playwright's."""
    if CHROMIUM is None:
        pytest.skip("no chromium here")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def suite() -> Report:
    """Shipped scenarios as the keyword router answers them: some of its routes are wrong."""
    files = ("support", "limits", "praisonai", "peers")
    scenarios = loader.load([ROOT / f"scenarios/{name}.scenario.yaml" for name in files])
    trials = trial.plan(scenarios, root=ROOT, models=("keyword",), repeats=2)
    with ThreadPoolExecutor(1) as aside:  # The browser's event loop runs in this thread.
        found = aside.submit(outcomes.collect, trials).result()
    return Report.of(found, run=Run(started="2026-12-01T09:00:00+00:00", command=("run", "scenarios/")))
