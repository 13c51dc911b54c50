"""1,000 trials replayed from 1,000 cassettes of two calls each, and what a replayed call costs other ways."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.loopback import ENVIRONMENT, MODEL, head, serving
from benchmarks.measure import Laps, Options, Row, Sample, main, work
from benchmarks.workloads import finish, write_scenarios

COUNT = 1_000
OTHERS = 200
"""Trials of other clients, and exchanges that are asked for at the end of a long cassette."""
_HEAVY = ("litellm", "vcr", "httpx")


def measure(options: Options) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        short, long = Path(folder, "short.yaml"), Path(folder, "long.yaml")
        with serving() as url:
            file = write_scenarios(Path(folder, "suite.scenario.yaml"), COUNT, scripted=False, head=head(url))
            recorded = work(__file__, "trials", "all", file, Path(folder, "recorded"), env=ENVIRONMENT)
            for tape, exchanges in ((short, 2), (long, COUNT)):
                work(__file__, "record", url, tape, exchanges, env=ENVIRONMENT)
        samples = [work(__file__, "trials", "none", file, Path(folder, f"run-{run}")) for run in options.times(5)]
        httpx, litellm = (
            [work(__file__, "vcrpy", client, url, short, env=ENVIRONMENT) for _ in options.times(3)]
            for client in _CLIENTS
        )
        ours, theirs = ([work(__file__, who, url, long) for _ in options.times(3)] for who in ("ours", "theirs"))
    imported = sorted({name for sample in samples for name in sample.told["heavy"]})
    return [
        Row(
            what=f"{COUNT:,} trials replayed from {COUNT:,} cassettes (2 calls each), written to the run folder; "
            "loading and imports aside",
            unit="s CPU",
            values=tuple(sample.told["run"] for sample in samples),
            budget=3.0,
            note=f"imported: {', '.join(imported) or 'neither litellm nor vcrpy nor httpx'}",
            beside=(
                Row(
                    what="recording them from a server that answers at once, litellm's import included",
                    unit="s CPU",
                    values=(recorded.told["run"],),
                ),
            ),
        ),
        Row(
            what="one of those calls, with its share of reading the cassette, routing, judging and writing",
            unit="ms CPU",
            values=_per_call(samples, "run", 2 * COUNT),
            beside=(
                Row(
                    what="raw httpx through vcrpy, with its share of opening the cassette, and nothing else",
                    unit="ms CPU",
                    values=_per_call(httpx, "calls", 2 * OTHERS),
                ),
                Row(
                    what="litellm through vcrpy, likewise",
                    unit="ms CPU",
                    values=_per_call(litellm, "calls", 2 * OTHERS),
                ),
            ),
        ),
        Row(
            what=f"finding an exchange by its body at the end of a cassette of {COUNT:,}",
            unit="ms CPU",
            values=_per_call(ours, "calls", OTHERS),
            beside=(Row(what="raw httpx through vcrpy", unit="ms CPU", values=_per_call(theirs, "calls", 10)),),
        ),
    ]


def _per_call(samples: list[Sample], part: str, calls: int) -> tuple[float, ...]:
    return tuple(sample.told[part] / calls * 1e3 for sample in samples)


def _work(how: str, *arguments: str) -> None:
    _WORK[how](*arguments)


def _trials(mode: str, file: str, out: str) -> None:
    laps = Laps()
    for part in finish(Path(file), Path(out), mode="all" if mode == "all" else "none"):
        laps.lap(part)
    laps.tell(heavy=[name for name in _HEAVY if name in sys.modules])


def _record(url: str, tape: str, exchanges: str) -> None:
    import vcr

    call = _httpx(url)
    with vcr.VCR(record_mode="all", filter_headers=["authorization"]).use_cassette(tape):
        for number in range(int(exchanges)):
            call(number)


def _vcrpy(client: str, url: str, tape: str) -> None:
    """Trials of two calls as people replay them without us: a cassette is opened, and a client is called twice."""
    import vcr

    recorder, call = vcr.VCR(record_mode="none"), _CLIENTS[client](url)
    laps = Laps()
    for trial in range(1 + OTHERS):
        with recorder.use_cassette(tape):
            call(0)
            call(1)
        if not trial:
            laps.lap("first")
    laps.lap("calls")
    laps.tell()


def _theirs(url: str, tape: str) -> None:
    import vcr

    call = _httpx(url)
    laps = Laps()
    with vcr.VCR(record_mode="none", match_on=["method", "uri", "body"]).use_cassette(tape):
        laps.lap("opening")
        for number in range(COUNT - 10, COUNT):
            call(number)
        laps.lap("calls")
    laps.tell()


def _ours(url: str, tape: str) -> None:
    from chatflow_eval.cassette import read
    from chatflow_eval.player import Asked, Player

    laps = Laps()
    player = Player(read(Path(tape)), "")
    laps.lap("opening")
    for number in range(COUNT - OTHERS, COUNT):
        player.play(Asked(_request(number), uri=f"{url}/chat/completions"))
    laps.lap("calls")
    laps.tell()


def _httpx(url: str) -> Callable[[int], object]:
    import httpx

    client = httpx.Client()

    def call(number: int) -> object:
        return client.post(f"{url}/chat/completions", json=_request(number)).json()["choices"][0]["message"]

    return call


def _litellm(url: str) -> Callable[[int], object]:
    import litellm

    def call(number: int) -> object:
        messages = _request(number)["messages"]
        return litellm.completion(model=MODEL, api_base=url, max_retries=0, messages=messages).choices[0].message

    return call


def _request(number: int) -> dict[str, Any]:
    text = f"I have an unexpected charge on invoice {number} and need a refund, please."
    system = "Welcome the user and find out what the matter is. " * 20
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return {"model": MODEL.partition("/")[2], "messages": messages}


_CLIENTS = {"httpx": _httpx, "litellm": _litellm}
_WORK: dict[str, Callable[..., None]] = {
    "trials": _trials,
    "record": _record,
    "vcrpy": _vcrpy,
    "ours": _ours,
    "theirs": _theirs,
}

if __name__ == "__main__":
    main(measure, _work)
