"""Configured handoffs: the transfer tool that leads from one agent to another."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.naming import is_tool_name, tool_names
from chatflow_runtime.tools import Tool
from chatflow_runtime.types import Handoff, Json

if TYPE_CHECKING:
    from chatflow_runtime.agent import Agent

EXCERPT_LENGTH = 120
"""Characters of the target's instructions that its transfer tool's description shows."""

_PARAMETERS: dict[str, Json] = {"type": "object", "properties": {"reason": {"type": "string"}}}
_JOINER = "\N{ZERO WIDTH JOINER}"


@dataclass(frozen=True, slots=True)
class HandoffTool:
    """A handoff to `agent`, with a tool name and description of its own where they are given."""

    agent: Agent
    tool_name: str | None = None
    description: str | None = None


def handoff(agent: Agent, *, tool_name: str | None = None, description: str | None = None) -> HandoffTool:
    """A configured handoff for an agent's `handoffs`; raises DefinitionError for a name that some provider refuses."""
    if tool_name is not None and not is_tool_name(tool_name):
        raise DefinitionError(
            f"The handoff to '{agent.name}' has the tool name {tool_name!r}, expected at most 64 letters, digits, "
            "'_' or '-' with a letter or '_' first."
        )
    return HandoffTool(agent, tool_name, description)


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


def names_of(handoffs: Sequence[HandoffTool]) -> tuple[str, ...]:
    """The tool names of one agent's handoffs, in order of declaration."""
    synthesized = iter(tool_names([each.agent.name for each in handoffs if each.tool_name is None]))
    return tuple(each.tool_name or next(synthesized) for each in handoffs)


def transfer_tool(name: str, *, target: str, description: str) -> Tool:
    """The tool that a model calls to hand the conversation to `target`; it returns a Handoff."""

    def transfer(reason: str | None = None) -> Handoff:
        return Handoff(target, reason)

    return Tool(name, description, _PARAMETERS, func=transfer, target=target)


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
