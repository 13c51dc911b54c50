"""Files to scenarios; every error has file, line and column."""

from __future__ import annotations

import gc
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema
from pydantic_core import ErrorDetails, core_schema

from chatflow_eval import scrub
from chatflow_eval.document import MAX_PROBLEMS, Document, Map, Place, Seq, read
from chatflow_eval.errors import ScenarioError, ScenarioErrors
from chatflow_eval.expectations import Expectations
from chatflow_eval.fields import TEXT_SCHEMA, Value, many, shown, suggestion
from chatflow_eval.scenario import (
    INTERNAL,
    AgentSpec,
    Conditions,
    Defaults,
    Factory,
    Scenario,
    Service,
    Suite,
    Swarm,
    Turn,
)

SUFFIXES = (".scenario.yaml", ".scenario.yml")
"""How the names of scenario files end, where a folder is searched for them."""

_SKIPPED = {"node_modules", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Project:
    """The folder that files, cassettes and reports are relative to, and its defaults for every scenario."""

    root: Path
    suite: Suite = field(default_factory=Suite)


def find_root(path: Path) -> Path:
    """The folder of the nearest `pyproject.toml` at or above the path; the current folder where there is none."""
    start = path.resolve()
    for folder in (start, *start.parents):
        if (folder / "pyproject.toml").is_file():
            return folder
    return Path.cwd()


def project(path: Path) -> Project:
    """The project that a path belongs to.

    Raises:
        ScenarioError: its table `[tool.chatflow-eval]` cannot be read.
    """
    root = find_root(path)
    file = root / "pyproject.toml"
    return Project(root, _suite(file)) if file.is_file() else Project(root)


def load(paths: Sequence[Path], root: Path | None = None) -> tuple[Scenario, ...]:
    """Every scenario of the files, and of the scenario files anywhere below the folders, in order.

    Raises:
        ScenarioError: a file cannot be read; `ScenarioErrors`, all that is wrong, where that is more than one thing.
    """
    belongs = project(root if root is not None else paths[0] if paths else Path())
    belongs = Project(root.resolve(), belongs.suite) if root is not None else belongs
    scrub.declare(belongs.suite.secrets)
    scenarios: list[Scenario] = []
    errors: list[ScenarioError] = []
    files: dict[Path, Path] = {}
    for path in paths:
        found = _files(path)
        if not found:
            errors.append(ScenarioError(f"no scenario file in this folder, expected *{SUFFIXES[0]}", path=path))
        for file in found:
            files.setdefault(file.resolve(), file)
    with _without_collector():
        for file in files.values():
            try:
                sound, wrong = _scenarios(file, belongs)
            except ScenarioError as error:
                errors.append(error)
            else:
                scenarios += sound
                errors += wrong
    _raise(errors)
    return tuple(scenarios)


@contextmanager
def _without_collector() -> Iterator[None]:
    """What is loaded is kept, and looking for garbage in it again and again took half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _files(path: Path) -> list[Path]:
    """The file itself, or the scenario files below a folder, hidden folders left out, in order of their names."""
    if not path.is_dir():
        return [path]
    files = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        files += [Path(folder, name) for name in sorted(names) if name.endswith(SUFFIXES)]
    return files


def _raise(errors: Sequence[ScenarioError]) -> None:
    if errors:
        raise errors[0] if len(errors) == 1 else ScenarioErrors(errors)


# One file.


def _scenarios(file: Path, project: Project) -> tuple[list[Scenario], list[ScenarioError]]:
    """The scenarios of a file that are sound, and what is wrong with the others.

    Raises:
        ScenarioError: nothing in it can be read.
    """
    document = read(file)
    if not isinstance(document.root, Map):
        raise ScenarioError(f"expected `scenarios:`, found {shown(document.root)}", path=file, line=1, column=1)
    head = _head(document, project.suite)
    errors = [*document.problems, *head.errors]
    scenarios: list[Scenario] = []
    ids: dict[str, Place] = {}
    context = _context(file)
    own = {"incidents": project.suite.incidents, "file": _origin(file, project.root)}
    for item, place in _items(document, errors):
        if len(errors) >= MAX_PROBLEMS:
            break
        if not isinstance(item, Map):
            errors.append(_error(document, place, f"expected a scenario with `id` and `turns`, found {shown(item)}"))
            continue
        errors += _repeated(document, item, place, ids)
        errors += (_unknown_key(document, item, key, Scenario) for key in item if key in INTERNAL)
        fields = {key: value for key, value in item.items() if key not in head.unread}
        try:
            said = _combined(head.given, fields) | own | {"line": place.line}
            scenario = Scenario.model_validate(said, context=context)
        except ValidationError as error:
            errors += islice(_told(error, document, item, Scenario), MAX_PROBLEMS)
        else:
            scenarios += scenario.variants()
    return scenarios, sorted(errors, key=lambda error: (error.line or 0, error.column or 0))


@dataclass(frozen=True, slots=True)
class _Head:
    """What the head of a file and its suite say for every scenario."""

    given: dict[str, Any]
    errors: tuple[ScenarioError, ...] = ()
    unread: frozenset[str] = INTERNAL
    """Keys of scenarios that are not read."""


def _head(document: Document, suite: Suite) -> _Head:
    top = document.root
    head = Map((key, value) for key, value in top.items() if key != "scenarios")
    head.place, head.keys_at, head.values_at = top.place, top.keys_at, top.values_at
    try:
        defaults = Defaults.model_validate(head, context=_context(document.path))
    except ValidationError as error:  # scenarios are then read as if a factory were named, and not blamed for the head
        somebody = {"target": Factory(reference="unread.py:build")}
        return _Head(somebody, tuple(_told(error, document, head, Defaults)), INTERNAL | {"start", "dialect"})
    return _Head(_combined(_given(suite), _given(defaults)))


def _context(file: Path) -> dict[str, Any]:
    """What the models need to know of the file that they are read from."""
    return {"base": file.absolute().parent}


def _items(document: Document, errors: list[ScenarioError]) -> Iterator[tuple[Any, Place]]:
    """What stands under `scenarios`, and where."""
    top: Map = document.root
    items = top.get("scenarios")
    if isinstance(items, Seq) and items:
        yield from zip(items, items.items_at, strict=True)
    else:
        found = f", found {shown(items or None)}" if "scenarios" in top else ""
        place = top.values_at.get("scenarios", top.place)
        errors.append(_error(document, place, f"expected `scenarios` with a list of scenarios{found}"))


def _repeated(document: Document, item: Map, place: Place, ids: dict[str, Place]) -> Iterator[ScenarioError]:
    """The scenario's id, where an earlier one has it."""
    name = item.get("id")
    if isinstance(name, str):
        first = ids.setdefault(str(name), place)
        if first != place:
            yield _error(document, place, f"`id` {shown(name)} is given twice, here and on line {first.line}")


def _origin(file: Path, root: Path) -> str:
    """The file's path from the root, with `/`."""
    try:
        return Path(os.path.relpath(file.resolve(), root)).as_posix()
    except ValueError:  # another drive
        return file.resolve().as_posix()


def _given(conditions: Conditions) -> dict[str, Any]:
    """What was said, and nothing that was not; limits and settings one by one."""
    given = {name: getattr(conditions, name) for name in conditions.model_fields_set - {"incidents", "secrets", "gate"}}
    for name in ("limits", "settings"):
        if name in given:
            given[name] = {key: getattr(given[name], key) for key in given[name].model_fields_set}
    return given


def _combined(outer: dict[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """What the inner says, and where it says nothing, what the outer says.

    Limits, settings and context go key by key; tags, ignore rules and allowed hosts add up.
    """
    both = outer | dict(inner)
    if "agents" in inner and "target" not in inner:
        both.pop("target", None)
    for name in outer.keys() & inner.keys():
        if name in ("limits", "settings", "context") and isinstance(inner[name], dict):
            both[name] = outer[name] | dict(inner[name])
        elif name in ("tags", "ignore", "allow_hosts"):
            own = many(inner[name])
            both[name] = [*own, *(item for item in outer[name] if item not in own)]
    return both


# Errors in people's words.

_Loc: TypeAlias = tuple[str | int, ...]


def _error(document: Document, place: Place, problem: str) -> ScenarioError:
    return ScenarioError(problem, path=document.path, line=place.line, column=place.column)


def _told(error: ValidationError, document: Document, raw: Map, model: type[Value]) -> Iterator[ScenarioError]:
    """Each validation error at the place of what it is about."""
    told = set()
    details = error.errors(include_url=False)
    for detail in details:
        *way, last = detail["loc"] or ("",)
        if detail["type"] == "extra_forbidden":
            container = _locate(raw, tuple(way)).container
            yield _unknown_key(document, container, str(last), _model_at(model, tuple(way)))
            continue
        if detail["type"] == "too_short" and any(_within(other["loc"], detail["loc"]) for other in details):
            continue  # its items are there, and wrong
        found = _locate(raw, detail["loc"])
        place = found.place
        context = detail.get("ctx", {})
        if "offset" in context:
            place = _inside(document, found, offset=context["offset"], item=context.get("item"))
        problem = _problem(detail, found.key)
        if (place, problem) not in told:
            told.add((place, problem))
            yield _error(document, place, problem)


def _within(inner: _Loc, outer: _Loc) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


@dataclass(frozen=True, slots=True)
class _Found:
    """The innermost value of a file that an error's location leads to."""

    value: Any
    place: Place
    container: Map
    """The innermost mapping on the way, the value itself included."""
    key: str | None
    """The last key on the way."""


def _locate(raw: Map, loc: _Loc) -> _Found:
    """Follow the location as far as the file goes; short forms have fewer levels than what they stand for."""
    value: Any = raw
    place, container, key = raw.place, raw, None
    before = None
    rest = [*reversed(loc)]
    while rest:
        part = rest.pop()
        if part == "phrasings" and isinstance(value, Map) and part not in value:
            rest += ["any", "user"]
            continue
        if part == "[key]" and key is not None and key in container.keys_at:
            place = container.keys_at[key]
        if isinstance(value, Map) and isinstance(part, int) and before == "agents":
            part = list(value)[part]
        before = None
        if isinstance(value, Map) and isinstance(part, str) and part in value:
            value, place, key = value[part], value.values_at[part], part
            before = part
        elif isinstance(value, Seq) and isinstance(part, int) and part < len(value):
            value, place = value[part], value.items_at[part]
        if isinstance(value, Map):
            container = value
    return _Found(value, place, container, key)


def _inside(document: Document, found: _Found, *, offset: int, item: int | None) -> Place:
    """The place of a character within a text on one line, or within the items of a list that make one text."""
    value, place = found.value, found.place
    if isinstance(value, Seq) and value:
        index = 0
        if item is not None:
            index = item
        else:
            while index < len(value) - 1 and offset > len(value[index]):
                offset -= len(value[index]) + len(" -> ")
                index += 1
        value, place = value[index], value.items_at[index]
    if isinstance(value, str) and place.line <= len(document.lines):
        start = document.lines[place.line - 1].find(value, place.column - 1)
        if value and start >= 0:
            return Place(place.line, start + offset + 1)
    return place


def _unknown_key(document: Document, container: Map, key: str, model: type[Value] | None) -> ScenarioError:
    place = container.keys_at.get(key, container.place)
    return _error(document, place, f"unknown key {shown(key)}{_instead(key, model)}")


_HOMES: tuple[tuple[type[Value], str], ...] = (
    (Expectations, "under `expect`"),
    (Turn, "in an item of `turns`"),
    (Scenario, "in an item of `scenarios`"),
)
_SYNONYMS = {"path": "route", "forbid": "avoids", "tools": "calls", "message": "user", "input": "user", "name": "id"}
_SECRET = re.compile(r"(^|_)(key|token|secret|password|authorization|credentials?)$", re.IGNORECASE)


def _instead(key: str, model: type[Value] | None) -> str:
    """Where the key belongs, or the nearest key that belongs here."""
    known = _keys(model) if model is not None else ()
    if _SECRET.search(key):
        return "; keys come from the environment, never from a file"
    if key in _SYNONYMS and _SYNONYMS[key] in known:
        return f"; did you mean {shown(_SYNONYMS[key])}?"
    for home, where in _HOMES:
        if model is not home and key in _keys(home):
            return f"; it stands {where}"
    return suggestion(key, known)


def _keys(model: type[Value]) -> tuple[str, ...]:
    """The keys of a model in a file."""
    keys = [str(field.validation_alias or name) for name, field in model.model_fields.items()]
    if model is Scenario:
        keys = [key for key in keys if key not in INTERNAL]
    if issubclass(model, Defaults):
        keys += ["agents", "start", "dialect"]
    return (*keys, "scenarios") if model is Defaults else tuple(keys)


def _model_at(model: type[Value] | None, loc: _Loc) -> type[Value] | None:
    """The model that a location leads to, from the annotations of the fields on the way."""
    for part in loc:
        if part == "target":
            model = Service
        elif model is not None and part in model.model_fields:
            model = _model_in(model.model_fields[str(part)].annotation)
        elif part == "agents":
            model = AgentSpec
    return model


def _model_in(annotation: Any) -> type[Value] | None:
    if isinstance(annotation, type) and issubclass(annotation, Value):
        return annotation
    return next((model for each in get_args(annotation) if (model := _model_in(each))), None)


_EXPECTED = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "true or false",
    "dict": "keys and values",
    "model": "keys and values",
    "tuple": "a list",
    "list": "a list",
    "too": "at least one",
}


def _problem(detail: ErrorDetails, key: str | None) -> str:
    """What is wrong, what was expected, what was found."""
    kind, context, found = detail["type"], detail.get("ctx", {}), shown(detail["input"])
    if "problem" in context:
        return str(context["problem"])
    if kind == "missing":
        missing = detail["loc"][-1]
        return (
            "neither `target` nor `agents` says whom to test" if missing == "target" else f"{shown(missing)} is missing"
        )
    about = f"{shown(key)}: " if key is not None else ""
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        near = suggestion(str(detail["input"]), choices) if isinstance(detail["input"], str) else ""
        return f"{about}expected one of {', '.join(shown(each) for each in choices)}, found {found}{near}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{about}expected {words} {context[name]:g}, found {found}"
    expected = _EXPECTED.get(kind.partition("_")[0])
    return f"{about}expected {expected}, found {found}" if expected else f"{about}{detail['msg']}"


_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
}


# The project's own file.

_TABLE = re.compile(r"\s*\[+\s*tool\.[\"']?chatflow-eval[\"']?")


def _suite(file: Path) -> Suite:
    """The table `[tool.chatflow-eval]`."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
        table = tomllib.loads(text).get("tool", {}).get("chatflow-eval", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError, RecursionError) as error:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(at[1]), int(at[2])) if at else (None, None)
        raise ScenarioError(f"cannot be read: {error}", path=file, line=line, column=column) from None
    try:
        return Suite.model_validate(table)
    except ValidationError as error:
        lines = text.splitlines()
        _raise(list(_told_of_suite(error, file, lines)))
        raise


def _told_of_suite(error: ValidationError, file: Path, lines: Sequence[str]) -> Iterator[ScenarioError]:
    for detail in error.errors(include_url=False):
        names = [part for part in detail["loc"] if isinstance(part, str)]
        line = _toml_line(lines, names)
        if detail["type"] == "extra_forbidden":
            problem = f"unknown key {shown(names[-1])}{_instead(names[-1], _model_at(Suite, detail['loc'][:-1]))}"
        else:
            problem = _problem(detail, names[-1] if names else None)
        yield ScenarioError(problem, path=file, line=line)


def _toml_line(lines: Sequence[str], names: Sequence[str]) -> int | None:
    """The line on which the innermost of these keys stands, as far as a search can tell."""
    inside, best = False, None
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("["):
            inside = _TABLE.match(line) is not None
        if inside and any(re.search(rf"(^|[\s{{,.\[\"']){re.escape(name)}[\"']?\s*[=\]]", line) for name in names):
            best = number
    return best


# For editors.


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a scenario file, its short forms included."""
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (model, "validation") for model in (Defaults, Scenario, Swarm, AgentSpec)
    ]
    _, schema = models_json_schema(models, schema_generator=_FileSchema)
    shapes = schema["$defs"]
    head, scenario, swarm = (shapes.pop(name) for name in ("Defaults", "Scenario", "Swarm"))
    agent = shapes["AgentSpec"]
    del agent["properties"]["name"]
    agent.pop("required")
    agents = {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#/$defs/AgentSpec"}}
    served = shapes["ServiceAgent"]
    del served["properties"]["name"]
    served.pop("required")
    by_name = {"type": "object", "additionalProperties": {"$ref": "#/$defs/ServiceAgent"}}
    shapes["Service"]["properties"]["agents"] = {"anyOf": [by_name, {"type": "array", "items": TEXT_SCHEMA}]}
    inline = {"agents": agents, "start": swarm["properties"]["start"], "dialect": swarm["properties"]["dialect"]}
    for shape in (head, scenario):
        shape["properties"] |= inline
    scenario["required"].remove("target")
    shapes["Expectations"]["anyOf"][-1]["patternProperties"] = {":": {}}
    shapes["Scenario"] = scenario
    scenarios = {"type": "array", "items": {"$ref": "#/$defs/Scenario"}, "minItems": 1}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **head,
        "title": "A scenario file",
        "properties": {**head["properties"], "scenarios": scenarios},
        "required": ["scenarios"],
        "$defs": shapes,
    }


class _FileSchema(GenerateJsonSchema):
    """Schemas as files have them: short forms beside the models, nothing of null, defaults and titles."""

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        full = super().model_schema(schema)
        short = schema["cls"].short
        return {"anyOf": [*short, full]} if short else full

    def nullable_schema(self, schema: core_schema.NullableSchema) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
