"""The public names of both packages are what can be reached, say what they are, and cost nothing until used."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import chatflow_eval
import chatflow_runtime

ROOT = Path(__file__).parent.parent
PACKAGES = (chatflow_eval, chatflow_runtime)
NAMES = [
    pytest.param(package, name, id=f"{package.__name__}.{name}") for package in PACKAGES for name in package.__all__
]

each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)


def typed_imports(package: ModuleType) -> dict[str, str]:
    """Names that type checkers see, and the modules that they come from."""
    assert package.__file__
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (typing_only,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(typing_only.test) == "TYPE_CHECKING"
    return {
        alias.name: str(node.module).removeprefix(f"{package.__name__}.")
        for node in typing_only.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@each_package
def test_the_list_the_table_and_the_types_agree(package: ModuleType) -> None:
    assert package.__all__ == sorted(set(package.__all__))
    assert dict(package._HOME) == typed_imports(package)
    assert package._HOME.keys() == set(package.__all__)


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_every_public_name_is_reached_from_its_package_and_says_what_it_is(package: ModuleType, name: str) -> None:
    found = getattr(package, name)
    home = importlib.import_module(f"{package.__name__}.{package._HOME[name]}")
    assert found is getattr(home, name)
    assert name in dir(package)
    assert found.__doc__
    assert not found.__doc__.startswith(f"{name}("), "a dataclass without a docstring gets its signature for one"


@each_package
def test_everything_can_be_imported_at_once(package: ModuleType) -> None:
    namespace: dict[str, object] = {}
    exec(f"from {package.__name__} import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(package.__all__)


@each_package
def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nobody'"):
        package.nobody  # noqa: B018
    with pytest.raises(ImportError):
        exec(f"from {package.__name__} import nobody")


@each_package
def test_importing_the_package_loads_nothing_else(package: ModuleType) -> None:
    """Neither third parties nor its own modules; what `site` loads before is not its doing."""
    script = f"""
import importlib, typing, sys
before = set(sys.modules)
import {package.__name__}
print(*(name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [package.__name__]


@each_package
def test_the_package_is_typed(package: ModuleType) -> None:
    assert package.__file__
    assert Path(package.__file__).with_name("py.typed").is_file()


def test_the_wheel_s_top_level_names_are_the_two_packages() -> None:
    """The build takes two folders and nothing beside them, so that no published package is shadowed."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    assert build.keys() == {"dev-mode-dirs", "targets"}
    assert build["targets"] == {"wheel": {"packages": ["chatflow_eval", "runtime/chatflow_runtime"]}}
    assert {Path(folder).name for folder in build["targets"]["wheel"]["packages"]} == {
        package.__name__ for package in PACKAGES
    }


@pytest.mark.parametrize(
    ("group", "name", "reference"),
    [
        ("console_scripts", "chatflow-eval", "chatflow_eval.cli:main"),
        ("pytest11", "chatflow_eval", "chatflow_eval.pytest_plugin"),
    ],
)
def test_what_is_installed_leads_into_the_package(group: str, name: str, reference: str) -> None:
    (found,) = importlib.metadata.entry_points(group=group, name=name)
    assert found.value == reference
    assert found.load()
