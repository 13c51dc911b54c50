"""The server of run folders: it only reads, only its own folder, and only for whoever asks for it by name."""

from __future__ import annotations

import html as entities
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import uvicorn
from starlette.testclient import TestClient

from chatflow_eval import viewer
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import PAGE, SUMMARY, TRIALS, Report, RunFolder
from chatflow_eval.writers import html

RunOf = Callable[..., Path]
TrialOf = Callable[..., Outcome]

PORT = 7357
PATHS = ("/", "/runs/a/", "/runs/nowhere/", "/live/a", "/live/a/events", "/compare", "/api/runs", "/favicon.ico", "/x")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, a_run: RunOf) -> Path:
    """Two runs, and what nobody may read beside their folder; not to be changed."""
    place = tmp_path_factory.mktemp("shown")
    a_run(place / "reports" / "a", ("passed", "failed"), day=1)
    a_run(place / "reports" / "b", ("passed", "passed"), day=2)
    shutil.copytree(place / "reports" / "a", place / "secret")
    (place / "secret" / PAGE).write_text("TOP SECRET", encoding="utf-8")
    return place / "reports"


@pytest.fixture
def folder(shown: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    shutil.copytree(shown.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "reports"


@pytest.fixture(scope="module")
def asking(shown: Path) -> TestClient:
    return client(shown)


def client(folder: Path) -> TestClient:
    return TestClient(viewer.create_app(folder), base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)


def links(page: str, way: str) -> list[str]:
    return [entities.unescape(found) for found in re.findall(rf'href="(/{way}/[^"#]+)', page)]


# What is turned away.


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get"])
@pytest.mark.parametrize("path", PATHS)
def test_nothing_but_reading_is_allowed(asking: TestClient, method: str, path: str) -> None:
    answer = asking.build_request(method, path)
    answer.method = method
    said = asking.send(answer)
    assert (said.status_code, said.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        f"127.0.0.1.evil.example:{PORT}",
        f"localhost:{PORT}.evil.example",
        f"evil.example@127.0.0.1:{PORT}",
        f"0.0.0.0:{PORT}",
        f"127.0.0.2:{PORT}",
        "127.0.0.1",
        "127.0.0.1:80",
        f"127.0.0.1:{PORT}0",
        "",
    ],
)
def test_another_name_is_refused(asking: TestClient, host: str) -> None:
    """A site whose name was made to mean 127.0.0.1 (DNS rebinding) must not have a browser read reports for it."""
    for path in PATHS:
        answer = asking.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert "reports" not in answer.text


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LocalHost:{PORT}", f"[::1]:{PORT}"])
def test_its_own_names_are_answered(asking: TestClient, host: str) -> None:
    assert asking.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/runs/../secret/",
        "/runs/..%2fsecret/",
        "/runs/%2e%2e/",
        "/runs/%2e%2e%2fsecret/",
        "/runs/..%5csecret/",
        "/runs/a/../../secret/report.html",
        "/runs/a%2f..%2f..%2fsecret/",
        "/runs/a/report.json",
        "/runs/a/%2e%2e/secret",
        "/runs//secret",
        "/runs/%00/",
        "/runs/.",
        "/runs/",
        "/live/..%2fsecret",
        "/live/%2e%2e/events",
        "/compare?base=a&run=../secret",
        "/compare?base=../secret&run=a",
        "/compare?base=a&run=/etc",
        "//etc/passwd",
        "/static/../../secret/report.html",
    ],
)
def test_no_path_leads_out_of_the_folder(asking: TestClient, shown: Path, path: str) -> None:
    for way in (path, path.replace("../secret", quote(str(shown.parent / "secret"), safe=""))):
        request = asking.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=way.encode())
        answer = asking.send(request)
        assert answer.status_code == 404
        assert "SECRET" not in answer.text


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_out_of_the_folder_are_not_followed(folder: Path) -> None:
    (folder / "linked").symlink_to(folder.parent / "secret")
    (folder / "a" / PAGE).symlink_to(folder.parent / "secret" / PAGE)
    asking = client(folder)
    assert asking.get("/runs/linked/").status_code == 404
    assert "linked" not in asking.get("/").text
    answer = asking.get("/runs/a/")
    assert answer.status_code == 200
    assert "SECRET" not in answer.text
    (folder / "b" / TRIALS).unlink()
    (folder / "b" / TRIALS).symlink_to(folder.parent / "secret" / TRIALS)
    assert asking.get("/runs/b/").status_code == 500
    assert asking.get("/compare?base=a&run=b").status_code == 500
    assert asking.get("/live/b").status_code == 200


