"""A support desk's run: right and wrong routes, a loop, a limit, an error, recorded answers and the baseline's."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from chatflow_eval import incidents
from chatflow_eval.checks import Verdict
from chatflow_eval.outcome import Outcome, Status
from chatflow_eval.report import Report, Run
from chatflow_eval.route import Aligned
from chatflow_eval.trace import (
    Edge,
    Failure,
    Hop,
    LimitStep,
    ModelStep,
    Step,
    ToolStep,
    Topology,
    Trace,
    TurnTrace,
    WarningStep,
)

TRIAGE, BILLING, TECH, ACCOUNT = "TriageAgent", "BillingAgent", "TechSupportAgent", "AccountAgent"
TOOLS = {TRIAGE: "transfer_to_triageagent", BILLING: "transfer_to_billingagent"}
EDGES = [(TRIAGE, BILLING), (TRIAGE, TECH), (TRIAGE, ACCOUNT), (BILLING, TRIAGE), (TECH, TRIAGE), (ACCOUNT, TRIAGE)]
TOPOLOGY = Topology(
    start=TRIAGE,
    agents=(TRIAGE, BILLING, TECH, ACCOUNT),
    tools={TRIAGE: (), BILLING: ("issue_refund", "find_invoice"), TECH: ("open_ticket",), ACCOUNT: ("reset_password",)},
    edges=tuple(Edge(source=source, target=target) for source, target in EDGES),
)


def model(agent: str, text: str | None = None, *calls: str, tokens: int | None = 180) -> ModelStep:
    return ModelStep(
        agent=agent,
        model="gpt-4o-mini",
        text=text,
        calls=calls,
        input_tokens=tokens,
        output_tokens=None if tokens is None else 24,
        seconds=0.81,
    )


def hop(source: str, target: str, reason: str = "", *, why: str | None = None, message: str = "") -> Hop:
    return Hop(
        source=source,
        target=target,
        tool=f"transfer_to_{target.lower()}",
        reason=reason,
        accepted=why is None,
        why=why,
        message=message,
    )


def turn(user: str, start: str, *steps: Step, reply: str = "", failure: Failure | None = None) -> TurnTrace:
    """A turn whose end agent is the last one given the conversation."""
    targets = [step.target for step in steps if isinstance(step, Hop) and step.accepted]
    return TurnTrace(
        user=user,
        start_agent=start,
        end_agent=targets[-1] if targets else start,
        reply=reply,
        steps=steps,
        failure=failure,
        seconds=1.6,
    )


def route(number: int, expected: str, places: Iterable[tuple[str | None, str | None]], why: str = "") -> Verdict:
    alignment = tuple(Aligned(expected=want, actual=came, ok=want == came) for want, came in places)
    return Verdict(
        check="route",
        turn=number,
        status="failed" if why else "passed",
        expected=expected,
        actual=" -> ".join(item.actual for item in alignment if item.actual),
        why=why,
        alignment=alignment,
    )


def outcome(
    scenario: str,
    status: Status,
    turns: tuple[TurnTrace, ...],
    *verdicts: Verdict,
    model: str = "gpt-4o-mini",
    repeat: int = 1,
    why: str = "",
    replayed: bool = True,
    users: tuple[str, ...] = (),
    failure: Failure | None = None,
    failed_turn: int | None = None,
    xfail: str | None = None,
) -> Outcome:
    trace = Trace(topology=TOPOLOGY, turns=turns)
    return Outcome(
        file="scenarios/support.scenario.yaml",
        line=12,
        scenario=scenario,
        tags=("billing", "smoke"),
        model=model,
        repeat=repeat,
        status=status,
        why=why,
        xfail=xfail,
        replayed=replayed,
        users=users or tuple(turn.user for turn in turns),
        trace=trace if turns else None,
        verdicts=verdicts,
        incidents=incidents.find(trace),
        failure=failure,
        failed_turn=failed_turn,
        seconds=sum(turn.seconds for turn in turns),
    )


REFUND = turn(
    "I have an unexpected charge on my invoice and need a refund.",
    TRIAGE,
    model(TRIAGE, "One moment, I will pass you on.", "transfer_to_billingagent"),
    hop(TRIAGE, BILLING, "refund of an unexpected charge"),
    model(BILLING, None, "issue_refund"),
    ToolStep(
        agent=BILLING,
        tool="issue_refund",
        arguments={"transaction_id": "TX-1042", "amount": 20.0},
        result={"status": "REFUNDED", "amount": 20.0},
    ),
    model(BILLING, "Your refund of 20.00 is on its way to the original payment method."),
    reply="Your refund of 20.00 is on its way to the original payment method.",
)
CRASH = turn(
    "Also, the app crashes when I upload a file.",
    BILLING,
    model(BILLING, None, "transfer_to_triageagent"),
    hop(BILLING, TRIAGE, "not about billing"),
    model(TRIAGE, None, "transfer_to_techsupportagent"),
    hop(TRIAGE, TECH, "upload crash"),
    model(TECH, "Which version of the app are you using?"),
    reply="Which version of the app are you using?",
)
CRASH_STAYED = turn(
    "Also, the app crashes when I upload a file.",
    BILLING,
    model(BILLING, "I can only help with billing.", tokens=None),
    reply="I can only help with billing.",
)
RIGHT_1 = route(1, f"{TRIAGE} -> {BILLING}", [(TRIAGE, TRIAGE), (BILLING, BILLING)])
RIGHT_2 = route(2, f"{BILLING} -> {TRIAGE} -> {TECH}", [(BILLING, BILLING), (TRIAGE, TRIAGE), (TECH, TECH)])
STAYED = route(
    2,
    f"{BILLING} -> {TRIAGE} -> {TECH}",
    [(BILLING, BILLING), (TRIAGE, None), (TECH, None)],
    f"{BILLING} kept the conversation; expected {TRIAGE}, then {TECH}.",
)
WHO_LOOPS = turn(
    "Who can change my plan?",
    TRIAGE,
    *(
        step
        for _ in range(3)
        for step in (
            model(TRIAGE, None, "transfer_to_accountagent"),
            hop(TRIAGE, ACCOUNT, "plan change"),
            model(ACCOUNT, None, "transfer_to_triageagent"),
            hop(ACCOUNT, TRIAGE, "billing question"),
        )
    ),
    model(TRIAGE, None, "transfer_to_accountagent"),
    hop(TRIAGE, ACCOUNT, "plan", why="limit", message="Maximum agent transfers exceeded for a single turn."),
    LimitStep(agent=TRIAGE, limit="max_handoffs_per_turn", value=6),
    model(TRIAGE, "Please call our hotline."),
    reply="Please call our hotline.",
)
MIXED = turn(
    "My password and my invoice are both wrong.",
    TRIAGE,
    model(TRIAGE, None, "transfer_to_techsupportagent", "transfer_to_billingagent"),
    WarningStep(agent=TRIAGE, message="arguments were no JSON object: taken as {}"),
    hop(TRIAGE, TECH, "password"),
    hop(TRIAGE, BILLING, "invoice", why="already_transferred", message="Another transfer already took effect."),
    model(TECH, None, "reset_password"),
    ToolStep(
        agent=TECH,
        tool="reset_password",
        arguments={},
        result="This agent has: open_ticket",
        is_error=True,
        known=False,
    ),
    model(TECH, "I opened a ticket for you."),
    reply="I opened a ticket for you.",
)
RATE_LIMIT = Failure(
    kind="model", exception="RateLimitError", message="429 Too Many Requests: slow down", status_code=429
)


def sample_outcomes() -> tuple[Outcome, ...]:
    """Ten trials of six scenarios on two models."""
    stayed = f"turn 2: {STAYED.why}"
    loop_route = route(
        1,
        f"{TRIAGE} -> {ACCOUNT}",
        [(TRIAGE, TRIAGE), (ACCOUNT, ACCOUNT), *((None, name) for name in (TRIAGE, ACCOUNT) * 2), (None, TRIAGE)],
        f"{TRIAGE} came after {ACCOUNT}, where the route was to end.",
    )
    mixed_route = route(
        1,
        f"{TRIAGE} -> {ACCOUNT} -> {BILLING}",
        [(TRIAGE, TRIAGE), (ACCOUNT, TECH), (BILLING, None)],
        f"expected {ACCOUNT} after {TRIAGE}, and {TECH} came.",
    )
    thanks = turn("Thanks!", BILLING, model(BILLING, "You are welcome."), reply="You are welcome.")
    skipped = Verdict(
        check="route", turn=1, status="skipped", expected=f"{TRIAGE} -> {BILLING}", why="the turn errored"
    )
    return (
        outcome("refund-then-crash", "passed", (REFUND, CRASH), RIGHT_1, RIGHT_2),
        outcome("refund-then-crash", "failed", (REFUND, CRASH_STAYED), RIGHT_1, STAYED, repeat=2, why=stayed),
        outcome(
            "refund-then-crash",
            "failed",
            (REFUND, CRASH_STAYED),
            RIGHT_1,
            STAYED,
            model="keyword",
            why=stayed,
            replayed=False,
        ),
        outcome("refund-and-thanks", "passed", (REFUND, thanks), RIGHT_1, route(2, BILLING, [(BILLING, BILLING)])),
        outcome("plan-ping-pong", "failed", (WHO_LOOPS,), loop_route, why=f"turn 1: {loop_route.why}"),
        outcome("two-wishes", "failed", (MIXED,), mixed_route, why=f"turn 1: {mixed_route.why}"),
        outcome("two-wishes", "passed", (REFUND,), RIGHT_1, model="keyword", replayed=False),
        outcome(
            "rate-limited",
            "errored",
            (turn("Refund me.", TRIAGE, failure=RATE_LIMIT),),
            skipped,
            why="turn 1: RateLimitError: 429 Too Many Requests: slow down",
            users=("Refund me.", "And again."),
            failure=RATE_LIMIT,
            failed_turn=1,
        ),
        outcome("not-yet", "skipped", (), users=("Hello?",), why="waits for the account agent"),
        outcome(
            "known-gap",
            "failed",
            (CRASH_STAYED,),
            STAYED,
            xfail="billing has no way back yet",
            why=f"turn 1: {STAYED.why}",
        ),
    )


@pytest.fixture(scope="session")
def sample() -> Report:
    run = Run(started="2026-12-01T09:00:00+00:00", finished="2026-12-01T09:00:14+00:00", command=("run", "scenarios/"))
    return Report.of(sample_outcomes(), run=run)
