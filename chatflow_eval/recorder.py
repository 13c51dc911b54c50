"""One interception of HTTP for the whole process (vcrpy's), with the trial's tape chosen by context.

vcrpy's patches are global and a cassette is bound into them, so cassettes of overlapping trials would mix. Here the
patches are installed once, around an object that forwards to whatever tape the current context holds. Cassettes that
tests and tools open with vcrpy themselves join it: each is heard where it was opened, and mixes with nobody else's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from chatflow_eval import guard
from chatflow_eval.cassette import Exchange, exchange_of, json_or_text
from chatflow_eval.errors import CassetteError
from chatflow_eval.player import Asked
from chatflow_eval.scrub import PLACEHOLDER
from chatflow_eval.tape import Tape, current, is_engine_asking

KEYS = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "MISTRAL_API_KEY",
    "GROQ_API_KEY",
    "OPENROUTER_API_KEY",
    "DEEPSEEK_API_KEY",
)
"""Environment variables that clients look for, and will not send anything without."""


@contextlib.contextmanager
def interception(*, replaying: bool = False) -> Iterator[None]:
    """Holds vcrpy's patches in place; any number may overlap, in any order, and the last one out removes them.

    While `replaying`, clients that insist on a key before they send anything find a placeholder in the environment.
    """
    with _patches.held(), _keys.held() if replaying else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Within it, patches that somebody needed stay in place for whoever needs them next."""
    with _patches.kept():
        yield


def renew() -> None:
    """Puts the patches back where they are held and somebody who patched before took them away on leaving."""
    _patches.renew()


class _Shared:
    """Something done to the process for as long as anybody needs it."""

    def __init__(
        self, install: Callable[[], contextlib.ExitStack], is_whole: Callable[[], bool] = lambda: True
    ) -> None:
        self._install = install
        self._lock = threading.Lock()
        self._holders = 0
        self._keepers = 0
        self._installed: contextlib.ExitStack | None = None
        self._is_whole = is_whole

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within it, it is done."""
        with self._lock:
            self._put()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                self._remove()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Within it, what was done for somebody stays done."""
        with self._lock:
            self._keepers += 1
        try:
            yield
        finally:
            with self._lock:
                self._keepers -= 1
                self._remove()

    def renew(self) -> None:
        """Does it again where it is needed and was undone by somebody."""
        with self._lock:
            if self._installed is not None:
                self._put()

    def _put(self) -> None:
        if self._installed is not None and not self._is_whole():
            self._installed.close()
            self._installed = None
        self._installed = self._installed or self._install()

    def _remove(self) -> None:
        if self._installed is not None and not self._holders and not self._keepers:
            self._installed.close()
            self._installed = None


def _intercept() -> contextlib.ExitStack:
    from unittest import mock

    from vcr import stubs
    from vcr.patch import CassettePatcherBuilder

    plain, secure = stubs.VCRHTTPConnection._baseclass, stubs.VCRHTTPSConnection._baseclass
    constructible = _constructible(secure)
    make_stub = stubs.VCRConnection.__init__

    def make(connection: Any, *args: Any, **named: Any) -> None:
        if isinstance(connection, stubs.VCRConnection):
            make_stub(connection, *args, **named)
        else:  # a real connection of a library that calls its base class by the name that stands for the stub
            real = constructible if isinstance(connection, secure) else plain
            real.__init__(connection, *args, **named)

    with contextlib.ExitStack() as stack:
        # vcrpy takes its patches away, for the whole process, while one thread connects; here they stay.
        stack.enter_context(mock.patch("vcr.patch.force_reset", contextlib.nullcontext))
        stack.enter_context(mock.patch.object(stubs.VCRHTTPSConnection, "_baseclass", constructible))
        stack.enter_context(mock.patch.object(stubs.VCRConnection, "__init__", make))
        stack.enter_context(mock.patch("vcr.cassette.CassettePatcherBuilder", _Joining))
        # Who opened one before is heard again where no trial is.
        before = _patched_in()
        stack.enter_context(_around(None if before is None else _Opened(before, None)))
        for patcher in CassettePatcherBuilder(_CurrentTape()).build():
            stack.enter_context(_leaving_others(patcher))
        return stack.pop_all()


def _is_in_place() -> bool:
    return isinstance(_patched_in(), _CurrentTape)


def _patched_in() -> Any:
    """What vcrpy's stubs take for their cassette, where they are in place."""
    from http.client import HTTPConnection

    return getattr(HTTPConnection, "cassette", None)


@contextlib.contextmanager
def _leaving_others(patcher: Any) -> Iterator[None]:
    """The patch, which on leaving takes away itself alone, and not what somebody put in its place meanwhile."""
    with patcher:
        yield
        if not hasattr(patcher, "attribute"):
            return
        target, attribute, found = patcher.target, patcher.attribute, getattr(patcher.target, patcher.attribute)
    if found is not patcher.new:
        setattr(target, attribute, found)


def _constructible(connection: Any) -> Any:
    """A real connection that can be made while the name of its class stands for a stub: it looks itself up by it."""
    made: FunctionType = connection.__init__
    names = {**made.__globals__, connection.__name__: connection}
    init = FunctionType(made.__code__, names, made.__name__, made.__defaults__, made.__closure__)
    init.__kwdefaults__ = made.__kwdefaults__
    return type(connection.__name__, (connection,), {"__init__": init})


def _supply_keys() -> contextlib.ExitStack:
    missing = [name for name in KEYS if name not in os.environ]
    os.environ.update(dict.fromkeys(missing, PLACEHOLDER))

    def remove() -> None:
        for name in missing:
            if os.environ.get(name) == PLACEHOLDER:
                del os.environ[name]

    stack = contextlib.ExitStack()
    stack.callback(remove)
    return stack


