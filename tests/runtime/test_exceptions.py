"""What the runtime raises can be caught as one thing, and as what it is elsewhere."""

from __future__ import annotations

import pickle

import pytest

from chatflow_runtime import exceptions


@pytest.mark.parametrize(
    "kind",
    [
        exceptions.AgentHandoffError,
        exceptions.DefinitionError,
        exceptions.EmptyResponseError,
        exceptions.GraphError,
        exceptions.RunningLoopError,
        exceptions.ScriptError,
        exceptions.SessionError,
    ],
)
def test_everything_is_a_chatflow_error_and_travels_between_processes(kind: type[Exception]) -> None:
    error = kind("why")
    assert isinstance(error, exceptions.ChatflowError)
    assert str(pickle.loads(pickle.dumps(error))) == "why"


def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(exceptions.DefinitionError, ValueError)
    assert issubclass(exceptions.RunningLoopError, RuntimeError)
