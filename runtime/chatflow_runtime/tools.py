"""Tools: what a model may call, its schema, and how a call's arguments reach the function."""

from __future__ import annotations

import enum
import inspect
import math
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, TypeAlias, cast, overload

from chatflow_runtime.engine import ToolSchema
from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.naming import is_tool_name
from chatflow_runtime.schemas import Converter, Schema, converter_of, expected, mismatch, schema_of
from chatflow_runtime.types import Json

Function: TypeAlias = Callable[..., object]

Through: TypeAlias = Callable[["Tool", Callable[[], object], Mapping[str, Json]], object]
"""From a tool, what calls its function, and the session's context to what the call is to result in."""

_through: ContextVar[Through | None] = ContextVar("chatflow_runtime.tools", default=None)


@contextmanager
def invoking(through: Through) -> Iterator[None]:
    """Within the block, functions of tools are called through `through`, or not at all."""
    token = _through.set(through)
    try:
        yield
    finally:
        _through.reset(token)


_CONTEXT = "context"
_NO_PARAMETERS: Mapping[str, Json] = {"type": "object", "properties": {}}
_LONGEST_DESCRIPTION = 1024


class ArgumentsRefused(Exception):
    """A call's arguments do not fit the tool; the text is for the model."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A call's arguments, ready for the function, and what had to be repaired."""

    values: Mapping[str, object]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A function that a model may call; `parameters` is a JSON schema of an object.

    Raises DefinitionError for a name that some provider refuses, and for parameters that are no object schema. A
    `context` parameter of the function that the schema does not mention is given the session's context.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=lambda: _NO_PARAMETERS)
    func: Function = field(kw_only=True)
    target: str | None = field(default=None, kw_only=True)
    """The agent a transfer tool leads to; `None` for a domain tool."""
    converters: Mapping[str, Converter] = field(default_factory=dict, kw_only=True, repr=False)
    """How arguments become what the function's annotations promise, by name."""
    schema: ToolSchema = field(init=False, repr=False)
    """The tool as the model sees it."""
    _signature: _Signature = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_tool_name(self.name):
            raise DefinitionError(
                f"A tool is named {self.name!r}, expected at most 64 letters, digits, '_' or '-' "
                "with a letter or '_' first: no other name is accepted by every provider."
            )
        parameters = _object_schema(self.name, self.parameters)
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "schema", ToolSchema(self.name, self.description, parameters, self.target))
        object.__setattr__(self, "_signature", _signature(self.func, parameters))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, as if it had not been made a tool."""
        return self.func(*args, **kwargs)

    def read(self, data: Json) -> Arguments:
        """A call's arguments, checked and converted; raises ArgumentsRefused when they do not fit."""
        properties, required = _properties(self.parameters), _required(self.parameters)
        warnings: list[str] = []
        if not isinstance(data, dict):
            if required:
                wanted = ", ".join(f"'{name}' ({expected(properties.get(name, {}))})" for name in required)
                raise ArgumentsRefused(f"The arguments are no JSON object, expected one with {wanted}.")
            warnings.append(f"The arguments of '{self.name}' are no JSON object and were taken for none.")
            data = {}
        for name in required:
            if name not in data:
                wanted = expected(properties.get(name, {}))
                raise ArgumentsRefused(f"The argument '{name}' is missing, expected {wanted}.")
        values: dict[str, object] = {}
        for name, value in data.items():
            if not self._signature.takes(name):
                warnings.append(f"'{self.name}' has no argument '{name}'; it was left out.")
                continue
            if fault := mismatch(value, properties.get(name, {}), f"The argument '{name}'"):
                raise ArgumentsRefused(fault)
            values[name] = self._converted(name, value)
        return Arguments(values, tuple(warnings))

    def invoke(self, arguments: Arguments, context: Mapping[str, Json]) -> object | Awaitable[object]:
        """The function's result, to be awaited where it is awaitable; raises whatever the function raises."""
        more: dict[str, object] = {_CONTEXT: context} if self._signature.takes_context else {}
        through = _through.get()
        if through is not None:
            return through(self, lambda: self.func(**arguments.values, **more), context)
        return self.func(**arguments.values, **more)

    def _converted(self, name: str, value: Json) -> object:
        convert = self.converters.get(name)
        if convert is None:
            return value
        try:
            return convert(value)
        except (ValueError, OverflowError) as error:
            raise ArgumentsRefused(f"The argument '{name}' does not fit: {error}.") from None


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[Function], Tool]: ...
def tool(
    function: Function | None = None, /, *, name: str | None = None, description: str | None = None
) -> Tool | Callable[[Function], Tool]:
    """A tool made of a function: its name, its docstring, and a schema from its signature (first seed document).

    Raises DefinitionError where no schema can be made of the signature.
    """
    if function is None:
        return lambda decorated: _derived(decorated, name=name, description=description)
    return _derived(function, name=name, description=description)


