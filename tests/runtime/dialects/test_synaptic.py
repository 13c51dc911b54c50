"""The third document's patterns, and none of the faults SY-1 to SY-14 that its published package shows.

SY-5 is about interrupts, which the document does not have, and SY-15 about memory that Rust leaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime.agent import Agent
from chatflow_runtime.dialects.synaptic import (
    END,
    AgentOptions,
    FnNode,
    MessageState,
    StateGraph,
    SupervisorOptions,
    SwarmAgent,
    SwarmOptions,
    create_agent,
    create_handoff_tool,
    create_supervisor,
    create_swarm,
    handoff,
)
from chatflow_runtime.engine import Answer, Call, ModelRequest, Say, ScriptedEngine, Transfer, using
from chatflow_runtime.events import Event, HandoffAccepted, HandoffRefused, HandoffReturned, ModelAsked, ToolCalled
from chatflow_runtime.exceptions import DefinitionError, EmptyResponseError, GraphError, StepLimitError
from chatflow_runtime.graph import StateRunner
from chatflow_runtime.history import faults
from chatflow_runtime.memory import SessionStore
from chatflow_runtime.tools import Tool, tool
from chatflow_runtime.types import AssistantMessage, ToolCall, ToolResult, UserMessage

HELLO = MessageState([UserMessage("hello")])


@tool
def refund(transaction_id: str, amount: float = 0.0) -> str:
    """Pay back."""
    return f"refunded {transaction_id}"


def look(where: str) -> str:
    return f"looked at {where}"


def spoken(state: MessageState) -> list[tuple[str, str | None]]:
    return [(each.agent, each.text) for each in state.messages if isinstance(each, AssistantMessage)]


def results(state: MessageState) -> list[object]:
    return [each.content for each in state.messages if isinstance(each, ToolResult)]


def run(runner: StateRunner, *script: Any, state: MessageState = HELLO) -> tuple[MessageState, Seen]:
    seen = Seen(script)
    with using(seen.engine):
        return runner.invoke(state, observer=seen.events.append), seen


class Seen:
    """What was asked and told."""

    def __init__(self, script: Sequence[Any]) -> None:
        self.engine = ScriptedEngine(script)
        self.events: list[Event] = []

    @property
    def requests(self) -> tuple[ModelRequest, ...]:
        return self.engine.requests

    @property
    def hops(self) -> list[tuple[str, str, str]]:
        return [(each.source, each.target, each.kind) for each in self.events if isinstance(each, HandoffAccepted)]

    @property
    def refused(self) -> list[tuple[str, str]]:
        return [(each.target, each.why) for each in self.events if isinstance(each, HandoffRefused)]


def swarm(**options: Any) -> StateRunner:
    return create_swarm(
        [
            SwarmAgent("triage", "m", [], "Welcome the user."),
            SwarmAgent("billing", "m", [refund], "Handle payments."),
            SwarmAgent("tech", "m", [], "Handle crashes."),
        ],
        SwarmOptions(**options),
    )


def supervisor(**options: Any) -> StateRunner:
    agents = [
        ("billing", create_agent("m", [refund], AgentOptions(system_prompt="Handle payments."))),
        ("tech", create_agent("m", [])),
    ]
    return create_supervisor("m", agents, SupervisorOptions(**options))


def topology(*drafter_tools: Tool) -> StateGraph:
    """The document's own: a drafter who sends to a reviewer, who sends back, or to a publisher."""
    to_reviewer = create_handoff_tool("reviewer", "Send to reviewer")
    to_publisher = create_handoff_tool("publisher", "Send to publisher")

    def route(state: MessageState) -> str:
        last = state.last_message()
        if last is not None:
            for call in last.tool_calls:
                if call.name == "transfer_to_reviewer":
                    return "reviewer"
                if call.name == "transfer_to_publisher":
                    return "publisher"
        return END

    return (
        StateGraph()
        .add_node("drafter", create_agent("m", [to_reviewer, to_publisher, *drafter_tools]))
        .add_node("reviewer", create_agent("m", []))
        .add_node("publisher", create_agent("m", []))
        .set_entry_point("drafter")
        .add_conditional_edges("drafter", route)
        .add_edge("reviewer", "drafter")
        .add_edge("publisher", END)
    )


# --- agents


