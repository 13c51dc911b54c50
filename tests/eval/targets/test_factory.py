"""A user's factory is found, called, and told from the libraries that it uses when it fails."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from chatflow_eval.errors import TargetError
from chatflow_eval.scenario import Factory
from chatflow_eval.targets import factory


def reads_nothing() -> object:
    return json.loads("{")


def leaves() -> NoReturn:
    sys.exit("no model here")


async def nothing() -> None:
    pass


def runs_a_loop() -> None:
    """CF-16: factories are called in a running loop, and chatflow-agent's `run()` starts one."""
    later = nothing()
    try:
        asyncio.run(later)
    finally:
        later.close()


@pytest.mark.parametrize("made", [reads_nothing, leaves, runs_a_loop])
async def test_a_factory_that_fails_is_an_error_that_names_its_own_line(made: Callable[[], object]) -> None:
    with pytest.raises(TargetError, match=rf"{made.__name__}.* failed: .*test_factory\.py:\d+\)"):
        factory.build(made)


def test_a_module_that_exits_is_an_error_and_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    with pytest.raises(TargetError, match=r"importing .*script\.py failed: SystemExit: 0 \(.*script\.py:2\)"):
        factory.build(Factory(reference="script.py:build", base=tmp_path))
