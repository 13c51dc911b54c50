"""N test cases of deepeval with a metric that does nothing, its cache off."""

# mypy: ignore-errors
# It runs in the peer's environment, which mypy does not see.

import json
import sys
import time

from deepeval import evaluate
from deepeval.evaluate.configs import CacheConfig, DisplayConfig
from deepeval.metrics import BaseMetric
from deepeval.test_case import LLMTestCase


class Nothing(BaseMetric):
    __name__ = "Nothing"
    threshold = 0.5

    def measure(self, test_case, *args, **kwargs):
        self.score, self.success, self.reason = 1.0, True, ""
        return self.score

    async def a_measure(self, test_case, *args, **kwargs):
        return self.measure(test_case)

    def is_successful(self):
        return self.success


count, began = int(sys.argv[1]), time.process_time()
cases = [LLMTestCase(input=str(number), actual_output=str(number)) for number in range(count)]
result = evaluate(
    cases,
    [Nothing()],
    cache_config=CacheConfig(write_cache=False),
    display_config=DisplayConfig(print_results=False, show_indicator=False),
)
assert len(result.test_results) == count
print()
print(json.dumps({"run": time.process_time() - began}))