# What every answer says.


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["HEAD", "GET", "POST"])
def test_every_answer_is_told_to_be_kept_to_itself(asking: TestClient, path: str, method: str) -> None:
    answer = asking.request(method, path)
    assert {name: answer.headers[name] for name in viewer.HEADERS} == viewer.HEADERS
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "server" not in answer.headers
    if method == "HEAD":
        assert answer.content == b""


def test_nothing_is_written(folder: Path) -> None:
    def seen() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.parent.rglob("*")}

    before, asking = seen(), client(folder)
    for path in (*PATHS, "/compare?base=a&run=b"):
        asking.get(path)
    assert seen() == before


# The pages.


def test_all_runs_are_listed_with_their_numbers_the_newest_first(asking: TestClient) -> None:
    page = asking.get("/").text
    assert "2 runs" in page
    assert links(page, "runs")[-2:] == ["/runs/b/", "/runs/a/"]
    for told in ("2026-12-02 10:00", "run scenarios/", "100.0 %", "50.0 %", "1/2"):
        assert told in page


def test_each_run_has_its_page(folder: Path) -> None:
    answer = client(folder).get("/runs/a/")
    assert answer.text == html.render(Report.read(folder / "a"))
    assert client(folder).get("/runs/a").text == answer.text


def test_the_page_works_under_the_policy_it_has_in_itself(asking: TestClient) -> None:
    for path in ("/runs/a/", "/compare?base=a&run=b"):
        answer = asking.get(path)
        found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', answer.text)
        assert found
        policy = entities.unescape(found[1])
        assert answer.headers["content-security-policy"] == f"{policy}; frame-ancestors 'none'"
        assert "script-src 'sha256-" in policy


def test_a_page_that_is_there_is_served_as_it_is(folder: Path) -> None:
    html.write(Report.read(folder / "a"), folder / "a")
    stored = (folder / "a" / PAGE).read_text(encoding="utf-8").replace("</html>", "<!-- as it was -->\n</html>")
    (folder / "a" / PAGE).write_text(stored, encoding="utf-8")
    assert client(folder).get("/runs/a/").text == stored


def test_a_page_that_is_older_than_the_trials_is_made_anew(folder: Path) -> None:
    html.write(Report.read(folder / "a"), folder / "a")
    with (folder / "a" / PAGE).open("a", encoding="utf-8") as file:
        file.write("<!-- old -->")
    trials = (folder / "a" / TRIALS).stat().st_mtime_ns
    os.utime(folder / "a" / PAGE, ns=(trials - 1, trials - 1))
    assert "<!-- old -->" not in client(folder).get("/runs/a/").text


@pytest.mark.parametrize(
    "page",
    [
        "<p>no policy</p><script>alert(1)</script>",
        """<meta http-equiv="Content-Security-Policy" content="script-src 'unsafe-inline'"><script>alert(1)</script>""",
        "",
    ],
)
def test_a_page_of_another_making_is_made_anew(folder: Path, page: str) -> None:
    """One by an older version, and one that somebody has put there for a reader's browser to run."""
    (folder / "a" / PAGE).write_text(page, encoding="utf-8")
    assert client(folder).get("/runs/a/").text == html.render(Report.read(folder / "a"))


def test_a_page_is_made_once_as_long_as_the_run_is_the_same(
    folder: Path, a_trial: TrialOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, render = list[Report](), html.render

    def noted(report: Report, **more: Any) -> str:
        made.append(report)
        return render(report, **more)

    monkeypatch.setattr(html, "render", noted)
    asking = client(folder)
    for _ in range(2):
        asking.get("/runs/a/")
        asking.get("/compare?base=a&run=b")
    assert len(made) == 2
    run = RunFolder.resume(folder / "a")
    run.append(a_trial("more", "passed"))
    assert "more" in asking.get("/runs/a/").text
    run.close()


def test_two_runs_are_compared(asking: TestClient) -> None:
    page = asking.get("/compare?base=a&run=b").text
    assert page != asking.get("/runs/b/").text
    assert "improved" in page


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("?base=a", 400), ("?base=a&run=a", 400), ("?base=a&base=b&run=b", 400), ("?base=a&run=x", 404)],
)
def test_what_cannot_be_compared_is_said(asking: TestClient, query: str, status: int) -> None:
    answer = asking.get(f"/compare{query}")
    assert answer.status_code == status
    assert "This cannot be shown" in answer.text


