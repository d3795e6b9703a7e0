"""The endpoints of all dialects that the proxy serves, and lookups across them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from proxy.wires.dialect import Dialect, EndpointTable
from proxy.wires.dialects import anthropic, chat, ollama, openai, responses

__all__ = ["BY_WIRE", "SERVED", "STREAM_TYPES"]

SERVED: Final = EndpointTable(
    (*chat.ENDPOINTS, *responses.ENDPOINTS, *anthropic.ENDPOINTS, *ollama.ENDPOINTS, *openai.ENDPOINTS),
    openai.OPENAI,
)
"""Specific paths stand before general ones.  A path that matches none passes through as OpenAI's."""

BY_WIRE: Final[Mapping[str, Dialect]] = MappingProxyType(
    {known.dialect.wire: known.dialect for known in SERVED.endpoints if known.kind == "generate"}
)
"""The dialects in which a model answers with server tools, by the name of their wire."""

STREAM_TYPES: Final = frozenset(known.dialect.framing.content_type for known in SERVED.endpoints)
"""The media types of the streams of all dialects."""
