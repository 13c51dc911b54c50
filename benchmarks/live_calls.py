"""1,000 live calls through litellm, 16 at once, to a loopback server that takes 200 ms to answer."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.loopback import ENVIRONMENT, MODEL, head, serving
from benchmarks.measure import Laps, Options, Row, main, work
from benchmarks.workloads import finish, write_scenarios

CALLS, CONCURRENCY, LATENCY = 1_000, 16, 0.2


def measure(options: Options) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, serving(LATENCY) as url:
        first, file = (
            write_scenarios(Path(folder, f"{name}.scenario.yaml"), count, scripted=False, head=head(url))
            for name, count in (("first", CONCURRENCY), ("suite", CALLS // 2))
        )
        # In turns, so that whatever else the machine does falls on both.
        pairs = [
            (
                work(__file__, "trials", first, file, Path(folder, f"run-{run}"), env=ENVIRONMENT),
                work(__file__, "alone", url, env=ENVIRONMENT),
            )
            for run in options.times(3)
        ]
    ideal = CALLS * LATENCY / CONCURRENCY
    ours, alone = zip(*pairs, strict=True)
    return [
        Row(
            what=f"{CALLS:,} live calls ({CALLS // 2} trials of 2) at {LATENCY:g} s, {CONCURRENCY} at once; "
            f"no faster than {ideal:g} s; litellm's import aside",
            unit="s wall",
            values=tuple(sample.told["run wall"] for sample in ours),
            budget=1.15 * ideal,
            beside=(
                Row(what="its CPU", unit="s CPU", values=tuple(sample.told["run"] for sample in ours)),
                Row(
                    what=f"{CALLS:,} calls of litellm alone, as many at once",
                    unit="s wall",
                    values=tuple(sample.told["run wall"] for sample in alone),
                ),
                Row(what="its CPU", unit="s CPU", values=tuple(sample.told["run"] for sample in alone)),
            ),
        )
    ]


def _work(how: str, *arguments: str) -> None:
    work: dict[str, Callable[..., None]] = {"trials": _trials, "alone": _alone}
    work[how](*arguments)


def _trials(first: str, file: str, out: str) -> None:
    laps = Laps()
    for path, folder in ((first, f"{out}-first"), (file, out)):  # the first trials pay for importing litellm
        for part in finish(Path(path), Path(folder), mode="live", concurrency=CONCURRENCY):
            laps.lap(part)
    laps.tell()


def _alone(url: str) -> None:
    import litellm

    async def call(number: int) -> None:
        text = f"I have an unexpected charge on invoice {number} and need a refund, please."
        messages = [{"role": "user", "content": text}]
        await litellm.acompletion(model=MODEL, api_base=url, messages=messages, num_retries=0, max_retries=0)

    async def calls() -> None:
        await asyncio.gather(*(call(number) for number in range(CONCURRENCY)))
        laps.lap("first")
        waiting = iter(range(CALLS))

        async def some() -> None:
            for number in waiting:
                await call(number)

        await asyncio.gather(*(some() for _ in range(CONCURRENCY)))
        laps.lap("run")

    laps = Laps()
    asyncio.run(calls())
    laps.tell()


if __name__ == "__main__":
    main(measure, _work)
