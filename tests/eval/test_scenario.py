"""Scenarios in Python: the same types that files become, and the same refusals."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from chatflow_eval.expectations import Expect
from chatflow_eval.scenario import (
    AgentSpec,
    Factory,
    HandoffSpec,
    IgnoreRule,
    Limits,
    Scenario,
    ScriptedAnswer,
    ScriptedCall,
    SettingsSpec,
    Swarm,
    ToolReturn,
    ToolSpec,
    Turn,
    unknown_names,
)


def build() -> object:
    return object()


def scenario(**fields: Any) -> Scenario:
    given: dict[str, Any] = {"id": "refund", "turns": [Turn("hi", expect="none")], "target": build}
    return Scenario(**given | fields)


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(ValidationError) as caught:
        make()
    return str(caught.value.errors()[0]["msg"])


SWARM = Swarm.model_validate(
    {
        "agents": {
            "Triage": {"handoffs": ["Billing"]},
            "Billing": {"tools": {"refund": {"parameters": {"amount": "number", "note": "string?"}}}},
        }
    }
)


class TestPython:
    def test_reads_well(self) -> None:
        refund = Scenario(
            id="refund",
            target=build,
            turns=[Turn("I need a refund", expect=Expect(route="A -> B")), Turn("Thanks", expect={"stay": True})],
            limits={"max_handoffs_per_turn": 3},
            settings={"temperature": 0},
            tags=["billing"],
            ignore=[r"\d{4}", {"in": "messages[0].content", "matches": "today"}],
        )
        assert refund.turns[0] == Turn(user="I need a refund", expect=Expect(route="A -> B"))
        assert refund.target is build
        assert refund.limits == Limits(max_handoffs_per_turn=3)
        assert refund.settings == SettingsSpec(temperature=0.0)
        assert refund.ignore[1] == IgnoreRule(path="messages[0].content", matches="today")
        assert (refund.file, refund.line, refund.repeats, refund.on_failure) == ("<python>", 0, None, "continue")

    def test_frozen_and_picklable(self) -> None:
        given = scenario(target=SWARM, context={"tier": "gold"})
        assert pickle.loads(pickle.dumps(given)) == given
        with pytest.raises(ValidationError, match="frozen"):
            given.id = "other"

    @pytest.mark.parametrize("text", ["{{name}}", "{#", "{% raw %}", "<b>&", "$HOME", "${X}", "no", "  ", ""])
    def test_user_text_is_kept_byte_for_byte(self, text: str) -> None:
        """B124."""
        assert Turn(text).user == text

    @pytest.mark.parametrize(
        ("fields", "why"),
        [
            ({"turns": [Turn("hi")]}, "expects nothing"),
            ({"turns": []}, "at least 1 item"),
            ({"id": ""}, "expected a name"),
            ({"id": "refund[2]"}, "kept for `any`"),
            ({"repeats": 0}, "greater than or equal to 1"),
            ({"timeout": 0}, "greater than 0"),
            ({"timeout": float("inf")}, "finite"),
            ({"on_failure": "halt"}, "'continue' or 'stop'"),
            ({"target": "support.py"}, "expected `path.py:name` or `package.module:name`"),
            ({"target": None}, "expected `path.py:name`"),
            ({"target": {"agents": {}}}, "stand under `agents`"),
            ({"settings": {"api_base": "https://me:secret@host/v1"}}, "without user, password or query"),
            ({"settings": {"api_key": "k"}}, "not permitted"),
            ({"models": [[]]}, "expected a model's name"),
            ({"ignore": ["("]}, "no regular expression"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, fields: dict[str, Any], why: str) -> None:
        assert why in refused(lambda: scenario(**fields))

    def test_turns_take_one_text(self) -> None:
        with pytest.raises(ValueError, match="argument"):
            Turn("a", "b")  # type: ignore[call-arg, arg-type]

    def test_where_a_factory_is_found(self) -> None:
        assert scenario(target="agents/support.py:build").target == Factory(
            reference="agents/support.py:build", base=Path()
        )
        for reference in ("package.module:build", "support.py:Suite.build", "C:/agents/support.py:build"):
            assert isinstance(scenario(target=reference).target, Factory)


class TestPhrasings:
    def test_each_is_a_scenario_of_its_own(self) -> None:
        given = scenario(turns=[Turn({"any": ["hi", "hello"]}, expect={"stay": True}), Turn("bye")])
        assert [(each.id, [turn.user for turn in each.turns]) for each in given.variants()] == [
            ("refund[1]", ["hi", "bye"]),
            ("refund[2]", ["hello", "bye"]),
        ]
        assert all(each.turns[0].expect == Expect(stay=True) for each in given.variants())

    def test_of_several_turns_are_combined(self) -> None:
        given = scenario(turns=[Turn({"any": ["a", "b"]}, expect="none"), Turn({"any": ["c", "d"]})])
        said = [tuple(turn.user for turn in each.turns) for each in given.variants()]
        assert said == [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]
        assert [each.id for each in given.variants()][-1] == "refund[4]"

    def test_none_is_the_scenario_itself(self) -> None:
        assert scenario().variants() == (scenario(),)

    def test_too_many_are_refused(self) -> None:
        turns = [Turn({"any": [str(n) for n in range(11)]}, expect="none")] * 3
        assert "more than 1000" in refused(lambda: scenario(turns=turns))

    @pytest.mark.parametrize("user", [{"any": []}, {"any": "hi"}, {"all": ["hi"]}, {"any": ["hi"], "or": 1}, {}])
    def test_what_is_no_list_of_texts_is_refused(self, user: Any) -> None:
        assert "`any` with a list of texts" in refused(lambda: Turn(user))


class TestSwarm:
    def test_the_first_agent_starts(self) -> None:
        assert SWARM.start == "Triage"
        assert SWARM.agents[0] == AgentSpec(name="Triage", handoffs=(HandoffSpec(agent="Billing"),))

    def test_parameters_in_short(self) -> None:
        assert SWARM.agents[1].tools["refund"].parameters == {
            "type": "object",
            "properties": {"amount": {"type": "number"}, "note": {"type": "string"}},
            "required": ["amount"],
        }
        assert ToolSpec().parameters == {"type": "object", "properties": {}}

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object"},
            {"type": "object", "properties": {"a": {"type": "string"}}},
            {"type": "object", "properties": {}, "additionalProperties": False},
        ],
    )
    def test_parameters_as_a_json_schema(self, schema: dict[str, Any]) -> None:
        assert ToolSpec(parameters=schema).parameters == schema

    def test_a_parameter_may_be_called_type(self) -> None:
        assert ToolSpec(parameters={"type": "string"}).parameters["properties"] == {"type": {"type": "string"}}
        assert set(ToolSpec(parameters={"type": "object", "id": "string"}).parameters["properties"]) == {"type", "id"}

    def test_a_parameter_may_have_a_schema(self) -> None:
        spec = ToolSpec(parameters={"level": {"enum": [1, 2]}})
        assert spec.parameters["properties"] == {"level": {"enum": [1, 2]}}

    @pytest.mark.parametrize("kind", ["strng", "string??", 5, ["string"]])
    def test_an_unknown_type_is_refused(self, kind: Any) -> None:
        assert "expected a type or a JSON schema" in refused(lambda: ToolSpec(parameters={"a": kind}))

    @pytest.mark.parametrize("value", [{"status": "REFUNDED"}, "done", 5, None, [1, 2], [], [{"id": 1}]])
    def test_a_tool_returns_one_value_for_every_call(self, value: Any) -> None:
        [answer] = ToolSpec.model_validate({"returns": value}).returns
        assert (answer.when, answer.returns, answer.raises) == (None, value, None)

    def test_a_tool_returns_by_its_arguments(self) -> None:
        spec = ToolSpec.model_validate(
            {"returns": [{"when": {"amount": 0}, "raises": "nothing to refund"}, {"returns": {"status": "REFUNDED"}}]}
        )
        assert spec.returns == (
            ToolReturn(when={"amount": 0}, raises="nothing to refund"),
            ToolReturn(returns={"status": "REFUNDED"}),
        )
        both = {"returns": [{"returns": 1, "raises": "no"}]}
        assert "exclude each other" in refused(lambda: ToolSpec.model_validate(both))

    @pytest.mark.parametrize(
        ("agents", "why"),
        [
            ({"A": {"handoffs": ["B"]}}, "unknown agent `B`"),
            ({"A": {"handoffs": ["A"]}}, "cannot hand off to itself"),
            ({"A": {"handoffs": ["B", {"agent": "B"}]}, "B": {}}, "stands twice"),
            ({"A": {"tools": {"a b": {}}}}, "name that every provider takes"),
            ({"A": {"handoffs": [{"agent": "B", "tool_name": "2nd"}]}, "B": {}}, "name that every provider takes"),
            ({"A": {"name": "B"}}, "is its key"),
            ({"A": "text"}, "expected an agent's"),
            ({}, "at least 1 item"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, agents: dict[str, Any], why: str) -> None:
        assert why in refused(lambda: Swarm.model_validate({"agents": agents}))

    def test_two_agents_of_one_name_and_a_start_that_is_not_there(self) -> None:
        assert "two agents" in refused(lambda: Swarm(agents=(AgentSpec(name="A"), AgentSpec(name="A"))))
        assert "did you mean `Abc`" in refused(lambda: Swarm(agents=(AgentSpec(name="Abc"),), start="Abd"))

    @pytest.mark.parametrize(
        ("expect", "why"),
        [
            ({"route": "Triage -> Biling"}, "unknown agent `Biling`; did you mean `Billing`?"),
            ({"route": "~Tech"}, "unknown agent `Tech`"),
            ({"starts_at": "Tech"}, "unknown agent `Tech`"),
            ({"ends_at": ["Triage", "Tech"]}, "unknown agent `Tech`"),
            ({"visits": "Tech"}, "unknown agent `Tech`"),
            ({"avoids": "Tech -> Billing"}, "unknown agent `Tech`"),
            ({"calls": "refnd"}, "unknown tool `refnd`; did you mean `refund`?"),
            ({"avoids_calls": "refnd"}, "unknown tool `refnd`"),
            ({"calls": {"tool": "refund", "by": "Triage"}}, "unknown tool of `Triage` `refund`"),
            ({"calls": {"tool": "refund", "by": "Tech"}}, "unknown agent `Tech`"),
        ],
    )
    def test_expectations_name_what_is_there(self, expect: dict[str, Any], why: str) -> None:
        assert why in refused(lambda: scenario(target=SWARM, expect=expect))
        assert why in refused(lambda: scenario(target=SWARM, turns=[Turn("hi", expect=expect)]))
        [problem, *_] = unknown_names(scenario(turns=[Turn("hi", expect=expect)]), SWARM)
        assert problem.startswith("turn 1: expect.")
        assert why in problem

    def test_model_choices_name_what_is_there(self) -> None:
        assert scenario(target=SWARM, models=[{"Triage": "x", "*": "y"}, "z"]).models == (
            {"Triage": "x", "*": "y"},
            "z",
        )
        assert "unknown agent `Tech`" in refused(lambda: scenario(target=SWARM, models=[{"Tech": "x"}]))

    def test_scripted_names_are_not_checked(self) -> None:
        script = [{"transfer": "Nobody"}, {"call": "nothing"}, {"say": "Done."}]
        assert scenario(target=SWARM, turns=[Turn("hi", expect="none", script=script)]).turns[0].script is not None


class TestScript:
    @pytest.mark.parametrize(
        ("written", "say", "calls"),
        [
            ({"say": "Hi."}, "Hi.", ()),
            ({"transfer": "B"}, None, (ScriptedCall(transfer="B"),)),
            ({"transfer": {"to": "B", "reason": "refund"}}, None, (ScriptedCall(transfer="B", reason="refund"),)),
            ({"call": "refund"}, None, (ScriptedCall(tool="refund"),)),
            ({"call": {"refund": {"amount": 1}}}, None, (ScriptedCall(tool="refund", arguments={"amount": 1}),)),
            ({"call": {"refund": '{"amount": '}}, None, (ScriptedCall(tool="refund", arguments='{"amount": '),)),
            (
                [{"say": "One moment."}, {"call": "a"}, {"transfer": "B"}, {"transfer": "C"}],
                "One moment.",
                (ScriptedCall(tool="a"), ScriptedCall(transfer="B"), ScriptedCall(transfer="C")),
            ),
            ({"say": "One moment.", "transfer": "B"}, "One moment.", (ScriptedCall(transfer="B"),)),
        ],
    )
    def test_one_answer(self, written: Any, say: str | None, calls: tuple[ScriptedCall, ...]) -> None:
        [answer] = Turn("hi", script=[written]).script or ()
        assert answer == ScriptedAnswer(say=say, calls=calls)

    @pytest.mark.parametrize(
        "written",
        [
            "Hi.",
            {},
            [],
            {"sy": "Hi."},
            [{"say": "a"}, {"say": "b"}],
            {"transfer": {"reason": "x"}},
            {"transfer": {"to": "B", "because": "x"}},
            {"transfer": ["B"]},
            {"call": {"a": {}, "b": {}}},
            {"call": {"a": 5}},
            {"call": []},
        ],
    )
    def test_what_is_no_answer_is_refused(self, written: Any) -> None:
        assert refused(lambda: Turn("hi", script=[written]))

    def test_a_script_has_answers(self) -> None:
        assert refused(lambda: Turn("hi", script=[]))
