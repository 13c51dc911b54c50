"""What is seen of a turn on chatflow-agent, as a trace's steps."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from math import isfinite
from typing import Any

import chatflow_agent
from chatflow_agent.core.agent import _sanitize_tool_name

from chatflow_eval.scrub import scrub_text
from chatflow_eval.trace import Edge, Hop, LimitStep, ModelStep, Step, ToolStep, Topology, WarningStep
from chatflow_runtime.results import as_json

TRACE_ID = r" \[trace_id: [0-9a-f-]{36}\]"
"""What a model is told of a tool that failed holds an id that is another one each time."""

_TRACE_ID = re.compile(TRACE_ID)
_OVER_LIMIT = "Maximum agent transfers exceeded for a single turn."
_DEFAULT_REASON = "Specialist routing"
_UNREGISTERED = re.compile(r"Handoff target agent '(.*)' is not registered in Runner\.", re.DOTALL)


class Watching:
    """Turns what is seen of one turn into a trace's steps."""

    def __init__(self, runner: chatflow_agent.Runner) -> None:
        self._runner = runner
        self.steps: list[Step] = []
        self.asking = ""
        """Whose model was asked last."""
        self.start = ""
        """Who had the conversation when the turn began; empty while it has not."""
        self.swaps: deque[str] = deque()
        """Whom the conversation was given to by the calls of the answer being worked on, in order."""
        self._answer: ModelStep | None = None
        self._asker: chatflow_agent.Agent | None = None
        self._calls: Sequence[chatflow_agent.ToolCall] = ()
        self._is_over = False
        self._before: Sequence[chatflow_agent.Message] = ()
        """The history when the turn began."""

    def began(self, session: chatflow_agent.SessionContext) -> None:
        """The session is about to be told what the user says."""
        self.start, self._before = session.active_agent.name, tuple(session.history)

    def answered(self, step: ModelStep, agent: chatflow_agent.Agent) -> None:
        """A model answered for an agent."""
        self.steps.append(step)
        self._answer, self._asker = step, agent

    def warn(self, message: str) -> None:
        """Something went wrong, and was put right or passed over."""
        self.steps.append(WarningStep(agent=self.asking, message=message))

    def message(self, message: chatflow_agent.Message) -> None:
        """A message was put in the history: an answer with calls, or the results of its calls."""
        if message.tool_calls:
            self._calls = message.tool_calls
            self.swaps.clear()
        elif message.role is chatflow_agent.Role.TOOL:
            results = message.tool_results or []
            for call, result in zip(self._calls, results, strict=False):
                self._worked_on(call, result)
            self._swapped()
            for call in self._calls[len(results) :]:
                self.warn(f"The call of {call.name} was passed over: it was not made, and the model is told nothing.")
            self._calls = ()

    def ended(self, active: str) -> None:
        """The runner returned; where no model had the last word, its own limit did."""
        if self._answer is None or self._answer.calls:
            limit = self._runner.max_tool_iterations
            self.steps.append(LimitStep(agent=active, limit="max_tool_iterations", value=limit))

    def broken_off(self, error: BaseException, session: chatflow_agent.SessionContext | None) -> None:
        """An exception ended the turn; calls that were being worked on are told as far as they are known."""
        self._swapped()
        unregistered = _UNREGISTERED.fullmatch(str(error))
        if unregistered and isinstance(error, chatflow_agent.AgentHandoffError):
            name, message = unregistered[1], str(error)
            hop = Hop(source=self.asking, target=name, accepted=False, why="unregistered", message=message)
            self.steps.append(hop)
        if self.start and session is not None:
            self._taken_back(session.history)

    def _taken_back(self, history: Sequence[chatflow_agent.Message]) -> None:
        """Tells what a turn that failed has left in the history, and what it has taken from it."""
        before, now = ({id(message) for message in messages} for messages in (self._before, history))
        if stayed := len(now - before):
            self.warn(f"The turn failed, and {stayed} of its messages stayed in the history.")
        if lost := len(before - now):
            self.warn(f"The turn failed, and {lost} earlier messages are gone from the history.")

    def _swapped(self) -> None:
        """Tells of those who were given the conversation, and of whose transfer no result says so."""
        while self.swaps:
            self.steps.append(Hop(source=self.asking, target=self.swaps.popleft()))

    def _worked_on(self, call: chatflow_agent.ToolCall, result: chatflow_agent.ToolResult) -> None:
        content = plain(result.content)
        reason = str(call.args.get("reason") or "")
        if self.swaps and _is_success(content, self.swaps[0]):
            told = str(content.get("reason") or "")
            reason = reason or ("" if told == _DEFAULT_REASON else told)
            self.steps.append(self._hop(self.swaps.popleft(), call, reason=reason))
        elif result.is_error and content == _OVER_LIMIT and self.swaps:
            # The model is told that it was refused, and it has happened.
            self.steps.append(self._hop(self.swaps.popleft(), call, reason=reason, why="limit", message=content))
            if not self._is_over:
                self._is_over = True
                limit = self._runner.max_handoffs_per_turn
                self.steps.append(LimitStep(agent=self.asking, limit="max_handoffs_per_turn", value=limit))
        elif result.is_error and (target := self._target_of(call.name)) is not None:
            why = "invalid_arguments"
            if not self._has(call.name):
                why = "self" if target == self.asking else "not_allowed"
            hop = self._hop(target, call, accepted=False, why=why, message=str(content))
            self.steps.append(hop)
        else:
            self.steps.append(
                ToolStep(
                    agent=self.asking,
                    tool=call.name,
                    arguments=plain(call.args),
                    result=content,
                    is_error=result.is_error,
                    known=self._has(call.name),
                )
            )

    def _hop(
        self,
        target: str,
        call: chatflow_agent.ToolCall,
        *,
        reason: str = "",
        accepted: bool = True,
        why: str | None = None,
        message: str = "",
    ) -> Hop:
        return Hop(
            source=self.asking,
            target=target,
            accepted=accepted,
            tool=call.name,
            reason=reason,
            why=why,
            message=message,
        )

    def _has(self, tool: str) -> bool:
        return self._asker is not None and tool in _offered(self._asker)

    def _target_of(self, tool: str) -> str | None:
        """The agent that a transfer tool of this name leads to, the asking agent's own first."""
        others = [agent for agent in everybody(self._runner) if agent is not self._asker]
        for agent in (*([self._asker] if self._asker is not None else ()), *others):
            # What stands later replaces what stands before, also among its domain tools.
            for name, peer in reversed(transfers(agent)):
                if name == tool:
                    return peer.name
            if any(each.name == tool for each in agent.tools) and agent is self._asker:
                return None
        return None


