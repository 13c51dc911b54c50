"""`python -m chatflow_eval`, the same as `chatflow-eval`."""

from chatflow_eval.cli import main

main()
