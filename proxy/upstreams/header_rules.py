"""Which headers pass between the proxy and an upstream, in each direction."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from proxy.upstreams.base import Headers
from proxy.upstreams.body_filters import REDACTED
from proxy.upstreams.header_section import Columns, HeaderSection, by_names, described

__all__ = [
    "DECODABLE",
    "HOP_BY_HOP",
    "accept_encoding",
    "clean_response_headers",
    "first",
    "forwardable",
    "is_name",
    "media_type",
    "returnable",
    "without",
]

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_RAW_NAME = re.compile(_NAME.pattern.encode())
_VALUE = re.compile("[\t\x20-\x7e\x80-\ud7ff\ue000-\U0010ffff]*\\Z")
_PLAIN = re.compile("[ -~]*+\\Z")
_PLAIN_LINES = bytes(range(0x20, 0x7F)) + b"\n"

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

_NAMES_NOTHING = frozenset({"", "keep-alive", "close"})

DECODABLE = ("gzip", "x-gzip", "deflate", "identity")
"""Codings an upstream may answer in: an error body in any other could not be scrubbed."""


def forwardable(headers: Headers) -> HeaderSection:
    """The client's headers that may go to an upstream, in order.

    Drops hop-by-hop headers and the ones ``Connection`` names, credentials, ``x-toolrelay-*``,
    and any that cannot be written as an HTTP header again.
    """
    section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
    plain = _PLAIN.match("".join(section.values)) is not None
    return _kept(section.values, _sent(section.names), plain)


def accept_encoding(headers: Headers) -> str | None:
    """The client's ``Accept-Encoding`` less the codings that :data:`DECODABLE` lacks."""
    offers = [v for name, v in headers if name.lower() == "accept-encoding"]
    if not offers:
        return None
    wanted = [item.strip() for item in ",".join(offers).split(",")]
    known = [item for item in wanted if item.split(";")[0].strip().lower() in DECODABLE]
    return ", ".join(known) or "identity"


def clean_response_headers(
    raw_names: Sequence[bytes], raw_values: Sequence[bytes], secrets: tuple[bytes, ...]
) -> HeaderSection:
    """An upstream's end-to-end headers in order, decoded, without cookies and without ``secrets``."""
    uses = returnable(tuple(raw_names))
    # What is asked of all values at once need not be asked of each.
    joined = b"\n".join(raw_values)
    values = joined.decode("utf-8", "replace").split("\n")
    plain = len(values) == len(raw_names) and not joined.translate(None, _PLAIN_LINES)
    if not plain:
        values = [value.decode("utf-8", "replace") for value in raw_values]
    for secret in secrets:
        if not plain or secret in joined:
            values = [_scrubbed(value, secret) for value in values]
    return _kept(values, uses, plain)


def _scrubbed(value: str, secret: bytes) -> str:
    return value.encode().replace(secret, REDACTED).decode("utf-8", "replace")


def media_type(headers: Headers) -> str:
    """The media type of ``Content-Type`` in lower case, without parameters; "" where absent."""
    return described(headers)[0]


def first(headers: Headers, wanted: str) -> str:
    """The value of the first header of that (lower case) name, or ""."""
    for name, value in headers:
        if name.lower() == wanted:
            return value
    return ""


def without(headers: Headers, *names: str) -> list[tuple[str, str]]:
    """The headers less those of the given lower-case names."""
    return [(name, value) for name, value in headers if name.lower() not in names]


def is_name(name: bytes) -> bool:
    """Whether these bytes can name a header (RFC 9110, section 5.1)."""
    return _RAW_NAME.match(name) is not None


class Uses(NamedTuple):
    """Which headers go on by their names; ``connection`` says where those stand that name others."""

    names: tuple[str, ...]
    mask: tuple[bool, ...]
    take: Callable[[Sequence[str]], tuple[str, ...]]
    connection: tuple[int, ...]


def _kept(values: Sequence[str], uses: Uses, plain: bool) -> HeaderSection:
    """Those that may go on, in order: by their name, by their value, and by what ``Connection`` names.

    ``plain`` says that every value is known to be one that can be written.
    """
    kept = HeaderSection(uses.names, uses.take(values))
    if not plain:
        kept = HeaderSection.of([pair for pair in kept if _is_writable(pair[1])])
    for at in uses.connection:
        if values[at].lower() not in _NAMES_NOTHING:
            return _less_named(kept, [values[at] for at in uses.connection])
    return kept


def _less_named(kept: HeaderSection, connection: list[str]) -> HeaderSection:
    """``kept`` less what the values of ``Connection`` name."""
    named = {token.strip() for token in ",".join(connection).lower().split(",")}
    if named <= _NAMES_NOTHING:
        return kept
    return HeaderSection.of([pair for pair in kept if pair[0].lower() not in named])


def _is_writable(value: str) -> bool:
    """Whether a value can stand in an HTTP head: a parser may let through what no writer takes."""
    return _VALUE.match(value) is not None


@by_names
def _sent(names: tuple[str, ...]) -> Uses:
    """What becomes of a client's headers on their way up."""
    return _uses(names, lambda low: low in _NEVER_SENT or low.startswith("x-toolrelay-"))


@by_names
def returnable(raw_names: tuple[bytes, ...]) -> Uses:
    """What becomes of an upstream's headers on their way back."""
    names = tuple([name.decode("utf-8", "replace") for name in raw_names])
    return _uses(names, _NEVER_RETURNED.__contains__)


def _uses(names: tuple[str, ...], is_dropped: Callable[[str], bool]) -> Uses:
    """``is_dropped`` is asked for names in lower case, of what does not belong to one connection."""

    def is_kept(name: str) -> bool:
        low = name.lower()
        hops = low in HOP_BY_HOP or low.startswith("proxy-")
        return not hops and not is_dropped(low) and _NAME.match(name) is not None

    connection = [at for at, name in enumerate(names) if name.lower() == "connection"]
    return Uses(*Columns.where(names, is_kept), tuple(connection))
