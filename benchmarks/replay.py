"""1,000 trials replayed from 1,000 cassettes of two calls each, and what one replayed call costs other ways."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.loopback import ENVIRONMENT, MODEL, head, serving
from benchmarks.measure import Laps, Options, Row, main, work
from benchmarks.workloads import finish, write_scenarios

COUNT, CALLS = 1_000, 200
_HEAVY = ("litellm", "vcr", "httpx")


def measure(options: Options) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        with serving() as url:
            file = write_scenarios(Path(folder, "suite.scenario.yaml"), COUNT, scripted=False, head=head(url))
            recorded = work(__file__, "trials", "all", file, Path(folder, "recorded"), env=ENVIRONMENT)
            tape = Path(folder, "tape.yaml")
            work(__file__, "record", url, tape, env=ENVIRONMENT)
        samples = [work(__file__, "trials", "none", file, Path(folder, f"run-{run}")) for run in options.times(5)]
        others = {
            client: [work(__file__, client, url, tape, env=ENVIRONMENT) for _ in options.times(3)]
            for client in ("httpx", "litellm", "keyed")
        }
    imported = sorted({name for sample in samples for name in sample.told["heavy"]})
    return [
        Row(
            what=f"{COUNT:,} trials replayed from {COUNT:,} cassettes (2 calls each), written to the run folder; "
            "loading and imports aside",
            unit="s CPU",
            values=tuple(sample.told["run"] for sample in samples),
            budget=3.0,
            note=f"imported: {', '.join(imported) or 'no litellm, no vcrpy, no httpx'}",
            beside=(
                Row(
                    what=f"recording them from a server that answers at once, litellm's import included "
                    f"({recorded.peak_mb:,.0f} MB)",
                    unit="s CPU",
                    values=(recorded.told["run"],),
                ),
            ),
        ),
        Row(
            what="one of those calls, with all that its trial costs",
            unit="ms CPU",
            values=tuple(sample.told["run"] / (2 * COUNT) * 1e3 for sample in samples),
            beside=tuple(
                Row(
                    what=what,
                    unit="ms CPU",
                    values=tuple(sample.told["calls"] / CALLS * 1e3 for sample in others[client]),
                )
                for client, what in (
                    ("httpx", "raw httpx through vcrpy, the call alone"),
                    ("litellm", "litellm through vcrpy, the call alone"),
                    ("keyed", f"the last of {CALLS} exchanges in one cassette, vcrpy matching on bodies"),
                )
            ),
        ),
    ]


def _work(how: str, *arguments: str) -> None:
    laps = Laps()
    if how == "trials":
        mode, file, out = arguments
        for part in finish(Path(file), Path(out), mode="all" if mode == "all" else "none"):
            laps.lap(part)
        laps.tell(heavy=[name for name in _HEAVY if name in sys.modules])
        return
    url, tape = arguments
    _call_through_vcr(how, url=url, tape=Path(tape), laps=laps)
    laps.tell()


def _call_through_vcr(how: str, *, url: str, tape: Path, laps: Laps) -> None:
    """Records or replays one exchange after the other, in the order recorded, as people do without us."""
    import vcr

    client = "httpx" if how in ("record", "keyed") else how
    call = _CLIENTS[client](url)
    laps.lap("imports")
    recorder = vcr.VCR(
        record_mode="once" if how == "record" else "none",
        match_on=["method", "uri", "body"] if how == "keyed" else ["method", "uri"],
        filter_headers=["authorization"],
    )
    with recorder.use_cassette(str(tape)):
        laps.lap("opening")
        if how == "keyed":
            for _ in range(10):
                call(CALLS - 1)
        for number in () if how == "keyed" else range(CALLS):
            call(number)
        laps.lap("calls")


def _request(number: int) -> dict[str, Any]:
    system = "Welcome the user and find out what the matter is. " * 20
    return {
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"I have an unexpected charge on invoice {number} and need a refund, please."},
        ]
    }


def _httpx(url: str) -> Callable[[int], object]:
    import httpx

    client = httpx.Client()

    def call(number: int) -> object:
        response = client.post(f"{url}/chat/completions", json={"model": "scripted", **_request(number)})
        return response.json()["choices"][0]["message"]

    return call


def _litellm(url: str) -> Callable[[int], object]:
    import litellm

    def call(number: int) -> object:
        return litellm.completion(model=MODEL, api_base=url, max_retries=0, **_request(number)).choices[0].message

    call(0) if False else None
    return call


_CLIENTS = {"httpx": _httpx, "litellm": _litellm}


if __name__ == "__main__":
    main(measure, _work)
