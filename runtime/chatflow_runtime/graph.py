"""Graphs whose nodes are agents and functions: a state goes in at START and along the edges to END (third document)."""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeAlias, cast

from chatflow_runtime.agent import Agent, Instructions
from chatflow_runtime.engine import Answer, Engine, ModelRequest
from chatflow_runtime.events import Observer, Refusal
from chatflow_runtime.exceptions import DefinitionError, GraphError, StepLimitError
from chatflow_runtime.memory import BaseSessionStore, SessionContext
from chatflow_runtime.naming import PREFIX
from chatflow_runtime.states import (
    UNANSWERED,
    GraphEvent,
    MessageState,
    StateRunner,
    acknowledgement,
    create_handoff_tool,
    fault_of,
    handoff_by,
    turn_around,
    wish_of,
    wished_by,
)
from chatflow_runtime.tools import Tool
from chatflow_runtime.turn import LastWord, Turn
from chatflow_runtime.types import AgentResponse, AssistantMessage, Handoff, Message, ToolCall, ToolResult, UserMessage

__all__ = [
    "END",
    "START",
    "STEP_LIMIT",
    "AgentNode",
    "CompiledGraph",
    "FnNode",
    "GraphEvent",
    "MessageState",
    "Node",
    "StateGraph",
    "StateRunner",
    "create_handoff_tool",
    "graph_of",
]

START = "__start__"
"""Where a graph begins: the source of the edge to its entry point."""

END = "__end__"
"""Where a graph ends: the target of an edge that leads to no node."""

STEP_LIMIT = 100
"""Nodes that run in one invocation of a graph where nobody says otherwise."""


# --- nodes


class Node(Protocol):
    """A step of a graph."""

    async def process(self, state: MessageState) -> MessageState:
        """The state that takes the given one's place."""
        ...


Function: TypeAlias = Callable[[MessageState], MessageState | Awaitable[MessageState]]
Router: TypeAlias = Callable[[MessageState], str | Awaitable[str]]


@dataclass(frozen=True, slots=True)
class FnNode:
    """A node that is a function, async or not, of the state to the state that takes its place (third seed document)."""

    function: Function

    async def process(self, state: MessageState) -> MessageState:
        """What the function returns."""
        result = self.function(state)
        return await result if inspect.isawaitable(result) else result


@dataclass(frozen=True, slots=True, eq=False)
class AgentNode:
    """A node that is an agent, by the node's name; it ends when its model says something or wants to hand off.

    Among the tools are those of `create_handoff_tool`; raises DefinitionError for another tool that leads to an agent.
    """

    model: str | Engine
    tools: tuple[Tool, ...]
    instructions: Instructions

    def __post_init__(self) -> None:
        for target, tool in self.handoffs:
            if tool.name != PREFIX + target:
                raise DefinitionError(f"'{tool.name}' leads to '{target}', expected a tool of create_handoff_tool().")

    def declared(self, name: str) -> Agent:
        """The agent without its handoffs."""
        tools = [tool for tool in self.tools if tool.target is None]
        if isinstance(self.model, str):
            return Agent(name, self.instructions, model=self.model, tools=tools)
        return Agent(name, self.instructions, engine=self.model, tools=tools)

    @property
    def handoffs(self) -> tuple[tuple[str, Tool], ...]:
        """The handoff tools, each with the agent it leads to."""
        return tuple((tool.target, tool) for tool in self.tools if tool.target is not None)


class _NoModel:
    """Answers for nodes that are functions, which nobody asks."""

    async def answer(self, request: ModelRequest) -> Answer:
        raise GraphError(f"Node '{request.agent}' is a function: no model answers for it.")


# --- graphs


@dataclass(frozen=True, slots=True)
class _Conditional:
    """An edge that leads where a function of the state says, through the path map where there is one."""

    router: Router
    path_map: Mapping[str, str] | None

    async def label(self, state: MessageState) -> object:
        label = self.router(state)
        return await label if inspect.isawaitable(label) else label


_Edge: TypeAlias = str | _Conditional


