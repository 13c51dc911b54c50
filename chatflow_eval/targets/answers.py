"""What a service answers to a turn, read strictly: each part in its place, and what is malformed named by its field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, cast, get_args

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from chatflow_eval.fields import shown, suggestion
from chatflow_eval.scenario import LISTS, AnswerPart, Service, ServiceAgents
from chatflow_eval.scrub import scrub_json, scrub_text, scrub_uri
from chatflow_eval.trace import HopKind
from chatflow_runtime.exceptions import EmptyResponseError
from chatflow_runtime.types import Json, encodable_json

DEEPEST = 64
"""Levels of an answer's JSON; reports take no more than a few hundred."""

AGENT_HEADER = "x-agent"
"""The header that says who answered where the body of format `openai` does not."""

_LARGEST = 2**53
_PARTS: tuple[AnswerPart, ...] = get_args(AnswerPart)
_CHOICE = "choices[0].message"


class MalformedAnswerError(Exception):
    """A service's answer that cannot be taken for a turn; names the field that is wrong."""


class ServiceError(Exception):
    """A service did not answer a turn: it refused it with an HTTP status, or says that its agents failed."""

    def __init__(
        self,
        message: str,
        *,
        kind: Literal["agent", "model"] = "model",
        name: str = "ServiceError",
        status_code: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: Literal["agent", "model"] = kind
        self.name = name
        """What the service calls the exception."""
        self.status_code = status_code
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class Heard:
    """A service's answer as it came over the wire."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """By names in lower case."""
    body: str | bytes


def _said(value: str) -> str:
    if not value.strip():
        raise ValueError("expected text, found none")
    return value


_Word: TypeAlias = Annotated[str, AfterValidator(_said)]
_Count: TypeAlias = Annotated[int, Field(ge=0, le=_LARGEST)]


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ToldHandoff(_Told):
    """A handoff as a service tells it."""

    to: _Word
    source: _Word | None = Field(default=None, alias="from")
    """`None`: who had the conversation."""
    kind: HopKind | None = None
    tool: _Word | None = None
    reason: str | None = None
    accepted: bool | None = None
    """`None`: unless there is a `why`."""
    why: str | None = None
    """Why it was refused."""


class ToldTool(_Told):
    """A call of a domain tool as a service tells it."""

    tool: _Word
    agent: _Word | None = None
    arguments: Any = None
    result: Any = None
    error: str | None = None


class ToldLimit(_Told):
    """A limit that refused something."""

    limit: _Word
    value: _Count
    agent: _Word | None = None


class ToldUsage(_Told):
    """What a turn took, in tokens."""

    model_config = ConfigDict(extra="ignore")

    input_tokens: _Count | None = Field(default=None, validation_alias=AliasChoices("input_tokens", "prompt_tokens"))
    output_tokens: _Count | None = Field(
        default=None, validation_alias=AliasChoices("output_tokens", "completion_tokens")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a service says of a turn; `None` is not told."""

    reply: str
    agent: str | None
    """Who answered."""
    name: str | None
    """Who answered, as the message of a chat completion names it."""
    handoffs: tuple[ToldHandoff, ...] | None
    route: tuple[str, ...] | None
    tools: tuple[ToldTool, ...]
    limits: tuple[ToldLimit, ...]
    context: dict[str, Json] | None
    """With its secrets, as it is sent back."""
    usage: ToldUsage
    topology: ServiceAgents | None
    model: str | None
    unread: tuple[str, ...]
    """Fields that are not read, and were most likely meant for one that is."""


def read(heard: Heard, service: Service) -> Answer:
    """The answer's parts, each where the service says it is, without secrets.

    Raises:
        ServiceError: the service refused the turn, or says that its agents failed.
        EmptyResponseError: nobody said anything.
        MalformedAnswerError: something in it is not what was expected there.
    """
    refuse_status(heard)
    whole = _Parts(_parsed(heard), service)
    # As recordings have it, and whatever becomes of the trace: a service may repeat the key that it was sent.
    parts = _Parts(cast("dict[str, Json]", scrub_json(whole.body)), service)
    failed = parts.find("error")
    if failed and not isinstance(failed, _Missing):
        raise _failed(failed, parts.spelled("error"), kind="agent" if service.format == "json" else "model")
    reply = _reply(parts)
    name = parts.value(f"{_CHOICE}.name", _Word, "agent") if service.format == "openai" else None
    return Answer(
        reply=reply,
        agent=_agent(parts, heard, name),
        name=name,
        handoffs=parts.take("handoffs", tuple[ToldHandoff, ...]),
        route=parts.take("route", Annotated[tuple[_Word, ...], Field(min_length=1)]),
        tools=parts.take("tools", tuple[ToldTool, ...]) or (),
        limits=parts.take("limits", tuple[ToldLimit, ...]) or (),
        context=whole.take("context", dict[str, Any]),
        usage=parts.take("usage", ToldUsage) or ToldUsage(),
        topology=parts.take("topology", ServiceAgents),
        model=parts.take("model", _Word),
        unread=tuple(parts.unread()),
    )


def refuse_status(heard: Heard) -> None:
    """Raises `ServiceError` for every HTTP status but those of success."""
    if 200 <= heard.status < 300:
        return
    what = f"answered {heard.status} {heard.reason}".rstrip()
    if 300 <= heard.status < 400:
        there = scrub_uri(heard.headers.get("location", "nowhere"))
        what += f", leading to {there}: redirects are not followed, name that address"
    elif said := _excerpt(heard.body):
        what += f": {said}"
    raise ServiceError(what, status_code=heard.status, headers=heard.headers)


# JSON, and places in it.


def _parsed(heard: Heard) -> dict[str, Json]:
    try:
        text = heard.body if isinstance(heard.body, str) else heard.body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedAnswerError(f"the answer is no text in UTF-8: {error.reason} at byte {error.start}") from None
    if not text.strip():
        raise EmptyResponseError(f"the answer is empty (HTTP {heard.status})")
    if heard.headers.get("content-type", "").startswith("text/event-stream"):
        raise MalformedAnswerError("the answer is a stream of events: a turn is answered in one piece")
    try:
        body = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise MalformedAnswerError(f"the answer is no JSON: {why}; it starts {_excerpt(text, 80)}") from None
    if not isinstance(body, dict):
        raise MalformedAnswerError(f"the answer is {_kind(body)}, expected a JSON object")
    if _is_deeper(body, DEEPEST):
        raise MalformedAnswerError(f"the answer is nested more than {DEEPEST} levels deep")
    return cast("dict[str, Json]", encodable_json(body))


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large a number")
    return number


def _is_deeper(value: Json, levels: int) -> bool:
    layer: list[Json] = [value]
    for _ in range(levels):
        layer = [
            inner
            for each in layer
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, dict | list) for each in layer)


