"""`chatflow-eval cassettes` and the parts of `record` that go by what is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chatflow_eval.cli import cli
from chatflow_eval.testing import Reply, ScriptedServer

SUITE = """
models: [openai/m]
settings: {{api_base: "{url}"}}
agents:
  Triage: {{instructions: Welcome the user., handoffs: [Billing]}}
  Billing: {{instructions: Handle refunds.}}
scenarios:
  - id: one
    turns: [{{user: hi, expect: none}}]
  - id: two
    turns: [{{user: hello, expect: none}}]
"""


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda _: Reply(text="Good day.")) as running:
        yield running


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ScriptedServer) -> Path:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "a.scenario.yaml").write_text(SUITE.format(url=server.url), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli, args)


def recorded() -> list[Path]:
    return sorted(Path("cassettes").rglob("*.json"))


def edit(old: str, new: str, path: Path = Path("a.scenario.yaml")) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_ls_says_what_is_there_and_whose_it_is() -> None:
    assert invoke("cassettes", "ls").output.split() == ["exchanges", "kB", "recorded", "of", "in"]
    invoke("record", ".")
    first, second = recorded()
    second.write_text("", encoding="utf-8")
    head, one, two = invoke("cassettes", "ls").output.splitlines()
    assert head.split() == ["exchanges", "kB", "recorded", "of", "in"]
    assert one.split()[0] == "1"
    assert "a.scenario.yaml::one, openai/m, repeat 1" in one
    assert first.as_posix() in one
    assert two.split()[0] == "damaged"


def test_show_lays_out_and_diff_compares() -> None:
    invoke("record", ".")
    one, two = map(str, recorded())
    shown = invoke("cassettes", "show", one)
    assert shown.exit_code == 0
    assert "system: Welcome the user." in shown.output
    assert "assistant: Good day." in shown.output
    assert "parameters" in invoke("cassettes", "show", one, "--whole").output
    assert invoke("cassettes", "diff", one, one).exit_code == 0
    differing = invoke("cassettes", "diff", one, two)
    assert differing.exit_code == 1
    assert "-    user: hi\n+    user: hello\n" in differing.output


def test_verify_names_what_is_not_whole_and_accepts_what_was_meant() -> None:
    invoke("record", ".")
    whole = invoke("cassettes", "verify")
    assert (whole.exit_code, whole.output) == (0, "2 recordings: no with problems\n")
    path = recorded()[0]
    edit("Good day.", "Good evening.", path)
    changed = invoke("cassettes", "verify")
    assert changed.exit_code == 1
    assert f"{path.as_posix()}: damaged: changed since it was recorded" in changed.output
    assert "2 recordings: 1 with problems" in changed.output
    assert invoke("run", ".").exit_code == 2
    assert invoke("cassettes", "verify", str(path), "--accept").exit_code == 0
    assert invoke("run", ".").exit_code == 0


def test_stale_lists_by_the_edit_and_asks_no_model(server: ScriptedServer) -> None:
    nothing = invoke("cassettes", "stale", ".")
    assert nothing.exit_code == 1
    assert "2 trials: 0 stale, 2 not recorded, 0 damaged" in nothing.output
    invoke("record", ".")
    asked = len(server.requests)
    fresh = invoke("cassettes", "stale", ".")
    assert (fresh.exit_code, fresh.output) == (0, "2 trials: 0 stale, 0 not recorded, 0 damaged\n")
    edit("Welcome the user.", "Welcome the customer.")
    stale = invoke("cassettes", "stale", ".")
    assert stale.exit_code == 1
    assert stale.output == (
        "agent Triage: messages[0].content: recorded 'Welcome the user.', now 'Welcome the customer.'\n"
        "  2 trials: one, two\n"
        "2 trials: 2 stale, 0 not recorded, 0 damaged\n"
    )
    assert len(server.requests) == asked
    assert not list(Path("reports").glob("*/trials.jsonl"))[1:], "looking leaves no run behind"


def test_prune_lists_and_removes_only_when_told() -> None:
    invoke("record", ".")
    edit("id: two", "id: three")
    listed = invoke("cassettes", "prune")
    assert listed.exit_code == 0
    assert "unused: cassettes/a/two/" in listed.output
    assert "1 unused, 1 kept; remove them with --yes" in listed.output
    assert len(recorded()) == 2
    removed = invoke("cassettes", "prune", "--yes")
    assert "removed: cassettes/a/two/" in removed.output
    assert [path.parent.name for path in recorded()] == ["one"]
    assert invoke("cassettes", "prune").output == "0 unused, 1 kept\n"


def test_what_is_not_there_exits_2() -> None:
    for command in ("show", "verify", "ls", "prune"):
        result = invoke("cassettes", command, "nowhere")
        assert result.exit_code == 2, command
        assert "nowhere: there is no such file or folder" in result.output
    assert invoke("cassettes", "diff", "nowhere", "nowhere").exit_code == 2


def test_only_what_is_stale_is_recorded_anew(server: ScriptedServer) -> None:
    invoke("record", ".")
    edit("id: two\n    turns: [{user: hello,", "id: two\n    turns: [{user: good morning,")
    asked = len(server.requests)
    result = invoke("record", ".", "--only-stale")
    assert result.exit_code == 0, result.output
    assert "1 trial of 1 scenario" in result.output
    assert len(server.requests) == asked + 1
    again = invoke("record", ".", "--only-stale")
    assert (again.exit_code, again.output) == (0, "2 trials: none is stale\n")
    assert invoke("run", ".").exit_code == 0


def test_only_what_is_missing_is_recorded(server: ScriptedServer) -> None:
    invoke("record", ".", "--only", "one")
    result = invoke("record", ".", "--missing")
    assert "1 trial of 1 scenario" in result.output
    assert [path.parent.name for path in recorded()] == ["one", "two"]
    assert len(server.requests) == 2
    assert invoke("record", ".", "--missing").output == "2 trials: none is missing\n"


def test_both_may_be_asked_for_and_damage_is_neither(server: ScriptedServer) -> None:
    invoke("record", ".", "--only", "one")
    edit("Welcome the user.", "Welcome the customer.")
    assert "2 trials of 2 scenarios" in invoke("record", ".", "--only-stale", "--missing").output
    recorded()[0].write_text("", encoding="utf-8")
    result = invoke("record", ".", "--only-stale", "--missing")
    assert result.output == "2 trials: none is stale or missing\n"
    assert recorded()[0].read_bytes() == b""


def test_yaml_is_recorded_on_request_replaces_json_and_stays() -> None:
    invoke("record", ".")
    assert invoke("record", ".", "--yaml", "--only", "one").exit_code == 0
    assert [path.parent.name for path in recorded()] == ["two"]
    (path,) = Path("cassettes").rglob("*.yaml")
    assert path.parent.name == "one"
    assert invoke("run", ".").exit_code == 0
    edit("Welcome the user.", "Welcome the customer.")
    assert invoke("record", ".", "--only-stale").exit_code == 0
    assert "Welcome the customer." in path.read_text(encoding="utf-8")
    assert [each.parent.name for each in recorded()] == ["two"]


def test_a_run_says_where_it_left_its_recordings_and_what_was_ignored() -> None:
    edit("settings:", "ignore: '\\d{4}'\nsettings:")
    edit("Welcome the user.", "Welcome the user. It is 2026.")
    invoke("record", ".")
    edit("It is 2026", "It is 2027")
    replayed = invoke("run", ".", "--out", "replayed")
    assert replayed.exit_code == 0, replayed.output
    told = " ".join(replayed.output.split())
    assert r"Ignored where requests differ from recordings (2 trials): \d{4}" in told
    edit("Welcome the user.", "Welcome the customer.")
    went_on = invoke("run", ".", "--record-mode", "new_episodes", "--out", "went_on")
    assert went_on.exit_code == 0, went_on.output
    told = " ".join(went_on.output.split())
    assert "Live from where the recording did not match (2 trials):" in told
    assert "one: turn 1, at Triage (hop 0): agent Triage: messages[0].content: recorded 'Welcome the user." in told
    lines = Path("went_on", "trials.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["parted"]["hop"] for line in lines} == {0}
