"""A trace as plain text, one line for each thing that was said or done."""

from __future__ import annotations

from chatflow_eval.trace import (
    Failure,
    Hop,
    LimitStep,
    ModelStep,
    ToolStep,
    Topology,
    Trace,
    TurnTrace,
    WarningStep,
)
from chatflow_eval.transcript import cut, transcript_of_trace, transcript_of_turn

TURN = TurnTrace(
    user="I want\na refund",
    start_agent="Triage",
    end_agent="Billing",
    reply="Done.",
    steps=(
        ModelStep(agent="Triage", model="m", text="One moment.", calls=("transfer_to_billing",)),
        Hop(source="Triage", target="Billing", tool="transfer_to_billing", reason="money"),
        ModelStep(agent="Billing", model="m", calls=("refund",)),
        ToolStep(agent="Billing", tool="refund", arguments={"id": "42"}, result={"status": "REFUNDED"}),
        Hop(
            source="Billing", target="Admin", tool="transfer_to_admin", accepted=False, why="not_allowed", message="no"
        ),
        LimitStep(agent="Billing", limit="max_tool_iterations", value=2),
        WarningStep(agent="Billing", message="arguments were cut"),
        ModelStep(agent="Billing", model="m", text="Done."),
    ),
)


def test_a_turn_is_told_line_by_line() -> None:
    assert transcript_of_turn(TURN).splitlines() == [
        "  route: Triage -> Billing",
        "  user: I want a refund",
        "  Triage: One moment.",
        "  Triage -> Billing by transfer_to_billing (reason: money)",
        '  Billing called refund({"id": "42"}): returned {"status": "REFUNDED"}',
        "  Billing -x-> Admin by transfer_to_admin: refused: no",
        "  limit: max_tool_iterations = 2 reached at Billing",
        "  warning: arguments were cut",
        "  reply by Billing: Done.",
    ]


def test_a_failed_turn_has_no_reply() -> None:
    failed = TurnTrace(
        user="hi",
        start_agent="Triage",
        end_agent="Triage",
        failure=Failure(kind="model", exception="RateLimitError", message="slow down"),
    )
    assert transcript_of_turn(failed).splitlines()[-1] == "  failed: RateLimitError: slow down"


def test_turns_are_numbered_from_1() -> None:
    trace = Trace(topology=Topology(start="Triage", agents=("Triage", "Billing")), turns=(TURN, TURN))
    assert [line for line in transcript_of_trace(trace).splitlines() if line.startswith("turn")] == ["turn 1", "turn 2"]


def test_long_texts_are_cut_with_a_note() -> None:
    assert cut("x" * 500, 400) == "x" * 400 + "... (100 more characters)"
    assert cut("short") == "short"
