"""Files to scenarios: what they say, what their folders and projects add, and what is wrong with them, at its place."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chatflow_eval.document import MAX_PROBLEMS
from chatflow_eval.errors import ScenarioError, ScenarioErrors
from chatflow_eval.expectations import ASKED, Expect, IncidentPolicy
from chatflow_eval.loader import Project, find_root, json_schema, load, project
from chatflow_eval.scenario import Factory, IgnoreRule, Limits, Scenario, SettingsSpec, Swarm
from chatflow_eval.scrub import scrub_text

FACTORY = """\
target: support.py:build            # a factory, found relative to this file
repeats: 5
limits: {max_handoffs_per_turn: 3, max_tool_iterations: 6}

scenarios:
  - id: refund-then-crash
    tags: [billing, smoke]
    context: {tier: gold, since: 2020}           # session context at the start
    turns:
      - user: I have an unexpected charge on my invoice and need a refund.
        expect:
          route: TriageAgent -> BillingAgent
          calls: issue_refund
      - user: Also, the app crashes when I upload a file.
        expect:
          route: BillingAgent -> TriageAgent? -> TechSupportAgent
      - user: Thanks!
        expect: {stay: true}
    expect:
      ends_at: TechSupportAgent
      handoffs: {max: 3}
"""

INLINE = """\
dialect: chatflow                   # default
agents:
  TriageAgent:
    instructions: Welcome the user. Transfer billing to BillingAgent, hard cases to Manager.
    handoffs:
      - BillingAgent
      - {agent: Manager, tool_name: escalate_to_manager, description: Escalate complex issues.}
  BillingAgent:
    instructions: Assist with refunds and payment disputes.
    tools:
      issue_refund:
        description: Process a refund back to the original payment method.
        parameters:                 # short form
          transaction_id: string
          amount: number
          note: string?             # optional
        returns: {status: REFUNDED} # the same for every call
    handoffs: [TriageAgent]
  Manager: {instructions: Decide escalations.}
scenarios:
  - id: said in three ways
    models: [declared, gpt-x, {TriageAgent: a, "*": b}]
    timeout: 2.5
    xfail: not built yet
    on_failure: stop
    turns:
      - user: {any: [no, 12:30, 'refund #42']}
        script:
          - [say: One moment., transfer: BillingAgent]
          - call: {issue_refund: {amount: 20, note: '20'}}
          - say: Done.
        expect:
          route: TriageAgent -> BillingAgent
          calls: {tool: issue_refund, by: BillingAgent, args: {amount: 20}, match: subset}
          incidents: [loop, {limit_hit: max_handoffs_per_turn}]
"""


class Suite:
    """A folder with a project file and scenario files in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("pyproject.toml", "")

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())
        return path

    def load(self, content: str | bytes) -> tuple[Scenario, ...]:
        return load([self.write("suite.scenario.yaml", content)])

    def one(self, content: str) -> Scenario:
        [scenario] = self.load(content)
        return scenario

    def problems(self, content: str | bytes) -> list[str]:
        """What is wrong, each as `line:column: problem`."""
        with pytest.raises(ScenarioError) as caught:
            self.load(content)
        start = f"{self.root / 'suite.scenario.yaml'}:"
        lines = str(caught.value).splitlines()
        assert all(line.startswith(start) for line in lines), lines
        return [line.removeprefix(start) for line in lines]

    def problem(self, content: str | bytes) -> str:
        [one] = self.problems(content)
        return one


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def head(more: str = "", *, expect: str = "none", user: str = "hi") -> str:
    """A file of one scenario on a factory, with more said at its top."""
    return f"target: a.py:b\n{more}scenarios:\n  - id: x\n    turns:\n      - user: {user}\n        expect: {expect}\n"


def swarm(expect: str) -> str:
    """A file of one scenario on two agents; what is expected stands in line 10, from column 17."""
    return (
        "agents:\n  Triage: {handoffs: [Billing]}\n  Billing:\n    tools:\n      refund: {}\nscenarios:\n"
        f"  - id: x\n    turns:\n      - user: hi\n        expect: {expect}\n"
    )


