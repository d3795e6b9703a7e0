"""Describes a server tool call for a client that asked to see it."""

from typing import Any

import orjson

from proxy.base.events import ToolCall, ToolProgress, ToolResult
from proxy.records.rows import recorded_call_id

_MAX_SHOWN = 200


def trace_call(call: ToolCall, arguments: Any) -> dict[str, Any]:
    """Return ``x_toolrelay`` for a call that starts; ``arguments`` are redacted."""
    return {
        "type": "tool_call",
        "call_id": recorded_call_id(call.call_id),
        "name": call.name,
        "arguments": arguments,
        "status": "in_progress",
        "ms": 0,
    }


def trace_progress(call: ToolCall, progress: ToolProgress) -> dict[str, Any]:
    """Return ``x_toolrelay`` for a call's progress, without the tool's message, which may quote its result.

    A call that an agent made is shown like any other, with the agent's call id as its ``parent``.
    """
    if (inner := progress.inner) is not None:
        shown = (
            trace_call(inner.call, inner.arguments)
            if inner.result is None
            else trace_result(inner.call, inner.result)
        )
        return {**shown, "parent": recorded_call_id(call.call_id)}
    return {
        "type": "tool_progress",
        "call_id": recorded_call_id(call.call_id),
        "name": call.name,
        "progress": progress.done,
        "total": progress.total,
        "status": "in_progress",
    }


def trace_result(call: ToolCall, result: ToolResult) -> dict[str, Any]:
    """Return ``x_toolrelay`` for a call that has ended; its result is redacted."""
    outcome: dict[str, Any] = (
        {"result": result.redacted}
        if result.ok
        else {"error": {"code": result.error_code, "message": result.safe_message}}
    )
    return {
        "type": "tool_result",
        "call_id": recorded_call_id(call.call_id),
        "name": call.name,
        **outcome,
        "status": "completed" if result.ok else "failed",
        "ms": round(result.milliseconds, 1),
    }


def reasoning_line(call: ToolCall, result: ToolResult) -> str:
    """Return one line of reasoning about a call."""
    return _line(call, result) + "\n"


def status_line(call: ToolCall, result: ToolResult) -> str:
    """Return one line of ordinary text about a call, in Markdown."""
    return f"> {_line(call, result)}"


def _line(call: ToolCall, result: ToolResult) -> str:
    arguments = ""
    if isinstance(result.arguments_redacted, dict):
        arguments = ", ".join(
            f"{key}={orjson.dumps(value).decode()}" for key, value in result.arguments_redacted.items()
        )[:_MAX_SHOWN]
    outcome = "done" if result.ok else f"failed: {result.error_code}"
    return f"{call.name}({arguments}): {outcome} in {result.milliseconds:.0f} ms"
