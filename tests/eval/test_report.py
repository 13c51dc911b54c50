"""A run folder on disk: written as trials finish, whole after a kill, never mixed, never with a secret in it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatflow_eval.checks import Verdict
from chatflow_eval.errors import ReportError
from chatflow_eval.incidents import Incident
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import (
    SUMMARY,
    TRIALS,
    Report,
    RuleResult,
    Ruling,
    RunFolder,
    is_being_written,
    json_schema,
    keep_ruling,
    scrub_outcome,
)
from chatflow_eval.route import Aligned
from chatflow_eval.trace import (
    Edge,
    Failure,
    Hop,
    LimitStep,
    ModelStep,
    ToolStep,
    Topology,
    Trace,
    TurnTrace,
    WarningStep,
)

STEPS = (
    ModelStep(agent="A", model="m", text="One moment", calls=("transfer_to_b",), input_tokens=5, seconds=0.5),
    Hop(source="A", target="B", tool="transfer_to_b", reason="refund"),
    Hop(source="B", target="B", kind="call", accepted=False, why="self", message="already active", depth=1),
    ToolStep(agent="B", tool="refund", arguments={"amount": 20.5, "tags": ["a", None]}, result=[1, "x"], is_error=True),
    LimitStep(agent="B", limit="max_tool_iterations", value=10),
    WarningStep(agent="B", message="repaired"),
)
FULL = Outcome(
    file="scenarios/a.scenario.yaml",
    line=3,
    scenario="refund 🚀",
    tags=("smoke",),
    model="gpt-4o-mini",
    status="failed",
    why="turn 1: no",
    xfail=None,
    replayed=True,
    users=("Refund, please.", "And again?"),
    trace=Trace(
        topology=Topology(
            start="A", agents=("A", "B"), tools={"B": ("refund",)}, edges=(Edge(source="A", target="B"),)
        ),
        turns=(
            TurnTrace(
                user="Refund, please.",
                start_agent="A",
                end_agent="B",
                reply="Done.",
                steps=STEPS,
                failure=Failure(kind="model", exception="RateLimitError", message="slow down", status_code=429),
                context={"tier": "gold", "count": 1},
                seconds=1.25,
            ),
        ),
    ),
    verdicts=(
        Verdict(
            check="route",
            turn=1,
            status="failed",
            expected="A -> C",
            actual="A -> B",
            why="C was expected",
            alignment=(Aligned(expected="A", actual="A", ok=True), Aligned(expected="C", actual="B", ok=False)),
        ),
    ),
    incidents=(Incident(kind="loop", turn=1, agents=("A", "B"), message="round and round", times=2, tokens=None),),
    seconds=1.5,
)


def numbered(count: int) -> list[Outcome]:
    return [replace(FULL, repeat=number) for number in range(1, count + 1)]


def written(folder: Path, outcomes: list[Outcome]) -> Report:
    run = RunFolder.create(folder)
    for outcome in outcomes:
        run.append(outcome)
    return run.close()


# What is written is what is read.


def test_outcomes_come_back_as_they_were(tmp_path: Path) -> None:
    report = written(tmp_path / "run", numbered(3))
    again = Report.read(tmp_path / "run")
    assert list(report.outcomes) == list(again.outcomes) == numbered(3)
    assert again.metrics == report.metrics
    assert again.run == report.run
    assert again.folder == report.folder == tmp_path / "run"
    assert not again.run.partial


def test_outcomes_are_read_one_by_one_or_in_slices(tmp_path: Path) -> None:
    outcomes = written(tmp_path / "run", numbered(4)).outcomes
    assert len(outcomes) == 4
    assert outcomes[2].repeat == 3
    assert outcomes[-1].repeat == 4
    assert [outcome.repeat for outcome in outcomes[1:3]] == [2, 3]
    assert [outcome.repeat for outcome in reversed(outcomes)] == [4, 3, 2, 1]


def test_a_report_in_memory_is_the_same_report(tmp_path: Path) -> None:
    on_disk, in_memory = written(tmp_path / "run", numbered(3)), Report.of(numbered(3))
    assert in_memory.metrics == on_disk.metrics
    assert in_memory.outcomes == tuple(on_disk.outcomes)
    assert in_memory.unexpected == on_disk.unexpected == (0, 1, 2)
    assert in_memory.with_incidents == on_disk.with_incidents == (0, 1, 2)
    assert in_memory.folder is None


def test_what_its_author_expects_to_fail_is_not_unexpected() -> None:
    outcomes = [
        replace(FULL, repeat=1),
        replace(FULL, repeat=2, xfail="known"),
        replace(FULL, repeat=3, status="skipped"),
    ]
    assert Report.of(outcomes).unexpected == (0,)


def test_each_outcome_is_on_disk_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    for number, outcome in enumerate(numbered(3), 1):
        run.append(outcome)
        assert len((tmp_path / TRIALS).read_bytes().splitlines()) == number
    run.close()


def test_the_summary_says_when_how_and_what(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, command=["run", "scenarios/", "--model", "m"])
    run.append(FULL)
    run.close(partial=True)
    summary = json.loads((tmp_path / SUMMARY).read_text(encoding="utf-8"))
    assert summary["schema"] == 1
    assert summary["command"] == ["run", "scenarios/", "--model", "m"]
    assert (summary["partial"], summary["trials"]) == (True, 1)
    assert summary["started"] <= summary["finished"]
    accuracy = summary["metrics"]["total"]["accuracy"]
    assert (accuracy["numerator"], accuracy["denominator"]) == (0, 1)
    assert accuracy["definition"] == summary["definitions"]["accuracy"]
    assert Report.read(tmp_path).run.partial


data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=20), data, data)
def test_any_text_and_any_data_come_back(text: str, arguments: object, result: object) -> None:
    step = ToolStep(agent=text, tool="t", arguments=arguments, result=result)
    turn = TurnTrace(user=text, start_agent=text, end_agent=text, reply=text, steps=(step,))
    outcome = replace(FULL, scenario=text, trace=Trace(topology=Topology(start="A", agents=(text,)), turns=(turn,)))
    (kept,) = Report.of([outcome]).outcomes
    assert kept == outcome


def test_half_a_character_from_a_model_becomes_an_escape(tmp_path: Path) -> None:
    """JSON can spell a lone surrogate, and no UTF-8 file can hold one."""
    report = written(tmp_path, [replace(FULL, why="half \ud83d")])
    assert report.outcomes[0].why == r"half \ud83d"
    assert Report.read(tmp_path).outcomes[0].why == r"half \ud83d"


def test_arguments_that_are_no_json_are_kept_as_their_text() -> None:
    step = ToolStep(agent="A", tool="t", arguments={"when": Path("x")}, result=float("nan"))
    turn = TurnTrace(user="hi", start_agent="A", end_agent="A", steps=(step,))
    outcome = replace(FULL, why="half \udc00", trace=Trace(topology=Topology(start="A", agents=("A",)), turns=(turn,)))
    (kept,) = Report.of([outcome]).outcomes
    assert kept.trace is not None
    assert kept.trace.turns[0].steps[0] == replace(step, arguments={"when": "x"}, result=None)


# One run in one folder.


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    written(tmp_path, numbered(2))
    before = (tmp_path / TRIALS).read_bytes()
    with pytest.raises(ReportError, match="already holds a run"):
        RunFolder.create(tmp_path)
    assert (tmp_path / TRIALS).read_bytes() == before


@pytest.mark.parametrize("name", [TRIALS, SUMMARY])
def test_even_a_part_of_a_run_keeps_another_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ReportError, match="already holds a run"):
        RunFolder.create(tmp_path)


def test_other_files_in_a_folder_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("mine")
    assert len(written(tmp_path, numbered(1)).outcomes) == 1


def test_folders_are_made_as_needed(tmp_path: Path) -> None:
    assert len(written(tmp_path / "a" / "b" / "run", numbered(1)).outcomes) == 1


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="cannot be written"):
        RunFolder.create(tmp_path / "file" / "run")


def test_a_full_disk_is_one_clear_error_and_keeps_what_was_there(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk, in a process of its own."""
    script = f"""
    import resource, signal, sys
    from pathlib import Path
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import test_report
    from chatflow_eval.errors import ReportError
    from chatflow_eval.report import RunFolder
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    run = RunFolder.create(Path({str(tmp_path)!r}))
    one, two, three = test_report.numbered(3)
    run.append(one)
    size = Path({str(tmp_path)!r}, "trials.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    try:
        run.append(two)
    except ReportError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    run.append(three)
    run.close()
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{tmp_path / TRIALS}: cannot be written: File too large"
    assert [outcome.repeat for outcome in Report.read(tmp_path).outcomes] == [1, 3]


# After a kill.


def killed(run: RunFolder) -> None:
    """What the death of its process does to a run."""
    run._file.close()


def test_a_process_that_is_killed_loses_nothing_that_it_appended(tmp_path: Path) -> None:
    script = f"""
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import test_report
    run = test_report.RunFolder.create(Path({str(tmp_path)!r}))
    for outcome in test_report.numbered(2):
        run.append(outcome)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    assert subprocess.run([sys.executable, "-c", dedent(script)], check=False).returncode == -9
    assert list(Report.read(tmp_path).outcomes) == numbered(2)
    RunFolder.resume(tmp_path).close()


