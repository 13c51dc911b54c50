"""The published package chatflow-agent as a target: its faults come out, and its conversations record and replay."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from chatflow_eval import loader, outcome, trial
from chatflow_eval.errors import TargetError
from chatflow_eval.outcome import Outcome
from chatflow_eval.retries import CallLimits
from chatflow_eval.scenario import Limits, Scenario, SettingsSpec, Swarm, Turn
from chatflow_eval.targets import Opening, target_of
from chatflow_eval.targets.names import check_names
from chatflow_eval.testing import Reply, ScriptedServer
from chatflow_eval.trace import Edge, LimitStep, ToolStep, TurnTrace, WarningStep
from chatflow_eval.trial import Mode
from chatflow_runtime import Agent, Runner, handoff, tool
from chatflow_runtime.dialects import praisonai

chatflow_agent = pytest.importorskip("chatflow_agent", reason="chatflow-agent is not installed (extra chatflow-agent)")

from chatflow_eval.targets.translation import translate  # noqa: E402

FRAMEWORK: Literal["chatflow_agent"] = "chatflow_agent"


def theirs(name: str, **more: Any) -> Any:
    return chatflow_agent.Agent(name, f"You are {name}.", **more)


class Unlike:
    """Has a name, and is no agent."""

    def __init__(self, name: str) -> None:
        self.name = name


def pair() -> Any:
    """A and B, who know each other; A also knows C."""
    a, b, c = theirs("A"), theirs("B"), theirs("C")
    for source, peers in ((a, (b, c)), (b, (a,)), (c, (a,))):
        for peer in peers:
            source.add_handoff(peer)
    return a


async def said(target: Any, *script: Any, user: str = "hello", **opening: Any) -> TurnTrace:
    given: dict[str, Any] = {"limits": Limits(), "settings": SettingsSpec(), **opening}
    turn = Turn(user, script=list(script)) if script else Turn(user)
    async with target_of(target, FRAMEWORK).open(Opening(**given)) as conversation:
        return await conversation.say(user, script=turn.script)


def scenario(target: Any, *turns: Any, **more: Any) -> Scenario:
    return Scenario(**{"id": "one", "target": target, "turns": turns, "expect": "none", **more})


def attempt(given: Scenario, folder: Path, mode: Mode = "live") -> Outcome:
    trials = trial.plan([given], root=folder, frameworks=[FRAMEWORK], mode=mode)
    (found,) = outcome.collect(trials)
    return found


def kinds(found: Outcome) -> set[str]:
    return {incident.kind for incident in found.incidents}


# What its turns come to.


async def test_a_transfer_is_a_hop_with_its_reason() -> None:
    turn = await said(pair, {"transfer": {"to": "B", "reason": "money"}}, {"say": "B here."})
    (hop,) = turn.hops
    assert (hop.source, hop.target, hop.tool, hop.reason, hop.accepted) == ("A", "B", "transfer_to_b", "money", True)
    assert (turn.start_agent, turn.end_agent, turn.reply) == ("A", "B", "B here.")


async def test_a_default_reason_is_none_of_the_models() -> None:
    turn = await said(pair, {"transfer": "B"}, {"say": "B here."})
    assert turn.hops[0].reason == ""


async def test_the_next_turn_goes_to_who_was_last_active() -> None:
    opening = Opening(limits=Limits(), settings=SettingsSpec())
    async with target_of(pair, FRAMEWORK).open(opening) as conversation:
        await conversation.say("one", script=Turn("one", script=[{"transfer": "B"}, {"say": "Yes?"}]).script)
        second = await conversation.say("two", script=Turn("two", script=[{"say": "Still B."}]).script)
    assert (second.start_agent, second.end_agent) == ("B", "B")


def test_the_topology_is_what_its_agents_declare() -> None:
    def build() -> Any:
        def look(what: str) -> str:
            return what

        a = pair()
        a.add_tool(look)
        return a

    declared = target_of(build, FRAMEWORK).topology()
    assert (declared.start, set(declared.agents)) == ("A", {"A", "B", "C"})
    assert declared.tools["A"] == ("look",)
    assert Edge(source="B", target="A", tool="transfer_to_a") in declared.edges


async def test_a_tool_and_its_failure_are_steps_with_the_reason_that_the_model_is_not_told() -> None:
    def build() -> Any:
        def look(what: str) -> dict[str, str]:
            if what == "bad":
                raise ValueError("the shelf is empty")
            return {"found": what}

        return theirs("A", tools=[look])

    turn = await said(build, {"call": {"look": {"what": "x"}}}, {"call": {"look": {"what": "bad"}}}, {"say": "Done."})
    good, bad = (step for step in turn.steps if isinstance(step, ToolStep))
    assert (good.tool, good.arguments, good.result, good.is_error) == ("look", {"what": "x"}, {"found": "x"}, False)
    assert bad.is_error
    assert "trace_id" not in str(bad.result), "the id is another one in every run"
    (warning,) = (step for step in turn.steps if isinstance(step, WarningStep))
    assert "the shelf is empty" in warning.message


async def test_an_invented_tool_is_unknown_and_an_invented_transfer_refused() -> None:
    turn = await said(pair, {"call": "refund_everything"}, {"call": "transfer_to_nobody"}, {"say": "Hm."})
    assert [(step.tool, step.known) for step in turn.steps if isinstance(step, ToolStep)] == [
        ("refund_everything", False),
        ("transfer_to_nobody", False),
    ]
    there = await said(pair, {"transfer": "B"}, {"transfer": "C"}, {"say": "Hm."})
    assert [(hop.target, hop.accepted, hop.why) for hop in there.hops] == [
        ("B", True, None),
        ("C", False, "not_allowed"),
    ]


@pytest.mark.parametrize("arguments", ["{bad", '{"reason": "a", "extra": 1}', '{"reason": 5}'])
async def test_a_transfer_whose_arguments_it_does_not_take_is_refused(arguments: str) -> None:
    """CF-18: the model's wish is clear, and the transfer fails."""
    turn = await said(pair, {"call": {"transfer_to_b": arguments}}, {"say": "Hm."})
    (hop,) = turn.hops
    assert (hop.target, hop.accepted, hop.why) == ("B", False, "invalid_arguments")
    assert turn.end_agent == "A"


