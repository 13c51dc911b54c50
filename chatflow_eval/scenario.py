"""Scenario, Turn; the Python DSL and the YAML schema are the same types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

from chatflow_eval.expectations import Expectations, IncidentPolicy
from chatflow_eval.fields import (
    TEXT_SCHEMA,
    Data,
    JsonMap,
    Many,
    Name,
    Pattern,
    Plain,
    Prose,
    Text,
    ToolName,
    Value,
    data,
    many,
    refusal,
    shown,
    suggestion,
)

MAX_PHRASINGS = 1_000
"""Scenarios that one scenario's `any` may become."""

Loc: TypeAlias = tuple[str | int, ...]
"""Keys and indices that lead to a value."""


def _refusals(problems: Iterable[tuple[Loc, PydanticCustomError]]) -> ValidationError:
    """Several errors at once, each at its place."""
    return ValidationError.from_exception_data(
        "scenario", [InitErrorDetails(type=error, loc=loc, input=None) for loc, error in problems]
    )


def _unknown(what: str, name: str, known: Iterable[str], *, offset: int = 0) -> PydanticCustomError:
    problem = f"unknown {what} {shown(name)}{suggestion(name, known)}"
    return PydanticCustomError("unknown_name", "{problem}", {"problem": problem, "offset": offset})


def _blank(value: Any) -> Any:
    """A key without a value is an empty mapping."""
    return {} if isinstance(value, Plain) and not value else value


# The agents under test, declared in the file.


class ToolReturn(Value):
    """What a tool answers to calls with these arguments, at least: a value, or an exception's text."""

    when: JsonMap | None = None
    """`None`: every call."""
    returns: Data = None
    raises: Prose | None = None

    @model_validator(mode="after")
    def _either(self) -> ToolReturn:
        if self.raises is not None and "returns" in self.model_fields_set:
            raise refusal("`returns` and `raises` exclude each other")
        return self


_TYPES = ("string", "number", "integer", "boolean", "array", "object")


def _parameters(value: Any) -> Any:
    """A JSON schema of an object from the short form, in which every parameter has a type's name, `?` for optional."""
    if not isinstance(value, dict):
        return value
    others = [item for key, item in value.items() if key != "type"]
    if value.get("type") == "object" and (not others or any(_type(item) is None for item in others)):
        return data(value)
    properties, required = {}, []
    for name, kind in value.items():
        word = _type(kind)
        if word is None and not isinstance(kind, dict):
            known = suggestion(kind, _TYPES) if isinstance(kind, str) else ""
            raise _refusals([((name,), refusal(f"expected a type or a JSON schema, found {shown(kind)}{known}"))])
        properties[str(name)] = data(kind) if word is None else {"type": word}
        if word is None or word == kind:
            required.append(str(name))
    schema = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema


def _type(kind: Any) -> str | None:
    """The type's name in `string` or `string?`."""
    return next((word for word in _TYPES if kind in (word, f"{word}?")), None)


def _returns(value: Any) -> Any:
    """One answer for every call, or the list of answers with conditions that it is."""
    keys = {"when", "returns", "raises"}
    if isinstance(value, (list, tuple)) and value:
        if all(isinstance(item, ToolReturn) for item in value):
            return value
        if any(isinstance(item, dict) and item.keys() & keys for item in value):
            return value
    return [{"returns": value}]


class ToolSpec(Value):
    """A domain tool declared in a scenario file, and what it answers."""

    description: Prose = ""
    parameters: Annotated[JsonMap, BeforeValidator(_parameters), WithJsonSchema({"type": "object"})] = _parameters({})
    """A JSON schema of an object; in YAML also `name: string`, `name: string?`."""
    returns: Annotated[tuple[ToolReturn, ...], BeforeValidator(_returns), WithJsonSchema({})] = (ToolReturn(),)
    """The first that fits a call answers it."""


