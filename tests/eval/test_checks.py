"""Checks: each passes and fails, says why in words, and says nothing of turns that nothing can be said of."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from types import ModuleType
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatflow_eval.checks import CHECKS, Span, Verdict, judge
from chatflow_eval.errors import ScenarioError
from chatflow_eval.expectations import ASKED, Expectations, IncidentPolicy
from chatflow_eval.incidents import FAILING, KINDS, Incident, IncidentKind
from chatflow_eval.route import Aligned
from chatflow_eval.trace import Failure, Hop, ToolStep, Topology, Trace, TurnTrace

AGENTS = ("Triage", "Billing", "Tech", "Admin")


def turn(
    *agents: str,
    kind: Literal["transfer", "call"] = "transfer",
    reply: str = "Done.",
    end: str | None = None,
    tools: tuple[ToolStep, ...] = (),
    failure: str = "",
    context: Mapping[str, Any] | None = None,
    reason: str = "",
) -> TurnTrace:
    """A turn in which these agents were given the conversation one after the other."""
    hops = tuple(
        Hop(source=source, target=target, kind=kind, depth=int(kind == "call"), reason=reason)
        for source, target in pairwise(agents)
    )
    return TurnTrace(
        user="...",
        start_agent=agents[0],
        end_agent=end or agents[-1],
        reply=reply,
        steps=(*hops, *tools),
        failure=Failure(kind="agent", exception=failure, message="it broke") if failure else None,
        context=dict(context or {}),
    )


def tool(name: str, *, agent: str = "Billing", known: bool = True, **arguments: Any) -> ToolStep:
    return ToolStep(agent=agent, tool=name, arguments=arguments, known=known)


def trace(*turns: TurnTrace) -> Trace:
    return Trace(topology=Topology(start="Triage", agents=AGENTS), turns=turns)


def verdict(said: TurnTrace, **expected: Any) -> Verdict:
    """What the one check says of the one turn."""
    first, incidents = judge(trace(said), (), turns=[Expectations(**expected)], overall=None)
    assert incidents.check == "incidents"
    assert first.turn == 1
    return first


def overall(*said: TurnTrace, **expected: Any) -> Verdict:
    """What the one check says of the whole conversation."""
    return judge(trace(*said), (), turns=[None] * len(said), overall=Expectations(**expected))[0]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (turn("Triage", "Billing"), {"route": "Triage -> Billing"}),
        (turn("Triage", "Billing"), {"route": ["Triage", "Billing"]}),
        (turn("Triage"), {"route": []}),
        (turn("Triage"), {"stay": True}),
        (turn("Triage", "Billing"), {"starts_at": "Triage"}),
        (turn("Triage", "Billing"), {"ends_at": "Billing"}),
        (turn("Triage", "Billing"), {"ends_at": ["Tech", "Billing"]}),
        (turn("Triage", "Billing", kind="call", end="Triage"), {"ends_at": "Triage"}),
        (turn("Triage", "Billing"), {"handoffs": 1}),
        (turn("Triage", "Billing"), {"handoffs": {"min": 1, "max": 3}}),
        (turn("Triage", "Billing"), {"handoffs": {"exactly": 0, "kind": "call"}}),
        (turn("Triage", "Tech", "Billing"), {"visits": ["Tech", "Tech -> Billing"]}),
        (turn("Triage", "Tech", "Billing"), {"visits": "Triage → Tech"}),
        (turn("Triage", "Billing", kind="call"), {"visits": "Triage => Billing"}),
        (turn("Triage", "Billing"), {"avoids": ["Admin", "Triage => Billing", "Billing -> Triage"]}),
        (turn("Triage", "Tech", "Billing"), {"avoids": "Triage -> Billing"}),
        (turn("Billing", tools=(tool("refund"),)), {"calls": "refund"}),
        (turn("Billing", tools=(tool("refund", amount=20),)), {"calls": {"tool": "refund", "args": {"amount": 20.0}}}),
        (
            turn("Billing", tools=(tool("refund", amount=20, why="late"),)),
            {"calls": {"tool": "refund", "by": "Billing", "args": {"amount": 20}, "match": "subset"}},
        ),
        (
            turn("Billing", tools=(tool("refund", amount=20, why="too late"),)),
            {"calls": {"tool": "refund", "args": {"amount": "^2", "why": "late$"}, "match": "regex"}},
        ),
        (turn("Billing", tools=(tool("a"), tool("b"), tool("a"))), {"calls": [{"tool": "a", "times": 2}, "b"]}),
        (turn("Billing", tools=(tool("a"),)), {"calls": {"tool": "b", "times": 0}}),
        (turn("Billing", tools=(tool("refund", known=False),)), {"avoids_calls": "refund"}),
        (
            turn("Billing", tools=(tool("refund", amount=5),)),
            {"avoids_calls": {"tool": "refund", "args": {"amount": 500}}},
        ),
        (turn("Billing", reply="Your refund is on its way."), {"reply": "refund"}),
        (
            turn("Billing", reply="Your refund is on its way."),
            {"reply": {"contains": ["refund", "way"], "matches": r"^Your \w+", "lacks": "sorry"}},
        ),
        (turn("Triage", "Billing", reason="wants a refund"), {"reason": {"contains": "refund"}}),
        (turn("Billing", context={"tier": "gold", "n": 1}), {"context": {"tier": "gold", "n": 1.0}}),
        (turn("Billing", failure="AgentHandoffError"), {"error": "AgentHandoffError"}),
        (turn("Billing", failure="package.errors.AgentHandoffError"), {"error": "AgentHandoffError"}),
    ],
)
def test_passes(said: TurnTrace, expected: dict[str, Any]) -> None:
    found = verdict(said, **expected)
    assert (found.status, found.why) == ("passed", "")
    assert found.check == next(iter(expected))
    assert found.expected
    assert found.actual


@pytest.mark.parametrize(
    ("said", "expected", "actual", "why"),
    [
        (
            turn("Triage", "Tech"),
            {"stay": True},
            "Triage -> Tech",
            "Triage was to keep the conversation, and it went to Tech",
        ),
        (
            turn("Triage", "Billing", kind="call", end="Triage"),
            {"stay": True},
            "Triage => Billing",
            "it went to Billing",
        ),
        (turn("Tech"), {"starts_at": "Triage"}, "Tech", "Tech was active at the start, expected Triage"),
        (turn("Triage", "Tech"), {"ends_at": "Billing"}, "Tech", "Tech wrote the reply, expected Billing"),
        (
            turn("Triage", "Tech"),
            {"ends_at": ["Billing", "Admin"]},
            "Tech",
            "Tech wrote the reply, expected Billing | Admin",
        ),
        (
            turn("Triage", "Tech", "Billing"),
            {"handoffs": 1},
            "2",
            "expected exactly 1, found 2 (Triage -> Tech, Tech -> Billing)",
        ),
        (turn("Triage"), {"handoffs": {"min": 1}}, "0", "expected at least 1, found 0"),
        (turn("Triage", "Tech"), {"handoffs": {"min": 2, "max": 3}}, "1", "expected 2 to 3, found 1 (Triage -> Tech)"),
        (
            turn("Triage", "Tech"),
            {"handoffs": {"max": 0, "kind": "transfer"}},
            "1",
            "expected at most 0 of kind transfer",
        ),
        (
            turn("Triage", "Tech"),
            {"visits": ["Tech", "Billing"]},
            "Triage -> Tech",
            "the route Triage -> Tech lacks Billing",
        ),
        (turn("Triage", "Tech"), {"visits": "Triage => Tech"}, "Triage -> Tech", "lacks Triage => Tech"),
        (turn("Triage", "Admin"), {"avoids": "Admin"}, "Triage -> Admin", "the route Triage -> Admin has Admin"),
        (
            turn("Triage", "Tech"),
            {"avoids": "Triage -> Tech"},
            "Triage -> Tech",
            "the route Triage -> Tech has Triage -> Tech",
        ),
        (turn("Billing"), {"calls": "refund"}, "no calls", "refund was not called"),
        (
            turn("Billing", tools=(tool("refund", known=False),)),
            {"calls": "refund"},
            "no calls",
            "refund was not called",
        ),
        (
            turn("Billing", tools=(tool("refund", amount=5),)),
            {"calls": {"tool": "refund", "args": {"amount": 20}}},
            'Billing called refund{"amount": 5}',
            'refund{"amount": 20} was not called; Billing called refund{"amount": 5}',
        ),
        (
            turn("Billing", tools=(tool("refund", amount="20"),)),
            {"calls": {"tool": "refund", "args": {"amount": 20}}},
            'Billing called refund{"amount": "20"}',
            'refund{"amount": 20} was not called',
        ),
        (
            turn("Billing", tools=(tool("refund", amount=20, why="late"),)),
            {"calls": {"tool": "refund", "args": {"amount": 20}}},
            'Billing called refund{"amount": 20, "why": "late"}',
            "(`match: subset` allows further arguments)",
        ),
        (
            turn("Billing", tools=(tool("refund", why="late"),)),
            {"calls": {"tool": "refund", "args": {"why": "^ate"}, "match": "regex"}},
            'Billing called refund{"why": "late"}',
            'refund{"why": "^ate"} as patterns was not called',
        ),
        (
            turn("Billing", tools=(tool("refund", agent="Tech"),)),
            {"calls": {"tool": "refund", "by": "Billing"}},
            "Tech called refund{}",
            "refund by Billing was not called; Tech called refund{}",
        ),
        (
            turn("Billing", tools=(tool("refund"), tool("refund"))),
            {"calls": {"tool": "refund", "times": {"max": 1}}},
            "Billing called refund{}, Billing called refund{}",
            "refund was called 2 times, expected at most 1",
        ),
        (
            turn("Billing", tools=(tool("refund", amount=20),)),
            {"avoids_calls": ["cancel", "refund"]},
            'Billing called refund{"amount": 20}',
            'Billing called refund{"amount": 20}, which was to be avoided',
        ),
        (turn("Billing", reply="No."), {"reply": "refund"}, "No.", "the reply does not contain `refund`"),
        (turn("Billing", reply=""), {"reply": {"matches": r"re\d"}}, "nothing", r"the reply does not match `re\d`"),
        (
            turn("Billing", reply="Sorry, no."),
            {"reply": {"contains": "refund", "lacks": "Sorry"}},
            "Sorry, no.",
            "the reply does not contain `refund` and contains `Sorry`",
        ),
        (turn("Triage", "Billing"), {"reason": "refund"}, "nothing", "the reason does not contain `refund`"),
        (
            turn("Billing", context={"tier": "gold"}),
            {"context": {"tier": "silver", "city": "Bonn"}},
            '{"tier": "gold"}',
            'tier is "gold", expected "silver"; city is not there',
        ),
        (turn("Billing"), {"error": "AgentHandoffError"}, "none", "expected AgentHandoffError, raised: none"),
    ],
)
def test_fails_and_says_why(said: TurnTrace, expected: dict[str, Any], actual: str, why: str) -> None:
    found = verdict(said, **expected)
    assert (found.status, found.actual) == ("failed", actual)
    assert why in found.why
    assert found.expected


def test_route_carries_its_alignment_and_explanation() -> None:
    found = verdict(turn("Triage", "Tech"), route="Triage -> Billing")
    assert found.status == "failed"
    assert (found.expected, found.actual) == ("Triage -> Billing", "Triage -> Tech")
    assert "Billing" in found.why
    assert "Tech" in found.why
    assert found.alignment == (
        Aligned(expected="Triage", actual="Triage", ok=True),
        Aligned(expected="Billing", actual="Tech", ok=False),
    )


def test_stay_carries_an_alignment() -> None:
    assert verdict(turn("Triage"), stay=True).alignment == (Aligned(expected="Triage", actual="Triage", ok=True),)
    assert verdict(turn("Triage", "Tech"), stay=True).alignment[1:] == (
        Aligned(expected=None, actual="Tech", ok=False),
    )


def test_a_handoff_reason_is_never_compared_unasked() -> None:
    """B111: the same hop with another reason is the same hop."""
    for reason in ("wants money back", "", "Erstattung"):
        assert verdict(turn("Triage", "Billing", reason=reason), route="Triage -> Billing").status == "passed"


@pytest.mark.parametrize(
    ("agents", "pattern", "status"),
    [
        (("Triage", "Billing"), "Triage -> Billing", "passed"),
        (("Triage", "Tech", "Billing"), "Triage -> Billing", "failed"),
        (("Triage", "Tech", "Billing"), "Triage -> ... -> Billing", "passed"),
        (("Billing",), "Triage -> Billing", "failed"),
        (("Triage", "Billing", "Triage", "Billing"), "Triage -> Billing", "failed"),
        (("Triage", "Billing", "Triage", "Billing"), "(Triage -> Billing)+", "passed"),
    ],
)
def test_repeats_and_gaps_count(agents: tuple[str, ...], pattern: str, status: str) -> None:
    """B112: exact unless the pattern says otherwise."""
    assert verdict(turn(*agents), route=pattern).status == status


def test_a_forbidden_hop_or_tool_fails_though_the_end_is_right() -> None:
    """B101."""
    said = turn("Triage", "Admin", "Billing", tools=(tool("issue_refund", agent="Admin"),))
    end, avoided, tools, _ = judge(
        trace(said),
        (),
        turns=[Expectations(ends_at="Billing", avoids="Admin", avoids_calls="issue_refund")],
        overall=None,
    )
    assert [each.status for each in (end, avoided, tools)] == ["passed", "failed", "failed"]


class TestWholeConversation:
    TWO = (turn("Triage", "Billing", reply="Refunded."), turn("Billing", "Tech", reply="Restart it."))

    @pytest.mark.parametrize(
        ("expected", "status"),
        [
            ({"route": "Triage -> Billing -> Tech"}, "passed"),
            ({"route": "Triage -> Billing -> Billing -> Tech"}, "failed"),
            ({"stay": True}, "failed"),
            ({"starts_at": "Triage"}, "passed"),
            ({"ends_at": "Tech"}, "passed"),
            ({"ends_at": "Billing"}, "failed"),
            ({"handoffs": 2}, "passed"),
            ({"avoids": "Admin"}, "passed"),
            ({"visits": "Billing -> Tech"}, "passed"),
            ({"reply": "Refunded"}, "passed"),
            ({"reply": {"lacks": "Refunded"}}, "failed"),
            ({"reply": "sorry"}, "failed"),
        ],
    )
    def test_checks_look_at_all_turns(self, expected: dict[str, Any], status: str) -> None:
        found = overall(*self.TWO, **expected)
        assert (found.status, found.turn) == (status, None)

    def test_turns_have_their_own_expectations(self) -> None:
        """B126."""
        verdicts = judge(
            trace(*self.TWO),
            (),
            turns=[Expectations(route="Triage -> Billing", reply="Refunded"), Expectations(ends_at="Triage")],
            overall=Expectations(handoffs={"max": 2}),
        )
        assert [(each.check, each.turn, each.status) for each in verdicts] == [
            ("route", 1, "passed"),
            ("reply", 1, "passed"),
            ("ends_at", 2, "failed"),
            ("handoffs", None, "passed"),
            ("incidents", None, "passed"),
        ]


class TestUnjudged:
    def test_turns_that_were_not_reached_are_skipped_with_a_reason(self) -> None:
        first, second, whole, incidents = judge(
            trace(turn("Triage")),
            (),
            turns=[Expectations(stay=True), Expectations(route="Triage -> Billing")],
            overall=Expectations(ends_at="Triage"),
        )
        assert first.status == "passed"
        for each in (second, whole, incidents):
            assert (each.status, each.why) == ("skipped", "turn 2 was not reached")
        assert (second.turn, second.expected) == (2, "Triage -> Billing")

    def test_a_turn_that_raised_is_skipped_and_what_follows_is_marked(self) -> None:
        first, second, *_ = judge(
            trace(turn("Triage", failure="RateLimitError"), turn("Triage")),
            (),
            turns=[Expectations(stay=True), Expectations(stay=True)],
            overall=None,
        )
        assert (first.status, first.why) == ("skipped", "turn 1 ended with RateLimitError: it broke")
        assert (second.status, second.after_failure) == ("passed", True)

    def test_another_exception_than_the_expected_one_leaves_the_turn_unjudged(self) -> None:
        assert verdict(turn("Triage", failure="RateLimitError"), error="AgentHandoffError").status == "skipped"

    def test_an_expected_exception_passes_and_the_turns_other_checks_are_skipped(self) -> None:
        said = trace(turn("Triage", failure="AgentHandoffError"))
        verdicts = judge(said, (), turns=[Expectations(error="AgentHandoffError", stay=True)], overall=None)
        assert {each.check: each.status for each in verdicts} == {
            "stay": "skipped",
            "error": "passed",
            "incidents": "passed",
        }
        assert all(each.why for each in verdicts if each.status == "skipped")

    def test_an_exception_expected_of_the_whole_conversation(self) -> None:
        assert overall(turn("Triage", failure="AgentHandoffError"), error="AgentHandoffError").status == "passed"

    def test_turns_after_a_wrong_one_are_marked(self) -> None:
        """B128."""
        verdicts = judge(
            trace(turn("Triage", "Tech"), turn("Tech"), turn("Tech")),
            (),
            turns=[Expectations(route="Triage -> Billing"), Expectations(stay=True), None],
            overall=Expectations(ends_at="Tech"),
        )
        assert [(each.check, each.after_failure) for each in verdicts] == [
            ("route", False),
            ("stay", True),
            ("ends_at", False),
            ("incidents", False),
        ]

    def test_a_conversation_without_turns_is_skipped(self) -> None:
        [incidents] = judge(trace(), (), turns=[], overall=None)
        assert (incidents.status, incidents.why) == ("skipped", "the conversation has no turns")

    @settings(deadline=None)
    @given(st.lists(st.sampled_from(AGENTS), min_size=1, max_size=4), st.integers(0, 3))
    def test_everything_that_did_not_pass_has_a_reason(self, agents: list[str], reached: int) -> None:
        expected = Expectations(
            route="Triage -> Billing", stay=None, starts_at="Triage", ends_at="Billing", handoffs=1, visits="Tech",
            avoids="Admin", calls="refund", avoids_calls="cancel", reply="refund", reason="money", context={"a": 1},
        )  # fmt: skip
        for each in judge(trace(*[turn(*agents)] * reached), (), turns=[expected] * 2, overall=expected):
            assert bool(each.why) == (each.status != "passed")
            assert each.expected


def incident(kind: IncidentKind, *, at: int = 1, limit: str | None = None, tool: str | None = None) -> Incident:
    return Incident(kind=kind, turn=at, agents=("Triage", "Tech"), message=f"{kind}!", limit=limit, tool=tool)


def incidents(
    *found: Incident, turns: list[Any] | None = None, whole: Any = None, policy: IncidentPolicy | None = None
) -> Verdict:
    """What the implicit check says of a conversation of two turns in which these were found."""
    expected = [each and Expectations(incidents=each) for each in turns or [None, None]]
    said = trace(turn("Triage"), turn("Triage"))
    overall = whole and Expectations(incidents=whole)
    return judge(said, found, turns=expected, overall=overall, policy=policy)[-1]


class TestIncidents:
    def test_always_judged(self) -> None:
        found = incidents()
        assert (found.check, found.turn, found.status, found.actual) == ("incidents", None, "passed", "none")
        assert found.expected == f"no {', '.join(kind for kind in KINDS if kind in FAILING)}"

    @pytest.mark.parametrize("kind", sorted(FAILING))
    def test_failing_kinds_fail_unasked(self, kind: IncidentKind) -> None:
        found = incidents(incident(kind, at=2))
        assert (found.status, found.actual, found.why) == ("failed", f"{kind} in turn 2", f"turn 2: {kind}!")

    def test_the_others_only_warn(self) -> None:
        assert incidents(incident("unknown_tool"), incident("self_handoff")).status == "passed"

    @pytest.mark.parametrize(
        "expected",
        ["loop", ["loop"], {"allow": ["loop"]}, {"require": "loop"}, [{"loop": "Tech"}], {"loop": "Tech"}],
    )
    def test_required_or_allowed_does_not_fail(self, expected: Any) -> None:
        assert incidents(incident("loop"), turns=[expected, None]).status == "passed"
        assert incidents(incident("loop"), whole=expected).status == "passed"
        assert incidents(incident("loop", at=2), turns=[expected, None]).status == "failed"

    def test_required_and_absent_fails(self) -> None:
        assert incidents(whole=["loop"]).why == "loop was required and did not happen"
        assert (
            incidents(incident("loop", at=2), turns=[["loop"], ["loop"]]).why
            == "loop in turn 1 was required and did not happen"
        )
        assert incidents(whole={"allow": ["loop"]}).status == "passed"

    def test_a_limit_by_its_name(self) -> None:
        hit = incident("limit_hit", limit="max_handoffs_per_turn")
        wanted = [{"limit_hit": "max_handoffs_per_turn"}]
        assert incidents(hit, whole=wanted).status == "passed"
        other = incidents(incident("limit_hit", limit="max_tool_iterations"), whole=wanted)
        assert other.status == "failed"
        assert "limit_hit max_handoffs_per_turn was required" in other.why

    def test_a_tool_by_its_name(self) -> None:
        wanted = [{"unknown_tool": "get_date"}]
        assert incidents(incident("unknown_tool", tool="get_date"), whole=wanted).status == "passed"
        assert incidents(incident("unknown_tool", tool="get_time"), whole=wanted).status == "failed"

    def test_a_suite_moves_kinds(self) -> None:
        policy = IncidentPolicy(fail=("unknown_tool",), warn=("loop",))
        assert incidents(incident("loop"), policy=policy).status == "passed"
        assert incidents(incident("unknown_tool"), policy=policy).status == "failed"
        assert incidents(incident("unknown_tool"), policy=policy, whole={"allow": ["unknown_tool"]}).status == "passed"

    def test_what_was_found_counts_though_turns_are_missing(self) -> None:
        said = trace(turn("Triage"))
        [found] = judge(said, [incident("loop")], turns=[None, None], overall=None)
        assert found.status == "failed"
        [found] = judge(said, [], turns=[None, None], overall=Expectations(incidents="loop"))
        assert (found.status, found.why) == ("skipped", "turn 2 was not reached")


class TestCustomChecks:
    @pytest.fixture
    def module(self, monkeypatch: pytest.MonkeyPatch) -> str:
        def short(span: Span, expected: Any) -> str | None:
            longest = max(len(each.reply) for each in span.turns)
            return None if longest <= expected else f"a reply has {longest} characters"

        def broken(span: Span, expected: Any) -> str:
            raise KeyError("nothing")

        def wrong(span: Span, expected: Any) -> bool:
            return True

        module = ModuleType("suite_checks")
        module.__dict__.update(short=short, broken=broken, wrong=wrong)
        monkeypatch.setitem(sys.modules, "suite_checks", module)
        return "suite_checks"

    def test_a_function_is_named_by_module_and_function(self, module: str) -> None:
        assert verdict(turn("Triage", reply="Hi."), **{f"{module}:short": 10}).status == "passed"
        found = verdict(turn("Triage", reply="Hi."), **{f"{module}:short": 2})
        assert (found.check, found.status, found.why) == ("suite_checks:short", "failed", "a reply has 3 characters")

    @pytest.mark.parametrize(("name", "why"), [("broken", "KeyError"), ("wrong", "True"), ("gone", "gone")])
    def test_what_is_wrong_with_it_is_no_verdict(self, module: str, name: str, why: str) -> None:
        with pytest.raises(ScenarioError, match=rf"suite_checks:{name}.*{why}"):
            verdict(turn("Triage"), **{f"{module}:{name}": 2})


def test_every_check_of_an_expectation_has_its_function() -> None:
    assert tuple(CHECKS) == ASKED
    assert all(check.__doc__ for check in CHECKS.values())