def test_a_damaged_run_is_listed_with_its_error(folder: Path) -> None:
    (folder / "bad").mkdir()
    (folder / "bad" / SUMMARY).write_text('{"schema": 99}', encoding="utf-8")
    (folder / "a" / TRIALS).write_text("no outcome\n", encoding="utf-8")
    asking = client(folder)
    page = asking.get("/").text
    assert "written in schema 99" in page
    assert links(page, "runs").count("/runs/b/") >= 1
    for name, why in (("bad", "written in schema 99"), ("a", f"{TRIALS}:1: not an outcome")):
        answer = asking.get(f"/runs/{name}/")
        assert answer.status_code == 500
        assert why in entities.unescape(answer.text)


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    assert "chatflow-eval run" in client(tmp_path).get("/").text


def test_programs_get_the_same_as_json(folder: Path) -> None:
    (folder / "bad").mkdir()
    (folder / "bad" / SUMMARY).write_text("{", encoding="utf-8")
    answer = client(folder).get("/api/runs")
    assert answer.headers["content-type"] == "application/json"
    runs = {run["name"]: run for run in answer.json()["runs"]}
    assert runs["a"]["accuracy"]["numerator"] == 1
    assert (runs["a"]["state"], runs["a"]["planned"], runs["a"]["incidents"]) == ("finished", 2, {"loop": 1})
    assert (runs["bad"]["state"], "not a report" in runs["bad"]["problem"]) == ("damaged", True)


# A run that goes on.


def test_a_run_that_goes_on_shows_how_far_it_is(folder: Path, a_trial: TrialOf) -> None:
    run, asking = RunFolder.create(folder / "now", command=["run", "x"], planned=5), client(folder)
    run.append(a_trial("first", "passed"))
    run.append(a_trial("second", "failed", why="round and round"))
    assert "2 of 5 trials" in asking.get("/").text
    page = asking.get("/live/now").text
    for told in ("Going on: 2 of 5 trials", "1 passed", "1 failed", "3 to go", "50.0 %", "1/2", "round and round"):
        assert told in page
    assert '<noscript><meta http-equiv="refresh"' in page
    assert "/runs/now/#trial=a.scenario.yaml::second" in entities.unescape(page)
    run.close()
    page = asking.get("/live/now").text
    assert "Finished: 2 of 5 trials" in page
    assert "Open the report" in page
    assert "refresh" not in page


@pytest.mark.skipif(sys.platform != "linux", reason="only there the system tells")
def test_a_run_that_was_killed_says_so_and_how_to_go_on(folder: Path, a_trial: TrialOf) -> None:
    run = RunFolder.create(folder / "now", command=["run", "x"], planned=5)
    run.append(a_trial("first", "passed"))
    run._file.close()
    page = client(folder).get("/live/now").text
    assert "Broken off after 1 of 5 trials" in page
    assert f"chatflow-eval run x --resume {folder / 'now'}" in page
    assert "broken off" in client(folder).get("/").text


def test_the_stream_of_a_finished_run_tells_it_once_and_ends(asking: TestClient) -> None:
    answer = asking.get("/live/a/events")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.text.startswith("event: standing\ndata: <div")
    assert answer.text.endswith("event: over\ndata: \n\n")
    assert answer.text.count("event: ") == 2


