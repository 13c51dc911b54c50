"""Services over HTTP as targets: real ones on loopback, whatever they answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from chatflow_eval import incidents, loader
from chatflow_eval.cli import cli
from chatflow_eval.conversation import Conversations
from chatflow_eval.errors import ScenarioError, TargetError
from chatflow_eval.outcome import Outcome, collect
from chatflow_eval.report import Report, RunFolder
from chatflow_eval.retries import CallLimits
from chatflow_eval.scenario import Limits, Scenario, Service, SettingsSpec, Turn
from chatflow_eval.targets import Opening, target_of
from chatflow_eval.targets.answers import Heard, MalformedAnswerError, ServiceError, read
from chatflow_eval.targets.http import ServiceTarget, address
from chatflow_eval.trace import Failure, Hop, LimitStep, ModelStep, ToolStep, Trace, TurnTrace, WarningStep
from chatflow_eval.trial import Mode, plan
from chatflow_runtime.exceptions import EmptyResponseError

Raw: TypeAlias = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@dataclass(slots=True)
class Served:
    """A service on loopback: answers with JSON, or with a status, headers and a body of bytes."""

    answer: Callable[[dict[str, Any]], Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/chat"

    @contextlib.contextmanager
    def up(self) -> Iterator[Served]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                served.requests.append(body)
                served.headers.append({name.lower(): value for name, value in self.headers.items()})
                said = served.answer(body)
                status, headers, raw = said if isinstance(said, tuple) else (200, {}, json.dumps(said).encode())
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        server.daemon_threads = True
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def in_order(*answers: Any) -> Callable[[dict[str, Any]], Any]:
    waiting = iter(answers)
    return lambda _: next(waiting)


WORDS = {"refund": "Billing", "crash": "Tech"}


def swarm(body: dict[str, Any]) -> dict[str, Any]:
    """Who a turn's words belong to, as a service without memory says it."""
    agent = next((name for word, name in WORDS.items() if word in body["message"]), "Triage")
    return {"reply": f"{agent} at your service.", "agent": agent}


AGENTS = {
    "Triage": {"handoffs": ["Billing", "Tech"]},
    "Billing": {"handoffs": ["Tech", "Triage"], "tools": ["issue_refund"]},
    "Tech": {"handoffs": ["Billing"]},
}


async def converse(spec: Service, *words: str, **opening: Any) -> Trace:
    given: dict[str, Any] = {"limits": Limits(), "settings": SettingsSpec(), **opening}
    async with ServiceTarget(spec).open(Opening(**given)) as conversation:
        turns = tuple([await conversation.say(text) for text in words])
        return Trace(topology=conversation.topology, turns=turns)


async def said(answer: Any, *, fields: Mapping[Any, str] | None = None, **spec: Any) -> TurnTrace:
    """What one turn with a service comes to that answers this."""
    with Served(lambda _: answer).up() as served:
        trace = await converse(Service(http=served.url, fields=fields or {}, **spec), "hello")
        return trace.turns[0]


def failure(turn: TurnTrace) -> Failure:
    assert turn.failure is not None, turn
    return turn.failure


def warnings(turn: TurnTrace) -> list[str]:
    return [step.message for step in turn.steps if isinstance(step, WarningStep)]


# What is asked.


async def test_each_turn_says_its_session_number_words_and_context() -> None:
    with Served(
        in_order({"reply": "a", "agent": "A", "context": {"n": 1}}, {"reply": "b", "agent": "A"})
    ).up() as served:
        trace = await converse(Service(http=served.url), "one", "two", context={"tier": "gold"})
    first, second = served.requests
    assert first == {"session": first["session"], "turn": 1, "message": "one", "context": {"tier": "gold"}}
    assert second == {"session": first["session"], "turn": 2, "message": "two", "context": {"n": 1}}
    assert [turn.context for turn in trace.turns] == [{"n": 1}, {"n": 1}]


async def test_sessions_of_parallel_conversations_never_mix() -> None:
    """Fifty at once, each told what it said before in its own session."""
    heard: dict[str, list[str]] = {}

    def remember(body: dict[str, Any]) -> dict[str, Any]:
        heard.setdefault(body["session"], []).append(body["message"])
        return {"reply": ", ".join(heard[body["session"]]), "agent": "A"}

    with Served(remember).up() as served:
        spec = Service(http=served.url)
        traces = await asyncio.gather(*(converse(spec, f"a{n}", f"b{n}", f"c{n}") for n in range(50)))
    assert [trace.turns[-1].reply for trace in traces] == [f"a{n}, b{n}, c{n}" for n in range(50)]
    assert len(heard) == 50


async def test_things_are_sent_where_the_service_looks_for_them() -> None:
    request: dict[Any, str] = {"session": "conversation_id", "message": "input.text", "turn": "input.number"}
    with Served(lambda _: {"reply": "a", "agent": "A"}).up() as served:
        await converse(Service(http=served.url, request=request), "hi")
    (body,) = served.requests
    assert body == {"conversation_id": body["conversation_id"], "input": {"text": "hi", "number": 1}, "context": {}}


async def test_a_lone_surrogate_is_no_traceback() -> None:
    turn = await said({"reply": "half \ud83d of it", "agent": "A"})
    assert turn.reply == "half ? of it"


# Who had the conversation.


async def test_a_change_of_who_answers_is_a_transfer() -> None:
    with Served(swarm).up() as served:
        trace = await converse(Service(http=served.url, start="Triage"), "refund", "crash", "crash again", "bye")
    assert [turn.agents for turn in trace.turns] == [
        ("Triage", "Billing"),
        ("Billing", "Tech"),
        ("Tech",),
        ("Tech", "Triage"),
    ]
    assert [turn.end_agent for turn in trace.turns] == ["Billing", "Tech", "Tech", "Triage"]
    assert not any(warnings(turn) for turn in trace.turns)


async def test_without_anything_declared_the_first_who_answers_had_it_from_the_start() -> None:
    with Served(swarm).up() as served:
        trace = await converse(Service(http=served.url), "refund", "crash")
    assert [turn.agents for turn in trace.turns] == [("Billing",), ("Billing", "Tech")]
    assert trace.topology.start == "Billing"
    assert trace.topology.agents == ()


