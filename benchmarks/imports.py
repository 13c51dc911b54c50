"""What the two packages cost to import, from the process's start to its end, and what their neighbours cost."""

from __future__ import annotations

import sys

from benchmarks import peers
from benchmarks.measure import Options, Row, child, main

_BUDGETS = {"chatflow_eval": 0.15, "chatflow_runtime": 0.10}


def measure(options: Options) -> list[Row]:
    beside = {
        "chatflow_eval": (
            _import("pandas", options, usual=3),
            _import("pydantic", options, usual=3),
            peers.command(
                "pydantic-evals", "`import pydantic_evals`", options, "python", "-c", "import pydantic_evals"
            ),
            peers.command("deepeval", "`import deepeval`", options, "python", "-c", "import deepeval"),
            peers.command("inspect-ai", "`import inspect_ai`", options, "python", "-c", "import inspect_ai"),
        ),
        "chatflow_runtime": (
            _import("litellm", options, usual=3),
            _import("vcr", options, usual=3),
            peers.command("google-adk", "`from google.adk.agents import LlmAgent`", options, "python", "-c", _ADK),
        ),
    }
    return [
        _import(package, options, usual=11, budget=budget, beside=beside[package])
        for package, budget in _BUDGETS.items()
    ]


_ADK = "from google.adk.agents import LlmAgent"


def _import(
    package: str, options: Options, *, usual: int, budget: float | None = None, beside: tuple[Row, ...] = ()
) -> Row:
    samples = [child(sys.executable, "-P", "-c", f"import {package}") for _ in options.times(usual)]
    return Row(
        what=f"`import {package}`" + (", the whole process" if budget else ""),
        unit="s CPU",
        values=tuple(sample.cpu for sample in samples),
        budget=budget,
        beside=beside,
    )


if __name__ == "__main__":
    main(measure)
