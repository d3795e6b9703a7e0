"""Reverse proxies that people run, in front of a server that knows nothing of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from client_keys import OK, bearer
from front_proxies import haproxy, nginx
from raw_upstream import RawUpstream
from running_proxy import Proxy, ProxyAddress, make_config, running

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOKEN = "tr_" + "s7" * 21 + "A"
FROM_OUTSIDE = {"Host": "llm.example.com"}


@asynccontextmanager
async def behind(mode: str, **server: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A local server, open or with a start token, before an upstream that says yes."""
    async with RawUpstream(OK) as upstream:
        config = make_config(upstream.url, auth={"mode": mode}, server=server)
        async with running(config.with_start_token(TOKEN)) as proxy:
            yield proxy, upstream


async def verdicts(proxy: ProxyAddress, headers: dict[str, str]) -> set[str | int]:
    """The error codes of a POST and a GET, or the statuses where they were served."""
    answers = [
        await proxy.ask(ASK, headers),
        await proxy.ask(None, headers, method="GET", path="/v1/models"),
        await proxy.ask(None, headers, method="GET", path="/v1/files"),
    ]
    return {answer.status if answer.status < 400 else answer.error["code"] for answer in answers}


async def test_a_bare_nginx_does_not_open_an_open_server(tmp_path: Path) -> None:
    """nginx with nothing but ``proxy_pass`` calls the server by its own name, in HTTP/1.0 and without a
    word of where a request came from: the error says what to do."""
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
    """Whichever version of HTTP the installed one speaks by itself: a server with a start token lets nobody
    in without it, and serves who has it."""
    async with behind("auto") as (proxy, upstream), nginx(tmp_path, proxy.port) as front:
        for headers in (FROM_OUTSIDE, {"Host": "localhost"}, {**FROM_OUTSIDE, **bearer("unused")}):
            assert await verdicts(front, headers) == {"invalid_api_key"}
        assert upstream.requests == []
        assert await verdicts(front, {**FROM_OUTSIDE, **bearer(TOKEN)}) == {200}


async def test_an_nginx_that_says_what_it_does(tmp_path: Path) -> None:
    """With a forwarder header an open server refuses, unless it trusts the proxy, of either version then."""
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
    """The limit that SECURITY.md names: a proxy that speaks HTTP/1.1, adds nothing and calls the server by a
    local name is a local client.  The start token is what helps."""
    silent = "proxy_http_version 1.1;"
    for mode, seen in (("open", {200}), ("auto", {"invalid_api_key"})):
        async with behind(mode) as (proxy, _), nginx(tmp_path, proxy.port, silent) as front:
            assert await verdicts(front, FROM_OUTSIDE) == seen
        async with behind(mode) as (proxy, _), haproxy(tmp_path, proxy.port) as front:
            assert await verdicts(front, {"Host": "localhost"}) == seen


async def test_haproxy_says_what_it_was_called(tmp_path: Path) -> None:
    """HAProxy leaves ``Host`` as it came, which a local server does not go by; with ``option forwardfor`` it
    is known as a proxy, whatever a client writes."""
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
