"""Sessions outlive their process, are shared without mixing, and a damaged file is named and left alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatflow_runtime import memory, sqlite_store
from chatflow_runtime.agent import Agent
from chatflow_runtime.engine import Answer, ModelRequest, ScriptedEngine, Transfer
from chatflow_runtime.exceptions import DefinitionError, SessionError
from chatflow_runtime.memory import SessionContext
from chatflow_runtime.runner import Runner
from chatflow_runtime.sqlite_store import SQLiteSessionStore
from chatflow_runtime.types import AssistantMessage, Message, ToolCall, ToolResult, UserMessage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


HISTORY: list[Message] = [
    UserMessage("I want a refund. 💸"),
    AssistantMessage("Triage", "One.", (ToolCall("a", "transfer_to_billing", '{"reason": '), ToolCall("b", "x"))),
    ToolResult("a", "transfer_to_billing", {"status": "HANDOFF_SUCCESS", "amounts": [1, 1.0, None, True]}),
    ToolResult("b", "x", "no such tool", is_error=True),
    AssistantMessage("Billing", "How much?"),
]
SESSION = SessionContext("customer-1", "Billing", HISTORY, {"tier": "gold", "seen": [{}]})


def saved(path: Path, session: SessionContext = SESSION) -> SQLiteSessionStore:
    store = SQLiteSessionStore(path)
    store.save(session.copy())
    return store


def swarm(script: ScriptedEngine | None = None) -> Agent:
    return Agent("A", "Route.", handoffs=[Agent("B", "Know all.")], engine=script)


# --- what is kept


def test_it_is_found_where_the_documents_package_has_it() -> None:
    assert memory.SQLiteSessionStore is SQLiteSessionStore
    with pytest.raises(AttributeError, match=r"'chatflow_runtime\.memory' has no attribute 'Nothing'"):
        memory.Nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_session_comes_back_whole_from_another_store(path: Path) -> None:
    saved(path)
    assert SQLiteSessionStore(str(path)).load("customer-1") == SESSION


TEXTS = st.text(st.characters(), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(st.builds(ToolCall, TEXTS, TEXTS, TEXTS), max_size=3).map(tuple)
MESSAGES: st.SearchStrategy[Message] = (
    st.builds(UserMessage, TEXTS)
    | st.builds(AssistantMessage, TEXTS, st.none() | TEXTS, CALLS)
    | st.builds(ToolResult, TEXTS, TEXTS, JSON, st.booleans())
)
SESSIONS = st.builds(
    SessionContext, TEXTS.filter(bool), TEXTS, st.lists(MESSAGES, max_size=5), st.dictionaries(TEXTS, JSON, max_size=3)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(session=SESSIONS)
def test_no_message_and_no_context_is_changed_by_keeping_it(path: Path, session: SessionContext) -> None:
    """Half characters, NUL, any JSON data, and a float stays one."""
    store = SQLiteSessionStore(path)
    store.delete(session.session_id)
    store.save(session)
    loaded = store.load(session.session_id)
    assert loaded == session
    assert repr(loaded) == repr(session)


def test_sessions_are_listed_oldest_first_and_forgotten(path: Path) -> None:
    store = SQLiteSessionStore(path)
    for name in ("b", "a"):
        store.save(SessionContext(name, "A"))
    again = store.load("b")
    assert again is not None
    store.save(again)
    assert SQLiteSessionStore(path).session_ids() == ("b", "a")
    store.delete("b")
    store.delete("never there")
    assert (store.load("b"), store.session_ids()) == (None, ("a",))


def test_ids_compare_by_code_point(path: Path) -> None:
    store = saved(path, SessionContext("\N{LATIN SMALL LETTER E WITH ACUTE}", "A"))
    for other in ("e\N{COMBINING ACUTE ACCENT}", "\N{LATIN CAPITAL LETTER E WITH ACUTE}", "'; --"):
        assert store.load(other) is None


def test_what_is_loaded_and_saved_shares_nothing_with_the_store(path: Path) -> None:
    store, session = SQLiteSessionStore(path), SESSION.copy()
    store.save(session)
    session.add_message(UserMessage("more"))
    loaded = store.load("customer-1")
    assert loaded == SESSION
    assert loaded is not None
    loaded.set_active_agent("Triage", {"tier": "none"})
    assert store.load("customer-1") == SESSION


@pytest.mark.parametrize(
    ("context", "history", "problem"),
    [
        ({"at": object()}, [], r"context\['at'\] is a object"),
        ({}, [ToolResult("a", "t", object())], "not JSON serializable"),  # type: ignore[arg-type]
        ({}, [ToolResult("a", "t", 10**5000)], "integer"),
        ({}, ["hi"], "str"),
    ],
)
def test_what_is_no_data_is_refused_and_nothing_changes(path: Path, context: Any, history: Any, problem: str) -> None:
    store = saved(path)
    session = store.load("customer-1")
    assert session is not None
    session.context, session.history = context, history
    with pytest.raises(SessionError, match=problem):
        store.save(session)
    assert store.load("customer-1") == SESSION


def test_a_store_can_keep_the_last_turns_only(path: Path) -> None:
    store = SQLiteSessionStore(path, max_turns=1)
    history = [UserMessage("old"), AssistantMessage("A", "yes"), *HISTORY]
    store.save(SessionContext("customer-1", "Billing", history, {"tier": "gold", "seen": [{}]}))
    assert store.load("customer-1") == SESSION
    with pytest.raises(DefinitionError, match="max_turns is -1"):
        SQLiteSessionStore(path, max_turns=-1)


# --- conversations


NEXT_PROCESS = """
import sys
from chatflow_runtime import Agent, Runner, ScriptedEngine, SQLiteSessionStore
start = Agent("A", "Route.", handoffs=[Agent("B", "Know all.")])
with ScriptedEngine(["It is 5."]) as engine:
    response = Runner(start, SQLiteSessionStore(sys.argv[1]), engine=engine).run("s", "And now?")
