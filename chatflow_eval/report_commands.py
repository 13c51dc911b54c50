"""click commands over run folders: `chatflow-eval report | gate | compare | export | rescore | history`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chatflow_eval.conclusion import conclude, decide, exit_code, show, write_for_programs
from chatflow_eval.errors import ChatflowEvalError, ReportError
from chatflow_eval.execution import load, new_folder
from chatflow_eval.options import GATE_RULES, OUTPUT_NAMES, OUTPUTS, RUN_FOLDER
from chatflow_eval.quantities import counted

if TYPE_CHECKING:
    from chatflow_eval.report import Report


@click.command()
@RUN_FOLDER
def report(run: Path) -> None:
    """Show a run folder's numbers and write its HTML page again."""
    from chatflow_eval.gate import Decision
    from chatflow_eval.report import Report

    found = Report.read(run)
    show(found, Decision.kept(found))


@click.command()
@RUN_FOLDER
@GATE_RULES
@OUTPUTS
def gate(run: Path, junit: Path | None, summary: Path | None, github: bool, **rules: Any) -> None:
    """Hold a run folder against thresholds and a baseline; without any, every scenario must pass."""
    from chatflow_eval.report import Report, keep_ruling
    from chatflow_eval.writers import console, html

    found, root = Report.read(run), here()
    decision, max_errors = decide(found, rules, root)
    console.show_gate(decision, sys.stdout)
    try:
        found = keep_ruling(found, decision.rules)
        html.write(found, run, decision)
    except ReportError as error:  # it can be judged where it cannot be written
        click.echo(f"Not kept: {error}", err=True)
    write_for_programs(found, decision, root, junit=junit, summary=summary, github=github)
    sys.exit(exit_code(found, decision, max_errors=max_errors))


@click.command()
@click.argument("base", type=click.Path(path_type=Path))
@RUN_FOLDER
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the run's page, with what changed, too.",
)
def compare(base: Path, run: Path, page: Path | None) -> None:
    """Compare a run folder with a baseline, scenario by scenario: better, worse, flaky, new, gone."""
    from chatflow_eval.comparison import compare
    from chatflow_eval.gate import Decision
    from chatflow_eval.report import Report
    from chatflow_eval.writers import console, html

    found = Report.read(run)
    comparison = compare(Report.read(base), found)
    console.show_comparison(comparison, sys.stdout)
    if page is not None:
        click.echo(f"Report: {html.save(found, page, Decision.kept(found), comparison=comparison)}")


@click.command()
@RUN_FOLDER
@click.option("--format", "form", type=click.Choice(["csv", "parquet", "jsonl"]), default="csv", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="The folder to write to.  [default: RUN/export]")
def export(run: Path, form: Any, out: Path | None) -> None:
    """Write a run folder's trials, turns and hops as tables."""
    from chatflow_eval.report import Report
    from chatflow_eval.writers import export

    for path in export.write(Report.read(run), out or run / "export", form):
        click.echo(path)


@click.command()
@RUN_FOLDER
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The new run folder.  [default: as for run]")
@GATE_RULES
@OUTPUTS
def rescore(run: Path, paths: tuple[Path, ...], out: Path | None, **options: Any) -> None:
    """Judge a run's traces by what its scenario files, or those in PATHS, expect now; no model is asked."""
    from chatflow_eval.outcome import rejudge
    from chatflow_eval.report import Report, RunFolder

    old, root = Report.read(run), here()
    files = paths or files_of(old, root)
    if not files:
        raise ChatflowEvalError(f"{run}: none of its scenario files is below {root}; name them")
    scenarios = load(files)
    folder = RunFolder.create(out or new_folder(root), command=sys.argv[1:])
    lost = 0
    for outcome in rejudge(old.outcomes, scenarios):
        if outcome is None:
            lost += 1
        else:
            folder.append(outcome)
    found = folder.close(partial=old.run.partial)
    if lost:
        click.echo(f"{counted(lost, 'trial')} left out: no scenario has their id and says the same words", err=True)
    outputs = {name: options.pop(name) for name in OUTPUT_NAMES}
    sys.exit(conclude(found, options, outputs, root))


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As JSON, for other programs.")
def history(folders: tuple[Path, ...], as_json: bool) -> None:
    """Show accuracy and incidents of one run after the other, of run folders or of the folder that holds them."""
    import json
    from dataclasses import asdict

    from chatflow_eval.history import past_runs
    from chatflow_eval.writers import console

    runs = past_runs(folders or (here() / "reports",))
    if not runs:
        raise ChatflowEvalError(f"no run folder in {', '.join(map(str, folders)) or here() / 'reports'}")
    if as_json:
        click.echo(json.dumps([asdict(each) for each in runs], ensure_ascii=False, indent=1, default=str))
    else:
        console.show_history(runs, sys.stdout)


COMMANDS = (report, gate, compare, export, rescore, history)


def files_of(found: Report, root: Path) -> tuple[Path, ...]:
    """The scenario files of a run, as far as they are still there."""
    files = (root / row.name for row in found.metrics.files)
    return tuple(file for file in files if file.is_file())


def here() -> Path:
    """The root of the project that the program is run in."""
    from chatflow_eval import loader

    return loader.find_root(Path.cwd())
