"""The second seed document's names: agents whose handoffs are calls that come back.

A handoff gives control to its target until that has answered; its answer goes back to the source as the result of the
source's call, and the source says the last word.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast, get_args, overload

from chatflow_runtime import agent as runtime
from chatflow_runtime import filters as handoff_filters
from chatflow_runtime.agent import DEFAULT_MODEL, Instructions
from chatflow_runtime.engine import Engine
from chatflow_runtime.exceptions import ChatflowError, DefinitionError
from chatflow_runtime.filters import ChatMessage, Filter, HandoffInputData, as_chat, from_chat
from chatflow_runtime.handoffs import HandoffRefusal, HandoffTool, checked_tool_name, names_of
from chatflow_runtime.limits import check_count
from chatflow_runtime.memory import SessionContext, SessionStore
from chatflow_runtime.policy import (
    Callback,
    ContextPolicy,
    HandoffConfig,
    HandoffToolPolicy,
    Lane,
    ToolPolicyMode,
    call_back,
)
from chatflow_runtime.results import failure_text, stable_text
from chatflow_runtime.runner import Runner, forbid_running_loop, hand_off
from chatflow_runtime.schemas import Converter, converter_of, mismatch, schema_of
from chatflow_runtime.tools import Function, Tool
from chatflow_runtime.turn import Passing, conversation_under_way
from chatflow_runtime.types import AssistantMessage, Json, Message, ToolCall, UserMessage

__all__ = [
    "RECOMMENDED_PROMPT_PREFIX",
    "Agent",
    "AgentRunOutcome",
    "ContextPolicy",
    "Handoff",
    "HandoffCallbackError",
    "HandoffConfig",
    "HandoffCycleError",
    "HandoffDepthError",
    "HandoffError",
    "HandoffInputData",
    "HandoffNotAllowedError",
    "HandoffResult",
    "HandoffTimeoutError",
    "HandoffToolPolicy",
    "HandoffValidationError",
    "TypedHandoff",
    "handoff",
    "handoff_filters",
    "parallel_handoffs",
    "prompt_with_handoff_instructions",
]

RECOMMENDED_PROMPT_PREFIX = """\
You work in a team of agents. Some of your tools pass a request on to another agent of the team, who then answers it.
Where one of them is the better one for a request, pass it on at once; you get the answer back, and reply with it.
Where none is, reply yourself. Never speak of tools, agents or handoffs in a reply."""
"""What an agent that has handoffs is told before its own instructions."""


def prompt_with_handoff_instructions(prompt: str, agent: runtime.Agent) -> str:
    """The prompt behind the recommended prefix and the agents that `agent` can hand off to; as it is where none."""
    if not agent.handoff_tools:
        return prompt
    offered = zip(agent.handoff_tools, names_of(agent.handoff_tools), strict=True)
    team = "\n".join(f"- {each.agent.name}: {name}" for each, name in offered)
    return "\n\n".join(part for part in (RECOMMENDED_PROMPT_PREFIX, f"Available agents:\n{team}", prompt) if part)


# --- errors


class HandoffError(ChatflowError):
    """A handoff that came to nothing; `context` says who was concerned and what stood against it."""

    is_retryable = False
    """Whether the same handoff may succeed a second time."""

    def __init__(self, message: str, *, source_agent: str = "", target_agent: str = "", **context: object) -> None:
        ChatflowError.__init__(self, message)
        self.source_agent = source_agent
        self.target_agent = target_agent
        self.context: dict[str, object] = {"source_agent": source_agent, "target_agent": target_agent, **context}


class HandoffCycleError(HandoffError, HandoffRefusal):
    """The target's own handoff is under way; `context` has the names as `cycle_path`, and again as `chain`."""

    why = "cycle"

    def __init__(self, message: str, *, cycle_path: Sequence[str] = (), **who: str) -> None:
        self.cycle_path = list(cycle_path)
        HandoffError.__init__(self, message, cycle_path=self.cycle_path, chain=self.cycle_path, **who)


