"""Outgoing HTTP of tools through a forward proxy: the rules about addresses stay in force."""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from authority import Authority
from closed_port import closed_port
from forward_proxies import ForwardProxy
from in_process import serving_app
from resolved_names import Names

from proxy.net.authorities import client_context
from proxy.net.outgoing import HttpProxy, ProxyRules
from proxy.tools.access.addresses import WayOut
from proxy.tools.access.egress import AddressForbidden, EgressPool, HttpFailure

PUBLIC = "93.184.215.14"
NAME = "api.service.test"


@asynccontextmanager
async def service(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[web.Request]]]:
    """Serve JSON, and a redirect at ``/away``; yield the port and the requests."""
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        if "to" in request.query:
            return web.Response(status=302, headers={"Location": request.query["to"]})
        return web.json_response({"fine": True})

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    async with serving_app(app, ssl=tls) as address:
        yield int(address.rpartition(":")[2]), seen


@asynccontextmanager
async def pool(
    proxy: ForwardProxy | HttpProxy,
    addresses: Sequence[str] = (PUBLIC,),
    *,
    credentials: str = "",
    direct: tuple[str, ...] = (),
    proxy_resolves: bool = False,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[EgressPool]:
    """A pool behind a proxy; every name has these addresses here."""
    if isinstance(proxy, ForwardProxy):
        proxy = HttpProxy.parse(f"http://{credentials}127.0.0.1:{proxy.port}", "tools.proxy")
    way = WayOut(ProxyRules(proxy, proxy, direct), proxy_resolves, tls)
    settings: dict[str, Any] = {"schemes": ("https", "http"), "retries": 0, **options}
    made = EgressPool(resolver=Names(*addresses), way=way, **settings)
    try:
        yield made
    finally:
        await made.aclose()


async def test_tls_goes_through_a_tunnel(tmp_path: Path) -> None:
    """The proxy gets the name and its own credentials; the service gets neither of the latter."""
    authority = Authority(tmp_path)
    tls = client_context((("network.ca_file", str(authority.file)),))
    async with (
        service(authority.server(NAME)) as (port, seen),
        ForwardProxy({NAME: port}, credentials="anna:pass:word") as proxy,
        pool(proxy, credentials="anna:pass%3Aword@", tls=tls) as way,
    ):
        assert await way.client([NAME]).get_json(f"https://{NAME}/v1") == {"fine": True}
    assert proxy.asked == [f"{NAME}:443"]
    (request,) = seen
    assert "Proxy-Authorization" not in request.headers


async def test_plain_http_has_an_absolute_target() -> None:
    """An http:// address is asked for as proxies want it, with the proxy's credentials."""
    async with (
        service() as (port, seen),
        ForwardProxy({NAME: port}, credentials="anna:right") as proxy,
        pool(proxy, credentials="anna:right@") as way,
    ):
        assert await way.client([NAME]).get_json(f"http://{NAME}/v1?a=1") == {"fine": True}
    (request,) = seen
    assert request.path_qs == "/v1?a=1"
    assert "Proxy-Authorization" not in request.headers


@pytest.mark.parametrize(
    "addresses", [("10.0.0.1",), ("169.254.169.254",), (PUBLIC, "10.0.0.1"), ("::1",), ()]
)
async def test_the_proxy_does_not_hear_a_name_that_leads_inside(
    addresses: tuple[str, ...],
) -> None:
    """A name is resolved and checked here; one address inside is enough, since the proxy chooses one."""
    async with ForwardProxy({NAME: 1}) as proxy, pool(proxy, addresses) as way:
        for scheme in ("https", "http"):
            with pytest.raises(AddressForbidden, match="may not call that address"):
                await way.client([NAME]).get_json(f"{scheme}://{NAME}/v1")
    assert proxy.heads == []


@pytest.mark.parametrize("proxy_resolves", [False, True])
@pytest.mark.parametrize(
    "host", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "[::1]", "[fd00::1]", "localhost", "vault.internal"]
)
async def test_an_address_inside_is_refused(host: str, proxy_resolves: bool) -> None:
    """Literal addresses and names of inner networks never reach the proxy, whoever resolves names."""
    async with ForwardProxy({}) as proxy, pool(proxy, ("10.0.0.1",), proxy_resolves=proxy_resolves) as way:
        with pytest.raises(HttpFailure):
            await way.client(["*"]).get_json(f"https://{host}/v1")
    assert proxy.heads == []


