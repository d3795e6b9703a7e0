"""Restores hidden turns of Messages, masks them, and writes them as rows of the record."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.json.splice import elements, join_array, join_object, members, replace_values
from proxy.records.rows import MessageRecord
from proxy.wires.anthropic.blocks import blocks_of, blocks_text, called_blocks
from proxy.wires.anthropic.results import recorded_result
from proxy.wires.turn.assembler import is_object
from proxy.wires.upstream_port import Mask

__all__ = ["collect_results", "masked_turn", "rows_of"]


def collect_results(
    messages: Sequence[bytes], start: int, calls: Sequence[Mapping[str, Any]]
) -> tuple[int, list[bytes]]:
    """Return where the client's results of a turn end, and the one message that replaces them.

    ``calls`` are all calls of the turn.  Their results come first and in order, ours and the client's, under
    the upstream's ids.  The client's other content follows.
    """
    end = start
    theirs: dict[str, bytes] = {}
    rest: list[bytes] = []
    while end < len(messages) and (found := _results(messages[end])) is not None:
        for raw, call_id in found:
            if call_id is None:
                rest.append(raw)
            else:
                theirs[call_id] = raw
        end += 1
    results = []
    for call in calls:
        if call["result"] is not None:
            results.append(call["result"].encode())
        elif (raw_result := theirs.pop(str(call["client_id"]), None)) is not None:
            results.append(_under(raw_result, call["call_id"]))
    if not (results or rest):
        return end, []
    return end, [b'{"role":"user","content":' + join_array([*results, *theirs.values(), *rest]) + b"}"]


def _results(message: bytes) -> list[tuple[bytes, str | None]] | None:
    """Return the blocks of a message with results; each result has the id of its call."""
    parts = members(message)
    if parts.get("role") != b'"user"' or parts.get("content", b"")[:1] != b"[":
        return None
    found: list[tuple[bytes, str | None]] = []
    for raw in elements(parts["content"]):
        block = orjson.loads(raw)
        is_result = isinstance(block, dict) and block.get("type") == "tool_result"
        found.append((raw, str(block.get("tool_use_id")) if is_result else None))
    return found if any(call_id is not None for _, call_id in found) else None


def _under(result: bytes, call_id: str) -> bytes:
    """Return a client's result under the upstream's call id; unchanged if the id is the same."""
    if orjson.loads(members(result)["tool_use_id"]) == call_id:
        return result
    return replace_values(result, {"tool_use_id": orjson.dumps(call_id)})


def masked_turn(raw: bytes, mask: Mask) -> bytes:
    """Return a message with the private arguments of its calls masked; the same bytes if it has none."""
    parts = members(raw)
    if parts.get("content", b"")[:1] != b"[":
        return raw
    blocks = elements(parts["content"])
    masked = [_masked_block(block, mask) for block in blocks]
    return raw if masked == blocks else join_object({**parts, "content": join_array(masked)})


def _masked_block(raw: bytes, mask: Mask) -> bytes:
    block = orjson.loads(raw)
    if block.get("type") != "tool_use":
        return raw
    parts = members(raw)
    arguments = parts.get("input", b"{}").decode()
    masked = mask(str(block.get("name")), arguments)
    if masked == arguments:
        return raw
    return join_object({**parts, "input": masked.encode() if is_object(masked) else b"{}"})


def rows_of(run_id: str, turn: int, message: Mapping[str, Any]) -> list[MessageRecord]:
    """Return a message as rows in the form of all wires: one for a turn, one for each result."""
    blocks = blocks_of(message.get("content"))
    if message.get("role") != "assistant":
        return [
            MessageRecord(
                run_id, turn, 0, "tool",
                content=recorded_result(block), tool_call_id=str(block.get("tool_use_id")),
            )
            for block in blocks
        ]  # fmt: skip
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call.get("name"), "arguments": orjson.dumps(call.get("input")).decode()},
        }
        for call in called_blocks(blocks)
    ]
    more = any(block.get("type") not in ("text", "tool_use") for block in blocks)
    return [
        MessageRecord(
            run_id, turn, 0, "assistant",
            content=blocks_text(blocks) or None,
            content_json=orjson.dumps(blocks).decode() if more else None,
            tool_calls=orjson.dumps(calls).decode() if calls else None,
        )
    ]  # fmt: skip