class TestWhatFilesSay:
    def test_a_factory(self, suite: Suite) -> None:
        scenario = suite.one(FACTORY)
        assert scenario.target == Factory(reference="support.py:build", base=suite.root)
        assert (scenario.id, scenario.file, scenario.line) == ("refund-then-crash", "suite.scenario.yaml", 6)
        assert (scenario.tags, scenario.repeats) == (("billing", "smoke"), 5)
        assert scenario.context == {"tier": "gold", "since": 2020}
        assert scenario.limits == Limits(max_handoffs_per_turn=3, max_tool_iterations=6)
        assert [turn.expect for turn in scenario.turns] == [
            Expect(route="TriageAgent -> BillingAgent", calls="issue_refund"),
            Expect(route="BillingAgent -> TriageAgent? -> TechSupportAgent"),
            Expect(stay=True),
        ]
        assert scenario.expect == Expect(ends_at="TechSupportAgent", handoffs={"max": 3})

    def test_agents_in_the_file(self, suite: Suite) -> None:
        first, second, third = suite.load(INLINE)
        assert [(each.id, each.turns[0].user) for each in (first, second, third)] == [
            ("said in three ways[1]", "no"),
            ("said in three ways[2]", "12:30"),
            ("said in three ways[3]", "refund #42"),
        ]
        assert isinstance(first.target, Swarm)
        assert (first.target.start, first.target.names) == ("TriageAgent", ("TriageAgent", "BillingAgent", "Manager"))
        assert first.target.agents[0].handoffs[1].tool_name == "escalate_to_manager"
        tool = first.target.agents[1].tools["issue_refund"]
        assert tool.parameters["required"] == ["transaction_id", "amount"]
        assert tool.returns[0].returns == {"status": "REFUNDED"}
        assert first.models == ("declared", "gpt-x", {"TriageAgent": "a", "*": "b"})
        assert (first.timeout, first.xfail, first.on_failure) == (2.5, "not built yet", "stop")
        said, called, done = first.turns[0].script or ()
        assert (said.say, said.calls[0].transfer) == ("One moment.", "BillingAgent")
        assert called.calls[0].arguments == {"amount": 20, "note": "20"}
        assert done.say == "Done."

    @pytest.mark.parametrize(
        "text", ["no", "on", "yes", "null", "~", "12:30", "2026-01-01", "007", "1e3", "{{x}}", "$HOME"]
    )
    def test_text_is_kept_as_written(self, suite: Suite, text: str) -> None:
        """B120, B124: as an id, a tag, an agent, a tool, a user's words."""
        written = text if text[0] not in "{~" else f"'{text}'"
        scenario = suite.one(
            f"agents: {{{written}: {{}}, B: {{handoffs: [{written}]}}}}\n"
            f"scenarios:\n  - id: {written}\n    tags: [{written}]\n    skip: {written}\n    turns:\n"
            f"      - user: {written}\n        expect: {{ends_at: [{written}], reply: {written}, error: {written}}}\n"
        )
        expect = scenario.turns[0].expect
        assert expect is not None
        assert expect.reply is not None
        said = [
            scenario.id,
            scenario.turns[0].user,
            scenario.skip,
            *scenario.tags,
            *expect.ends_at,
            *expect.reply.contains,
        ]
        assert [*said, expect.error] == [text] * 7
        assert {type(each) for each in said} == {str}

    def test_data_is_data(self, suite: Suite) -> None:
        scenario = suite.one(head("context: {a: 20, b: '20', c: no, d: true, e: null, f: [1.5, {g: 12:30}]}\n"))
        assert scenario.context == {"a": 20, "b": "20", "c": "no", "d": True, "e": None, "f": [1.5, {"g": "12:30"}]}

    def test_anchors_save_repetition(self, suite: Suite) -> None:
        first, second = suite.load(
            """\
            target: a.py:b
            scenarios:
              - &first
                id: a
                turns: &turns
                  - {user: hi, expect: &kept {stay: true}}
                  - {user: bye, expect: *kept}
              - {<<: *first, id: b}
            """
        )
        assert (first.id, second.id, second.line) == ("a", "b", 8)
        assert first.turns == second.turns

    def test_an_id_is_any_text(self, suite: Suite) -> None:
        assert (
            suite.one(head().replace("id: x", "id: 'Übergabe: [2] Versuche, 100 %'")).id
            == "Übergabe: [2] Versuche, 100 %"
        )

    def test_nothing_expected_needs_saying_so(self, suite: Suite) -> None:
        """B122."""
        assert suite.problem(head().replace("        expect: none\n", "")) == (
            "3:5: scenario `x` expects nothing; if that is meant, write `expect: none`"
        )
        assert suite.one(head()).turns[0].expect == Expect(none=True)
        assert suite.one(head().replace("        expect: none\n", "    expect: none\n")).expect == Expect(none=True)
        assert suite.problem(head(expect="{}")).startswith("6:17: nothing is expected here")

    def test_loading_runs_nothing(self, suite: Suite) -> None:
        suite.write("a.py", "raise SystemExit('this was run')")
        assert suite.one(head()).id == "x"


