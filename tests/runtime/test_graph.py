"""Graphs: what may be declared, which way a state goes, what happens to the calls that ask for a way, and the limit."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime.agent import Agent
from chatflow_runtime.dialects.synaptic import SwarmAgent, create_agent, create_swarm
from chatflow_runtime.engine import Answer, Call, ModelRequest, Say, ScriptedEngine, Transfer, using
from chatflow_runtime.events import (
    Event,
    HandoffAccepted,
    HandoffRefused,
    HandoffReturned,
    LimitHit,
    ModelAnswered,
    ModelAsked,
    TurnEnded,
    TurnStarted,
)
from chatflow_runtime.exceptions import DefinitionError, GraphError, RunningLoopError, StepLimitError
from chatflow_runtime.graph import (
    END,
    START,
    CompiledGraph,
    FnNode,
    GraphEvent,
    MessageState,
    StateGraph,
    create_handoff_tool,
)
from chatflow_runtime.history import faults
from chatflow_runtime.memory import SessionStore
from chatflow_runtime.tools import Tool
from chatflow_runtime.types import AssistantMessage, Message, ToolCall, ToolResult, UserMessage

HELLO = MessageState([UserMessage("hello")])
TO_B = create_handoff_tool("b", "Send to b")
TO_C = create_handoff_tool("c", "Send to c")


def saying(name: str, text: str = "") -> FnNode:
    """A function that says something in its node's name."""
    return FnNode(lambda state: state.adding(AssistantMessage(name, text or f"{name} was here")))


def calling(name: str, *calls: ToolCall) -> FnNode:
    """A function that says what a model would: calls."""
    return FnNode(lambda state: state.adding(AssistantMessage(name, None, calls)))


def follow(state: MessageState) -> str:
    """The way that the last message's first transfer asks for."""
    last = state.last_message()
    names = [call.name for call in last.tool_calls] if last else []
    return next((name.removeprefix("transfer_to_") for name in names if name.startswith("transfer_to_")), END)


def spoken(state: MessageState) -> list[str]:
    """Who said something, in order."""
    return [message.agent for message in state.messages if isinstance(message, AssistantMessage)]


def results(state: MessageState) -> list[tuple[str, object]]:
    return [(each.call_id, each.content) for each in state.messages if isinstance(each, ToolResult)]


def hops(events: Sequence[Event]) -> list[tuple[str, str, str]]:
    return [(each.source, each.target, each.tool) for each in events if isinstance(each, HandoffAccepted)]


def refusals(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(each.target, each.why) for each in events if isinstance(each, HandoffRefused)]


# --- declaring


def test_building_is_a_chain_and_statements_do_as_well() -> None:
    graph = StateGraph()
    graph.add_node("a", saying("a"))
    graph.add_edge(START, "a")
    assert spoken(graph.compile().invoke(HELLO)) == ["a"]


def test_no_entry_point() -> None:
    with pytest.raises(DefinitionError, match=r"no entry point: call set_entry_point\(\) with one of 'a', 'b'"):
        StateGraph().add_node("a", saying("a")).add_node("b", saying("b")).compile()


def test_a_second_entry_point() -> None:
    graph = StateGraph().add_node("a", saying("a")).set_entry_point("a")
    with pytest.raises(DefinitionError, match="has an entry point already: 'a'"):
        graph.add_edge(START, "a")


def test_edges_from_and_to_nowhere_name_the_nearest_node() -> None:
    def graph() -> StateGraph:
        return StateGraph().add_node("drafter", saying("d")).add_node("reviewer", saying("r"))

    with pytest.raises(DefinitionError, match=r"from '__start__' leads to 'draftr', which is no node; .* 'drafter'"):
        graph().set_entry_point("draftr").compile()
    with pytest.raises(DefinitionError, match="from 'reviwer', which is no node; did you mean 'reviewer'"):
        graph().set_entry_point("drafter").add_edge("reviwer", "drafter").compile()
    with pytest.raises(DefinitionError, match=r"from 'drafter' leads to 'x', which is no node. Expected one of: 'draf"):
        graph().set_entry_point("drafter").add_edge("drafter", "x").compile()
    with pytest.raises(DefinitionError, match="from 'drafter' leads for 'no' to 'reviewr', which is no node"):
        graph().set_entry_point("drafter").add_conditional_edges("drafter", follow, {"no": "reviewr"}).compile()
    with pytest.raises(DefinitionError, match="leads to '__end__', which is no node"):
        graph().add_edge(START, END).compile()
    with pytest.raises(DefinitionError, match="leads to '__start__', which is no node"):
        graph().set_entry_point("drafter").add_edge("drafter", START).compile()


