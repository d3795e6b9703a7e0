"""Common reverse proxies in front of a server that is not configured for them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client_keys import OK, bearer
from front_proxies import haproxy, nginx
from raw_upstream import RawUpstream
from running_proxy import Proxy, ProxyAddress, make_config, running
from waiting import until

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
DOCS = Path(__file__).resolve().parents[3] / "docs"
TOKEN = "tr_" + "s7" * 21 + "A"
FROM_OUTSIDE = {"Host": "llm.example.com"}


@asynccontextmanager
async def behind(mode: str, **server: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a local server, open or with a start token, in front of an upstream that always succeeds."""
    async with RawUpstream(OK) as upstream:
        config = make_config(upstream.url, auth={"mode": mode}, server=server)
        async with running(config.with_start_token(TOKEN)) as proxy:
            yield proxy, upstream


async def verdicts(proxy: ProxyAddress, headers: dict[str, str]) -> set[str | int]:
    """Return the error codes of a POST and two GETs, or their statuses if they were served."""
    answers = [
        await proxy.ask(ASK, headers),
        await proxy.ask(None, headers, method="GET", path="/v1/models"),
        await proxy.ask(None, headers, method="GET", path="/v1/files"),
    ]
    return {answer.status if answer.status < 400 else answer.error["code"] for answer in answers}


async def test_a_bare_nginx_does_not_open_an_open_server(tmp_path: Path) -> None:
    """nginx with only ``proxy_pass`` speaks HTTP/1.0 and does not say where a request comes from: an open
    server refuses it, and the error names the remedies."""
    async with (
        behind("open") as (proxy, upstream),
        nginx(tmp_path, proxy.port, "proxy_http_version 1.0;") as front,
    ):
        for headers in (FROM_OUTSIDE, {"Host": "localhost"}, {**FROM_OUTSIDE, **bearer("unused")}):
            assert await verdicts(front, headers) == {"http_version_not_allowed"}
        message = (await front.ask(ASK, FROM_OUTSIDE)).error["message"]
        for words in ("HTTP/1.1", "--open", "start token", "server.trusted_proxies"):
            assert words in message
        assert upstream.requests == []
        assert await verdicts(proxy, {}) == {200}


async def test_what_nginx_does_without_a_word_of_configuration(tmp_path: Path) -> None:
    """Whichever version of HTTP the installed nginx speaks by default, a server with a start token serves
    only requests with that token."""
    async with behind("auto") as (proxy, upstream), nginx(tmp_path, proxy.port) as front:
        for headers in (FROM_OUTSIDE, {"Host": "localhost"}, {**FROM_OUTSIDE, **bearer("unused")}):
            assert await verdicts(front, headers) == {"invalid_api_key"}
        assert upstream.requests == []
        assert await verdicts(front, {**FROM_OUTSIDE, **bearer(TOKEN)}) == {200}


async def test_an_nginx_that_says_what_it_does(tmp_path: Path) -> None:
    """If nginx adds a forwarding header, an open server refuses requests unless it trusts that nginx."""
    says = "proxy_set_header X-Forwarded-For $remote_addr;"
    for version in ("1.0", "1.1"):
        more = f"proxy_http_version {version}; {says}"
        async with behind("open") as (proxy, upstream), nginx(tmp_path, proxy.port, more) as front:
            assert await verdicts(front, FROM_OUTSIDE) == {"forwarded_not_allowed"}
            assert upstream.requests == []
        async with (
            behind("open", trusted_proxies=("127.0.0.1",)) as (proxy, _),
            nginx(tmp_path, proxy.port, more) as front,
        ):
            assert await verdicts(front, FROM_OUTSIDE) == {200}


async def test_what_an_open_server_cannot_see(tmp_path: Path) -> None:
    """The limit that SECURITY.md names: an open server serves a reverse proxy that speaks HTTP/1.1, adds no
    header and uses a local name, like a local client. A start token helps."""
    silent = "proxy_http_version 1.1;"
    for mode, seen in (("open", {200}), ("auto", {"invalid_api_key"})):
        async with behind(mode) as (proxy, _), nginx(tmp_path, proxy.port, silent) as front:
            assert await verdicts(front, FROM_OUTSIDE) == seen
        async with behind(mode) as (proxy, _), haproxy(tmp_path, proxy.port) as front:
            assert await verdicts(front, {"Host": "localhost"}) == seen


async def test_haproxy_says_what_it_was_called(tmp_path: Path) -> None:
    """HAProxy keeps the client's ``Host``, and an open server refuses a foreign name; with ``option
    forwardfor`` it refuses a local name, too, because it recognizes the proxy."""
    async with behind("open") as (proxy, upstream), haproxy(tmp_path, proxy.port) as front:
        assert await verdicts(front, FROM_OUTSIDE) == {"host_not_allowed"}
        assert upstream.requests == []
    async with (
        behind("open") as (proxy, upstream),
        haproxy(tmp_path, proxy.port, "option forwardfor") as front,
    ):
        assert await verdicts(front, {"Host": "localhost"}) == {"forwarded_not_allowed"}
        assert upstream.requests == []
    async with (
        behind("auto") as (proxy, _),
        haproxy(tmp_path, proxy.port, "option forwardfor") as front,
    ):
        assert await verdicts(front, {"Host": "localhost"}) == {"invalid_api_key"}
        assert await verdicts(front, {"Host": "localhost", **bearer(TOKEN)}) == {200}


@pytest.mark.parametrize("mode", ["open", "auto"])
async def test_haproxys_documented_health_check_keeps_the_server_up(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAProxy asks ``/readyz`` in HTTP/1.0 without a ``Host``, and one refusal would take the server down."""
    (line,) = re.findall(r"option httpchk .*", (DOCS / "how-to" / "reverse-proxy.md").read_text("utf-8"))
    async with behind(mode, trusted_proxies=("127.0.0.1",)) as (proxy, _):
        checks = 0
        healthy = proxy.services.store.healthy

        async def counted() -> bool:
            nonlocal checks
            checks += 1
            return await healthy()

        monkeypatch.setattr(proxy.services.store, "healthy", counted)
        # Without a time limit of its own, a check may take no longer than the pause between two.
        more = f"option forwardfor\n  {line}\n  timeout check 60s"
        server = "check inter 200ms fall 1 rise 1"
        async with haproxy(tmp_path, proxy.port, more, server) as front:
            await until(lambda: checks > 3)
            headers = {"Host": "localhost", **bearer(TOKEN)}
            assert await verdicts(front, headers) == {200}


async def test_a_health_check_needs_no_host_and_no_newer_http() -> None:
    """Probes call a server by its address, whatever names it allows; nothing else is served to them."""
    async with behind("open") as (proxy, upstream):
        for path in ("/healthz", "/readyz"):
            for head in ("HTTP/1.0\r\n", "HTTP/1.1\r\nHost: 10.0.0.7:8080\r\nConnection: close\r\n"):
                assert await status_line(proxy, f"GET {path} {head}\r\n") == "200"
        for path in ("/v1/models", "/readyz/", "/readyz?x=1", "//readyz"):
            assert await status_line(proxy, f"GET {path} HTTP/1.0\r\n\r\n") == "403"
        page = "HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nConnection: close\r\n"
        assert await status_line(proxy, f"GET /readyz {page}\r\n") == "403"
        assert upstream.requests == []


async def status_line(proxy: ProxyAddress, request: str) -> str:
    """Return the status of the answer to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(request.encode())
    status = (await reader.readline()).split()[1].decode()
    writer.close()
    await writer.wait_closed()
    return status