class TestDefaults:
    FILE = """\
        target: a.py:b
        tags: [all, billing]
        context: {tier: gold, city: Bonn}
        limits: {max_handoffs_per_turn: 3}
        settings: {temperature: 0, seed: 1}
        models: [x, y]
        repeats: 2
        timeout: 10
        on_failure: stop
        ignore: ['a+']
        scenarios:
          - id: plain
            turns: [{user: hi, expect: none}]
          - id: own
            target: c.py:d
            tags: smoke
            context: {tier: silver}
            limits: {max_tool_iterations: 0}
            settings: {seed: 2}
            models: z
            repeats: 3
            timeout: 0.5
            on_failure: continue
            ignore: {in: 'messages[0].content', matches: b}
            turns: [{user: hi, expect: none}]
        """

    def test_the_file_gives_what_the_scenario_leaves_out(self, suite: Suite) -> None:
        plain, _ = suite.load(self.FILE)
        assert plain.target == Factory(reference="a.py:b", base=suite.root)
        assert (plain.tags, plain.models, plain.repeats, plain.timeout) == (("all", "billing"), ("x", "y"), 2, 10)
        assert plain.context == {"tier": "gold", "city": "Bonn"}
        assert (plain.limits, plain.settings) == (Limits(max_handoffs_per_turn=3), SettingsSpec(temperature=0, seed=1))
        assert (plain.on_failure, plain.ignore) == ("stop", (IgnoreRule.model_validate("a+"),))

    def test_the_scenario_wins(self, suite: Suite) -> None:
        _, own = suite.load(self.FILE)
        assert own.target == Factory(reference="c.py:d", base=suite.root)
        assert (own.models, own.repeats, own.timeout, own.on_failure) == (("z",), 3, 0.5, "continue")

    def test_settings_limits_and_context_key_by_key(self, suite: Suite) -> None:
        _, own = suite.load(self.FILE)
        assert own.context == {"tier": "silver", "city": "Bonn"}
        assert own.limits == Limits(max_handoffs_per_turn=3, max_tool_iterations=0)
        assert own.settings == SettingsSpec(temperature=0, seed=2)

    def test_tags_and_ignore_rules_add_up(self, suite: Suite) -> None:
        _, own = suite.load(self.FILE)
        assert own.tags == ("smoke", "all", "billing")
        assert [rule.matches for rule in own.ignore] == ["b", "a+"]

    def test_a_scenario_starts_the_files_agents_elsewhere(self, suite: Suite) -> None:
        """B078."""
        content = swarm("{stay: true}").replace("  - id: x\n", "  - id: x\n    start: Billing\n    dialect: synaptic\n")
        scenario = suite.one(content)
        assert isinstance(scenario.target, Swarm)
        assert (scenario.target.start, scenario.target.dialect) == ("Billing", "synaptic")
        assert suite.problem(content.replace("start: Billing", "start: Biling")) == (
            "8:12: unknown agent `Biling`; did you mean `Billing`?"
        )

    def test_a_scenario_may_bring_its_own_agents(self, suite: Suite) -> None:
        scenario = suite.one(head().replace("  - id: x\n", "  - id: x\n    agents: {Alone: {}}\n"))
        assert isinstance(scenario.target, Swarm)
        assert scenario.target.names == ("Alone",)

    def test_whom_to_test_is_said_once(self, suite: Suite) -> None:
        assert suite.problem(
            "target: a.py:b\nagents: {A: {}}\nscenarios: [{id: x, turns: [{user: hi, expect: none}]}]"
        ) == ("2:9: `target` and `agents` both say whom to test; keep one of them")
        assert suite.problem("scenarios: [{id: x, turns: [{user: hi, expect: none}]}]") == (
            "1:13: neither `target` nor `agents` says whom to test"
        )
        assert suite.problem(head("start: A\n")) == "2:8: `start` says something of `agents`, and there are none here"

    def test_scenarios_are_not_blamed_for_the_head(self, suite: Suite) -> None:
        content = (
            swarm("{ends_at: Nobody}")
            .replace("[Billing]", "[Biling]")
            .replace("  - id: x\n", "  - id: x\n    start: Triage\n")
        )
        assert suite.problem(content) == "2:23: unknown agent `Biling`; did you mean `Billing`?"


class TestProject:
    TABLE = """\
        [project]
        name = "x"
        [tool.chatflow-eval]
        repeats = 3
        models = ["x", {TriageAgent = "y", "*" = "z"}]
        timeout = 20
        ignore = ['\\d+', {in = "a.b", matches = "c"}]
        limits = {max_handoffs_per_turn = 2}
        incidents = {fail = ["unknown_tool"], warn = ["loop"]}
        [tool.chatflow-eval.settings]
        temperature = 0.5
        """

    def test_the_suite_gives_what_files_leave_out(self, suite: Suite) -> None:
        suite.write("pyproject.toml", self.TABLE)
        scenario = suite.one(head("limits: {max_tool_iterations: 4}\n"))
        assert (scenario.repeats, scenario.timeout) == (3, 20)
        assert scenario.models == ("x", {"TriageAgent": "y", "*": "z"})
        assert scenario.limits == Limits(max_handoffs_per_turn=2, max_tool_iterations=4)
        assert scenario.settings == SettingsSpec(temperature=0.5)
        assert scenario.ignore == (IgnoreRule.model_validate(r"\d+"), IgnoreRule(path="a.b", matches="c"))
        assert scenario.incidents == IncidentPolicy(fail=("unknown_tool",), warn=("loop",))

    def test_files_are_named_from_its_folder(self, suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
        path = suite.write("deep/er/a.scenario.yml", head())
        assert [each.file for each in load([path])] == ["deep/er/a.scenario.yml"]
        monkeypatch.chdir(suite.root / "deep")
        [scenario] = load([Path("er")])
        assert scenario.file == "deep/er/a.scenario.yml"
        assert scenario.target == Factory(reference="a.py:b", base=suite.root / "deep" / "er")
        assert [each.file for each in load([path], root=suite.root / "deep")] == ["er/a.scenario.yml"]

    def test_its_root_is_the_nearest_project_file(self, suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
        suite.write("inner/pyproject.toml", "")
        file = suite.write("inner/a/b.scenario.yaml", head())
        assert find_root(file) == suite.root / "inner"
        assert project(suite.root) == Project(suite.root)
        (suite.root / "inner" / "pyproject.toml").unlink()
        (suite.root / "pyproject.toml").unlink()
        monkeypatch.chdir(suite.root)
        assert find_root(file) == suite.root

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("repeat = 3", ":3: unknown key `repeat`; did you mean `repeats`?"),
            ('repeats = "x"', ":3: `repeats`: expected a whole number, found `x`"),
            ("repeats = 0", ":3: `repeats`: expected at least 1, found `0`"),
            (
                'settings = {api_key = "k"}',
                ":3: unknown key `api_key`; keys come from the environment, never from a file",
            ),
            ('incidents = {fail = ["lop"]}', ":3: `fail`: expected one of `loop`, "),
            ("limits = 5", ":3: `limits`: expected keys and values, found `5`"),
            ("ignore = ['(']", ":3: `(` is no regular expression"),
            ("repeats = ", ":3:11: cannot be read: Invalid value"),
            ("repeats = 3\nrepeats = 4", ":4:12: cannot be read: Cannot overwrite a value"),
            ("[[tool.chatflow-eval]]", ""),
        ],
    )
    def test_what_is_wrong_with_it_names_its_file_and_line(self, suite: Suite, line: str, problem: str) -> None:
        path = suite.write("pyproject.toml", f"repeat = 1\n[tool.chatflow-eval]\n{line}\n")
        with pytest.raises(ScenarioError) as caught:
            suite.load(head())
        assert str(caught.value).startswith(f"{path}{problem}")

    @pytest.mark.parametrize(
        "table", ["tool = 5\n", "[tool]\nchatflow-eval = 5\n", "[[tool.chatflow-eval]]\n", b"\xff"]
    )
    def test_a_table_that_is_none(self, suite: Suite, table: str | bytes) -> None:
        suite.write("pyproject.toml", table)
        with pytest.raises(ScenarioError, match=r"pyproject\.toml"):
            suite.load(head())


