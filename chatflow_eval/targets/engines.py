"""Who answers for the reference runtime's models: a recording, litellm with retries, or the one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chatflow_eval.player import Asked
from chatflow_eval.retries import CallLimits, persist
from chatflow_eval.tape import ForkingTape, ReplayTape, engine_asking
from chatflow_runtime import litellm_engine
from chatflow_runtime.completions import parse_completion
from chatflow_runtime.engine import Answer, ModelRequest
from chatflow_runtime.litellm_engine import LiteLLMEngine


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """Asks models through litellm, and again where that may help; tells the agent and what became of the attempt."""

    limits: CallLimits
    tell: Callable[[str, str], None]
    sent: Callable[[str, Mapping[str, object]], None]
    """Is told the agent and the request of every question, before it is asked."""
    litellm: LiteLLMEngine = field(default_factory=LiteLLMEngine)

    async def answer(self, request: ModelRequest) -> Answer:
        self.sent(request.agent, request.projection())
        litellm_engine.load()
        with engine_asking():
            return await persist(
                lambda: self.litellm.answer(request),
                self.limits,
                tell=lambda message: self.tell(request.agent, message),
            )


@dataclass(frozen=True, slots=True)
class ReplayEngine:
    """Answers from recorded chat completions, without a provider's client, while there are any."""

    tape: ReplayTape | ForkingTape
    live: LiveEngine
    """Answers what the tape lets out."""

    async def answer(self, request: ModelRequest) -> Answer:
        body = request.projection()
        found = self.tape.replay(Asked(body, agent=request.agent, turn=self.tape.turn))
        if found is None:
            return await self.live.answer(request)
        self.live.sent(request.agent, body)
        return parse_completion(json.loads(found.answer))
