"""The endpoints of all dialects that the proxy serves, and lookups across them."""

from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from proxy.wires.anthropic import dialect as anthropic
from proxy.wires.chat import dialect as chat
from proxy.wires.dialect import Dialect, Endpoint
from proxy.wires.ollama import dialect as ollama
from proxy.wires.openai import dialect as openai
from proxy.wires.responses import dialect as responses


class EndpointTable:
    """An immutable lookup of endpoints. Only this class compares paths with those of the dialects.

    ``endpoints``: all known endpoints. ``other``: the endpoint for all other paths. ``labels``: the paths
    that metrics count one by one; ``families``: the first segments by which metrics count the others.
    """

    def __init__(self, endpoints: Iterable[Endpoint], other: Dialect) -> None:
        """Build the table. In ``endpoints``, specific paths must stand before general ones. ``other`` is
        the dialect of all other paths.

        Raises ValueError for two endpoints with the same method and path.
        """
        self.endpoints = known = tuple(endpoints)
        self._plain = {(one.method, one.path): one for one in known if "{" not in one.path}
        self._patterns = [(one.method, one.pattern, one) for one in known if "{" in one.path]
        if len({(one.method, one.path) for one in known}) < len(known):
            raise ValueError("two endpoints have the same method and path")
        self.other = Endpoint(other, "", "")
        dialects = {other, *(one.dialect for one in known)}
        self._prefixes = tuple(sorted({(f"{dialect.prefix}/", dialect.rooted) for dialect in dialects}))
        rooted = (one for one in known if one.dialect.rooted)
        self._roots = frozenset(one.path for one in rooted if one.path == one.dialect.prefix)
        self._rooted = frozenset(dialect.prefix[1:] for dialect in dialects if dialect.rooted)
        self.families = frozenset[str]().union(*(dialect.families for dialect in dialects))
        plain = self._plain.values()
        self.labels = frozenset(one.path for one in plain if one.operation or one.kind in ("models", "mcp"))

    def find(self, method: str, below: str) -> Endpoint:
        """Return the endpoint for a method and a path; the path is written as in :attr:`Endpoint.path`.

        Returns the endpoint of kind ``other`` if none is known; such a request passes through.
        """
        found = self._plain.get((method, below)) or self._plain.get(("", below))
        if found is not None:
            return found
        for wanted, pattern, known in self._patterns:
            if wanted in (method, "") and pattern.fullmatch(below) is not None:
                return known
        return self.other

    def is_rooted(self, path: str) -> bool:
        """Return whether any server may read a path as one of a rooted dialect.

        Some servers ignore the case of a path, and Java servers ignore parameters (``/api;x/pull``).
        """
        return path[1:].partition("/")[0].partition(";")[0].casefold() in self._rooted

    def extended_with(self, endpoints: Iterable[Endpoint]) -> "EndpointTable":
        """Return a table with these endpoints in addition to its own."""
        return EndpointTable((*endpoints, *self.endpoints), self.other.dialect)

    def below(self, path: str) -> str | None:
        """Return the part of a path below a dialect's prefix, or the whole path if the dialect is rooted.

        Returns ``None`` if the path is below no dialect's prefix.
        """
        if path in self._roots:
            return path
        for prefix, rooted in self._prefixes:
            if path.startswith(prefix):
                return path if rooted else path[len(prefix) - 1 :]
        return None


SERVED: Final = EndpointTable(
    (*chat.ENDPOINTS, *responses.ENDPOINTS, *anthropic.ENDPOINTS, *ollama.ENDPOINTS, *openai.ENDPOINTS),
    openai.OPENAI,
)
"""Specific paths stand before general ones. A path that matches none passes through as OpenAI's."""

BY_WIRE: Final[Mapping[str, Dialect]] = MappingProxyType(
    {known.dialect.wire: known.dialect for known in SERVED.endpoints if known.kind == "generate"}
)
"""The dialects in which a model answers with server tools, by the name of their wire."""


def dialect_of(endpoint: Endpoint, names: Container[str]) -> Dialect:
    """Return the client's dialect; ``names`` are those of the request's headers, in any case.

    Several dialects list their models at one path, and differ in their headers.
    """
    own = endpoint.dialect
    if endpoint.kind != "models":
        return own
    for dialect in BY_WIRE.values():
        is_here = (dialect.prefix, dialect.models.path) == (own.prefix, own.models.path)
        if is_here and dialect.headers and all(name in names for name, _ in dialect.headers):
            return dialect
    return own


STREAM_TYPES: Final = frozenset(known.dialect.framing.content_type for known in SERVED.endpoints)
"""The media types of the streams of all dialects."""