class HandoffDepthError(HandoffError, HandoffRefusal):
    """More handoffs inside one another than allowed; `context` has `max_depth` and `depth`."""

    why = "limit"
    limit = "max_depth"

    def __init__(self, message: str, *, max_depth: int = 0, depth: int = 0, **who: str) -> None:
        self.max_depth = self.value = max_depth
        self.depth = depth
        HandoffError.__init__(self, message, max_depth=max_depth, depth=depth, **who)


class HandoffNotAllowedError(HandoffError, HandoffRefusal):
    """The target is none of the `allowed_agents`."""

    why = "not_allowed"


class HandoffValidationError(HandoffError, HandoffRefusal):
    """The payload does not fit the declared type."""

    why = "invalid_arguments"


class HandoffCallbackError(HandoffError, HandoffRefusal):
    """`on_handoff` or an input filter raised, or a filter gave back what the target cannot be shown."""

    why = "callback_failed"


class HandoffTimeoutError(HandoffError):
    """The target took longer than `timeout_seconds`, which `context` has."""

    is_retryable = True

    def __init__(self, message: str, *, timeout_seconds: float = 0.0, **who: str) -> None:
        self.timeout_seconds = timeout_seconds
        HandoffError.__init__(self, message, timeout_seconds=timeout_seconds, **who)


# --- results

OutcomeStatus: TypeAlias = Literal["success", "failure", "timeout"]


@dataclass(frozen=True, slots=True)
class AgentRunOutcome:
    """How a target's run ended: `output` of a success, `error` of all others."""

    status: OutcomeStatus
    output: str = ""
    error: str = ""
    retryable: bool = False
    """Of a failure, whether its error says that it may not happen again."""

    def __post_init__(self) -> None:
        if self.status not in get_args(OutcomeStatus):
            known = ", ".join(f"'{status}'" for status in get_args(OutcomeStatus))
            raise DefinitionError(f"An outcome's status is {self.status!r}, expected one of {known}.")

    def is_retryable(self) -> bool:
        """Whether the same run may succeed a second time: by the kind of its error, never by its words."""
        return self.status == "timeout" or self.retryable


@dataclass(frozen=True, slots=True)
class HandoffResult:
    """What a program's handoff came to."""

    success: bool
    response: str = ""
    target_agent: str = ""
    source_agent: str = ""
    duration_seconds: float = 0.0
    error: str = ""
    outcome: AgentRunOutcome = field(default=None)  # type: ignore[assignment]
    """Made of the other fields where it is not given."""
    exception: Exception | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if cast(object, self.outcome) is None:
            status: OutcomeStatus = "success" if self.success else "failure"
            object.__setattr__(self, "outcome", AgentRunOutcome(status, self.response, self.error))

    @property
    def handed_off_to(self) -> str:
        """Another name for `target_agent`."""
        return self.target_agent

    def raise_for_error(self) -> HandoffResult:
        """The result itself; raises what went wrong, a HandoffError."""
        if self.success:
            return self
        if isinstance(self.exception, HandoffError):
            raise self.exception
        who = {"source_agent": self.source_agent, "target_agent": self.target_agent}
        raise HandoffError(self.error, **who) from self.exception


def _failed(error: Exception, source: str, target: str, seconds: float) -> HandoffResult:
    message = failure_text(error)
    status: OutcomeStatus = "timeout" if isinstance(error, HandoffTimeoutError) else "failure"
    outcome = AgentRunOutcome(status, error=message, retryable=getattr(error, "is_retryable", False) is True)
    return HandoffResult(False, "", target, source, seconds, message, outcome, error)


# --- handoffs