class HandoffSpec(Value):
    """A declared handoff; in YAML also the agent's name alone."""

    agent: Name
    tool_name: ToolName | None = None
    description: Prose | None = None

    short: ClassVar = (TEXT_SCHEMA,)

    @model_validator(mode="before")
    @classmethod
    def _name(cls, value: Any) -> Any:
        return {"agent": value} if isinstance(value, str) else value


class AgentSpec(Value):
    """An agent declared in a scenario file."""

    name: Name
    instructions: Prose = ""
    model: Name | None = None
    handoffs: tuple[HandoffSpec, ...] = ()
    tools: Annotated[dict[ToolName, Annotated[ToolSpec, BeforeValidator(_blank)]], BeforeValidator(_blank)] = {}  # noqa: RUF012


Dialect: TypeAlias = Literal["chatflow", "praisonai", "synaptic"]


def _agents(value: Any) -> Any:
    """Agents in order from a mapping of their names."""
    if not isinstance(value, dict):
        return value
    agents = []
    for name, spec in value.items():
        fields = _blank(spec)
        if not isinstance(fields, dict):
            problem = f"expected an agent's `instructions`, `handoffs` and `tools`, found {shown(spec)}"
            raise _refusals([((name,), refusal(problem))])
        if "name" in fields:
            raise _refusals([((name, "name"), refusal("an agent's name is its key in `agents`"))])
        agents.append({"name": name, **fields})
    return agents


class Swarm(Value):
    """Agents declared in a scenario file; the first one starts unless `start` says otherwise."""

    agents: Annotated[tuple[AgentSpec, ...], BeforeValidator(_agents), Field(min_length=1)]
    start: Name = ""
    """The first agent where it is left out."""
    dialect: Dialect = "chatflow"

    @model_validator(mode="after")
    def _consistent(self) -> Swarm:
        names = self.names
        problems: list[tuple[Loc, PydanticCustomError]] = []
        if not self.start:
            object.__setattr__(self, "start", self.agents[0].name)
        elif self.start not in names:
            problems.append((("start",), _unknown("agent", self.start, names)))
        for index, agent in enumerate(self.agents):
            if agent.name in names[:index]:
                problems.append((("agents", index), refusal(f"two agents are called {shown(agent.name)}")))
            targets = [handoff.agent for handoff in agent.handoffs]
            for place, target in enumerate(targets):
                loc = ("agents", index, "handoffs", place, "agent")
                if target not in names:
                    problems.append((loc, _unknown("agent", target, names)))
                elif target == agent.name:
                    problems.append((loc, refusal(f"{shown(target)} cannot hand off to itself")))
                elif target in targets[:place]:
                    problems.append(
                        (loc, refusal(f"{shown(target)} stands twice in the handoffs of {shown(agent.name)}"))
                    )
        if problems:
            raise _refusals(problems)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in order."""
        return tuple(agent.name for agent in self.agents)

    def tools(self, agent: str | None = None) -> frozenset[str]:
        """The domain tools of an agent, or of all of them."""
        return frozenset(tool for each in self.agents if agent in (None, each.name) for tool in each.tools)


class Factory(Value):
    """The user's function that builds the agents: `support.py:build` beside the file, or `package.module:build`."""

    reference: Name
    base: Path = Path()
    """The folder that the reference is relative to: the scenario file's."""


TargetSpec: TypeAlias = object
"""Whom to test: a `Swarm`, a `Factory`, or Python's own: an agent, a runner, or a callable that returns a fresh one."""

