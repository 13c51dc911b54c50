"""Trial; plan: scenarios x models x repeats."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from chatflow_eval.cassette import path_for
from chatflow_eval.errors import TargetError
from chatflow_eval.retries import CallLimits
from chatflow_eval.scenario import REFERENCE, Framework, ModelChoice, Scenario, Service

Mode: TypeAlias = Literal["none", "once", "new_episodes", "all", "live"]
"""vcrpy's record modes, and `live`: no cassette at all.

`none` replays, `once` records where nothing was, `new_episodes` goes live from the first request on that was not
recorded, `all` records anew.
"""

DECLARED = "declared"
"""The model choice that leaves every agent on the model it declares."""

KEYWORD = "keyword"
"""The model choice that is the built-in baseline router, and no language model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One planned run: a scenario, what its agents run on, who answers for them, which repeat, how it is recorded."""

    scenario: Scenario
    model: ModelChoice | None = None
    """`None`: every agent on the model it declares."""
    framework: Framework = REFERENCE
    repeat: int = 1
    """Counts from 1."""
    mode: Mode = "none"
    cassette: Path
    """Where this trial's recording lies, whether it is there or not."""
    calls: CallLimits = field(default_factory=CallLimits)
    """How often, and how long, a model is asked for one answer."""
    baseline: bool = False
    """Run as a yardstick beside the models under test."""

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
    frameworks: Sequence[Framework] = (),
    repeats: int | None = None,
    mode: Mode = "none",
    calls: CallLimits | None = None,
    baseline: bool = False,
) -> tuple[Trial, ...]:
    """The trials in order: scenario by scenario, each framework, each model, each repeat; what is given here wins.

    With `baseline`, one trial of each scenario on the keyword router follows those on the models under test, except
    where they talk to a service.

    Raises:
        TargetError: a framework is chosen for a service, which runs on whatever it runs on.
    """
    return tuple(
        Trial(
            scenario=scenario,
            model=None if model == DECLARED else model,
            framework=framework,
            repeat=repeat,
            mode=mode,
            cassette=path_for(root, scenario.file, scenario.id, _file_name(model), repeat, framework=framework),
            calls=calls or CallLimits(),
            baseline=is_baseline,
        )
        for scenario in scenarios
        for framework in _frameworks(scenario, frameworks)
        for model, times, is_baseline in _runs(scenario, models, repeats, baseline)
        for repeat in range(1, times + 1)
    )


def _frameworks(scenario: Scenario, chosen: Sequence[Framework]) -> Sequence[Framework]:
    wanted = chosen or scenario.frameworks
    if wanted and isinstance(scenario.target, Service):
        where = f"{scenario.file}:{scenario.line}: scenario {scenario.id!r}"
        raise TargetError(f"{where} talks to {scenario.target.http}: a service runs on no framework of our choice")
    return wanted or (REFERENCE,)


def _runs(
    scenario: Scenario, models: Sequence[ModelChoice], repeats: int | None, baseline: bool
) -> Iterator[tuple[ModelChoice, int, bool]]:
    """The models that a scenario is run on, how often, and which of them is the yardstick."""
    chosen = models or scenario.models or (DECLARED,)
    for model in chosen:
        yield model, repeats or scenario.repeats or 1, False
    served = isinstance(scenario.target, Service)  # whose agents no router of ours can stand in for
    if baseline and not served and KEYWORD not in chosen and any(turn.script is None for turn in scenario.turns):
        yield KEYWORD, 1, True  # it answers the same way every time


def label(model: ModelChoice | None) -> str:
    """A model choice in words, as reports show it."""
    if model is None:
        return DECLARED
    return model if isinstance(model, str) else ", ".join(f"{agent}={name}" for agent, name in model.items())


def model_name(target: str, model: str) -> str:
    """A model's label, with what its agents ran on where that is not the reference runtime."""
    return model if target == REFERENCE else f"{target}: {model}"


def _file_name(model: ModelChoice | None) -> str:
    if model is None or isinstance(model, str):
        return label(model)
    return f"mixed-{hashlib.sha256(json.dumps(dict(model), sort_keys=True).encode()).hexdigest()[:8]}"