class Handoff(HandoffTool):
    """A handoff to `agent` that comes back with its answer (second seed document).

    Raises DefinitionError for a tool name that some provider refuses, an `input_type` that is no object's, and a
    callback that nothing can be called with.
    """

    kind = "call"

    def __init__(
        self,
        agent: runtime.Agent,
        tool_name_override: str | None = None,
        tool_description_override: str | None = None,
        on_handoff: Callback | None = None,
        input_type: type | None = None,
        input_filter: Filter | Sequence[Filter] | None = None,
        config: HandoffConfig | None = None,
    ) -> None:
        if not isinstance(agent, runtime.Agent):
            raise DefinitionError(f"A handoff leads to {agent!r}, expected an Agent.")
        settings = _checked_config(config)
        if on_handoff is not None:
            settings = replace(settings, on_handoff=on_handoff)
        self.config = settings
        self.input_type = input_type
        self.input_filter = _checked_filters(input_filter)
        self._read = None if input_type is None else _Payload(input_type, agent.name)
        self._lane = Lane(settings.max_concurrent)
        parameters = self._read.parameters if self._read else _parameters(settings)
        name = checked_tool_name(tool_name_override, agent.name)
        super().__init__(agent, name, tool_description_override, parameters=parameters)

    @property
    def _settings(self) -> tuple[object, ...]:
        return type(self), self.agent, self.tool_name, self.description, self.config, self.input_type, self.input_filter

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handoff) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash((type(self), self.agent))

    def reason(self, call: ToolCall, warn: Callable[[str], None]) -> str | None:
        """The reason a model gave; what its payload should be is for the payload's type to say."""
        return super().reason(call, warn if self._read is None else _ignore)

    async def cross(self, passing: Passing) -> Json:
        """Asks the target, and returns its answer.

        Raises HandoffRefusal where it is not asked, HandoffTimeoutError, and whatever it raises.
        """
        began = time.perf_counter()
        source, target = passing.source, self.agent
        try:
            answer = await self._answer(passing)
        except Exception as error:
            await self._call_back("on_error", source, _failed(error, source.name, target.name, _since(began)))
            raise
        await self._call_back(
            "on_complete", source, HandoffResult(True, answer, target.name, source.name, _since(began))
        )
        return answer

    async def _answer(self, passing: Passing) -> str:
        self._check(passing)
        given = _object(passing.call.parsed())
        payload = given if self._read is None else self._read(passing.call.parsed(), passing.source.name)
        seen = self._seen(passing, given)
        history = self._history(passing, given, seen)
        await self._announce(passing, payload, seen)
        permission = passing.permission.narrowed(self.config.tool_policy, passing.tools)
        seconds = self.config.timeout_seconds
        # A handoff inside itself would wait for its own place.
        lane = Lane(None) if any(each is self for each in passing.enclosing) else self._lane
        async with lane.place():
            try:
                async with asyncio.timeout(seconds) as limit:
                    return await passing.borrow(history.messages, permission, preface=history.preface)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                who = _who(passing)
                text = (
                    f"The handoff from '{passing.source.name}' to '{self.agent.name}' took longer than {seconds:g} s."
                )
                raise HandoffTimeoutError(text, timeout_seconds=seconds or 0.0, **who) from error

    def _check(self, passing: Passing) -> None:
        """Whether the target may be asked at all, before anything is called or counted."""
        source, target, config = passing.source.name, self.agent.name, self.config
        if config.allowed_agents is not None and target not in config.allowed_agents:
            allowed = ", ".join(f"'{name}'" for name in config.allowed_agents) or "nobody"
            text = f"Agent '{source}' may not hand off to '{target}'. Allowed: {allowed}."
            raise HandoffNotAllowedError(text, **_who(passing))
        if config.detect_cycles and any(each is self.agent for each in passing.chain):
            path = [each.name for each in (*passing.chain, self.agent)]
            raise HandoffCycleError(f"Handoff cycle: {' -> '.join(path)}.", cycle_path=path, **_who(passing))
        depth = len(passing.enclosing) + 1
        if depth > config.max_depth:
            text = f"The handoff from '{source}' to '{target}' is {depth} deep, at most {config.max_depth} are allowed."
            raise HandoffDepthError(text, max_depth=config.max_depth, depth=depth, **_who(passing))

    def _seen(self, passing: Passing, given: dict[str, Json]) -> HandoffInputData:
        """What the context policy and the filters let through."""
        with_question = passing.prompt is None and not self._task(given)
        chain = tuple(each.name for each in passing.chain)
        seen = HandoffInputData(
            messages=self.config.selected(as_chat(passing.history), with_question=with_question),
            context=given,
            source_agent=passing.source,
            handoff_depth=len(passing.enclosing) + 1,
            handoff_chain=chain,
            max_depth=self.config.max_depth,
        )
        for each in self.input_filter:
            # Each gets a copy: what a filter does to its argument is its own affair.
            given_to_it = replace(seen, messages=copy.deepcopy(seen.messages), context=copy.deepcopy(seen.context))
            try:
                seen = each(given_to_it)
            except Exception as error:
                raise self._callback_error("input_filter", error, passing) from error
            if not isinstance(cast(object, seen), HandoffInputData):
                wrong = TypeError(f"it returned {seen!r}, expected HandoffInputData")
                raise self._callback_error("input_filter", wrong, passing)
        return seen

    def _history(self, passing: Passing, given: dict[str, Json], seen: HandoffInputData) -> _Shown:
        """What the target answers: what it may see, and then what it is asked."""
        try:
            preface, messages = from_chat(seen.messages, passing.source.name)
        except (AttributeError, TypeError, ValueError) as error:
            raise self._callback_error("input_filter", error, passing) from error
        asked = passing.prompt or self._task(given)
        label = "Context" if self._read is None else "Payload"
        data = given if passing.prompt is not None or self._read is not None else {}
        extra = f"{label}:\n{json.dumps(data, ensure_ascii=False, indent=2)}" if data else None
        if parts := [part for part in (asked, extra) if part]:
            messages.append(UserMessage("\n\n".join(parts)))
        elif not any(isinstance(message, UserMessage) for message in messages):
            messages += [each for each in passing.history if isinstance(each, UserMessage)][-1:]
        return _Shown(preface, _without_early_calls(messages))

    async def _announce(self, passing: Passing, payload: object, seen: HandoffInputData) -> None:
        source, target, on_handoff = passing.source, self.agent, self.config.on_handoff
        if on_handoff is None:
            return
        values = {0: (), 1: (source,), 2: (source, payload), 3: (source, target, seen)}
        try:
            await call_back(on_handoff, "on_handoff", values)
        except Exception as error:
            raise self._callback_error("on_handoff", error, passing) from error

    async def _call_back(
        self, name: Literal["on_complete", "on_error"], source: runtime.Agent, result: HandoffResult
    ) -> None:
        if (callback := getattr(self.config, name)) is not None:
            await call_back(callback, name, {0: (), 1: (result,), 2: (source, result)})

    def _task(self, given: Mapping[str, Json]) -> str:
        """What a model wants done by a target that sees nothing else."""
        has_task = self._read is None and self.config.context_policy is ContextPolicy.NONE
        task = given.get("task") if has_task else None
        return task if isinstance(task, str) and task.strip() else ""

    def _callback_error(self, name: str, error: Exception, passing: Passing) -> HandoffCallbackError:
        text = f"The handoff to '{self.agent.name}' was stopped: {name} failed: {stable_text(error)}"
        return HandoffCallbackError(text, **_who(passing))


