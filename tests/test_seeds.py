"""The seed documents' Python blocks run as they stand, under our import names and with a script for the model."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chatflow_runtime import Agent, AgentHandoffError, Call, Handoff, Runner, ScriptedEngine, Transfer, using
from chatflow_runtime.engine import Answer, ModelRequest, Scripted
from chatflow_runtime.naming import stable_tool_name
from chatflow_runtime.types import AssistantMessage, ToolResult, UserMessage

SEEDS = Path("/work/shared/seeds")

Namespace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """One seed document: where it is, how its blocks and sections look, and what its import names are here."""

    file: str
    blocks: Callable[[str], Iterator[Block]]
    imports: Mapping[str, str]
    """Its import paths to ours, whole paths only."""
    preambles: Mapping[str, Callable[[], Namespace]] = field(default_factory=dict)
    """Section to what its blocks leave out."""
    scripts: Mapping[str, Sequence[Scripted]] = field(default_factory=dict)
    """Section to what the model answers in it."""

    def sections(self) -> dict[str, list[Block]]:
        """The document's blocks by section, in order; the test is skipped where the document is not at hand."""
        path = SEEDS / self.file
        if not path.exists():
            pytest.skip(f"{path} is not on this machine; seed documents are never committed")
        found: dict[str, list[Block]] = {}
        for block in self.blocks(path.read_text(encoding="utf-8")):
            found.setdefault(block.section, []).append(block)
        return found

    def run(self, section: str) -> Namespace:
        """What a section's blocks, run one after the other, leave behind."""
        namespace = self.preambles.get(section, dict)()
        with using(ScriptedEngine(self.scripts.get(section, ()))):
            for block in self.sections()[section]:
                tree = _Renamed(self.imports).visit(ast.parse(block.code))
                ast.increment_lineno(tree, block.line - 1)
                exec(compile(tree, str(SEEDS / self.file), "exec"), namespace)
        return namespace


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines of Python in a document."""

    section: str
    line: int
    code: str


class _Renamed(ast.NodeTransformer):
    """Import statements with a document's paths replaced by ours; a path that the table lacks is an error."""

    def __init__(self, imports: Mapping[str, str]) -> None:
        self._imports = imports

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        root = (node.module or "").partition(".")[0]
        if root in {path.partition(".")[0] for path in self._imports}:
            node.module = self._imports[node.module or ""]
        return node


_HEADING = re.compile(r"(?P<title>.+)Copy Anchor Link")
_STARTS = re.compile(r"(from|import) \w|# ")


def plain_blocks(text: str) -> Iterator[Block]:
    """Blocks of a document that has lost its fences: from an import or a comment on, as far as the lines are Python."""
    lines = text.splitlines()
    section, index = "", 0
    while index < len(lines):
        if heading := _HEADING.fullmatch(lines[index]):
            section = heading["title"].strip()
        if _STARTS.match(lines[index]):
            end = max((end for end in range(index + 1, len(lines) + 1) if _is_python(lines[index:end])), default=index)
            if end > index:
                yield Block(section, index + 1, "\n".join(lines[index:end]))
                index = end
                continue
        index += 1


def _is_python(lines: Sequence[str]) -> bool:
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


_TITLE = re.compile(r"#{1,3} (?P<title>.+)")
_FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*).*")


def fenced_blocks(text: str) -> Iterator[Block]:
    """Fenced blocks of Python, indented or not, under the last heading above them."""
    section, start, python = "", 0, False
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if fence := _FENCE.fullmatch(line):
            if start and python:
                yield Block(section, start, textwrap.dedent("\n".join(lines[start - 1 : number - 1])))
            start, python = (0, False) if start else (number + 1, fence["language"] == "python")
        elif not start and (heading := _TITLE.fullmatch(line)):
            section = heading["title"]


# --- first document: chatflow-agent


