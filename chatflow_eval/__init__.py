"""chatflow-eval: test and evaluate handoff routing between LLM agents."""

__version__ = "0.1.0"