class TypedHandoff(Handoff):
    """A handoff that takes a payload of a pydantic model: its schema is on the wire, and what comes in is validated."""

    def __init__(
        self,
        agent: runtime.Agent,
        input_schema: type,
        tool_name_override: str | None = None,
        tool_description_override: str | None = None,
        on_handoff: Callback | None = None,
        input_filter: Filter | Sequence[Filter] | None = None,
        config: HandoffConfig | None = None,
    ) -> None:
        from pydantic import BaseModel

        if not (isinstance(cast(object, input_schema), type) and issubclass(input_schema, BaseModel)):
            raise TypeError(f"input_schema is {input_schema!r}, expected a pydantic model's class.")
        self.input_schema = input_schema
        super().__init__(
            agent,
            tool_name_override,
            tool_description_override,
            on_handoff,
            input_type=input_schema,
            input_filter=input_filter,
            config=config,
        )


def handoff(
    agent: runtime.Agent,
    tool_name_override: str | None = None,
    tool_description_override: str | None = None,
    on_handoff: Callback | None = None,
    input_type: type | None = None,
    input_filter: Filter | Sequence[Filter] | None = None,
    config: HandoffConfig | None = None,
    *,
    tool_policy_mode: ToolPolicyMode | None = None,
    blocked_tools: Sequence[str] | None = None,
    context_policy: ContextPolicy | str | None = None,
    timeout_seconds: float | None = None,
    max_concurrent: int | None = None,
    detect_cycles: bool | None = None,
    max_depth: int | None = None,
) -> Handoff:
    """A configured handoff for an agent's `handoffs`; what is given besides `config` stands in for what it says.

    The config itself is not changed. Raises what Handoff and HandoffConfig raise.
    """
    base = _checked_config(config)
    policy = base.tool_policy
    if tool_policy_mode is not None:
        policy = replace(policy, mode=tool_policy_mode)
    if blocked_tools is not None:
        policy = replace(policy, blocked_tools=blocked_tools)
    settings = {
        "context_policy": context_policy,
        "timeout_seconds": timeout_seconds,
        "max_concurrent": max_concurrent,
        "detect_cycles": detect_cycles,
        "max_depth": max_depth,
    }
    changes: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    return Handoff(
        agent,
        tool_name_override,
        tool_description_override,
        on_handoff,
        input_type,
        input_filter,
        replace(base, tool_policy=policy, **changes),
    )


