"""The page guard: web pages must not reach tools through the browsers of their visitors."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from edge_requests import edge_request
from multidict import CIMultiDict
from raw_upstream import RawUpstream, whole
from running_proxy import Proxy, make_config, running

from proxy.app.app import Overrides
from proxy.base.errors import RequestError
from proxy.rights.callers import Caller
from proxy.server.auth.key_ring import Key
from proxy.server.connections.client_address import TrustedProxies
from proxy.server.messages.target import Targets
from proxy.server.middleware.cors import Cors
from proxy.server.middleware.page_guard import HostRule, PageGuard
from proxy.wires.registry.table import SERVED

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
APP = "https://app.example.com"
MULTIPART = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x--\r\n'
FORM = ("Content-Type", "multipart/form-data; boundary=x")


class KeyAuthenticator:
    """An authenticator that admits whoever has the one key."""

    async def admit(self, request: Any, target: Any) -> Caller:
        if request.headers.get("Authorization") != "Bearer good":
            raise RequestError(401, "No such key.", type="authentication_error", code="invalid_api_key")
        return Caller("key_1", "key_1")

    async def admit_approver(self, request: Any, target: Any) -> Key:
        raise NotImplementedError

    async def admit_admin(self, request: Any, target: Any) -> Caller:
        return await self.admit(request, target)

    async def admit_scraper(self, request: Any, target: Any) -> None:
        await self.admit_admin(request, target)


@asynccontextmanager
async def guarded(
    *, host: str = "127.0.0.1", keyed: bool = False, **server: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy that is configured to listen on ``host``, open or with a key, in front of an upstream."""
    config: dict[str, Any] = {"server": {"host": host, **server}, "auth": {"mode": "open"}}
    overrides = Overrides(authenticator=KeyAuthenticator()) if keyed else None
    async with (
        RawUpstream(whole(b'{"ok":true}')) as upstream,
        running(make_config(upstream.url, **config), overrides) as proxy,
    ):
        yield proxy, upstream


async def verdict(
    proxy: Proxy, *headers: tuple[str, str], body: Any = ASK, path: str = "/v1/chat/completions"
) -> str | int:
    """Return the error code of a POST, or its status if it was served."""
    answer = await proxy.ask(body, headers, path=path)
    return answer.status if answer.status < 400 else answer.error["code"]


async def looked_at(proxy: Proxy, *headers: tuple[str, str]) -> str | int:
    """Return the error code of a GET, or its status if it was served."""
    answer = await proxy.get("/v1/models", headers)
    return answer.status if answer.status < 400 else answer.error["code"]


# ---------------------------------------------------------------- names in Host


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.2:80", "[::1]:8080"])
@pytest.mark.parametrize("listening", ["127.0.0.1", "0.0.0.0", "::"])
async def test_names_of_the_loopback_are_served(host: str, listening: str) -> None:
    """Every loopback name is served, even if the server listens on all addresses, as on a published port."""
    async with guarded(host=listening) as (proxy, _):
        assert await verdict(proxy, ("Host", host)) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "localhost.",
        "127.0.0.1.nip.io",
        "2130706433",
        "0x7f.1",
        "127.1",
        "127.0.0.1:8080:evil",
        "127.0.0.1@evil.example",
        "[::1",
        "[evil.example]",
        "",
        "evil.example/127.0.0.1",
        "a" * 300,
    ],
)
@pytest.mark.parametrize("listening", ["127.0.0.1", "0.0.0.0"])
async def test_names_that_a_page_may_have_rebound_are_refused(host: str, listening: str) -> None:
    """A page that rebinds its name to this machine still sends that name as ``Host``, which is refused."""
    async with guarded(host=listening) as (proxy, upstream):
        assert await verdict(proxy, ("Host", host)) == "host_not_allowed"
        assert await looked_at(proxy, ("Host", host)) == "host_not_allowed"
        assert upstream.requests == []


async def test_addresses_are_nobodys_to_rebind() -> None:
    """Nobody can rebind an address: as ``Host`` it is served where others may connect, not on loopback."""
    for host in ("10.0.0.1", "192.168.1.7:8080", "[fd00::2]:8080"):
        async with guarded(host="0.0.0.0") as (proxy, _):
            assert await verdict(proxy, ("Host", host)) == 200
        async with guarded() as (proxy, _):
            assert await verdict(proxy, ("Host", host)) == "host_not_allowed"