def unreachable_agents() -> Namespace:
    """The section's runner, and an agent that its graph does not reach."""
    return {
        "runner": Runner(starting_agent=Agent(name="Triage")),
        "specialist_agent": Agent(name="Specialist", instructions="Solve hard cases."),
    }


CHATFLOW = Document(
    file="chatflow-agent-handoffs.md",
    blocks=plain_blocks,
    imports={"chatflow_agent": "chatflow_runtime", "chatflow_agent.core.memory": "chatflow_runtime.memory"},
    preambles={"1. Unreachable Agents in Registry": unreachable_agents},
    scripts={
        "Complete Example: Multi-Tier Support Swarm": [
            Transfer("BillingAgent", "unexpected charge"),
            Call("issue_refund", {"transaction_id": "t-1", "amount": 20}),
            "Your refund of 20 is on its way.",
        ]
    },
)


def test_the_first_document_has_these_blocks() -> None:
    assert {section: len(blocks) for section, blocks in CHATFLOW.sections().items()} == {
        "Method 1: Constructor Declaration": 1,
        "Method 2: Bidirectional & Cyclic Handoffs": 1,
        "Cycle Prevention & Turn Limits": 1,
        "Complete Example: Multi-Tier Support Swarm": 1,
        "1. Unreachable Agents in Registry": 1,
    }


def test_constructor_declaration() -> None:
    triage = CHATFLOW.run("Method 1: Constructor Declaration")["triage_agent"]
    billing, technical = triage.get_all_tools()
    assert [billing.name, technical.name] == ["transfer_to_billingspecialist", "transfer_to_technicalsupport"]
    assert billing.description.startswith(
        "Hand off the dialogue to 'BillingSpecialist'. Target agent specialty: Handle payments, invoice queries"
    )
    assert billing.func(reason="an invoice") == Handoff(target_agent_name="BillingSpecialist", reason="an invoice")


def test_bidirectional_and_cyclic_handoffs() -> None:
    assert CHATFLOW.run("Method 2: Bidirectional & Cyclic Handoffs")["support"].name == "Support"


def test_turn_limits() -> None:
    runner = CHATFLOW.run("Cycle Prevention & Turn Limits")["runner"]
    assert (runner.limits.max_handoffs_per_turn, runner.limits.max_tool_iterations) == (3, 6)


def test_the_complete_example(capsys: pytest.CaptureFixture[str]) -> None:
    """With the lifecycle's five steps."""
    names = CHATFLOW.run("Complete Example: Multi-Tier Support Swarm")
    assert capsys.readouterr().out.splitlines() == [
        "Active Agent: BillingAgent",
        "Response: Your refund of 20 is on its way.",
        f"Handoff: {Handoff('BillingAgent', 'unexpected charge')}",
    ]
    session = names["store"].load("customer-session-101")
    assert session.active_agent_name == "BillingAgent"
    user, wish, success, call, refund, reply = session.history
    assert isinstance(user, UserMessage)
    assert [message.agent for message in (wish, call, reply) if isinstance(message, AssistantMessage)] == [
        "TriageAgent",
        "BillingAgent",
        "BillingAgent",
    ]
    assert isinstance(success, ToolResult)
    assert success.content == {
        "status": "HANDOFF_SUCCESS",
        "transferred_to": "BillingAgent",
        "reason": "unexpected charge",
    }
    assert refund.content == {"status": "REFUNDED", "transaction_id": "t-1", "amount": 20}


def test_unreachable_agents_are_registered() -> None:
    assert list(CHATFLOW.run("1. Unreachable Agents in Registry")["runner"].agents) == ["Triage", "Specialist"]


def test_a_missing_agent_is_the_documents_error() -> None:
    start = Agent(name="Triage")
    runner = Runner(starting_agent=start)
    start.add_handoff(Agent(name="Specialist"))
    with pytest.raises(AgentHandoffError), using(ScriptedEngine([Transfer("Specialist")])):
        runner.run(session_id="s", user_message="hi")


