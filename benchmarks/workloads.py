"""The scenario files and runs that several benchmarks share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chatflow_eval.report import Report
    from chatflow_eval.trial import Mode

_AGENTS = """\
agents:
  TriageAgent:
    instructions: |
      Welcome the user and find out what the matter is. Transfer refunds, invoices and other questions of money to
      BillingAgent, and crashes, errors and questions of how to do things to TechSupportAgent.
    handoffs: [BillingAgent, TechSupportAgent]
  BillingAgent:
    instructions: Assist with refunds and payment disputes. Transfer everything else to TriageAgent.
    tools:
      issue_refund:
        description: Process a refund back to the original payment method.
        parameters: {transaction_id: string, amount: number, note: string?}
        returns: {status: REFUNDED}
    handoffs: [TriageAgent]
  TechSupportAgent:
    instructions: Help with crashes and errors. Transfer everything else to TriageAgent.
    handoffs: [TriageAgent]
"""

_FACTORY = """\
from chatflow_runtime import Agent


def issue_refund(transaction_id: str, amount: float, note: str | None = None) -> dict[str, str]:
    \"\"\"Process a refund back to the original payment method.\"\"\"
    return {"status": "REFUNDED"}


def build() -> Agent:
    triage = Agent("TriageAgent", "Transfer refunds to BillingAgent, and crashes to TechSupportAgent.")
    billing = Agent("BillingAgent", "Assist with refunds and payment disputes.", tools=[issue_refund])
    support = Agent("TechSupportAgent", "Help with crashes and errors.")
    for agent in (billing, support):
        triage.add_handoff(agent)
        agent.add_handoff(triage)
    return triage
"""


def write_factory(path: Path) -> str:
    """A module that builds such agents in Python; gives the line that names it in a scenario file beside it."""
    path.write_text(_FACTORY, encoding="utf-8")
    return f"target: {path.name}:build\n"


def write_scenarios(
    path: Path,
    count: int,
    *,
    agents: str = _AGENTS,
    turns: int = 1,
    scripted: bool = True,
    wrong: int = 0,
    head: str = "",
    first: int = 0,
) -> Path:
    """A file of `count` scenarios: the first turn has one handoff, a second one stays; one in `wrong` expects amiss."""
    lines = [f"{head}{agents}scenarios:"]
    for number in range(first, first + count):
        target = "TechSupportAgent" if wrong and number % wrong == wrong - 1 else "BillingAgent"
        lines += [
            f"  - id: refund-{number}",
            "    tags: [billing]",
            "    turns:",
            f"      - user: I have an unexpected charge on invoice {number} and need a refund, please.",
            f"        expect: {{route: TriageAgent -> {target}, handoffs: 1}}",
        ]
        if scripted:
            lines += [
                "        script:",
                "          - transfer: {to: BillingAgent, reason: It is about an invoice.}",
                f"          - say: I have looked at invoice {number}; the charge was a mistake, and you get it back.",
            ]
        if turns > 1:
            lines += ["      - user: Thank you. How long does it take?", "        expect: {stay: true}"]
            if scripted:
                lines.append("        script: [say: Up to five working days.]")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.with_name("pyproject.toml").touch()  # the root that paths are told from
    return path


def finish(file: Path, out: Path, *, repeats: int = 1, mode: Mode = "none", concurrency: int = 8) -> Iterator[str]:
    """Loads the file and runs it into the folder as `chatflow-eval run` does; yields each part's name at its end."""
    from chatflow_eval import loader, outcome, trial
    from chatflow_eval.report import RunFolder

    yield "imports"
    scenarios = loader.load([file])
    yield "load"

    async def run() -> None:
        trials = trial.plan(scenarios, root=file.parent, repeats=repeats, mode=mode)
        async with contextlib.aclosing(outcome.run(trials, concurrency=concurrency)) as outcomes:
            async for found in outcomes:
                folder.append(found)

    folder = RunFolder.create(out)
    asyncio.run(run())
    report = folder.close()
    yield "run"
    _check(report, len(scenarios) * repeats)


def _check(report: Report, expected: int) -> None:
    """A benchmark of trials that errored would measure nothing."""
    statuses = report.metrics.total.trials
    if statuses["passed"] + statuses["failed"] != expected:
        first = next(iter(report.outcomes))
        raise SystemExit(f"expected {expected} trials to end, found {dict(statuses)}: {first.why}")
