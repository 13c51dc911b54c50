"""A turn: the one loop in which models are asked, tools run and control moves."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from chatflow_runtime.agent import Agent, Toolbox
from chatflow_runtime.engine import Answer, ModelRequest
from chatflow_runtime.events import (
    Event,
    HandoffAccepted,
    HandoffRefused,
    HandoffReturned,
    LimitHit,
    ModelAnswered,
    ModelAsked,
    Observer,
    ToolAnswered,
    ToolCalled,
    TurnEnded,
    TurnStarted,
    Warned,
)
from chatflow_runtime.exceptions import AgentHandoffError, ChatflowError, EmptyResponseError, ScriptError
from chatflow_runtime.filters import settled
from chatflow_runtime.handoffs import HandoffRefusal, HandoffTool, reason_in
from chatflow_runtime.limits import EXECUTIONS_EXCEEDED, HANDOFFS_EXCEEDED, exhausted_text
from chatflow_runtime.memory import SessionContext, copy_context
from chatflow_runtime.policy import Permission
from chatflow_runtime.results import as_json, failure_text, stable_text
from chatflow_runtime.tools import ArgumentsRefused, Tool
from chatflow_runtime.types import (
    AgentResponse,
    AssistantMessage,
    Handoff,
    HandoffKind,
    Json,
    LimitName,
    LimitReached,
    Message,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    encodable,
)

if TYPE_CHECKING:
    from chatflow_runtime.events import Refusal
    from chatflow_runtime.runner import Runner

BY_PROGRAM = "handoff_to"
"""The tool of a handoff that a program made."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """What the model is told about one call."""

    content: Json
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class LastWord:
    """The text that ends a turn, and whether the runner wrote it itself."""

    text: str
    by_runner: bool = False


_NO_USAGE = Usage(0, 0)


@dataclass(slots=True)
class _Tally:
    """What one user turn has come to so far, the calls inside it included."""

    executions: int = 0
    is_exhausted: bool = False
    handoffs: list[Handoff] = field(default_factory=list)
    by_programs: int = 0
    called: list[str] = field(default_factory=list)
    hits: list[LimitReached] = field(default_factory=list)
    usage: Usage = _NO_USAGE
    observer_error: Exception | None = None
    """What an observer raised, which no agent can mend."""


@dataclass(slots=True, kw_only=True)
class Passing:
    """One wish to hand off, as its handoff tool carries it out, and the two ways of granting it."""

    turn: Turn
    source: Agent
    by: HandoffTool
    wish: Handoff
    call: ToolCall
    """The model's call, or what stands for it where a program hands off."""
    prompt: str | None = None
    """What a program asks the target; a model's handoff lets it answer the conversation."""
    conversation: Sequence[Message]
    is_lent: bool = False
    """Whether the target has got control, which comes back."""

    @property
    def history(self) -> list[Message]:
        """The source's conversation, as far as its calls are answered."""
        return settled(self.conversation)

    @property
    def chain(self) -> tuple[Agent, ...]:
        """The agents whose handoffs are under way, the source last."""
        chain = self.turn.chain
        return chain if chain[-1] is self.source else (*chain, self.source)

    @property
    def enclosing(self) -> tuple[HandoffTool, ...]:
        """The handoffs under way around this one, outermost first."""
        return self.turn.enclosing

    @property
    def permission(self) -> Permission:
        """Which domain tools the source may use here."""
        return self.turn.permission

    @property
    def tools(self) -> tuple[str, ...]:
        """The domain tools that the source has and may use here."""
        return tuple(tool.name for tool in self.source.tools if self.permission.allows(tool.name))

    def transfer(self) -> None:
        """Gives the conversation to the target for good."""
        self.turn.move(self.source, self.wish, self.call)

    async def borrow(self, history: Sequence[Message], permission: Permission, *, preface: str = "") -> str:
        """Gives control to the target until it has answered a history of its own; its text.

        `preface` is read after its instructions. Raises HandoffRefusal past the limit, and whatever the target raises.
        """
        return await self.turn.lend(self, history, _Inside(self, permission, preface))


