"""A task that does nothing, its answer compared, nothing stored: N cases of pydantic-evals."""

# mypy: ignore-errors
# It runs in the peer's environment, which mypy does not see.

import json
import sys
import time

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EqualsExpected

count, began = int(sys.argv[1]), time.process_time()


async def task(text: str) -> str:
    return text


cases = [Case(name=str(number), inputs=str(number), expected_output=str(number)) for number in range(count)]
report = Dataset(name="bench", cases=cases, evaluators=[EqualsExpected()]).evaluate_sync(task, progress=False)
assert len(report.cases) == count
print(json.dumps({"run": time.process_time() - began}))
