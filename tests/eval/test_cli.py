"""The command line: what it prints, what it writes, and what it exits with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chatflow_eval import __version__, loader
from chatflow_eval.cli import cli
from chatflow_eval.execution import progress
from chatflow_eval.gate import RULES
from chatflow_eval.options import RULE_NAMES
from chatflow_eval.outcome import collect
from chatflow_eval.testing import Reply, ScriptedServer
from chatflow_eval.trial import plan

AGENTS = """
agents:
  Triage:
    instructions: Welcome the user and pass them on.
    handoffs: [Billing]
  Billing:
    instructions: Handle refunds and invoices.
    handoffs: [Triage]
"""
ROUTED = """
  - id: routed
    tags: [smoke]
    turns:
      - user: I want a refund
        script: [{transfer: Billing}, {say: Done.}]
        expect: {route: Triage -> Billing}
"""
STAYED = ROUTED.replace("routed", "stayed").replace("smoke", "slow").replace("{transfer: Billing}, ", "")
LOOPED = """
  - id: looped
    turns:
      - user: round
        script: [{transfer: Billing}, {transfer: Triage}, {transfer: Billing}, {transfer: Triage}, {say: dizzy}]
        expect: {ends_at: Triage}
"""
ASKED = """
  - id: asked
    turns:
      - user: I want a refund
        expect: {route: Triage -> Billing}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-canary-key-12345")
    return tmp_path


def write(text: str, name: str = "a.scenario.yaml") -> None:
    Path(name).write_text(text, encoding="utf-8")


def suite(*scenarios: str, top: str = "") -> str:
    return f"{top}{AGENTS}scenarios:{''.join(scenarios)}"


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli, args)


def run_folder() -> Path:
    (folder,) = Path("reports").iterdir()
    return folder


