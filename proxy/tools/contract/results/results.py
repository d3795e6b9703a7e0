"""Convert what a tool returned to the text that the model reads, with a bound on every size."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace
from pydantic_core import PydanticSerializationError, to_jsonable_python

from proxy.base.errors import ToolFailure
from proxy.base.events import MIDDLE_LEFT_OUT, ResultImage
from proxy.tools.contract.arguments import MAX_DEPTH, plain_kind, utf8_length
from proxy.tools.contract.results.images import Image, ImageBounds, check_images, note_bytes
from proxy.tools.contract.results.paging import READ_RESULT

_MAX_MESSAGE = 1000
_MOST_LINKS = 1000
_SMALLEST_HARD_LIMIT = 1 << 20
_ESCAPES = 2
"""The bytes that JSON adds for the two line ends around the note of a cut."""
_LEAST_FOR_HANDLE = 512
"""The result limit in bytes below which a note about a handle would leave too little room for the result."""


class Output(Struct, frozen=True):
    """A tool's output.

    ``text`` is the text for the model, complete unless ``truncated``; ``size`` is its size in bytes
    before any cut. ``value`` is the input of redaction, ``redacted`` its result. ``untrusted`` has the
    sources of the text if they are untrusted (:func:`.join_sources`). ``images`` go beside the
    text. ``notes`` are lines that follow it and are never cut. ``note_bytes`` is the number of bytes
    that the notes about images need.
    """

    text: str
    value: Any
    size: int
    truncated: bool = False
    redacted: Any = None
    untrusted: str = ""
    images: tuple[ResultImage, ...] = ()
    notes: tuple[str, ...] = ()
    note_bytes: int = 0

    @property
    def weight(self) -> int:
        """The bytes of text and images together."""
        return self.size + sum(image.size for image in self.images)

    def without_value(self) -> "Output":
        """Return a copy without ``value``, which only redaction needs."""
        return replace(self, value=None)


@dataclass(frozen=True, slots=True)
class ResourceLink:
    """A resource that a tool points at instead of returning it."""

    uri: str
    title: str = ""
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class RichResult:
    """A result that is more than text.

    The model gets ``text``, the links as lines, and the images if the wire and the upstream accept them;
    otherwise a note about each. Redaction sees ``text``, ``images`` (``media_type``, ``title``, ``bytes``:
    their number, ``url``: an https URL) and ``links`` (``uri``, ``title``, ``media_type``). ``data`` is
    plain JSON with the same content as the text, in fields; if it is given, redaction sees it instead.
    """

    text: str = ""
    images: Sequence[Image] = ()
    links: Sequence[ResourceLink] = ()
    data: Any = None


def hard_limit(max_bytes: int) -> int:
    """Return the size in bytes above which a JSON result is refused, not cut, and never serialized."""
    return max(_SMALLEST_HARD_LIMIT, 8 * max_bytes)


def to_output(value: Any, max_bytes: int, images: ImageBounds | None = None) -> Output:
    """Return a result's complete text, and its images: a ``str`` stays as it is, all else becomes JSON.

    Text above :func:`hard_limit` is cut to ``max_bytes`` at once. Raises
    :class:`~proxy.base.errors.ToolFailure` with ``result_too_large`` for JSON above it, and with
    ``execution_failed`` for values that JSON cannot express: NaN, cycles, foreign objects.
    """
    if isinstance(value, RichResult):
        return _rich_output(value, max_bytes, images or ImageBounds())
    if isinstance(value, str):
        # A subclass may override any method, also ``__len__``.
        value = value if type(value) is str else str.__getitem__(value, slice(None))
        size = utf8_length(value)
        if size > hard_limit(max_bytes):
            text = _cut(value, size, max_bytes)
            return Output(text, text, size, True)
        text = _encodable(value)
        return Output(text, text, size)
    limit = hard_limit(max_bytes)
    if _is_iterator(value):
        value = list(islice(value, limit))  # An endless iterator is too large by then.
    if _measure(value, limit):
        try:
            value = to_jsonable_python(value, by_alias=True, inf_nan_mode="constants")
        except (PydanticSerializationError, ValueError, RecursionError):
            raise ToolFailure("the tool returned something that is not JSON") from None
        _measure(value, limit)
    try:
        encoded = orjson.dumps(value)
        text = encoded.decode()
    except (TypeError, RecursionError):
        # JSON allows integers above 64 bits; orjson does not write them.
        try:
            text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError):
            raise ToolFailure("the tool returned something that is not JSON") from None
    return Output(_encodable(text), value, utf8_length(text))


def cut_to_limit(output: Output, max_bytes: int, keep: Callable[[str], str | None]) -> tuple[str, bool]:
    """Return the part of an output that the model gets, and whether something was left out.

    It is at most ``max_bytes`` long, the notes about images included. If something is left out, ``keep`` may
    return a handle with which the model can read the rest.
    """
    text, truncated = output.text, output.truncated
    room = max_bytes - output.note_bytes
    if not truncated and output.size > room:
        handle = keep(text) if room >= _LEAST_FOR_HANDLE else None
        text, truncated = _cut(text, output.size, room, handle), True
    return "\n".join(part for part in (text, *output.notes) if part), truncated


def note_text(message: str) -> str:
    """Return what the model reads if a call succeeded and there is no output to show."""
    return orjson.dumps({"ok": True, "message": message}).decode()


def json_text(value: Any) -> str:
    """Return plain JSON values as text without lone surrogates; integers may have any size."""
    return _encodable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def cut_by(text: str, excess: int) -> str:
    """Cut a text so that a JSON document that contains it gets ``excess`` bytes shorter."""
    size = utf8_length(text)
    return _cut(text, size, size - excess - _ESCAPES)


def safe_message(message: str) -> str:
    """Return a failure's message cut to its limit and without lone surrogates."""
    return _encodable(str(message)[:_MAX_MESSAGE])