def test_the_stable_versions_names_are_the_documents_expression() -> None:
    """The one line of code that stands inside a sentence."""
    path = SEEDS / CHATFLOW.file
    if not path.exists():
        pytest.skip(f"{path} is not on this machine; seed documents are never committed")
    (line,) = [line for line in path.read_text(encoding="utf-8").splitlines() if "clean = re.sub(" in line]
    code = line[line.index("clean = ") :].rstrip(".")
    for name in ("Billing Agent", " AtenciónAlCliente", "__x__", "日本"):
        namespace: Namespace = {"re": re, "name": name}
        exec(code, namespace)
        assert stable_tool_name(name) == "transfer_to_" + namespace["clean"]


# --- second document: PraisonAI


def answering(request: ModelRequest) -> Answer:
    """Whoever is asked says so."""
    return Answer(f"{request.agent}: {request.history[-1]}")


PRAISONAI = Document(
    file="praisonai-handoffs.md",
    blocks=fenced_blocks,
    imports={
        "praisonaiagents": "chatflow_runtime.dialects.praisonai",
        "praisonaiagents.agent.handoff": "chatflow_runtime.dialects.praisonai",
    },
    scripts={
        "Agent Handoffs": [Transfer("Refunds"), "Which order?", "Which order do you mean?"],
        "Quick Start": [
            *(Transfer("Refunds"), "Which order?", "Which order do you mean?"),
            *(Call("escalate_to_manager"), "I am sorry.", "The manager is sorry."),
        ],
        "Pattern 1 — Callback on handoff": [Transfer("Billing"), "By mistake.", "It was a mistake."],
        "Pattern 2 — Filter passed history": [Transfer("TechSupport"), "Update it.", "Please update it."],
        "Pattern 3 — Type-safe handoff": [
            Call("transfer_to_specialist", {"priority": 1, "description": "The database is down."}),
            "Restarted.",
            "It was restarted.",
        ],
        "Running handoffs in parallel": [answering] * 3,
        "Handoff Results": ["The charge was taken back."],
    },
)


def test_the_second_document_has_these_blocks() -> None:
    assert {section: len(blocks) for section, blocks in PRAISONAI.sections().items()} == {
        "Agent Handoffs": 1,
        "Quick Start": 2,
        "Pattern 1 — Callback on handoff": 1,
        "Pattern 2 — Filter passed history": 1,
        "Pattern 3 — Type-safe handoff": 1,
        "Running handoffs in parallel": 2,
        "Per-Handoff concurrency": 1,
        "Handoff Results": 1,
    }


@pytest.mark.parametrize("section", ["Agent Handoffs", "Quick Start"])
def test_agents_are_passed_directly_or_configured(section: str) -> None:
    assert PRAISONAI.run(section)["triage"].chat_history[-1]["role"] == "assistant"


def test_a_callback_on_handoff(capsys: pytest.CaptureFixture[str]) -> None:
    PRAISONAI.run("Pattern 1 — Callback on handoff")
    assert capsys.readouterr().out == "Transfer: Triage -> Billing\n"


def test_a_filter_and_a_typed_handoff() -> None:
    assert (
        PRAISONAI.run("Pattern 2 — Filter passed history")["triage"].chat_history[1]["content"] == "Please update it."
    )
    (made,) = PRAISONAI.run("Pattern 3 — Type-safe handoff")["triage"].get_all_tools()
    assert made.parameters["required"] == ["priority", "description"]


def test_handoffs_in_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    PRAISONAI.run("Running handoffs in parallel")
    assert capsys.readouterr().out.splitlines() == ["Billing True", "Refunds True", "TechSupport True"]


def test_handoffs_assigned_with_limits_of_their_own() -> None:
    names = PRAISONAI.run("Per-Handoff concurrency")
    assert names["triage"].handoff_tools == (names["to_billing"], names["to_refunds"])


def test_a_handoffs_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert PRAISONAI.run("Handoff Results")["result"].target_agent == "Billing"
    assert capsys.readouterr().out == "The charge was taken back.\n"
