"""Cassettes as people read them: what is laid out, what is left out, and what a comparison shows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.cassette import Cassette, Exchange, Origin, ToolExchange, json_or_text
from chatflow_eval.exchanges import compare, lay_out

URL = "http://127.0.0.1:1/v1/chat/completions"
USER = {"role": "user", "content": "I want a refund"}
CALL = {"id": "c1", "type": "function", "function": {"name": "transfer_to_billing", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def chat(system: str, *messages: Any, answer: Any, agent: str = "Triage", turn: int = 1) -> Exchange:
    body: Any = {
        "model": "m",
        "temperature": 0.0,
        "messages": [{"role": "system", "content": system}, *messages],
        "tools": [{"type": "function", "function": {"name": "transfer_to_billing", "description": "On money."}}],
    }
    said = json.dumps({"id": "1", "choices": [{"message": answer, "finish_reason": "stop"}], "usage": {"total": 5}})
    return Exchange(method="POST", uri=URL, body=body, status=200, reason="OK", answer=said, agent=agent, turn=turn)


def cassette(*exchanges: Exchange, **more: Any) -> Cassette:
    return Cassette(Path("c.json"), exchanges, **more)


TWO = cassette(
    chat("Welcome.", USER, answer=CALLED),
    chat(
        "Refunds.\nAlways.",
        USER,
        CALLED,
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        answer={"role": "assistant", "content": "Which one?"},
        agent="Billing",
        turn=2,
    ),
    origin=Origin(file="a.scenario.yaml", scenario="refund", model="declared", repeat=2, recorded="2026-11-30"),
)


def test_exchanges_are_laid_out_as_a_conversation_and_nothing_is_said_twice() -> None:
    assert lay_out(TWO) == (
        "c.json\n"
        "a.scenario.yaml::refund, declared, repeat 2, recorded 2026-11-30\n"
        "\n"
        "turn 1\n"
        "\n"
        f"1. Triage: POST {URL}\n"
        "    system: Welcome.\n"
        "    user: I want a refund\n"
        "    model: m\n"
        "    temperature: 0.0\n"
        "    tools: transfer_to_billing\n"
        "  200 OK\n"
        "    assistant: calls transfer_to_billing {} (c1)\n"
        "    finish_reason: stop\n"
        "    usage:\n"
        "      total: 5\n"
        "\n"
        "turn 2\n"
        "\n"
        f"2. Billing: POST {URL}\n"
        "    system: Refunds.\n"
        "            Always.\n"
        "    tool c1: done\n"
        "    (2 messages as before)\n"
        "    tools: transfer_to_billing\n"
        "  200 OK\n"
        "    assistant: Which one?\n"
        "    finish_reason: stop\n"
        "    usage:\n"
        "      total: 5\n"
    )


def test_whole_shows_schemas_and_what_is_repeated() -> None:
    text = lay_out(TWO, whole=True)
    assert text.count("I want a refund") == 2
    assert text.count("description: On money.") == 2
    assert "as before" not in text


def test_what_is_no_chat_is_shown_as_a_structure() -> None:
    body: Any = {"item": "pen", "sizes": [1, 2], "note": "one\ntwo"}
    found = Exchange(
        method="PUT", uri="http://shop/stock", body=body, status=404, reason="Not Found", answer="no\nsuch"
    )
    assert lay_out(cassette(found)) == (
        "c.json\n"
        "\n"
        "1. somebody: PUT http://shop/stock\n"
        "    item: pen\n"
        "    sizes:\n"
        "      - 1\n"
        "      - 2\n"
        "    note:\n"
        "      one\n"
        "      two\n"
        "  404 Not Found\n"
        "    no\n"
        "    such\n"
    )


def test_answers_that_are_no_text_are_measured() -> None:
    sound = Exchange(method="GET", uri="http://x/", body=None, status=200, content_type="audio/wav", answer=b"\xff\x00")
    assert "  200: 2 bytes of audio/wav\n" in lay_out(cassette(sound))


def test_what_tools_did_is_told() -> None:
    tools = (
        ToolExchange(agent="A", turn=1, tool="stock", arguments={"item": "pen"}, result={"left": 3}),
        ToolExchange(agent="A", turn=1, tool="stock", arguments={}, error="LookupError: sold out"),
        ToolExchange(
            agent="A",
            turn=None,
            tool="up",
            arguments={},
            handoff={"target": "B"},
            context={"tier": "gold"},
            dropped=("trial",),
        ),
    )
    assert lay_out(cassette(tools=tools)).endswith(
        "what tools returned\n"
        '  turn 1, A: stock {"item": "pen"}\n'
        "    left: 3\n"
        "  turn 1, A: stock {}\n"
        "    raised LookupError: sold out\n"
        "  A: up {}\n"
        "    handed off to B\n"
        "    context:\n"
        "      tier: gold\n"
        "    context without: trial\n"
    )


def test_a_comparison_shows_what_differs_and_nothing_else() -> None:
    other = cassette(chat("Welcome them.", USER, answer=CALLED), TWO.exchanges[1])
    assert compare(TWO, cassette(*TWO.exchanges)) == ""
    found = compare(TWO, other)
    assert "-    system: Welcome.\n" in found
    assert "+    system: Welcome them.\n" in found
    assert "Refunds" not in found


@given(st.text(), st.text())
def test_anything_can_be_shown(body: str, answer: str) -> None:
    odd = Exchange(method="POST", uri=URL, body=json_or_text(body), status=200, answer=answer)
    malformed: Any = {"messages": [body, None, {"role": 1}, {"tool_calls": [body, {"function": answer}]}], "tools": [1]}
    text = lay_out(
        cassette(odd, Exchange(method="POST", uri=URL, body=malformed, status=200, answer="{}")), whole=False
    )
    assert text.startswith("c.json\n")


def test_a_framework_s_own_chat_is_laid_out_like_any_other() -> None:
    """It asked by a client of its own, with empty text beside its calls, and another provider names its tools."""
    origin = Origin(file="a.scenario.yaml", scenario="refund", model="declared", repeat=1, target="chatflow_agent")
    one = chat("Welcome.", USER, {**CALLED, "content": ""}, answer={"role": "assistant", "content": "Hello."})
    told = lay_out(cassette(replace(one, aside=True), origin=origin))
    assert "a.scenario.yaml::refund, chatflow_agent, declared\n" in told
    assert "    assistant: calls transfer_to_billing {} (c1)\n" in told
    assert "    assistant: \n" not in told
    assert "  200 OK\n    assistant: Hello.\n    finish_reason: stop\n" in told
    body: Any = {"messages": [USER], "tools": [{"name": "transfer_to_billing", "input_schema": {"type": "object"}}]}
    assert "    tools: transfer_to_billing\n" in lay_out(cassette(replace(one, body=body)))
