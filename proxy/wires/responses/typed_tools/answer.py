"""Turns calls of functions in an answer back into the items of the tools that the client declared.

The events come in the order in which OpenAI's API sends them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from proxy.base.errors import TooManyValues
from proxy.base.values import value_class
from proxy.json.lenient import loads
from proxy.wires.responses.reader import CLOSING
from proxy.wires.responses.typed_tools.table import TypedTool
from proxy.wires.stream.sse import SSEEvent, SSEParser, encode_event
from proxy.wires.turn.assembler import is_object
from proxy.wires.turn.digest import sent_arguments

_CUSTOM_CALL = "custom_tool_call"
_CALLS = ("function_call", _CUSTOM_CALL)
_NAMED = ("function", "custom")


@value_class
class FunctionOrigin:
    """What a function stands for: a tool of a ``namespace``, or one of a special type, or both.

    ``name`` is empty for the only tool of its type.
    """

    namespace: str
    name: str
    typed: TypedTool | None = None

    @property
    def identity(self) -> dict[str, str]:
        """The members of a call that name the tool."""
        named = {"name": self.name} if self.name else {}
        return {**named, "namespace": self.namespace} if self.namespace else named


class ResponsesAnswer:
    """The answer to one request."""

    def __init__(self, asked: Mapping[str, Any], origins: dict[str, FunctionOrigin]) -> None:
        """``asked`` is the request as the client sent it; ``origins`` are by the names of the functions."""
        self._asked = asked
        self._origins = origins
        self._waiting: dict[Any, dict[str, Any]] = {}
        self._broken: dict[str, Any] | None = None
        self._shift = 0

    @property
    def functions(self) -> Mapping[tuple[str, str], str]:
        """The names of the functions, by the namespaces and the names of the tools for which they stand."""
        return {(origin.namespace, origin.name): name for name, origin in self._origins.items()}

    def name_as_namespaces(self, names: Iterable[str]) -> None:
        """Let calls of these functions have their own names as their namespaces."""
        for name in names:
            known = self._origins.get(name)
            self._origins[name] = FunctionOrigin(name, name, known.typed if known is not None else None)

    # ------------------------------------------------------------ whole responses

    def reply(self, body: bytes) -> bytes:
        response = loads(body, "a response")
        return orjson.dumps(self.resource(response)) if isinstance(response, dict) else body

    def input_items(self) -> bytes:
        given = self._asked.get("input")
        return orjson.dumps([{"role": "user", "content": given}] if isinstance(given, str) else given or [])

    def resource(self, response: Mapping[str, Any]) -> dict[str, Any]:
        changed = dict(response)
        if isinstance(output := response.get("output"), list):
            is_cut = response.get("status") == "incomplete"
            changed["output"] = [self._item(item, is_cut=is_cut) for item in output]
        if isinstance(tools := response.get("tools"), list):
            changed["tools"] = self._tools(tools)
        if "tool_choice" in response and self._asked.get("tool_choice") is not None:
            changed["tool_choice"] = self._asked["tool_choice"]
        return changed

    def returned(self, name: str, arguments: str) -> str:
        origin = self._origins.get(name)
        if origin is None or (typed := origin.typed) is None:
            return arguments
        told = orjson.dumps(typed.arguments(typed.members(_arguments(arguments)))).decode()
        return arguments if sent_arguments(arguments) == sent_arguments(told) else told

    def as_asked(self, message: bytes) -> bytes:
        if _CUSTOM_CALL.encode() not in message:
            return message
        turn = orjson.loads(message)
        return orjson.dumps({**turn, "output": list(map(self._as_function, turn["output"]))})

    def _as_function(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        origin = self._origins.get(str(item.get("name"))) if item.get("type") == _CUSTOM_CALL else None
        if origin is None or (typed := origin.typed) is None:
            return item
        arguments = orjson.dumps(typed.arguments(item)).decode()
        kept = {name: item[name] for name in ("call_id", "name", "status") if name in item}
        return {"type": "function_call", **kept, "arguments": arguments}

    def _tools(self, listed: list[Any]) -> list[Any]:
        """Return the client's declarations, functions with the fields that the response has of them."""
        filled = {(tool["type"], tool["name"]): tool for tool in listed if _has_name(tool)}
        declared = self._asked.get("tools")
        return [
            {**tool, **filled.get((tool["type"], tool["name"]), {})} if _has_name(tool) else tool
            for tool in (declared if isinstance(declared, list) else ())
        ]

    def _item(self, item: Any, *, is_cut: bool = False) -> Any:
        """Return an item as the client knows it; with ``is_cut`` the model did not write all it meant to."""
        origin = self._origin(item)
        if origin is None:
            return item
        return _typed_item(_ended(item) if is_cut and origin.typed is not None else item, origin)

    def _origin(self, item: Any) -> FunctionOrigin | None:
        if not isinstance(item, dict) or item.get("type") not in _CALLS:
            return None
        origin = self._origins.get(str(item.get("name")))
        if origin is not None and item["type"] == _CUSTOM_CALL:
            # An upstream may answer with such a call although it was asked with a function.
            return FunctionOrigin(origin.namespace, origin.name)
        return origin

    # ------------------------------------------------------------ streams

    def stream(self, data: bytes) -> bytes:
        parser = SSEParser()
        events = parser.feed(data)
        if (last := parser.close()) is not None:
            events.append(last)
        return b"".join(map(self._event, events))

    def _event(self, event: SSEEvent) -> bytes:
        payload = loads(event.data) if event.data else None
        if not isinstance(payload, dict):
            return event.raw
        shift, changed = self._shift, list(self._changed(payload))
        if not shift and len(changed) == 1 and changed[0] is payload:
            return event.raw
        number = payload.get("sequence_number")
        if type(number) is int:
            for place, one in enumerate(changed):
                one["sequence_number"] = number + shift + place
            self._shift += len(changed) - 1
        named = bool(event.event)
        return b"".join(
            encode_event(orjson.dumps(one), str(one.get("type")).encode() if named else b"")
            for one in changed
        )

    def _changed(self, payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events for the client in place of one event."""
        if (broken := self._broken) is not None:
            self._broken = None
            is_cut = payload.get("type") == "response.incomplete"
            yield from self._whole_item({**broken, "item": _ended(broken["item"])} if is_cut else broken)
        place, item = payload.get("output_index", payload.get("item_id")), payload.get("item")
        match payload.get("type"):
            case "response.output_item.added" | "response.output_item.done" as kind:
                origin = self._origin(item)
                if origin is None or origin.typed is None:
                    yield payload if origin is None else {**payload, "item": self._item(item)}
                elif kind == "response.output_item.added":
                    # The first event may already need the arguments: a patch begins with its path.
                    self._waiting[place] = payload
                elif item is not None and _ended(item) is not item:
                    # Some servers end each item as completed. Only what follows tells why this one is broken.
                    self._broken = payload
                else:
                    yield from self._whole_item(payload)
            case "response.function_call_arguments.delta" | "response.function_call_arguments.done" as kind:
                if place not in self._waiting:
                    origin = self._origins.get(str(payload.get("name")))
                    yield payload if origin is None else {**payload, "name": origin.name}
            case kind if isinstance(payload.get("response"), dict):
                if kind in CLOSING:
                    yield from map(self._broken_off, self._waiting.values())
                    self._waiting.clear()
                yield {**payload, "response": self.resource(payload["response"])}
            case _:
                yield payload

    def _whole_item(self, done: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield all events of the item of a typed tool, from the event that ends it."""
        self._waiting.pop(done.get("output_index", done.get("item_id")), None)
        origin = self._origin(done["item"])
        if origin is not None and origin.typed is not None:
            yield from _item_events(done, origin, origin.typed)

    def _broken_off(self, added: Mapping[str, Any]) -> dict[str, Any]:
        """Return the event that opens an item which has no end."""
        item = self._item({**added["item"], "status": "incomplete"})
        return {**added, "item": {**item, "status": "in_progress"}}


def _has_name(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") in _NAMED and isinstance(tool.get("name"), str)


def _typed_item(item: Mapping[str, Any], origin: FunctionOrigin) -> dict[str, Any]:
    """Return the item of a call of a function as one of a type of its own.

    A call that broke off gets no arguments, so that no client runs half of it.
    """
    typed = origin.typed
    if typed is None:
        return {**item, **origin.identity}
    status = str(item.get("status") or "completed")
    arguments = _arguments(item.get("arguments")) if status != "incomplete" else {}
    item_id = item.get("id")
    if isinstance(item_id, str) and item_id.startswith("fc_"):
        item_id = f"{typed.prefix}_{item_id[3:]}"
    return {
        "id": item_id,
        "type": typed.call,
        "status": status if status in typed.statuses else "in_progress",
        "call_id": item.get("call_id"),
        **origin.identity,
        **typed.members(arguments),
    }


def _ended(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an item as it is if the model was cut off: a call without whole arguments is incomplete.

    vLLM ends it as completed (https://github.com/vllm-project/vllm/issues/57998).
    """
    if item.get("type") != "function_call" or item.get("status") == "incomplete":
        return item
    arguments = item.get("arguments")
    is_whole = not isinstance(arguments, str) or is_object(arguments)
    return item if is_whole else {**item, "status": "incomplete"}


def _arguments(text: Any) -> Mapping[str, Any]:
    """Return the arguments of a call; ``{}`` if they are no object, or one that cannot be written again."""
    try:
        arguments = loads(text.encode("utf-8", "replace")) if isinstance(text, str) else text
    except TooManyValues:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _item_events(
    done: Mapping[str, Any], origin: FunctionOrigin, typed: TypedTool
) -> Iterator[dict[str, Any]]:
    """Yield all events of an item, from the event that ends it."""
    item = _typed_item(done["item"], origin)
    at = {name: done[name] for name in ("sequence_number", "output_index") if name in done}
    opened = {**item, "status": "in_progress", **typed.opening(item)}
    yield {"type": "response.output_item.added", **at, "item": opened}
    for event in typed.events(item):
        yield {**event, **({"item_id": item["id"]} if "item_id" in event else {}), **at}
    yield {**done, "item": item}
