"""What a finished run comes to: the gate's decision, what is shown and written, and the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chatflow_eval.errors import ChatflowEvalError

if TYPE_CHECKING:
    from chatflow_eval.gate import Decision
    from chatflow_eval.report import Report

PASSED, GATE_CLOSED, HARNESS_FAILED, TOO_MANY_ERRORS, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes."""


def conclude(
    found: Report, rules: dict[str, Any] | None, outputs: dict[str, Any], root: Path, notes: Sequence[str] = ()
) -> int:
    """Decides, shows and writes a finished run; gives the exit code. `rules` are `None` where nothing is decided."""
    from chatflow_eval.report import keep_ruling

    decision, max_errors = (None, 0) if rules is None else decide(found, rules, root)
    if decision is not None:
        found = keep_ruling(found, decision.rules)
    show(found, decision, notes)
    write_for_programs(found, decision, root, **outputs)
    return exit_code(found, decision, max_errors=max_errors)


def decide(found: Report, rules: dict[str, Any], root: Path) -> tuple[Decision, int]:
    """What the gate of the flags, and of the project's `[tool.chatflow-eval.gate]`, says; and its errors at most.

    Flags win; where there is any rule, errored trials have a ceiling too.
    """
    from chatflow_eval import loader
    from chatflow_eval.gate import Gate, rules_of
    from chatflow_eval.report import Report

    chosen = rules_of(loader.project(root).suite.gate)
    if "baseline" in chosen:
        chosen["baseline"] = root / chosen["baseline"]
    for name, value in rules.items():
        if value is not None and value is not False and value != ():
            chosen[name] = dict(value) if name in ("min_agent_accuracy", "min_tag_accuracy", "max_incident") else value
    base = chosen.pop("baseline", None)
    if chosen or base:
        chosen.setdefault("max_errors", 0)
    try:
        gate = Gate(**chosen)
    except ValueError as error:
        raise ChatflowEvalError(str(error)) from None
    return gate.decide(found, Report.read(base) if base else None), gate.max_errors or 0


def show(found: Report, decision: Decision | None, notes: Sequence[str] = ()) -> None:
    """The summary to the terminal, the page to the run folder."""
    from chatflow_eval.writers import console, html

    if found.folder is not None:
        html.write(found, found.folder, decision)
    console.show(found, sys.stdout, decision, notes)


def write_for_programs(
    found: Report,
    decision: Decision | None,
    root: Path,
    *,
    junit: Path | None = None,
    summary: Path | None = None,
    github: bool = False,
) -> None:
    """The files that other programs read."""
    from chatflow_eval.writers import junit as xml
    from chatflow_eval.writers import markdown

    if junit is not None:
        xml.write(found, junit)
    if summary is None and not github:
        return
    text = markdown.render(found, decision)
    files = [(summary, "w")] if summary is not None else []
    if github:
        workspace = Path(os.environ.get("GITHUB_WORKSPACE", root)).resolve()
        prefix = root.relative_to(workspace).as_posix() if root.is_relative_to(workspace) else ""
        for line in markdown.annotate(found, prefix):
            click.echo(line)
        if job := os.environ.get("GITHUB_STEP_SUMMARY"):
            files.append((Path(job), "a"))
    for path, mode in files:
        try:
            with path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise ChatflowEvalError(f"{path}: cannot be written: {error.strerror}") from error


def exit_code(found: Report, decision: Decision | None, *, max_errors: int) -> int:
    """2 for what the harness could not do, else 3 for too many errors, else 1 for a closed gate, else 0."""
    kinds = [
        outcome.failure.kind
        for index in found.unexpected
        if (outcome := found.outcomes[index]).failure is not None and outcome.status == "errored"
    ]
    if any(kind in ("cassette", "harness") for kind in kinds):
        return HARNESS_FAILED
    if len(kinds) > max_errors:
        return TOO_MANY_ERRORS
    return PASSED if decision is None or decision.passed else GATE_CLOSED
