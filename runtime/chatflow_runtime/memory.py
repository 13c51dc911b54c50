"""Sessions: a conversation's history, context and active agent, and the store that keeps them in memory."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, cast

from chatflow_runtime.exceptions import SessionError
from chatflow_runtime.limits import check_count
from chatflow_runtime.types import AssistantMessage, Json, Message, ToolResult, UserMessage, copy_json

if TYPE_CHECKING:
    from chatflow_runtime.agent import Agent
    from chatflow_runtime.sqlite_store import SQLiteSessionStore as SQLiteSessionStore
else:

    def __getattr__(name: str) -> object:
        # The first seed document's package has it here; who does not use it need not import sqlite3.
        if name == "SQLiteSessionStore":
            return import_module("chatflow_runtime.sqlite_store").SQLiteSessionStore
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(slots=True)
class SessionContext:
    """One conversation: who is active, what was said, and the context that instructions and tools can read."""

    session_id: str
    active_agent_name: str
    history: list[Message] = field(default_factory=list)
    context: dict[str, Json] = field(default_factory=dict)
    revision: str | None = field(default=None, compare=False, repr=False)
    """What a shared store held of it when it was last loaded or saved; `None` where it held nothing."""

    def set_active_agent(self, agent: Agent | str, context_updates: Mapping[str, Json] | None = None) -> None:
        """Gives the conversation to `agent` and merges the updates into the context (first seed document)."""
        self.active_agent_name = agent if isinstance(agent, str) else agent.name
        if context_updates:
            self.context.update(copy_context(context_updates))

    def add_message(self, message: Message) -> None:
        """Appends to the history."""
        self.history.append(message)

    def copy(self) -> SessionContext:
        """The same session, sharing nothing that can change; raises SessionError when the context is not JSON data."""
        context = copy_context(self.context)
        return SessionContext(self.session_id, self.active_agent_name, list(self.history), context, self.revision)


def last_turns(history: Sequence[Message], count: int) -> list[Message]:
    """The last `count` user turns of a history, each whole: no tool exchange is cut, whoever speaks within it."""
    starts: list[int] = []
    waiting: set[str] = set()
    for index, message in enumerate(history):
        match message:
            case UserMessage() if not waiting:
                starts.append(index)
            case AssistantMessage(tool_calls=calls):
                waiting.update(call.id for call in calls)
            case ToolResult(call_id=answered):
                waiting.discard(answered)
    if len(starts) <= count:
        return list(history)
    return list(history[[*starts, len(history)][len(starts) - count] :])


def copy_context(context: Mapping[str, Json]) -> dict[str, Json]:
    """A deep copy of a session's context; raises SessionError when it is not JSON data."""
    if not context:
        return {}
    try:
        return cast(dict[str, Json], copy_json(context, "context"))
    except (TypeError, RecursionError) as error:
        raise SessionError(f"A session's context holds JSON data only: {error}") from error


class BaseSessionStore(ABC):
    """Where sessions are kept; what is loaded and what is saved share nothing with what is stored.

    Of each history its last `max_turns` user turns are kept, all of them by default. The window moves when a turn is
    saved, so that the turn under way sees what was kept and itself. Raises DefinitionError for a `max_turns` that is no
    whole number.
    """

    def __init__(self, *, max_turns: int | None = None, turns: Turns | None = None) -> None:
        if max_turns is not None:
            check_count("max_turns", max_turns, least=0)
        self._max_turns = max_turns
        self._turns = turns or Turns()

    @property
    def max_turns(self) -> int | None:
        """How many user turns of each session are kept; `None` is all."""
        return self._max_turns

    @abstractmethod
    def load(self, session_id: str) -> SessionContext | None:
        """The session as it was last saved; `None` when there is none."""

    @abstractmethod
    def save(self, session: SessionContext) -> None:
        """Keeps the session as it is now; raises SessionError where it cannot, or where somebody else changed it."""

    @abstractmethod
    def delete(self, session_id: str) -> None:
        """Forgets the session, if there is one."""

    @abstractmethod
    def session_ids(self) -> tuple[str, ...]:
        """The sessions that are kept, oldest first."""

    def kept(self, history: Sequence[Message]) -> list[Message]:
        """What the store keeps of a history."""
        return list(history) if self._max_turns is None else last_turns(history, self._max_turns)

    @asynccontextmanager
    async def turn(self, session_id: str) -> AsyncIterator[None]:
        """One turn of a session: others of the same session wait, in whichever event loop or thread they are.

        Raises SessionError inside a turn of the same session, which would wait for itself.
        """
        marker = await self._turns.enter(session_id)
        token = _turns_inside.set((*_turns_inside.get(), marker))
        try:
            yield
        finally:
            _turns_inside.reset(token)
            self._turns.leave(session_id)


