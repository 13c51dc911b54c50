"""click commands: parse, call, print. The body of `run` is the life of a scenario: load, plan, run, report, gate."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import click

from chatflow_eval import __version__
from chatflow_eval.cassette_commands import cassettes
from chatflow_eval.errors import ChatflowEvalError
from chatflow_eval.quantities import counted
from chatflow_eval.view_command import view

if TYPE_CHECKING:
    from chatflow_eval.gate import Decision
    from chatflow_eval.outcome import Outcome
    from chatflow_eval.report import Report, RunFolder
    from chatflow_eval.scenario import Framework, Scenario
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


class _Keyed(click.types.StringParamType):
    """A name and a value, as in `BillingAgent=0.9`; the name may hold `=` itself."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self._value = name, value

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        key, found, of_it = str(value).rpartition("=")
        if not found or not key:
            self.fail(f"expected {self.name}, not {value!r}", param, ctx)
        return key, self._value.convert(of_it, param, ctx)


_paths = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
_run_folder = click.argument("run", type=click.Path(path_type=Path))


def _all(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    def apply(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


_choice = _all(
    click.option(
        "--model",
        "models",
        multiple=True,
        metavar="MODEL",
        help="Who answers for every agent: a litellm model's name, or `keyword`, the built-in baseline router "
        "(no language model). Repeatable.",
    ),
    click.option(
        "--framework",
        "frameworks",
        multiple=True,
        type=click.Choice(["chatflow", "chatflow_agent"]),
        help="What the agents run on: the reference runtime, or the published package chatflow-agent. Repeatable.",
    ),
    click.option("--repeats", type=click.IntRange(min=1), help="Trials per scenario and model."),
    click.option("--tag", "tags", multiple=True, help="Only scenarios with this tag. Repeatable."),
    click.option(
        "--only", "ids", multiple=True, metavar="ID", help="Only the scenario with this id, or file::id. Repeatable."
    ),
)

_selection = _all(
    _choice,
    click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="Trials at once."),
    click.option(
        "--retries",
        type=click.IntRange(min=0),
        default=2,
        show_default=True,
        help="Further calls of a model after one that failed for a reason that may pass: 408, 429, 5xx, a broken "
        "connection, a timeout.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=600,
        show_default=True,
        metavar="SECONDS",
        help="For one call of a model.",
    ),
    click.option("--fail-fast", is_flag=True, help="Stop at the first trial that is not as expected."),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="The run folder.  [default: reports/<time> beside pyproject.toml]",
    ),
)

_COUNT = click.IntRange(min=0)

_gate_rules = _all(
    click.option("--min-accuracy", type=_Rate(), help="Routing accuracy at least, between 0 and 1."),
    click.option(
        "--min-agent-accuracy",
        type=_Keyed("AGENT=RATE", _Rate()),
        multiple=True,
        metavar="AGENT=RATE",
        help="Routing accuracy at least of the turns that may end at an agent. Repeatable.",
    ),
    click.option(
        "--min-tag-accuracy",
        type=_Keyed("TAG=RATE", _Rate()),
        multiple=True,
        metavar="TAG=RATE",
        help="Routing accuracy at least of the scenarios with a tag. Repeatable.",
    ),
    click.option("--max-loops", type=_COUNT, help="Loops at most."),
    click.option("--max-limit-hits", type=_COUNT, help="Limit hits at most."),
    click.option(
        "--max-incident",
        type=_Keyed("KIND=N", _COUNT),
        multiple=True,
        metavar="KIND=N",
        help="Incidents of a kind at most. Repeatable.",
    ),
    click.option("--max-errors", type=_COUNT, help="Errored trials at most; more end with exit code 3.  [default: 0]"),
    click.option(
        "--max-cost", type=click.FloatRange(min=0), metavar="USD", help="Cost at most; an unknown cost is too much."
    ),
    click.option(
        "--must-pass",
        multiple=True,
        metavar="TAG|ID",
        help="Every trial of the scenarios with this tag or id passes. Repeatable.",
    ),
    click.option(
        "--baseline",
        type=click.Path(path_type=Path),
        metavar="RUN",
        help="A run folder to compare with: no scenario may vanish, nor routing accuracy be lost.",
    ),
    click.option("--max-regression", type=_Rate(), help="Routing accuracy lost at most.  [default: 0]"),
    click.option("--significant", is_flag=True, help="A loss counts only when the exact paired test finds one."),
)

_RULES = (
    "min_accuracy",
    "min_agent_accuracy",
    "min_tag_accuracy",
    "max_loops",
    "max_limit_hits",
    "max_incident",
    "max_errors",
    "max_cost",
    "must_pass",
    "baseline",
    "max_regression",
    "significant",
)
"""The names of the gate's options."""

_OUTPUTS = ("junit", "summary", "github")
"""The names of the options that say what else to write."""

