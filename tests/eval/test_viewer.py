"""The server of run folders: it only reads, only its own folder, and only for whoever asks for it by name."""

from __future__ import annotations

import errno
import html as entities
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import uvicorn
from starlette.testclient import TestClient

from chatflow_eval import viewer
from chatflow_eval.gate import Gate
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import PAGE, SUMMARY, TRIALS, Report, RunFolder, keep_ruling
from chatflow_eval.writers import html, pages

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


def as_a_file(page: str) -> str:
    """A report without the way back to the list, which has to be there."""
    assert page.count('<a href="/">') == page.count(viewer.WAY_BACK) == 1
    return page.replace(viewer.WAY_BACK, "")


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


def test_the_stream_of_all_runs_is_as_guarded_as_the_rest(folder: Path) -> None:
    closed = Event()
    closed.set()
    asking = TestClient(viewer.create_app(folder, closing=closed), base_url=f"http://127.0.0.1:{PORT}")
    assert asking.post("/events").status_code == 405
    assert asking.get("/events", headers={"host": f"evil.example:{PORT}"}).status_code == 421
    for method in ("HEAD", "GET"):
        answer = asking.request(method, "/events")
        assert {name: answer.headers[name] for name in viewer.HEADERS} == viewer.HEADERS
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.text == ""


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
    assert as_a_file(answer.text) == html.render(Report.read(folder / "a"))
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
    assert as_a_file(client(folder).get("/runs/a/").text) == stored


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
    assert as_a_file(client(folder).get("/runs/a/").text) == html.render(Report.read(folder / "a"))