def test_an_agent_asks_its_model_with_its_prompt_and_tools() -> None:
    agent = create_agent("gpt-4o", [refund, look], AgentOptions(system_prompt="Be kind.", name="helper"))
    state, seen = run(agent, Call("refund", {"transaction_id": "T1"}), "Done.")
    first, second = seen.requests
    assert (first.agent, first.model, first.instructions) == ("helper", "gpt-4o", "Be kind.")
    assert [each.name for each in first.tools] == ["refund", "look"]
    assert results(state) == ["refunded T1"]
    assert second.history == state.messages[:3]


def test_options_may_be_left_out() -> None:
    state, seen = run(create_agent("m", []), "Hi.")
    assert (seen.requests[0].agent, seen.requests[0].instructions) == ("agent", "")
    assert spoken(state) == [("agent", "Hi.")]


def test_a_model_may_be_an_engine_or_the_keyword_router() -> None:
    engine = ScriptedEngine(["Hi."])
    assert spoken(create_agent(engine, []).invoke(HELLO)) == [("agent", "Hi.")]
    assert engine.remaining == 0
    pair = create_swarm([SwarmAgent("desk", "keyword"), SwarmAgent("billing", "keyword", (), "Invoices, refunds.")])
    assert pair.run("s", "I want a refund").active_agent_name == "billing"


def test_an_agents_handoff_tools_are_offered_without_parameters() -> None:
    escalate = create_handoff_tool("human_review", "Escalate to a human reviewer")
    _, seen = run(create_agent("m", [refund, escalate]), "Hi.")
    offered = seen.requests[0].projection()["tools"]
    assert isinstance(offered, list)
    assert offered[1] == {
        "type": "function",
        "function": {
            "name": "transfer_to_human_review",
            "description": "Escalate to a human reviewer",
            "parameters": {"type": "object", "properties": {}},
        },
    }


def test_an_empty_answer_is_an_error() -> None:
    with pytest.raises(EmptyResponseError):
        run(create_agent("m", []), Answer())


# --- swarms


def test_a_swarm_starts_with_its_first_agent_and_is_a_full_mesh() -> None:
    agents = swarm().agents
    assert swarm().starting_agent.name == "triage"
    assert {name: [peer.name for peer in agent.handoffs] for name, agent in agents.items()} == {
        "triage": ["billing", "tech"],
        "billing": ["triage", "tech"],
        "tech": ["triage", "billing"],
    }
    assert [each.name for each in agents["billing"].get_all_tools()] == [
        "refund",
        "transfer_to_triage",
        "transfer_to_tech",
    ]


def test_a_transfer_is_answered_with_the_tools_own_words() -> None:
    """Where the published package says `Transferring to agent.`."""
    state, seen = run(swarm(), [Say("One moment."), Transfer("billing")], "Hello from billing.")
    assert results(state) == ["Transferring to agent 'billing'."]
    assert spoken(state) == [("triage", "One moment."), ("billing", "Hello from billing.")]
    assert seen.hops == [("triage", "billing", "transfer")]


def test_domain_tools_keep_their_schemas_in_a_swarm() -> None:
    _, seen = run(swarm(), Transfer("billing"), "Done.")
    (offered,) = [each for each in seen.requests[1].tools if each.name == "refund"]
    assert offered.parameters["required"] == ["transaction_id"]


def test_a_swarm_agents_own_handoff_tool_says_how_it_is_described() -> None:
    to_b = create_handoff_tool("b", "For payments only")
    made = create_swarm([SwarmAgent("a", "m", [to_b]), SwarmAgent("b", "m", (), "Payments.")])
    assert [(each.name, each.description) for each in made.agents["a"].get_all_tools()] == [
        ("transfer_to_b", "For payments only")
    ]
    assert made.agents["b"].get_all_tools()[0].description == "Hand off the dialogue to 'a'."


def test_a_handoff_tool_that_leads_to_nobody_in_a_swarm_is_refused() -> None:
    lost = create_handoff_tool("biling", "")
    with pytest.raises(
        DefinitionError, match="'transfer_to_biling' of agent 'a' leads to nobody here; did you mean 'b"
    ):
        create_swarm([SwarmAgent("a", "m", [lost]), SwarmAgent("billing", "m")])


def test_a_swarm_of_nobody_is_refused() -> None:
    with pytest.raises(DefinitionError, match="A swarm needs at least one agent"):
        create_swarm([])