async def test_the_first_declared_agent_starts() -> None:
    with Served(swarm).up() as served:
        trace = await converse(Service(http=served.url, agents=AGENTS), "refund")
    assert trace.turns[0].agents == ("Triage", "Billing")
    assert trace.topology.agents == ("Triage", "Billing", "Tech")
    assert trace.topology.tools["Billing"] == ("issue_refund",)


async def test_handoffs_are_told_by_name() -> None:
    turn = await said({"reply": "r", "agent": "C", "handoffs": ["B", "C"]}, start="A")
    assert turn.agents == ("A", "B", "C")
    assert not warnings(turn)


async def test_handoffs_are_told_in_full() -> None:
    handoffs = [
        {"to": "Manager", "accepted": False, "why": "limit"},
        {"to": "Clerk", "why": "nobody is at the desk"},
        {"from": "Triage", "to": "Billing", "kind": "transfer", "tool": "go_billing", "reason": "money"},
    ]
    turn = await said({"reply": "r", "agent": "Billing", "handoffs": handoffs}, start="Triage")
    assert turn.hops == (
        Hop(source="Triage", target="Manager", accepted=False, why="limit", message="limit"),
        Hop(
            source="Triage",
            target="Clerk",
            accepted=False,
            why="nobody is at the desk",
            message="nobody is at the desk",
        ),
        Hop(source="Triage", target="Billing", tool="go_billing", reason="money"),
    )


async def test_calls_come_back_and_may_enclose_others() -> None:
    handoffs = [
        {"from": "A", "to": "B", "kind": "call"},
        {"from": "B", "to": "C", "kind": "call"},
        {"from": "B", "to": "D"},
        {"from": "A", "to": "E", "kind": "call"},
    ]
    turn = await said({"reply": "r", "agent": "A", "handoffs": handoffs}, start="A")
    assert [(hop.source, hop.target, hop.depth) for hop in turn.hops] == [
        ("A", "B", 1),
        ("B", "C", 2),
        ("B", "D", 1),
        ("A", "E", 1),
    ]
    assert turn.end_agent == "A"
    assert not warnings(turn)


async def test_a_route_is_the_hops_between_its_agents() -> None:
    turn = await said({"reply": "r", "route": ["A", "A", "B", "A"]})
    assert (turn.agents, turn.end_agent) == (("A", "B", "A"), "A")


async def test_told_handoffs_count_more_than_who_answers() -> None:
    turn = await said({"reply": "r", "agent": "C", "handoffs": ["B"]}, start="A")
    assert (turn.agents, turn.end_agent) == (("A", "B"), "C")
    (warning,) = warnings(turn)
    assert warning == "the answer's `handoffs` leave the conversation with B, and C answered"


async def test_told_handoffs_count_more_than_the_route() -> None:
    turn = await said({"reply": "r", "agent": "B", "handoffs": ["B"], "route": ["A", "C", "B"]})
    assert turn.agents == ("A", "B")
    assert "route" in warnings(turn)[0]


async def test_a_refused_handoff_that_happened_all_the_same_is_an_incident() -> None:
    """CF-1: the pointer moves though the transfer was refused."""
    told = {"reply": "r", "agent": "B", "handoffs": [{"to": "B", "accepted": False, "why": "limit"}]}
    with Served(lambda _: told).up() as served:
        trace = await converse(Service(http=served.url, start="A"), "hi")
    (turn,) = trace.turns
    assert turn.agents == ("A", "B")
    assert warnings(turn)
    assert [found.kind for found in incidents.find(trace)] == ["not_allowed"]


async def test_an_answer_by_another_is_a_handoff_even_where_the_service_tells_of_none() -> None:
    turn = await said({"reply": "r", "agent": "B", "handoffs": []}, start="A")
    assert turn.agents == ("A", "B")
    assert warnings(turn)


async def test_a_handoff_from_somebody_else_is_told_as_it_stands_and_warned_of() -> None:
    turn = await said({"reply": "r", "agent": "C", "handoffs": [{"from": "B", "to": "C"}]}, start="A")
    assert [(hop.source, hop.target) for hop in turn.hops] == [("B", "C")]
    assert warnings(turn)


async def test_unknown_agents_and_undeclared_handoffs_are_incidents() -> None:
    with Served(
        in_order({"reply": "r", "agent": "Nobody"}, {"reply": "r", "route": ["Tech", "Triage"]})
    ).up() as served:
        trace = await converse(Service(http=served.url, agents=AGENTS), "one", "two")
    assert [found.kind for found in incidents.find(trace)] == ["unregistered_target", "not_allowed"]


async def test_who_the_agents_are_may_be_told_in_the_answer() -> None:
    told = {"reply": "r", "agent": "B", "topology": {"start": "A", "agents": {"A": {"handoffs": ["B"]}, "B": {}}}}
    with Served(lambda _: told).up() as served:
        trace = await converse(Service(http=served.url), "hi")
        contradicted = await converse(Service(http=served.url, agents=AGENTS), "hi")
    assert trace.turns[0].agents == ("A", "B")
    assert (trace.topology.start, trace.topology.agents) == ("A", ("A", "B"))
    assert contradicted.topology.agents == ("Triage", "Billing", "Tech")
    assert any("A, B" in warning for warning in warnings(contradicted.turns[0]))


# What else is told.


async def test_tools_stand_where_their_agent_has_the_conversation() -> None:
    tools = [
        {"agent": "Triage", "tool": "look_up", "arguments": {"id": 1}, "result": {"name": "x"}},
        {"agent": "Billing", "tool": "issue_refund", "arguments": {}, "error": "no such charge"},
    ]
    turn = await said({"reply": "r", "agent": "Billing", "handoffs": ["Billing"], "tools": tools}, start="Triage")
    looked, hop, refunded, model = turn.steps
    assert isinstance(hop, Hop)
    assert isinstance(model, ModelStep)
    assert looked == ToolStep(agent="Triage", tool="look_up", arguments={"id": 1}, result={"name": "x"})
    assert refunded == ToolStep(
        agent="Billing", tool="issue_refund", arguments={}, result="no such charge", is_error=True
    )


