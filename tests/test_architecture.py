"""The picture in the architecture holds: who may import whom, and each module stands alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HARNESS = ROOT / "chatflow_eval"
RUNTIME = ROOT / "runtime" / "chatflow_runtime"

ROWS: tuple[tuple[str, ...], ...] = (
    ("cli", "pytest_plugin"),
    ("cassette_commands", "report_commands", "view_command"),
    ("execution",),
    ("conclusion",),
    ("options",),
    ("viewer",),
    ("conversation", "assertions"),
    ("shelf",),
    ("writers",),
    ("gate",),
    ("listing",),
    ("comparison", "history", "progress"),
    ("report",),
    ("metrics",),
    ("tables",),
    ("tally",),
    ("prices",),
    ("statistics",),
    ("outcome",),
    ("trial",),
    ("loader", "dialogues"),
    ("document",),
    ("targets",),
    ("demand",),
    ("scenario",),
    ("checks",),
    ("expectations",),
    ("fields",),
    ("incidents",),
    ("claims",),
    ("recorder",),
    ("exchanges",),
    ("guard",),
    ("tape",),
    ("player",),
    ("cassette",),
    ("matching",),
    ("scrub",),
    ("retries",),
    ("transcript",),
    ("route",),
    ("trace",),
    ("errors", "quantities"),
)
"""Top to bottom; a module imports from rows below its own."""

STANDALONE = {"__init__", "__main__", "testing"}
"""The public names, the way in for `python -m`, and a helper for tests that nothing here uses."""

DOORS = {
    "yaml": {"document", "cassette"},
    "vcr": {"recorder", "cassette"},
    "pandas": {"metrics", "report", "tally"},
    "scipy": {"statistics"},
    "jinja2": {"writers"},
    "tabulate": {"writers"},
    "wcwidth": {"writers"},
    "click": {"cli", "cassette_commands", "report_commands", "view_command", "execution", "conclusion", "options"},
    "tqdm": {"execution"},
    "pytest": {"pytest_plugin"},
    "litellm": {"litellm_engine"},
    "aiohttp": {"testing"},
    "httpx": {"targets"},
    "starlette": {"viewer"},
    "uvicorn": {"view_command"},
}
"""Third-party libraries and the modules through which they come in."""


def modules(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def module_name(path: Path) -> str:
    package = HARNESS if HARNESS in path.parents else RUNTIME
    return path.relative_to(package).parts[0].removesuffix(".py")


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Full names of the modules that a file imports, those inside functions included, type-only ones not."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def row_of(name: str) -> int:
    return next(index for index, row in enumerate(ROWS) if name in row)


def test_every_module_has_a_row() -> None:
    found = {module_name(path) for path in modules(HARNESS)} - STANDALONE
    assert found == {name for row in ROWS for name in row}


@pytest.mark.parametrize("path", modules(HARNESS), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_point_down(path: Path) -> None:
    name = module_name(path)
    if name in STANDALONE:
        return
    for full in imported(path):
        package, _, rest = full.partition(".")
        other = rest.partition(".")[0]
        if package == "chatflow_eval" and other and other != name and not other.startswith("_"):
            assert row_of(other) > row_of(name), f"{path.name} imports {full}"


@pytest.mark.parametrize("path", modules(RUNTIME), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_runtime_knows_nothing_of_the_harness(path: Path) -> None:
    assert not [full for full in imported(path) if full.startswith("chatflow_eval")]


def test_only_targets_know_more_of_the_runtime_than_its_plain_types() -> None:
    knowing = {
        module_name(path)
        for path in modules(HARNESS)
        for full in imported(path)
        if full.startswith("chatflow_runtime") and not full.startswith("chatflow_runtime.types")
    }
    assert knowing <= {"targets", "incidents"}


@pytest.mark.parametrize("path", modules(HARNESS) + modules(RUNTIME), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_libraries_come_in_through_their_doors(path: Path) -> None:
    for full in imported(path):
        library = full.partition(".")[0]
        if library in DOORS:
            assert module_name(path) in DOORS[library], f"{path} imports {library}"


def dotted(path: Path) -> str:
    base = ROOT if HARNESS in path.parents else RUNTIME.parent
    return ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


def test_each_module_imports_alone_without_warnings() -> None:
    """In one fresh interpreter per module an import cycle cannot hide; forked from one that has the libraries."""
    script = """
import importlib, os, sys, warnings
import jinja2, pandas, pydantic, scipy.special, tabulate, yaml, click, pytest, aiohttp.web, vcr.patch
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        warnings.simplefilter("error")
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
sys.exit(f"cannot be imported alone: {failed}" if failed else 0)
"""
    names = [dotted(path) for path in modules(HARNESS) + modules(RUNTIME) if path.stem != "__main__"]
    done = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import chatflow_eval", {"pydantic", "pandas", "litellm", "vcr", "jinja2", "yaml", "scipy", "pytest"}),
        ("import chatflow_runtime", {"pydantic", "litellm", "vcr", "httpx"}),
        (
            "import chatflow_eval.cli",
            {"pydantic", "pandas", "litellm", "vcr", "jinja2", "yaml", "scipy", "pytest", "starlette", "uvicorn"},
        ),
        ("import chatflow_eval.pytest_plugin", {"pydantic", "pandas", "litellm", "vcr", "jinja2", "yaml", "scipy"}),
    ],
)
def test_doors_import_nothing_heavy(statement: str, heavy: set[str]) -> None:
    """E07."""
    script = f"{statement}; import sys; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