def test_a_name_that_no_tool_can_have_is_refused() -> None:
    with pytest.raises(DefinitionError, match="'transfer_to_Billing Agent'"):
        create_swarm([SwarmAgent("triage", "m"), SwarmAgent("Billing Agent", "m")])


def test_a_swarms_limits_are_the_runners_and_can_be_set() -> None:
    assert (swarm().limits.max_handoffs_per_turn, swarm().limits.max_tool_iterations) == (5, 10)
    state, seen = run(swarm(max_handoffs_per_turn=1), Transfer("billing"), Transfer("tech"), "I stay.")
    assert results(state)[1] == "Maximum agent transfers exceeded for a single turn."
    assert seen.hops == [("triage", "billing", "transfer")]
    state, _ = run(swarm(max_tool_iterations=0), Transfer("billing"))
    assert spoken(state)[-1] == ("triage", "Execution iteration limit reached by agent 'triage'.")


def test_a_stream_of_a_swarm_has_one_event_an_answer() -> None:
    with using(ScriptedEngine([Transfer("billing"), Call("refund", {"transaction_id": "T1"}), "Done."])):
        events = list(swarm().stream(HELLO))
    assert [(event.node, len(event.state.messages)) for event in events] == [
        ("triage", 3),
        ("billing", 5),
        ("billing", 6),
    ]


def test_a_swarm_with_nothing_to_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="Agent 'triage' has nothing to answer"):
        swarm().invoke(MessageState())


# --- supervisors


def test_a_supervisors_calls_come_back_with_what_the_agent_said() -> None:
    script = [Transfer("billing"), Call("refund", {"transaction_id": "T1"}), "Paid back.", "All done."]
    state, seen = run(supervisor(), *script)
    assert spoken(state) == [("supervisor", None), ("supervisor", "All done.")]
    assert results(state) == ["Paid back."]
    assert seen.hops == [("supervisor", "billing", "call")]
    assert [(each.source, each.target) for each in seen.events if isinstance(each, HandoffReturned)] == [
        ("supervisor", "billing")
    ]
    assert [request.agent for request in seen.requests] == ["supervisor", "billing", "billing", "supervisor"]


def test_a_supervisors_agents_see_the_conversation_so_far() -> None:
    state, seen = run(
        supervisor(), Transfer("billing"), "Paid.", [Transfer("tech"), Transfer("billing")], "T", "B", "Done."
    )
    assert seen.requests[1].history == HELLO.messages
    assert seen.requests[3].history == state.messages[:3]
    assert results(state) == ["Paid.", "T", "B"]


def test_a_supervisor_is_told_whom_it_has() -> None:
    _, seen = run(supervisor(), "Hi.")
    assert "'billing', 'tech'" in seen.requests[0].instructions
    assert [(each.name, each.parameters) for each in seen.requests[0].tools] == [
        ("transfer_to_billing", {"type": "object", "properties": {}}),
        ("transfer_to_tech", {"type": "object", "properties": {}}),
    ]
    assert seen.requests[0].tools[0].description.endswith("Target agent specialty: Handle payments.")
    _, seen = run(supervisor(system_prompt="Only you.", name="boss"), "Hi.")
    assert (seen.requests[0].agent, seen.requests[0].instructions) == ("boss", "Only you.")


def test_a_supervisors_agents_may_hand_off_among_themselves() -> None:
    agents = [("a", create_agent("m", [create_handoff_tool("b", "")])), ("b", create_agent("m", []))]
    state, seen = run(create_supervisor("m", agents), Transfer("a"), Transfer("b"), "From b.", "Done.")
    assert seen.hops == [("supervisor", "a", "call"), ("a", "b", "transfer")]
    assert results(state) == ["From b."]


def test_a_failing_agent_is_a_failed_result() -> None:
    state, _ = run(supervisor(), Transfer("billing"), LookupError("gone"), "Sorry.")
    assert results(state) == ["Error: the handoff to 'billing' failed: LookupError: gone"]


def test_who_can_be_supervised() -> None:
    with pytest.raises(DefinitionError, match="A supervisor needs at least one agent"):
        create_supervisor("m", [])
    with pytest.raises(DefinitionError, match=r"agent 'a' is .*, expected what create_agent\(\) returns"):
        create_supervisor("m", [("a", swarm())])


