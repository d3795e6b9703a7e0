"""Outgoing HTTP of tools, against real servers on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import pytest
from aiohttp import TCPConnector, web
from aiohttp.test_utils import TestServer
from closed_port import closed_port
from pytest_aiohttp import AiohttpServer
from resolved_names import Names
from yarl import URL

from proxy.base.errors import ToolFailure
from proxy.net.public_addresses import is_public_address
from proxy.tools.access.egress import EgressPool, HttpFailure
from proxy.tools.contract.capabilities import Capabilities, HttpClient, IdempotencyKey
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.spec import Redaction
from proxy.tools.providers.function import FunctionProvider, tool

LOOPBACK = ("127.0.0.0/8", "::1/128")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[TestServer]]
MakePool = Callable[..., EgressPool]


@pytest.fixture
def serve(aiohttp_server: AiohttpServer) -> Serve:
    """A function that starts a server with one handler for every path."""

    async def start(handler: Handler) -> TestServer:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", handler)
        return await aiohttp_server(app)

    return start


@pytest.fixture
async def pool() -> AsyncIterator[MakePool]:
    """A function that makes pools; by default they may use loopback and plain HTTP."""
    pools: list[EgressPool] = []

    def make(**options: Any) -> EgressPool:
        pools.append(EgressPool(**{"allowed_networks": LOOPBACK, "schemes": ("http",), **options}))
        return pools[-1]

    yield make
    for one in pools:
        await one.aclose()


def name_of(server: TestServer) -> str:
    """The host entry of a server."""
    return f"{server.host}:{server.port}"


async def refused(client: Any, url: str, words: str) -> HttpFailure:
    """Send a request that must fail with these words, and return the failure."""
    with pytest.raises(HttpFailure, match=words) as caught:
        await client.get_json(url)
    return caught.value


async def test_get_json(serve: Serve, pool: MakePool) -> None:
    """The client encodes parameters, sends its user agent, keeps no cookies and asks for no compression."""
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        return web.json_response({"got": dict(request.query)}, headers={"Set-Cookie": "a=b"})

    server = await serve(answer)
    client = pool(user_agent="toolrelay/9").client([name_of(server)])
    for _ in range(2):
        body = await client.get_json(str(server.make_url("/v1")), {"name": "Köln & Bonn", "n": 1, "x": 1.5})
    assert body == {"got": {"name": "Köln & Bonn", "n": "1", "x": "1.5"}}
    assert seen[1].headers["User-Agent"] == "toolrelay/9"
    assert seen[1].headers["Accept-Encoding"] == "identity"
    assert "Cookie" not in seen[1].headers


async def test_only_the_tools_own_hosts(serve: Serve, pool: MakePool) -> None:
    """Rule T6: a tool's client reaches only the hosts and ports that the tool has declared."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(1)

    server = await serve(answer)
    url = str(server.make_url("/"))
    one = pool()
    assert await one.client([name_of(server)]).get_json(url) == 1
    assert await one.client(["*"]).get_json(url) == 1
    assert await one.client(["127.0.0.1:*"]).get_json(url) == 1
    assert server.port is not None
    for hosts in ([], [server.host], ["*.example.com"], [f"{server.host}:{server.port + 1}"]):
        await refused(one.client(hosts), url, "may not call that host")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.example/x",
        "file:///etc/passwd",
        "http://u:p@a.example/",
        "http:///x",
        "a.example",
        "//a.example/",
        "http://xn--/",
        "http://a:99999/",
        "http://[::1",
        "http://\ud800/",
    ],
)
async def test_odd_addresses(pool: MakePool, url: str) -> None:
    """The client refuses a URL that is malformed, has credentials, or is not http or https."""
    await refused(pool().client(["*"]), url, "address of the service")