@pytest.mark.parametrize("name", [START, END])
def test_the_names_of_start_and_end_are_reserved(name: str) -> None:
    with pytest.raises(DefinitionError, match="stands for a graph's"):
        StateGraph().add_node(name, saying("a"))


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(DefinitionError, match="Two nodes are named 'a'"):
        StateGraph().add_node("a", saying("a")).add_node("a", saying("a"))


def test_a_node_has_one_way_out() -> None:
    """Where the document's package takes the first edge and says nothing."""
    graph = StateGraph().add_node("a", saying("a")).add_edge("a", END)
    with pytest.raises(DefinitionError, match="Two edges lead on from 'a'"):
        graph.add_edge("a", "b")
    with pytest.raises(DefinitionError, match="Two edges lead on from 'a'"):
        graph.add_conditional_edges("a", follow)
    with pytest.raises(DefinitionError, match="END, where a graph ends"):
        graph.add_edge(END, "a")
    with pytest.raises(DefinitionError, match="START has no conditional edges"):
        graph.add_conditional_edges(START, follow)


@pytest.mark.parametrize("node", [5, "b", Agent("b")])
def test_what_cannot_be_a_node_is_refused(node: Any) -> None:
    with pytest.raises(DefinitionError, match=r"Node 'a' is a .*, expected an agent, a graph, or a function"):
        StateGraph().add_node("a", node)


def test_an_agent_cannot_want_to_hand_off_to_its_own_node() -> None:
    with pytest.raises(DefinitionError, match="cannot hand off to itself"):
        StateGraph().add_node("b", create_agent("m", [TO_B])).set_entry_point("b").compile()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_step_limit_is_one_or_more(limit: int) -> None:
    with pytest.raises(DefinitionError, match=f"step_limit is {limit}"):
        StateGraph().add_node("a", saying("a")).set_entry_point("a").compile(step_limit=limit)


# --- ways


def chain(*nodes: FnNode) -> StateGraph:
    graph = StateGraph().set_entry_point("a")
    for name, node in zip("abcdef", nodes, strict=False):
        graph.add_node(name, node)
    return graph


def test_a_node_without_an_edge_is_the_last() -> None:
    graph = chain(saying("a"), saying("b")).add_edge("a", "b").compile()
    assert spoken(graph.invoke(HELLO)) == ["a", "b"]


def test_a_graph_of_functions_may_start_from_nothing() -> None:
    assert spoken(chain(saying("a")).compile().invoke(MessageState())) == ["a"]


def test_routers_and_functions_may_be_async() -> None:
    async def speak(state: MessageState) -> MessageState:
        return state.adding(AssistantMessage("a", "x"))

    async def route(state: MessageState) -> str:
        await asyncio.sleep(0)
        return "b" if spoken(state) == ["a"] else END

    graph = chain(FnNode(speak), saying("b")).add_conditional_edges("a", route).compile()
    assert spoken(graph.invoke(HELLO)) == ["a", "b"]


def test_a_plain_function_is_a_node() -> None:
    graph = StateGraph().add_node("a", lambda state: state.adding(AssistantMessage("a", "x"))).set_entry_point("a")
    assert spoken(graph.compile().invoke(HELLO)) == ["a"]


def test_what_a_function_returns_takes_the_states_place() -> None:
    graph = chain(saying("a"), FnNode(lambda state: MessageState(state.messages[-1:]))).add_edge("a", "b").compile()
    assert graph.invoke(HELLO).messages == (AssistantMessage("a", "a was here"),)


