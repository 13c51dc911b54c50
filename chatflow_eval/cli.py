"""click commands: parse, call, print. The body of `run` is the life of a scenario: load, plan, run, report, gate."""

from __future__ import annotations

import asyncio
import io
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from chatflow_eval import __version__, report_commands
from chatflow_eval.cassette_commands import cassettes
from chatflow_eval.conclusion import HARNESS_FAILED, INTERRUPTED, conclude
from chatflow_eval.errors import ChatflowEvalError
from chatflow_eval.execution import Recordings, finish, keeping, load, new_folder, select, unfinished, unserved
from chatflow_eval.options import GATE_RULES, OUTPUT_NAMES, OUTPUTS, PATHS, RULE_NAMES, SELECTION, is_given
from chatflow_eval.quantities import counted
from chatflow_eval.view_command import view

if TYPE_CHECKING:
    from chatflow_eval.scenario import Framework
    from chatflow_eval.trial import Mode


class _HarnessError(click.ClickException):
    exit_code = HARNESS_FAILED


class _Commands(click.Group):
    """Tells a person what the harness could not do, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ChatflowEvalError as error:
            raise _HarnessError(str(error)) from None
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="chatflow-eval %(version)s")
def cli() -> None:
    """Test and evaluate handoff routing between LLM agents.

    Exit codes: 0 the gate opened, 1 it did not, 2 the harness could not do its work, 3 too many trials errored.
    """


@cli.command()
@PATHS
@SELECTION
@click.option(
    "--record-mode",
    type=click.Choice(["none", "once", "new_episodes", "all"]),
    default="none",
    show_default=True,
    help="none replays and never touches the network; once records where nothing was recorded; new_episodes goes live "
    "from the first request on that was not recorded; all records anew.",
)
@click.option("--live", is_flag=True, help="Ask the models and record nothing.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Go on with a run that was broken off, given what it was started with.",
)
@click.option(
    "--baselines", is_flag=True, help="Run the keyword router beside the models, as a yardstick that decides nothing."
)
@GATE_RULES
@OUTPUTS
def run(paths: tuple[Path, ...], record_mode: Mode, live: bool, **options: Any) -> None:
    """Run the scenarios in files and folders, write a report, and let it through the gate."""
    if live and is_given("record_mode"):
        raise click.UsageError("--live records nothing and replays nothing; leave out --record-mode")
    if options["resume"] is not None and options["out"] is not None:
        raise click.UsageError("--resume goes on in the run's own folder; leave out --out")
    rules = {name: options.pop(name) for name in RULE_NAMES}
    outputs = {name: options.pop(name) for name in OUTPUT_NAMES}
    _run(paths, mode="live" if live else record_mode, rules=rules, outputs=outputs, **options)


@cli.command()
@PATHS
@SELECTION
@click.option("--only-stale", is_flag=True, help="Only what was recorded and no longer matches.")
@click.option("--missing", "only_missing", is_flag=True, help="Only what was not recorded yet.")
@click.option("--yaml", "as_yaml", is_flag=True, help="As YAML, which is slower to replay; once YAML, it stays so.")
def record(paths: tuple[Path, ...], **options: Any) -> None:
    """Record the models' answers anew; a wrong route is recorded like any other, and its verdict shown."""
    _run(paths, mode="all", rules=None, **options)


@cli.command()
@PATHS
def validate(paths: tuple[Path, ...]) -> None:
    """Check scenario files, import the agents they name, and check the names they use."""
    scenarios = load(paths)
    turns = sum(len(scenario.turns) for scenario in scenarios)
    files = len({scenario.file for scenario in scenarios})
    click.echo(f"{counted(len(scenarios), 'scenario')}, {counted(turns, 'turn')} in {counted(files, 'file')}: all good")


