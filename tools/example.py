"""Makes the committed example report and the pictures of it in docs/: `python tools/example.py`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "reports" / "example"
PICTURES = ROOT / "docs" / "pictures"
RUN = ("run", "scenarios/", "--model", "declared", "--model", "keyword", "--out", "reports/example")

SHOTS: tuple[tuple[str, Literal["light", "dark"], int, int, str], ...] = (
    ("overview", "light", 1440, 1000, ""),
    ("turn", "dark", 1440, 900, "#trial=scenarios/support.scenario.yaml::crash&model=keyword"),
)
"""A picture's name, colour scheme, width and height, and the fragment that is open in it."""


def main() -> None:
    """Runs the shipped scenarios on the recorded model and on the keyword router, and takes the pictures."""
    shutil.rmtree(EXAMPLE, ignore_errors=True)
    # Some keyword trials fail, which is what there is to see.
    done = subprocess.run([sys.executable, "-m", "chatflow_eval", *RUN], cwd=ROOT, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)
    PICTURES.mkdir(exist_ok=True)
    for name, scheme, width, height, fragment in SHOTS:
        with opened(scheme, width, height) as page:
            page.goto(f"{(EXAMPLE / 'report.html').as_uri()}{fragment}")
            page.wait_for_timeout(500)
            page.screenshot(path=PICTURES / f"{name}.png")


@contextmanager
def opened(scheme: Literal["light", "dark"], width: int, height: int) -> Iterator[Page]:
    """A page of headless Chromium, as Debian packages it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        try:
            yield browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
        finally:
            browser.close()


if __name__ == "__main__":
    main()
