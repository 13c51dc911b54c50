"""Route patterns: what they accept, how they are read, and how a mismatch is explained."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass
from itertools import product
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.errors import ScenarioError
from chatflow_eval.route import (
    MAX_NESTING,
    Mention,
    Route,
    RouteSyntaxError,
    Visit,
    route_text,
    visits_of_trace,
    visits_of_turn,
)
from chatflow_eval.trace import Hop, ModelStep, Topology, Trace, TurnTrace


def call(agent: str, depth: int = 1) -> Visit:
    return Visit(agent, "call", depth)


def transfer(agent: str, depth: int = 0) -> Visit:
    return Visit(agent, "transfer", depth)


def visits(*agents: str | Visit) -> tuple[Visit, ...]:
    """A route; a name alone starts it, or comes by a transfer."""
    return tuple(
        agent if isinstance(agent, Visit) else Visit(agent, "transfer" if index else "start")
        for index, agent in enumerate(agents)
    )


def places(pattern: str, *agents: str | Visit) -> list[tuple[str | None, str | None, bool]]:
    return [(place.expected, place.actual, place.ok) for place in Route(pattern).align(visits(*agents))]


def test_a_route_is_written_as_in_a_scenario_calls_told_apart() -> None:
    assert route_text(visits("A", call("B"), transfer("C", 1), "D")) == "A => B -> C -> D"
    assert route_text(visits("A")) == "A"
    assert route_text(()) == "(nobody)"


# What a pattern accepts.

ACCEPTS = [
    # in this order, nothing between
    ("A", ["A"], ["", "B", "A B", "A A"]),
    ("A -> B -> C", ["A B C"], ["A B", "A C", "B C", "A C B", "A B C C", "A X B C", "X A B C"]),
    ("A -> A", ["A A"], ["A", "A A A"]),
    # skipped or not, once or more, any number of times
    ("A -> B? -> C", ["A B C", "A C"], ["A B B C", "A", "A B"]),
    ("A -> B+ -> C", ["A B C", "A B B B C"], ["A C", "A B", "A B C B"]),
    ("A -> B* -> C", ["A C", "A B C", "A B B C"], ["A B X C", "B C"]),
    ("A?", ["", "A"], ["B", "A A"]),
    # `|` binds tighter than arrows, and looser than signs
    ("A -> B | C -> D", ["A B D", "A C D"], ["A B", "C D", "A B C D"]),
    ("(A -> B) | (C -> D)", ["A B", "C D"], ["A D", "A B D", "A B C D"]),
    ("A -> B? | C", ["A", "A B", "A C"], ["A B C"]),
    ("A -> (B | C)? -> D", ["A D", "A B D", "A C D"], ["A B C D"]),
    # groups
    ("(A -> B)+", ["A B", "A B A B"], ["", "A", "A B A", "A B B"]),
    ("(A -> B)* -> C", ["C", "A B C", "A B A B C"], ["A C", "B C"]),
    ("A -> (B -> C?)+ -> D", ["A B D", "A B C D", "A B B C B D"], ["A C D", "A D"]),
    ("((A?)*)*", ["", "A", "A A A"], ["B", "A B"]),
    # any agent but some, any one agent, any number of agents
    ("A -> ~B", ["A C", "A A"], ["A B", "A", "A C C"]),
    ("~(A | B)+", ["C", "C D C"], ["", "A", "C B", "C A D"]),
    ("~A | A", ["A", "B"], ["", "A A"]),
    ("A -> B | ~B", ["A A", "A B"], ["A"]),
    ("A -> _ -> C", ["A B C", "A A C", "A C C"], ["A C", "A B B C"]),
    ("_", ["A", "B"], ["", "A B"]),
    ("_? -> B", ["B", "A B"], ["A A B"]),
    ("...", ["", "A", "A B A"], []),
    ("A -> ... -> C", ["A C", "A B C", "A C A B C"], ["A", "A B", "B C", "A C B"]),
    ("... -> C -> ...", ["C", "A C", "C A", "A C A"], ["", "A B"]),
]


@pytest.mark.parametrize(("pattern", "accepted", "refused"), ACCEPTS)
def test_a_pattern_accepts_exactly_its_routes(pattern: str, accepted: list[str], refused: list[str]) -> None:
    route = Route(pattern)
    assert [text for text in [*accepted, *refused] if route.match(visits(*text.split()))] == accepted


@pytest.mark.parametrize(
    ("pattern", "accepted"),
    [
        ("Triage -> Billing", []),  # exact
        ("Triage -> ... -> Billing", ["Triage Tech Billing", "Triage Billing Triage Billing"]),  # in order
        ("(Triage -> Billing) | (Billing -> Triage)", []),  # any order
        ("... -> Billing -> ...", ["Triage Tech Billing", "Billing", "Triage Billing Triage Billing"]),  # contains
        ("(Triage | Billing)+", ["Billing", "Triage Billing Triage Billing"]),  # only these
        ("... -> Billing", ["Triage Tech Billing", "Billing", "Triage Billing Triage Billing"]),  # the last one
        ("(Triage -> Billing)+", ["Triage Billing Triage Billing"]),  # repeats are counted
        ("Triage -> Billing -> Triage", []),
    ],
)
def test_match_modes_are_patterns(pattern: str, accepted: list[str]) -> None:
    """B112: one strict mode is not enough, and greedy matching miscounts repeats."""
    actual = ["Triage Tech Billing", "Billing", "Triage Billing Triage Billing"]
    assert [text for text in actual if Route(pattern).match(visits(*text.split()))] == accepted


def test_an_agent_that_must_not_be_visited_refuses_the_route_even_if_its_end_is_right() -> None:
    """B101."""
    route = Route("(~Admin)* -> Billing")
    assert route.match(visits("Triage", "Billing"))
    assert not route.match(visits("Triage", "Admin", "Billing"))


CALLED = visits("A", call("B"), call("C"))  # A calls B, then C
NESTED = visits("A", call("B"), call("C", 2))  # A calls B, B calls C
MOVED_ON = visits("A", call("B"), transfer("C", 1))  # A calls B, B transfers to C within the call
RETURNED = visits("A", call("B"), transfer("C"))  # A calls B, gets control back and transfers to C
MOVED = visits("A", "B", "C")


@pytest.mark.parametrize(
    ("pattern", "accepted"),
    [
        ("A -> B -> C", [CALLED, NESTED, MOVED_ON, RETURNED, MOVED]),  # by a transfer and by a call alike
        ("A => B => C", [CALLED]),
        ("A => (B => C)", [NESTED]),
        ("A => (B -> C)", [CALLED, NESTED, MOVED_ON]),  # all within A's call, not after it
        ("A => B -> C", [CALLED, NESTED, MOVED_ON, RETURNED]),
        ("A -> B => C", [NESTED]),  # the caller is in control at the end of `A -> B`
        ("A => (B | X)+ => C", [CALLED]),
        ("A => B? => C", [CALLED]),
        ("A => X? => (B => C)", [NESTED]),
        ("A -> (X? => B) => C", [CALLED]),
        ("A => ...", [CALLED, NESTED, MOVED_ON]),
    ],
)
def test_a_double_arrow_insists_on_a_call_by_the_agent_in_control(
    pattern: str, accepted: list[tuple[Visit, ...]]
) -> None:
    routes = [CALLED, NESTED, MOVED_ON, RETURNED, MOVED]
    assert [route for route in routes if Route(pattern).match(route)] == accepted


@pytest.mark.parametrize(
    ("last", "accepted"),
    [
        ((call("D", 1),), True),
        ((call("D", 2),), False),  # by the agent that was called
        ((transfer("D", 0),), False),
        ((transfer("D", 1),), False),
    ],
)
@pytest.mark.parametrize("second", [call("C", 1), call("C", 2), transfer("C", 1)])
def test_control_comes_back_to_the_caller_whatever_happened_within_the_call(
    second: Visit, last: tuple[Visit, ...], accepted: bool
) -> None:
    assert Route("A => (B -> C) => D").match(visits("A", call("B"), second, *last)) is accepted


def test_after_a_call_the_caller_has_control_again() -> None:
    assert Route("A => B -> C => D").match(visits("A", call("B"), transfer("C"), call("D")))
    assert not Route("A => B -> C => D").match(visits("A", call("B"), transfer("C", 1), call("D", 1)))


@pytest.mark.parametrize("pattern", ["A => B => (X? => Y? -> C)", "A => B => (X? => (X? => Y?) -> C)"])
def test_what_is_skipped_at_the_start_of_a_call_leaves_the_call_to_what_follows(pattern: str) -> None:
    assert Route(pattern).match(CALLED)
    assert not Route(pattern).match(MOVED_ON)
    assert not Route(pattern).match(NESTED)


def test_a_caller_that_was_skipped_called_nobody() -> None:
    assert Route("A? => B").match(visits("B"))
    assert not Route("A? => B => C").match(visits("B", call("C")))
    assert not Route("(A? => B)+").match(visits("B", "B"))


def test_calls_are_seen_at_any_depth() -> None:
    inner = (call("B", 3), call("C", 4))
    assert Route("... -> A => (B => C)").match(visits("X", call("Y"), call("A", 2), *inner))


def test_long_routes_and_long_patterns_end() -> None:
    long = visits(*["A"] * 5_000)
    assert Route("((A?)*)*").match(long)
    assert not Route("((A?)*)* -> B").match(long)
    third_to_last = Route("((A | B)* -> A -> A | B -> A | B)*")
    assert third_to_last.match(long)
    assert not third_to_last.match([*long[:-3], transfer("B"), *long[-2:]])
    many = " -> ".join(["A"] * 3_000)
    assert Route(many).match(long[:3_000])
    assert not Route(many).match(long[:2_999])


# Where routes come from.


def turn(start: str, *hops: Hop) -> TurnTrace:
    return TurnTrace(user="Hello.", start_agent=start, end_agent=start, steps=hops)


def hop(source: str, target: str) -> Hop:
    return Hop(source=source, target=target)


def conversation(*turns: TurnTrace) -> Trace:
    return Trace(topology=Topology(start="A", agents=("A", "B", "C")), turns=turns)


def test_the_route_of_a_turn_is_its_start_and_its_accepted_hops() -> None:
    """B018, B061, B117: refused attempts are not on it, and calls within calls are."""
    route = visits_of_turn(
        TurnTrace(
            user="Hello.",
            start_agent="A",
            end_agent="A",
            steps=(
                ModelStep(agent="A", model="m"),
                Hop(source="A", target="B", kind="call", depth=1),
                Hop(source="B", target="B", kind="call", depth=2, accepted=False, why="self"),
                Hop(source="B", target="C", kind="call", depth=2),
                Hop(source="A", target="C", accepted=False, why="limit"),
            ),
        )
    )
    assert route == (Visit("A", "start"), Visit("B", "call", 1), Visit("C", "call", 2))


def test_a_turn_without_a_hop_is_its_start_alone() -> None:
    """B072: the next turn goes on with the agent that the last one ended with."""
    route = visits_of_turn(turn("Rental"))
    assert Route("Rental").match(route)
    assert not Route("Triage -> Rental").match(route)


def test_the_route_of_a_conversation_joins_its_turns_and_merges_a_start_with_the_agent_before_it() -> None:
    route = visits_of_trace(conversation(turn("A", hop("A", "B")), turn("B"), turn("B", hop("B", "C")), turn("A")))
    assert [visit.agent for visit in route] == ["A", "B", "C", "A"]
    assert [visit.kind for visit in route] == ["start", "transfer", "transfer", "start"]
    assert Route("A -> B -> C -> A").match(route)


def test_calling_the_same_agent_twice_is_two_visits() -> None:
    twice = (Hop(source="A", target="B", kind="call", depth=1),) * 2
    route = visits_of_trace(conversation(turn("A", *twice), turn("A", *twice[:1])))
    assert Route("A => B => B -> A => B").match(route)


def test_no_turn_has_no_route() -> None:
    assert visits_of_trace(conversation()) == ()


# Reading and writing.


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("Triage->Billing", "Triage -> Billing"),
        ("Triage \N{RIGHTWARDS ARROW} Billing", "Triage -> Billing"),
        ("Triage\N{RIGHTWARDS DOUBLE ARROW}Billing=>Tech", "Triage => Billing => Tech"),
        ("A -> \N{HORIZONTAL ELLIPSIS} -> B", "A -> ... -> B"),
        ("  A\n\t-> B  ", "A -> B"),
        ("(A)", "A"),
        ("((A -> (B)))", "A -> B"),
        ("(A -> B) => C", "A -> B => C"),
        ("A => (B => C)", "A => (B => C)"),
        ("A -> (B|C)", "A -> B | C"),
        ("(A|B)|C", "A | B | C"),
        ("(A->B)|C", "(A -> B) | C"),
        ("(A|B)+", "(A | B)+"),
        ("(A?)*", "(A?)*"),
        ("(A)?", "A?"),
        ("~( A|B )?", "~(A | B)?"),
        ("~(A)", "~A"),
        ("Billing   Team -> Tech", "Billing Team -> Tech"),
        ('"Billing   Team" -> Tech', '"Billing   Team" -> Tech'),
        ('"Tech" -> "x -> y"', 'Tech -> "x -> y"'),
        ('"_"', '"_"'),
        (r'"say \"hi\"" -> "a\b"', r'"say \"hi\"" -> a\b'),
    ],
)
def test_a_pattern_is_written_in_one_canonical_way(text: str, canonical: str) -> None:
    """E01 among them: arrows without spaces, of unicode, and within an agent's own name."""
    assert str(Route(text)) == canonical
    assert Route(text) == Route(canonical)
    assert hash(Route(text)) == hash(Route(canonical))
    assert repr(Route(text)) == f"Route({canonical!r})"
    assert Route(text).pattern == text