def test_a_path_map_translates_what_the_router_says() -> None:
    ways = {"more": "b", "enough": END}

    def graph(label: str) -> CompiledGraph:
        return chain(saying("a"), saying("b")).add_conditional_edges("a", lambda _: label, ways).compile()

    assert spoken(graph("more").invoke(HELLO)) == ["a", "b"]
    assert spoken(graph("enough").invoke(HELLO)) == ["a"]
    with pytest.raises(
        GraphError, match=r"router of 'a' returned 'b', which is no label of its path map.*'more', 'eno"
    ):
        graph("b").invoke(HELLO)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("nowhere", "router of 'a' returned 'nowhere', which is no node. Expected one of: '__end__', 'a', 'bee'."),
        ("been", "returned 'been', which is no node; did you mean 'bee'?"),
        (None, "returned None, which is no node"),
        (["bee"], r"returned \['bee'\], which is no node"),
    ],
)
def test_a_router_that_leads_nowhere_is_an_error_that_names_it(way: Any, message: str) -> None:
    graph = StateGraph().add_node("a", saying("a")).add_node("bee", saying("b")).set_entry_point("a")
    with pytest.raises(GraphError, match=message.replace("?", r"\?")):
        graph.add_conditional_edges("a", lambda state: way).compile().invoke(HELLO)


def test_edges_are_hops_in_the_event_stream() -> None:
    events: list[Event] = []
    chain(saying("a"), saying("b")).add_edge("a", "b").compile().invoke(HELLO, observer=events.append)
    assert hops(events) == [("a", "b", "")]
    assert events[0] == TurnStarted("a", "hello")
    assert events[-1] == TurnEnded("b", "b was here")


def test_staying_is_no_hop() -> None:
    events: list[Event] = []
    route = lambda state: "a" if len(spoken(state)) < 3 else END  # noqa: E731
    state = chain(saying("a")).add_conditional_edges("a", route).compile().invoke(HELLO, observer=events.append)
    assert (len(spoken(state)), hops(events)) == (3, [])


def test_what_edges_may_do_is_known_beforehand() -> None:
    graph = chain(saying("a"), saying("b"), saying("c")).add_edge("b", "c")
    assert graph.add_conditional_edges("a", follow, {"x": "c", "y": END}).compile().ways == (("b", "c"), ("a", "c"))
    anywhere = chain(saying("a"), saying("b"), saying("c")).add_conditional_edges("b", follow).compile()
    assert anywhere.ways == (("b", "a"), ("b", "c"))
    assert anywhere.nodes == ("a", "b", "c")


# --- calls that ask for a way


def test_a_wish_is_answered_after_the_router_saw_it_and_before_the_next_node() -> None:
    seen: list[Message | None] = []

    def route(state: MessageState) -> str:
        seen.append(state.last_message())
        return follow(state)

    graph = (
        StateGraph()
        .add_node("a", create_agent("m", [TO_B]))
        .add_node("b", create_agent("m", []))
        .set_entry_point("a")
        .add_conditional_edges("a", route)
        .compile()
    )
    with using(ScriptedEngine([[Say("One moment."), Transfer("b")], "Done."])) as engine:
        state = graph.invoke(HELLO)
    call = ToolCall("call_1", "transfer_to_b", "{}")
    assert seen == [AssistantMessage("a", "One moment.", (call,))]
    assert state.messages == (
        UserMessage("hello"),
        AssistantMessage("a", "One moment.", (call,)),
        ToolResult("call_1", "transfer_to_b", "Transferring to agent 'b'."),
        AssistantMessage("b", "Done."),
    )
    assert isinstance(engine, ScriptedEngine)
    assert engine.requests[1].history == state.messages[:3]


def two_agents(*tools: Tool, route: Callable[[MessageState], str] = follow) -> CompiledGraph:
    return (
        StateGraph()
        .add_node("a", create_agent("m", [TO_B, TO_C, *tools]))
        .add_node("b", create_agent("m", []))
        .add_node("c", create_agent("m", []))
        .set_entry_point("a")
        .add_conditional_edges("a", route)
        .compile()
    )


def run(graph: CompiledGraph, *script: Any, state: MessageState = HELLO) -> tuple[MessageState, list[Event]]:
    events: list[Event] = []
    with using(ScriptedEngine(script)):
        return graph.invoke(state, observer=events.append), events


def test_domain_tools_beside_a_wish_run_and_are_answered_in_order() -> None:
    look = Tool("look", func=lambda: "seen")
    state, events = run(two_agents(look), [Call("look"), Transfer("b"), Call("look")], "Done.")
    assert results(state) == [("call_1", "seen"), ("call_2", "Transferring to agent 'b'."), ("call_3", "seen")]
    assert hops(events) == [("a", "b", "transfer_to_b")]


