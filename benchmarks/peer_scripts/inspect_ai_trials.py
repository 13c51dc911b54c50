"""N samples of inspect-ai: an agent hands over to another and has the last word (3 model calls), scored, logged."""

# mypy: ignore-errors
# It runs in the peer's environment, which mypy does not see.

import json
import sys
import tempfile
import time

from inspect_ai import Task, eval  # noqa: A004
from inspect_ai.agent import handoff, react
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes

REPLY = "You get it back."


def answer(messages, tools, tool_choice, config):
    if any(tool.name == "transfer_to_billing" for tool in tools) and messages[-1].role == "user" and len(messages) < 4:
        output = ModelOutput.for_tool_call("mockllm/model", "transfer_to_billing", {})
    else:
        output = ModelOutput.from_content("mockllm/model", REPLY)
    # Where it is not told, the mock counts tokens with a vocabulary that it fetches.
    output.usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
    return output


count, began = int(sys.argv[1]), time.process_time()
billing = react(name="billing", description="Refunds.", prompt="Assist with refunds.", submit=False)
triage = react(prompt="Transfer to the right agent.", tools=[handoff(billing)], submit=False)
samples = [
    Sample(id=number, input=f"I need a refund for invoice {number}.", target=REPLY) for number in range(1, count + 1)
]
with tempfile.TemporaryDirectory() as folder:
    log = eval(
        Task(dataset=samples, solver=triage, scorer=includes()),
        model=get_model("mockllm/model", custom_outputs=answer),
        log_dir=folder,
        display="none",
    )[0]
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert any(message.role == "tool" for message in log.samples[0].messages)
print(json.dumps({"run": time.process_time() - began}))
