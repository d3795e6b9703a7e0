"""Compares requests of any dialect by their meaning, without what may differ between two runs."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import orjson

_RESULT_ROLES: Final = ("tool", "function")
_RESULT_BLOCK: Final = "tool_result"
"""The type of a block of Messages with the result of a tool."""
_TEXT_PARTS: Final = ("text", "input_text", "output_text")

_INSTRUCTIONS: Final = ("system", "instructions")
_PROMPTS: Final = ("prompt", "suffix", "images")
"""Members of completions, such as Ollama's ``/api/generate``, that are what a message is elsewhere."""

Varying = Literal["dates", "times", "ids", "numbers"]
"""A kind of text that may differ between two requests of the same meaning."""

_MONTH: Final = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:t(?:ember)?)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY: Final = r"(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, +)?"
_PATTERNS: Final[Mapping[Varying, re.Pattern[str]]] = {
    "ids": re.compile(r"(?<!\w)[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?!\w)"),
    "dates": re.compile(
        rf"(?<!\w){_DAY}(?:\d{{4}}-\d{{2}}-\d{{2}}|\d{{1,2}}[./]\d{{1,2}}[./]\d{{4}}"
        rf"|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{1,2}}\.? {_MONTH}\.? \d{{4}})(?=T\d|\W|\Z)"
    ),
    "times": re.compile(
        r"T?(?<!\d)\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?: ?(?:[AaPp][Mm]\b|[AaPp]\.[Mm]\.))?"
        r"(?:Z\b| ?[+-]\d{2}:?\d{2}(?!\d))?(?!\d)"
    ),
    "numbers": re.compile(r"\d{1,40}(?:\.\d{1,40})?"),
}
"""The kinds, in the order in which they are replaced; no pattern needs more than linear time."""

ComparableConversation = list[Any]
"""The messages or input items of a request, without anything that may differ between two runs."""


def meaning_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a request asks of its model, in comparable form, by the names of its members.

    That is the model, its instructions, the conversation and the tools, whose order does not count.
    """
    field, conversation = comparable_conversation(request)
    meaning: dict[str, Any] = {"model": request.get("model")}
    meaning |= {name: _content(request.get(name)) for name in _INSTRUCTIONS if request.get(name)}
    meaning |= {name: request[name] for name in _PROMPTS if request.get(name)}
    meaning[field] = conversation
    tools = request.get("tools")
    if isinstance(tools, list) and tools:
        meaning["tools"] = sorted(map(_tool, tools), key=_sorted_json)
    return meaning


def tool_name(tool: Any) -> str:
    """Return the name of a declared tool, or its type if it has no name; empty if it has neither."""
    function = tool.get("function") if isinstance(tool, dict) else None
    for holder in (function, tool):
        if isinstance(holder, dict):
            name = holder.get("name") or holder.get("type")
            if isinstance(name, str) and name != "function":
                return name
    return ""


def without_varying(value: Any, kinds: Iterable[Varying]) -> Any:
    """Return a JSON value with a placeholder, such as ``<date>``, for each text of these kinds.

    Raises RecursionError for a value that is nested too deeply.
    """
    chosen = frozenset(kinds)
    patterns = [(pattern, f"<{kind[:-1]}>") for kind, pattern in _PATTERNS.items() if kind in chosen]
    return _replaced(value, patterns) if patterns else value


def _replaced(value: Any, patterns: Iterable[tuple[re.Pattern[str], str]]) -> Any:
    if isinstance(value, str):
        for pattern, placeholder in patterns:
            value = pattern.sub(placeholder, value)
        return value
    if isinstance(value, dict):
        return {key: _replaced(inner, patterns) for key, inner in value.items()}
    return [_replaced(inner, patterns) for inner in value] if isinstance(value, list) else value


def _tool(tool: Any) -> Any:
    """Return a declared tool without what only says how providers keep it."""
    if not isinstance(tool, dict):
        return tool
    kept = {k: v for k, v in tool.items() if k != "cache_control" and v is not None}
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = {k: v for k, v in function.items() if v is not None}
    return kept


def _sorted_json(value: Any) -> tuple[str, bytes]:
    return tool_name(value), orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def comparable_conversation(request: Mapping[str, Any]) -> tuple[str, ComparableConversation]:
    """Return the name of the field with the request's conversation, and the conversation in comparable form.

    Results of tools, ids of calls and items, empty fields and marks for caches are left out. Arguments are
    compared as JSON, and a list of text parts as its text.
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
    said = [
        message for message in (messages if isinstance(messages, list) else ()) if isinstance(message, dict)
    ]
    contents = [message.get("content") for message in said if message.get("role") in _RESULT_ROLES]
    contents += [
        block.get("content")
        for message in said
        for block in (message["content"] if isinstance(message.get("content"), list) else ())
        if isinstance(block, dict) and block.get("type") == _RESULT_BLOCK
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
    """Join a list that has only text parts into its text; leave ids and results out of other parts."""
    if not isinstance(content, list) or not content:
        return content
    if all(
        isinstance(p, dict) and p.get("type") in _TEXT_PARTS and isinstance(p.get("text"), str)
        for p in content
    ):
        return "".join(part["text"] for part in content)
    return [_part(part) for part in content]


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if part.get("type") == _RESULT_BLOCK:
        return {"type": _RESULT_BLOCK}
    left_out = {"cache_control", "id"} if part.get("type") == "tool_use" else {"cache_control"}
    return {k: v for k, v in part.items() if k not in left_out}


def _with_arguments_read(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return function
    try:
        return {**function, "arguments": orjson.loads(arguments or "{}")}
    except orjson.JSONDecodeError:
        return function
