"""The committed example report is what today's code makes of its trials."""

from __future__ import annotations

from pathlib import Path

from chatflow_eval.gate import Decision
from chatflow_eval.report import PAGE, Report
from chatflow_eval.writers import html

EXAMPLE = Path(__file__).parent.parent / "reports" / "example"


def test_the_page_is_todays() -> None:
    report = Report.read(EXAMPLE)
    page = html.render(report, Decision.kept(report))
    assert page == (EXAMPLE / PAGE).read_text(encoding="utf-8"), "make example"


def test_nothing_in_it_names_this_machine() -> None:
    for file in EXAMPLE.iterdir():
        assert str(EXAMPLE.parent.parent) not in file.read_text(encoding="utf-8")