print(response.active_agent_name, [message.text for message in engine.requests[0].history if hasattr(message, "text")])
"""


def test_a_conversation_goes_on_in_another_process_with_the_agent_it_was_with(path: Path) -> None:
    runner = Runner(swarm(), SQLiteSessionStore(path), engine=ScriptedEngine([Transfer("B"), "Hello."]))
    runner.run("s", "Hi.", {"tier": "gold"})
    command = [sys.executable, "-c", NEXT_PROCESS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "B ['Hi.', None, 'Hello.', 'And now?']"
    session = runner.get_session("s")
    assert session is not None
    assert (session.active_agent_name, session.context, len(session.history)) == ("B", {"tier": "gold"}, 6)


@pytest.mark.parametrize("error", [ConnectionError("500"), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_turn_that_fails_leaves_every_byte_as_it_was(path: Path, error: BaseException) -> None:
    """CF-9, CF-10."""
    store = SQLiteSessionStore(path)
    Runner(swarm(), store, engine=ScriptedEngine(["Hello."])).run("s", "Hi.")
    before = path.read_bytes()
    with pytest.raises(type(error)):
        Runner(swarm(), store, engine=ScriptedEngine([Transfer("B"), error])).run("s", "Hi.", {"tier": "gold"})
    assert path.read_bytes() == before


def test_an_active_agent_that_is_gone_is_an_error_that_lists_the_known(path: Path) -> None:
    """B075: no silent return to the start, and the stored session stays."""
    store = saved(path, SessionContext("s", "Refunds", [UserMessage("hi")]))
    before = path.read_bytes()
    with pytest.raises(SessionError, match="is with agent 'Refunds', expected one of 'A', 'B'"):
        Runner(swarm(), store).run("s", "hi")
    assert path.read_bytes() == before


# --- several at once


class Slow:
    """Answers after all else that waits had its turn, and counts how many it answers at once."""

    def __init__(self) -> None:
        self.at_once = self.most = 0

    async def answer(self, request: ModelRequest) -> Answer:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.01)
        self.at_once -= 1
        return Answer(f"{len(request.history)}")


def test_turns_of_one_session_wait_for_one_another_whatever_store_they_go_through(path: Path) -> None:
    """B143, CF-11: also from several event loops, and by another path to the same file."""
    engine, link = Slow(), path.with_name("link.db")
    SQLiteSessionStore(path)
    link.symlink_to(path)

    def converse(number: int) -> None:
        store = SQLiteSessionStore(link if number % 2 else path)
        runner = Runner(swarm(), store, engine=engine)

        async def main() -> None:
            await asyncio.gather(*(runner.run_async("s", f"{number}") for _ in range(3)))

        asyncio.run(main())

    threads = [threading.Thread(target=converse, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session = SQLiteSessionStore(path).load("s")
    assert session is not None
    assert engine.most == 1
    texts = [message.text for message in session.history if isinstance(message, AssistantMessage)]
    assert texts == [str(number) for number in range(1, 24, 2)]


def test_sessions_of_one_file_are_kept_at_once(path: Path) -> None:
    """Each thread with a store of its own, writing as fast as it can."""

    def keep(name: str) -> None:
        store = SQLiteSessionStore(path)
        session = SessionContext(name, "A")
        for number in range(10):
            session.add_message(UserMessage(f"{name} {number}"))
            store.save(session)

    threads = [threading.Thread(target=keep, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = SQLiteSessionStore(path)
    for name in "abcd":
        session = store.load(name)
        assert session is not None
        assert session.history == [UserMessage(f"{name} {number}") for number in range(10)]


def test_of_two_that_continue_one_session_at_once_the_later_to_end_is_refused(path: Path) -> None:
    """As two processes would, who cannot wait for each other."""
    first = saved(path)
    mine, yours = first.load("customer-1"), SQLiteSessionStore(path).load("customer-1")
    assert mine is not None
    assert yours is not None
    yours.add_message(UserMessage("yours"))
    first.save(yours)
    mine.add_message(UserMessage("mine"))
    with pytest.raises(SessionError, match=r"'customer-1' in .*sessions\.db was changed by somebody else"):
        first.save(mine)
    assert first.load("customer-1") == yours
    yours.add_message(UserMessage("and more"))
    first.save(yours)
    assert first.load("customer-1") == yours


def test_a_session_that_somebody_else_began_or_deleted_is_refused(path: Path) -> None:
    store = saved(path)
    with pytest.raises(SessionError, match="changed by somebody else"):
        store.save(SessionContext("customer-1", "A"))
    session = store.load("customer-1")
    assert session is not None
    store.delete("customer-1")
    with pytest.raises(SessionError, match="changed by somebody else"):
        store.save(session)
    assert store.session_ids() == ()


OTHER_PROCESS = """
import asyncio, sys
from chatflow_runtime import Agent, Answer, Runner, SessionError, SQLiteSessionStore

