"""Configured handoffs: the transfer tool that leads from one agent to another."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from chatflow_runtime.events import Refusal
from chatflow_runtime.exceptions import ChatflowError, DefinitionError
from chatflow_runtime.naming import is_tool_name, tool_names
from chatflow_runtime.tools import Tool
from chatflow_runtime.types import Handoff, HandoffKind, Json, LimitName, ToolCall

if TYPE_CHECKING:
    from chatflow_runtime.agent import Agent
    from chatflow_runtime.turn import Passing

EXCERPT_LENGTH = 120
"""Characters of the target's instructions that its transfer tool's description shows."""

REASON: Mapping[str, Json] = {"type": "object", "properties": {"reason": {"type": "string"}}}
"""What a transfer tool takes where nothing else is said: one optional text."""

_JOINER = "\N{ZERO WIDTH JOINER}"


@dataclass(frozen=True)
class HandoffTool:
    """A handoff to `agent`, with a tool name and description of its own where they are given.

    It moves the conversation for good; a subclass says otherwise by how it carries out a wish.
    """

    kind: ClassVar[HandoffKind] = "transfer"

    agent: Agent
    tool_name: str | None = None
    description: str | None = None
    parameters: Mapping[str, Json] = field(default_factory=lambda: REASON, kw_only=True)
    """The JSON schema of what the transfer tool takes."""
    acknowledgement: str | None = field(default=None, kw_only=True)
    """What the model reads when the handoff happened; `None` is the first seed document's HANDOFF_SUCCESS."""
    is_wish: bool = field(default=False, kw_only=True)
    """Whether a call only says where the agent wants to go: it stays open, and whoever advances the turn decides."""

    def reason(self, call: ToolCall, warn: Callable[[str], None]) -> str | None:
        """The reason a model gave; whatever else it sent instead, the handoff it wanted is clear."""
        return reason_in(call, warn)

    async def cross(self, passing: Passing) -> Json:
        """Moves control, and returns what the model is told; raises HandoffRefusal where it does not happen."""
        passing.transfer()
        if self.acknowledgement is not None:
            return self.acknowledgement
        reason = passing.wish.reason or ""
        return {"status": "HANDOFF_SUCCESS", "transferred_to": self.agent.name, "reason": reason}


class HandoffRefusal(ChatflowError):
    """A handoff that does not happen; the text is for the model, `limit` is the one that refused it."""

    why: Refusal
    limit: LimitName | None = None
    value: int = 0

    def __init__(self, message: str, *, why: Refusal, limit: LimitName | None = None, value: int = 0) -> None:
        super().__init__(message)
        self.why = why
        self.limit = limit
        self.value = value


def handoff(agent: Agent, *, tool_name: str | None = None, description: str | None = None) -> HandoffTool:
    """A configured handoff for an agent's `handoffs`; raises DefinitionError for a name that some provider refuses."""
    return HandoffTool(agent, checked_tool_name(tool_name, agent.name), description)


def checked_tool_name(name: str | None, target: str) -> str | None:
    """The name given for the tool that leads to `target`; raises DefinitionError where some provider refuses it."""
    if name is None or is_tool_name(name):
        return name
    raise DefinitionError(
        f"The handoff to '{target}' has the tool name {name!r}, expected at most 64 letters, digits, "
        "'_' or '-' with a letter or '_' first."
    )


def describe(name: str, instructions: str) -> str:
    """A transfer tool's description: the target's name and an excerpt of its instructions (first seed document)."""
    introduction = introduce(name)
    text = instructions.strip()
    if not text:
        return introduction
    excerpt = _excerpt(text)
    return f"{introduction} Target agent specialty: {excerpt}{'' if excerpt == text else '...'}"


def introduce(name: str) -> str:
    """The sentence that every transfer tool's description starts with."""
    return f"Hand off the dialogue to '{name}'."


def reason_in(call: ToolCall, warn: Callable[[str], None]) -> str | None:
    """The reason in a transfer's arguments; a warning where they are not what a transfer takes."""
    data = call.parsed()
    if not isinstance(data, dict):
        warn(f"The arguments of '{call.name}' are no JSON object and were taken for none.")
        return None
    reason = data.get("reason")
    if reason is None or isinstance(reason, str):
        return reason
    warn(f"The reason given to '{call.name}' is no text and was taken for its JSON.")
    return json.dumps(reason, ensure_ascii=False)


def names_of(handoffs: Sequence[HandoffTool]) -> tuple[str, ...]:
    """The tool names of one agent's handoffs, in order of declaration."""
    synthesized = iter(tool_names([each.agent.name for each in handoffs if each.tool_name is None]))
    return tuple(each.tool_name or next(synthesized) for each in handoffs)


def transfer_tool(name: str, *, target: str, description: str, parameters: Mapping[str, Json] = REASON) -> Tool:
    """The tool that a model calls to hand the conversation to `target`; it returns a Handoff."""

    def transfer(reason: str | None = None) -> Handoff:
        return Handoff(target, reason)

    return Tool(name, description, parameters, func=transfer, target=target)


def _excerpt(text: str) -> str:
    end = EXCERPT_LENGTH
    while 0 < end < len(text) and _continues(text, end):
        end -= 1
    return text[:end]


def _continues(text: str, index: int) -> bool:
    """Whether the character at `index` belongs to the one before it: an accent, a part of an emoji, half a flag."""
    character = text[index]
    if unicodedata.category(character)[0] == "M" or character == _JOINER or text[index - 1] == _JOINER:
        return True
    if _is_skin_tone(character):
        return True
    start = index
    while start > 0 and _is_regional(text[start - 1]):
        start -= 1
    return _is_regional(character) and (index - start) % 2 == 1


def _is_skin_tone(character: str) -> bool:
    return "\U0001f3fb" <= character <= "\U0001f3ff"


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