def test_domain_tools_alone_do_not_leave_the_node() -> None:
    look = Tool("look", func=lambda: "seen")
    state, events = run(two_agents(look), Call("look"), "Looked.")
    assert (spoken(state), hops(events)) == (["a", "a"], [])


def test_the_router_decides_between_several_wishes() -> None:
    """Its order is its own: the document's looks for the reviewer first, wherever it stands."""
    route = lambda state: "c" if state.open_calls else END  # noqa: E731
    state, events = run(two_agents(route=route), [Transfer("b"), Transfer("c")], "Done.")
    assert hops(events) == [("a", "c", "transfer_to_c")]
    assert refusals(events) == [("b", "already_transferred")]
    assert [content for _, content in results(state)] == [
        "Another transfer of the same response already took effect: 'c' is active now.",
        "Transferring to agent 'c'.",
    ]


def test_the_first_of_two_wishes_for_one_agent_is_taken() -> None:
    _, events = run(two_agents(), [Transfer("b"), Transfer("b")], "Done.")
    assert hops(events) == [("a", "b", "transfer_to_b")]
    assert refusals(events) == [("b", "already_transferred")]


def test_a_wish_that_the_router_does_not_grant_is_refused() -> None:
    state, events = run(two_agents(route=lambda _: END), Transfer("b"))
    assert refusals(events) == [("b", "not_allowed")]
    assert results(state) == [("call_1", "The graph does not lead from 'a' to 'b' now.")]
    state, events = run(two_agents(route=lambda _: "c"), Transfer("b"), "Done.")
    assert (hops(events), refusals(events)) == ([("a", "c", "")], [("b", "not_allowed")])


def test_a_router_may_translate_a_name_that_is_no_node() -> None:
    graph = (
        StateGraph()
        .add_node("a", create_agent("m", [create_handoff_tool("human_review", "Escalate")]))
        .add_node("people", saying("people"))
        .set_entry_point("a")
        .add_conditional_edges("a", follow, {"human_review": "people", END: END})
        .compile()
    )
    state, events = run(graph, Transfer("human_review"))
    assert hops(events) == [("a", "people", "transfer_to_human_review")]
    assert results(state) == [("call_1", "Transferring to agent 'human_review'.")]


def test_at_the_end_a_wish_for_somebody_elsewhere_is_left_to_the_caller() -> None:
    agent = create_agent("m", [create_handoff_tool("human_review", "Escalate"), Tool("look", func=lambda: 1)])
    state, events = run(agent, [Call("look"), Transfer("human_review")])
    last = state.last_message()
    assert last is not None
    assert [call.name for call in last.tool_calls] == ["look", "transfer_to_human_review"]
    assert not refusals(events)
    after = state.adding(UserMessage("and?"))
    assert results(after) == [("call_1", 1), ("call_2", "Transferring to agent 'human_review'.")]
    assert spoken(run(agent, "Well.", state=after)[0]) == ["agent", "agent"]


def test_at_the_end_of_a_sessions_turn_nobody_is_left_to_take_it() -> None:
    agent = create_agent("m", [create_handoff_tool("human_review", "Escalate")])
    events: list[Event] = []
    with using(ScriptedEngine([[Say("Hm."), Transfer("human_review")], "Still me."])):
        response = agent.run("s", "hello", observer=events.append)
        assert agent.run("s", "again").content == "Still me."
    assert response.content == "Hm."
    assert refusals(events) == [("human_review", "unregistered")]


def test_a_function_may_say_what_a_model_would() -> None:
    node = calling("a", ToolCall("x", "transfer_to_b"), ToolCall("", "look"), ToolCall("x", "transfer_to_a"))
    graph = chain(node, saying("b")).add_conditional_edges("a", follow).compile()
    state, events = run(graph)
    assert hops(events) == [("a", "b", "transfer_to_b")]
    assert refusals(events) == [("a", "self")]
    assert results(state) == [
        ("x", "Transferring to agent 'b'."),
        ("call_2", "Error: this call was not answered."),
        ("call_3", "Agent 'a' is already active."),
    ]


def test_a_function_may_use_the_same_call_id_at_every_visit() -> None:
    graph = (
        chain(calling("a", ToolCall("x", "transfer_to_b")), saying("b"))
        .add_conditional_edges("a", lambda state: "b" if len(state.messages) < 5 else END)
        .add_edge("b", "a")
        .compile()
    )
    state, _ = run(graph)
    assert [call_id for call_id, _ in results(state)] == ["x", "call_2"]


