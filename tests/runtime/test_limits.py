"""Limits are whole numbers."""

from __future__ import annotations

from typing import Any

import pytest

from chatflow_runtime.exceptions import DefinitionError
from chatflow_runtime.limits import Limits, exhausted_text


def test_defaults_are_the_documents() -> None:
    assert Limits() == Limits(max_handoffs_per_turn=5, max_tool_iterations=10)


@pytest.mark.parametrize("value", [-1, 1.5, "3", None, True])
@pytest.mark.parametrize("limit", ["max_handoffs_per_turn", "max_tool_iterations"])
def test_anything_but_a_whole_number_is_refused_by_name(limit: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=f"{limit} is {value!r}"):
        Limits(**{limit: value})


def test_the_fallback_names_the_active_agent() -> None:
    assert exhausted_text("Billing") == "Execution iteration limit reached by agent 'Billing'."
