"""Agents on chatflow-agent ask as they would by themselves, whichever engine they have, and are left as they are."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Literal

import httpx
import pytest

from chatflow_eval import outcome, trial
from chatflow_eval.outcome import Outcome
from chatflow_eval.retries import CallLimits
from chatflow_eval.scenario import Limits, Scenario, SettingsSpec, Turn
from chatflow_eval.targets import Opening, target_of
from chatflow_eval.testing import Reply, ScriptedServer
from chatflow_eval.trace import HistoryFault, ModelStep
from chatflow_eval.trial import Mode

chatflow_agent = pytest.importorskip("chatflow_agent", reason="chatflow-agent is not installed (extra chatflow-agent)")

from chatflow_agent.core.engines.base import EngineTurnResult  # noqa: E402

FRAMEWORK: Literal["chatflow_agent"] = "chatflow_agent"
# google-genai makes a class of its own out of aiohttp's session.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

KEY = "a-key-without-any-shape-0001"


def attempt(target: Any, *turns: Turn, root: Path, mode: Mode = "live", retries: int = 2, **more: Any) -> Outcome:
    given = Scenario(**{"id": "one", "target": target, "turns": turns, "expect": "none", **more})
    calls = CallLimits(retries=retries, timeout=5)
    (found,) = outcome.collect(trial.plan([given], root=root, frameworks=[FRAMEWORK], mode=mode, calls=calls))
    return found


# Agents as they are.


class Scripted(chatflow_agent.BaseEngine):  # type: ignore[misc,name-defined]
    """An engine that asks agents what chatflow-agent's own engines ask them."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def generate_turn_async(self, agent: Any, history: Any) -> Any:
        self.heard.append(agent.get_instructions())
        tools = agent.get_all_tools()
        if len(self.heard) == 1:
            return EngineTurnResult(tool_calls=[chatflow_agent.ToolCall(id="1", name=tools[0].name, args={})])
        return EngineTurnResult(text="Done.")


