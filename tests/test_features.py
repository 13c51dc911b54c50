"""The tables of features: each row is proved by tests that exist, and each feature of a seed document has a row."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SEEDS = Path("/work/shared/seeds")

SAMPLES = {
    "features-chatflow.md": ("chatflow-agent-handoffs.md", frozenset[str]()),
    "features-praisonai.md": ("praisonai-handoffs.md", frozenset({"BaseModel"})),
    "features-synaptic.md": (
        "synaptic-handoff-tools.md",
        frozenset({"HashMap", "Arc", "default", "push", "to_string"}),
    ),
}
"""Table to its seed document, and to what that names which is none of its features."""

_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<path>[^)]+)\)")
_CODE = re.compile(r"`([^`]+)`")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Row:
    """One feature: what it is called, what it is exactly, and the tests that prove it."""

    table: Path
    line: int
    cells: tuple[str, ...]

    @property
    def names(self) -> set[str]:
        return {word for code in _CODE.findall(self.cells[0]) for word in _WORD.findall(code)}


def tables() -> list[Path]:
    return sorted((ROOT / "docs").glob("features-*.md"))


@cache
def rows(table: Path) -> tuple[Row, ...]:
    """The rows of a file's tables, their heads left out."""
    found = []
    lines = table.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        is_head = number < len(lines) and lines[number].startswith("|---")
        if line.startswith("|") and not line.startswith("|---") and not is_head:
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            found.append(Row(table, number, tuple(cell.strip() for cell in cells)))
    return tuple(found)


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def features(document: str) -> set[str]:
    """What a document's code imports, the methods that its Rust calls, and the options that its tables name."""
    found: set[str] = set()
    for names in re.findall(r"^\s*use [\w:]*::\{([^}]*)\}|^\s*use [\w:]*::(\w+);", document, re.MULTILINE):
        found.update(_WORD.findall(" ".join(names)))
    for names in re.findall(r"^\s*from [\w.]+ import ([^\n]+)|^\s*import \{([^}]*)\} from", document, re.MULTILINE):
        found.update(_WORD.findall(" ".join(names)))
    if re.search(r"^use ", document, re.MULTILINE):
        found.update(re.findall(r"\.(\w+)\(", document))
    for cell in re.findall(r"^\|\s*`([^`|]+)`", document, re.MULTILINE):
        found.update(_WORD.findall(cell))
    return found


def test_there_are_tables() -> None:
    assert tables()
    assert {table.name for table in tables()} <= SAMPLES.keys()


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.stem)
def test_each_row_is_proved_by_tests_that_exist(table: Path) -> None:
    assert rows(table)
    for row in rows(table):
        where = f"{table.name}:{row.line}"
        proofs = list(_LINK.finditer(row.cells[-1]))
        assert proofs, f"{where} names no test"
        for proof in proofs:
            file = (table.parent / proof["path"]).resolve()
            assert file.is_relative_to(ROOT / "tests"), f"{where} is proved by {file}, which is no test"
            assert proof["text"] in functions(file), f"{where}: {proof['path']} has no {proof['text']}"


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.stem)
def test_each_feature_of_the_document_has_a_row(table: Path) -> None:
    file, others = SAMPLES[table.name]
    document = SEEDS / file
    if not document.exists():
        pytest.skip(f"{document} is not on this machine; seed documents are never committed")
    named = set[str]().union(*(row.names for row in rows(table)))
    wanted = features(document.read_text(encoding="utf-8")) - others
    assert wanted
    assert wanted - named == set()