def test_a_killed_run_can_be_read_and_is_partial(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, command=["run"])
    for outcome in numbered(2):
        run.append(outcome)
    killed(run)
    report = Report.read(tmp_path)
    assert [outcome.repeat for outcome in report.outcomes] == [1, 2]
    assert report.run.partial
    assert report.run.command == ("run",)


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_cut_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    run = RunFolder.create(tmp_path)
    for outcome in numbered(3):
        run.append(outcome)
    killed(run)
    whole = (tmp_path / TRIALS).read_bytes()
    (tmp_path / TRIALS).write_bytes(whole[: -cut - 1])
    report = Report.read(tmp_path)
    assert [outcome.repeat for outcome in report.outcomes] == [1, 2]
    assert report.run.partial


def test_zeros_that_a_power_cut_leaves_at_the_end_are_left_out(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    run.append(FULL)
    killed(run)
    with (tmp_path / TRIALS).open("ab") as file:
        file.write(b"\0" * 100)
    assert len(Report.read(tmp_path).outcomes) == 1


@pytest.mark.parametrize("left", range(0, 2600, 97))
def test_resuming_a_killed_run_ends_with_the_outcomes_of_an_unbroken_one(tmp_path: Path, left: int) -> None:
    """Killed at any byte: none lost, none twice."""
    run = RunFolder.create(tmp_path, command=["run"])
    for outcome in numbered(2):
        run.append(outcome)
    killed(run)
    whole = (tmp_path / TRIALS).read_bytes()
    (tmp_path / TRIALS).write_bytes(whole[: max(len(whole) - left, 0)])
    resumed = RunFolder.resume(tmp_path)
    for outcome in numbered(3):
        if outcome.key not in resumed.finished:
            resumed.append(outcome)
    report = resumed.close()
    assert sorted(outcome.repeat for outcome in report.outcomes) == [1, 2, 3]
    again = Report.read(tmp_path)
    assert again.metrics == report.metrics == Report.of(list(report.outcomes)).metrics
    assert (again.run.partial, again.run.command) == (False, ("run",))


def test_a_run_that_goes_on_cannot_be_resumed_by_another_process(tmp_path: Path) -> None:
    running = RunFolder.create(tmp_path)
    running.append(FULL)
    with pytest.raises(ReportError, match="another run is writing to it"):
        RunFolder.resume(tmp_path)
    assert len(running.close().outcomes) == 1


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be resumed: No such file"):
        RunFolder.resume(tmp_path)


# Damage.


@pytest.fixture
def lines(tmp_path: Path) -> list[bytes]:
    """The lines of a finished run of four."""
    written(tmp_path, numbered(4))
    return (tmp_path / TRIALS).read_bytes().splitlines(keepends=True)


def damaged(folder: Path, lines: list[bytes]) -> str:
    (folder / TRIALS).write_bytes(b"".join(lines))
    with pytest.raises(ReportError) as caught:
        Report.read(folder)
    return str(caught.value).removeprefix(str(folder / TRIALS))


def test_a_line_that_is_no_outcome_is_named(tmp_path: Path, lines: list[bytes]) -> None:
    lines[1] = b"<<<<<<< HEAD\n"
    assert damaged(tmp_path, lines).startswith(":2: not an outcome: Invalid JSON")


def test_a_field_that_is_wrong_is_named(tmp_path: Path, lines: list[bytes]) -> None:
    lines[2] = lines[2].replace(b'"status":"failed","why":"turn', b'"status":"fine","why":"turn')
    assert damaged(tmp_path, lines).startswith(":3: not an outcome: status: Input should be 'passed'")


def test_a_line_cut_in_the_middle_of_the_file_is_no_cut_end(tmp_path: Path, lines: list[bytes]) -> None:
    lines[1] = lines[1][:100] + b"\n"
    assert damaged(tmp_path, lines).startswith(":2: not an outcome")


def test_an_outcome_that_stands_twice_is_two_runs_mixed(tmp_path: Path, lines: list[bytes]) -> None:
    message = damaged(tmp_path, [*lines, lines[0]])
    assert message == ":5: scenarios/a.scenario.yaml::refund 🚀 (gpt-4o-mini, repeat 1) stands here a second time"


def test_outcomes_that_went_missing_are_missed(tmp_path: Path, lines: list[bytes]) -> None:
    assert damaged(tmp_path, lines[:-1]) == ": 3 trials, where report.json counts 4"


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_flipped_byte_loses_no_outcome_unnoticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    written(folder, numbered(2))
    raw = bytearray((folder / TRIALS).read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    (folder / TRIALS).write_bytes(raw)
    with suppress(ReportError):
        assert len(Report.read(folder).outcomes) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a report"),
        ("[]", "not a report"),
        ("{}", "not a report"),
        ('{"schema": 1}', "not a report"),
        ('{"schema": 2}', "written in schema 2, this chatflow-eval"),
        ("[" * 100_000, "not a report"),
        (
            '{"schema":1,"version":"","started":"soon","finished":null,"partial":true,"command":[],"trials":0}',
            "not a report: Invalid isoformat string: 'soon'",
        ),
    ],
)
def test_a_summary_that_cannot_be_read_is_named(tmp_path: Path, text: str, message: str) -> None:
    written(tmp_path, numbered(1))
    (tmp_path / SUMMARY).write_text(text)
    with pytest.raises(ReportError, match=message) as caught:
        Report.read(tmp_path)
    assert str(tmp_path / SUMMARY) in str(caught.value)