async def test_a_tool_that_nobody_declares_is_unknown() -> None:
    turn = await said({"reply": "r", "agent": "Triage", "tools": [{"tool": "fly"}]}, agents=AGENTS)
    assert [step.known for step in turn.steps if isinstance(step, ToolStep)] == [False]


async def test_usage_limits_and_the_model_are_told() -> None:
    turn = await said(
        {
            "reply": "r",
            "agent": "A",
            "model": "small",
            "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
            "limits": [{"limit": "max_handoffs_per_turn", "value": 3}],
        }
    )
    limit, model = turn.steps
    assert limit == LimitStep(agent="A", limit="max_handoffs_per_turn", value=3)
    assert isinstance(model, ModelStep)
    assert (model.model, model.input_tokens, model.output_tokens) == ("small", 12, 3)


async def test_a_misspelled_field_is_not_passed_over() -> None:
    turn = await said({"reply": "r", "agent": "A", "handoff": ["B"], "trace_id": "x"})
    assert warnings(turn) == ["the answer's `handoff` is not read; did you mean `handoffs`?"]


async def test_things_are_found_where_the_service_has_them() -> None:
    answer = {
        "output": {"texts": ["", "Done."]},
        "steps": [{"agent": "A"}, {"note": 1}, {"agent": "B"}],
        "meta": {"answered_by": "B"},
    }
    fields = {"reply": "output.texts[-1]", "agent": "meta.answered_by", "route": "steps[*].agent"}
    turn = await said(answer, fields=fields)
    assert (turn.reply, turn.agents, turn.end_agent) == ("Done.", ("A", "B"), "B")


# What goes wrong.


@pytest.mark.parametrize(
    ("answer", "field"),
    [
        ({"agent": "A"}, "`reply` is missing"),
        ({"reply": 1, "agent": "A"}, "`reply`: expected text, found a number"),
        ({"reply": "r"}, "`agent` is missing"),
        ({"reply": "r", "agent": ["A"]}, "`agent`: expected a valid string, found a list"),
        ({"reply": "r", "agent": " "}, "`agent`: expected text, found none"),
        ({"reply": "r", "agent": "A", "handoffs": "B"}, "`handoffs`: expected a list, found text"),
        ({"reply": "r", "agent": "A", "handoffs": [1]}, "`handoffs[0]`"),
        ({"reply": "r", "agent": "A", "handoffs": [{"from": "A"}]}, "`handoffs[0].to` is missing"),
        ({"reply": "r", "agent": "A", "handoffs": [{"to": "B", "from": 1}]}, "`handoffs[0].from`"),
        ({"reply": "r", "agent": "A", "handoffs": [{"to": "B", "kind": "jump"}]}, "`handoffs[0].kind`"),
        ({"reply": "r", "agent": "A", "handoffs": [{"to": "B", "accepted": "no"}]}, "`handoffs[0].accepted`"),
        ({"reply": "r", "agent": "A", "handoffs": [{"to": "B", "accept": True}]}, "did you mean `accepted`?"),
        ({"reply": "r", "agent": "B", "handoffs": ["B"]}, "`handoffs[0].from` is missing"),
        ({"reply": "r", "route": []}, "`route`"),
        ({"reply": "r", "route": ["A", 1]}, "`route[1]`"),
        ({"reply": "r", "agent": "A", "tools": [{"agent": "A"}]}, "`tools[0].tool` is missing"),
        ({"reply": "r", "agent": "A", "tools": {"tool": "t"}}, "`tools`: expected a list"),
        ({"reply": "r", "agent": "A", "context": [1]}, "`context`"),
        ({"reply": "r", "agent": "A", "usage": {"input_tokens": -1}}, "`usage.input_tokens`"),
        ({"reply": "r", "agent": "A", "limits": [{"limit": "x", "value": "many"}]}, "`limits[0].value`"),
        ({"reply": "r", "agent": "A", "topology": {"agents": {"A": {"handoffs": ["B"]}}}}, "unknown agent `B`"),
        ({"error": 7}, "`error`"),
        ([1], "expected a JSON object"),
    ],
)
async def test_what_is_malformed_is_named(answer: Any, field: str) -> None:
    found = failure(await said(answer))
    assert (found.kind, found.exception) == ("model", "MalformedAnswerError")
    assert field in found.message


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"<html>hello</html>", "no JSON"),
        (b'{"reply": NaN}', "NaN is no JSON"),
        (b'{"reply": 1e999}', "too large"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"reply": "r", "agent": "A", "context": {"a": ' + b"[" * 70 + b"]" * 70 + b"}}", "nested more than"),
        (b"\xff\xfe{", "UTF-8"),
    ],
)
async def test_what_is_no_json_is_a_failure(raw: bytes, problem: str) -> None:
    found = failure(await said((200, {}, raw)))
    assert (found.kind, found.exception) == ("model", "MalformedAnswerError")
    assert problem in found.message


@pytest.mark.parametrize("answer", [(204, {}, b""), (200, {}, b" "), {"reply": "", "agent": "A"}, {"reply": None}])
async def test_nobody_saying_anything_is_an_error(answer: Any) -> None:
    found = failure(await said(answer))
    assert (found.kind, found.exception) == ("model", "EmptyResponseError")


async def test_the_agents_own_exception_keeps_its_name() -> None:
    found = failure(await said({"error": {"type": "AgentHandoffError", "message": "no such agent"}}))
    assert (found.kind, found.exception, found.message) == ("agent", "AgentHandoffError", "no such agent")


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_a_status_is_a_failure_with_it(status: int) -> None:
    with Served(lambda _: (status, {}, b'{"detail": "out of order"}')).up() as served:
        trace = await converse(Service(http=served.url), "hi", calls=CallLimits(retries=0))
    found = failure(trace.turns[0])
    assert (found.kind, found.status_code) == ("model", status)
    assert "out of order" in found.message