async def parallel_handoffs(
    source: Agent,
    targets: Iterable[tuple[runtime.Agent, str]],
    max_concurrent: int = 5,
    config: HandoffConfig | None = None,
) -> list[HandoffResult]:
    """Asks several targets at once, each with its own prompt, at most `max_concurrent` at a time; results in order.

    Each is a task of its own: what it hands off to is no concern of the others. Raises DefinitionError for targets that
    are no pairs, and for a limit that is no number of 1 or more.
    """
    check_count("max_concurrent", max_concurrent, least=1)
    pairs = list(targets)
    if any(not isinstance(cast(object, pair), tuple | list) or len(pair) != 2 for pair in pairs):
        raise DefinitionError(f"targets is {pairs!r}, expected pairs of an agent and a prompt.")
    lane = Lane(max_concurrent)

    async def ask(target: runtime.Agent, prompt: str) -> HandoffResult:
        async with lane.place():
            return await source.handoff_to_async(target, prompt, config=config)

    return await asyncio.gather(*(ask(target, prompt) for target, prompt in pairs))


# --- agents

_CONVERSATION = "conversation"


class Agent(runtime.Agent):
    """An agent with a conversation of its own, whose handoffs are calls that come back (second seed document)."""

    def __init__(
        self,
        name: str,
        instructions: Instructions | None = "",
        *,
        handoffs: Iterable[runtime.Agent | HandoffTool] | None = None,
        tools: Iterable[Tool | Function] | None = None,
        llm: str | None = None,
        model: str | None = None,
        engine: Engine | None = None,
        allow_delegation: bool = False,
    ) -> None:
        if llm is not None and model is not None and llm != model:
            raise DefinitionError(
                f"Agent '{name}' has the model {model!r} and the llm {llm!r}; they are the same thing."
            )
        if allow_delegation:
            text = (
                f"allow_delegation of agent '{name}' does nothing: list the agents it can hand off to in handoffs=[...]"
            )
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        self._store = SessionStore()
        self._programs: dict[tuple[runtime.Agent, HandoffConfig | None, Handoff | None], Handoff] = {}
        super().__init__(
            name, instructions, model=model or llm or DEFAULT_MODEL, tools=tools, handoffs=handoffs, engine=engine
        )

    @property
    def handoffs(self) -> tuple[runtime.Agent, ...]:
        """The agents this one can hand off to; assigned are agents and handoffs, which take the place of all others."""
        return super().handoffs

    @handoffs.setter
    def handoffs(self, given: Iterable[runtime.Agent | HandoffTool]) -> None:
        self.set_handoffs(given)

    def add_handoff(self, target: runtime.Agent | HandoffTool) -> None:
        """Lets this agent hand off to one more; the same handoff a second time changes nothing."""
        super().add_handoff(Handoff(target) if isinstance(target, runtime.Agent) else target)

    def system_prompt(self, context: Mapping[str, Json] | None = None) -> str:
        """The instructions, behind those on handoffs where the agent has some."""
        return prompt_with_handoff_instructions(self.get_instructions(context), self)

    @property
    def chat_history(self) -> Sequence[ChatMessage]:
        """The texts of the agent's own conversation; inside of a handoff to it, of that one."""
        return _Texts(as_chat(self._messages()))

    @chat_history.setter
    def chat_history(self, messages: Iterable[ChatMessage]) -> None:
        instructions, history = from_chat(messages, self.name)
        if instructions:
            raise DefinitionError(f"The conversation of agent '{self.name}' was given system messages.")
        self._store.save(SessionContext(_CONVERSATION, self.name, history))

    def start(self, prompt: str) -> str:
        """The agent's reply to a message of the user's; raises what `chat` raises."""
        return self.chat(prompt)

    def chat(self, prompt: str) -> str:
        """The agent's reply to a message of the user's, in the agent's own conversation.

        Raises RunningLoopError where an event loop runs already, and what `Runner.run_async` raises.
        """
        forbid_running_loop("chat()", instead="await agent.achat(...)")
        return asyncio.run(self.achat(prompt))

    async def astart(self, prompt: str) -> str:
        """The async form of `start`."""
        return await self.achat(prompt)

    async def achat(self, prompt: str) -> str:
        """The async form of `chat`."""
        return (await Runner(self, self._store).run_async(_CONVERSATION, prompt)).content

    def handoff_to(
        self,
        target_agent: runtime.Agent,
        prompt: str,
        context: object = None,
        config: HandoffConfig | None = None,
    ) -> HandoffResult:
        """Asks another agent, and says how that ended; nothing is raised, not even inside of a running event loop."""
        try:
            forbid_running_loop("handoff_to()", instead="await agent.handoff_to_async(...)")
        except ChatflowError as error:
            return _failed(error, self.name, _name(target_agent), 0.0)
        return asyncio.run(self.handoff_to_async(target_agent, prompt, context, config))

    async def handoff_to_async(
        self,
        target_agent: runtime.Agent,
        prompt: str,
        context: object = None,
        config: HandoffConfig | None = None,
    ) -> HandoffResult:
        """Asks another agent, and says how that ended; nothing is raised.

        A handoff to it among the agent's own is used as it was declared, and with a `config` under that one. `context`
        is JSON data for the target, or the payload of a typed handoff. In a tool, it is a part of the tool's turn.
        """
        began = time.perf_counter()
        try:
            if not prompt.strip():
                raise ValueError(f"The prompt is {prompt!r}, expected some text.")
            by = self._program(target_agent, config)
            data = _data(context)
            answer = await hand_off(by, self, prompt=prompt, data=data, conversation=self._messages())
        except Exception as error:
            return _failed(error, self.name, _name(target_agent), _since(began))
        return HandoffResult(True, str(answer), target_agent.name, self.name, _since(began))

    def _program(self, target: runtime.Agent, config: HandoffConfig | None) -> Handoff:
        """The handoff that a program's is carried out by, one for each target and config: its lane is shared."""
        to_it = (each for each in self.handoff_tools if isinstance(each, Handoff) and each.agent is target)
        declared = next(to_it, None)
        if declared is not None and config is None:
            return declared
        key = (target, config, declared)
        if key not in self._programs:
            payload, filters = (None, ()) if declared is None else (declared.input_type, declared.input_filter)
            self._programs[key] = Handoff(target, input_type=payload, input_filter=filters, config=config)
        return self._programs[key]

    def _messages(self) -> list[Message]:
        under_way = conversation_under_way(self)
        if under_way is not None:
            return under_way
        session = self._store.load(_CONVERSATION)
        return [] if session is None else session.history


