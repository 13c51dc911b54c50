"""`chatflow-eval view`: one line to say where, one line for what is wrong, and Ctrl-C ends it."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import httpx2
import pytest
from click.testing import CliRunner, Result

from chatflow_eval import view_command
from chatflow_eval.cli import cli
from chatflow_eval.report import RunFolder

RunOf = Callable[..., Path]


def view(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["view", *map(str, arguments)])


@contextmanager
def running(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command as a process of its own, and the address that it says."""
    command = [sys.executable, "-m", "chatflow_eval", "view", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            said = process.stdout.readline()
            found = re.search(r"http://\S+/", said)
            assert found, said
            yield process, found[0]
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="another signal there")
def test_it_serves_on_loopback_only_until_ctrl_c_even_while_somebody_watches(tmp_path: Path, a_run: RunOf) -> None:
    a_run(tmp_path / "done")
    going_on = RunFolder.create(tmp_path / "now")
    with running(tmp_path, "--port", "0") as (process, url):
        port = httpx2.URL(url).port
        assert "1 passed" in httpx2.get(url).text
        with httpx2.stream("GET", f"{url}live/now/events", timeout=30) as answer:
            assert next(answer.iter_lines()) == "event: standing"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (130, "", "")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port or 0))
    going_on.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only there every address of 127/8 is this machine's")
def test_no_other_address_is_answered(tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0") as (_, url), pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", httpx2.URL(url).port or 0))


def test_there_is_no_way_to_open_it_to_others() -> None:
    assert {option.name for option in view_command.view.params} == {"folder", "port", "open_it"}


def test_a_port_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = view(tmp_path, "--port", str(port))
    assert result.exit_code == 2
    assert result.output == (
        f"Error: port {port} cannot be used: Address already in use; "
        "choose another with --port, or a free one with --port 0\n"
    )


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_extra_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    result = view(tmp_path)
    assert result.exit_code == 2
    assert result.output == f"Error: view needs {missing}: pip install 'chatflow-eval[view]'\n"
    assert shlex.split(result.output.partition(": pip")[2])[-1] == "chatflow-eval[view]"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = view(tmp_path / "nowhere")
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {tmp_path / 'nowhere'}: no such folder")


def test_the_default_is_where_runs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "reports").mkdir()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    folders = list[Path]()
    monkeypatch.setattr(view_command, "_serve", lambda folder, listening: folders.append(folder))
    assert view("--port", "0").exit_code == 0
    assert folders == [tmp_path / "reports"]


@pytest.mark.parametrize(("flags", "opened"), [((), 0), (("--open",), 1), (("--no-open",), 0)])
def test_a_browser_is_opened_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], opened: int
) -> None:
    urls = list[str]()
    monkeypatch.setattr(view_command, "_serve", lambda folder, listening: None)
    monkeypatch.setattr(click, "launch", urls.append)
    result = view(tmp_path, "--port", "0", *flags)
    assert [url in result.output for url in urls] == [True] * opened
