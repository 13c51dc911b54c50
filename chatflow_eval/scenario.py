"""Scenario, Turn; the Python DSL and the YAML schema are the same types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

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
from chatflow_eval.trace import HopKind

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


class _Handoff(Value):
    """A handoff to an agent; in YAML also the agent's name alone."""

    agent: Name

    short: ClassVar = (TEXT_SCHEMA,)

    @model_validator(mode="before")
    @classmethod
    def _name(cls, value: Any) -> Any:
        return {"agent": value} if isinstance(value, str) else value


class HandoffSpec(_Handoff):
    """A declared handoff; in YAML also the agent's name alone."""

    tool_name: ToolName | None = None
    description: Prose | None = None


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
    return _named(value, "`instructions`, `handoffs` and `tools`") if isinstance(value, dict) else value


def _named(agents: dict[Any, Any], parts: str) -> list[dict[str, Any]]:
    """What is said of each agent, with the name that it is a mapping's key by."""
    named = []
    for name, spec in agents.items():
        fields = _blank(spec)
        if not isinstance(fields, dict):
            raise _refusals([((name,), refusal(f"expected an agent's {parts}, found {shown(spec)}"))])
        if "name" in fields:
            raise _refusals([((name, "name"), refusal("an agent's name is its key in `agents`"))])
        named.append({"name": name, **fields})
    return named


def _inconsistent(agents: Sequence[tuple[str, list[str]]], start: str) -> Iterator[tuple[Loc, PydanticCustomError]]:
    """What is wrong with agents, given with those that each can hand off to, and with who starts."""
    names = [name for name, _ in agents]
    if start not in names:
        yield ("start",), _unknown("agent", start, names)
    for index, (name, targets) in enumerate(agents):
        if name in names[:index]:
            yield ("agents", index), refusal(f"two agents are called {shown(name)}")
        for place, target in enumerate(targets):
            loc = ("agents", index, "handoffs", place, "agent")
            if target not in names:
                yield loc, _unknown("agent", target, names)
            elif target == name:
                yield loc, refusal(f"{shown(target)} cannot hand off to itself")
            elif target in targets[:place]:
                yield loc, refusal(f"{shown(target)} stands twice in the handoffs of {shown(name)}")


class Swarm(Value):
    """Agents declared in a scenario file; the first one starts unless `start` says otherwise."""

    agents: Annotated[tuple[AgentSpec, ...], BeforeValidator(_agents), Field(min_length=1)]
    start: Name = ""
    """The first agent where it is left out."""
    dialect: Dialect = "chatflow"

    @model_validator(mode="after")
    def _consistent(self) -> Swarm:
        if not self.start:
            object.__setattr__(self, "start", self.agents[0].name)
        targets = [(agent.name, [handoff.agent for handoff in agent.handoffs]) for agent in self.agents]
        if problems := list(_inconsistent(targets, self.start)):
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


Framework: TypeAlias = Literal["chatflow", "chatflow_agent"]
"""What agents run on: the reference runtime, or the published package `chatflow-agent`."""

REFERENCE: Framework = "chatflow"
"""What they run on where nothing says otherwise."""


def _address(value: str) -> str:
    if "@" in value.partition("//")[2].partition("/")[0] or "?" in value:
        raise refusal("expected an address without user, password or query: keys come from the environment")
    return value


def _web(value: str) -> str:
    problem = f"expected an address such as `http://127.0.0.1:8000/chat`, found {shown(value)}"
    try:
        parts = urlsplit(value)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError as error:
        raise refusal(f"{problem}: {error}") from None
    if not known:
        raise refusal(problem)
    return _address(value)


class ServiceHandoff(_Handoff):
    """A handoff that an agent of a service has; in YAML also the agent's name alone."""

    tool_name: Name | None = None
    kind: HopKind = "transfer"
    """A `call` comes back."""


class ServiceAgent(Value):
    """An agent of a service: whom it can hand off to, and which domain tools it has."""

    name: Name
    handoffs: Many[ServiceHandoff] = ()
    tools: Many[Name] = ()


def _service_agents(value: Any) -> Any:
    """Agents in order from a list of their names, or from a mapping of them."""
    if isinstance(value, dict):
        return _named(value, "`handoffs` and `tools`")
    return [{"name": each} if isinstance(each, str) else each for each in many(value)]


