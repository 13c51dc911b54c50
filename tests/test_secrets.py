"""Canaries: secrets of every kind go through a recording and a run, and are in nothing that is written or said."""

from __future__ import annotations

import base64
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest

from chatflow_eval.cassette import read

ENVIRONMENT = {
    "OPENAI_API_KEY": "canary-of-the-environment",
    "ACME_PASSWORD": 'canary "quoted" \\ & <odd> ü',
    "ACME_DSN": "canary-declared",
    "NO_COLOR": "1",
}
AGENTS = '''
import os

import httpx

from chatflow_runtime import Agent
from chatflow_runtime.engine import Answer
from chatflow_runtime.types import ToolCall


class Client:
    """A client that says its secrets wherever one can."""

    async def answer(self, request):
        secrets = {
            "api_key": "canary-in-a-field",
            "nested": {"client_secret": "canary-deep-in-a-field"},
            "arguments": '{"password": "canary-in-json-in-json", "n": 1}',
            "note": "key:\\nsk-canary0123456789 " + os.environ["ACME_PASSWORD"] + os.environ["ACME_DSN"],
        }
        headers = {
            "Authorization": "Bearer canary-of-the-header",
            "x-api-key": "canary-of-the-header",
            "Cookie": "session=canary-of-the-header",
            "OpenAI-Organization": "org-canaryofthe0header0",
        }
        url = "http://user:canary-of-the-user@127.0.0.1:PORT/v1?key=canary-in-the-query&sig=canary-in-the-query"
        async with httpx.AsyncClient() as client:
            found = await client.post(url, json={**request.projection(), **secrets}, headers=headers)
            await client.post(url, data={"client_secret": "canary-in-a-form", "grant": "x"})
        said = found.json()
        if "tool" in str(request.history[-1]) or "refund" not in str(request.history[-1]):
            raise RuntimeError("Incorrect API key provided: " + os.environ["OPENAI_API_KEY"] + " sk-canary0123456789")
        return Answer(said["text"], (ToolCall("c1", "look_up", '{"token": "x", "api_key": "canary-of-a-call"}'),))


def look_up(token: str, api_key: str, context: dict) -> dict:
    """Looks something up."""
    context["access_token"] = "canary-in-the-context"
    return {"password": "canary-of-a-tool", "note": "AIzaCanary" + "x" * 30, "seen": os.environ["ACME_PASSWORD"]}


def build() -> Agent:
    return Agent("Triage", "Use Bearer canary-of-the-instructions.", tools=[look_up], engine=Client())
'''
SUITE = """
target: agents.py:build
scenarios:
  - id: refund
    context: {secret: canary-of-the-scenario}
    turns:
      - {user: "refund, my key is sk-canary0123456789", expect: {calls: look_up}}
"""


class Echo(http.server.BaseHTTPRequestHandler):
    """Says back what it was told, and secrets of its own, in headers and in the body."""

    asked: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        told = self.rfile.read(int(self.headers["content-length"]))
        self.asked.append(told)
        body = {"text": "hello sk-canary0123456789", "echo": told.decode(), "refresh_token": "canary-of-the-answer"}
        self.send_response(200, "OK")
        for name, value in {
            "Content-Type": "application/json",
            "Set-Cookie": "session=canary-of-the-server",
            "X-Request-Id": "req-canary",
            "OpenAI-Organization": "canary-organisation",
            "Location": "http://x/?access_token=canary-in-the-location",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_port)
        (tmp_path / "pyproject.toml").write_text('[tool.chatflow-eval]\nsecrets = ["ACME_DSN"]\n', encoding="utf-8")
        (tmp_path / "agents.py").write_text(AGENTS.replace("PORT", port), encoding="utf-8")
        (tmp_path / "a.scenario.yaml").write_text(SUITE, encoding="utf-8")
        yield tmp_path
        server.shutdown()


def command(project: Path, *args: str) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-m", "chatflow_eval", *args]
    return subprocess.run(words, capture_output=True, env={**os.environ, **ENVIRONMENT}, cwd=project, check=False)


CANARY = re.compile(rb"[Cc]anary(?!-?eval)")
WRITTEN_ODDLY = [
    written.encode()
    for written in (
        quote(ENVIRONMENT["ACME_PASSWORD"]),
        json.dumps(ENVIRONMENT["ACME_PASSWORD"])[1:-1],
        "&lt;odd&gt;",
    )
]


def leaks(text: bytes) -> list[bytes]:
    """What is left of the secrets in a text, and in what is packed inside it."""
    found = [text[max(0, match.start() - 40) : match.end() + 40] for match in CANARY.finditer(text)]
    found += [secret for secret in WRITTEN_ODDLY if secret in text]
    for packed in re.findall(rb"[A-Za-z0-9+/]{200,}={0,2}", text):
        for bits in (zlib.MAX_WBITS, zlib.MAX_WBITS | 16, -zlib.MAX_WBITS):
            try:
                found += leaks(zlib.decompress(base64.b64decode(packed), bits))
            except (zlib.error, ValueError):
                continue
    return found


