"""What a call lets its target have: of the conversation, of its own tools, of time (second document)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias, get_args
from weakref import WeakKeyDictionary

from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.filters import ChatMessage, is_system, last
from chatflow_runtime.limits import check_count

Callback: TypeAlias = Callable[..., Any]
"""A plain or async function; how many parameters it takes decides what it is given."""

SUMMARY_LENGTH = 3
"""Messages that the policy `summary` shows."""


class ContextPolicy(StrEnum):
    """How much of the source's conversation the target sees, besides what it is asked."""

    FULL = "full"
    """All of it."""
    SUMMARY = "summary"
    """Its last three messages other than system ones; no model is asked."""
    NONE = "none"
    """Nothing else."""
    LAST_N = "last_n"
    """Its last `max_context_messages` messages other than system ones."""

    def select(
        self, messages: Sequence[ChatMessage], max_messages: int, *, with_question: bool = True
    ) -> list[ChatMessage]:
        """The messages that the policy lets through, in order, with system ones and, as a question, the user's last."""
        if self is ContextPolicy.FULL:
            return list(messages)
        size = {ContextPolicy.SUMMARY: SUMMARY_LENGTH, ContextPolicy.NONE: 0}.get(self, max_messages)
        shown = last([message for message in messages if not is_system(message)], size)
        kept = {id(message) for message in shown}
        if with_question:
            kept |= {id(message) for message in [each for each in messages if each.get("role") == "user"][-1:]}
        return [message for message in messages if is_system(message) or id(message) in kept]


ToolPolicyMode: TypeAlias = Literal["intersect", "passthrough"]


@dataclass(frozen=True, slots=True)
class HandoffToolPolicy:
    """Which of its own domain tools the target may use: those the source has too, or all, less the blocked ones."""

    mode: ToolPolicyMode = "intersect"
    blocked_tools: Sequence[str] = ()
    """Never usable, nor in calls that the target makes itself."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(ToolPolicyMode):
            raise DefinitionError(f"The tool policy is {self.mode!r}, expected 'intersect' or 'passthrough'.")
        object.__setattr__(self, "blocked_tools", _names("blocked_tools", self.blocked_tools))


@dataclass(frozen=True, slots=True)
class Permission:
    """The domain tools that may be executed: all, or `only` these, and `never` those."""

    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()

    def allows(self, tool: str) -> bool:
        """Whether an agent that has the tool may use it."""
        return tool not in self.never and (self.only is None or tool in self.only)

    def narrowed(self, policy: HandoffToolPolicy, tools: Iterable[str]) -> Permission:
        """What is left in a call made under `policy` by an agent that has these tools."""
        only = frozenset(tools) if policy.mode == "intersect" else None
        return Permission(only, self.never | frozenset(policy.blocked_tools))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffConfig:
    """How a handoff is carried out; raises DefinitionError for a setting that cannot work."""

    context_policy: ContextPolicy | str = ContextPolicy.SUMMARY
    max_context_messages: int = 10
    """Of the policy `last_n`."""
    tool_policy: HandoffToolPolicy = field(default_factory=HandoffToolPolicy)
    timeout_seconds: float | None = 300.0
    """How long the target may take; `None` is as long as it likes."""
    max_concurrent: int | None = None
    """Of one handoff, in one event loop; others wait. `None` is any number."""
    detect_cycles: bool = True
    """Whether an agent whose own handoff is under way is refused as a target."""
    max_depth: int = 10
    """How many handoffs may be under way inside one another, this one included."""
    allowed_agents: Sequence[str] | None = None
    """The names of the agents that may be the target; `None` is any."""
    on_handoff: Callback | None = None
    """Called before control moves: `()`, `(source)`, `(source, data)` or `(from_agent, to_agent, context)`."""
    on_complete: Callback | None = None
    """Called when the target has answered: `()`, `(result)` or `(source, result)`."""
    on_error: Callback | None = None
    """Called instead when it has not, or was refused."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "context_policy", ContextPolicy(self.context_policy))
        except ValueError:
            known = ", ".join(f"'{policy}'" for policy in ContextPolicy)
            raise DefinitionError(f"context_policy is {self.context_policy!r}, expected one of {known}.") from None
        if not isinstance(self.tool_policy, HandoffToolPolicy):
            raise DefinitionError(f"tool_policy is {self.tool_policy!r}, expected a HandoffToolPolicy.")
        for name, least in (("max_context_messages", 0), ("max_depth", 0), ("max_concurrent", 1)):
            if (value := getattr(self, name)) is not None or name != "max_concurrent":
                check_count(name, value, least=least)
        if self.timeout_seconds is not None and not self.timeout_seconds > 0:
            raise DefinitionError(f"timeout_seconds is {self.timeout_seconds!r}, expected more than 0, or None.")
        if self.allowed_agents is not None:
            object.__setattr__(self, "allowed_agents", _names("allowed_agents", self.allowed_agents))
        for name, most in (("on_handoff", 3), ("on_complete", 2), ("on_error", 2)):
            if (callback := getattr(self, name)) is not None:
                parameter_count(callback, name, most)

    def selected(self, messages: Sequence[ChatMessage], *, with_question: bool) -> list[ChatMessage]:
        """The messages that the context policy lets through."""
        policy = ContextPolicy(self.context_policy)
        return policy.select(messages, self.max_context_messages, with_question=with_question)


class Lane:
    """At most `size` at once; each event loop has its own count, so that a process may run several, one by one."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for the length of the block, waited for where all are taken."""
        if self._size is None:
            yield
            return
        loop = asyncio.get_running_loop()
        if (semaphore := self._semaphores.get(loop)) is None:
            semaphore = self._semaphores[loop] = asyncio.Semaphore(self._size)
        async with semaphore:
            yield


def parameter_count(callback: Callback, name: str, most: int) -> int:
    """How many values a callback is called with: the parameters it requires, or `most` where it takes any number.

    Raises DefinitionError when it requires more, or some by name.
    """
    if not callable(callback):
        raise DefinitionError(f"{name} is {callback!r}, expected a function.")
    parameters = inspect.signature(callback).parameters.values()
    required = [each for each in parameters if each.default is each.empty and each.kind not in _VARIADIC]
    if len(required) > most or any(each.kind is each.KEYWORD_ONLY for each in required):
        raise DefinitionError(
            f"{name} requires {len(required)} parameters, expected at most {most}, given by position."
        )
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return most if takes_any and not required else len(required)


async def call_back(callback: Callback, name: str, values: Mapping[int, tuple[object, ...]]) -> None:
    """Calls a callback with the values for as many parameters as it has, and awaits what is awaitable."""
    result = callback(*values[parameter_count(callback, name, max(values))])
    if inspect.isawaitable(result):
        await result


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _names(setting: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise DefinitionError(f"{setting} is {names!r}, expected a list of names.")
    return tuple(names)
