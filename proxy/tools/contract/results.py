"""From what a tool returned to the text that the model reads, bounded in every direction."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import orjson
from pydantic_core import PydanticSerializationError, to_jsonable_python

from proxy.errors import ToolErrorCode, ToolFailure
from proxy.events import ResultImage
from proxy.tools.contract.arguments import MAX_DEPTH, plain_kind, utf8_length
from proxy.tools.contract.images import Image, ImageBounds, pass_images, reserved
from proxy.tools.contract.paging import READ_RESULT
from proxy.values import value_class

__all__ = [
    "Output",
    "ResourceLink",
    "RichResult",
    "cut_by",
    "failure_text",
    "fit",
    "hard_limit",
    "json_text",
    "note_text",
    "safe_words",
    "to_output",
]

_MAX_MESSAGE = 1000
_MOST_LINKS = 1000
_SMALLEST_HARD_LIMIT = 1 << 20
_ESCAPES = 2
"""Bytes that the ends of lines around the note of a cut are longer in JSON."""
_LEAST_FOR_HANDLE = 512
"""Bytes of a result below which a note about a handle would take the room of the result."""


@value_class
class Output:
    """A tool's output.

    ``text`` is what there is of it for the model, whole unless ``truncated``; ``size`` its bytes
    before any cut; ``value`` what redaction looks into, ``redacted`` what that let through.
    ``untrusted`` says that it is a stranger's text.  ``images`` go beside the text, ``notes`` are
    lines that follow it and are never cut, and ``reserved`` is the room that words about images need.
    """

    text: str
    value: Any
    size: int
    truncated: bool = False
    redacted: Any = None
    untrusted: bool = False
    images: tuple[ResultImage, ...] = ()
    notes: tuple[str, ...] = ()
    reserved: int = 0

    @property
    def weight(self) -> int:
        """Bytes of text and images together."""
        return self.size + sum(image.size for image in self.images)

    def without_value(self) -> "Output":
        """The same without what only redaction needs."""
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

    The model gets ``text``, the links as lines, and the images where the wire and the upstream take
    them; else a note about each.  Redaction sees ``text``, ``images`` (``media_type``, ``title``,
    ``bytes``: their number, ``url``: an https address) and ``links`` (``uri``, ``title``,
    ``media_type``).  With ``data``, plain JSON that says in fields what the text says, it sees that instead.
    """

    text: str = ""
    images: Sequence[Image] = ()
    links: Sequence[ResourceLink] = ()
    data: Any = None


def hard_limit(max_bytes: int) -> int:
    """Bytes past which a JSON result is refused instead of cut: it is never even written out."""
    return max(_SMALLEST_HARD_LIMIT, 8 * max_bytes)


def to_output(value: Any, max_bytes: int, images: ImageBounds | None = None) -> Output:
    """The text of a result, whole: a ``str`` as it is, everything else as JSON; and its images.

    Text past :func:`hard_limit` is cut to ``max_bytes`` at once.  Raises
    :class:`~proxy.errors.ToolFailure` with ``result_too_large`` for JSON past it and with
    ``execution_failed`` for what JSON cannot say: NaN, cycles, foreign objects.
    """
    if isinstance(value, RichResult):
        return _rich_output(value, max_bytes, images or ImageBounds())
    if isinstance(value, str):
        # A subclass may say anything of itself, its length too.
        value = value if type(value) is str else str.__getitem__(value, slice(None))
        size = utf8_length(value)
        if size > hard_limit(max_bytes):
            text = _cut(value, size, max_bytes)
            return Output(text, text, size, True)
        text = _encodable(value)
        return Output(text, text, size)
    limit = hard_limit(max_bytes)
    if _is_iterator(value):
        value = list(islice(value, limit))  # One that never ends is too large by then.
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
        # Whole numbers past 64 bits, which orjson does not write and JSON has.
        try:
            text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError):
            raise ToolFailure("the tool returned something that is not JSON") from None
    return Output(_encodable(text), value, utf8_length(text))


