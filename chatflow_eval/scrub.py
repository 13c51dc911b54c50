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

KEY_SHAPES: tuple[re.Pattern[str], ...] = tuple(
    re.compile(shape)
    for shape in (
        # The literal comes before the look-behind, so that a search leaps from one literal to the next.
        r"sk-(?<=\bsk-)[A-Za-z0-9_-]{8,}",  # OpenAI, Anthropic (sk-ant-), OpenRouter (sk-or-), DeepSeek, Langfuse
        r"AIza(?<=\bAIza)[0-9A-Za-z_-]{20,}",  # Google
        r"ya29\.(?<=\bya29\.)[0-9A-Za-z_.-]{20,}",  # Google OAuth
        r"GOCSPX-[0-9A-Za-z_-]{16,}",
        r"gsk_(?<=\bgsk_)[A-Za-z0-9]{16,}",  # Groq
        r"hf_(?<=\bhf_)[A-Za-z0-9]{16,}",  # Hugging Face
        r"r8_(?<=\br8_)[A-Za-z0-9]{16,}",  # Replicate
        r"xai-(?<=\bxai-)[A-Za-z0-9]{16,}",
        r"pplx-(?<=\bpplx-)[A-Za-z0-9]{16,}",  # Perplexity
        r"nvapi-(?<=\bnvapi-)[A-Za-z0-9_-]{16,}",
        r"csk-(?<=\bcsk-)[A-Za-z0-9]{16,}",  # Cerebras
        r"tvly-(?<=\btvly-)[A-Za-z0-9_-]{16,}",  # Tavily
        r"lsv2_(?<=\blsv2_)[A-Za-z0-9_]{16,}",  # LangSmith
        r"org-(?<=\borg-)[A-Za-z0-9]{20,}",  # OpenAI's organisations
        r"proj_(?<=\bproj_)[A-Za-z0-9]{20,}",
        r"req_(?<=\breq_)[A-Za-z0-9]{20,}",  # request ids
        r"gh[pousr]_(?<=\bgh._)[A-Za-z0-9]{20,}",
        r"github_pat_[A-Za-z0-9_]{20,}",
        r"glpat-[A-Za-z0-9_-]{16,}",
        r"AKIA(?<=\bAKIA)[0-9A-Z]{16}\b",
        r"xox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
        r"sk_live_[A-Za-z0-9]{16,}",  # Stripe
        r"rk_live_[A-Za-z0-9]{16,}",
        r"npm_(?<=\bnpm_)[A-Za-z0-9]{30,}",
        r"pypi-[A-Za-z0-9_-]{30,}",
        r"dapi(?<=\bdapi)[0-9a-f]{32}",  # Databricks
        r"eyJ(?<=\beyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",  # a JSON web token
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
        r"Bearer [A-Za-z0-9._~+/=-]{8,}",
        r"bearer [A-Za-z0-9._~+/=-]{8,}",
    )
)

_CONTROL = re.compile(r"\\u00[01][0-9a-f]")
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
       | (?:proxy-)?authorization )
      \\? ["']? \s* [:=] \s* \\? ["']? (?: (?:basic|bearer|token|digest) \s+ )? )
    ( [^\s"'\\,;&<>\[\]{}()]{8,} )
    """
)
"""A credential said with its name in a text, as in `x-api-key: ...` or `api_key=...`."""
_COOKIE = re.compile(r"""(?i)(\bcookie["']?\s*[:=]\s*["']?)[\w.-]+=[^\s"';,]+(?:;\s*[\w.-]+(?:=[^\s"';,]+)?)*""")
_LABELS = ("api", "access", "secret", "subscription", "cookie", "authorization")
_SHORTEST_SECRET = 8

_declared: set[str] = set()


def declare(names: Iterable[str]) -> None:
    """The values of these environment variables are secrets as well, whatever their names and their looks."""
    _declared.update(names)


def scrub_text(text: str) -> str:
    """The text with key shapes, credentials said by name, and the values of secret environment variables replaced."""
    for _, value in _environment_secrets():
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
    plain = _unescaped(text)
    if _mentions(plain, _FIRSTS) and (_FIELD_IN_JSON.search(text) or _LABELLED.search(plain) or _COOKIE.search(plain)):
        return True
    return _survivor(plain) is not None


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
    return _survivor(_unescaped(text))


def _survivor(text: str) -> str | None:
    for name, value in _environment_secrets():
        if value in text:
            return f"the value of the environment variable {name}"
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


def _unescaped(text: str) -> str:
    """The text with what JSON writes for line ends and the like as spaces: a key after one starts a word."""
    if "\\" not in text:
        return text
    for escape in ("\\n", "\\r", "\\t", "\\b", "\\f"):
        text = text.replace(escape, " ")
    return _CONTROL.sub(" ", text)


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


def _environment_secrets() -> Iterator[tuple[str, str]]:
    # Reading the names through the mapping decodes each of them, every time.
    names = frozenset(getattr(os.environ, "_data", os.environ))
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
