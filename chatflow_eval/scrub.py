"""Secrets out of texts, URLs, form data and JSON before they reach a file, a report or an error."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import parse_qsl, quote, quote_plus, urlencode, urlsplit, urlunsplit

from chatflow_runtime.types import Json

REDACTED = "[redacted]"

PLACEHOLDER = "chatflow-eval-replays-without-a-key"
"""What stands in for a key while replaying; the value of a variable named like a credential, and yet no secret."""


def _shape(literal: str, rest: str) -> re.Pattern[str]:
    """A word that starts with the literal, be it after an escape of JSON, whose last letter is no part of the word."""
    # The literal comes before the look-behinds, so that a search leaps from one literal to the next.
    starts = "|".join(rf"(?<={before}{literal})" for before in (r"\b", r"\\[nrtbf]", r"\\u00[01][0-9a-f]"))
    return re.compile(f"{literal}(?:{starts}){rest}")


KEY_SHAPES: tuple[re.Pattern[str], ...] = (
    _shape("sk-", "[A-Za-z0-9_-]{8,}"),  # OpenAI, Anthropic (sk-ant-), OpenRouter (sk-or-), DeepSeek, Langfuse
    _shape("AIza", "[0-9A-Za-z_-]{20,}"),  # Google
    _shape(r"ya29\.", "[0-9A-Za-z_-]{20,}"),  # Google OAuth
    _shape("GOCSPX-", "[0-9A-Za-z_-]{16,}"),
    _shape("gsk_", "[A-Za-z0-9]{16,}"),  # Groq
    _shape("hf_", "[A-Za-z0-9]{16,}"),  # Hugging Face
    _shape("r8_", "[A-Za-z0-9]{16,}"),  # Replicate
    _shape("xai-", "[A-Za-z0-9]{16,}"),
    _shape("pplx-", "[A-Za-z0-9]{16,}"),  # Perplexity
    _shape("nvapi-", "[A-Za-z0-9_-]{16,}"),
    _shape("csk-", "[A-Za-z0-9]{16,}"),  # Cerebras
    _shape("tvly-", "[A-Za-z0-9_-]{16,}"),  # Tavily
    _shape("lsv2_", "[A-Za-z0-9_]{16,}"),  # LangSmith
    _shape("org-", "[A-Za-z0-9]{20,}"),  # OpenAI's organisations
    _shape("proj_", "[A-Za-z0-9]{20,}"),
    _shape("req_", "[A-Za-z0-9]{20,}"),  # request ids
    *(_shape(f"gh{kind}_", "[A-Za-z0-9]{20,}") for kind in "pousr"),
    _shape("github_pat_", "[A-Za-z0-9_]{20,}"),
    _shape("glpat-", "[A-Za-z0-9_-]{16,}"),
    _shape("AKIA", r"[0-9A-Z]{16}\b"),
    *(_shape(f"xox{kind}-", "[A-Za-z0-9-]{10,}") for kind in "abeprs"),  # Slack
    _shape("sk_live_", "[A-Za-z0-9]{16,}"),  # Stripe
    _shape("rk_live_", "[A-Za-z0-9]{16,}"),
    _shape("npm_", "[A-Za-z0-9]{30,}"),
    _shape("pypi-", "[A-Za-z0-9_-]{30,}"),
    _shape("dapi", "[0-9a-f]{32}"),  # Databricks
    _shape("eyJ", r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),  # a JSON web token
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?"),
    re.compile(r"Bearer [A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"bearer [A-Za-z0-9._~+/=-]{8,}"),
)

_COMPOUND = r"(?:api|access|secret|auth|private|refresh|bearer|session|subscription)[_-]?(?:key|token)s?"
_PLAIN = r"(?:secrets?|passwords?|passwd|authorization|credentials?|cookies?)"
_FIELD = re.compile(rf"(?i){_COMPOUND}$|(?:^|[_-]){_PLAIN}$")
_FIELD_IN_JSON = re.compile(rf"""(?i)(?:{_COMPOUND}|["_-]{_PLAIN})\\*"\s*:""")
"""A field of JSON, or of JSON within JSON, that is named like a credential."""
_NAME = re.compile(rf"{_FIELD.pattern}|(?:^|[_-])(?:key|token|sig|signature)$")
_FIRSTS = (
    "api",
    "access",
    "secret",
    "auth",
    "private",
    "refresh",
    "bearer",
    "session",
    "subscription",
    "password",
    "passwd",
    "credential",
    "cookie",
)
"""One of these is in every credential's name."""
_LABELLED = re.compile(
    r"""(?ix)
    ( \b (?: [\w-]* (?: api[_-]?key | subscription-key | access[_-]?token | client[_-]?secret )
       | [\w-]* authorization )
      \\? ["']? \s* [:=] \s* \\? ["']? (?: (?:basic|bearer|token|digest) \s+ )? )
    ( [^\s"'\\,;&<>\[\]{}()]{8,} )
    """
)
"""A credential said with its name in a text, as in `x-api-key: ...` or `api_key=...`."""
_COOKIE = re.compile(r"""(?i)(\b[\w-]*cookie["']?\s*[:=]\s*["']?)[\w.-]+=[^\s"';,]+(?:;\s*[\w.-]+(?:=[^\s"';,]+)?)*""")
_LABELS = ("api", "access", "secret", "subscription", "cookie", "authorization")
_SHORTEST_SECRET = 8

_SHORTEST_KEY = 16

_declared: set[str] = set()
_keys: set[str] = set()


def declare(names: Iterable[str]) -> None:
    """The values of these environment variables are secrets as well, whatever their names and their looks."""
    _declared.update(names)


def declare_values(values: Iterable[object]) -> None:
    """These texts are keys of agents under test, and so secrets; short ones are made up for local servers."""
    _keys.update(value for value in values if isinstance(value, str) and len(value) >= _SHORTEST_KEY)


def scrub_text(text: str) -> str:
    """The text with key shapes, credentials said by name, and the values of secret environment variables replaced."""
    for _, value in _known_secrets():
        if value in text:
            text = text.replace(value, REDACTED)
    for shape in KEY_SHAPES:
        text = shape.sub(REDACTED, text)
    if _mentions(text, _LABELS):
        text = _COOKIE.sub(rf"\1{REDACTED}", _LABELLED.sub(rf"\1{REDACTED}", text))
    return text


def scrub_json(value: Json) -> Json:
    """The value with every text scrubbed, and what stands under credential-like field names replaced whole.

    Itself where it holds no secret, which is found out faster than it is scrubbed.
    """
    return _scrubbed(value) if may_hold_secret(json.dumps(value, ensure_ascii=False)) else value


def may_hold_secret(text: str) -> bool:
    """Whether scrubbing may change the value that a JSON text stands for; never false where it would.

    One search in all of a value's texts at once costs a tenth of a search in each.
    """
    if _mentions(text, _FIRSTS) and any(said.search(text) for said in (_FIELD_IN_JSON, _LABELLED, _COOKIE)):
        return True
    return surviving_secret(text) is not None


def scrub_body(text: str) -> str:
    """A request's or an answer's body that is no JSON: as form data where it is some, else as text."""
    if _is_form(text):
        return _scrub_query(text)
    return scrub_text(text)


def scrub_uri(uri: str) -> str:
    """The URL without user info, and with the values of credential-like query parameters replaced."""
    parts = urlsplit(uri)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=_scrub_query(parts.query))
    return scrub_text(urlunsplit(bare))


def surviving_secret(text: str) -> str | None:
    """What kind of secret the text still holds, in JSON or not, or `None`; never the secret itself."""
    for name, value in _known_secrets():
        if value in text:
            return f"the value of the environment variable {name}" if name else "the key of an agent"
    for shape in KEY_SHAPES:
        if found := shape.search(text):
            return f"a text shaped like an API key, starting {found.group()[:4]!r}"
    return None


def _scrubbed(value: Json) -> Json:
    if isinstance(value, str):
        return _scrub_string(value)
    if isinstance(value, list):
        return [_scrubbed(item) for item in value]
    if isinstance(value, dict):
        return {
            scrub_text(key): _redacted(item) if _names_secret(key) and _is_secret(item) else _scrubbed(item)
            for key, item in value.items()
        }
    return value


def _is_secret(value: Json) -> bool:
    """What stands under a credential's name is one, unless it is a schema that describes it."""
    if isinstance(value, list):
        return any(_is_secret(item) for item in value)
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value not in ("", REDACTED)


def _redacted(value: Json) -> Json:
    return [REDACTED for _ in value] if isinstance(value, list) else REDACTED


def _scrub_string(text: str) -> str:
    """The text scrubbed, where it is JSON itself, as a call's arguments are, with what stands under field names."""
    if text.startswith(("{", "[")) and _FIELD_IN_JSON.search(text):
        try:
            parsed: Json = json.loads(text)
        except (ValueError, RecursionError):
            return scrub_text(text)
        scrubbed = _scrubbed(parsed)
        if scrubbed != parsed:
            return json.dumps(scrubbed, ensure_ascii=False)
    return scrub_text(text)


@lru_cache(maxsize=4096)
def _names_secret(key: str) -> bool:
    return _FIELD.search(key) is not None


def _mentions(text: str, words: tuple[str, ...]) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in words)