def test_a_passing_suite_exits_0_and_leaves_a_run_folder() -> None:
    write(suite(ROUTED))
    result = invoke("run", ".")
    assert result.exit_code == 0, result.output
    assert "1 trial of 1 scenario: 1 passed" in result.output
    folder = run_folder()
    assert {path.name for path in folder.iterdir()} == {"trials.jsonl", "report.json", "report.html"}
    (line,) = (folder / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["status"] == "passed"
    assert "routed" in (folder / "report.html").read_text(encoding="utf-8")


def test_running_twice_gives_the_same_result() -> None:
    write(suite(ROUTED, STAYED))
    invoke("run", ".", "--out", "one")
    invoke("run", ".", "--out", "two")

    def told(folder: str) -> list[tuple[str, str, str]]:
        lines = Path(folder, "trials.jsonl").read_text(encoding="utf-8").splitlines()
        return sorted(
            (json.loads(line)["scenario"], json.loads(line)["status"], json.loads(line)["why"]) for line in lines
        )

    assert told("one") == told("two")


def test_a_wrong_route_closes_the_gate_with_1_and_shows_both_routes() -> None:
    write(suite(ROUTED, STAYED))
    result = invoke("run", ".")
    assert result.exit_code == 1
    assert "expected  Triage -> [Billing]" in result.output
    assert "actual    Triage -> [nobody]" in result.output


def test_thresholds_decide_instead_of_every_scenario() -> None:
    write(suite(ROUTED, STAYED))
    assert invoke("run", ".", "--min-accuracy", "0.5").exit_code == 0
    assert invoke("run", ".", "--min-accuracy", "0.51").exit_code == 1


def test_loops_and_limit_hits_have_ceilings_of_their_own() -> None:
    write(suite(LOOPED))
    assert invoke("run", ".", "--out", "r", "--max-loops", "1").exit_code == 0
    closed = invoke("gate", "r", "--max-loops", "0", "--max-limit-hits", "0")
    assert closed.exit_code == 1
    assert "loops: 1 is not <= 0" in closed.output
    assert "limit hits: 0 is <= 0" in closed.output


def test_a_rate_that_is_not_available_closes_its_rule() -> None:
    write(suite(ROUTED.replace("expect: {route: Triage -> Billing}", "expect: {reply: {contains: Done}}")))
    result = invoke("run", ".", "--min-accuracy", "0.1")
    assert result.exit_code == 1
    assert "nothing judged" in result.output


@pytest.mark.parametrize("wrong", ["80", "80%", "-1", "1.5", "much"])
def test_a_percentage_is_no_rate(wrong: str) -> None:
    write(suite(ROUTED))
    result = invoke("run", ".", f"--min-accuracy={wrong}")
    assert result.exit_code == 2
    if wrong.startswith("80"):
        assert "did you mean 0.8?" in result.output


def test_nothing_recorded_exits_2_and_names_the_command() -> None:
    """B086."""
    write(suite(ASKED))
    result = invoke("run", ".")
    assert result.exit_code == 2
    assert "chatflow-eval record a.scenario.yaml --missing" in " ".join(result.output.split())


def test_errors_of_the_model_exit_3_and_outrank_a_closed_gate() -> None:
    """B030, B109: an error is no wrong route."""
    with ScriptedServer(lambda _: Reply(status=400, body='{"error": {"message": "no"}}')) as server:
        write(suite(ASKED, STAYED, top=f"models: [openai/m]\nsettings: {{api_base: '{server.url}'}}\n"))
        result = invoke("run", ".", "--live")
    assert result.exit_code == 3, result.output
    assert "1 failed, 1 errored" in result.output


def test_record_then_replay_with_the_server_gone_then_refuse_what_was_edited(project: Path) -> None:
    def answer(body: dict[str, object]) -> Reply:
        asked_by_triage = "Welcome" in str(body["messages"][0])  # type: ignore[index]
        return Reply(calls=(("transfer_to_billing", {}),)) if asked_by_triage else Reply(text="Done.")

    with ScriptedServer(answer) as server:
        write(suite(ASKED, top=f"models: [openai/m]\nsettings: {{api_base: '{server.url}', temperature: 0}}\n"))
        recorded = invoke("record", ".")
        assert recorded.exit_code == 0, recorded.output
        assert len(server.requests) == 2
    replayed = invoke("run", ".", "--out", "replayed")
    assert replayed.exit_code == 0, replayed.output
    assert "litellm" not in json.dumps(replayed.output)

    text = Path("a.scenario.yaml").read_text(encoding="utf-8")
    Path("a.scenario.yaml").write_text(text.replace("Handle refunds", "Handle returns"), encoding="utf-8")
    stale = invoke("run", ".", "--out", "stale")
    assert stale.exit_code == 2
    told = " ".join(stale.output.split())
    assert "stale" in told
    assert "Triage" in told
    for file in project.rglob("*"):
        if file.is_file():
            assert b"canary" not in file.read_bytes(), file


def test_a_wrong_route_is_recorded_like_any_other_and_exits_0() -> None:
    with ScriptedServer(lambda _: Reply(text="No.")) as server:
        write(suite(ASKED, top=f"models: [openai/m]\nsettings: {{api_base: '{server.url}'}}\n"))
        result = invoke("record", ".")
    assert result.exit_code == 0
    assert "1 failed" in result.output
    assert list(Path("cassettes").rglob("*.json"))


def test_a_recording_that_failed_half_way_leaves_the_old_one() -> None:
    """B096."""
    with ScriptedServer([Reply(text="First.")]) as server:
        top = f"models: [openai/m]\nsettings: {{api_base: '{server.url}'}}\n"
        write(suite(ASKED, top=top))
        invoke("record", ".", "--out", "one")
        (cassette,) = Path("cassettes").rglob("*.json")
        before = cassette.read_bytes()
        assert invoke("record", ".", "--out", "two").exit_code == 3
    assert cassette.read_bytes() == before


def test_tags_and_ids_select() -> None:
    write(suite(ROUTED, STAYED))
    assert "1 trial of 1 scenario" in invoke("run", ".", "--tag", "smoke", "--out", "1").output
    assert "1 trial of 1 scenario" in invoke("run", ".", "--only", "routed", "--out", "2").output
    assert "1 trial of 1 scenario" in invoke("run", ".", "--only", "a.scenario.yaml::routed", "--out", "3").output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--only", "rooted"], "did you mean `routed`?"),
        (["--tag", "smok"], "did you mean `smoke`?"),
        (["--tag", "slow", "--only", "routed"], "nothing to run"),
        (["--out", "full"], "already holds a run"),
        (["--live", "--record-mode", "all"], "--live records nothing"),
        (["--repeats", "0"], "0"),
    ],
)
def test_what_cannot_be_run_exits_2_and_says_why(options: list[str], told: str) -> None:
    """B139."""
    write(suite(ROUTED, STAYED))
    Path("full").mkdir()
    Path("full", "report.json").write_text("{}", encoding="utf-8")
    result = invoke("run", ".", *options)
    assert result.exit_code == 2
    assert told in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("text", ["", "- a list\n", "agents: {", "scenarios: []\n", "\x00\x01"])
