"""Sessions in an SQLite file, which outlives the process and may be shared by several."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from chatflow_runtime.exceptions import SessionError
from chatflow_runtime.memory import BaseSessionStore, SessionContext, Turns, copy_context
from chatflow_runtime.types import AssistantMessage, Message, ToolCall, ToolResult, UserMessage

FORMAT = 1
"""Version of the file's layout; a file of a newer one is refused."""

PATIENCE = 30.0
"""Seconds to wait for another process that is writing."""

_APPLICATION = int.from_bytes(b"chfl")
_MAGIC = b"SQLite format 3\0"
_HEADER_SIZE = 100
_LAYOUT = f"""
    PRAGMA application_id = {_APPLICATION};
    PRAGMA user_version = {FORMAT};
    CREATE TABLE sessions (
        number INTEGER PRIMARY KEY,
        id BLOB NOT NULL UNIQUE,
        state BLOB NOT NULL,
        revision TEXT NOT NULL
    );
"""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_ROLES: dict[str, type[Message]] = {"user": UserMessage, "assistant": AssistantMessage, "tool": ToolResult}
_ROLE_OF = {kind: role for role, kind in _ROLES.items()}


class SQLiteSessionStore(BaseSessionStore):
    """Sessions in the SQLite file at `path`: history, context and active agent, for the next process as for this one.

    The file is made where there is none, readable by its owner alone. Stores, threads and processes may share it: turns
    of one session wait for one another within a process; of two processes in one session at once, the one that ends
    last gets a SessionError and changes nothing.

    Raises SessionError, which names the file, where it cannot be made or written, is damaged or empty (0 bytes), is
    another application's, or was written by a newer version; such a file is left as it is. Opening a store looks the
    whole file through; what is loaded is checked against its digest. Another process that is writing is waited for, 30
    seconds at most.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_turns: int | None = None) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise SessionError(f"A session store's path is {path!r}, expected a file; SessionStore() is in memory.")
        self._path = Path(path).absolute()
        super().__init__(max_turns=max_turns, turns=self._opened())
        self._look_through()

    def load(self, session_id: str) -> SessionContext | None:
        """The session as it was last saved; `None` when there is none. Raises SessionError where it is damaged."""
        key = _key(session_id)
        with self._connected() as db:
            row = db.execute("SELECT state, revision FROM sessions WHERE id = ?", (key,)).fetchone()
        if row is None:
            return None
        state, revision = row
        if not isinstance(state, bytes) or revision != _revision(key, state):
            raise self._damaged(f"session {session_id!r} is not as it was written")
        data = json.loads(_text(state))
        history = [_message(each) for each in data["history"]]
        return SessionContext(session_id, data["active_agent"], history, data["context"], revision)

    def save(self, session: SessionContext) -> None:
        """Keeps the session as it is now.

        Raises SessionError when somebody else saved or deleted it since it was loaded, and when it holds anything that
        is no JSON data.
        """
        key, state = _key(session.session_id), self._state(session)
        revision = _revision(key, state)
        if session.revision is None:
            insert = "INSERT INTO sessions (id, state, revision) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
            is_saved = self._write(insert, key, state, revision)
        else:
            update = "UPDATE sessions SET state = ?, revision = ? WHERE id = ? AND revision = ?"
            is_saved = self._write(update, state, revision, key, session.revision)
        if not is_saved:
            raise SessionError(
                f"Session {session.session_id!r} in {self._path} was changed by somebody else since it was loaded; "
                "what happened since is not saved."
            )
        session.revision = revision

    def delete(self, session_id: str) -> None:
        """Forgets the session, if there is one."""
        self._write("DELETE FROM sessions WHERE id = ?", _key(session_id))

    def session_ids(self) -> tuple[str, ...]:
        """The sessions that are kept, oldest first."""
        with self._connected() as db:
            return tuple(_text(key) for (key,) in db.execute("SELECT id FROM sessions ORDER BY number"))

    def _write(self, statement: str, *values: object) -> bool:
        """Whether the statement changed anything; all of it is on the disk when this returns, or nothing."""
        with self._connected() as db:
            return db.execute(statement, values).rowcount > 0

    def _state(self, session: SessionContext) -> bytes:
        context = copy_context(session.context)
        try:
            history = [{"role": _ROLE_OF[type(each)], **asdict(each)} for each in self.kept(session.history)]
            state = {"active_agent": session.active_agent_name, "context": context, "history": history}
            return _bytes(json.dumps(state, ensure_ascii=False))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise SessionError(f"Session {session.session_id!r} cannot be stored: {error}") from error

    # --- the file

    def _opened(self) -> Turns:
        """The queue of turns that this process's stores in the file share; the file is made where there is none."""
        try:
            if not self._path.exists():
                _make(self._path)
            with _opening:
                status = self._path.stat()
                turns = _turns_in.get((status.st_dev, status.st_ino))
                if turns is None:
                    # Closing a file drops the locks that the process holds on it, so nobody may be using it yet.
                    self._identify()
                    turns = _turns_in[status.st_dev, status.st_ino] = Turns()
                return turns
        except (OSError, ValueError, sqlite3.Error) as error:
            problem = getattr(error, "strerror", None) or error
            raise SessionError(f"The session store {self._path} cannot be opened: {problem}.") from error

    def _identify(self) -> None:
        """Refuses a file that is not ours before SQLite touches it: it would tidy up after another application."""
        with self._path.open("rb") as file:
            header = file.read(_HEADER_SIZE)
        if not header:
            raise self._damaged("it is empty (0 bytes); delete it to start anew")
        if len(header) < _HEADER_SIZE or not header.startswith(_MAGIC):
            raise self._damaged("it is no SQLite database")
        version, application = int.from_bytes(header[60:64]), int.from_bytes(header[68:72])
        if application != _APPLICATION:
            raise SessionError(f"{self._path} is another application's database, expected a session store.")
        if version != FORMAT:
            raise SessionError(f"The session store {self._path} has format {version}, this version reads {FORMAT}.")

    def _look_through(self) -> None:
        with self._connected() as db:
            (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise self._damaged(found)
            db.execute("SELECT number, id, state, revision FROM sessions LIMIT 1")
            # A file or folder that cannot be written is an error now, not after a model was asked.
            db.execute("BEGIN IMMEDIATE")
            db.execute(f"PRAGMA user_version = {FORMAT}")
            db.execute("ROLLBACK")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own for each use, so that nothing stays open and no thread or process shares one."""
        try:
            address = f"{self._path.as_uri()}?mode=rw"
            with closing(sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)) as db:
                yield db
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
                raise self._damaged(error) from error
            raise SessionError(f"The session store {self._path} cannot be used: {error}.") from error
        except UnicodeDecodeError as error:  # an error that quotes what it found
            raise self._damaged("its layout is unreadable") from error

    def _damaged(self, problem: object) -> SessionError:
        return SessionError(f"The session store {self._path} is damaged: {problem}. It was left as it is.")


_opening = threading.Lock()
_turns_in: WeakValueDictionary[tuple[int, int], Turns] = WeakValueDictionary()
"""The queues of turns of the files in use, by device and inode: one file may have several paths."""


def _make(path: Path) -> None:
    """A new store, whole as soon as it is there: nobody takes one that is being made for a damaged one."""
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as db:
            db.executescript(_LAYOUT)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another process was faster
        except OSError:  # a file system without links
            Path(draft).rename(path)
    finally:
        Path(draft).unlink(missing_ok=True)


def _message(data: dict[str, Any]) -> Message:
    kind = _ROLES[data.pop("role")]
    if "tool_calls" in data:
        data["tool_calls"] = tuple(ToolCall(**call) for call in data["tool_calls"])
    return kind(**data)


def _key(session_id: str) -> bytes:
    # Text would not do: SQLite and UTF-8 refuse half characters, and ids compare by code point.
    return _bytes(session_id)


def _revision(key: bytes, state: bytes) -> str:
    return hashlib.sha256(key + b"\0" + state).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
