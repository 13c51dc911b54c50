"""Other projects, each in a virtual environment of its own beside this file, and what they cost in the same run."""

from __future__ import annotations

import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

from benchmarks.measure import HERE, ChildFailed, Options, Row, child

VERSIONS = {
    "pydantic-evals": "pydantic-evals==2.62.0",
    "deepeval": "deepeval==4.3.1",
    "inspect-ai": "inspect-ai==0.3.285",
    "google-adk": "google-adk[eval]==2.13.0",
}
"""The peers of which something is measured, as pip takes them."""

PATIENCE = 300
"""Seconds that an installation may take."""


class NotInstalled(Exception):
    """Why a peer could not be installed."""


def ours(command: str) -> Path:
    """A command of the environment that this runs in."""
    return Path(sys.executable).with_name(command)


def row(peer: str, what: str, task: str, options: Options, *arguments: object) -> Row:
    """What a peer's script `peers/<peer>_<task>.py` tells, or why it tells nothing."""
    name = f"{peer}, {what}"
    if not options.peers:
        return Row(what=name, unit="s CPU", note="left out")
    try:
        python = installed(peer) / "python"
        script = HERE / "peers" / f"{peer.replace('-', '_')}_{task}.py"
        samples = [child(python, "-P", script, *map(str, arguments)) for _ in options.times(3)]
    except NotInstalled as error:
        return Row(what=name, unit="s CPU", note=f"not installed: {error}")
    except ChildFailed as error:
        return Row(what=name, unit="s CPU", note=f"failed: {str(error).strip().splitlines()[-1][:120]}")
    return Row(what=name, unit="s CPU", values=tuple(sample.told["run"] for sample in samples))


def command(peer: str, what: str, options: Options, *words: str) -> Row:
    """The CPU seconds of a whole command in a peer's environment."""
    if not options.peers:
        return Row(what=what, unit="s CPU", note="left out")
    try:
        folder = installed(peer)
        samples = [child(folder / words[0], *words[1:]) for _ in options.times(5)]
    except NotInstalled as error:
        return Row(what=what, unit="s CPU", note=f"not installed: {error}")
    except ChildFailed as error:
        return Row(what=what, unit="s CPU", note=f"failed: {str(error).strip().splitlines()[-1][:120]}")
    return Row(what=what, unit="s CPU", values=tuple(sample.cpu for sample in samples))


@cache
def installed(peer: str) -> Path:
    """The folder of the commands of a peer's environment, which is made when first asked for.

    Raises:
        NotInstalled: pip failed, or took too long.
    """
    folder = HERE / ".venv-peers" / peer
    done = folder / VERSIONS[peer]
    if not done.exists():
        print(f"installing {VERSIONS[peer]} ...", file=sys.stderr)
        venv.create(folder, clear=True, with_pip=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            subprocess.run([*pip, VERSIONS[peer]], check=True, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise NotInstalled(f"pip took more than {PATIENCE} s") from None
        except subprocess.CalledProcessError as error:
            raise NotInstalled(error.stderr.strip().splitlines()[-1][:120]) from None
        done.touch()
    return folder / "bin"