def _measure(value: Any, limit: int) -> bool:
    """Return whether a value contains anything that is not plain JSON, without serializing it.

    Raises :class:`ToolFailure` if the value is too large or too deep, or has a number that is
    not finite. A cycle is found because it nests too deeply.
    """
    size = 0
    foreign = False
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        size += 2
        if depth > MAX_DEPTH:
            raise ToolFailure("the tool returned a value that is nested too deeply")
        kind = plain_kind(item)
        if kind is str:
            size += len(item)
        elif kind is float:
            if not math.isfinite(item):
                raise ToolFailure("the tool returned a number that JSON does not have")
        elif kind is dict:
            size += 2 * len(item)
            if size <= limit:
                for key, child in item.items():
                    foreign = foreign or not isinstance(key, str)
                    size += len(key) if isinstance(key, str) else 8
                    pending.append((child, depth + 1))
        elif kind is list:
            size += len(item)
            if size <= limit:
                pending.extend((child, depth + 1) for child in item)
        elif item is not None and kind is not int and kind is not bool:
            if _is_iterator(item):
                raise ToolFailure("the tool returned something that is not JSON")
            foreign = True
        if size > limit:
            raise ToolFailure("the tool returned more than can be handled", code="result_too_large")
    return foreign


def _is_iterator(value: Any) -> bool:
    """Return whether a value is an iterator: reading consumes it, and it may never end."""
    return hasattr(type(value), "__next__")


def _cut(text: str, size: int, max_bytes: int, handle: str | None = None) -> str:
    """Return the head and the tail of a text that is too long, with a note for the model between them."""
    note = f"{MIDDLE_LEFT_OUT}{size} bytes; its middle was left out here]\n"
    if handle is not None:
        note = (
            f"{MIDDLE_LEFT_OUT}{size} bytes; its middle was left out here. To read on call "
            f'{READ_RESULT} with handle "{handle}" and offset OFFSET]\n'
        )
    room = max(max_bytes - len(note), 0)
    head_bytes, tail_bytes = room - room // 3, room // 3
    # A character has at least one byte, so slicing by characters first keeps the copies small.
    head = _encodable(text[:head_bytes]).encode()[:head_bytes].decode(errors="ignore")
    tail = _encodable(text[len(text) - tail_bytes :]).encode() if tail_bytes else b""
    if handle is not None:
        note = note.replace("OFFSET", str(len(head)))
    return head + note + tail[len(tail) - tail_bytes :].decode(errors="ignore")


def _rich_output(result: RichResult, max_bytes: int, bounds: ImageBounds) -> Output:
    """Convert a rich result to the text and the images for the model, and to the value for redaction."""
    if not isinstance(result.text, str):
        raise ToolFailure("the tool returned something that is not JSON")
    links = [
        {"uri": str(given.uri), "title": str(given.title), "media_type": str(given.media_type)}
        for given in islice(result.links, _MOST_LINKS)
    ]
    lines = [result.text] if result.text else []
    for link in links:
        about = " ".join(part for part in (link["title"], link["media_type"]) if part)
        lines.append(f"[link: {link['uri']}{f' ({about})' if about else ''}]")
    checked = check_images(result.images, bounds)
    if note_bytes(checked.images, checked.notes) > max_bytes // 2:
        checked = replace(checked, images=(), notes=("[toolrelay: the images were left out]",))
    text = "\n".join(lines)
    size = utf8_length(text)
    room = note_bytes(checked.images, checked.notes)
    truncated = size > hard_limit(max_bytes)
    text = _cut(text, size, max_bytes - room) if truncated else _encodable(text)
    seen = result.data
    if seen is None:
        seen = {"text": result.text, "images": checked.seen, "links": links}
    return Output(text, seen, size, truncated, images=checked.images, notes=checked.notes, note_bytes=room)


def _encodable(text: str) -> str:
    """Return ``text`` with its lone surrogates replaced, because no wire can carry them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
