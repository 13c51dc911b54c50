"""The panels of the page: what each shows of a run, what it leaves out and says so, and that names stay names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment, PackageLoader, StrictUndefined

from chatflow_eval import incidents
from chatflow_eval.checks import Verdict
from chatflow_eval.incidents import Incident
from chatflow_eval.outcome import Outcome
from chatflow_eval.report import Report
from chatflow_eval.route import Route, visits_of_turn
from chatflow_eval.trace import Edge, Hop, HopKind, LimitStep, ModelStep, Step, Topology, Trace, TurnTrace
from chatflow_eval.writers import links, panels, words
from chatflow_eval.writers.panels.graph import MAX_DRAWN, EdgeRow
from chatflow_eval.writers.panels.heat import MAX_CELLS
from chatflow_eval.writers.panels.incidents import Fact, KindGroup, _allotted


def asked(agent: str, tokens: int | None = 10, seconds: float | None = 0.5, model: str = "gpt-4o-mini") -> ModelStep:
    return ModelStep(agent=agent, model=model, input_tokens=tokens, output_tokens=tokens, seconds=seconds)


def turn(start: str, *steps: Step) -> TurnTrace:
    targets = [step.target for step in steps if isinstance(step, Hop) and step.accepted and step.kind == "transfer"]
    return TurnTrace(user="hi", start_agent=start, end_agent=targets[-1] if targets else start, steps=steps)


def trial(
    said: TurnTrace,
    expected: str | None,
    *,
    agents: Sequence[str],
    edges: Iterable[tuple[str, str] | tuple[str, str, HopKind]] = (),
    scenario: str = "s",
    file: str = "desk.scenario.yaml",
    replayed: bool = False,
    repeat: int = 1,
) -> Outcome:
    """One turn of agents that declare these edges, judged by its route where one is expected."""
    topology = Topology(
        start=said.start_agent,
        agents=tuple(agents),
        edges=tuple(
            Edge(source=edge[0], target=edge[1], kind=edge[2] if len(edge) > 2 else "transfer") for edge in edges
        ),
    )
    trace = Trace(topology=topology, turns=(said,))
    verdicts: tuple[Verdict, ...] = ()
    if expected is not None:
        alignment = Route(expected).align(visits_of_turn(said))
        right = all(place.ok for place in alignment)
        status: Any = "passed" if right else "failed"
        verdicts = (Verdict(check="route", turn=1, status=status, expected=expected, alignment=alignment, why=""),)
    return Outcome(
        file=file,
        line=1,
        scenario=scenario,
        repeat=repeat,
        status="failed" if any(verdict.status == "failed" for verdict in verdicts) else "passed",
        users=("hi",),
        trace=trace,
        verdicts=verdicts,
        incidents=incidents.find(trace),
        replayed=replayed,
    )


def walked(*agents: str) -> TurnTrace:
    return turn(agents[0], *(Hop(source=one, target=two) for one, two in pairwise(agents)))


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.data = ""
        self._script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if self._script:
            self.data += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def links(self) -> list[str]:
        return [attributes["href"] or "" for tag, attributes in self.elements if tag == "a"]


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("chatflow_eval"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: words.printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def rendered(report: Report, *only: str) -> Page:
    """The panels as the page has them."""
    shown = panels.of(report)
    names = only or ("graph", "heat", "incidents", "coverage", "agents")
    pages = [
        environment().get_template(f"panels/{name}.html.j2").render({name: getattr(shown, name)}) for name in names
    ]
    return Page("".join(pages))


def drawn(report: Report) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(panels.of(report).graph.data)
    return found


# Whatever the run.


@pytest.mark.parametrize(
    "outcomes",
    [
        (),
        (Outcome(file="a", line=1, scenario="s", status="skipped"),),
        (trial(turn("A", asked("A")), None, agents=["A"]),),
        (trial(turn("A"), "A", agents=["A"]),),
    ],
    ids=["empty", "skipped", "one agent, no decision", "one agent that stays"],
)
def test_every_panel_is_there_for_every_run(outcomes: tuple[Outcome, ...]) -> None:
    page = rendered(Report.of(outcomes))
    sections = [attributes.get("id") for tag, attributes in page.elements if tag == "section"]
    assert sections == ["graph", "confusion", "incidents", "coverage", "agents"]
    assert "None" not in page.text
    assert "nan" not in page.text.lower()


def test_a_run_without_decisions_says_so() -> None:
    text = rendered(Report.of([trial(walked("A", "B"), None, agents=["A", "B"])])).text
    assert "No routing decision was judged" in text
    assert "No incident" in text


def test_the_sample_run_is_told_in_every_panel(sample: Report) -> None:
    text = rendered(sample).text
    assert "TriageAgent → BillingAgent" in text
    assert "TriageAgent → AccountAgent went round 3 times in one turn." in text
    assert "max_handoffs_per_turn = 6" in text


HOSTILE = st.text(min_size=1, max_size=12) | st.sampled_from(
    [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '"><svg/onload=1>',
        "a&b",
        "\u2028",
        "\u202e",
        "#x>y%3E",
    ]
)


@settings(deadline=None, max_examples=50)
@given(st.lists(HOSTILE, min_size=2, max_size=3, unique=True), HOSTILE)
def test_hostile_names_stay_names(names: list[str], text: str) -> None:
    """Agents, tools, files, scenarios, reasons and limits: in text, attributes, links and data."""
    first, second = names[0], names[1]
    loop = [Hop(source=one, target=two, reason=text, tool=text) for one, two in ((first, second), (second, first)) * 2]
    said = turn(first, asked(first, model=text), *loop, LimitStep(agent=first, limit=text, value=1))
    report = Report.of(
        [
            trial(said, None, agents=names, edges=[(first, second)], file=text, scenario=text),
            Outcome(
                file=text,
                line=1,
                scenario=text,
                status="passed",
                incidents=(Incident(kind="error_masked", turn=1, agents=(first,), message=text, quotes=(text, text)),),
            ),
        ]
    )
    page = rendered(report)
    ours = {
        "section",
        "h2",
        "h3",
        "p",
        "b",
        "small",
        "div",
        "ul",
        "ol",
        "li",
        "span",
        "table",
        "thead",
        "tbody",
        "tfoot",
    }
    ours |= {
        "tr",
        "th",
        "td",
        "a",
        "svg",
        "path",
        "rect",
        "circle",
        "polygon",
        "text",
        "title",
        "script",
        "dl",
        "dt",
        "dd",
    }
    assert {tag for tag, _ in page.elements} <= ours | {"i"}
    assert [attributes for tag, attributes in page.elements if tag == "script"] == [
        {"type": "application/json", "id": "graph-data"}
    ]
    assert not any(name.startswith("on") or name == "style" for _, attributes in page.elements for name in attributes)
    assert all(link.startswith("#") for link in page.links())
    assert json.loads(page.data) == drawn(report)
    assert not re.search("[<>&\u2028\u2029]", page.data)


# The routing graph.


def edges_of(report: Report) -> dict[tuple[str, str], EdgeRow]:
    return {(row.source, row.target): row for swarm in panels.of(report).graph.swarms for row in swarm.edges}


@pytest.mark.parametrize(
    ("route", "expected", "state", "verdict", "label"),
    [
        ("AB", "A -> B", "fine", "as expected", "1 of 1"),
        ("A", "A -> B", "under", "1 missed", "0 of 1 \u22121"),
        ("AB", "A", "over", "1 not expected", "+1"),
        ("AB", None, "unjudged", "not judged", "~1"),
        ("A", None, "idle", "never used", "never"),
    ],
)
def test_what_became_of_an_edge(route: str, expected: str | None, state: str, verdict: str, label: str) -> None:
    report = Report.of([trial(walked(*route), expected, agents="AB", edges=[("A", "B")])])
    row = edges_of(report)["A", "B"]
    assert (row.state, row.verdict, row.declared) == (state, verdict, "transfer")
    (edge,) = drawn(report)[0]["edges"]
    assert (edge["state"], " ".join(part for part, _ in edge["label"])) == (state, label)


def test_expected_and_actual_stand_side_by_side() -> None:
    """Fourteen of fifteen made, one missed, two where somebody else was expected."""
    trials = [trial(walked("A", "B"), "A -> B", agents="ABC", scenario=f"right-{place}") for place in range(14)]
    trials.append(trial(walked("A"), "A -> B", agents="ABC", scenario="missed"))
    trials += [trial(walked("A", "B"), "A -> C", agents="ABC", scenario=f"wrong-{place}") for place in range(2)]
    report = Report.of(trials)
    row = edges_of(report)["A", "B"]
    assert (row.handoffs, row.right, row.wanted, row.missed, row.extra) == (16, 14, 15, 1, 2)
    assert (row.state, row.verdict) == ("mixed", "1 missed, 2 not expected")
    assert (row.precision, row.recall) == ("87.5 %", "93.3 %")
    assert "14 of 15" in rendered(report, "graph").text


def test_a_handoff_that_is_not_declared_is_told_first() -> None:
    said = walked("A", "B", "C")
    (swarm,) = panels.of(Report.of([trial(said, "A -> B -> C", agents="ABC", edges=[("A", "B")])])).graph.swarms
    assert [(row.source, row.target, row.verdict) for row in swarm.edges] == [
        ("B", "C", "undeclared"),
        ("A", "B", "as expected"),
    ]


def test_where_nothing_is_declared_nothing_is_undeclared() -> None:
    row = edges_of(Report.of([trial(walked("A", "B"), "A -> B", agents="AB")]))["A", "B"]
    assert (row.state, row.declared) == ("fine", "nothing is")


def test_calls_are_told_from_transfers() -> None:
    """A call comes back: the second one is its caller's, not the first one's."""
    said = turn("A", *(Hop(source="A", target=name, kind="call", depth=1) for name in "BC"))
    report = Report.of(
        [trial(said, "A => B => C", agents="ABC", edges=[("A", "B", "call"), ("A", "C", "call"), ("B", "C")])]
    )
    rows = edges_of(report)
    assert {pair: (row.handoffs, row.calls, row.state) for pair, row in rows.items()} == {
        ("A", "B"): (1, 1, "fine"),
        ("A", "C"): (1, 1, "fine"),
        ("B", "C"): (0, 0, "idle"),
    }
    assert [edge["call"] for edge in drawn(report)[0]["edges"]] == [True, True, False]


def test_a_refused_handoff_is_counted_beside_those_that_happened() -> None:
    said = turn("A", Hop(source="A", target="B", accepted=False, why="limit"))
    row = edges_of(Report.of([trial(said, None, agents="AB", edges=[("A", "B")])]))["A", "B"]
    assert (row.handoffs, row.refused, row.verdict, row.made_link) == (0, 1, "refused", None)


def test_edges_and_agents_lead_to_their_trials() -> None:
    (graph,) = drawn(Report.of([trial(walked("A", "B>C"), 'A -> "B>C"', agents=["A", "B>C", "D"])]))
    assert [node["href"] for node in graph["nodes"]] == [
        links.to_trials(agent="A"),
        links.to_trials(agent="B>C"),
        None,
    ]
    assert [edge["href"] for edge in graph["edges"]] == [links.to_trials(edge=("A", "B>C"))]


def test_an_expectation_of_several_agents_stands_in_the_table_only() -> None:
    report = Report.of([trial(walked("A"), "A -> B | C", agents="ABC")])
    assert ("A", "B | C") in edges_of(report)
    assert drawn(report)[0]["edges"] == []


def test_graphs_of_the_same_agents_are_one() -> None:
    trials = [
        trial(walked("A", "B"), "A -> B", agents="AB", edges=[("A", "B")], file="x/one.scenario.yaml"),
        trial(walked("A", "B"), "A -> B", agents="AB", edges=[("A", "B"), ("B", "A")], file="x/two.scenario.yaml"),
        trial(walked("A", "C"), "A -> C", agents="AC", file="x/three.scenario.yaml"),
    ]
    swarms = panels.of(Report.of(trials)).graph.swarms
    assert [(swarm.name, swarm.edges[0].handoffs) for swarm in swarms] == [("one, two", 2), ("three", 1)]


def test_of_sixty_agents_the_thirty_busiest_are_drawn() -> None:
    agents = [f"agent-{place:02}" for place in range(60)]
    trials = [
        trial(walked(agents[0], agent), f"{agents[0]} -> {agent}", agents=agents, scenario=agent, repeat=repeat)
        for place, agent in enumerate(agents[1:], 1)
        for repeat in range(1, 2 + place // 30)
    ]
    report = Report.of(trials)
    (graph,) = drawn(report)
    names = [node["name"] for node in graph["nodes"]]
    assert len(names) == MAX_DRAWN
    assert names[0] == agents[0]
    assert set(names[1:]) <= set(agents[30:])
    assert len(edges_of(report)) == 59
    assert "the 30 busiest of 60 agents are drawn" in rendered(report, "graph").text


# The heat map.


def test_what_is_right_stands_on_the_diagonal() -> None:
    trials = [
        trial(walked("A", *route), f"A -> {wanted}", agents="ACB") for route, wanted in ("BB", "CB", "CC", ("", "C"))
    ]
    heat = panels.of(Report.of(trials)).heat
    assert [column.name for column in heat.columns] == ["C", "B", "(stayed)"]
    assert [(row.name, [cell.count for cell in row.cells], row.total, row.recall) for row in heat.rows] == [
        ("C", [1, 0, 1], 2, "50.0 %"),
        ("B", [1, 1, 0], 2, "50.0 %"),
    ]
    assert [[cell.shade for cell in row.cells] for row in heat.rows] == [["r3", "", "w3"], ["w3", "r3", ""]]
    assert heat.recall == "50.0 %"


def test_a_cell_leads_to_its_trials() -> None:
    trials = [trial(walked("A", "B"), "A", agents="AB"), trial(walked("A"), "A", agents="AB")]
    page = rendered(Report.of(trials), "heat")
    assert page.links() == [
        links.to_trials(cell=("(stay)", "B")),
        links.to_trials(cell=("(stay)", "(stayed)")),
    ]
    titles = [attributes.get("aria-label") for tag, attributes in page.elements if tag == "a"]
    assert titles == ["(stay) expected, B came: 1, wrong", "(stay) expected, (stayed) came: 1, right"]


def test_of_too_many_agents_the_rest_is_summed_and_nothing_is_lost() -> None:
    agents = [f"agent-{place:02}" for place in range(60)]
    trials = [
        trial(walked("desk", came), f"desk -> {wanted}", agents=["desk", *agents], scenario=wanted)
        for came, wanted in zip(agents, [*agents[:30], *agents[31:], agents[30]], strict=True)
    ]
    heat = panels.of(Report.of(trials)).heat
    assert len(heat.rows) == len(heat.columns) == MAX_CELLS
    assert heat.rows[-1].name == heat.columns[-1].name == "(others)"
    assert sum(cell.count for row in heat.rows for cell in row.cells) == heat.total == 60
    assert sum(row.right for row in heat.rows) == heat.right == 30
    assert sum(column.total for column in heat.columns) == 60
    assert "The 39 busiest of 60 rows" in heat.notes[0]


# Incidents.


def found(*outcomes: Outcome) -> dict[str, KindGroup]:
    return {group.kind: group for group in panels.of(Report.of(outcomes)).incidents.groups}


@pytest.mark.parametrize("agents", ["AB", "ABC", "ABCDE", "ABCDEFGHIJKL"])
def test_a_loop_is_drawn_as_a_ring_with_an_arrow_to_each(agents: str) -> None:
    (loop,) = found(trial(walked(*agents * 3), None, agents=agents))["loop"].found
    assert loop.ring is not None
    assert [node.full for node in loop.ring.nodes] == list(agents)
    assert len(loop.ring.arcs) == len(loop.ring.heads) == len(agents)
    assert loop.ring.times == "\u00d73"
    left, top, width, height = map(float, loop.ring.view.split())
    for node in loop.ring.nodes:
        assert left < node.x < left + width
        assert top < node.label_y < top + height


def test_too_large_a_ring_is_told_in_words() -> None:
    agents = [f"agent-{place}" for place in range(20)]
    (loop,) = found(trial(walked(*agents, *agents), None, agents=agents))["loop"].found
    assert loop.ring is None
    assert "agent-0 → agent-1" in loop.message


def test_incidents_that_are_alike_are_told_once() -> None:
    """What a loop cost differs from repeat to repeat, and is summed."""
    trials = [
        trial(turn("A", *step_by_step("ABABA", tokens)), None, agents="AB", repeat=repeat)
        for repeat, tokens in enumerate((10, 20, 30, 40), 1)
    ]
    (loop,) = found(*trials)["loop"].found
    assert (loop.count, len(loop.places), loop.more_places) == (4, 3, 1)
    assert loop.places[0].link == links.to_trial(trials[0], 1)
    assert Fact("cost", "16 model calls, 800 tokens, all together") in loop.facts


def step_by_step(route: str, tokens: int | None) -> list[Step]:
    return [
        step
        for one, two in pairwise(route)
        for step in (asked(one, tokens), Hop(source=one, target=two, reason=f"for {two}"))
    ]


def test_an_unknown_cost_is_no_nought() -> None:
    trials = [
        trial(turn("A", *step_by_step("ABABA", tokens)), None, agents="AB", repeat=repeat)
        for repeat, tokens in enumerate((None, 20), 1)
    ]
    (loop,) = found(*trials)["loop"].found
    assert Fact("cost", "8 model calls, tokens unknown, all together") in loop.facts


def test_kinds_that_fail_come_first_and_each_has_its_link() -> None:
    said = turn(
        "A", Hop(source="A", target="A", accepted=False, why="self"), *map(hop, "AB", "BA"), *map(hop, "AB", "BA")
    )
    groups = panels.of(Report.of([trial(said, None, agents="AB")])).incidents.groups
    assert [(group.kind, group.failing) for group in groups] == [("loop", True), ("self_handoff", False)]
    assert groups[0].link == links.to_trials(incident="loop")
    assert groups[0].counts == "1 in 1 trial"


def hop(source: str, target: str) -> Hop:
    return Hop(source=source, target=target)


def test_of_very_many_each_kind_keeps_its_share() -> None:
    loops = [Incident(kind="loop", turn=1, agents=("A", f"B{place}"), message="", times=2) for place in range(150)]
    limits = [Incident(kind="limit_hit", turn=1, agents=("A",), message=f"limit {place}") for place in range(20)]
    outcome = Outcome(file="a", line=1, scenario="s", status="failed", incidents=(*loops, *limits))
    groups = found(outcome)
    assert (len(groups["loop"].found), groups["loop"].left_out) == (80, 70)
    assert (len(groups["limit_hit"].found), groups["limit_hit"].left_out) == (20, 0)
    text = rendered(Report.of([outcome]), "incidents").text
    assert "70 more, different from these: all trials with loop" in text


@given(st.lists(st.integers(0, 300), max_size=13), st.integers(0, 120))
def test_the_room_is_used_and_never_exceeded(sizes: list[int], room: int) -> None:
    shares = _allotted(sizes, room)
    assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
    assert sum(shares) == min(sum(sizes), room)


def test_huge_texts_are_cut_with_a_note() -> None:
    huge = "x" * 5_000_000
    outcome = Outcome(
        file="a",
        line=1,
        scenario=huge,
        status="failed",
        incidents=(Incident(kind="error_masked", turn=1, agents=(huge,), message=huge, quotes=(huge, huge)),),
    )
    (masked,) = panels.of(Report.of([outcome])).incidents.groups[0].found
    assert masked.message.endswith("… [cut: 600 of 5,000,000 characters]")
    assert all(len(fact.text) < 1_000 for fact in masked.facts)


# Coverage.


def test_what_is_neither_expected_nor_exercised_is_named() -> None:
    said = walked("A", "B")
    outcome = trial(said, "A -> B", agents="ABC", edges=[("A", "B"), ("A", "C"), ("C", "A")])
    (graph,) = panels.of(Report.of([outcome])).coverage.graphs
    agents, handoffs = graph.parts
    assert (agents.declared, agents.exercised, handoffs.declared, handoffs.exercised) == (3, 2, 3, 1)
    assert [(gap.name, [item.name for item in gap.items]) for gap in agents.gaps] == [
        ("neither expected nor exercised", ["C"]),
        ("exercised, expected by no scenario", ["A", "B"]),
    ]
    assert [(gap.name, [item.name for item in gap.items]) for gap in handoffs.gaps] == [
        ("neither expected nor exercised", ["A → C", "C → A"]),
        ("exercised, expected by no scenario", ["A → B"]),
    ]
    assert handoffs.gaps[1].items[0].link == links.to_trials(edge=("A", "B"))


def test_long_lists_of_gaps_are_cut_with_a_number() -> None:
    agents = [f"agent-{place}" for place in range(60)]
    (graph,) = panels.of(Report.of([trial(turn(agents[0]), None, agents=agents)])).coverage.graphs
    gap = graph.parts[0].gaps[0]
    assert (len(gap.items), gap.more) == (40, 19)


# Latency and cost.


def test_what_an_agent_and_a_hop_take() -> None:
    said = turn("A", asked("A", 100, 0.5), hop("A", "B"), asked("B", 200, 1.0), asked("B", 200, 2.0))
    shown = panels.of(Report.of([trial(said, "A -> B", agents="AB")])).agents
    by_name = {row.name: row.spent for row in shown.agents}
    assert (by_name["B"].calls, by_name["B"].tokens_in, by_name["B"].median) == (2, "400", "1.50 s")
    (hopped,) = shown.hops
    assert (hopped.handoffs, hopped.spent.calls, hopped.spent.median, hopped.spent.p95) == (1, 2, "3.00 s", "3.00 s")
    assert hopped.spent.bar == (100.0, 100.0)
    assert hopped.link == links.to_trials(edge=("A", "B"))


def test_unknown_is_no_nought() -> None:
    """B119."""
    said = turn("A", asked("A", None, None, model="nobody-knows"), hop("A", "B"), asked("B", 5), asked("B", None))
    shown = panels.of(Report.of([trial(said, "A -> B", agents="AB")])).agents
    spent = {row.name: row.spent for row in shown.agents}
    assert (spent["A"].tokens_in, spent["A"].cost, spent["A"].median, spent["A"].bar) == (*["unknown"] * 3, None)
    assert spent["B"].tokens_in == "≥ 5"
    assert spent["B"].cost.startswith("≥ ")


def test_recorded_values_are_marked() -> None:
    trials = [
        trial(turn("A", asked("A")), None, agents="A", replayed=True),
        trial(turn("A", asked("A")), None, agents="A", repeat=2),
    ]
    assert panels.of(Report.of(trials[:1])).agents.agents[0].spent.recorded == "recorded"
    shown = panels.of(Report.of(trials)).agents
    assert (shown.agents[0].spent.recorded, shown.recorded) == ("1 recorded", True)
    assert "tokens are those of the recording" in rendered(Report.of(trials), "agents").text
    assert not panels.of(Report.of(trials[1:])).agents.recorded