@pytest.mark.parametrize("arguments", ["null", "[1]", '"s"', "12"])
async def test_arguments_that_are_no_object_end_the_turn(arguments: str) -> None:
    """CF-12."""
    turn = await said(pair, {"call": {"transfer_to_b": arguments}}, {"say": "never asked"})
    assert turn.failure is not None
    assert (turn.failure.kind, turn.failure.exception) == ("agent", "ValidationError")


async def test_the_iteration_limit_is_a_limit_step_and_no_reply_of_a_models() -> None:
    turn = await said(
        pair, {"transfer": "B"}, {"transfer": "A"}, limits=Limits(max_tool_iterations=2, max_handoffs_per_turn=9)
    )
    assert turn.steps[-1] == LimitStep(agent="A", limit="max_tool_iterations", value=2)
    assert turn.reply.startswith("Execution iteration limit reached")


async def test_no_iterations_at_all_ask_no_model() -> None:
    turn = await said(pair, limits=Limits(max_tool_iterations=0))
    assert [type(step).__name__ for step in turn.steps] == ["LimitStep"]


async def test_a_peer_that_the_runner_does_not_know_is_unregistered() -> None:
    """CF-13: the registry is made once."""

    def build() -> Any:
        a = pair()
        runner = chatflow_agent.Runner(a)
        a.add_handoff(theirs("Late"))
        return runner

    turn = await said(build, {"transfer": "Late"}, {"say": "never asked"})
    assert turn.failure is not None
    assert turn.failure.exception == "AgentHandoffError"
    assert (turn.hops[-1].target, turn.hops[-1].accepted, turn.hops[-1].why) == ("Late", False, "unregistered")


def test_any_tool_can_transfer_anywhere(tmp_path: Path) -> None:
    """CF-14: no edge leads there, and the conversation goes."""

    def build() -> Any:
        def jump() -> Any:
            return chatflow_agent.Handoff(target_agent_name="C", reason="because")

        a = pair()
        b = a.handoffs[0]
        b.add_tool(jump)
        return a

    given = scenario(build, Turn("hello", script=[{"transfer": "B"}, {"call": "jump"}, {"say": "C here."}]))
    found = attempt(given, tmp_path)
    assert found.trace is not None
    assert found.trace.turns[0].agents == ("A", "B", "C")
    assert "not_allowed" in kinds(found)


