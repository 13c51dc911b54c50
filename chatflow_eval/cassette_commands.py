"""click commands over recordings: `chatflow-eval cassettes ls | show | diff | verify | stale | prune`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from chatflow_eval.conclusion import GATE_CLOSED, PASSED
from chatflow_eval.execution import load, select
from chatflow_eval.options import CHOICE, PATHS
from chatflow_eval.quantities import counted

_folders = click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
_FOUND = 1
"""Exit code where something was looked for and found."""


@click.group()
def cassettes() -> None:
    """Look after recordings: what is there, is it whole, does it still match, is it used."""


@cassettes.command("ls")
@_folders
def list_(paths: tuple[Path, ...]) -> None:
    """List recordings, with their trials, exchanges and sizes; all of the project's without PATHS."""
    from chatflow_eval import shelf
    from chatflow_eval.scenario import REFERENCE

    rows = [("exchanges", "kB", "recorded", "of", "in")]
    for path in shelf.files(paths or _all()):
        size = f"{path.stat().st_size / 1000:.1f}"
        one = shelf.held(path).cassette
        if one is None:
            rows.append(("damaged", size, "", "", _shown(path)))
            continue
        origin = one.origin
        of = "unknown"
        if origin is not None:
            on = "" if origin.target == REFERENCE else f"{origin.target}, "
            of = f"{origin.file}::{origin.scenario}, {on}{origin.model}, repeat {origin.repeat}"
        rows.append((str(len(one.exchanges)), size, origin.recorded[:10] if origin else "", of, _shown(path)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for exchanges, size, *rest in rows:
        texts = (text.ljust(width) for text, width in zip(rest, widths[2:], strict=True))
        click.echo("  ".join((exchanges.rjust(widths[0]), size.rjust(widths[1]), *texts)).rstrip())


@cassettes.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--whole", is_flag=True, help="With everything that an exchange repeats of earlier ones.")
def show(paths: tuple[Path, ...], whole: bool) -> None:
    """Show recordings as conversations."""
    from chatflow_eval import exchanges, shelf
    from chatflow_eval.cassette import read

    click.echo("\n".join(exchanges.lay_out(read(path), whole=whole) for path in shelf.files(paths)), nl=False)


@cassettes.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
def diff(old: Path, new: Path) -> None:
    """Show what differs between two recordings; exit code 1 where anything does."""
    from chatflow_eval import exchanges
    from chatflow_eval.cassette import read

    found = exchanges.compare(read(old), read(new))
    click.echo(found, nl=False)
    sys.exit(_FOUND if found else 0)


@cassettes.command()
@_folders
@click.option(
    "--accept", is_flag=True, help="Take files that were edited, or written by an older version, as they are now."
)
def verify(paths: tuple[Path, ...], accept: bool) -> None:
    """Check that recordings are whole and hold no secret; exit code 1 where one is not."""
    from chatflow_eval import shelf
    from chatflow_eval.cassette import read, write

    found = shelf.files(paths or _all())
    if accept:
        for path in found:
            write(read(path, edited=True))
    problems = [each.problem for each in map(shelf.held, found) if each.problem is not None]
    for problem in problems:
        click.echo(problem)
    click.echo(f"{counted(len(found), 'recording')}: {len(problems) or 'no'} with problems")
    sys.exit(_FOUND if problems else 0)


@cassettes.command()
@PATHS
@CHOICE
def stale(paths: tuple[Path, ...], tags: tuple[str, ...], ids: tuple[str, ...], **options: Any) -> None:
    """Find recordings that no longer match, by replaying them; exit code 1 where there are any."""
    from chatflow_eval import loader, shelf, trial

    frameworks = options["frameworks"]
    scenarios = select(load(paths, offline=True, frameworks=frameworks), tags, ids)
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


@cassettes.command()
@_folders
@click.option("--yes", is_flag=True, help="Remove them, which is otherwise only listed.")
def prune(paths: tuple[Path, ...], yes: bool) -> None:
    """Remove recordings that no scenario and no test looks for any more."""
    from chatflow_eval import loader, shelf

    found = shelf.files(paths or _all())
    gone = list(shelf.unused(loader.find_root(Path.cwd()), found))
    for path, why in gone:
        if yes:
            path.unlink()
        click.echo(f"{'removed' if yes else 'unused'}: {_shown(path)}: {why}")
    kept = len(found) - len(gone)
    hint = "" if yes or not gone else "; remove them with --yes"
    click.echo(f"{len(gone)} unused, {kept} kept{hint}")


def _all() -> tuple[Path, ...]:
    from chatflow_eval import loader

    folder = loader.find_root(Path.cwd()) / "cassettes"
    return (folder,) if folder.is_dir() else ()


def _shown(path: Path) -> str:
    from chatflow_eval.cassette import shown

    return shown(path)