def as_tool(value: Tool | Function) -> Tool:
    """A tool as it is, or one made of a plain function."""
    return value if isinstance(value, Tool) else tool(value)


def _derived(function: Function, *, name: str | None, description: str | None) -> Tool:
    if not callable(function):
        raise DefinitionError(f"{function!r} cannot be a tool, expected a function.")
    try:
        return _derived_once(function, name, description)
    except TypeError:  # a callable that cannot be hashed
        return _derived_once.__wrapped__(function, name, description)


# A factory makes its agents anew for every conversation, often of the same functions.
@lru_cache(maxsize=256)
def _derived_once(function: Function, name: str | None, description: str | None) -> Tool:
    given_name = name or str(getattr(function, "__name__", type(function).__name__))
    properties: Schema = {}
    required: list[Json] = []
    converters: dict[str, Converter] = {}
    for parameter, annotation in _model_parameters(function, given_name):
        try:
            schema = schema_of(annotation)
            convert = converter_of(annotation)
        except Exception as error:
            raise DefinitionError(
                f"The parameter '{parameter.name}' of the tool '{given_name}' has no JSON schema: {error}."
            ) from error
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
        elif (default := _json_default(parameter.default)) is not None:
            schema = {**schema, "default": default}
        properties[parameter.name] = schema
        if convert is not None:
            converters[parameter.name] = convert
    parameters: Schema = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    text = inspect.cleandoc(getattr(function, "__doc__", None) or "") if description is None else description
    return Tool(given_name, text[:_LONGEST_DESCRIPTION], parameters, func=function, converters=converters)


def _model_parameters(function: Function, name: str) -> list[tuple[inspect.Parameter, object]]:
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != _CONTEXT and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise DefinitionError(f"The parameter '{parameter.name}' of the tool '{name}' cannot be given by name.")
    annotations = {parameter.name: parameter.annotation for parameter in parameters}
    written = {key: value for key, value in annotations.items() if value is not inspect.Parameter.empty}
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        hints = typing.get_type_hints(SimpleNamespace(__annotations__=written), namespace, include_extras=True)
    except (NameError, SyntaxError, TypeError) as error:
        raise DefinitionError(f"An annotation of the tool '{name}' cannot be read: {error}.") from error
    return [(parameter, hints.get(parameter.name, inspect.Parameter.empty)) for parameter in parameters]


def _json_default(default: object) -> Json:
    value = default.value if isinstance(default, enum.Enum) else default
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str) else None


def _object_schema(name: str, parameters: Mapping[str, Json]) -> Mapping[str, Json]:
    if parameters.get("type", "object") != "object" or not isinstance(parameters.get("properties", {}), dict):
        raise DefinitionError(f"The parameters of the tool '{name}' are no JSON schema of an object.")
    return {**parameters, "type": "object", "properties": parameters.get("properties", {})}


def _properties(parameters: Mapping[str, Json]) -> Mapping[str, Schema]:
    return cast(Mapping[str, Schema], parameters["properties"])


def _required(parameters: Mapping[str, Json]) -> list[str]:
    return cast(list[str], parameters.get("required", []))


@dataclass(frozen=True, slots=True)
class _Signature:
    """Which arguments a tool's function can be given."""

    names: frozenset[str]
    is_open: bool
    takes_context: bool

    def takes(self, name: str) -> bool:
        return name in self.names or (self.is_open and not (self.takes_context and name == _CONTEXT))


def _signature(function: Function, parameters: Mapping[str, Json]) -> _Signature:
    properties = _properties(parameters)
    # Arguments that an explicit schema excludes are left out even where the function would take them.
    closed = parameters.get("additionalProperties") is False
    try:
        declared = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins tell no signature
        return _Signature(frozenset(properties), is_open=not closed, takes_context=False)
    named = {one.name for one in declared if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    takes_context = _CONTEXT in named and _CONTEXT not in properties
    if takes_context:
        named.discard(_CONTEXT)
    is_open = any(one.kind is one.VAR_KEYWORD for one in declared)
    if is_open:
        named |= set(properties)
    if closed:
        named &= set(properties)
    return _Signature(frozenset(named), is_open=is_open and not closed, takes_context=takes_context)
