"""How many of something there are, in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chatflow_eval.quantities import counted


@pytest.mark.parametrize(("count", "said"), [(0, "0 trials"), (1, "1 trial"), (2, "2 trials"), (2000, "2,000 trials")])
def test_one_is_one_and_all_else_is_many(count: int, said: str) -> None:
    assert counted(count, "trial") == said


def test_it_loads_nothing_that_is_slow_to_load() -> None:
    program = "import sys, chatflow_eval.quantities; print({'pandas', 'pydantic'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
