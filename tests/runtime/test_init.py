"""The public names load when they are used, and only what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import chatflow_runtime


@pytest.mark.parametrize("name", chatflow_runtime.__all__)
def test_every_public_name_can_be_reached_and_is_listed(name: str) -> None:
    assert getattr(chatflow_runtime, name).__name__ == name
    assert name in dir(chatflow_runtime)


def test_every_public_name_has_a_home() -> None:
    assert list(chatflow_runtime._HOME) == chatflow_runtime.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        chatflow_runtime.Agnet  # noqa: B018


def test_importing_the_package_and_running_agents_imports_no_third_party() -> None:
    program = """
import sys
before = set(sys.modules)
from chatflow_runtime import Agent, KeywordEngine, LiteLLMEngine, Runner, tool
@tool
def ping(word: str | None = None) -> str: return "pong"
Runner(Agent("A", tools=[ping]), engine=KeywordEngine()).run("s", "hello")
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert loaded.split() == ["chatflow_runtime"]
