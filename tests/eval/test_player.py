"""What a replaying client is answered: the exchange it asks for, each once and in order, or why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chatflow_eval.cassette import Cassette, Exchange, ToolExchange
from chatflow_eval.errors import CassetteMismatch
from chatflow_eval.matching import Ignore, Matcher
from chatflow_eval.player import Asked, AskedTool, Player, without_retried

URL = "http://127.0.0.1:1/v1/chat/completions"


def chat(*, system: str = "Route the user.", user: str = "hello", model: str = "m", **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": model, "messages": messages, **more}


def exchange(body: Any, answer: str = "hi", *, agent: str | None = "Triage", turn: int | None = 1) -> Exchange:
    answer = f'{{"choices": [], "said": "{answer}"}}' if answer != "hi" else HI
    return Exchange(method="POST", uri=URL, body=body, status=200, reason="OK", answer=answer, agent=agent, turn=turn)


HI = '{"choices": [], "said": "hi"}'


def player(path: Path, *exchanges: Exchange, ignore: tuple[Ignore, ...] = ()) -> Player:
    return Player(Cassette(path, exchanges), "chatflow-eval record x --only y", Matcher(ignore))


def test_key_order_does_not_matter_and_array_order_does(tmp_path: Path) -> None:
    """B081."""
    body = chat(temperature=0.0)
    recorded = player(tmp_path / "c.json", exchange(body))
    swapped = {key: body[key] for key in reversed(body)}
    assert recorded.play(Asked(swapped, uri=URL)).answer == HI
    turned = {**body, "messages": body["messages"][::-1]}
    with pytest.raises(CassetteMismatch):
        player(tmp_path / "c.json", exchange(body)).play(Asked(turned, uri=URL))


def test_nulls_at_the_top_and_zero_against_zero_point_zero_are_the_same_request(tmp_path: Path) -> None:
    recorded = player(tmp_path / "c.json", exchange(chat(temperature=0.0)))
    assert recorded.play_chat(Asked(chat(temperature=0, tools=None, stream=False))).answer == HI


def test_a_chat_request_finds_its_exchange_without_url_and_with_the_providers_prefix(tmp_path: Path) -> None:
    recorded = player(tmp_path / "c.json", exchange(chat(model="gpt-x")))
    assert recorded.play_chat(Asked(chat(model="openai/gpt-x"))).answer == HI


def test_another_model_is_a_miss(tmp_path: Path) -> None:
    with pytest.raises(CassetteMismatch, match=r"model: recorded .*now"):
        player(tmp_path / "c.json", exchange(chat(model="gpt-x"))).play_chat(Asked(chat(model="openai/gpt-y")))


def test_identical_requests_replay_in_the_order_recorded_and_running_out_is_counted(tmp_path: Path) -> None:
    """B083, B093."""
    recorded = player(tmp_path / "c.json", exchange(chat(), "first"), exchange(chat(), "second"))
    answers = [str(recorded.play(Asked(chat(), uri=URL)).answer) for _ in range(2)]
    assert ["first" in answers[0], "second" in answers[1]] == [True, True]
    with pytest.raises(CassetteMismatch, match="recorded 2, asked 3"):
        recorded.play(Asked(chat(), uri=URL, agent="Triage", turn=3))


def test_a_miss_names_agent_turn_field_both_values_and_the_command(tmp_path: Path) -> None:
    """B082: an edited instruction is never answered with a stale recording."""
    recorded = player(tmp_path / "c.json", exchange(chat(system="Send billing to Billing.")))
    with pytest.raises(CassetteMismatch) as caught:
        recorded.play_chat(Asked(chat(system="Send invoices to Billing."), agent="Triage", turn=1))
    message = str(caught.value)
    assert "agent Triage, turn 1" in message
    assert "messages[0].content: recorded 'Send billing to Billing.', now 'Send invoices to Billing.'" in message
    assert "chatflow-eval record x --only y" in message


def test_the_nearest_exchange_is_the_one_of_the_same_agent_and_turn(tmp_path: Path) -> None:
    recorded = player(
        tmp_path / "c.json",
        exchange(chat(system="Triage."), agent="Triage"),
        exchange(chat(system="Billing."), agent="Billing"),
    )
    with pytest.raises(CassetteMismatch, match=r"recorded 'Billing\.', now 'Billing!'"):
        recorded.play_chat(Asked(chat(system="Billing!"), agent="Billing", turn=1))


def test_a_removed_tool_is_a_miss(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("transfer_to_a", "transfer_to_b")]
    with pytest.raises(CassetteMismatch, match=r"tools: recorded 'transfer_to_b', now missing"):
        player(tmp_path / "c.json", exchange(chat(tools=tools))).play_chat(Asked(chat(tools=tools[:1])))


def test_identical_requests_of_many_take_no_longer_than_of_few(tmp_path: Path) -> None:
    recorded = player(tmp_path / "c.json", *(exchange(chat(), f"answer {number}") for number in range(2000)))
    for number in range(2000):
        assert f"answer {number}" in str(recorded.play(Asked(chat(), uri=URL)).answer)


def test_what_may_differ_is_ignored_and_everything_else_is_not(tmp_path: Path) -> None:
    rules = (Ignore(r"\d{4}-\d\d-\d\d"), Ignore("never found"))
    recorded = player(tmp_path / "c.json", exchange(chat(system="Today is 2026-11-30.")), ignore=rules)
    with pytest.raises(CassetteMismatch) as caught:
        recorded.play_chat(Asked(chat(system="Now it is 2027-01-01.")))
    assert "recorded 'Today is [ignored].', now 'Now it is [ignored].'" in str(caught.value)
    assert recorded.play_chat(Asked(chat(system="Today is 2027-01-01."))).answer == HI
    assert recorded.matcher.used == {rules[0]}


def test_a_request_elsewhere_is_told_by_its_address(tmp_path: Path) -> None:
    recorded = player(tmp_path / "c.json", exchange(chat()))
    with pytest.raises(CassetteMismatch, match=r"recorded POST http://127\.0\.0\.1:1/\S+, now GET http://other/"):
        recorded.play(Asked(chat(), method="GET", uri="http://other/"))


def test_the_order_of_a_querys_parameters_does_not_matter(tmp_path: Path) -> None:
    found = Exchange(method="GET", uri="http://h/p?a=1&b=2", body=None, status=200, answer="hi")
    assert player(tmp_path / "c.json", found).play(Asked(None, method="GET", uri="http://h/p?b=2&a=1")) is found


def test_secrets_that_were_scrubbed_match_what_is_asked_with_them(tmp_path: Path) -> None:
    """In a URL, in a field, and in the arguments of a call, which are JSON within JSON."""
    scrubbed: Any = {"password": "[redacted]", "call": '{"api_key": "[redacted]", "n": 1}'}
    found = Exchange(method="POST", uri="http://h/p?key=[redacted]", body=scrubbed, status=200, answer="hi")
    asked: Any = {"password": "hunter2", "call": '{"api_key": "planted", "n": 1}'}
    assert player(tmp_path / "c.json", found).play(Asked(asked, uri="http://h/p?key=planted")) is found


def failed(body: Any, status: int = 429) -> Exchange:
    return Exchange(method="POST", uri=URL, body=body, status=status, reason="", answer="{}")


def test_attempts_that_were_repeated_are_no_steps() -> None:
    """Nor do they keep a recording from being replayed without a client."""
    kept = exchange(chat(user="other"))
    exchanges = (failed(chat()), kept, failed(chat(), 503), exchange(chat()))
    assert without_retried(exchanges) == (kept, exchanges[-1])


def test_a_failure_that_was_not_repeated_stays() -> None:
    assert without_retried((failed(chat()), exchange(chat(user="other")))) == (
        failed(chat()),
        exchange(chat(user="other")),
    )


def test_a_tools_error_that_the_model_heard_of_stays() -> None:
    error = Exchange(method="GET", uri="http://shop/stock", body=None, status=503, answer="")
    found = Exchange(method="GET", uri="http://shop/stock", body=None, status=200, answer="7")
    assert without_retried((error, exchange(chat()), found)) == (error, exchange(chat()), found)
    assert without_retried((error, found)) == (found,)


def tool(arguments: Any = None, result: Any = None, **more: Any) -> ToolExchange:
    return ToolExchange(agent="Billing", turn=1, tool="refund", arguments=arguments or {"n": 1}, result=result, **more)


def asked_tool(**more: Any) -> AskedTool:
    given: dict[str, Any] = {"agent": "Billing", "turn": 1, "tool": "refund", "arguments": {"n": 1}}
    return AskedTool(**given | more)


def test_tools_answer_in_the_order_recorded_and_running_out_is_counted(tmp_path: Path) -> None:
    recorded = Player(Cassette(tmp_path / "c.json", (), (tool(result="a"), tool(result="b"))), "record")
    assert [recorded.play_tool(asked_tool()).result for _ in range(2)] == ["a", "b"]
    with pytest.raises(CassetteMismatch, match="agent Billing, turn 1: tool refund: recorded 2, asked 3"):
        recorded.play_tool(asked_tool())


def test_a_tool_that_was_not_recorded_is_told_with_what_differs(tmp_path: Path) -> None:
    recorded = Player(Cassette(tmp_path / "c.json", (), (tool(),)), "record")
    with pytest.raises(CassetteMismatch, match=r"tool refund: stale: arguments\.n: recorded 1, now 2"):
        recorded.play_tool(asked_tool(arguments={"n": 2}))
    with pytest.raises(CassetteMismatch, match="tool other: stale: not recorded"):
        recorded.play_tool(asked_tool(tool="other"))


def test_a_recording_without_tools_says_so(tmp_path: Path) -> None:
    recorded = Player(Cassette(tmp_path / "c.json", ()), "record")
    with pytest.raises(CassetteMismatch, match="recorded without what tools return"):
        recorded.play_tool(asked_tool())