class _Texts(Sequence[ChatMessage]):
    """What users and assistants said, without what was called beside it."""

    def __init__(self, messages: Iterable[ChatMessage]) -> None:
        self._texts = [
            {"role": message["role"], "content": message["content"]}
            for message in messages
            if message["role"] in ("user", "assistant") and message["content"]
        ]

    @overload
    def __getitem__(self, index: int) -> ChatMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[ChatMessage]: ...
    def __getitem__(self, index: int | slice) -> ChatMessage | list[ChatMessage]:
        return self._texts[index]

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[ChatMessage]:
        return iter(self._texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._texts)


# --- payloads


class _Payload:
    """What a typed handoff takes: its schema for the model, and its reader."""

    def __init__(self, kind: type, target: str) -> None:
        try:
            self.parameters = schema_of(kind)
            self._convert: Converter | None = converter_of(kind)
        except Exception as error:
            raise DefinitionError(f"The handoff to '{target}' cannot take a {kind!r}: {error}.") from error
        if self.parameters.get("type") != "object":
            raise DefinitionError(f"The handoff to '{target}' takes a {kind!r}, expected a type of objects.")
        self._target = target

    def __call__(self, data: Json, source: str) -> object:
        """The payload as its type has it; raises HandoffValidationError."""
        fault = mismatch(data, self.parameters, "The payload")
        if fault is None:
            try:
                return data if self._convert is None else self._convert(data)
            except ValueError as error:
                fault = f"The payload does not fit: {error}."
        raise HandoffValidationError(
            f"{fault} Agent '{self._target}' was not asked.",
            source_agent=source,
            target_agent=self._target,
            validation_errors=[fault],
        )


