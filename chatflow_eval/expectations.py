"""Expectations: what may be said to be true of a turn, or of a whole conversation, by the checks' names in YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, InstanceOf, TypeAdapter, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from chatflow_eval.fields import (
    TEXT_SCHEMA,
    Data,
    JsonMap,
    Many,
    Name,
    Pattern,
    Prose,
    Some,
    Text,
    Value,
    data,
    json_text,
    refusal,
    regular,
    same,
    shown,
    subset,
)
from chatflow_eval.incidents import FAILING, KINDS, Incident, IncidentKind
from chatflow_eval.route import Route, RouteSyntaxError
from chatflow_eval.trace import HopKind, ToolStep, TurnTrace


class Count(Value):
    """How many: between `min` and `max`, or `exactly`; in YAML also a number."""

    min: int | None = Field(default=None, ge=0)
    max: int | None = Field(default=None, ge=0)
    exactly: int | None = Field(default=None, ge=0)

    short: ClassVar = ({"type": "integer", "minimum": 0},)

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return value if isinstance(value, (Mapping, Count)) else {"exactly": value}

    @model_validator(mode="after")
    def _possible(self) -> Count:
        if self.exactly is not None and (self.min is not None or self.max is not None):
            raise refusal("`exactly` stands alone, without `min` or `max`")
        if self.exactly is None and self.min is None and self.max is None:
            raise refusal("expected a number, or `min`, `max` or `exactly`")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise refusal(f"`min` {self.min} is more than `max` {self.max}")
        return self

    def accepts(self, number: int) -> bool:
        """Whether so many are as many as expected."""
        if self.exactly is not None:
            return number == self.exactly
        return (self.min is None or number >= self.min) and (self.max is None or number <= self.max)

    def __str__(self) -> str:
        if self.exactly is not None:
            return f"exactly {self.exactly}"
        if self.min is None:
            return f"at most {self.max}"
        return f"at least {self.min}" if self.max is None else f"{self.min} to {self.max}"


class HandoffCount(Count):
    """How many accepted handoffs, of one kind or of both."""

    kind: HopKind | None = None

    def __str__(self) -> str:
        return f"{Count.__str__(self)} {f'of kind {self.kind}' if self.kind else ''}".rstrip()


class Place(Value):
    """An agent, or a hop between two; in YAML `A`, `A -> C`, or `A => C` for a call."""

    agent: Name
    source: Name | None = None
    """Where the hop to `agent` comes from; `None`: the agent, wherever it comes from."""
    kind: HopKind | None = None

    short: ClassVar = (TEXT_SCHEMA,)

    @model_validator(mode="before")
    @classmethod
    def _pattern(cls, value: Any) -> Any:
        if isinstance(value, str):
            return _place(value)
        return value

    def on(self, turns: Iterable[TurnTrace]) -> bool:
        """Whether the route of these turns has it."""
        if self.source is None:
            return any(self.agent in turn.agents for turn in turns)
        return any(
            (hop.source, hop.target) == (self.source, self.agent) and self.kind in (None, hop.kind)
            for turn in turns
            for hop in turn.accepted
        )

    def __str__(self) -> str:
        return self.agent if self.source is None else f"{self.source} {'=>' if self.kind else '->'} {self.agent}"


def _place(text: str) -> dict[str, Any]:
    try:
        names = Route(text).name_offsets
    except RouteSyntaxError as error:
        raise _route_refusal(error) from None
    ends = [0, *(end for name in names for end in (name.offset, name.offset + name.length)), len(text)]
    between = [text[start:end].strip() for start, end in zip(ends[::2], ends[1::2], strict=True)]
    match names, between:
        case [agent], ["", ""]:
            return {"agent": agent.name}
        case [source, agent], ["", "->" | "→", ""]:
            return {"source": source.name, "agent": agent.name}
        case [source, agent], ["", "=>" | "⇒", ""]:
            return {"source": source.name, "agent": agent.name, "kind": "call"}
    raise refusal(f"expected one agent or one hop `A -> B`, found {shown(text)}; `route` takes patterns")


ArgumentMatch: TypeAlias = Literal["exact", "subset", "regex"]


class Call(Value):
    """A call of a domain tool: which, by whom, with which arguments; in YAML also the tool's name alone."""

    tool: Name
    by: Name | None = None
    args: JsonMap | None = None
    match: ArgumentMatch = "exact"
    """How `args` are compared: all, no more; these, and maybe others; each a regular expression that is searched."""

    short: ClassVar = (TEXT_SCHEMA,)

    @model_validator(mode="before")
    @classmethod
    def _name(cls, value: Any) -> Any:
        return {"tool": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _comparable(self) -> Call:
        if self.args is None and "match" in self.model_fields_set:
            raise refusal("`match` says how `args` are compared, and there are no `args`")
        if self.match == "regex":
            for pattern in (self.args or {}).values():
                regular(_as_text(pattern))
        return self

    def fits(self, step: ToolStep) -> bool:
        """Whether the step is such a call."""
        return (
            step.tool == self.tool
            and self.by in (None, step.agent)
            and (self.args is None or _MATCHES[self.match](step.arguments, self.args))
        )

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        how = {"exact": "", "subset": " among others", "regex": " as patterns"}[self.match]
        return f"{self.tool}{'' if self.args is None else json_text(self.args) + how}{by}"


class Calls(Call):
    """Calls of a domain tool, and how many of them; at least one where nothing is said."""

    times: Count | None = None

    def __str__(self) -> str:
        return f"{Call.__str__(self)}{f' ({self.times} times)' if self.times else ''}"


class Wording(Value):
    """What a text says: all of `contains` and `matches` (searched), none of `lacks`; in YAML also what it contains."""

    contains: Many[Prose] = ()
    matches: Many[Pattern] = ()
    lacks: Many[Prose] = ()

    short: ClassVar = (TEXT_SCHEMA,)

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return {"contains": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _something(self) -> Wording:
        if not (self.contains or self.matches or self.lacks):
            raise refusal("expected `contains`, `matches` or `lacks`")
        if "" in self.contains + self.lacks:
            raise refusal("every text contains the empty text")
        return self

    def missed(self, texts: Sequence[str]) -> Iterator[str]:
        """What is wrong with the texts: wanted in one of them at least, not wanted in any."""
        for part in self.contains:
            if not any(part in text for text in texts):
                yield f"does not contain {shown(part)}"
        for pattern in self.matches:
            if not any(re.search(pattern, text) for text in texts):
                yield f"does not match {shown(pattern)}"
        for part in self.lacks:
            if any(part in text for text in texts):
                yield f"contains {shown(part)}"

    def __str__(self) -> str:
        parts = [f"contains {shown(part)}" for part in self.contains]
        parts += [f"matches {shown(pattern)}" for pattern in self.matches]
        parts += [f"lacks {shown(part)}" for part in self.lacks]
        return ", ".join(parts)


class IncidentPattern(Value):
    """A kind of incident, and maybe which: the limit, tool or agent in it; in YAML `loop` or `{limit_hit: ...}`."""

    kind: IncidentKind
    which: Name | None = None

    short: ClassVar = (
        {"enum": list(KINDS)},
        {
            "type": "object",
            "properties": {kind: {"type": "string"} for kind in KINDS},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
    )

    @model_validator(mode="before")
    @classmethod
    def _kind(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        if not isinstance(value, dict) or "kind" in value:
            return value
        if len(value) != 1:
            raise refusal("expected one kind of incident, as in `limit_hit: max_handoffs_per_turn`")
        [(kind, which)] = value.items()
        return {"kind": kind, "which": which}

    def covers(self, incident: Incident) -> bool:
        """Whether the incident is one of these."""
        return self.kind == incident.kind and self.which in (None, incident.limit, incident.tool, *incident.agents)

    def __str__(self) -> str:
        return self.kind if self.which is None else f"{self.kind} {self.which}"


class IncidentExpectation(Value):
    """Incidents that must be found, and those that may be; in YAML also the list of those that must."""

    require: Many[IncidentPattern] = ()
    allow: Many[IncidentPattern] = ()

    short: ClassVar = (
        {"type": "array", "items": {"$ref": "#/$defs/IncidentPattern"}, "minItems": 1},
        {"type": "string"},
    )

    @model_validator(mode="before")
    @classmethod
    def _required(cls, value: Any) -> Any:
        if isinstance(value, dict) and not value.keys() & {"require", "allow"} and value.keys() & set(KINDS):
            return {"require": [value]}
        return {"require": value} if isinstance(value, (str, list, tuple)) else value

    @model_validator(mode="after")
    def _something(self) -> IncidentExpectation:
        if not (self.require or self.allow):
            raise refusal("expected at least one kind of incident; incidents that fail a scenario do so unasked")
        return self


class IncidentPolicy(Value):
    """Kinds of incident that a suite moves: those that fail a scenario, those that only warn."""

    fail: tuple[IncidentKind, ...] = ()
    warn: tuple[IncidentKind, ...] = ()

    @model_validator(mode="after")
    def _either(self) -> IncidentPolicy:
        if both := set(self.fail) & set(self.warn):
            raise refusal(f"{shown(min(both))} cannot both fail and warn")
        return self

    @property
    def failing(self) -> frozenset[IncidentKind]:
        """The kinds that fail a scenario unless it requires or allows them."""
        return (FAILING | frozenset(self.fail)) - frozenset(self.warn)


class CustomCheck(Value):
    """A check of the user's own: `module:function`, and what it is given as expected.

    The function takes the `Span` to judge and the expected value, and returns the reason why not, or nothing.
    """

    reference: str
    expected: Data = None


def _route_refusal(error: RouteSyntaxError) -> PydanticCustomError:
    place = {"problem": error.problem, "offset": error.offset, "item": error.item}
    return PydanticCustomError("route_syntax", "{problem}", place)


@lru_cache(maxsize=4096)
def _parsed(pattern: str) -> Route:
    return Route(pattern)


def _route(value: Any) -> Any:
    if isinstance(value, Route):
        return value
    if not isinstance(value, (str, list, tuple)):
        raise refusal("expected a route such as `A -> B`, or a list of agents")
    try:
        if isinstance(value, str):
            return _parsed(_TEXT.validate_python(value))
        return Route.parse([_TEXT.validate_python(item) for item in value])
    except RouteSyntaxError as error:
        raise _route_refusal(error) from None


_TEXT = TypeAdapter[str](Text)


def _true(value: Any) -> Any:
    if data(value) is not True:
        raise refusal("expected `true`; that somebody hands off is `handoffs: {min: 1}`")
    return True


_ROUTE_SCHEMA = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})


class Expectations(Value):
    """What must be true of a turn, or of the whole conversation: the checks by their names in YAML."""

    route: Annotated[InstanceOf[Route], BeforeValidator(_route), _ROUTE_SCHEMA] | None = None
    stay: Annotated[Literal[True], BeforeValidator(_true)] | None = None
    starts_at: Some[Name] = ()
    """Any one of them."""
    ends_at: Some[Name] = ()
    """Any one of them."""
    handoffs: HandoffCount | None = None
    visits: Some[Place] = ()
    avoids: Some[Place] = ()
    calls: Some[Calls] = ()
    avoids_calls: Some[Call] = ()
    reply: Wording | None = None
    reason: Wording | None = None
    context: JsonMap | None = None
    error: Name | None = None
    """The class name of the exception that ends the turn."""
    incidents: IncidentExpectation | None = None
    custom: tuple[CustomCheck, ...] = ()
    """In YAML each a key of its own, `module:function`."""
    none: bool = False
    """Nothing is expected, and that is meant."""

    short: ClassVar = ({"const": "none"},)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            route: Route | str | Sequence[str] | None = None,
            stay: Literal[True] | None = None,
            starts_at: str | Sequence[str] = (),
            ends_at: str | Sequence[str] = (),
            handoffs: HandoffCount | int | Mapping[str, int | str] | None = None,
            visits: Place | str | Sequence[Place | str] = (),
            avoids: Place | str | Sequence[Place | str] = (),
            calls: Calls | str | Mapping[str, Any] | Sequence[Calls | str | Mapping[str, Any]] = (),
            avoids_calls: Call | str | Mapping[str, Any] | Sequence[Call | str | Mapping[str, Any]] = (),
            reply: Wording | str | Mapping[str, str | Sequence[str]] | None = None,
            reason: Wording | str | Mapping[str, str | Sequence[str]] | None = None,
            context: Mapping[str, Any] | None = None,
            error: str | None = None,
            incidents: IncidentExpectation | str | Mapping[str, Any] | Sequence[str | Mapping[str, str]] | None = None,
            custom: Sequence[CustomCheck] = (),
            none: bool = False,
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value == "none":
                return {"none": True}
            hint = f"; is {shown(value)} a route? Write `route: {value}`" if value else ""
            raise refusal(f"expected checks, or `none`, found {shown(value)}{hint}")
        if isinstance(value, Mapping):
            named = {key: item for key, item in value.items() if isinstance(key, str) and ":" in key}
            if named:
                own = [{"reference": key, "expected": item} for key, item in named.items()]
                return {**{key: item for key, item in value.items() if key not in named}, "custom": own}
        return value

    @model_validator(mode="after")
    def _something(self) -> Expectations:
        asked = next(self.asked(), None) is not None or self.incidents is not None or self.custom != ()
        if asked and self.none:
            raise refusal("`none` says that nothing is expected, and something is")
        if not asked and not self.none:
            raise refusal("nothing is expected here; if that is meant, write `expect: none`")
        return self

    def asked(self) -> Iterator[tuple[str, Any]]:
        """The built-in checks that are asked for, in order, with what each expects."""
        for name in ASKED:
            value = getattr(self, name)
            if value is not None and value != ():
                yield name, value


ASKED = tuple(name for name in Expectations.model_fields if name not in ("incidents", "custom", "none"))
"""The names of the built-in checks, in order."""

Expect = Expectations


# How arguments are compared.


def _regex(actual: Any, expected: Mapping[str, Any]) -> bool:
    return isinstance(actual, Mapping) and all(
        key in actual and re.search(_as_text(value), _as_text(actual[key])) is not None
        for key, value in expected.items()
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


_MATCHES: dict[ArgumentMatch, Callable[[Any, Mapping[str, Any]], bool]] = {
    "exact": same, "subset": subset, "regex": _regex
}  # fmt: skip
