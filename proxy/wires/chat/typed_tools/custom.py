"""Custom tools of Chat, whose input is a text, as functions with one argument.

Source: OpenAI's API reference, "Create chat completion": custom tools, their calls and their choices.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.base.errors import RequestError, TooManyValues
from proxy.json.lenient import loads
from proxy.wires.stream.sse import SSEEvent, SSEParser, encode_event
from proxy.wires.turn.digest import sent_arguments
from proxy.wires.typed_tools.functions import EVERY_TYPE, AsFunctions, UpstreamTypes, with_grammar
from proxy.wires.typed_tools.shapes import check_grammar, check_members, check_name

CUSTOM: Final = "custom"
_SCHEMA: Final = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_DECLARED: Final = {
    "name": str,
    "description": str,
    "format": {"type": ("text", "grammar"), "grammar": {"syntax": ("lark", "regex"), "definition": str}},
}


def as_functions(payload: Mapping[str, Any], upstream: UpstreamTypes) -> AsFunctions | None:
    """Return a request with functions in place of its custom tools; ``None`` if it has none of them.

    A request that stays in this dialect is searched for calls of such tools only if it declares one, so that
    most requests cost nothing. Raises :class:`~proxy.base.errors.RequestError` (400), which names the field,
    for a declaration or a call that cannot be read.
    """
    if not (upstream.crosses or "tools" in payload) or not {CUSTOM, EVERY_TYPE}.isdisjoint(upstream.native):
        return None
    tools, messages = _listed(payload, "tools"), _listed(payload, "messages")
    declares = CUSTOM in [tool.get("type") for tool in tools if type(tool) is dict]
    if not (declares or (upstream.crosses and any(map(_has_custom, messages)))):
        return None
    changed = {**payload, "tools": _functions(tools), "messages": _messages(messages)}
    if "tools" not in payload:
        del changed["tools"]
    if "tool_choice" in payload:
        changed["tool_choice"] = _choice(payload["tool_choice"])
    names = frozenset(tool[CUSTOM]["name"] for tool in tools if _is_custom(tool))
    return AsFunctions(changed, CustomAnswer(names))


def _listed(holder: Mapping[str, Any], name: str) -> Sequence[Any]:
    listed = holder.get(name)
    return listed if isinstance(listed, list) else ()


def _has_custom(message: Any) -> bool:
    return isinstance(message, dict) and any(map(_is_custom, _listed(message, "tool_calls")))


def _is_custom(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == CUSTOM


def _held(holder: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """Return the object of a custom tool, a call or a choice of one, which has a name."""
    check_members(holder, {CUSTOM: dict}, place)
    held: Mapping[str, Any] = holder.get(CUSTOM) or {}
    check_members(held, _DECLARED, f"{place}.custom")
    if not held.get("name"):
        raise RequestError(400, f"{place}.custom.name must be a name.", param=f"{place}.custom.name")
    return held


def _functions(tools: Sequence[Any]) -> list[Any]:
    made = []
    for place, tool in enumerate(tools):
        if _is_custom(tool):
            held = _held(tool, f"tools[{place}]")
            check_name(held["name"], f"tools[{place}].custom.name")
            form = held.get("format") or {}
            grammar = (form.get("grammar") or {}) if form.get("type") == "grammar" else None
            if grammar is not None:
                check_grammar(grammar, f"tools[{place}].custom.format.grammar")
            told = with_grammar(held.get("description") or "", grammar)
            function = {"name": held["name"], "description": told, "parameters": _SCHEMA}
            tool = {"type": "function", "function": function}
        made.append(tool)
    return made


def _messages(messages: Sequence[Any]) -> list[Any]:
    made = []
    for place, message in enumerate(messages):
        if _has_custom(message):
            calls = enumerate(message["tool_calls"])
            path = f"messages[{place}].tool_calls"
            message = {**message, "tool_calls": [_call(call, f"{path}[{at}]") for at, call in calls]}
        made.append(message)
    return made


def _call(call: Any, place: str) -> Any:
    if not _is_custom(call):
        return call
    held = _held(call, place)
    check_members(held, {"input": str}, f"{place}.custom")
    arguments = _arguments(held.get("input") or "")
    kept = {name: value for name, value in call.items() if name != CUSTOM}
    return {**kept, "type": "function", "function": {"name": held["name"], "arguments": arguments}}


def _choice(choice: Any) -> Any:
    if _is_custom(choice):
        return {"type": "function", "function": {"name": _held(choice, "tool_choice")["name"]}}
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    if not isinstance(allowed, dict) or not isinstance(allowed.get("tools"), list):
        return choice
    return {**choice, "allowed_tools": {**allowed, "tools": list(map(_choice, allowed["tools"]))}}


def _arguments(text: str) -> str:
    return orjson.dumps({"input": text}).decode()


def _input(arguments: Any) -> str:
    """Return the input in a function's arguments; ``""`` if they are incomplete or odd."""
    try:
        read = loads(arguments.encode("utf-8", "replace")) if isinstance(arguments, str) else arguments
    except TooManyValues:
        return ""
    text = read.get("input") if isinstance(read, dict) else None
    return text if isinstance(text, str) else ""


