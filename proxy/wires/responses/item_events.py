"""The events of items: of whole ones, and of those that have begun and have not ended.

A stored response as a stream (``GET /v1/responses/{id}?stream=true``) has the events that a provider sends
for the same items, with each text in one delta, numbered from 0. ``starting_after`` leaves out the events
that the client has.

A stream may break in the middle of an item, and some gateways never end one. Clients act only on
``output_item.done``, and some treat an item without it as an error. So :class:`OpenItem` keeps the item's
content.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from proxy.wires.responses.items import reasoning_item, sealed_turn, text_part
from proxy.wires.stream.sse import END_MARK, encode_event

_WORKING = {"web_search_call": "searching", "image_generation_call": "generating"}
_TEXT_OF = {"custom_tool_call": "input", "program": "code", "program_output": "result"}
"""The member of an item that is empty when it opens, by the item's type."""
_NOT_YET: dict[str, Any] = {"status": "in_progress", "output": [], "usage": None, "completed_at": None}


def stream_of_stored(response: Mapping[str, Any], starting_after: int | None = None) -> bytes:
    """Return the whole stream, or the part after the event with the number ``starting_after``."""
    first = -1 if starting_after is None else starting_after
    events = [
        encode_event(orjson.dumps({**event, "sequence_number": number}), event["type"].encode())
        for number, event in enumerate(_events(response))
        if number > first
    ]
    return b"".join([*events, END_MARK])