def test_a_summary_that_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / SUMMARY).mkdir()
    with pytest.raises(ReportError, match=r"report\.json: cannot be read: Is a directory"):
        Report.read(tmp_path)


def test_a_damaged_run_is_not_resumed_and_stays_as_it_is(tmp_path: Path, lines: list[bytes]) -> None:
    lines[1] = b"{}\n"
    (tmp_path / TRIALS).write_bytes(b"".join(lines))
    with pytest.raises(ReportError, match=":2: not an outcome: file: Field required"):
        RunFolder.resume(tmp_path)
    assert (tmp_path / TRIALS).read_bytes() == b"".join(lines)


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"trials\.jsonl: no run to read here: No such file"):
        Report.read(tmp_path / "missing")


# Secrets (B099).

KEY = "sk-live-4f9aXc81Qw22Lm"


def planted(secret: str) -> Outcome:
    """An outcome with a secret wherever a text can be."""
    step = ToolStep(agent="A", tool="t", arguments={"note": secret, secret: 1}, result=[{"deep": f"key {secret}"}])
    turn = TurnTrace(
        user=secret,
        start_agent="A",
        end_agent="A",
        reply=f"It is {secret}.",
        steps=(step, ModelStep(agent="A", model="m", text=secret), Hop(source="A", target="B", reason=secret)),
        failure=Failure(kind="model", exception="AuthError", message=f"Incorrect API key: {secret}"),
        context={"configuration": {"headers": {"x": f"Bearer {secret}"}}},
    )
    return replace(
        FULL, why=secret, users=(secret,), trace=Trace(topology=Topology(start="A", agents=("A",)), turns=(turn,))
    )


