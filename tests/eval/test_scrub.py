"""Secrets never reach a file: what counts as one, and what must be left alone."""

from __future__ import annotations

import pytest

from chatflow_eval.scrub import REDACTED, scrub_json, scrub_text, scrub_uri, surviving_secret
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


def test_urls_lose_keys_and_user_info() -> None:
    assert scrub_uri("https://user:pw@host:8/v1/x?key=AIzaShort&alt=json&api_key=zzz") == (
        f"https://host:8/v1/x?key={REDACTED}&alt=json&api_key={REDACTED}"
    )


def test_scrubbing_twice_changes_nothing() -> None:
    once = scrub_text(" ".join(KEYS))
    assert scrub_text(once) == once
    assert surviving_secret(once) is None
