"""The reference runtime: agents that hand a conversation to one another.

The public names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chatflow_runtime.agent import Agent
    from chatflow_runtime.completions import join_completion, parse_completion
    from chatflow_runtime.engine import (
        Answer,
        Call,
        Engine,
        ModelRequest,
        Say,
        ScriptedEngine,
        Settings,
        ToolSchema,
        Transfer,
        using,
    )
    from chatflow_runtime.exceptions import (
        AgentHandoffError,
        ChatflowError,
        DefinitionError,
        EmptyResponseError,
        GraphError,
        RunningLoopError,
        ScriptError,
        SessionError,
        StepLimitError,
    )
    from chatflow_runtime.handoffs import HandoffTool, handoff
    from chatflow_runtime.keyword_engine import KeywordEngine
    from chatflow_runtime.limits import Limits
    from chatflow_runtime.litellm_engine import LiteLLMEngine
    from chatflow_runtime.memory import BaseSessionStore, SessionContext, SessionStore
    from chatflow_runtime.runner import Runner
    from chatflow_runtime.sqlite_store import SQLiteSessionStore
    from chatflow_runtime.tools import Tool, tool
    from chatflow_runtime.types import (
        AgentResponse,
        AssistantMessage,
        Handoff,
        LimitReached,
        ToolCall,
        ToolResult,
        Usage,
        UserMessage,
    )

__all__ = [
    "Agent",
    "AgentHandoffError",
    "AgentResponse",
    "Answer",
    "AssistantMessage",
    "BaseSessionStore",
    "Call",
    "ChatflowError",
    "DefinitionError",
    "EmptyResponseError",
    "Engine",
    "GraphError",
    "Handoff",
    "HandoffTool",
    "KeywordEngine",
    "LimitReached",
    "Limits",
    "LiteLLMEngine",
    "ModelRequest",
    "Runner",
    "RunningLoopError",
    "SQLiteSessionStore",
    "Say",
    "ScriptError",
    "ScriptedEngine",
    "SessionContext",
    "SessionError",
    "SessionStore",
    "Settings",
    "StepLimitError",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ToolSchema",
    "Transfer",
    "Usage",
    "UserMessage",
    "handoff",
    "join_completion",
    "parse_completion",
    "tool",
    "using",
]

_HOME = {
    "Agent": "agent",
    "AgentHandoffError": "exceptions",
    "AgentResponse": "types",
    "Answer": "engine",
    "AssistantMessage": "types",
    "BaseSessionStore": "memory",
    "Call": "engine",
    "ChatflowError": "exceptions",
    "DefinitionError": "exceptions",
    "EmptyResponseError": "exceptions",
    "Engine": "engine",
    "GraphError": "exceptions",
    "Handoff": "types",
    "HandoffTool": "handoffs",
    "KeywordEngine": "keyword_engine",
    "LimitReached": "types",
    "Limits": "limits",
    "LiteLLMEngine": "litellm_engine",
    "ModelRequest": "engine",
    "Runner": "runner",
    "RunningLoopError": "exceptions",
    "SQLiteSessionStore": "sqlite_store",
    "Say": "engine",
    "ScriptError": "exceptions",
    "ScriptedEngine": "engine",
    "SessionContext": "memory",
    "SessionError": "exceptions",
    "SessionStore": "memory",
    "Settings": "engine",
    "StepLimitError": "exceptions",
    "Tool": "tools",
    "ToolCall": "types",
    "ToolResult": "types",
    "ToolSchema": "engine",
    "Transfer": "engine",
    "Usage": "types",
    "UserMessage": "types",
    "handoff": "handoffs",
    "join_completion": "completions",
    "parse_completion": "completions",
    "tool": "tools",
    "using": "engine",
}
"""Public names and the modules that define them."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