def _is_form(text: str) -> bool:
    return re.fullmatch(r"[\w.~%+\[\]-]+=[^&\s]*(&[\w.~%+\[\]-]+=[^&\s]*)*", text) is not None


def _scrub_query(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode([(name, REDACTED if _NAME.search(name) else value) for name, value in pairs], safe="[]")


def _known_secrets() -> Iterator[tuple[str, str]]:
    """Secrets as they may be written, each with the environment variable that holds it, if one does."""
    # Reading the names through the mapping decodes each of them, every time.
    names = frozenset(getattr(os.environ, "_data", os.environ))
    for key in _keys - {PLACEHOLDER}:
        for written in _spellings(key):
            yield "", written
    for name in _secret_variables(names, frozenset(_declared)):
        value = os.environ[name]
        # A path is where a credential lies, not the credential.
        is_secret = len(value) >= _SHORTEST_SECRET and not value.startswith("/") and value != PLACEHOLDER
        if is_secret or (name in _declared and value):
            for written in _spellings(value):
                yield name, written


@lru_cache(maxsize=256)
def _spellings(value: str) -> tuple[str, ...]:
    """The value as it stands in a text, in JSON, in JSON within JSON, and in a URL; each once, longest first."""
    escaped = json.dumps(value)[1:-1]
    plain = json.dumps(value, ensure_ascii=False)[1:-1]
    spellings = {value, escaped, plain, json.dumps(escaped)[1:-1], quote(value, safe=""), quote_plus(value)}
    return tuple(sorted(spellings, key=lambda text: (-len(text), text)))


@lru_cache(maxsize=8)
def _secret_variables(names: frozenset[str | bytes], declared: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in map(os.fsdecode, names) if name in declared or _NAME.search(name)))
