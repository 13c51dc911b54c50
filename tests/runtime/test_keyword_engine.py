"""The keyword router: a baseline that never loops and claims nothing."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime.agent import Agent
from chatflow_runtime.engine import Answer, ModelRequest, ToolSchema
from chatflow_runtime.handoffs import handoff
from chatflow_runtime.keyword_engine import KeywordEngine
from chatflow_runtime.runner import Runner
from chatflow_runtime.types import AssistantMessage, Message, ToolResult, UserMessage


def swarm() -> Agent:
    """The agents of the first seed document's complete example."""
    billing = Agent(
        "BillingAgent", "Assist with refunds and payment disputes. Use issue_refund when appropriate.", model="keyword"
    )
    tech = Agent("TechSupportAgent", "Assist with software errors. Use lookup_kb_article.", model="keyword")
    triage = Agent(
        "TriageAgent",
        "Welcome the user. Ask what they need help with. "
        "Transfer billing/refund issues to BillingAgent and technical bugs to TechSupportAgent.",
        model="keyword",
        handoffs=[billing, tech],
    )
    billing.add_handoff(triage)
    billing.add_handoff(tech)
    tech.add_handoff(triage)
    return triage


def route(start: Agent, *turns: str, **limits: int) -> list[str]:
    runner = Runner(start, **limits)  # type: ignore[arg-type]
    return [runner.run("s", turn).active_agent_name for turn in turns]


@pytest.mark.parametrize(
    ("words", "agent"),
    [
        ("I have an unexpected charge on my invoice and need a refund.", "BillingAgent"),
        ("My payments were disputed", "BillingAgent"),
        ("The SOFTWARE shows an error", "TechSupportAgent"),
        ("tech support please", "TechSupportAgent"),
    ],
)
def test_the_peer_with_the_users_words_gets_the_conversation(words: str, agent: str) -> None:
    assert route(swarm(), words) == [agent]


@pytest.mark.parametrize("words", ["Thanks!", "Where is my parcel?", "to the and of", "???", "agent"])
def test_it_stays_when_nothing_fits(words: str) -> None:
    assert route(swarm(), words) == ["TriageAgent"]


def test_it_stays_when_the_current_agent_fits_as_well() -> None:
    one = Agent("One", "Handle refunds.", model="keyword", handoffs=[Agent("Two", "Handle refunds.")])
    assert route(one, "refunds") == ["One"]


def test_a_specialist_keeps_what_is_its_own_and_passes_on_what_is_not() -> None:
    assert route(swarm(), "a refund", "another refund", "a software error", "hm") == [
        "BillingAgent",
        "BillingAgent",
        "TechSupportAgent",
        "TechSupportAgent",
    ]


def test_a_given_tool_name_and_description_count() -> None:
    manager = Agent("M", "Decide.", model="keyword")
    named = Agent("T", model="keyword", handoffs=[handoff(manager, tool_name="escalate_case", description="x")])
    described = Agent("T", model="keyword", handoffs=[handoff(manager, description="Angry customers.")])
    assert route(named, "escalate this") == ["M"]
    assert route(described, "I am an angry customer") == ["M"]


def test_what_every_description_says_fits_nobody() -> None:
    assert route(swarm(), "Hand off the dialogue to target specialty, transfer") == ["TriageAgent"]


def test_it_never_goes_back_to_an_agent_of_the_same_turn() -> None:
    """B061: what each says of itself sends the same words to the other."""
    billing = Agent("Billing", "Boats.")
    triage = Agent("Triage", "Send boats, boats and boats to Billing.", handoffs=[billing])
    billing.add_handoff(triage)
    runner = Runner(triage, engine=KeywordEngine())
    assert [each.target_agent_name for each in runner.run("s", "boats").handoffs] == ["Billing"]
    assert [each.target_agent_name for each in runner.run("s", "boats").handoffs] == ["Triage"]


def test_a_refused_transfer_is_not_tried_again() -> None:
    response = Runner(swarm(), max_handoffs_per_turn=0).run("s", "a refund")
    assert response.active_agent_name == "TriageAgent"
    assert response.tool_calls_executed == ("transfer_to_billingagent",)


def test_its_reply_says_what_it_is() -> None:
    assert Runner(swarm()).run("s", "Thanks!").content == "[keyword router] TriageAgent keeps this conversation."


def test_without_a_user_message_it_stays() -> None:
    tool = ToolSchema("transfer_to_b", "To B.", {"type": "object", "properties": {}}, "B")
    request = ModelRequest(agent="A", model="keyword", instructions="", history=(), tools=(tool,))
    assert asyncio.run(KeywordEngine().answer(request)).tool_calls == ()


def test_an_agent_that_was_called_is_called_once_and_its_answer_passed_on() -> None:
    def answered(*messages: Message) -> Answer:
        tool = ToolSchema("ask_boats", "", {"type": "object", "properties": {}}, "Boats")
        history = (UserMessage("boats"), *messages)
        request = ModelRequest(agent="A", model="keyword", instructions="", history=history, tools=(tool,))
        return asyncio.run(KeywordEngine().answer(request))

    call = AssistantMessage("A", None, answered().tool_calls)
    assert [each.name for each in call.tool_calls] == ["ask_boats"]
    assert answered(call, ToolResult("call_1", "ask_boats", "A red one.")) == Answer("A red one.")
    for result in (
        ToolResult("call_1", "ask_boats", "down", is_error=True),
        ToolResult("call_1", "ask_boats", {"x": 1}),
    ):
        assert answered(call, result) == Answer("[keyword router] A keeps this conversation.")


@given(st.text().filter(str.strip), st.lists(st.text(), min_size=3, max_size=3))
def test_any_words_and_any_instructions_end_without_a_limit(words: str, texts: list[str]) -> None:
    agents = [Agent(f"Agent{number}", text) for number, text in enumerate(texts)]
    for agent in agents:
        for peer in agents:
            if peer is not agent:
                agent.add_handoff(peer)
    response = Runner(agents[0], engine=KeywordEngine()).run("s", words)
    assert response.limit_hits == ()
    assert len({handoff.target_agent_name for handoff in response.handoffs}) == len(response.handoffs)
