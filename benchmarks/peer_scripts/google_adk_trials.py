"""N eval cases of google-adk: two agents, one handoff (2 model calls), the tool trajectory scored, all in memory."""

# mypy: ignore-errors
# It runs in the peer's environment, which mypy does not see.

import asyncio
import json
import sys
import time
import warnings

warnings.simplefilter("ignore")

from google.adk.agents import LlmAgent  # noqa: E402
from google.adk.evaluation.base_eval_service import (  # noqa: E402
    EvaluateConfig,
    EvaluateRequest,
    InferenceConfig,
    InferenceRequest,
)
from google.adk.evaluation.eval_case import EvalCase, IntermediateData, Invocation  # noqa: E402
from google.adk.evaluation.eval_metrics import EvalMetric, EvalStatus  # noqa: E402
from google.adk.evaluation.in_memory_eval_sets_manager import InMemoryEvalSetsManager  # noqa: E402
from google.adk.evaluation.local_eval_service import LocalEvalService  # noqa: E402
from google.adk.models.base_llm import BaseLlm  # noqa: E402
from google.adk.models.llm_response import LlmResponse  # noqa: E402
from google.genai import types  # noqa: E402

REPLY = types.Part.from_text(text="You get it back.")
HANDOFF = types.FunctionCall(name="transfer_to_agent", args={"agent_name": "billing"})
USAGE = types.GenerateContentResponseUsageMetadata(
    prompt_token_count=10, candidates_token_count=5, total_token_count=15
)


class Scripted(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        is_billing = llm_request.config.system_instruction.startswith("Assist")
        part = REPLY if is_billing else types.Part(function_call=HANDOFF)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=USAGE)


def case(number: int) -> EvalCase:
    said = types.Part.from_text(text=f"I need a refund for invoice {number}.")
    return EvalCase(
        eval_id=str(number),
        conversation=[
            Invocation(
                user_content=types.Content(role="user", parts=[said]),
                final_response=types.Content(role="model", parts=[REPLY]),
                intermediate_data=IntermediateData(tool_uses=[HANDOFF]),
            )
        ],
    )


async def run(count: int) -> None:
    model = Scripted(model="scripted")
    billing = LlmAgent(name="billing", model=model, instruction="Assist with refunds.", description="Refunds.")
    triage = LlmAgent(name="triage", model=model, instruction="Transfer to the right agent.", sub_agents=[billing])
    manager = InMemoryEvalSetsManager()
    manager.create_eval_set("bench", "set")
    for number in range(count):
        manager.add_eval_case("bench", "set", case(number))
    service = LocalEvalService(root_agent=triage, eval_sets_manager=manager)
    asked = InferenceRequest(app_name="bench", eval_set_id="set", inference_config=InferenceConfig(parallelism=8))
    results = [result async for result in service.perform_inference(asked)]
    config = EvaluateConfig(eval_metrics=[EvalMetric(metric_name="tool_trajectory_avg_score", threshold=1.0)])
    request = EvaluateRequest(inference_results=results, evaluate_config=config)
    statuses = [found.final_eval_status async for found in service.evaluate(request)]
    assert statuses == [EvalStatus.PASSED] * count


began = time.process_time()
asyncio.run(run(int(sys.argv[1])))
print(json.dumps({"run": time.process_time() - began}))