class Moody(chatflow_agent.Agent):  # type: ignore[misc,name-defined]
    """Its tool changes what its instructions say next."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "none")
        self.mood = "calm"
        self.add_tool(self.annoy)

    def annoy(self) -> str:
        self.mood = "angry"
        return "hm"

    def get_instructions(self) -> str:
        return f"You are {self.name}, and {self.mood}."


def counting() -> Any:
    """Two agents whose instructions say how often they were asked for."""
    counts = {"A": 0, "B": 0}

    def instructions(name: str) -> str:
        counts[name] += 1
        return f"You are {name}, asked {counts[name]} times."

    a = chatflow_agent.Agent("A", lambda: instructions("A"))
    b = chatflow_agent.Agent("B", lambda: instructions("B"))
    a.add_handoff(b)
    b.add_handoff(a)
    return a


@pytest.mark.parametrize("build", [counting, lambda: Moody("A")])
async def test_agents_are_asked_for_no_more_than_by_chatflow_agent_itself(build: Any) -> None:
    alone, watched = Scripted(), Scripted()
    await chatflow_agent.Runner(build(), engine=alone).run_async("s", "hi")
    runner = chatflow_agent.Runner(build(), engine=watched)
    async with target_of(lambda: runner, FRAMEWORK).open(Opening(limits=Limits(), settings=SettingsSpec())) as talk:
        turn = await talk.say("hi")
    assert turn.failure is None
    assert watched.heard == alone.heard
    assert len(watched.heard) == 2


def test_an_agent_that_is_hired_on_the_way_answers_and_is_known(tmp_path: Path) -> None:
    def build() -> Any:
        a = chatflow_agent.Agent("A", "You are A.")
        runner = chatflow_agent.Runner(a)

        def hire() -> str:
            new = chatflow_agent.Agent("New", "You are new.")
            runner.register_agent(new)
            a.add_handoff(new)
            return "hired"

        a.add_tool(hire)
        return runner

    script = [{"call": "hire"}, {"transfer": "New"}, {"say": "Hello."}]
    found = attempt(build, Turn("hi", script=script), root=tmp_path)
    assert found.status == "passed", found.why
    assert found.incidents == ()
    assert found.trace is not None
    assert found.trace.turns[0].agents == ("A", "New")
    assert found.trace.topology.agents == ("A", "New")


def test_cf_8_of_two_agents_of_one_name_the_first_one_answers(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        system = body["messages"][0]["content"]
        goes = {"You are A.": "transfer_to_mid", "You are Mid.": "transfer_to_helper"}
        return Reply(calls=((goes[system], {}),)) if system in goes else Reply(text=system)

    with ScriptedServer(answer) as server:

        def agent(name: str, instructions: str, *handoffs: Any) -> Any:
            own = {"base_url": server.url, "api_key": "x"}
            return chatflow_agent.Agent(name, instructions, handoffs=list(handoffs), **own)

        def build() -> Any:
            one, other = agent("Helper", "You are the first."), agent("Helper", "You are the second.")
            return agent("A", "You are A.", one, agent("Mid", "You are Mid.", other))

        expected = {"route": "A -> Mid -> Helper", "reply": {"contains": "second"}}
        found = attempt(build, Turn("hi", expect=expected), root=tmp_path, expect=None)
    assert found.status == "failed"
    assert "reply" in found.why


def test_a_tool_that_runs_agents_of_its_own_is_left_alone(tmp_path: Path) -> None:
    """A script is for the conversation, and not for whom its tools ask."""
    with ScriptedServer([Reply(text="from within")]) as server:

        async def ask() -> str:
            inner = chatflow_agent.Agent("Inner", "You are inner.", base_url=server.url, api_key="x")
            return str((await chatflow_agent.Runner(inner).run_async("inner", "hi")).content)

        found = attempt(
            lambda: chatflow_agent.Agent("A", "You are A.", tools=[ask]),
            Turn("hi", script=[{"call": "ask"}, {"say": "Done."}], expect={"calls": "ask"}),
            root=tmp_path,
        )
    assert found.status == "passed", found.why
    assert found.trace is not None
    assert [step.agent for step in found.trace.turns[0].steps if isinstance(step, ModelStep)] == ["A", "A"]


def test_a_client_of_the_users_own_is_asked_by_way_of(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        heard.append(json.loads(request.content))
        return httpx.Response(200, json={"choices": [{"message": {"content": "Hello."}}]})

    def build() -> Any:
        client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
        engine = chatflow_agent.OpenAIEngine(api_key="x", base_url="https://models.internal/v1", http_client=client)
        return chatflow_agent.Agent("A", "You are A.", engine=engine)

    found = attempt(build, Turn("hi"), root=tmp_path, settings={"temperature": 0})
    assert found.status == "passed", found.why
    assert [body["temperature"] for body in heard] == [0]


# Engines for other providers, on a stand-in of their servers.


class StandIn(BaseHTTPRequestHandler):
    """Answers as Anthropic's and Gemini's servers do: A transfers to B; users say what is to go wrong."""

    failing: ClassVar[dict[str, int]] = {}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps(body)
        for words, status in (("overloaded", 529), ("too many", 429)):
            if words in text and self.failing.setdefault(text, 0) == 0:
                self.failing[text] = 1
                return self._answer(status, {"error": {"code": status, "message": "later", "status": "LATER"}})
        if "refuse me" in text:
            key = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
            return self._answer(400, {"error": {"code": 400, "message": f"no such key: {key}", "status": "BAD"}})
        reason = {"reason": "asked"}
        if self.path.endswith("/messages"):
            call = {"type": "tool_use", "id": "toolu_1", "name": "transfer_to_b", "input": reason}
            content = [call] if body["system"] == "You are A." else [{"type": "text", "text": "B here."}]
            return self._answer(200, {"content": content, "usage": {"input_tokens": 7, "output_tokens": 3}})
        first = body["systemInstruction"]["parts"][0]["text"] == "You are A."
        part = {"functionCall": {"name": "transfer_to_b", "args": reason}} if first else {"text": "B here."}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
        usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}
        return self._answer(200, {"candidates": [candidate], "usageMetadata": usage})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def swarm(engine: Any) -> Any:
    a = chatflow_agent.Agent("A", "You are A.", model="m", engine=engine)
    b = chatflow_agent.Agent("B", "You are B.", model="m", engine=engine)
    a.add_handoff(b)
    b.add_handoff(a)
    return a


def anthropic(server: ThreadingHTTPServer) -> Any:
    return swarm(chatflow_agent.AnthropicEngine(api_key=KEY, base_url=f"http://127.0.0.1:{server.server_port}/v1"))


def gemini(server: ThreadingHTTPServer) -> Any:
    return swarm(chatflow_agent.GeminiEngine(api_key=KEY))


@pytest.mark.parametrize("build", [anthropic, gemini])
def test_other_providers_are_recorded_and_replayed(build: Any, stand_in: ThreadingHTTPServer, tmp_path: Path) -> None:
    turn = Turn("hi", expect={"route": "A -> B"})
    live = attempt(lambda: build(stand_in), turn, root=tmp_path, mode="all", expect=None)
    assert live.status == "passed", live.why
    stand_in.shutdown()
    replayed = attempt(lambda: build(stand_in), turn, root=tmp_path, mode="none", expect=None)
    assert (replayed.status, replayed.replayed) == ("passed", True), replayed.why
    assert replayed.trace is not None
    asked = [step for step in replayed.trace.turns[0].steps if isinstance(step, ModelStep)]
    assert [(step.input_tokens, step.output_tokens) for step in asked] == [(7, 3), (7, 3)]
    (cassette,) = tmp_path.rglob("*.json")
    assert KEY not in cassette.read_text(encoding="utf-8")


@pytest.mark.parametrize("build", [anthropic, gemini])
def test_their_refusals_have_a_status_and_no_key(build: Any, stand_in: ThreadingHTTPServer, tmp_path: Path) -> None:
    """B099: the key that an agent was given comes back in the provider's words."""
    found = attempt(lambda: build(stand_in), Turn("refuse me"), root=tmp_path)
    assert found.failure is not None
    assert (found.failure.kind, found.failure.status_code) == ("model", 400)
    assert "no such key: [redacted]" in found.failure.message


