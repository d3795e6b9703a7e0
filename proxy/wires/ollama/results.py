"""Results of server tools as messages of Ollama's, with their images where there are some.

An image has a line in the text that says what it is.  By that line our images are known among a client's, so
that they can be taken out again: for a model that takes none, or for a file.
"""

import re
from typing import Any, Final

import orjson

from proxy.events import ResultImage, ToolCall, left_out
from proxy.wires.json.splice import join_object, members

__all__ = ["image_bytes", "inline_data", "result_message", "without_images"]

_LABEL: Final = "[toolrelay: image "
_LINE = re.compile(r"^\[toolrelay: image (.*)\]$", re.MULTILINE)


def inline_data(url: str) -> str:
    """The base64 of a ``data:`` URL; empty for any other address, which no Ollama server asks for."""
    head, comma, data = url.partition(",")
    return data if comma and head.startswith("data:") and head.endswith(";base64") else ""


def result_message(call: ToolCall, content: str, images: tuple[ResultImage, ...] = ()) -> bytes:
    """A message with one result; ``images`` are such as stand in a ``data:`` URL."""
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
    """Bytes of a message of ours that has images, which is little more than the images; else 0."""
    return len(message) if _LABEL.encode() in message and b'"images":' in message else 0


def without_images(message: bytes) -> bytes:
    """A message with words in place of our images."""
    if not image_bytes(message):
        return message
    parts = members(message)
    parts.pop("images", None)
    content = orjson.loads(parts.get("content", b'""'))
    if isinstance(content, str):
        parts["content"] = orjson.dumps(_LINE.sub(lambda found: left_out(found[1]), content))
    return join_object(parts)
