"""The endpoints of all dialects that the proxy serves, and lookups across them."""

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Final

from proxy.wires.anthropic import dialect as anthropic
from proxy.wires.chat import dialect as chat
from proxy.wires.dialect import Dialect, Endpoint, EndpointTable
from proxy.wires.ollama import dialect as ollama
from proxy.wires.openai import dialect as openai
from proxy.wires.responses import dialect as responses

__all__ = ["BY_WIRE", "SERVED", "STREAM_TYPES", "dialect_of"]

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
