"""The run folders of one folder as web pages on loopback: all runs, one run, two compared, one that goes on.

Nothing is written. Whoever asks must mean this server by name, so that no other site can have a browser read it.
"""

from __future__ import annotations

import asyncio
import html as entities
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from threading import Event, Lock
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatflow_eval.comparison import compare
from chatflow_eval.errors import ReportError
from chatflow_eval.gate import Decision
from chatflow_eval.listing import Entry, Listing, search, stamp_of
from chatflow_eval.progress import Progress, Standing
from chatflow_eval.report import PAGE, SUMMARY, TRIALS, Report
from chatflow_eval.writers import html, pages, words
from chatflow_eval.writers.pages import Page

METHODS = ("GET", "HEAD")
HOSTS = ("127.0.0.1", "localhost", "[::1]")
LOOK_SECONDS = 0.5
"""Between two looks at a run that goes on."""
KEEP_ALIVE_SECONDS = 15.0
KEPT = 8
"""Rendered reports that are kept in memory."""

HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""On every answer."""
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'"
"""The content security policy of an answer that has none of its own."""


def create_app(folder: Path, *, closing: Event | None = None) -> ASGIApp:
    """The server of a folder's runs; streams end once `closing` is set."""
    viewer = _Viewer(Listing(folder), closing or Event())
    app = Starlette(
        routes=[
            Route("/", viewer.index),
            Route("/events", viewer.index_events),
            Route("/runs/{name}", viewer.report),
            Route("/runs/{name}/", viewer.report),
            Route("/compare", viewer.comparison),
            Route("/live/{name}", viewer.live),
            Route("/live/{name}/events", viewer.events),
            Route("/api/runs", viewer.api_runs),
            Route("/favicon.ico", _no_icon),
        ],
        exception_handlers={HTTPException: _http_problem, ReportError: _damaged, OSError: _damaged},
    )
    app.router.redirect_slashes = False
    return _Guard(app)