# Its faults come out as incidents or as failed checks.


def faulty(target: Any, tmp_path: Path, *turns: Any, **more: Any) -> Outcome:
    return attempt(scenario(target, *turns, **more), tmp_path)


def test_cf_1_a_refused_transfer_that_happens_all_the_same(tmp_path: Path) -> None:
    turn = Turn("hello", script=[{"transfer": "B"}, {"say": "B here."}], expect={"stay": True})
    found = faulty(pair, tmp_path, turn, limits={"max_handoffs_per_turn": 0})
    assert found.status == "failed"
    assert {"limit_hit", "not_allowed"} <= kinds(found)
    assert any("refused (limit), and happened all the same" in incident.message for incident in found.incidents)


def test_cf_2_a_limit_that_does_not_stop_ping_pong(tmp_path: Path) -> None:
    back_and_forth = [{"transfer": "B"}, {"transfer": "A"}] * 5
    found = faulty(pair, tmp_path, Turn("hello", script=back_and_forth))
    assert {"loop", "limit_hit", "not_allowed"} <= kinds(found)
    limits = {incident.limit for incident in found.incidents if incident.kind == "limit_hit"}
    assert limits == {"max_handoffs_per_turn", "max_tool_iterations"}
    assert found.trace is not None
    assert len(found.trace.turns[0].accepted) == 10, "five were let through, and five were refused and happened"


def test_cf_3_calls_after_the_limit_are_never_answered(tmp_path: Path) -> None:
    def build() -> Any:
        def look() -> str:
            return "found"

        a = pair()
        a.add_tool(look)
        return a

    answers: list[Any] = [[{"transfer": "B"}, {"call": "look"}], {"say": "B here."}]
    found = faulty(build, tmp_path, Turn("hello", script=answers), limits={"max_handoffs_per_turn": 0})
    assert "invalid_history" in kinds(found)
    assert any(incident.quotes == ("unanswered_call",) for incident in found.incidents)


def test_cf_5_two_transfers_in_one_answer_both_succeed(tmp_path: Path) -> None:
    answers: list[Any] = [[{"transfer": "B"}, {"transfer": "C"}], {"say": "C here."}]
    found = faulty(pair, tmp_path, Turn("hello", script=answers, expect={"route": "A -> B"}))
    assert found.status == "failed"
    assert "multiple_transfers" in kinds(found)
    assert found.trace is not None
    assert found.trace.turns[0].end_agent == "C", "the last one wins"


@pytest.mark.parametrize(("one", "other"), [("Billing Agent", "Billing-Agent"), ("日本語", "Агент")])
def test_cf_6_names_that_collide_are_offered_twice(tmp_path: Path, one: str, other: str) -> None:
    def build() -> Any:
        return theirs("A", handoffs=[theirs(one), theirs(other)])

    found = faulty(build, tmp_path, Turn("hello", script=[{"say": "Hello."}]))
    assert "invalid_history" in kinds(found)
    codes = {quote for incident in found.incidents for quote in incident.quotes}
    # `Агент` and `日本語` both leave nothing of themselves.
    assert "duplicate_tool" in codes


def test_cf_7_a_tool_that_is_called_like_a_transfer(tmp_path: Path) -> None:
    def build() -> Any:
        def transfer_to_b() -> str:
            return "not a transfer"

        a = pair()
        a.add_tool(transfer_to_b)
        return a

    found = faulty(build, tmp_path, Turn("hello", script=[{"call": "transfer_to_b"}, {"say": "Hm."}]))
    assert "invalid_history" in kinds(found)
    assert found.trace is not None
    assert found.trace.turns[0].agents == ("A", "B")


def test_cf_15_agents_of_other_providers_are_asked_of_gemini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    found = faulty(lambda: chatflow_agent.Runner(theirs("A", model="gpt-4o")), tmp_path, Turn("hello"))
    assert found.status == "errored"
    assert "Gemini API client is not configured" in found.why