class TestPaths:
    def test_folders_are_searched(self, suite: Suite) -> None:
        for name in ("b.scenario.yaml", "a.scenario.yml", "sub/c.scenario.yaml"):
            suite.write(name, head())
        for name in ("other.yaml", ".hidden/d.scenario.yaml", "node_modules/e.scenario.yaml"):
            suite.write(name, "- not read")
        assert [each.file for each in load([suite.root])] == [
            "a.scenario.yml",
            "b.scenario.yaml",
            "sub/c.scenario.yaml",
        ]

    def test_a_file_is_read_once_under_any_name(self, suite: Suite) -> None:
        path = suite.write("a.yaml", head())
        os.symlink(path, suite.root / "link.scenario.yaml")
        assert len(load([path, suite.root / "." / "a.yaml", suite.root])) == 1

    def test_files_may_share_ids(self, suite: Suite) -> None:
        suite.write("a.scenario.yaml", head())
        suite.write("b.scenario.yaml", head())
        assert [each.id for each in load([suite.root])] == ["x", "x"]

    def test_what_is_not_there(self, suite: Suite) -> None:
        with pytest.raises(ScenarioError, match=r"gone\.yaml: there is no such file"):
            load([suite.root / "gone.yaml"])
        with pytest.raises(ScenarioError, match="no scenario file in this folder"):
            load([suite.root])
        assert load([]) == ()

    def test_what_is_wrong_in_several_files_is_told_together(self, suite: Suite) -> None:
        first = suite.write("a.scenario.yaml", "")
        second = suite.write("b.scenario.yaml", head(expect="{stay: false}"))
        with pytest.raises(ScenarioErrors) as caught:
            load([suite.root, suite.root / "gone.yaml"])
        assert [error.path for error in caught.value.errors] == [first, second, suite.root / "gone.yaml"]


