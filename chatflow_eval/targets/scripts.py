"""A turn's script, as the engine that stands in for its models reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chatflow_eval.scenario import ScriptedAnswer, ScriptedCall
from chatflow_runtime.engine import Call, Say, Transfer
from chatflow_runtime.naming import tool_name


def scripted(script: Sequence[ScriptedAnswer]) -> Iterator[tuple[Say | Call | Transfer, ...]]:
    """The answers in order, each what is said and the calls that are made with it."""
    for answer in script:
        said = () if answer.say is None else (Say(answer.say),)
        yield (*said, *(_call(call) for call in answer.calls))


def _call(call: ScriptedCall) -> Call | Transfer:
    if call.transfer is not None and not call.arguments:
        return Transfer(call.transfer, call.reason)
    arguments: Any = call.arguments
    return Call(call.tool or tool_name(call.transfer or ""), arguments)