def test_cf_9_a_failed_turn_forgets_its_words_and_keeps_its_agent(tmp_path: Path) -> None:
    replies = [Reply(calls=(("transfer_to_b", {}),)), Reply(status=400, body="no"), Reply(text="B here.")]
    with ScriptedServer(replies) as server:

        def build() -> Any:
            a = pair()
            for agent in (a, *a.handoffs):
                agent.base_url, agent.api_key = server.url, "x"
            return a

        turns = (
            Turn("one", expect={"error": "ProviderError"}),
            Turn("two", expect={"starts_at": "A"}),
        )
        found = faulty(build, tmp_path, *turns)
        history = server.requests[-1]["messages"]
    assert found.status == "failed"
    assert "turn 2" in found.why
    assert found.trace is not None
    assert found.trace.turns[1].start_agent == "B"
    assert [message["content"] for message in history] == ["You are B.", "two"]


def test_a_provider_that_refuses_is_a_models_failure_with_its_status(tmp_path: Path) -> None:
    with ScriptedServer([Reply(status=400, body="no such model")]) as server:
        found = faulty(lambda: theirs("A", base_url=server.url, api_key="x"), tmp_path, Turn("hello"))
    assert found.status == "errored"
    assert found.failure is not None
    assert (found.failure.kind, found.failure.status_code) == ("model", 400)


def test_a_server_that_is_not_there_is_the_networks_failure(tmp_path: Path) -> None:
    with ScriptedServer([]) as server:
        url = server.url
    given = scenario(lambda: theirs("A", base_url=url, api_key="x"), Turn("hello"))
    calls = CallLimits(retries=0)
    (found,) = outcome.collect(trial.plan([given], root=tmp_path, frameworks=[FRAMEWORK], mode="live", calls=calls))
    assert found.failure is not None
    assert found.failure.kind == "network"


# Retries, settings, models.


def test_calls_that_fail_are_made_again_within_the_budget(tmp_path: Path) -> None:
    with ScriptedServer([Reply(status=503, headers={"Retry-After": "0"}), Reply(text="Hello.")]) as server:
        found = faulty(lambda: theirs("A", base_url=server.url, api_key="x"), tmp_path, Turn("hello"))
        asked = len(server.requests)
    assert (found.status, asked) == ("passed", 2)
    assert found.trace is not None
    (warning,) = (step for step in found.trace.turns[0].steps if isinstance(step, WarningStep))
    assert "503" in warning.message


def test_settings_go_on_the_wire_beside_what_it_sends_itself(tmp_path: Path) -> None:
    settings = {"temperature": 0, "seed": 7, "max_tokens": 9, "tool_choice": "transfer_to_b"}
    with ScriptedServer([Reply(text="Hello.")]) as server:
        swarm = Swarm.model_validate({"agents": {"A": {"model": "openai/some-model", "handoffs": ["B"]}, "B": {}}})
        given = scenario(swarm, Turn("hello"), settings={**settings, "api_base": server.url})
        found = attempt(given, tmp_path)
        (body,) = server.requests
    assert found.status == "passed", found.why
    assert body["model"] == "some-model"
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0, 7, 9)
    assert body["tool_choice"] == {"type": "function", "function": {"name": "transfer_to_b"}}


def test_settings_that_an_engine_cannot_take_are_no_secret(tmp_path: Path) -> None:
    class Own(chatflow_agent.BaseEngine):  # type: ignore[misc,name-defined]
        async def generate_turn_async(self, agent: Any, history: Any) -> Any:
            raise AssertionError("never asked")

    found = faulty(lambda: theirs("A", engine=Own()), tmp_path, Turn("hello"), settings={"temperature": 1})
    assert found.status == "errored"
    assert "temperature" in found.why
    assert "Own" in found.why


def test_an_engine_of_the_users_own_answers(tmp_path: Path) -> None:
    class Own(chatflow_agent.BaseEngine):  # type: ignore[misc,name-defined]
        async def generate_turn_async(self, agent: Any, history: Any) -> Any:
            from chatflow_agent.core.engines.base import EngineTurnResult

            return EngineTurnResult(text=f"{agent.name} heard {history[-1].content}")

    found = faulty(lambda: theirs("A", engine=Own()), tmp_path, Turn("hello"))
    assert found.trace is not None
    assert found.trace.turns[0].reply == "A heard hello"


