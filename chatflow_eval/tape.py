"""What one trial's requests are answered from or written to, chosen by context."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from chatflow_eval.cassette import SUFFIXES, Cassette, Exchange, Origin, ToolExchange, existing, read, shown, write
from chatflow_eval.errors import CassetteError, CassetteMismatch, CassetteMissing, ChatflowEvalError
from chatflow_eval.matching import Ignore, Matcher
from chatflow_eval.player import Asked, AskedTool, Player, is_model_call, without_retried
from chatflow_eval.trace import Failure

RecordMode: TypeAlias = Literal["none", "once", "new_episodes", "all"]
"""vcrpy's names.

`none` replays and never touches the network, `once` records where nothing was, `new_episodes` goes live from the first
request on that was not recorded, `all` records anew.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reel:
    """What a trial's tape is made of: where its recording lies, whose it is, and what holds for it."""

    path: Path
    origin: Origin
    rerecord: str
    """The command that records this trial again, for messages."""
    ignore: tuple[Ignore, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    tools: bool = False
    """Whether what domain tools return is recorded and replayed too."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a run left its recording and went live."""

    agent: str | None
    turn: int | None
    replayed: int
    """Answers of models that came from the recording before."""
    why: str


class Tape(Protocol):
    """What one trial's requests are answered from or written to; `agent` and `turn` say who asks, where it is known."""

    agent: str | None
    turn: int | None
    error: CassetteError | None

    @property
    def tools(self) -> bool:
        """Whether what domain tools return is recorded and replayed too."""
        ...

    def lets_out(self, host: str, port: int | None = None) -> bool:
        """Whether this host is talked to for real, unrecorded."""
        ...

    def replay(self, asked: Asked) -> Exchange | None:
        """The recorded exchange, or `None` where the request is to go out."""
        ...

    def record(self, exchange: Exchange) -> None:
        """Keeps an exchange that went out."""
        ...

    def replay_tool(self, asked: AskedTool) -> ToolExchange | None:
        """What the tool returned when it was recorded, or `None` where it is to be called."""
        ...

    def record_tool(self, called: ToolExchange) -> None:
        """Keeps what a tool returned."""
        ...


class _Asking:
    """Knows who is asking: in each task of a trial whom it was told there, as agents may be called at the same time."""

    __slots__ = ("_agent",)
    _agent: str | None

    @property
    def agent(self) -> str | None:
        said = _asker.get()
        return said[1] if said is not None and said[0] is self else getattr(self, "_agent", None)

    @agent.setter
    def agent(self, name: str | None) -> None:
        self._agent = name
        _asker.set((self, name))


_asker: ContextVar[tuple[_Asking, str | None] | None] = ContextVar("chatflow_eval_asker", default=None)


@dataclass(slots=True)
class LiveTape(_Asking):
    """Lets everything out and keeps nothing."""

    turn: int | None = None
    error: CassetteError | None = None

    @property
    def tools(self) -> bool:
        return False

    def lets_out(self, host: str, port: int | None = None) -> bool:
        return True

    def replay(self, asked: Asked) -> None:
        return None

    def record(self, exchange: Exchange) -> None:
        pass

    def replay_tool(self, asked: AskedTool) -> None:
        return None

    def record_tool(self, called: ToolExchange) -> None:
        pass


@dataclass(slots=True)
class ReplayTape(_Asking):
    """Answers one trial from its cassette and lets nothing out."""

    player: Player | CassetteError
    """What plays, or why nothing can: it is raised when something is asked, as a trial may ask nothing."""
    allow_hosts: tuple[str, ...] = ()
    tools: bool = False
    turn: int | None = None
    error: CassetteError | None = None
    """The first thing that could not be answered; clients wrap exceptions, so it is kept here as well as raised."""

    @classmethod
    def load(cls, reel: Reel) -> ReplayTape:
        """The tape of the reel's cassette, whole or not."""
        try:
            player: Player | CassetteError = _player(reel)
        except CassetteError as error:
            player = error
        return cls(player, reel.allow_hosts, reel.tools)

    @property
    def has_played(self) -> bool:
        """True when something was answered from the recording."""
        return isinstance(self.player, Player) and bool(self.player.played)

    @property
    def only_chat(self) -> bool:
        """True when chat requests are all it takes to replay, so that no provider's client is needed."""
        return isinstance(self.player, CassetteError) or self.player.only_chat

    def lets_out(self, host: str, port: int | None = None) -> bool:
        return is_allowed(self.allow_hosts, host, port)

    def replay(self, asked: Asked) -> Exchange:
        """The next exchange recorded for this request; without a URL, of a chat request wherever it went.

        Raises:
            CassetteError: nothing (more) was recorded for it, or the cassette is missing or damaged.
        """
        try:
            player = self._playing()
            return player.play(asked) if asked.uri else player.play_chat(asked)
        except CassetteError as error:
            self.fail(error)
            raise

    def record(self, exchange: Exchange) -> None:
        raise AssertionError("nothing goes out while replaying")

    def replay_tool(self, asked: AskedTool) -> ToolExchange:
        """What the tool returned to the next recorded call like this one.

        Raises:
            CassetteError: nothing (more) was recorded for it, or the cassette is missing or damaged.
        """
        try:
            return self._playing().play_tool(asked)
        except CassetteError as error:
            self.fail(error)
            raise

    def record_tool(self, called: ToolExchange) -> None:
        raise AssertionError("no tool is called while tools are replayed")

    def fail(self, error: CassetteError) -> None:
        """The trial cannot end well, whatever becomes of the exception on its way through clients and agents."""
        self.error = self.error or error

    def _playing(self) -> Player:
        if isinstance(self.player, CassetteError):
            raise self.player
        return self.player


@dataclass(slots=True)
class RecordingTape(_Asking):
    """Lets one trial's requests out and keeps every exchange until it is saved."""

    reel: Reel
    turn: int | None = None
    error: CassetteError | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    called: list[ToolExchange] = field(default_factory=list)

    @property
    def tools(self) -> bool:
        return self.reel.tools

    def lets_out(self, host: str, port: int | None = None) -> bool:
        return is_allowed(self.reel.allow_hosts, host, port)

    def replay(self, asked: Asked) -> Exchange | None:
        return None

    def record(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    def replay_tool(self, asked: AskedTool) -> ToolExchange | None:
        return None

    def record_tool(self, called: ToolExchange) -> None:
        self.called.append(called)

    def save(self) -> None:
        """Writes the cassette in one step, without failed attempts that were repeated; none where nothing was asked.

        Raises:
            CassetteError: it cannot be written, or a secret survived.
        """
        if self.exchanges or self.called:
            _save(self.reel, self.exchanges, self.called)


@dataclass(slots=True)
class ForkingTape(_Asking):
    """Answers one trial from its cassette up to the first request that is not there, and lets all out from there on."""

    reel: Reel
    player: Player | CassetteError | None
    """`None`: nothing was recorded yet."""
    turn: int | None = None
    error: CassetteError | None = None
    parted: Parting | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    """What went out."""
    called: list[ToolExchange] = field(default_factory=list)

    @classmethod
    def load(cls, reel: Reel) -> ForkingTape:
        """The tape of the reel's cassette; a damaged one is never taken for none."""
        try:
            return cls(reel, _player(reel))
        except CassetteMissing:
            return cls(reel, None)
        except CassetteError as error:
            return cls(reel, error)

    @property
    def tools(self) -> bool:
        return self.reel.tools

    @property
    def has_played(self) -> bool:
        """True when something was answered from the recording."""
        return isinstance(self.player, Player) and bool(self.player.played)

    @property
    def only_chat(self) -> bool:
        """True when what is recorded can be replayed from chat requests."""
        return not isinstance(self.player, Player) or self.player.only_chat

    def lets_out(self, host: str, port: int | None = None) -> bool:
        return is_allowed(self.reel.allow_hosts, host, port)

    def replay(self, asked: Asked) -> Exchange | None:
        """The recorded exchange while all so far were recorded, else `None`.

        Raises:
            CassetteError: the cassette is damaged.
        """
        player = self._playing()
        if player is None:
            return None
        try:
            return player.play(asked) if asked.uri else player.play_chat(asked)
        except CassetteMismatch as miss:
            self._part(player, miss)
            return None

    def record(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    def replay_tool(self, asked: AskedTool) -> ToolExchange | None:
        """What the tool returned while all so far was recorded, else `None`."""
        player = self._playing()
        if player is None:
            return None
        try:
            return player.play_tool(asked)
        except CassetteMismatch as miss:
            self._part(player, miss)
            return None

    def record_tool(self, called: ToolExchange) -> None:
        self.called.append(called)

    def save(self) -> None:
        """Writes what was replayed, followed by what went out; nothing where nothing went out.

        Raises:
            CassetteError: it cannot be written, or a secret survived.
        """
        if not self.exchanges and not self.called:
            return
        before = self.player if isinstance(self.player, Player) else None
        exchanges = [*before.played, *self.exchanges] if before else self.exchanges
        _save(self.reel, exchanges, [*before.played_tools, *self.called] if before else self.called)

    def _playing(self) -> Player | None:
        if isinstance(self.player, CassetteError):
            self.error = self.error or self.player
            raise self.player
        return None if self.parted else self.player

    def _part(self, player: Player, miss: CassetteMismatch) -> None:
        why = miss.edit or str(miss).partition("; in ")[0]
        self.parted = Parting(self.agent, self.turn, sum(map(is_model_call, player.played)), why)


def failure_of(error: ChatflowEvalError) -> Failure:
    """What the harness could not do, as a trial's failure."""
    edit = error.edit if isinstance(error, CassetteMismatch) else None
    kind: Literal["cassette", "harness"] = "cassette" if isinstance(error, CassetteError) else "harness"
    return Failure(kind=kind, exception=type(error).__name__, message=str(error), edit=edit)


def open_tape(reel: Reel, mode: RecordMode) -> ReplayTape | RecordingTape | ForkingTape:
    """The tape for a trial in this mode; a recording in YAML is used and kept where there is none in JSON."""
    if not reel.path.exists():
        reel = replace(reel, path=existing(reel.path))
    match mode:
        case "none":
            return ReplayTape.load(reel)
        case "once":
            return ReplayTape.load(reel) if reel.path.exists() else RecordingTape(reel)
        case "new_episodes":
            return ForkingTape.load(reel)
        case "all":
            return RecordingTape(reel)


_current: ContextVar[Tape | None] = ContextVar("chatflow_eval_tape", default=None)


@contextlib.contextmanager
def playing(tape: Tape) -> Iterator[None]:
    """Within it, and in the tasks and threads started with this context, HTTP goes to `tape`."""
    token = _current.set(tape)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Tape | None:
    """The tape of this context, if a trial is running in it."""
    return _current.get()


_engine_asks: ContextVar[bool] = ContextVar("chatflow_eval_engine_asks", default=False)


@contextlib.contextmanager
def engine_asking() -> Iterator[None]:
    """Within it, what goes out can be replayed from the runtime's own request, without a client."""
    token = _engine_asks.set(True)
    try:
        yield
    finally:
        _engine_asks.reset(token)


def is_engine_asking() -> bool:
    """Whether what goes out now is asked by the runtime's engine."""
    return _engine_asks.get()


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_allowed(allowed: Sequence[str], host: str, port: int | None = None) -> bool:
    """Whether a host is among names with `*` for anything, each with or without a port; loopback has several names."""
    host = host.strip("[]").rstrip(".").lower()
    names = _LOOPBACK if host in _LOOPBACK else {host}
    spellings = names | {f"{name}:{port}" for name in names}
    return any(fnmatch.fnmatchcase(spelling, pattern.lower()) for pattern in allowed for spelling in spellings)


def _player(reel: Reel) -> Player:
    cassette = read(reel.path, rerecord=reel.rerecord)
    made_as = cassette.origin.repeat if cassette.origin is not None else reel.origin.repeat
    if made_as != reel.origin.repeat:
        raise CassetteMissing(
            f"{shown(reel.path)}: a copy of repeat {made_as}, and a copy is no further sample; "
            f"record repeat {reel.origin.repeat} with: {reel.rerecord}"
        )
    return Player(cassette, reel.rerecord, Matcher(reel.ignore))


def _save(reel: Reel, exchanges: Sequence[Exchange], called: Sequence[ToolExchange]) -> None:
    origin = replace(reel.origin, recorded=datetime.now(UTC).isoformat(timespec="seconds"))
    tools = tuple(called) if reel.tools else None
    write(Cassette(reel.path, without_retried(exchanges), tools, origin))
    for suffix in SUFFIXES:
        # What is recorded anew in another form replaces the old recording all the same.
        if suffix != reel.path.suffix:
            reel.path.with_suffix(suffix).unlink(missing_ok=True)
