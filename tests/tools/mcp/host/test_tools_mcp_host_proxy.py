"""MCP servers over HTTP behind a forward proxy."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiohttp import web
from authority import Authority
from forward_proxies import ForwardProxy
from in_process import serving_app

from proxy.net.outgoing import HttpProxy, ProxyRules
from proxy.tools.mcp.host.http import CheckedTransport
from proxy.tools.mcp.servers import HostSettings

NAME = "mcp.service.test"
PUBLIC = "93.184.215.14"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The addresses of names, for this process; a name that is missing here is not resolved."""
    known: dict[str, list[str]] = {}
    ask = asyncio.BaseEventLoop.getaddrinfo

    async def getaddrinfo(loop: Any, host: str, port: int, **options: Any) -> Any:
        if host not in known and host.endswith(".test"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host not in known:
            return await ask(loop, host, port, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known[host]]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return known


async def ask(proxy: ForwardProxy, url: str, *, credentials: str = "", ca_file: str = "") -> httpx2.Response:
    """Send one request through a proxy."""
    address = HttpProxy.parse(f"http://{credentials}127.0.0.1:{proxy.port}", "mcp.proxy")
    transport = CheckedTransport(proxies=ProxyRules(address, address), ca_file=ca_file)
    async with httpx2.AsyncClient(transport=transport) as client:
        return await client.get(url)


async def test_requests_go_through_the_proxy(tmp_path: Path, names: dict[str, list[str]]) -> None:
    """The proxy gets the name and its credentials; a name that only the proxy knows is left to it."""
    authority = Authority(tmp_path)
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response(text="fine")

    app = web.Application()
    app.router.add_get("/mcp", answer)
    async with serving_app(app, ssl=authority.server(NAME)) as address:
        port = int(address.rpartition(":")[2])
        async with ForwardProxy({NAME: port}, credentials="anna:right") as proxy:
            for known in ([PUBLIC], None):
                names.update({NAME: known} if known else {})
                url = f"https://{NAME}/mcp"
                response = await ask(proxy, url, credentials="anna:right@", ca_file=str(authority.file))
                assert response.text == "fine"
                names.clear()
            assert proxy.asked == [f"{NAME}:443"] * 2
            with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await ask(proxy, url, credentials="anna:right@")
    assert [("Proxy-Authorization" in request.headers) for request in seen] == [False, False]


@pytest.mark.parametrize("addresses", [["10.0.0.1"], [PUBLIC, "192.168.0.1"], ["169.254.169.254"]])
async def test_a_name_that_leads_inside_is_refused(addresses: list[str], names: dict[str, list[str]]) -> None:
    """The address is checked before the proxy hears the name."""
    names[NAME] = addresses
    async with ForwardProxy({NAME: 1}) as proxy:
        with pytest.raises(httpx2.ConnectError, match=r"mcp\.networks"):
            await ask(proxy, f"https://{NAME}/mcp")
        for host in ("intranet", "a.internal"):
            with pytest.raises(httpx2.ConnectError):
                await ask(proxy, f"https://{host}/mcp")
    assert proxy.heads == []


async def test_the_proxys_refusals_name_its_setting(names: dict[str, list[str]]) -> None:
    """A refusal names the setting and the status, and nothing that the proxy wrote."""
    names[NAME] = [PUBLIC]
    for scheme in ("https", "http"):
        async with ForwardProxy({}, credentials="anna:right") as proxy:
            with pytest.raises(httpx2.ConnectError, match=r"mcp\.proxy refuses .*407") as caught:
                await ask(proxy, f"{scheme}://{NAME}/mcp", credentials="anna:wrong@")
            assert "Unauthorized" not in str(caught.value)
            assert "wrong" not in str(caught.value)


def test_the_process_gets_the_rules() -> None:
    """Rules and authorities reach the host process with its other settings."""
    rules = ProxyRules(None, HttpProxy("proxy.test", 3128, "Zm9v", "mcp.proxy"), ("a.test",))
    settings = HostSettings(proxies=rules, ca_file="/etc/authority.pem")
    assert HostSettings.read(settings.written()) == settings
