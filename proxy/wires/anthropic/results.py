"""Writes results of server tools as blocks of Messages, with their images.

A line of text before each image describes it.  By that line the proxy recognizes its own images among a
client's, and can remove them: for an upstream that takes none, or for the record.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.events import ResultImage, left_out
from proxy.json.splice import elements, join_array, join_object, members
from proxy.wires.anthropic.blocks import Block

__all__ = ["image_bytes", "recorded_result", "result_block", "without_images"]

_LABEL: Final = "[toolrelay: image "
_SIGN: Final = orjson.dumps(_LABEL)[:-1]
_FAILED: Final = re.compile(r'\{"ok": ?false, ?"error_code":')
"""Matches the beginning of a result that says why its call failed."""


def result_block(call_id: str, content: str, images: Sequence[ResultImage] = ()) -> bytes:
    """Return a ``tool_result``.  Its content is a list only if there are images.

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
    said = [{"type": "text", "text": line} for line in _lines(content, left_out) if line]
    return join_object({**members(raw), "content": orjson.dumps(said)})


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
