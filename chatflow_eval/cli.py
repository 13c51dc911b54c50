"""click commands: parse, call, print. The body of `run` is the life of a scenario: load, plan, run, report, gate."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from chatflow_eval import __version__
from chatflow_eval.errors import ChatflowEvalError

if TYPE_CHECKING:
    from chatflow_eval.gate import Decision, Gate
    from chatflow_eval.outcome import Outcome
    from chatflow_eval.report import Report, RunFolder
    from chatflow_eval.scenario import Scenario
    from chatflow_eval.trial import Mode, Trial

PASSED, GATE_CLOSED, HARNESS_FAILED, TOO_MANY_ERRORS, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Rate(click.FloatRange):
    """A number from 0 to 1; a percentage is refused with the rate it may have meant."""

    name = "rate"

    def __init__(self) -> None:
        super().__init__(0, 1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).rstrip("%")
        with contextlib.suppress(ValueError):
            if 1 < float(text) <= 100:
                self.fail(f"{value} is no rate between 0 and 1; did you mean {float(text) / 100:g}?", param, ctx)
        return super().convert(value, param, ctx)


_paths = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
_run_folder = click.argument("run", type=click.Path(path_type=Path))


def _all(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    def apply(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


_selection = _all(
    click.option(
        "--model",
        "models",
        multiple=True,
        metavar="MODEL",
        help="Who answers for every agent: a litellm model's name, or `keyword`, the built-in baseline router "
        "(no language model). Repeatable.",
    ),
    click.option("--repeats", type=click.IntRange(min=1), help="Trials per scenario and model."),
    click.option("--tag", "tags", multiple=True, help="Only scenarios with this tag. Repeatable."),
    click.option(
        "--only", "ids", multiple=True, metavar="ID", help="Only the scenario with this id, or file::id. Repeatable."
    ),
    click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="Trials at once."),
    click.option("--fail-fast", is_flag=True, help="Stop at the first trial that is not as expected."),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="The run folder.  [default: reports/<time> beside pyproject.toml]",
    ),
)

_gate_rules = _all(
    click.option("--min-accuracy", type=_Rate(), help="Routing accuracy at least, between 0 and 1."),
    click.option("--max-loops", type=click.IntRange(min=0), help="Loops at most."),
    click.option("--max-limit-hits", type=click.IntRange(min=0), help="Limit hits at most."),
    click.option(
        "--max-errors",
        type=click.IntRange(min=0),
        help="Errored trials at most; more end with exit code 3.  [default: 0]",
    ),
)


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
@_paths
@_selection
@click.option(
    "--record-mode",
    type=click.Choice(["none", "all"]),
    default="none",
    show_default=True,
    help="none replays recorded answers and never touches the network; all records anew.",
)
@click.option("--live", is_flag=True, help="Ask the models and record nothing.")
@_gate_rules
def run(paths: tuple[Path, ...], record_mode: Mode, live: bool, **options: Any) -> None:
    """Run the scenarios in files and folders, write a report, and let it through the gate."""
    if live and _given("record_mode"):
        raise click.UsageError("--live records nothing and replays nothing; leave out --record-mode")
    rules = {name: options.pop(name) for name in ("min_accuracy", "max_loops", "max_limit_hits", "max_errors")}
    _run(paths, mode="live" if live else record_mode, rules=rules, **options)


@cli.command()
@_paths
@_selection
def record(paths: tuple[Path, ...], **options: Any) -> None:
    """Record the models' answers anew; a wrong route is recorded like any other, and its verdict shown."""
    _run(paths, mode="all", rules=None, **options)


@cli.command()
@_run_folder
def report(run: Path) -> None:
    """Show a run folder's numbers and write its HTML page again."""
    from chatflow_eval.report import Report

    found = Report.read(run)
    _show(found, None)


@cli.command()
@_run_folder
@_gate_rules
def gate(run: Path, **rules: Any) -> None:
    """Hold a run folder against thresholds; without any, every scenario must pass."""
    from chatflow_eval.report import Report
    from chatflow_eval.writers import console

    found = Report.read(run)
    decision = _gate(rules).decide(found)
    console.show_gate(decision, sys.stdout)
    sys.exit(_exit_code(found, decision, max_errors=rules["max_errors"] or 0))


@cli.command()
@_paths
def validate(paths: tuple[Path, ...]) -> None:
    """Check scenario files, import the agents they name, and check the names they use."""
    scenarios = _load(paths)
    turns = sum(len(scenario.turns) for scenario in scenarios)
    files = len({scenario.file for scenario in scenarios})
    click.echo(f"{_count(len(scenarios), 'scenario')}, {_count(turns, 'turn')} in {_count(files, 'file')}: all good")


@cli.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    import json

    from chatflow_eval.loader import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


