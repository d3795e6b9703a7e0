"""Checks that a Responses stream follows the rules that every client library needs.

One id is in every lifecycle event, and there is one opening. Sequence numbers and indices have no gaps, and
no index is used twice. Each item is opened, filled and ended with one id. One terminal event repeats
exactly what was sent, and one end mark follows. Every event is complete and uses LF. This module does not
use the package under test.
"""

import json
from dataclasses import dataclass, field
from typing import Any

OPENING = ("response.created", "response.queued", "response.in_progress")
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
# The members that the Open Responses schema of a response requires, with null where it allows null.
RESOURCE_FIELDS: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "object": str,
    "created_at": int,
    "completed_at": (int, type(None)),
    "status": str,
    "incomplete_details": (dict, type(None)),
    "model": str,
    "previous_response_id": (str, type(None)),
    "instructions": (str, list, type(None)),
    "output": list,
    "error": (dict, type(None)),
    "tools": list,
    "tool_choice": (str, dict),
    "truncation": str,
    "parallel_tool_calls": bool,
    "text": dict,
    "top_p": (int, float),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "top_logprobs": int,
    "temperature": (int, float),
    "reasoning": (dict, type(None)),
    "user": (str, type(None)),
    "usage": (dict, type(None)),
    "max_output_tokens": (int, type(None)),
    "max_tool_calls": (int, type(None)),
    "store": bool,
    "background": bool,
    "service_tier": str,
    "metadata": dict,
    "safety_identifier": (str, type(None)),
    "prompt_cache_key": (str, type(None)),
}


class BadResponse(AssertionError):
    """The rule that a stream breaks, and where it does."""


def _must(holds: object, rule: str) -> None:
    if not holds:
        raise BadResponse(rule)


@dataclass
class Reading:
    """What a client understands of a stream."""

    events: list[dict[str, Any]] = field(default_factory=list)
    items: dict[int, dict[str, Any]] = field(default_factory=dict)
    text: str = ""
    error: dict[str, Any] | None = None
    response: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self.response["id"])

    @property
    def kinds(self) -> list[str]:
        """The types of all events, in order."""
        return [event["type"] for event in self.events]

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """Return the items of one type, in order."""
        return [item for item in self.response["output"] if item["type"] == kind]

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """(call id, name, arguments) of each function call."""
        return [(c["call_id"], c["name"], c["arguments"]) for c in self.of_type("function_call")]