NAMES = [
    "Billing Team",
    "tier-2",
    "_x",
    "__",
    "a_b",
    "規划",
    "Кредит",
    "Łódź",
    "🚀🚀",
    "Driver's Desk",
    "R&D",
    "@Bot",
    "%x",
    "no",
    "null",
    "12:30",
    "v1.2",
    "{agent}",
    "a\\b",
]
"""B001, B002, B120, E04: names that need no quotes."""

SIGNED = [
    "x -> y",
    "x => y",
    "a→b",
    "C++",
    "Who?",
    "*Star",
    "a|b",
    "Billing (EU)",
    "~",
    "_",
    "...",
    "Wait...",
    "a, b",
    "a=b",
    '"',
    '\\"',
    " padded ",
    "two  spaces",
    "a - b",
    "a-",
    "!Bot",
    "'quoted'",
    "new\nline",
    "➜",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_without_reserved_signs_need_no_quotes(name: str) -> None:
    assert Route(f"{name} -> A").match(visits(name, "A"))
    assert str(Route(name)) == name
    assert Route(name).names == {name}


@pytest.mark.parametrize("name", [*NAMES, *SIGNED])
def test_any_name_can_be_quoted(name: str) -> None:
    quoted = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    route = Route(f"A -> {quoted}")
    assert route.match(visits("A", name))
    assert not route.match(visits("A", "B"))
    assert Route(str(route)) == route
    assert route.names == {"A", name}


@pytest.mark.parametrize("name", SIGNED)
def test_a_name_that_would_be_misread_is_written_with_quotes(name: str) -> None:
    quoted = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert str(Route(quoted)) == quoted


def test_the_names_in_a_pattern_have_their_places_in_its_text() -> None:
    pattern = '  A ->(Billing  Team| "x -> y")? -> ~(A | C) -> _ -> ...'
    mentions = Route(pattern).name_offsets
    assert [mention.name for mention in mentions] == ["A", "Billing Team", "x -> y", "A", "C"]
    assert [pattern[at : at + length] for _, at, length in mentions] == ["A", "Billing  Team", '"x -> y"', "A", "C"]
    assert mentions[0] == Mention("A", 2, 1)
    assert Route(pattern).names == {"A", "Billing Team", "x -> y", "C"}


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        ("A -> B", "A -> B"),
        (["A", "B"], "A -> B"),
        (("A", "B | C", "D?"), "A -> B | C -> D?"),
        (["A"], "A"),
        ([], "_"),
        (['"x -> y"', "Tech"], '"x -> y" -> Tech'),
    ],
)
def test_a_list_is_a_route_in_order(value: str | list[str], canonical: str) -> None:
    assert str(Route.parse(value)) == canonical


