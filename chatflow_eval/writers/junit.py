"""A report as JUnit XML: a suite for each scenario file, a test case for each trial.

Elements and attributes are those that Jenkins' schema (junit-10.xsd) and Ant's (JUnit.xsd) both take.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from xml.sax.saxutils import XMLGenerator
from xml.sax.xmlreader import AttributesImpl

from chatflow_eval.errors import ReportError
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report
from chatflow_eval.writers import words

_ENDS = {"failed": "failures", "errored": "errors", "skipped": "skipped"}


def write(report: Report, path: Path) -> None:
    """The report as a JUnit file; raises `ReportError`, and leaves a file that was there as it is."""
    beside = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            _Writer(report, XMLGenerator(file, "utf-8", short_empty_elements=True)).write()
        beside.replace(path)
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error.strerror}") from error


class _Writer:
    def __init__(self, report: Report, xml: XMLGenerator) -> None:
        self._report = report
        self._xml = xml

    def write(self) -> None:
        """One suite after the other; outcomes are read as they are written, so that they need not fit into memory."""
        suites: dict[str, list[tuple[tuple[object, ...], int]]] = {}
        counts: dict[str, dict[str, float]] = {}
        for index, outcome in enumerate(self._report.outcomes):
            if outcome.baseline:
                continue
            suites.setdefault(outcome.file, []).append((words.order(outcome), index))
            count = counts.setdefault(outcome.file, dict.fromkeys(("tests", *_ENDS.values(), "time"), 0.0))
            count["tests"] += 1
            count["time"] += outcome.seconds
            if (end := _end(outcome)) is not None:
                count[_ENDS[end]] += 1
        self._xml.startDocument()
        self._xml.startElement("testsuites", AttributesImpl({}))
        for number, (file, places) in enumerate(sorted(suites.items())):
            self._suite(number, file, counts[file], [index for _, index in sorted(places)])
        self._xml.endElement("testsuites")
        self._xml.characters("\n")
        self._xml.endDocument()

    def _suite(self, number: int, file: str, counts: dict[str, float], places: list[int]) -> None:
        name = _line(file)
        began = self._report.run.started or "1970-01-01T00:00:00"
        attributes = {
            "name": name,
            "package": "chatflow-eval",
            "id": str(number),
            "hostname": "localhost",
            "timestamp": datetime.fromisoformat(began).strftime("%Y-%m-%dT%H:%M:%S"),
            **{key: f"{value:.3f}" if key == "time" else f"{value:.0f}" for key, value in counts.items()},
        }
        self._xml.startElement("testsuite", AttributesImpl(attributes))
        self._element("properties")
        for index in places:
            self._case(name, self._report.outcomes[index])
        self._element("system-out")
        self._element("system-err")
        self._xml.endElement("testsuite")

    def _case(self, suite: str, outcome: Outcome) -> None:
        attributes = {"name": words.trial_name(outcome), "classname": suite, "time": f"{outcome.seconds:.3f}"}
        self._xml.startElement("testcase", AttributesImpl({key: _line(value) for key, value in attributes.items()}))
        end = _end(outcome)
        if end == "skipped":
            expected = f"fails as expected ({outcome.xfail}): " if outcome.status == "failed" else ""
            self._element("skipped", {"message": _line(expected + outcome.why)})
        elif end is not None:
            kind = outcome.failure.exception if outcome.failure is not None else _first_check(outcome)
            attributes = {"message": _line(outcome.why), "type": _line(kind)}
            self._element("error" if end == "errored" else "failure", attributes, "\n".join(_evidence(outcome)))
        self._xml.endElement("testcase")

    def _element(self, name: str, attributes: dict[str, str] | None = None, text: str = "") -> None:
        self._xml.startElement(name, AttributesImpl(attributes or {}))
        self._xml.characters(_legal(text))
        self._xml.endElement(name)


def _end(outcome: Outcome) -> str | None:
    """How JUnit has it; a failure that its author expects is none."""
    if outcome.status == "failed" and outcome.ok:
        return "skipped"
    return None if outcome.status == "passed" else outcome.status


def _first_check(outcome: Outcome) -> str:
    verdict = words.first_failed(outcome.verdicts)
    return "failed" if verdict is None else verdict.check


def _evidence(outcome: Outcome) -> Iterator[str]:
    """Where the scenario stands, and what each failed check expected and found."""
    yield f"{outcome.file}:{outcome.line}"
    for verdict in outcome.verdicts:
        if verdict.status == "failed":
            place = f"turn {verdict.turn}" if verdict.turn else "whole conversation"
            yield f"{place}, {verdict.check}: {verdict.why}"
            yield f"  expected {verdict.expected}"
            yield f"  actual   {verdict.actual}"
    if outcome.failure is not None:
        yield words.failure(outcome.failure, outcome.failed_turn)


def _legal(text: str) -> str:
    """The text without what no XML file can hold."""
    return words.printable(text).replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")


def _line(text: str) -> str:
    return _legal(words.one_line(text))
