"""Compares the conversations of requests, of any dialect, without what may differ between two runs."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

_RESULT_ROLES: Final = ("tool", "function")
_TEXT_PARTS: Final = ("text", "input_text", "output_text")

ComparableConversation = list[Any]
"""The messages or input items of a request, without anything that may differ between two runs."""


def comparable_conversation(request: Mapping[str, Any]) -> tuple[str, ComparableConversation]:
    """Return the name of the field with the request's conversation, and the conversation in comparable form.

    Results of tools, ids of calls and items, and empty fields are left out. Arguments are compared as JSON,
    and a list of text parts as its text.
    """
    if "messages" in request or "input" not in request:
        messages = request.get("messages")
        return "messages", [_message(m) for m in messages] if isinstance(messages, list) else []
    items = request["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    return "input", [_item(item) for item in items] if isinstance(items, list) else []


def results_of(request: Mapping[str, Any]) -> list[str]:
    """Return the tool results in a request as texts; a result that is not text becomes JSON."""
    messages, items = request.get("messages"), request.get("input")
    contents = [
        message.get("content")
        for message in (messages if isinstance(messages, list) else ())
        if isinstance(message, dict) and message.get("role") in _RESULT_ROLES
    ]
    contents += [
        item.get("output")
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict) and str(item.get("type", "")).endswith("_call_output")
    ]
    texts = [_content(content) for content in contents]
    return [text if isinstance(text, str) else orjson.dumps(text).decode() for text in texts]


def _message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    left_out = {"tool_call_id"}
    if message.get("role") in _RESULT_ROLES:
        left_out.add("content")
    kept = {k: _content(v) if k == "content" else v for k, v in message.items() if k not in left_out}
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [_call(call) for call in calls]
    if isinstance(legacy := kept.get("function_call"), dict):
        kept["function_call"] = _with_arguments_read(legacy)
    return {k: v for k, v in kept.items() if v not in (None, "", [])}


def _call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    kept = {k: v for k, v in call.items() if k not in ("id", "index")}
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = _with_arguments_read(function)
    return kept


def _item(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    left_out = {"id", "status", "call_id"}
    if str(item.get("type", "")).endswith("_call_output"):
        left_out.add("output")
    if item.get("type") == "message":
        left_out.add("type")
    kept = {k: _content(v) if k == "content" else v for k, v in item.items() if k not in left_out}
    return {k: v for k, v in _with_arguments_read(kept).items() if v not in (None, "", [])}


def _content(content: Any) -> Any:
    """Join a list that has only text parts into its text; return other content unchanged."""
    if not isinstance(content, list) or not content:
        return content
    if all(
        isinstance(p, dict) and p.get("type") in _TEXT_PARTS and isinstance(p.get("text"), str)
        for p in content
    ):
        return "".join(part["text"] for part in content)
    return content


def _with_arguments_read(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return function
    try:
        return {**function, "arguments": orjson.loads(arguments or "{}")}
    except orjson.JSONDecodeError:
        return function