def test_a_list_without_items_is_any_agent_who_hands_nothing_off() -> None:
    assert Route.parse([]).match(visits("A"))
    assert not Route.parse([]).match(visits("A", "B"))


@pytest.mark.parametrize("arrow", ["->", "=>", "\N{RIGHTWARDS ARROW}", "\N{RIGHTWARDS DOUBLE ARROW}"])
def test_a_list_item_with_an_arrow_is_an_error(arrow: str) -> None:
    """E01."""
    with pytest.raises(RouteSyntaxError, match=r"item 2 of the list.*arrow.*two items.*one text") as caught:
        Route.parse(["A", f"B {arrow} C"])
    assert (caught.value.item, caught.value.offset) == (1, 2)


def test_an_error_in_a_list_item_says_which() -> None:
    with pytest.raises(RouteSyntaxError, match=r"item 3 of the list: .*expected an agent") as caught:
        Route.parse(["A", "B", "C |"])
    assert (caught.value.item, caught.value.offset) == (2, 3)


@pytest.mark.parametrize(
    ("pattern", "offset", "message"),
    [
        ("", 0, r"empty, expected an agent's name .*`\[\]`"),
        ("   ", 3, "empty, expected an agent's name"),
        ("A ->", 4, "ends after `->`, expected an agent; add it"),
        ("-> A", 0, "`->` at the start, expected an agent; drop it"),
        ("A ->-> B", 4, "`->` after `->`, expected an agent; drop one"),
        ("A -> => B", 5, "`=>` after `->`, expected an agent"),
        ("A |", 3, r"ends after `\|`, expected an agent"),
        ("| A", 0, r"`\|` at the start, expected an agent"),
        ("A | -> B", 4, r"`->` after `\|`, expected an agent"),
        ("A || B", 3, r"`\|` after `\|`, expected an agent"),
        ("(A -> B", 7, r"`\(` at character 1 is never closed, expected `\)`"),
        ("A -> B)", 6, r"`\)` closes nothing; drop it"),
        ("()", 1, r"`\)` after `\(`, expected an agent"),
        ("?", 0, r"`\?` at the start, expected an agent"),
        ("A B?? ", 4, r"`\?` after `\?`, expected one sign at most.*quote the name"),
        ("C++", 2, r"`\+` after `\+`, expected one sign at most.*quote the name"),
        ("...*", 3, "any number of agents already; drop the"),
        ("A... -> B", 1, r"`\.\.\.` after `A`, expected `->`.*put an arrow"),
        ("B? C", 3, r"`C` after `\?`, expected `->`.*put an arrow"),
        ("Billing (EU)", 8, r"`\(` after `Billing`, expected `->`.*quotes around a name"),
        ('A "B"', 2, "expected `->`.*put an arrow"),
        ('A -> "x -> y', 5, 'never ends, expected `"`'),
        ('A -> ""', 5, "names no agent, expected a name"),
        ("~", 1, "expected an agent's name; `~A` is any agent but A"),
        ("~~A", 1, "expected an agent's name"),
        ("~_", 1, "expected an agent's name"),
        ("~(A -> B)", 4, r"`->` after `A`, expected `\|` or `\)`.*no other group"),
        ("~(A", 3, r"`\(` at character 2 is never closed"),
        ("A, B", 1, "in order are written `A -> B`; a name with a comma in it needs quotes"),
        ("A > B", 2, "the arrows are `->` and `=>`"),
        ("A <- B", 2, "the arrows are `->` and `=>`"),
        ("A == B", 2, "the arrows are `->` and `=>`"),
        ("A - B", 2, "the arrow is `->`"),
        ("A --> B", 2, "the arrow is `->`"),
        ("A ➜ B", 2, "`➜` is no arrow here; write `->`"),
        ("!A", 0, "any agent but A is written `~A`"),
        ("'x' -> y", 0, 'quoted with `"`'),
        ("A -> _ B", 5, "`_` stands by itself"),
    ],
)
def test_a_pattern_that_cannot_be_read_says_where_and_what_was_expected(
    pattern: str, offset: int, message: str
) -> None:
    with pytest.raises(RouteSyntaxError, match=message) as caught:
        Route(pattern)
    assert caught.value.offset == offset
    assert f"character {offset + 1}" in caught.value.problem
    assert isinstance(caught.value, ScenarioError)