_REFERENCE = re.compile(r"(?:(?:[A-Za-z]:)?[^:]+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def _target(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str):
        reference = TypeAdapter(Name).validate_python(value)
        if not _REFERENCE.fullmatch(reference):
            raise refusal(f"expected `path.py:name` or `package.module:name`, found {shown(reference)}")
        return Factory(reference=reference, base=(info.context or {}).get("base", Path()))
    if isinstance(value, (Mapping, list, tuple, set, bool, int, float)) or value is None:
        raise refusal(f"expected `path.py:name`, found {shown(value)}; agents of the file's own stand under `agents`")
    return value


# How it is run.


class Limits(Value):
    """What a turn may take; what is absent is the target's own."""

    max_handoffs_per_turn: int | None = Field(default=None, ge=0)
    max_tool_iterations: int | None = Field(default=None, ge=0)


def _address(value: str) -> str:
    if "@" in value.partition("//")[2].partition("/")[0] or "?" in value:
        raise refusal("expected an address without user, password or query: keys come from the environment")
    return value


class SettingsSpec(Value):
    """How models are called; what is absent is the provider's default. Keys come from the environment alone."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    api_base: Annotated[Name, AfterValidator(_address)] | None = None
    tool_choice: Name | None = None
    parallel_tool_calls: bool | None = None


def _model_choice(value: Any) -> Any:
    if isinstance(value, str):
        return _NAME.validate_python(value)
    if isinstance(value, dict) and value:
        return _NAMED.validate_python(value)
    raise refusal(f"expected a model's name, or a mapping of agents to models, found {shown(value)}")


_NAME = TypeAdapter[str](Name)
_NAMED = TypeAdapter[dict[str, str]](dict[Name, Name])

ModelChoice: TypeAlias = str | dict[str, str]
"""Every agent's model, or agent name (`*` for the rest) to model name."""


class IgnoreRule(Value):
    """What may differ between a request and its recording; in YAML also the expression alone."""

    path: Name | None = Field(default=None, validation_alias="in")
    """Where in the request, as in `messages[0].content`; `None`: in every text."""
    matches: Pattern

    model_config = ConfigDict(populate_by_name=True)
    short: ClassVar = (TEXT_SCHEMA,)

    @model_validator(mode="before")
    @classmethod
    def _expression(cls, value: Any) -> Any:
        return {"matches": value} if isinstance(value, str) else value


class Conditions(Value):
    """How scenarios are run: what a suite, a file and a scenario can say alike."""

    models: Many[Annotated[ModelChoice, BeforeValidator(_model_choice)]] = ()
    """Each is a trial of its own; none: every agent on the model it declares."""
    repeats: int | None = Field(default=None, ge=1)
    limits: Limits = Limits()
    settings: SettingsSpec = SettingsSpec()
    timeout: float | None = Field(default=None, gt=0)
    """Seconds for one trial."""
    ignore: Many[IgnoreRule] = ()
    record_tools: bool = False
    """Recordings hold what domain tools return, and replaying calls none."""
    allow_hosts: Many[Name] = ()
    """Hosts that are talked to for real while replaying, with `*` for anything and with or without a port."""


class Suite(Conditions):
    """The table `[tool.chatflow-eval]` of `pyproject.toml`: defaults for all scenario files below it."""

    incidents: IncidentPolicy = IncidentPolicy()
    gate: JsonMap = {}  # noqa: RUF012
    """What a run may pass with; the gate reads it."""
    secrets: Many[Name] = ()
    """Environment variables whose values are kept out of files, beside those named like keys."""


class Defaults(Conditions):
    """The head of a scenario file: what its scenarios say where they do not say otherwise."""

    target: Annotated[TargetSpec, PlainValidator(_target, json_schema_input_type=str)] = None
    tags: Many[Name] = ()
    context: JsonMap = {}  # noqa: RUF012
    on_failure: Literal["continue", "stop"] = "continue"
    """What happens after a failed turn."""

    @model_validator(mode="before")
    @classmethod
    def _inline(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        inline = {key: value[key] for key in ("agents", "start", "dialect") if key in value}
        if not inline:
            return value
        rest = {key: item for key, item in value.items() if key not in inline}
        swarm = rest.get("target")
        if "agents" not in inline:
            if not isinstance(swarm, Swarm):
                first = next(iter(inline))
                raise _refusals([((first,), refusal(f"`{first}` says something of `agents`, and there are none here"))])
            inline = {"agents": swarm.agents, "start": swarm.start, "dialect": swarm.dialect} | inline
        elif swarm is not None:
            raise _refusals([(("agents",), refusal("`target` and `agents` both say whom to test; keep one of them"))])
        return {**rest, "target": Swarm.model_validate(inline)}


# What is said, and what must be true.


def _arguments(value: Any) -> Any:
    if isinstance(value, str):
        return _TEXT.validate_python(value) if value else {}
    return data(value)


_TEXT = TypeAdapter[str](Text)


class ScriptedCall(Value):
    """One call that a scripted answer makes: of a tool, or of the transfer to an agent; names are not checked."""

    tool: Text | None = None
    transfer: Text | None = None
    arguments: Annotated[dict[str, Any] | str, BeforeValidator(_arguments)] = {}  # noqa: RUF012
    """A text is sent as it is, whatever JSON it is or is not."""
    reason: Prose | None = None

    @model_validator(mode="after")
    def _either(self) -> ScriptedCall:
        if (self.tool is None) == (self.transfer is None):
            raise refusal("expected either a tool or a transfer")
        return self


def _transfer(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"transfer": value}
    if isinstance(value, dict) and "to" in value and value.keys() <= {"to", "reason", "arguments"}:
        return {"transfer": value["to"]} | {key: item for key, item in value.items() if key != "to"}
    raise refusal("expected an agent's name, or `to` with `reason` or `arguments`")


def _call(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"tool": value}
    if isinstance(value, dict) and len(value) == 1:
        [(tool, arguments)] = value.items()
        return {"tool": tool, "arguments": arguments}
    raise refusal("expected a tool's name, or one tool's name with its arguments")


_SPOKEN = {
    "type": "object",
    "properties": {
        "say": TEXT_SCHEMA,
        "transfer": {
            "anyOf": [
                TEXT_SCHEMA,
                {
                    "type": "object",
                    "properties": {
                        "to": TEXT_SCHEMA,
                        "reason": TEXT_SCHEMA,
                        "arguments": {"type": ["object", "string"]},
                    },
                    "required": ["to"],
                    "additionalProperties": False,
                },
            ]
        },
        "call": {"anyOf": [TEXT_SCHEMA, {"type": "object", "minProperties": 1, "maxProperties": 1}]},
    },
    "additionalProperties": False,
    "minProperties": 1,
}


class ScriptedAnswer(Value):
    """One answer of a scripted model; in YAML `say`, `transfer` or `call`, or a list of those."""

    say: Prose | None = None
    calls: tuple[ScriptedCall, ...] = ()

    short: ClassVar = (_SPOKEN, {"type": "array", "items": _SPOKEN, "minItems": 1})

    @model_validator(mode="before")
    @classmethod
    def _parts(cls, value: Any) -> Any:
        if isinstance(value, ScriptedAnswer) or (isinstance(value, dict) and "calls" in value):
            return value
        answer: dict[str, Any] = {"calls": []}
        for part in many(value):
            if not isinstance(part, dict) or not part:
                raise refusal(f"expected `say`, `transfer` or `call`, found {shown(part)}")
            for key, item in part.items():
                if key == "transfer":
                    answer["calls"].append(_transfer(item))
                elif key == "call":
                    answer["calls"].append(_call(item))
                elif key != "say":
                    raise refusal(f"unknown key {shown(key)}{suggestion(str(key), ('say', 'transfer', 'call'))}")
                elif "say" in answer:
                    raise refusal("one answer says one text; a second `say` is an answer of its own")
                else:
                    answer["say"] = item
        return answer

    @model_validator(mode="after")
    def _something(self) -> ScriptedAnswer:
        if self.say is None and not self.calls:
            raise refusal("expected `say`, `transfer` or `call`")
        return self


_USER_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            TEXT_SCHEMA,
            {
                "type": "object",
                "properties": {"any": {"type": "array", "items": TEXT_SCHEMA, "minItems": 1}},
                "required": ["any"],
                "additionalProperties": False,
            },
        ]
    }
)