_outputs = _all(
    click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML, too."),
    click.option("--summary", type=click.Path(path_type=Path), metavar="FILE", help="Write a Markdown summary, too."),
    click.option(
        "--github",
        is_flag=True,
        help="In GitHub Actions: annotate the scenarios' files, and add the summary to the job's.",
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
@_gate_rules
@_outputs
def run(paths: tuple[Path, ...], record_mode: Mode, live: bool, **options: Any) -> None:
    """Run the scenarios in files and folders, write a report, and let it through the gate."""
    if live and _given("record_mode"):
        raise click.UsageError("--live records nothing and replays nothing; leave out --record-mode")
    if options["resume"] is not None and options["out"] is not None:
        raise click.UsageError("--resume goes on in the run's own folder; leave out --out")
    rules = {name: options.pop(name) for name in _RULES}
    outputs = {name: options.pop(name) for name in _OUTPUTS}
    _run(paths, mode="live" if live else record_mode, rules=rules, outputs=outputs, **options)


@cli.command()
@_paths
@_selection
@click.option("--only-stale", is_flag=True, help="Only what was recorded and no longer matches.")
@click.option("--missing", "only_missing", is_flag=True, help="Only what was not recorded yet.")
@click.option("--yaml", "as_yaml", is_flag=True, help="As YAML, which is slower to replay; once YAML, it stays so.")
def record(paths: tuple[Path, ...], **options: Any) -> None:
    """Record the models' answers anew; a wrong route is recorded like any other, and its verdict shown."""
    _run(paths, mode="all", rules=None, **options)


@cassettes.command()
@_paths
@_choice
def stale(paths: tuple[Path, ...], tags: tuple[str, ...], ids: tuple[str, ...], **options: Any) -> None:
    """Find recordings that no longer match, by replaying them; exit code 1 where there are any."""
    from chatflow_eval import loader, shelf, trial

    frameworks = options["frameworks"]
    scenarios = _selected(_load(paths, offline=True, frameworks=frameworks), tags, ids)
    trials = trial.plan(scenarios, root=loader.find_root(paths[0]), **options)
    found = asyncio.run(shelf.check(trials))
    edits: dict[str, list[str]] = {}
    for _, outcome in (*found.stale, *found.missing, *found.damaged):
        assert outcome.failure is not None
        edits.setdefault(outcome.failure.edit or outcome.failure.message, []).append(outcome.scenario)
    for edit, names in edits.items():
        click.echo(f"{edit}\n  {counted(len(names), 'trial')}: {', '.join(dict.fromkeys(names))}")
    counts = f"{len(found.stale)} stale, {len(found.missing)} not recorded, {len(found.damaged)} damaged"
    click.echo(f"{counted(len(trials), 'trial')}: {counts}")
    sys.exit(GATE_CLOSED if edits else PASSED)


cli.add_command(cassettes)
cli.add_command(view)


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
@_outputs
def gate(run: Path, junit: Path | None, summary: Path | None, github: bool, **rules: Any) -> None:
    """Hold a run folder against thresholds and a baseline; without any, every scenario must pass."""
    from chatflow_eval.report import Report
    from chatflow_eval.writers import console, html

    found, root = Report.read(run), _root()
    decision, max_errors = _decide(found, rules, root)
    console.show_gate(decision, sys.stdout)
    if decision.comparison is not None:
        html.write(found, run, decision)
    _write(found, decision, root, junit=junit, summary=summary, github=github)
    sys.exit(_exit_code(found, decision, max_errors=max_errors))


@cli.command()
@click.argument("base", type=click.Path(path_type=Path))
@_run_folder
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
    from chatflow_eval.report import Report
    from chatflow_eval.writers import console, html

    found = Report.read(run)
    comparison = compare(Report.read(base), found)
    console.show_comparison(comparison, sys.stdout)
    if page is not None:
        click.echo(f"Report: {html.save(found, page, comparison=comparison)}")


@cli.command()
@_run_folder
@click.option("--format", "form", type=click.Choice(["csv", "parquet", "jsonl"]), default="csv", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="The folder to write to.  [default: RUN/export]")
def export(run: Path, form: Any, out: Path | None) -> None:
    """Write a run folder's trials, turns and hops as tables."""
    from chatflow_eval.report import Report
    from chatflow_eval.writers import export

    for path in export.write(Report.read(run), out or run / "export", form):
        click.echo(path)


@cli.command()
@_run_folder
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The new run folder.  [default: as for run]")
@_gate_rules
@_outputs
def rescore(run: Path, paths: tuple[Path, ...], out: Path | None, **options: Any) -> None:
    """Judge a run's traces by what its scenario files, or those in PATHS, expect now; no model is asked."""
    from chatflow_eval.outcome import rejudge
    from chatflow_eval.report import Report, RunFolder

    old, root = Report.read(run), _root()
    files = paths or _files_of(old, root)
    if not files:
        raise ChatflowEvalError(f"{run}: none of its scenario files is below {root}; name them")
    scenarios = _load(files)
    folder = RunFolder.create(out or _new_folder(root), command=sys.argv[1:])
    lost = 0
    for outcome in rejudge(old.outcomes, scenarios):
        if outcome is None:
            lost += 1
        else:
            folder.append(outcome)
    found = folder.close(partial=old.run.partial)
    if lost:
        click.echo(f"{counted(lost, 'trial')} left out: no scenario has their id and says the same words", err=True)
    outputs = {name: options.pop(name) for name in _OUTPUTS}
    sys.exit(_conclude(found, options, outputs, root))


@cli.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As JSON, for other programs.")
def history(folders: tuple[Path, ...], as_json: bool) -> None:
    """Show accuracy and incidents of one run after the other, of run folders or of the folder that holds them."""
    import json
    from dataclasses import asdict

    from chatflow_eval.history import past_runs
    from chatflow_eval.writers import console

    runs = past_runs(folders or (_root() / "reports",))
    if not runs:
        raise ChatflowEvalError(f"no run folder in {', '.join(map(str, folders)) or _root() / 'reports'}")
    if as_json:
        click.echo(json.dumps([asdict(each) for each in runs], ensure_ascii=False, indent=1, default=str))
    else:
        console.show_history(runs, sys.stdout)


@cli.command()
@_paths
def validate(paths: tuple[Path, ...]) -> None:
    """Check scenario files, import the agents they name, and check the names they use."""
    scenarios = _load(paths)
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

    scenarios = _selected(_load(paths, offline=mode in ("none", "once"), frameworks=frameworks), tags, ids)
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
        trials = _unserved(trials, stale=only_stale, missing=only_missing)
    if as_yaml:
        trials = tuple(replace(trial, cassette=trial.cassette.with_suffix(".yaml")) for trial in trials)
    if resume is None:
        folder = RunFolder.create(out or _new_folder(root), command=sys.argv[1:], planned=len(trials))
    else:
        folder = RunFolder.resume(resume)
        trials = _left(trials, folder)
    interrupted, recordings = False, _Recordings()
    try:
        keep = _keeping(folder, recordings)
        partial = asyncio.run(_finish(trials, keep, concurrency=concurrency, fail_fast=fail_fast))
    except KeyboardInterrupt:
        interrupted = partial = True
    except BaseException:
        folder.close(partial=True)
        raise
    found = folder.close(partial=partial)
    code = _conclude(found, rules, outputs or {}, root, recordings.notes())
    sys.exit(INTERRUPTED if interrupted else code)


def _left(trials: Sequence[Trial], folder: RunFolder) -> tuple[Trial, ...]:
    """The trials that a run that was broken off has not finished."""
    from chatflow_eval.outcome import key_of

    planned = {key_of(trial): trial for trial in trials}
    strange = folder.finished - planned.keys()
    if strange:
        folder.close(partial=True)
        file, scenario, *_ = min(strange)
        started = f"; it was started with: chatflow-eval {shlex.join(folder.run.command)}" if folder.run.command else ""
        raise ChatflowEvalError(f"{folder.path} holds {file}::{scenario}, which is not among these trials{started}")
    return tuple(trial for key, trial in planned.items() if key not in folder.finished)


def _unserved(trials: Sequence[Trial], *, stale: bool, missing: bool) -> tuple[Trial, ...]:
    """The trials whose recordings are stale or missing; says so and ends where there are none."""
    from chatflow_eval import shelf
    from chatflow_eval.outcome import key_of

    found = asyncio.run(shelf.check([replace(trial, mode="none") for trial in trials]))
    chosen = [*(found.stale if stale else ()), *(found.missing if missing else ())]
    keys = {outcome.key for _, outcome in chosen}
    if not keys:
        words = " or ".join(word for word, asked in (("stale", stale), ("missing", missing)) if asked)
        click.echo(f"{counted(len(trials), 'trial')}: none is {words}")
        sys.exit(PASSED)
    return tuple(trial for trial in trials if key_of(trial) in keys)


def _keeping(folder: RunFolder, recordings: _Recordings) -> Callable[[Outcome], None]:
    def keep(outcome: Outcome) -> None:
        folder.append(outcome)
        recordings.add(outcome)

    return keep


class _Recordings:
    """What is to be said of recordings when a run is over."""

    def __init__(self) -> None:
        self._parted: list[str] = []
        self._ignored: dict[tuple[str, ...], int] = {}

    def add(self, outcome: Outcome) -> None:
        if outcome.parted is not None:
            self._parted.append(f"{outcome.scenario}: {outcome.parted}")
        if outcome.ignored:
            self._ignored[outcome.ignored] = self._ignored.get(outcome.ignored, 0) + 1

    def notes(self) -> list[str]:
        notes = []
        if self._parted:
            notes.append(f"Live from where the recording did not match ({counted(len(self._parted), 'trial')}):")
            notes += [f"  {where}" for where in self._parted[:_SHOWN]]
            if len(self._parted) > _SHOWN:
                notes.append(f"  ... and {len(self._parted) - _SHOWN} more")
        for rules, count in self._ignored.items():
            trials = counted(count, "trial")
            notes.append(f"Ignored where requests differ from recordings ({trials}): {', '.join(rules)}")
        return notes


_SHOWN = 5
"""Trials of which it is told where they left their recordings."""


async def _finish(
    trials: Sequence[Trial], keep: Callable[[Outcome], None], *, concurrency: int, fail_fast: bool
) -> bool:
    """Keeps every outcome as it comes; true when some trials were not waited for."""
    from chatflow_eval import outcome

    with _progress(len(trials)) as advance:
        async with contextlib.aclosing(outcome.run(trials, concurrency=concurrency)) as outcomes:
            finished = 0
            async for found in outcomes:
                keep(found)
                advance(found)
                finished += 1
                if fail_fast and not found.ok:
                    break
    return finished < len(trials)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Outcome], None]]:
    """A progress bar on terminals; nothing in a pipe or in CI."""
    if not sys.stderr.isatty() or os.environ.get("CI") or os.environ.get("TERM") == "dumb":
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


