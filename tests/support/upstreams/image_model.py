"""A strict double of OpenAI's ``/images/generations`` for its GPT image models.

It refuses what the API refuses. Sources: OpenAI's API reference, "Create image"; ``ImageGenerateParams`` of
openai 3.57.0 (which fields there are, their values, and which of them exclude each other).
"""

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from recorded_answers import Asked, Given, Scripted

USAGE: Mapping[str, Any] = {
    "input_tokens": 10,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 10},
    "output_tokens": 200,
    "output_tokens_details": {"image_tokens": 200, "text_tokens": 0},
    "total_tokens": 210,
}
_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "background": ("transparent", "opaque", "auto"),
    "moderation": ("low", "auto"),
    "output_format": ("png", "webp", "jpeg", "gif", "svg"),
    "quality": ("low", "medium", "high", "xhigh", "max", "auto"),
    "stream": (True, False),
}
_RANGES = {"n": (1, 10), "output_compression": (0, 100), "partial_images": (0, 3)}
_OTHERS = {"model", "prompt", "size", "user", "safety_identifier"}


def png(shade: int) -> str:
    """Return a PNG of one pixel in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes([0, shade])))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b"")).decode()


IMAGE = png(255)
PARTIAL = (png(0), png(100), png(200))


class ImageModel(Scripted):
    """The upstream. ``fails`` is an answer that it gives to every request in place of an image."""

    name = "images"
    model = "gpt-image-2"

    def __init__(self, fails: Given | None = None, image: str = IMAGE) -> None:
        super().__init__(self._say)
        self._fails = fails
        self._image = image

    def _say(self, asked: Asked) -> Given:
        assert (asked.method, asked.path, asked.rooted) == ("POST", "/images/generations", False)
        if refusal := next(_refusals(asked.payload), None):
            message, param, code = refusal
            error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
            return Given(json.dumps({"error": error}).encode(), 400)
        if self._fails is not None:
            return self._fails
        size, quality = asked.payload.get("size", "auto"), asked.payload.get("quality", "auto")
        facts = {
            "background": "opaque",
            "output_format": "png",
            "quality": "medium" if quality == "auto" else quality,
            "size": "1024x1024" if size == "auto" else size,
        }
        if not asked.payload.get("stream"):
            reply = {"created": 1790000000, "data": [{"b64_json": self._image}], "usage": USAGE, **facts}
            return Given(json.dumps(reply).encode())
        events = [
            ("image_generation.partial_image", {"b64_json": image, "partial_image_index": at})
            for at, image in enumerate(PARTIAL[: asked.payload.get("partial_images", 0)])
        ]
        events.append(("image_generation.completed", {"b64_json": self._image, "usage": USAGE}))
        written = [
            (kind, json.dumps({"type": kind, **more, "created_at": 1790000000, **facts}))
            for kind, more in events
        ]
        pieces = [f"event: {kind}\ndata: {data}\n\n".encode() for kind, data in written]
        return Given(content_type="text/event-stream", pieces=pieces)

    async def aclose(self) -> None:
        """The proxy closes it when it ends."""


def _refusals(body: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a request: message, parameter and code."""
    for name in body.keys() - _CHOICES.keys() - _RANGES.keys() - _OTHERS:
        yield f"Unknown parameter: '{name}'.", name, "unknown_parameter"
    for name in ("prompt", "model"):
        if not isinstance(body.get(name), str) or not body[name]:
            yield f"Missing required parameter: '{name}'.", name, "missing_required_parameter"
    for name, allowed in _CHOICES.items():
        if body.get(name, allowed[0]) not in allowed:
            values = ", ".join(f"'{value}'" for value in allowed)
            yield f"Invalid value: '{body[name]}'. Supported values are: {values}.", name, "invalid_value"
    for name, (least, most) in _RANGES.items():
        value = body.get(name, least)
        if type(value) is not int or not least <= value <= most:
            yield f"Invalid '{name}': {value!r}.", name, "invalid_value"
    if "partial_images" in body and not body.get("stream"):
        yield "partial_images is only supported with stream.", "partial_images", "invalid_value"
    form = body.get("output_format", "png")
    if form == "jpeg" and body.get("background") == "transparent":
        yield "Transparent background is not supported for JPEG output format.", "background", "invalid_value"
    if form == "png" and body.get("output_compression", 100) != 100:
        said = "Compression less than 100 is not supported for PNG output format."
        yield said, "output_compression", "invalid_value"
    if "x" in (size := str(body.get("size", "auto"))):
        width, height = map(int, size.split("x"))
        if width % 16 or height % 16 or not 1 / 3 <= width / height <= 3 or width > 3840:
            yield f"Invalid size '{size}'.", "size", "invalid_value"
