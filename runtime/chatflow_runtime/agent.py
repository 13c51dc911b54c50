"""Agents: declarations of who speaks, with which tools, and to whom it can hand off."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from chatflow_runtime.engine import Engine, ToolSchema
from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.handoffs import HandoffTool, describe, names_of, transfer_tool
from chatflow_runtime.policy import Permission
from chatflow_runtime.tools import Function, Tool, as_tool
from chatflow_runtime.types import Json

Instructions: TypeAlias = str | Callable[[], str] | Callable[[Mapping[str, Json]], str]
"""A text, or a function of nothing or of the session's context."""

DEFAULT_MODEL = "gemini-2.5-flash"


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Everything one agent can call: tools by name, as the model sees them, and their names."""

    tools: Mapping[str, Tool]
    handoffs: Mapping[str, HandoffTool]
    """The handoffs by the names of their transfer tools."""
    schemas: tuple[ToolSchema, ...]
    names: tuple[str, ...]
    withheld: tuple[str, ...] = ()
    """The agent's domain tools that are not in it, because a call does not let it use them."""

    def limited(self, permission: Permission) -> Toolbox:
        """The same without the domain tools that are not permitted; handoffs stay."""
        withheld = tuple(name for name in self.names if name not in self.handoffs and not permission.allows(name))
        if not withheld:
            return self
        tools = {name: tool for name, tool in self.tools.items() if name not in withheld}
        return Toolbox(tools, self.handoffs, tuple(tool.schema for tool in tools.values()), tuple(tools), withheld)