def _load(
    paths: Sequence[Path], *, offline: bool = False, frameworks: Sequence[Framework] = ()
) -> tuple[Scenario, ...]:
    """The scenarios, with the names that they use checked against the agents that they test."""
    from chatflow_eval import guard, loader
    from chatflow_eval.targets.names import check_names

    scenarios = loader.load(paths)
    hosts = {host for scenario in scenarios for host in scenario.allow_hosts}
    with guard.offline(sorted(hosts)) if offline else contextlib.nullcontext():
        check_names(scenarios, frameworks)
    return scenarios


def _selected(scenarios: Sequence[Scenario], tags: Sequence[str], ids: Sequence[str]) -> tuple[Scenario, ...]:
    from chatflow_eval.fields import suggestion

    known = dict.fromkeys(
        [*(scenario.id for scenario in scenarios), *(f"{each.file}::{each.id}" for each in scenarios)]
    )
    for wanted in ids:
        if wanted not in known:
            raise ChatflowEvalError(f"--only {wanted}: no scenario has this id{suggestion(wanted, known)}")
    tagged = dict.fromkeys(tag for scenario in scenarios for tag in scenario.tags)
    for wanted in tags:
        if wanted not in tagged:
            raise ChatflowEvalError(f"--tag {wanted}: no scenario has this tag{suggestion(wanted, tagged)}")
    selected = tuple(
        scenario
        for scenario in scenarios
        if (not ids or scenario.id in ids or f"{scenario.file}::{scenario.id}" in ids)
        and (not tags or set(tags) & set(scenario.tags))
    )
    if not selected:
        raise ChatflowEvalError("nothing to run: no scenario has both one of the ids and one of the tags")
    return selected