@dataclass(frozen=True, slots=True)
class _Inside:
    """The call that a turn is the inside of, and what the target is given in it."""

    passing: Passing
    permission: Permission
    preface: str


_EVERYTHING = Permission()

_turn_under_way: ContextVar[Turn | None] = ContextVar("chatflow_runtime.turn", default=None)


class Turn:
    """One user turn on a working copy of its session, or a call inside of one, on a history of its own."""

    def __init__(
        self,
        runner: Runner,
        session: SessionContext,
        observer: Observer | None,
        *,
        active: Agent | None = None,
        inside: _Inside | None = None,
    ) -> None:
        self.last_word: LastWord | None = None
        """What ends the turn, as soon as it was said."""
        self.wishes: dict[str, Handoff] = {}
        """The wishes of the last answer that were left open, by the ids of their calls."""
        self.session = session
        self.runner = runner
        self.within: tuple[str, ...] = () if inside is None else (*inside.passing.turn.within, inside.passing.call.id)
        """The ids of the calls around this turn, outermost first."""
        self._agents = runner.agents
        self._active = active or self._agents[session.active_agent_name]
        self._inside = inside
        self._limits = runner.limits
        self._tally: _Tally = _Tally() if inside is None else inside.passing.turn._tally
        self._observer = observer
        self._tell = _telling(observer, self.within, self._tally)
        self._has_transferred = False
        """Whether a transfer of the response being answered took effect."""
        self._is_advancing = False
        self._used_ids: set[str] | None = None
        self._made_calls = 0

    @property
    def chain(self) -> tuple[Agent, ...]:
        """The agents whose handoffs are under way, and the active one."""
        return (self._active,) if self._inside is None else (*self._inside.passing.chain, self._active)

    @property
    def enclosing(self) -> tuple[HandoffTool, ...]:
        """The handoffs under way, outermost first."""
        return () if self._inside is None else (*self._inside.passing.enclosing, self._inside.passing.by)

    @property
    def permission(self) -> Permission:
        """Which of its domain tools an agent may use here."""
        return _EVERYTHING if self._inside is None else self._inside.permission

    def program_call_id(self) -> str:
        """What stands for the id of a call where a program hands off, another one each time."""
        self._tally.by_programs += 1
        return f"program_{self._tally.by_programs}"

    def begin(self) -> None:
        """Tells that the turn starts, and with which words of the user."""
        last = self.session.history[-1] if self.session.history else None
        self._tell(TurnStarted(self._active.name, last.text if isinstance(last, UserMessage) else ""))

    def resume(self, agent: Agent, history: Sequence[Message]) -> None:
        """Goes on with another agent and history than those reached, with nothing said yet."""
        self._active = agent
        self.session.active_agent_name = agent.name
        self.session.history[:] = history
        self.last_word, self.wishes, self._used_ids = None, {}, None

    async def advance(self) -> None:
        """One answer of the active agent's model, with its calls answered, those of open wishes aside."""
        agent = self._active
        token = _turn_under_way.set(self)
        self._is_advancing = True
        try:
            box = agent.toolbox(self.session.context)
            if self._inside is not None:
                box = box.limited(self._inside.permission)
            answer = await self._ask(agent, box)
            self.session.add_message(AssistantMessage(agent.name, answer.text, answer.tool_calls))
            if answer.tool_calls:
                await self._answer_all(agent, box, answer.tool_calls)
            else:
                self.last_word = LastWord(answer.text or "")
        finally:
            self._is_advancing = False
            _turn_under_way.reset(token)

    async def _answer_all(self, agent: Agent, box: Toolbox, calls: Sequence[ToolCall]) -> None:
        self._has_transferred = False
        self.wishes = {}
        for call in calls:
            reply = await self._answer(agent, box, call)
            if self._tally.observer_error is not None:
                raise self._tally.observer_error
            if reply is not None:
                self.session.add_message(ToolResult(call.id, call.name, reply.content, reply.is_error))
        if self._tally.is_exhausted and not self.wishes:
            self.last_word = LastWord(exhausted_text(self._active.name), by_runner=True)
            self.session.add_message(AssistantMessage(self._active.name, self.last_word.text))

    def end(self) -> AgentResponse:
        """Tells that the turn ended; what it came to."""
        word = self.last_word or LastWord("")
        active = self._active.name
        self._tell(TurnEnded(active, word.text, word.by_runner))
        return AgentResponse(
            content=word.text,
            active_agent_name=active,
            handoffs=tuple(self._tally.handoffs),
            tool_calls_executed=tuple(self._tally.called),
            limit_hits=tuple(self._tally.hits),
            usage=self._tally.usage,
        )

    async def _ask(self, agent: Agent, box: Toolbox) -> Answer:
        engine, model = self.runner.answerer(agent)
        instructions = agent.system_prompt(self.session.context)
        if self._inside is not None and self._inside.preface:
            instructions = f"{instructions}\n\n{self._inside.preface}"
        request = ModelRequest(
            agent=agent.name,
            model=model,
            instructions=instructions,
            history=tuple(self.session.history),
            tools=box.schemas,
            settings=self.runner.settings,
        )
        self._tell(ModelAsked(agent.name, model, box.names))
        asked = time.perf_counter()
        answer = await engine.answer(request)
        seconds = time.perf_counter() - asked
        text = encodable(answer.text) if answer.text and answer.text.strip() else None
        calls = tuple(answer.tool_calls)
        self._tally.usage += answer.usage
        self._tell(ModelAnswered(agent.name, model, text, calls, answer.usage, seconds))
        if text is None and not calls:
            raise EmptyResponseError(f"Model '{model}' answered for agent '{agent.name}' with neither text nor calls.")
        return Answer(text, self.with_unique_ids(agent, calls), answer.usage)

    async def _answer(self, agent: Agent, box: Toolbox, call: ToolCall) -> _Reply | None:
        """The result for one call, which there always is, unless the call is a wish that stays open."""
        self._tally.called.append(call.name)
        tool = box.tools.get(call.name)
        target = self.runner.target_named_by(call.name) if tool is None else tool.target
        if self._tally.executions >= self._limits.max_tool_iterations:
            return self._refuse_execution(agent, box, call, target)
        self._tally.executions += 1
        if tool is None:
            return self._refuse_unknown(agent, box, call, target)
        if target is not None:
            return await self._pass_control(agent, box.handoffs[call.name], call)
        return await self._execute(agent, tool, call)

    # --- handing off: the one place where control moves

    async def _pass_control(self, agent: Agent, by: HandoffTool, call: ToolCall) -> _Reply | None:
        """A call of one of the agent's own transfer tools."""
        target = by.agent.name
        if not self._is_known(by):
            raise AgentHandoffError(
                f"Agent '{agent.name}' hands off to '{target}', which is not registered: "
                f"expected {self.runner.known_agents()}, or call register_agent()."
            )
        wish = Handoff(target, by.reason(call, lambda message: self._warn(agent, message)))
        if by.is_wish and self._objection(agent, wish, by) is None:
            self.wishes[call.id] = wish
            return None
        return await self._grant(agent, call, wish, by)

    async def _grant(self, agent: Agent, call: ToolCall, wish: Handoff, by: HandoffTool | None) -> _Reply:
        """What a model is told about its wish to hand off, granted or not."""
        try:
            return _Reply(await self.hand_off(agent, call, wish, by))
        except HandoffRefusal as refusal:
            return _Reply(str(refusal), is_error=True)
        except (ScriptError, AgentHandoffError):
            raise
        except Exception as error:
            text = f"Error: the handoff to '{wish.target_agent_name}' failed: {failure_text(error)}"
            return _Reply(text, is_error=True)

    async def hand_off(
        self,
        source: Agent,
        call: ToolCall,
        wish: Handoff,
        by: HandoffTool | None,
        *,
        prompt: str | None = None,
        conversation: Sequence[Message] | None = None,
    ) -> Json:
        """Lets `by` move control; raises HandoffRefusal when it does not happen, and what a failing target raises."""
        if refusal := self._objection(source, wish, by):
            self._refused(source, call, wish, refusal, by)
            raise refusal
        assert by is not None
        history = self.session.history if conversation is None else conversation
        passing = Passing(turn=self, source=source, by=by, wish=wish, call=call, prompt=prompt, conversation=history)
        error = ""
        try:
            return await by.cross(passing)
        except BaseException as failure:
            error = failure_text(failure)
            if isinstance(failure, HandoffRefusal) and not passing.is_lent:
                self._refused(source, call, wish, failure, by)
            raise
        finally:
            if passing.is_lent:
                self._tell(HandoffReturned(source.name, by.agent.name, call.id, error))

    def _objection(self, agent: Agent, wish: Handoff, by: HandoffTool | None) -> HandoffRefusal | None:
        target = wish.target_agent_name
        if by is None and target == agent.name:
            return HandoffRefusal(f"Agent '{target}' is already active.", why="self")
        is_known = target in self._agents if by is None else self._is_known(by)
        if not is_known:
            return HandoffRefusal(f"There is no agent '{target}'. {_reach(agent)}", why="unregistered")
        if by is None:
            text = f"Agent '{agent.name}' may not hand off to '{target}'. {_reach(agent)}"
            return HandoffRefusal(text, why="not_allowed")
        if by.kind == "transfer" and self._has_transferred:
            text = f"Another transfer of the same response already took effect: '{self._active.name}' is active now."
            return HandoffRefusal(text, why="already_transferred")
        return self._past_limit()

    def _is_known(self, by: HandoffTool) -> bool:
        """Whether a session can be with the target; a call's target need not be one that it stays with."""
        return by.kind == "call" or self._agents.get(by.agent.name) is by.agent

    def _refused(
        self, agent: Agent, call: ToolCall, wish: Handoff, refusal: HandoffRefusal, by: HandoffTool | None
    ) -> None:
        kind = "transfer" if by is None else by.kind
        self.refuse(agent, call, wish, why=refusal.why, message=str(refusal), kind=kind)
        if refusal.limit is not None:
            self.hit(refusal.limit, refusal.value)

    def _past_limit(self) -> HandoffRefusal | None:
        most = self._limits.max_handoffs_per_turn
        if len(self._tally.handoffs) < most:
            return None
        return HandoffRefusal(HANDOFFS_EXCEEDED, why="limit", limit="max_handoffs_per_turn", value=most)

    def move(self, agent: Agent, wish: Handoff, call: ToolCall | None = None) -> None:
        """Gives the conversation to the agent that is wished for, because of a call where there is one."""
        self._active = self._agents[wish.target_agent_name]
        self.session.set_active_agent(wish.target_agent_name, wish.context_updates)
        self._has_transferred = True
        self._tally.handoffs.append(wish)
        tool, call_id = ("", "") if call is None else (call.name, call.id)
        self._tell(HandoffAccepted(agent.name, wish.target_agent_name, tool, wish.reason or "", "transfer", call_id))

    async def lend(self, passing: Passing, history: Sequence[Message], inside: _Inside) -> str:
        """Gives control to a target until it has answered; its text."""
        if refusal := self._past_limit():  # others may have been granted while this one was prepared
            raise refusal
        source, target, call, wish = passing.source.name, passing.by.agent, passing.call, passing.wish
        before = {**copy_context(self.session.context), **copy_context(wish.context_updates)}
        session = SessionContext(self.session.session_id, target.name, list(history), copy_context(before))
        turn = Turn(self.runner, session, self._observer, active=target, inside=inside)
        withheld = tuple(tool.name for tool in target.tools if not inside.permission.allows(tool.name))
        self._tally.handoffs.append(wish)
        passing.is_lent = True
        self._tell(HandoffAccepted(source, target.name, call.name, wish.reason or "", "call", call.id, withheld))
        while turn.last_word is None:
            await turn.advance()
        if turn.last_word.by_runner:
            raise ChatflowError(turn.last_word.text)
        changed = {key: value for key, value in session.context.items() if key not in before or before[key] != value}
        self.session.context.update({**wish.context_updates, **changed})
        return turn.last_word.text

    @contextmanager
    def part(self, runner: Runner, session: SessionContext) -> Iterator[Turn]:
        """Another runner's turn as a part of this one, whose limits and sums it shares.

        It is a call that comes back, unless the agent that begins it is the active one by name.
        """
        source, target = self._active.name, session.active_agent_name
        session.context = self.session.context
        turn = Turn(runner, session, self._observer)
        turn.within, turn._tally = self.within, self._tally
        error = ""
        if source != target:
            self._tally.handoffs.append(Handoff(target))
            call_id = self.program_call_id()
            turn.within = (*self.within, call_id)
            self._tell(HandoffAccepted(source, target, BY_PROGRAM, "", "call", call_id))
        turn._tell = _telling(self._observer, turn.within, self._tally)
        try:
            yield turn
        except BaseException as failure:
            error = failure_text(failure)
            raise
        finally:
            if source != target:
                self._tell(HandoffReturned(source, target, turn.within[-1], error))

    def refuse(
        self,
        agent: Agent,
        call: ToolCall,
        wish: Handoff,
        *,
        why: Refusal,
        message: str,
        kind: HandoffKind = "transfer",
    ) -> None:
        """Tells that the conversation is not given to the agent that is wished for."""
        self._tell(
            HandoffRefused(
                source=agent.name,
                target=wish.target_agent_name,
                tool=call.name,
                reason=wish.reason or "",
                kind=kind,
                call_id=call.id,
                why=why,
                message=message,
            )
        )

    def _reason(self, agent: Agent, call: ToolCall) -> str | None:
        return reason_in(call, lambda message: self._warn(agent, message))

    # --- everything else that a call can be

    async def _execute(self, agent: Agent, tool: Tool, call: ToolCall) -> _Reply:
        data = call.parsed()
        self._tell(ToolCalled(agent.name, call.id, tool.name, data, known=True))
        try:
            arguments = tool.read(data)
        except ArgumentsRefused as refusal:
            return self._told(agent, call, _Reply(f"Error: {refusal}", is_error=True))
        for warning in arguments.warnings:
            self._warn(agent, warning)
        try:
            result = tool.invoke(arguments, self.session.context)
            if inspect.isawaitable(result):
                result = await cast(Awaitable[object], result)
            returned = _checked_wish(result) if isinstance(result, Handoff) else as_json(result)
        except (Exception, SystemExit) as error:
            text = f"Error: tool '{tool.name}' failed: {stable_text(error)}"
            return self._told(agent, call, _Reply(text, is_error=True))
        if not isinstance(returned, Handoff):
            return self._told(agent, call, _Reply(returned))
        # A domain tool's wish to hand off is as good as a transfer tool's, to the same agents.
        target = returned.target_agent_name
        by = next((each for each in agent.handoff_tools if each.agent.name == target and not each.is_wish), None)
        return self._told(agent, call, await self._grant(agent, call, returned, by))

    def _refuse_unknown(self, agent: Agent, box: Toolbox, call: ToolCall, target: str | None) -> _Reply:
        has = f"Tools of agent '{agent.name}': {', '.join(box.names) or 'none'}."
        if target is None:
            self._tell(ToolCalled(agent.name, call.id, call.name, call.parsed(), known=False))
            is_withheld = call.name in box.withheld
            what = f"tool '{call.name}' is withheld in this call" if is_withheld else f"there is no tool '{call.name}'"
            return self._told(agent, call, _Reply(f"Error: {what}. {has}", is_error=True))
        wish = Handoff(target, self._reason(agent, call))
        if target == agent.name:
            message = f"Agent '{target}' is already active. {has}"
            self.refuse(agent, call, wish, why="self", message=message)
        else:
            message = f"Agent '{agent.name}' may not hand off to '{target}' with '{call.name}'. {has}"
            self.refuse(agent, call, wish, why="not_allowed", message=message)
        return _Reply(message, is_error=True)

    def _refuse_execution(self, agent: Agent, box: Toolbox, call: ToolCall, target: str | None) -> _Reply:
        self._tally.is_exhausted = True
        if target is None:
            self._tell(ToolCalled(agent.name, call.id, call.name, call.parsed(), known=call.name in box.tools))
            reply = self._told(agent, call, _Reply(EXECUTIONS_EXCEEDED, is_error=True))
        else:
            wish = Handoff(target, self._reason(agent, call))
            by = box.handoffs.get(call.name)
            kind = "transfer" if by is None else by.kind
            self.refuse(agent, call, wish, why="limit", message=EXECUTIONS_EXCEEDED, kind=kind)
            reply = _Reply(EXECUTIONS_EXCEEDED, is_error=True)
        self.hit("max_tool_iterations", self._limits.max_tool_iterations)
        return reply

    def _told(self, agent: Agent, call: ToolCall, reply: _Reply) -> _Reply:
        self._tell(ToolAnswered(agent.name, call.id, call.name, reply.content, reply.is_error))
        return reply

    def _warn(self, agent: Agent, message: str) -> None:
        self._tell(Warned(agent.name, message))

    def hit(self, limit: LimitName, value: int) -> None:
        """A limit is reported once per turn, however much it refuses."""
        if any(hit.limit == limit for hit in self._tally.hits):
            return
        hit = LimitReached(limit, value, self._active.name)
        self._tally.hits.append(hit)
        self._tell(LimitHit(hit.agent, hit.limit, hit.value))

    def with_unique_ids(self, agent: Agent, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The calls, those renamed whose id is missing or stands in the history."""
        if not calls:
            return calls
        if self._used_ids is None:
            made = [
                call.id
                for message in self.session.history
                if isinstance(message, AssistantMessage)
                for call in message.tool_calls
            ]
            self._used_ids, self._made_calls = set(made), len(made)
        unique = []
        for call in calls:
            self._made_calls += 1
            if call.id and call.id not in self._used_ids:
                self._used_ids.add(call.id)
                unique.append(call)
                continue
            number = self._made_calls
            while f"call_{number}" in self._used_ids:
                number += 1
            self._used_ids.add(f"call_{number}")
            what = f"repeats the call id {call.id!r}" if call.id else "has no call id"
            self._warn(agent, f"The call of '{call.name}' {what}; it is now 'call_{number}'.")
            unique.append(replace(call, id=f"call_{number}"))
        return tuple(unique)


def turn_under_way() -> Turn | None:
    """The turn in which this task is; `None` outside of one, and in what outlived it."""
    turn = _turn_under_way.get()
    return turn if turn is not None and turn._is_advancing else None


def conversation_under_way(agent: Agent) -> list[Message] | None:
    """What the agent can see of the conversation that it is in, in this task; `None` where it is in none."""
    turn = turn_under_way()
    while turn is not None:
        if turn._active is agent:
            return settled(turn.session.history)
        turn = None if turn._inside is None else turn._inside.passing.turn
    return None


def _telling(observer: Observer | None, within: tuple[str, ...], tally: _Tally) -> Observer:
    """The observer, told of each event which calls are around it."""
    if observer is None:
        return _tell_nobody

    def tell(event: Event) -> None:
        try:
            observer(replace(event, within=within) if within else event)
        except Exception as error:
            tally.observer_error = error
            raise

    return tell


def _tell_nobody(event: Event) -> None:
    """Stands in where nobody observes."""


def _checked_wish(wish: Handoff) -> Handoff:
    reason = None if wish.reason is None else str(wish.reason)
    return Handoff(str(wish.target_agent_name), reason, copy_context(wish.context_updates))


def _reach(agent: Agent) -> str:
    peers = ", ".join(f"'{peer.name}'" for peer in agent.handoffs)
    return f"It can hand off to: {peers}." if peers else "It can hand off to nobody."