def test_nesting_is_bounded_and_says_so() -> None:
    deepest = "(A -> " * MAX_NESTING + "B" + ")?" * MAX_NESTING
    assert Route(str(Route(deepest))) == Route(deepest)
    assert Route(deepest).explain(visits("A"))
    for depth in (MAX_NESTING + 1, 100_000):
        with pytest.raises(RouteSyntaxError, match=f"more than {MAX_NESTING} deep") as caught:
            Route("(" * depth + "A" + ")" * depth)
        assert caught.value.offset == MAX_NESTING
    with pytest.raises(RouteSyntaxError, match="after `~`"):
        Route("~" * 100_000 + "A")
    assert Route(" | ".join(["(A -> B)"] * 2 * MAX_NESTING)).match(visits("A", "B"))


def test_a_route_is_a_value() -> None:
    route = Route("A->B?")
    assert route.match(visits("A"))
    assert copy.deepcopy(route) == pickle.loads(pickle.dumps(route)) == route
    assert {route, Route("A -> B?"), Route("A -> B")} == {Route("A -> B?"), Route("A -> B")}
    assert route != "A -> B?"
    with pytest.raises(FrozenInstanceError):
        route.pattern = "C"  # type: ignore[misc]


# Alignment and explanation.


@pytest.mark.parametrize(
    ("pattern", "route", "expected"),
    [
        ("A -> B", "A B", [("A", "A", True), ("B", "B", True)]),
        ("A -> B", "A C", [("A", "A", True), ("B", "C", False)]),
        ("A -> B", "A", [("A", "A", True), ("B", None, False)]),
        ("A", "A B", [("A", "A", True), (None, "B", False)]),
        ("A -> B", "A X B", [("A", "A", True), (None, "X", False), ("B", "B", True)]),
        ("A -> B -> C", "A C", [("A", "A", True), ("B", None, False), ("C", "C", True)]),
        # in place, where moving the others would cost the same
        ("A -> B -> C", "A C B", [("A", "A", True), ("B", "C", False), ("C", "B", False)]),
        # the last of equals is the one too many, or the one missing
        ("A -> A", "A A A", [("A", "A", True), ("A", "A", True), (None, "A", False)]),
        ("A -> A", "A", [("A", "A", True), ("A", None, False)]),
        ("(A -> B)+", "A A A", [("A", "A", True), ("B", "A", False), ("A", "A", True), ("B", None, False)]),
        ("A -> B -> C", "B A C A", [("A", "B", False), ("B", "A", False), ("C", "C", True), (None, "A", False)]),
        # in the pattern's own words
        ("A -> B | C", "A C", [("A", "A", True), ("B | C", "C", True)]),
        ("A -> B | C", "A D", [("A", "A", True), ("B | C", "D", False)]),
        ("~A", "A", [("~A", "A", False)]),
        ("~(A | B)", "B", [("~(A | B)", "B", False)]),
        ("A -> _", "A", [("A", "A", True), ("_", None, False)]),
        ('A -> "x -> y"', "A B", [("A", "A", True), ("x -> y", "B", False)]),
        # skipped, repeated, anything between
        ("A -> B? -> C", "A C", [("A", "A", True), ("C", "C", True)]),
        ("A -> B? -> C", "A X", [("A", "A", True), ("C", "X", False)]),
        ("A -> B+", "A B B", [("A", "A", True), ("B", "B", True), ("B", "B", True)]),
        ("A -> ... -> C", "A X C", [("A", "A", True), ("...", "X", True), ("C", "C", True)]),
        ("A -> ... -> C", "A X Y", [("A", "A", True), ("...", "X", True), ("C", "Y", False)]),
        ("(A -> B -> C) | D", "A B", [("A", "A", True), ("B", "B", True), ("C", None, False)]),
    ],
)
def test_the_cheapest_alignment(pattern: str, route: str, expected: list[tuple[str | None, str | None, bool]]) -> None:
    assert places(pattern, *route.split()) == expected


