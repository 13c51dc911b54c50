"""Scenario files are test items, a swarm is a fixture away, and an unrelated run notices nothing."""

from __future__ import annotations

import pytest

# What the plugin loads when first used: runs within this process would otherwise each load it anew.
import chatflow_eval.assertions
import chatflow_eval.conversation
import chatflow_eval.loader
import chatflow_eval.outcome
import chatflow_eval.targets.reference
import chatflow_eval.transcript  # noqa: F401

SWARM = """
agents:
  Triage:
    instructions: Welcome the user and pass them on.
    handoffs: [Billing]
  Billing:
    instructions: Handle refunds and invoices.
    handoffs: [Triage]
scenarios:
"""

ROUTED = """
  - id: routed
    tags: [smoke]
    turns:
      - user: I want a refund
        script: [{transfer: Billing}, {say: Done.}]
        expect: {route: Triage -> Billing}
"""

STAYED = """
  - id: stayed
    turns:
      - user: I want a refund
        script: [{say: No.}]
        expect: {route: Triage -> Billing}
"""


@pytest.fixture(autouse=True)
def _project(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(
        "[tool.pytest.ini_options]\nfilterwarnings = ['error']\nasyncio_default_fixture_loop_scope = 'function'"
    )


def write(pytester: pytest.Pytester, name: str, text: str) -> None:
    (pytester.path / name).write_text(text, encoding="utf-8")


def test_a_scenario_is_an_item_and_its_failure_shows_route_and_transcript(pytester: pytest.Pytester) -> None:
    write(pytester, "a.scenario.yaml", SWARM + ROUTED + STAYED)
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*a.scenario.yaml:*: stayed failed: turn 1: *",
            "*turn 1 route: expected Triage -> Billing, was Triage*",
            "*route: Triage*",
            "*user: I want a refund*",
            "*reply by Triage: No.*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_repeats_must_all_pass_and_models_are_items_of_their_own(pytester: pytest.Pytester) -> None:
    """B135."""
    write(pytester, "a.scenario.yaml", SWARM + ROUTED + STAYED)
    result = pytester.runpytest("--chatflow-repeats", "3", "--chatflow-model", "keyword", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::routed[[]keyword[]]", "*::stayed[[]keyword[]]"])
    result = pytester.runpytest("--chatflow-repeats", "3", "-k", "stayed")
    result.stdout.fnmatch_lines(["*3 of 3 repeats did not pass*"])


def test_frameworks_are_items_of_their_own(pytester: pytest.Pytester) -> None:
    pytest.importorskip("chatflow_agent", reason="chatflow-agent is not installed (extra chatflow-agent)")
    write(pytester, "a.scenario.yaml", SWARM + ROUTED)
    options = ("--chatflow-framework", "chatflow", "--chatflow-framework", "chatflow_agent")
    result = pytester.runpytest("-v", *options)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*::routed[[]chatflow[]] PASSED*", "*::routed[[]chatflow_agent[]] PASSED*"])


def test_the_fixture_talks_to_agents_on_another_framework(pytester: pytest.Pytester) -> None:
    pytest.importorskip("chatflow_agent", reason="chatflow-agent is not installed (extra chatflow-agent)")
    pytester.makepyfile(
        """
        from chatflow_agent import Agent

        def test_it(chatflow):
            triage = Agent("Triage", "Welcome the user.", handoffs=[Agent("Billing", "Handle refunds.")])
            talk = chatflow(triage, framework="chatflow_agent")
            turn = talk.say("I want a refund", script=[{"transfer": "Billing"}, {"say": "Done."}])
            assert turn.agents == ("Triage", "Billing")
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_tags_select_like_keywords(pytester: pytest.Pytester) -> None:
    write(pytester, "a.scenario.yaml", SWARM + ROUTED + STAYED)
    pytester.runpytest("-k", "smoke").assert_outcomes(passed=1, deselected=1)


def test_skip_and_xfail_are_pytests_own(pytester: pytest.Pytester) -> None:
    marked = ROUTED + "    skip: not today\n" + STAYED + "    xfail: known to stay\n"
    write(pytester, "a.scenario.yaml", SWARM + marked)
    pytester.runpytest().assert_outcomes(skipped=1, xfailed=1)


def test_an_expected_failure_does_not_excuse_an_error(pytester: pytest.Pytester) -> None:
    unrecorded = "  - id: x\n    xfail: bad routing\n    turns: [{user: hi, expect: {stay: true}}]\n"
    write(pytester, "a.scenario.yaml", SWARM + unrecorded)
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*CassetteMissing*chatflow-eval record a.scenario.yaml --only x*"])


def test_one_malformed_file_is_one_error_and_the_others_run(pytester: pytest.Pytester) -> None:
    """B130."""
    write(pytester, "good.scenario.yaml", SWARM + ROUTED)
    write(pytester, "bad.scenario.yaml", SWARM + ROUTED.replace("expect:", "expects:"))
    write(pytester, "config.yaml", "- unrelated\n")
    result = pytester.runpytest("--continue-on-collection-errors")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*bad.scenario.yaml:*:*: *expects*expect*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_fixture_talks_to_a_swarm_turn_by_turn(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from chatflow_eval import (
            assert_ends_at, assert_handed_off_to, assert_no_loops, assert_route, assert_within_limits,
        )
        from chatflow_runtime import Agent

        def build():
            billing = Agent("Billing", "Handle refunds and invoices.")
            triage = Agent("Triage", "Welcome the user.", handoffs=[billing])
            billing.add_handoff(triage)
            return triage

        def test_keyword(chatflow):
            talk = chatflow(build, model="keyword")
            talk.say("I want a refund")
            assert_handed_off_to(talk, "Billing")
            assert_ends_at(talk, "Billing")
            talk.say("thanks")
            assert_route(talk, "Billing")
            assert_route(talk, "Triage -> Billing", whole=True)
            assert_no_loops(talk)
            assert_within_limits(talk)

        def test_script(chatflow):
            talk = chatflow(build())
            with pytest.raises(AssertionError, match="expected no loops"):
                talk.say("round", script=[{"transfer": "Billing"}, {"transfer": "Triage"}] * 2 + [{"say": "dizzy"}])
                assert_no_loops(talk)

        async def test_in_a_loop(chatflow):
            talk = chatflow(build, model="keyword")
            with pytest.raises(RuntimeError, match="await say_async"):
                talk.say("I want a refund")
            await talk.say_async("I want a refund")
            assert_handed_off_to(talk, "Billing")

        def test_failure(chatflow):
            talk = chatflow(build)
            talk.say("I want a refund", script=[{"say": "No."}])
            assert_handed_off_to(talk, "Billing")

        def test_nothing_recorded(chatflow):
            chatflow(build).say("I want a refund")
        """
    )
    result = pytester.runpytest("-o", "asyncio_mode=auto")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*expected a handoff to Billing, the turn handed off to nobody*",
            "*user: I want a refund*",
            "*CassetteMissing*--chatflow-record-mode all*",
        ]
    )


def test_an_unrelated_run_imports_and_writes_nothing_of_ours(pytester: pytest.Pytester) -> None:
    """B129, E07."""
    pytester.makepyfile(
        """
        import sys

        def test_light():
            assert not {"litellm", "pandas", "pydantic", "vcr", "yaml", "jinja2"} & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest").assert_outcomes(passed=1)
    of_pytest = {"__pycache__", "stdout", "stderr", "runpytest-0", "runpytest-current"}
    assert {path.name for path in pytester.path.iterdir() if path.suffix not in (".py", ".toml")} <= of_pytest
