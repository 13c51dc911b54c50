"""Who answers for the models of agents on chatflow-agent: its own engines, or one of ours in their place."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import chatflow_agent
from chatflow_agent.core import runner as its_runner
from chatflow_agent.core.engines.factory import resolve_engine
from chatflow_agent.core.engines.openai_compatible import PROVIDER_PRESETS

from chatflow_eval import scrub
from chatflow_eval.errors import TargetError
from chatflow_eval.fields import suggestion
from chatflow_eval.incidents import refusals
from chatflow_eval.retries import CallLimits
from chatflow_eval.scenario import SettingsSpec
from chatflow_eval.tape import ReplayTape, Tape
from chatflow_eval.targets.chat_client import AnsweringClient, ChatClient, Wire, as_chat
from chatflow_eval.targets.chatflow_agent_steps import Watching, everybody, plain, transfers
from chatflow_eval.trace import ModelStep
from chatflow_runtime import types
from chatflow_runtime.completions import parse_completion
from chatflow_runtime.engine import Engine, ModelRequest, ToolSchema
from chatflow_runtime.keyword_engine import KeywordEngine
from chatflow_runtime.types import Json, Usage

_PROVIDERS = {"gemini": "gemini", "google": "gemini", "anthropic": "anthropic", "claude": "anthropic"} | {
    name: name for name in PROVIDER_PRESETS
}
"""What stands before the slash of a model's name, to chatflow-agent's name of the provider."""

_OF_ANTHROPIC = frozenset({"temperature", "top_p", "max_tokens", "api_base"})
"""The settings that Anthropic's Messages API has under the same names."""


def _resolve(
    agent: chatflow_agent.Agent, default_engine: chatflow_agent.BaseEngine | None = None
) -> chatflow_agent.BaseEngine:
    """chatflow-agent's choice of an engine, where it is not for a conversation of ours."""
    return default_engine if isinstance(default_engine, Models) else resolve_engine(agent, default_engine)


# An agent's own engine, provider and address come before its runner's engine, and agents may be hired, or shared with
# other conversations: so they are left as they are, and asked for by way of the runner.
vars(its_runner)["resolve_engine"] = _resolve