@pytest.mark.parametrize(
    "location",
    [
        "http://xn--/", "http://[::1", "http://a:99999/", "file:///etc/passwd", "javascript:alert(1)",
        "//169.254.169.254/", "http://2852039166/", "http://0xa9fea9fe/", "http://0251.0376.0251.0376/",
        "http://[::ffff:169.254.169.254]/", "http://[64:ff9b::a9fe:a9fe]/", "http://[fe80::1%25lo]/",
        "http://169.254.169.254:80#@a.example/", "http://a.example@169.254.169.254/", "?" * 9000,
        "http://①⑥⑨.254.169.254/", "http://169。254。169。254/",
    ],
)  # fmt: skip
async def test_odd_places_to_be_sent_to(serve: Serve, pool: MakePool, location: str) -> None:
    """A redirect to a malformed or disguised URL is a failure, even for a tool that may call any host."""

    async def answer(request: web.Request) -> web.Response:
        text = location.encode("utf-8").decode("latin-1") if location.isprintable() else location
        return web.Response(status=302, headers={"Location": text})

    server = await serve(answer)
    client = pool().client(["*", name_of(server)])
    with pytest.raises(HttpFailure):
        await client.get_text(str(server.make_url("/")))


async def test_https_is_the_default() -> None:
    """The client refuses plain HTTP unless the operator has allowed it."""
    pool = EgressPool()
    await refused(pool.client(["*"]), "http://a.example/", "not one that may be called")
    await pool.aclose()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "192.0.0.192",
        "[::1]",
        "[::]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:8.8.8.8]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::1]",
        "192.88.99.1",
        "[fec0::1]",
        "[2001:0:7f00:1::]",
        "[2002:7f00:1::]",
        "[2002:a9fe:a9fe::1]",
    ],
)
async def test_address_literals_are_refused(pool: MakePool, host: str) -> None:
    """The client refuses a URL with a literal address that is not public."""
    await refused(pool(allowed_networks=()).client(["*"]), f"http://{host}/", "may not call that address")


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.0.0.1."])
async def test_other_spellings_of_an_address(serve: Serve, pool: MakePool, host: str) -> None:
    """Other spellings of a loopback address do not reach a server there."""
    hits: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        hits.append(request.path)
        return web.json_response(1)

    server = await serve(answer)
    with pytest.raises(HttpFailure):
        await pool(allowed_networks=()).client(["*"]).get_json(f"http://{host}:{server.port}/")
    assert hits == []


def test_public_addresses() -> None:
    """Public IPv4, IPv6 and NAT64 addresses count as public; names and malformed addresses do not."""
    for address in ("8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808"):
        assert is_public_address(address)
    for address in ("", "localhost", "8.8.8", "8.8.8.8/32", "::g"):
        assert not is_public_address(address)


async def test_names_are_checked_where_they_are_connected_to(serve: Serve, pool: MakePool) -> None:
    """The client checks the addresses that it connects to, also if a name gets others between requests."""
    hits: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        hits.append(request.host)
        return web.json_response(1, headers={"Connection": "close"})

    server = await serve(answer)
    names = Names("127.0.0.1")
    url = f"http://rebind.example:{server.port}/"
    rebound = pool(resolver=names)
    client = rebound.client(["*"])
    assert await client.get_json(url) == 1
    assert names.asked == 1, "a second look-up could have another answer than the one that was checked"
    for addresses in (("127.0.0.1",), ("::1", "10.0.0.1"), ()):
        closed = pool(allowed_networks=(), resolver=Names(*addresses))
        await refused(closed.client(["*"]), url, "may not call that address")
    # The name that was allowed above gets an address that is not allowed. Nothing waits for aiohttp's cache.
    connector = (await rebound.sessions.way_to(URL("http://service.test")))[0].connector
    assert isinstance(connector, TCPConnector)
    connector.clear_dns_cache()
    names.addresses = ("10.0.0.1",)
    await refused(client, url, "may not call that address")
    assert len(hits) == 1
    names.addresses = ("127.0.0.1",)
    assert await client.get_json(url) == 1


