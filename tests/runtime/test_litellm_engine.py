"""Real requests over a real socket, to a server on loopback that speaks chat-completions."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chatflow_eval.cli import cli
from chatflow_runtime.agent import Agent
from chatflow_runtime.engine import Engine, Settings
from chatflow_runtime.exceptions import EmptyResponseError
from chatflow_runtime.history import faults
from chatflow_runtime.litellm_engine import LiteLLMEngine, close_connections, load
from chatflow_runtime.runner import Runner
from chatflow_runtime.types import AgentResponse, Handoff, Usage

# What litellm itself warns of when it is imported and when its event loop ends.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class:UserWarning"),
]


class Provider:
    """A model provider on loopback: gives the answers it was told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, Any] | str]] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                provider.keys.append(self.headers["authorization"])
                length = int(self.headers["content-length"])
                provider.asked.append(json.loads(self.rfile.read(length)))
                status, body = provider.answers.pop(0)
                is_stream = isinstance(body, str)
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
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

    def streams(self, *chunks: dict[str, Any], is_cut: bool = False) -> None:
        """The next answer, piece by piece; a cut one ends without its end, as when a connection is lost."""
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        events = [f"data: {json.dumps({**head, **chunk})}\n\n" for chunk in chunks]
        self.answers.append((200, "".join([*events, *([] if is_cut else ["data: [DONE]\n\n"])])))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("OPENAI_API_KEY", "no key")
    server = Provider()
    yield server
    server.close()


async def say_all(texts: Sequence[str], address: str, engine: Engine | None) -> list[AgentResponse]:
    """What Triage, who can hand off to Billing, who has no tools, says to each text."""
    billing = Agent("Billing", "Handle refunds.", model="openai/gpt-4o")
    triage = Agent("Triage", "Route.", model="openai/gpt-4o", handoffs=[billing])
    runner = Runner(triage, engine=engine, settings=Settings(api_base=address, temperature=0.5, seed=1))
    try:
        return [await runner.run_async("s", text) for text in texts]
    finally:
        await close_connections()


def converse(provider: Provider, *texts: str, engine: Engine | None = None) -> list[AgentResponse]:
    return asyncio.run(say_all(texts, provider.address, engine))


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


def piece(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


BILLING = {"name": "transfer_to_billing", "arguments": ""}
TRANSFER = piece(tool_calls=[{"index": 0, "id": "a", "type": "function", "function": BILLING}])
STREAMED: tuple[tuple[dict[str, Any], ...], ...] = (
    (
        piece(role="assistant", content="One "),
        piece(content="moment."),
        TRANSFER,
        piece(tool_calls=[{"index": 0, "function": {"arguments": '{"reason": '}}]),
        piece(tool_calls=[{"index": 0, "function": {"arguments": '"refund"}'}}]),
        piece("tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}},
    ),
    (
        piece(role="assistant", content="How"),
        piece(content=" much?"),
        piece("stop"),
        {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}},
    ),
)


def test_an_engine_that_streams_gives_the_answers_of_one_that_does_not(provider: Provider) -> None:
    for chunks in STREAMED:
        provider.streams(*chunks)
    (response,) = converse(provider, "I want a refund.", engine=LiteLLMEngine(stream=True))
    assert (response.content, response.active_agent_name) == ("How much?", "Billing")
    assert (response.handoff, response.usage) == (Handoff("Billing", "refund"), Usage(29, 7))
    call = {"type": "function", "function": {"name": "transfer_to_billing", "arguments": '{"reason": "refund"}'}}
    provider.says(content="One moment.", tool_calls=[{"id": "a", **call}])
    provider.says(content="How much?")
    converse(provider, "I want a refund.")
    streamed, whole = provider.asked[:2], provider.asked[2:]
    assert streamed == [{**body, "stream": True, "stream_options": {"include_usage": True}} for body in whole]


def test_tokens_of_a_stream_that_the_provider_does_not_count_are_unknown(provider: Provider) -> None:
    """B119: litellm itself counts what it cannot know."""
    provider.streams(piece(content="Hello."), piece("stop"))
    assert converse(provider, "hi", engine=LiteLLMEngine(stream=True))[0].usage == Usage(None, None)


@pytest.mark.parametrize("chunks", [(piece(content="Hel"), piece(content="lo")), (piece(content="Hi"), TRANSFER), ()])
def test_a_stream_that_breaks_off_is_an_error_and_the_session_is_as_it_was(
    provider: Provider, chunks: tuple[dict[str, Any], ...]
) -> None:
    """B088: neither a short answer nor a transfer without its reason."""
    provider.streams(*chunks, is_cut=True)
    with pytest.raises(Exception, match=r"broke off|before a finish_reason"):
        converse(provider, "hi", engine=LiteLLMEngine(stream=True))
    assert len(provider.asked) == 1


STREAMING = """
from chatflow_runtime import Agent, LiteLLMEngine, Runner, Settings

def build():
    billing = Agent("Billing", "Handle refunds.", model="openai/gpt-4o")
    triage = Agent("Triage", "Route.", model="openai/gpt-4o", handoffs=[billing])
    return Runner(triage, engine=LiteLLMEngine(stream=True), settings=Settings(api_base="ADDRESS"))
"""
SCENARIO = """
target: streaming.py:build
scenarios:
  - id: refund
    turns:
      - user: I want a refund.
        expect: {route: Triage -> Billing, reply: {contains: "How much?"}}
"""


def test_a_recorded_stream_replays_over_http_without_provider_or_key(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B088: as it came, pieces and all."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "streaming.py").write_text(STREAMING.replace("ADDRESS", provider.address))
    (tmp_path / "refund.scenario.yaml").write_text(SCENARIO)
    for chunks in STREAMED:
        provider.streams(*chunks)
    recorded = CliRunner().invoke(cli, ["record", "refund.scenario.yaml"])
    assert recorded.exit_code == 0, recorded.output
    assert [body["stream"] for body in provider.asked] == [True, True]
    provider.close()
    monkeypatch.delenv("OPENAI_API_KEY")
    replayed = CliRunner().invoke(cli, ["run", "refund.scenario.yaml"])
    assert replayed.exit_code == 0, replayed.output
    assert "1 passed" in replayed.output


def test_closing_what_was_never_opened_does_not_import_litellm() -> None:
    program = """
import asyncio, sys
from chatflow_runtime.litellm_engine import LiteLLMEngine, close_connections, load
asyncio.run(close_connections())
assert "litellm" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