def test_a_broken_file_exits_2_with_its_place(text: str) -> None:
    write(text)
    result = invoke("run", "a.scenario.yaml")
    assert result.exit_code == 2
    assert "a.scenario.yaml" in result.output
    assert "Traceback" not in result.output


def test_an_empty_folder_exits_2() -> None:
    Path("empty").mkdir()
    result = invoke("run", "empty")
    assert result.exit_code == 2
    assert "empty" in result.output


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (None, "there is no file"),
        ("def build(:\n", "SyntaxError"),
        ("raise RuntimeError('boom')\n", "RuntimeError: boom"),
        ("def bild():\n    pass\n", "did you mean `bild`?"),
        ("build = 3\n", "is a int"),
        ("def build():\n    return 3\n", "gave a int"),
        ("def build():\n    raise ValueError('no key')\n", "ValueError: no key"),
    ],
)
def test_agents_that_cannot_be_built_exit_2_and_say_where(module: str | None, told: str) -> None:
    if module is not None:
        write(module, "support.py")
    write(f"target: support.py:build\nscenarios:{ASKED}")
    result = invoke("run", ".")
    assert result.exit_code == 2
    assert told in result.output
    assert "support.py" in result.output


FACTORY = """
from chatflow_runtime import Agent

def build():
    billing = Agent("Billing", "Handle refunds and invoices.")
    return Agent("Triage", "Welcome the user.", handoffs=[billing])
"""


def test_a_factory_is_tried_with_keyword_and_its_names_are_checked() -> None:
    write(FACTORY, "support.py")
    write(f"target: support.py:build\nscenarios:{ASKED}")
    result = invoke("run", ".", "--model", "keyword")
    assert result.exit_code == 0, result.output
    assert "no language model" in result.output
    write(f"target: support.py:build\nscenarios:{ASKED.replace('> Billing', '> Biling')}")
    wrong = invoke("validate", ".")
    assert wrong.exit_code == 2
    assert "did you mean `Billing`?" in wrong.output


def test_validate_counts_what_is_good() -> None:
    write(suite(ROUTED, STAYED))
    result = invoke("validate", ".")
    assert (result.exit_code, result.output) == (0, "2 scenarios, 2 turns in 1 file: all good\n")


def test_fail_fast_stops_and_marks_the_run_partial() -> None:
    write(suite(STAYED, ROUTED, LOOPED))
    result = invoke("run", ".", "--fail-fast", "--concurrency", "1")
    assert result.exit_code == 1
    assert "Partial run" in result.output
    summary = json.loads((run_folder() / "report.json").read_text(encoding="utf-8"))
    assert (summary["partial"], summary["trials"], summary["planned"]) == (True, 1, 3)


def test_report_shows_a_run_again() -> None:
    write(suite(ROUTED))
    invoke("run", ".", "--out", "r")
    page = Path("r", "report.html")
    page.unlink()
    result = invoke("report", "r")
    assert result.exit_code == 0
    assert "1 passed" in result.output
    assert page.exists()