def test_a_model_of_an_unknown_provider_is_an_error_that_lists_them(tmp_path: Path) -> None:
    trials = trial.plan(
        [scenario(pair, Turn("hello"))], root=tmp_path, frameworks=[FRAMEWORK], models=["acme/x"], mode="live"
    )
    (found,) = outcome.collect(trials)
    assert found.status == "errored"
    assert "'acme'" in found.why
    assert "openai" in found.why


def test_the_keyword_router_answers_for_its_agents_too(tmp_path: Path) -> None:
    def build() -> Any:
        billing = chatflow_agent.Agent("Billing", "Invoices, charges and refunds.")
        crashes = chatflow_agent.Agent("Crashes", "Errors and crashes of the app.")
        return chatflow_agent.Agent("Triage", "Welcome the user.", handoffs=[billing, crashes])

    turn = Turn("I want a refund for this invoice.", expect={"route": "Triage -> Billing"})
    trials = trial.plan([scenario(build, turn, expect=None)], root=tmp_path, frameworks=[FRAMEWORK], models=["keyword"])
    (found,) = outcome.collect(trials)
    assert found.status == "passed", found.why


# Agents of the reference runtime, made again with it.


def test_the_same_agents_run_on_both_from_one_scenario(tmp_path: Path) -> None:
    swarm = Swarm.model_validate(
        {
            "agents": {
                "Triage": {"instructions": "Welcome.", "handoffs": ["Billing"]},
                "Billing": {
                    "tools": {"refund": {"parameters": {"id": "string"}, "returns": {"status": "REFUNDED"}}},
                    "handoffs": ["Triage"],
                },
            }
        }
    )
    script: list[Any] = [{"transfer": "Billing"}, {"call": {"refund": {"id": "42"}}}, {"say": "Done."}]
    expect = {"route": "Triage -> Billing", "calls": {"tool": "refund", "args": {"id": "42"}}}
    given = scenario(swarm, Turn("Refund 42.", script=script, expect=expect), frameworks=["chatflow", FRAMEWORK])
    found = outcome.collect(trial.plan([given], root=tmp_path))
    assert [(each.target, each.status) for each in found] == [("chatflow", "passed"), (FRAMEWORK, "passed")]


async def test_instructions_and_tools_still_read_the_context() -> None:
    @tool
    def tier(context: dict[str, Any]) -> str:
        return str(context["tier"])

    with ScriptedServer([Reply(calls=(("tier", {}),)), Reply(text="ok")]) as server:
        agent = Agent("A", lambda context: f"Tier {context['tier']}.", tools=[tier], model="openai/m")
        settings = SettingsSpec(api_base=server.url)
        turn = await said(lambda: agent, context={"tier": "gold"}, settings=settings)
        system = server.requests[0]["messages"][0]["content"]
    assert system == "Tier gold."
    assert [step.result for step in turn.steps if isinstance(step, ToolStep)] == ["gold"]


async def test_what_their_tools_write_to_the_context_is_told() -> None:
    @tool
    def remember(context: dict[str, Any], tier: str) -> str:
        context["tier"] = tier
        return "noted"

    turn = await said(lambda: Agent("A", tools=[remember]), {"call": {"remember": {"tier": "gold"}}}, {"say": "Noted."})
    assert turn.context == {"tier": "gold"}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Agent("A", handoffs=[handoff(Agent("B"), tool_name="escalate")]), "tool name"),
        (lambda: praisonai.Agent("A", handoffs=[praisonai.Agent("B")]), "call that comes back"),
        (lambda: 7, "a int"),
        (lambda: "text", "a str"),
        (lambda: theirs("A", handoffs=[Unlike("B")]), "has no attribute 'handoffs'"),
    ],
)
def test_what_it_has_no_equal_for_is_an_error(build: Callable[[], object], words: str) -> None:
    with pytest.raises(TargetError, match=words):
        target_of(build, FRAMEWORK).topology()