async def test_names_of_the_operators_choosing_are_served() -> None:
    """``server.allowed_hosts`` and ``server.host`` name the server; ``*.`` stands for all names below one."""
    names = ("Proxy.example.com", "*.cluster.local", "192.168.1.7")
    for listening in ("127.0.0.1", "0.0.0.0", "relay.lan"):
        async with guarded(host=listening, allowed_hosts=names) as (proxy, _):
            for host in ("proxy.EXAMPLE.com:80", "relay.ns.svc.cluster.local", "192.168.1.7", "localhost"):
                assert await verdict(proxy, ("Host", host)) == 200, (listening, host)
            for host in ("example.com", "cluster.local", "evilcluster.local", "x.proxy.example.com"):
                assert await verdict(proxy, ("Host", host)) == "host_not_allowed", (listening, host)
            assert (await verdict(proxy, ("Host", "relay.lan")) == 200) == (listening == "relay.lan")


async def test_two_hosts_are_none() -> None:
    """Rule E1: a request with two ``Host`` headers could be read in two ways, so it is refused."""
    async with guarded() as (proxy, upstream):
        answer = await proxy.ask(ASK, [("Host", "localhost"), ("Host", "evil.example")])
        assert 400 <= answer.status < 500
        assert upstream.requests == []
    # A parser of HTTP may refuse such a request before the guard does, so ask the guard itself, too.
    guard = PageGuard(
        Targets(SERVED), cors=Cors(), hosts=HostRule(True), needs_key=False, proxies=TrustedProxies()
    )
    twice = CIMultiDict([("Host", "localhost"), ("Host", "evil.example")])
    with pytest.raises(RequestError) as caught:
        guard.check(edge_request("GET", "/v1/models", twice))
    assert caught.value.code == "host_not_allowed"


async def test_who_shows_a_key_may_call_a_reachable_server_what_they_like() -> None:
    """With a key any ``Host`` is served, except on loopback and where the operator listed names."""
    key = ("Authorization", "Bearer good")
    async with guarded(host="0.0.0.0", keyed=True) as (proxy, _):
        assert await verdict(proxy, ("Host", "any.example"), key) == 200
        assert await verdict(proxy, ("Host", "any.example")) == "invalid_api_key"
    async with guarded(host="0.0.0.0", keyed=True, allowed_hosts=("one.example",)) as (proxy, _):
        assert await verdict(proxy, ("Host", "any.example"), key) == "host_not_allowed"
        assert await verdict(proxy, ("Host", "one.example"), key) == 200
    async with guarded(keyed=True) as (proxy, _):
        assert await verdict(proxy, ("Host", "any.example"), key) == "host_not_allowed"


# ---------------------------------------------------------------- origins

ORIGINS = [
    "http://evil.example",
    "null",
    "",
    "http://localhost:1",
    "https://app.example.com.evil.example",
    "https://app.example.com:8443",
    "http://app.example.com",
    "https://app.example.com/",
    "HTTPS://APP.EXAMPLE.COM",
    "https://x.app.example.com",
    "file://",
    f"{APP}, {APP}",
]


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("keyed", [False, True])
async def test_pages_of_other_origins_are_refused(origin: str, keyed: bool) -> None:
    """A page whose origin is not listed, letter by letter, is refused, with a key or without."""
    async with guarded(keyed=keyed, cors_origins=(APP,)) as (proxy, upstream):
        headers = (("Origin", origin), ("Authorization", "Bearer good"))
        assert await verdict(proxy, *headers) == "origin_not_allowed"
        assert await looked_at(proxy, *headers) == "origin_not_allowed"
        assert upstream.requests == []


async def test_two_origins_are_none() -> None:
    """No browser sends two origins, so a request with two is refused even if both are listed."""
    async with guarded(cors_origins=(APP,)) as (proxy, upstream):
        assert await verdict(proxy, ("Origin", APP), ("Origin", APP)) == "origin_not_allowed"
        assert upstream.requests == []


async def test_pages_of_our_own_origin_are_served() -> None:
    """A page of the server's own origin is served unless the browser says that it is of another site."""
    async with guarded() as (proxy, _):
        own = ("Host", "localhost:8080"), ("Origin", "http://localhost:8080")
        assert await verdict(proxy, *own) == 200
        assert await verdict(proxy, *own, ("Sec-Fetch-Site", "same-origin")) == 200
        for site in ("cross-site", "same-site"):
            assert await verdict(proxy, *own, ("Sec-Fetch-Site", site)) == "origin_not_allowed"
        for host in ("localhost", "localhost:443"):
            secure = ("Host", host), ("Origin", "https://localhost")
            assert await verdict(proxy, *secure) == 200
        mixed = ("Host", "localhost:80"), ("Origin", "https://localhost")
        assert await verdict(proxy, *mixed) == "origin_not_allowed"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "something-new", ""])