def test_whoever_is_asked_after_somebody_elses_words_reads_them_as_a_users() -> None:
    """Some providers refuse to answer after an assistant's message."""
    graph = StateGraph().add_node("a", saying("a", "Nice.")).add_node("b", create_agent("m", [Tool("t", func=print)]))
    with using(ScriptedEngine(["Thanks."])) as engine:
        graph.set_entry_point("a").add_edge("a", "b").compile().invoke(HELLO)
    assert isinstance(engine, ScriptedEngine)
    assert engine.requests[0].projection()["messages"] == [
        {"role": "user", "content": "hello"},
        {"role": "user", "content": "a: Nice."},
    ]


def test_a_domain_tool_cannot_choose_the_way() -> None:
    from chatflow_runtime.types import Handoff

    state, events = run(two_agents(Tool("go", func=lambda: Handoff("b"))), Call("go"), "Hm.")
    assert refusals(events) == [("b", "not_allowed")]
    assert spoken(state) == ["a", "a"]


# --- limits


def loop(limit: int) -> CompiledGraph:
    return chain(saying("a"), saying("b")).add_edge("a", "b").add_edge("b", "a").compile(step_limit=limit)


def test_exactly_a_hundred_steps_run() -> None:
    steps = 0

    def step(state: MessageState) -> MessageState:
        nonlocal steps
        steps += 1
        return state

    for last, ends in ((100, True), (101, False)):
        steps = 0
        graph = StateGraph().add_node("a", step).set_entry_point("a")
        compiled = graph.add_conditional_edges("a", lambda _: END if steps == last else "a").compile()  # noqa: B023
        if ends:
            compiled.invoke(HELLO)
        else:
            with pytest.raises(StepLimitError, match="ran 100 steps without reaching its end"):
                compiled.invoke(HELLO)
        assert steps == 100


def test_the_error_carries_the_state_and_the_hop_that_did_not_happen_is_none() -> None:
    events: list[Event] = []
    with pytest.raises(StepLimitError, match=r"ran 3 steps .* next would have been 'b'") as limit:
        loop(3).invoke(HELLO, observer=events.append)
    assert spoken(limit.value.state) == ["a", "b", "a"]
    assert hops(events) == [("a", "b", ""), ("b", "a", "")]
    assert events[-1] == LimitHit("a", "step_limit", 3)
    assert pickle.loads(pickle.dumps(limit.value)).state == limit.value.state


def test_a_wish_past_the_limit_is_refused_so_that_the_state_can_go_on() -> None:
    graph = (
        StateGraph()
        .add_node("a", create_agent("m", [TO_B]))
        .add_node("b", create_agent("m", []))
        .set_entry_point("a")
        .add_conditional_edges("a", follow)
        .compile(step_limit=1)
    )
    events: list[Event] = []
    with using(ScriptedEngine([Transfer("b")])), pytest.raises(StepLimitError) as limit:
        graph.invoke(HELLO, observer=events.append)
    assert results(limit.value.state) == [("call_1", "The step limit of 1 is reached.")]
    assert refusals(events) == [("b", "limit")]
    assert limit.value.state.open_calls == ()


def test_a_session_is_as_it_was_when_the_limit_is_hit() -> None:
    graph = loop(2)
    with pytest.raises(StepLimitError):
        graph.run("s", "hello")
    assert graph.get_session("s") is None


def test_the_runners_limits_hold_in_a_graph_too() -> None:
    graph = two_agents().replace(max_handoffs_per_turn=0)
    state, events = run(graph, Transfer("b"), "I stay.")
    assert results(state) == [("call_1", "Maximum agent transfers exceeded for a single turn.")]
    assert (spoken(state), hops(events)) == (["a", "a"], [])
    few = two_agents(Tool("look", func=lambda: 1)).replace(max_tool_iterations=1)
    state, _ = run(few, [Call("look"), Call("look")])
    last = state.last_message()
    assert isinstance(last, AssistantMessage)
    assert last.text == "Execution iteration limit reached by agent 'a'."