class StateGraph:
    """Nodes and the edges between them, added one by one and then compiled (third seed document).

    Raises DefinitionError for a name that is taken or reserved, and for a second way out of a node.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, AgentNode | Node] = {}
        self._edges: dict[str, _Edge] = {}

    def add_node(self, name: str, node: AgentNode | Node | Function) -> Self:
        """Adds an agent, a function, or another graph; it goes by `name`."""
        if name in (START, END):
            raise DefinitionError(f"A node is named {name!r}, which stands for a graph's {name.strip('_')}.")
        if name in self._nodes:
            raise DefinitionError(f"Two nodes are named '{name}'.")
        self._nodes[name] = _as_node(name, node)
        return self

    def add_edge(self, source: str, target: str) -> Self:
        """After `source` comes `target`; START and END stand for the graph's own."""
        return self._lead(source, target)

    def add_conditional_edges(self, source: str, router: Router, path_map: Mapping[str, str] | None = None) -> Self:
        """After `source` comes the node that `router`, async or not, names, through the path map where there is one."""
        if source == START:
            raise DefinitionError("The entry point is one node: START has no conditional edges.")
        return self._lead(source, _Conditional(router, None if path_map is None else dict(path_map)))

    def set_entry_point(self, name: str) -> Self:
        """Where the graph begins; the same as an edge from START."""
        return self._lead(START, name)

    def compile(self, *, step_limit: int = STEP_LIMIT, session_store: BaseSessionStore | None = None) -> CompiledGraph:
        """The graph, ready to run; raises DefinitionError for what is missing, naming what is nearest to it."""
        known = ", ".join(f"'{name}'" for name in self._nodes)
        if START not in self._edges:
            raise DefinitionError(
                f"The graph has no entry point: call set_entry_point() with one of {known or 'none'}."
            )
        for source, edge in self._edges.items():
            if source not in (START, *self._nodes):
                raise DefinitionError(f"An edge leads from {_unknown(source, self._nodes)}")
            for label, target in _targets(edge):
                if target not in self._nodes and (target != END or source == START):
                    by = "" if label is None else f" for {label!r}"
                    raise DefinitionError(f"The edge from '{source}' leads{by} to {_unknown(target, self._nodes)}")
        if step_limit < 1:
            raise DefinitionError(f"step_limit is {step_limit!r}, expected a whole number of 1 or more.")
        return CompiledGraph(self._nodes, self._edges, step_limit=step_limit, session_store=session_store)

    def _lead(self, source: str, edge: _Edge) -> Self:
        if source == END:
            raise DefinitionError("An edge leads on from END, where a graph ends.")
        if source == START and START in self._edges:
            raise DefinitionError(f"The graph has an entry point already: '{self._edges[START]}'.")
        if source in self._edges:
            raise DefinitionError(f"Two edges lead on from '{source}': conditional edges choose between several ways.")
        self._edges[source] = edge
        return self