class ServiceAgents(Value):
    """Who answers at a service, as far as that is declared; without any edge or tool, nothing is known of those."""

    agents: Annotated[tuple[ServiceAgent, ...], BeforeValidator(_service_agents)] = ()
    """None: nothing is known of them beforehand."""
    start: Name = ""
    """Who has the conversation at first; the first of `agents` where it is left out."""

    @model_validator(mode="after")
    def _consistent(self) -> ServiceAgents:
        if self.agents:
            if not self.start:
                object.__setattr__(self, "start", self.agents[0].name)
            targets = [(agent.name, [handoff.agent for handoff in agent.handoffs]) for agent in self.agents]
            if problems := list(_inconsistent(targets, self.start)):
                raise _refusals(problems)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in order."""
        return tuple(agent.name for agent in self.agents)

    def tools(self, agent: str | None = None) -> frozenset[str] | None:
        """The domain tools of an agent, or of all of them; `None` where no agent declares any."""
        if not any(each.tools for each in self.agents):
            return None
        return frozenset(tool for each in self.agents if agent in (None, each.name) for tool in each.tools)


AnswerPart: TypeAlias = Literal[
    "agent", "reply", "handoffs", "route", "tools", "context", "usage", "limits", "topology", "model", "error"
]
"""What a service's answer may say."""

LISTS: frozenset[AnswerPart] = frozenset({"handoffs", "route", "tools", "limits"})
"""The parts of an answer that are lists."""

RequestPart: TypeAlias = Literal["session", "turn", "message", "context"]
"""What a service is told of a turn, besides the words of format `openai`."""

_STEP = r"(?:[^.\[\]]+|\[(?:-?\d+|\*)\])"
_PLACE = re.compile(rf"{_STEP}(?:\.[^.\[\]]+|\[(?:-?\d+|\*)\])*")


def _place(value: str) -> str:
    if not _PLACE.fullmatch(value):
        raise refusal(f"expected a place such as `choices[0].message.name`, found {shown(value)}")
    return value


def _keys(value: str) -> str:
    if not all(re.fullmatch(r"[^.\[\]]+", key) for key in value.split(".")):
        raise refusal(f"expected a key such as `conversation_id` or `input.text`, found {shown(value)}")
    return value


_SCHEMES = ("bearer", "basic", "token", "digest", "apikey", "api-key", "key")
_HEADER = re.compile(rf"(?i)(?:(?:{'|'.join(_SCHEMES)}) +)?\$(?:([A-Z_]\w*)|\{{([A-Z_]\w*)\}})", re.ASCII)
_OWN_HEADERS = frozenset({"connection", "content-length", "content-type", "host", "transfer-encoding"})


def _header_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", value):
        raise refusal(f"{shown(value)} is no name of a header")
    if value.lower() in _OWN_HEADERS:
        raise refusal(f"the header {shown(value)} is set by the request itself")
    return value


def _header_value(value: Any) -> Any:
    # What was found is not shown: it may be the secret itself.
    if not isinstance(value, str) or not _HEADER.fullmatch(value):
        raise refusal(
            "expected `$NAME` of an environment variable, alone or after a word such as `Bearer`; "
            "what it holds never stands in a file"
        )
    return str(value)


_HeaderName: TypeAlias = Annotated[Text, AfterValidator(_header_name)]
_HeaderValue: TypeAlias = Annotated[str, BeforeValidator(_header_value)]


