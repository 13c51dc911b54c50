"""The engine for real models: litellm, imported when the first answer is wanted."""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

from chatflow_runtime.completions import parse_completion
from chatflow_runtime.engine import Answer, ModelRequest


class LiteLLMEngine:
    """Asks any provider that litellm knows; raises litellm's typed exceptions, and never retries by itself."""

    async def answer(self, request: ModelRequest) -> Answer:
        """One call of one model."""
        litellm = _litellm()
        # litellm edits tools and messages in place, and they are shared with the agents and the history.
        sent: dict[str, Any] = copy.deepcopy(request.projection())
        if request.settings.api_base is not None:
            sent["api_base"] = request.settings.api_base
        response = await litellm.acompletion(**sent, num_retries=0, max_retries=0)
        return parse_completion(response.model_dump())


async def close_connections() -> None:
    """Closes the connections that litellm keeps open, of every event loop; nothing happens where it was never used."""
    if "litellm" in sys.modules:
        await _litellm().close_litellm_async_clients()


def _litellm() -> Any:
    # Without it, the import itself fetches a price list from the network.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    # Its advertisements go to stdout, where reports are written.
    litellm.suppress_debug_info = True
    return litellm