@cli.command("import-dialogues")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option(
    "--agents",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON: agent to description; or data set (what its files' names begin with) to such an object.",
)
@click.option(
    "--style",
    type=click.Choice(["swarm", "hub"]),
    default="swarm",
    show_default=True,
    help="swarm: everybody can hand off to everybody; hub: specialists only back to triage.",
)
@click.option(
    "--expect",
    type=click.Choice(["ends_at", "route"]),
    default="ends_at",
    show_default=True,
    help="ends_at: who has the conversation when a turn ends; route: also the way there.",
)
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The scenario file to write."
)
def import_dialogues(files: tuple[Path, ...], agents: Path, style: Any, expect: Any, out: Path) -> None:
    """Make a scenario file of dialogues: one JSON object a line, with the agents that are right for each turn."""
    from chatflow_eval import dialogues, loader

    if not out.name.endswith(loader.SUFFIXES):
        raise click.UsageError(f"--out {out}: the name of a scenario file ends in {' or '.join(loader.SUFFIXES)}")
    text = dialogues.render(dialogues.read(files, agents), style, expect)
    try:
        out.write_bytes(text.encode())
    except OSError as error:
        raise ChatflowEvalError(f"{out}: cannot be written: {error.strerror}") from error
    scenarios = loader.load([out])
    turns = sum(len(scenario.turns) for scenario in scenarios)
    click.echo(f"{counted(len(scenarios), 'scenario')}, {counted(turns, 'turn')}: {out}")


@cli.command()
@click.argument("of", type=click.Choice(["scenario", "report", "trials"]), default="scenario")
def schema(of: Literal["scenario", "report", "trials"]) -> None:
    """Print the JSON Schema of scenario files, of report.json, or of the lines of trials.jsonl."""
    import json

    from chatflow_eval import loader, report

    click.echo(json.dumps(loader.json_schema() if of == "scenario" else report.json_schema(of), indent=2))


for _command in (cassettes, view, *report_commands.COMMANDS):
    cli.add_command(_command)


def _run(
    paths: tuple[Path, ...],
    *,
    mode: Mode,
    rules: dict[str, Any] | None,
    outputs: dict[str, Any] | None = None,
    baselines: bool = False,
    models: tuple[str, ...],
    frameworks: tuple[Framework, ...],
    repeats: int | None,
    tags: tuple[str, ...],
    ids: tuple[str, ...],
    concurrency: int,
    retries: int,
    timeout: float,
    fail_fast: bool,
    out: Path | None,
    resume: Path | None = None,
    only_stale: bool = False,
    only_missing: bool = False,
    as_yaml: bool = False,
) -> NoReturn:
    """Load, plan, run, report, gate."""
    from chatflow_eval import loader, trial
    from chatflow_eval.report import RunFolder
    from chatflow_eval.retries import CallLimits

    scenarios = select(load(paths, offline=mode in ("none", "once"), frameworks=frameworks), tags, ids)
    root = loader.find_root(paths[0])
    calls = CallLimits(retries=retries, timeout=timeout)
    trials = trial.plan(
        scenarios,
        root=root,
        models=models,
        frameworks=frameworks,
        repeats=repeats,
        mode=mode,
        calls=calls,
        baseline=baselines,
    )
    if only_stale or only_missing:
        trials = unserved(trials, stale=only_stale, missing=only_missing)
    if as_yaml:
        trials = tuple(replace(trial, cassette=trial.cassette.with_suffix(".yaml")) for trial in trials)
    if resume is None:
        folder = RunFolder.create(out or new_folder(root), command=sys.argv[1:], planned=len(trials))
    else:
        folder = RunFolder.resume(resume)
        trials = unfinished(trials, folder)
    interrupted, recordings = False, Recordings()
    try:
        keep = keeping(folder, recordings)
        partial = asyncio.run(finish(trials, keep, concurrency=concurrency, fail_fast=fail_fast))
    except KeyboardInterrupt:
        interrupted = partial = True
    except BaseException:
        folder.close(partial=True)
        raise
    found = folder.close(partial=partial)
    code = conclude(found, rules, outputs or {}, root, recordings.notes())
    sys.exit(INTERRUPTED if interrupted else code)


def main() -> None:
    """The `chatflow-eval` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A console that cannot show a character shows an escape instead of ending the program.
            stream.reconfigure(errors="backslashreplace")
    # What Ctrl-C leaves of a call that litellm had prepared.
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    cli()
