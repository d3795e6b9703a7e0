"""The public API for authors of hooks: what a hook is asked, and what it may answer."""

from proxy.hooks.contract import (
    AfterTool,
    BeforeRequest,
    BeforeTool,
    OutcomeChange,
    Refusal,
    Request,
    RequestChange,
    RequestText,
    ToolChange,
    ToolOutcome,
    ToolUse,
)

__all__ = [
    "AfterTool",
    "BeforeRequest",
    "BeforeTool",
    "OutcomeChange",
    "Refusal",
    "Request",
    "RequestChange",
    "RequestText",
    "ToolChange",
    "ToolOutcome",
    "ToolUse",
]
