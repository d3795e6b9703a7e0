"""The Model Context Protocol over streamable HTTP, as data: one path for clients that run a model themselves.

The proxy serves it only if the operator turns it on, so the table of all dialects lacks its endpoints.

Source: the specification's streamable HTTP transport, revisions 2025-03-26 to 2026-07-28.
"""

from typing import Any, Final

import orjson

from proxy.wires.dialect import Credential, Dialect, Endpoint, Errors, UsageFields
from proxy.wires.openai import dialect as openai
from proxy.wires.stream.sse import encode_event

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603
"""Codes of JSON-RPC 2.0, section 5.1."""


def error_body(
    message: str,
    *,
    type: str,
    param: str | None = None,
    code: str | None = None,
    request_id: str = "",
    doc_url: str = "",
) -> dict[str, Any]:
    """Build a JSON-RPC error. Its ``id`` is null: it answers no request, since none was read."""
    number = INTERNAL_ERROR if type == "server_error" else INVALID_REQUEST
    said = {"code": code, "param": param, "request_id": request_id, "doc_url": doc_url}
    return {
        "jsonrpc": "2.0",
        "id": None,
        "error": {
            "code": PARSE_ERROR if code == "invalid_json" else number,
            "message": message,
            "data": {name: value for name, value in said.items() if value},
        },
    }


def _error_event(message: str, *, type: str, code: str | None) -> bytes:
    return encode_event(orjson.dumps(error_body(message, type=type, code=code)), b"message")


MCP: Final = Dialect(
    name="mcp",
    wire="mcp",
    prefix="/mcp",
    path="",
    framing=openai.FRAMING,
    errors=Errors(error_body, _error_event, openai.read_error),
    credentials=(Credential("Authorization", "Bearer"),),
    # It has no models and counts no tokens.
    usage=UsageFields("", "", ""),
    quirks=openai.QUIRKS,
    models=openai.OPENAI_LISTS,
    families=frozenset({"mcp"}),
    rooted=True,
)

ENDPOINTS: Final = (
    Endpoint(MCP, "", "/mcp", "mcp", usage="none"),
    Endpoint(MCP, "", "/mcp/{rest}", "mcp", usage="none"),
)
