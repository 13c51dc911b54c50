"""The faults observed in chatflow-agent 0.3.4 are not here: one test per fault, named by its number in the research.

Each is the research's own minimal reproduction, with what must happen instead; the rules have their tests by module.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chatflow_runtime import (
    Agent,
    AgentHandoffError,
    AgentResponse,
    Answer,
    AssistantMessage,
    Call,
    DefinitionError,
    Handoff,
    ModelRequest,
    Runner,
    RunningLoopError,
    ScriptedEngine,
    SessionContext,
    SessionStore,
    SQLiteSessionStore,
    ToolCall,
    ToolResult,
    Transfer,
    UserMessage,
    tool,
)
from chatflow_runtime.engine import Scripted
from chatflow_runtime.history import faults
from chatflow_runtime.limits import EXECUTIONS_EXCEEDED, HANDOFFS_EXCEEDED


@tool
def dom() -> str:
    """A domain tool."""
    return "done"


def ping_pong() -> Agent:
    """A, who has a domain tool, and B can hand off to each other."""
    a = Agent("A", "a", tools=[dom], handoffs=[Agent("B", "b", tools=[dom])])
    a.handoffs[0].add_handoff(a)
    return a


class Said:
    """One turn in which the model answers from a script, all of it."""

    def __init__(self, start: Agent, *script: Scripted, **limits: int) -> None:
        self.engine = ScriptedEngine(script)
        self.runner = Runner(start, engine=self.engine, **limits)  # type: ignore[arg-type]
        self.response: AgentResponse = self.runner.run("s", "hi")
        self.engine.finish()
        assert [faults(request.projection()) for request in self.engine.requests] == [()] * len(self.engine.requests)

    @property
    def session(self) -> SessionContext:
        session = self.runner.get_session("s")
        assert session is not None
        return session

    @property
    def results(self) -> list[ToolResult]:
        return [message for message in self.session.history if isinstance(message, ToolResult)]


def always_transfer(request: ModelRequest) -> Answer:
    return Answer(None, (ToolCall("", next(each.name for each in request.tools if each.target)),))


def test_cf_01_a_transfer_past_the_limit_is_an_error_and_does_not_happen() -> None:
    said = Said(ping_pong(), Transfer("B"), "Still A.", max_handoffs_per_turn=0)
    assert [result.content for result in said.results] == [HANDOFFS_EXCEEDED]
    assert (said.session.active_agent_name, said.response.handoff) == ("A", None)


def test_cf_02_ping_pong_stops_at_the_limit() -> None:
    said = Said(ping_pong(), *[always_transfer] * 6, "Enough.")
    assert [result.is_error for result in said.results] == [False] * 5 + [True]
    assert (said.response.content, len(said.response.handoffs), said.response.active_agent_name) == ("Enough.", 5, "B")
    assert [hit.limit for hit in said.response.limit_hits] == ["max_handoffs_per_turn"]


def test_cf_03_every_call_is_answered_past_a_limit() -> None:
    said = Said(ping_pong(), [Transfer("B"), Call("dom")], "Done.", max_handoffs_per_turn=0)
    assert [result.content for result in said.results] == [HANDOFFS_EXCEEDED, "done"]
    assert [result.is_error for result in said.results] == [True, False]


def test_cf_04_executions_are_counted_not_answers() -> None:
    said = Said(ping_pong(), [Call("dom")] * 25, max_tool_iterations=2)
    assert [result.content for result in said.results] == ["done"] * 2 + [EXECUTIONS_EXCEEDED] * 23
    assert said.response.content == "Execution iteration limit reached by agent 'A'."


def test_cf_05_of_two_transfers_in_one_response_the_first_wins() -> None:
    start = Agent("A", handoffs=[Agent("B"), Agent("C")])
    said = Said(start, [Transfer("B"), Transfer("C")], "I am B.")
    assert [result.is_error for result in said.results] == [False, True]
    assert (said.response.active_agent_name, len(said.response.handoffs)) == ("B", 1)


@pytest.mark.parametrize("names", [("Billing Agent", "Billing-Agent"), ("日本語", "한국어"), ("🤖", "🚀")])
def test_cf_06_each_peer_has_a_tool_name_of_its_own(names: tuple[str, str]) -> None:
    peers = [Agent(name) for name in names]
    tools = Agent("A", handoffs=peers).get_all_tools()
    assert len({each.name for each in tools}) == 2
    for number, each in enumerate(tools):
        said = Said(Agent("A", handoffs=peers), Call(each.name), "Hello.")
        assert said.response.active_agent_name == names[number]


def test_cf_07_a_tool_named_like_a_transfer_tool_is_refused() -> None:
    @tool(name="transfer_to_b")
    def mine() -> str:
        """Mine."""
        return "mine"

    with pytest.raises(DefinitionError, match="its tool 'transfer_to_b' and its handoff to 'B'"):
        Agent("A", tools=[mine], handoffs=[Agent("B")])
    later = Agent("A", tools=[mine])
    with pytest.raises(DefinitionError, match="two tools named 'transfer_to_b'"):
        later.add_handoff(Agent("B"))


def test_cf_08_two_agents_of_one_name_are_refused() -> None:
    start = Agent("A", handoffs=[Agent("Helper", "h1"), Agent("Mid", handoffs=[Agent("Helper", "h2")])])
    with pytest.raises(DefinitionError, match="Two different agents are named 'Helper'"):
        Runner(start)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_cf_09_a_failed_turn_leaves_the_active_agent_too(kind: str, tmp_path: Path) -> None:
    store = SessionStore() if kind == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    runner = Runner(ping_pong(), store, engine=ScriptedEngine(["Hi.", Transfer("B"), ConnectionError("400")]))
    runner.run("s", "hi")
    before = runner.get_session("s")
    with pytest.raises(ConnectionError):
        runner.run("s", "hi")
    assert runner.get_session("s") == before
    assert before is not None
    assert before.active_agent_name == "A"


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_cf_10_a_failed_turn_of_a_window_leaves_the_older_turn(kind: str, tmp_path: Path) -> None:
    store = SessionStore(max_turns=1) if kind == "memory" else SQLiteSessionStore(tmp_path / "s.db", max_turns=1)
    runner = Runner(Agent("A"), store, engine=ScriptedEngine(["a1", ConnectionError("400"), "a3"]))
    runner.run("s", "u1")
    with pytest.raises(ConnectionError):
        runner.run("s", "u2")
    session = runner.get_session("s")
    assert session is not None
    assert session.history == [UserMessage("u1"), AssistantMessage("A", "a1")]
    runner.run("s", "u3")
    session = runner.get_session("s")
    assert session is not None
    assert session.history == [UserMessage("u3"), AssistantMessage("A", "a3")]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_cf_11_turns_of_one_session_wait_for_one_another_in_any_store(kind: str, tmp_path: Path) -> None:
    store = SessionStore() if kind == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    lengths: list[int] = []

    class Slow:
        async def answer(self, request: ModelRequest) -> Answer:
            lengths.append(len(request.history))
            await asyncio.sleep(0.01)
            return Answer("Hello.")

    runner = Runner(Agent("A"), store, engine=Slow())

    async def main() -> None:
        await asyncio.gather(runner.run_async("s", "m1"), runner.run_async("s", "m2"))

    asyncio.run(main())
    assert lengths == [1, 3]


@pytest.mark.parametrize("arguments", ["null", "[1]", '"s"', "12", "{bad", ""])
def test_cf_12_arguments_that_are_no_object_do_not_end_the_turn(arguments: str) -> None:
    said = Said(ping_pong(), Call("transfer_to_b", arguments), "I am B.")
    assert said.response.active_agent_name == "B"


def test_cf_13_registering_a_known_agent_again_finds_the_peers_it_got_since() -> None:
    start = Agent("A")
    runner = Runner(start, engine=ScriptedEngine([Transfer("B"), Transfer("B"), "I am B."]))
    start.add_handoff(Agent("B"))
    with pytest.raises(AgentHandoffError, match="'B', which is not registered"):
        runner.run("s", "hi")
    runner.register_agent(start)
    assert runner.run("s", "hi").active_agent_name == "B"


def test_cf_14_a_tool_hands_off_only_where_its_agent_may() -> None:
    @tool
    def jump() -> Handoff:
        """Go to C."""
        return Handoff(target_agent_name="C")

    start = Agent("A", tools=[jump], handoffs=[Agent("B", handoffs=[Agent("C")])])
    said = Said(start, Call("jump"), "Still A.")
    assert (said.response.active_agent_name, said.results[0].is_error) == ("A", True)


def test_cf_15_an_agents_own_model_is_asked_for() -> None:
    start = Agent("A", model="gpt-4o", handoffs=[Agent("B", model="gemini-2.5-flash")])
    requests = Said(start, Transfer("B"), "I am B.").engine.requests
    assert [request.projection()["model"] for request in requests] == ["gpt-4o", "gemini/gemini-2.5-flash"]


async def test_cf_16_run_inside_a_running_loop_names_run_async() -> None:
    with pytest.raises(RunningLoopError, match=r"await runner\.run_async"):
        Runner(Agent("A")).run("s", "hi")


def test_cf_17_a_second_runner_on_the_store_changes_nothing_for_the_first(tmp_path: Path) -> None:
    store = SQLiteSessionStore(tmp_path / "s.db")
    first = Runner(ping_pong(), store, engine=ScriptedEngine([Transfer("B"), "I am B.", "Still B."]))
    first.run("s", "hi")
    Runner(Agent("Other"), store, engine=ScriptedEngine(["Hello."])).run("t", "hi")
    assert first.run("s", "hi").active_agent_name == "B"


def test_cf_18_an_extra_argument_does_not_stop_a_transfer() -> None:
    said = Said(ping_pong(), Call("transfer_to_b", {"reason": "a", "extra": 1}), "I am B.")
    assert said.response.handoff == Handoff("B", "a")


def test_cf_19_calls_without_ids_get_ids_that_no_response_repeats() -> None:
    without_id = Answer(None, (ToolCall("", "dom"), ToolCall("", "dom")))
    said = Said(ping_pong(), without_id, without_id, "Done.")
    ids = [result.call_id for result in said.results]
    assert len(set(ids)) == len(ids) == 4
    assert "" not in ids
