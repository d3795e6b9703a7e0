"""Images of OpenAI's API (``POST /images/generations``, ``/images/edits``): requests, replies and streams.

Sources: OpenAI's API reference, "Create image", "Create image edit" and "Image streaming events"; the types
of openai 3.57.0 (``image_generate_params``, ``image_edit_params``, ``images_response``,
``image_gen_partial_image_event``, ``image_gen_completed_event``, ``image_edit_completed_event``). Its client
names the field ``image[]`` where there are several images.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.base.errors import UpstreamBroken
from proxy.wires.openai.dialect import read_error
from proxy.wires.stream.sse import CONTENT_TYPE, SSEParser

PATH: Final = "/images/generations"
EDIT_PATH: Final = "/images/edits"
_OF_OPENAI: Final = ("gpt-image", "chatgpt-image")
"""The beginnings of the models that always answer in base64, and refuse ``response_format``."""
_WORDS: Final = ("size", "quality", "background", "output_format")
_LONGEST_WORD: Final = 64
_LONGEST_PROMPT: Final = 64_000
_DETAILED: Final = ("input_tokens", "output_tokens")
_COUNTS: Final = (*_DETAILED, "total_tokens")
_KINDS: Final = ("image_tokens", "text_tokens")
_MOST_TOKENS: Final = 10**12
_BESIDE_IMAGES: Final = 64 << 10
"""Bytes of a reply or an event beside its image."""
_PARTIAL: Final = ("image_generation.partial_image", "image_edit.partial_image")
_COMPLETED: Final = ("image_generation.completed", "image_edit.completed")
_MOST_EVENTS: Final = 8
"""At most three partial images, the image itself, and an event that nobody knows."""


class SentImage(Struct, frozen=True):
    """An image in base64 as the upstream sent it, not decoded yet, and what is said about it.

    ``number`` counts the partial images from 0; it is ``None`` for the image itself.
    """

    data: str
    facts: Mapping[str, Any]
    number: int | None = None


def generation_body(prompt: str, model: str, fields: Mapping[str, Any], partial_images: int) -> bytes:
    """Return the body of a request for one image, as a stream if there may be ``partial_images``."""
    return orjson.dumps(_members(prompt, model, fields, partial_images))


File = tuple[str, bytes]
"""A file of a form: its media type and its bytes."""


def edit_body(
    prompt: str,
    model: str,
    fields: Mapping[str, Any],
    partial_images: int,
    images: Sequence[File],
    mask: File | None = None,
) -> tuple[str, bytes]:
    """Return the content type and the body of a request for one image that is made from ``images``."""
    boundary = secrets.token_hex(16)
    parts = [
        f'Content-Disposition: form-data; name="{name}"\r\n\r\n{_text(value)}'.encode()
        for name, value in _members(prompt, model, fields, partial_images).items()
    ]
    name = "image" if len(images) == 1 else "image[]"
    files = [(name, f"image{at}", file) for at, file in enumerate(images)]
    for field, stem, (kind, data) in [*files, *([("mask", "mask", mask)] if mask is not None else [])]:
        filename = f"{stem}.{kind.removeprefix('image/')}"
        head = (
            f'Content-Disposition: form-data; name="{field}"; filename="{filename}"\r\nContent-Type: {kind}'
        )
        parts.append(b"%b\r\n\r\n%b" % (head.encode(), data))
    written = b"".join(b"--%b\r\n%b\r\n" % (boundary.encode(), part) for part in parts)
    return f"multipart/form-data; boundary={boundary}", b"%b--%b--\r\n" % (written, boundary.encode())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _members(prompt: str, model: str, fields: Mapping[str, Any], partial_images: int) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model} if model else {}
    body |= {"prompt": prompt, "n": 1, **fields}
    if not model.startswith(_OF_OPENAI):
        body["response_format"] = "b64_json"
    if partial_images:
        body |= {"stream": True, "partial_images": partial_images}
    return body


class ImageReader:
    """Reads the answer to such a request, of a content type, whose images have at most ``most_bytes`` each.

    A server that does not stream answers with JSON, also if it was asked for a stream.
    """

    def __init__(self, content_type: str, most_bytes: int) -> None:
        self._most = most_bytes * 4 // 3 + _BESIDE_IMAGES
        self._parser = SSEParser(max_event_bytes=self._most) if content_type == CONTENT_TYPE else None
        self._whole = bytearray()
        self._events = 0

    def feed(self, chunk: bytes) -> Iterator[SentImage]:
        """Yield the images that end in this piece of the body.

        Raises :class:`~proxy.base.errors.UpstreamBroken` for what is too large, no such answer, or an error;
        and :class:`~proxy.base.errors.FrameTooLarge` for an event that is too large.
        """
        if self._parser is None:
            self._whole += chunk
            if len(self._whole) > self._most:
                raise UpstreamBroken("the upstream sent an image that is too large")
            return
        self._parser.take(chunk)
        while (event := self._parser.next()) is not None:
            yield from self._event(event.data)

    def close(self) -> Iterator[SentImage]:
        """Yield what is left at the end of the body; raises as :meth:`feed` does."""
        if self._parser is None:
            yield from _reply(_object(bytes(self._whole)))
        elif (event := self._parser.close()) is not None:
            yield from self._event(event.data)

    def _event(self, data: bytes) -> Iterator[SentImage]:
        if not data or data == b"[DONE]":
            return
        self._events += 1
        if self._events > _MOST_EVENTS:
            raise UpstreamBroken("the upstream sent more images than it was asked for")
        payload = _object(data)
        kind, image = payload.get("type"), payload.get("b64_json")
        if kind == "error" or (kind is None and "error" in payload):
            raise UpstreamBroken(read_error(data).message or "the upstream could not make the image")
        if not isinstance(image, str) or kind not in (*_PARTIAL, *_COMPLETED):
            return
        number = payload.get("partial_image_index")
        partial = number if kind in _PARTIAL and type(number) is int and number >= 0 else 0
        yield SentImage(image, _facts(payload), None if kind in _COMPLETED else partial)


def _reply(reply: Mapping[str, Any]) -> Iterator[SentImage]:
    images = reply.get("data")
    first = images[0] if isinstance(images, list) and images else None
    if not isinstance(first, dict):
        return
    if not isinstance(image := first.get("b64_json"), str):
        raise UpstreamBroken("the upstream answered with no image in base64")
    yield SentImage(image, _facts({**reply, **first}))


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        payload = None
    if not isinstance(payload, dict):
        raise UpstreamBroken("the upstream answered with something that is no image")
    return payload


def _facts(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of an image, as far as it has the form that clients read."""
    words = {name: said.get(name) for name in _WORDS}
    facts: dict[str, Any] = {
        name: word for name, word in words.items() if isinstance(word, str) and len(word) <= _LONGEST_WORD
    }
    revised, usage = said.get("revised_prompt"), said.get("usage")
    if isinstance(revised, str) and len(revised) <= _LONGEST_PROMPT:
        facts["revised_prompt"] = revised
    return {**facts, "usage": image_usage(usage)} if isinstance(usage, dict) else facts


def image_usage(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of images with all its counts; those that nobody said are 0."""
    counts: dict[str, Any] = {name: _count(said.get(name)) for name in _COUNTS}
    for name in _DETAILED:
        details = said.get(f"{name}_details")
        inner = details if isinstance(details, Mapping) else {}
        counts[f"{name}_details"] = {kind: _count(inner.get(kind)) for kind in _KINDS}
    return counts


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else 0