def test_no_secret_reaches_the_run_folder(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, command=["run", "--header", f"Bearer {KEY}"])
    run.append(planted(KEY))
    report = run.close()
    assert all(KEY not in file.read_text(encoding="utf-8") for file in tmp_path.iterdir())
    assert KEY not in repr(report)
    assert "[redacted]" in report.outcomes[0].why


def test_no_secret_reaches_a_report_in_memory() -> None:
    assert KEY not in repr(Report.of([planted(KEY)]))


def test_the_value_of_a_secret_variable_is_a_secret_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "correct horse battery")
    assert "horse" not in repr(Report.of([planted("correct horse battery")]))


@pytest.mark.parametrize("name", ["api_key", "password", "client_secret"])
def test_what_stands_under_a_secret_s_name_is_one(name: str) -> None:
    step = ToolStep(agent="A", tool="t", arguments={name: "swordfish"}, result={"nested": [{name: "swordfish"}]})
    turn = TurnTrace(user="hi", start_agent="A", end_agent="A", steps=(step,))
    kept = scrub_outcome(replace(FULL, trace=Trace(topology=Topology(start="A", agents=("A",)), turns=(turn,))))
    assert "swordfish" not in repr(kept)


def test_an_outcome_without_secrets_is_left_as_it_is() -> None:
    assert scrub_outcome(FULL) is FULL


