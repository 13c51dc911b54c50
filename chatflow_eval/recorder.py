"""One interception of HTTP for the whole process (vcrpy's), with the trial's tape chosen by context.

vcrpy's patches are global and a cassette is bound into them, so cassettes of overlapping trials would mix. Here the
patches are installed once, around an object that forwards to whatever tape the current context holds.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
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


class _Shared:
    """Something done to the process for as long as anybody needs it."""

    def __init__(self, install: Callable[[], contextlib.ExitStack]) -> None:
        self._install = install
        self._lock = threading.Lock()
        self._holders = 0
        self._keepers = 0
        self._installed: contextlib.ExitStack | None = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within it, it is done."""
        with self._lock:
            self._installed = self._installed or self._install()
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
        for patcher in CassettePatcherBuilder(_CurrentTape()).build():
            stack.enter_context(patcher)
        return stack.pop_all()


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


_patches = _Shared(_intercept)
_keys = _Shared(_supply_keys)


class _CurrentTape:
    """What vcrpy's stubs take for a cassette: the part of its interface that they use, for the context's tape."""

    _path = "chatflow-eval"
    custom_patches: tuple[Any, ...] = ()
    skip_patchers: tuple[str, ...] = ()
    rewound = True
    # A miss raises by itself, with an explanation; vcrpy's own check comes too late to name the agent.
    write_protected = False

    def can_play_response_for(self, request: Any) -> bool:
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

    def play_response(self, request: Any) -> dict[str, Any]:
        exchange: Exchange = request.chatflow_exchange
        answer = exchange.answer
        types = {"content-type": [exchange.content_type]} if exchange.content_type else {}
        return {
            "status": {"code": exchange.status, "message": exchange.reason.encode("ascii", "replace").decode()},
            "headers": types | {name: [value] for name, value in exchange.headers},
            "body": {"string": answer if isinstance(answer, bytes) else answer.encode()},
        }

    def append(self, request: Any, response: dict[str, Any]) -> None:
        tape = current()
        if tape is not None and not tape.lets_out(str(request.host), request.port):
            tape.record(_exchange(request, response, tape))

    def filter_request(self, request: Any) -> Any:
        return request

    def find_requests_with_most_matches(self, request: Any) -> list[tuple[Any]]:
        """The request itself, as aiohttp's stub follows a recorded redirect by looking for what it leads to."""
        return [(request,)]


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
