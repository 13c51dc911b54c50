"""What a recording is on disk, what it answers, and how a miss, a damage and a secret are told."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import vcr
import yaml
from hypothesis import given
from hypothesis import strategies as st
from vcr.request import Request

from chatflow_eval.cassette import (
    Cassette,
    Exchange,
    Origin,
    ToolExchange,
    exchange_of,
    existing,
    json_or_text,
    path_for,
    read,
    safe_name,
    write,
)
from chatflow_eval.errors import CassetteDamaged, CassetteError, CassetteMissing

URL = "http://127.0.0.1:1/v1/chat/completions"


def chat(*, system: str = "Route the user.", user: str = "hello", model: str = "m", **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": model, "messages": messages, **more}


def exchange(body: Any, answer: str | bytes = "hi", *, agent: str | None = "Triage", turn: int | None = 1) -> Exchange:
    return Exchange(method="POST", uri=URL, body=body, status=200, reason="OK", answer=answer, agent=agent, turn=turn)


JSON_OBJECTS = st.dictionaries(
    st.text(),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
        max_leaves=6,
    ),
    min_size=1,
    max_size=3,
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    tools = (
        ToolExchange(agent="A", turn=1, tool="t", arguments=None),
        ToolExchange(agent="A", turn=2, tool="t", arguments={"a": 1}, error="ValueError: no", dropped=("x",)),
        ToolExchange(agent="A", turn=2, tool="t", arguments={}, handoff={"target": "B"}, context={"tier": "gold"}),
    )
    origin = Origin(file="a.scenario.yaml", scenario="x", model="declared", repeat=2, recorded="2026-11-30T12:00:00")
    exchanges = (exchange(chat()), exchange(None), exchange("plain text"))
    cassette = Cassette(tmp_path / "a" / "b.json", exchanges, tools, origin)
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


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def test_a_newer_format_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write(Cassette(path, (exchange(chat()),)))
    edited(path, lambda data: data["metadata"]["chatflow-eval"].update(format=9))
    with pytest.raises(CassetteDamaged, match=r"written by a newer chatflow-eval \(format 9, this one reads 2\)"):
        read(path)


def test_a_newer_format_of_vcrpy_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"version": 2, "interactions": []}', encoding="utf-8")
    with pytest.raises(CassetteDamaged, match="version 2 of vcrpy's format, this chatflow-eval reads 1"):
        read(path)


def test_what_was_written_before_there_was_a_digest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    cassette = Cassette(path, (exchange(chat()),))
    write(cassette)

    def age(data: dict[str, Any]) -> None:
        ours = data["metadata"]["chatflow-eval"]
        del ours["digest"]
        ours["format"] = 1

    edited(path, age)
    assert read(path) == cassette


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["interactions"][0]["response"]["body"].update(string="another answer"),
        lambda data: data["interactions"][0]["request"].update(uri="http://elsewhere/"),
        lambda data: data["interactions"][0]["response"]["status"].update(code=201),
        lambda data: data["metadata"]["chatflow-eval"]["exchanges"][0].update(agent="Somebody"),
        lambda data: data["metadata"]["chatflow-eval"].pop("digest"),
        lambda data: data["interactions"].reverse(),
    ],
)
def test_what_was_changed_by_hand_is_damage_until_it_is_accepted(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    path = tmp_path / "c.json"
    write(Cassette(path, (exchange(chat()), exchange(chat(user="more")))))
    edited(path, change)
    with pytest.raises(CassetteDamaged, match=r"changed since it was recorded|not a whole cassette"):
        read(path)
    write(read(path, edited=True))
    assert len(read(path).exchanges) == 2


def test_white_space_and_the_order_of_keys_may_change(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    cassette = Cassette(path, (exchange(chat()),), origin=Origin(file="a", scenario="b", model="c", repeat=1))
    write(cassette)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")), sort_keys=True, indent=8), "utf-8")
    assert read(path) == cassette
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read(path) == cassette


def test_a_thousand_mutated_files_are_read_as_they_were_or_refused(tmp_path: Path) -> None:
    """Never a pass that the whole cassette would not have given."""
    path = tmp_path / "c.json"
    answers = ('{"choices": [{"message": {"content": "a"}}]}', '{"choices": []}')
    tools = (ToolExchange(agent="A", turn=1, tool="t", arguments={"n": 1}, result="ö"),)
    origin = Origin(file="a.scenario.yaml", scenario="x", model="declared", repeat=1)
    original = Cassette(path, tuple(exchange(chat(user="ö"), answer) for answer in answers), tools, origin)
    write(original)
    whole = path.read_bytes()
    chance = random.Random(7)
    refused = []
    for _ in range(1000):
        path.write_bytes(_mutated(whole, chance))
        try:
            found = read(path)
        except CassetteDamaged as damaged:
            refused.append(str(damaged))
        else:
            assert found == original
    assert len(refused) > 900
    assert all("c.json: damaged: " in message for message in refused)


def _mutated(whole: bytes, chance: random.Random) -> bytes:
    mutated = bytearray(whole)
    for _ in range(chance.choice((1, 1, 1, 5, 30))):
        start = chance.randrange(len(mutated))
        match chance.randrange(5):
            case 0:
                mutated[start] = chance.randrange(256)
            case 1:
                mutated[start] ^= 1 << chance.randrange(8)
            case 2:
                del mutated[start : start + chance.randrange(1, 200)]
            case 3:
                lines = bytes(mutated).split(b"\n")
                del lines[chance.randrange(len(lines))]
                mutated = bytearray(b"\n".join(lines))
            case _:
                mutated[start:start] = mutated[start : start + chance.randrange(1, 50)]
        mutated = mutated or bytearray(b" ")
    return bytes(mutated)


def test_an_alias_bomb_and_a_circle_are_damage(tmp_path: Path) -> None:
    """B102."""
    path = tmp_path / "c.yaml"
    bomb = "a: &a0 [x, x]\n" + "".join(f"b{n}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))
    path.write_text(f"{bomb}version: 1\ninteractions: [*a9]\n", encoding="utf-8")
    with pytest.raises(CassetteDamaged, match="aliases stand for more"):
        read(path)
    path.write_text("version: 1\ninteractions: &a [*a]\n", encoding="utf-8")
    with pytest.raises(CassetteDamaged, match="aliases stand for more"):
        read(path)


def theirs(**response: Any) -> dict[str, Any]:
    """A cassette as vcrpy writes it, with one interaction."""
    request = {"method": "POST", "uri": URL, "body": json.dumps(chat()), "headers": {"Accept": ["*/*"]}}
    whole = {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": {"string": "hi"}} | response
    return {"version": 1, "interactions": [{"request": request, "response": whole}]}


def test_answers_that_vcrpy_kept_compressed_are_read_plain(tmp_path: Path) -> None:
    """B094."""
    path = tmp_path / "theirs.yaml"
    packed = {"string": gzip.compress("höi".encode())}
    path.write_text(yaml.safe_dump(theirs(headers={"Content-Encoding": ["gzip"]}, body=packed)), encoding="utf-8")
    assert read(path).exchanges[0].answer == "höi"
    left_header = theirs(headers={"Content-Encoding": ["gzip"]}, body={"string": "plain already"})
    path.write_text(yaml.safe_dump(left_header), encoding="utf-8")
    assert read(path).exchanges[0].answer == "plain already"


def test_what_older_versions_of_vcrpy_wrote_for_httpx_is_read(tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    data = theirs()
    data["interactions"][0]["response"] = {
        "status_code": 200,
        "http_version": "HTTP/1.1",
        "headers": {"content-type": ["text/plain"]},
        "content": "hi",
    }
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    (found,) = read(path).exchanges
    assert (found.status, found.content_type, found.answer) == (200, "text/plain", "hi")


def test_bodies_that_vcrpy_keeps_as_data_files_and_iterators_are_read(tmp_path: Path) -> None:
    bodies = {"data": {"a": 1}, "file": io.BytesIO(b'{"a": 1}'), "iterator": iter([b'{"a"', b": 1}"])}
    for name, body in bodies.items():
        path = tmp_path / f"{name}.yaml"
        with vcr.VCR(serializer="yaml", record_mode="all").use_cassette(str(path)) as cassette:
            response = {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": {"string": b"hi"}}
            cassette.append(Request("POST", URL, body, {}), response)
        assert read(path).exchanges[0].body == {"a": 1}, name


def test_yaml_is_written_where_the_path_says_so_and_vcrpy_reads_it(tmp_path: Path) -> None:
    cassette = Cassette(tmp_path / "c.yaml", (exchange(chat(user="line\nline: ö"), answer="the answer"),))
    write(cassette)
    assert read(cassette.path) == cassette
    with vcr.VCR(serializer="yaml", record_mode="none").use_cassette(str(cassette.path)) as theirs:
        assert theirs.responses[0]["body"]["string"] == b"the answer"


def test_a_recording_in_yaml_is_found_where_there_is_none_in_json(tmp_path: Path) -> None:
    path = tmp_path / "declared.2.json"
    assert existing(path) == path
    path.with_suffix(".yaml").touch()
    assert existing(path).name == "declared.2.yaml"
    path.touch()
    assert existing(path) == path


def test_vcrpy_alone_replays_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(Cassette(path, (exchange(chat(), answer='{"said": "hi"}'),)))
    player = vcr.VCR(serializer="json", record_mode="none", match_on=["method", "uri", "body"])
    with player.use_cassette(str(path)), httpx.Client() as client:
        assert client.post(URL, json=chat()).json() == {"said": "hi"}


def test_an_answer_that_is_no_text_is_kept_to_the_byte(tmp_path: Path) -> None:
    sound = bytes(range(256))
    kept = exchange_of(
        method="GET",
        uri=URL,
        body=None,
        status=200,
        reason="OK",
        headers={"content-type": ["audio/wav"]},
        answer=sound,
        agent=None,
        turn=None,
    )
    cassette = Cassette(tmp_path / "c.json", (kept,))
    write(cassette)
    assert read(cassette.path).exchanges[0].answer == sound


def test_bodies_that_are_no_text_are_told_apart() -> None:
    one, other = (json_or_text(b"\xff" + tail) for tail in (b"a", b"b"))
    assert isinstance(one, str)
    assert one != other
    with pytest.raises(TypeError):
        json_or_text(object())  # type: ignore[arg-type]


def test_half_a_character_and_endless_nesting_do_not_stop_a_recording(tmp_path: Path) -> None:
    cassette = Cassette(tmp_path / "c.json", (exchange({"a": "\ud83d"}, answer="\ud83d"), exchange("[" * 5000)))
    write(cassette)
    assert read(cassette.path) == cassette


@given(st.lists(st.tuples(st.one_of(st.none(), st.text(min_size=1), JSON_OBJECTS), st.text()), max_size=4))
def test_any_exchanges_are_read_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[Any, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    exchanges = tuple(exchange(json_or_text(body), answer) for body, answer in parts)
    for suffix in (".json", ".yaml"):
        write(Cassette(path.with_suffix(suffix), exchanges))
        assert read(path.with_suffix(suffix)).exchanges == exchanges


def test_a_failed_write_keeps_the_old_recording(tmp_path: Path) -> None:
    """B096."""
    path = tmp_path / "c.json"
    write(Cassette(path, (exchange(chat()),)))
    before = path.read_bytes()
    with pytest.raises(CassetteError, match="not written, it would hold"):
        write(Cassette(path, (exchange(chat(), answer="sk-" + "a" * 30),)))
    with pytest.raises(CassetteError, match="not written, it would hold"):
        write(Cassette(path, (exchange(chat(), answer=b"\xff sk-" + b"a" * 30),)))
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


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CassetteError, match=r"file/c\.json: cannot be written: "):
        write(Cassette(tmp_path / "file" / "c.json", (exchange(chat()),)))
    with pytest.raises(CassetteDamaged, match="cannot be read"):
        read(tmp_path / "file" / "c.json")


def test_what_was_compressed_in_other_ways_is_read_or_says_what_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    for encoding, body in (("deflate", zlib.compress(b"hi")), ("gzip", b"\xff plain"), ("identity", b"\xff plain")):
        headers = {"content-encoding": [encoding]}
        path.write_text(yaml.safe_dump(theirs(headers=headers, body={"string": body})), encoding="utf-8")
        assert read(path).exchanges[0].answer == ("hi" if encoding == "deflate" else b"\xff plain")
    headers = {"content-encoding": ["br"]}
    path.write_text(yaml.safe_dump(theirs(headers=headers, body={"string": b"\xff"})), encoding="utf-8")
    if importlib.util.find_spec("brotli") is None:
        with pytest.raises(CassetteDamaged, match="install brotli to read it"):
            read(path)


def test_headers_that_lead_to_further_requests_are_kept_without_their_secrets(tmp_path: Path) -> None:
    kept = exchange_of(
        method="GET",
        uri="http://h/",
        body=None,
        status=302,
        reason="Found",
        headers={"Location": ["/next?access_token=planted"], "Link": ["</2>; rel=next"], "X-Other": ["planted"]},
        answer=b"",
        agent=None,
        turn=None,
    )
    assert kept.headers == (("location", "/next?access_token=[redacted]"), ("link", "</2>; rel=next"))
    cassette = Cassette(tmp_path / "c.json", (kept,))
    write(cassette)
    assert read(cassette.path) == cassette