async def test_private_addresses_of_a_name_are_dropped(serve: Serve, pool: MakePool) -> None:
    """If a name has allowed and refused addresses, the client connects to an allowed one."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(1)

    server = await serve(answer)
    names = Names("10.255.255.1", "127.0.0.1")
    assert await pool(resolver=names).client(["*"]).get_json(f"http://two.example:{server.port}/") == 1


async def test_redirects(serve: Serve, pool: MakePool) -> None:
    """The client follows up to three redirects on the same host, and none with credentials."""
    hits: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        hits.append(request.path)
        left = int(request.path.strip("/") or 0)
        if request.path == "/99":
            raise web.HTTPFound("http://other.example/")
        if request.path == "/98":
            raise web.HTTPFound("http://169.254.169.254/latest")
        if request.path == "/97":
            raise web.HTTPFound(f"http://user:word@{request.host}/0")
        if left:
            raise web.HTTPFound(f"/{left - 1}")
        return web.json_response("here")

    server = await serve(answer)
    client = pool().client([name_of(server), "*.example", "169.254.169.254"])
    assert await client.get_json(str(server.make_url("/3"))) == "here"
    assert hits == ["/3", "/2", "/1", "/0"]
    await refused(client, str(server.make_url("/4")), "too often")
    await refused(client, str(server.make_url("/99")), "another host")
    await refused(client, str(server.make_url("/98")), "another host")
    await refused(client, str(server.make_url("/97")), "not one that may be called")


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_with_back_off(serve: Serve, pool: MakePool, status: int) -> None:
    """The client retries a 429 or 503 at most twice, after the service's wait or a growing one."""
    waits: list[float] = []
    answers = [status, status, 200]

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def answer(request: web.Request) -> web.Response:
        now = answers.pop(0)
        headers = {"Retry-After": "1"} if len(answers) == 2 else {}
        return web.json_response({"status": now}, status=now, headers=headers)

    server = await serve(answer)
    client = pool(sleep=sleep).client([name_of(server)])
    url = str(server.make_url("/"))
    assert await client.get_json(url) == {"status": 200}
    assert waits == [1.0, 0.5]
    answers[:] = [status] * 3
    assert (await refused(client, url, f"status {status}")).status == status
    assert answers == []


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        ("Thu, 01 Jan 1970 00:00:00 GMT", [0.0]),
        ("soon", [0.25]),
        ("Thu, 99 Foo 0000", [0.25]),
        ("-5", [0.25]),
        ("Fri, 31 Dec 9999 23:59:59 GMT", []),
        ("9" * 60, []),
    ],
)
async def test_when_to_come_again(serve: Serve, pool: MakePool, said: str, waits: list[float]) -> None:
    """The client accepts a date in Retry-After, and ignores an invalid value of the header."""
    waited: list[float] = []
    answers = [503, 200]

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({}, status=answers.pop(0), headers={"Retry-After": said})

    server = await serve(answer)
    client = pool(sleep=sleep).client([name_of(server)])
    url = str(server.make_url("/"))
    if waits:
        assert await client.get_json(url) == {}
    else:
        await refused(client, url, "status 503")
    assert waited == waits


async def test_long_retry_after_is_not_waited_for(serve: Serve, pool: MakePool) -> None:
    """The client does not retry if the service asks for a long wait."""
    hits: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        hits.append(request.path)
        return web.Response(status=429, headers={"Retry-After": "3600"})

    server = await serve(answer)
    await refused(pool().client([name_of(server)]), str(server.make_url("/")), "status 429")
    assert len(hits) == 1