def test_a_supervisors_limits_are_the_runners() -> None:
    state, _ = run(supervisor(max_handoffs_per_turn=1), [Transfer("tech"), Transfer("billing")], "T", "Done.")
    assert results(state) == ["T", "Maximum agent transfers exceeded for a single turn."]


# --- the document's own topology


def test_the_documents_topology() -> None:
    script = [Transfer("reviewer"), "Needs a title.", Transfer("publisher"), "Published."]
    state, seen = run(topology().compile(), *script)
    assert seen.hops == [
        ("drafter", "reviewer", "transfer"),
        ("reviewer", "drafter", "transfer"),
        ("drafter", "publisher", "transfer"),
    ]
    assert spoken(state) == [
        ("drafter", None),
        ("reviewer", "Needs a title."),
        ("drafter", None),
        ("publisher", "Published."),
    ]
    assert results(state) == ["Transferring to agent 'reviewer'.", "Transferring to agent 'publisher'."]


# --- the faults of the published package


def test_sy_01_a_specialist_that_calls_its_own_tool_keeps_control() -> None:
    state, seen = run(swarm(), Transfer("billing"), Call("refund", {"transaction_id": "T1"}), "Paid back.")
    assert [request.agent for request in seen.requests] == ["triage", "billing", "billing"]
    assert spoken(state)[-1] == ("billing", "Paid back.")


@pytest.mark.parametrize(
    ("made", "script"),
    [
        (supervisor, [Transfer("billing"), "Paid.", "Done."]),
        (swarm, [Transfer("billing"), "Paid."]),
        (lambda: topology().compile(), [Transfer("reviewer"), "Fine.", Transfer("publisher"), "Out."]),
    ],
)
def test_sy_02_every_transfer_call_is_answered_in_every_request(made: Any, script: list[Any]) -> None:
    state, seen = run(made(), *script)
    assert [faults(request.projection()) for request in seen.requests] == [()] * len(script)
    assert state.open_calls == ()


def test_sy_03_a_sessions_second_turn_is_not_dropped() -> None:
    for runner in (swarm(), topology().compile(), supervisor()):
        with using(ScriptedEngine(["One.", "Two."])) as engine:
            runner.invoke(HELLO, session_id="s")
            state = runner.invoke(MessageState([UserMessage("turn 2")]), session_id="s")
        assert [text for _, text in spoken(state)] == ["One.", "Two."]
        assert isinstance(engine, ScriptedEngine)
        assert [message for message in engine.requests[1].history if isinstance(message, UserMessage)] == [
            UserMessage("hello"),
            UserMessage("turn 2"),
        ]


@pytest.mark.parametrize("session_id", [None, "s"])
def test_sy_04_the_active_agent_is_remembered(session_id: str | None) -> None:
    made = swarm()
    with using(ScriptedEngine([Transfer("billing"), "One.", "Two.", "Three."])) as engine:
        state = made.invoke(HELLO, session_id=session_id)
        for text in ("more", "still more"):
            given = [UserMessage(text)] if session_id else [*state.messages, UserMessage(text)]
            state = made.invoke(MessageState(given), session_id=session_id)
    assert isinstance(engine, ScriptedEngine)
    assert [request.agent for request in engine.requests] == ["triage", "billing", "billing", "billing"]
    assert [text for _, text in spoken(state)] == [None, "One.", "Two.", "Three."]


def test_sy_04_sessions_do_not_share_their_active_agents_and_are_kept_in_the_store() -> None:
    store = SessionStore()
    with using(ScriptedEngine([Transfer("billing"), "One.", "Welcome.", "Two."])) as engine:
        swarm(session_store=store).invoke(HELLO, session_id="s")
        swarm(session_store=store).invoke(HELLO, session_id="other")
        swarm(session_store=store).invoke(HELLO, session_id="s")
    assert isinstance(engine, ScriptedEngine)
    assert [request.agent for request in engine.requests] == ["triage", "billing", "triage", "billing"]


@pytest.mark.parametrize("name", ["tools", "agent", "supervisor", "__start", "swarm"])
def test_sy_06_no_agents_name_meets_an_internal_one(name: str) -> None:
    made = create_swarm([SwarmAgent("triage", "m"), SwarmAgent(name, "m", [refund])])
    state, _ = run(made, Transfer(name), Call("refund", {"transaction_id": "T1"}), "Done.")
    assert spoken(state)[-1] == (name, "Done.")
    graph = StateGraph().add_node(name, create_agent("m", [refund])).set_entry_point(name).compile()
    state, _ = run(graph, Call("refund", {"transaction_id": "T1"}), "Done.")
    assert spoken(state)[-1] == (name, "Done.")


