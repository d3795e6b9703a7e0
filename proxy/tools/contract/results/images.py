"""Check the media type and the size of images that tools return, before a wire writes them."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from proxy.base.errors import ToolFailure
from proxy.base.events import ResultImage, left_out
from proxy.net.public_addresses import INNER_NAMES

_MOST = 16
_MAX_URL = 2048
_MAX_TITLE = 100
_MAX_TYPE = 64


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a tool returned.

    It has either ``data``, its bytes, with a ``media_type`` of ``image/png``, ``image/jpeg``, ``image/webp``
    or ``image/gif``; or ``url``: a ``data:`` URL in base64, or the ``https:`` URL of an image, which the
    model's provider then fetches itself.
    """

    data: bytes = field(default=b"", repr=False)
    media_type: str = ""
    title: str = ""
    url: str = field(default="", repr=False)


class ImageBounds(Struct, frozen=True):
    """The limits for the images that are passed on.

    ``max_bytes`` is for all images of one result together; 0 passes none on. ``addresses`` says whether
    ``https:`` URLs are passed on. The provider fetches any such URL, so an untrusted source must not
    choose it.
    """

    max_bytes: int = 4 << 20
    addresses: bool = True


class CheckedImages(Struct, frozen=True):
    """The images of a result after the checks.

    ``notes`` are lines for the model about images that were left out. ``seen`` is what redaction reads: it
    describes every image and contains no image data.
    """

    images: tuple[ResultImage, ...]
    notes: tuple[str, ...]
    seen: list[dict[str, Any]]


class _Unfit(Exception):
    """The reason why an image is left out, in words for the model."""


def check_images(images: Iterable[Any], bounds: ImageBounds) -> CheckedImages:
    """Return, in order, the images that have their declared media type and fit the bounds; at most 16.

    Raises :class:`~proxy.base.errors.ToolFailure` for a value that is not an :class:`Image`.
    """
    passed: list[ResultImage] = []
    notes: list[str] = []
    seen: list[dict[str, Any]] = []
    room = bounds.max_bytes
    for place, given in enumerate(islice(images, _MOST + 1)):
        if place == _MOST:
            notes.append(f"[toolrelay: further images were left out; one result may have {_MOST}]")
            break
        image, data = _read(given, bounds.max_bytes)
        seen.append(
            {"media_type": image.media_type, "title": image.title, "bytes": image.size, "url": image.url}
        )
        try:
            url = _checked(image, data, room, bounds)
        except _Unfit as why:
            notes.append(left_out(image.words, str(why)))
            continue
        room -= image.size
        passed.append(ResultImage(url, image.media_type, image.size, image.title))
    return CheckedImages(tuple(passed), tuple(notes), seen)


def _read(image: Any, max_bytes: int) -> tuple[ResultImage, bytes | None]:
    """Return the image without its bytes, and the bytes; ``None`` instead of bytes for an ``https:`` URL.

    A data URL that is certain to be too large is not decoded; a broken one has no bytes.
    """
    if not isinstance(image, Image) or type(image.data) is not bytes:
        raise ToolFailure("the tool returned an image that is not valid")
    data, media_type, title, url = image.data, _text(image.media_type), _text(image.title), _text(image.url)
    if data and url:
        raise ToolFailure("the tool returned an image with both data and url")
    if url[:5].lower() == "data:":
        head, _, encoded = url[5:].partition(",")
        size = len(encoded) * 3 // 4 - 2
        media_type, url = head.removesuffix(";base64"), ""
        if size <= max_bytes:
            data = _decoded(head, encoded)
            size = len(data)
    else:
        size = len(data)
    kept = ResultImage(_line(url, _MAX_URL + 1), _plain_type(media_type), size, _line(title, _MAX_TITLE))
    return kept, None if kept.url else data


def _decoded(head: str, encoded: str) -> bytes:
    """Return the bytes of a data URL; ``b""`` if it is not valid base64 or not declared as base64."""
    try:
        return base64.b64decode(encoded, validate=True) if head.endswith(";base64") else b""
    except (binascii.Error, ValueError):
        return b""


def _checked(image: ResultImage, data: bytes | None, room: int, bounds: ImageBounds) -> str:
    """Return the URL that the model gets for an image; raise :class:`_Unfit` if it is left out."""
    if bounds.max_bytes == 0:
        raise _Unfit("policy passes no images on")
    if data is None:
        if not bounds.addresses:
            raise _Unfit("addresses from untrusted sources are not passed on")
        if not _is_public_address(image.url):
            raise _Unfit("only public https addresses are passed on")
        return image.url
    if image.size > room:
        raise _Unfit(f"the images of one result may have {bounds.max_bytes} bytes")
    if not data:
        raise _Unfit("it is empty or no base64")
    kind = _kind(data)
    if not kind or kind != image.media_type:
        raise _Unfit("only PNG, JPEG, WebP and GIF of that media type are passed on")
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _kind(data: bytes) -> str:
    """Return the media type by the first bytes; ``""`` if it is none of the four."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def _is_public_address(url: str) -> bool:
    """Return whether a URL is https, names a public host by name, and has no user or password."""
    if len(url) > _MAX_URL or not url.isascii() or not url.isprintable() or set(url) & set(' "<>\\^`{|}'):
        return False
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return False
    if parts.scheme != "https" or "@" in parts.netloc or port not in (None, 443) or "." not in host:
        return False
    # A host whose last label starts with a digit is an IP address in a spelling that resolvers accept.
    return not (":" in host or host.endswith(INNER_NAMES) or host.rpartition(".")[2][:1].isdigit())


def _plain_type(media_type: str) -> str:
    """Return a media type in lower case, without parameters; ``""`` if it is not one."""
    plain = media_type.partition(";")[0].strip().lower()[:_MAX_TYPE]
    fits = (
        plain.isascii()
        and plain.replace("/", "").replace("+", "").replace("-", "").replace(".", "").isalnum()
    )
    if not fits:
        return ""
    return "image/jpeg" if plain == "image/jpg" else plain


def _text(value: Any) -> str:
    """Return a plain ``str``, since a subclass may override any method."""
    if not isinstance(value, str):
        raise ToolFailure("the tool returned an image that is not valid")
    return str.__getitem__(value, slice(None))


def _line(text: str, most: int) -> str:
    """Return a text as one line without lone surrogates, cut to ``most`` characters."""
    return " ".join(text[:most].encode("utf-8", "replace").decode().split())


def note_bytes(images: Sequence[ResultImage], notes: Sequence[str]) -> int:
    """Return how many bytes the notes about images may take beside a result's text, on any wire."""
    lines = [*notes, *(left_out(image.words) for image in images)]
    return sum(len(line.encode()) + 1 for line in lines)