async def test_redirects_are_not_followed() -> None:
    with Served(lambda _: (302, {"Location": "http://127.0.0.1:9/elsewhere"}, b"")).up() as served:
        trace = await converse(Service(http=served.url), "hi")
    found = failure(trace.turns[0])
    assert found.status_code == 302
    assert "http://127.0.0.1:9/elsewhere" in found.message
    assert len(served.requests) == 1


async def test_a_service_that_is_busy_is_asked_again() -> None:
    busy = (503, {"Retry-After": "0"}, b"")
    with Served(in_order(busy, busy, {"reply": "r", "agent": "A"})).up() as served:
        trace = await converse(Service(http=served.url), "hi")
    (turn,) = trace.turns
    assert turn.reply == "r"
    assert [warning.partition(";")[0] for warning in warnings(turn)] == [
        "attempt 1 of 3: ServiceError 503",
        "attempt 2 of 3: ServiceError 503",
    ]


async def test_nobody_there_is_a_network_failure() -> None:
    with Served(swarm).up() as served:
        pass
    trace = await converse(Service(http=served.url), "hi", calls=CallLimits(retries=0))
    assert failure(trace.turns[0]).kind == "network"


async def test_no_answer_in_time_is_a_timeout() -> None:
    waiting = threading.Event()
    with Served(lambda _: waiting.wait() and {}).up() as served:
        spec = Service(http=served.url)
        trace = await converse(spec, "hi", calls=CallLimits(retries=0, timeout=0.05))
        async with ServiceTarget(spec).open(Opening(limits=Limits(), settings=SettingsSpec())) as conversation:
            late = await conversation.say("hi", within=0.05)
        waiting.set()
    assert [failure(turn).kind for turn in (*trace.turns, late)] == ["timeout", "timeout"]


async def test_a_compressed_answer_that_is_none_is_malformed() -> None:
    found = failure(await said((200, {"Content-Encoding": "gzip"}, b"no gzip")))
    assert (found.kind, found.exception) == ("model", "MalformedAnswerError")


async def test_the_conversation_goes_on_after_a_failed_turn() -> None:
    with Served(in_order({"reply": "a", "agent": "B"}, (400, {}, b""), {"reply": "c", "agent": "B"})).up() as served:
        trace = await converse(Service(http=served.url, start="A"), "one", "two", "three")
    _, two, three = trace.turns
    assert (two.start_agent, two.end_agent, failure(two).status_code) == ("B", "B", 400)
    assert (three.agents, three.failure) == (("B",), None)
    assert [body["turn"] for body in served.requests] == [1, 2, 3]


# Chat completions.


def completion(text: str | None, name: str | None = None, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text} | ({"name": name} if name else {})
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    return {"id": "x", "model": "m-1", "choices": [{"index": 0, "message": message}], "usage": usage, **more}


async def test_the_whole_conversation_is_sent_as_texts() -> None:
    answers = in_order(completion("Hi.", "Triage"), completion("Paid.", "Billing"))
    with Served(answers).up() as served:
        trace = await converse(
            Service(http=served.url, format="openai", start="Triage"),
            "hello",
            "refund",
            models={"*": "support"},
            settings=SettingsSpec(temperature=0, seed=7),
        )
    first, second = served.requests
    assert first == {
        "model": "support",
        "temperature": 0,
        "seed": 7,
        "session": first["session"],
        "messages": [{"role": "user", "content": "hello"}],
    }
    assert second["messages"] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "name": "Triage", "content": "Hi."},
        {"role": "user", "content": "refund"},
    ]
    assert trace.turns[1].agents == ("Triage", "Billing")
    (step,) = (step for step in trace.turns[0].steps if isinstance(step, ModelStep))
    assert (step.model, step.input_tokens, step.output_tokens) == ("m-1", 5, 2)


@pytest.mark.parametrize(
    "answer",
    [
        completion("r", "B"),
        completion("r", agent="B"),
        (200, {"X-Agent": "B"}, json.dumps(completion("r")).encode()),
        completion("r", route=["A", "B"]),
        completion("r", "B", agent="C"),
    ],
)
async def test_who_answered_stands_in_the_message_at_the_top_or_in_a_header(answer: Any) -> None:
    turn = await said(answer, format="openai", start="A")
    assert (turn.agents, turn.end_agent) == (("A", "B"), "B")


@pytest.mark.parametrize(
    ("answer", "exception"),
    [
        ({"choices": []}, "EmptyResponseError"),
        (completion(None, "A"), "EmptyResponseError"),
        ({"error": {"message": "overloaded", "type": "server_error"}}, "server_error"),
        ({"choices": {}}, "MalformedAnswerError"),
        ({"choices": [{"message": "r"}]}, "MalformedAnswerError"),
        ({}, "MalformedAnswerError"),
        (completion("r"), "MalformedAnswerError"),
    ],
)
async def test_a_completion_without_words_or_agent_is_a_failure(answer: Any, exception: str) -> None:
    found = failure(await said(answer, format="openai"))
    assert (found.kind, found.exception) == ("model", exception)


async def test_what_a_provider_would_refuse_of_the_request_is_told() -> None:
    with Served(lambda _: completion("r", "A")).up() as served:
        trace = await converse(Service(http=served.url, format="openai"), " ")
    assert [found.kind for found in incidents.find(trace)] == ["invalid_history"]


# Headers, and what is secret.

CANARY = "canary-7e1f0c9a5b"


async def test_headers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPPORT_PASS", CANARY)
    headers = {"Authorization": "Bearer $SUPPORT_PASS", "X-Tenant": "${SUPPORT_PASS}"}
    with Served(lambda _: {"reply": "r", "agent": "A"}).up() as served:
        await converse(Service(http=served.url, headers=headers), "hi")
    assert served.headers[0]["authorization"] == f"Bearer {CANARY}"
    assert served.headers[0]["x-tenant"] == CANARY


