"""Other projects, each in a virtual environment of its own beside this file, and what they cost in the same run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from functools import cache
from pathlib import Path

from benchmarks.measure import HERE, ChildFailed, Options, Row, child

VERSIONS = {
    "pydantic-evals": "pydantic-evals==2.62.0",
    "deepeval": "deepeval==4.3.1",
    "google-adk": "google-adk[eval]==2.13.0",
    "inspect-ai": "inspect-ai==0.3.285",
}
"""The peers of which something is measured, as pip takes them."""

PATIENCE = 300
"""Seconds that an installation may take."""


class NotInstalled(Exception):
    """Why there is no environment of a peer's."""


def ours(command: str) -> Path:
    """A command of the environment that this runs in."""
    return Path(sys.executable).with_name(command)


def row(peer: str, what: str, options: Options, *, count: int, task: str = "trials", of: int | None = None) -> Row:
    """What `peer_scripts/<peer>_<task>.py` costs for `count`; a slow one runs `of` them, and is scaled."""
    script = HERE / "peer_scripts" / f"{peer.replace('-', '_')}_{task}.py"
    scaled = f"; {of} run, and scaled" if of else ""

    def values(folder: Path) -> tuple[float, ...]:
        samples = [_child(folder / "python", "-P", script, str(of or count)) for _ in options.times(3)]
        return tuple(told["run"] * count / (of or count) for _, told in samples)

    return _row(peer, f"{peer}, {what}{scaled}", options, values)


def command(peer: str, what: str, options: Options, *words: str) -> Row:
    """The CPU seconds of a whole command in a peer's environment."""

    def values(folder: Path) -> tuple[float, ...]:
        return tuple(_child(folder / words[0], *words[1:])[0] for _ in options.times(5))

    return _row(peer, what, options, values)


def _child(*words: str | Path) -> tuple[float, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:  # some leave files where they run
        sample = child(*words, cwd=Path(folder))
    return sample.cpu, dict(sample.told)


def _row(peer: str, what: str, options: Options, values: Callable[[Path], tuple[float, ...]]) -> Row:
    if not options.peers:
        return Row(what=what, unit="s CPU", note="left out")
    found = _installed(peer)
    if isinstance(found, NotInstalled):
        return Row(what=what, unit="s CPU", note=f"not installed: {found}")
    try:
        return Row(what=what, unit="s CPU", values=values(found))
    except ChildFailed as error:
        return Row(what=what, unit="s CPU", note=f"failed: {str(error).strip().splitlines()[-1][:120]}")


@cache
def _installed(peer: str) -> Path | NotInstalled:
    """The folder of the commands of a peer's environment, which is made when first asked for."""
    folder = HERE / ".venv-peers" / peer
    done = folder / VERSIONS[peer]
    if done.exists():
        return folder / "bin"
    print(f"installing {VERSIONS[peer]} ...", file=sys.stderr)
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run([*pip, VERSIONS[peer]], check=True, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return NotInstalled(f"pip took more than {PATIENCE} s")
    except subprocess.CalledProcessError as error:
        return NotInstalled(error.stderr.strip().rpartition("\n")[2][:120])
    done.touch()
    return folder / "bin"
