"""Build the ids of MCP servers' tools: ``mcp__SERVER__TOOL``.

Servers may name tools as they like; the specification only recommends ``A-Za-z0-9_.-`` and 1 to 128
characters. Providers of models accept 64 characters of a smaller set. So a name that does not fit becomes a
readable form with a hash of the original, which is the same on every machine and at every start.
"""

import hashlib
import re
from typing import Final

PROVIDER: Final = "mcp"
"""The part of every such tool id before the first double underscore."""

SERVER_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,23}[a-z0-9])?")
"""The form of a server's name: short, so that an id has room for the tool's name."""

MAX_NAME: Final = 200
"""The most characters of a tool's name; a tool with a longer name is left out."""

_MAX_ID = 64
_HASH = 8
_FITS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")


def mcp_tool_id(server: str, name: str) -> str:
    """Return the id of the tool with the server's own name ``name``.

    A name that fits is kept. Any other becomes its readable characters, an underscore and eight hex digits
    of the SHA-256 of the original, so that two similar names stay two tools.
    """
    head = f"{PROVIDER}__{server}__"
    if _FITS.fullmatch(name) and "__" not in name and len(head) + len(name) <= _MAX_ID:
        return head + name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
    readable = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9-]", "_", name)).strip("_-")
    room = _MAX_ID - len(head) - 1 - _HASH
    readable = readable[:room].rstrip("_-")
    return f"{head}{readable}_{digest}" if readable else f"{head}{digest}"


def pattern_of_server(server: str) -> str:
    """Return the pattern that fits every tool of a server."""
    return f"{PROVIDER}__{server}__*"