def test_what_the_gate_decided_is_shown_again() -> None:
    write(suite(ROUTED))
    invoke("run", ".", "--out", "r", "--max-loops", "3")
    page = Path("r", "report.html")
    for rule in ("loops: 0 is <= 3", "loops: 0 is <= 5"):
        page.unlink()
        assert rule in invoke("report", "r").output
        assert "loops: 0 is &lt;= " in page.read_text(encoding="utf-8")
        invoke("compare", "r", "r", "--html", "other.html")
        assert rule.replace("<", "&lt;") in Path("other.html").read_text(encoding="utf-8")
        invoke("gate", "r", "--max-loops", "5")
        assert "loops: 0 is &lt;= 5" in page.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_judged_all_the_same() -> None:
    write(suite(ROUTED))
    invoke("run", ".", "--out", "r")
    Path("r", "report.json.new").mkdir()
    result = invoke("gate", "r", "--max-loops", "0")
    assert result.exit_code == 0
    assert "loops: 0 is <= 0" in result.output
    assert "Not kept: r/report.json: cannot be written: Is a directory" in result.stderr.replace("\\", "/")


def test_no_run_folder_exits_2() -> None:
    for command in ("report", "gate"):
        result = invoke(command, "nowhere")
        assert result.exit_code == 2
        assert "nowhere" in result.output


def test_schema_is_json_schema() -> None:
    schema = json.loads(invoke("schema").output)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "scenarios" in schema["properties"]


def test_version() -> None:
    assert invoke("--version").output == f"chatflow-eval {__version__}\n"


def command(*args: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "chatflow_eval", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )


def test_a_console_with_few_characters_gets_escapes() -> None:
    """B136."""
    write(suite(ROUTED).replace("Billing", "🚀"))
    out, err = command("run", ".", PYTHONIOENCODING="cp1252").communicate(timeout=60)
    assert b"Traceback" not in err
    assert b"1 passed" in out
    assert "🚀" in (run_folder() / "trials.jsonl").read_text(encoding="utf-8")