class Turn(Value):
    """What the user says, and what must then be true."""

    user: Annotated[Prose, _USER_SCHEMA]
    """In YAML also `{any: [...]}`: each text makes a scenario of its own."""
    expect: Expectations | None = None
    script: Annotated[tuple[ScriptedAnswer, ...], Field(min_length=1)] | None = None
    """What the model answers, in order; no model is asked."""
    phrasings: SkipJsonSchema[tuple[Prose, ...]] = ()
    """All texts that `any` gave; `user` is the first of them."""

    if TYPE_CHECKING:

        def __init__(
            self,
            user: str | Mapping[str, Sequence[str]],
            *,
            expect: Expectations | Mapping[str, Any] | Literal["none"] | None = None,
            script: Sequence[ScriptedAnswer | Mapping[str, Any] | Sequence[Mapping[str, Any]]] | None = None,
        ) -> None: ...
    else:

        def __init__(self, *user, **fields):
            super().__init__(**dict(zip(("user",), user, strict=True)) | fields) if user else super().__init__(**fields)

        __init__.__pydantic_base_init__ = True  # validating a mapping need not come through here

    @model_validator(mode="before")
    @classmethod
    def _any(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if "phrasings" in value:
            raise _refusals([(("phrasings",), refusal("unknown key `phrasings`; write `user: {any: [...]}`"))])
        user = value.get("user")
        if not isinstance(user, Mapping):
            return value
        texts = user.get("any")
        if user.keys() != {"any"} or not isinstance(texts, (list, tuple)) or not texts:
            raise _refusals([(("user",), refusal("expected text, or `any` with a list of texts"))])
        return {**value, "user": texts[0], "phrasings": texts}


_NUMBERED = re.compile(r"\[\d+\]$")


def _id(value: str) -> str:
    if _NUMBERED.search(value):
        raise refusal(f"{shown(value)} ends like the number of a phrasing, which is kept for `any`")
    return value


INTERNAL = frozenset({"incidents", "file", "line"})
"""Fields of a scenario that its file does not say."""


class Scenario(Defaults):
    """A conversation with a system under test, and what must be true of its routing."""

    id: Annotated[Name, AfterValidator(_id)]
    """Unique in its file."""
    turns: tuple[Turn, ...] = Field(min_length=1)
    target: Annotated[TargetSpec, PlainValidator(_target, json_schema_input_type=str)]
    expect: Expectations | None = None
    """Of the whole conversation."""
    skip: Prose | None = None
    """Why it is not run."""
    xfail: Prose | None = None
    """Why it is expected to fail."""
    incidents: SkipJsonSchema[IncidentPolicy] = IncidentPolicy()
    """Of the suite."""
    file: SkipJsonSchema[str] = "<python>"
    """From the project's root, with `/`."""
    line: SkipJsonSchema[int] = 0
    """Of the scenario in its file."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            id: str,  # noqa: A002
            turns: Sequence[Turn | Mapping[str, Any]],
            target: TargetSpec,
            expect: Expectations | Mapping[str, Any] | Literal["none"] | None = None,
            tags: Sequence[str] = (),
            context: Mapping[str, Any] = ...,
            models: Sequence[ModelChoice] = (),
            repeats: int | None = None,
            limits: Limits | Mapping[str, int] = ...,
            settings: SettingsSpec | Mapping[str, Any] = ...,
            timeout: float | None = None,
            skip: str | None = None,
            xfail: str | None = None,
            on_failure: Literal["continue", "stop"] = "continue",
            ignore: Sequence[IgnoreRule | str | Mapping[str, str]] = (),
            record_tools: bool = False,
            allow_hosts: Sequence[str] = (),
            incidents: IncidentPolicy = ...,
            file: str = "<python>",
            line: int = 0,
        ) -> None: ...

    @model_validator(mode="after")
    def _sound(self) -> Scenario:
        if not self.expectations:
            raise refusal(f"scenario {shown(self.id)} expects nothing; if that is meant, write `expect: none`")
        if prod(len(turn.phrasings) or 1 for turn in self.turns) > MAX_PHRASINGS:
            raise refusal(f"the phrasings of {shown(self.id)} combine to more than {MAX_PHRASINGS} scenarios")
        if isinstance(self.target, Swarm) and (problems := list(_misnamed(self, self.target))):
            raise _refusals(problems)
        return self

    @property
    def expectations(self) -> tuple[tuple[Loc, Expectations], ...]:
        """Everything that is expected, the whole conversation's first, and where it is said."""
        spans: list[tuple[Loc, Expectations | None]] = [(("expect",), self.expect)]
        spans += [(("turns", index, "expect"), turn.expect) for index, turn in enumerate(self.turns)]
        return tuple((loc, each) for loc, each in spans if each is not None)

    def variants(self) -> tuple[Scenario, ...]:
        """The scenarios that the phrasings of its turns make, `id[1]`, `id[2]` ...; itself where there are none."""
        if not any(turn.phrasings for turn in self.turns):
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    "id": f"{self.id}[{number}]",
                    "turns": tuple(
                        turn.model_copy(update={"user": text, "phrasings": ()})
                        for turn, text in zip(self.turns, texts, strict=True)
                    ),
                }
            )
            for number, texts in enumerate(product(*(turn.phrasings or (turn.user,) for turn in self.turns)), 1)
        )