def _run(
    paths: tuple[Path, ...],
    *,
    mode: Mode,
    rules: dict[str, Any] | None,
    models: tuple[str, ...],
    repeats: int | None,
    tags: tuple[str, ...],
    ids: tuple[str, ...],
    concurrency: int,
    fail_fast: bool,
    out: Path | None,
) -> NoReturn:
    """Load, plan, run, report, gate."""
    from chatflow_eval import loader, trial
    from chatflow_eval.report import RunFolder

    scenarios = _selected(_load(paths), tags, ids)
    root = loader.find_root(paths[0])
    trials = trial.plan(scenarios, root=root, models=models, repeats=repeats, mode=mode)
    folder = RunFolder.create(out or _new_folder(root), command=sys.argv[1:])
    interrupted = False
    try:
        partial = asyncio.run(_finish(trials, folder, concurrency=concurrency, fail_fast=fail_fast))
    except KeyboardInterrupt:
        interrupted = partial = True
    except BaseException:
        folder.close(partial=True)
        raise
    found = folder.close(partial=partial)
    decision = None if rules is None else _gate(rules).decide(found)
    _show(found, decision)
    if interrupted:
        sys.exit(INTERRUPTED)
    sys.exit(_exit_code(found, decision, max_errors=(rules or {}).get("max_errors") or 0))


async def _finish(trials: Sequence[Trial], folder: RunFolder, *, concurrency: int, fail_fast: bool) -> bool:
    """Keeps every outcome as it comes; true when some trials were not waited for."""
    from chatflow_eval import outcome

    with _progress(len(trials)) as advance:
        async with contextlib.aclosing(outcome.run(trials, concurrency=concurrency)) as outcomes:
            finished = 0
            async for found in outcomes:
                folder.append(found)
                advance(found)
                finished += 1
                if fail_fast and not found.ok:
                    break
    return finished < len(trials)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Outcome], None]]:
    """A progress bar on terminals; nothing in a pipe or in CI."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from collections import Counter

    from tqdm import tqdm

    statuses: Counter[str] = Counter()
    with tqdm(total=total, unit="trial", file=sys.stderr, leave=False, dynamic_ncols=True) as bar:

        def advance(found: Outcome) -> None:
            statuses[found.status] += 1
            bar.set_postfix(statuses, refresh=False)
            bar.update()

        yield advance


def _load(paths: Sequence[Path]) -> tuple[Scenario, ...]:
    """The scenarios, with the names that they use checked against the agents that they test."""
    from chatflow_eval import loader
    from chatflow_eval.targets.names import check_names

    scenarios = loader.load(paths)
    check_names(scenarios)
    return scenarios


def _selected(scenarios: Sequence[Scenario], tags: Sequence[str], ids: Sequence[str]) -> tuple[Scenario, ...]:
    known = {name for scenario in scenarios for name in (scenario.id, f"{scenario.file}::{scenario.id}")}
    for wanted in ids:
        if wanted not in known:
            raise ChatflowEvalError(f"--only {wanted}: no scenario has this id{_nearest(wanted, known)}")
    tagged = {tag for scenario in scenarios for tag in scenario.tags}
    for wanted in tags:
        if wanted not in tagged:
            raise ChatflowEvalError(f"--tag {wanted}: no scenario has this tag{_nearest(wanted, tagged)}")
    selected = tuple(
        scenario
        for scenario in scenarios
        if (not ids or scenario.id in ids or f"{scenario.file}::{scenario.id}" in ids)
        and (not tags or set(tags) & set(scenario.tags))
    )
    if not selected:
        raise ChatflowEvalError("nothing to run: no scenario has both one of the ids and one of the tags")
    return selected


def _nearest(wanted: str, known: set[str]) -> str:
    from rapidfuzz import process

    found = process.extractOne(wanted, sorted(known), score_cutoff=60)
    return f"; did you mean {found[0]!r}?" if found else ""


def _new_folder(root: Path) -> Path:
    name = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    folder, number = root / "reports" / name, 2
    while folder.exists():
        folder, number = root / "reports" / f"{name}-{number}", number + 1
    return folder


def _gate(rules: dict[str, Any]) -> Gate:
    """The gate of the flags; where any is given, errored trials have a ceiling too."""
    from chatflow_eval.gate import Gate

    if any(value is not None for value in rules.values()):
        rules = {**rules, "max_errors": rules["max_errors"] or 0}
    return Gate(**rules)


def _show(found: Report, decision: Decision | None) -> None:
    """The summary to the terminal, the page to the run folder."""
    from chatflow_eval.writers import console, html

    if found.folder is not None:
        html.write(found, found.folder, decision)
    console.show(found, sys.stdout, decision)


def _exit_code(found: Report, decision: Decision | None, *, max_errors: int) -> int:
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


def _given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def main() -> None:
    """The `chatflow-eval` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A console that cannot show a character shows an escape instead of ending the program.
            stream.reconfigure(errors="backslashreplace")
    # What Ctrl-C leaves of a call that litellm had prepared.
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    cli()