# The schema.


def test_the_files_are_what_their_schemas_say(tmp_path: Path) -> None:
    written(tmp_path, [*numbered(2), replace(FULL, scenario="other", tags=("a", "b"), status="passed", verdicts=())])
    line, *_ = (tmp_path / TRIALS).read_text(encoding="utf-8").splitlines()
    for file, found in (("trials", json.loads(line)), ("report", json.loads((tmp_path / SUMMARY).read_bytes()))):
        schema = json_schema(file)  # type: ignore[arg-type]
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(found, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**found, "seconds": "many", "partial": "maybe"}, schema)


def test_how_many_trials_were_planned_is_kept_and_an_older_run_does_not_say(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, planned=3)
    run._file.close()
    assert RunFolder.resume(tmp_path).close(partial=True).run.planned == 3
    summary = json.loads((tmp_path / SUMMARY).read_bytes())
    del summary["planned"]
    (tmp_path / SUMMARY).write_text(json.dumps(summary), encoding="utf-8")
    assert Report.read(tmp_path).run.planned is None


@pytest.mark.skipif(sys.platform != "linux", reason="only there the system tells")
def test_a_run_is_being_written_until_its_summary_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one that ends would be taken for one that was killed while its numbers are summed."""
    run, seen = RunFolder.create(tmp_path), list[bool | None]()
    module = sys.modules[RunFolder.__module__]
    summarise = module.summarise

    def watched(frames: Any) -> Any:
        seen.append(is_being_written(tmp_path))
        return summarise(frames)

    monkeypatch.setattr(module, "summarise", watched)
    run.close()
    assert (seen, is_being_written(tmp_path)) == ([True], False)


@pytest.mark.parametrize("file", ["report", "trials"])
def test_the_schema_is_the_published_one(file: str) -> None:
    """A change of the files shows in a change of docs/; a breaking one needs another number."""
    published = Path(__file__).parents[2] / "docs" / "schemas" / f"{file}.schema.json"
    assert json.loads(published.read_text(encoding="utf-8")) == json_schema(file)  # type: ignore[arg-type]


def test_a_run_that_goes_on_fits_the_schema_too(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path)
    jsonschema.validate(json.loads((tmp_path / SUMMARY).read_bytes()), json_schema("report"))
    run.close()


def test_lines_of_before_a_field_was_added_are_still_read(tmp_path: Path) -> None:
    written(tmp_path, numbered(1))
    (line,) = (tmp_path / TRIALS).read_text(encoding="utf-8").splitlines()
    old = {key: value for key, value in json.loads(line).items() if key not in ("demands", "baseline")}
    (tmp_path / TRIALS).write_text(json.dumps(old) + "\n", encoding="utf-8")
    assert Report.read(tmp_path).outcomes[0] == FULL


# What is no JSON, and what was decided.


class Raising:
    """What a tool may return."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def circle() -> list[Any]:
    """A list that holds itself."""
    made: list[Any] = []
    made.append(made)
    return made


def nested(depth: int) -> object:
    """A value that lies so deep."""
    made: object = "deep"
    for level in range(depth):
        made = [made] if level % 2 else {"in": made}
    return made


