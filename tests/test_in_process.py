"""The servers of tests stand on pytest-aiohttp's fixtures."""

import aiohttp
import pytest
from aiohttp import web
from in_process import Starters, serving_app
from pytest_aiohttp import AiohttpClient, AiohttpServer
from running_proxy import make_config, running


async def test_the_fixtures_start_the_servers_of_a_test(
    aiohttp_client: AiohttpClient, aiohttp_server: AiohttpServer
) -> None:
    """In the event loop of a test nothing but its fixtures starts a server."""
    assert Starters.aiohttp_client is aiohttp_client
    assert Starters.aiohttp_server is aiohttp_server


def test_a_test_without_a_loop_has_no_fixtures_of_a_loop(request: pytest.FixtureRequest) -> None:
    """A test that is no coroutine pays for no event loop."""
    assert "aiohttp_client" not in request.node.funcargs
    assert Starters.aiohttp_client.__name__ == "_client_of"


async def test_the_end_of_the_block_ends_the_server() -> None:
    """A server answers within its block, and its port is closed after it, while the test goes on."""
    async with running(make_config("http://127.0.0.1:9/v1")) as proxy:
        assert (await proxy.get("/healthz")).status == 200
    with pytest.raises(ConnectionError):
        await proxy.ask(method="GET", path="/healthz")
    async with serving_app(web.Application()) as address, aiohttp.ClientSession() as session:
        assert (await session.get(address)).status == 404
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(address)