class Service(ServiceAgents):
    """A service that answers chat turns over HTTP and says who answered; docs/targets.md has the contract."""

    http: Annotated[Name, AfterValidator(_web)]
    """Where each turn is posted."""
    format: Literal["json", "openai"] = "json"
    fields: dict[AnswerPart, Annotated[Name, AfterValidator(_place)]] = {}  # noqa: RUF012
    """Where in the answer things are, as in `choices[0].message.name`, for services that say them elsewhere."""
    request: dict[RequestPart, Annotated[Name, AfterValidator(_keys)]] = {}  # noqa: RUF012
    """Under which keys of the request things are sent, for services that look for them elsewhere."""
    headers: dict[_HeaderName, _HeaderValue] = {}  # noqa: RUF012
    """Sent with each request; the values come from environment variables, as in `Bearer $SUPPORT_TOKEN`."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            http: str,
            format: Literal["json", "openai"] = "json",  # noqa: A002
            agents: Sequence[str | ServiceAgent] | Mapping[str, Mapping[str, Any]] = (),
            start: str = "",
            fields: Mapping[AnswerPart, str] = ...,
            request: Mapping[RequestPart, str] = ...,
            headers: Mapping[str, str] = ...,
        ) -> None: ...

    @model_validator(mode="after")
    def _placed(self) -> Service:
        problems: list[tuple[Loc, PydanticCustomError]] = [
            (("fields", part), refusal(f"`{part}` is one thing, and {shown(place)} any number of them"))
            for part, place in self.fields.items()
            if "[*]" in place and part not in LISTS
        ]
        sent = ("session", "context") if self.format == "openai" else get_args(RequestPart)
        taken = {"messages": "messages", "model": "model"} if self.format == "openai" else {}
        taken |= {part: part for part in sent if part not in self.request}
        for part, keys in self.request.items():
            if part not in sent:
                problems.append((("request", part), refusal(f"format `openai` sends no `{part}` beside `messages`")))
            for other, what in taken.items():
                if f"{keys}.".startswith(f"{other}.") or f"{other}.".startswith(f"{keys}."):
                    problems.append((("request", part), refusal(f"{shown(keys)} is taken by `{what}`")))
            taken[keys] = part
        if problems:
            raise _refusals(problems)
        return self

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that its headers are made of."""
        return tuple(variable_of(value) for value in self.headers.values())


def variable_of(header: str) -> str:
    """The environment variable in a header's value."""
    found = _HEADER.fullmatch(header)
    assert found is not None
    return str(found[1] or found[2])


TargetSpec: TypeAlias = object
"""Whom to test: a `Swarm`, `Factory` or `Service`, or Python's own: an agent, a runner, or what returns a fresh one."""

_REFERENCE = re.compile(r"(?:(?:[A-Za-z]:)?[^:]+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def _target(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str):
        reference = TypeAdapter(Name).validate_python(value)
        if "://" in reference:
            return Service.model_validate({"http": reference})
        if not _REFERENCE.fullmatch(reference):
            raise refusal(f"expected `path.py:name` or `package.module:name`, found {shown(reference)}")
        return Factory(reference=reference, base=(info.context or {}).get("base", Path()))
    if isinstance(value, Mapping) and value.keys() & (Service.model_fields.keys() - ServiceAgents.model_fields.keys()):
        return Service.model_validate(value)
    if isinstance(value, (Mapping, list, tuple, set, bool, int, float)) or value is None:
        raise refusal(f"expected `path.py:name`, found {shown(value)}; agents of the file's own stand under `agents`")
    return value


# How it is run.


class Limits(Value):
    """What a turn may take; what is absent is the target's own."""

    max_handoffs_per_turn: int | None = Field(default=None, ge=0)
    max_tool_iterations: int | None = Field(default=None, ge=0)


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
    frameworks: Many[Framework] = ()
    """What the agents run on, each a trial of its own; none: the reference runtime."""
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

    target: Annotated[TargetSpec, PlainValidator(_target, json_schema_input_type=str | Service)] = None
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
    target: Annotated[TargetSpec, PlainValidator(_target, json_schema_input_type=str | Service)]
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
            frameworks: Sequence[Framework] = (),
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
        known = self.target if isinstance(self.target, Swarm | Service) and self.target.agents else None
        if known is not None and (problems := list(_misnamed(self, known))):
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


def _misnamed(scenario: Scenario, swarm: Swarm | Service) -> Iterator[tuple[Loc, PydanticCustomError]]:
    """Agents and tools that a scenario names and the swarm does not have."""
    for index, choice in enumerate(scenario.models):
        for agent in choice if isinstance(choice, dict) else ():
            if agent != "*" and agent not in swarm.names:
                yield ("models", index, agent), _unknown("agent", agent, swarm.names)
    for loc, expect in scenario.expectations:
        yield from _unknown_names(loc, expect, swarm)


def _unknown_names(loc: Loc, expect: Expectations, swarm: Swarm | Service) -> Iterator[tuple[Loc, PydanticCustomError]]:
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
            if tools is not None and call.tool not in tools:
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