class TestMessages:
    """Each is `line:column: what, expected what, did you mean ...`."""

    @pytest.mark.parametrize(
        ("expect", "problem"),
        [
            ("{rout: A}", "6:18: unknown key `rout`; did you mean `route`?"),
            ("{path: A}", "6:18: unknown key `path`; did you mean `route`?"),
            ("{user: A}", "6:18: unknown key `user`; it stands in an item of `turns`"),
            ("{stay: false}", "6:24: expected `true`; that somebody hands off is `handoffs: {min: 1}`"),
            ("A -> B", "6:17: expected checks, or `none`, found `A -> B`; is `A -> B` a route? Write `route: A -> B`"),
            ("[A]", "6:17: `expect`: expected keys and values, found a list"),
            ("", "6:16: expected checks, or `none`, found nothing"),
            ("{handoffs: many}", "6:28: `handoffs`: expected a whole number, found `many`"),
            ("{handoffs: {max: -1}}", "6:34: `max`: expected at least 0, found `-1`"),
            ("{handoffs: {kind: move, max: 1}}", "6:35: `kind`: expected one of `transfer`, `call`, found `move`"),
            ("{handoffs: {mx: 1}}", "6:29: unknown key `mx`; did you mean `max`?"),
            ("{calls: {tol: a}}", "6:26: unknown key `tol`; did you mean `tool`?"),
            (
                "{calls: [{tool: b, match: exactly, args: {}}]}",
                "6:43: `match`: expected one of `exact`, `subset`, `regex`, ",
            ),
            ("{calls: [{tool: b, by: [c]}]}", "6:40: `by`: expected text, found a list"),
            ("{calls: []}", "6:25: `calls`: expected at least one, found a list"),
            ("{avoids: [A, B -> C -> D]}", "6:30: expected one agent or one hop `A -> B`, found `B -> C -> D`"),
            ("{reply: {matches: (}}", "6:35: `(` is no regular expression: missing ), unterminated subpattern"),
            ("{incidents: [lop]}", "6:30: `incidents`: expected one of `loop`, "),
            ("{incidents: {alow: [loop]}}", "6:30: unknown key `alow`; did you mean `allow`?"),
            ("{ends_at: {a: b}}", "6:27: `ends_at`: expected text, found a mapping"),
            ("{route: A}}", "6:27: "),
        ],
    )
    def test_of_expectations(self, suite: Suite, expect: str, problem: str) -> None:
        """B122."""
        assert any(each.startswith(problem) for each in suite.problems(head(expect=expect)))

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("repeat: 5", "2:1: unknown key `repeat`; did you mean `repeats`?"),
            ("turns: []", "2:1: unknown key `turns`; it stands in an item of `scenarios`"),
            ("route: A", "2:1: unknown key `route`; it stands under `expect`"),
            ("line: 5", "2:1: unknown key `line`"),
            ("repeats: five", "2:10: `repeats`: expected a whole number, found `five`"),
            ("repeats: 0", "2:10: `repeats`: expected at least 1, found `0`"),
            ("repeats:", "2:9: `repeats`: expected a whole number, found nothing"),
            ("timeout: -1", "2:10: `timeout`: expected more than 0, found `-1`"),
            ("timeout: .inf", "2:10: `timeout`: expected a number, found `.inf`"),
            ("timeout: nan", "2:10: `timeout`: expected a number, found `nan`"),
            ("limits: {max_handoffs: 3}", "2:10: unknown key `max_handoffs`; did you mean `max_handoffs_per_turn`?"),
            ("limits: [3]", "2:9: `limits`: expected keys and values, found a list"),
            (
                "settings: {api_key: sk-x}",
                "2:12: unknown key `api_key`; keys come from the environment, never from a file",
            ),
            (
                "OPENAI_API_KEY: sk-x",
                "2:1: unknown key `OPENAI_API_KEY`; keys come from the environment, never from a file",
            ),
            ("settings: {api_base: 'https://u:p@h'}", "2:22: expected an address without user, password or query"),
            ("settings: {parallel_tool_calls: x}", "2:33: `parallel_tool_calls`: expected true or false, found `x`"),
            ("models: [[a]]", "2:10: expected a model's name, or a mapping of agents to models, found a list"),
            ("ignore: [{in: a, match: b}]", "2:18: unknown key `match`; did you mean `matches`?"),
            ("ignore: [{in: a}]", "2:10: `matches` is missing"),
            ("tags: {a: b}", "2:7: `tags`: expected text, found a mapping"),
            ("context: gold", "2:10: `context`: expected keys and values, found `gold`"),
            ("on_failure: halt", "2:13: `on_failure`: expected one of `continue`, `stop`, found `halt`"),
            ("target: b.py:c", "2:1: `target` is given twice, here and on line 1"),
        ],
    )
    def test_of_the_head(self, suite: Suite, line: str, problem: str) -> None:
        assert any(each.startswith(problem) for each in suite.problems(head(f"{line}\n")))

    @pytest.mark.parametrize(
        ("scenario", "problem"),
        [
            ("{turns: [{user: hi, expect: none}]}", "2:13: `id` is missing"),
            ("{id: x}", "2:13: `turns` is missing"),
            ("{id: x, turns: []}", "2:28: `turns`: expected at least one, found a list"),
            ("{id: x, turns: {user: hi}}", "2:28: `turns`: expected a list, found a mapping"),
            ("{id: x, turns: [hi]}", "2:29: `turns`: expected keys and values, found `hi`"),
            ("{id: x, turns: [{expect: none}]}", "2:29: `user` is missing"),
            ("{id: x, turns: [{user: hi, expects: none}]}", "2:40: unknown key `expects`; did you mean `expect`?"),
            ("{id: x, turns: [{user: hi, route: A}]}", "2:40: unknown key `route`; it stands under `expect`"),
            ("{id: x, turns: [{user: [hi], expect: none}]}", "2:36: `user`: expected text, found a list"),
            ("{id: x, turns: [{user: {all: [hi]}, expect: none}]}", "2:36: expected text, or `any` with a list of"),
            ("{id: x, turns: [{user: {any: [hi, {}]}, expect: none}]}", "2:47: `any`: expected text, found a mapping"),
            (
                "{id: x, turns: [{user: a, expect: none, script: [{sy: b}]}]}",
                "2:62: unknown key `sy`; did you mean `say`?",
            ),
            ("{id: x, turns: [{user: hi, expect: none, phrasings: [a]}]}", "2:65: unknown key `phrasings`"),
            ("{id: 'x[2]', turns: [{user: hi, expect: none}]}", "2:18: `x[2]` ends like the number of a phrasing"),
            ("{id: '', turns: [{user: hi, expect: none}]}", "2:18: expected a name, found an empty text"),
            ('{id: "a\\u202eb", turns: [{user: hi, expect: none}]}', "2:18: `a\\u202eb` holds control characters"),
            ("{id: x, file: y, turns: [{user: hi, expect: none}]}", "2:21: unknown key `file`"),
            ("{id: x, incidents: {}, turns: []}", "2:21: unknown key `incidents`; it stands under `expect`"),
            ("x", "2:13: expected a scenario with `id` and `turns`, found `x`"),
        ],
    )
    def test_of_scenarios(self, suite: Suite, scenario: str, problem: str) -> None:
        assert any(each.startswith(problem) for each in suite.problems(f"target: a.py:b\nscenarios: [{scenario}]\n"))

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("[]", "1:1: expected `scenarios:`, found a list"),
            ("text", "1:1: expected `scenarios:`, found `text`"),
            ("target: a.py:b", "1:1: expected `scenarios` with a list of scenarios"),
            ("target: a.py:b\nscenarios:", "2:11: expected `scenarios` with a list of scenarios, found nothing"),
            ("target: a.py:b\nscenarios: {}", "2:12: expected `scenarios` with a list of scenarios"),
            ("target: a.py\nscenarios: []", "1:9: expected `path.py:name` or `package.module:name`, found `a.py`"),
            ("target: [a]\nscenarios: []", "1:9: expected `path.py:name`, found a list"),
        ],
    )
    def test_of_files(self, suite: Suite, content: str, problem: str) -> None:
        assert suite.problems(content)[0].startswith(problem)

    @pytest.mark.parametrize(
        ("agents", "problem"),
        [
            ("{A: {handoffs: [B]}}", "1:25: unknown agent `B`; known: `A`"),
            ("{A: {handoffs: [{agent: Abd}]}, Abc: {}}", "1:33: unknown agent `Abd`; did you mean `Abc`?"),
            ("{A: {handoffs: [{to: B}]}}", "1:25: `agent` is missing"),
            ("{A: {}, B: {instruction: x}}", "1:21: unknown key `instruction`; did you mean `instructions`?"),
            ("{A: {tools: {a b: {}}}}", "1:27: `a b` is no name that every provider takes"),
            (
                "{A: {tools: {a: {parameters: {x: strng}}}}}",
                "1:42: expected a type or a JSON schema, found `strng`; did",
            ),
            ("{A: {tools: {a: {return: 5}}}}", "1:26: unknown key `return`; did you mean `returns`?"),
            (
                "{A: {tools: {a: {returns: [{when: {}, retuns: 5}]}}}}",
                "1:47: unknown key `retuns`; did you mean `returns`",
            ),
            ("{A: text}", "1:13: expected an agent's"),
            ("{}", "1:9: `agents`: expected at least one, found a mapping"),
            ("[A]", "1:10: `agents`: expected keys and values, found `A`"),
        ],
    )
    def test_of_agents(self, suite: Suite, agents: str, problem: str) -> None:
        content = f"agents: {agents}\nscenarios: [{{id: x, turns: [{{user: hi, expect: none}}]}}]"
        assert suite.problems(content)[0].startswith(problem)

    @pytest.mark.parametrize(
        ("expect", "problem"),
        [
            ("{route: Triage -> Biling}", "10:35: unknown agent `Biling`; did you mean `Billing`?"),
            ("{route: 'Triage -> Biling'}", "10:36: unknown agent `Biling`"),
            ("{route: [Triage, Biling]}", "10:34: unknown agent `Biling`"),
            ("{ends_at: Biling}", "10:27: unknown agent `Biling`"),
            ("{ends_at: [Billing, Biling]}", "10:37: unknown agent `Biling`"),
            ("{avoids: [Triage -> Biling]}", "10:27: unknown agent `Biling`"),
            ("{calls: refnd}", "10:25: unknown tool `refnd`; did you mean `refund`?"),
            ("{calls: [refund, {by: Triage, tool: refund}]}", "10:53: unknown tool of `Triage` `refund`"),
            ("{avoids_calls: {by: Tirage, tool: refund}}", "10:37: unknown agent `Tirage`; did you mean `Triage`?"),
        ],
    )
    def test_of_names_that_nobody_has(self, suite: Suite, expect: str, problem: str) -> None:
        assert suite.problem(swarm(expect)).startswith(problem)

    @pytest.mark.parametrize(
        ("expect", "place"),
        [
            ("{route: Triage ->}", "10:34"),
            ("{route: 'Triage ->'}", "10:35"),
            ('{route: "Triage -> -> Billing"}', "10:36"),
            ("{route: [Triage, Triage -> Billing]}", "10:41"),
            ("{route: Triage ->> Billing}", "10:34"),
            ("{visits: [Triage, '(Billing']}", "10:44"),
            ("\n          route: &r Triage -> )\n    expect: {route: *r}", "11:31"),
            ("\n          route: >-\n            Triage ->\n            -> Billing", "11:18"),
        ],
    )
    def test_of_routes_stand_at_the_character(self, suite: Suite, expect: str, place: str) -> None:
        """E01."""
        assert suite.problems(swarm(expect))[0].startswith(f"{place}: ")

    def test_two_scenarios_of_one_id(self, suite: Suite) -> None:
        """B121."""
        one = "  - id: {}\n    turns: [{{user: hi, expect: none}}]\n"
        content = "target: a.py:b\nscenarios:\n" + "".join(one.format(name) for name in ("a", "b", "'a'"))
        assert suite.problem(content) == "7:5: `id` `a` is given twice, here and on line 3"
        line = "target: a.py:b\nscenarios: [{id: a, turns: [{user: hi, expect: none}]}, {id: a}]"
        assert suite.problems(line)[0] == "2:57: `id` `a` is given twice, here and on line 2"
        alias = "target: a.py:b\nscenarios:\n  - &a {id: a, turns: [{user: hi, expect: none}]}\n  - *a"
        assert suite.problem(alias) == "4:5: `id` `a` is given twice, here and on line 3"

    def test_text_cut_short_by_a_comment(self, suite: Suite) -> None:
        """E02."""
        cut = "5:15: the text ends at `refund` because of ` #42`: quote this text, or put the comment on a line"
        assert suite.problem(head(user="refund #42")).startswith(cut)
        assert suite.problem(head(user="refund  # please")).startswith("5:15: the text ends at `refund`")
        assert suite.problem(head("tags: Agent #2\n")).startswith("2:7: the text ends at `Agent` because of ` #2`")
        assert suite.one(head("tags: smoke # remark\n", user="'refund #42'   # remark")).turns[0].user == "refund #42"

    def test_several_problems_of_a_file_stand_in_its_order(self, suite: Suite) -> None:
        content = head("repeat: 1\ntarget: x.py:y\n", expect="{rout: A, stay: false}", user="refund #42")
        places = [each.split(": ")[0] for each in suite.problems(content)]
        assert places == ["2:1", "3:1", "7:15", "8:18", "8:33"]

    def test_the_same_problem_of_every_scenario_stops_at_some_point(self, suite: Suite) -> None:
        content = "target: a.py:b\nscenarios:\n" + "  - {id: x}\n" * 1_000
        assert len(suite.problems(content)) <= MAX_PROBLEMS + 2

    def test_problems_within_an_anchor_stand_where_it_is_written(self, suite: Suite) -> None:
        content = head(expect="&e {rout: A}") + "      - {user: hi, expect: *e}\n"
        assert set(suite.problems(content)) == {"6:21: unknown key `rout`; did you mean `route`?"}

    def test_nothing_invisible_reaches_the_terminal(self, suite: Suite) -> None:
        [problem] = suite.problems(head('"\\x1b[31m": 1\n'))
        assert "\x1b" not in problem


