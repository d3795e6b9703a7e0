"""Writes a stored response as a stream: ``GET /v1/responses/{id}?stream=true``.

The events are those that a provider sends for the same items, with each text in one delta, numbered from 0.
``starting_after`` leaves out the events that the client has.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from proxy.wires.responses.items import text_part
from proxy.wires.stream.sse import END_MARK, encode_event

__all__ = ["item_events", "stream_of_stored"]

_NOT_YET: dict[str, Any] = {"status": "in_progress", "output": [], "usage": None, "completed_at": None}


def stream_of_stored(response: Mapping[str, Any], starting_after: int | None = None) -> bytes:
    """Return the whole stream, or the part after the event with the number ``starting_after``."""
    first = -1 if starting_after is None else starting_after
    told = [
        encode_event(orjson.dumps({**event, "sequence_number": number}), event["type"].encode())
        for number, event in enumerate(_events(response))
        if number > first
    ]
    return b"".join([*told, END_MARK])


def _events(response: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    opened = {**response, **_NOT_YET}
    yield {"type": "response.created", "response": opened}
    yield {"type": "response.in_progress", "response": opened}
    for index, item in enumerate(response.get("output") or ()):
        yield from item_events(item, index)
    yield {"type": f"response.{response.get('status') or 'completed'}", "response": response}


def item_events(item: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a whole item, from its opening to its end, without sequence numbers."""
    opened = {**item, **_unfilled(item)}
    yield {"type": "response.output_item.added", "output_index": index, "item": opened}
    yield from _content(item, {"item_id": item.get("id"), "output_index": index})
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _unfilled(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an item that differ when it opens."""
    match item.get("type"):
        case "message":
            return {"status": "in_progress", "content": []}
        case "function_call":
            return {"status": "in_progress", "arguments": ""}
        case "custom_tool_call":
            return {"input": ""}
        case "mcp_call":
            return {"status": "in_progress", "arguments": "", "output": None, "error": None}
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
