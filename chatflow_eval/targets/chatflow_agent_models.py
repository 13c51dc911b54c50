"""Who answers for the models of agents on chatflow-agent: its own engines, or one of ours in their place."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import chatflow_agent
from chatflow_agent.core.engines.factory import resolve_engine
from chatflow_agent.core.engines.openai_compatible import PROVIDER_PRESETS

from chatflow_eval.errors import TargetError
from chatflow_eval.fields import suggestion
from chatflow_eval.incidents import refusals
from chatflow_eval.retries import CallLimits
from chatflow_eval.scenario import SettingsSpec
from chatflow_eval.tape import Tape
from chatflow_eval.targets.chat_client import AnsweringClient, ChatClient, Wire
from chatflow_eval.targets.chatflow_agent_steps import Watching, everybody, plain, transfers
from chatflow_eval.trace import ModelStep
from chatflow_runtime import types
from chatflow_runtime.completions import parse_completion
from chatflow_runtime.engine import Engine, ModelRequest, ToolSchema

_PROVIDERS = {"gemini": "gemini", "google": "gemini", "anthropic": "anthropic", "claude": "anthropic"} | {
    name: name for name in PROVIDER_PRESETS
}
"""What stands before the slash of a model's name, to chatflow-agent's name of the provider."""


@dataclass(slots=True)
class Models:
    """The models of one conversation."""

    settings: SettingsSpec
    watching: Watching
    """Of the turn that is going on."""
    tape: Tape | None = None
    client: ChatClient = field(init=False)
    script: Engine | None = None
    """Answers for everybody while a turn is scripted."""
    said_by: dict[int, str] = field(default_factory=dict)
    """By the id of a message in the history: which agent's model said it."""

    @classmethod
    def begin(cls, settings: SettingsSpec, limits: CallLimits, watching: Watching, tape: Tape | None) -> Models:
        """The models of a conversation that has not begun."""
        models = cls(settings, watching, tape)
        models.client = ChatClient(
            Wire(settings=settings, limits=limits, sent=models.sent, tell=lambda message: models.watching.warn(message))
        )
        return models

    def sent(self, body: Mapping[str, object]) -> None:
        """A chat request of the active agent is about to go out; what its provider would refuse of it is noted."""
        self.watching.steps.extend(refusals(body, self.watching.asking))


class Answering(chatflow_agent.BaseEngine):
    """Answers for one agent, and tells of it."""

    def __init__(
        self,
        models: Models,
        agent: chatflow_agent.Agent,
        *,
        model: str | None,
        engine: Engine | None,
        default: chatflow_agent.BaseEngine,
    ) -> None:
        self._models = models
        self._declared = copy.copy(agent)
        self._model = model
        self._engine = engine
        self._default = default
        self._live: chatflow_agent.BaseEngine | None = None

    async def generate_turn_async(self, agent: chatflow_agent.Agent, history: list[chatflow_agent.Message]) -> Any:
        """What the agent's model says next."""
        models, began = self._models, time.perf_counter()
        models.watching.asking = agent.name
        if models.tape is not None:
            models.tape.agent = agent.name
        result = await self._answerer(agent, history).generate_turn_async(agent=agent, history=history)
        raw = result.raw_response if isinstance(result.raw_response, Mapping) else {}
        usage = parse_completion(raw).usage
        models.watching.answered(
            ModelStep(
                agent=agent.name,
                model=self._model or agent.model,
                text=result.text or None,
                calls=tuple(call.name for call in result.tool_calls),
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                seconds=time.perf_counter() - began,
            ),
            agent,
        )
        return result

    def _answerer(
        self, agent: chatflow_agent.Agent, history: Sequence[chatflow_agent.Message]
    ) -> chatflow_agent.BaseEngine:
        ours = self._models.script or self._engine
        if ours is not None:
            client = AnsweringClient(ours, _request(agent, history, self._models.said_by), self._models.sent)
            return chatflow_agent.OpenAIEngine(api_key="", http_client=client)
        if self._live is None:
            self._live, agent.model = self._own_engine()
        return self._live

    def _own_engine(self) -> tuple[chatflow_agent.BaseEngine, str]:
        """chatflow-agent's engine, with our client where it speaks chat completions, and the model's name for it.

        Raises:
            TargetError: there is no such provider, or its engine does not take what the settings say.
        """
        settings, client = self._models.settings, self._models.client
        if self._model is None:
            engine, name = resolve_engine(self._declared, default_engine=self._default), self._declared.model
        else:
            engine, name = _engine_for(self._model, settings)
        if type(engine) is chatflow_agent.OpenAIEngine:
            ours = chatflow_agent.OpenAIEngine(
                api_key=engine.api_key,
                base_url=settings.api_base or engine.base_url,
                provider=engine.provider,
                http_client=client,
            )
            ours.max_retries = 0  # the client makes them, within the budget of the run
            return ours, name
        unheard = [name for name, value in settings if value is not None]
        if unheard:
            raise TargetError(
                f"agent {self._declared.name!r} is answered for by a {type(engine).__name__}, "
                f"which chatflow-agent gives no way to set: {', '.join(unheard)}"
            )
        return engine, name


def chosen_models(runner: chatflow_agent.Runner, models: Mapping[str, str]) -> dict[str, str]:
    """The model that a scenario chooses for each agent, for those that it chooses one for.

    Raises:
        TargetError: it chooses one for an agent that is not there.
    """
    names = [agent.name for agent in everybody(runner)]
    for name in models:
        if name != "*" and name not in names:
            raise TargetError(f"models names agent {name!r}, and there is none{suggestion(name, names)}")
    chosen = {name: models.get(name, models.get("*")) for name in names}
    return {name: model for name, model in chosen.items() if model is not None}


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
        return chatflow_agent.AnthropicEngine(), name
    key = os.environ.get(PROVIDER_PRESETS[provider]["env_key"])
    try:
        engine = chatflow_agent.OpenAIEngine(
            api_key=key if settings.api_base is not None else None, base_url=settings.api_base, provider=provider
        )
    except ValueError as error:
        raise TargetError(f"model {model!r}: {error}") from None
    return engine, name if slash else model


def _request(
    agent: chatflow_agent.Agent, history: Sequence[chatflow_agent.Message], said_by: Mapping[int, str]
) -> ModelRequest:
    """What an engine of ours is asked for an agent of theirs."""
    targets = dict(transfers(agent))
    tools = tuple(
        ToolSchema(
            tool.name,
            tool.description,
            tool.parameters_schema,
            targets[tool.name].name if tool.name in targets else None,
        )
        for tool in agent.get_all_tools()
    )
    return ModelRequest(
        agent=agent.name,
        model=agent.model,
        instructions=agent.get_instructions(),
        history=tuple(_messages(history, said_by)),
        tools=tools,
    )


def _messages(history: Sequence[chatflow_agent.Message], said_by: Mapping[int, str]) -> Iterator[types.Message]:
    for message in history:
        if message.role is chatflow_agent.Role.USER:
            yield types.UserMessage(message.content or "")
        elif message.role is chatflow_agent.Role.MODEL:
            calls = tuple(types.ToolCall(call.id, call.name, str(call.args)) for call in message.tool_calls or ())
            yield types.AssistantMessage(said_by.get(id(message), ""), message.content or None, calls)
        for result in message.tool_results or ():
            yield types.ToolResult(result.tool_call_id, result.name, plain(result.content), result.is_error)