@pytest.mark.parametrize("status", [204, 400, 404, 500])
async def test_other_statuses_are_failures(serve: Serve, pool: MakePool, status: int) -> None:
    """Another status, or a success without JSON, is a failure whose message does not quote the body."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=None if status == 204 else "s3cret detail")

    server = await serve(answer)
    error = await refused(pool().client([name_of(server)]), str(server.make_url("/")), "the service answered")
    assert isinstance(error, ToolFailure)
    assert "s3cret" not in error.message
    assert error.status == (None if status == 204 else status)


async def test_size_is_bounded(serve: Serve, pool: MakePool) -> None:
    """The client stops reading a body at its size limit, and refuses a compressed body."""

    async def endless(request: web.Request) -> web.StreamResponse:
        if request.path == "/gzip":
            return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b" " * 65536)
        except OSError:
            return response

    server = await serve(endless)
    client = pool(max_bytes=100_000).client([name_of(server)])
    await refused(client, str(server.make_url("/")), "answer is larger than")
    await refused(client, str(server.make_url("/gzip")), "coding")


async def test_time_is_bounded(serve: Serve, pool: MakePool) -> None:
    """If a service does not answer within the timeout, the request fails."""
    release = asyncio.Event()

    async def silent(request: web.Request) -> web.Response:
        await release.wait()
        return web.json_response(1)

    server = await serve(silent)
    await refused(pool(timeout_s=0.05).client([name_of(server)]), str(server.make_url("/")), "too long")
    release.set()


async def test_nobody_there_and_broken_answers(pool: MakePool) -> None:
    """A refused connection and a truncated response are failures with clear messages."""
    with closed_port() as port:
        await refused(pool().client(["*"]), f"http://127.0.0.1:{port}/", "cannot be reached")

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await refused(pool().client(["*"]), f"http://127.0.0.1:{port}/", "did not arrive whole")


async def test_environment_proxies_are_ignored(
    serve: Serve,
    pool: MakePool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule T6: the client ignores HTTP proxies from the environment."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response("direct")

    server = await serve(answer)
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await pool().client([name_of(server)]).get_json(str(server.make_url("/"))) == "direct"


class Tokens:
    """An authorizer that gives numbered tokens and counts the renewals."""

    def __init__(self, *, renewable: bool = True) -> None:
        self.number = 1
        self.renewed = 0
        self.renewable = renewable

    async def authorization(self) -> str:
        """Return the value of the header."""
        return f"Bearer token-{self.number}"

    async def renew(self, refused: str) -> str | None:
        """Return the value with the next token, or ``None`` if there is none."""
        self.renewed += 1
        if not self.renewable:
            return None
        self.number += 1
        return f"Bearer token-{self.number}"


async def test_post_json(serve: Serve, pool: MakePool) -> None:
    """The client sends a body as JSON with the tool's own headers and returns the response's JSON."""
    seen: list[tuple[str, Any, str | None, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        seen.append((request.method, body, request.headers.get("Duffel-Version"), request.query.get("a")))
        return web.json_response({"made": True}, status=201)

    server = await serve(answer)
    client = pool().client([name_of(server)])
    body = await client.post_json(
        str(server.make_url("/x")), {"data": ["ö", 1]}, {"a": "b c"}, {"Duffel-Version": "v2"}
    )
    assert body == {"made": True}
    assert seen == [("POST", {"data": ["ö", 1]}, "v2", "b c")]


@pytest.mark.parametrize("header", ["Authorization", "cookie", "Host", "Transfer-Encoding"])
async def test_a_tool_sets_no_header_of_the_clients(pool: MakePool, header: str) -> None:
    """Rule T6: a tool may not set headers for credentials, cookies, the host or framing."""
    with pytest.raises(ValueError, match="may not set"):
        await pool().client(["*"]).post_json("http://a.example/", {}, headers={header: "x"})


async def test_failure_carries_status_and_body(serve: Serve, pool: MakePool) -> None:
    """A failure carries the status and the JSON body of the service's error for the tool."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/text":
            return web.Response(status=404, text="<html>")
        return web.json_response({"errors": [{"code": "offer_expired"}]}, status=422)

    server = await serve(answer)
    client = pool().client([name_of(server)])
    failure = await refused(client, str(server.make_url("/json")), "status 422$")
    assert (failure.status, failure.json, failure.transient) == (
        422,
        {"errors": [{"code": "offer_expired"}]},
        False,
    )
    assert (await refused(client, str(server.make_url("/text")), "status 404$")).json is None
    assert (await refused(client, "http://elsewhere.example/", "may not call")).transient is False