async def test_what_comes_from_other_sites_without_an_origin_is_refused(site: str) -> None:
    """A request without an origin is refused if the browser says that it comes from another site."""
    for keyed in (False, True):
        async with guarded(keyed=keyed, cors_origins=(APP,)) as (proxy, upstream):
            headers = (("Sec-Fetch-Site", site), ("Authorization", "Bearer good"))
            assert await looked_at(proxy, *headers) == "origin_not_allowed"
            assert upstream.requests == []


BEYOND = ["10.0.0.1", "192.168.1.7:8080", "[fd00::2]:8080", "relay.lan"]
"""Hosts to which browsers send ``Sec-Fetch-Site`` over https only."""


@pytest.mark.parametrize("host", BEYOND)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_beyond_loopback_a_get_shows_that_no_page_sent_it(host: str, method: str) -> None:
    """An image of another site makes the same GET as a program, except for headers that no page can add: an
    open server serves a GET only with such a header."""
    async with guarded(host="0.0.0.0", allowed_hosts=("relay.lan",)) as (proxy, upstream):

        async def asked(*headers: tuple[str, str], path: str = "/v1/models") -> int:
            async with proxy.sent(None, [("Host", host), *headers], method=method, path=path) as sent:
                return (await sent.head()).status

        browser = ("User-Agent", "Mozilla/5.0"), ("Accept", "image/*"), ("Authorization", "Basic dTpw")
        other = (("Referer", "http://evil.example/page"),)
        spelled = (("Referer", f"http://evil.example/http://{host}/"),)
        for headers in ((), browser, other, spelled, (("Referer", f"http://{host}.evil.example/"),)):
            for path in ("/v1/models", "/v1/files/f/content", "/v1/responses/resp_1"):
                assert await asked(*headers, path=path) == 403
        assert upstream.requests == []
        for proof in [header for header, proves in PROOFS if proves]:
            assert await asked(proof) == 200
        # Over https browsers send Sec-Fetch-Site; Origin and Referer show a page of the server itself.
        assert await asked(("Sec-Fetch-Site", "same-origin")) == 200
        assert await asked(("Sec-Fetch-Site", "cross-site")) == 403
        assert await asked(("Origin", f"http://{host}")) == 200
        assert await asked(("Referer", f"http://{host}/page?x=1")) == 200
        # Probes have no key, and these paths are harmless.
        for path in ("/healthz", "/readyz", "/metrics"):
            assert await asked(path=path) == 200


async def test_a_get_by_a_local_name_needs_nothing() -> None:
    """Browsers send ``Sec-Fetch-Site`` to loopback names, so a GET to one needs no other proof."""
    for listening in ("127.0.0.1", "0.0.0.0"):
        async with guarded(host=listening) as (proxy, _):
            for host in ("localhost:8080", "127.0.0.1", "[::1]:80"):
                assert await looked_at(proxy, ("Host", host)) == 200


async def test_with_keys_a_get_needs_only_its_key() -> None:
    """No page has a key, so a GET with one is served by whatever address it comes."""
    async with guarded(host="0.0.0.0", keyed=True) as (proxy, _):
        assert await looked_at(proxy, ("Host", "10.0.0.1"), ("Authorization", "Bearer good")) == 200
        assert await looked_at(proxy, ("Host", "10.0.0.1")) == "invalid_api_key"


async def test_an_open_server_takes_no_http_1_0() -> None:
    """An open server refuses HTTP/1.0, the sign of a reverse proxy that does not name itself; a server with
    keys or with a trusted proxy serves it."""

    async def asked(proxy: Proxy, *headers: str) -> int:
        lines = ("GET /v1/models HTTP/1.0", "Host: localhost", *headers, "", "")
        async with proxy.connect() as conversation:
            conversation.writer.write("\r\n".join(lines).encode())
            answer = await conversation.answer()
            if answer.status >= 400:
                assert answer.error["code"] == "http_version_not_allowed"
            return answer.status

    async with guarded() as (proxy, upstream):
        assert [await asked(proxy) for _ in range(3)] == [403] * 3
        assert await asked(proxy, "Authorization: Bearer unused", "Connection: keep-alive") == 403
        assert upstream.requests == []
    async with guarded(trusted_proxies=("127.0.0.1",)) as (proxy, _):
        assert await asked(proxy) == 200
    async with guarded(keyed=True) as (proxy, _):
        assert await asked(proxy, "Authorization: Bearer good") == 200