class Engine:
    async def answer(self, request):
        print("asked", flush=True)
        sys.stdin.readline()
        return Answer("Hello from " + sys.argv[2])

try:
    Runner(Agent("A"), SQLiteSessionStore(sys.argv[1]), engine=Engine()).run("s", "hi from " + sys.argv[2])
    print("saved")
except SessionError as error:
    print(error)
"""


def test_two_processes_in_one_session_never_interleave_in_silence(path: Path) -> None:
    """Both are under way when the first ends."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OTHER_PROCESS, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
    told = [process.communicate("\n")[0].strip() for process in processes]
    assert told[0] == "saved"
    assert "was changed by somebody else" in told[1]
    session = SQLiteSessionStore(path).load("s")
    assert session is not None
    assert session.history == [UserMessage("hi from one"), AssistantMessage("A", "Hello from one")]


def test_two_runners_on_one_file_keep_to_their_own_agents(path: Path) -> None:
    """CF-17."""
    first = Runner(swarm(), SQLiteSessionStore(path), engine=ScriptedEngine([Transfer("B"), "Hello.", "Still B."]))
    first.run("s", "hi")
    second = Runner(Agent("Other"), SQLiteSessionStore(path), engine=ScriptedEngine(["Hello."]))
    assert second.run("t", "hi").active_agent_name == "Other"
    assert first.run("s", "hi").active_agent_name == "B"