@dataclass(eq=False, kw_only=True)
class Models(chatflow_agent.BaseEngine):
    """Answers for all agents of one conversation, and tells of it."""

    settings: SettingsSpec
    limits: CallLimits
    watching: Watching
    """Of the turn that is going on."""
    default: chatflow_agent.BaseEngine
    """The runner's own engine."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Agent name (`*` for the rest) to the model that the scenario chooses."""
    engines: Mapping[str, Engine] = field(default_factory=dict)
    """Agent name to an engine of ours that answers for it."""
    tape: Tape | None = None
    script: Engine | None = None
    """Answers for everybody while a turn is scripted."""
    said_by: dict[int, str] = field(default_factory=dict)
    """By the id of a message of this turn: which agent's model said it."""
    _waiting: int = 0
    """How many answers are waited for."""
    _clients: list[ChatClient] = field(default_factory=list)
    _own: dict[int, tuple[chatflow_agent.Agent, chatflow_agent.BaseEngine, str | None]] = field(default_factory=dict)
    """By the id of an agent: it, chatflow-agent's engine for it, and what the provider calls the model chosen."""

    async def generate_turn_async(self, agent: chatflow_agent.Agent, history: list[chatflow_agent.Message]) -> Any:
        """What the agent's model says next."""
        began = time.perf_counter()
        self.watching.asking = agent.name
        if self.tape is not None:
            self.tape.agent = agent.name
        model = self.chosen.get(agent.name, self.chosen.get("*"))
        engine, asked = self._answerer(agent, model, history)
        if self._waiting:
            self.watching.warn("The session's next turn began while this one was going on.")
        self._waiting += 1
        try:
            result = await engine.generate_turn_async(agent=asked, history=history)
        finally:
            self._waiting -= 1
        usage = _usage(result.raw_response)
        self.watching.answered(
            ModelStep(
                agent=agent.name,
                model=model or agent.model,
                text=result.text or None,
                calls=tuple(call.name for call in result.tool_calls),
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                seconds=time.perf_counter() - began,
            ),
            agent,
        )
        return result

    async def close(self) -> None:
        """Closes the connections of this conversation."""
        for client in self._clients:
            await client.aclose()

    def _answerer(
        self, agent: chatflow_agent.Agent, model: str | None, history: Sequence[chatflow_agent.Message]
    ) -> tuple[chatflow_agent.BaseEngine, chatflow_agent.Agent]:
        """Who answers, and for whom: the agent itself, unless another model is chosen for it."""
        ours = self.script or self.engines.get(agent.name) or (KeywordEngine() if model == "keyword" else None)
        if ours is not None:
            client = AnsweringClient(ours, lambda body: _request(body, agent, history, self.said_by), self._sent)
            return chatflow_agent.OpenAIEngine(api_key="", http_client=client), agent
        if id(agent) not in self._own:
            self._own[id(agent)] = (agent, *self._own_engine(agent, model))
        _, engine, name = self._own[id(agent)]
        if name is None or agent.model == name:
            return engine, agent
        asked = copy.copy(agent)
        asked.model = name
        return engine, asked

    def _own_engine(
        self, agent: chatflow_agent.Agent, model: str | None
    ) -> tuple[chatflow_agent.BaseEngine, str | None]:
        """chatflow-agent's engine, with our client where it takes one, and its name for a model that is chosen.

        Raises:
            TargetError: there is no such provider, or its engine does not take what the settings say.
        """
        if model is None:
            engine, name = resolve_engine(agent, default_engine=self.default), None
        else:
            engine, name = _engine_for(model, self.settings)
        heard = frozenset[str]()
        if isinstance(engine, chatflow_agent.OpenAIEngine):
            heard = frozenset(SettingsSpec.model_fields)
        elif isinstance(engine, chatflow_agent.AnthropicEngine):
            heard = _OF_ANTHROPIC
        unheard = [setting for setting, value in self.settings if value is not None and setting not in heard]
        if unheard:
            raise TargetError(
                f"agent {agent.name!r} is answered for by a {type(engine).__name__}, "
                f"which chatflow-agent gives no way to set: {', '.join(unheard)}"
            )
        scrub.declare_values(getattr(holder, "api_key", None) for holder in (agent, engine))
        # How often and how long is for the run to say.
        if isinstance(engine, chatflow_agent.OpenAIEngine | chatflow_agent.AnthropicEngine):
            engine = copy.copy(engine)
            engine.base_url = (self.settings.api_base or engine.base_url).rstrip("/")
            engine._external_client = self._client(engine)
            engine.max_retries = 0
        elif isinstance(engine, chatflow_agent.GeminiEngine):
            engine = copy.copy(engine)
            # It takes a missing recording for a server's trouble when a number such as 503 stands in its name.
            engine.max_retries = 0 if isinstance(self.tape, ReplayTape) else self.limits.retries
            engine.timeout_seconds = self.limits.timeout
        return engine, name

    def _client(self, engine: chatflow_agent.OpenAIEngine | chatflow_agent.AnthropicEngine) -> ChatClient:
        """Ours, by way of the engine's own where its user gave it one."""
        is_chat = isinstance(engine, chatflow_agent.OpenAIEngine)
        wire = Wire(
            settings=self.settings,
            limits=self.limits,
            sent=self._sent if is_chat else lambda body: self._sent(as_chat(body)),
            tell=lambda message: self.watching.warn(message),
        )
        client = ChatClient(wire, through=engine._external_client)
        self._clients.append(client)
        return client

    def _sent(self, request: Mapping[str, Json]) -> None:
        """A request of the active agent is about to go out; what its provider would refuse of it is noted."""
        self.watching.steps.extend(refusals(request, self.watching.asking))


