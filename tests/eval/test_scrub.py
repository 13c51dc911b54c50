"""Secrets never reach a file: what counts as one, and what must be left alone."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatflow_eval import scrub
from chatflow_eval.scrub import (
    PLACEHOLDER,
    REDACTED,
    may_hold_secret,
    scrub_body,
    scrub_json,
    scrub_text,
    scrub_uri,
    surviving_secret,
)
from chatflow_runtime.types import Json

KEYS = [
    "sk-" + "a1B2c3D4" * 4,
    "sk-ant-" + "api03-abcdefgh" * 2,
    "AIza" + "S" * 35,
    "gsk_" + "x1" * 20,
    "hf_" + "Q" * 30,
    "ghp_" + "0" * 36,
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "xoxb-" + "123456789012-abc",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlLWhlcmU",
    "ya29." + "a0AfH6SMB" * 4,
    "GOCSPX-" + "a1B2" * 6,
    "r8_" + "Ab1" * 10,
    "xai-" + "Ab1" * 10,
    "pplx-" + "ab1" * 10,
    "nvapi-" + "Ab_1" * 8,
    "csk-" + "ab1" * 10,
    "tvly-" + "Ab1" * 8,
    "lsv2_pt_" + "0a" * 16,
    "org-" + "A1b2" * 6,
    "proj_" + "A1b2" * 6,
    "req_" + "0a" * 12,
    "github_pat_" + "Ab1_" * 8,
    "glpat-" + "Ab1-" * 5,
    "sk_live_" + "A1b2" * 6,
    "rk_live_" + "A1b2" * 6,
    "npm_" + "A1b2" * 9,
    "pypi-" + "AgEI" * 10,
    "dapi" + "0a" * 16,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
]


@pytest.fixture(autouse=True)
def _no_keys_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("key", KEYS)
def test_known_key_shapes_go(key: str) -> None:
    assert scrub_text(f"Incorrect API key provided: {key}.") == f"Incorrect API key provided: {REDACTED}."
    assert surviving_secret(f"before {key} after") is not None


@pytest.mark.parametrize("key", KEYS)
def test_what_is_said_of_a_surviving_secret_does_not_hold_it(key: str) -> None:
    assert key not in str(surviving_secret(key))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("before", ["\n", "\t", "\x1b", '"', " "])
def test_a_secret_is_found_in_json_and_in_json_within_json(key: str, before: str) -> None:
    """Where `\\n` is written for the end of a line, the key does not start after a letter."""
    value: Json = {"text": f"key:{before}{key}"}
    for text in (json.dumps(value), json.dumps({"arguments": json.dumps(value)})):
        assert surviving_secret(text) is not None
        assert may_hold_secret(text)
    assert key not in str(scrub_json(value))
    assert key not in str(scrub_json({"arguments": json.dumps(value)}))


def test_bearer_tokens_of_any_shape_go() -> None:
    assert "opaque-token-value" not in scrub_text("Authorization: Bearer opaque-token-value")


@pytest.mark.parametrize(
    "text",
    [
        "I lost my key.",
        "sk-8",
        "transaction_id TX-20931",
        "token",
        "task-force desk-lamp-for-the-office",
        "call_abc123def",
        "My api key: where do I find it?",
        "cookie: chocolate",
        "organisation org-chart and proj_plan",
        "authorization is required",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert scrub_text(text) == text
    assert surviving_secret(text) is None


def test_values_of_secret_environment_variables_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "plain-looking-value")
    assert scrub_text("sent plain-looking-value there") == f"sent {REDACTED} there"
    assert "ACME_API_KEY" in str(surviving_secret("plain-looking-value"))


def test_short_values_and_paths_in_the_environment_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "dummy")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/somebody/key.json")
    assert scrub_text("dummy /home/somebody/key.json") == "dummy /home/somebody/key.json"


def test_credential_fields_of_json_go_and_others_stay() -> None:
    value: Json = {
        "api_key": "abc",
        "client_secret": "abc",
        "nested": [{"password": "abc"}],
        "key": "C major",
        "max_tokens": 5,
    }
    assert scrub_json(value) == {
        "api_key": REDACTED,
        "client_secret": REDACTED,
        "nested": [{"password": REDACTED}],
        "key": "C major",
        "max_tokens": 5,
    }


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("x-api-key: abcdefgh1234", f"x-api-key: {REDACTED}"),
        ("Ocp-Apim-Subscription-Key: 0123456789abcdef", f"Ocp-Apim-Subscription-Key: {REDACTED}"),
        ("{'api_key': 'hunter2hunter2'}", f"{{'api_key': '{REDACTED}'}}"),
        ("?access_token=hunter2hunter2&x=1", f"?access_token={REDACTED}&x=1"),
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {REDACTED}"),
        ("Cookie: session=abc; other=d", f"Cookie: {REDACTED}"),
        ("set-cookie: session=abc", f"set-cookie: {REDACTED}"),
    ],
)
def test_credentials_said_by_name_go(text: str, scrubbed: str) -> None:
    assert scrub_text(f"before {text}") == f"before {scrubbed}"
    assert scrub_text(f"before {scrubbed}") == f"before {scrubbed}"


def test_credential_fields_hold_texts_numbers_and_lists_and_schemas_are_none() -> None:
    schema: Json = {"properties": {"password": {"type": "string", "description": "Yours."}}, "required": ["password"]}
    assert scrub_json(schema) == schema
    value: Json = {"password": 12345678, "api_keys": ["a", "b"], "secret": True, "cookie": None, "access_token": ""}
    assert scrub_json(value) == {
        "password": REDACTED,
        "api_keys": [REDACTED, REDACTED],
        "secret": True,
        "cookie": None,
        "access_token": "",
    }


def test_arguments_of_calls_are_json_within_json() -> None:
    value: Any = {"arguments": '{"password": "abc", "n": 1}', "text": '{"n": 1}', "broken": '{"password": '}
    assert scrub_json(value) == {**value, "arguments": f'{{"password": "{REDACTED}", "n": 1}}'}


def test_forms_lose_their_credentials_and_other_texts_are_texts() -> None:
    assert scrub_body("client_secret=abc&grant_type=x") == f"client_secret={REDACTED}&grant_type=x"
    assert scrub_body("a = b & password=abc") == "a = b & password=abc"


def test_values_of_the_environment_go_however_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    value = 'pass "word" & ü/\\'
    monkeypatch.setenv("ACME_PASSWORD", value)
    for written in (value, quote(value, safe=""), quote_plus(value), json.dumps(value), json.dumps(json.dumps(value))):
        assert scrub_text(f"a {written} b").count(REDACTED) == 1, written
        assert surviving_secret(f"a {written} b") is not None, written


def test_variables_that_are_declared_are_secrets_whatever_they_look_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_PLACE", "/db")
    assert scrub_text("at /db") == "at /db"
    monkeypatch.setattr(scrub, "_declared", {"ACME_PLACE"})
    assert scrub_text("at /db") == f"at {REDACTED}"


def test_keys_that_agents_were_given_are_secrets_and_short_ones_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """B099: such a key has no shape, and stands in no variable."""
    monkeypatch.setattr(scrub, "_keys", set())
    scrub.declare_values(["a key/like no other", "ollama", None, 7, scrub.PLACEHOLDER])
    for written in ("a key/like no other", quote("a key/like no other", safe="")):
        assert scrub_text(f"refused: {written}!") == "refused: [redacted]!"
        assert surviving_secret(written) == "the key of an agent"
    assert scrub_text(f"ollama {scrub.PLACEHOLDER}") == f"ollama {scrub.PLACEHOLDER}"


def test_what_stands_in_for_a_key_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", PLACEHOLDER)
    assert scrub_text(f"sent {PLACEHOLDER}") == f"sent {PLACEHOLDER}"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.sampled_from(KEYS)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["a", "password", "api_key", "tokens"]), inner, max_size=3),
            inner.map(json.dumps),
        ),
        max_leaves=8,
    )
)
def test_nothing_survives_and_scrubbing_twice_changes_nothing(value: Any) -> None:
    once = scrub_json(value)
    assert scrub_json(once) == once
    assert not any(key in str(once) for key in KEYS)
    if once != value:
        assert may_hold_secret(json.dumps(value, ensure_ascii=False))


def test_urls_lose_keys_and_user_info() -> None:
    assert scrub_uri("https://user:pw@host:8/v1/x?key=AIzaShort&alt=json&api_key=zzz") == (
        f"https://host:8/v1/x?key={REDACTED}&alt=json&api_key={REDACTED}"
    )


def test_scrubbing_twice_changes_nothing() -> None:
    once = scrub_text(" ".join(KEYS))
    assert scrub_text(once) == once
    assert surviving_secret(once) is None