def test_who_waits_for_a_writer_too_long_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = saved(path)
    monkeypatch.setattr(sqlite_store, "PATIENCE", 0.01)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SessionError, match=r"sessions\.db cannot be used: database is locked"):
            store.load("customer-1")
    assert store.load("customer-1") == SESSION


def test_a_file_that_several_make_at_once_is_made_once(path: Path) -> None:
    script = """
import sys
from chatflow_runtime import SessionContext, SQLiteSessionStore
SQLiteSessionStore(sys.argv[1]).save(SessionContext(sys.argv[2], "A"))
"""
    processes = [subprocess.Popen([sys.executable, "-c", script, str(path), str(number)]) for number in range(6)]
    assert [process.wait() for process in processes] == [0] * 6
    assert sorted(SQLiteSessionStore(path).session_ids()) == [str(number) for number in range(6)]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_where_there_are_no_hard_links_a_store_is_made_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    saved(path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


# --- files that are no store, or none any more


def whole(folder: Path) -> bytes:
    path = folder / "whole.db"
    if not path.exists():
        saved(path, SessionContext("customer-1", "Billing", HISTORY * 200))
    return path.read_bytes()


def other_application(folder: Path) -> bytes:
    path = folder / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE sessions (id, state)")
        db.commit()
    return path.read_bytes()


def newer_version(folder: Path) -> bytes:
    data = bytearray(whole(folder))
    data[60:64] = (sqlite_store.FORMAT + 1).to_bytes(4)
    return bytes(data)


def unclean(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(4096) + data[middle + 4096 :]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda folder: b"", r"is empty \(0 bytes\); delete it"),
        (lambda folder: b"hello", "is no SQLite database"),
        (lambda folder: os.urandom(20_000), "is no SQLite database"),
        (lambda folder: b'{"history": [', "is no SQLite database"),
        (lambda folder: whole(folder)[:50], "is no SQLite database"),
        (lambda folder: whole(folder)[:120], "is damaged"),
        (lambda folder: whole(folder)[:5000], "is damaged"),
        (lambda folder: whole(folder)[:-4096], "is damaged"),
        (lambda folder: unclean(whole(folder)), "is damaged"),
        (other_application, "is another application's database, expected a session store"),
        (newer_version, "has format 2, this version reads 1"),
    ],
)
def test_a_file_that_is_no_whole_store_is_named_and_left_alone(
    tmp_path: Path, path: Path, make: Any, problem: str
) -> None:
    """B080: not a byte changes, nothing appears beside it, and nothing is taken for a new session."""
    data = make(tmp_path)
    path.write_bytes(data)
    beside = sorted(tmp_path.iterdir())
    with pytest.raises(SessionError, match=problem) as refusal:
        SQLiteSessionStore(path)
    assert str(path) in str(refusal.value)
    assert path.read_bytes() == data
    assert sorted(tmp_path.iterdir()) == beside


@pytest.mark.parametrize("make", [lambda data: b"", lambda data: b"x" * 9000, lambda data: data[:8192], unclean])
def test_a_file_that_is_damaged_while_in_use_is_an_error_too(tmp_path: Path, path: Path, make: Any) -> None:
    """B080: neither an empty session nor an old one."""
    data = whole(tmp_path)
    path.write_bytes(data)
    store = SQLiteSessionStore(path)
    path.write_bytes(make(data))
    with pytest.raises(SessionError, match=r"sessions\.db (is damaged|cannot be used)"):
        store.load("customer-1")
    assert path.read_bytes() == make(data)


