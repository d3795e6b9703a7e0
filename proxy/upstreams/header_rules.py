"""Which headers pass between the proxy and an upstream, in each direction."""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Literal

from proxy.upstreams.base import Headers
from proxy.upstreams.body_filters import REDACTED

__all__ = [
    "DECODABLE",
    "HOP_BY_HOP",
    "accept_encoding",
    "clean_response_headers",
    "described",
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

_NAMES_NOTHING = frozenset({"", "keep-alive", "close"})
_DESCRIBES = frozenset({"content-type", "content-encoding"})

_Use = Literal["kept", "dropped", "connection"]

DECODABLE = ("gzip", "x-gzip", "deflate", "identity")
"""Codings an upstream may answer in: an error body in any other could not be scrubbed."""


def forwardable(headers: Headers) -> list[tuple[str, str]]:
    """The client's headers that may go to an upstream, in order.

    Drops hop-by-hop headers and the ones ``Connection`` names, credentials, ``x-toolrelay-*``,
    and any that cannot be written as an HTTP header again.
    """
    return _kept(headers, _sent, " ".join([value for _, value in headers]))


def accept_encoding(headers: Headers) -> str | None:
    """The client's ``Accept-Encoding`` less the codings that :data:`DECODABLE` lacks."""
    offers = [v for name, v in headers if name.lower() == "accept-encoding"]
    if not offers:
        return None
    wanted = [item.strip() for item in ",".join(offers).split(",")]
    known = [item for item in wanted if item.split(";")[0].strip().lower() in DECODABLE]
    return ", ".join(known) or "identity"


def clean_response_headers(
    raw: Iterable[tuple[bytes, bytes]], secrets: tuple[bytes, ...]
) -> list[tuple[str, str]]:
    """An upstream's end-to-end headers in order, decoded, without cookies and without ``secrets``."""
    headers = [(name.decode("utf-8", "replace"), value.decode("utf-8", "replace")) for name, value in raw]
    values = " ".join([value for _, value in headers])
    if secrets and any(map(values.encode().__contains__, secrets)):
        headers = [(name, _scrubbed(value, secrets)) for name, value in headers]
    return _kept(headers, _returned, values)


def _scrubbed(value: str, secrets: tuple[bytes, ...]) -> str:
    raw = value.encode()
    for secret in secrets:
        raw = raw.replace(secret, REDACTED)
    return raw.decode("utf-8", "replace")


def media_type(headers: Headers) -> str:
    """The media type of ``Content-Type`` in lower case, without parameters; "" where absent."""
    return described(headers)[0]


def described(headers: Headers) -> tuple[str, str]:
    """A body's media type, without parameters, and its sole content coding, both in lower case.

    "" stands for what is absent.  Several codings count as one unknown.
    """
    kind = coding = None
    for name, value in headers:
        if (tells := _description(name)) == "content-type":
            kind = value if kind is None else kind
        elif tells:
            coding = value if coding is None else coding
    return _media_type(kind or ""), coding.strip().lower().removeprefix("identity") if coding else ""


def first(headers: Headers, wanted: str) -> str:
    """The value of the first header of that (lower case) name, or ""."""
    for name, value in headers:
        if name.lower() == wanted:
            return value
    return ""


def without(headers: Headers, *names: str) -> list[tuple[str, str]]:
    """The headers less those of the given lower-case names."""
    return [(name, value) for name, value in headers if name.lower() not in names]


def _kept(headers: Headers, use_of: Callable[[str], _Use], values: str) -> list[tuple[str, str]]:
    """Those that may go on, in order: by their name, by their value, and by what ``Connection`` names.

    ``values`` are those of all headers: what is asked of all at once need not be asked of each.
    """
    kept = []
    connection = []
    for pair in headers:
        use = use_of(pair[0])
        if use == "kept":
            kept.append(pair)
        elif use == "connection":
            connection.append(pair[1])
    if not _is_plain(values):
        kept = [pair for pair in kept if _is_writable(pair[1])]
    return _less_named(kept, connection) if connection else kept


def _less_named(kept: list[tuple[str, str]], connection: list[str]) -> list[tuple[str, str]]:
    """``kept`` less what the values of ``Connection`` name."""
    named = {token.strip() for token in ",".join(connection).lower().split(",")}
    if named <= _NAMES_NOTHING:
        return kept
    return [pair for pair in kept if pair[0].lower() not in named]


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable()


def _is_writable(value: str) -> bool:
    """Whether a value can stand in an HTTP head: a parser may let through what no writer takes."""
    return _is_plain(value) or _VALUE.match(value) is not None


# The same few names come with every request, so what is made of each is kept.


@lru_cache(maxsize=1024)
def _sent(name: str) -> _Use:
    """What becomes of a client's header on its way up."""
    low = name.lower()
    dropped = low in HOP_BY_HOP or low in _NEVER_SENT or low.startswith(("proxy-", "x-toolrelay-"))
    return _use(name, dropped=dropped)


@lru_cache(maxsize=1024)
def _returned(name: str) -> _Use:
    """What becomes of an upstream's header on its way back."""
    low = name.lower()
    return _use(name, dropped=low in HOP_BY_HOP or low in _NEVER_RETURNED or low.startswith("proxy-"))


def _use(name: str, *, dropped: bool) -> _Use:
    if name.lower() == "connection":
        return "connection"
    return "dropped" if dropped or _NAME.match(name) is None else "kept"


@lru_cache(maxsize=1024)
def _description(name: str) -> str:
    """Which of a body's properties a header names, "" for none."""
    low = name.lower()
    return low if low in _DESCRIBES else ""


@lru_cache(maxsize=256)
def _media_type(value: str) -> str:
    return value.split(";")[0].strip().lower()
