"""In replay nothing connects: what tries to fails its trial, and says where."""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from chatflow_eval import guard
from chatflow_eval.cassette import Origin
from chatflow_eval.errors import NetworkRefused
from chatflow_eval.tape import ForkingTape, LiveTape, RecordingTape, Reel, ReplayTape, Tape, playing
from chatflow_eval.testing import Reply, ScriptedServer

ORIGIN = Origin(file="a", scenario="x", model="m", repeat=1)


def reel(*allow_hosts: str) -> Reel:
    return Reel(path=Path("/nowhere/c.json"), origin=ORIGIN, rerecord="", allow_hosts=allow_hosts)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ScriptedServer(lambda _: Reply(text="hi")) as server:
        yield server.port


def connect(port: int, host: str = "127.0.0.1") -> str:
    with socket.create_connection((host, port), timeout=5):
        return "connected"


def attempt(port: int, tape: Tape, host: str = "127.0.0.1") -> str:
    with guard.watching(), playing(tape):
        return connect(port, host)


def test_a_connection_in_replay_is_refused_with_who_where_and_what_to_do(port: int) -> None:
    tape = ReplayTape.load(reel())
    tape.agent, tape.turn = "Billing", 2
    with pytest.raises(NetworkRefused) as caught:
        attempt(port, tape)
    message = str(caught.value)
    assert "agent Billing, turn 2: " in message
    assert f"{Path(__file__).name}:" in message
    assert f"in connect connects to 127.0.0.1:{port} while replaying" in message
    assert "allow_hosts: [127.0.0.1]" in message
    assert tape.error is caught.value, "whoever swallows the exception, the trial fails"


def test_what_swallows_the_refusal_changes_nothing(port: int) -> None:
    tape = ReplayTape.load(reel())
    with guard.watching(), playing(tape), suppress(Exception):
        connect(port)
    assert isinstance(tape.error, NetworkRefused)


@pytest.mark.parametrize("tape", [LiveTape(), RecordingTape(reel()), ForkingTape.load(reel())])
def test_trials_that_may_go_live_may_connect(port: int, tape: Tape) -> None:
    assert attempt(port, tape) == "connected"


@pytest.mark.parametrize("allowed", ["127.0.0.1", "localhost", "*"])
def test_a_host_that_is_allowed_is_reached(port: int, allowed: str) -> None:
    assert attempt(port, ReplayTape.load(reel(allowed))) == "connected"


def test_a_host_that_is_allowed_by_name_is_reached_by_the_addresses_it_stands_for(port: int) -> None:
    found = socket.getaddrinfo
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", lambda host, *rest, **named: found("127.0.0.1", *rest, **named))
        tape = ReplayTape.load(reel("tools.example.org"))
        assert attempt(port, tape, "tools.example.org") == "connected"
        with pytest.raises(NetworkRefused, match=r"connects to other\.example\.org"):
            attempt(port, tape, "other.example.org")


def test_a_name_is_not_even_looked_up() -> None:
    with pytest.raises(NetworkRefused, match=r"connects to api\.example\.org:443"):
        attempt(443, ReplayTape.load(reel()), "api.example.org")


async def test_an_event_loop_does_not_look_it_up_either(port: int) -> None:
    for host in ("api.example.org", "127.0.0.1"):
        with guard.watching(), playing(ReplayTape.load(reel())), pytest.raises(NetworkRefused, match=host):
            await asyncio.open_connection(host, port)


async def test_an_event_loop_reaches_what_is_allowed(port: int) -> None:
    with guard.watching(), playing(ReplayTape.load(reel("localhost"))):
        _, writer = await asyncio.open_connection("localhost", port)
    writer.close()
    await writer.wait_closed()


def test_datagrams_are_refused_too() -> None:
    with guard.watching(), playing(ReplayTape.load(reel())), socket.socket(type=socket.SOCK_DGRAM) as sock:
        with pytest.raises(NetworkRefused):
            sock.sendto(b"x", ("127.0.0.1", 9))
        with pytest.raises(NetworkRefused):
            sock.sendto(b"x", 0, ("127.0.0.1", 9))


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no unix sockets here")
def test_a_socket_in_the_file_system_is_a_host_by_its_path(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        for tape, is_let_out in ((ReplayTape.load(reel()), False), (ReplayTape.load(reel(path)), True)):
            with guard.watching(), playing(tape), socket.socket(socket.AF_UNIX) as sock:
                if is_let_out:
                    sock.connect(path)
                else:
                    with pytest.raises(NetworkRefused):
                        sock.connect(path)


def test_a_trial_may_run_an_event_loop_of_its_own() -> None:
    async def nothing() -> str:
        await asyncio.sleep(0)
        return "done"

    with guard.watching(), playing(ReplayTape.load(reel())):
        context = contextvars.copy_context()
        assert context.run(asyncio.run, nothing()) == "done"
        one, other = socket.socketpair()
    one.close()
    other.close()


def in_thread(work: object) -> BaseException | None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_a_thread_that_a_trial_may_have_started_without_its_context_is_refused(port: int) -> None:
    with guard.watching():
        error = in_thread(lambda: connect(port))
    assert isinstance(error, NetworkRefused)
    assert "outside of any trial while trials are replayed" in str(error)


def test_threads_that_were_there_before_are_nobodys_business(port: int) -> None:
    begin, done = threading.Event(), []

    def wait_and_connect() -> None:
        begin.wait(10)
        done.append(connect(port))

    thread = threading.Thread(target=wait_and_connect)
    thread.start()
    with guard.watching():
        begin.set()
        thread.join()
    assert done == ["connected"]


def patched() -> tuple[object, ...]:
    return (
        *(vars(socket.socket).get(name) for name in ("connect", "connect_ex", "sendto")),
        socket.getaddrinfo,
        socket.socketpair,
        asyncio.BaseEventLoop.getaddrinfo,
    )


def test_nothing_is_left_behind_whatever_the_order_of_closing(port: int) -> None:
    before = patched()
    one, other = ExitStack(), ExitStack()
    one.enter_context(guard.watching())
    other.enter_context(guard.watching())
    assert all(was is not now for was, now in zip(before, patched(), strict=True))
    one.close()
    assert guard.is_watching()
    other.close()
    assert patched() == before
    assert not guard.is_watching()


def test_somebody_elses_wrapper_around_ours_is_left_alone_and_does_no_harm(port: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        with guard.watching():
            ours = socket.getaddrinfo
            patch.setattr(socket, "getaddrinfo", lambda *args, **named: ours(*args, **named))
        with playing(ReplayTape.load(reel())):
            assert connect(port) == "connected", "nobody watches any more"
    socket.getaddrinfo = ours.__wrapped__  # type: ignore[attr-defined]