def test_the_right_agent_by_the_wrong_way_is_in_its_place_but_not_ok() -> None:
    assert places("A => B => C", "A", "B", call("C")) == [("A", "A", True), ("B", "B", False), ("C", "C", True)]
    assert places("A => B => C", "A", call("X"), call("C")) == [("A", "A", True), ("B", "X", False), ("C", "C", True)]
    assert places("A => B => C", "A", call("C")) == [("A", "A", True), ("B", None, False), ("C", "C", True)]


@pytest.mark.parametrize(
    ("pattern", "route", "explanation"),
    [
        ("A -> B", ("A", "B"), "The route follows the pattern."),
        ("A -> B", ("A", "C"), "After A, C came, where B was expected. To follow the pattern: put B in place of C."),
        ("A -> B", ("A",), "The route ended after A, where B was expected. To follow the pattern: add B after A."),
        ("A", ("A", "B"), "After A, B came, where the end was expected. To follow the pattern: drop B."),
        ("A -> B", ("B",), "At the start, B came, where A was expected. To follow the pattern: begin with A."),
        (
            "A -> B? -> C | D -> E*",
            ("A", "X"),
            "After A, X came, where B or C | D was expected. To follow the pattern: put C | D in place of X.",
        ),
        (
            "A -> B* -> (C -> D)?",
            ("A", "X"),
            "After A, X came, where B, C or the end was expected. To follow the pattern: put B in place of X.",
        ),
        (
            "A -> _",
            ("A",),
            "The route ended after A, where any agent was expected. To follow the pattern: add any agent after A.",
        ),
        (
            "A => B",
            ("A", "B"),
            "After A, B came, where a call of B by A was expected. To follow the pattern: reach B by that call.",
        ),
        (
            "A => B => C",
            ("A", call("B"), call("C", 2)),
            "After B, B called C, where a call of C by A was expected. To follow the pattern: reach C by that call.",
        ),
        (
            "A => (B -> C) => D",
            ("A", call("B"), transfer("C"), call("D")),
            "After B, C came, where C within the call by A was expected. To follow the pattern: reach C by that call.",
        ),
        (
            "(X -> P -> Q -> R) | (A -> B)",  # the cheapest way out is not where the route could go no further
            ("X", "A", "B"),
            "At the start, X came, where A was expected. To follow the pattern: drop X.",
        ),
        (
            "A -> B",
            ("A", "C", "D", "E", "F", "G"),
            (
                "After A, C came, where B was expected. "
                "To follow the pattern: put B in place of C, drop D, drop E, drop F, 1 more."
            ),
        ),
    ],
)
def test_a_mismatch_is_explained(pattern: str, route: tuple[str | Visit, ...], explanation: str) -> None:
    assert Route(pattern).explain(visits(*route)) == explanation


