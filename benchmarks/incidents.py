"""How well each kind of incident is found: precision and recall over labelled traces, in two halves.

    python benchmarks/incidents.py

The detectors were written looking at the `develop` half only; the `report` half was only counted. The table stands in
docs/incidents.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.labelled_traces import SHARED, Labelled, traces
from chatflow_eval.incidents import KINDS, IncidentKind, find


@dataclass(slots=True)
class Score:
    """Of one half: traces in which a kind was rightly found, wrongly found, and missed."""

    traces: int = 0
    right: Counter[IncidentKind] = field(default_factory=Counter)
    wrong: Counter[IncidentKind] = field(default_factory=Counter)
    missed: Counter[IncidentKind] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, labelled: Labelled) -> None:
        self.traces += 1
        found = {incident.kind for incident in find(labelled.trace, labelled.ends)}
        self.right.update(found & labelled.kinds)
        self.wrong.update(found - labelled.kinds)
        self.missed.update(labelled.kinds - found)
        self.faults += [f"{kind} found in '{labelled.name}'" for kind in sorted(found - labelled.kinds)]
        self.faults += [f"{kind} missed in '{labelled.name}'" for kind in sorted(labelled.kinds - found)]

    def cells(self, kind: IncidentKind) -> tuple[str, str, str]:
        """How many traces have it, precision, recall."""
        right, wrong, missed = self.right[kind], self.wrong[kind], self.missed[kind]
        return str(right + missed), _share(right, right + wrong), _share(right, right + missed)


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole}" if whole else "n/a"


def table(labelled: Iterable[Labelled]) -> Iterator[str]:
    """Both halves in Markdown."""
    halves = {"develop": Score(), "report": Score()}
    sources: Counter[str] = Counter()
    for each in labelled:
        halves[each.half].add(each)
        sources[each.source] += 1
    yield f"{sum(sources.values())} traces: " + ", ".join(f"{count} {name}" for name, count in sources.items()) + "."
    yield ""
    develop, report = halves["develop"], halves["report"]
    heads = [f"{name} half ({half.traces}): with it | precision | recall" for name, half in halves.items()]
    yield f"| kind | {' | '.join(heads)} |"
    yield "|---|---|---|---|---|---|---|"
    for kind in KINDS:
        yield f"| `{kind}` | {' | '.join((*develop.cells(kind), *report.cells(kind)))} |"
    yield ""
    for name, half in halves.items():
        yield f"Not right in the {name} half: {'; '.join(half.faults) or 'nothing'}."


if __name__ == "__main__":
    if not SHARED.is_dir():
        print(f"{SHARED} is absent: only the rebuilt public reports are counted", file=sys.stderr)
    print("\n".join(table(traces())))