def check_chosen(runner: chatflow_agent.Runner, models: Mapping[str, str]) -> None:
    """Whether a scenario chooses models for agents that are there.

    Raises:
        TargetError: one is not there.
    """
    names = [agent.name for agent in everybody(runner)]
    for name in models:
        if name != "*" and name not in names:
            raise TargetError(f"models names agent {name!r}, and there is none{suggestion(name, names)}")


def _engine_for(model: str, settings: SettingsSpec) -> tuple[chatflow_agent.BaseEngine, str]:
    """The engine of chatflow-agent for a litellm name, and what the provider calls the model.

    Raises:
        TargetError: chatflow-agent has no such provider.
    """
    if model.startswith("gemini-"):
        model = f"gemini/{model}"
    prefix, slash, name = model.partition("/")
    if not slash and settings.api_base is None:
        raise TargetError(f"model {model!r}: chatflow-agent needs its provider, as in 'openai/{model}'")
    provider = _PROVIDERS.get(prefix) if slash else "openai"
    if provider is None:
        known = ", ".join(sorted(_PROVIDERS))
        raise TargetError(f"model {model!r}: chatflow-agent has no provider {prefix!r}, only {known}")
    if provider == "gemini":
        return chatflow_agent.GeminiEngine(), name
    if provider == "anthropic":
        return chatflow_agent.AnthropicEngine(api_key=os.environ.get("ANTHROPIC_API_KEY")), name
    key = os.environ.get(PROVIDER_PRESETS[provider]["env_key"])
    try:
        engine = chatflow_agent.OpenAIEngine(
            api_key=key if settings.api_base is not None else None, base_url=settings.api_base, provider=provider
        )
    except ValueError as error:
        raise TargetError(f"model {model!r}: {error}") from None
    return engine, name if slash else model


def _request(
    body: Mapping[str, Json],
    agent: chatflow_agent.Agent,
    history: Sequence[chatflow_agent.Message],
    said_by: Mapping[int, str],
) -> ModelRequest:
    """What an engine of ours is asked for an agent of theirs; its instructions and tools are those of its request."""
    targets = {name: peer.name for name, peer in transfers(agent)}
    functions = [tool["function"] for tool in _objects(body.get("tools")) if isinstance(tool["function"], dict)]
    systems = [message["content"] for message in _objects(body["messages"]) if message["role"] == "system"]
    return ModelRequest(
        agent=agent.name,
        model=agent.model,
        instructions=str(next(iter(systems), "")),
        history=tuple(_messages(history, said_by)),
        tools=tuple(
            ToolSchema(
                str(function["name"]),
                str(function["description"]),
                function["parameters"] if isinstance(function["parameters"], dict) else {},
                targets.get(str(function["name"])),
            )
            for function in functions
        ),
    )


def _objects(value: Json) -> list[dict[str, Json]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _messages(history: Sequence[chatflow_agent.Message], said_by: Mapping[int, str]) -> Iterator[types.Message]:
    for message in history:
        if message.role is chatflow_agent.Role.USER:
            yield types.UserMessage(message.content or "")
        elif message.role is chatflow_agent.Role.MODEL:
            calls = tuple(types.ToolCall(call.id, call.name, str(call.args)) for call in message.tool_calls or ())
            yield types.AssistantMessage(said_by.get(id(message), ""), message.content or None, calls)
        for result in message.tool_results or ():
            yield types.ToolResult(result.tool_call_id, result.name, plain(result.content), result.is_error)


def _usage(raw: object) -> Usage:
    """The tokens that an answer took, as far as its provider says so."""
    if isinstance(raw, Mapping):
        used = raw.get("usage")
        if isinstance(used, Mapping) and "input_tokens" in used:
            return Usage(_count(used["input_tokens"]), _count(used.get("output_tokens")))
        return parse_completion(raw).usage
    used = getattr(raw, "usage_metadata", None)
    return Usage(
        _count(getattr(used, "prompt_token_count", None)), _count(getattr(used, "candidates_token_count", None))
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None
