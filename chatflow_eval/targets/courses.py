"""What happened in a turn, from what the service says of it: who had the conversation, and how it was passed on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from chatflow_eval.targets.answers import Answer, MalformedAnswerError, ToldHandoff, ToldTool
from chatflow_eval.trace import Hop, LimitStep, Step, ToolStep, Topology, WarningStep


@dataclass(slots=True)
class Course:
    """Who had the conversation in one turn, and how it was passed on."""

    start: str
    end: str
    """Who answered."""
    hops: list[Hop]
    warnings: list[str]

    @classmethod
    def of(cls, answer: Answer, active: str | None, warnings: list[str]) -> Course:
        """The turn's course; handoffs and the route come before what a change of who answers would say.

        Raises:
            MalformedAnswerError: nobody can tell who had the conversation, or who answered.
        """
        start = _start(answer, active)
        if active is not None and start != active:
            warnings.append(f"the answer's `route` starts at {start}, and {active} had the conversation")
        hops, holder = _hops(answer, start, warnings)
        end = answer.agent or holder
        course = cls(start, end, hops, warnings)
        if end != holder:
            course._answered_by_another(answer, holder)
        return course

    def told(self, answer: Answer, declared: Topology) -> Iterator[Step]:
        """The turn's steps: its hops, the tools of each agent when it has the conversation, limits, warnings."""
        waiting = list(answer.tools)
        yield from _used(waiting, self.start, declared)
        for hop in self.hops:
            yield hop
            if hop.accepted:
                yield from _used(waiting, hop.target, declared)
        yield from (_tool_step(tool, tool.agent or self.end, declared) for tool in waiting)
        yield from (
            LimitStep(agent=told.agent or self.end, limit=told.limit, value=told.value) for told in answer.limits
        )
        yield from (WarningStep(agent=self.end, message=warning) for warning in self.warnings)

    def _answered_by_another(self, answer: Answer, holder: str) -> None:
        """Somebody else answered than the told handoffs lead to: where none was accepted, that was the handoff."""
        if answer.handoffs is None and answer.route is None:
            self.hops.append(Hop(source=holder, target=self.end))
            return
        which = "handoffs" if answer.handoffs is not None else "route"
        self.warnings.append(f"the answer's `{which}` leave the conversation with {holder}, and {self.end} answered")
        if any(hop.accepted and hop.kind == "transfer" for hop in self.hops):
            return
        for index, hop in enumerate(self.hops):
            if not hop.accepted and (hop.source, hop.target) == (holder, self.end):
                self.hops[index] = replace(hop, accepted=True, why=hop.why or "refused")
                return
        self.hops.append(Hop(source=holder, target=self.end))


def _start(answer: Answer, active: str | None) -> str:
    if answer.agent is None and answer.route is None:
        raise MalformedAnswerError("`agent` is missing: the answer does not say who answered")
    if answer.route is not None:
        return answer.route[0]
    if active is not None:
        return active
    first = next(iter(answer.handoffs or ()), None)
    if first is None:
        assert answer.agent is not None
        return answer.agent
    if first.source is None:
        raise MalformedAnswerError(
            "`handoffs[0].from` is missing, and who had the conversation is not known: "
            "say it there, in `route`, or as `start` of the target"
        )
    return first.source


def _hops(answer: Answer, start: str, warnings: list[str]) -> tuple[list[Hop], str]:
    """The hops that are told, and who has the conversation after them."""
    passed = [start]
    for agent in answer.route or ():
        if agent != passed[-1]:
            passed.append(agent)
    if answer.handoffs is None:
        return [Hop(source=source, target=target) for source, target in pairwise(passed)], passed[-1]
    hops: list[Hop] = []
    calls = [start]
    """Who has the conversation, then whom that agent called, and so on."""
    for index, told in enumerate(answer.handoffs):
        source = told.source or calls[0]
        if source not in calls:
            warnings.append(f"the answer's `handoffs[{index}]` is from {source}, and {calls[-1]} had the conversation")
            calls = [source]
        while calls[-1] != source:
            calls.pop()
        hop = _hop(told, source, depth=len(calls) - (told.kind != "call"))
        hops.append(hop)
        if hop.accepted and hop.kind == "call":
            calls.append(hop.target)
        elif hop.accepted:
            calls[-1] = hop.target
    agents = [start, *(hop.target for hop in hops if hop.accepted)]
    if answer.route is not None and agents != passed:
        told_route, by_handoffs = " -> ".join(passed), " -> ".join(agents)
        warnings.append(f"the answer's `route` is {told_route}, and its `handoffs`, which count, make {by_handoffs}")
    return hops, calls[0]


def _hop(told: ToldHandoff, source: str, *, depth: int) -> Hop:
    return Hop(
        source=source,
        target=told.to,
        kind=told.kind or "transfer",
        accepted=told.accepted if told.accepted is not None else not told.why,
        tool=told.tool,
        reason=told.reason or "",
        why=told.why or None,
        message=told.why or "",
        depth=depth,
    )


def _used(waiting: list[ToldTool], agent: str, declared: Topology) -> Iterator[ToolStep]:
    """The next tool calls as long as they are this agent's."""
    while waiting and waiting[0].agent == agent:
        yield _tool_step(waiting.pop(0), agent, declared)


def _tool_step(told: ToldTool, agent: str, declared: Topology) -> ToolStep:
    return ToolStep(
        agent=agent,
        tool=told.tool,
        arguments=told.arguments,
        result=told.error if told.error is not None and told.result is None else told.result,
        is_error=told.error is not None,
        known=not declared.tools or any(told.tool in tools for tools in declared.tools.values()),
    )
