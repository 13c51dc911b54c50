"""Matching one turn against a route pattern, parsed and seen before, as judging does for every turn of a run."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.measure import Laps, Options, Row, main, work

_NAMES = ("TriageAgent", "BillingAgent", "TechSupportAgent", "Manager")
_PATTERNS = (
    ("a plain route", "TriageAgent -> BillingAgent", (0, 1)),
    ("alternatives, optional and any agents", "TriageAgent -> (BillingAgent | Manager)? -> _ -> Manager", (0, 1, 2, 3)),
    ("calls and a repeated group", "TriageAgent -> (BillingAgent -> ~Manager)+ -> ... -> Manager", (0, 1, 2, 1, 0, 3)),
)
_TIMES = 20_000


def measure(options: Options) -> list[Row]:
    samples = [work(__file__) for _ in options.times(5)]
    return [
        Row(
            what=f"matching one turn of {len(route)} agents against {name}, `{pattern.replace('|', chr(92) + '|')}`",
            unit="us CPU",
            values=tuple(sample.told[name] / _TIMES * 1e6 for sample in samples),
            budget=20.0,
        )
        for name, pattern, route in _PATTERNS
    ]


def _work() -> None:
    from chatflow_eval.route import Route, visits_of_turn
    from chatflow_eval.trace import Hop, TurnTrace

    laps = Laps()
    laps.lap("imports")
    for name, pattern, route in _PATTERNS:
        compiled = Route.parse(pattern)
        agents = [_NAMES[index] for index in route]
        hops = tuple(Hop(source=a, target=b) for a, b in pairwise(agents))
        turn = TurnTrace(user="", start_agent=agents[0], end_agent=agents[-1], steps=hops)
        if not compiled.match(visits_of_turn(turn)):
            raise SystemExit(f"{pattern} does not match {agents}")
        laps.lap("set-up")
        for _ in range(_TIMES):
            compiled.match(visits_of_turn(turn))
        laps.lap(name)
    laps.tell()


if __name__ == "__main__":
    main(measure, _work)
