"""The third document's own topology: a drafter sends to a reviewer, who sends back, or to a publisher."""

from __future__ import annotations

from chatflow_runtime.dialects.synaptic import (
    END,
    AgentOptions,
    CompiledGraph,
    MessageState,
    StateGraph,
    create_agent,
    create_handoff_tool,
)

MODEL = "gemini-2.5-flash"


def build() -> CompiledGraph:
    to_reviewer = create_handoff_tool("reviewer", "Send to reviewer")
    to_publisher = create_handoff_tool("publisher", "Send to publisher")
    drafter = AgentOptions(system_prompt="Draft what the user wants. Send it to the reviewer, then to the publisher.")
    reviewer = AgentOptions(system_prompt="Say in one sentence what the draft lacks.")
    publisher = AgentOptions(system_prompt="Give the user the final text.")
    return (
        StateGraph()
        .add_node("drafter", create_agent(MODEL, [to_reviewer, to_publisher], drafter))
        .add_node("reviewer", create_agent(MODEL, [], reviewer))
        .add_node("publisher", create_agent(MODEL, [], publisher))
        .set_entry_point("drafter")
        .add_conditional_edges("drafter", route, {"reviewer": "reviewer", "publisher": "publisher", END: END})
        .add_edge("reviewer", "drafter")
        .add_edge("publisher", END)
        .compile(step_limit=8)
    )


def route(state: MessageState) -> str:
    """Where the drafter's last message wants to go."""
    last = state.last_message()
    if last is not None:
        for call in last.tool_calls:
            if call.name == "transfer_to_reviewer":
                return "reviewer"
            if call.name == "transfer_to_publisher":
                return "publisher"
    return END