def test_ctrl_c_keeps_what_is_finished_and_exits_130() -> None:
    with ScriptedServer(lambda _: Reply(text="No."), latency=0.05) as server:
        top = f"models: [openai/m]\nsettings: {{api_base: '{server.url}'}}\nrepeats: 1000\n"
        write(suite(ASKED, top=top))
        process = command("run", ".", "--live", "--out", "r", "--concurrency", "2")
        trials = Path("r", "trials.jsonl")
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and not (trials.exists() and trials.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err.decode()
    assert b"Traceback" not in err
    assert b"Partial run" in out
    kept = trials.read_text(encoding="utf-8").splitlines()
    assert 0 < len(kept) < 1000
    assert json.loads(Path("r", "report.json").read_text(encoding="utf-8"))["partial"] is True


# Comparing, exporting, rescoring, history, and what other programs read.


def test_the_gates_options_are_its_rules() -> None:
    assert set(RULE_NAMES) == {*RULES, "baseline"}


def test_a_baseline_closes_the_gate_when_a_scenario_vanishes() -> None:
    """pytest-benchmark is silent about a benchmark that was removed."""
    write(suite(ROUTED, LOOPED))
    invoke("run", ".", "--out", "base", "--max-loops", "9")
    write(suite(LOOPED))
    result = invoke("run", ".", "--out", "now", "--baseline", "base", "--max-loops", "9")
    assert result.exit_code == 1
    assert "vanished scenarios: 1: routed (it is not in this run)" in " ".join(result.output.split())


def test_rules_in_pyproject_decide_and_flags_win(project: Path) -> None:
    table = "[tool.chatflow-eval.gate]\nmin-accuracy = 0.9\nmust-pass = ['smoke']\n"
    (project / "pyproject.toml").write_text(table, encoding="utf-8")
    write(suite(ROUTED, STAYED))
    result = invoke("run", ".", "--out", "r")
    assert result.exit_code == 1
    assert "routing accuracy: 0.5 (1/2) is not >= 0.9" in result.output
    assert "must pass: smoke: 1 of 1 scenarios" in result.output
    assert invoke("gate", "r", "--min-accuracy", "0.5").exit_code == 0
    (project / "pyproject.toml").write_text("[tool.chatflow-eval.gate]\nmin-acuracy = 1\n", encoding="utf-8")
    wrong = invoke("gate", "r")
    assert wrong.exit_code == 2
    assert "did you mean `min_accuracy`?" in wrong.output


@pytest.mark.parametrize(
    "flag", ["--min-agent-accuracy=Billing", "--min-tag-accuracy=smoke=80", "--max-incident=loop=x"]
)
def test_a_keyed_rule_that_cannot_be_read_is_a_usage_error(flag: str) -> None:
    write(suite(ROUTED))
    assert invoke("run", ".", flag).exit_code == 2


def test_agents_tags_and_kinds_have_rules_of_their_own() -> None:
    write(suite(ROUTED, STAYED))
    invoke("run", ".", "--out", "r")
    result = invoke(
        "gate",
        "r",
        "--min-agent-accuracy",
        "Billing=0.6",
        "--min-tag-accuracy",
        "smoke=1",
        "--max-incident",
        "bounce=0",
    )
    assert result.exit_code == 1
    assert "routing accuracy of agent Billing: 0.5 (1/2) is not >= 0.6" in result.output
    assert "routing accuracy of tag smoke: 1 (1/1) is >= 1" in result.output


def test_two_runs_are_compared() -> None:
    write(suite(ROUTED, STAYED))
    invoke("run", ".", "--out", "base")
    write(suite(STAYED, STAYED.replace("stayed", "added")))
    invoke("run", ".", "--out", "now")
    result = invoke("compare", "base", "now")
    assert result.exit_code == 0
    assert result.output.startswith("3 scenarios: 1 gone, 1 new, 1 unchanged\n")
    assert "routed [declared]: 1/1 to 0/0; it is not in this run" in result.output
    assert invoke("compare", "base", "now", "--html", "both.html").output.endswith("Report: both.html\n")
    assert 'id="changes"' in Path("both.html").read_text(encoding="utf-8")
    assert 'id="changes"' not in Path("now/report.html").read_text(encoding="utf-8")
    assert invoke("gate", "now", "--baseline", "base").exit_code == 1
    assert 'id="changes"' in Path("now/report.html").read_text(encoding="utf-8")


def test_tables_are_exported() -> None:
    write(suite(ROUTED))
    invoke("run", ".", "--out", "r")
    result = invoke("export", "r")
    assert result.output.split() == ["r/export/trials.csv", "r/export/turns.csv", "r/export/hops.csv"]
    assert "Triage,Billing,transfer,true" in Path("r/export/hops.csv").read_text(encoding="utf-8")


def test_old_traces_are_judged_by_what_is_expected_now() -> None:
    """No model is asked; what says other words now is left out."""
    write(suite(STAYED, ROUTED))
    assert invoke("run", ".", "--out", "old").exit_code == 1
    expected_now = STAYED.replace("{route: Triage -> Billing}", "{stay: true}").replace("slow", "fast")
    write(suite(expected_now, ROUTED.replace("I want a refund", "I want two refunds")))
    result = invoke("rescore", "old", "--out", "new")
    assert result.exit_code == 0, result.output
    assert "1 trial left out" in result.output
    (line,) = Path("new/trials.jsonl").read_text(encoding="utf-8").splitlines()
    assert (json.loads(line)["status"], json.loads(line)["tags"]) == ("passed", ["fast"])


def test_runs_are_shown_over_time() -> None:
    write(suite(LOOPED))
    invoke("run", ".")
    result = invoke("history")
    assert result.exit_code == 0
    assert "loop 1" in result.output
    (run,) = json.loads(invoke("history", "--json").output)
    assert run["accuracy"]["denominator"] == 1
    assert invoke("history", "nowhere").exit_code == 2


def test_junit_summary_and_annotations_are_written(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.parent))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project / "job.md"))
    write(suite(ROUTED, STAYED))
    result = invoke("run", ".", "--junit", "out/junit.xml", "--summary", "pr.md", "--github")
    assert f"::error file={project.name}/a.scenario.yaml,line=" in result.output
    assert '<testsuite name="a.scenario.yaml"' in Path("out/junit.xml").read_text(encoding="utf-8")
    assert Path("pr.md").read_text(encoding="utf-8") == Path("job.md").read_text(encoding="utf-8")
    assert "canary" not in result.output