# Against a slow and simple reading of the specification.


AGENTS = ("A", "B", "C")
STRANGER = "X"


@dataclass(frozen=True)
class Tree:
    """A pattern: `name`, `not` and `any` of names, `gap`, and `|`, `?`, `+`, `*`, `->`, `=>` of parts."""

    sign: str
    parts: tuple[Tree, ...] = ()
    names: tuple[str, ...] = ()

    def text(self) -> str:
        match self.sign:
            case "name":
                return self.names[0]
            case "not":
                return f"~({'|'.join(self.names)})"
            case "any":
                return "_"
            case "gap":
                return "..."
            case "?" | "+" | "*":
                return f"({self.parts[0].text()}){self.sign}"
            case "|":
                return "|".join(f"({part.text()})" for part in self.parts)
            case arrow:
                left, right = self.parts
                return f"{left.text() if left.sign in ('->', '=>') else f'({left.text()})'} {arrow} ({right.text()})"

    def regex(self) -> str:
        """The same over routes written as one letter per agent; there is no `=>` in it."""
        match self.sign:
            case "name":
                return self.names[0]
            case "not":
                return f"[^{''.join(self.names)}]"
            case "any":
                return "."
            case "gap":
                return ".*"
            case "?" | "+" | "*":
                return f"(?:{self.parts[0].regex()}){self.sign}"
            case "|":
                return f"(?:{'|'.join(part.regex() for part in self.parts)})"
            case _:
                return "".join(part.regex() for part in self.parts)

    def accepts(self, agent: str) -> bool:
        """Of a tree that is one agent."""
        return self.sign in ("any", "gap") or (agent in self.names) == (self.sign == "name")


