"""Scenario files as test items, and a fixture to talk to a swarm; heavy imports wait until one is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from chatflow_eval.conversation import Conversations
    from chatflow_eval.outcome import Outcome
    from chatflow_eval.scenario import Framework, ModelChoice, Scenario
    from chatflow_eval.trial import Mode, Trial

PATTERNS = (".scenario.yaml", ".scenario.yml")
"""Endings of the files that are collected."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chatflow-eval", "handoff routing (chatflow-eval)")
    group.addoption(
        "--chatflow-model",
        action="append",
        default=[],
        metavar="MODEL",
        help="Who answers for every agent: a litellm model's name, or `keyword`. Repeatable.",
    )
    group.addoption(
        "--chatflow-framework",
        action="append",
        choices=["chatflow", "chatflow_agent"],
        default=[],
        help="What agents run on: the reference runtime, or the published package chatflow-agent. Repeatable.",
    )
    group.addoption(
        "--chatflow-record-mode",
        choices=["none", "once", "new_episodes", "all", "live"],
        default="none",
        help="none (default) replays recorded answers, once records where nothing was recorded, new_episodes goes live "
        "from the first request on that was not, all records anew, live asks the models and records nothing.",
    )
    group.addoption("--chatflow-repeats", type=int, default=None, metavar="N", help="Trials per scenario and model.")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.name.endswith(PATTERNS):
        return ScenarioFile.from_parent(parent, path=file_path)
    return None


class ScenarioFile(pytest.File):
    """A scenario file; a malformed one is one collection error, and the others run."""

    def collect(self) -> Iterable[pytest.Item]:
        from chatflow_eval import loader
        from chatflow_eval.errors import ScenarioError
        from chatflow_eval.trial import label

        try:
            scenarios = loader.load([self.path])
        except ScenarioError as error:
            raise self.CollectError(str(error)) from None
        for scenario in scenarios:
            for framework in _frameworks(self.config) or scenario.frameworks or (None,):
                for model in _models(self.config) or scenario.models or (None,):
                    on = ", ".join(each for each in (framework, model and label(model)) if each)
                    name = f"{scenario.id}[{on}]" if on else scenario.id
                    yield ScenarioItem.from_parent(self, name=name, scenario=scenario, framework=framework, model=model)


class ScenarioItem(pytest.Item):
    """One scenario on one framework with one model; all of its repeats must pass."""

    def __init__(
        self, *, scenario: Scenario, framework: Framework | None, model: ModelChoice | None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.scenario = scenario
        self.framework = framework
        self.model = model
        self.extra_keyword_matches.update(scenario.tags)
        if scenario.skip is not None:
            self.add_marker(pytest.mark.skip(reason=scenario.skip))
        if scenario.xfail is not None:
            self.add_marker(pytest.mark.xfail(reason=scenario.xfail, strict=False, raises=RoutingFailed))

    def runtest(self) -> None:
        from chatflow_eval.outcome import collect

        outcomes = collect(self._trials())
        bad = [outcome for outcome in outcomes if outcome.status != "passed"]
        if bad:
            failed = RoutingFailed if all(outcome.status == "failed" for outcome in bad) else TrialErrored
            raise failed(_told(bad, of=len(outcomes)))

    def _trials(self) -> tuple[Trial, ...]:
        from chatflow_eval import loader, trial

        return trial.plan(
            [self.scenario],
            root=loader.find_root(self.path),
            models=() if self.model is None else (self.model,),
            frameworks=() if self.framework is None else (self.framework,),
            repeats=self.config.getoption("--chatflow-repeats"),
            mode=_mode(self.config),
        )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, RoutingFailed | TrialErrored):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, max(self.scenario.line - 1, 0), f"scenario: {self.name}"


class RoutingFailed(AssertionError):
    """A scenario that did not pass."""


class TrialErrored(Exception):
    """A scenario that could not be judged."""


def _name(test: pytest.Item) -> str:
    from chatflow_eval.conversation import name_of

    called = getattr(test, "callspec", None)
    return name_of(
        getattr(test, "originalname", None) or test.name,
        classes=[part.name for part in test.listchain() if isinstance(part, pytest.Class)],
        parameters=called.params if called is not None else None,
        mark=called.id if called is not None else "",
    )


@pytest.fixture
def chatflow(request: pytest.FixtureRequest) -> Iterator[Conversations]:
    """Opens conversations with a swarm: `chatflow(build)`, then `.say("...")` turn by turn.

    What is opened takes an Agent, a Runner, a factory or its reference (`support.py:build`), and replays from
    `cassettes/<test file>/<test>/` unless a model or a script says otherwise.
    """
    from chatflow_eval.conversation import Conversations
    from chatflow_eval.loader import find_root

    root = find_root(request.path)
    models, frameworks = _models(request.config), _frameworks(request.config)
    conversations = Conversations(
        root=root,
        file=_relative(request.path, root),
        name=_name(request.node),
        model=models[0] if models else None,
        framework=frameworks[0] if frameworks else None,
        mode=_mode(request.config),
    )
    yield conversations
    conversations.close()


def _models(config: pytest.Config) -> tuple[str, ...]:
    return tuple(config.getoption("--chatflow-model"))


def _frameworks(config: pytest.Config) -> tuple[Framework, ...]:
    return tuple(config.getoption("--chatflow-framework"))


def _mode(config: pytest.Config) -> Mode:
    mode: Mode = config.getoption("--chatflow-record-mode")
    return mode


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def _told(outcomes: list[Outcome], *, of: int) -> str:
    from chatflow_eval.transcript import transcript_of_trace

    told = [f"{len(outcomes)} of {of} repeats did not pass"] if of > 1 else []
    for outcome in outcomes:
        told.append(f"{outcome.file}:{outcome.line}: {outcome.scenario} {outcome.status}: {outcome.why}")
        told.extend(
            f"  turn {verdict.turn or 'all'} {verdict.check}: expected {verdict.expected}, was {verdict.actual}"
            for verdict in outcome.verdicts
            if verdict.status == "failed"
        )
        if outcome.trace is not None:
            told.append(transcript_of_trace(outcome.trace))
    return "\n".join(told)
