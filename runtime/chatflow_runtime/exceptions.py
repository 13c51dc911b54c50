"""What the runtime raises, drawn as a tree.

ChatflowError
├── DefinitionError       also a ValueError: an agent, tool, handoff or runner that cannot work as declared
├── AgentHandoffError     a transfer tool leads to an agent that the runner does not know
├── EmptyResponseError    a model answered with neither text nor calls
├── SessionError          a session that cannot be opened or continued
├── ScriptError           a scripted engine ran out of answers, or has some left
├── GraphError            a graph was sent where it has no node, or a node gave no state that can go on
│   └── StepLimitError    a graph did not end within its step limit; holds the state it reached
└── RunningLoopError      also a RuntimeError: run() was called where only run_async() can work
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chatflow_runtime.states import MessageState


class ChatflowError(Exception):
    """Anything the runtime raises on its own account."""


class DefinitionError(ChatflowError, ValueError):
    """An agent, tool, handoff or runner that cannot work as declared."""


class AgentHandoffError(ChatflowError):
    """A transfer tool leads to an agent that is not registered with the runner (first seed document)."""


class EmptyResponseError(ChatflowError):
    """A model answered with neither text nor tool calls."""


class SessionError(ChatflowError):
    """A session that cannot be opened or continued."""


class ScriptError(ChatflowError):
    """A scripted engine was asked for more answers than its script holds, or for fewer."""


class GraphError(ChatflowError):
    """A graph was sent where it has no node, or one of its nodes gave no state that can go on."""


class StepLimitError(GraphError):
    """A graph did not end within its step limit (third seed document)."""

    def __init__(self, message: str, state: MessageState) -> None:
        super().__init__(message, state)
        self.state = state
        """The state that was reached."""

    def __str__(self) -> str:
        return str(self.args[0])


class RunningLoopError(ChatflowError, RuntimeError):
    """`run()` was called inside a running event loop."""
