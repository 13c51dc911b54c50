"""No way out while replaying: a socket that a trial opens fails the trial and says where.

Python's own sockets are watched, which all of its HTTP clients use; what a library does in C or Rust is not seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

import chatflow_runtime.types as runtime_types
from chatflow_eval.errors import CassetteMissing, NetworkRefused
from chatflow_eval.tape import ReplayTape, current, playing

_ours: ContextVar[bool] = ContextVar("chatflow_eval_guard_ours", default=False)
"""True while the interpreter makes a pair of sockets out of a connection to itself, as it does on Windows."""


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Watches what trials in replay connect to; any number may overlap, and the last one out leaves no trace."""
    _watch.hold()
    try:
        yield
    finally:
        _watch.release()


@contextlib.contextmanager
def offline(allow_hosts: Sequence[str] = ()) -> Iterator[None]:
    """Within it, and outside of any trial, nothing goes out but to these hosts."""
    nothing = CassetteMissing("nothing was recorded outside of trials")
    with watching(), playing(ReplayTape(nothing, tuple(allow_hosts))):
        yield


def is_watching() -> bool:
    """Whether some trial may be replaying now."""
    return _watch.holders > 0


def refuse(host: str, port: object = None) -> NetworkRefused:
    """The error for what would go out to this address from here; it fails the context's trial, where there is one."""
    tape = current()
    where = f"{host}:{port}" if port is not None else host
    place = _place(sys._getframe(1))
    if isinstance(tape, ReplayTape):
        who = f"agent {tape.agent or 'unknown'}, turn {tape.turn or 'unknown'}"
        error = NetworkRefused(
            f"{who}: {place} connects to {where} while replaying; nothing was recorded for it; "
            f"to allow it, say `allow_hosts: [{host}]`"
        )
        tape.fail(error)
        return error
    return NetworkRefused(
        f"{place} connects to {where} outside of any trial while trials are replayed; threads of a trial are "
        "started with its context (asyncio.to_thread, contextvars.copy_context().run)"
    )


class _Watch:
    def __init__(self) -> None:
        self.holders = 0
        self.resolved: dict[str, set[str]] = {}
        """Names that addresses were looked up for."""
        self._lock = threading.Lock()
        self._installed = contextlib.ExitStack()
        self._before: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads that were there before anything was replayed, and are no trial's."""

    def hold(self) -> None:
        with self._lock:
            if self.holders == 0:
                self._before = weakref.WeakSet(threading.enumerate())
                self._install()
            self.holders += 1

    def release(self) -> None:
        with self._lock:
            self.holders -= 1
            if self.holders == 0:
                self._installed.close()
                self.resolved.clear()

    def lets_out(self, host: str, port: int | None) -> bool:
        # Without holders somebody who wrapped these functions later keeps them in use.
        if _ours.get() or not self.holders:
            return True
        names = {host, *self.resolved.get(host, ())}
        tape = current()
        if tape is None:
            return threading.current_thread() in self._before
        return not isinstance(tape, ReplayTape) or any(tape.lets_out(name, port) for name in names)

    def _install(self) -> None:
        with contextlib.ExitStack() as stack:
            for name in ("connect", "connect_ex"):
                _replace(stack, socket.socket, name, self._connecting)
            _replace(stack, socket.socket, "sendto", self._sending)
            _replace(stack, socket, "getaddrinfo", self._resolving)
            _replace(stack, asyncio.BaseEventLoop, "getaddrinfo", self._resolving_later)
            _replace(stack, socket, "socketpair", _pairing)
            self._installed = stack.pop_all()

    def _connecting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def connect(sock: socket.socket, address: Any) -> Any:
            try:
                self._check(address)
            except NetworkRefused:
                sock.close()  # whoever opened it expects errors of the system, and closes it after those alone
                raise
            return real(sock, address)

        return connect

    def _sending(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def sendto(sock: socket.socket, data: Any, *where: Any) -> Any:
            self._check(where[-1])
            return real(sock, data, *where)

        return sendto

    def _resolving(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def getaddrinfo(host: Any, port: Any, *rest: Any, **named: Any) -> Any:
            # Threads without a context look names up for event loops, which were asked before.
            if current() is not None and host:
                self._check((host, port))
            found = real(host, port, *rest, **named)
            for *_, address in found:
                self.resolved.setdefault(str(address[0]), set()).add(_text(host))
            return found

        return getaddrinfo

    def _resolving_later(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def getaddrinfo(loop: asyncio.BaseEventLoop, host: Any, port: Any, **named: Any) -> Any:
            if host:
                self._check((host, port))
            return real(loop, host, port, **named)

        return getaddrinfo

    def _check(self, address: Any) -> None:
        host, port = (address[0], address[1]) if isinstance(address, tuple) else (address, None)
        if not self.lets_out(_text(host), _number(port)):
            raise refuse(_text(host), port)


_watch = _Watch()


def _pairing(real: Callable[..., Any]) -> Callable[..., Any]:
    def socketpair(*args: Any, **named: Any) -> Any:
        token = _ours.set(True)
        try:
            return real(*args, **named)
        finally:
            _ours.reset(token)

    return socketpair


def _replace(
    stack: contextlib.ExitStack, owner: Any, name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Puts a function around an attribute until the stack closes, unless somebody else has put theirs around it."""
    inherited = name not in vars(owner)
    real = getattr(owner, name)
    ours = functools.wraps(real)(wrapped(real))
    setattr(owner, name, ours)

    def restore() -> None:
        if vars(owner).get(name) is not ours:
            return
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, real)

    stack.callback(restore)


def _text(host: Any) -> str:
    return host.decode("utf-8", "replace") if isinstance(host, bytes) else str(host or "")


def _number(port: Any) -> int | None:
    return port if isinstance(port, int) else None


def _place(frame: FrameType | None) -> str:
    """`file:line in function` of the user's code that led here; of whatever did where none of it is on the stack."""
    frames = []
    while frame is not None:
        frames.append((Path(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    for libraries in (_libraries(), _libraries()[:1]):
        for file, line, name in frames:
            if file != Path(__file__) and not any(file.is_relative_to(library) for library in libraries):
                return f"{file}:{line} in {name}"
    return "something"


@functools.cache
def _libraries() -> tuple[Path, ...]:
    """Folders of code that is not the user's: Python's first, then installed packages and this one."""
    paths = sysconfig.get_paths()
    packages = (Path(__file__).parent, Path(runtime_types.__file__).parent)
    return (Path(paths["stdlib"]), Path(paths["purelib"]), Path(paths["platlib"]), *packages)
