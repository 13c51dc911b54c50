"""Traces with the incidents that a person finds in them: public reports rebuilt, and real ones read from shared data.

Labels are by hand. Of the public reports (ids as in the project's research notes) each trace is the smallest that
shows the symptom, or its innocent twin. Of tau-bench's 200 GPT-4o conversations, every turn with a failed call, a
repeated call or a word about transferring was read. Of Who&When's 184 logs of speakers only the order is known: a group
chat passes the word for good, an orchestrator calls and gets it back, a terminal is a tool; `loop` stands where a
regular expression with a back-reference finds a cycle of experts twice in a row.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal

from chatflow_eval.incidents import IncidentKind, history_faults
from chatflow_eval.trace import Edge, Hop, LimitStep, ModelStep, Step, ToolStep, Topology, Trace, TurnTrace

SHARED = Path(__file__).parents[2] / "shared" / "data" / "traces"


@dataclass(frozen=True, slots=True)
class Labelled:
    """A trace, what is wrong in it, and who may have the conversation at the end of each turn, where that is known."""

    name: str
    source: Literal["public reports", "tau-bench", "Who&When"]
    trace: Trace
    kinds: frozenset[IncidentKind]
    ends: tuple[tuple[str, ...], ...] = ()

    @property
    def half(self) -> Literal["develop", "report"]:
        """Which half it belongs to, once and for all: by its name."""
        return "develop" if hashlib.sha256(self.name.encode()).digest()[0] % 2 else "report"


def traces() -> Iterator[Labelled]:
    """All of them; the real ones only where the shared data is."""
    yield from reports()
    if SHARED.is_dir():
        yield from _tau_bench(SHARED / "tau-bench-gpt-4o-airline.json")
        yield from _who_and_when(SHARED / "whowhen-speakers.jsonl")


# Public reports.

DESK = Topology(
    start="TriageAgent",
    agents=("TriageAgent", "BillingAgent", "TechSupportAgent", "Manager"),
    tools={
        "TriageAgent": (),
        "BillingAgent": ("issue_refund", "get_invoice", "cancel_order", "send_email"),
        "TechSupportAgent": ("open_ticket",),
        "Manager": (),
    },
    edges=tuple(
        Edge(source=source, target=target)
        for source, target in (
            ("TriageAgent", "BillingAgent"),
            ("TriageAgent", "TechSupportAgent"),
            ("BillingAgent", "TriageAgent"),
            ("BillingAgent", "Manager"),
        )
    ),
)
TRIAGE, BILLING, TECH, MANAGER = DESK.agents


def asks(agent: str, text: str | None = None, *calls: str) -> ModelStep:
    return ModelStep(agent=agent, model="m", text=text, calls=calls, input_tokens=100, output_tokens=10)


def moves(source: str, target: str, why: str | None = None, *, reason: str = "", message: str = "") -> Hop:
    return Hop(source=source, target=target, accepted=why is None, why=why, reason=reason, message=message)


def calls(source: str, target: str) -> Hop:
    return Hop(source=source, target=target, kind="call", depth=1)


def runs(
    agent: str, tool: str, result: Any = "ok", *, error: bool = False, known: bool = True, **arguments: Any
) -> ToolStep:
    return ToolStep(agent=agent, tool=tool, arguments=arguments, result=result, is_error=error, known=known)


def turn(start: str, *steps: Step, reply: str = "How can I help?", by: str | None = None) -> TurnTrace:
    """A turn whose last agent says the reply."""
    targets = [step.target for step in steps if isinstance(step, Hop) and step.accepted and step.kind == "transfer"]
    end = by or (targets[-1] if targets else start)
    return TurnTrace(user="hi", start_agent=start, end_agent=end, reply=reply, steps=(*steps, asks(end, reply)))


def reports() -> Iterator[Labelled]:
    """The public reports as traces, and their innocent twins."""
    for name, kinds, turns, ends in _REPORTS:
        yield Labelled(name, "public reports", Trace(topology=DESK, turns=tuple(turns)), frozenset(kinds), tuple(ends))


def _round(*agents: str, closing: Sequence[Step] = ()) -> TurnTrace:
    steps: list[Step] = []
    for source, target in pairwise(agents):
        steps += [asks(source, None, f"transfer_to_{target.lower()}"), moves(source, target)]
    return turn(agents[0], *steps, *closing)


def _says(reply: str, *steps: Step, start: str = TRIAGE) -> list[TurnTrace]:
    return [turn(start, *steps, reply=reply)]


def _failed(
    reply: str, *later: Step, tool: str = "issue_refund", result: Any = "Error: card expired"
) -> list[TurnTrace]:
    return [turn(BILLING, asks(BILLING, None, tool), runs(BILLING, tool, result, error=True), *later, reply=reply)]


def _wire(*messages: dict[str, Any], tools: bool = True) -> list[TurnTrace]:
    """A turn in which TriageAgent sends these messages to its provider."""
    offered = [{"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {}}}}]
    request = {"model": "m", "messages": list(messages), **({"tools": offered} if tools else {})}
    return [turn(TRIAGE, *history_faults(request, TRIAGE))]


def _call(*ids: str, name: str = "t", content: str | None = None) -> dict[str, Any]:
    made = [{"id": each, "type": "function", "function": {"name": name, "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": content, "tool_calls": made}


def _result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


_USER = {"role": "user", "content": "hi"}
_LIMIT = LimitStep(agent=TRIAGE, limit="max_handoffs_per_turn", value=5)
_TOO_MANY = "Maximum agent transfers exceeded for a single turn."
_TO_BILLING = (asks(TRIAGE, None, "transfer_to_billingagent"), moves(TRIAGE, BILLING))

_Case = tuple[str, Sequence[IncidentKind], Sequence[TurnTrace], Sequence[tuple[str, ...]]]

_REPORTS: tuple[_Case, ...] = (
    # Loops and limits.
    ("B061 ping-pong", ["loop"], [_round(TRIAGE, BILLING, TRIAGE, BILLING, TRIAGE)], ()),
    (
        "B061 ping-pong to the limit",
        ["loop", "limit_hit"],
        [
            _round(
                TRIAGE,
                BILLING,
                TRIAGE,
                BILLING,
                TRIAGE,
                BILLING,
                closing=(asks(BILLING), moves(BILLING, TRIAGE, "limit", message=_TOO_MANY), _LIMIT),
            )
        ],
        (),
    ),
    ("B063 limit and a fine reply", ["limit_hit"], _says("Here is your invoice.", _LIMIT), ()),
    ("B064 tool limit", ["limit_hit"], _says("Execution iteration limit reached by agent 'TriageAgent'.", _LIMIT), ()),
    ("B065 three agents twice", ["loop", "not_allowed"], [_round(BILLING, TRIAGE, TECH, BILLING, TRIAGE, TECH)], ()),
    ("B065 once back", [], [_round(TRIAGE, BILLING, TRIAGE)], ()),
    ("B065 longer way, once back", [], [_round(BILLING, TRIAGE, BILLING)], ()),
    (
        "B068 the same reason again",
        ["loop"],
        [
            turn(
                TRIAGE,
                *(
                    step
                    for _ in range(2)
                    for step in (moves(TRIAGE, BILLING, reason="refund"), moves(BILLING, TRIAGE, reason="refund"))
                ),
            )
        ],
        (),
    ),
    (
        "B041 hidden handoff messages",
        ["loop", "not_allowed"],
        [_round(TRIAGE, TECH, BILLING, TRIAGE, TECH, BILLING)],
        (),
    ),
    ("supervisor calls one agent thrice", [], _says("Done with all three.", *[calls(TRIAGE, BILLING)] * 3), ()),
    (
        "supervisor alternates two agents",
        [],
        _says("Both answered.", *[calls(TRIAGE, BILLING), calls(TRIAGE, TECH)] * 3),
        (),
    ),
    ("to and fro over turns", [], [_round(TRIAGE, BILLING), _round(BILLING, TRIAGE)], ()),
    # Handoffs that should not be.
    (
        "B012 two transfers at once",
        ["multiple_transfers"],
        _says("Your invoice is here.", *_TO_BILLING, moves(TRIAGE, TECH, "already_transferred")),
        (),
    ),
    (
        "B012 last one wins",
        ["multiple_transfers"],
        _says("Hello.", asks(TRIAGE), moves(TRIAGE, BILLING), moves(TRIAGE, TECH)),
        (),
    ),
    (
        "B013 tool and transfer",
        [],
        _says("On it.", asks(TRIAGE), runs(BILLING, "get_invoice"), moves(TRIAGE, BILLING)),
        (),
    ),
    (
        "B016 unknown tool",
        ["unknown_tool"],
        _says("It is Monday.", asks(TRIAGE), runs(TRIAGE, "get_date", "no such tool", error=True, known=False)),
        (),
    ),
    (
        "B017 mangled target",
        ["unregistered_target"],
        _says("One moment.", asks(TRIAGE), moves(TRIAGE, "billingbilling", "unregistered")),
        (),
    ),
    (
        "B018 to oneself",
        ["self_handoff"],
        _says("I am Billing.", asks(BILLING), moves(BILLING, BILLING, "self"), start=BILLING),
        (),
    ),
    (
        "B035 not allowed",
        ["not_allowed"],
        _says("Let me see.", asks(TECH), moves(TECH, MANAGER, "not_allowed"), start=TECH),
        (),
    ),
    ("B101 happened all the same", ["not_allowed"], _says("Yes?", asks(TECH), moves(TECH, MANAGER), start=TECH), ()),
    (
        "B101 another agent's tool",
        ["not_allowed"],
        _says("Hm.", asks(TECH), runs(TECH, "issue_refund"), start=TECH),
        (),
    ),
    (
        "B067 refused, then right",
        ["not_allowed"],
        _says("Your invoice.", asks(TRIAGE), moves(TRIAGE, MANAGER, "not_allowed"), *_TO_BILLING),
        (),
    ),
    (
        "B050 bad arguments, then right",
        [],
        _says(
            "Your invoice.",
            asks(TRIAGE),
            moves(TRIAGE, BILLING, "invalid_arguments", message="expected an object"),
            *_TO_BILLING,
        ),
        (),
    ),
    ("plain transfer", [], _says("Your invoice is attached.", *_TO_BILLING), ()),
    # Announced, and not made.
    ("B020 I will hand you", ["announced_not_made"], _says("I will hand you to Billing now."), ()),
    ("B020 transferring", ["announced_not_made"], _says("Transferring you to the billing team."), ()),
    ("B020 let me connect", ["announced_not_made"], _says("Sure! Let me connect you with our billing agent."), ()),
    ("B020 I'm passing", ["announced_not_made"], _says("I'm passing this on to TechSupportAgent. Please hold."), ()),
    ("B020 I have transferred", ["announced_not_made"], _says("I have transferred you to Tech Support."), ()),
    ("B020 you are being", ["announced_not_made"], _says("You are being transferred to BillingAgent, one moment."), ()),
    ("B020 we'll route", ["announced_not_made"], _says("Thanks. We'll route you to the tech support department."), ()),
    ("B020 escalating", ["announced_not_made"], _says("I am escalating this to a Manager.", start=BILLING), ()),
    ("B020 you will be put through", ["announced_not_made"], _says("You will now be connected to billing."), ()),
    (
        "B020 forwarding your request",
        ["announced_not_made"],
        _says("I'll forward your request to the Manager.", start=BILLING),
        (),
    ),
    ("B020 I'm going to", ["announced_not_made"], _says("I'm going to transfer you to Billing."), ()),
    ("B020 typographic", ["announced_not_made"], _says("I\u2019ll transfer you to our Billing Agent."), ()),
    ("B020 over to billing", ["announced_not_made"], _says("Over to billing!"), ()),
    (
        "announced and made",
        [],
        _says("This is Billing.", asks(TRIAGE, "I will hand you to Billing now.", "t"), moves(TRIAGE, BILLING)),
        (),
    ),
    ("told after it was made", [], _says("You have been transferred to Billing. How can I help?", *_TO_BILLING), ()),
    ("a question", [], _says("Shall I transfer you to Billing?"), ()),
    ("an offer", [], _says("I can transfer you to Billing."), ()),
    ("a condition", [], _says("If you want a refund, I will transfer you to Billing."), ()),
    ("a denial", [], _says("I cannot transfer you to Billing."), ()),
    ("not yet", [], _says("Before I transfer you to Billing, what is your order number?"), ()),
    ("would you like", [], _says("I'd be happy to connect you with Billing, would you like that?"), ()),
    ("a recommendation", [], _says("I recommend contacting our billing team."), ()),
    ("somebody else", [], _says("I will connect you with our partner bank."), ()),
    ("a thing that is sent", [], _says("I will send the invoice to your e-mail address.", start=BILLING), ()),
    ("what billing does", [], _says("BillingAgent handles refunds and passes hard cases on."), ()),
    ("payments are routed", [], _says("Your payment was routed through our billing system.", start=TECH), ()),
    ("sending a bill", [], _says("I'm sending you the details of your billing period.", start=TECH), ()),
    (
        "refused, and said so",
        ["not_allowed"],
        _says("I am transferring you to the Manager.", asks(TRIAGE), moves(TRIAGE, MANAGER, "not_allowed")),
        (),
    ),
    # Success over a failure.
    ("refund failed, claimed", ["error_masked"], _failed("Your refund has been processed."), ()),
    ("refund failed, done", ["error_masked"], _failed("Done!"), ()),
    ("refund failed, issued", ["error_masked"], _failed("I've issued the refund to your card."), ()),
    ("refund failed, all set", ["error_masked"], _failed("You're all set! Anything else?"), ()),
    (
        "cancel failed, cancelled",
        ["error_masked"],
        _failed(
            "I have cancelled your order.", tool="cancel_order", result={"status": "error", "error": "already shipped"}
        ),
        (),
    ),
    (
        "mail failed, sent",
        ["error_masked"],
        _failed("The email has been sent.", tool="send_email", result="timeout"),
        (),
    ),
    (
        "another tool worked",
        ["error_masked"],
        _failed("Your order is cancelled and the refund is on its way.", asks(BILLING), runs(BILLING, "cancel_order")),
        (),
    ),
    (
        "failure as an answer",
        ["error_masked"],
        [
            turn(
                BILLING,
                asks(BILLING),
                runs(BILLING, "issue_refund", "Error: no such transaction"),
                reply="The refund was successfully issued.",
            )
        ],
        (),
    ),
    (
        "B024 handoff failed, claimed",
        ["error_masked"],
        _says(
            "You have been handed over to billing.",
            asks(TRIAGE),
            moves(TRIAGE, BILLING, "invalid_arguments", message="expected an object"),
        ),
        (),
    ),
    ("refund will come", ["error_masked"], _failed("Great news, you will see the money within 5 days."), ()),
    ("refund failed, told", [], _failed("Unfortunately, the refund failed: your card has expired."), ()),
    ("refund failed, sorry", [], _failed("I'm sorry, I could not issue the refund. Everything else is done."), ()),
    ("refund failed, asks on", [], _failed("It seems your card has expired. Do you have another one?"), ()),
    (
        "refund failed, repaired",
        [],
        _failed(
            "Your refund has been processed.",
            asks(BILLING),
            runs(BILLING, "issue_refund", {"status": "REFUNDED"}, card=2),
        ),
        (),
    ),
    (
        "lookup failed, other work done",
        [],
        _failed(
            "Your order has been cancelled.",
            asks(BILLING),
            runs(BILLING, "cancel_order"),
            tool="get_invoice",
            result="Error: not found",
        ),
        (),
    ),
    (
        "refund failed, other work told",
        [],
        _failed("Your order has been cancelled.", asks(BILLING), runs(BILLING, "cancel_order")),
        (),
    ),
    (
        "refund worked",
        [],
        _says("Your refund has been processed.", asks(BILLING), runs(BILLING, "issue_refund"), start=BILLING),
        (),
    ),
    (
        "limit, and an honest reply",
        ["limit_hit"],
        _says("Done.", moves(TRIAGE, BILLING, "limit", message=_TOO_MANY), _LIMIT),
        (),
    ),
    ("refund failed, ticket", [], _failed("I have noted the failure and a colleague will look at it tomorrow."), ()),
    # What a provider would refuse.
    ("B036 unanswered call", ["invalid_history"], _wire(_USER, _call("c1"), _USER), ()),
    ("B040 cut between call and result", ["invalid_history"], _wire(_result("c1"), _USER), ()),
    ("B055 blank content", ["invalid_history"], _wire(_USER, {"role": "assistant", "content": " "}, _USER), ()),
    ("B057 tools missing", ["invalid_history"], _wire(_USER, _call("c1"), _result("c1"), tools=False), ()),
    ("B004 name too long", ["invalid_history"], _wire(_USER, _call("c1", name="t" * 80), _result("c1")), ()),
    ("CF answered twice", ["invalid_history"], _wire(_USER, _call("c1"), _result("c1"), _result("c1")), ()),
    ("B052 one id for two calls", ["invalid_history"], _wire(_USER, _call("a", "a"), _result("a")), ()),
    ("B036 all answered", [], _wire(_USER, _call("c1", "c2"), _result("c1"), _result("c2"), _USER), ()),
    ("plain question", [], _wire({"role": "system", "content": "Help."}, _USER), ()),
    # Again and again.
    (
        "the same call twice",
        ["repeated_call"],
        _says(
            "Hm.",
            asks(BILLING),
            runs(BILLING, "get_invoice", "none", id=7),
            asks(BILLING),
            runs(BILLING, "get_invoice", "none", id=7),
            start=BILLING,
        ),
        (),
    ),
    (
        "the same failure thrice",
        ["repeated_call"],
        _says(
            "It does not work.",
            *(
                step
                for _ in range(3)
                for step in (asks(BILLING), runs(BILLING, "issue_refund", "Error: x", error=True, id=1))
            ),
            start=BILLING,
        ),
        (),
    ),
    (
        "two mails",
        ["repeated_call"],
        _says(
            "Two mails were sent by mistake.",
            asks(BILLING),
            runs(BILLING, "send_email", to="a"),
            runs(BILLING, "send_email", to="a"),
            start=BILLING,
        ),
        (),
    ),
    (
        "other arguments",
        [],
        _says(
            "Found.",
            asks(BILLING),
            runs(BILLING, "get_invoice", "none", id=7),
            asks(BILLING),
            runs(BILLING, "get_invoice", "here", id=8),
            start=BILLING,
        ),
        (),
    ),
    (
        "another answer",
        [],
        _says(
            "It is ready.",
            asks(BILLING),
            runs(BILLING, "get_invoice", "pending", id=7),
            asks(BILLING),
            runs(BILLING, "get_invoice", "ready", id=7),
            start=BILLING,
        ),
        (),
    ),
    (
        "in two turns",
        [],
        [turn(BILLING, runs(BILLING, "get_invoice", id=7)), turn(BILLING, runs(BILLING, "get_invoice", id=7))],
        (),
    ),
    # Stuck, and back again.
    (
        "B071 the specialist has no way back",
        ["stuck"],
        [_round(TRIAGE, TECH), turn(TECH, reply="I only do crashes.")],
        [(TECH,), (BILLING,)],
    ),
    (
        "B071 stuck for two turns",
        ["stuck"],
        [_round(TRIAGE, TECH), turn(TECH), turn(TECH)],
        [(TECH,), (BILLING,), (BILLING,)],
    ),
    ("wrong and without a way back", ["stuck"], [_round(TRIAGE, TECH)], [(BILLING,)]),
    ("wrong, with a way back", [], [_round(TRIAGE, BILLING)], [(TECH,)]),
    ("B072 stays where it should", [], [_round(TRIAGE, TECH), turn(TECH)], [(TECH,), (TECH,)]),
    ("A, B, A over turns", ["bounce"], [turn(BILLING), _round(BILLING, TRIAGE), _round(TRIAGE, BILLING)], ()),
    ("A, B, C over turns", [], [turn(BILLING), _round(BILLING, TRIAGE), _round(TRIAGE, TECH)], ()),
    ("A, B, B over turns", [], [turn(BILLING), _round(BILLING, TRIAGE), turn(TRIAGE)], ()),
    # More of what is rare.
    (
        "three transfers in one answer",
        ["multiple_transfers"],
        _says(
            "Hello.",
            *_TO_BILLING,
            moves(TRIAGE, TECH, "already_transferred"),
            moves(TRIAGE, MANAGER, "already_transferred"),
        ),
        (),
    ),
    (
        "a transfer and the same again",
        ["multiple_transfers"],
        _says("Hello.", *_TO_BILLING, moves(TRIAGE, BILLING, "already_transferred")),
        (),
    ),
    ("two answers, a transfer each", [], _says("Hello.", *_TO_BILLING, asks(BILLING), moves(BILLING, MANAGER)), ()),
    (
        "nobody of that name",
        ["unregistered_target"],
        _says("Hello.", asks(TRIAGE), moves(TRIAGE, "Ghost", "unregistered")),
        (),
    ),
    (
        "an agent since renamed",
        ["unregistered_target"],
        _says("Hm.", asks(TRIAGE), moves(TRIAGE, "Refunds", "unregistered")),
        (),
    ),
    (
        "to oneself twice",
        ["self_handoff"],
        _says("Hm.", asks(TRIAGE), moves(TRIAGE, TRIAGE, "self"), asks(TRIAGE), moves(TRIAGE, TRIAGE, "self")),
        (),
    ),
    (
        "to oneself and accepted",
        ["self_handoff"],
        _says("Hm.", asks(BILLING), moves(BILLING, BILLING), start=BILLING),
        (),
    ),
    (
        "an invented tool",
        ["unknown_tool"],
        _says("Hm.", asks(BILLING), runs(BILLING, "teleport", known=False), start=BILLING),
        (),
    ),
    (
        "a tool of nobody, then a right one",
        ["unknown_tool"],
        _says(
            "Found.",
            asks(BILLING),
            runs(BILLING, "find_bill", known=False),
            asks(BILLING),
            runs(BILLING, "get_invoice"),
            start=BILLING,
        ),
        (),
    ),
    (
        "a leaf that is asked for more",
        ["stuck"],
        [_round(BILLING, MANAGER), turn(MANAGER)],
        [(MANAGER,), (TECH, BILLING)],
    ),
    ("a leaf to begin with", ["stuck"], [turn(TECH)], [(TRIAGE,)]),
    ("two ways back", [], [_round(TRIAGE, BILLING), turn(BILLING)], [(BILLING,), (TECH, MANAGER)]),
    (
        "there and back again over turns",
        ["bounce"],
        [turn(TRIAGE), _round(TRIAGE, BILLING), _round(BILLING, TRIAGE)],
        (),
    ),
    (
        "four turns between two desks",
        ["bounce"],
        [turn(TRIAGE), _round(TRIAGE, BILLING), _round(BILLING, TRIAGE), _round(TRIAGE, BILLING)],
        (),
    ),
)


# tau-bench: one agent, its tools, and a human to transfer to.

_AGENT, _HUMAN = "AirlineAgent", "HumanAgent"
_TAU: dict[int, frozenset[IncidentKind]] = {
    # The same booking, refused for the same reason, three times and more.
    58: frozenset({"repeated_call"}),
    109: frozenset({"repeated_call"}),
    111: frozenset({"repeated_call"}),
}


def _tau_bench(file: Path) -> Iterator[Labelled]:
    for number, conversation in enumerate(json.loads(file.read_bytes())):
        messages = [message for message in conversation["traj"] if message["role"] != "system"]
        topology = Topology(start=_AGENT, agents=(_AGENT, _HUMAN), edges=(Edge(source=_AGENT, target=_HUMAN),))
        turns = tuple(_tau_turns(messages))
        yield Labelled(
            f"tau-bench {number}", "tau-bench", Trace(topology=topology, turns=turns), _TAU.get(number, frozenset())
        )


def _tau_turns(messages: Sequence[dict[str, Any]]) -> Iterator[TurnTrace]:
    active = _AGENT
    steps: list[Step] = []
    user, reply = "", ""
    asked: dict[str, tuple[str, Any]] = {}
    began = active
    for message in (*messages, {"role": "user", "content": ""}):
        text = message.get("content") or ""
        if message["role"] == "user":
            if steps:
                yield TurnTrace(user=user, start_agent=began, end_agent=active, reply=reply, steps=tuple(steps))
            user, reply, steps, began = text, "", [], active
        elif message["role"] == "assistant":
            made = [call["function"] for call in message.get("tool_calls") or ()]
            asked |= {
                call["id"]: (call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in message.get("tool_calls") or ()
            }
            steps.append(
                ModelStep(agent=active, model="gpt-4o", text=text or None, calls=tuple(each["name"] for each in made))
            )
            reply = text or reply
        elif message["role"] == "tool":
            tool, arguments = asked.get(message["tool_call_id"], (message.get("name") or "", None))
            if tool == "transfer_to_human_agents":
                steps.append(Hop(source=active, target=_HUMAN, tool=tool))
                active = _HUMAN
            else:
                failed = text.startswith("Error")
                steps.append(ToolStep(agent=active, tool=tool, arguments=arguments, result=text, is_error=failed))


# Who&When: the order of speakers in logs of failures.


def _who_and_when(file: Path) -> Iterator[Labelled]:
    for line in file.read_text(encoding="utf-8").splitlines():
        log = json.loads(line)
        if log["id"].startswith("Hand-Crafted"):
            yield Labelled(log["id"], "Who&When", _orchestrated(log["speakers"]), frozenset())
        else:
            experts = [name for name, _ in groupby(name for name in log["speakers"] if name != "Computer_terminal")]
            letters = {name: chr(ord("a") + index) for index, name in enumerate(dict.fromkeys(experts))}
            loops = re.search(r"(.{2,})\1", "".join(letters[name] for name in experts)) is not None
            yield Labelled(log["id"], "Who&When", _group_chat(experts), frozenset({"loop"} if loops else ()))


def _group_chat(experts: Sequence[str]) -> Trace:
    steps: list[Step] = []
    for source, target in pairwise(experts):
        steps += [ModelStep(agent=source, model="m", text="..."), Hop(source=source, target=target)]
    first, last = experts[0], experts[-1]
    said = TurnTrace(user="hi", start_agent=first, end_agent=last, steps=tuple(steps))
    return Trace(topology=Topology(start=first, agents=tuple(dict.fromkeys(experts))), turns=(said,))


def _orchestrated(speakers: Sequence[str]) -> Trace:
    """The orchestrator has the word whenever it speaks; everybody else was called by it."""
    lead = "Orchestrator"
    steps: list[Step] = []
    for before, name in pairwise(speakers):
        steps.append(ModelStep(agent=name, model="m", text="..."))
        if name not in (lead, "human") and before != name:
            steps.insert(-1, Hop(source=lead, target=name, kind="call", depth=1))
    said = TurnTrace(user="hi", start_agent=lead, end_agent=lead, steps=tuple(steps))
    return Trace(topology=Topology(start=lead, agents=tuple(dict.fromkeys((lead, *speakers)))), turns=(said,))
