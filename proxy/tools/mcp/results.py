"""Convert the result of a ``tools/call`` to what the model reads.

A server's result is untrusted. Unknown kinds of content become notes, and invisible characters are removed
from text. Images are checked by their bytes, and nothing that a result refers to is ever fetched.

Sources: the specification's ``CallToolResult`` and ``ContentBlock``, revisions 2024-11-05 to 2026-07-28.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

from proxy.base.errors import ToolFailure
from proxy.tools.contract.results.images import Image
from proxy.tools.contract.results.results import ResourceLink, RichResult
from proxy.tools.mcp.definitions import visible_text

MAX_ITEMS: Final = 1000
"""The most content blocks of one result that are read."""

_MAX_WORDS = 1000
_MAX_URI = 2048
_MAX_TYPE = 100
_INVALID_PARAMS = -32602
_METHOD_NOT_FOUND = -32601
_UNFETCHED = frozenset({"javascript", "data", "file", "vbscript"})


def read_result(result: Any) -> RichResult:
    """Return the content of a result for the model.

    Raises :class:`ToolFailure` for ``isError``, with the server's text, for a result that asks
    for input, and for an invalid result.
    """
    if not isinstance(result, dict):
        raise ToolFailure("the server answered with something that is no result")
    kind = result.get("resultType", "complete")
    if kind == "input_required":
        raise ToolFailure("the tool asks for input that cannot be given here")
    if kind != "complete":
        raise ToolFailure("the server answered with a kind of result that is not known here")
    content = result.get("content")
    made = _Content()
    for block in islice(content if isinstance(content, list) else (), MAX_ITEMS + 1):
        made.add(block)
    made.structured(result.get("structuredContent"))
    if result.get("isError") is True:
        raise ToolFailure(made.text()[:_MAX_WORDS] or "the tool failed and said nothing more")
    return made.result()


def failure_of_error(error: Mapping[str, Any]) -> ToolFailure:
    """Return the failure for the model from a JSON-RPC error; its message is the server's text, cut."""
    code, message = error.get("code"), error.get("message")
    text = visible_text(message)[:_MAX_WORDS] if isinstance(message, str) else ""
    if code == _INVALID_PARAMS:
        return ToolFailure(text or "the server does not take these arguments", code="invalid_arguments")
    if code == _METHOD_NOT_FOUND:
        return ToolFailure(text or "the server does not have this tool any more")
    return ToolFailure(text or "the server answered with an error")


class _Content:
    """The content of a result, collected block by block."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._images: list[Image] = []
        self._links: list[ResourceLink] = []
        self._data: Any = None
        self._read = 0

    def add(self, block: Any) -> None:
        """Add one block; an invalid block becomes a note and raises nothing."""
        self._read += 1
        if self._read > MAX_ITEMS:
            self._note(f"the rest was left out: a result may have {MAX_ITEMS} parts")
            return
        if not isinstance(block, dict):
            self._note("a part was left out that is no content block")
            return
        annotations = block.get("annotations")
        if isinstance(annotations, dict) and annotations.get("audience") == ["user"]:
            self._note("a part was left out that is meant for a person only")
            return
        match block.get("type"):
            case "text":
                self._add_text(block.get("text"))
            case "image":
                self._add_image(block, block.get("data"))
            case "resource_link":
                self._add_link(block)
            case "resource":
                self._add_resource(block.get("resource"))
            case "audio":
                self._note(f"sound was left out ({_media_type(block)}, {_size(block.get('data'))} bytes)")
            case _:
                self._note("a part was left out of a kind that is not known here")

    def structured(self, value: Any) -> None:
        """Add structured content, also as text unless a text has the same content already."""
        if value is None:
            return
        self._data = value
        # Servers wrap a value that is not an object: {"result": …} or {"content": …} with one field.
        wrapped = next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value
        if any(_equals(line, value) or _equals(line, wrapped) for line in self._lines):
            return
        try:
            self._lines.append(visible_text(json.dumps(value, ensure_ascii=False)))
        except (ValueError, RecursionError):
            self._data = None
            self._note("structured content was left out that is nested too deeply")

    def text(self) -> str:
        return "\n".join(self._lines)

    def result(self) -> RichResult:
        """Return the whole content; an empty result becomes a note that the call succeeded."""
        if not self._lines and not self._images and not self._links:
            self._lines.append('{"ok": true, "message": "no content"}')
        return RichResult(self.text(), self._images, self._links, self._data)

    def _note(self, text: str) -> None:
        self._lines.append(f"[toolrelay: {text}]")

    def _add_text(self, text: Any) -> None:
        if isinstance(text, str):
            self._lines.append(visible_text(text))
        else:
            self._note("a text was left out that is none")

    def _add_image(self, block: Mapping[str, Any], data: Any) -> None:
        try:
            decoded = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
        except (binascii.Error, ValueError):
            decoded = b""
        if decoded:
            # contract/images.py checks the bytes, as of all tools' images.
            self._images.append(Image(data=decoded, media_type=_media_type(block)))
        else:
            self._note("an image was left out that is no base64")

    def _add_link(self, block: Mapping[str, Any]) -> None:
        uri = block.get("uri")
        if not isinstance(uri, str) or not uri or len(uri) > _MAX_URI:
            self._note("a link was left out that has no address")
            return
        uri = visible_text(uri)
        title = block.get("title") or block.get("name")
        if _scheme(uri) in _UNFETCHED:
            self._note(f"the result points at {uri[:200]}")
            return
        shown = visible_text(title)[:200] if isinstance(title, str) else ""
        self._links.append(ResourceLink(uri, shown, _media_type(block)))

    def _add_resource(self, resource: Any) -> None:
        if not isinstance(resource, dict):
            self._note("a resource was left out that is none")
            return
        uri = resource.get("uri")
        where = visible_text(uri)[:200] if isinstance(uri, str) else "without an address"
        if isinstance(text := resource.get("text"), str):
            self._lines.append(f"[resource {where}]\n{visible_text(text)}")
        elif _media_type(resource).startswith("image/"):
            self._add_image(resource, resource.get("blob"))
        else:
            size = _size(resource.get("blob"))
            self._note(f"the resource {where} was left out ({_media_type(resource)}, {size} bytes)")


def _media_type(block: Mapping[str, Any]) -> str:
    kind = block.get("mimeType")
    return visible_text(kind)[:_MAX_TYPE] if isinstance(kind, str) and kind else "unknown type"


def _size(data: Any) -> int:
    """Return roughly how many bytes a base64 text has, for a note about it."""
    return len(data) * 3 // 4 if isinstance(data, str) else 0


def _scheme(uri: str) -> str:
    try:
        return urlsplit(uri).scheme.lower()
    except ValueError:
        return "file"


def _equals(text: str, value: Any) -> bool:
    """Return whether a text equals a value or is its JSON."""
    if text == value:
        return True
    if not text or text[0] not in '{["-0123456789tfn':
        return False
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
