"""What a browser may be made to send: a web page must not reach tools behind its reader's back.

A page can send requests to any address that its reader's machine reaches.  A browser names the
page's origin in most of them, and asks beforehand unless the request is as plain as a form's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from aiohttp import hdrs, web
from multidict import istr

from proxy.caches import CacheSize, declare
from proxy.errors import RequestError
from proxy.server.middleware.cors import METHODS, Cors
from proxy.server.middleware.refused_origins import RefusedOrigins
from proxy.server.serving.client_address import TrustedProxies
from proxy.server.serving.own_address import host_name
from proxy.server.serving.request import EdgeRequest
from proxy.server.serving.target import Target, Targets

__all__ = ["HostRule", "PageGuard", "is_loopback_name", "is_own_origin"]

_METHODS: Final = frozenset({*METHODS, "OPTIONS"})
_SEC_FETCH_SITE: Final = istr("Sec-Fetch-Site")
_NAVIGATION: Final = ((istr("Sec-Fetch-Mode"), "navigate"), (istr("Sec-Fetch-Dest"), "document"))
"""What a browser says of a link that its reader follows, and of nothing that a page loads or frames."""

_UNASKED: Final = frozenset({"GET", "HEAD"})
"""What a page may send to another site with nobody being asked, and without a body that tells it."""

_OWN_SITES: Final = frozenset({"same-origin", "none"})
_LONGEST_KNOWN: Final = 64
_MOST_KNOWN: Final = 64
"""How clients write the server's name, of which there are few, is looked at once."""

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
"""What reverse proxies and tunnels add of their own accord, each of them one of these at least."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class HostRule:
    """Which names a client may call the server by.

    A page that rebinds its name in DNS reaches the server and passes for its own origin, but it
    cannot call itself by another name: its ``Host`` is the attacker's.  An address, or
    ``localhost``, is nobody's to rebind.  With ``loopback_only`` no other address will do either.
    ``names`` are further ones in lower case; ``*.example.com`` stands for all below.
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
        """Whether a ``Host`` header names this server."""
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
    """Answers what browsers ask before they send, and refuses what only a foreign page would send.

    ``hosts`` is ``None`` where a client may call the server what it likes.  With ``keyed`` callers show
    keys, which no page has.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        cors: Cors,
        hosts: HostRule | None,
        keyed: bool,
        proxies: TrustedProxies,
    ) -> None:
        self._targets = targets
        self._cors = cors
        self._hosts = hosts
        self._keyed = keyed
        self._proxies = proxies if proxies else None
        self._refused = RefusedOrigins(cors.origins)
        # Without either nobody asks for the peer, and there is nothing to tell a page.
        self._by_head = not cors and self._proxies is None

    def check(self, request: EdgeRequest) -> web.Response | None:
        """The answer to a preflight; ``None`` for a request that may go on.

        Raises :class:`~proxy.errors.RequestError`: 403, 405 or 415 for what is not taken from a page.
        """
        if self in request.head:
            return None
        headers = request.headers
        method = request.method
        if method not in _METHODS:
            # After CONNECT and its like the rest of the connection may be no HTTP at all.
            raise RequestError(
                405, f"The method {method[:20]} is not supported.", headers={"Connection": "close"}
            )
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
                # Images, scripts and links of other sites: browsers name no origin there.
                raise _not_allowed(
                    "Web pages of another site may not call the proxy without an Origin header"
                )
        elif not self._keyed and method in _UNASKED:
            _check_unmarked(request, request.head[self._targets])
        through = self._proxies is not None and self._proxies.trusts(request.remote)
        if not self._keyed:
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
        """Whether a reader follows a link of another site to a page of ours.

        The page is the same for everybody and holds nothing; what it then reads, it reads as our own origin.
        """
        if request.method not in _UNASKED or not request.head[self._targets].is_page:
            return False
        return all(request.head.listed(name) == [value] for name, value in _NAVIGATION)

    def _check_media_type(self, request: EdgeRequest, from_page: bool) -> None:
        """Refuse the bodies that a form can send: for them a browser does not ask beforehand.

        ``from_page`` says that the page's origin is known, and may call.
        """
        said = request.headers.getall(hdrs.CONTENT_TYPE, ())
        if not said and not request.body_exists:
            return
        kind = said[0].partition(";")[0].strip().lower() if len(said) == 1 else ""
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


def _check_host(hosts: HostRule, said: Sequence[str]) -> None:
    if len(said) != 1 or not hosts.allows(said[0]):
        raise RequestError(
            403,
            "The Host header must name this machine: localhost, an address that it listens on, or one of "
            "server.allowed_hosts.",
            code="host_not_allowed",
        )


def _may_call(cors: Cors, request: EdgeRequest) -> bool:
    """Whether a page of the origin that the request names may call: one that is listed, or our own."""
    said = request.headers.getall("Origin")
    if len(said) != 1:
        return False
    if cors.allows(said[0]):
        return True
    return _is_own_site(request) and is_own_origin(said[0], request.headers.get("Host", "").lower())


def _is_own_site(request: EdgeRequest) -> bool:
    """Whether nothing that a browser says of the page calls it one of another site."""
    return _OWN_SITES.issuperset(request.head.listed(_SEC_FETCH_SITE))


def is_own_origin(origin: str, host: str) -> bool:
    """Whether a page's origin is the server that it calls, under whatever name it calls that."""
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
    """Refuse what comes through a proxy that says nothing of itself.

    nginx with a bare ``proxy_pass`` speaks HTTP/1.0, adds no header and puts its own name for us into
    ``Host``.  No client of today speaks it unasked.
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
    """Refuse a GET that a page of another site may have sent, where no browser would say that it did.

    Browsers say which site sent a request to a server that is reached by https or on the loopback, and to
    others they say nothing.  So there a GET of the API needs what no page can send unasked, or comes from
    our own origin: a page can keep back what it is referred from, and not make it up.
    """
    if target.below is None or _is_program(request):
        return
    said = request.headers.getall(hdrs.HOST, ())
    if len(said) == 1 and is_loopback_name(said[0]):
        return
    referers = request.headers.getall(hdrs.REFERER, ())
    if len(referers) == 1 and is_own_origin("/".join(referers[0].split("/")[:3]), "".join(said).lower()):
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
    """Whether files are sent to a path as a form."""
    return target.below is not None and target.below.split("/")[1] in target.endpoint.dialect.takes_files


def _is_program(request: EdgeRequest) -> bool:
    """Whether the request has a header for which a browser would have asked beforehand.

    None of them is one that proxies add; and a browser sends ``Authorization: Basic`` unasked.
    """
    headers = request.headers
    return headers.get("Authorization", "").lower().startswith("bearer ") or any(
        name.lower().startswith(("api-key", "x-api-key", "x-stainless-", "x-toolrelay-")) for name in headers
    )