class SessionStore(BaseSessionStore):
    """Sessions in memory (first seed document)."""

    def __init__(self, *, max_turns: int | None = None) -> None:
        super().__init__(max_turns=max_turns)
        self._sessions: dict[str, SessionContext] = {}

    def load(self, session_id: str) -> SessionContext | None:
        """The session as it was last saved; `None` when there is none."""
        kept = self._sessions.get(session_id)
        return None if kept is None else kept.copy()

    def save(self, session: SessionContext) -> None:
        """Keeps the session as it is now; raises SessionError when its context is not JSON data."""
        kept = session.copy()
        kept.history = self.kept(kept.history)
        self._sessions[session.session_id] = kept

    def delete(self, session_id: str) -> None:
        """Forgets the session, if there is one."""
        self._sessions.pop(session_id, None)

    def session_ids(self) -> tuple[str, ...]:
        """The sessions that are kept, oldest first."""
        return tuple(self._sessions)


class _Marker:
    """Stands for one turn under way."""

    __slots__ = ()


_turns_inside: ContextVar[tuple[_Marker, ...]] = ContextVar("chatflow_runtime.turns_inside", default=())


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """One turn that waits, in its own event loop."""

    marker: _Marker
    loop: asyncio.AbstractEventLoop
    called: asyncio.Future[None]


@dataclass(slots=True)
class _Queue:
    """The turn under way in one session, and those that wait for it."""

    marker: _Marker
    waiting: deque[_Place] = field(default_factory=deque)


class Turns:
    """One turn per session at a time. An asyncio.Lock serves one event loop; sessions are shared by several."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._queues: dict[str, _Queue] = {}

    async def enter(self, session_id: str) -> _Marker:
        """Waits until it is this turn's time; raises SessionError inside a turn of the same session."""
        marker = _Marker()
        with self._mutex:
            queue = self._queues.get(session_id)
            if queue is None:
                self._queues[session_id] = _Queue(marker)
                return marker
            if queue.marker in _turns_inside.get():
                raise SessionError(f"A turn of session {session_id!r} was started inside a turn of the same session.")
            loop = asyncio.get_running_loop()
            place = _Place(marker, loop, loop.create_future())
            queue.waiting.append(place)
        try:
            await place.called
        except asyncio.CancelledError:
            with self._mutex:
                waits = place in queue.waiting
                if waits:
                    queue.waiting.remove(place)
            if not waits:  # its turn had come when it was cancelled
                self.leave(session_id)
            raise
        return marker

    def leave(self, session_id: str) -> None:
        """Ends the turn under way, and lets in who came next."""
        with self._mutex:
            queue = self._queues[session_id]
            while queue.waiting:
                place = queue.waiting.popleft()
                try:
                    place.loop.call_soon_threadsafe(_let_in, place.called)
                except RuntimeError:  # its loop was closed
                    continue
                queue.marker = place.marker
                return
            del self._queues[session_id]


def _let_in(called: asyncio.Future[None]) -> None:
    if not called.done():
        called.set_result(None)