def _new_folder(root: Path) -> Path:
    name = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    folder, number = root / "reports" / name, 2
    while folder.exists():
        folder, number = root / "reports" / f"{name}-{number}", number + 1
    return folder


def _decide(found: Report, rules: dict[str, Any], root: Path) -> tuple[Decision, int]:
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


def _conclude(
    found: Report, rules: dict[str, Any] | None, outputs: dict[str, Any], root: Path, notes: Sequence[str] = ()
) -> int:
    """Decides, shows and writes a finished run; gives the exit code. `rules` are `None` where nothing is decided."""
    decision, max_errors = (None, 0) if rules is None else _decide(found, rules, root)
    _show(found, decision, notes)
    _write(found, decision, root, **outputs)
    return _exit_code(found, decision, max_errors=max_errors)


def _write(
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


def _root() -> Path:
    from chatflow_eval import loader

    return loader.find_root(Path.cwd())


def _files_of(found: Report, root: Path) -> tuple[Path, ...]:
    """The scenario files of a run, as far as they are still there."""
    files = (root / row.name for row in found.metrics.files)
    return tuple(file for file in files if file.is_file())


def _show(found: Report, decision: Decision | None, notes: Sequence[str] = ()) -> None:
    """The summary to the terminal, the page to the run folder."""
    from chatflow_eval.writers import console, html

    if found.folder is not None:
        html.write(found, found.folder, decision)
    console.show(found, sys.stdout, decision, notes)


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


def main() -> None:
    """The `chatflow-eval` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A console that cannot show a character shows an escape instead of ending the program.
            stream.reconfigure(errors="backslashreplace")
    # What Ctrl-C leaves of a call that litellm had prepared.
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    cli()
