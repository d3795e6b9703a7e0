"""A strict double of OpenAI's ``/images/generations`` and ``/images/edits`` for its GPT image models.

It refuses what the API refuses. Sources: OpenAI's API reference, "Create image" and "Create image edit";
``ImageGenerateParams`` and ``ImageEditParams`` of openai 3.57.0 (which fields there are, their values, and
which of them exclude each other; how many images there may be, and their types).
"""

import base64
import email
import email.message
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
_EDITED = "image/png", "image/jpeg", "image/webp"
EDIT_USAGE: Mapping[str, Any] = {**USAGE, "input_tokens_details": {"image_tokens": 4, "text_tokens": 6}}


def png(shade: int) -> str:
    """Return a PNG of one pixel in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes([0, shade])))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + head + data + chunk(b"IEND", b"")).decode()


IMAGE = png(255)
PARTIAL = (png(0), png(100), png(200))


Refusal = tuple[str, str, str]
"""Message, parameter and code."""


class Edit:
    """A request for an edit: its ``fields``, its ``images`` as data URLs, and the ``mask``."""

    def __init__(self, asked: Asked) -> None:
        kind = next(value for name, value in asked.headers if name.lower() == "content-type")
        parsed = email.message_from_bytes(b"Content-Type: %b\r\n\r\n%b" % (kind.encode(), asked.body))
        assert parsed.get_content_type() == "multipart/form-data"
        self.fields: dict[str, Any] = {}
        self.images: list[str] = []
        self.mask = ""
        self._types: set[str] = set()
        self._names: set[str] = set()
        for part in parsed.get_payload():
            assert isinstance(part, email.message.Message)
            name = str(part.get_param("name", header="Content-Disposition"))
            data = part.get_payload(decode=True)
            assert isinstance(data, bytes)
            if part.get_filename() is None:
                self.fields[name] = data.decode()
                continue
            url = f"data:{part.get_content_type()};base64,{base64.b64encode(data).decode()}"
            self._types.add(part.get_content_type())
            if name == "mask":
                self.mask = url
            else:
                self._names.add(name)
                self.images.append(url)
        for name in ("n", "output_compression", "partial_images", "stream"):
            if name in self.fields:
                self.fields[name] = json.loads(self.fields[name])

    def refusal(self) -> Refusal | None:
        """Return what is wrong with the request."""
        wanted = {"image"} if len(self.images) == 1 else {"image[]"}
        if not self.images or len(self.images) > 16 or self._names != wanted:
            return "Invalid 'image'.", "image", "invalid_value"
        if not self._types <= set(_EDITED) or (self.mask and not self.mask.startswith("data:image/png")):
            return "Invalid image file or mode.", "image", "invalid_image_file"
        if self.fields.get("input_fidelity", "low") not in ("low", "high"):
            return "Invalid 'input_fidelity'.", "input_fidelity", "invalid_value"
        if "moderation" in self.fields:
            return "Unknown parameter: 'moderation'.", "moderation", "unknown_parameter"
        rest = {name: value for name, value in self.fields.items() if name != "input_fidelity"}
        return next(_refusals(rest), None)


class ImageModel(Scripted):
    """The upstream. ``fails`` is an answer that it gives to every request in place of an image."""

    name = "images"
    model = "gpt-image-2"

    def __init__(self, fails: Given | None = None, image: str = IMAGE) -> None:
        super().__init__(self._say)
        self._fails = fails
        self._image = image
        self.edited: list[Edit] = []

    def _say(self, asked: Asked) -> Given:
        assert (asked.method, asked.rooted) == ("POST", False)
        assert asked.path in ("/images/generations", "/images/edits")
        if asked.path == "/images/edits":
            self.edited.append(edit := Edit(asked))
            return self._made(edit.fields, edit.refusal(), "image_edit", EDIT_USAGE)
        return self._made(asked.payload, next(_refusals(asked.payload), None), "image_generation", USAGE)

    def _made(
        self, payload: Mapping[str, Any], refusal: Refusal | None, family: str, usage: Mapping[str, Any]
    ) -> Given:
        if refusal:
            message, param, code = refusal
            error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
            return Given(json.dumps({"error": error}).encode(), 400)
        if self._fails is not None:
            return self._fails
        size, quality = payload.get("size", "auto"), payload.get("quality", "auto")
        facts = {
            "background": "opaque",
            "output_format": "png",
            "quality": "medium" if quality == "auto" else quality,
            "size": "1024x1024" if size == "auto" else size,
        }
        if not payload.get("stream"):
            reply = {"created": 1790000000, "data": [{"b64_json": self._image}], "usage": usage, **facts}
            return Given(json.dumps(reply).encode())
        events = [
            (f"{family}.partial_image", {"b64_json": image, "partial_image_index": at})
            for at, image in enumerate(PARTIAL[: payload.get("partial_images", 0)])
        ]
        events.append((f"{family}.completed", {"b64_json": self._image, "usage": usage}))
        written = [
            (kind, json.dumps({"type": kind, **more, "created_at": 1790000000, **facts}))
            for kind, more in events
        ]
        pieces = [f"event: {kind}\ndata: {data}\n\n".encode() for kind, data in written]
        return Given(content_type="text/event-stream", pieces=pieces)

    async def aclose(self) -> None:
        """The proxy closes it when it ends."""


def _refusals(body: Mapping[str, Any]) -> Iterator[Refusal]:
    """Yield what is wrong with a request."""
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
