"""When two requests are the same, and how the first difference between them is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_eval.matching import IGNORED, Ignore, Matcher, first_difference


@pytest.mark.parametrize(
    ("recorded", "asked", "said"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {"a": 1.0}, None),
        ({"a": 1}, {"a": "1"}, 'a: recorded 1, now "1"'),
        ({"a": 1, "b": 2}, {"a": 1}, "b: recorded 2, now missing"),
        ({"a": 1}, {"a": 1, "b": 2}, "b: not recorded, now 2"),
        ({"a": [1, 2]}, {"a": [1]}, "a: recorded 2 item(s), now 1"),
        ({"a": [{"b": "x"}]}, {"a": [{"b": "y"}]}, "a[0].b: recorded 'x', now 'y'"),
    ],
)
def test_the_first_difference_is_told_with_both_values(recorded: Any, asked: Any, said: str | None) -> None:
    assert first_difference(recorded, asked) == said


def test_a_long_texts_difference_is_shown_around_the_place() -> None:
    old, new = "a" * 500 + "old" + "b" * 500, "a" * 500 + "new" + "b" * 500
    said = str(first_difference(old, new))
    assert "old" in said
    assert "new" in said
    assert len(said) < 200


def tools(*names: str) -> Any:
    return [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]


@pytest.mark.parametrize(
    ("recorded", "asked", "said"),
    [
        (tools("a", "b"), tools("b"), "tools: recorded 'a', now missing"),
        (tools("b"), tools("a", "b"), "tools: not recorded, now 'a'"),
        (tools("a", "b"), tools("c", "b"), "tools: recorded 'a', now missing; not recorded, now 'c'"),
        (tools("a", "b"), tools("b", "a"), "tools: recorded a, b, now b, a"),
    ],
)
def test_tools_that_came_and_went_are_told_by_name(recorded: Any, asked: Any, said: str) -> None:
    assert first_difference({"tools": recorded}, {"tools": asked}) == said


def test_true_is_not_one() -> None:
    assert first_difference({"a": True}, {"a": 1}) == "a: recorded true, now 1"
    assert Matcher().body_key({"a": True}) != Matcher().body_key({"a": 1})


@pytest.mark.parametrize(
    ("path", "blanked"),
    [
        (None, {"messages": [{"content": "#"}, {"content": "#"}], "seed": "#"}),
        ("messages[0].content", {"messages": [{"content": "#"}, {"content": "2"}], "seed": "3"}),
        ("messages[-1].content", {"messages": [{"content": "1"}, {"content": "#"}], "seed": "3"}),
        ("messages[*].content", {"messages": [{"content": "#"}, {"content": "#"}], "seed": "3"}),
        ("messages[1]", {"messages": [{"content": "1"}, {"content": "#"}], "seed": "3"}),
        ("*", {"messages": [{"content": "#"}, {"content": "#"}], "seed": "#"}),
        ("seed", {"messages": [{"content": "1"}, {"content": "2"}], "seed": "#"}),
        ("messages[9].content", {"messages": [{"content": "1"}, {"content": "2"}], "seed": "3"}),
        ("nothing.there", {"messages": [{"content": "1"}, {"content": "2"}], "seed": "3"}),
    ],
)
def test_rules_blank_what_they_find_where_they_say(path: str | None, blanked: Any) -> None:
    body: Any = {"messages": [{"content": "1"}, {"content": "2"}], "seed": "3"}
    matcher = Matcher((Ignore(r"\d", path),))
    assert str(matcher.comparable(body)).replace(IGNORED, "#") == str(blanked)
    assert bool(matcher.used) == (blanked != body)


def test_a_rule_without_a_place_holds_for_addresses_and_texts_too() -> None:
    matcher = Matcher((Ignore(r"\d{4}-\d\d-\d\d"),))
    assert matcher.address("http://h/on/2026-11-30?until=2026-12-01") == f"http://h/on/{IGNORED}?until={IGNORED}"
    assert matcher.comparable("on 2026-11-30") == f"on {IGNORED}"


def test_a_rule_in_words() -> None:
    assert str(Ignore("x+")) == "x+"
    assert str(Ignore("x+", "messages[0].content")) == "x+ in messages[0].content"


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=8,
)


@given(JSON_VALUES, JSON_VALUES)
def test_a_difference_is_told_exactly_where_there_is_one(one: Any, other: Any) -> None:
    assert first_difference(one, one) is None
    assert (first_difference(one, other) is None) == (Matcher().body_key(one) == Matcher().body_key(other))