def _events(response: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    opened = {**response, **_NOT_YET}
    yield {"type": "response.created", "response": opened}
    yield {"type": "response.in_progress", "response": opened}
    for index, item in enumerate(response.get("output") or ()):
        yield from item_events(item, index)
    yield {"type": f"response.{response.get('status') or 'completed'}", "response": response}


def item_events(item: Mapping[str, Any], index: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a whole item, from its opening to its end, without sequence numbers.

    ``index`` is its place in the output; without it, the caller adds the place.
    """
    place = {} if index is None else {"output_index": index}
    yield {"type": "response.output_item.added", **place, "item": {**item, **_unfilled(item)}}
    yield from _content(item, {"item_id": item.get("id"), **place})
    yield {"type": "response.output_item.done", **place, "item": item}


def own_item_events(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of an item of the proxy's own, as a provider would send them, without its place.

    Until its end a list of tools is empty, and an item with an encrypted turn does not have it.
    """
    if item["type"] == "mcp_list_tools":
        yield {"type": "response.output_item.added", "item": {**item, "tools": []}}
        yield {"type": "response.mcp_list_tools.in_progress", "item_id": item["id"]}
        yield {"type": "response.mcp_list_tools.completed", "item_id": item["id"]}
        yield {"type": "response.output_item.done", "item": item}
    elif sealed_turn(item) is not None:
        yield {"type": "response.output_item.added", "item": reasoning_item(item["id"], None)}
        yield {"type": "response.output_item.done", "item": item}
    else:
        yield from item_events(item)


def _unfilled(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an item that differ when it opens."""
    match item.get("type"):
        case "message":
            return {"status": "in_progress", "content": []}
        case "function_call":
            return {"status": "in_progress", "arguments": ""}
        case "custom_tool_call" | "program" | "program_output" as kind:
            return {_TEXT_OF[kind]: ""}
        case "mcp_call":
            return {"status": "in_progress", "arguments": "", "output": None, "error": None}
        case "tool_search_call":
            return {"status": "in_progress", "arguments": {}}
        case "tool_search_output" | "web_search_call":
            return {"status": "in_progress"}
        case "image_generation_call":
            return {"status": "in_progress", "result": None}
        case "reasoning":
            return {"summary": [], **({"content": []} if item.get("content") else {})}
        case _:
            return {}


def _content(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events between an item's opening and its end."""
    match item.get("type"):
        case "message":
            for position, part in enumerate(item.get("content") or ()):
                yield from _part(part, {**place, "content_index": position})
        case "function_call":
            arguments = item.get("arguments") or ""
            yield {"type": "response.function_call_arguments.delta", **place, "delta": arguments}
            yield {"type": "response.function_call_arguments.done", **place, "arguments": arguments}
        case "custom_tool_call":
            text = item.get("input") or ""
            yield {"type": "response.custom_tool_call_input.delta", **place, "delta": text}
            yield {"type": "response.custom_tool_call_input.done", **place, "input": text}
        case "mcp_call":
            arguments = item.get("arguments") or ""
            yield {"type": "response.mcp_call.in_progress", **place}
            yield {"type": "response.mcp_call_arguments.delta", **place, "delta": arguments}
            yield {"type": "response.mcp_call_arguments.done", **place, "arguments": arguments}
            outcome = "completed" if item.get("status") == "completed" else "failed"
            yield {"type": f"response.mcp_call.{outcome}", **place}
        case "web_search_call" | "image_generation_call" as kind:
            ended = ["completed"] if item.get("status") == "completed" else []
            for state in ("in_progress", _WORKING[kind], *ended):
                yield {"type": f"response.{kind}.{state}", **place}
        case "reasoning":
            for position, part in enumerate(item.get("content") or ()):
                yield from _reasoning(part, {**place, "content_index": position})
            for position, part in enumerate(item.get("summary") or ()):
                text = part.get("text", "")
                spot = {**place, "summary_index": position}
                empty = {**part, "text": ""}
                yield {"type": "response.reasoning_summary_part.added", **spot, "part": empty}
                yield {"type": "response.reasoning_summary_text.delta", **spot, "delta": text}
                yield {"type": "response.reasoning_summary_text.done", **spot, "text": text}
                yield {"type": "response.reasoning_summary_part.done", **spot, "part": part}


def _reasoning(part: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    text = part.get("text", "")
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    yield {"type": "response.reasoning_text.delta", **place, "delta": text}
    yield {"type": "response.reasoning_text.done", **place, "text": text}
    yield {"type": "response.content_part.done", **place, "part": part}


def _part(part: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if part.get("type") == "refusal":
        refusal = part.get("refusal", "")
        yield {"type": "response.content_part.added", **place, "part": {**part, "refusal": ""}}
        yield {"type": "response.refusal.delta", **place, "delta": refusal}
        yield {"type": "response.refusal.done", **place, "refusal": refusal}
    else:
        text = part.get("text", "")
        logprobs = part.get("logprobs") or []
        yield {"type": "response.content_part.added", **place, "part": {**text_part(""), **_bare(part)}}
        yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": logprobs}
        for number, annotation in enumerate(part.get("annotations") or ()):
            yield {
                "type": "response.output_text.annotation.added",
                **place,
                "annotation_index": number,
                "annotation": annotation,
            }
        yield {"type": "response.output_text.done", **place, "text": text, "logprobs": logprobs}
    yield {"type": "response.content_part.done", **place, "part": part}


def _bare(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part's fields except those that its events carry."""
    return {key: value for key, value in part.items() if key not in ("text", "annotations", "logprobs")}


# ---------------------------------------------------------------- an item that has begun and has not ended


_PARTS = {
    "response.output_text.delta": "output_text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning_text",
}
_CONTENT_EVENTS = tuple(
    f"response.{kind}." for kind in ("content_part", "output_text", "refusal", "reasoning_text")
)
_FIELDS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "arguments",
}


class OpenItem:
    """An item as it opened. ``index`` and ``item_id`` are its place in the client's stream."""

    def __init__(self, index: int, item_id: str, item: Mapping[str, Any]) -> None:
        self.index = index
        self.item_id = item_id
        self.item = item
        self._content_parts = 0
        self._summary_parts = 0
        self._texts: dict[tuple[str, int], list[str]] = {}

    def complete(self, payload: dict[str, Any]) -> None:
        """Add the indices and lists that clients need to an event of this item."""
        kind = str(payload.get("type"))
        if kind == "response.content_part.added":
            self._content_parts += 1
        elif kind == "response.reasoning_summary_part.added":
            self._summary_parts += 1
        if kind.startswith(_CONTENT_EVENTS):
            payload.setdefault("content_index", max(0, self._content_parts - 1))
        elif kind.startswith("response.reasoning_summary_"):
            payload.setdefault("summary_index", max(0, self._summary_parts - 1))
        if kind in ("response.output_text.delta", "response.output_text.done"):
            payload.setdefault("logprobs", [])
        if "item" not in payload:
            payload["item_id"] = self.item_id

    def unopened(self, payload: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the event that must precede an item's first text if the upstream opened no part for it.

        llama-server opens none for its reasoning text, and openai-node throws for it.
        """
        kind = _PARTS.get(str(payload.get("type")))
        if kind is None or self._content_parts:
            return None
        return {"type": "response.content_part.added", "part": _part_with(kind, "")}

    def take(self, payload: Mapping[str, Any]) -> None:
        """Record what an event adds to the item."""
        kind, delta = str(payload.get("type")), payload.get("delta")
        place = payload.get("content_index", payload.get("summary_index", 0))
        if isinstance(delta, str) and type(place) is int:
            self._texts.setdefault((kind, place), []).append(delta)

    def so_far(self) -> dict[str, Any]:
        """Return the item with its content so far, ``incomplete`` if items of its type have a status."""
        item = {**self.item, "id": self.item_id}
        content = []
        for (kind, _), pieces in sorted(self._texts.items(), key=lambda entry: entry[0][1]):
            text = "".join(pieces)
            if kind in _FIELDS:
                item[_FIELDS[kind]] = text
            elif kind == "response.reasoning_summary_text.delta":
                item["summary"] = [*(item.get("summary") or ()), {"type": "summary_text", "text": text}]
            elif kind in _PARTS:
                content.append(_part_with(_PARTS[kind], text))
        if content:
            item["content"] = content
        if "status" in item or item.get("type") != "reasoning":
            item["status"] = "incomplete"
        return item


def _part_with(kind: str, text: str) -> dict[str, Any]:
    match kind:
        case "output_text":
            return text_part(text)
        case "refusal":
            return {"type": kind, "refusal": text}
        case _:
            return {"type": kind, "text": text}
