"""Refuses requests that a foreign web page makes a browser send: no page may reach tools behind its reader's
back.

A page can send requests to any address that its reader's machine reaches. A browser names the page's origin
in most of them. It asks with a preflight first, unless the request is as plain as a form's.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

import structlog
from aiohttp import hdrs, web
from multidict import istr
from pydantic_core import PydanticCustomError

from proxy.base.caches import CacheSize, declare
from proxy.base.errors import RequestError
from proxy.config.addresses import check_origins
from proxy.server.connections.client_address import TrustedProxies
from proxy.server.messages.heads.pending_heads import OncePerMinute
from proxy.server.messages.own_address import host_name
from proxy.server.messages.request import EdgeRequest
from proxy.server.messages.target import Target, Targets
from proxy.server.middleware.cors import METHODS, Cors

_MOST: Final = 16
"""The most origins with log lines of their own: anybody can invent any number of them."""

_LONGEST: Final = 200


class RefusedOrigins:
    """The log of refused origins: at most one line a minute for each, with the setting that would allow it.

    Origins beyond the first sixteen share one line a minute, until one of the sixteen is silent for a minute.
    """

    def __init__(self, listed: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._listed = tuple(listed)
        self._clock = clock
        self._known: dict[str, tuple[float, OncePerMinute]] = {}
        self._others = OncePerMinute(clock)
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.server")

    def refused(self, origin: str) -> None:
        """Count a refused request of a page of this origin."""
        origin = origin[:_LONGEST]
        count = self._counter(origin).counted()
        if count:
            self._log.warning("origin_refused", origin=origin, count=count, hint=self._hint(origin))

    def _counter(self, origin: str) -> OncePerMinute:
        now = self._clock()
        known = self._known.get(origin)
        if known is None and len(self._known) >= _MOST:
            self._known = {name: entry for name, entry in self._known.items() if now - entry[0] < 60}
            if len(self._known) >= _MOST:
                return self._others
        counter = known[1] if known else OncePerMinute(self._clock)
        self._known[origin] = (now, counter)
        return counter

    def _hint(self, origin: str) -> str:
        try:
            check_origins((*self._listed, origin))
        except PydanticCustomError:
            # An origin that no browser sends for a page with an origin of its own cannot be listed.
            return "server.cors_origins cannot list this origin; serve the page over http or https"
        listed = json.dumps([*self._listed, origin])
        return f"to allow pages of this origin, set server.cors_origins = {listed}"


_METHODS: Final = frozenset({*METHODS, "OPTIONS"})
_SEC_FETCH_SITE: Final = istr("Sec-Fetch-Site")
_NAVIGATION: Final = ((istr("Sec-Fetch-Mode"), "navigate"), (istr("Sec-Fetch-Dest"), "document"))
"""The headers of a browser that follows a link of its reader; it never sends them for what a page loads or
frames."""

_UNASKED: Final = frozenset({"GET", "HEAD"})
"""Methods that a page may send to another site without a preflight, and without a body that would identify
it."""

_OWN_SITES: Final = frozenset({"same-origin", "none"})
_LONGEST_KNOWN: Final = 64
_MOST_KNOWN: Final = 64
"""The most names that are cached: clients write the server's name in few ways."""

_FORWARDED: Final = (
    hdrs.X_FORWARDED_FOR,
    hdrs.FORWARDED,
    istr("X-Real-IP"),
    hdrs.VIA,
    hdrs.X_FORWARDED_HOST,
    hdrs.X_FORWARDED_PROTO,
    istr("X-Forwarded-Port"),
    istr("X-Client-IP"),
    istr("CF-Connecting-IP"),
    istr("True-Client-IP"),
    istr("X-Forwarded-Server"),
    istr("X-Forwarded-Scheme"),
    istr("X-Original-Forwarded-For"),
    istr("X-Cluster-Client-IP"),
    istr("X-Envoy-External-Address"),
    istr("Fastly-Client-IP"),
    istr("CDN-Loop"),
)
"""Headers that reverse proxies and tunnels add by default; each of them adds at least one of these."""

_PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Paths for load balancers, which call a server by its address, in HTTP/1.0 and without a ``Host`` (HAProxy's
``option httpchk``). The answers tell a foreign page nothing that a failed connection does not."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class HostRule:
    """The names by which a client may call the server.

    A page that rebinds its name in DNS reaches the server with its own origin, but its ``Host`` is then the
    attacker's name. Nobody can rebind an address or ``localhost``. With ``loopback_only`` all addresses but
    loopback are refused. ``names`` are further names in lower case; ``*.example.com`` stands for all names
    below.
    """

    loopback_only: bool
    names: Sequence[str] = ()
    _exact: frozenset[str] = field(init=False)
    _below: tuple[str, ...] = field(init=False)
    _known: dict[str, bool] = field(init=False, default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_exact", frozenset({"localhost", "127.0.0.1", "::1", *self.names}))
        object.__setattr__(self, "_below", tuple(name[1:] for name in self.names if name.startswith("*.")))
        declare("hosts", self._cache_size)

    def _cache_size(self) -> CacheSize:
        entry = 200 + _LONGEST_KNOWN
        return CacheSize(entry * len(self._known), entry * _MOST_KNOWN)

    def allows(self, host: str) -> bool:
        """Return whether a ``Host`` header names this server."""
        known = self._known.get(host)
        if known is None:
            known = self._names_us(host)
            if len(host) <= _LONGEST_KNOWN and len(self._known) < _MOST_KNOWN:
                self._known[host] = known
        return known

    def _names_us(self, host: str) -> bool:
        name = host_name(host)
        if not name:
            return False
        if name in self._exact:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return ":" not in name and not host.startswith("[") and name.endswith(self._below)
        return address.is_loopback or not self.loopback_only


class PageGuard:
    """The guard that answers preflight requests and refuses requests that only a foreign page would send.

    ``hosts`` is ``None`` if a client may call the server by any name. ``needs_key`` says that callers send
    keys, which no page has.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        cors: Cors,
        hosts: HostRule | None,
        needs_key: bool,
        proxies: TrustedProxies,
    ) -> None:
        self._targets = targets
        self._cors = cors
        self._hosts = hosts
        self._needs_key = needs_key
        self._proxies = proxies if proxies else None
        self._refused = RefusedOrigins(cors.origins)
        # Without both, the check depends on the head alone: no peer address and no page headers are needed.
        self._by_head = not cors and self._proxies is None

    def check(self, request: EdgeRequest) -> web.Response | None:
        """Return the answer to a preflight; ``None`` for a request that may continue.

        Raises :class:`RequestError`: 403, 405 or 415 for a request that a page may not send.
        """
        if self in request.head:
            return None
        headers = request.headers
        method = request.method
        if method not in _METHODS:
            # After CONNECT and similar methods the rest of the connection may not be HTTP at all.
            raise RequestError(
                405, f"The method {method[:20]} is not supported.", headers={"Connection": "close"}
            )
        if request.raw_path in _PROBES and method in _UNASKED and hdrs.ORIGIN not in headers:
            return None
        if self._hosts is not None:
            _check_host(self._hosts, headers.getall(hdrs.HOST, ()))
        from_page = hdrs.ORIGIN in headers
        if from_page:
            if not _may_call(self._cors, request):
                self._refused.refused(headers[hdrs.ORIGIN])
                raise _not_allowed(
                    "Web pages of this origin may not call the proxy; server.cors_origins does not list it"
                )
        elif _SEC_FETCH_SITE in headers:
            if not _is_own_site(request) and not self._is_link_to_page(request):
                # Images, scripts and links of other sites: browsers send no origin for them.
                raise _not_allowed(
                    "Web pages of another site may not call the proxy without an Origin header"
                )
        elif not self._needs_key and method in _UNASKED:
            _check_unmarked(request, request.head[self._targets])
        through = self._proxies is not None and self._proxies.trusts(request.remote)
        if not self._needs_key:
            if not through:
                _check_direct(request)
                _check_version(request)
            if method == "POST":
                self._check_media_type(request, from_page)
        if from_page and method == "OPTIONS" and hdrs.ACCESS_CONTROL_REQUEST_METHOD in headers:
            return self._cors.preflight(request)
        if self._cors:
            request.page_headers = self._cors.headers(request)
        if through and self._proxies is not None:
            forwarded = headers.getall(hdrs.X_FORWARDED_FOR, ())
            request.client_address = self._proxies.client_of(request.remote or "", forwarded)
        if self._by_head:
            request.head[self] = None
        return None

    def _is_link_to_page(self, request: EdgeRequest) -> bool:
        """Return whether a reader follows a link of another site to a page of the proxy.

        The page is the same for everybody and contains no data; it then loads its data from its own origin.
        """
        if request.method not in _UNASKED or not request.head[self._targets].is_page:
            return False
        return all(request.head.listed(name) == [value] for name, value in _NAVIGATION)

    def _check_media_type(self, request: EdgeRequest, from_page: bool) -> None:
        """Refuse the bodies that a form can send: browsers send them without a preflight.

        ``from_page`` says that the page's origin is known and may call.
        """
        content_types = request.headers.getall(hdrs.CONTENT_TYPE, ())
        if not content_types and not request.body_exists:
            return
        kind = content_types[0].partition(";")[0].strip().lower() if len(content_types) == 1 else ""
        if kind == "application/json":
            return
        if kind == "multipart/form-data" and _takes_files(request.head[self._targets]):
            if from_page or _is_program(request):
                return
            raise RequestError(
                415,
                "Without client keys, the proxy accepts a form with files only if it has a header that "
                "web pages cannot send without permission. Send any key, as in Authorization: Bearer "
                "unused.",
                code="content_type_not_allowed",
            )
        raise RequestError(
            415,
            "The proxy accepts only JSON in a POST to this path. Send Content-Type: application/json.",
            param="Content-Type",
            code="content_type_not_allowed",
        )


def _check_host(hosts: HostRule, host_lines: Sequence[str]) -> None:
    if len(host_lines) != 1 or not hosts.allows(host_lines[0]):
        raise RequestError(
            403,
            "The Host header must name this machine: localhost, an address that it listens on, or one of "
            "server.allowed_hosts.",
            code="host_not_allowed",
        )


def _may_call(cors: Cors, request: EdgeRequest) -> bool:
    """Return whether a page of the request's origin may call: a listed origin, or the proxy's own."""
    origins = request.headers.getall("Origin")
    if len(origins) != 1:
        return False
    if cors.allows(origins[0]):
        return True
    return _is_own_site(request) and is_own_origin(origins[0], request.headers.get("Host", "").lower())


def _is_own_site(request: EdgeRequest) -> bool:
    """Return whether no header of the browser says that the page is of another site."""
    return _OWN_SITES.issuperset(request.head.listed(_SEC_FETCH_SITE))


def is_own_origin(origin: str, host: str) -> bool:
    """Return whether a page's origin is the server that it calls, under any name of that server."""
    scheme, _, authority = origin.partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    return port is not None and authority != "" and host in (authority, authority + port)


def _not_allowed(message: str) -> RequestError:
    return RequestError(403, f"{message}.", code="origin_not_allowed")


def _check_direct(request: EdgeRequest) -> None:
    headers = request.headers
    for name in _FORWARDED:
        if name in headers:
            raise RequestError(
                403,
                f"The request came through a proxy ({name}), and there are no client keys. Name the proxy's "
                "address in server.trusted_proxies, or make client keys.",
                code="forwarded_not_allowed",
            )


def _check_version(request: EdgeRequest) -> None:
    """Refuse requests that come through a proxy that does not identify itself.

    nginx with a bare ``proxy_pass`` speaks HTTP/1.0, adds no header and writes its own name for the server
    into ``Host``. No client of today uses HTTP/1.0 by default.
    """
    if request.version < (1, 1):
        raise RequestError(
            403,
            "Without client keys, the proxy does not accept HTTP/1.0, because some reverse proxies use it "
            "without naming themselves. Use HTTP/1.1. Behind a reverse proxy, serve with the start token or "
            'client keys (no --open, no auth.mode = "open"), or name the reverse proxy\'s address in '
            "server.trusted_proxies.",
            code="http_version_not_allowed",
            headers={"Connection": "close"},
        )


def _check_unmarked(request: EdgeRequest, target: Target) -> None:
    """Refuse a GET that a page of another site may have sent without a mark of the browser.

    Browsers mark the site of a request only for servers that are reached by https or on the loopback. So on
    any other address a GET of the API needs a header that no page can send without a preflight, or a
    ``Referer`` of the proxy's own origin. A page can leave out its ``Referer``, but it cannot forge one.
    """
    if target.below is None or _is_program(request):
        return
    host_lines = request.headers.getall(hdrs.HOST, ())
    if len(host_lines) == 1 and is_loopback_name(host_lines[0]):
        return
    referers = request.headers.getall(hdrs.REFERER, ())
    if len(referers) == 1 and is_own_origin(
        "/".join(referers[0].split("/")[:3]), "".join(host_lines).lower()
    ):
        return
    raise _not_allowed(
        "Without client keys, a web page of another site could have sent this GET. Send any key, as in "
        "Authorization: Bearer unused, which such a page cannot send"
    )


def is_loopback_name(host: str) -> bool:
    name = host_name(host)
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _takes_files(target: Target) -> bool:
    """Return whether a path accepts files in a form."""
    return target.below is not None and target.below.split("/")[1] in target.endpoint.dialect.takes_files


def _is_program(request: EdgeRequest) -> bool:
    """Return whether the request has a header that a browser sends only after a preflight.

    Proxies add none of these headers. A browser sends ``Authorization: Basic`` without a preflight, so that
    does not count.
    """
    headers = request.headers
    return headers.get("Authorization", "").lower().startswith("bearer ") or any(
        name.lower().startswith(("api-key", "x-api-key", "x-stainless-", "x-toolrelay-")) for name in headers
    )
