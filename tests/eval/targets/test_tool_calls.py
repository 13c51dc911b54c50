"""What tools did goes on the tape, and comes back from it as if they had done it again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chatflow_eval.cassette import Cassette, Origin, ToolExchange, write
from chatflow_eval.errors import CassetteMismatch
from chatflow_eval.tape import LiveTape, RecordingTape, Reel, ReplayTape, current, playing
from chatflow_eval.targets.tool_calls import ToolCalls
from chatflow_runtime import tool
from chatflow_runtime.events import ToolAnswered, ToolCalled
from chatflow_runtime.tools import Arguments, Tool, invoking
from chatflow_runtime.types import Handoff, Json


def reel(path: Path) -> Reel:
    origin = Origin(file="a", scenario="x", model="m", repeat=1)
    return Reel(path=path, origin=origin, rerecord="chatflow-eval record a", tools=True)


def called(one: Tool, arguments: Json, *, within: tuple[str, ...] = (), call: str = "c1") -> ToolCalled:
    return ToolCalled("Billing", call, one.name, arguments, known=True, within=within)


async def make(calls: ToolCalls, one: Tool, context: dict[str, Json], told: Json = None, **arguments: Json) -> Any:
    """One call as the runner makes it, and what it then tells the model."""
    event = called(one, arguments)
    calls.see(event)
    try:
        with invoking(calls.through):
            result: Any = one.invoke(Arguments(arguments), context)
            result = await result
    except Exception as error:
        failed = f"Error: tool '{one.name}' failed: {type(error).__name__}: {error}"
        calls.see(ToolAnswered("Billing", "c1", one.name, failed, is_error=True))
        raise
    calls.see(ToolAnswered("Billing", "c1", one.name, result if told is None else told, is_error=False))
    return result


@tool
def refund(amount: int, context: dict[str, object]) -> dict[str, object]:
    """Refunds."""
    if amount > 100:
        raise ValueError("too much")
    context["refunded"] = amount
    context.pop("asked", None)
    return {"refunded": amount, "api_key": "planted"}


@tool
async def give_back() -> Handoff:
    """Back to the desk."""
    await asyncio.sleep(0)
    return Handoff("Triage", "done", {"by": "tool"})


async def test_results_and_changes_of_the_context_are_kept_without_secrets(tmp_path: Path) -> None:
    tape = RecordingTape(reel(tmp_path / "c.json"))
    context: dict[str, Json] = {"asked": True, "tier": "gold"}
    assert (await make(ToolCalls(tape, 2), refund, context, amount=7))["api_key"] == "planted"
    assert tape.called == [
        ToolExchange(
            agent="Billing",
            turn=2,
            tool="refund",
            arguments={"amount": 7},
            result={"refunded": 7, "api_key": "[redacted]"},
            context={"refunded": 7},
            dropped=("asked",),
        )
    ]


async def test_exceptions_and_wishes_are_kept_as_what_they_are(tmp_path: Path) -> None:
    tape = RecordingTape(reel(tmp_path / "c.json"))
    calls = ToolCalls(tape, 1)
    with pytest.raises(ValueError, match="too much"):
        await make(calls, refund, {}, amount=101)
    await make(calls, give_back, {}, told={"status": "HANDOFF_SUCCESS"})
    raised, wished = tape.called
    assert (raised.error, raised.result) == ("ValueError: too much", None)
    assert (wished.handoff, wished.result) == ({"target": "Triage", "reason": "done", "context": {"by": "tool"}}, None)


async def test_what_was_recorded_happens_again(tmp_path: Path) -> None:
    path = tmp_path / "c.json"

    def kept(**more: Any) -> ToolExchange:
        given: dict[str, Any] = {"agent": "Billing", "turn": 1, "tool": "refund", "arguments": {"amount": 7}}
        return ToolExchange(**given | more)

    exchanges = (
        kept(result={"refunded": 7}, context={"refunded": 7}, dropped=("asked",)),
        kept(error="LookupError: no such order: 7"),
        kept(tool="give_back", arguments={}, handoff={"target": "Triage", "reason": "done", "context": {"by": "tool"}}),
    )
    write(Cassette(path, (), exchanges))
    calls = ToolCalls(ReplayTape.load(reel(path)), 1)
    context: dict[str, Json] = {"asked": True}
    assert await make(calls, refund, context, amount=7) == {"refunded": 7}
    assert context == {"refunded": 7}
    with pytest.raises(Exception, match=r"^no such order: 7$") as caught:
        await make(calls, refund, context, amount=7)
    assert type(caught.value).__name__ == "LookupError"
    assert await make(calls, give_back, context, told={}) == Handoff("Triage", "done", {"by": "tool"})
    with pytest.raises(CassetteMismatch, match="recorded 2, asked 3"):
        await make(calls, refund, context, amount=7)


async def test_what_the_tool_asks_of_others_is_its_own_affair(tmp_path: Path) -> None:
    seen: list[object] = []

    @tool
    def look() -> str:
        """Looks."""
        seen.append(current())
        return "done"

    tape = RecordingTape(reel(tmp_path / "c.json"))
    with playing(tape):
        await make(ToolCalls(tape, 1), look, {})
        assert current() is tape
    assert isinstance(seen[0], LiveTape)


async def test_calls_that_are_refused_before_they_are_made_are_not_kept(tmp_path: Path) -> None:
    tape = RecordingTape(reel(tmp_path / "c.json"))
    calls = ToolCalls(tape, 1)
    calls.see(called(refund, {}))
    calls.see(ToolAnswered("Billing", "c1", "refund", "Error: The argument 'amount' is missing", is_error=True))
    assert tape.called == []


async def test_calls_within_calls_do_not_mix(tmp_path: Path) -> None:
    """Two agents that are called at once call the same tool, with the same id of the call."""
    tape = RecordingTape(reel(tmp_path / "c.json"))
    calls = ToolCalls(tape, 1)

    @tool
    async def slow(name: str, rounds: int) -> str:
        """Takes a while."""
        for _ in range(rounds):
            await asyncio.sleep(0)
        return name

    async def one(name: str, rounds: int) -> None:
        event = called(slow, {"name": name, "rounds": rounds}, within=(name,))
        calls.see(event)
        with invoking(calls.through):
            result: Any = slow.invoke(Arguments({"name": name, "rounds": rounds}), {})
            said = await result
        calls.see(ToolAnswered("Billing", "c1", "slow", said, is_error=False, within=(name,)))

    await asyncio.gather(one("first", 5), one("second", 1))
    assert [(each.arguments, each.result) for each in tape.called] == [
        ({"name": "second", "rounds": 1}, "second"),
        ({"name": "first", "rounds": 5}, "first"),
    ]
