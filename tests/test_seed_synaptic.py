"""The third seed document's Rust blocks in their Python form, with the same names, and what it says around them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chatflow_runtime.dialects.synaptic import (
    END,
    AgentOptions,
    CompiledGraph,
    FnNode,
    MessageState,
    StateGraph,
    create_agent,
    create_handoff_tool,
)
from chatflow_runtime.engine import ScriptedEngine, Transfer
from chatflow_runtime.tools import Tool
from chatflow_runtime.types import AssistantMessage, ToolCall, ToolResult, UserMessage

DOCUMENT = Path("/work/shared/seeds/synaptic-handoff-tools.md")

HELLO = MessageState([UserMessage("Write something.")])


# --- the document's blocks


def create_one() -> Tool:
    handoff = create_handoff_tool("billing", "Transfer to the billing specialist")
    assert handoff.name == "transfer_to_billing"
    assert handoff.description == "Transfer to the billing specialist"
    return handoff


def register_one(model: ScriptedEngine, my_tools: list[Tool]) -> CompiledGraph:
    escalate = create_handoff_tool("human_review", "Escalate to a human reviewer")

    all_tools = my_tools
    all_tools.append(escalate)

    agent: CompiledGraph = create_agent(model, all_tools, AgentOptions())
    return agent


def build_topology(drafter_node: FnNode, reviewer_node: FnNode, publisher_node: FnNode) -> CompiledGraph:
    # Create handoff tools
    to_reviewer = create_handoff_tool("reviewer", "Send to reviewer")
    to_publisher = create_handoff_tool("publisher", "Send to publisher")
    assert [to_reviewer.name, to_publisher.name] == ["transfer_to_reviewer", "transfer_to_publisher"]

    # Build nodes (agent_node, reviewer_node, publisher_node defined elsewhere)

    def route(state: MessageState) -> str:
        last = state.last_message()
        if last is not None:
            for tc in last.tool_calls:
                if tc.name == "transfer_to_reviewer":
                    return "reviewer"
                if tc.name == "transfer_to_publisher":
                    return "publisher"
        return END

    graph: CompiledGraph = (
        StateGraph()
        .add_node("drafter", drafter_node)
        .add_node("reviewer", reviewer_node)
        .add_node("publisher", publisher_node)
        .set_entry_point("drafter")
        .add_conditional_edges("drafter", route)
        .add_edge("reviewer", "drafter")
        .add_edge("publisher", END)
        .compile()
    )
    return graph


FORMS: tuple[Callable[..., object], ...] = (create_one, register_one, build_topology)
"""The Python form of each block, in the document's order."""

RUST = {"default", "new", "push", "to_string", "HashMap", "Arc", "Some"}
"""What the blocks name that is Rust and nothing of the document's."""


# --- each block has its form


def blocks() -> list[str]:
    """The document's Rust, from each first `use` as far as the lines are not prose."""
    if not DOCUMENT.exists():
        pytest.skip(f"{DOCUMENT} is not on this machine; seed documents are never committed")
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    starts = [
        index for index, line in enumerate(lines) if line.startswith("use ") and not lines[index - 1].startswith("use ")
    ]
    return ["\n".join(_code(lines[start:])) for start in starts]


