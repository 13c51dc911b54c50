"""What the runtime raises, drawn as a tree.

ChatflowError
├── DefinitionError       also a ValueError: an agent, tool, handoff or runner that cannot work as declared
├── AgentHandoffError     a transfer tool leads to an agent that the runner does not know
├── EmptyResponseError    a model answered with neither text nor calls
├── SessionError          a session that cannot be opened or continued
├── ScriptError           a scripted engine ran out of answers, or has some left
└── RunningLoopError      also a RuntimeError: run() was called where only run_async() can work
"""

from __future__ import annotations


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


class RunningLoopError(ChatflowError, RuntimeError):
    """`run()` was called inside a running event loop."""