class CompiledGraph(StateRunner):
    """A graph that can run: each node's run is a step, and the way from one node to another is a handoff.

    A model's wish to hand off stays open until the edge has been asked, and is answered before the next node runs: as
    accepted when that is where the edge leads, and else as refused. Every turn of a session begins at the entry point.
    """

    def __init__(
        self,
        nodes: Mapping[str, AgentNode | Node],
        edges: Mapping[str, _Edge],
        *,
        step_limit: int,
        session_store: BaseSessionStore | None,
    ) -> None:
        self._nodes = dict(nodes)
        self._edges = dict(edges)
        self._step_limit = step_limit
        agents = _declared(nodes)
        entry = cast(str, edges[START])
        # A transfer takes a step, so that by themselves the runner's own limits never come first.
        super().__init__(agents[entry], session_store, max_handoffs_per_turn=step_limit, max_tool_iterations=step_limit)
        for agent in agents.values():
            self.register_agent(agent)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes' names, in order."""
        return tuple(self._nodes)

    @property
    def graphs(self) -> Mapping[str, StateRunner]:
        """The nodes that are graphs themselves, by name."""
        return {name: node for name, node in self._nodes.items() if isinstance(node, StateRunner)}

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        """The hops that edges may make; conditional edges without a path map may lead to any other node."""
        return tuple(
            (source, target)
            for source, edge in self._edges.items()
            for _, target in (_targets(edge) or ((None, name) for name in self._nodes))
            if source != START and target not in (source, END)
        )

    @property
    def step_limit(self) -> int:
        """How many nodes may run."""
        return self._step_limit

    @property
    def only_agent(self) -> AgentNode | None:
        """The agent that is all there is to the graph, if it is one."""
        nodes = tuple(self._nodes.values())
        return nodes[0] if len(self._edges) == len(nodes) == 1 and isinstance(nodes[0], AgentNode) else None

    def _going_on(self, history: Sequence[Message]) -> SessionContext:
        return SessionContext("", self.starting_agent.name, list(history))

    def _inside(self, outer: Turn) -> StateRunner:
        if (agent := self.only_agent) is None:
            return super()._inside(outer)
        return StateRunner._inside(graph_of(agent, outer.session.active_agent_name), outer)

    async def _take_turn(self, session: SessionContext, observer: Observer | None) -> AgentResponse:
        session.active_agent_name = self.starting_agent.name
        return await super()._take_turn(session, observer)

    async def _steps(self, turn: Turn) -> AsyncIterator[GraphEvent]:
        name = turn.session.active_agent_name
        state = MessageState(turn.session.history)
        for step in itertools.count(1):
            state = await self._visit(turn, name, state)
            is_over = turn.last_word is not None and turn.last_word.by_runner
            way = END if is_over else await self._way_on(name, state)
            is_too_far = way != END and step == self._step_limit
            state = self._answered(turn, name, state, way=None if is_too_far else way)
            yield GraphEvent(name, state)
            if is_too_far:
                turn.hit("step_limit", self._step_limit)
                message = f"The graph ran {step} steps without reaching its end; the next would have been '{way}'."
                raise StepLimitError(message, state)
            if way == END:
                break
            name = way
        turn.session.history[:] = state.messages
        turn.last_word = turn.last_word or LastWord(_last_text(state))

    async def _visit(self, turn: Turn, name: str, state: MessageState) -> MessageState:
        """The state that a node leaves, its wishes still open."""
        node = self._nodes[name]
        turn.resume(self.agents[name], state.messages)
        if not isinstance(node, AgentNode):
            return self._left_by(turn, name, await self._run(turn, name, node, state))
        if not state.messages:
            raise GraphError(f"Agent '{name}' has nothing to answer: the state has no messages.")
        while turn.last_word is None and not turn.wishes:
            await turn.advance()
        history = turn.session.history
        if not turn.wishes:
            return MessageState(history)
        end = next(index for index in range(len(history), 0, -1) if isinstance(history[index - 1], AssistantMessage))
        return MessageState(history[:end], answers=cast(list[ToolResult], history[end:]))

    async def _run(self, turn: Turn, name: str, node: Node, state: MessageState) -> MessageState:
        token = turn_around.set(turn)
        try:
            left: object = await node.process(state)
        finally:
            turn_around.reset(token)
        if isinstance(left, MessageState):
            return left
        raise GraphError(f"Node '{name}' returned a {type(left).__name__}, expected a MessageState.")

    def _left_by(self, turn: Turn, name: str, state: MessageState) -> MessageState:
        """The state that a function left, its calls' ids made unique; raises GraphError when no provider takes it."""
        last = state.last_message()
        if isinstance(last, AssistantMessage) and last.tool_calls and not state.answers:
            agent, before = self.agents[name], state.messages[:-1]
            turn.resume(agent, before)
            calls = turn.with_unique_ids(agent, last.tool_calls)
            state = MessageState((*before, replace(last, tool_calls=calls)))
        if fault := fault_of(state.closed().messages):
            raise GraphError(f"Node '{name}' left a history that no provider takes: {fault}")
        return state

    async def _way_on(self, name: str, state: MessageState) -> str:
        edge = self._edges.get(name, END)
        if isinstance(edge, str):
            return edge
        label = await edge.label(state)
        what, ways = "node", {END: END, **{node: node for node in self._nodes}}
        if edge.path_map is not None:
            what, ways = "label of its path map", dict(edge.path_map)
        if not isinstance(label, str) or label not in ways:
            raise GraphError(f"The router of '{name}' returned {_unknown(label, ways, what)}")
        return ways[label]

    def _answered(self, turn: Turn, name: str, state: MessageState, *, way: str | None) -> MessageState:
        """The state with its open calls answered, now that the way on is known; `None` is the step limit.

        At the end of the graph, wishes for agents that are no nodes of it stay open: they are for whoever runs it.
        """
        agent = self.agents[name]
        taken = self._taken(name, state, way)
        answers = []
        for call in state.open_calls:
            target = wished_by(call)
            if target is None:
                answers.append(ToolResult(call.id, call.name, UNANSWERED, is_error=True))
            elif call is taken and way is not None:
                turn.move(agent, wish_of(turn, call, way), call)
                answers.append(ToolResult(call.id, call.name, acknowledgement(target)))
            elif way != END or target in self._nodes:
                answers.append(self._refused(turn, agent, call, target=target, taken=taken, way=way))
        if taken is None and way not in (None, END, name):
            turn.move(agent, Handoff(way))
        return state.answering(answers)

    def _taken(self, name: str, state: MessageState, way: str | None) -> ToolCall | None:
        """The call that asked for the way on: one for that node, or else one for a name that the router translates."""
        if way in (None, END, name):
            return None
        wishes = [(call, target) for call in state.open_calls if (target := wished_by(call)) is not None]
        named = (call for call, target in wishes if target == way)
        translated = (call for call, target in wishes if target not in self._nodes)
        return next(named, None) or next(translated, None)

    def _refused(
        self, turn: Turn, agent: Agent, call: ToolCall, *, target: str, taken: ToolCall | None, way: str | None
    ) -> ToolResult:
        why: Refusal = "not_allowed"
        message = f"The graph does not lead from '{agent.name}' to '{target}' now."
        if way is None:
            why, message = "limit", f"The step limit of {self._step_limit} is reached."
        elif target == agent.name:
            why, message = "self", f"Agent '{target}' is already active."
        elif taken is not None:
            why = "already_transferred"
            message = f"Another transfer of the same response already took effect: '{way}' is active now."
        elif target not in self._nodes:
            why, message = "unregistered", f"There is no agent '{target}'."
        turn.refuse(agent, call, wish_of(turn, call, target), why=why, message=message)
        return ToolResult(call.id, call.name, message, is_error=True)


