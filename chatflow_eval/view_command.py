"""The click command that serves run folders on loopback: `chatflow-eval view`."""

from __future__ import annotations

import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import click

from chatflow_eval.errors import ChatflowEvalError

HOST, PORT = "127.0.0.1", 7357


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65535),
    default=PORT,
    show_default=True,
    help="0 takes one that is free.",
)
@click.option("--open/--no-open", "open_it", default=False, help="Open the page in a browser.")
def view(folder: Path | None, port: int, open_it: bool) -> None:
    """Serve run folders as web pages, to this machine only.

    All runs with their trend, any two compared, a run that is going on.

    FOLDER holds run folders, or is one; without it, `reports` beside pyproject.toml.
    """
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise ChatflowEvalError(f"view needs {' and '.join(missing)}: pip install 'chatflow-eval[view]'")
    folder = folder or _reports()
    if not folder.is_dir():
        raise ChatflowEvalError(f"{folder}: no such folder; a run makes one, or name the one that holds your runs")
    with _listening(port) as listening:
        url = f"http://{HOST}:{listening.getsockname()[1]}/"
        click.echo(f"{folder}: {url}  (Ctrl-C ends)")
        sys.stdout.flush()
        if open_it:
            click.launch(url)
        _serve(folder, listening)


def _serve(folder: Path, listening: socket.socket) -> None:
    from threading import Event

    import uvicorn

    from chatflow_eval.viewer import create_app

    closing = Event()

    class Server(uvicorn.Server):
        """Ends its streams when it is told to stop, which otherwise would keep it from doing so."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            closing.set()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        create_app(folder, closing=closing),
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=3,
    )
    Server(config).run(sockets=[listening])


def _listening(port: int) -> socket.socket:
    """A socket on loopback that listens already, so that a browser may be sent there."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise ChatflowEvalError(
            f"port {port} cannot be used: {error.strerror}; choose another with --port, or a free one with --port 0"
        ) from None
    return listening


def _reports() -> Path:
    from chatflow_eval import loader

    return loader.find_root(Path.cwd()) / "reports"