def test_the_keyword_router_runs_beside_the_models_and_decides_nothing() -> None:
    write(suite(ROUTED.replace("        script: [{transfer: Billing}, {say: Done.}]\n", "").replace("refund", "pony")))
    with ScriptedServer(
        lambda body: (
            Reply(text="No.") if "tool" in str(body["messages"][-1]) else Reply(calls=(("transfer_to_billing", {}),))
        )
    ) as server:
        os.environ["OPENAI_BASE_URL"] = server.url
        result = invoke("run", ".", "--live", "--model", "openai/test", "--baselines", "--out", "r")
        del os.environ["OPENAI_BASE_URL"]
    assert result.exit_code == 0, result.output
    assert "Routing accuracy beside the baselines" in result.output
    report = json.loads(Path("r/report.json").read_text(encoding="utf-8"))
    assert report["metrics"]["total"]["trials"]["passed"] == 1
    assert {row["name"]: row["accuracy"]["value"] for row in report["metrics"]["baselines"]} == {
        "unmoved": 1.0,
        "keyword": 0.0,
    }


@pytest.mark.parametrize("of", ["scenario", "report", "trials"])
def test_the_schemas_of_all_files_can_be_had(of: str) -> None:
    assert "$defs" in json.loads(invoke("schema", of).output)


def outcomes_in(folder: str) -> list[tuple[object, ...]]:
    """What is in a run folder, without how long it took; sorted, as trials finish in any order."""
    found = []
    for line in Path(folder, "trials.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        turns = [(turn["reply"], turn["end_agent"], len(turn["steps"])) for turn in one["trace"]["turns"]]
        found.append((one["scenario"], one["model"], one["repeat"], one["status"], one["why"], str(turns)))
    return sorted(found)


def test_a_run_that_was_killed_at_any_moment_goes_on_to_the_same_end() -> None:
    """None lost, none twice."""
    write(suite(ROUTED, STAYED, LOOPED, top="repeats: 150\n"))
    unbroken = invoke("run", ".", "--out", "unbroken")
    lines = Path("broken", "trials.jsonl")
    resume: list[str] = ["--out", "broken"]
    for kept_at_least in (1, 60, 180):
        process = command("run", ".", *resume)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if lines.exists() and lines.read_bytes().count(b"\n") >= kept_at_least:
                break
            time.sleep(0.002)
        process.kill()
        process.communicate()
        resume = ["--resume", "broken"]
    assert 180 <= lines.read_bytes().count(b"\n") < 450, "it was killed while it ran"
    finished = invoke("run", ".", "--resume", "broken")
    assert finished.exit_code == unbroken.exit_code == 1, finished.output
    assert outcomes_in("broken") == outcomes_in("unbroken")
    assert len(outcomes_in("broken")) == 450
    summary = json.loads(Path("broken", "report.json").read_text(encoding="utf-8"))
    assert (summary["partial"], summary["trials"]) == (False, 450)
    assert "450 trials of 3 scenarios" in finished.output


def test_resuming_what_is_finished_shows_it_again() -> None:
    write(suite(ROUTED))
    invoke("run", ".", "--out", "r")
    result = invoke("run", ".", "--resume", "r")
    assert result.exit_code == 0
    assert "1 trial of 1 scenario: 1 passed" in result.output
    assert len(outcomes_in("r")) == 1


def test_resuming_with_other_scenarios_is_refused_and_says_how_it_was_started() -> None:
    write(suite(ROUTED, STAYED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["chatflow-eval", "run", ".", "--repeats", "2"])
        invoke("run", ".", "--repeats", "2", "--out", "r")
    before = outcomes_in("r")
    result = invoke("run", ".", "--resume", "r")
    assert result.exit_code == 2
    assert "which is not among these trials" in result.output
    assert "chatflow-eval run . --repeats 2" in " ".join(result.output.split())
    assert outcomes_in("r") == before
    assert invoke("run", ".", "--repeats", "2", "--resume", "r").exit_code == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--resume", "nowhere"], "nowhere"),
        (["--resume", "r", "--out", "other"], "--resume goes on in the run's own folder"),
        (["--retries", "-1"], "-1"),
        (["--timeout", "0"], "0"),
    ],
)
def test_what_cannot_be_resumed_or_waited_for_exits_2(options: list[str], told: str) -> None:
    write(suite(ROUTED))
    result = invoke("run", ".", *options)
    assert result.exit_code == 2
    assert told in result.output
    assert "Traceback" not in result.output


