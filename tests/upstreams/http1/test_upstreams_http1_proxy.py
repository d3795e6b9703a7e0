"""Upstreams behind a forward proxy, with certificates of a private authority."""

import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from authority import Authority
from closed_port import closed_port
from forward_proxies import ForwardProxy
from in_process import serving_app
from waiting import LATE_S, PATIENCE_S

from proxy.base.errors import ConfigError, UpstreamTimeout, UpstreamUnreachable
from proxy.net.authorities import client_context
from proxy.net.outgoing import HttpProxy
from proxy.upstreams.base import UpstreamRequest
from proxy.upstreams.http1.upstream import Http1Upstream

pytestmark = pytest.mark.both_loops

NAME = "models.test"
ASK = UpstreamRequest("GET", "/models")


@asynccontextmanager
async def served(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[web.Request]]]:
    """Serve a list of models; yield the port, and the requests that came."""
    seen: list[web.Request] = []

    async def models(request: web.Request) -> web.Response:
        seen.append(request)
        return web.json_response({"data": []})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with serving_app(app, ssl=tls) as address:
        yield int(address.rpartition(":")[2]), seen


async def asked(upstream: Http1Upstream) -> bytes:
    """Ask an upstream for its models, and return the body of its answer."""
    try:
        response = await upstream.open(ASK)
        assert response.status == 200
        pieces = [piece async for piece in response.chunks()]
        await response.aclose()
        return b"".join(pieces)
    finally:
        await upstream.aclose()


def behind(proxy: HttpProxy | None, url: str = f"https://{NAME}:8443/v1", **options: Any) -> Http1Upstream:
    """An upstream behind a proxy."""
    return Http1Upstream("main", url, "sk-of-the-upstream", proxy=proxy, retries=0, **options)


def at(proxy: ForwardProxy, credentials: str = "") -> HttpProxy:
    """The double as a setting names it."""
    return HttpProxy.parse(f"http://{credentials}127.0.0.1:{proxy.port}", "upstreams.main.proxy")


async def test_tls_goes_through_a_tunnel(tmp_path: Path) -> None:
    """The proxy gets the host's name and its own credentials, and no byte of the request in the clear."""
    authority = Authority(tmp_path)
    async with (
        served(authority.server(NAME)) as (port, seen),
        ForwardProxy({NAME: port}, credentials="anna:pass:word") as proxy,
    ):
        trusted = client_context((("x", str(authority.file)),))
        upstream = behind(at(proxy, "anna:pass%3Aword@"), ssl_context=trusted)
        assert await asked(upstream) == b'{"data": []}'
    assert proxy.asked == [f"{NAME}:8443"]
    (head,) = proxy.heads
    assert b"sk-of-the-upstream" not in head
    (request,) = seen
    assert request.headers["Host"] == f"{NAME}:8443"
    assert request.headers["Authorization"] == "Bearer sk-of-the-upstream"
    assert "Proxy-Authorization" not in request.headers


