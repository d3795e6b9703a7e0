"""Which headers pass between clients and an upstream: for each direction, those on a list.

A gateway used as an upstream takes instructions from headers that its vendor invented (where to send the
request, which key to add, which cache to read). The proxy cannot know them all, so it forwards the names
that it knows and those that the operator lists for one upstream.
"""

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from proxy.base.caches import declare_lru
from proxy.base.errors import ConfigError
from proxy.http.bodies import REDACTED
from proxy.http.headers import Columns, Headers, HeaderSection, by_names, media_type_and_coding
from proxy.http.secret_spellings import SecretSpellings

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
"""Headers of one connection (RFC 9110, section 7.6.1). ``proxy-*`` is matched by its prefix."""

REQUEST_HEADERS: Final = (
    "accept",
    "accept-language",
    "anthropic-beta",
    "anthropic-version",
    "content-encoding",
    "content-language",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "openai-beta",
    "openai-version",
    "range",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-client-request-id",
    "x-stainless-*",
)
"""The client's headers that every upstream gets.

OpenAI's SDKs send ``x-stainless-*`` and ``x-client-request-id``; the trace context is W3C's.
"""

RESPONSE_HEADERS: Final = (
    "accept-ranges",
    "allow",
    "anthropic-ratelimit-*",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "deprecation",
    "etag",
    "expires",
    "last-modified",
    "openai-model",
    "openai-processing-ms",
    "openai-version",
    "ratelimit",
    "ratelimit-*",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "sunset",
    "vary",
    "x-ratelimit-*",
    "x-request-id",
    "x-should-retry",
)
"""The upstream's headers that every client gets.

``x-request-id`` reaches the client as ``x-upstream-request-id``.
"""

_NEVER_SENT = (
    "accept-encoding",
    "api-key",
    "authorization",
    "cf-connecting-ip",
    "content-length",
    "cookie",
    "cookie2",
    "expect",
    "forwarded",
    "host",
    "openai-organization",
    "openai-project",
    "origin",
    "sec-*",
    "true-client-ip",
    "via",
    "x-api-key",
    "x-client-ip",
    "x-forwarded-*",
    "x-real-ip",
    "x-request-id",
    "x-toolrelay-*",
)
"""The client's credentials, identity and address, and headers that the proxy sets anew for each hop."""

_NEVER_RETURNED = (
    "access-control-*",
    "alt-svc",
    "clear-site-data",
    "cross-origin-*",
    "date",
    "location",
    "openai-organization",
    "openai-project",
    "server",
    "set-cookie",
    "set-cookie2",
    "strict-transport-security",
    "timing-allow-origin",
    "www-authenticate",
    "x-accel-*",
    "x-sendfile",
    "x-toolrelay-*",
)
"""Headers that an upstream must not set for clients.

They are cookies, the provider's account, what browsers would take for the proxy's own policy, and
instructions to a reverse proxy in front of this one. For example, ``X-Accel-Redirect`` makes nginx send a
file of its machine.
"""

_LISTED = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:-\*)?")

_NAMES_NOTHING = frozenset({"", "keep-alive", "close"})

DECODABLE = ("gzip", "x-gzip", "deflate", "identity")
"""The codings that an upstream may use: in any other an error body could not be scrubbed."""


class HeaderRules:
    """Selects by name the headers that pass between clients and one upstream."""

    __slots__ = ("returned", "sent")

    def __init__(self, upstream: str = "", sent: Sequence[str] = (), returned: Sequence[str] = ()) -> None:
        """``sent`` and ``returned`` extend the lists: header names, or prefixes that end in ``-*``.

        Raises :class:`ConfigError` for an invalid name, and for a name that must never pass.
        """
        more_sent = _checked(f"upstreams.{upstream}.forward_headers", sent, _NEVER_SENT)
        more_returned = _checked(f"upstreams.{upstream}.forward_response_headers", returned, _NEVER_RETURNED)
        goes_up = _Names([*REQUEST_HEADERS, *more_sent], but=_NEVER_SENT)
        comes_back = _Names([*RESPONSE_HEADERS, *more_returned], but=_NEVER_RETURNED)

        def sent_of(names: tuple[str, ...]) -> HeaderSelection:
            return _select(names, goes_up)

        def returned_of(raw_names: tuple[bytes, ...]) -> HeaderSelection:
            return _select(tuple([name.decode("utf-8", "replace") for name in raw_names]), comes_back)

        self.sent: Callable[[tuple[str, ...]], HeaderSelection] = by_names(sent_of)
        """Selects the client's headers that go to the upstream, by their names."""
        self.returned: Callable[[tuple[bytes, ...]], HeaderSelection] = by_names(returned_of)
        """Selects the upstream's headers that go to the client, by their names."""

    def request_headers(self, headers: Headers) -> HeaderSection:
        """Return the client's headers that go to the upstream, in order.

        Headers are dropped if they are not listed, if they belong to one connection or ``Connection`` names
        them, or if their values cannot be written as HTTP headers again.
        """
        section = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
        plain = _PLAIN.match("".join(section.values)) is not None
        return _kept(section.values, self.sent(section.names), plain)

    def response_headers(
        self, raw_names: Sequence[bytes], raw_values: Sequence[bytes], secrets: tuple[bytes, ...]
    ) -> HeaderSection:
        """Return the upstream's headers that go to the client, in order, decoded and without ``secrets``."""
        selection = self.returned(tuple(raw_names))
        # One check of all values together saves a check of each.
        joined = b"\n".join(raw_values)
        values = joined.decode("utf-8", "replace").split("\n")
        plain = len(values) == len(raw_names) and not joined.translate(None, _PLAIN_LINES)
        if not plain:
            values = [value.decode("utf-8", "replace") for value in raw_values]
        for secret in secrets:
            if not plain or secret in joined:
                values = [
                    value.encode().replace(secret, REDACTED).decode("utf-8", "replace") for value in values
                ]
        if secrets and b"\\" in joined:
            values = [_unescaped_too(value, secrets) for value in values]
        return _kept(values, selection, plain)