@dataclass(slots=True)
class _Call:
    """A call whose arguments are still coming."""

    opening: Mapping[str, Any]
    arguments: str


class CustomAnswer:
    """Turns calls of these functions back into calls of custom tools, in one answer."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._calls: dict[tuple[Any, Any], _Call] = {}

    def reply(self, body: bytes) -> bytes:
        reply = loads(body, "a reply")
        choices = reply.get("choices") if isinstance(reply, dict) else None
        for choice in choices if isinstance(choices, list) else ():
            message = choice.get("message") if isinstance(choice, dict) else None
            calls = message.get("tool_calls") if isinstance(message, dict) else None
            if isinstance(message, dict) and isinstance(calls, list):
                message["tool_calls"] = list(map(self._whole, calls))
        return orjson.dumps(reply)

    def resource(self, response: Mapping[str, Any]) -> dict[str, Any]:
        return dict(response)

    def input_items(self) -> bytes:
        return b"[]"

    def returned(self, name: str, arguments: str) -> str:
        told = _arguments(_input(arguments)) if name in self._names else arguments
        return arguments if sent_arguments(arguments) == sent_arguments(told) else told

    def as_asked(self, message: bytes) -> bytes:
        said = orjson.loads(message)
        if not _has_custom(said):
            return message
        return orjson.dumps({**said, "tool_calls": list(map(self._as_function, said["tool_calls"]))})

    def _as_function(self, call: Any) -> Any:
        """Return a call of one of these tools as one of its function; any other call as it is."""
        custom = call.get(CUSTOM) if _is_custom(call) else None
        name = custom.get("name") if isinstance(custom, dict) else None
        if not isinstance(custom, dict) or not isinstance(name, str) or name not in self._names:
            return call
        said, kept = custom.get("input"), {key: value for key, value in call.items() if key != CUSTOM}
        arguments = _arguments(said if isinstance(said, str) else "")
        return {**kept, "type": "function", "function": {"name": name, "arguments": arguments}}

    def stream(self, data: bytes) -> bytes:
        parser = SSEParser()
        events = parser.feed(data)
        if (last := parser.close()) is not None:
            events.append(last)
        return b"".join(map(self._event, events))

    def _event(self, event: SSEEvent) -> bytes:
        chunk = loads(event.data) if event.data[:1] == b"{" else None
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        if not isinstance(chunk, dict) or not isinstance(choices, list):
            return event.raw
        made = self._chunks(chunk, [choice for choice in choices if isinstance(choice, dict)])
        return b"".join(event.raw if one is chunk else encode_event(orjson.dumps(one)) for one in made)

    def _chunks(self, chunk: dict[str, Any], choices: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the chunks for the client in place of one: a call comes whole, when its choice ends."""
        held = False
        for choice in choices:
            delta, index = choice.get("delta"), choice.get("index")
            calls = delta.get("tool_calls") if isinstance(delta, dict) else None
            if isinstance(delta, dict) and isinstance(calls, list):
                left = [call for call in calls if not self._holds(index, call)]
                if len(left) < len(calls):
                    held = True
                    delta.pop("tool_calls")
                    delta |= {"tool_calls": left} if left else {}
            if choice.get("finish_reason") is not None and (ended := self._ended(index)):
                yield {
                    **{name: value for name, value in chunk.items() if name != "usage"},
                    "choices": [{"index": index, "delta": {"tool_calls": ended}, "finish_reason": None}],
                }
        says = any(choice.get("delta") or choice.get("finish_reason") is not None for choice in choices)
        if not held or says or chunk.get("usage"):
            yield dict(chunk) if held else chunk

    def _holds(self, choice: Any, call: Any) -> bool:
        """Keep a part of a call of a custom tool; return whether it is one."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return False
        key, more = (choice, call.get("index")), str(function.get("arguments") or "")
        if key in self._calls:
            self._calls[key].arguments += more
        elif function.get("name") in self._names:
            self._calls[key] = _Call(call, more)
        else:
            return False
        return True

    def _ended(self, choice: Any) -> list[dict[str, Any]]:
        keys = [key for key in self._calls if key[0] == choice]
        calls = [self._calls.pop(key) for key in keys]
        return [
            self._whole(
                {**call.opening, "function": {**call.opening["function"], "arguments": call.arguments}}
            )
            for call in calls
        ]

    def _whole(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or function.get("name") not in self._names:
            return call
        kept = {name: value for name, value in call.items() if name != "function"}
        custom = {"name": function["name"], "input": _input(function.get("arguments"))}
        return {**kept, "type": CUSTOM, "custom": custom}
