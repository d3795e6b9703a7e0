"""The exact messages that an MCP client sends to ``/mcp``, in an old and in a new revision of MCP."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from running_proxy import Answer, ProxyAddress

HANDSHAKE = "2025-11-25"
MODERN = "2026-07-28"
NONE: Mapping[str, str] = MappingProxyType({})
ACCEPT = "application/json, text/event-stream"


def message(
    method: str, params: Mapping[str, Any] | None = None, *, version: str = MODERN, number: Any = 1
) -> dict[str, Any]:
    """Return a request in a revision; ``number`` of ``None`` makes it a notification."""
    told = dict(params or {})
    if version == MODERN:
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        told["_meta"] = {**meta, **told.get("_meta", {})}
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": told}
    return body if number is None else {**body, "id": number}


def headers_of(body: Mapping[str, Any], version: str = MODERN) -> dict[str, str]:
    """Return the headers that go with a message."""
    said = {"Accept": ACCEPT, "MCP-Protocol-Version": version}
    if version == MODERN:
        said["Mcp-Method"] = str(body["method"])
        if body["method"] == "tools/call":
            said["Mcp-Name"] = str(body["params"]["name"])
    return said


async def ask(
    proxy: ProxyAddress,
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    version: str = MODERN,
    number: Any = 1,
    headers: Mapping[str, str] = NONE,
) -> Answer:
    """Send one message and return its whole answer."""
    body = message(method, params, version=version, number=number)
    return await proxy.ask(body, {**headers_of(body, version), **headers}, path="/mcp")


async def call(
    proxy: ProxyAddress,
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    version: str = MODERN,
    headers: Mapping[str, str] = NONE,
) -> dict[str, Any]:
    """Call a tool and return its result, which must come as one JSON object."""
    params = {"name": tool, "arguments": dict(arguments or {})}
    answer = await ask(proxy, "tools/call", params, version=version, headers=headers)
    assert answer.status == 200, answer.body
    assert answer.header("content-type") == "application/json", answer.body
    result: dict[str, Any] = answer.json["result"]
    return result


def events(body: bytes) -> list[dict[str, Any]]:
    """Return the messages of a stream without its comments."""
    found = []
    for block in body.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            assert lines["event"] == "message"
            found.append(json.loads(lines["data"]))
    return found
