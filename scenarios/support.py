"""The multi-tier support swarm of the seed document, with instructions that help a very small model."""

from __future__ import annotations

from chatflow_runtime import Agent, tool

MODEL = "openai/smollm2-135m-instruct"


@tool
def issue_refund(transaction_id: str, amount: float) -> dict[str, object]:
    """Process a refund back to customer original payment method."""
    return {"status": "REFUNDED", "transaction_id": transaction_id, "amount": amount}


@tool
def lookup_kb_article(topic: str) -> str:
    """Search knowledge base for troubleshooting steps."""
    return f"Knowledge base instructions for {topic}: Clear cache and restart application."


def build() -> Agent:
    """The agent that welcomes the user, with its peers; each has the document's own instructions, and more."""
    billing = Agent(
        name="BillingAgent",
        instructions=(
            "Assist with refunds and payment disputes. Use issue_refund when appropriate.\n"
            "If the user asks for tech support: call:transfer_to_triageagent:\n"
            "Sample answers:\n"
            "text: I can see the charge.\n"
            "text: Thank you for waiting.\n"
            "text: You are welcome.\n"
            "text: Your invoice comes by mail.\n"
            "text: Have a nice day.\n"
            "text: Your refund is on its way."
        ),
        tools=[issue_refund],
        model=MODEL,
    )
    tech_support = Agent(
        name="TechSupportAgent",
        instructions=(
            "Assist with software errors. Use lookup_kb_article for troubleshooting.\n"
            "If the user asks about billing: call:transfer_to_triageagent:\n"
            "Sample answers:\n"
            "text: I am sorry about the error.\n"
            "text: Thank you for waiting.\n"
            "text: You are welcome.\n"
            "text: Please restart the app.\n"
            "text: Have a nice day.\n"
            "text: Please clear the cache."
        ),
        tools=[lookup_kb_article],
        model=MODEL,
    )
    triage = Agent(
        name="TriageAgent",
        instructions=(
            "Welcome the user. Ask what they need help with. "
            "Transfer billing/refund issues to BillingAgent and technical bugs to TechSupportAgent.\n"
            "text: Hello! How can I help you?\n"
            "text: You are welcome."
        ),
        handoffs=[billing, tech_support],
        model=MODEL,
    )
    billing.add_handoff(triage)
    tech_support.add_handoff(triage)
    return triage