def fit(output: Output, max_bytes: int, keep: Callable[[str], str | None]) -> tuple[str, bool]:
    """The part of an output that the model gets, at most ``max_bytes``, and whether something was left out.

    The texts about its images count, too.  If something is left out, ``keep`` returns a handle with which the
    model can read the rest.
    """
    text, truncated = output.text, output.truncated
    room = max_bytes - output.reserved
    if not truncated and output.size > room:
        handle = keep(text) if room >= _LEAST_FOR_HANDLE else None
        text, truncated = _cut(text, output.size, room, handle), True
    return "\n".join(part for part in (text, *output.notes) if part), truncated


def failure_text(code: ToolErrorCode, message: str) -> str:
    """What the model reads about a failure (rule T3); ``message`` as :func:`safe_words` gives it."""
    return orjson.dumps({"ok": False, "error_code": code, "message": message}).decode()


def note_text(message: str) -> str:
    """What the model reads where a call went well and there is no output to show."""
    return orjson.dumps({"ok": True, "message": message}).decode()


def json_text(value: Any) -> str:
    """Plain JSON values as text that any wire can carry, with whole numbers of any size."""
    return _encodable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def cut_by(text: str, excess: int) -> str:
    """A text that is to stand in JSON, cut so that the JSON is ``excess`` bytes shorter."""
    size = utf8_length(text)
    return _cut(text, size, size - excess - _ESCAPES)


def safe_words(message: str) -> str:
    """A failure's message as any wire can carry it, bounded."""
    return _encodable(str(message)[:_MAX_MESSAGE])


def _measure(value: Any, limit: int) -> bool:
    """Walk a value without writing it out, and refuse it if it is too large, too deep or not finite.

    Returns whether it holds anything that is not plain JSON.  Cycles show as too deep a nesting.
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
    """Whether a value is used up by looking at it, and may never end."""
    return hasattr(type(value), "__next__")


def _cut(text: str, size: int, max_bytes: int, handle: str | None = None) -> str:
    """Head and tail of a text that is too long, with a note between them for the model."""
    note = f"\n[toolrelay: the result was {size} bytes; its middle was left out here]\n"
    if handle is not None:
        note = (
            f"\n[toolrelay: the result was {size} bytes; its middle was left out here. To read on call "
            f'{READ_RESULT} with handle "{handle}" and offset OFFSET]\n'
        )
    room = max(max_bytes - len(note), 0)
    head_bytes, tail_bytes = room - room // 3, room // 3
    # No character is less than a byte: slicing by characters first keeps the copies small.
    head = _encodable(text[:head_bytes]).encode()[:head_bytes].decode(errors="ignore")
    tail = _encodable(text[len(text) - tail_bytes :]).encode() if tail_bytes else b""
    if handle is not None:
        note = note.replace("OFFSET", str(len(head)))
    return head + note + tail[len(tail) - tail_bytes :].decode(errors="ignore")


def _rich_output(result: RichResult, max_bytes: int, bounds: ImageBounds) -> Output:
    """A rich result as text for the model, with its images, and as the value that redaction looks into."""
    if not isinstance(result.text, str):
        raise ToolFailure("the tool returned something that is not JSON")
    links = [
        {"uri": str(one.uri), "title": str(one.title), "media_type": str(one.media_type)}
        for one in islice(result.links, _MOST_LINKS)
    ]
    lines = [result.text] if result.text else []
    for link in links:
        about = " ".join(part for part in (link["title"], link["media_type"]) if part)
        lines.append(f"[link: {link['uri']}{f' ({about})' if about else ''}]")
    passed = pass_images(result.images, bounds)
    if reserved(passed.images, passed.notes) > max_bytes // 2:
        passed = replace(passed, images=(), notes=("[toolrelay: the images were left out]",))
    text = "\n".join(lines)
    size = utf8_length(text)
    room = reserved(passed.images, passed.notes)
    truncated = size > hard_limit(max_bytes)
    text = _cut(text, size, max_bytes - room) if truncated else _encodable(text)
    seen = result.data
    if seen is None:
        seen = {"text": result.text, "images": passed.seen, "links": links}
    return Output(text, seen, size, truncated, images=passed.images, notes=passed.notes, reserved=room)


def _encodable(text: str) -> str:
    """``text`` with lone surrogates replaced, which no wire can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