_Step: TypeAlias = str | int


@cache
def _steps(place: str) -> tuple[_Step, ...]:
    """Keys and indices; `*` is any item."""
    found = re.findall(r"\[(-?\d+|\*)\]|([^.\[\]]+)", place)
    return tuple(name or (index if index == "*" else int(index)) for index, name in found)


class _Missing:
    """Nothing stands there."""


_MISSING = _Missing()


def _look_up(value: Json | _Missing, steps: Sequence[_Step], place: str) -> Json | _Missing:
    """What stands at a place; null on the way is nothing, and another kind of value than the place has is malformed."""
    for index, step in enumerate(steps):
        if value is None or isinstance(value, _Missing):
            return _MISSING
        if step == "*":
            if not isinstance(value, list):
                raise MalformedAnswerError(f"`{place}`: before `[*]` there is {_kind(value)}, expected a list")
            found = (_look_up(item, steps[index + 1 :], place) for item in value)
            return [item for item in found if not isinstance(item, _Missing)]
        if isinstance(step, int):
            if not isinstance(value, list):
                raise MalformedAnswerError(f"`{place}`: before `[{step}]` there is {_kind(value)}, expected a list")
            value = value[step] if -len(value) <= step < len(value) else _MISSING
        elif isinstance(value, dict):
            value = value.get(step, _MISSING)
        else:
            raise MalformedAnswerError(f"`{place}`: where `{step}` should be, there is {_kind(value)}")
    return value


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of an answer in their places."""

    body: dict[str, Json]
    service: Service

    def place(self, part: AnswerPart) -> str:
        usual = f"{_CHOICE}.content" if part == "reply" and self.service.format == "openai" else part
        return self.service.fields.get(part, usual)

    def spelled(self, part: AnswerPart) -> str:
        """The part as messages name it."""
        place = self.place(part)
        return part if place == part else f"{part} ({place})"

    def find(self, part: AnswerPart) -> Json | _Missing:
        place = self.place(part)
        found = _look_up(self.body, _steps(place), place)
        return _MISSING if found is None and part != "reply" else found

    def take(self, part: AnswerPart, kind: Any) -> Any:
        """The part, `None` where it is not told."""
        return self.value(self.place(part), kind, part)

    def value(self, place: str, kind: Any, part: AnswerPart) -> Any:
        found = _look_up(self.body, _steps(place), place)
        if found is None or isinstance(found, _Missing):
            return None
        label = part if place == part else f"{part} ({place})"
        if part in LISTS and not isinstance(found, list):
            raise MalformedAnswerError(f"`{label}`: expected a list, found {_kind(found)}")
        if part == "handoffs":
            found = [{"to": item} if isinstance(item, str) else item for item in cast("list[Json]", found)]
        try:
            return _adapter(kind).validate_python(found)
        except ValidationError as error:
            raise MalformedAnswerError(_told_wrong(label, error.errors(include_url=False)[0])) from None

    def unread(self) -> Iterator[str]:
        """Of format `json`, fields that look like a part's name misspelled."""
        if self.service.format != "json":
            return
        from rapidfuzz import fuzz, process

        read = {_steps(self.place(part))[0] for part in _PARTS}
        waiting = [part for part in _PARTS if part not in self.body]
        for key in self.body:
            if key not in read and (near := process.extractOne(key, waiting, scorer=fuzz.ratio, score_cutoff=85)):
                yield f"the answer's `{key}` is not read; did you mean `{near[0]}`?"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    # JSON has lists where values have tuples; texts and numbers are strict by themselves.
    return TypeAdapter(kind)


