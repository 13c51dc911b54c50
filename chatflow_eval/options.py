"""The options and arguments that several commands take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Rate(click.FloatRange):
    """A number from 0 to 1; a percentage is refused with the rate it may have meant."""

    name = "rate"

    def __init__(self) -> None:
        super().__init__(0, 1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).rstrip("%")
        with contextlib.suppress(ValueError):
            if 1 < float(text) <= 100:
                self.fail(f"{value} is no rate between 0 and 1; did you mean {float(text) / 100:g}?", param, ctx)
        return super().convert(value, param, ctx)


class Keyed(click.types.StringParamType):
    """A name and a value, as in `BillingAgent=0.9`; the name may hold `=` itself."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self._value = name, value

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        key, found, of_it = str(value).rpartition("=")
        if not found or not key:
            self.fail(f"expected {self.name}, not {value!r}", param, ctx)
        return key, self._value.convert(of_it, param, ctx)


def every(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """One decorator that gives a command all of the options, in order."""

    def apply(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))

RUN_FOLDER = click.argument("run", type=click.Path(path_type=Path))

CHOICE = every(
    click.option(
        "--model",
        "models",
        multiple=True,
        metavar="MODEL",
        help="Who answers for every agent: a litellm model's name, or `keyword`, the built-in baseline router "
        "(no language model). Repeatable.",
    ),
    click.option(
        "--framework",
        "frameworks",
        multiple=True,
        type=click.Choice(["chatflow", "chatflow_agent"]),
        help="What the agents run on: the reference runtime, or the published package chatflow-agent. Repeatable.",
    ),
    click.option("--repeats", type=click.IntRange(min=1), help="Trials per scenario and model."),
    click.option("--tag", "tags", multiple=True, help="Only scenarios with this tag. Repeatable."),
    click.option(
        "--only", "ids", multiple=True, metavar="ID", help="Only the scenario with this id, or file::id. Repeatable."
    ),
)

SELECTION = every(
    CHOICE,
    click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="Trials at once."),
    click.option(
        "--retries",
        type=click.IntRange(min=0),
        default=2,
        show_default=True,
        help="Further calls of a model after one that failed for a reason that may pass: 408, 429, 5xx, a broken "
        "connection, a timeout.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=600,
        show_default=True,
        metavar="SECONDS",
        help="For one call of a model.",
    ),
    click.option("--fail-fast", is_flag=True, help="Stop at the first trial that is not as expected."),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="The run folder.  [default: reports/<time> beside pyproject.toml]",
    ),
)

_COUNT = click.IntRange(min=0)

GATE_RULES = every(
    click.option("--min-accuracy", type=Rate(), help="Routing accuracy at least, between 0 and 1."),
    click.option(
        "--min-agent-accuracy",
        type=Keyed("AGENT=RATE", Rate()),
        multiple=True,
        metavar="AGENT=RATE",
        help="Routing accuracy at least of the turns that may end at an agent. Repeatable.",
    ),
    click.option(
        "--min-tag-accuracy",
        type=Keyed("TAG=RATE", Rate()),
        multiple=True,
        metavar="TAG=RATE",
        help="Routing accuracy at least of the scenarios with a tag. Repeatable.",
    ),
    click.option("--max-loops", type=_COUNT, help="Loops at most."),
    click.option("--max-limit-hits", type=_COUNT, help="Limit hits at most."),
    click.option(
        "--max-incident",
        type=Keyed("KIND=N", _COUNT),
        multiple=True,
        metavar="KIND=N",
        help="Incidents of a kind at most. Repeatable.",
    ),
    click.option("--max-errors", type=_COUNT, help="Errored trials at most; more end with exit code 3.  [default: 0]"),
    click.option(
        "--max-cost", type=click.FloatRange(min=0), metavar="USD", help="Cost at most; an unknown cost is too much."
    ),
    click.option(
        "--must-pass",
        multiple=True,
        metavar="TAG|ID",
        help="Every trial of the scenarios with this tag or id passes. Repeatable.",
    ),
    click.option(
        "--baseline",
        type=click.Path(path_type=Path),
        metavar="RUN",
        help="A run folder to compare with: no scenario may vanish, nor routing accuracy be lost.",
    ),
    click.option("--max-regression", type=Rate(), help="Routing accuracy lost at most.  [default: 0]"),
    click.option("--significant", is_flag=True, help="A loss counts only when the exact paired test finds one."),
)

RULE_NAMES = (
    "min_accuracy",
    "min_agent_accuracy",
    "min_tag_accuracy",
    "max_loops",
    "max_limit_hits",
    "max_incident",
    "max_errors",
    "max_cost",
    "must_pass",
    "baseline",
    "max_regression",
    "significant",
)
"""The names of the gate's options."""

OUTPUT_NAMES = ("junit", "summary", "github")
"""The names of the options that say what else to write."""

OUTPUTS = every(
    click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML, too."),
    click.option("--summary", type=click.Path(path_type=Path), metavar="FILE", help="Write a Markdown summary, too."),
    click.option(
        "--github",
        is_flag=True,
        help="In GitHub Actions: annotate the scenarios' files, and add the summary to the job's.",
    ),
)


def is_given(option: str) -> bool:
    """Whether the option stands on the command line of the command that runs."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"