Control: TypeAlias = tuple[int, int]
"""How many visits were read, and the depth of the agent who is in control then."""


def read(tree: Tree, route: Sequence[Visit], start: Control, *, caller: int | None, floor: int) -> set[Control]:
    """Every way to read the tree; its first visit is called from the depth `caller`, all are deeper than the floor."""
    done = start[0]

    def go_on(part: Tree, at: Control) -> set[Control]:
        return read(part, route, at, caller=caller if at[0] == done else None, floor=floor)

    def many(begin: set[Control]) -> set[Control]:
        ends, fresh = set(begin), set(begin)
        while fresh:
            fresh = {end for at in fresh for end in go_on(tree.parts[0], at)} - ends
            ends |= fresh
        return ends

    match tree.sign:
        case "|":
            return {end for part in tree.parts for end in go_on(part, start)}
        case "->":
            return {end for middle in go_on(tree.parts[0], start) for end in go_on(tree.parts[1], middle)}
        case "=>":
            return {
                (end, middle[1])
                for middle in go_on(tree.parts[0], start)
                for end, _ in read(tree.parts[1], route, middle, caller=middle[1], floor=max(floor, middle[1]))
            }
        case "?":
            return {start} | go_on(tree.parts[0], start)
        case "+":
            return many(go_on(tree.parts[0], start))
        case "*":
            return many({start})
        case "gap":
            return read(Tree("*", (Tree("any"),)), route, start, caller=caller, floor=floor)
    if done == len(route) or not tree.accepts(route[done].agent) or route[done].depth <= floor:
        return set()
    if done and caller is not None and (route[done].kind, route[done].depth) != ("call", caller + 1):
        return set()
    return {(done + 1, route[done].depth)}


def follow(tree: Tree, rng: Random, route: list[Visit], control: int, *, caller: int | None, floor: int) -> int:
    """Add a route that follows the tree, and return who is in control at its end."""
    begun = len(route)

    def go_on(part: Tree, control: int) -> int:
        return follow(part, rng, route, control, caller=caller if len(route) == begun else None, floor=floor)

    match tree.sign:
        case "|":
            return go_on(rng.choice(tree.parts), control)
        case "->":
            return go_on(tree.parts[1], go_on(tree.parts[0], control))
        case "=>":
            control = go_on(tree.parts[0], control)
            follow(tree.parts[1], rng, route, control, caller=control, floor=max(floor, control))
            return control
        case "?" | "+" | "*":
            for _ in range(rng.randint(tree.sign == "+", 1 if tree.sign == "?" else 2)):
                control = go_on(tree.parts[0], control)
            return control
        case "gap":
            return go_on(Tree("*", (Tree("any"),)), control)
    agent = rng.choice([agent for agent in (*AGENTS, STRANGER) if tree.accepts(agent)])
    if not route:
        route.append(Visit(agent, "start"))
    elif caller is not None:
        route.append(Visit(agent, "call", caller + 1))
    else:
        depth = rng.randint(floor + 1, route[-1].depth + 1)
        kind = "call" if depth > route[-1].depth or (depth and rng.random() < 0.5) else "transfer"
        route.append(call(agent, depth) if kind == "call" else transfer(agent, depth))
    return route[-1].depth