@pytest.mark.parametrize("host", ["intranet", "2130706433", "127.1", "a.0x7f000001", "db.lan"])
async def test_names_that_only_an_inner_network_resolves(host: str) -> None:
    """With tools.proxy_resolves, names without a dot and numbers in other spellings are refused, too."""
    async with ForwardProxy({host: 1}) as proxy, pool(proxy, (), proxy_resolves=True) as way:
        with pytest.raises(HttpFailure):
            await way.client(["*"]).get_json(f"https://{host}/v1")
    assert proxy.heads == []


async def test_the_proxy_resolves_names_if_the_operator_says_so() -> None:
    """With tools.proxy_resolves a name that has no address here goes to the proxy."""
    async with (
        service() as (port, _),
        ForwardProxy({NAME: port}) as proxy,
        pool(proxy, (), proxy_resolves=True) as way,
    ):
        assert await way.client([NAME]).get_json(f"http://{NAME}/") == {"fine": True}


async def test_a_redirect_is_checked_like_the_first_address() -> None:
    """A page that redirects inside is not followed there through the proxy."""
    async with service() as (port, seen), ForwardProxy({NAME: port}) as proxy, pool(proxy) as way:
        for target in ("http://169.254.169.254/latest", "http://[fd00::1]/", "http://127.0.0.1:80/"):
            with pytest.raises(HttpFailure, match="may not call that address"):
                await way.client(["*"]).get_text(f"http://{NAME}/?to={target}")
    assert len(seen) == 3
    assert set(proxy.asked) == {NAME}


async def test_a_host_without_a_proxy_is_reached_directly_and_checked() -> None:
    """NO_PROXY leads to the checked resolver: an address inside stays refused there."""
    async with ForwardProxy({NAME: 1}) as proxy, pool(proxy, ("10.0.0.1",), direct=("service.test",)) as way:
        with pytest.raises(AddressForbidden):
            await way.client([NAME]).get_json(f"https://{NAME}/v1")
    assert proxy.heads == []


@pytest.mark.parametrize("scheme", ["https", "http"])
async def test_the_proxys_refusals_are_its_own(scheme: str) -> None:
    """What the proxy refuses names its setting and is not taken for the service's status."""
    asked = ForwardProxy({}, credentials="anna:right")
    async with asked as proxy, pool(proxy, credentials="anna:wrong@") as way:
        with pytest.raises(HttpFailure, match=r"tools\.proxy wants another user name .*407") as caught:
            await way.client([NAME]).get_json(f"{scheme}://{NAME}/v1")
        assert caught.value.status is None
        assert "secret" not in str(caught.value)
    async with ForwardProxy({}) as proxy, pool(proxy) as way:
        with pytest.raises(HttpFailure, match="502"):
            await way.client([NAME]).get_json(f"{scheme}://{NAME}/v1")
    with closed_port() as port:
        async with pool(HttpProxy("127.0.0.1", port, "", "tools.proxy")) as way:
            with pytest.raises(HttpFailure, match=r"the proxy of tools\.proxy cannot be reached"):
                await way.client([NAME]).get_json(f"{scheme}://{NAME}/v1")


async def test_an_unknown_authority_names_its_setting(tmp_path: Path) -> None:
    """A certificate of an unknown authority is refused through the tunnel, with the setting that helps."""
    authority = Authority(tmp_path)
    async with (
        service(authority.server(NAME)) as (port, seen),
        ForwardProxy({NAME: port}) as proxy,
        pool(proxy) as way,
    ):
        with pytest.raises(HttpFailure, match=r"not trusted; network\.ca_file can name the authority"):
            await way.client([NAME]).get_json(f"https://{NAME}/v1")
    assert seen == []


async def test_a_name_that_cannot_be_resolved_here() -> None:
    """The failure says that the name is looked up here, since the proxy could resolve it."""

    class NoNames(Names):
        async def resolve(self, host: str, port: int = 0, family: Any = 0) -> Any:
            raise OSError(-2, "Name or service not known")

    proxy = HttpProxy("127.0.0.1", 9, setting="tools.proxy")
    made = EgressPool(resolver=NoNames(), way=WayOut(ProxyRules(proxy, proxy)), retries=0)
    with pytest.raises(HttpFailure, match="name cannot be resolved here"):
        await made.client([NAME]).get_json(f"https://{NAME}/v1")
    await made.aclose()


async def test_a_proxy_that_does_not_answer() -> None:
    """The time of a request holds for the proxy's answer, too."""
    async with ForwardProxy({}, hang=True) as proxy, pool(proxy, timeout_s=0.3) as way:
        with pytest.raises(HttpFailure, match="took too long"):
            await way.client([NAME]).get_json(f"https://{NAME}/v1")
