"""Secrets out of texts, URLs and JSON before they reach a file, a report or an error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from chatflow_runtime.types import Json

REDACTED = "[redacted]"

KEY_SHAPES: tuple[re.Pattern[str], ...] = tuple(
    re.compile(shape)
    for shape in (
        # The literal comes before the look-behind, so that a search leaps from one literal to the next.
        r"sk-(?<=\bsk-)[A-Za-z0-9_-]{8,}",  # OpenAI, Anthropic (sk-ant-), OpenRouter (sk-or-), DeepSeek
        r"AIza(?<=\bAIza)[0-9A-Za-z_-]{20,}",  # Google
        r"gsk_(?<=\bgsk_)[A-Za-z0-9]{16,}",  # Groq
        r"hf_(?<=\bhf_)[A-Za-z0-9]{16,}",  # Hugging Face
        r"r8_(?<=\br8_)[A-Za-z0-9]{16,}",  # Replicate
        r"xai-(?<=\bxai-)[A-Za-z0-9]{16,}",
        r"gh[pousr]_(?<=\bgh._)[A-Za-z0-9]{20,}",
        r"github_pat_[A-Za-z0-9_]{20,}",
        r"glpat-[A-Za-z0-9_-]{16,}",
        r"AKIA(?<=\bAKIA)[0-9A-Z]{16}\b",
        r"xox[abprs]-[A-Za-z0-9-]{10,}",  # Slack
        r"eyJ(?<=\beyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",  # a JSON web token
        r"[Bb]earer [A-Za-z0-9._~+/=-]{8,}",
    )
)

_FIELD = re.compile(
    r"(?i)(api|access|secret|auth|private|refresh|bearer|session)[_-]?(key|token)$"
    r"|(^|[_-])(secret|password|passwd|authorization|credentials?|cookie)$"
)
_NAME = re.compile(rf"(?i)(^|[_-])(key|token|sig|signature)$|{_FIELD.pattern.removeprefix('(?i)')}")
_SHORTEST_SECRET = 8


def scrub_text(text: str) -> str:
    """The text with known key shapes and the values of secret environment variables replaced by `[redacted]`."""
    for _, value in _environment_secrets():
        if value in text:
            text = text.replace(value, REDACTED)
    for shape in KEY_SHAPES:
        text = shape.sub(REDACTED, text)
    return text


def scrub_json(value: Json) -> Json:
    """The value with every string scrubbed, and strings under credential-like field names replaced whole."""
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, list):
        return [scrub_json(item) for item in value]
    if isinstance(value, dict):
        return {
            scrub_text(key): REDACTED if isinstance(item, str) and item and _FIELD.search(key) else scrub_json(item)
            for key, item in value.items()
        }
    return value


def scrub_uri(uri: str) -> str:
    """The URL without user info, and with the values of credential-like query parameters replaced."""
    parts = urlsplit(uri)
    query = [
        (name, REDACTED if _NAME.search(name) else value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=urlencode(query, safe="[]"))
    return scrub_text(urlunsplit(bare))


def surviving_secret(text: str) -> str | None:
    """What kind of secret the text still holds, or `None`; never the secret itself."""
    for name, value in _environment_secrets():
        if value in text:
            return f"the value of the environment variable {name}"
    found = next((match for shape in KEY_SHAPES if (match := shape.search(text))), None)
    return f"a text shaped like an API key, starting {found.group()[:4]!r}" if found else None


def _environment_secrets() -> Iterator[tuple[str, str]]:
    for name in _secret_variables(frozenset(os.environ)):
        value = os.environ[name]
        # A path is where a credential lies, not the credential.
        if len(value) >= _SHORTEST_SECRET and not value.startswith("/"):
            yield name, value


@lru_cache(maxsize=8)
def _secret_variables(names: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if _NAME.search(name)))
