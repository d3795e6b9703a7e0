"""Short functions that build what a Responses upstream sends.

This module does not use the package under test.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from raw_upstream import Step, chunked, whole

Item = dict[str, Any]


def user(text: str) -> Item:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def function(name: str) -> Item:
    """Return a function that a client declares."""
    return {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}


def output(call_id: str, text: str | list[Item]) -> Item:
    """Return a client's result of a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def message(text: str, id: str = "msg_1", **more: Any) -> Item:
    """Return a message of the assistant."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": id, "type": "message", "role": "assistant", "status": "completed", "content": [part], **more
    }  # fmt: skip


def refusal(text: str, id: str = "msg_1") -> Item:
    """Return a message with a refusal."""
    return {**message("", id), "content": [{"type": "refusal", "refusal": text}]}


def reasoning(text: str, id: str = "rs_1", **more: Any) -> Item:
    """Return a reasoning item with a summary."""
    return {"id": id, "type": "reasoning", "summary": [{"type": "summary_text", "text": text}], **more}


def function_call(call_id: str, name: str, arguments: str = "{}", **more: Any) -> Item:
    """Return a call of a function."""
    return {
        "id": f"fc_{call_id}", "type": "function_call", "status": "completed",
        "call_id": call_id, "name": name, "arguments": arguments, **more,
    }  # fmt: skip


def custom(call_id: str, name: str, text: str) -> Item:
    """Return a call of a custom tool."""
    return {
        "id": f"ctc_{call_id}", "type": "custom_tool_call", "status": "completed",
        "call_id": call_id, "name": name, "input": text,
    }  # fmt: skip


def resource(items: Sequence[Item] = (), id: str = "resp_1", **more: Any) -> Item:
    """Return a response object with OpenAI's members; it is completed unless ``more`` says otherwise."""
    return {
        "id": id, "object": "response", "created_at": 1700000000, "status": "completed", "model": "m",
        "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
        "output": list(items),
        "parallel_tool_calls": True, "previous_response_id": None, "temperature": 1.0, "top_p": 1.0,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "truncation": "disabled",
        **more,
    }  # fmt: skip


def event(kind: str, **fields: Any) -> Item:
    """Return one event, which :func:`encode` numbers."""
    return {"type": kind, **fields}


def opening(**more: Any) -> list[Item]:
    """Return the events ``created`` and ``in_progress``."""
    begun = resource(**{"status": "in_progress", **more})
    return [event("response.created", response=begun), event("response.in_progress", response=begun)]


def closing(items: Sequence[Item] = (), **more: Any) -> Item:
    """Return the terminal event."""
    whole_response = resource(items, **more)
    return event(f"response.{whole_response['status']}", response=whole_response)


def item_events(item: Item, index: int) -> list[Item]:
    """Return the events that OpenAI sends for an item."""
    return list(_life(item, index))


def _life(item: Item, index: int) -> Iterator[Item]:
    place = {"item_id": item["id"], "output_index": index}
    kind = item["type"]
    empty: dict[str, dict[str, Any]] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
        "reasoning": {"summary": []},
    }
    empty["custom_tool_call"] = {"input": ""}
    opened = {**item, **empty.get(kind, {})}
    if "status" in opened:
        opened["status"] = "in_progress"
    yield event("response.output_item.added", output_index=index, item=opened)
    if kind == "message":
        for position, part in enumerate(item["content"]):
            yield from _part(part, {**place, "content_index": position})
    elif kind == "function_call":
        for piece in _pieces(item["arguments"]):
            yield event("response.function_call_arguments.delta", **place, delta=piece)
        yield event("response.function_call_arguments.done", **place, arguments=item["arguments"])
    elif kind == "custom_tool_call":
        yield event("response.custom_tool_call_input.delta", **place, delta=item["input"])
        yield event("response.custom_tool_call_input.done", **place, input=item["input"])
    elif kind == "reasoning":
        for position, part in enumerate(item["summary"]):
            spot = {**place, "summary_index": position}
            yield event("response.reasoning_summary_part.added", **spot, part={**part, "text": ""})
            yield event("response.reasoning_summary_text.delta", **spot, delta=part["text"])
            yield event("response.reasoning_summary_text.done", **spot, text=part["text"])
            yield event("response.reasoning_summary_part.done", **spot, part=part)
    yield event("response.output_item.done", output_index=index, item=item)


def _part(part: Item, place: Item) -> Iterator[Item]:
    refused = part["type"] == "refusal"
    text = part["refusal" if refused else "text"]
    kind, key = ("refusal", "refusal") if refused else ("output_text", "text")
    more: Item = {} if refused else {"logprobs": []}
    yield event("response.content_part.added", **place, part={**part, key: ""})
    for piece in _pieces(text):
        yield event(f"response.{kind}.delta", **place, delta=piece, **more)
    yield event(f"response.{kind}.done", **place, **{key: text}, **more)
    yield event("response.content_part.done", **place, part=part)


def _pieces(text: str) -> list[str]:
    """Cut a text into about three pieces; no piece is empty."""
    size = max(1, len(text) // 3)
    return [text[at : at + size] for at in range(0, len(text), size)]


def turn(*items: Item, events: Sequence[Item] | None = None, **response: Any) -> bytes:
    """Return a whole streamed response with these items, or with these events between opening and closing."""
    if events is None:
        events = [one for index, item in enumerate(items) for one in item_events(item, index)]
    opened = {key: value for key, value in response.items() if key in ("id", "store", "tools", "tool_choice")}
    return encode([*opening(**opened), *events, closing(items, **response)])


def encode(events: Sequence[Item], *, numbered: bool = True) -> bytes:
    """Return events as bytes, numbered from 0."""
    numbers = [{"sequence_number": n} if numbered else {} for n in range(len(events))]
    return b"".join(
        f"event: {one['type']}\ndata: {json.dumps({**one, **number}, separators=(',', ':'))}\n\n".encode()
        for one, number in zip(events, numbers, strict=True)
    )


def stream(*items: Item, **response: Any) -> list[Step]:
    """Return the steps of a whole streamed turn, without an end mark, which OpenAI does not send."""
    return chunked(turn(*items, **response))


def reply(*items: Item, **response: Any) -> list[Step]:
    """Return the steps of a whole turn that is not streamed."""
    return whole(json.dumps(resource(items, **response)).encode())
