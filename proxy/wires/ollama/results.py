"""Writes results of server tools as Ollama's messages, with their images.

A line of the text describes each image.  By that line the proxy recognizes its own images among a client's,
and can remove them: for a model that takes none, or for the record.
"""

import re
from typing import Any, Final

import orjson

from proxy.base.events import ResultImage, ToolCall, left_out
from proxy.json.splice import join_object, members

__all__ = ["image_bytes", "inline_data", "result_message", "without_images"]

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