# Names and texts from outside.


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """The real server on a free port."""
    closing = Event()
    config = uvicorn.Config(viewer.create_app(folder, closing=closing), log_level="error", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            closing.set()
            server.should_exit = True
            thread.join()


NAMES = (
    "<script>alert(1)<|script>",
    "\"'><img src=x onerror=alert(1)>",
    "%2e%2e",
    "..%2fsecret",
    "a%2Fb",
    "...",
    "a b?c#d&e;f+g",
    "x\\..\\y",
    "{{ 7*7 }}",
    "line\nbreak",
    "rück\u202ewärts 🚀",
    "-rf",
    os.fsdecode(b"r\xff"),
)


@pytest.mark.skipif(sys.platform != "linux", reason="such names are not allowed elsewhere")
def test_any_name_of_a_run_leads_to_it_and_stays_text(shown: Path, tmp_path: Path) -> None:
    """With the real server, as the test client decodes names twice."""
    for name in NAMES:
        shutil.copytree(shown / "a", tmp_path / name)
    with served(tmp_path) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}") as asking:
        page = asking.get("/").text
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        ways = set(links(page, "runs"))
        assert len(ways) == len(NAMES)
        for way in ways:
            assert asking.get(way).status_code == 200
            assert asking.get(way.replace("/runs/", "/live/").rstrip("/")).status_code == 200
        given = [entities.unescape(found) for found in re.findall(r'name="base" value="([^"]*)"', page)]
        for base, run in pairwise(given):
            assert asking.get("/compare", params={"base": base, "run": run}).status_code == 200
        assert len(asking.get("/api/runs").json()["runs"]) == len(NAMES)


EVIL = "</script><script>alert(1)</script>\"' onload=alert(1) \u202e\x1b[31m\ndata: x"


def test_texts_of_a_run_stay_text(tmp_path: Path, a_trial: TrialOf) -> None:
    run = RunFolder.create(tmp_path / "r", command=["run", EVIL], planned=2)
    run.append(a_trial(EVIL, "failed", model=EVIL, why=EVIL))
    asking = client(tmp_path)
    during = [asking.get(path).text for path in ("/", "/live/r")]
    run.close()
    after = [asking.get(path).text for path in ("/", "/live/r", "/live/r/events", "/runs/r/")]
    for page in (*during, *after):
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "\x1b" not in page
    lines = after[2].splitlines()
    assert all(line == "" or line.startswith(("event: ", "data: ")) for line in lines)
    assert "data: x" not in lines


def test_half_a_surrogate_pair_harms_nobody(folder: Path) -> None:
    """JSON can hold it, UTF-8 cannot."""
    summary = json.loads((folder / "a" / SUMMARY).read_bytes())
    (folder / "a" / SUMMARY).write_text(json.dumps({**summary, "command": ["run", "\ud83d"]}), encoding="utf-8")
    asking = client(folder)
    assert "\\ud83d" in asking.get("/").text
    assert asking.get("/live/a").status_code == 200
    assert asking.get("/api/runs").json()["runs"][-1]["command"] == ["run", "\ud83d"]


# A run that somebody watches.


def test_who_watches_sees_each_trial_as_it_finishes(tmp_path: Path, a_trial: TrialOf) -> None:
    run = RunFolder.create(tmp_path / "r", planned=3)
    with served(tmp_path) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as asking:
        with asking.stream("GET", "/live/r/events") as answer:
            titles = titles_in(answer.iter_lines())
            assert next(titles) == "Going on: 0 of 3 trials"
            run.append(a_trial("s1", "passed"))
            assert next(titles) == "Going on: 1 of 3 trials"
            run.append(a_trial("s2", "failed"))
            assert next(titles) == "Going on: 2 of 3 trials"
            run.close(partial=True)
            assert next(titles) == "Ended early: 2 of 3 trials"
            assert list(titles) == []
        assert "s2" in asking.get("/runs/r/").text


def test_who_comes_later_is_told_where_it_stands(tmp_path: Path, a_trial: TrialOf) -> None:
    run = RunFolder.create(tmp_path / "r", planned=3)
    run.append(a_trial("s1", "passed"))
    with served(tmp_path) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as asking:
        for _ in range(2):
            with asking.stream("GET", "/live/r/events") as answer:
                assert next(titles_in(answer.iter_lines())) == "Going on: 1 of 3 trials"
        shutil.move(tmp_path / "r", tmp_path / "moved")
        with asking.stream("GET", "/live/moved/events") as answer:
            titles = titles_in(answer.iter_lines())
            next(titles)
            shutil.rmtree(tmp_path / "moved")
            assert list(titles) == ["Gone"]
    run._file.close()


def titles_in(lines: Iterator[str]) -> Iterator[str]:
    """The headline of each event, until the run is over."""
    for line in lines:
        if found := re.match(r'data: <div data-title="([^"]*)"', line):
            yield entities.unescape(found[1])
        if line == "event: over":
            return