@dataclass(frozen=True, slots=True)
class _Guard:
    """Turns away what is no reading of this very server, and gives every answer its headers."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("content-security-policy", f"{NOTHING}; frame-ancestors 'none'")
            await send(message)

        await (_refused(scope) or self.app)(scope, receive, send_with_headers)


def _refused(scope: Scope) -> Response | None:
    """The answer to a request that is turned away."""
    if scope["method"] not in METHODS:
        text = f"Only {' and '.join(METHODS)}: nothing can be changed here.\n"
        return Response(text, 405, {"allow": ", ".join(METHODS)}, "text/plain")
    asked = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
    port = (scope.get("server") or ("", None))[1]
    known = {f"{host}:{port}" for host in HOSTS} | (set(HOSTS) if port == 80 else set())
    if len(asked) != 1 or asked[0] not in known:
        return Response(f"This server answers as {HOSTS[0]}:{port} only.\n", 421, None, "text/plain")
    return None


_Stamp: TypeAlias = tuple[object, ...]


@dataclass(slots=True)
class _Kept:
    """The last rendered reports; one is rendered at a time, and only once."""

    _pages: OrderedDict[tuple[str, ...], tuple[_Stamp, Page]] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def get(self, key: tuple[str, ...], stamp: _Stamp, render: Callable[[], str]) -> Page:
        """The page of the key as of the stamp."""
        with self._lock:
            kept = self._pages.get(key)
            if kept is None or kept[0] != stamp:
                text = render()
                kept = (stamp, Page(text, _policy_in(text)))
            self._pages[key] = kept
            self._pages.move_to_end(key)
            while len(self._pages) > KEPT:
                self._pages.popitem(last=False)
            return kept[1]


@dataclass(frozen=True, slots=True)
class _Look:
    """What there is to be seen of all runs at one time."""

    entries: tuple[Entry, ...]
    standings: Mapping[str, Standing]
    of: int
    """How many runs there are, also those that are not asked for."""


@dataclass
class _Viewer:
    """The pages; all but the stream run in threads, as they read files."""

    listing: Listing
    closing: Event
    kept: _Kept = field(default_factory=_Kept)
    following: dict[Path, tuple[_Stamp, Progress]] = field(default_factory=dict)

    def index(self, request: Request) -> Response:
        query = request.query_params.get("q", "")
        look = self._look_at_all(query)
        return _answer(pages.index(self._parts(look, query), of=look.of, query=query))

    async def index_events(self, request: Request) -> Response:
        query, seen = (request.query_params.get(name, "") for name in ("q", "seen"))
        return _events(request, self._stream_of_all(query, seen))

    async def _stream_of_all(self, query: str, seen: str) -> AsyncIterator[str]:
        """The parts of the list that have changed, since the page that was seen was made and from then on."""
        shown: _Look | None = None
        quiet = 0.0
        while not self.closing.is_set():
            try:
                look = await run_in_threadpool(self._look_at_all, query)
            except ReportError as error:
                yield _event("over", words.one_line(str(error)))
                return
            if shown is None or look.entries != shown.entries or look.of != shown.of:
                parts = await run_in_threadpool(self._parts, look, query)
                told: str = parts.going if parts.seen == seen else parts.head + parts.going + parts.trend + parts.runs
                seen = parts.seen
            else:
                told = pages.going(look.entries, look.standings) if look.standings != shown.standings else ""
            if told:
                yield _event("parts", told, seen)
                quiet = 0.0
            elif quiet >= KEEP_ALIVE_SECONDS:
                yield STILL_HERE
                quiet = 0.0
            shown = look
            await asyncio.sleep(LOOK_SECONDS)
            quiet += LOOK_SECONDS

    def _look_at_all(self, query: str) -> _Look:
        entries = tuple(self.listing.entries().values())
        found = search(entries, query)
        return _Look(found, {entry.name: self._standing(entry) for entry in found if entry.goes_on}, len(entries))

    def _parts(self, look: _Look, query: str) -> pages.Parts:
        return pages.parts(look.entries, look.standings, folder=self.listing.folder, of=look.of, query=query)

    def report(self, request: Request) -> Response:
        entry = _readable(self._entry(request))
        return _answer(_with_way_back(self._stored(entry) or self._rendered(entry)))

    def comparison(self, request: Request) -> Response:
        names = [request.query_params.getlist(name) for name in ("base", "run")]
        if any(len(given) != 1 for given in names):
            raise HTTPException(400, "Choose two runs to compare: /compare?base=NAME&run=NAME.")
        base, run = (_readable(self._named(given[0])) for given in names)
        if base.folder == run.folder:
            raise HTTPException(400, f"{base.name} is the same as itself: choose two runs.")

        def render() -> str:
            before, after = Report.read(base.folder), Report.read(run.folder)
            return html.render(after, Decision.kept(after), comparison=compare(before, after))

        page = self.kept.get((base.name, run.name), (_stamp(base), _stamp(run)), render)
        return _answer(_with_way_back(page))

    def live(self, request: Request) -> Response:
        entry = self._entry(request)
        return _answer(pages.live(entry, self._standing(entry)))

    async def events(self, request: Request) -> Response:
        entry = await run_in_threadpool(self._entry, request)
        return _events(request, self._stream(entry.name))

    async def _stream(self, name: str) -> AsyncIterator[str]:
        """What the page shows, as one event whenever it has changed; ends when the run has."""
        shown, quiet = "", 0.0
        while not self.closing.is_set():
            entry, now = await run_in_threadpool(self._look, name)
            if now != shown:
                yield _event("standing", now)
                shown, quiet = now, 0.0
            elif quiet >= KEEP_ALIVE_SECONDS:
                yield STILL_HERE
                quiet = 0.0
            if entry is None or not (entry.goes_on or entry.state == "broken off"):
                yield _event("over", "")
                return
            await asyncio.sleep(LOOK_SECONDS)
            quiet += LOOK_SECONDS

    def _look(self, name: str) -> tuple[Entry | None, str]:
        try:
            entry = self.listing.one(name)
        except ReportError:
            entry = None
        if entry is None:
            return None, pages.gone(name)
        return entry, pages.standing(entry, self._standing(entry))

    def api_runs(self, request: Request) -> Response:
        found = []
        for entry in search(self.listing.entries().values(), request.query_params.get("q", "")):
            run = {key: value for key, value in asdict(entry.run).items() if key != "folder"} if entry.run else {}
            told = {"name": entry.name, "folder": str(entry.folder), "state": entry.state, "problem": entry.problem}
            found.append({**run, **told, "started": entry.started})
        # In ASCII, since a text may hold half a surrogate pair, which UTF-8 cannot.
        return Response(json.dumps({"runs": found}, indent=1), media_type="application/json")

    def _entry(self, request: Request) -> Entry:
        return self._named(request.path_params["name"])

    def _named(self, name: str) -> Entry:
        entry = self.listing.one(name)
        if entry is None:
            raise HTTPException(404, f"There is no run {name!r}.")
        return entry

    def _standing(self, entry: Entry) -> Standing:
        if entry.problem:
            return Standing()
        try:
            number = (entry.folder / TRIALS).lstat().st_ino
        except OSError:
            return Standing()
        kept = self.following.get(entry.folder)
        # A run in the place of another that was removed may well get the same number.
        which = (number, entry.run.started if entry.run else "")
        if kept is None or kept[0] != which:
            kept = self.following[entry.folder] = (which, Progress(entry.folder))
        return kept[1].read()

    def _stored(self, entry: Entry) -> Page | None:
        """The page in the run folder: newer than the run, and such that only today's style and script run in it."""
        path = entry.folder / PAGE
        written, *run = (stamp_of(entry.folder / file) for file in (PAGE, TRIALS, SUMMARY))
        if written is None or any(stamp is None or written[0] < stamp[0] for stamp in run):
            return None
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        policy = _policy_in(text)
        return Page(text, policy) if policy == _todays_policy() else None

    def _rendered(self, entry: Entry) -> Page:
        def render() -> str:
            report = Report.read(entry.folder)
            return html.render(report, Decision.kept(report))

        return self.kept.get((entry.name,), _stamp(entry), render)