@pytest.mark.parametrize("name", ["", "B\nC", " "])
def test_a_name_that_no_scenario_can_say_is_an_error_that_shows_it(name: str) -> None:
    given = scenario(lambda: theirs("A", handoffs=[theirs(name)]), Turn("hello"))
    with pytest.raises(TargetError, match=re.escape(repr(name))):
        check_names([given], [FRAMEWORK])


def test_a_tool_that_no_provider_takes_is_an_incident_and_stops_nothing(tmp_path: Path) -> None:
    def look() -> str:
        return "found"

    given = scenario(
        lambda: theirs("A", tools=[chatflow_agent.Tool(look, name="look it up!")]),
        Turn("hello", script=[{"say": "Hello."}]),
    )
    check_names([given], [FRAMEWORK])
    assert "invalid_history" in kinds(attempt(given, tmp_path))


def test_the_reference_runtime_says_how_to_run_agents_that_are_not_its_own() -> None:
    with pytest.raises(TargetError, match="frameworks: chatflow_agent"):
        target_of(pair).topology()


# One runner for every trial, stores, and many conversations at once.


def test_a_runner_that_every_trial_shares_keeps_them_apart(tmp_path: Path) -> None:
    shared = chatflow_agent.Runner(pair())
    script = [{"transfer": "B"}, {"say": "B here."}]
    given = [
        scenario(lambda: shared, Turn("hello", script=script, expect={"route": "A -> B"}), id=f"s{number}")
        for number in range(20)
    ]
    found = outcome.collect(trial.plan(given, root=tmp_path, frameworks=[FRAMEWORK]), concurrency=8)
    assert {each.status for each in found} == {"passed"}
    assert shared.starting_agent.engine is None, "its agents are as they were"
    sessions = [shared.session_store.get(name) for name in shared.session_store.list_sessions()]
    assert len(sessions) == 20
    assert all("add_message" not in vars(session) for session in sessions), "and so are its sessions"


def test_a_store_on_disk_works_and_its_pointer_is_followed(tmp_path: Path) -> None:
    def build() -> Any:
        store = chatflow_agent.SQLiteSessionStore(str(tmp_path / "sessions.db"))
        return chatflow_agent.Runner(pair(), session_store=store)

    found = faulty(
        build,
        tmp_path,
        Turn("one", script=[{"transfer": "B"}, {"say": "Yes?"}], expect={"route": "A -> B"}),
        Turn("two", script=[{"say": "Still B."}], expect={"route": "B"}),
    )
    assert found.status == "passed", found.why
    with sqlite3.connect(tmp_path / "sessions.db") as database:
        assert database.execute("select active_agent_name from chatflow_sessions").fetchall() == [("B",)]


# Recording and replaying.


def answers(body: dict[str, Any]) -> Reply:
    """A transfers to B, who answers; the words say which conversation it is."""
    system, user = body["messages"][0]["content"], next(m for m in body["messages"] if m["role"] == "user")
    return Reply(calls=(("transfer_to_b", {}),)) if system == "You are A." else Reply(text=f"B to {user['content']}")


def served(url: str) -> Callable[[], Any]:
    def build() -> Any:
        a = pair()
        for agent in (a, *a.handoffs):
            agent.base_url, agent.api_key = url, "sk-planted-000000000000000000000000"
        return a

    return build


def test_what_was_recorded_replays_without_a_server(tmp_path: Path) -> None:
    with ScriptedServer(answers) as server:
        given = scenario(served(server.url), Turn("hello", expect={"route": "A -> B"}))
        live = attempt(given, tmp_path, "all")
    assert live.status == "passed", live.why
    (cassette,) = tmp_path.rglob("*.json")
    assert cassette.name == "chatflow_agent.declared.json"
    assert "planted" not in cassette.read_text(encoding="utf-8")
    replayed = attempt(given, tmp_path, "none")
    assert (replayed.status, replayed.replayed) == ("passed", True), replayed.why
    assert replayed.trace is not None
    assert replayed.trace.turns[0].reply == "B to hello"