async def test_get_text_reads_pages(serve: Serve, pool: MakePool) -> None:
    """The client decodes a page by its declared charset, and returns the URL after redirects."""
    pages = {
        "/header": (b"caf\xe9", "text/html; charset=ISO-8859-1"),
        "/meta": (b'<meta charset="windows-1252"><p>\x80', "text/html"),
        "/mark": (b"\xef\xbb\xbfna\xc3\xafve", "text/plain; charset=latin-1"),
        "/plain": ("größe".encode(), "text/plain"),
        "/broken": (b"a\xffb", "text/plain"),
        "/odd": (b"\\u0041", "text/plain; charset=unicode_escape"),
        "/unknown": (b"abc", "text/plain; charset=no-such"),
        "/hex": (b"6162", "text/plain; charset=hex"),
    }

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/moved":
            raise web.HTTPFound("/plain?x=1")
        body, kind = pages[request.path]
        return web.Response(body=body, headers={"Content-Type": kind})

    server = await serve(answer)
    client = pool().client([name_of(server)])
    texts = {path: (await client.get_text(str(server.make_url(path)))).text for path in pages}
    assert texts == {
        "/header": "café",
        "/meta": '<meta charset="windows-1252"><p>€',
        "/mark": "naïve",
        "/plain": "größe",
        "/broken": "a�b",
        "/odd": "\\u0041",
        "/unknown": "abc",
        "/hex": "6162",
    }
    page = await client.get_text(str(server.make_url("/moved")))
    assert (page.url, page.content_type) == (str(server.make_url("/plain?x=1")), "text/plain")


