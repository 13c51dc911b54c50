"""When two requests are the same: JSON compared as JSON, without secrets, and with what may differ blanked out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

from chatflow_eval.scrub import may_hold_secret, scrub_body, scrub_json, scrub_uri
from chatflow_runtime.types import Json

IGNORED = "[ignored]"
"""What stands where something was blanked out."""

_Step: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class Ignore:
    """What may differ between a request and its recording: what an expression finds, in one place or in every text."""

    matches: str
    path: str | None = None
    """A place in the body, as in `messages[0].content`; `[*]` is any item, `[-1]` the last; `None`: everywhere."""

    def __str__(self) -> str:
        return self.matches if self.path is None else f"{self.matches} in {self.path}"


@dataclass(frozen=True, slots=True)
class Matcher:
    """Tells requests apart by what is left of them after the rules; knows which rules had something to blank out."""

    rules: tuple[Ignore, ...] = ()
    used: set[Ignore] = field(default_factory=set)

    def http_key(self, method: str, uri: str, body: Json) -> str:
        """The same for all requests that may be answered alike: by method, address and body."""
        return f"{method.upper()} {self.address(uri)} {self.body_key(body)}"

    def body_key(self, body: Json) -> str:
        """The same for all bodies that may be answered alike."""
        text = _SORTED.encode(canonical(body))
        if not self.rules and not isinstance(body, str) and not may_hold_secret(text):
            return text
        return _SORTED.encode(self.comparable(body))

    def comparable(self, body: Json) -> Json:
        """The body in the form in which bodies are compared, and differences are told."""
        body = scrub_body(body) if isinstance(body, str) else scrub_json(canonical(body))
        for rule in self.rules:
            steps = () if rule.path is None else _steps(rule.path)
            body = _at(body, steps, self._blank(rule))
        return body

    def address(self, uri: str) -> str:
        """The URL with its query in order; rules without a place hold for it too."""
        parts = urlsplit(scrub_uri(uri))
        query = urlencode(sorted(parse_qsl(parts.query, keep_blank_values=True)), safe="[]")
        text = parts._replace(query=query).geturl()
        for rule in self.rules:
            if rule.path is None:
                text = self._blank(rule)(text)
        return text

    def _blank(self, rule: Ignore) -> Callable[[str], str]:
        pattern = re.compile(rule.matches)

        def blank(text: str) -> str:
            blanked, count = pattern.subn(IGNORED, text)
            if count:
                self.used.add(rule)
            return blanked

        return blank


_SORTED = json.JSONEncoder(sort_keys=True, ensure_ascii=False)


def canonical(body: Json) -> Json:
    """A chat request without what clients send or leave out as they please: nulls, `stream: false`, `0` for `0.0`."""
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(messages, list):
        return body
    plain: dict[str, Json] = {
        key: float(value) if type(value) is int else value
        for key, value in body.items()
        if value is not None and (key, value) != ("stream", False)
    }
    plain["messages"] = [_without_nulls(message) for message in messages]
    return plain


def first_difference(recorded: Json, asked: Json, path: str = "") -> str | None:
    """The first field in which two JSON values differ, with both values, or `None` when they are equal."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for key in [*recorded, *(key for key in asked if key not in recorded)]:
            place = f"{path}.{key}" if path else str(key)
            if key not in asked:
                return f"{place}: recorded {_short(recorded[key])}, now missing"
            if key not in recorded:
                return f"{place}: not recorded, now {_short(asked[key])}"
            found = first_difference(recorded[key], asked[key], place)
            if found:
                return found
        return None
    if isinstance(recorded, list) and isinstance(asked, list):
        if difference := _renamed(_names(recorded), _names(asked)):
            return f"{path}: {difference}"
        for index, (old, new) in enumerate(zip(recorded, asked, strict=False)):
            found = first_difference(old, new, f"{path}[{index}]")
            if found:
                return found
        if len(recorded) != len(asked):
            return f"{path}: recorded {len(recorded)} item(s), now {len(asked)}"
        return None
    if type(recorded) is type(asked) and recorded == asked:
        return None
    if _is_number(recorded) and _is_number(asked) and recorded == asked:
        return None
    if isinstance(recorded, str) and isinstance(asked, str):
        old_text, new_text = _around_difference(recorded, asked)
        return f"{path or 'body'}: recorded {old_text}, now {new_text}"
    return f"{path or 'body'}: recorded {_short(recorded)}, now {_short(asked)}"


def _at(value: Json, steps: Sequence[_Step], blank: Callable[[str], str]) -> Json:
    """The value with every text blanked that lies where the steps lead, or below."""
    if not steps:
        if isinstance(value, str):
            return blank(value)
        if isinstance(value, list):
            return [_at(item, (), blank) for item in value]
        if isinstance(value, dict):
            return {key: _at(item, (), blank) for key, item in value.items()}
        return value
    step, *rest = steps
    if isinstance(value, list):
        wanted = len(value) + step if isinstance(step, int) and step < 0 else step
        return [_at(item, rest, blank) if wanted in ("*", index) else item for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _at(item, rest, blank) if step in ("*", key) else item for key, item in value.items()}
    return value


@lru_cache(maxsize=256)
def _steps(path: str) -> tuple[_Step, ...]:
    return tuple(int(index) if index else name for index, name in re.findall(r"\[(-?\d+)\]|([^.\[\]]+)", path))


def _names(tools: list[Json]) -> list[str] | None:
    """The names of tools, as requests offer them; `None` where they are something else."""
    names = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        names.append(str(function["name"]))
    return names


def _renamed(recorded: list[str] | None, asked: list[str] | None) -> str | None:
    """Which tools came and went, rather than that each is another at its place."""
    if recorded is None or asked is None or recorded == asked:
        return None
    gone = [f"recorded {name!r}, now missing" for name in recorded if name not in asked]
    new = [f"not recorded, now {name!r}" for name in asked if name not in recorded]
    return "; ".join([*gone, *new]) or f"recorded {', '.join(recorded)}, now {', '.join(asked)}"


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without_nulls(message: Json) -> Json:
    return {k: v for k, v in message.items() if v is not None} if isinstance(message, dict) else message


def _around_difference(old: str, new: str, width: int = 40) -> tuple[str, str]:
    start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    begin = max(0, start - width // 2)

    def cut(text: str) -> str:
        end = start + width
        return f"'{'...' if begin else ''}{text[begin:end]}{'...' if len(text) > end else ''}'"

    return cut(old), cut(new)


def _short(value: Json, width: int = 80) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= width else f"{text[:width]}..."