def test_anthropic_is_asked_again_within_the_runs_budget(stand_in: ThreadingHTTPServer, tmp_path: Path) -> None:
    once = attempt(lambda: anthropic(stand_in), Turn("overloaded 1"), root=tmp_path, retries=0)
    assert once.failure is not None
    assert once.failure.status_code == 529
    again = attempt(lambda: anthropic(stand_in), Turn("overloaded 2"), root=tmp_path)
    assert again.status == "passed", again.why


def test_a_missing_recording_is_no_servers_trouble(stand_in: ThreadingHTTPServer, tmp_path: Path) -> None:
    """Gemini's engine looks for numbers such as 503 in whatever was raised, and would ask again for seconds."""
    found = attempt(lambda: gemini(stand_in), Turn("hi"), root=tmp_path, mode="none", id="answers-503")
    assert found.failure is not None
    assert (found.failure.kind, found.failure.exception) == ("cassette", "CassetteMissing")
    assert found.seconds < 1


def test_what_anthropic_would_refuse_is_found_in_its_requests(stand_in: ThreadingHTTPServer, tmp_path: Path) -> None:
    """CF-3, on the wire of another provider: a call is never answered."""
    script: list[Any] = [[{"transfer": "B"}, {"transfer": "B"}], {"say": "Done."}]
    found = attempt(
        lambda: chatflow_agent.Runner(anthropic(stand_in), max_handoffs_per_turn=0),
        Turn("one", script=script),
        Turn("two"),
        root=tmp_path,
    )
    assert found.trace is not None
    faults = [step.code for step in found.trace.turns[1].steps if isinstance(step, HistoryFault)]
    assert faults == ["unanswered_call"]


def test_settings_that_anthropic_has_are_sent_and_others_refused(stand_in: ThreadingHTTPServer, tmp_path: Path) -> None:
    fine = attempt(lambda: anthropic(stand_in), Turn("hi"), root=tmp_path, settings={"temperature": 0, "top_p": 1})
    assert fine.status == "passed", fine.why
    refused = attempt(lambda: anthropic(stand_in), Turn("hi"), root=tmp_path, settings={"seed": 1})
    assert "AnthropicEngine" in refused.why
    assert "seed" in refused.why


@pytest.mark.parametrize("body", ["", "<html>busy</html>", "[1]"])
def test_an_answer_that_is_none_is_asked_for_again_and_then_an_error(body: str, tmp_path: Path) -> None:
    with ScriptedServer([Reply(body=body), Reply(text="Hello."), Reply(body=body)]) as server:

        def build() -> Any:
            return chatflow_agent.Agent("A", "You are A.", base_url=server.url, api_key="x")

        again = attempt(build, Turn("hi"), root=tmp_path, retries=1)
        once = attempt(build, Turn("hi"), root=tmp_path, retries=0)
    assert again.status == "passed", again.why
    assert once.status == "errored"


async def test_many_conversations_of_one_runner_keep_their_own_models() -> None:
    runner = chatflow_agent.Runner(counting())

    async def talk(number: int) -> str:
        script = Turn("hi", script=[{"transfer": "B"}, {"say": f"B to {number}"}]).script
        async with target_of(lambda: runner, FRAMEWORK).open(
            Opening(limits=Limits(), settings=SettingsSpec())
        ) as conversation:
            return (await conversation.say("hi", script=script)).reply

    replies = await asyncio.gather(*(talk(number) for number in range(50)))
    assert replies == [f"B to {number}" for number in range(50)]
    assert runner.starting_agent.engine is None
    assert isinstance(runner.engine, chatflow_agent.GeminiEngine)