def test_sy_06_an_agent_named_like_its_supervisor_is_refused() -> None:
    agents = [("supervisor", create_agent("m", []))]
    with pytest.raises(DefinitionError, match=r"'supervisor' is the supervisor's own name: .* SupervisorOptions\.name"):
        create_supervisor("m", agents)
    state, _ = run(create_supervisor("m", agents, SupervisorOptions(name="boss")), Transfer("supervisor"), "Hm.", "Ok.")
    assert spoken(state)[-1] == ("boss", "Ok.")


def test_sy_07_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(DefinitionError, match="Two agents are named 'b'"):
        create_swarm([SwarmAgent("a", "m"), SwarmAgent("b", "m"), SwarmAgent("b", "m")])
    with pytest.raises(DefinitionError, match="Two agents are named 'b'"):
        create_supervisor("m", [("b", create_agent("m", [])), ("b", create_agent("m", []))])
    with pytest.raises(DefinitionError, match="two tools named 'refund'"):
        create_agent("m", [refund, refund])


def test_sy_08_tools_belong_to_their_agent() -> None:
    a, b = (SwarmAgent(name, "m", [Tool("look", func=lambda name=name: f"seen by {name}")]) for name in "ab")
    state, _ = run(create_swarm([a, b]), Call("look"), Transfer("b"), Call("look"), "Done.")
    assert results(state) == ["seen by a", "Transferring to agent 'b'.", "seen by b"]
    state, seen = run(swarm(), Call("refund", {"transaction_id": "T1"}), "I cannot.")
    assert "there is no tool 'refund'" in str(results(state)[0])
    assert [event.known for event in seen.events if isinstance(event, ToolCalled)] == [False]


@pytest.mark.parametrize("name", ["transfer_to_zzz", "zzz", "", "transfer_to_"])
def test_sy_09_unknown_names_are_results_that_the_model_reads(name: str) -> None:
    for runner in (swarm(), supervisor(), topology().compile(), create_agent("m", [])):
        state, seen = run(runner, Call(name), "I go on.")
        assert str(results(state)[0]).startswith(f"Error: there is no tool '{name}'.")
        assert spoken(state)[-1][1] == "I go on."
        assert seen.hops == []


def test_sy_10_of_two_transfers_the_first_wins_and_the_other_is_refused() -> None:
    state, seen = run(swarm(), [Transfer("billing"), Transfer("tech")], "Hello.")
    assert results(state) == [
        "Transferring to agent 'billing'.",
        "Another transfer of the same response already took effect: 'billing' is active now.",
    ]
    assert seen.hops == [("triage", "billing", "transfer")]
    assert seen.refused == [("tech", "already_transferred")]


def test_sy_11_the_outer_router_sees_the_transfer_of_an_agent_in_a_node() -> None:
    state, seen = run(
        topology(refund).compile(), [Transfer("reviewer"), Call("refund", {"transaction_id": "T"})], "R.", "D."
    )
    assert [request.agent for request in seen.requests] == ["drafter", "reviewer", "drafter"]
    assert results(state) == ["Transferring to agent 'reviewer'.", "refunded T"]


def test_sy_11_and_that_of_an_agent_in_a_function_in_a_node() -> None:
    drafter = create_agent("m", [create_handoff_tool("reviewer", "Send to reviewer"), refund])

    async def draft(state: MessageState) -> MessageState:
        return await drafter.invoke_async(state)

    def route(state: MessageState) -> str:
        last = state.last_message()
        assert last is not None
        return "reviewer" if "transfer_to_reviewer" in [call.name for call in last.tool_calls] else END

    graph = StateGraph().add_node("drafter", FnNode(draft)).add_node("reviewer", create_agent("m", []))
    compiled = graph.set_entry_point("drafter").add_conditional_edges("drafter", route).compile()
    state, seen = run(compiled, [Call("refund", {"transaction_id": "T"}), Transfer("reviewer")], "Fine.")
    assert [request.agent for request in seen.requests] == ["drafter", "reviewer"]
    assert results(state) == ["refunded T", "Transferring to agent 'reviewer'."]
    assert seen.hops == [("drafter", "reviewer", "transfer")]