def test_a_page_is_made_once_as_long_as_the_run_is_the_same(
    folder: Path, a_trial: TrialOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, render = list[Report](), html.render

    def noted(report: Report, *more: Any, **named: Any) -> str:
        made.append(report)
        return render(report, *more, **named)

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


def test_what_the_gate_decided_is_in_the_list_and_in_the_report(folder: Path) -> None:
    for name in ("a", "b"):
        report = Report.read(folder / name)
        keep_ruling(report, Gate().decide(report).rules)
    asking = client(folder)
    page = asking.get("/").text
    assert re.findall(r"gate (?:open|closed)", page) == ["gate open", "gate closed"]
    assert [run["gate"] for run in asking.get("/api/runs").json()["runs"]] == [True, False]
    for path in ("/runs/a/", "/compare?base=b&run=a"):
        assert "scenarios: 1 of 2 trials as expected" in asking.get(path).text


def test_a_page_from_before_the_gate_decided_is_made_anew(folder: Path) -> None:
    report = Report.read(folder / "a")
    html.write(report, folder / "a")
    keep_ruling(report, Gate(max_loops=0).decide(report).rules)
    os.utime(folder / "a" / PAGE, ns=(0, 0))
    assert "loops: 1 is not" in client(folder).get("/runs/a/").text


def test_runs_are_found_by_words(folder: Path) -> None:
    asking = client(folder)
    for query, found in (
        ("", ["b", "a"]),
        ("2026-12-02", ["b"]),
        ("SCENARIOS/ 12-01", ["a"]),
        ("finished run", ["b", "a"]),
        ("nothing", []),
        ("<b>", []),
    ):
        assert [run["name"] for run in asking.get("/api/runs", params={"q": query}).json()["runs"]] == found
        page = asking.get("/", params={"q": query}).text
        listed = page[page.index('data-part="runs"') :]
        assert links(listed, "runs") == [f"/runs/{name}/" for name in found]
        assert (f"{len(found)} of 2 runs" in page) == bool(query)
        assert f'value="{entities.escape(query)}"' in page or not query


def test_many_runs_can_be_searched(folder: Path, a_run: RunOf) -> None:
    assert 'role="search"' not in client(folder).get("/").text
    for number in range(pages.MANY - 2):
        a_run(folder / f"n{number}")
    assert 'role="search"' in client(folder).get("/").text


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


# A run that ends as nobody wished.

RUNNING = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import trial
from chatflow_eval.report import RunFolder
folder = Path(sys.argv[2])
if folder.exists():
    run = RunFolder.resume(folder)
else:
    run = RunFolder.create(folder, command=["run", "x"], planned=3)
for line in sys.stdin:
    run.append(trial(line.strip(), "passed"))
run.close()
"""


@contextmanager
def a_process_that_runs(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that appends a trial for each line that it is given, and ends when there are no more."""
    command = [sys.executable, "-c", RUNNING, str(Path(__file__).parent), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only there the system tells")
def test_a_run_that_is_killed_and_gone_on_with_while_somebody_watches(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    folder = tmp_path / "runs" / "r"
    with served(tmp_path / "runs") as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as asking:
        with a_process_that_runs(folder) as process:
            say(process, "s1")
            wait_for(lambda: "1 of 3 trials" in asking.get("/").text)
            with asking.stream("GET", "/live/r/events") as answer:
                titles = titles_in(answer.iter_lines())
                assert next(titles) == "Going on: 1 of 3 trials"
                process.kill()
                process.wait()
                assert next(titles) == "Broken off after 1 of 3 trials"
                with (folder / TRIALS).open("a", encoding="utf-8") as file:
                    file.write('{"half a li')
                assert asking.get("/runs/r/").status_code == 200
                with a_process_that_runs(folder) as resumed:
                    assert next(titles) == "Going on: 1 of 3 trials"
                    say(resumed, "s2", "s3")
                    assert resumed.stdin
                    resumed.stdin.close()
                    assert list(titles)[-1] == "Finished: 3 of 3 trials"
        assert "s3" in asking.get("/runs/r/").text
    assert "Traceback" not in "".join(capfd.readouterr())


def say(process: subprocess.Popen[str], *trials: str) -> None:
    assert process.stdin
    process.stdin.write("".join(f"{each}\n" for each in trials))
    process.stdin.flush()


def wait_for(seen: Callable[[], bool]) -> None:
    for _ in range(600):
        if seen():
            return
        sleep(0.05)
    raise AssertionError("it never came")


def test_two_runs_at_once_are_told_apart(tmp_path: Path, a_trial: TrialOf) -> None:
    one, two = (RunFolder.create(tmp_path / name, planned=5) for name in ("one", "two"))
    one.append(a_trial("s1", "passed"))
    for number in range(2):
        two.append(a_trial(f"s{number}", "failed"))
    asking = client(tmp_path)
    page = asking.get("/").text
    assert re.findall(r"(\d) of 5 trials</span> <code>(\w+)", page) in (
        [("1", "one"), ("2", "two")],
        [("2", "two"), ("1", "one")],
    )
    assert ["1 passed" in asking.get(f"/live/{name}").text for name in ("one", "two")] == [True, False]
    one.close()
    two.close()


def test_a_run_in_the_place_of_another_is_not_taken_for_it(tmp_path: Path, a_trial: TrialOf) -> None:
    asking = client(tmp_path)
    for count in (3, 1):
        run = RunFolder.create(tmp_path / "r", planned=5)
        for number in range(count):
            run.append(a_trial(f"s{number}", "passed"))
        assert f"{count} of 5 trials" in asking.get("/live/r").text
        run.close()
        shutil.rmtree(tmp_path / "r")
        sleep(0.01)


def test_a_folder_that_is_removed_while_it_is_shown_is_one_clear_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, a_trial: TrialOf
) -> None:
    """At any time: when it was found, when its trials were counted, when they are shown."""
    asking, read = client(folder), Report.read

    def then_removed(path: Path) -> Report:
        found = read(path)
        shutil.rmtree(path)
        return found

    monkeypatch.setattr(Report, "read", then_removed)
    answer = asking.get("/runs/a/")
    assert (answer.status_code, "cannot be read: No such file" in answer.text) == (500, True)
    monkeypatch.undo()
    assert asking.get("/runs/a/").status_code == 404
    assert asking.get("/live/a").status_code == 404
    assert links(asking.get("/").text, "runs")[-1:] == ["/runs/b/"]
    shutil.rmtree(folder)
    for path in ("/", "/runs/b/", "/live/b", "/api/runs"):
        answer = asking.get(path)
        assert (answer.status_code, "cannot be read: No such file" in answer.text) == (500, True)
    assert asking.get("/events").text.startswith("event: over\ndata: ")


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("name", [TRIALS, SUMMARY, PAGE])
def test_what_the_disk_does_not_give_is_one_clear_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: int
) -> None:
    html.write(Report.read(folder / "a"), folder / "a")
    opened = Path.open

    def refused(path: Path, *more: Any, **named: Any) -> Any:
        if path == folder / "a" / name:
            raise OSError(error, os.strerror(error))
        return opened(path, *more, **named)

    asking = client(folder)
    if name != PAGE:
        os.utime(folder / "a" / PAGE, ns=(0, 0))
    monkeypatch.setattr(Path, "open", refused)
    answers = {path: asking.get(path) for path in ("/", "/runs/a/", "/live/a", "/live/a/events", "/api/runs")}
    assert {answer.status_code for path, answer in answers.items() if path != "/runs/a/"} == {200}
    assert answers["/runs/a/"].status_code == (200 if name == PAGE else 500)
    assert (os.strerror(error) in answers["/runs/a/"].text) == (name != PAGE)
    monkeypatch.undo()
    assert asking.get("/runs/a/").status_code == 200


# The list while runs go on.


def test_who_looks_at_the_list_sees_what_changes(tmp_path: Path, a_trial: TrialOf, a_run: RunOf) -> None:
    a_run(tmp_path / "done")
    with served(tmp_path) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as asking:
        seen = re.search(r'data-seen="(\w+)"', asking.get("/").text)
        assert seen
        with asking.stream("GET", "/events", params={"seen": seen[1]}) as answer:
            events = parts_in(answer.iter_lines())
            assert next(events) == (["going"], "")
            run = RunFolder.create(tmp_path / "now", planned=2)
            parts, progress = next(events)
            assert (parts, progress) == (["head", "going", "trend", "runs"], "0 of 2 trials")
            run.append(a_trial("s1", "passed"))
            assert next(events) == (["going"], "1 of 2 trials")
            run.append(a_trial("s2", "passed"))
            assert next(events) == (["going"], "2 of 2 trials")
            run.close()
            assert next(events) == (["head", "going", "trend", "runs"], "")
            shutil.rmtree(tmp_path / "now")
            assert next(events)[0] == ["head", "going", "trend", "runs"]


def parts_in(lines: Iterator[str]) -> Iterator[tuple[list[str], str]]:
    """The parts of the list in each event, and how far the run is that goes on."""
    told = ""
    for line in lines:
        told += line
        if line == "" and told:
            progress = re.search(r"\d of \d trials", told)
            yield re.findall(r'data-part="(\w+)"', told), progress[0] if progress else ""
            told = ""


def titles_in(lines: Iterator[str]) -> Iterator[str]:
    """The headline of each event, until the run is over."""
    for line in lines:
        if found := re.match(r'data: <div data-title="([^"]*)"', line):
            yield entities.unescape(found[1])
        if line == "event: over":
            return