@pytest.mark.parametrize("value", [None, "", f"{CANARY}\n", f"{CANARY}é"])
async def test_a_variable_that_makes_no_header_is_named_and_not_shown(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUPPORT_PASS", raising=False)
    if value is not None:
        monkeypatch.setenv("SUPPORT_PASS", value)
    with Served(swarm).up() as served, pytest.raises(TargetError, match=r"\$SUPPORT_PASS") as refused:
        await converse(Service(http=served.url, headers={"Authorization": "Bearer $SUPPORT_PASS"}), "hi")
    assert CANARY not in str(refused.value)
    assert not served.requests


@pytest.mark.parametrize("value", [CANARY, f"Bearer {CANARY}", f"{CANARY} $NAME", f"$NAME {CANARY}", [CANARY], 7, ""])
def test_a_literal_secret_is_refused_and_not_shown(value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        Service(http="http://localhost/", headers={"Authorization": value})
    told = "".join(detail["msg"] for detail in refused.value.errors())
    assert "$NAME" in told
    assert CANARY not in told


async def test_a_secret_that_the_service_repeats_is_in_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is sent back to the service all the same, where it stands in the session's context."""
    monkeypatch.setenv("SUPPORT_PASS", CANARY)
    told: dict[str, Any] = {"reply": f"r {CANARY}", "agent": CANARY, "tools": [{"tool": CANARY, "result": CANARY}]}
    told |= {"context": {"pass": CANARY}, "handoffs": [{"to": CANARY, "from": "A", "reason": CANARY}]}
    header = (200, {"X-Agent": CANARY}, json.dumps(completion(CANARY)).encode())
    for form, answer in (("json", told), ("openai", header), ("json", {"error": CANARY})):
        with Served(in_order(answer, answer)).up() as served:
            spec: Any = {"format": form, "headers": {"X-Pass": "$SUPPORT_PASS"}}
            trace = await converse(Service(http=served.url, **spec), "one", "two")
        assert CANARY not in repr(trace)
        if answer is told:
            assert served.requests[1]["context"] == {"pass": CANARY}


def test_a_secret_reaches_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service echoes it in its answer, in a tool's result, in an error and in a header."""
    monkeypatch.setenv("SUPPORT_PASS", CANARY)

    def echo(body: dict[str, Any]) -> Any:
        if body["turn"] == 2:
            return 400, {}, f"not allowed for {CANARY}".encode()
        tools = [{"tool": "t", "result": {"saw": [CANARY]}}]
        return {"reply": f"you are {CANARY}", "agent": "A", "tools": tools, "context": {"who": CANARY}}

    with Served(echo).up() as served:
        spec = Service(http=served.url, headers={"Authorization": "Bearer $SUPPORT_PASS"})
        scenario = Scenario(
            id="echo",
            turns=[Turn("one", expect={"ends_at": "A"}), Turn("two", expect={"error": "ServiceError"})],
            target=spec,
        )
        (outcome,) = collect(plan([scenario], root=tmp_path, mode="all"))
    assert outcome.status == "passed", outcome.why
    folder = RunFolder.create(tmp_path / "run")
    folder.append(outcome)
    folder.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("cassettes" in path.parts for path in files)
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    assert CANARY not in repr(spec)


# What a service cannot heed.


@pytest.mark.parametrize(
    ("spec", "opening", "problem"),
    [
        ({}, {"limits": Limits(max_handoffs_per_turn=2)}, "max_handoffs_per_turn"),
        ({}, {"settings": SettingsSpec(temperature=0)}, "temperature"),
        ({"format": "openai"}, {"settings": SettingsSpec(tool_choice="auto")}, "tool_choice"),
        ({}, {"models": {"*": "gpt-x"}}, "gpt-x"),
        ({"format": "openai"}, {"models": {"A": "gpt-x"}}, "gpt-x"),
        ({"format": "openai"}, {"models": {"*": "keyword"}}, "keyword"),
        ({}, {"context": {"when": object()}}, "context"),
    ],
)
async def test_what_a_service_cannot_heed_is_refused(
    spec: dict[str, Any], opening: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TargetError, match=problem):
        await converse(Service(http="http://127.0.0.1:9/", **spec), "hi", **opening)


def test_scripts_recorded_tools_and_the_keyword_router_are_errors_of_the_trial(tmp_path: Path) -> None:
    target = Service(http="http://127.0.0.1:9/")
    scripted = Turn("hi", script=[{"say": "hello"}], expect={"stay": True})
    plain = Turn("hi", expect={"stay": True})
    outcomes = [
        *collect(plan([Scenario(id="s", turns=[scripted], target=target)], root=tmp_path)),
        *collect(plan([Scenario(id="t", turns=[plain], target=target, record_tools=True)], root=tmp_path)),
        *collect(plan([Scenario(id="k", turns=[plain], target=target)], root=tmp_path, models=["keyword"])),
    ]
    for outcome, word in zip(outcomes, ("script", "record_tools", "keyword"), strict=True):
        assert (outcome.status, outcome.failure and outcome.failure.exception) == ("errored", "TargetError")
        assert word in outcome.why


# Recording.


def scenario(target: Service, *words: str, name: str = "support") -> Scenario:
    turns = [Turn(text, expect={"ends_at": ["Triage", "Billing", "Tech"]}) for text in words]
    return Scenario(id=name, turns=turns, target=target)


def outcome_of(one: Scenario, root: Path, mode: Mode = "none", **how: Any) -> Outcome:
    (outcome,) = collect(plan([one], root=root, mode=mode, **how))
    return outcome


def without_time(trace: Trace | None) -> Any:
    assert trace is not None
    return json.loads(
        json.dumps(
            [
                (turn.agents, turn.end_agent, turn.reply, turn.context, [type(step).__name__ for step in turn.steps])
                for turn in trace.turns
            ]
        )
    )


@pytest.mark.parametrize("form", ["json", "openai"])
def test_a_recording_replays_with_the_service_and_the_token_gone(
    form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPPORT_PASS", CANARY)

    def answer(body: dict[str, Any]) -> Any:
        told = swarm({"message": body.get("message") or body["messages"][-1]["content"]})
        if form == "json":
            return told
        return 200, {"X-Agent": told["agent"]}, json.dumps(completion(told["reply"])).encode()

    with Served(answer).up() as served:
        spec = Service(http=served.url, format=form, agents=AGENTS, headers={"Authorization": "Bearer $SUPPORT_PASS"})
        one = scenario(spec, "I want a refund", "and it will crash")
        recorded = outcome_of(one, tmp_path, "all")
    monkeypatch.delenv("SUPPORT_PASS")
    for mode in ("none", "once", "new_episodes"):
        replayed = outcome_of(one, tmp_path, mode)
        assert replayed.status == recorded.status == "passed", replayed.why
        assert replayed.replayed
        assert without_time(replayed.trace) == without_time(recorded.trace)
    assert len(served.requests) == 2


def test_other_words_are_stale_and_nothing_goes_out(tmp_path: Path) -> None:
    with Served(swarm).up() as served:
        spec = Service(http=served.url, start="Triage")
        outcome_of(scenario(spec, "refund", "crash"), tmp_path, "all")
        edited = outcome_of(scenario(spec, "refund", "crush"), tmp_path)
        assert edited.status == "errored"
        assert edited.failure is not None
        assert edited.failure.exception == "CassetteMismatch"
        assert edited.failure.edit == "agent Billing: message: recorded 'crash', now 'crush'"
        assert len(served.requests) == 2


def test_what_was_not_recorded_goes_live_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPPORT_PASS", CANARY)
    with Served(swarm).up() as served:
        spec = Service(http=served.url, start="Triage", headers={"X-Token": "$SUPPORT_PASS"})
        outcome_of(scenario(spec, "refund", "crash", "bye"), tmp_path, "all")
        edited = scenario(spec, "refund", "another crash", "bye")
        monkeypatch.delenv("SUPPORT_PASS")
        refused = outcome_of(edited, tmp_path, "new_episodes")
        assert (refused.failure and refused.failure.exception, len(served.requests)) == ("TargetError", 3)
        monkeypatch.setenv("SUPPORT_PASS", CANARY)
        outcome = outcome_of(edited, tmp_path, "new_episodes")
        assert outcome.parted is not None
        assert (outcome.parted.turn, outcome.parted.agent, outcome.parted.hop) == (2, "Billing", 1)
        assert outcome.parted.route == ("Billing",)
        assert [body["message"] for body in served.requests[3:]] == ["another crash", "bye"]
    assert outcome_of(edited, tmp_path).status == "passed"


def test_attempts_that_were_repeated_are_left_out_and_the_last_failure_replays(tmp_path: Path) -> None:
    busy = (503, {"Retry-After": "0"}, b"busy")
    with Served(in_order(busy, {"reply": "r", "agent": "A"}, busy, busy)).up() as served:
        turns = [Turn("one", expect={"ends_at": "A"}), Turn("two", expect={"error": "ServiceError"})]
        one = Scenario(id="busy", turns=turns, target=Service(http=served.url))
        recorded = outcome_of(one, tmp_path, "all", calls=CallLimits(retries=1))
    assert recorded.status == "passed", recorded.why
    replayed = outcome_of(one, tmp_path, calls=CallLimits(retries=1))
    assert replayed.status == "passed", replayed.why


def test_trials_recorded_at_once_replay_each_its_own(tmp_path: Path) -> None:
    def echo(body: dict[str, Any]) -> dict[str, Any]:
        return {"reply": f"{body['message']} in {body['session']}", "agent": "A"}

    with Served(echo).up() as served:
        spec = Service(http=served.url)
        many = [
            Scenario(id=f"s{n}", turns=[Turn("the same words", expect={"ends_at": "A"})], target=spec, repeats=2)
            for n in range(20)
        ]
        recorded = {outcome.key: outcome for outcome in collect(plan(many, root=tmp_path, mode="all"))}
    replayed = {outcome.key: outcome for outcome in collect(plan(many, root=tmp_path))}
    assert len(replayed) == 40
    assert {key: without_time(outcome.trace) for key, outcome in replayed.items()} == {
        key: without_time(outcome.trace) for key, outcome in recorded.items()
    }
    assert len({without_time(outcome.trace)[0][2] for outcome in replayed.values()}) == 40


@given(place=st.integers(min_value=0), byte=st.integers(min_value=0, max_value=255))
def test_a_changed_recording_is_damaged_or_plays(recorded: tuple[Scenario, Path, bytes], place: int, byte: int) -> None:
    one, root, whole = recorded
    (file,) = (root / "cassettes").rglob("*.json")
    place %= len(whole)
    file.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
    outcome = outcome_of(one, root)
    if outcome.status != "passed":
        assert outcome.failure is not None
        assert outcome.failure.kind == "cassette"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, Path, bytes]:
    root = tmp_path_factory.mktemp("recorded")
    with Served(swarm).up() as served:
        one = scenario(Service(http=served.url, start="Triage"), "refund", "crash")
        assert outcome_of(one, root, "all").status == "passed"
    (file,) = (root / "cassettes").rglob("*.json")
    return one, root, file.read_bytes()


def test_the_strangest_answer_is_recorded_replayed_and_reported(tmp_path: Path) -> None:
    """Half an emoji, control characters, markup, numbers of many digits, values many levels deep."""
    deep: Any = "end"
    for _ in range(60):
        deep = [deep]
    strange = {
        "reply": "r\x00\x1b[31m",
        "agent": "A\x00\u202e",
        "context": {"n": 10**4000, "deep": deep, "": {"\x00": 1.5e300}},
        "tools": [{"tool": "<b>\x00", "arguments": 10**400, "result": deep}],
        "limits": [{"limit": "x", "value": 2**53}],
        "usage": {"input_tokens": 2**53, "output_tokens": 2**53},
        "handoffs": [{"from": "</script>", "to": "\ud800]]>", "reason": "\ud83d"}],
    }
    with Served(lambda _: strange).up() as served:
        one = Scenario(id="strange", turns=[Turn("hi", expect={"handoffs": 1})], target=Service(http=served.url))
        outcomes = [outcome_of(one, tmp_path, "all"), outcome_of(one, tmp_path)]
    assert without_time(outcomes[0].trace) == without_time(outcomes[1].trace)
    folder = RunFolder.create(tmp_path / "run")
    folder.append(outcomes[1])
    folder.close()
    (again,) = Report.read(tmp_path / "run").outcomes
    assert again.trace == outcomes[1].trace
    assert chatflow_eval("report", str(tmp_path / "run"))[0] == 0


def test_a_host_that_is_allowed_is_talked_to_while_replaying(tmp_path: Path) -> None:
    with Served(swarm).up() as served:
        turns = [Turn("refund", expect={"ends_at": "Billing"})]
        one = Scenario(id="s", turns=turns, target=Service(http=served.url), allow_hosts=["localhost"])
        outcome = outcome_of(one, tmp_path)
    assert (outcome.status, len(served.requests), outcome.replayed) == ("passed", 1, False)


# Files, the command line, pytest.

FILE = """
target:
  http: {url}
  start: Triage
  agents:
    Triage: {{handoffs: [Billing, {{agent: Tech, tool_name: go, kind: call}}]}}
    Billing: {{handoffs: Triage, tools: issue_refund}}
    Tech:
  headers: {{Authorization: Bearer $SUPPORT_PASS}}
scenarios:
  - id: refund
    turns:
      - user: I want a refund
        expect: {{route: Triage -> Billing}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPPORT_PASS", CANARY)
    return tmp_path


def chatflow_eval(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, arguments)
    return result.exit_code, result.output


def test_a_file_names_a_service_with_its_agents(project: Path) -> None:
    file = project / "a.scenario.yaml"
    file.write_text(FILE.format(url="http://127.0.0.1:8000/chat"))
    (one,) = loader.load([file])
    declared = target_of(one.target).topology()
    assert declared.agents == ("Triage", "Billing", "Tech")
    assert [(edge.source, edge.target, edge.tool, edge.kind) for edge in declared.edges] == [
        ("Triage", "Billing", None, "transfer"),
        ("Triage", "Tech", "go", "call"),
        ("Billing", "Triage", None, "transfer"),
    ]
    assert declared.tools == {"Triage": (), "Billing": ("issue_refund",), "Tech": ()}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "route: Triage -> Billing",
            "route: Triage -> Biling",
            "14:35: unknown agent `Biling`; did you mean `Billing`?",
        ),
        ("route: Triage -> Billing", "calls: refund", "unknown tool `refund`; did you mean `issue_refund`?"),
        ("handoffs: Triage,", "handoffs: Triag,", "7:25: unknown agent `Triag`; did you mean `Triage`?"),
        ("tools: issue", "tool: issue", "7:33: unknown key `tool`; did you mean `tools`?"),
        ("start: Triage", "start: Tria", "4:10: unknown agent `Tria`"),
        ("start: Triage", "sart: Triage", "4:3: unknown key `sart`; did you mean `start`?"),
        ("start: Triage", "format: xml", "expected one of `json`, `openai`"),
        ("start: Triage", "fields: {agnt: who}", "did you mean `agent`?"),
        ("start: Triage", "fields: {agent: 'who['}", "expected a place such as `choices[0].message.name`"),
        ("start: Triage", "fields: {agent: 'steps[*].agent'}", "`agent` is one thing"),
        ("start: Triage", "request: {session: 'a..b'}", "expected a key"),
        ("start: Triage", "request: {session: message}", "`message` is taken by `message`"),
        ("start: Triage", "token: abc", "keys come from the environment, never from a file"),
        ("Bearer $SUPPORT_PASS", "Bearer canary", "9:28: expected `$NAME` of an environment variable"),
        ("http: http", "http: ftp", "expected an address such as"),
        ("http://127.0.0.1:8000/", "http://me:pw@127.0.0.1:8000/", "without user, password or query"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:80000/", "expected an address such as"),
        ("http://127.0.0.1:8000/", "http://[/", "expected an address such as"),
    ],
)
def test_what_is_wrong_in_a_file_is_found_when_it_is_read(project: Path, old: str, new: str, problem: str) -> None:
    file = project / "a.scenario.yaml"
    text = FILE.format(url="http://127.0.0.1:8000/chat")
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ScenarioError) as refused:
        loader.load([file])
    assert problem in str(refused.value)


def test_with_names_alone_nothing_is_known_of_tools_and_handoffs(project: Path) -> None:
    file = project / "a.scenario.yaml"
    head = "target: {http: 'http://localhost/', agents: [Triage, Billing]}\nscenarios:\n"
    file.write_text(f"{head}  - {{id: a, turns: [{{user: hi, expect: {{calls: anything, ends_at: Billing}}}}]}}\n")
    (one,) = loader.load([file])
    declared = target_of(one.target).topology()
    assert (declared.agents, declared.tools, declared.edges) == (("Triage", "Billing"), {}, ())


def test_recorded_replayed_and_stale_on_the_command_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project / "a.scenario.yaml"
    with Served(swarm).up() as served:
        file.write_text(FILE.format(url=served.url))
        assert chatflow_eval("validate", "a.scenario.yaml")[0] == 0
        assert chatflow_eval("record", "a.scenario.yaml", "--repeats", "2")[0] == 0
    monkeypatch.delenv("SUPPORT_PASS")
    code, told = chatflow_eval("run", "a.scenario.yaml", "--repeats", "2", "--baselines")
    assert code == 0, told
    assert "2 trials of 1 scenario: 2 passed" in told
    assert chatflow_eval("cassettes", "stale", "a.scenario.yaml") == (
        0,
        "1 trial: 0 stale, 0 not recorded, 0 damaged\n",
    )
    file.write_text(FILE.format(url=served.url).replace("a refund", "my refund"))
    code, told = chatflow_eval("cassettes", "stale", "a.scenario.yaml")
    assert code == 1
    assert "agent Triage: message: recorded 'I want a refund', now 'I want my refund'" in told
    assert not [path for path in project.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


def test_an_unset_variable_is_named_on_the_command_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPPORT_PASS")
    (project / "a.scenario.yaml").write_text(FILE.format(url="http://127.0.0.1:9/chat"))
    code, told = chatflow_eval("run", "a.scenario.yaml", "--live")
    assert code == 2
    assert "$SUPPORT_PASS" in told


def test_an_address_alone_is_a_target_in_files_and_in_tests(project: Path) -> None:
    file = project / "a.scenario.yaml"
    with Served(swarm).up() as served:
        turn = "{user: refund, expect: {ends_at: Billing}}"
        file.write_text(f"target: {served.url}\nscenarios:\n  - {{id: a, turns: [{turn}]}}\n")
        assert chatflow_eval("run", "a.scenario.yaml", "--live")[0] == 0
        conversations = Conversations(root=project, file="test_a.py", name="test_refund", mode="all")
        talk = conversations(served.url)
        talk.say("refund")
        talk.say("crash")
        conversations.close()
    again = Conversations(root=project, file="test_a.py", name="test_refund")
    talk = again(Service(http=served.url))
    assert talk.say("refund").end_agent == "Billing"
    assert talk.say("crash").agents == ("Billing", "Tech")
    again.close()


# Any answer, any address.

_NAMES = st.sampled_from(["A", "B", "C", " ", ""])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_HANDOFF = st.fixed_dictionaries(
    {"to": _NAMES},
    optional={
        "from": _NAMES,
        "kind": st.sampled_from(["transfer", "call"]) | _JSON,
        "accepted": st.booleans() | _JSON,
        "why": st.sampled_from(["limit", "self", "because"]) | _JSON,
        "reason": _JSON,
    },
)
_TOOL = st.fixed_dictionaries(
    {"tool": st.just("t") | _JSON}, optional={"agent": _NAMES, "arguments": _JSON, "result": _JSON, "error": _JSON}
)
_ANSWER = st.fixed_dictionaries(
    {},
    optional={
        "reply": st.just("r") | _JSON,
        "agent": _NAMES | _JSON,
        "handoffs": st.lists(_NAMES | _HANDOFF | _JSON, max_size=4) | _JSON,
        "route": st.lists(_NAMES, max_size=4) | _JSON,
        "tools": st.lists(_TOOL, max_size=3) | _JSON,
        "context": _JSON,
        "usage": st.fixed_dictionaries({}, optional={"input_tokens": st.integers(), "prompt_tokens": _JSON}) | _JSON,
        "limits": st.lists(st.fixed_dictionaries({"limit": _NAMES, "value": st.integers() | _JSON}), max_size=2),
        "topology": st.fixed_dictionaries({"agents": st.lists(_NAMES, max_size=3) | _JSON}) | _JSON,
        "choices": st.just([{"message": {"content": "r", "name": "A"}}]) | _JSON,
        "error": st.none() | _JSON,
    },
)
_SPECS = st.sampled_from(
    [
        Service(http="http://localhost/"),
        Service(http="http://localhost/", format="openai"),
        Service(http="http://localhost/", agents={"A": {"handoffs": ["B"], "tools": ["t"]}, "B": {}}),
        Service(http="http://localhost/", fields={"reply": "choices[0].message.content", "route": "route[*]"}),
    ]
)


@given(answers=st.lists(_ANSWER | _JSON, min_size=1, max_size=3), spec=_SPECS)
def test_any_json_ends_in_a_trace_or_a_failure(answers: Sequence[Any], spec: Service) -> None:
    """And whatever came of it can be judged and written."""
    texts = iter([json.dumps(answer) for answer in answers])

    async def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=next(texts))

    async def talk() -> Trace:
        opening = Opening(limits=Limits(), settings=SettingsSpec())
        async with ServiceTarget(spec).open(opening) as conversation:
            conversation.line.client = httpx.AsyncClient(transport=httpx.MockTransport(handle))  # type: ignore[attr-defined]
            turns = tuple([await conversation.say("hi") for _ in answers])
            return Trace(topology=conversation.topology, turns=turns)

    trace = asyncio.run(talk())
    incidents.find(trace)
    for turn in trace.turns:
        assert turn.failure is None or turn.failure.kind in ("model", "agent")
        assert turn.failure is not None or turn.reply.strip()
        assert turn.failure is not None or turn.agents[0] == turn.start_agent
    json.dumps([turn.context for turn in trace.turns], allow_nan=False).encode()


@given(raw=st.binary(max_size=60), status=st.integers(min_value=100, max_value=599))
def test_any_bytes_are_read_or_refused_with_words(raw: bytes, status: int) -> None:
    with contextlib.suppress(MalformedAnswerError, ServiceError, EmptyResponseError):
        read(Heard(status, "", {}, raw), Service(http="http://localhost/"))


@given(
    host=st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,8}[a-z](\.[a-z]{2,5})?", fullmatch=True)
    | st.sampled_from(["127.0.0.1", "[::1]", "bücher.example"]),
    port=st.none() | st.integers(min_value=1, max_value=65535),
    path=st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="?#@\\"), max_size=8),
    scheme=st.sampled_from(["http", "https", "HTTP"]),
)
def test_addresses_are_written_as_clients_write_them(host: str, port: int | None, path: str, scheme: str) -> None:
    http = f"{scheme}://{host}{f':{port}' if port else ''}/{path}"
    assert address(http) == str(httpx.URL(address(http)))


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [("/a/../b", "/b"), ("/./a", "/a"), ("/a/.", "/a/"), ("/a/..", "/"), ("/../../a/", "/a/"), ("/...", "/...")],
)
def test_dots_in_addresses_lead_where_clients_take_them(path: str, leads_to: str) -> None:
    assert address(f"http://localhost{path}") == f"http://localhost{leads_to}"


async def test_a_service_that_streams_is_told_what_is_wrong() -> None:
    events = (200, {"Content-Type": "text/event-stream"}, b'data: {"reply": "a"}\n\n')
    with Served(lambda _: events).up() as served:
        trace = await converse(Service(http=served.url), "hi")
    assert "stream of events" in failure(trace.turns[0]).message


async def test_an_unknown_certificate_names_the_variable_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed")

    monkeypatch.setattr(httpx.AsyncClient, "post", refuse)
    trace = await converse(Service(http="https://localhost:1/chat"), "hi")
    assert "SSL_CERT_FILE" in failure(trace.turns[0]).message