def test_tools_alone_end_with_the_step_limit_as_well() -> None:
    agent = create_agent("m", [Tool("look", func=lambda: 1)])
    state, _ = run(agent, *[Call("look")] * 101)
    assert len(results(state)) == 101
    assert state.last_message() == AssistantMessage("agent", "Execution iteration limit reached by agent 'agent'.")


# --- nodes that cannot go on


def test_an_agent_needs_something_to_answer() -> None:
    with pytest.raises(GraphError, match="Agent 'agent' has nothing to answer"):
        create_agent("m", []).invoke(MessageState())


@pytest.mark.parametrize("left", [None, "done", [UserMessage("x")]])
def test_a_node_returns_a_state(left: Any) -> None:
    graph = StateGraph().add_node("a", lambda state: left).set_entry_point("a").compile()
    with pytest.raises(GraphError, match=f"Node 'a' returned a {type(left).__name__}, expected a MessageState"):
        graph.invoke(HELLO)


@pytest.mark.parametrize(
    "history",
    [
        [AssistantMessage("a", None, (ToolCall("1", "t"),)), UserMessage("x")],
        [ToolResult("1", "t", 1)],
        [AssistantMessage("a", " ")],
    ],
)
def test_a_history_that_no_provider_takes_is_an_error_where_it_comes_from(history: list[Message]) -> None:
    graph = StateGraph().add_node("a", lambda state: MessageState(history)).set_entry_point("a").compile()
    with pytest.raises(GraphError, match="Node 'a' left a history that no provider takes: "):
        graph.invoke(HELLO)
    with pytest.raises(ValueError, match="The state holds a history that no provider takes: "):
        graph.invoke(MessageState(history))


def test_what_a_node_or_a_router_raises_is_raised() -> None:
    def broken(state: MessageState) -> Any:
        raise LookupError("no")

    with pytest.raises(LookupError):
        StateGraph().add_node("a", broken).set_entry_point("a").compile().invoke(HELLO)
    with pytest.raises(LookupError):
        chain(saying("a")).add_conditional_edges("a", broken).compile().invoke(HELLO)


# --- forms of running


def test_a_stream_has_one_event_a_step_with_the_whole_state() -> None:
    graph = chain(saying("a"), saying("b")).add_edge("a", "b").compile()
    events = list(graph.stream(HELLO))
    assert [event.node for event in events] == ["a", "b"]
    assert [len(event.state.messages) for event in events] == [2, 3]
    assert events[-1] == GraphEvent("b", graph.invoke(HELLO))


def test_a_stream_gives_every_step_before_the_limits_error() -> None:
    events = loop(4).stream(HELLO)
    assert [next(events).node for _ in range(4)] == ["a", "b", "a", "b"]
    with pytest.raises(StepLimitError):
        next(events)


def test_a_stream_may_be_left_early() -> None:
    for event in loop(50).stream(HELLO):
        assert event.node == "a"
        break


async def test_inside_a_loop_the_sync_forms_name_the_async_ones() -> None:
    graph = chain(saying("a")).compile()
    with pytest.raises(RunningLoopError, match=r"use `await graph.invoke_async\(...\)` instead of invoke\(\)"):
        graph.invoke(HELLO)
    with pytest.raises(RunningLoopError, match=r"use `async for event in graph.stream_async\(...\)` instead of stre"):
        graph.stream(HELLO)
    assert spoken(await graph.invoke_async(HELLO)) == ["a"]
    assert [event.node async for event in graph.stream_async(HELLO)] == ["a"]


# --- sessions


def test_every_turn_of_a_session_begins_at_the_entry_point_with_the_whole_history() -> None:
    graph = two_agents()
    with using(ScriptedEngine([Transfer("b"), "B speaks.", "A speaks."])) as engine:
        first = graph.run("s", "one")
        second = graph.run("s", "two")
    assert (first.active_agent_name, second.active_agent_name) == ("b", "a")
    assert isinstance(engine, ScriptedEngine)
    assert UserMessage("one") in engine.requests[2].history
    assert UserMessage("two") == engine.requests[2].history[-1]


def test_sessions_are_kept_where_the_store_is() -> None:
    store = SessionStore()
    for text in ("one", "two"):
        chain(saying("a")).compile(session_store=store).run("s", text)
    session = store.load("s")
    assert session is not None
    assert len(session.history) == 4