def test_sy_12_a_transfer_to_oneself_is_refused() -> None:
    state, seen = run(swarm(), Call("transfer_to_triage"), "Still me.")
    assert seen.refused == [("triage", "self")]
    assert spoken(state)[-1] == ("triage", "Still me.")


def test_sy_13_a_node_whose_result_cannot_be_used_is_an_error_and_no_silent_end() -> None:
    def send(state: MessageState) -> Any:
        return ["send", state]

    with pytest.raises(GraphError, match="returned a list, expected a MessageState"):
        StateGraph().add_node("a", FnNode(send)).set_entry_point("a").compile().invoke(HELLO)


def test_sy_14_the_step_limit_can_be_set_and_its_error_carries_the_state() -> None:
    again = [Transfer("reviewer"), "Again."] * 3
    with pytest.raises(StepLimitError) as limit:
        run(topology().compile(step_limit=5), *again[:5])
    assert [agent for agent, _ in spoken(limit.value.state)] == ["drafter", "reviewer"] * 2 + ["drafter"]


# --- declared handoffs


def test_a_handoff_of_this_document_between_agents_of_the_first() -> None:
    billing = Agent("BillingAgent", "Handle payments.")
    made = handoff(billing)
    assert (made.tool_name, made.kind) == ("transfer_to_BillingAgent", "transfer")
    assert handoff(billing, tool_name="escalate", description="Hard cases.").tool_name == "escalate"
    assert Agent("Triage", handoffs=[made]).get_all_tools()[0].parameters == {"type": "object", "properties": {}}
    with pytest.raises(DefinitionError, match="'transfer_to_Billing Agent'"):
        handoff(Agent("Billing Agent"))


# --- whatever a model says

NAMES = [f"agent{number}" for number in range(8)]
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["", "x", "call_1"]),
        st.sampled_from([*(f"transfer_to_{name}" for name in NAMES), "refund", "zzz", ""]),
        st.sampled_from(["{}", "", "null", '{"transaction_id": "T"}', '{"transaction_id": ']),
    ),
    max_size=4,
)


@given(
    st.integers(1, 8),
    st.booleans(),
    st.lists(CALLS, min_size=1, max_size=6),
    st.integers(0, 4),
    st.integers(0, 8),
)
def test_any_swarm_and_supervisor_ends_with_a_valid_history_and_the_state_that_events_tell(
    size: int, is_swarm: bool, said: list[list[tuple[str, str, str]]], max_handoffs: int, max_executions: int
) -> None:
    requests: list[ModelRequest] = []

    class Anything:
        async def answer(self, request: ModelRequest) -> Answer:
            calls = tuple(ToolCall(*call) for call in said[len(requests) % len(said)])
            requests.append(request)
            return Answer("Hello." if len(requests) % 2 or not calls else None, calls)

    names, model = NAMES[:size], Anything()
    limits: dict[str, Any] = {"max_handoffs_per_turn": max_handoffs, "max_tool_iterations": max_executions}
    made = (
        create_swarm([SwarmAgent(name, model, [refund]) for name in names], SwarmOptions(**limits))
        if is_swarm
        else create_supervisor(
            model, [(name, create_agent(model, [refund])) for name in names], SupervisorOptions(**limits)
        )
    )
    for turn in range(2):
        before = made.get_session("s")
        active = before.active_agent_name if before else made.starting_agent.name
        events: list[Event] = []
        response = made.run("s", f"turn {turn}", observer=events.append)
        accepted = [event for event in events if isinstance(event, HandoffAccepted)]
        for hop in accepted:
            if hop.kind == "transfer":
                assert hop.source == active
                active = hop.target
        session = made.get_session("s")
        assert session is not None
        assert session.active_agent_name == response.active_agent_name == active
        assert len(accepted) == len(response.handoffs) <= max_handoffs
        hits = {hit.limit for hit in response.limit_hits}
        assert ("max_tool_iterations" in hits) == (len(response.tool_calls_executed) > max_executions)
        if "max_handoffs_per_turn" in hits:
            assert len(accepted) == max_handoffs
        returned = [event for event in events if isinstance(event, HandoffReturned)]
        assert len(returned) == len([hop for hop in accepted if hop.kind == "call"])
        assert [event.agent for event in events if isinstance(event, ModelAsked)]
    assert [faults(request.projection()) for request in requests] == [()] * len(requests)