def _told_wrong(label: str, detail: ErrorDetails) -> str:
    place = label + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])
    if "problem" in detail.get("ctx", {}):
        return f"`{place}`: {detail['ctx']['problem']}"
    if detail["type"] == "missing":
        return f"`{place}` is missing"
    if detail["type"] == "extra_forbidden":
        kind = ToldHandoff if label.startswith("handoffs") else ToldTool if label.startswith("tools") else ToldLimit
        known = [each.alias or name for name, each in kind.model_fields.items()]
        return f"`{place}` is not known{suggestion(str(detail['loc'][-1]), known)}"
    wanted = detail["msg"].replace("Input should be ", "expected ").replace("Value error, ", "")
    return f"`{place}`: {wanted}, found {_shown(detail['input'])}"


# The parts that are more than what stands there.


def _reply(parts: _Parts) -> str:
    if parts.service.format == "openai" and "reply" not in parts.service.fields and parts.body.get("choices") == []:
        raise EmptyResponseError("the answer has no choices")
    found = parts.find("reply")
    label = parts.spelled("reply")
    if isinstance(found, _Missing):
        raise MalformedAnswerError(f"`{label}` is missing")
    if found is not None and not isinstance(found, str):
        raise MalformedAnswerError(f"`{label}`: expected text, found {_kind(found)}")
    if not (found or "").strip():
        raise EmptyResponseError(f"`{label}` is empty")
    return cast(str, found)


def _agent(parts: _Parts, heard: Heard, name: str | None) -> str | None:
    if "agent" in parts.service.fields or parts.service.format == "json":
        return cast("str | None", parts.take("agent", _Word))
    return name or parts.take("agent", _Word) or scrub_text(heard.headers.get(AGENT_HEADER, "")).strip() or None


def _failed(error: Json, label: str, *, kind: Literal["agent", "model"]) -> Exception:
    """What a service says in place of a reply: text, or an object with `message` and `type`."""
    if isinstance(error, str):
        return ServiceError(error, kind=kind)
    message = error.get("message") if isinstance(error, dict) else None
    if not isinstance(error, dict) or not isinstance(message, str):
        return MalformedAnswerError(f"`{label}`: expected text, or an object with `message`, found {_shown(error)}")
    name = error.get("type")
    return ServiceError(message, kind=kind, name=name if isinstance(name, str) and name.strip() else "ServiceError")


def _kind(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, str):
        return "text"
    return "a number" if isinstance(value, int | float) else shown(value)


def _shown(value: object) -> str:
    return scrub_text(shown(value)) if isinstance(value, str) and value else _kind(value)


def _excerpt(body: str | bytes, longest: int = 200) -> str:
    text = body if isinstance(body, str) else body.decode("utf-8", "replace")
    line = " ".join(scrub_text(text).split())
    return line if len(line) <= longest else f"{line[:longest]}..."