async def test_plain_http_goes_through_a_tunnel_too() -> None:
    """An address with http:// is reached by CONNECT as well; connections are used again."""
    async with served() as (port, seen), ForwardProxy({NAME: port}) as proxy:
        upstream = behind(at(proxy), f"http://{NAME}:8000/v1")
        for _ in range(2):
            response = await upstream.open(ASK)
            assert b"".join([piece async for piece in response.chunks()]) == b'{"data": []}'
            await response.aclose()
        await upstream.aclose()
    assert proxy.asked == [f"{NAME}:8000"]
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"credentials": "anna:right"}, "refuses its user name and password .status 407"),
        ({"script": b"HTTP/1.1 403 Forbidden\r\n\r\n"}, "does not connect to this host .status 403"),
        ({"script": b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n"}, "status 302"),
        ({"script": b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n"}, "more than the beginning of a tunnel"),
        ({"script": b"SSH-2.0-OpenSSH_9.2\r\n"}, "is not an HTTP proxy"),
        ({"script": b"HTTP/2 200\r\n\r\n"}, "is not an HTTP proxy"),
        ({"script": b"HTTP/1.1 200 OK\r\nX-Fill: " + b"x" * 100_000}, "is not an HTTP proxy"),
        ({"script": b"HTTP/1.1 200 O"}, "closed the connection without an answer"),
        ({"script": b""}, "closed the connection without an answer"),
    ],
)
async def test_a_proxy_that_refuses_is_named(options: dict[str, Any], words: str) -> None:
    """The error names the setting and the status, and never the password or what the proxy wrote."""
    async with ForwardProxy({}, **options) as proxy:
        with pytest.raises(UpstreamUnreachable, match=rf"upstreams\.main\.proxy.*{words}") as caught:
            await asked(behind(at(proxy, "anna:wrong@")))
    assert "wrong" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.unsent


async def test_a_proxy_wants_credentials() -> None:
    """Without credentials the error says that the proxy wants some."""
    async with ForwardProxy({}, credentials="anna:right") as proxy:
        with pytest.raises(UpstreamUnreachable, match="wants a user name and a password"):
            await asked(behind(at(proxy)))


async def test_a_proxy_that_does_not_answer() -> None:
    """The time for a connection holds for the proxy's answer, too, and the error names the proxy."""
    async with ForwardProxy({}, hang=True) as proxy:
        upstream = behind(at(proxy), connect_timeout_s=0.3, first_byte_timeout_s=LATE_S)
        with pytest.raises(UpstreamTimeout, match=r"the proxy of upstreams\.main\.proxy within 0\.3 s"):
            await asked(upstream)


async def test_a_proxy_that_is_not_there() -> None:
    """A refused connection is the proxy's fault, and the error says so."""
    with closed_port() as port, pytest.raises(UpstreamUnreachable, match=r"through the proxy of p\.q: conn"):
        await asked(behind(HttpProxy("127.0.0.1", port, "", "p.q")))


async def test_an_unknown_authority_names_its_setting(tmp_path: Path) -> None:
    """A certificate of an unknown authority is refused, and the error names the setting that helps."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with served(authority.server(NAME)) as (port, seen), ForwardProxy({NAME: port}) as proxy:
        for context in (None, client_context((("x", str(other.file)),))):
            with pytest.raises(UpstreamUnreachable, match=r"upstreams\.main\.ca_file can name the authority"):
                await asked(behind(at(proxy), ssl_context=context))
        # The right authority, but a name that is not in the certificate: no authority would help.
        trusted = client_context((("x", str(authority.file)),))
        async with ForwardProxy({"other.test": port}) as leading_astray:
            upstream = behind(at(leading_astray), "https://other.test/v1", ssl_context=trusted)
            with pytest.raises(UpstreamUnreachable, match=r"certificate is not trusted$"):
                await asked(upstream)
        assert seen == []


@contextmanager
def wanting_a_certificate(tls: ssl.SSLContext) -> Iterator[int]:
    """Accept connections with TLS in a thread, and answer each request; yield the port.

    Servers of asyncio close a connection without the alert that says what was wrong with it.
    """
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):  # the end of the test
            while True:
                accepted, _ = listener.accept()
                with tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as secure:
                    try:
                        secure.do_handshake()
                        secure.recv(65536)
                        secure.sendall(answer)
                    except ssl.SSLError:
                        with socket.socket(fileno=secure.detach()) as plain:
                            plain.shutdown(socket.SHUT_WR)
                            while plain.recv(65536):
                                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)


async def test_mutual_tls(tmp_path: Path) -> None:
    """A server that wants a certificate gets it; without one, or with a foreign one, the error says it."""
    authority, clients = Authority(tmp_path, "servers"), Authority(tmp_path, "clients")
    strangers = Authority(tmp_path, "strangers")
    known, unknown = clients.signed("proxy.test"), strangers.signed("proxy.test")
    trusted = (("x", str(authority.file)),)
    with wanting_a_certificate(authority.server(NAME, clients=clients)) as port:
        async with ForwardProxy({NAME: port}) as proxy:
            own = client_context(trusted, ("y", str(known[0]), str(known[1])))
            assert await asked(behind(at(proxy), ssl_context=own)) == b"{}"
            for context in (
                client_context(trusted),
                client_context(trusted, ("y", str(unknown[0]), str(unknown[1]))),
            ):
                with pytest.raises(UpstreamUnreachable, match=r"see upstreams\.main\.client_cert") as caught:
                    await asked(behind(at(proxy), ssl_context=context))
                assert caught.value.unsent


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """A file without certificates, a key of another certificate or with a pass phrase is named."""
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.signed("one.test"))
    _, foreign = map(str, authority.signed("two.test"))
    _, sealed = map(str, authority.signed("three.test", password=b"hunter2"))
    (tmp_path / "empty.pem").write_text("nothing")
    nothing = str(tmp_path / "empty.pem")
    uses: list[tuple[Callable[[], object], str]] = [
        (
            lambda: client_context((("network.ca_file", nothing),)),
            "holds no certificates",
        ),
        (lambda: client_context((("network.ca_file", str(tmp_path / "none.pem")),)), "cannot be read"),
        (lambda: client_context((), ("u.client_cert", certificate, foreign)), "belongs to it"),
        (lambda: client_context((), ("u.client_cert", certificate, "")), "belongs to it"),
        (lambda: client_context((), ("u.client_cert", certificate, sealed)), "is encrypted"),
        (lambda: client_context((), ("u.client_cert", str(tmp_path / "none"), key)), "cannot be read"),
    ]
    for use, words in uses:
        with pytest.raises(ConfigError, match=words) as caught:
            use()
        assert caught.value.setting in ("network.ca_file", "u.client_cert")
