"""Web pages must not reach tools through a user's loopback."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from proxy.errors import RequestError
from proxy.server.http_errors import of_request_error
from proxy.server.middleware import make_refuse_pages


async def answer(headers: dict[str, str], *, loopback_only: bool, method: str = "GET") -> int:
    """The status of a request with these headers."""

    @web.middleware
    async def shape(request, handler):
        try:
            return await handler(request)
        except RequestError as error:
            return of_request_error(error)

    async def served(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[shape, make_refuse_pages(loopback_only=loopback_only)])
    app.router.add_route("*", "/{tail:.*}", served)
    async with TestClient(TestServer(app)) as client:
        response = await client.request(method, "/v1/models", headers=headers)
        return response.status


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1", "127.0.0.2:80", "[::1]:8080"])
async def test_names_of_the_loopback_are_served(host):
    """Every name of this machine's own loopback is let in."""
    assert await answer({"Host": host}, loopback_only=True) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.1", "[::2]", "127.0.0.1.nip.io"],
)
async def test_other_names_are_refused_on_loopback(host):
    """A page that rebinds its own name to the loopback still sends its own name."""
    assert await answer({"Host": host}, loopback_only=True) == 403
    assert await answer({"Host": host}, loopback_only=False) == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "", "http://localhost:1"])
async def test_pages_of_other_origins_are_refused(origin):
    """A browser names the page's origin; only the proxy's own is let in."""
    assert await answer({"Host": "localhost:8080", "Origin": origin}, loopback_only=True) == 403
    assert await answer({"Host": "localhost:8080", "Origin": origin}, loopback_only=False) == 403


async def test_pages_of_our_own_origin_are_served():
    """A page that the proxy's own address serves may call it."""
    headers = {"Host": "localhost:8080", "Origin": "http://localhost:8080"}
    assert await answer(headers, loopback_only=True) == 200


async def test_cross_site_requests_without_an_origin_are_refused():
    """Images and forms send no Origin everywhere, but browsers say that they come from elsewhere."""
    headers = {"Host": "localhost:8080", "Sec-Fetch-Site": "cross-site"}
    assert await answer(headers, loopback_only=True) == 403


async def test_odd_methods_are_refused():
    """Nothing but the methods of the API is served; TRACE would echo headers."""
    assert await answer({"Host": "localhost"}, loopback_only=True, method="TRACE") == 405
