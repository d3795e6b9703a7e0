"""A Messages provider that refuses what Anthropic's API would refuse, and otherwise plays scripts.

Source: Anthropic's API reference, "Create a message", and the API's own refusals.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from raw_upstream import RawRequest, Step, whole

__all__ = ["strict"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MEMBERS = {
    "cache_control", "container", "max_tokens", "messages", "metadata", "model", "output_config",
    "service_tier", "stop_sequences", "stream", "system", "temperature", "thinking", "tool_choice", "tools",
    "top_k", "top_p",
}  # fmt: skip


def strict(script: Sequence[Step]) -> Callable[[RawRequest], Sequence[Step]]:
    """Return a script that is played only for a request that the API would accept."""

    def play(request: RawRequest) -> Sequence[Step]:
        fault = _fault(request)
        if not fault:
            return script
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": fault}}
        return whole(json.dumps(error).encode(), status="400 Bad Request")

    return play


def _fault(request: RawRequest) -> str:
    """Return what is wrong with a request, or an empty string."""
    if not request.header("x-api-key") or request.header("authorization"):
        return "the key stands in x-api-key alone"
    if not request.header("anthropic-version"):
        return "anthropic-version: header is required"
    body = json.loads(request.body)
    if unknown := set(body) - _MEMBERS:
        return f"{unknown}: Extra inputs are not permitted"
    if type(body.get("max_tokens")) is not int or body["max_tokens"] < 0:
        return "max_tokens: Field required"
    return _tools_fault(body) or _messages_fault(body["messages"])


def _tools_fault(body: dict[str, Any]) -> str:
    tools = body.get("tools") or []
    names = [tool["name"] for tool in tools]
    if len(set(names)) != len(names) or not all(map(_NAME.fullmatch, names)):
        return "tools: Tool names must be unique"
    if any(tool.get("input_schema", {}).get("type") != "object" for tool in tools if "type" not in tool):
        return "tools.input_schema.type: Field required"
    choice = body.get("tool_choice")
    if choice is not None and (not tools or choice.get("type") not in ("auto", "any", "none", "tool")):
        return "tool_choice may only be specified while providing tools"
    if choice is not None and choice.get("type") == "tool" and choice["name"] not in names:
        return "tool_choice.name: not found"
    marked = json.dumps(body).count('"cache_control"')
    return "A maximum of 4 blocks with cache_control may be provided." if marked > 4 else ""


def _messages_fault(messages: list[dict[str, Any]]) -> str:
    waiting: list[str] = []
    seen: set[str] = set()
    for at, message in enumerate(messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if results != waiting or [block["type"] for block in blocks[: len(results)]] != ["tool_result"] * len(
            results
        ):
            return f"messages.{at}: tool_use ids were found without tool_result blocks immediately after"
        if any(block["type"] == "text" and not block["text"] for block in blocks):
            return f"messages.{at}: text content blocks must be non-empty"
        if any(block["type"] == "thinking" and block["signature"] != "c2ln" for block in blocks):
            return f"messages.{at}: Invalid `signature` in `thinking` block"
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if any(not isinstance(call["input"], dict) or not _NAME.fullmatch(call["id"]) for call in calls):
            return f"messages.{at}.content: Input should be a valid dictionary"
        waiting = [call["id"] for call in calls]
        if seen & set(waiting):
            return f"messages.{at}: `tool_use` ids must be unique"
        seen |= set(waiting)
    return "an answer to each call is missing" if waiting else ""