def test_a_reply_of_an_earlier_turn_is_not_given_again() -> None:
    quiet = FnNode(lambda state: state)
    graph = chain(saying("a"), quiet).add_conditional_edges("a", lambda state: END).compile()
    assert graph.run("s", "one").content == "a was here"
    silent = StateGraph().add_node("a", quiet).set_entry_point("a").compile(session_store=graph.session_store)
    assert silent.run("s", "two").content == ""


# --- graphs inside graphs


def helpers() -> Any:
    return create_swarm([SwarmAgent("x", "m"), SwarmAgent("y", "m")])


@pytest.mark.parametrize("as_function", [False, True])
def test_a_graph_inside_a_graph_is_a_call_that_comes_back(as_function: bool) -> None:
    team = helpers()

    async def ask_team(state: MessageState) -> MessageState:
        inner: MessageState = await team.invoke_async(state)
        return inner

    graph = (
        StateGraph()
        .add_node("a", create_agent("m", []))
        .add_node("team", ask_team if as_function else team)
        .set_entry_point("a")
        .add_edge("a", "team")
        .compile()
    )
    state, events = run(graph, "Let me ask.", Transfer("y"), "From y.")
    assert [type(event) for event in events] == [
        TurnStarted,
        *(ModelAsked, ModelAnswered, HandoffAccepted, HandoffAccepted),
        *(ModelAsked, ModelAnswered, HandoffAccepted),
        *(ModelAsked, ModelAnswered, HandoffReturned, TurnEnded),
    ]
    to_team, call, inside = (event for event in events if isinstance(event, HandoffAccepted))
    assert (to_team.kind, to_team.target, to_team.within) == ("transfer", "team", ())
    assert (call.kind, call.source, call.target, call.within) == ("call", "team", "x", ())
    assert (inside.kind, inside.source, inside.target, inside.within) == ("transfer", "x", "y", (call.call_id,))
    assert spoken(state) == ["a", "x", "y"]


def test_an_agent_inside_a_function_goes_by_the_nodes_name() -> None:
    agent = create_agent("m", [TO_B])

    async def wrapped(state: MessageState) -> MessageState:
        return await agent.invoke_async(state)

    graph = StateGraph().add_node("a", wrapped).add_node("b", saying("b")).set_entry_point("a")
    state, events = run(graph.add_conditional_edges("a", follow).compile(), Transfer("b"))
    assert hops(events) == [("a", "b", "transfer_to_b")]
    assert spoken(state) == ["a", "b"]
    assert isinstance(events[1], ModelAsked)
    assert events[1].agent == "a"


def test_who_answers_for_a_graph_answers_inside_it_and_counts() -> None:
    graph = StateGraph().add_node("team", helpers()).set_entry_point("team").compile()
    engine = ScriptedEngine([Transfer("y"), "Done."])
    response = graph.replace(models={"*": engine}).run("s", "hello")
    assert engine.remaining == 0
    assert response.tool_calls_executed == ("transfer_to_y",)
    refused = graph.replace(engine=ScriptedEngine([Transfer("y"), "I stay."]), max_handoffs_per_turn=1).run("t", "hi")
    assert [hit.limit for hit in refused.limit_hits] == ["max_handoffs_per_turn"]


def test_two_agents_of_one_name_in_a_graph_and_inside_it_are_refused() -> None:
    with pytest.raises(DefinitionError, match="Node 'team' is a graph with an agent 'x', as is another node"):
        StateGraph().add_node("x", saying("x")).add_node("team", helpers()).set_entry_point("x").compile()


# --- whatever a graph, its routers and its models do

NAMES = ("a", "b", "c", "d", "e")
IDS = st.sampled_from(["", "call_1", "x", "y" * 50]) | st.text(max_size=3)
ARGUMENTS = st.sampled_from(["{}", "", "null", "[]", '{"reason": "r"}', '{"reason": ']) | st.text(max_size=4)
CALLS = st.tuples(IDS, st.sampled_from([*NAMES, "z"]), st.booleans(), ARGUMENTS)
Calls = list[tuple[str, str, bool, str]]


def made(calls: Calls) -> tuple[ToolCall, ...]:
    """Calls of handoff tools, and of domain tools that some agents have."""
    return tuple(
        ToolCall(call_id, f"transfer_to_{name}" if is_transfer else f"look_{name}", arguments)
        for call_id, name, is_transfer, arguments in calls
    )