def test_a_file_that_is_gone_while_in_use_is_an_error_and_no_new_store(path: Path) -> None:
    store = saved(path)
    path.unlink()
    with pytest.raises(SessionError, match=r"sessions\.db cannot be used: unable to open"):
        store.load("customer-1")
    with pytest.raises(SessionError, match=r"sessions\.db cannot be used: unable to open"):
        store.save(SessionContext("s", "A"))
    assert not path.exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(place=st.integers(0, 10**6), change=st.integers(1, 255))
def test_whatever_byte_changes_a_session_comes_back_as_it_was_or_not_at_all(
    tmp_path: Path, path: Path, place: int, change: int
) -> None:
    """B080."""
    data = bytearray(whole(tmp_path))
    data[place % len(data)] ^= change
    path.write_bytes(data)
    with contextlib.suppress(SessionError):
        assert SQLiteSessionStore(path).load("customer-1") == SessionContext("customer-1", "Billing", HISTORY * 200)
    assert path.read_bytes() == data


@pytest.mark.parametrize("name", ["nowhere/sessions.db", "file/sessions.db", ".", "nul\0byte"])
def test_a_place_where_no_file_can_be_is_one_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SessionError, match="cannot be opened: ") as refusal:
        SQLiteSessionStore(tmp_path / name)
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize("name", ["", ":memory:"])
def test_sessions_in_memory_have_a_store_of_their_own(name: str) -> None:
    with pytest.raises(SessionError, match=r"SessionStore\(\) is in memory"):
        SQLiteSessionStore(name)


AS_NOBODY = """
import os, sys
from chatflow_runtime import SessionError, SQLiteSessionStore
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
try:
    SQLiteSessionStore(sys.argv[2])
except SessionError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("new.db", "cannot be opened: Permission denied"),
        ("readonly.db", "cannot be used: attempt to write a readonly database"),
        ("locked.db", "cannot be used: attempt to write a readonly database"),
        ("unreadable.db", "cannot be opened: Permission denied"),
    ],
)
def test_what_may_not_be_written_or_read_is_one_clear_error(name: str, problem: str) -> None:
    """A folder that is not writable, with and without a store in it; before any model is asked."""
    with tempfile.TemporaryDirectory() as directory:  # others may not look into pytest's own
        folder = Path(directory)
        for each, mode in (("readonly.db", 0o444), ("locked.db", 0o666), ("unreadable.db", 0o000)):
            saved(folder / each)
            (folder / each).chmod(mode)
        folder.chmod(0o555)
        command = [sys.executable, "-c", AS_NOBODY, directory, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        folder.chmod(0o755)
    assert problem in done.stdout, done.stderr
    assert name in done.stdout
    assert done.stderr == ""


DISK_FULL = """
import resource, signal, sys
from chatflow_runtime import SessionError, SQLiteSessionStore, UserMessage
store = SQLiteSessionStore(sys.argv[1])
session = store.load("customer-1")
session.add_message(UserMessage("x" * 1_000_000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.save(session)
except SessionError as error:
    print(error)
"""


def test_a_full_disk_is_one_clear_error_and_the_session_is_whole(path: Path) -> None:
    saved(path)
    command = [sys.executable, "-c", DISK_FULL, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "sessions.db cannot be used: " in done.stdout
    assert SQLiteSessionStore(path).load("customer-1") == SESSION


def test_a_process_killed_while_it_writes_leaves_the_session_as_it_was_or_as_it_became(path: Path) -> None:
    """Its journal is rolled back by whoever opens the store next."""
    saved(path)
    script = """
import sys
from chatflow_runtime import SQLiteSessionStore, UserMessage
store = SQLiteSessionStore(sys.argv[1])
session = store.load("customer-1")
print("writing", flush=True)
while True:
    session.add_message(UserMessage("x" * 10_000))
    store.save(session)
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    while path.stat().st_size < 500_000:
        assert process.poll() is None
    process.kill()
    process.communicate()
    session = SQLiteSessionStore(path).load("customer-1")
    assert session is not None
    assert session.history[: len(HISTORY)] == HISTORY
    assert set(session.history[len(HISTORY) :]) == {UserMessage("x" * 10_000)}
