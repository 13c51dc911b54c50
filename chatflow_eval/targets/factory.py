"""A user's factory, found by its reference: `support.py:build` beside the scenario file, or `package.module:build`."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from chatflow_eval.errors import TargetError
from chatflow_eval.fields import shown, suggestion
from chatflow_eval.scenario import Factory, TargetSpec

_LIBRARIES = ("<frozen ", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


@functools.lru_cache(maxsize=256)
def load(reference: str, base: Path) -> Callable[[], Any]:
    """The callable that `reference` names, with files found relative to `base`.

    Raises:
        TargetError: no such file, module or name, or the user's module failed to import.
    """
    place, _, name = reference.rpartition(":")
    module = _from_file((base / place).resolve(), reference) if place.endswith(".py") else _from_name(place, base)
    try:
        found = getattr(module, name)
    except AttributeError:
        near = suggestion(name, [n for n in vars(module) if not n.startswith("_")])
        raise TargetError(f"target {reference!r}: {module.__file__} defines no {shown(name)}{near}") from None
    if not callable(found):
        raise TargetError(
            f"target {reference!r}: {name!r} is a {type(found).__name__}, "
            "expected a function without arguments that returns an Agent or a Runner"
        )
    factory: Callable[[], Any] = found
    return factory


def build(spec: TargetSpec) -> tuple[Any, str]:
    """What a factory, or Python's own target, comes to: the agents, made anew, and what messages call them.

    Raises:
        TargetError: the factory was not found, or it failed.
    """
    made = load(spec.reference, spec.base) if isinstance(spec, Factory) else spec
    label = spec.reference if isinstance(spec, Factory) else getattr(made, "__qualname__", repr(made))
    try:
        return (made() if callable(made) else made), label
    except (Exception, SystemExit) as error:
        raise TargetError(f"target {label!r} failed: {where(error)}") from error


def where(error: BaseException) -> str:
    """`Type: message (file:line)` of an exception, with the last line of the user's own code on the way to it."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    place = f" ({(users or frames)[-1].filename}:{(users or frames)[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


@functools.lru_cache(maxsize=256)
def _from_file(path: Path, reference: str) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"target {reference!r}: there is no file {path}")
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"chatflow_eval_target_{path.stem}_{digest}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _findable(path.parent)
    # Dataclasses and pickles look their module up while it is being made.
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise TargetError(f"target {reference!r}: importing {path} failed: {where(error)}") from error
    return module


def _from_name(name: str, base: Path) -> ModuleType:
    _findable(base)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise TargetError(f"target {name!r}: importing it failed: {where(error)}") from error


def _findable(folder: Path) -> None:
    """Lets a user's module import what lies beside it."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