def test_many_conversations_record_and_replay_at_once(tmp_path: Path) -> None:
    with ScriptedServer(answers, latency=0.01) as server:
        given = [scenario(served(server.url), Turn(f"hello {n}"), id=f"s{n}") for n in range(30)]
        trials = trial.plan(given, root=tmp_path, frameworks=[FRAMEWORK], mode="all")
        recorded = outcome.collect(trials, concurrency=15)
    assert {each.status for each in recorded} == {"passed"}
    replayed = outcome.collect(trial.plan(given, root=tmp_path, frameworks=[FRAMEWORK]), concurrency=15)
    for each in replayed:
        assert each.trace is not None
        assert each.trace.turns[0].reply == f"B to hello {each.scenario[1:]}"


def test_an_edited_agent_makes_its_recording_stale(tmp_path: Path) -> None:
    with ScriptedServer(answers) as server:
        attempt(scenario(served(server.url), Turn("hello")), tmp_path, "all")
        url = server.url

    def edited() -> Any:
        a = served(url)()
        a.handoffs[0].instructions = "You are B, and brief."
        return a

    found = attempt(scenario(edited, Turn("hello")), tmp_path, "none")
    assert found.failure is not None
    assert found.failure.kind == "cassette"
    assert "agent A" in found.why, "what its peers see of it is in their tools' descriptions"


def test_a_failed_tools_trace_id_does_not_make_a_recording_stale(tmp_path: Path) -> None:
    def failing() -> str:
        raise ValueError("no")

    replies = [Reply(calls=(("failing", {}),)), Reply(text="Sorry.")]
    with ScriptedServer(replies) as server:
        given = scenario(
            lambda: theirs("A", tools=[failing], base_url=server.url, api_key="x"), Turn("hello"), id="trace"
        )
        attempt(given, tmp_path, "all")
    replayed = attempt(given, tmp_path, "none")
    assert replayed.status == "passed", replayed.why
    assert any("trace_id" in rule for rule in replayed.ignored), "nothing is ignored silently"


def test_retries_that_were_recorded_are_not_slept_again(tmp_path: Path) -> None:
    with ScriptedServer([Reply(status=429, headers={"Retry-After": "0"}), Reply(text="Hello.")]) as server:
        given = scenario(lambda: theirs("A", base_url=server.url, api_key="x"), Turn("hello"))
        attempt(given, tmp_path, "all")
    replayed = attempt(given, tmp_path, "none")
    assert replayed.trace is not None
    assert [type(step).__name__ for step in replayed.trace.turns[0].steps] == ["ModelStep"]


def test_tools_are_not_recorded_there_and_it_says_so(tmp_path: Path) -> None:
    found = attempt(scenario(pair, Turn("hello"), record_tools=True), tmp_path, "none")
    assert found.status == "errored"
    assert "record_tools" in found.why


async def test_a_turn_that_takes_too_long_is_given_up() -> None:
    async def wait() -> str:
        await asyncio.sleep(30)
        return "never"

    def build() -> Any:
        return theirs("A", tools=[wait])

    opening = Opening(limits=Limits(), settings=SettingsSpec())
    turn = Turn("hello", script=[{"call": "wait"}, {"say": "never"}])
    async with target_of(build, FRAMEWORK).open(opening) as conversation:
        told = await conversation.say("hello", script=turn.script, within=0.05)
    assert told.failure is not None
    assert told.failure.kind == "timeout"


def test_a_runner_of_ours_brings_its_limits_along() -> None:
    a = Agent("A", handoffs=[Agent("B")])
    runner = Runner(a, max_handoffs_per_turn=1, max_tool_iterations=3)
    made = translate(runner, {})
    assert (made.max_handoffs_per_turn, made.max_tool_iterations) == (1, 3)


# The shipped suite.

ROOT = Path(__file__).parents[3]


def test_the_shipped_support_suite_replays_on_it() -> None:
    scenarios = loader.load([ROOT / "scenarios" / "support.scenario.yaml"], ROOT)
    found = outcome.collect(trial.plan(scenarios, root=ROOT, frameworks=[FRAMEWORK]))
    assert {each.failure for each in found} == {None}
    assert all(each.replayed for each in found)
    unexpected = [each.scenario for each in found if not each.ok]
    # Here the model passes the user back, which it does not do on the reference runtime.
    assert unexpected == ["billing-in-other-words[3]"]