def events_of(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream in the strict format that Open Responses' parser accepts."""
    _must(b"\r" not in body, "a CR")
    _must(body.endswith(b"\n\n"), "no blank line after the last event")
    found = []
    blocks = body.decode().split("\n\n")[:-1]
    _must(blocks and blocks[-1] == "data: [DONE]", "the end mark is not the last event")
    for block in blocks[:-1]:
        if block.startswith(":"):
            _must("\n" not in block, "a comment over two lines")
            continue
        name, _, data = block.partition("\n")
        _must(name.startswith("event: ") and data.startswith("data: "), f"not an event: {block[:80]!r}")
        _must("\n" not in data, "data over two lines")
        event = json.loads(data.removeprefix("data: "))
        _must(event["type"] == name.removeprefix("event: "), "an event of two types")
        found.append(event)
    return found


def check_response_stream(
    body: bytes, *, hidden: tuple[str, ...] = (), unnumbered: int = 0, complete: bool = True
) -> Reading:
    """Read a whole composed stream, check every rule, and return what the stream says.

    ``hidden`` are texts that must not be in the stream. The first ``unnumbered`` events are those of an
    upstream that sends neither numbers nor indices. ``complete`` requires every member of the response.
    Raises :class:`BadResponse`.
    """
    read = Reading(events_of(body))
    for secret in hidden:
        _must(secret not in body.decode(), f"{secret!r} is in the stream")
    open_items: dict[int, _Item] = {}
    ids: set[str] = set()
    for position, event in enumerate(read.events):
        forwarded = position < unnumbered
        _must(forwarded or event.get("sequence_number") == position, f"event {position}: wrong number")
        _must(not read.response, f"event {position} follows the end")
        kind = event["type"]
        if kind in OPENING or kind in TERMINAL:
            _lifecycle(event, position, ids)
            if kind in TERMINAL:
                read.response = event["response"]
        elif kind == "error":
            _must(set(event["error"]) == {"type", "code", "message", "param"}, "an error of another shape")
            read.error = event["error"]
        elif not forwarded or "output_index" in event:
            _must(read.error is None, "an event after the error")
            _item_event(event, position, read, open_items)
    _whole(read, open_items, complete)
    return read


def _lifecycle(event: dict[str, Any], position: int, ids: set[str]) -> None:
    kind, response = event["type"], event["response"]
    _must((kind == "response.created") == (position == 0), f"event {position}: {kind}")
    _must(position < 3 or kind in TERMINAL, f"event {position}: {kind} again")
    ids.add(response["id"])
    _must(len(ids) == 1, f"event {position}: another response id")
    if kind in TERMINAL:
        _must(response["status"] == kind.removeprefix("response."), "a status that is not the event's")


@dataclass
class _Item:
    """An open item."""

    item: dict[str, Any]
    parts: list[str] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    arguments: str = ""
    summary: dict[int, str] = field(default_factory=dict)


def _item_event(event: dict[str, Any], position: int, read: Reading, open_items: dict[int, _Item]) -> None:
    kind, where = event["type"], f"event {position} ({event['type']})"
    _must("output_index" in event, f"{where}: no output_index")
    index = event["output_index"]
    if kind == "response.output_item.added":
        _must(index == len(read.items) + len(open_items), f"{where}: index {index}")
        known = {i["id"] for i in read.items.values()} | {o.item["id"] for o in open_items.values()}
        _must(event["item"]["id"] and event["item"]["id"] not in known, f"{where}: an id twice")
        open_items[index] = _Item(event["item"])
        return
    _must(index in open_items, f"{where}: of an item that is not open")
    item = open_items[index]
    if kind == "response.output_item.done":
        _must(event["item"]["id"] == item.item["id"], f"{where}: another item id")
        _must(event["item"]["type"] == item.item["type"], f"{where}: another type")
        _filled(event["item"], open_items.pop(index), where)
        read.items[index] = event["item"]
        return
    _must(event.get("item_id") == item.item["id"], f"{where}: another item id")
    _content_event(event, item, where, read)


def _content_event(event: dict[str, Any], item: _Item, where: str, read: Reading) -> None:
    kind = event["type"]
    if kind == "response.content_part.added":
        _must(event["content_index"] == len(item.parts), f"{where}: content index")
        item.parts.append(event["part"]["type"])
    elif kind in ("response.output_text.delta", "response.refusal.delta", "response.reasoning_text.delta"):
        place = event["content_index"]
        # llama-server sends the text of its reasoning without an event that opens a part.
        opened = place < len(item.parts) or kind == "response.reasoning_text.delta"
        _must(opened, f"{where}: a part that was not opened")
        item.texts[place] = item.texts.get(place, "") + event["delta"]
        if kind == "response.output_text.delta":
            _must(isinstance(event["logprobs"], list), f"{where}: no logprobs")
            read.text += event["delta"]
    elif kind in ("response.output_text.done", "response.reasoning_text.done"):
        _must(event["text"] == item.texts.get(event["content_index"], ""), f"{where}: another text")
    elif kind == "response.reasoning_summary_text.delta":
        place = event["summary_index"]
        item.summary[place] = item.summary.get(place, "") + event["delta"]
    elif kind in ("response.function_call_arguments.delta", "response.mcp_call_arguments.delta"):
        item.arguments += event["delta"]


def _filled(item: dict[str, Any], opened: _Item, where: str) -> None:
    """Check that an item equals what its deltas said."""
    if opened.texts:
        told = [part.get("text", part.get("refusal")) for part in item["content"]]
        _must(told == [opened.texts.get(place, "") for place in range(len(told))], f"{where}: another text")
    if opened.summary:
        told = [part["text"] for part in item["summary"]]
        _must(
            told == [opened.summary[place] for place in sorted(opened.summary)], f"{where}: another summary"
        )
    if opened.arguments:
        _must(item["arguments"] == opened.arguments, f"{where}: other arguments")


def _whole(read: Reading, open_items: dict[int, _Item], complete: bool) -> None:
    _must(read.response, "no terminal event")
    _must(read.kinds.count("response.created") == 1, "not one response.created")
    _must(read.kinds.count("response.in_progress") <= 1, "response.in_progress again")
    _must(not open_items, f"items without an end: {sorted(open_items)}")
    _must((read.error is not None) == (read.response["status"] == "failed"), "an error without failure")
    emitted = [read.items[index] for index in sorted(read.items)]
    _must(read.response["output"] == emitted, "the terminal event has another output")
    if not complete:
        return
    for name, kinds in RESOURCE_FIELDS.items():
        _must(name in read.response, f"the response has no {name}")
        _must(isinstance(read.response[name], kinds), f"{name} is {read.response[name]!r}")
    if (usage := read.response["usage"]) is not None:
        counts = [usage[name] for name in ("input_tokens", "output_tokens", "total_tokens")]
        counts += [usage["input_tokens_details"]["cached_tokens"]]
        counts += [usage["output_tokens_details"]["reasoning_tokens"]]
        _must(all(type(count) is int for count in counts), "usage without its counts")
