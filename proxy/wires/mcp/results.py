"""Builds the server's answers as JSON-RPC messages and events: results, errors and progress.

Sources: the specification's ``Result`` types, revisions 2024-11-05 to 2026-07-28.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.events import ResultImage
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

REQUEST_CANCELLED: Final = -32800
"""The error code for a request that its client has cancelled, if its stream must end with an answer."""

KEEP_ALIVE: Final = comment("", pad_to=2048)
"""A comment, padded so that buffering intermediaries pass it on."""

_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
_CAPABILITIES: Final[Mapping[str, Any]] = {"tools": {}}
_KEPT_MS: Final = 60_000
"""How long, in milliseconds, a client may reuse a list of tools before it asks again."""

_LINKS_SINCE: Final = "2025-06-18"
_HEADER: Final = "x-mcp-header"
_DATA: Final = frozenset({"const", "default", "enum", "examples"})


def answer(number: RequestId | None, result: Mapping[str, Any]) -> bytes:
    """Return the response to the request with the id ``number``."""
    return orjson.dumps({"jsonrpc": "2.0", "id": number, "result": result})


def failure(fault: ProtocolFault) -> bytes:
    """Return the error response for a fault."""
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        error["data"] = dict(fault.data)
    return orjson.dumps({"jsonrpc": "2.0", "id": fault.number, "error": error})


def progress(token: RequestId, done: float, total: float | None = None, message: str | None = None) -> bytes:
    """Return a progress notification: ``done`` of ``total``."""
    params: dict[str, Any] = {"progressToken": token, "progress": done}
    if total is not None:
        params["total"] = total
    if message:
        params["message"] = message
    return orjson.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def as_event(message: bytes) -> bytes:
    """Return a message as an event of a stream."""
    return encode_event(message, b"message")


def initialized(message: Message, version: str) -> dict[str, Any]:
    """Return the server's part of the handshake; ``version`` is the server's own.

    A client that asks for an unknown revision is offered the newest one with a handshake, and disconnects
    if it does not know that. Raises :class:`~proxy.wires.mcp.messages.ProtocolFault` if it names no
    revision.
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
    """Return the answer to a client that discovers the server without a handshake."""
    return {
        "supportedVersions": list(MODERN_VERSIONS),
        "capabilities": _CAPABILITIES,
        **_modern(version, True),
    }


def listed_tool(
    name: str, description: str, schema: Mapping[str, Any], hints: Mapping[str, bool]
) -> dict[str, Any]:
    """Return a tool's entry in the list; ``hints`` are annotations such as ``readOnlyHint``, by name."""
    return {
        "name": name,
        "description": description,
        "inputSchema": _without_headers(schema),
        "annotations": dict(hints),
    }


def tool_list(tools: Sequence[Mapping[str, Any]], message: Message, version: str) -> dict[str, Any]:
    """Return all tools on one page. Raise :class:`~proxy.wires.mcp.messages.ProtocolFault` for others."""
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
    """Return the outcome of a call. If it ``failed``, ``text`` tells the model why."""
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
    """Return the members of each result since 2026-07-28; for a ``kept`` one also how long, and for whom."""
    hints: dict[str, Any] = {"ttlMs": _KEPT_MS, "cacheScope": "private"} if kept else {}
    return {"resultType": "complete", **hints, "_meta": {_SERVER_INFO: _info(version)}}


def _without_headers(schema: Any) -> Any:
    """Return a schema without requests to repeat arguments in headers.

    They are for intermediaries in front of another server. Nothing in front of this server routes by them.
    """
    if isinstance(schema, Mapping):
        return {
            key: value if key in _DATA else _without_headers(value)
            for key, value in schema.items()
            if not (key == _HEADER and isinstance(value, str))
        }
    return [_without_headers(member) for member in schema] if isinstance(schema, list | tuple) else schema
