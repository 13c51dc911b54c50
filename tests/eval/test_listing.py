"""Run folders of a folder: found without following links, each in its state, a damaged one among the others."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval import history, report
from chatflow_eval.errors import ReportError
from chatflow_eval.listing import Entry, Listing, search
from chatflow_eval.report import SUMMARY, TRIALS, RunFolder

RunOf = Callable[..., Path]


def states(folder: Path) -> dict[str, str]:
    return {name: entry.state for name, entry in Listing(folder).entries().items()}


def with_accuracy(value: str) -> str:
    rate = f'{{"numerator": 1, "denominator": 1, "value": {value}, "low": 0, "high": 1}}'
    metrics = f'{{"models": [], "total": {{"accuracy": {rate}}}}}'
    return f'{{"schema": 1, "started": "", "finished": "", "partial": false, "command": [], "metrics": {metrics}}}'


def test_the_newest_comes_first(tmp_path: Path, a_run: RunOf) -> None:
    for name, day in (("b", 1), ("a", 3), ("c", 2)):
        a_run(tmp_path / name, day=day)
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    assert list(Listing(tmp_path).entries()) == ["a", "c", "b"]


def test_a_run_folder_is_a_listing_of_itself(tmp_path: Path, a_run: RunOf) -> None:
    assert list(Listing(a_run(tmp_path / "only")).entries()) == ["only"]


def test_a_run_is_told_from_one_that_was_killed(tmp_path: Path, a_run: RunOf) -> None:
    a_run(tmp_path / "done")
    a_run(tmp_path / "stopped", partial=True)
    killed, going_on = (RunFolder.create(tmp_path / name) for name in ("killed", "going on"))
    killed._file.close()
    seen = {"done": "finished", "stopped": "partial", "killed": "broken off", "going on": "going on"}
    if sys.platform != "linux":
        seen |= dict.fromkeys(("killed", "going on"), "unfinished")
    assert states(tmp_path) == seen
    going_on.close()
    assert states(tmp_path)["going on"] == "finished"


def test_to_look_takes_no_lock(tmp_path: Path) -> None:
    """Else a run that starts while somebody looks would be told that another one is writing."""
    RunFolder.create(tmp_path / "r")._file.close()
    for _ in range(3):
        states(tmp_path)
        RunFolder.resume(tmp_path / "r")._file.close()


def test_where_the_system_does_not_tell_it_is_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunFolder.create(tmp_path / "r")._file.close()
    monkeypatch.setattr("chatflow_eval.listing.is_being_written", lambda folder: None)
    (entry,) = Listing(tmp_path).entries().values()
    assert (entry.state, entry.goes_on) == ("unfinished", True)


def test_a_run_that_was_killed_before_it_wrote_a_summary_is_listed(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / TRIALS).touch()
    assert not report.is_being_written(tmp_path / "nowhere")
    assert states(tmp_path)["r"] in ("broken off", "unfinished")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        "\x00\x01",
        '{"schema": 99}',
        '{"schema": 1}',
        '{"schema": 1, "started": 5, "finished": null, "partial": false, "command": []}',
        '{"schema": 1, "started": "", "finished": null, "partial": false, "command": 7}',
        '{"schema": 1, "started": "", "finished": "", "partial": false, "command": [], "metrics": {"total": 1}}',
        with_accuracy("NaN"),
        with_accuracy('"<b>"'),
    ],
)
def test_a_damaged_summary_is_told_of_and_harms_no_other(tmp_path: Path, a_run: RunOf, text: str) -> None:
    a_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / SUMMARY).write_text(text, encoding="utf-8")
    entries = Listing(tmp_path).entries()
    assert entries["good"].state == "finished"
    assert entries["bad"].state == "damaged"
    assert str(tmp_path / "bad" / SUMMARY) in entries["bad"].problem


def test_a_start_that_is_no_time_gives_way_to_the_time_of_the_folder(tmp_path: Path, a_run: RunOf) -> None:
    a_run(tmp_path / "r")
    summary = json.loads((tmp_path / "r" / SUMMARY).read_bytes())
    (tmp_path / "r" / SUMMARY).write_text(json.dumps({**summary, "started": "<yesterday>"}), encoding="utf-8")
    assert Listing(tmp_path).entries()["r"].started.endswith("+00:00")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_are_not_followed(tmp_path: Path, a_run: RunOf) -> None:
    outside, inside = a_run(tmp_path / "outside"), tmp_path / "inside"
    inside.mkdir()
    (inside / "linked").symlink_to(outside)
    for file in (SUMMARY, TRIALS):
        (inside / f"with-{file}").mkdir()
        (inside / f"with-{file}" / file).symlink_to(outside / file)
    os.mkfifo(inside / f"with-{SUMMARY}" / TRIALS)
    entries = Listing(inside).entries()
    assert entries.keys() == {f"with-{SUMMARY}", f"with-{TRIALS}"}
    assert {entry.state for entry in entries.values()} == {"damaged"}


def test_a_summary_is_read_again_only_when_it_changed(
    tmp_path: Path, a_run: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, listing, paths = history.read, Listing(tmp_path), list[Path]()

    def noted(path: Path) -> history.PastRun:
        paths.append(path)
        return read(path)

    monkeypatch.setattr(history, "read", noted)
    a_run(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / SUMMARY).write_text("{", encoding="utf-8")
    listing.entries(), listing.entries()
    assert sorted(paths) == [tmp_path / "a" / SUMMARY, tmp_path / "b" / SUMMARY]
    (tmp_path / "b" / SUMMARY).write_text("[1]", encoding="utf-8")
    listing.entries()
    assert paths[2:] == [tmp_path / "b" / SUMMARY]


def test_a_name_is_looked_up_and_nothing_else(tmp_path: Path, a_run: RunOf) -> None:
    a_run(tmp_path / "runs" / "a")
    a_run(tmp_path / "secret")
    listing = Listing(tmp_path / "runs")
    assert listing.one("a")
    for name in ("", ".", "..", "../secret", str(tmp_path / "secret"), "a/", "a/../../secret", "a\0"):
        assert listing.one(name) is None


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="nowhere"):
        Listing(tmp_path / "nowhere").entries()


def test_a_summary_that_could_not_be_read_is_tried_again(
    tmp_path: Path, a_run: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files, say, pass by themselves, and nothing changes in the folder."""
    a_run(tmp_path / "r")
    listing = Listing(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: (_ for _ in ()).throw(OSError(24, "Too many open files")))
        assert listing.entries()["r"].problem.endswith("cannot be read: Too many open files")
    assert listing.entries()["r"].state == "finished"


