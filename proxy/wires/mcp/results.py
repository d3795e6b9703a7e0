"""What the server answers: results, errors and progress, as JSON-RPC messages and as events of a stream.

Sources: the specification's ``Result`` types, revisions 2024-11-05 to 2026-07-28.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.events import ResultImage
from proxy.wires.mcp.messages import (
    HANDSHAKE_VERSIONS,
    INVALID_PARAMS,
    LATEST_HANDSHAKE,
    MODERN_VERSIONS,
    Message,
    ProtocolFault,
    RequestId,
)
from proxy.wires.stream.sse import comment, encode_event

__all__ = [
    "KEEP_ALIVE",
    "REQUEST_CANCELLED",
    "answer",
    "as_event",
    "call_result",
    "discovered",
    "failure",
    "initialized",
    "listed_tool",
    "progress",
    "tool_list",
]

REQUEST_CANCELLED: Final = -32800
"""What a request is answered with that its client has cancelled, where its stream has to end in an answer."""

KEEP_ALIVE: Final = comment("", pad_to=2048)
"""A comment, padded so that proxies that buffer pass it on."""

_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
_CAPABILITIES: Final[Mapping[str, Any]] = {"tools": {}}
_KEPT_MS: Final = 60_000
"""How long a client may go by a list of tools before it asks again."""

_LINKS_SINCE: Final = "2025-06-18"
_HEADER: Final = "x-mcp-header"
_DATA: Final = frozenset({"const", "default", "enum", "examples"})


def answer(number: RequestId | None, result: Mapping[str, Any]) -> bytes:
    """A response to the request of that id."""
    return orjson.dumps({"jsonrpc": "2.0", "id": number, "result": result})


def failure(fault: ProtocolFault) -> bytes:
    """An error, as the response to a request."""
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        error["data"] = dict(fault.data)
    return orjson.dumps({"jsonrpc": "2.0", "id": fault.number, "error": error})


def progress(token: RequestId, done: float, total: float | None = None, message: str | None = None) -> bytes:
    """The notification that a request goes on: so much of so much is done."""
    params: dict[str, Any] = {"progressToken": token, "progress": done}
    if total is not None:
        params["total"] = total
    if message:
        params["message"] = message
    return orjson.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def as_event(message: bytes) -> bytes:
    """A message as an event of a stream."""
    return encode_event(message, b"message")


def initialized(message: Message, version: str) -> dict[str, Any]:
    """The end of a handshake; ``version`` is the server's own.

    A client that asks for a revision which is not served is offered the newest of those that are, and leaves
    where it does not know that.  Raises :class:`~proxy.wires.mcp.messages.ProtocolFault`.
    """
    wanted = message.params.get("protocolVersion")
    if not isinstance(wanted, str):
        raise ProtocolFault(
            INVALID_PARAMS,
            "params.protocolVersion must be a revision of the protocol",
            status=200,
            number=message.id,
        )
    return {
        "protocolVersion": wanted if wanted in HANDSHAKE_VERSIONS else LATEST_HANDSHAKE,
        "capabilities": _CAPABILITIES,
        "serverInfo": _info(version),
    }


def discovered(version: str) -> dict[str, Any]:
    """The answer to a client that discovers the server without a handshake."""
    return {
        "supportedVersions": list(MODERN_VERSIONS),
        "capabilities": _CAPABILITIES,
        **_modern(version, True),
    }


def listed_tool(
    name: str, description: str, schema: Mapping[str, Any], hints: Mapping[str, bool]
) -> dict[str, Any]:
    """A tool as it is listed; ``hints`` are ``readOnlyHint`` and its like, by their names."""
    return {
        "name": name,
        "description": description,
        "inputSchema": _without_headers(schema),
        "annotations": dict(hints),
    }


def tool_list(tools: Sequence[Mapping[str, Any]], message: Message, version: str) -> dict[str, Any]:
    """All tools, on one page.  Raises :class:`~proxy.wires.mcp.messages.ProtocolFault` for another page."""
    if message.params.get("cursor") is not None:
        status = 400 if message.modern else 200
        raise ProtocolFault(
            INVALID_PARAMS,
            "params.cursor is none of this server's: it has one page",
            status=status,
            number=message.id,
        )
    return {"tools": list(tools), **(_modern(version, True) if message.modern else {})}


def call_result(
    message: Message, version: str, text: str, images: Sequence[ResultImage], *, failed: bool
) -> dict[str, Any]:
    """What a call came to; ``text`` says why where it ``failed``, for the model to read."""
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text or not images else []
    content += [_image(image, message) for image in images]
    return {"content": content, "isError": failed, **(_modern(version, False) if message.modern else {})}


def _image(image: ResultImage, message: Message) -> dict[str, Any]:
    head, comma, data = image.url.partition(",")
    if comma and head.startswith("data:"):
        return {"type": "image", "data": data, "mimeType": image.media_type}
    if message.version < _LINKS_SINCE:
        return {"type": "text", "text": f"[image {image.words}]"}
    link = {"type": "resource_link", "uri": image.url, "name": image.title or "image"}
    return {**link, "mimeType": image.media_type} if image.media_type else link


def _info(version: str) -> dict[str, str]:
    return {"name": "toolrelay", "version": version}


def _modern(version: str, kept: bool) -> dict[str, Any]:
    """What each result has since 2026-07-28; of one that is ``kept`` also for how long, and for whom."""
    hints: dict[str, Any] = {"ttlMs": _KEPT_MS, "cacheScope": "private"} if kept else {}
    return {"resultType": "complete", **hints, "_meta": {_SERVER_INFO: _info(version)}}


def _without_headers(schema: Any) -> Any:
    """A schema without the wish that arguments be repeated in headers.

    It is that of another server, for whoever stands before that one; here nobody routes by them.
    """
    if isinstance(schema, Mapping):
        return {
            key: value if key in _DATA else _without_headers(value)
            for key, value in schema.items()
            if not (key == _HEADER and isinstance(value, str))
        }
    return [_without_headers(one) for one in schema] if isinstance(schema, list | tuple) else schema
