"""How much one user turn may do, and what is said when it wants more."""

from __future__ import annotations

from dataclasses import dataclass, fields

from chatflow_runtime.exceptions import DefinitionError

HANDOFFS_EXCEEDED = "Maximum agent transfers exceeded for a single turn."
"""What a transfer past `max_handoffs_per_turn` is told (first seed document)."""

EXECUTIONS_EXCEEDED = "Maximum tool executions exceeded for a single turn."
"""What a call past `max_tool_iterations` is told."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Transfers that may succeed, and tool executions of any kind, in one user turn."""

    max_handoffs_per_turn: int = 5
    max_tool_iterations: int = 10

    def __post_init__(self) -> None:
        for field in fields(self):
            check_count(field.name, getattr(self, field.name), least=0)


def check_count(name: str, value: object, *, least: int) -> None:
    """Raises DefinitionError, which names what is counted, for anything but a whole number of at least so many."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DefinitionError(f"{name} is {value!r}, expected a whole number of {least} or more.")


def exhausted_text(agent: str) -> str:
    """The reply of a turn that `max_tool_iterations` ended."""
    return f"Execution iteration limit reached by agent '{agent}'."
