"""Configured handoffs and the tools that models see for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime.agent import Agent
from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.handoffs import describe, handoff, names_of, transfer_tool
from chatflow_runtime.types import Handoff

BILLING = Agent("Billing", "Handle payments.")
START = "Hand off the dialogue to 'B'. Target agent specialty: "


def test_a_short_specialty_is_shown_whole() -> None:
    assert describe("B", " Handle payments.\n") == START + "Handle payments."
    assert describe("B", "x" * 120) == START + "x" * 120


def test_a_long_specialty_is_cut_at_120_characters() -> None:
    """B010."""
    assert describe("B", "x" * 20_000) == START + "x" * 120 + "..."


@pytest.mark.parametrize("instructions", ["", "  \n"])
def test_without_instructions_the_first_sentence_stands_alone(instructions: str) -> None:
    assert describe("B", instructions) == "Hand off the dialogue to 'B'."


@pytest.mark.parametrize(
    "whole",
    [
        "e\N{COMBINING ACUTE ACCENT}",
        "\N{WAVING HAND SIGN}\U0001f3fd",
        "\N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}",
        "\N{MAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}",
        "\U0001f1e9\U0001f1ea",
    ],
)
def test_the_cut_falls_on_a_whole_character(whole: str) -> None:
    """B010: an emoji at the cut point."""
    for before in range(121 - len(whole), 120):
        assert describe("B", "x" * before + whole + "y" * 50) == START + "x" * before + "..."
    assert describe("B", "x" * (120 - len(whole)) + whole + "y").endswith(whole + "...")


def test_two_flags_in_a_row_are_two_characters() -> None:
    flags = "\U0001f1e9\U0001f1ea" * 2
    assert describe("B", "x" * 118 + flags).endswith("x\U0001f1e9\U0001f1ea...")
    assert describe("B", "x" * 117 + flags).endswith("x\U0001f1e9\U0001f1ea...")


@given(st.text())
def test_a_description_is_bounded_and_never_blank(instructions: str) -> None:
    """B010."""
    text = describe("B", instructions)
    assert text.startswith("Hand off the dialogue to 'B'.")
    assert len(text) <= len(START) + 120 + len("...")


@pytest.mark.parametrize("name", ["2nd line", "escalate to manager", "", "x" * 65])
def test_a_tool_name_that_some_provider_refuses_is_refused_at_once(name: str) -> None:
    """B006: the error names the offending value."""
    with pytest.raises(DefinitionError, match="handoff to 'Billing'") as refusal:
        handoff(BILLING, tool_name=name)
    assert repr(name) in str(refusal.value)


def test_names_given_are_kept_and_the_others_are_synthesized_among_themselves() -> None:
    other = Agent("billing")
    names = names_of([handoff(BILLING, tool_name="escalate"), handoff(other), handoff(BILLING)])
    assert names == ("escalate", "transfer_to_billing", "transfer_to_billing_2")


def test_a_transfer_tool_takes_an_optional_reason_and_returns_a_handoff() -> None:
    made = transfer_tool("transfer_to_billing", target="Billing", description="d")
    assert made.parameters == {"type": "object", "properties": {"reason": {"type": "string"}}}
    assert made.target == "Billing"
    assert made() == Handoff("Billing")
    assert made(reason="refund") == Handoff(target_agent_name="Billing", reason="refund")
