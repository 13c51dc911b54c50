"""The names that scenarios use, checked against the agents that they test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from chatflow_eval.errors import ScenarioError, ScenarioErrors, TargetError
from chatflow_eval.scenario import (
    REFERENCE,
    AgentSpec,
    Factory,
    Framework,
    Scenario,
    Service,
    Swarm,
    ToolSpec,
    unknown_names,
)
from chatflow_eval.targets import target_of
from chatflow_eval.trace import Topology
from chatflow_runtime.naming import is_tool_name


def check_names(scenarios: Sequence[Scenario], frameworks: Sequence[Framework] = ()) -> None:
    """Builds each factory's agents once, and looks up the agents and tools that its scenarios name.

    Agents declared in a scenario file were checked when it was loaded, those of services too.
    `frameworks`: what the agents run on, whatever the scenarios say.

    Raises:
        TargetError: the agents could not be built.
        ScenarioError: a name that no agent or tool has, with its scenario's file and line.
    """
    errors = [
        ScenarioError(f"scenario {scenario.id!r}, {problem}", path=scenario.file, line=scenario.line)
        for scenario, swarm in _declared(scenarios, frameworks)
        for problem in unknown_names(scenario, swarm)
    ]
    if errors:
        raise errors[0] if len(errors) == 1 else ScenarioErrors(errors)


def _declared(scenarios: Sequence[Scenario], frameworks: Sequence[Framework]) -> Iterator[tuple[Scenario, Swarm]]:
    known: dict[object, Swarm] = {}
    for scenario in scenarios:
        if isinstance(scenario.target, Swarm | Service):
            continue
        named = scenario.target if isinstance(scenario.target, Factory) else id(scenario.target)
        for framework in frameworks or scenario.frameworks or (REFERENCE,):
            key = (named, framework)
            if key not in known:
                known[key] = _as_swarm(target_of(scenario.target, framework).topology())
            yield scenario, known[key]


def _as_swarm(topology: Topology) -> Swarm:
    """The names of a topology, in the form in which scenario files declare them.

    Raises:
        TargetError: an agent has a name that no scenario can say.
    """
    return Swarm(agents=tuple(_as_spec(name, topology) for name in topology.agents), start=topology.start)


def _as_spec(name: str, topology: Topology) -> AgentSpec:
    try:
        spec = AgentSpec(name=name)
    except ValidationError as error:
        raise TargetError(f"an agent is called {name!r}: {error.errors()[0]['msg']}") from None
    # Names that no provider takes can be asked for nowhere, and are an incident when they are offered.
    tools = {tool: ToolSpec() for tool in topology.tools.get(name, ()) if is_tool_name(tool)}
    return spec.model_copy(update={"tools": tools})