def _misnamed(scenario: Scenario, swarm: Swarm) -> Iterator[tuple[Loc, PydanticCustomError]]:
    """Agents and tools that a scenario names and the swarm does not have."""
    for index, choice in enumerate(scenario.models):
        for agent in choice if isinstance(choice, dict) else ():
            if agent != "*" and agent not in swarm.names:
                yield ("models", index, agent), _unknown("agent", agent, swarm.names)
    for loc, expect in scenario.expectations:
        yield from _unknown_names(loc, expect, swarm)


def _unknown_names(loc: Loc, expect: Expectations, swarm: Swarm) -> Iterator[tuple[Loc, PydanticCustomError]]:
    agents: list[tuple[Loc, str, int]] = []
    if expect.route is not None:
        agents += (((*loc, "route"), name.name, name.offset) for name in expect.route.name_offsets)
    for check, names in (("starts_at", expect.starts_at), ("ends_at", expect.ends_at)):
        agents += (((*loc, check, index), name, 0) for index, name in enumerate(names))
    for check, places in (("visits", expect.visits), ("avoids", expect.avoids)):
        for index, place in enumerate(places):
            agents += (((*loc, check, index), name, 0) for name in (place.source, place.agent) if name is not None)
    for check, calls in (("calls", expect.calls), ("avoids_calls", expect.avoids_calls)):
        agents += (((*loc, check, index, "by"), call.by, 0) for index, call in enumerate(calls) if call.by is not None)
    known = swarm.names
    for place_of, name, offset in agents:
        if name not in known:
            yield place_of, _unknown("agent", name, known, offset=offset)
    for check, calls in (("calls", expect.calls), ("avoids_calls", expect.avoids_calls)):
        for index, call in enumerate(calls):
            tools = swarm.tools(call.by if call.by in known else None)
            if call.tool not in tools:
                what = "tool" if call.by not in known else f"tool of {shown(call.by)}"
                yield (*loc, check, index, "tool"), _unknown(what, call.tool, sorted(tools))


def unknown_names(scenario: Scenario, swarm: Swarm) -> tuple[str, ...]:
    """What is wrong with the agents and tools that a scenario names, were it to test `swarm`; names its places."""
    return tuple(f"{_spelled(loc)}: {problem.message()}" for loc, problem in _misnamed(scenario, swarm))


def _spelled(loc: Loc) -> str:
    """`turn 2: expect.route`: turns count from 1 wherever a person reads them."""
    if loc[0] == "turns":
        return f"turn {int(loc[1]) + 1}: {_spelled(loc[2:])}"
    return ".".join(str(part) for part in loc if not isinstance(part, int))
