"""Writes images and files of a conversation as URLs or as words, and results as text."""

import re
from dataclasses import replace
from typing import Final

from proxy.base.conversation import (
    Audio,
    Content,
    File,
    Image,
    Inline,
    NativePart,
    Refusal,
    Remote,
    Stored,
    Text,
    ToolResultPart,
)
from proxy.base.events import ResultImage, left_out
from proxy.net.public_addresses import is_public_url
from proxy.wires.crossing.fields import Fields
from proxy.wires.crossing.ledger import Ledger

_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
_FAILURE = re.compile(r"\W{0,4}(error|fail|exception|\"?ok\"?: ?false|traceback)", re.IGNORECASE)
"""Matches the beginning of a result that itself says that the call failed."""
_ONLY_TEXT: Final = "The upstream takes results as text alone."


def inline_of(url: str) -> Inline | None:
    """Return the base64 data of a ``data:`` URL; ``None`` for any other address."""
    match = _DATA_URL.match(url)
    if match is None or not match[2].lower().endswith(";base64"):
        return None
    parameters = match[2][: -len(";base64")]
    return Inline(match[1] + parameters, url[match.end() :])


def remote_of(fields: Fields, name: str, url: str) -> Remote:
    """Return an address for an upstream of another dialect.

    Upstreams differ in what they fetch: one reads ``file:`` or addresses of its own network, which another
    refuses. So a client's address crosses only if it means the same everywhere. Raise ``RequestError``
    (400), which names the field ``name`` of ``fields``, for any other.
    """
    if not (url[:5].lower() == "data:" or is_public_url(url)):
        raise fields.fault(
            name,
            "must be a data: URL, or an http or https address of a public host without a user name, because "
            "the upstream speaks another dialect. Send the content itself as a data: URL",
        )
    return Remote(url)


def omit_detail(image: Image, ledger: Ledger) -> None:
    """Leave out how closely the model shall look at an image, for a dialect without a form for it."""
    if image.detail:
        ledger.omit(f"{image.at}.detail", "The dialect does not say how closely to look at an image.")


def data_url(inline: Inline) -> str:
    """Return a ``data:`` URL for base64 data."""
    return f"data:{inline.media_type};base64,{inline.data}"


def image_words(image: Image) -> str:
    """Return the line that replaces an image if only text can be passed on."""
    source = image.source
    match source:
        case Inline():
            pictured = ResultImage("", source.media_type, len(source.data) * 3 // 4)
        case Remote():
            pictured = ResultImage(source.url, "", 0)
        case Stored():
            pictured = ResultImage(source.file_id, "", 0)
    return left_out(pictured.words)


def file_words(file: File) -> str:
    """Return a text file as text, and for any other file the line that replaces it."""
    if isinstance(file.source, Inline) and file.source.is_text:
        return "\n".join(filter(None, (file.name, file.context, file.source.data)))
    facts = " ".join(filter(None, (f'"{file.name}"' if file.name else "", file.context)))
    return f"[toolrelay: a file {facts} was left out; only text can be passed on]".replace("  ", " ")


def marked_result(result: ToolResultPart) -> tuple[Content, ...]:
    """Return the parts of a result for a dialect without another way to mark a failed call."""
    if not result.is_error:
        return result.parts
    first = result.parts[0] if result.parts else None
    if not isinstance(first, Text):
        return (Text("Error: the call failed."), *result.parts)
    if _FAILURE.match(first.text):
        return result.parts
    return (replace(first, text=f"Error: {first.text}"), *result.parts[1:])


def result_words(result: ToolResultPart, ledger: Ledger, *, images: bool = True) -> str:
    """Return a result as one text, with words for other media; a failed call is marked at the beginning.

    Without ``images`` the text does not mention images, because the caller sends them in another way.
    """
    said = []
    for part in marked_result(result):
        match part:
            case Text() | Refusal():
                said.append(part.text)
            case Image():
                if images:
                    said.append(image_words(part))
                    ledger.omit(part.at, _ONLY_TEXT)
            case File():
                said.append(file_words(part))
                if not isinstance(part.source, Inline) or not part.source.is_text:
                    ledger.omit(part.at, _ONLY_TEXT)
            case Audio():
                raise ledger.refuse(part.at, _ONLY_TEXT)
            case NativePart():
                ledger.native_fragment(part.native)
                continue
        ledger.put_natives(part.native, {})
    return "\n".join(said)
