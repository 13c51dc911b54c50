"""Real requests over a real socket, to a server on loopback that speaks chat-completions."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from chatflow_runtime.agent import Agent
from chatflow_runtime.engine import Engine, Settings
from chatflow_runtime.exceptions import EmptyResponseError
from chatflow_runtime.history import faults
from chatflow_runtime.litellm_engine import LiteLLMEngine, close_connections, load
from chatflow_runtime.runner import Runner
from chatflow_runtime.types import AgentResponse, Usage

# What litellm itself warns of when it is imported and when its event loop ends.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]


class Provider:
    """A model provider on loopback: gives the answers it was told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                provider.keys.append(self.headers["authorization"])
                length = int(self.headers["content-length"])
                provider.asked.append(json.loads(self.rfile.read(length)))
                status, body = provider.answers.pop(0)
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                """Keeps quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def says(self, **message: Any) -> None:
        """The next answer; `usage` beside the message's own fields."""
        usage = message.pop("usage", None)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **message}}
        body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        self.answers.append((200, {**body, **({"usage": usage} if usage else {})}))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("OPENAI_API_KEY", "no key")
    server = Provider()
    yield server
    server.close()


def converse(provider: Provider, *texts: str, engine: Engine | None = None) -> list[AgentResponse]:
    """Triage, who can hand off to Billing, who has no tools."""
    billing = Agent("Billing", "Handle refunds.", model="openai/gpt-4o")
    triage = Agent("Triage", "Route.", model="openai/gpt-4o", handoffs=[billing])
    runner = Runner(triage, engine=engine, settings=Settings(api_base=provider.address, temperature=0.5, seed=1))

    async def main() -> list[AgentResponse]:
        try:
            return [await runner.run_async("s", text) for text in texts]
        finally:
            await close_connections()

    return asyncio.run(main())


def test_a_handoff_over_the_wire_sends_the_canonical_requests(provider: Provider) -> None:
    call = {"type": "function", "function": {"name": "transfer_to_billing", "arguments": '{"reason": "refund"}'}}
    provider.says(content="One moment.", tool_calls=[call], usage={"prompt_tokens": 9, "completion_tokens": 4})
    provider.says(content="How much?", usage={"prompt_tokens": 20, "completion_tokens": 3})
    (response,) = converse(provider, "I want a refund.")
    assert (response.content, response.active_agent_name) == ("How much?", "Billing")
    assert response.usage == Usage(29, 7)
    description = "Hand off the dialogue to 'Billing'. Target agent specialty: Handle refunds."
    parameters = {"type": "object", "properties": {"reason": {"type": "string"}}}
    function = {"name": "transfer_to_billing", "description": description, "parameters": parameters}
    assert provider.asked[0] == {
        "model": "gpt-4o",
        "messages": [{"role": "system", "content": "Route."}, {"role": "user", "content": "I want a refund."}],
        "tools": [{"type": "function", "function": function}],
        "temperature": 0.5,
        "seed": 1,
    }
    result = '{"status": "HANDOFF_SUCCESS", "transferred_to": "Billing", "reason": "refund"}'
    assert provider.asked[1]["messages"] == [
        {"role": "system", "content": "Handle refunds."},
        {"role": "user", "content": "I want a refund."},
        {"role": "assistant", "content": 'One moment.\n[called transfer_to_billing {"reason": "refund"}]'},
        {"role": "user", "content": f"[transfer_to_billing returned {result}]"},
    ]
    assert [faults(body) for body in provider.asked] == [(), ()]


def test_tokens_that_the_provider_does_not_count_are_unknown(provider: Provider) -> None:
    """B119: litellm itself says 0."""
    provider.says(content="Hello.")
    assert converse(provider, "hi")[0].usage == Usage(None, None)


def test_a_server_on_this_machine_needs_no_key(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself refuses to send without one."""
    monkeypatch.delenv("OPENAI_API_KEY")
    load()
    provider.says(content="Hello.")
    provider.says(content="Hello.")
    converse(provider, "hi")
    converse(provider, "hi", engine=LiteLLMEngine(api_key="stand-in"))
    assert provider.keys == ["Bearer none", "Bearer stand-in"]


def test_an_empty_answer_is_an_error(provider: Provider) -> None:
    """E05: choices: []."""
    provider.answers.append((200, {"id": "x", "object": "chat.completion", "choices": []}))
    with pytest.raises(EmptyResponseError, match="Model 'openai/gpt-4o' answered for agent 'Triage'"):
        converse(provider, "hi")


@pytest.mark.parametrize(("status", "kind"), [(429, "RateLimitError"), (500, "InternalServerError")])
def test_a_providers_refusal_is_raised_after_one_request(provider: Provider, status: int, kind: str) -> None:
    """B030, B138: litellm and the client under it retry unless told not to."""
    provider.answers += [(status, {"error": {"message": "not now"}})] * 3
    with pytest.raises(Exception, match="not now") as refusal:
        converse(provider, "hi")
    assert type(refusal.value).__name__ == kind
    assert len(provider.asked) == 1


def test_the_price_list_is_local_and_litellm_keeps_off_stdout(
    provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    """B089, E07: without the variable the import itself reaches for the network."""
    provider.answers.append((400, {"error": {"message": "no such model"}}))
    with pytest.raises(Exception, match="no such model"):
        converse(provider, "hi")
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert capsys.readouterr().out == ""


def test_closing_what_was_never_opened_does_not_import_litellm() -> None:
    program = """
import asyncio, sys
from chatflow_runtime.litellm_engine import LiteLLMEngine, close_connections, load
asyncio.run(close_connections())
assert "litellm" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
