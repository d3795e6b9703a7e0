"""Mirror arguments of calls into HTTP headers, as servers of revision 2026-07-28 can ask for.

A property of a tool's schema with ``x-mcp-header = "NAME"`` asks for the header ``Mcp-Param-NAME`` with the
argument's value, so that a gateway can route the request without its body. A server refuses a call whose
headers and arguments differ, and a client must leave out a tool whose annotations break the rules.
Source: MCP 2026-07-28, Transports, "Custom Headers"; the rules are those of the official SDK.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from proxy.base.plain_text import plain_text
from proxy.tools.mcp.definitions import Definition, LeftOutTool, Listing, read_listing
from proxy.tools.mcp.servers import Server

_MOST: Final = 8192
"""The most bytes of all mirrored headers of a call; most servers and gateways refuse longer heads."""

_MAX_REASON: Final = 300


class TooLongForHeaders(Exception):
    """The arguments that a server wants in headers are too long for them."""


def read_tools(server: Server, version: str, tools: Sequence[Any], most: int) -> Listing:
    """Read a list of tools as :func:`~proxy.tools.mcp.definitions.read_listing` does, at most ``most``.

    Tools whose annotations break the rules are left out with the reason. ``version`` is the negotiated
    revision of the protocol.
    """
    listing = read_listing(server.name, tools[: most + 1], most)
    if not _mirrors(server, version):
        return listing
    faults = [(tool, find_invalid_x_mcp_header(tool.input_schema)) for tool in listing.definitions]
    left_out = [
        LeftOutTool(plain_text(t.name), plain_text(f"its inputSchema cannot be used: {fault}", _MAX_REASON))
        for t, fault in faults
        if fault is not None
    ]
    kept = tuple(definition for definition, fault in faults if fault is None)
    return Listing(kept, (*listing.left_out, *left_out))


def mirrored_headers(
    server: Server, version: str, definition: Definition, arguments: Mapping[str, Any]
) -> Mapping[str, str]:
    """Return the headers of a call; values that are not plain ASCII are in base64 (``=?base64?...?=``).

    Raises :class:`TooLongForHeaders`.
    """
    if not _mirrors(server, version):
        return {}
    headers = mcp_param_headers(x_mcp_header_map(definition.input_schema), arguments)
    if sum(len(name) + len(value) for name, value in headers.items()) > _MOST:
        raise TooLongForHeaders(
            f"the server wants arguments in HTTP headers, and these are longer than {_MOST} bytes together"
        )
    return headers


def _mirrors(server: Server, version: str) -> bool:
    """Return whether the rules apply: only over HTTP, and only since the revision that has them."""
    return bool(server.url) and version in MODERN_PROTOCOL_VERSIONS