def _code(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line and not line.startswith((" ", "}")) and not re.match(r"use |let |//|all_tools\.", line):
            return
        yield line


def names_of_rust(block: str) -> set[str]:
    """What a block imports and calls, and its own names for things."""
    imported = re.findall(r"^use [\w:]*?(\w+);|^use [\w:]*::\{([^}]*)\}", block, re.MULTILINE)
    listed = {name.strip() for one, many in imported for name in (one, *many.split(",")) if name.strip()}
    called = set(re.findall(r"(\w+)\(", block))
    bound = set(re.findall(r"(?:let mut |let (?!mut|Some)|Some\(|for )(\w+)", block))
    return (listed | called | bound) - RUST


def names_of_python(form: Callable[..., object]) -> set[str]:
    tree = ast.parse(inspect.getsource(form))
    plain = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return plain | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | _annotations(tree)


def _annotations(tree: ast.AST) -> set[str]:
    """`FnNode` is imported by the block for nodes that are defined elsewhere: here, what comes in."""
    arguments = (node for node in ast.walk(tree) if isinstance(node, ast.arg))
    return {each.annotation.id for each in arguments if isinstance(each.annotation, ast.Name)}


def texts_of(block: str) -> set[str]:
    return set(re.findall(r'"([^"]*)"', re.sub(r"//.*", "", block)))


def test_every_block_has_its_python_form_with_the_same_names_and_texts() -> None:
    found = blocks()
    assert len(found) == len(FORMS)
    for block, form in zip(found, FORMS, strict=True):
        missing = names_of_rust(block) - names_of_python(form)
        assert not missing, f"{form.__name__} lacks {missing}"
        constants = [
            node.value for node in ast.walk(ast.parse(inspect.getsource(form))) if isinstance(node, ast.Constant)
        ]
        assert texts_of(block) <= set(constants)


def test_the_names_that_are_looked_for_are_the_blocks() -> None:
    assert [names_of_rust(block) for block in blocks()] == [
        {"create_handoff_tool", "handoff", "name", "description"},
        {"create_agent", "create_handoff_tool", "AgentOptions", "escalate", "all_tools", "agent"},
        {
            *("create_handoff_tool", "StateGraph", "FnNode", "MessageState", "END"),
            *("to_reviewer", "to_publisher", "graph", "last", "tc"),
            *(
                "add_node",
                "set_entry_point",
                "add_conditional_edges",
                "add_edge",
                "compile",
                "last_message",
                "tool_calls",
            ),
        },
    ]


# --- the blocks do what the document says


def test_a_handoff_tool_returns_the_documents_text() -> None:
    assert create_one()() == "Transferring to agent 'billing'."


def test_the_model_sees_the_tool_and_the_call_can_be_detected() -> None:
    model = ScriptedEngine([Transfer("human_review")])
    state = register_one(model, [Tool("search", func=lambda: "found")]).invoke(HELLO)
    assert [tool.name for tool in model.requests[0].tools] == ["search", "transfer_to_human_review"]
    last = state.last_message()
    assert last is not None
    assert [(call.name, call.arguments) for call in last.tool_calls] == [("transfer_to_human_review", "{}")]


def drafting(*wishes: str | None) -> FnNode:
    """A drafter that wants one thing after the other."""
    left = list(wishes)

    def draft(state: MessageState) -> MessageState:
        wish = left.pop(0)
        calls = () if wish is None else (ToolCall(f"draft_{len(left)}", f"transfer_to_{wish}"),)
        return state.adding(AssistantMessage("drafter", None if calls else "I keep it.", calls))

    return FnNode(draft)


def saying(name: str, text: str) -> FnNode:
    return FnNode(lambda state: state.adding(AssistantMessage(name, text)))


def test_the_topology_goes_where_the_drafter_wants_and_back_from_the_reviewer() -> None:
    reviewer, publisher = saying("reviewer", "Shorter."), saying("publisher", "Published.")
    graph = build_topology(drafting("reviewer", "reviewer", "publisher"), reviewer, publisher)
    assert [event.node for event in graph.stream(HELLO)] == [
        *("drafter", "reviewer", "drafter", "reviewer", "drafter", "publisher"),
    ]
    assert [event.node for event in build_topology(drafting(None), reviewer, publisher).stream(HELLO)] == ["drafter"]


def test_the_transfers_answer_comes_after_the_edge_and_before_the_next_node() -> None:
    seen: list[MessageState] = []

    def review(state: MessageState) -> MessageState:
        seen.append(state)
        return state.adding(AssistantMessage("reviewer", "Fine."))

    graph = build_topology(drafting("reviewer", None), FnNode(review), saying("publisher", "Published."))
    graph.invoke(HELLO)
    assert seen[0].messages[-1] == ToolResult("draft_1", "transfer_to_reviewer", "Transferring to agent 'reviewer'.")


def test_an_agent_can_hand_off_to_three_specialists() -> None:
    tools = [create_handoff_tool(name, "") for name in ("a", "b", "c")]
    model = ScriptedEngine(["Hm."])
    create_agent(model, tools).invoke(HELLO)
    assert [tool.name for tool in model.requests[0].tools] == ["transfer_to_a", "transfer_to_b", "transfer_to_c"]
