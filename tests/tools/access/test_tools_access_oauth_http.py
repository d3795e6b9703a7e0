"""Requests to URLs from OAuth documents: the addresses they may reach."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer
from oauth_server import OAuthServer, running
from waiting import LATE_S, PATIENCE_S

from proxy.net.public_addresses import may_carry_secrets
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.oauth_http import CheckedOAuthHttp
from proxy.tools.contract.capabilities import HttpFailure

LOOPBACK = ("127.0.0.0/8",)
PLACE = "/.well-known/oauth-authorization-server"


class Names(AbstractResolver):
    """A resolver that knows a few names."""

    def __init__(self) -> None:
        inside, outside = "127.0.0.1", "93.184.216.34"
        self.known = {
            "public.example": [outside],
            "inside.example": [inside],
            "both.example": [inside, outside],
        }

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name."""
        if host not in self.known:
            raise OSError(None, "not known")
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
            for address in self.known[host]
        ]

    async def close(self) -> None:
        """Do nothing."""


@pytest.fixture
async def server() -> AsyncIterator[OAuthServer]:
    """A running OAuth server on loopback."""
    async with running() as one:
        yield one


@pytest.mark.parametrize(
    ("written", "reaches"),
    [
        (["https://inside.example"], True),
        (["https://inside.example", "https://10.0.0.1"], True),
        (["https://public.example"], False),
        (["https://both.example"], False),
        (["https://unknown.example"], False),
        (["https://inside.example", "https://public.example"], False),
    ],
)
async def test_only_a_server_inside_may_point_inside(
    server: OAuthServer, written: list[str], reaches: bool
) -> None:
    """Documents of a server in an allowed network may name URLs there; those of a public server may not."""
    pool = EgressPool(allowed_networks=LOOPBACK, schemes=("https", "http"), resolver=Names())
    public = EgressPool(resolver=Names())
    http = CheckedOAuthHttp(pool, public, written, "mcp.networks")
    try:
        if reaches:
            assert (await http.get_json(server.url + PLACE))["issuer"] == server.url
        else:
            with pytest.raises(HttpFailure):
                await http.get_json(server.url + PLACE)
            with pytest.raises(HttpFailure):
                await http.post_form(f"{server.url}/token", {})
    finally:
        await pool.aclose()
        await public.aclose()
    assert bool(server.asked) is reaches


@pytest.mark.parametrize(
    ("url", "is_so"),
    [
        ("https://as.example/token", True),
        ("https://as.example:8443/token?x=1", True),
        ("http://127.0.0.1:9000/token", True),
        ("http://[::1]:9000/token", True),
        ("http://localhost:9000", True),
        ("http://10.0.0.1/token", True),
        ("http://8.8.8.8/token", False),
        ("http://as.example/token", False),
        ("http://localhost.example/", False),
        ("http://127.0.0.1@evil.example/", False),
        ("http://127.0.0.1\\@evil.example/", False),
        ("https://user@as.example/", False),
        ("https://as.example:x/", False),
        ("https:///token", False),
        ("https://[::1", False),
        ("https://ä.example/", False),
        ("https://as.example/\n", False),
        ("https://as.example/ x", False),
        ("ftp://127.0.0.1/", False),
        ("javascript:alert(1)", False),
        ("", False),
    ],
)
def test_where_secrets_may_go(url: str, is_so: bool) -> None:
    """Secrets may go over HTTPS, or over HTTP to a private address, but never to a malformed URL."""
    assert may_carry_secrets(url) is is_so


async def test_a_secret_goes_over_no_plain_http(server: OAuthServer) -> None:
    """The proxy sends no form over plain HTTP to a host name, even if it lies in an allowed network."""
    pool = EgressPool(allowed_networks=LOOPBACK, schemes=("https", "http"), resolver=Names())
    http = CheckedOAuthHttp(pool, pool, [server.url], "mcp.networks")
    with pytest.raises(HttpFailure, match="not https"):
        await http.post_form(f"http://inside.example:{server.url.rpartition(':')[2]}/token", {"x": "y"})
    await pool.aclose()
    assert server.asked == []


async def test_a_challenge_is_read_of_an_answer_without_an_end() -> None:
    """The proxy reads the challenge from the header of a 401 whose body never ends, and sends no token."""
    seen: list[web.Request] = []
    over = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        answer = web.StreamResponse(status=401, headers={"WWW-Authenticate": 'Bearer scope="a"'})
        await answer.prepare(request)
        await answer.write(b"{")
        await over.wait()
        return answer

    app = web.Application()
    app.router.add_post("/mcp", endless)
    pool = EgressPool(allowed_networks=LOOPBACK, schemes=("http",), timeout_s=LATE_S)
    async with TestServer(app, host="127.0.0.1") as serving, asyncio.timeout(PATIENCE_S):
        url = str(serving.make_url("/mcp"))
        assert await CheckedOAuthHttp(pool, pool, [url], "mcp.networks").challenge(url) == 'Bearer scope="a"'
        over.set()
    assert ["Authorization" in request.headers for request in seen] == [False]
    await pool.aclose()


@pytest.mark.parametrize("url", ["https://xn--/keys", "https://a.xn--/", "https://[/", "https://a..b/"])
async def test_an_address_that_is_none_is_a_failure(url: str) -> None:
    """A document may name any text as an address: each is a failure of the request, and of nothing more."""
    pool, public = EgressPool(allowed_networks=LOOPBACK, resolver=Names()), EgressPool(resolver=Names())
    http = CheckedOAuthHttp(pool, public, ["https://public.example"], "mcp.networks")
    with pytest.raises(HttpFailure):
        await http.get_json(url)
    await pool.aclose()
    await public.aclose()