class Agent:
    """Who speaks: a name, instructions, tools, and the agents it can hand off to (first seed document).

    An agent is a declaration: running it changes nothing in it. Raises DefinitionError for a handoff to itself, two
    different peers with one name, and tools whose names meet.
    """

    def __init__(
        self,
        name: str,
        instructions: Instructions | None = "",
        *,
        model: str = DEFAULT_MODEL,
        tools: Iterable[Tool | Function] | None = None,
        handoffs: Iterable[Agent | HandoffTool] | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._name = _checked_name(name)
        self._instructions = instructions or ""
        self._wants_context = callable(instructions) and _parameter_count(instructions, name) == 1
        self._model = model
        self._engine = engine
        self._tools = tuple(_domain_tool(each, name) for each in tools or ())
        self._handoffs: tuple[HandoffTool, ...] = ()
        self._toolbox: Toolbox | None = None
        self._check_names(self._handoffs)
        self.set_handoffs(handoffs or ())

    @property
    def name(self) -> str:
        """What the agent is called; unique in a runner."""
        return self._name

    @property
    def model(self) -> str:
        """The model that answers for the agent where nobody says otherwise."""
        return self._model

    @property
    def engine(self) -> Engine | None:
        """The engine that answers for the agent, whatever the runner's is."""
        return self._engine

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The domain tools, in order of declaration."""
        return self._tools

    @property
    def handoffs(self) -> tuple[Agent, ...]:
        """The agents this one can hand off to, in order of declaration."""
        return tuple(dict.fromkeys(each.agent for each in self._handoffs))

    @property
    def handoff_tools(self) -> tuple[HandoffTool, ...]:
        """The handoffs as configured, in order of declaration."""
        return self._handoffs

    def __repr__(self) -> str:
        return f"Agent({self._name!r})"

    def add_handoff(self, target: Agent | HandoffTool) -> None:
        """Lets this agent hand off to one more; the same handoff a second time changes nothing."""
        added = HandoffTool(target) if isinstance(target, Agent) else target
        if not isinstance(added, HandoffTool):
            text = f"Agent '{self._name}' cannot hand off to {target!r}, expected an Agent or handoff(...)."
            raise DefinitionError(text)
        if added.agent is self:
            raise DefinitionError(f"Agent '{self._name}' cannot hand off to itself.")
        if added in self._handoffs:
            return
        for peer in self.handoffs:
            if peer.name == added.agent.name and peer is not added.agent:
                raise DefinitionError(f"Agent '{self._name}' has two different peers named '{peer.name}'.")
        handoffs = (*self._handoffs, added)
        self._check_names(handoffs)
        self._handoffs = handoffs
        self._toolbox = None

    def set_handoffs(self, targets: Iterable[Agent | HandoffTool]) -> None:
        """Lets this agent hand off to these and to nobody else; where one cannot be, all stay as they were."""
        before = self._handoffs
        self._handoffs, self._toolbox = (), None
        try:
            for each in targets:
                self.add_handoff(each)
        except BaseException:
            self._handoffs = before
            raise

    def get_instructions(self, context: Mapping[str, Json] | None = None) -> str:
        """The instructions as text, given the session's context."""
        if isinstance(self._instructions, str):
            return self._instructions
        given = (MappingProxyType(dict(context or {})),) if self._wants_context else ()
        text = self._instructions(*given)
        if not isinstance(text, str):
            raise DefinitionError(f"The instructions of agent '{self._name}' returned {text!r}, expected text.")
        return text

    def system_prompt(self, context: Mapping[str, Json] | None = None) -> str:
        """What the agent's model is told before the conversation: the instructions."""
        return self.get_instructions(context)

    def get_all_tools(self) -> list[Tool]:
        """The domain tools, then one transfer tool per handoff, as a conversation without context offers them."""
        return list(self.toolbox(None).tools.values())

    def toolbox(self, context: Mapping[str, Json] | None) -> Toolbox:
        """Everything this agent can call in a session with `context`; `None` is outside of any session."""
        if self._toolbox is not None:
            return self._toolbox
        tools = {tool.name: tool for tool in (*self._tools, *self._transfer_tools(context))}
        handoffs = dict(zip(names_of(self._handoffs), self._handoffs, strict=True))
        box = Toolbox(tools, handoffs, tuple(tool.schema for tool in tools.values()), tuple(tools))
        if all(isinstance(each.agent._instructions, str) for each in self._handoffs):
            self._toolbox = box
        return box

    def _transfer_tools(self, context: Mapping[str, Json] | None) -> Iterator[Tool]:
        for name, each in zip(names_of(self._handoffs), self._handoffs, strict=True):
            description = each.description
            if description is None:
                description = describe(each.agent.name, each.agent._excerpted_instructions(context))
            yield transfer_tool(name, target=each.agent.name, description=description, parameters=each.parameters)

    def _excerpted_instructions(self, context: Mapping[str, Json] | None) -> str:
        # Instructions that need a session cannot be shown outside of one.
        return "" if self._wants_context and context is None else self.get_instructions(context)

    def _check_names(self, handoffs: Sequence[HandoffTool]) -> None:
        owners: dict[str, str] = {}
        transfers = zip(names_of(handoffs), handoffs, strict=True)
        for name, owner in (
            *((tool.name, f"its tool '{tool.name}'") for tool in self._tools),
            *((name, f"its handoff to '{each.agent.name}'") for name, each in transfers),
        ):
            if name in owners:
                raise DefinitionError(
                    f"Agent '{self._name}' has two tools named '{name}': {owners[name]} and {owner}. Rename one, "
                    "or give the handoff a tool_name."
                )
            owners[name] = owner


def reachable(start: Agent) -> dict[int, tuple[Agent, ...]]:
    """Every agent that handoffs lead to from `start`, itself first, breadth first, with the shortest way there.

    Keys are identities: agents may hand off in circles, and two may have one name.
    """
    ways: dict[int, tuple[Agent, ...]] = {id(start): (start,)}
    waiting = [start]
    for agent in waiting:
        for peer in agent.handoffs:
            if id(peer) not in ways:
                ways[id(peer)] = (*ways[id(agent)], peer)
                waiting.append(peer)
    return ways


def _domain_tool(given: Tool | Function, name: str) -> Tool:
    made = as_tool(given)
    if made.target is not None:
        raise DefinitionError(
            f"'{made.name}' leads to '{made.target}': give it to agent '{name}' as one of its handoffs."
        )
    return made


def _checked_name(name: object) -> str:
    if isinstance(name, str) and name.strip():
        return name
    raise DefinitionError(f"An agent is named {name!r}, expected some text.")


def _parameter_count(instructions: Callable[..., object], name: str) -> int:
    parameters = inspect.signature(instructions).parameters.values()
    needed = sum(each.default is each.empty and each.kind not in _VARIADIC for each in parameters)
    if needed > 1 or inspect.iscoroutinefunction(instructions):
        raise DefinitionError(
            f"The instructions of agent '{name}' are a function of {needed} parameters, "
            "expected a plain function of none or of the session's context."
        )
    return needed


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
