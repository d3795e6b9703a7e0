"""Restores hidden turns of Messages, masks them, and writes them and results of server tools.

A line of text before each image of a result describes it. By that line the proxy recognizes its own images
among a client's, and can remove them: for an upstream that takes none, or for the record.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.events import ResultImage, left_out
from proxy.json.splice import elements, join_array, join_object, members, replace_values
from proxy.records.rows import MessageRecord
from proxy.wires.anthropic.blocks import Block, blocks_of, blocks_text, called_blocks
from proxy.wires.turn.assembler import is_object
from proxy.wires.upstream_port import Mask


def collect_results(
    messages: Sequence[bytes], start: int, calls: Sequence[Mapping[str, Any]]
) -> tuple[int, list[bytes]]:
    """Return where the client's results of a turn end, and the one message that replaces them.

    ``calls`` are all calls of the turn. Their results come first and in order, ours and the client's, under
    the upstream's ids. The client's other content follows.
    """
    end = start
    theirs: dict[str, bytes] = {}
    rest: list[bytes] = []
    while end < len(messages) and (blocks := _results(messages[end])) is not None:
        for raw, call_id in blocks:
            if call_id is None:
                rest.append(raw)
            else:
                theirs[call_id] = raw
        end += 1
    results = []
    for call in calls:
        if "made" in call:
            theirs.pop(str(call["client_id"]), None)  # The program has it, and the model never saw the call.
        elif call["result"] is not None:
            results.append(call["result"])
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
    blocks: list[tuple[bytes, str | None]] = []
    for raw in elements(parts["content"]):
        block = orjson.loads(raw)
        is_result = isinstance(block, dict) and block.get("type") == "tool_result"
        blocks.append((raw, str(block.get("tool_use_id")) if is_result else None))
    return blocks if any(call_id is not None for _, call_id in blocks) else None


def _under(result: bytes, call_id: str) -> bytes:
    """Return a client's result under the upstream's call id; unchanged if the id is the same."""
    if orjson.loads(members(result)["tool_use_id"]) == call_id:
        return result
    return replace_values(result, {"tool_use_id": orjson.dumps(call_id)})


def masked_turn(message: bytes, mask: Mask) -> bytes:
    """Return a message with the private arguments of its calls masked; the same bytes if it has none."""
    parts = members(message)
    if parts.get("content", b"")[:1] != b"[":
        return message
    blocks = elements(parts["content"])
    masked = [_masked_block(block, mask) for block in blocks]
    return message if masked == blocks else join_object({**parts, "content": join_array(masked)})


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


# ---------------------------------------------------------------- results of server tools, with their images


_LABEL: Final = "[toolrelay: image "
_SIGN: Final = orjson.dumps(_LABEL)[:-1]
_FAILED: Final = re.compile(r'\{"ok": ?false, ?"error_code":')
"""Matches the beginning of a result that says why its call failed."""


def result_block(call_id: str, content: str, images: Sequence[ResultImage] = ()) -> bytes:
    """Return a ``tool_result``. Its content is a list only if there are images.

    An empty content is left out, because no upstream accepts an empty text.
    """
    block: Block = {"type": "tool_result", "tool_use_id": call_id}
    if images:
        parts: list[Block] = [{"type": "text", "text": content}] if content.strip() else []
        for image in images:
            parts += [{"type": "text", "text": f"{_LABEL}{image.words}]"}, _image(image.url)]
        block["content"] = parts
    elif content.strip():
        block["content"] = content
    if _FAILED.match(content):
        block["is_error"] = True
    return orjson.dumps(block)


def _image(url: str) -> Block:
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:"):
        media = head.removeprefix("data:").removesuffix(";base64")
        return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def image_bytes(message: bytes) -> int:
    """Return the size of a message with our images, which is little more than the images; else 0."""
    return len(message) if _SIGN in message else 0


def without_images(message: bytes) -> bytes:
    """Replace our images in the results of a message by words; a client's own images stay."""
    if _SIGN not in message:
        return message
    parts = members(message)
    content = parts.get("content", b"")
    if content[:1] != b"[":
        return message
    return join_object({**parts, "content": join_array(map(_without_images, elements(content)))})


def _without_images(raw: bytes) -> bytes:
    block = orjson.loads(raw) if _SIGN in raw else None
    content = block.get("content") if isinstance(block, dict) else None
    if not isinstance(content, list):
        return raw
    texts = [{"type": "text", "text": line} for line in _lines(content, left_out) if line]
    return join_object({**members(raw), "content": orjson.dumps(texts)})


def _lines(content: Sequence[Any], say: Any) -> list[str]:
    """Return the lines of a result of ours; ``say`` writes the line for an image from its description."""
    lines: list[str] = []
    for block in content:
        text = block.get("text") if isinstance(block, dict) else None
        if not isinstance(text, str):
            continue  # The image itself; its line came before it.
        lines.append(say(text.removeprefix(_LABEL)[:-1]) if text.startswith(_LABEL) else text)
    return lines


def recorded_result(block: Mapping[str, Any]) -> str:
    """Return a result as a row of the record has it: its text, with a description of each image."""
    content = block.get("content")
    if isinstance(content, list):
        return "\n".join(_lines(content, lambda words: f"[image {words}]"))
    return content if isinstance(content, str) else ""