def test_runs_are_found_by_all_words_of_a_query(tmp_path: Path, a_run: RunOf) -> None:
    a_run(tmp_path / "Nightly-1", day=1)
    a_run(tmp_path / "nightly-2", day=2, partial=True)
    entries = Listing(tmp_path).entries().values()
    for query, found in (
        ("", 2),
        (" \t", 2),
        ("nightly", 2),
        ("NIGHTLY scenarios/", 2),
        ("nightly partial", 1),
        ("2026-12-01", 1),
        ("chatflow m", 2),
        ("nightly gone", 0),
    ):
        assert len(search(entries, query)) == found, query


@given(st.text())
def test_any_query_can_be_asked(query: str) -> None:
    entry = Entry(name=query, folder=Path("r"), state="finished", started="2026-12-01T10:00:00+00:00", run=None)
    assert search([entry], query) == (entry,)


def test_looking_from_several_threads_at_once_is_safe(tmp_path: Path, a_run: RunOf) -> None:
    a_run(tmp_path / "r0")
    for number in range(1, 30):
        shutil.copytree(tmp_path / "r0", tmp_path / f"r{number}")
    listing = Listing(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        assert [len(each) for each in pool.map(lambda _: listing.entries(), range(40))] == [30] * 40


def test_a_folder_that_nobody_may_look_into_harms_no_other(
    tmp_path: Path, a_run: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("good", "locked"):
        a_run(tmp_path / name)
    lstat = Path.lstat

    def refused(path: Path) -> os.stat_result:
        if path.parent == tmp_path / "locked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", refused)
    entries = Listing(tmp_path).entries()
    assert {name: entry.state for name, entry in entries.items()} == {"good": "finished", "locked": "damaged"}
    assert entries["locked"].problem == f"{tmp_path / 'locked' / SUMMARY}: cannot be read: Permission denied"
