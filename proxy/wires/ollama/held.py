"""Restores hidden turns of Ollama's dialect, masks them, and writes them and results of server tools.

A line of a result's text describes each image. By that line the proxy recognizes its own images among a
client's, and can remove them: for a model that takes none, or for the record.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.events import ResultImage, ToolCall, left_out
from proxy.json.splice import elements, join_array, join_object, members, replace_values
from proxy.records.rows import MessageRecord
from proxy.wires.ollama.request import Call, calls_of, pair, role_of
from proxy.wires.turn.assembler import is_object
from proxy.wires.upstream_port import Mask


def collect_results(
    messages: Sequence[bytes], start: int, calls: Sequence[Mapping[str, Any]], made: Sequence[Call]
) -> tuple[int, list[bytes]]:
    """Return where the client's results of a turn end, and the messages that replace them.

    ``calls`` are all calls of the turn as they were held; ``made`` are the same calls as the model made them.
    The results come in the order of the calls, ours and the client's.
    """
    end = start
    theirs: list[bytes] = []
    while end < len(messages) and role_of(orjson.loads(messages[end])) == "tool":
        theirs.append(messages[end])
        end += 1
    shown = [call["call_id"] for call in calls if call["client_id"] is not None]
    by_id = {call.call_id: call for call in made}
    places = pair([by_id[call_id] for call_id in shown if call_id in by_id], list(map(orjson.loads, theirs)))
    given = {shown[place]: raw for raw, place in zip(theirs, places, strict=True) if place is not None}
    results = []
    for call in calls:
        if call["result"] is not None:
            results.append(call["result"])
        elif (raw := given.get(call["call_id"])) is not None:
            results.append(_under(raw, call["call_id"]))
    return end, results


def _under(result: bytes, call_id: str) -> bytes:
    """Return a client's result with the upstream's call id, if the result has an id."""
    if "tool_call_id" not in members(result):
        return result
    return replace_values(result, {"tool_call_id": orjson.dumps(call_id)})


def masked_turn(message: bytes, mask: Mask) -> bytes:
    """Return a message with the private arguments of its calls masked; the same bytes if it has none."""
    parts = members(message)
    if parts.get("tool_calls", b"")[:1] != b"[":
        return message
    calls = elements(parts["tool_calls"])
    masked = [_masked_call(call, mask) for call in calls]
    return message if masked == calls else join_object({**parts, "tool_calls": join_array(masked)})


def _masked_call(raw: bytes, mask: Mask) -> bytes:
    parts = members(raw)
    function = members(parts["function"])
    arguments = function.get("arguments", b"{}").decode()
    masked = mask(str(orjson.loads(function["name"])), arguments)
    if masked == arguments:
        return raw
    function["arguments"] = masked.encode() if is_object(masked) else b"{}"
    return join_object({**parts, "function": join_object(function)})


def rows_of(run_id: str, turn: int, message: Mapping[str, Any]) -> list[MessageRecord]:
    """Return a message as a row in the form of all wires."""
    content = message.get("content")
    text = content if isinstance(content, str) and content else None
    if role_of(message) != "assistant":
        call_id = str(message.get("tool_call_id") or "")
        return [MessageRecord(run_id, turn, 0, "tool", content=text or "", tool_call_id=call_id)]
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls_of(message)
    ]
    more = {key: said for key, said in message.items() if key not in ("role", "content", "tool_calls")}
    content_json = orjson.dumps(more).decode() if more else None
    tool_calls = orjson.dumps(calls).decode() if calls else None
    return [
        MessageRecord(
            run_id, turn, 0, "assistant", content=text, content_json=content_json, tool_calls=tool_calls
        )
    ]


# ---------------------------------------------------------------- results of server tools, with their images


_LABEL: Final = "[toolrelay: image "
_LINE = re.compile(r"^\[toolrelay: image (.*)\]$", re.MULTILINE)


def inline_data(url: str) -> str:
    """Return the data of a base64 ``data:`` URL; empty for others, which no Ollama server fetches."""
    head, comma, data = url.partition(",")
    return data if comma and head.startswith("data:") and head.endswith(";base64") else ""


def result_message(call: ToolCall, content: str, images: tuple[ResultImage, ...] = ()) -> bytes:
    """Return a message with one result; ``images`` must be in ``data:`` URLs."""
    lines = [content, *(f"{_LABEL}{image.words}]" for image in images)]
    said: dict[str, Any] = {
        "role": "tool",
        "content": "\n".join(line for line in lines if line),
        "tool_name": call.name,
        "tool_call_id": call.call_id,
    }
    if images:
        said["images"] = [inline_data(image.url) for image in images]
    return orjson.dumps(said)


def image_bytes(message: bytes) -> int:
    """Return the size of a message with our images, which is little more than the images; else 0."""
    return len(message) if _LABEL.encode() in message and b'"images":' in message else 0


def without_images(message: bytes) -> bytes:
    """Replace our images in a message by words."""
    if not image_bytes(message):
        return message
    parts = members(message)
    parts.pop("images", None)
    content = orjson.loads(parts.get("content", b'""'))
    if isinstance(content, str):
        parts["content"] = orjson.dumps(_LINE.sub(lambda found: left_out(found[1]), content))
    return join_object(parts)