class _Names:
    """A list of lower-case names and prefixes, without the names on the list ``but``."""

    def __init__(self, listed: Collection[str], *, but: Collection[str] = ()) -> None:
        self._exact = {name for name in listed if not name.endswith("*")}
        self._prefixes = tuple([name[:-1] for name in listed if name.endswith("*")])
        self._but = _Names(but) if but else None

    def __contains__(self, name: str) -> bool:
        listed = name in self._exact or name.startswith(self._prefixes)
        return listed and (self._but is None or name not in self._but)


def _checked(setting: str, names: Sequence[str], never: Collection[str]) -> list[str]:
    """Return the listed names in lower case; raise ConfigError for one that must not be listed."""
    refused = _Names([*never, *HOP_BY_HOP, "proxy-*"])
    checked = [name.lower() for name in names]
    for name in checked:
        if not _LISTED.fullmatch(name) or name == "x-*":
            what = "is too broad" if "*" in name else "is not a header name of letters, digits and '-'"
            raise ConfigError(
                setting, f"{name[:80]!r} {what}", 'List names like "x-title", or a prefix like "x-litellm-*"'
            )
        if name in refused:
            raise ConfigError(
                setting, f"{name!r} must not pass between clients and upstreams", "Take it off the list"
            )
    return checked


def accept_encoding(headers: Headers) -> str | None:
    """Return the client's ``Accept-Encoding`` without codings that :data:`DECODABLE` lacks.

    Return ``None`` if the client sent none.
    """
    offers = [v for name, v in headers if name.lower() == "accept-encoding"]
    if not offers:
        return None
    wanted = [item.strip() for item in ",".join(offers).split(",")]
    known = [item for item in wanted if item.split(";")[0].strip().lower() in DECODABLE]
    return ", ".join(known) or "identity"


def _unescaped_too(value: str, secrets: tuple[bytes, ...]) -> str:
    """Scrub secrets with characters escaped as in JSON, which is the form of some headers."""
    return _spellings(secrets).replaced(value.encode(), lambda _: REDACTED).decode("utf-8", "replace")


@lru_cache(maxsize=64)
def _spellings(secrets: tuple[bytes, ...]) -> SecretSpellings:
    return SecretSpellings(secrets)


declare_lru("header_secrets", _spellings, 20_000)


def media_type(headers: Headers) -> str:
    """Return the media type of ``Content-Type`` in lower case, without parameters; "" if absent."""
    return media_type_and_coding(headers)[0]


def first(headers: Headers, wanted: str) -> str:
    """Return the value of the first header with that (lower-case) name, or ""."""
    for name, value in headers:
        if name.lower() == wanted:
            return value
    return ""


def without(headers: Headers, *names: str) -> list[tuple[str, str]]:
    """Return the headers except those with the given lower-case names."""
    return [(name, value) for name, value in headers if name.lower() not in names]


def is_name(name: bytes) -> bool:
    """Return whether these bytes are a valid header name (RFC 9110, section 5.1)."""
    return _RAW_NAME.match(name) is not None


class HeaderSelection(NamedTuple):
    """A selection of headers by their names.

    ``connection`` holds the indices of ``Connection`` headers, whose values may name further headers to drop.
    """

    names: tuple[str, ...]
    mask: tuple[bool, ...]
    take: Callable[[Sequence[str]], tuple[str, ...]]
    connection: tuple[int, ...]


def _kept(values: Sequence[str], selection: HeaderSelection, plain: bool) -> HeaderSection:
    """Return the headers that may pass, in order: by name, by value, and by what ``Connection`` names.

    ``plain`` says that every value is known to be writable.
    """
    kept = HeaderSection(selection.names, selection.take(values))
    if not plain:
        kept = HeaderSection.of([pair for pair in kept if _is_writable(pair[1])])
    for at in selection.connection:
        if values[at].lower() not in _NAMES_NOTHING:
            return _less_named(kept, [values[at] for at in selection.connection])
    return kept


def _less_named(kept: HeaderSection, connection: list[str]) -> HeaderSection:
    """Return ``kept`` without the headers that the values of ``Connection`` name."""
    named = {token.strip() for token in ",".join(connection).lower().split(",")}
    if named <= _NAMES_NOTHING:
        return kept
    return HeaderSection.of([pair for pair in kept if pair[0].lower() not in named])


def _is_writable(value: str) -> bool:
    """Return whether a value can stand in an HTTP head; a parser may accept what no writer does."""
    return _VALUE.match(value) is not None


def _select(names: tuple[str, ...], listed: _Names) -> HeaderSelection:
    """Select the headers whose lower-case name is ``listed``.

    A name with ``_`` never passes: servers that pass headers on as CGI variables read it as ``-``.
    """

    def is_kept(name: str) -> bool:
        low = name.lower()
        return low in listed and "_" not in low and _NAME.match(name) is not None

    connection = [at for at, name in enumerate(names) if name.lower() == "connection"]
    return HeaderSelection(*Columns.where(names, is_kept), tuple(connection))