_REASON: Json = {"type": "string"}
_TASK: Json = {
    "type": "string",
    "description": "What the agent is to do; the user's last message where this is left out. It sees nothing else.",
}


def _parameters(config: HandoffConfig) -> dict[str, Json]:
    task = {"task": _TASK} if config.context_policy is ContextPolicy.NONE else {}
    return {"type": "object", "properties": {**task, "reason": _REASON}}


@dataclass(frozen=True, slots=True)
class _Shown:
    """A target's history, and the system messages that filters put into it."""

    preface: str
    messages: list[Message]


def _without_early_calls(messages: list[Message]) -> list[Message]:
    # Gemini refuses a conversation that begins with a call.
    first = next((index for index, each in enumerate(messages) if isinstance(each, UserMessage)), len(messages))
    early = [
        replace(message, tool_calls=())
        for message in messages[:first]
        if isinstance(message, AssistantMessage) and message.text
    ]
    return [*early, *messages[first:]]


def _checked_config(config: object) -> HandoffConfig:
    if config is None:
        return HandoffConfig()
    if isinstance(config, HandoffConfig):
        return config
    raise DefinitionError(f"A handoff's config is {config!r}, expected a HandoffConfig.")


def _checked_filters(given: object) -> tuple[Filter, ...]:
    filters = () if given is None else tuple(given) if isinstance(given, list | tuple) else (given,)
    for each in filters:
        if not callable(each):
            raise DefinitionError(f"input_filter is {given!r}, expected a function or a list of functions.")
    return cast(tuple[Filter, ...], filters)


def _object(data: Json) -> dict[str, Json]:
    return data if isinstance(data, dict) else {}


def _data(context: object) -> dict[str, Json]:
    if context is None:
        return {}
    dump = getattr(context, "model_dump", None)
    data = dump(mode="json") if callable(dump) else context
    if not isinstance(data, Mapping):
        raise TypeError(f"The context is a {type(context).__name__}, expected a mapping or a pydantic model.")
    return dict(data)


def _who(passing: Passing) -> dict[str, str]:
    return {"source_agent": passing.source.name, "target_agent": passing.by.agent.name}


def _name(agent: object) -> str:
    return str(getattr(agent, "name", agent))


def _since(began: float) -> float:
    return time.perf_counter() - began


def _ignore(message: str) -> None:
    """Stands in where nobody is warned."""
