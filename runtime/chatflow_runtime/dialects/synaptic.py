"""The third seed document (Synaptic): handoff tools, agents, supervisors, swarms and graphs, over the one runner."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from chatflow_runtime.agent import Agent, Instructions
from chatflow_runtime.engine import Engine
from chatflow_runtime.exceptions import DefinitionError, GraphError, StepLimitError
from chatflow_runtime.graph import END, START, AgentNode, CompiledGraph, FnNode, StateGraph, graph_of
from chatflow_runtime.handoffs import HandoffTool
from chatflow_runtime.memory import BaseSessionStore
from chatflow_runtime.states import GraphEvent, MessageState, StateRunner, create_handoff_tool, handoff_by
from chatflow_runtime.tools import Function, Tool, as_tool
from chatflow_runtime.turn import Passing
from chatflow_runtime.types import HandoffKind, Json

__all__ = [
    "END",
    "START",
    "AgentOptions",
    "CompiledGraph",
    "FnNode",
    "GraphError",
    "GraphEvent",
    "MessageState",
    "StateGraph",
    "StateRunner",
    "StepLimitError",
    "SupervisorOptions",
    "SwarmAgent",
    "SwarmOptions",
    "create_agent",
    "create_handoff_tool",
    "create_supervisor",
    "create_swarm",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What may be said of an agent."""

    system_prompt: Instructions = ""
    name: str = "agent"
    """What it goes by alone; as a node, a supervisor's agent or inside a function it goes by that name."""


_AGENT = AgentOptions()


def create_agent(
    model: str | Engine, tools: Sequence[Tool | Function], options: AgentOptions = _AGENT
) -> CompiledGraph:
    """An agent on a model (its name as litellm has it, or an engine), with handoff tools among its tools where wanted.

    A handoff tool that its model calls stays open, for the edges of the graph that the agent is a node of.
    """
    return graph_of(AgentNode(model, tuple(as_tool(each) for each in tools), options.system_prompt), options.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """What may be said of a supervisor."""

    system_prompt: Instructions | None = None
    """`None` names the agents."""
    name: str = "supervisor"
    session_store: BaseSessionStore | None = None
    """Where sessions are kept; `None` is in memory."""
    max_handoffs_per_turn: int = 5
    max_tool_iterations: int = 10


_SUPERVISOR = SupervisorOptions()


def create_supervisor(
    model: str | Engine,
    agents: Iterable[tuple[str, StateRunner]],
    options: SupervisorOptions = _SUPERVISOR,
) -> StateRunner:
    """An agent who calls others by `transfer_to_<name>`, and reads what they answered as the calls' results.

    Each of them sees the conversation so far. Their own handoff tools lead to one another. Raises DefinitionError for
    an agent that `create_agent` did not make, and for names that are missing or meet.
    """
    nodes: dict[str, AgentNode] = {}
    for name, agent in agents:
        if not isinstance(agent, CompiledGraph) or (node := agent.only_agent) is None:
            kind = type(agent).__name__
            raise DefinitionError(f"A supervisor's agent '{name}' is a {kind}, expected what create_agent() returns.")
        _add(nodes, name, node)
    if not nodes:
        raise DefinitionError("A supervisor needs at least one agent.")
    if options.name in nodes:
        raise DefinitionError(
            f"'{options.name}' is the supervisor's own name: rename that agent, or set SupervisorOptions.name."
        )
    team = _declared(nodes)
    prompt = _introduction(nodes) if options.system_prompt is None else options.system_prompt
    supervisor = AgentNode(model, (), prompt).declared(options.name)
    for member in team.values():
        supervisor.add_handoff(_errand(member))
    return _runner(supervisor, options)


@dataclass(frozen=True, slots=True)
class SwarmAgent:
    """One agent of a swarm."""

    name: str
    model: str | Engine
    tools: Sequence[Tool | Function] = ()
    system_prompt: Instructions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmOptions:
    """What may be said of a swarm."""

    session_store: BaseSessionStore | None = None
    """Where sessions are kept; `None` is in memory."""
    max_handoffs_per_turn: int = 5
    max_tool_iterations: int = 10


_SWARM = SwarmOptions()


def create_swarm(agents: Sequence[SwarmAgent], options: SwarmOptions = _SWARM) -> StateRunner:
    """Agents that can all hand off to one another by `transfer_to_<name>`; the first one starts.

    Whoever has the conversation keeps it, over tool calls and user turns, until it hands off. Raises DefinitionError
    for a swarm of nobody, and for names that are missing or meet.
    """
    nodes: dict[str, AgentNode] = {}
    for each in agents:
        tools = tuple(as_tool(tool) for tool in each.tools)
        _add(nodes, each.name, AgentNode(each.model, tools, each.system_prompt or ""))
    if not nodes:
        raise DefinitionError("A swarm needs at least one agent.")
    team = _declared(nodes)
    for agent in team.values():
        for peer in team.values():
            if peer is not agent and peer not in agent.handoffs:
                agent.add_handoff(handoff(peer))
    return _runner(next(iter(team.values())), options)


def handoff(agent: Agent, *, tool_name: str | None = None, description: str | None = None) -> HandoffTool:
    """A handoff as it is in this document: the name as given, no arguments, and the tool's own words as its answer.

    Raises DefinitionError for a name with which some provider would refuse the tool.
    """
    by = handoff_by(create_handoff_tool(agent.name, ""), agent)
    return replace(by, tool_name=tool_name or by.tool_name, description=description)


@dataclass(frozen=True, slots=True)
class _Errand(HandoffTool):
    """A call on the conversation so far; what the agent says is the result."""

    kind: ClassVar[HandoffKind] = "call"

    async def cross(self, passing: Passing) -> Json:
        return await passing.borrow(passing.history, passing.permission)


def _errand(agent: Agent) -> _Errand:
    by = handoff(agent)
    return _Errand(agent, by.tool_name, parameters=by.parameters)


def _add(nodes: dict[str, AgentNode], name: str, node: AgentNode) -> None:
    if name in nodes:
        raise DefinitionError(f"Two agents are named '{name}'.")
    nodes[name] = node


def _declared(nodes: Mapping[str, AgentNode]) -> dict[str, Agent]:
    """The agents, with the handoffs to one another that their own tools make."""
    team = {name: node.declared(name) for name, node in nodes.items()}
    for name, node in nodes.items():
        for target, tool in node.handoffs:
            if target not in team:
                near = difflib.get_close_matches(target, team, 1)
                hint = f"; did you mean '{near[0]}'?" if near else "."
                known = ", ".join(f"'{each}'" for each in team)
                raise DefinitionError(f"'{tool.name}' of agent '{name}' leads to nobody here{hint} Agents: {known}.")
            team[name].add_handoff(handoff_by(tool, team[target]))
    return team


def _introduction(names: Iterable[str]) -> str:
    agents = ", ".join(f"'{name}'" for name in names)
    return f"You are the supervisor of these agents: {agents}. Let them work for you, then answer the user."


def _runner(starting_agent: Agent, options: SupervisorOptions | SwarmOptions) -> StateRunner:
    return StateRunner(
        starting_agent,
        options.session_store,
        max_handoffs_per_turn=options.max_handoffs_per_turn,
        max_tool_iterations=options.max_tool_iterations,
    )