@pytest.mark.parametrize("site", ["none", "same-origin"])
async def test_an_address_that_somebody_typed_is_served(site: str) -> None:
    """A request that a person enters into the browser, or a page of the server makes, is served."""
    async with guarded() as (proxy, _):
        assert await looked_at(proxy, ("Sec-Fetch-Site", site)) == 200


async def test_a_listed_origin_is_served_from_wherever_it_is() -> None:
    """A page of a listed origin is served although its browser says that it is of another site."""
    for keyed in (False, True):
        async with guarded(keyed=keyed, cors_origins=(APP, "app://obsidian.md")) as (proxy, _):
            for origin in (APP, "app://obsidian.md"):
                headers = ("Origin", origin), ("Sec-Fetch-Site", "cross-site")
                assert await verdict(proxy, *headers, ("Authorization", "Bearer good")) == 200


async def test_odd_methods_are_refused() -> None:
    """The proxy refuses methods that the API does not have, such as TRACE, which would echo headers."""
    async with guarded() as (proxy, upstream):
        for method in ("TRACE", "PROPFIND"):
            assert (await proxy.ask(None, method=method, path="/v1/models")).status == 405
        assert upstream.requests == []


async def test_no_host_is_nobodys_origin() -> None:
    """An origin without a host does not count as the server's own if the request has no host either."""
    async with guarded(host="0.0.0.0", keyed=True) as (proxy, _):
        for origin in ("http://", "https://", "://", "http:///"):
            headers = ("Host", ""), ("Origin", origin), ("Authorization", "Bearer good")
            assert await verdict(proxy, *headers) == "origin_not_allowed"


# ---------------------------------------------------------------- bodies

UNASKED = [
    "text/plain",
    "text/plain;charset=UTF-8",
    "text/plain; x=application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/jsonp",
    "json",
    "",
]
"""Content types that a page can send without a preflight, and types that could be confused with JSON."""


@pytest.mark.parametrize("kind", UNASKED)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/x"])
async def test_an_open_server_takes_json_alone(kind: str, path: str) -> None:
    """Without keys a body that a page can send without a preflight is refused."""
    async with guarded() as (proxy, upstream):
        assert await verdict(proxy, ("Content-Type", kind), path=path) == "content_type_not_allowed"
        assert upstream.requests == []


async def test_a_body_without_a_name_is_refused() -> None:
    """A body without a content type, which a page can send, or with two content types is refused."""
    async with guarded() as (proxy, upstream):
        body = json.dumps(ASK)
        for kinds in ("", "Content-Type: application/json\r\nContent-Type: text/plain\r\n"):
            async with proxy.connect() as conversation:
                conversation.writer.write(
                    f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{kinds}"
                    f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
                )
                answer = await conversation.answer()
                # A parser of HTTP may refuse two of them before the guard does.
                assert answer.status == 415 or (kinds and answer.status == 400)
        assert upstream.requests == []


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
async def test_json_is_served_however_it_is_written(kind: str) -> None:
    """The guard compares a content type without its parameters and without regard to case."""
    async with guarded() as (proxy, _):
        assert await verdict(proxy, ("Content-Type", kind)) == 200


async def test_a_post_without_a_body_is_served() -> None:
    """A POST without a body and a content type is served, but one with the type of a form is refused."""
    async with guarded() as (proxy, upstream):
        path = "/v1/batches/b/cancel"
        assert (await proxy.ask(None, [("Content-Length", "0")], path=path)).status == 200
        form = [("Content-Length", "0"), ("Content-Type", "text/plain")]
        assert (await proxy.ask(None, form, path=path)).status == 415
        assert len(upstream.requests) == 1


async def test_other_methods_may_carry_anything() -> None:
    """PUT, PATCH and DELETE may have any content type, as browsers send a preflight for them."""
    async with guarded() as (proxy, upstream):
        for method in ("PUT", "PATCH", "DELETE"):
            answer = await proxy.ask(b"x", [("Content-Type", "text/plain")], method=method, path="/v1/x")
            assert answer.status == 200
        assert [request.method for request in upstream.requests] == ["PUT", "PATCH", "DELETE"]


PROOFS: Sequence[tuple[tuple[str, str], bool]] = (
    (("Authorization", "Bearer unused"), True),
    (("api-key", "unused"), True),
    (("X-Api-Key", "unused"), True),
    (("X-Stainless-Lang", "python"), True),
    (("x-toolrelay-tools", "none"), True),
    (("Authorization", "Basic dTpw"), False),  # a browser sends a known password by itself
    (("Accept", "*/*"), False),
    (("X-Request-Id", "added-by-a-proxy"), False),
)


