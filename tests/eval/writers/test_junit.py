"""JUnit XML that Jenkins and Ant both take, whatever models and users say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chatflow_eval.errors import ReportError
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report
from chatflow_eval.writers import junit

REQUIRED = {
    "testsuites": set[str](),
    "testsuite": {"name", "package", "id", "hostname", "timestamp", "tests", "failures", "errors", "time"},
    "properties": set[str](),
    "testcase": {"name", "classname", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"message"},
    "system-out": set[str](),
    "system-err": set[str](),
}
"""Elements and attributes that both junit-10.xsd (Jenkins) and JUnit.xsd (Ant) allow, and Ant's wants."""


def written(report: Report, folder: Path) -> ElementTree.Element:
    path = folder / "out" / "junit.xml"
    junit.write(report, path)
    return ElementTree.fromstring(path.read_bytes())


def test_every_element_has_the_attributes_that_both_schemas_take(sample: Report, tmp_path: Path) -> None:
    root = written(sample, tmp_path)
    for element in root.iter():
        extra = {"skipped"} if element.tag == "testsuite" else set()
        assert set(element.keys()) - extra == REQUIRED[element.tag]
    for suite in root:
        tags = [element.tag for element in suite]
        assert tags == ["properties", *["testcase"] * (len(tags) - 3), "system-out", "system-err"]
        assert all(len(case) <= 1 for case in suite.iter("testcase"))
        assert len(suite.attrib["timestamp"]) == len("2026-12-01T09:00:00")


def test_counts_are_those_of_the_trials(sample: Report, tmp_path: Path) -> None:
    (suite,) = written(sample, tmp_path)
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 10, "failures": 4, "errors": 1, "skipped": 2}
    found = [child.tag for case in suite.iter("testcase") for child in case]
    assert sorted(found) == ["error", *["failure"] * 4, *["skipped"] * 2]


def test_a_failure_says_where_and_shows_both_routes(sample: Report, tmp_path: Path) -> None:
    failures = [each for each in written(sample, tmp_path).iter("failure") if "BillingAgent kept" in (each.text or "")]
    text = failures[0].text or ""
    assert text.startswith("scenarios/support.scenario.yaml:12\n")
    assert "expected BillingAgent -> TriageAgent -> TechSupportAgent" in text
    assert "actual   BillingAgent" in text
    assert failures[0].attrib["type"] == "route"


def hostile(**fields: str) -> Report:
    outcome = Outcome(file="a.yaml", line=1, scenario="s", status="failed", users=("hi",))
    return Report.of([replace(outcome, **fields)])  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["</failure><x>", "]]>&amp;\"'", "\x00\x1b[31m\ufffe\uffff", "🚀\nline"])
def test_hostile_text_stays_text(text: str, tmp_path: Path) -> None:
    """B103."""
    root = written(hostile(scenario=text, why=text, file=text), tmp_path)
    assert [element.tag for element in root.iter("failure")] == ["failure"]


def test_no_secret_gets_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """B099."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-canary-key-12345")
    written(hostile(why="refused sk-planted-canary-key-12345"), tmp_path)
    assert b"canary" not in (tmp_path / "out" / "junit.xml").read_bytes()


def test_a_folder_that_cannot_be_written_is_an_error(sample: Report, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("", encoding="utf-8")
    with pytest.raises(ReportError, match="cannot be written"):
        junit.write(sample, tmp_path / "out" / "junit.xml")