def _readable(entry: Entry) -> Entry:
    if entry.problem:
        raise ReportError(entry.problem)
    return entry


def _stamp(entry: Entry) -> _Stamp:
    """What changes whenever the run's report does."""
    return tuple(stamp_of(entry.folder / file) for file in (TRIALS, SUMMARY))


def _answer(page: Page, status: int = 200) -> Response:
    return HTMLResponse(page.text, status, {"content-security-policy": f"{page.policy}; frame-ancestors 'none'"})


BAR, WAY_BACK = '<header id="bar">\n', '<a href="/">← All runs</a>\n'


def _with_way_back(page: Page) -> Page:
    """The report with a link to the list in its bar, which only is of use here."""
    return Page(page.text.replace(BAR, BAR + WAY_BACK, 1), page.policy)


STILL_HERE = ": still here\n\n"


def _events(request: Request, stream: AsyncIterator[str]) -> Response:
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    return Response(headers=headers) if request.method == "HEAD" else StreamingResponse(stream, headers=headers)


def _event(name: str, data: str, number: str = "") -> str:
    fields = [f"event: {name}", *([f"id: {number}"] if number else []), *(f"data: {line}" for line in data.split("\n"))]
    return "\n".join(fields) + "\n\n"


_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
_HEAD = 20_000
"""Characters of a page in which its policy stands."""


def _policy_in(text: str) -> str:
    """The policy that a report has in itself, where it has to be named in the answer as well."""
    found = _POLICY.search(text, 0, _HEAD)
    return entities.unescape(found[1]) if found else NOTHING


@cache
def _todays_policy() -> str:
    """That of the reports which this version writes: their style and script are in it by their hashes."""
    return _policy_in(html.render(Report.of(())))


def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _answer(pages.problem(error.detail), error.status_code)


def _damaged(request: Request, error: Exception) -> Response:
    return _answer(pages.problem(str(error)), 500)


def _no_icon(request: Request) -> Response:
    return Response(status_code=204)
