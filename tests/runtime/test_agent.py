"""Agents are declarations, checked when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from chatflow_runtime.agent import DEFAULT_MODEL, Agent, reachable
from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.handoffs import handoff, transfer_tool
from chatflow_runtime.tools import tool
from chatflow_runtime.types import Json


@tool
def lookup(topic: str) -> str:
    """Look something up."""
    return topic


def names(agent: Agent) -> list[str]:
    return [each.name for each in agent.get_all_tools()]


def test_an_agent_offers_its_own_tools_then_one_transfer_tool_per_peer() -> None:
    billing = Agent("BillingSpecialist", "Handle payments, invoice queries, and subscription upgrades.")
    triage = Agent("Triage", "Route.", tools=[lookup], handoffs=[billing])
    assert names(triage) == ["lookup", "transfer_to_billingspecialist"]
    assert triage.get_all_tools()[1].description == (
        "Hand off the dialogue to 'BillingSpecialist'. Target agent specialty: "
        "Handle payments, invoice queries, and subscription upgrades."
    )
    assert triage.handoffs == (billing,)
    assert triage.tools == (lookup,)


def test_defaults_are_the_documents() -> None:
    agent = Agent("A")
    assert (agent.model, agent.engine, agent.get_instructions(), agent.handoffs) == (DEFAULT_MODEL, None, "", ())
    assert repr(agent) == "Agent('A')"


@pytest.mark.parametrize("name", ["", "  ", None, 5])
def test_an_agent_has_a_name(name: Any) -> None:
    with pytest.raises(DefinitionError, match=f"is named {name!r}"):
        Agent(name)


def test_handoffs_may_run_in_circles() -> None:
    """B026."""
    a, b = Agent("A"), Agent("B")
    assert [names(a), names(b)] == [[], []]
    a.add_handoff(b)
    b.add_handoff(a)
    assert [names(a), names(b)] == [["transfer_to_b"], ["transfer_to_a"]]


def test_a_handoff_to_oneself_is_refused() -> None:
    agent = Agent("A")
    with pytest.raises(DefinitionError, match="'A' cannot hand off to itself"):
        agent.add_handoff(agent)


def test_two_different_peers_with_one_name_are_refused() -> None:
    """CF-8: no peer silently replaces another."""
    with pytest.raises(DefinitionError, match="'A' has two different peers named 'Helper'"):
        Agent("A", handoffs=[Agent("Helper", "one"), Agent("Helper", "two")])


def test_the_same_handoff_twice_is_one() -> None:
    billing = Agent("Billing")
    triage = Agent("Triage", handoffs=[billing, billing])
    triage.add_handoff(billing)
    assert names(triage) == ["transfer_to_billing"]


def test_one_peer_can_be_reached_in_two_ways() -> None:
    manager = Agent("Manager")
    triage = Agent("Triage", handoffs=[manager, handoff(manager, tool_name="escalate", description="Hard cases.")])
    assert names(triage) == ["transfer_to_manager", "escalate"]
    assert triage.get_all_tools()[1].description == "Hard cases."
    assert triage.handoffs == (manager,)


def test_a_tool_named_like_a_transfer_tool_is_refused_naming_both() -> None:
    """B009, CF-7: neither shadows the other."""

    @tool
    def transfer_to_billing() -> str:
        """Mine."""
        return ""

    billing = Agent("Billing")
    text = "two tools named 'transfer_to_billing': its tool 'transfer_to_billing' and its handoff to 'Billing'"
    with pytest.raises(DefinitionError, match=text):
        Agent("A", tools=[transfer_to_billing], handoffs=[billing])
    later = Agent("A", tools=[transfer_to_billing])
    with pytest.raises(DefinitionError, match=text):
        later.add_handoff(billing)
    assert names(later) == ["transfer_to_billing"]


def test_two_tools_with_one_name_are_refused() -> None:
    with pytest.raises(DefinitionError, match="two tools named 'lookup'"):
        Agent("A", tools=[lookup, lookup])


def test_a_given_tool_name_that_is_anothers_own_is_refused() -> None:
    with pytest.raises(DefinitionError, match="its handoff to 'Manager' and its handoff to 'Billing'"):
        Agent("A", handoffs=[handoff(Agent("Manager"), tool_name="transfer_to_billing"), Agent("Billing")])


def test_only_agents_and_handoffs_can_be_handed_off_to() -> None:
    with pytest.raises(DefinitionError, match="'A' cannot hand off to 'Billing', expected an Agent or handoff"):
        Agent("A", handoffs=["Billing"])  # type: ignore[list-item]


def test_a_transfer_tool_is_no_domain_tool() -> None:
    transfer = transfer_tool("transfer_to_billing", target="Billing", description="")
    with pytest.raises(DefinitionError, match="'transfer_to_billing' leads to 'Billing'"):
        Agent("A", tools=[transfer])


def test_names_that_fold_alike_are_told_apart() -> None:
    """CF-6."""
    triage = Agent("Triage", handoffs=[Agent("Billing Agent"), Agent("Billing-Agent")])
    assert names(triage) == ["transfer_to_billing_agent", "transfer_to_billing_agent_2"]
    assert [each.target for each in triage.get_all_tools()] == ["Billing Agent", "Billing-Agent"]


def test_instructions_may_be_a_function_of_nothing_or_of_the_context() -> None:
    plain = Agent("A", lambda: "Be kind.")
    aware = Agent("B", lambda context: f"The customer is {context['tier']}.")
    assert plain.get_instructions() == plain.get_instructions({"tier": "gold"}) == "Be kind."
    assert aware.get_instructions({"tier": "gold"}) == "The customer is gold."


def test_instructions_cannot_change_the_context() -> None:
    def greedy(context: Mapping[str, Json]) -> str:
        context["tier"] = "gold"  # type: ignore[index]
        return ""

    with pytest.raises(TypeError):
        Agent("A", greedy).get_instructions({})


def test_a_peers_changing_instructions_show_in_its_transfer_tool() -> None:
    """B010: also where they are a function, and where it needs a session."""
    texts = iter(["Handle cards.", "Handle cash."])
    triage = Agent("Triage", handoffs=[Agent("Billing", lambda: next(texts))])
    assert [triage.get_all_tools()[0].description[-13:] for _ in range(2)] == ["Handle cards.", " Handle cash."]
    aware = Agent("Triage", handoffs=[Agent("Billing", lambda context: f"Handle {context['what']}.")])
    assert aware.get_all_tools()[0].description == "Hand off the dialogue to 'Billing'."
    assert aware.toolbox({"what": "cash"}).schemas[0].description.endswith("Target agent specialty: Handle cash.")


async def async_instructions() -> str:
    return ""


@pytest.mark.parametrize("instructions", [lambda first, second: "", async_instructions])
def test_instructions_of_another_shape_are_refused(instructions: Any) -> None:
    with pytest.raises(DefinitionError, match="expected a plain function of none or of the session's context"):
        Agent("A", instructions)


def test_instructions_that_return_no_text_are_an_error() -> None:
    agent = Agent("A", lambda: 5)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="'A' returned 5, expected text"):
        agent.get_instructions()


def test_everything_an_agent_leads_to_is_found_once_with_its_way() -> None:
    """B026, B028: circles, and configured handoffs as well."""
    a, b, c = Agent("A"), Agent("B"), Agent("C")
    a.add_handoff(handoff(b))
    b.add_handoff(handoff(c, tool_name="to_c"))
    c.add_handoff(a)
    c.add_handoff(b)
    assert list(reachable(a).values()) == [(a,), (a, b), (a, b, c)]


def test_a_long_chain_does_not_exhaust_the_stack() -> None:
    """B026."""
    first = last = Agent("0")
    for number in range(1, 3000):
        following = Agent(str(number))
        last.add_handoff(following)
        last = following
    assert list(reachable(first).values())[-1][-1] is last