class TestSchema:
    """The JSON schema for editors accepts what is accepted, and marks what is not."""

    SCHEMA = json_schema()

    def marked(self, content: str) -> bool:
        return not jsonschema.Draft202012Validator(self.SCHEMA).is_valid(yaml.safe_load(content))

    def test_is_one(self) -> None:
        jsonschema.Draft202012Validator.check_schema(self.SCHEMA)
        assert self.SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"

    def test_knows_every_check(self) -> None:
        assert set(ASKED) <= set(self.SCHEMA["$defs"]["Expectations"]["anyOf"][-1]["properties"])

    @pytest.mark.parametrize(
        "content",
        [
            FACTORY,
            INLINE,
            textwrap.dedent(TestDefaults.FILE),
            head(user="5"),
            head(
                expect="{handoffs: 1, route: [A, B], avoids: [Admin, A -> C], reply: {lacks: sorry}, context: {a: 1}}"
            ),
            head(expect="{calls: [a, {tool: b, times: 2}], incidents: {allow: [unknown_tool]}, 'checks:polite': 3}"),
            head("ignore: ['a', {in: b, matches: c}]\nmodels: x\n"),
        ],
    )
    def test_accepts_what_loads(self, suite: Suite, content: str) -> None:
        assert suite.load(content)
        assert not self.marked(content)

    @pytest.mark.parametrize(
        "content",
        [
            head("repeat: 1\n"),
            head("line: 1\n"),
            head("limits: {max_handoffs: 1}\n"),
            head("settings: {api_key: x}\n"),
            head(expect="{rout: A}"),
            head(expect="{stay: false}"),
            head(expect="{incidents: [lop]}"),
            head(expect="none\n        script: [{sy: hi}]"),
            head(user="[a]"),
            head(user="{any: []}"),
            "target: a.py:b\nscenarios: []",
            "target: a.py:b\nscenarios: [{id: x}]",
            swarm("{stay: true}").replace("refund: {}", "refund: {return: 5}"),
        ],
    )
    def test_marks_what_does_not_load(self, suite: Suite, content: str) -> None:
        assert suite.problems(content)
        assert self.marked(content)