def graph_of(agent: AgentNode, name: str) -> CompiledGraph:
    """A graph of one agent and nothing else, which leaves its wishes to hand off to whoever runs it."""
    return StateGraph().add_node(name, agent).set_entry_point(name).compile()


def _declared(nodes: Mapping[str, AgentNode | Node]) -> dict[str, Agent]:
    """The agents that nodes go by, with their handoffs; one that is no node is a name for a router to translate."""
    agents = {name: node.declared(name) if isinstance(node, AgentNode) else _mute(name) for name, node in nodes.items()}
    elsewhere: dict[str, Agent] = {}
    for name, node in nodes.items():
        if isinstance(node, AgentNode):
            for target, tool in node.handoffs:
                peer = agents.get(target) or elsewhere.setdefault(target, _mute(target))
                agents[name].add_handoff(handoff_by(tool, peer, is_wish=True))
        if isinstance(node, StateRunner):
            for inner in node.agents:
                if inner in agents:
                    raise DefinitionError(f"Node '{name}' is a graph with an agent '{inner}', as is another node.")
    return agents


def _mute(name: str) -> Agent:
    return Agent(name, engine=_NoModel())


def _as_node(name: str, node: object) -> AgentNode | Node:
    if isinstance(node, CompiledGraph) and (agent := node.only_agent) is not None:
        return agent
    if isinstance(node, AgentNode):
        return node
    if callable(getattr(node, "process", None)):
        return cast(Node, node)
    if callable(node):
        return FnNode(node)
    raise DefinitionError(
        f"Node '{name}' is a {type(node).__name__}, expected an agent, a graph, or a function of the state."
    )


def _targets(edge: _Edge) -> tuple[tuple[str | None, str], ...]:
    """Where an edge is known to lead, with the path map's labels."""
    if isinstance(edge, str):
        return ((None, edge),)
    return tuple((edge.path_map or {}).items())


def _last_text(state: MessageState) -> str:
    """The last thing that anybody said since the user did."""
    for message in reversed(state.messages):
        if isinstance(message, UserMessage):
            break
        if isinstance(message, AssistantMessage) and message.text:
            return message.text
    return ""


def _unknown(name: object, known: Iterable[str], what: str = "node") -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, 1) if isinstance(name, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"{name!r}, which is no {what}{hint} Expected one of: {', '.join(map(repr, names)) or 'none'}."
