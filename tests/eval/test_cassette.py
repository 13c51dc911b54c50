"""What a recording is on disk, what it answers, and how a miss, a damage and a secret are told."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import vcr
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.cassette import (
    Asked,
    Cassette,
    Exchange,
    Player,
    exchange_of,
    first_difference,
    path_for,
    read,
    safe_name,
    write,
)
from chatflow_eval.errors import CassetteDamaged, CassetteError, CassetteMismatch, CassetteMissing

URL = "http://127.0.0.1:1/v1/chat/completions"


def chat(*, system: str = "Route the user.", user: str = "hello", model: str = "m", **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": model, "messages": messages, **more}


def exchange(body: Any, answer: str = "hi", *, agent: str | None = "Triage", turn: int | None = 1) -> Exchange:
    return Exchange(method="POST", uri=URL, body=body, status=200, reason="OK", answer=answer, agent=agent, turn=turn)


def player(path: Path, *exchanges: Exchange) -> Player:
    return Player(Cassette(path, exchanges), "chatflow-eval record x --only y")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    cassette = Cassette(tmp_path / "a" / "b.json", (exchange(chat()), exchange(None), exchange("plain text")))
    write(cassette)
    assert read(cassette.path) == cassette


def test_vcrpy_alone_reads_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(Cassette(path, (exchange(chat(), answer="the answer"),)))
    with vcr.VCR(serializer="json", record_mode="none").use_cassette(str(path)) as theirs:
        assert [request.uri for request in theirs.requests] == [URL]
        assert theirs.responses[0]["body"]["string"] == b"the answer"


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_a_cassette_that_vcrpy_wrote_is_read(tmp_path: Path, suffix: str) -> None:
    interaction = {
        "request": {"method": "POST", "uri": URL, "body": json.dumps(chat()), "headers": {"Accept": ["*/*"]}},
        "response": {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": {"string": "hi"}},
    }
    data = {"version": 1, "interactions": [interaction]}
    path = tmp_path / f"theirs{suffix}"
    path.write_text(json.dumps(data) if suffix == ".json" else yaml.safe_dump(data), encoding="utf-8")
    (found,) = read(path).exchanges
    assert (found.body, found.answer, found.agent) == (chat(), "hi", None)


def test_key_order_does_not_matter_and_array_order_does(tmp_path: Path) -> None:
    """B081."""
    body = chat(temperature=0.0)
    recorded = player(tmp_path / "c.json", exchange(body))
    swapped = {key: body[key] for key in reversed(body)}
    assert recorded.play(Asked(swapped, uri=URL)).answer == "hi"
    turned = {**body, "messages": body["messages"][::-1]}
    with pytest.raises(CassetteMismatch):
        player(tmp_path / "c.json", exchange(body)).play(Asked(turned, uri=URL))


def test_nulls_at_the_top_and_zero_against_zero_point_zero_are_the_same_request(tmp_path: Path) -> None:
    recorded = player(tmp_path / "c.json", exchange(chat(temperature=0.0)))
    assert recorded.play_chat(Asked(chat(temperature=0, tools=None, stream=False))).answer == "hi"


def test_a_chat_request_finds_its_exchange_without_url_and_with_the_providers_prefix(tmp_path: Path) -> None:
    recorded = player(tmp_path / "c.json", exchange(chat(model="gpt-x")))
    assert recorded.play_chat(Asked(chat(model="openai/gpt-x"))).answer == "hi"


def test_another_model_is_a_miss(tmp_path: Path) -> None:
    with pytest.raises(CassetteMismatch, match=r"model: recorded .*now"):
        player(tmp_path / "c.json", exchange(chat(model="gpt-x"))).play_chat(Asked(chat(model="openai/gpt-y")))


def test_identical_requests_replay_in_the_order_recorded_and_running_out_is_counted(tmp_path: Path) -> None:
    """B083, B093."""
    recorded = player(tmp_path / "c.json", exchange(chat(), "first"), exchange(chat(), "second"))
    assert [recorded.play(Asked(chat(), uri=URL)).answer for _ in range(2)] == ["first", "second"]
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
    with pytest.raises(CassetteMismatch, match=r"tools: recorded 2 item\(s\), now 1"):
        player(tmp_path / "c.json", exchange(chat(tools=tools))).play_chat(Asked(chat(tools=tools[:1])))


def test_nothing_recorded_names_the_command(tmp_path: Path) -> None:
    """B086."""
    with pytest.raises(CassetteMissing, match="chatflow-eval record scenarios"):
        read(tmp_path / "no.json", rerecord="chatflow-eval record scenarios")


WHOLE = '{"version": 1, "interactions": []}'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        (WHOLE[:-3], "line 1, column"),
        ("<<<<<<< ours\n" + WHOLE, "line 1: a merge conflict"),
        ("[]", "no list of interactions"),
        ('{"version": 1}', "no list of interactions"),
        ('{"version": 1, "interactions": [{}]}', "not a whole cassette"),
        ('{"version": 1, "interactions": [{"request": {}, "response": {}}]}', "not a whole cassette"),
        ("[" * 100_000, "nested too deeply|not JSON"),
    ],
)
def test_damage_is_named_and_the_file_left_alone(tmp_path: Path, text: str, problem: str) -> None:
    """B085."""
    path = tmp_path / "c.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CassetteDamaged, match=problem) as caught:
        read(path)
    assert "c.json" in str(caught.value)
    assert path.read_text(encoding="utf-8") == text


def test_lost_interactions_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write(Cassette(path, (exchange(chat()), exchange(chat(user="more")))))
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["interactions"][1]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(CassetteDamaged, match="2 interactions were recorded, 1 are left"):
        read(path)


def test_a_newer_format_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write(Cassette(path, (exchange(chat()),)))
    path.write_text(path.read_text(encoding="utf-8").replace('"format": 1', '"format": 9'), encoding="utf-8")
    with pytest.raises(CassetteDamaged, match="newer chatflow-eval"):
        read(path)


def test_mutated_files_are_read_as_they_were_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    original = Cassette(path, (exchange(chat(), '{"a": 1}'), exchange(chat(user="ö"))))
    write(original)
    whole = path.read_bytes()
    chance = random.Random(7)
    for _ in range(300):
        mutated = bytearray(whole)
        start = chance.randrange(len(mutated))
        if chance.random() < 0.5:
            mutated[start] = chance.randrange(256)
        else:
            del mutated[start : start + chance.randrange(1, 200)]
        path.write_bytes(mutated)
        try:
            found = read(path)
        except CassetteDamaged:
            continue
        assert len(found.exchanges) == len(original.exchanges)


def test_a_failed_write_keeps_the_old_recording(tmp_path: Path) -> None:
    """B096."""
    path = tmp_path / "c.json"
    write(Cassette(path, (exchange(chat()),)))
    before = path.read_bytes()
    with pytest.raises(CassetteError, match="not written, it would hold"):
        write(Cassette(path, (exchange(chat(), answer="sk-" + "a" * 30),)))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_secrets_of_every_place_are_gone_from_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """B097."""
    monkeypatch.setenv("ACME_API_KEY", "planted-canary-value")
    kept = exchange_of(
        method="post",
        uri="https://api.test/v1/x?key=AIzaCanary",
        body=json.dumps({"messages": [], "api_key": "planted-one", "note": "planted-canary-value"}).encode(),
        status=401,
        reason="Unauthorized",
        headers={
            "Set-Cookie": ["session=canary"],
            "OpenAI-Organization": ["org-canary"],
            "Content-Type": ["text/html"],
        },
        answer=b"Incorrect API key provided: sk-canary12345678",
        agent="A",
        turn=1,
    )
    for canary in ("canary", "planted", "Canary"):
        assert canary not in repr(kept)
    assert kept.content_type == "text/html"


@given(st.text(), st.text())
def test_safe_names_are_safe_and_tell_texts_apart(one: str, other: str) -> None:
    """B091."""
    name = safe_name(one)
    assert name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert name[-1] not in ". "
    assert name == safe_name(one)
    if one != other:
        assert safe_name(other).lower() != name.lower()


@pytest.mark.parametrize(
    "scenario", ["a/b", "../../x", "refund: what?", "CON", "nul", "end.", "end ", "..", "", "Ä", "x" * 300]
)
def test_paths_stay_in_their_folder_with_names_every_system_takes(tmp_path: Path, scenario: str) -> None:
    path = path_for(tmp_path, "scenarios/support.scenario.yaml", scenario, "openai/gpt-4o", 1)
    folder = tmp_path / "cassettes" / "scenarios" / "support"
    assert path.parent.parent == folder
    assert len(path.parent.name) < 120
    assert path.parent.name.partition(".")[0].lower() not in ("con", "nul")


def test_repeats_and_models_have_files_of_their_own(tmp_path: Path) -> None:
    def name(model: str, repeat: int) -> str:
        return path_for(tmp_path, "s.scenario.yaml", "refund", model, repeat).relative_to(tmp_path).as_posix()

    assert name("declared", 1) == "cassettes/s/refund/declared.json"
    assert name("declared", 3) == "cassettes/s/refund/declared.3.json"
    assert name("a/b", 1) != name("a_b", 1)
    assert name("claude-3", 5) != name("claude-3.5", 1)


@pytest.mark.parametrize(
    ("recorded", "asked", "said"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {"a": 1.0}, None),
        ({"a": 1}, {"a": "1"}, 'a: recorded 1, now "1"'),
        ({"a": 1, "b": 2}, {"a": 1}, "b: recorded 2, now missing"),
        ({"a": 1}, {"a": 1, "b": 2}, "b: not recorded, now 2"),
        ({"a": [1, 2]}, {"a": [1]}, "a: recorded 2 item(s), now 1"),
        ({"a": [{"b": "x"}]}, {"a": [{"b": "y"}]}, "a[0].b: recorded 'x', now 'y'"),
    ],
)
def test_the_first_difference_is_told_with_both_values(recorded: Any, asked: Any, said: str | None) -> None:
    assert first_difference(recorded, asked) == said


def test_a_long_texts_difference_is_shown_around_the_place() -> None:
    old, new = "a" * 500 + "old" + "b" * 500, "a" * 500 + "new" + "b" * 500
    said = str(first_difference(old, new))
    assert "old" in said
    assert "new" in said
    assert len(said) < 200
