"""Expectations as Python says them: short forms, and what cannot be meant."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from chatflow_eval.expectations import Calls, Expect, Expectations, HandoffCount, IncidentPolicy, Place
from chatflow_eval.incidents import FAILING
from chatflow_eval.route import Route


def refused(**expected: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Expectations(**expected)
    return str(caught.value.errors()[0]["msg"])


class TestShortForms:
    def test_route(self) -> None:
        assert Expect(route="A -> B").route == Route("A -> B") == Expect(route=["A", "B"]).route
        assert Expect(route=Route("A")).route == Route("A")
        assert Expect(route=[]).route == Route("_")

    def test_one_thing_or_a_list(self) -> None:
        assert Expect(ends_at="A").ends_at == ("A",)
        assert Expect(avoids=["A", "A -> C"]).avoids == (Place(agent="A"), Place(agent="C", source="A"))
        assert Expect(visits='"x -> y" => B').visits == (Place(agent="B", source="x -> y", kind="call"),)
        assert Expect(calls="a").calls == (Calls(tool="a"),)
        assert Expect(calls=[Calls(tool="a"), {"tool": "b", "times": 2}]).calls[1].times is not None

    def test_counts(self) -> None:
        assert Expect(handoffs=2).handoffs == HandoffCount(exactly=2)
        words = [str(HandoffCount(**count)) for count in ({"min": 1}, {"max": 3}, {"min": 1, "max": 2, "kind": "call"})]
        assert words == ["at least 1", "at most 3", "1 to 2 of kind call"]

    def test_none(self) -> None:
        assert Expectations.model_validate("none").none
        assert Expect(none=True) == Expectations.model_validate("none")

    def test_a_function_of_the_users_own(self) -> None:
        expect = Expectations.model_validate({"checks:polite": {"level": 3}, "stay": True})
        assert [(each.reference, each.expected) for each in expect.custom] == [("checks:polite", {"level": 3})]


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        ({}, "nothing is expected"),
        ({"none": True, "stay": True}, "`none` says that nothing is expected"),
        ({"stay": False}, "expected `true`"),
        ({"route": ""}, "empty"),
        ({"route": "A ->"}, "ends after `->`"),
        ({"route": ["A -> B"]}, "item 1 of the list"),
        ({"route": 5}, "expected a route"),
        ({"visits": "A -> B -> C"}, "one agent or one hop `A -> B`"),
        ({"visits": "A | B"}, "one agent or one hop"),
        ({"avoids": "A ->"}, "ends after `->`"),
        ({"avoids": []}, "at least 1 item"),
        ({"handoffs": {}}, "expected a number"),
        ({"handoffs": {"min": 3, "max": 1}}, "`min` 3 is more than `max` 1"),
        ({"handoffs": {"exactly": 1, "max": 2}}, "stands alone"),
        ({"handoffs": -1}, "greater than or equal to 0"),
        ({"calls": {"tool": "a", "match": "subset"}}, "there are no `args`"),
        ({"calls": {"tool": "a", "args": {"b": "("}, "match": "regex"}}, "no regular expression"),
        ({"calls": {"tool": "a", "tims": 2}}, "not permitted"),
        ({"reply": {}}, "expected `contains`, `matches` or `lacks`"),
        ({"reply": {"contains": ""}}, "every text contains the empty text"),
        ({"reply": {"matches": "("}}, "no regular expression"),
        ({"incidents": []}, "at least one kind"),
        ({"incidents": ["lop"]}, "Input should be 'loop'"),
        ({"incidents": [{"loop": "A", "limit_hit": "b"}]}, "expected one kind of incident"),
    ],
)
def test_what_cannot_be_meant_is_refused(expected: dict[str, Any], why: str) -> None:
    assert why in refused(**expected)


def test_a_text_alone_is_taken_for_a_route_that_lacks_its_key() -> None:
    with pytest.raises(ValidationError, match="Write `route: A -> B`"):
        Expectations.model_validate("A -> B")


def test_frozen_and_picklable() -> None:
    expect = Expect(route="A -> B?", calls={"tool": "a", "args": {"b": 1}}, incidents=["loop"])
    assert pickle.loads(pickle.dumps(expect)) == expect
    with pytest.raises(ValidationError, match="frozen"):
        expect.stay = True


def test_a_suite_moves_kinds_of_incident() -> None:
    assert IncidentPolicy().failing == FAILING
    assert IncidentPolicy(fail=("self_handoff",), warn=("loop",)).failing == FAILING - {"loop"} | {"self_handoff"}
    with pytest.raises(ValidationError, match="both fail and warn"):
        IncidentPolicy(fail=("loop",), warn=("loop",))
