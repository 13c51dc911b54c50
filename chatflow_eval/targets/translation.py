"""Agents of the reference runtime made again with chatflow-agent, to compare the two on one scenario file."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, MutableMapping
from typing import Any, cast

import chatflow_agent

from chatflow_eval.errors import TargetError
from chatflow_runtime import agent as reference
from chatflow_runtime.graph import CompiledGraph
from chatflow_runtime.handoffs import REASON, HandoffTool
from chatflow_runtime.results import as_json
from chatflow_runtime.runner import Runner
from chatflow_runtime.tools import Tool
from chatflow_runtime.types import Handoff, Json


def translate(runner: Runner, context: MutableMapping[str, Json]) -> chatflow_agent.Runner:
    """The same agents, tools, handoffs and limits; instructions and tools that want the session's context get this one.

    Raises:
        TargetError: something that chatflow-agent has no equal for: a graph, or a handoff that is more than a transfer.
    """
    if isinstance(runner, CompiledGraph):
        raise TargetError("a graph runs on the reference runtime alone: chatflow-agent has none")
    made = {name: _agent(agent, context) for name, agent in runner.agents.items()}
    for agent in runner.agents.values():
        for handoff in agent.handoff_tools:
            made[agent.name].add_handoff(made[_peer(agent, handoff)])
    return chatflow_agent.Runner(
        made[runner.starting_agent.name],
        engine=chatflow_agent.OpenAIEngine(api_key=""),  # the one it makes by itself looks for keys
        max_handoffs_per_turn=runner.limits.max_handoffs_per_turn,
        max_tool_iterations=runner.limits.max_tool_iterations,
    )


def _agent(agent: reference.Agent, context: MutableMapping[str, Json]) -> chatflow_agent.Agent:
    return chatflow_agent.Agent(
        agent.name,
        lambda: agent.system_prompt(context),
        tools=[_tool(tool, context) for tool in agent.tools],
        model=agent.model,
    )


def _peer(agent: reference.Agent, handoff: HandoffTool) -> str:
    """The agent that a plain handoff leads to."""
    plain = HandoffTool(handoff.agent)
    if handoff == plain and type(handoff) is HandoffTool and handoff.parameters == REASON:
        return handoff.agent.name
    what = f"the handoff of {agent.name!r} to {handoff.agent.name!r}"
    if handoff.kind != "transfer":
        raise TargetError(f"{what} is a call that comes back: chatflow-agent has transfers alone")
    if handoff.tool_name is not None or handoff.description is not None:
        raise TargetError(f"{what} has a tool name or a description of its own: chatflow-agent synthesizes both")
    raise TargetError(f"{what} is more than a transfer with a reason: chatflow-agent has nothing else")


def _tool(tool: Tool, context: MutableMapping[str, Json]) -> chatflow_agent.Tool:
    async def call(**arguments: Any) -> object:
        result = tool.invoke(tool.read(arguments), context)
        if inspect.isawaitable(result):
            result = await cast(Awaitable[object], result)
        if isinstance(result, Handoff):
            return chatflow_agent.Handoff(
                target_agent_name=result.target_agent_name,
                reason=result.reason,
                context_updates=dict(result.context_updates),
            )
        return as_json(result)

    made = chatflow_agent.Tool(call, name=tool.name, description=tool.description)
    # What it would make of the wrapper's signature says nothing of the tool.
    made.parameters_schema = dict(tool.parameters)
    return made