@pytest.mark.parametrize(
    "value",
    [
        {"\ud83d": {"\udc00": "\ud83d"}},
        b"\xff",
        {b"\xff": 1},
        {"\ud83d"},
        circle(),
        nested(150),
        nested(195),
        nested(220),
        nested(5000),
        10**4301,
        10**5000,
        Raising(),
        {Raising(): 1},
        float("nan"),
        Path("x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_tool_returns_the_run_can_be_read(tmp_path: Path, value: object) -> None:
    step = ToolStep(agent="A", tool="t", arguments={"given": value}, result=value)
    turn = TurnTrace(user="hi", start_agent="A", end_agent="A", steps=(step,), context={"kept": value})
    trace = Trace(topology=Topology(start="A", agents=("A",)), turns=(turn,))
    report = written(tmp_path, [replace(FULL, trace=trace)])
    (again,) = Report.read(tmp_path).outcomes
    assert [again] == list(report.outcomes)
    assert again.trace
    assert again.trace.turns[0].reply == turn.reply


RULES = (RuleResult("loops", "<= 0", "2", False, "loops: 2 is not <= 0"), RuleResult("cost", "<= 1", "0", True, "ok"))


def test_what_was_decided_is_kept_with_the_run(tmp_path: Path) -> None:
    report = written(tmp_path, numbered(2))
    before = json.loads((tmp_path / SUMMARY).read_bytes())
    assert before["gate"] is None
    kept = keep_ruling(report, RULES)
    assert kept.run.gate == Ruling(False, RULES)
    assert Report.read(tmp_path).run == kept.run
    after = json.loads((tmp_path / SUMMARY).read_bytes())
    assert after.pop("gate") == {"passed": False, "rules": [asdict(rule) for rule in RULES]}
    assert after == {key: value for key, value in before.items() if key != "gate"}
    assert not (tmp_path / f"{SUMMARY}.new").exists()


def test_what_is_decided_later_takes_its_place(tmp_path: Path) -> None:
    report = keep_ruling(written(tmp_path, numbered(1)), RULES)
    keep_ruling(report, RULES[1:])
    assert Report.read(tmp_path).run.gate == Ruling(True, RULES[1:])


def test_a_run_that_is_gone_on_with_is_no_longer_decided(tmp_path: Path) -> None:
    keep_ruling(written(tmp_path, numbered(1)), RULES)
    run = RunFolder.resume(tmp_path)
    assert Report.read(tmp_path).run.gate is None
    run.close()


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    """Its summary is written by the process that runs it."""
    run = RunFolder.create(tmp_path)
    run.append(FULL)
    before = (tmp_path / SUMMARY).read_bytes()
    assert keep_ruling(Report.read(tmp_path), RULES).run.gate == Ruling(False, RULES)
    assert (tmp_path / SUMMARY).read_bytes() == before
    run.close()


def test_no_secret_is_in_what_was_decided(tmp_path: Path) -> None:
    told = RuleResult(f"must pass: {KEY}", "every trial passes", "n/a", False, f"must pass: {KEY} \ud83d")
    keep_ruling(written(tmp_path, numbered(1)), [told])
    gate = Report.read(tmp_path).run.gate
    assert gate
    assert gate.rules[0].why == r"must pass: [redacted] \ud83d"


def test_an_older_run_has_nothing_decided(tmp_path: Path) -> None:
    written(tmp_path, numbered(1))
    summary = json.loads((tmp_path / SUMMARY).read_bytes())
    del summary["gate"]
    (tmp_path / SUMMARY).write_text(json.dumps(summary), encoding="utf-8")
    assert Report.read(tmp_path).run.gate is None


def test_a_summary_that_cannot_be_replaced_is_one_clear_error(tmp_path: Path) -> None:
    report = written(tmp_path, numbered(1))
    (tmp_path / f"{SUMMARY}.new").mkdir()
    with pytest.raises(ReportError, match=r"report\.json: cannot be written: Is a directory"):
        keep_ruling(report, RULES)


@pytest.mark.parametrize("gone", [True, False])
def test_trials_that_change_while_they_are_read_are_named(tmp_path: Path, gone: bool) -> None:
    outcomes = written(tmp_path, numbered(2)).outcomes
    if gone:
        (tmp_path / TRIALS).unlink()
    else:
        (tmp_path / TRIALS).write_bytes(b"")
    for look in (lambda: outcomes[0], lambda: outcomes[:], lambda: list(outcomes)):
        with pytest.raises(ReportError, match="cannot be read: No such file" if gone else "changed while it was read"):
            look()