# Anything at all is scenarios, or errors at their places.


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], None]:
    folder = tmp_path_factory.mktemp("any")
    (folder / "pyproject.toml").touch()
    path = folder / "any.scenario.yaml"

    def judge(content: bytes) -> None:
        path.write_bytes(content)
        try:
            scenarios = load([path])
        except ScenarioError as error:
            for each in error.errors if isinstance(error, ScenarioErrors) else (error,):
                assert (each.path, each.problem != "") == (path, True)
                assert each.line is not None
                assert each.column is not None
                assert 1 <= each.line <= len(content.splitlines()) + 1
        else:
            assert scenarios
            assert not any(type(each).__name__ in ("Plain", "Cut", "Map", "Seq") for each in _inside(scenarios))

    return judge


def _inside(value: Any) -> list[Any]:
    """Every value in a value."""
    if isinstance(value, dict):
        return [value, *(each for pair in value.items() for item in pair for each in _inside(item))]
    if isinstance(value, (list, tuple)):
        return [value, *(each for item in value for each in _inside(item))]
    return [value, *_inside(dict(value))] if hasattr(value, "model_fields_set") else [value]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200))
@example(b"\xff\xfe")
@example(b"\xef\xbb\xbf\xef\xbb\xbf")
def test_any_bytes(judged: Callable[[bytes], None], content: bytes) -> None:
    judged(content)


