"""Trial; plan: scenarios x models x repeats."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from chatflow_eval.cassette import path_for
from chatflow_eval.scenario import ModelChoice, Scenario

Mode: TypeAlias = Literal["none", "all", "live"]
"""vcrpy's record modes `none` (replay) and `all` (record anew), and `live`: no cassette at all."""


DECLARED = "declared"
"""The model choice that leaves every agent on the model it declares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One planned run: a scenario, who answers for its agents, which repeat, and how it is recorded."""

    scenario: Scenario
    model: ModelChoice | None = None
    """`None`: every agent on the model it declares."""
    repeat: int = 1
    """Counts from 1."""
    mode: Mode = "none"
    cassette: Path
    """Where this trial's recording lies, whether it is there or not."""

    @property
    def label(self) -> str:
        """The model choice in words: `declared`, a model's name, or `Triage=x, *=y`."""
        return label(self.model)

    @property
    def models(self) -> Mapping[str, str]:
        """Agent name (`*` for the rest) to model name."""
        if self.model is None:
            return {}
        return {"*": self.model} if isinstance(self.model, str) else self.model


def plan(
    scenarios: Sequence[Scenario],
    *,
    root: Path,
    models: Sequence[ModelChoice] = (),
    repeats: int | None = None,
    mode: Mode = "none",
) -> tuple[Trial, ...]:
    """The trials in order: scenario by scenario, each model, each repeat; what is given here wins over the files."""
    return tuple(
        Trial(
            scenario=scenario,
            model=None if model == DECLARED else model,
            repeat=repeat,
            mode=mode,
            cassette=path_for(root, scenario.file, scenario.id, _file_name(model), repeat),
        )
        for scenario in scenarios
        for model in (models or scenario.models or (DECLARED,))
        for repeat in range(1, (repeats or scenario.repeats or 1) + 1)
    )


def label(model: ModelChoice | None) -> str:
    """A model choice in words, as reports show it."""
    if model is None:
        return DECLARED
    return model if isinstance(model, str) else ", ".join(f"{agent}={name}" for agent, name in model.items())


def _file_name(model: ModelChoice | None) -> str:
    if model is None or isinstance(model, str):
        return label(model)
    return f"mixed-{hashlib.sha256(json.dumps(dict(model), sort_keys=True).encode()).hexdigest()[:8]}"
