"""Loading a YAML data set of N cases with pydantic-evals."""

# mypy: ignore-errors
# It runs in the peer's environment, which mypy does not see.

import json
import sys
import tempfile
import time
from pathlib import Path

from pydantic_evals import Dataset

count = int(sys.argv[1])
case = """\
- name: refund-{0}
  inputs: I have an unexpected charge on invoice {0} and need a refund, please.
  expected_output: I have looked at invoice {0}; the charge was a mistake, and you get it back.
  metadata: {{tags: [billing], route: TriageAgent -> BillingAgent}}
"""

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "cases.yaml")
    file.write_text("name: bench\ncases:\n" + "".join(case.format(number) for number in range(count)), encoding="utf-8")
    began = time.process_time()
    assert len(Dataset[str, str, dict].from_file(file).cases) == count
print(json.dumps({"run": time.process_time() - began}))