WORDS = st.sampled_from(
    [
        *("scenarios", "target", "agents", "start", "dialect", "models", "settings", "limits", "repeats", "timeout"),
        *("tags", "context", "on_failure", "ignore", "in", "id", "turns", "expect", "skip", "xfail", "user", "any"),
        *("script", "say", "transfer", "to", "call", "phrasings", "route", "stay", "starts_at", "ends_at", "handoffs"),
        *("visits", "avoids", "calls", "avoids_calls", "reply", "reason", "error", "incidents", "custom", "none"),
        *("tool", "by", "args", "match", "times", "min", "max", "exactly", "kind", "contains", "matches", "lacks"),
        *("allow", "require", "loop", "limit_hit", "tools", "parameters", "type", "object", "properties", "returns"),
        *("when", "raises", "agent", "tool_name", "subset", "regex", "checks:polite", "a.py:b", "A", "*", "<<"),
    ]
)
SCALARS = (
    WORDS | st.sampled_from(["", "1", "-1", "0.5", "true", "null", "(", "A -> B", "A ->", "x[1]"]) | st.text(max_size=5)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=4),
    max_leaves=15,
)


def _written(value: Any, *, plain: bool) -> str:
    """The value as YAML, its scalars without quotes where that is asked for and where it can be."""
    if isinstance(value, dict):
        pairs = (f"{_written(key, plain=plain)}: {_written(item, plain=plain)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_written(item, plain=plain) for item in value) + "]"
    return (
        str(value)
        if plain and not set(value) & set(",[]{}:#&*!|>'\"%@`?")
        else yaml.safe_dump(value, default_style='"').strip()
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    top=st.dictionaries(WORDS, ANYTHING, max_size=3),
    scenario=st.dictionaries(WORDS, ANYTHING, max_size=3),
    turn=st.dictionaries(WORDS, ANYTHING, max_size=3),
    expect=st.dictionaries(WORDS, ANYTHING, max_size=3) | ANYTHING,
    plain=st.booleans(),
)
def test_any_yaml(
    judged: Callable[[bytes], None],
    top: dict[str, Any],
    scenario: dict[str, Any],
    turn: dict[str, Any],
    expect: Any,
    plain: bool,
) -> None:
    whole = {"user": "hi", "expect": expect, **turn}
    content = {"target": "a.py:b", "scenarios": [{"id": "x", "turns": [whole], **scenario}], **top}
    judged(_written(content, plain=plain).encode("utf-8", "replace"))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([FACTORY, INLINE, textwrap.dedent(TestDefaults.FILE)]),
    st.lists(st.tuples(st.integers(0), st.integers(0, 12), st.text(max_size=6) | SCALARS), min_size=1, max_size=4),
)
def test_real_files_with_something_changed(
    judged: Callable[[bytes], None], content: str, changes: list[tuple[int, int, str]]
) -> None:
    for start, length, text in changes:
        at = start % len(content)
        content = content[:at] + text + content[at + length :]
    judged(content.encode("utf-8", "replace"))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([FACTORY, INLINE]), st.randoms(use_true_random=False))
def test_real_files_with_their_lines_in_another_order(
    judged: Callable[[bytes], None], content: str, random: Any
) -> None:
    lines = content.splitlines(keepends=True)
    for _ in range(random.randint(1, 3)):
        line = lines.pop(random.randrange(len(lines)))
        if random.random() < 0.8:
            lines.insert(random.randrange(len(lines) + 1), line)
    judged("".join(lines).encode())


def test_what_is_recorded_and_reached_adds_up_from_suite_file_and_scenario(tmp_path: Path) -> None:
    table = '[tool.chatflow-eval]\nrecord_tools = true\nallow_hosts = "tools.example.org"\nsecrets = ["ACME_DSN"]\n'
    (tmp_path / "pyproject.toml").write_text(table, encoding="utf-8")
    (tmp_path / "a.scenario.yaml").write_text(
        "agents: {A: {}}\n"
        "allow_hosts: [localhost]\n"
        "scenarios:\n"
        "  - {id: x, turns: [{user: hi, expect: none}], record_tools: false, allow_hosts: '*.internal:8080'}\n"
        "  - {id: y, turns: [{user: hi, expect: none}]}\n",
        encoding="utf-8",
    )
    one, other = load([tmp_path])
    assert (one.record_tools, one.allow_hosts) == (False, ("*.internal:8080", "localhost", "tools.example.org"))
    assert (other.record_tools, other.allow_hosts) == (True, ("localhost", "tools.example.org"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACME_DSN", "postgres://planted")
        assert scrub_text("at postgres://planted") == "at [redacted]"