@pytest.mark.parametrize(("header", "served"), PROOFS)
async def test_files_come_from_programs_alone(header: tuple[str, str], served: bool) -> None:
    """A form with files is served only with a header for which a browser would need a preflight."""
    async with guarded() as (proxy, upstream):
        for path in ("/v1/audio/transcriptions", "/v1/files", "/v1/images/edits", "/v1/uploads/u/parts"):
            said = await verdict(proxy, FORM, header, body=MULTIPART, path=path)
            assert said == (200 if served else "content_type_not_allowed")
        said = await verdict(proxy, FORM, header, body=MULTIPART, path="/v1/chat/completions")
        assert said == "content_type_not_allowed"
        assert len(upstream.requests) == (4 if served else 0)
        assert all(request.body == MULTIPART for request in upstream.requests)


async def test_files_come_from_pages_that_may_call() -> None:
    """A page of a listed origin may send a form with files, but no text in place of JSON."""
    async with guarded(cors_origins=(APP,)) as (proxy, _):
        origin = ("Origin", APP)
        assert await verdict(proxy, FORM, origin, body=MULTIPART, path="/v1/files") == 200
        assert await verdict(proxy, ("Content-Type", "text/plain"), origin) == "content_type_not_allowed"


async def test_with_keys_bodies_may_be_called_anything() -> None:
    """No page has a key, so with a key any content type passes, and the upstream judges it."""
    async with guarded(keyed=True) as (proxy, upstream):
        headers = ("Content-Type", "text/plain"), ("Authorization", "Bearer good")
        assert await verdict(proxy, *headers) == 200
        assert await verdict(proxy, FORM, headers[1], body=MULTIPART, path="/v1/files") == 200
        assert len(upstream.requests) == 2


# ---------------------------------------------------------------- proxies in front

FORWARDED = [
    "CF-Connecting-IP",
    "Forwarded",
    "True-Client-IP",
    "X-Forwarded-Server",
    "X-Forwarded-Scheme",
    "X-Original-Forwarded-For",
    "X-Cluster-Client-IP",
    "X-Envoy-External-Address",
    "Fastly-Client-IP",
    "CDN-Loop",
    "Via",
    "X-Client-IP",
    "X-Forwarded-For",
    "X-Forwarded-Port",
    "X-Forwarded-Proto",
    "X-Real-IP",
    "cf-connecting-ip",
    "x-forwarded-host",
]


@pytest.mark.parametrize("name", FORWARDED)
async def test_an_open_server_behind_an_unknown_proxy_serves_nobody(name: str) -> None:
    """An open server refuses a request with a forwarding header, unless it trusts the proxy before it."""
    async with guarded(cors_origins=(APP,)) as (proxy, upstream):
        header = (name, "203.0.113.7")
        assert await verdict(proxy, header) == "forwarded_not_allowed"
        assert await looked_at(proxy, header) == "forwarded_not_allowed"
        preflight = [header, ("Origin", APP), ("Access-Control-Request-Method", "POST")]
        assert (await proxy.ask(None, preflight, method="OPTIONS")).status == 403
        assert upstream.requests == []
    async with guarded(trusted_proxies=("10.0.0.0/8",)) as (proxy, _):
        assert await verdict(proxy, header) == "forwarded_not_allowed"
    async with guarded(trusted_proxies=("127.0.0.0/8",)) as (proxy, _):
        assert await verdict(proxy, header) == 200
    async with guarded(keyed=True) as (proxy, _):
        assert await verdict(proxy, header, ("Authorization", "Bearer good")) == 200


async def test_behind_a_trusted_proxy_each_client_has_limits_of_its_own() -> None:
    """Limits count by the address that the trusted proxy saw, not by what the client claims."""
    server = {"trusted_proxies": ("127.0.0.1",)}
    async with (
        RawUpstream(whole(b'{"ok":true}')) as upstream,
        running(make_config(upstream.url, server=server, limits={"requests": ("1/minute",)})) as proxy,
    ):
        for said, status in [
            ("203.0.113.7", 200),
            ("6.6.6.6, 203.0.113.7", 429),
            ("203.0.113.8", 200),
            ("2001:db8::1", 200),
            ("2001:db8::2", 429),
        ]:
            answer = await proxy.ask(ASK, {"X-Forwarded-For": said})
            assert answer.status == status, said
        assert "x-forwarded-for" not in {name for r in upstream.requests for name in r.names()}