def test_retries_and_the_timeout_of_a_call_are_options() -> None:
    """B138."""
    with ScriptedServer(lambda _: Reply(status=503, body="{}", headers={"Retry-After": "0"})) as server:
        write(suite(ASKED, top=f"models: [openai/m]\nsettings: {{api_base: '{server.url}'}}\n"))
        for retries in (0, 1):
            server.requests.clear()
            assert invoke("run", ".", "--live", "--retries", str(retries), "--out", f"r{retries}").exit_code == 3
            assert len(server.requests) == retries + 1
    with ScriptedServer(lambda _: Reply(text="late"), latency=5) as server:
        write(suite(ASKED, top=f"models: [openai/m]\nsettings: {{api_base: '{server.url}'}}\n"))
        result = invoke("run", ".", "--live", "--retries", "0", "--timeout", "0.2", "--out", "late")
    assert result.exit_code == 3
    assert "TimeoutError" in result.output


def test_a_factory_that_connects_is_refused_before_anything_runs() -> None:
    write(
        "import socket\nfrom chatflow_runtime import Agent\n\ndef build():\n"
        "    socket.create_connection(('127.0.0.1', 9))\n    return Agent('Triage')\n",
        "support.py",
    )
    write(f"target: support.py:build\nscenarios:{ASKED}")
    result = invoke("run", ".")
    assert result.exit_code == 2
    told = " ".join(result.output.split())
    assert "support.py:5 in build connects to 127.0.0.1:9 while replaying" in told
    write(f"target: support.py:build\nallow_hosts: localhost\nscenarios:{ASKED}")
    assert "ConnectionRefusedError" in invoke("run", ".").output


def test_two_runs_at_once_in_one_folder_are_refused() -> None:
    write(suite(ROUTED, top="repeats: 20000\n"))
    process = command("run", ".", "--out", "r")
    trials = Path("r", "trials.jsonl")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (trials.exists() and trials.stat().st_size):
        time.sleep(0.05)
    second = invoke("run", ".", "--resume", "r")
    process.kill()
    process.communicate()
    assert second.exit_code == 2
    assert "another run is writing to it" in second.output


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_no_progress_bar_moves_the_cursor_in_the_log_of_a_job(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some runners give a step a terminal."""
    write(suite(ROUTED))
    [outcome] = collect(plan(loader.load([Path()]), root=Path()))
    for variable in ("CI", "TERM"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress(1) as advance:
        advance(outcome)
    assert "trial" in capsys.readouterr().err
    monkeypatch.setenv(name, value)
    with progress(1) as advance:
        advance(outcome)
    assert not capsys.readouterr().err