_listener: ContextVar[Watching | None] = ContextVar("chatflow_eval_chatflow_agent", default=None)


@contextlib.contextmanager
def listening(watching: Watching) -> Iterator[None]:
    """Within it, what chatflow-agent logs stands in the trace: the errors of tools are told nowhere else."""
    token = _listener.set(watching)
    try:
        with _log.placed():
            yield
    finally:
        _listener.reset(token)


class _Log(logging.Handler):
    """Hands what is logged on to whom this context has listening."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._turns = 0
        self._counting = threading.Lock()

    @contextlib.contextmanager
    def placed(self) -> Iterator[None]:
        """Within it, chatflow-agent's logger has this handler; afterwards it is as its user configured it."""
        logger = logging.getLogger("chatflow_agent")
        with self._counting:
            self._turns += 1
            logger.addHandler(self)
        try:
            yield
        finally:
            with self._counting:
                self._turns -= 1
                if self._turns == 0:
                    logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        watching = _listener.get()
        if watching is not None:
            try:
                watching.warn(scrub_text(_TRACE_ID.sub("", record.getMessage())))
            except Exception:
                self.handleError(record)


_log = _Log()


def topology(runner: chatflow_agent.Runner) -> Topology:
    """What a Runner's agents declare, collisions and all."""
    agents = everybody(runner)
    names = tuple(dict.fromkeys(agent.name for agent in agents))
    tools: dict[str, tuple[str, ...]] = {}
    for agent in agents:
        tools.setdefault(agent.name, tuple(tool.name for tool in agent.tools))
    return Topology(
        start=runner.starting_agent.name,
        agents=names,
        tools=tools,
        edges=tuple(
            Edge(source=agent.name, target=peer.name, tool=tool)
            for agent in agents
            for tool, peer in transfers(agent)
            if peer.name in names
        ),
    )


def joined(before: Topology, now: Topology) -> Topology:
    """What either declares."""
    return Topology(
        start=before.start,
        agents=tuple(dict.fromkeys((*before.agents, *now.agents))),
        tools={
            name: tuple(dict.fromkeys((*before.tools.get(name, ()), *now.tools.get(name, ()))))
            for name in (*before.tools, *now.tools)
        },
        edges=tuple(dict.fromkeys((*before.edges, *now.edges))),
    )


def everybody(runner: chatflow_agent.Runner) -> tuple[chatflow_agent.Agent, ...]:
    """Every agent that the runner knows or could come to, each once; distinct ones may have one name."""
    found: dict[int, chatflow_agent.Agent] = {}
    waiting = deque([runner.starting_agent, *runner._agents_registry.values()])
    while waiting:
        agent = waiting.popleft()
        if id(agent) not in found:
            found[id(agent)] = agent
            waiting.extend(agent.handoffs)
    return tuple(found.values())


def transfers(agent: chatflow_agent.Agent) -> list[tuple[str, chatflow_agent.Agent]]:
    """The agent's transfer tools and whom they lead to, in order; names may collide."""
    # To make the tools themselves asks each peer for its instructions, which may count how often they are asked for.
    if type(agent)._create_handoff_tool is chatflow_agent.Agent._create_handoff_tool:
        return [(_sanitize_tool_name(peer.name), peer) for peer in agent.handoffs]
    return [(agent._create_handoff_tool(peer).name, peer) for peer in agent.handoffs]


def _offered(agent: chatflow_agent.Agent) -> set[str]:
    """The names of the agent's tools of all kinds."""
    if type(agent).get_all_tools is not chatflow_agent.Agent.get_all_tools:
        return {tool.name for tool in agent.get_all_tools()}
    return {tool.name for tool in agent.tools} | {name for name, _ in transfers(agent)}


def plain(content: object) -> Any:
    """What a tool was given or returned, as JSON and without what is another text each time."""
    if isinstance(content, str):
        return _TRACE_ID.sub("", content)
    if isinstance(content, dict | list):
        try:
            return as_json(content)
        except (TypeError, ValueError, RecursionError):
            pass
    is_json = content is None or isinstance(content, bool | int) or (isinstance(content, float) and isfinite(content))
    return content if is_json else str(content)


def _is_success(content: Any, target: str) -> bool:
    told = content if isinstance(content, dict) else {}
    return told.get("status") == "HANDOFF_SUCCESS" and told.get("transferred_to") == target