def trees(*pairs: str) -> st.SearchStrategy[Tree]:
    names = st.sampled_from(AGENTS)
    name = st.builds(lambda name: Tree("name", names=(name,)), names)
    other = st.builds(lambda some: Tree("not", names=tuple(some)), st.lists(names, min_size=1, max_size=2))
    leaf = st.one_of(name, name, other, st.sampled_from([Tree("any"), Tree("gap")]))

    def grown(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        pair = st.builds(lambda sign, *parts: Tree(sign, parts), st.sampled_from(pairs), inner, inner)
        again = st.builds(lambda sign, part: Tree(sign, (part,)), st.sampled_from("?+*"), inner)
        return st.one_of(pair, pair, again.filter(lambda tree: tree.parts[0].sign != "gap"))

    return st.recursive(leaf, grown, max_leaves=6)


@st.composite
def routes(draw: st.DrawFn) -> list[Visit]:
    """Any route that could happen: a call goes one deeper than an agent who is there, a transfer stays."""
    route = [Visit(draw(st.sampled_from((*AGENTS, STRANGER))), "start")]
    for agent in draw(st.lists(st.sampled_from((*AGENTS, STRANGER)), max_size=5)):
        source = draw(st.integers(0, route[-1].depth))
        route.append(draw(st.sampled_from([call(agent, source + 1), transfer(agent, source)])))
    return route


@st.composite
def patterns_with_routes(draw: st.DrawFn) -> tuple[Tree, list[Visit]]:
    """A pattern, and a route that follows it save for one visit that may be lost or be another's."""
    tree = draw(trees("->", "=>", "|"))
    if draw(st.booleans()):
        return tree, draw(routes())
    route: list[Visit] = []
    follow(tree, draw(st.randoms(use_true_random=False)), route, -1, caller=None, floor=-1)
    if draw(st.booleans()) and route:
        at = draw(st.integers(0, len(route) - 1))
        route[at : at + 1] = draw(routes())[1:2]
    return tree, route


@given(trees("->", "|"), routes())
def test_patterns_without_calls_are_regular_expressions(tree: Tree, route: list[Visit]) -> None:
    letters = "".join(visit.agent for visit in route)
    assert Route(tree.text()).match(route) == bool(re.fullmatch(tree.regex(), letters))


@given(patterns_with_routes())
def test_matching_agrees_with_a_slow_reading(pair: tuple[Tree, list[Visit]]) -> None:
    tree, route = pair
    ends = read(tree, route, (0, -1), caller=None, floor=-1)
    assert Route(tree.text()).match(route) == any(done == len(route) for done, _ in ends)


@given(trees("->", "=>", "|"), st.randoms(use_true_random=False))
def test_a_route_that_follows_a_pattern_matches_it(tree: Tree, rng: Random) -> None:
    route: list[Visit] = []
    follow(tree, rng, route, -1, caller=None, floor=-1)
    assert Route(tree.text()).match(route)


@given(trees("->", "=>", "|"), st.lists(routes(), min_size=2, max_size=4))
def test_matching_remembers_nothing_wrong(tree: Tree, several: list[list[Visit]]) -> None:
    route = Route(tree.text())
    assert [route.match(visits) for visits in several] == [Route(tree.text()).match(visits) for visits in several]


def test_matching_forgets_states_and_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatflow_eval.route.MAX_STATES", 2)
    route = Route("A -> (B | C)+ -> A")
    words = ["".join(word) for size in range(6) for word in product("ABC", repeat=size)]
    assert [word for word in words if route.match(visits(*word))] == [w for w in words if re.fullmatch("A[BC]+A", w)]


@given(trees("->", "=>", "|"), st.lists(routes(), max_size=3))
def test_what_is_written_reads_the_same(tree: Tree, several: list[list[Visit]]) -> None:
    route = Route(tree.text())
    again = Route(str(route))
    assert again == route
    assert str(again) == str(route)
    assert [again.match(visits) for visits in several] == [route.match(visits) for visits in several]


@given(patterns_with_routes())
def test_an_alignment_is_all_right_if_and_only_if_the_route_matches(pair: tuple[Tree, list[Visit]]) -> None:
    tree, visits = pair
    route = Route(tree.text())
    aligned = route.align(visits)
    assert all(place.ok for place in aligned) == route.match(visits)
    assert [place.actual for place in aligned if place.actual is not None] == [visit.agent for visit in visits]
    assert not any(place.ok and (place.expected is None or place.actual is None) for place in aligned)
    assert (route.explain(visits) == "The route follows the pattern.") == route.match(visits)


@given(trees("->", "|"), st.lists(st.sampled_from((*AGENTS, STRANGER)), min_size=1, max_size=3))
def test_no_alignment_is_cheaper(tree: Tree, agents: list[str]) -> None:
    cost = sum(not place.ok for place in Route(tree.text()).align(visits(*agents)))
    accepted = re.compile(tree.regex()).fullmatch
    near = [word for size in range(6) for word in product((*AGENTS, STRANGER), repeat=size) if accepted("".join(word))]
    cheapest = min((edits(word, agents) for word in near), default=None)
    if cheapest is None or len(agents) + cost > 5:
        assert cheapest is None or cost <= cheapest
    else:
        assert cost == cheapest


def edits(one: Sequence[str], other: Sequence[str]) -> int:
    """Levenshtein's distance."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        above, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(above[j - 1] + (a != b), above[j] + 1, row[-1] + 1))
    return row[-1]


@given(st.one_of(st.text(), st.text("AB _-=>|?+*().~\"\\,!'", max_size=12)))
def test_any_text_is_a_route_or_an_error_within_it(text: str) -> None:
    try:
        route = Route(text)
    except RouteSyntaxError as error:
        offsets = [error.offset]
    else:
        offsets = [edge for _, offset, length in route.name_offsets for edge in (offset, offset + length)]
        assert Route(str(route)) == route
    assert all(0 <= offset <= len(text) for offset in offsets)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_any_names_can_be_quoted_into_a_route(names: list[str]) -> None:
    quoted = ['"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' for name in names]
    route = Route.parse(quoted)
    assert route.match(visits(*names))
    assert Route(str(route)) == route
    assert route.names == set(names)
