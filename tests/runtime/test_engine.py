"""One canonical request; scripts that are answered in full; the engine in use."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatflow_runtime.engine import (
    Answer,
    Call,
    ModelRequest,
    Say,
    Scripted,
    ScriptedEngine,
    Settings,
    ToolSchema,
    Transfer,
    engine_in_use,
    provider_model,
    using,
)
from chatflow_runtime.exceptions import ScriptError
from chatflow_runtime.types import AssistantMessage, ToolCall, Usage, UserMessage

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"reason": {"type": "string"}}}
BILLING = ToolSchema("go_billing", "To billing.", PARAMETERS, "Billing")


def request(**changes: Any) -> ModelRequest:
    given: dict[str, Any] = {
        "agent": "A",
        "model": "gpt-4o",
        "instructions": "Be kind.",
        "history": (UserMessage("hi"),),
        **changes,
    }
    return ModelRequest(**given)


def test_a_request_is_projected_as_it_is_sent() -> None:
    assert request(tools=(BILLING,)).projection() == {
        "model": "gpt-4o",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}],
        "tools": [
            {
                "type": "function",
                "function": {"name": "go_billing", "description": "To billing.", "parameters": PARAMETERS},
            }
        ],
    }


def test_blank_instructions_and_no_tools_are_left_out() -> None:
    assert request(instructions=" ").projection() == {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_settings_are_sent_where_they_are_made() -> None:
    """The address is no part of the body."""
    settings = Settings(
        temperature=0.0,
        top_p=0.5,
        seed=7,
        max_tokens=9,
        api_base="http://x",
        tool_choice="auto",
        parallel_tool_calls=False,
    )
    sent = request(settings=settings, tools=(BILLING,)).projection()
    assert {key: sent[key] for key in sent.keys() - {"model", "messages", "tools"}} == {
        "temperature": 0.0,
        "top_p": 0.5,
        "seed": 7,
        "max_tokens": 9,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
    }


def test_what_concerns_tools_is_not_sent_without_them() -> None:
    settings = Settings(tool_choice="required", parallel_tool_calls=True)
    assert request(settings=settings).projection().keys() == {"model", "messages"}


def test_a_tool_chosen_by_name_is_asked_for_where_the_agent_has_it() -> None:
    chosen = Settings(tool_choice="go_billing")
    assert request(settings=chosen, tools=(BILLING,)).projection()["tool_choice"] == {
        "type": "function",
        "function": {"name": "go_billing"},
    }
    other = ToolSchema("lookup", "", PARAMETERS)
    assert "tool_choice" not in request(settings=chosen, tools=(other,)).projection()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gemini-2.5-flash", "gemini/gemini-2.5-flash"),
        ("gemini/gemini-2.5-flash", "gemini/gemini-2.5-flash"),
        ("vertex_ai/gemini-2.5-pro", "vertex_ai/gemini-2.5-pro"),
        ("gpt-4o", "gpt-4o"),
    ],
)
def test_a_bare_gemini_name_means_googles_api(name: str, meant: str) -> None:
    assert provider_model(name) == request(model=name).projection()["model"] == meant


def ask(engine: ScriptedEngine, **changes: Any) -> Answer:
    return asyncio.run(engine.answer(request(**changes)))


@pytest.mark.parametrize(
    ("scripted", "answer"),
    [
        ("Hi", Answer("Hi")),
        (Say("Hi"), Answer("Hi")),
        (Call("lookup", {"a": 1}), Answer(None, (ToolCall("call_1", "lookup", '{"a": 1}'),))),
        (Call("lookup", "{cut", id="x"), Answer(None, (ToolCall("x", "lookup", "{cut"),))),
        (Transfer("Billing", "refund"), Answer(None, (ToolCall("call_1", "go_billing", '{"reason": "refund"}'),))),
        (Transfer("Nobody"), Answer(None, (ToolCall("call_1", "transfer_to_nobody", "{}"),))),
        (
            [Say("One moment."), Call("lookup"), Transfer("Billing")],
            Answer("One moment.", (ToolCall("call_1", "lookup", "{}"), ToolCall("call_2", "go_billing", "{}"))),
        ),
        ([], Answer()),
        (Answer("Hi", usage=Usage(1, 2)), Answer("Hi", usage=Usage(1, 2))),
        (lambda asked: Answer(f"{asked.agent} here"), Answer("A here")),
    ],
)
def test_a_script_says_calls_and_transfers(scripted: Scripted, answer: Answer) -> None:
    assert ask(ScriptedEngine([scripted]), tools=(BILLING,)) == answer


def test_scripted_ids_go_on_where_the_history_stopped() -> None:
    said = AssistantMessage("A", None, (ToolCall("call_1", "x"), ToolCall("call_2", "x")))
    answer = ask(ScriptedEngine([Call("lookup")]), history=(UserMessage("hi"), said))
    assert answer.tool_calls[0].id == "call_3"


def test_a_scripted_exception_is_raised() -> None:
    with pytest.raises(ConnectionError):
        ask(ScriptedEngine([ConnectionError()]))


def test_a_script_tells_what_was_asked_and_what_is_left() -> None:
    engine = ScriptedEngine(["a", "b"])
    ask(engine)
    assert [each.agent for each in engine.requests] == ["A"]
    assert engine.remaining == 1


def test_a_script_that_runs_out_is_an_error() -> None:
    engine = ScriptedEngine(["a"])
    ask(engine)
    with pytest.raises(ScriptError, match="Agent 'A' asked for answer 2, the script has 1"):
        ask(engine)


def test_a_script_with_answers_left_is_an_error() -> None:
    engine = ScriptedEngine(["a", "b"])
    ask(engine)
    text = "has 2 answers, 1 were asked for; next is 'b'"
    with pytest.raises(ScriptError, match=text):
        engine.finish()
    with pytest.raises(ScriptError, match=text), engine:
        pass
    with pytest.raises(ScriptError, match=text), using(engine):
        pass


def test_an_error_in_the_block_is_not_hidden_by_the_rest_of_the_script() -> None:
    with pytest.raises(KeyError), ScriptedEngine(["a"]):
        raise KeyError
    with pytest.raises(KeyError), using(ScriptedEngine(["a"])):
        raise KeyError


def test_the_engine_in_use_is_the_innermost_of_its_own_task() -> None:
    first, second = ScriptedEngine([]), ScriptedEngine([])

    async def look() -> object:
        await asyncio.sleep(0)
        return engine_in_use()

    async def main() -> list[object]:
        with using(first):
            outer = asyncio.create_task(look())
            with using(second):
                inner = asyncio.create_task(look())
        return [await outer, await inner, engine_in_use()]

    assert asyncio.run(main()) == [first, second, None]
