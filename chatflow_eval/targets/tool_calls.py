"""What domain tools return, recorded on a trial's tape and replayed from it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import cast

from chatflow_eval.cassette import ToolExchange
from chatflow_eval.player import AskedTool
from chatflow_eval.scrub import scrub_json, scrub_text
from chatflow_eval.tape import LiveTape, Tape, playing
from chatflow_runtime import events
from chatflow_runtime.results import stable_text
from chatflow_runtime.tools import Tool
from chatflow_runtime.types import Handoff, Json

_Key = tuple[str, ...]


@dataclass(slots=True)
class ToolCalls:
    """The tool calls of one turn: from the tape where it has them, else made, and their results put on it."""

    tape: Tape
    turn: int
    _beginning: events.ToolCalled | None = None
    """The call that is about to be made; nothing else runs between its being told and its being made."""
    _made: dict[_Key, ToolExchange] = field(default_factory=dict)
    """Calls that were made and whose results the model has not been told, by the calls around them and their ids."""

    def see(self, event: events.Event) -> None:
        """Follows the runner's events."""
        match event:
            case events.ToolCalled():
                self._beginning = event
            case events.ToolAnswered():
                made = self._made.pop((*event.within, event.call_id), None)
                if made is not None:
                    self.tape.record_tool(_answered(made, event))

    async def through(self, tool: Tool, call: Callable[[], object], context: Mapping[str, Json]) -> object:
        """The recorded result of the call, or its own.

        Raises:
            CassetteError: it was not recorded.
        """
        event = self._beginning
        assert event is not None
        asked = AskedTool(event.agent, self.turn, tool.name, scrub_json(event.arguments))
        found = self.tape.replay_tool(asked)
        if found is not None:
            return _again(found, cast(MutableMapping[str, Json], context))
        before = copy.deepcopy(dict(context))
        made = ToolExchange(agent=asked.agent, turn=asked.turn, tool=asked.tool, arguments=asked.arguments)
        try:
            with playing(LiveTape()):  # what the tool asks of others is in its result
                result = call()
                if inspect.isawaitable(result):
                    result = await cast(Awaitable[object], result)
            if isinstance(result, Handoff):
                wish = {"target": result.target_agent_name, "reason": result.reason}
                made = replace(made, handoff={**wish, "context": dict(result.context_updates)})
        except (Exception, SystemExit) as error:
            made = replace(made, error=scrub_text(stable_text(error)))
            raise
        finally:
            changed = {key: value for key, value in context.items() if key not in before or before[key] != value}
            made = replace(
                made,
                context=cast(dict[str, Json], scrub_json(changed)) if changed else None,
                dropped=tuple(key for key in before if key not in context),
            )
            self._made[(*event.within, event.call_id)] = made
        return result


def _answered(made: ToolExchange, event: events.ToolAnswered) -> ToolExchange:
    """The exchange with what the model was told, unless more is known of what came of the call."""
    if made.error is not None or made.handoff is not None:
        return made
    if event.is_error:
        # What the function returned is no JSON.
        return replace(made, error=scrub_text(str(event.content).partition(" failed: ")[2]))
    return replace(made, result=scrub_json(event.content))


def _again(found: ToolExchange, context: MutableMapping[str, Json]) -> object:
    """What the recorded call did: its changes of the context, and its result, wish or exception."""
    context.update(copy.deepcopy(found.context or {}))
    for key in found.dropped:
        context.pop(key, None)
    if found.error is not None:
        name, _, text = found.error.partition(": ")
        raise type(name, (Exception,), {})(text)
    if found.handoff is not None:
        wish = found.handoff
        updates = cast(Mapping[str, Json], wish.get("context") or {})
        return Handoff(str(wish["target"]), cast("str | None", wish.get("reason")), updates)
    return copy.deepcopy(found.result)