def test_no_secret_is_in_any_file_or_on_any_stream(project: Path) -> None:
    """B097, B099, E09."""
    said = [
        command(project, "run", ".", "--record-mode", "all", "--out", "r", "--junit", "r/j.xml", "--summary", "r/s.md"),
        command(project, "run", ".", "--out", "missing", "--junit", "missing/j.xml"),
        command(project, "export", "r", "--format", "csv"),
        command(project, "export", "r", "--format", "jsonl"),
        command(project, "report", "r"),
        command(project, "history", "."),
        command(project, "run", ".", "--live", "--out", "live"),
    ]
    assert any(b"canary" in told for told in Echo.asked), "they were planted"
    for done in said:
        assert leaks(done.stdout + done.stderr) == [], done.args
        assert b"Traceback" not in done.stderr
    written = [
        path for path in project.rglob("*") if path.is_file() and path.name not in ("agents.py", "a.scenario.yaml")
    ]
    names = {path.suffix for path in written}
    assert {".json", ".jsonl", ".html", ".xml", ".md", ".csv"} <= names
    for path in written:
        if "__pycache__" not in path.parts:
            assert leaks(path.read_bytes()) == [], path


def test_no_secret_is_in_a_recording_and_it_replays_without_them(project: Path) -> None:
    agents = project / "agents.py"
    text = agents.read_text(encoding="utf-8")
    agents.write_text(text.replace('raise RuntimeError("Incorrect', 'return Answer("Incorrect'), encoding="utf-8")
    recorded = command(project, "record", ".", "--out", "r")
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    (cassette,) = (project / "cassettes").rglob("*.json")
    assert leaks(cassette.read_bytes()) == []
    assert len(read(cassette).exchanges) == 4
    assert leaks(command(project, "cassettes", "show", str(cassette), "--whole").stdout) == []
    replayed = command(project, "run", ".", "--out", "replayed")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    agents.write_text(text.replace("Use Bearer", "Have Bearer"), encoding="utf-8")
    stale = command(project, "run", ".", "--out", "stale")
    assert stale.returncode == 2
    for done in (recorded, replayed, stale):
        assert leaks(done.stdout + done.stderr) == [], done.args
    for path in (*(project / "replayed").iterdir(), *(project / "stale").iterdir()):
        assert leaks(path.read_bytes()) == [], path


ON_CHATFLOW_AGENT = """
import os

import chatflow_agent

KEY = "canary-key-of-an-agent"


def look_up() -> str:
    raise RuntimeError(f"no login with {KEY}, or with " + os.environ["ACME_PASSWORD"])


def tell() -> dict:
    return {"note": f"log in with {KEY}", "access_token": "canary-of-a-tool"}


def build():
    url = "http://127.0.0.1:PORT/v1"
    chat = chatflow_agent.OpenAIEngine(api_key=KEY, base_url=url)
    triage = chatflow_agent.Agent("Triage", f"Never say {KEY}.", tools=[look_up, tell], engine=chat)
    claude = chatflow_agent.AnthropicEngine(api_key=KEY, base_url=url)
    triage.add_handoff(chatflow_agent.Agent("Billing", "Refunds.", engine=claude))
    return triage
"""
ON_CHATFLOW_AGENT_SUITE = """
target: agents.py:build
frameworks: [chatflow_agent]
scenarios:
  - id: tools
    turns:
      - {user: hi, script: [{call: look_up}, {call: tell}, {say: It is canary-key-of-an-agent.}], expect: none}
      - {user: on the wire, expect: {ends_at: Triage}}
  - id: refused
    turns:
      - {user: hi, script: [{transfer: Billing}, {say: Hello.}], expect: {ends_at: Billing}}
      - {user: on the wire, expect: {ends_at: Triage}}
"""


class Refusing(Echo):
    """Says in its refusal with what key it was asked."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(401)
        self.end_headers()
        self.wfile.write(f"{self.headers['authorization']} {self.headers['x-api-key']}: unknown".encode())


def test_keys_that_agents_of_another_framework_have_are_nowhere(tmp_path: Path) -> None:
    """B099: they have no shape and stand in no variable, and providers and tools say them."""
    pytest.importorskip("chatflow_agent", reason="chatflow-agent is not installed (extra chatflow-agent)")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "pyproject.toml").touch()
        (tmp_path / "agents.py").write_text(
            ON_CHATFLOW_AGENT.replace("PORT", str(server.server_port)), encoding="utf-8"
        )
        (tmp_path / "a.scenario.yaml").write_text(ON_CHATFLOW_AGENT_SUITE, encoding="utf-8")
        written = ("--junit", "r/j.xml", "--summary", "r/s.md")
        done = command(tmp_path, "run", ".", "--live", "--retries", "0", "--out", "r", *written)
        server.shutdown()
    assert b"401" in done.stdout
    assert leaks(done.stdout + done.stderr) == []
    files = [path for path in (tmp_path / "r").iterdir() if path.is_file()]
    assert {".json", ".jsonl", ".html", ".xml", ".md"} <= {path.suffix for path in files}
    for path in files:
        assert leaks(path.read_bytes()) == [], path
