"""A project's cassettes: what is there, is it whole, does it still match, is it used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chatflow_eval import loader, shelf
from chatflow_eval.cassette import Cassette, Exchange, Origin, path_for, write
from chatflow_eval.errors import CassetteError, ScenarioError
from chatflow_eval.outcome import collect, run
from chatflow_eval.testing import Reply, ScriptedServer
from chatflow_eval.trial import Mode, Trial, plan

SUITE = """
models: [openai/m]
settings: {{api_base: "{url}"}}
agents:
  Triage: {{instructions: Welcome the user.}}
scenarios:
  - id: one
    turns: [{{user: hi, expect: none}}]
  - id: two
    turns: [{{user: hello, expect: none}}]
"""


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda _: Reply(text="hi")) as running:
        yield running


@pytest.fixture
def root(tmp_path: Path, server: ScriptedServer) -> Path:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "a.scenario.yaml").write_text(SUITE.format(url=server.url), encoding="utf-8")
    return tmp_path


def trials(root: Path, mode: Mode = "none") -> tuple[Trial, ...]:
    return plan(loader.load([root]), root=root, mode=mode)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def cassettes(root: Path) -> tuple[Path, ...]:
    return shelf.files([root / "cassettes"])


def test_files_are_found_below_folders_and_by_name_and_others_are_not(tmp_path: Path) -> None:
    for name in ("b.json", "a/c.yaml", "a/d.txt", ".hidden.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in shelf.files([tmp_path])] == ["c.yaml", "b.json"]
    assert shelf.files([tmp_path / "b.json"]) == (tmp_path / "b.json",)
    with pytest.raises(CassetteError, match="there is no such file or folder"):
        shelf.files([tmp_path / "none"])


def test_what_is_whole_has_no_problem(root: Path) -> None:
    collect(trials(root, "all"))
    held = [shelf.held(path) for path in cassettes(root)]
    assert [each.problem for each in held] == [None, None]
    assert [each.cassette.origin.scenario for each in held if each.cassette and each.cassette.origin] == ["one", "two"]


def test_damage_and_secrets_and_shadows_are_problems(tmp_path: Path) -> None:
    cut, leaking, shadow = (tmp_path / name for name in ("cut.json", "leaking.json", "shadow.yaml"))
    cut.write_text("{", encoding="utf-8")
    leaking.write_text('{"version": 1, "interactions": [], "metadata": {"x": "sk-planted0canary"}}', encoding="utf-8")
    for path in (shadow, shadow.with_suffix(".json")):
        write(Cassette(path, ()))
    problems = [str(shelf.held(path).problem) for path in (cut, leaking, shadow)]
    assert "not JSON" in problems[0]
    assert "holds a text shaped like an API key" in problems[1]
    assert "canary" not in problems[1]
    assert "never used, as there is one in JSON beside it" in problems[2]


async def test_stale_missing_and_damaged_are_told_apart_without_a_model(root: Path, server: ScriptedServer) -> None:
    everything = trials(root)
    assert [len(found) for found in _parts(await shelf.check(everything))] == [0, 2, 0]
    assert [outcome.status async for outcome in run(trials(root, "all"))] == ["passed"] * 2
    asked = len(server.requests)
    assert [len(found) for found in _parts(await shelf.check(everything))] == [0, 0, 0]
    edit(root / "a.scenario.yaml", "Welcome", "Greet")
    found = await shelf.check(trials(root))
    assert [trial.scenario.id for trial, _ in found.stale] == ["one", "two"]
    assert len({outcome.failure.edit for _, outcome in found.stale if outcome.failure}) == 1
    cassettes(root)[0].write_text("", encoding="utf-8")
    assert [len(each) for each in _parts(await shelf.check(trials(root)))] == [1, 0, 1]
    assert len(server.requests) == asked


def _parts(found: shelf.Checked) -> tuple[Any, ...]:
    return found.stale, found.missing, found.damaged


def test_what_no_scenario_looks_for_is_unused(root: Path) -> None:
    collect(trials(root, "all"))
    assert list(shelf.unused(root, cassettes(root))) == []
    edit(root / "a.scenario.yaml", "id: two", "id: three")
    assert [(path.parent.name, why) for path, why in shelf.unused(root, cassettes(root))] == [
        ("two", "no scenario has this id")
    ]
    (root / "a.scenario.yaml").unlink()
    assert [why for _, why in shelf.unused(root, cassettes(root))] == ["there is no a.scenario.yaml"] * 2


def put(root: Path, file: str, name: str, *, origin: bool = True) -> Path:
    path = path_for(root, file, name, "declared", 1)
    whose = Origin(file=file, scenario=name, model="declared", repeat=1) if origin else None
    write(Cassette(path, (Exchange(method="GET", uri="http://x/", body=None, status=200),), origin=whose))
    return path


def test_tests_use_theirs_as_long_as_they_are_there(root: Path) -> None:
    (root / "test_it.py").write_text(
        "def test_one(chatflow): ...\nasync def test_two(chatflow): ...\n", encoding="utf-8"
    )
    for name in ("test_one", "test_one-2", "test_two"):
        put(root, "test_it.py", name)
    gone = put(root, "test_it.py", "test_three")
    elsewhere = put(root, "test_gone.py", "test_one")
    assert dict(shelf.unused(root, cassettes(root))) == {
        gone: "test_it.py has no test_three",
        elsewhere: "there is no test_gone.py",
    }


def test_what_nobody_knows_the_origin_of_is_let_be(root: Path) -> None:
    put(root, "other.py", "x", origin=False)
    put(root, "<python>", "x")
    assert list(shelf.unused(root, cassettes(root))) == []


def test_a_suite_that_cannot_be_read_uses_nobody_knows_what(root: Path) -> None:
    collect(trials(root, "all"))
    edit(root / "a.scenario.yaml", "id: two", "idd: two")
    with pytest.raises(ScenarioError):
        list(shelf.unused(root, cassettes(root)))