async def test_get_text_takes_text_only(serve: Serve, pool: MakePool) -> None:
    """``get_text`` refuses a response that is not text."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=b"\x89PNG", content_type="image/png")

    server = await serve(answer)
    with pytest.raises(HttpFailure, match="not a page of text"):
        await pool().client([name_of(server)]).get_text(str(server.make_url("/")))


async def test_get_text_may_be_led_to_another_allowed_host(serve: Serve, pool: MakePool) -> None:
    """``get_text`` follows a redirect to another host of the tool, but not with credentials."""

    async def there(request: web.Request) -> web.Response:
        return web.Response(text="here")

    target = await serve(there)

    async def away(request: web.Request) -> web.Response:
        raise web.HTTPFound(str(target.make_url("/")))

    server = await serve(away)
    url = str(server.make_url("/"))
    one = pool()
    assert (await one.client([name_of(server), name_of(target)]).get_text(url)).text == "here"
    with pytest.raises(HttpFailure, match="may not call that host"):
        await one.client([name_of(server)]).get_text(url)
    with pytest.raises(HttpFailure, match="another host"):
        await one.client([name_of(server), name_of(target)], Tokens()).get_text(url)
    with pytest.raises(HttpFailure, match="redirects"):
        await one.client([name_of(server), name_of(target)]).post_json(url, {})


async def test_credentials_are_renewed_once(serve: Serve, pool: MakePool) -> None:
    """Rule T6: the client adds the token itself; after a 401 it tries one other token and then fails."""
    accepted = {"Bearer token-2"}
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response({}, status=200 if request.headers["Authorization"] in accepted else 401)

    server = await serve(answer)
    url = str(server.make_url("/"))
    tokens = Tokens()
    client = pool().client([name_of(server)], tokens)
    assert await client.post_json(url, {}) == {}
    assert seen == ["Bearer token-1", "Bearer token-2"]
    accepted.clear()
    assert (await refused(client, url, "status 401$")).status == 401
    assert (tokens.renewed, len(seen)) == (2, 4)
    failure = await refused(pool().client([name_of(server)], Tokens(renewable=False)), url, "status 401$")
    assert "token-" not in str(failure)


async def test_credentials_do_not_go_over_plain_http(pool: MakePool) -> None:
    """The client refuses to send a token over plain HTTP to a host name."""
    await refused(pool().client(["*"], Tokens()), "http://a.example/", "plain HTTP")


@pytest.mark.parametrize(
    ("status", "said", "body", "headers", "sent"),
    [
        (429, {}, {}, {}, 2),
        (503, {"Retry-After": "0"}, {}, {}, 2),
        (503, {}, {}, {}, 1),
        (503, {"ratelimit-remaining": "0", "ratelimit-reset": "0"}, {}, {}, 1),
        (503, {}, {}, {"idempotency-key": "k"}, 2),
        (503, {}, {}, {"PayPal-Request-Id": IdempotencyKey("k")}, 2),
        (503, {}, {"idempotency_key": IdempotencyKey("k")}, {}, 2),
        (503, {}, {"what": "k"}, {"X-Version": "1"}, 1),
        (503, {}, ["k"], {}, 1),
        (500, {"Retry-After": "0"}, {}, {"Idempotency-Key": "k"}, 1),
    ],
)
async def test_post_is_repeated_only_where_it_was_not_taken(
    serve: Serve,
    pool: MakePool,
    status: int,
    said: dict[str, Any],
    body: dict[str, Any] | list[str],
    headers: dict[str, Any],
    sent: int,
) -> None:
    """Rule R5: a POST is not retried after a 503 without Retry-After, unless it has an idempotency key."""
    seen: list[tuple[bytes, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((await request.read(), request.headers.get("PayPal-Request-Id")))
        return web.json_response({}, status=status if len(seen) == 1 else 200, headers=said)

    async def no_wait(_: float) -> None:
        return

    server = await serve(answer)
    client = pool(sleep=no_wait).client([name_of(server)])
    asking = client.post_json(str(server.make_url("/")), body, headers=headers)
    if sent == 1:
        with pytest.raises(HttpFailure, match=str(status)):
            await asking
    else:
        assert await asking == {}
    assert len(seen) == sent
    assert len(set(seen)) == 1


@pytest.mark.parametrize(("effect", "sent"), [("read_only", 2), ("state_change", 1)])
@pytest.mark.parametrize("connected", [False, True])
async def test_a_tools_effect_says_whether_its_post_is_repeated(
    serve: Serve,
    pool: MakePool,
    effect: Literal["read_only", "state_change"],
    sent: int,
    connected: bool,
) -> None:
    """After a 503 without Retry-After the client retries the POST of a read-only tool, but of no other."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.json_response({"found": 1}, status=503 if len(asked) == 1 else 200)

    async def no_wait(_: float) -> None:
        return

    server = await serve(answer)
    one = pool(sleep=no_wait)
    address = str(server.make_url("/"))

    @tool(
        effect=effect,
        redaction=Redaction(),
        hosts=(name_of(server),),
        connection="shop" if connected else "",
    )
    async def search(http: HttpClient) -> Any:
        """Search."""
        return await http.post_json(address, {})

    source = Capabilities(http=one.client, connected=lambda _, hosts: one.client(hosts))
    provider = FunctionProvider("t", [search], source)
    (spec,) = await provider.list_tools()
    call = provider.call_tool(spec, spec.validate({}), CallContext("run", "inv", "caller", "call"))
    if sent == 1:
        with pytest.raises(HttpFailure, match="503"):
            await call
    else:
        assert (await call) == {"found": 1}
    assert asked == ["POST"] * sent


async def test_a_token_request_is_not_repeated_after_a_bare_503(serve: Serve, pool: MakePool) -> None:
    """The client does not retry a token request after a 503: a refresh token may be valid only once."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.Response(status=503)

    server = await serve(answer)
    with pytest.raises(HttpFailure, match="503"):
        await pool().client([name_of(server)]).for_reading().post_form(str(server.make_url("/")), {"a": "b"})
    assert asked == ["POST"]
