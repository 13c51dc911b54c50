"""One interception of HTTP for the whole process (vcrpy's), with the trial's tape chosen by context.

vcrpy's patches are global and a cassette is bound into them, so cassettes of overlapping trials would mix. Here the
patches are installed once, around an object that forwards to whatever tape the current context holds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from chatflow_eval.cassette import Asked, Cassette, Exchange, Player, exchange_of, read, write
from chatflow_eval.errors import CassetteError

RecordMode: TypeAlias = Literal["none", "all"]
"""vcrpy's names: `none` replays and never touches the network, `all` records anew."""

_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class Tape(Protocol):
    """What one trial's requests are answered from or written to."""

    agent: str | None
    turn: int | None

    def replay(self, asked: Asked) -> Exchange | None:
        """The recorded exchange, or `None` where the request is to go out."""
        ...

    def record(self, exchange: Exchange) -> None:
        """Keeps an exchange that went out."""
        ...


@dataclass(slots=True)
class ReplayTape:
    """Answers one trial from its cassette and lets nothing out."""

    player: Player | CassetteError
    """What plays, or why nothing can: it is raised when something is asked, as a trial may ask nothing."""
    agent: str | None = None
    turn: int | None = None
    error: CassetteError | None = None
    """The first thing that could not be answered; clients wrap exceptions, so it is kept here as well as raised."""

    @classmethod
    def load(cls, path: Path, *, rerecord: str) -> ReplayTape:
        """The tape of the cassette at `path`, whole or not; `rerecord` is the command that records it again."""
        try:
            return cls(Player(read(path, rerecord=rerecord), rerecord))
        except CassetteError as error:
            return cls(error)

    @property
    def has_played(self) -> bool:
        """True when something was answered from the recording."""
        return isinstance(self.player, Player) and bool(self.player.played)

    @property
    def only_chat(self) -> bool:
        """True when chat requests are all it takes to replay, so that no provider's client is needed."""
        return isinstance(self.player, CassetteError) or self.player.only_chat

    def replay(self, asked: Asked) -> Exchange:
        """The next exchange recorded for this request; without a URL, of a chat request wherever it went.

        Raises:
            CassetteError: nothing (more) was recorded for it, or the cassette is missing or damaged.
        """
        try:
            if isinstance(self.player, CassetteError):
                raise self.player
            return self.player.play(asked) if asked.uri else self.player.play_chat(asked)
        except CassetteError as error:
            self.error = self.error or error
            raise

    def record(self, exchange: Exchange) -> None:
        raise AssertionError("nothing goes out while replaying")


@dataclass(slots=True)
class RecordingTape:
    """Lets one trial's requests out and keeps every exchange until it is saved."""

    path: Path
    agent: str | None = None
    turn: int | None = None
    exchanges: list[Exchange] = field(default_factory=list)

    def replay(self, asked: Asked) -> Exchange | None:
        return None

    def record(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    def save(self) -> None:
        """Writes the cassette in one step; an attempt that failed and was repeated with success is left out.

        Raises:
            CassetteError: it cannot be written, or a secret survived.
        """
        write(Cassette(self.path, tuple(_without_retried(self.exchanges))))


_tape: ContextVar[Tape | None] = ContextVar("chatflow_eval_tape", default=None)


@contextlib.contextmanager
def playing(tape: Tape) -> Iterator[None]:
    """Within it, and in the tasks and threads started with this context, HTTP goes to `tape`."""
    token = _tape.set(tape)
    try:
        yield
    finally:
        _tape.reset(token)


@contextlib.contextmanager
def interception() -> Iterator[None]:
    """Holds vcrpy's patches in place; any number may overlap, in any order, and the last one out removes them."""
    _patches.hold()
    try:
        yield
    finally:
        _patches.release()


class _Patches:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._installed = contextlib.ExitStack()

    def hold(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._install()
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._installed.close()

    def _install(self) -> None:
        from vcr.patch import CassettePatcherBuilder

        with contextlib.ExitStack() as stack:
            for patcher in CassettePatcherBuilder(_CurrentTape()).build():
                stack.enter_context(patcher)
            self._installed = stack.pop_all()


_patches = _Patches()


class _CurrentTape:
    """What vcrpy's stubs take for a cassette: the part of its interface that they use, for the context's tape."""

    _path = "chatflow-eval"
    custom_patches: tuple[Any, ...] = ()
    skip_patchers: tuple[str, ...] = ()
    rewound = True
    # A miss raises by itself, with an explanation; vcrpy's own check comes too late to name the agent.
    write_protected = False

    def can_play_response_for(self, request: Any) -> bool:
        tape = _tape.get()
        if tape is None:
            return False
        # http.client's stub asks twice for one request.
        found = getattr(request, "chatflow_exchange", None) or tape.replay(_asked(request, tape))
        if found is not None:
            request.chatflow_exchange = found
        return found is not None

    def play_response(self, request: Any) -> dict[str, Any]:
        exchange: Exchange = request.chatflow_exchange
        return {
            "status": {"code": exchange.status, "message": exchange.reason},
            "headers": {"content-type": [exchange.content_type]},
            "body": {"string": exchange.answer.encode()},
        }

    def append(self, request: Any, response: dict[str, Any]) -> None:
        tape = _tape.get()
        if tape is not None:
            tape.record(_exchange(request, response, tape))

    def filter_request(self, request: Any) -> Any:
        return request

    def find_requests_with_most_matches(self, request: Any) -> list[Any]:
        return []


def _asked(request: Any, tape: Tape) -> Asked:
    sent = _sent(request)
    return Asked(body=sent.body, method=sent.method, uri=sent.uri, agent=tape.agent, turn=tape.turn)


def _sent(request: Any, **answer: Any) -> Exchange:
    given: dict[str, Any] = {"status": 0, "reason": "", "headers": {}, "answer": b"", "agent": None, "turn": None}
    return exchange_of(method=request.method, uri=request.uri, body=request.body_bytes, **{**given, **answer})


def _exchange(request: Any, response: dict[str, Any], tape: Tape) -> Exchange:
    from vcr.filters import decode_response

    plain = decode_response(response)
    return _sent(
        request,
        status=int(plain["status"]["code"]),
        reason=plain["status"].get("message") or "",
        headers=plain["headers"],
        answer=plain["body"].get("string", b""),
        agent=tape.agent,
        turn=tape.turn,
    )


def _without_retried(exchanges: list[Exchange]) -> Iterator[Exchange]:
    for index, exchange in enumerate(exchanges):
        repeated = any((later.uri, later.body) == (exchange.uri, exchange.body) for later in exchanges[index + 1 :])
        if not (exchange.status in _RETRIED and repeated):
            yield exchange
