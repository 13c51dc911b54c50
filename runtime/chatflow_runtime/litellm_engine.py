"""The engine for real models: litellm, imported when the first answer is wanted."""

from __future__ import annotations

import copy
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from chatflow_runtime.completions import join_completion, parse_completion
from chatflow_runtime.engine import Answer, ModelRequest


class LiteLLMEngine:
    """Asks any provider that litellm knows; raises litellm's typed exceptions, and never retries by itself.

    Keys come from the environment, as litellm has it. `api_key` stands in where none is needed but the client insists:
    in replay, and for a server on this machine. With `stream` answers are streamed, and read when they are whole: a
    stream that breaks off raises, too.
    """

    def __init__(self, *, api_key: str | None = None, stream: bool = False) -> None:
        self._api_key = api_key
        self._stream = stream

    async def answer(self, request: ModelRequest) -> Answer:
        """One call of one model."""
        litellm = _litellm()
        # litellm edits tools and messages in place, and they are shared with the agents and the history.
        sent: dict[str, Any] = copy.deepcopy(request.projection())
        if request.settings.api_base is not None:
            sent["api_base"] = request.settings.api_base
        if key := self._api_key or _placeholder_key(request.settings.api_base):
            sent["api_key"] = key
        if self._stream:
            sent |= {"stream": True, "stream_options": {"include_usage": True}}
        response = await litellm.acompletion(**sent, num_retries=0, max_retries=0)
        if not self._stream:
            return parse_completion(response.model_dump())
        async for _ in response:
            pass
        # Not what it yields, which has tokens that litellm guessed and an end that never came.
        return join_completion(chunk.model_dump() for chunk in response.chunks)


async def close_connections() -> None:
    """Closes the connections that litellm keeps open, of every event loop; nothing happens where it was never used."""
    if "litellm" in sys.modules:
        await _litellm().close_litellm_async_clients()


def load() -> None:
    """Imports litellm now: several seconds that are no model's."""
    _litellm()


def _placeholder_key(api_base: str | None) -> str | None:
    """A server on this machine seldom asks for a key, and the client refuses to send without one."""
    is_local = api_base is not None and urlsplit(api_base).hostname in ("127.0.0.1", "localhost", "::1")
    return "none" if is_local and "OPENAI_API_KEY" not in os.environ else None


def _litellm() -> Any:
    # Without it, the import itself fetches a price list from the network.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    # Its advertisements go to stdout, where reports are written.
    litellm.suppress_debug_info = True
    return litellm
