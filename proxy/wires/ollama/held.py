"""Restores hidden turns of Ollama's dialect, masks them, and writes them as rows of the record."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.json.splice import elements, join_array, join_object, members, replace_values
from proxy.records.rows import MessageRecord
from proxy.wires.ollama.calls import Call, calls_of, pair, role_of
from proxy.wires.turn.assembler import is_object
from proxy.wires.upstream_port import Mask

__all__ = ["collect_results", "masked_turn", "row_of"]


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
            results.append(call["result"].encode())
        elif (raw := given.get(call["call_id"])) is not None:
            results.append(_under(raw, call["call_id"]))
    return end, results


def _under(result: bytes, call_id: str) -> bytes:
    """Return a client's result with the upstream's call id, if the result has an id."""
    if "tool_call_id" not in members(result):
        return result
    return replace_values(result, {"tool_call_id": orjson.dumps(call_id)})


def masked_turn(raw: bytes, mask: Mask) -> bytes:
    """Return a message with the private arguments of its calls masked; the same bytes if it has none."""
    parts = members(raw)
    if parts.get("tool_calls", b"")[:1] != b"[":
        return raw
    calls = elements(parts["tool_calls"])
    masked = [_masked_call(call, mask) for call in calls]
    return raw if masked == calls else join_object({**parts, "tool_calls": join_array(masked)})


def _masked_call(raw: bytes, mask: Mask) -> bytes:
    parts = members(raw)
    function = members(parts["function"])
    arguments = function.get("arguments", b"{}").decode()
    masked = mask(str(orjson.loads(function["name"])), arguments)
    if masked == arguments:
        return raw
    function["arguments"] = masked.encode() if is_object(masked) else b"{}"
    return join_object({**parts, "function": join_object(function)})


def row_of(run_id: str, turn: int, message: Mapping[str, Any]) -> MessageRecord:
    """Return a message as a row in the form of all wires."""
    content = message.get("content")
    text = content if isinstance(content, str) and content else None
    if role_of(message) != "assistant":
        call_id = str(message.get("tool_call_id") or "")
        return MessageRecord(run_id, turn, 0, "tool", content=text or "", tool_call_id=call_id)
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls_of(message)
    ]
    more = {key: said for key, said in message.items() if key not in ("role", "content", "tool_calls")}
    return MessageRecord(
        run_id, turn, 0, "assistant",
        content=text,
        content_json=orjson.dumps(more).decode() if more else None,
        tool_calls=orjson.dumps(calls).decode() if calls else None,
    )  # fmt: skip
