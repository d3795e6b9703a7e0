"""Which headers pass between the proxy and an upstream, in each direction."""

import re
from collections.abc import Iterable, Sequence

from proxy.upstreams.base import Headers

__all__ = [
    "DECODABLE",
    "HOP_BY_HOP",
    "accept_encoding",
    "clean_response_headers",
    "first",
    "forwardable",
    "media_type",
    "without",
]

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_VALUE = re.compile("[\t\x20-\x7e\x80-\ud7ff\ue000-\U0010ffff]*\\Z")

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of one connection (RFC 9110, section 7.6.1); ``proxy-*`` is matched by its prefix."""

_NEVER_SENT = frozenset(
    {
        "accept-encoding",
        "api-key",
        "authorization",
        "content-length",
        "cookie",
        "cookie2",
        "expect",
        "host",
        "openai-organization",
        "openai-project",
        "x-api-key",
    }
)
"""The client's credentials and identity, and what is made anew for each hop."""

_NEVER_RETURNED = frozenset({"set-cookie", "set-cookie2"})

DECODABLE = ("gzip", "x-gzip", "deflate", "identity")
"""Codings an upstream may answer in: an error body in any other could not be scrubbed."""


def forwardable(headers: Headers) -> list[tuple[str, str]]:
    """The client's headers that may go to an upstream, in order.

    Drops hop-by-hop headers and the ones ``Connection`` names, credentials, ``x-toolrelay-*``,
    and any that cannot be written as an HTTP header again.
    """
    dropped = HOP_BY_HOP | _NEVER_SENT | _named_by_connection(headers)
    return [
        (name, value)
        for name, value in headers
        if (low := name.lower()) not in dropped
        and not low.startswith(("proxy-", "x-toolrelay-"))
        and _is_writable(name, value)
    ]


def accept_encoding(headers: Headers) -> str | None:
    """The client's ``Accept-Encoding`` less the codings that :data:`DECODABLE` lacks."""
    offers = [v for name, v in headers if name.lower() == "accept-encoding"]
    if not offers:
        return None
    wanted = [item.strip() for item in ",".join(offers).split(",")]
    known = [item for item in wanted if item.split(";")[0].strip().lower() in DECODABLE]
    return ", ".join(known) or "identity"


def clean_response_headers(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """An upstream's end-to-end headers in order, decoded, without cookies."""
    headers = [(name.decode("utf-8", "replace"), value.decode("utf-8", "replace")) for name, value in raw]
    dropped = HOP_BY_HOP | _NEVER_RETURNED | _named_by_connection(headers)
    return [
        (name, value)
        for name, value in headers
        if (low := name.lower()) not in dropped and not low.startswith("proxy-") and _is_writable(name, value)
    ]


def media_type(headers: Headers) -> str:
    """The media type of ``Content-Type`` in lower case, without parameters; "" where absent."""
    return first(headers, "content-type").split(";")[0].strip().lower()


def first(headers: Headers, wanted: str) -> str:
    """The value of the first header of that (lower case) name, or ""."""
    return next((value for name, value in headers if name.lower() == wanted), "")


def without(headers: Headers, *names: str) -> list[tuple[str, str]]:
    """The headers less those of the given lower-case names."""
    return [(name, value) for name, value in headers if name.lower() not in names]


def _named_by_connection(headers: Sequence[tuple[str, str]]) -> frozenset[str]:
    return frozenset(
        token.strip().lower()
        for name, value in headers
        if name.lower() == "connection"
        for token in value.split(",")
    )


def _is_writable(name: str, value: str) -> bool:
    """Whether the pair can stand in an HTTP head: a parser may let through what no writer takes."""
    return _NAME.match(name) is not None and _VALUE.match(value) is not None
