"""Agents' names become tool names: valid everywhere, the same every time, never another agent's."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatflow_runtime.naming import clean_tool_name, is_tool_name, stable_tool_name, tool_name, tool_names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("BillingSpecialist", "transfer_to_billingspecialist"),
        ("AtenciónAlCliente", "transfer_to_atencionalcliente"),
        ("Refund agent", "transfer_to_refund_agent"),
        ("  Refund -- agent!  ", "transfer_to_refund_agent"),
        ("__x__", "transfer_to_x"),
        ("İstanbul", "transfer_to_istanbul"),
        ("2nd line", "transfer_to_2nd_line"),
        ("Tier ②", "transfer_to_tier_2"),
        ("Billing 🚀", "transfer_to_billing"),
    ],
)
def test_a_name_folds_to_plain_ascii(name: str, expected: str) -> None:
    assert tool_name(name) == expected


@pytest.mark.parametrize("name", ["日本語", "Кредит", "🤖", "规划", "مرحبا", "!!!", ""])
def test_a_name_that_leaves_nothing_is_a_hash(name: str) -> None:
    """B002: every name yields something that providers accept."""
    digest = hashlib.sha256(unicodedata.normalize("NFC", name).encode()).hexdigest()
    assert tool_name(name) == f"transfer_to_u{digest[:12]}"


@pytest.mark.parametrize(
    ("name", "left"),
    [("Łódź", "odz"), ("Straße", "strae"), ("Øre", "re"), ("風林火山 Agent", "agent"), ("Агент1", "1")],  # noqa: RUF001
)
def test_lost_letters_show_in_the_name(name: str, left: str) -> None:
    """B001, B002: what cannot be folded never meets the name of an agent that is really called so."""
    digest = hashlib.sha256(unicodedata.normalize("NFC", name).encode()).hexdigest()
    assert tool_name(name) == f"transfer_to_{left}_u{digest[:6]}"
    assert tool_name(name) != tool_name(left)


def test_names_that_differ_in_lost_letters_only_stay_apart() -> None:
    """B001: 風林火山 Agent and 疾風迅雷 Agent."""
    assert len(set(tool_names(["風林火山 Agent", "疾風迅雷 Agent", "Agent"]))) == 3


def test_one_name_in_two_unicode_forms_hashes_alike() -> None:
    composed, decomposed = "Łódź", unicodedata.normalize("NFD", "Łódź")
    assert tool_name(composed) == tool_name(decomposed)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Billing Agent", "Billing-Agent", "billing__agent"], ["billing_agent", "billing_agent_2", "billing_agent_3"]),
        (["Billing", "billing", "Billing 2"], ["billing", "billing_3", "billing_2"]),
        (["Billing 2", "Billing", "billing"], ["billing_2", "billing", "billing_3"]),
    ],
)
def test_colliding_names_are_numbered_in_order_past_anothers_own(names: list[str], expected: list[str]) -> None:
    """CF-6: no duplicate function names."""
    assert tool_names(names) == tuple(f"transfer_to_{form}" for form in expected)


def test_long_names_are_capped_with_their_suffix() -> None:
    """B004: 60 characters in all."""
    names = tool_names(["a" * 80, "a" * 90, "Ł" + "b" * 80])
    assert [len(name) for name in names] == [60, 60, 60]
    assert names[1].endswith("_2")
    assert names[2][-8:-6] == "_u"


def test_a_cut_never_leaves_an_underscore_at_the_end() -> None:
    assert tool_name("a" * 47 + " b") == "transfer_to_" + "a" * 47


def test_names_are_the_same_in_every_process() -> None:
    names = ["日本語", "Łódź", "Billing", "billing"]
    program = f"from chatflow_runtime.naming import tool_names; print(*tool_names({names!r}))"
    seeds = ("0", "1")
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
            encoding="utf-8",
        ).stdout
        for seed in seeds
    }
    assert outputs == {" ".join(tool_names(names)) + "\n"}


@given(st.lists(st.text(max_size=100), max_size=12))
def test_any_names_become_different_accepted_tool_names(names: list[str]) -> None:
    """B001, B002, B004 and their whole kind."""
    tools = tool_names(names)
    assert len(set(tools)) == len(names)
    assert all(is_tool_name(tool) and len(tool) <= 60 for tool in tools)
    assert tools == tool_names(names)


@given(st.lists(st.text(max_size=30), max_size=8), st.text(max_size=30))
def test_a_peer_that_collides_with_none_renames_nobody(names: list[str], added: str) -> None:
    before, after = tool_names(names), tool_names([*names, added])
    if after[-1] not in before and tool_name(added) not in before:
        assert after[:-1] == before


@given(st.text())
def test_any_called_name_can_be_replayed_to_every_provider(name: str) -> None:
    """B004, B006: a hallucinated name goes back in the history."""
    clean = clean_tool_name(name)
    assert is_tool_name(clean)
    assert clean_tool_name(clean) == clean
    assert not is_tool_name(name) or clean == name


@pytest.mark.parametrize("name", ["2nd line", "escalate to manager", "", "a" * 65, "日本", "a.b", "-a", 5, None, "a\n"])
def test_the_strictest_providers_rule_decides(name: object) -> None:
    """B006: Gemini refuses a digit first, OpenAI a space."""
    assert not is_tool_name(name)


def test_version_034_is_there_for_comparison() -> None:
    """B001: its rule gives one name for both."""
    assert stable_tool_name("風林火山 Agent") == stable_tool_name("疾風迅雷 Agent") == "transfer_to______agent"
    assert stable_tool_name("Billing Agent ") == "transfer_to_billing_agent"