_patches = _Shared(_intercept, _is_in_place)
_keys = _Shared(_supply_keys)


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """A cassette that somebody opened with vcrpy itself, and the tape of the trial in which that was."""

    cassette: Any
    tape: Tape | None


_opened: ContextVar[_Opened | None] = ContextVar("chatflow_eval_opened", default=None)
_all_opened: list[_Opened] = []


class _Joining:
    """What vcrpy builds for such a cassette while ours are in place: no patches, but its place in the context."""

    def __init__(self, cassette: Any) -> None:
        self._cassette = cassette

    def build(self) -> Iterator[Any]:
        from vcr.patch import CassettePatcherBuilder

        yield _patches.held()
        yield from CassettePatcherBuilder(self._cassette)._build_patchers_from_mock_triples(
            self._cassette.custom_patches
        )
        yield _heard(_Opened(self._cassette, current()))


@contextlib.contextmanager
def _heard(opened: _Opened) -> Iterator[None]:
    before = _opened.get()
    _opened.set(opened)
    with _around(opened):
        try:
            yield
        finally:
            _opened.set(before)


@contextlib.contextmanager
def _around(opened: _Opened | None) -> Iterator[None]:
    """Within it, what belongs to no trial and to no other cassette is this one's."""
    if opened is not None:
        _all_opened.append(opened)
    try:
        yield
    finally:
        if opened is not None:
            _all_opened.remove(opened)


def _users_cassette() -> Any:
    """The cassette of somebody's own that hears what goes out here, if one does: the innermost, unless a tape is."""
    tape, opened = current(), _opened.get()
    if opened is not None and opened in _all_opened and opened.tape is tape:
        return opened.cassette
    return _all_opened[-1].cassette if tape is None and _all_opened else None


class _CurrentTape:
    """What vcrpy's stubs take for a cassette: the part of its interface that they use, for the context's tape."""

    custom_patches: tuple[Any, ...] = ()
    skip_patchers: tuple[str, ...] = ()

    @property
    def _path(self) -> str:
        return str(getattr(_users_cassette(), "_path", "chatflow-eval"))

    def __getattr__(self, name: str) -> Any:
        # vcrpy's errors describe the cassette that refused a request.
        return getattr(_users_cassette(), name)

    def __len__(self) -> int:
        return len(_users_cassette() or ())

    def __bool__(self) -> bool:
        return True

    @property
    def write_protected(self) -> bool:
        # A miss of ours raises by itself, with an explanation; vcrpy's own check comes too late to name the agent.
        return bool(getattr(_users_cassette(), "write_protected", False))

    def can_play_response_for(self, request: Any) -> bool:
        if (users := _users_cassette()) is not None:
            return bool(users.can_play_response_for(request))
        tape = current()
        if tape is None:
            if guard.is_watching():
                raise guard.refuse(str(request.host), request.port)
            return False
        if tape.lets_out(str(request.host), request.port):
            return False
        # http.client's stub asks twice for one request.
        found = getattr(request, "chatflow_exchange", None) or tape.replay(_asked(request, tape))
        if found is not None:
            request.chatflow_exchange = found
        return found is not None

    def play_response(self, request: Any) -> Any:
        if (users := _users_cassette()) is not None:
            return users.play_response(request)
        exchange: Exchange = request.chatflow_exchange
        answer = exchange.answer
        types = {"content-type": [exchange.content_type]} if exchange.content_type else {}
        return {
            "status": {"code": exchange.status, "message": exchange.reason.encode("ascii", "replace").decode()},
            "headers": types | {name: [value] for name, value in exchange.headers},
            "body": {"string": answer if isinstance(answer, bytes) else answer.encode()},
        }

    def append(self, request: Any, response: dict[str, Any]) -> None:
        if (users := _users_cassette()) is not None:
            users.append(request, response)
            return
        tape = current()
        if tape is not None and not tape.lets_out(str(request.host), request.port):
            tape.record(_exchange(request, response, tape))

    def filter_request(self, request: Any) -> Any:
        users = _users_cassette()
        return request if users is None else users.filter_request(request)

    def find_requests_with_most_matches(self, request: Any) -> list[tuple[Any, ...]]:
        """The request itself, as aiohttp's stub follows a recorded redirect by looking for what it leads to."""
        users = _users_cassette()
        found: list[tuple[Any, ...]] = [(request,)] if users is None else users.find_requests_with_most_matches(request)
        return found


def _asked(request: Any, tape: Tape) -> Asked:
    return Asked(body=_body(request, tape), method=request.method, uri=request.uri, agent=tape.agent, turn=tape.turn)


def _exchange(request: Any, response: dict[str, Any], tape: Tape) -> Exchange:
    from vcr.filters import decode_response

    plain = decode_response(response)
    return exchange_of(
        method=request.method,
        uri=request.uri,
        body=_body(request, tape),
        request_type=_text(request.headers.get("content-type", "")),
        status=int(plain["status"]["code"]),
        reason=plain["status"].get("message") or "",
        headers=plain["headers"],
        answer=plain["body"].get("string", b""),
        agent=tape.agent,
        turn=tape.turn,
        aside=not is_engine_asking(),
    )


def _body(request: Any, tape: Tape) -> Any:
    try:
        return json_or_text(request.body_bytes)
    except TypeError as error:
        what = f"{request.method} {request.uri}: its body can be neither recorded nor replayed: {error}"
        refused = CassetteError(what)
        tape.error = tape.error or refused
        raise refused from None


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