def anywhere(ways: list[str]) -> Callable[[MessageState], str]:
    return lambda state: ways[len(state.messages) % len(ways)]


def follow_within(names: list[str]) -> Callable[[MessageState], str]:
    return lambda state: way if (way := follow(state)) in names else END


@st.composite
def graphs(draw: st.DrawFn) -> tuple[StateGraph, int]:
    """A graph of agents and functions, with edges that lead anywhere, and its step limit."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    graph = StateGraph().set_entry_point(names[0])
    for name in names:
        said = draw(st.none() | st.lists(CALLS, max_size=3))
        if said is None:
            peers = draw(st.lists(st.sampled_from([each for each in (*names, "z") if each != name]), unique=True))
            look = Tool(f"look_{draw(st.sampled_from(NAMES))}", func=lambda: "seen")
            graph.add_node(name, create_agent("m", [look, *(create_handoff_tool(peer, "") for peer in peers)]))
        else:
            graph.add_node(name, calling(name, *made(said)) if said else saying(name))
        kind = draw(st.sampled_from(["none", "fixed", "router", "follow"]))
        if kind == "fixed":
            graph.add_edge(name, draw(st.sampled_from([*names, END])))
        elif kind == "router":
            graph.add_conditional_edges(name, anywhere(draw(st.lists(st.sampled_from([*names, END]), min_size=1))))
        elif kind == "follow":
            graph.add_conditional_edges(name, follow_within(names))
    return graph, draw(st.integers(1, 12))


class Anything:
    """A model that says and calls anything, over and over."""

    def __init__(self, said: list[Calls]) -> None:
        self._said = said
        self.requests: list[ModelRequest] = []

    async def answer(self, request: ModelRequest) -> Answer:
        calls = made(self._said[len(self.requests) % len(self._said)])
        self.requests.append(request)
        return Answer("Hello.", calls) if len(self.requests) % 2 or not calls else Answer(None, calls)


@given(graphs(), st.lists(st.lists(CALLS, max_size=3), min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 6))
def test_any_graph_ends_with_a_valid_history_and_within_its_limits(
    drawn: tuple[StateGraph, int], said: list[Calls], max_handoffs: int, max_executions: int
) -> None:
    graph, step_limit = drawn
    engine = Anything(said)
    compiled = graph.compile(step_limit=step_limit).replace(
        engine=engine, max_handoffs_per_turn=max_handoffs, max_tool_iterations=max_executions
    )
    events: list[Event] = []
    steps: list[GraphEvent] = []
    is_cut = False
    try:
        for step in compiled.stream(HELLO, observer=events.append):
            steps.append(step)  # noqa: PERF402 those before an error count as well
    except StepLimitError as error:
        is_cut = True
        final = error.state
    else:
        final = steps[-1].state

    # The step limit holds exactly: so many steps and no more, and only then is it hit.
    hits = {event.limit for event in events if isinstance(event, LimitHit)}
    assert ("step_limit" in hits) is is_cut
    assert len(steps) == step_limit if is_cut else 1 <= len(steps) <= step_limit

    # So do the runner's: each call of a model is an execution, and a model's transfers stop when the hops are used up.
    called = sum(len(event.tool_calls) for event in events if isinstance(event, ModelAnswered))
    assert ("max_tool_iterations" in hits) == (called > max_executions)

    # Each node is entered by a hop or by staying, and only the node that is active asks its model.
    active, made_hops, asking = compiled.nodes[0], 0, ""
    for event in events:
        if isinstance(event, HandoffAccepted):
            assert event.source == active
            assert made_hops < max_handoffs or not (event.tool and event.source == asking)
            active, made_hops = event.target, made_hops + 1
        elif isinstance(event, ModelAsked):
            assert event.agent == active
            asking = event.agent
        elif isinstance(event, LimitHit) and event.limit == "max_handoffs_per_turn":
            assert made_hops >= max_handoffs

    # Histories are what providers accept, and never end with an assistant's words.
    for request in engine.requests:
        sent: Any = request.projection()
        assert faults(sent) == ()
        assert sent["messages"][-1]["role"] != "assistant"
    for state in (final, *(step.state for step in steps)):
        request = ModelRequest(agent="a", model="m", instructions="", history=tuple(state.closed().messages))
        body = json.loads(json.dumps(request.projection()))
        assert [fault for fault in faults(body) if fault.code != "tools_missing"] == []
