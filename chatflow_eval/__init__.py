"""chatflow-eval: test and evaluate handoff routing between LLM agents.

The public names load when they are first used, so that `--help` and an unrelated pytest run pay for nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from chatflow_eval.assertions import (
        assert_ends_at,
        assert_handed_off_to,
        assert_no_loops,
        assert_route,
        assert_within_limits,
    )
    from chatflow_eval.checks import Span, Verdict
    from chatflow_eval.comparison import Comparison, compare
    from chatflow_eval.errors import (
        CassetteDamaged,
        CassetteError,
        CassetteMismatch,
        CassetteMissing,
        ChatflowEvalError,
        ReportError,
        ScenarioError,
        TargetError,
    )
    from chatflow_eval.expectations import Expectations
    from chatflow_eval.gate import Decision, Gate
    from chatflow_eval.incidents import Incident
    from chatflow_eval.loader import load
    from chatflow_eval.outcome import Outcome, collect, run
    from chatflow_eval.report import Report
    from chatflow_eval.route import Route
    from chatflow_eval.scenario import (
        AgentSpec,
        HandoffSpec,
        Limits,
        Scenario,
        ScriptedAnswer,
        ScriptedCall,
        Service,
        ServiceAgent,
        ServiceHandoff,
        SettingsSpec,
        Swarm,
        ToolReturn,
        ToolSpec,
        Turn,
    )
    from chatflow_eval.trace import Hop, Topology, Trace, TurnTrace
    from chatflow_eval.trial import Trial, plan

_HOMES = {
    "assertions": (
        "assert_ends_at",
        "assert_handed_off_to",
        "assert_no_loops",
        "assert_route",
        "assert_within_limits",
    ),
    "checks": ("Span", "Verdict"),
    "comparison": ("Comparison", "compare"),
    "errors": (
        "CassetteDamaged",
        "CassetteError",
        "CassetteMismatch",
        "CassetteMissing",
        "ChatflowEvalError",
        "ReportError",
        "ScenarioError",
        "TargetError",
    ),
    "expectations": ("Expectations",),
    "gate": ("Decision", "Gate"),
    "incidents": ("Incident",),
    "loader": ("load",),
    "outcome": ("Outcome", "collect", "run"),
    "report": ("Report",),
    "route": ("Route",),
    "scenario": (
        "AgentSpec",
        "HandoffSpec",
        "Limits",
        "Scenario",
        "ScriptedAnswer",
        "ScriptedCall",
        "Service",
        "ServiceAgent",
        "ServiceHandoff",
        "SettingsSpec",
        "Swarm",
        "ToolReturn",
        "ToolSpec",
        "Turn",
    ),
    "trace": ("Hop", "Topology", "Trace", "TurnTrace"),
    "trial": ("Trial", "plan"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AgentSpec",
    "CassetteDamaged",
    "CassetteError",
    "CassetteMismatch",
    "CassetteMissing",
    "ChatflowEvalError",
    "Comparison",
    "Decision",
    "Expectations",
    "Gate",
    "HandoffSpec",
    "Hop",
    "Incident",
    "Limits",
    "Outcome",
    "Report",
    "ReportError",
    "Route",
    "Scenario",
    "ScenarioError",
    "ScriptedAnswer",
    "ScriptedCall",
    "Service",
    "ServiceAgent",
    "ServiceHandoff",
    "SettingsSpec",
    "Span",
    "Swarm",
    "TargetError",
    "ToolReturn",
    "ToolSpec",
    "Topology",
    "Trace",
    "Trial",
    "Turn",
    "TurnTrace",
    "Verdict",
    "assert_ends_at",
    "assert_handed_off_to",
    "assert_no_loops",
    "assert_route",
    "assert_within_limits",
    "collect",
    "compare",
    "load",
    "plan",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
