"""CORS: preflights, and the headers of every response that a page may read."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_script import DONE, content, finish, role
from raw_upstream import RESET, RawUpstream, Step, chunk, chunked, head, whole
from running_proxy import Answer, Proxy, make_config, running

from proxy.app.app import Overrides
from proxy.base.errors import RequestError
from proxy.rights.callers import Caller
from proxy.server.auth.key_ring import Key

ASK: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
APP = "https://app.example.com"
LOCAL = "http://localhost:5173"
STREAM = (role(), content("hello"), finish(), DONE)
PREFLIGHT = {
    "Origin": APP,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


class ShutDoor:
    """An authenticator that refuses everybody."""

    async def admit(self, request: Any, target: Any) -> Caller:
        raise RequestError(401, "No such key.", type="authentication_error", code="invalid_api_key")

    async def admit_approver(self, request: Any, target: Any) -> Key:
        raise NotImplementedError

    async def admit_admin(self, request: Any, target: Any) -> Caller:
        return await self.admit(request, target)

    async def admit_scraper(self, request: Any, target: Any) -> None:
        await self.admit_admin(request, target)


@asynccontextmanager
async def for_pages(*script: Step, **config: Any) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """Run a proxy for pages of two origins, in front of an upstream that plays the script."""
    overrides = config.pop("overrides", None)
    config["server"] = {"cors_origins": (APP, LOCAL), **config.get("server", {})}
    async with (
        RawUpstream(list(script) or chunked(*STREAM)) as upstream,
        running(make_config(upstream.url, **config), overrides) as proxy,
    ):
        yield proxy, upstream


def vary_of(answer: Answer) -> set[str]:
    """Return every header name in the response's ``Vary``."""
    lines = [value for name, value in answer.headers if name.lower() == "vary"]
    return {word.strip().lower() for line in lines for word in line.split(",")}


def readable(answer: Answer, origin: str = APP) -> None:
    """Assert that a page of the origin may read the response, and no other page may."""
    assert [value for name, value in answer.headers if name.lower() == "access-control-allow-origin"] == [
        origin
    ]
    assert "origin" in vary_of(answer)
    assert "access-control-allow-credentials" not in answer.names()


# ---------------------------------------------------------------- preflights


@pytest.mark.parametrize("origin", [APP, LOCAL])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files/f", "/admin/runs"])
async def test_a_preflight_is_answered_here(origin: str, path: str) -> None:
    """The proxy tells a page of a listed origin what it may send, for the browser to keep for two hours."""
    async with for_pages() as (proxy, upstream):
        answer = await proxy.ask(None, {**PREFLIGHT, "Origin": origin}, method="OPTIONS", path=path)
        assert (answer.status, answer.body) == (204, b"")
        readable(answer, origin)
        assert answer.header("access-control-allow-headers") == PREFLIGHT["Access-Control-Request-Headers"]
        methods = answer.header("access-control-allow-methods") or ""
        assert set(methods.split(", ")) == {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
        assert answer.header("access-control-max-age") == "7200"
        assert vary_of(answer) == {
            "origin",
            "access-control-request-method",
            "access-control-request-headers",
        }
        assert answer.header("x-request-id")
        assert upstream.requests == []


async def test_preflights_need_no_key_and_count_against_no_limit() -> None:
    """Browsers send preflights without a key, so the proxy neither authenticates nor limits them."""
    limits = {"requests": ("1/minute",)}
    for overrides in (None, Overrides(authenticator=ShutDoor())):
        async with for_pages(limits=limits, overrides=overrides) as (proxy, upstream):
            for _ in range(3):
                assert (await proxy.ask(None, PREFLIGHT, method="OPTIONS")).status == 204
            assert upstream.requests == []


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_a_preflight_of_another_origin_is_refused(origin: str) -> None:
    """A preflight of an origin that is not listed gets a 403 without any header of CORS."""
    for server in ({}, {"cors_origins": ()}):
        async with for_pages(server=server) as (proxy, upstream):
            answer = await proxy.ask(None, {**PREFLIGHT, "Origin": origin}, method="OPTIONS")
            assert answer.status == 403
            assert answer.error["code"] == "origin_not_allowed"
            assert not [name for name in answer.names() if name.startswith("access-control-")]
            assert upstream.requests == []


@pytest.mark.parametrize(
    "asked", ["x" * 65, ", ".join(f"x-{n}" for n in range(65)), "x-a,,x-b", "x a", "x;a", "*", "ä", "x-a,"]
)
async def test_only_plausible_headers_are_allowed(asked: str) -> None:
    """Rule E1: the proxy echoes a bounded list of valid header names; any other list gets a 400."""
    async with for_pages() as (proxy, _):
        headers = {**PREFLIGHT, "Access-Control-Request-Headers": asked}
        answer = await proxy.ask(None, headers, method="OPTIONS")
        assert answer.status == 400
        assert answer.error["param"] == "Access-Control-Request-Headers"
        assert "access-control-allow-headers" not in answer.names()


async def test_no_headers_asked_for_none_allowed() -> None:
    """A preflight that asks for a method only gets no ``Access-Control-Allow-Headers``."""
    async with for_pages() as (proxy, _):
        for extra in ({}, {"Access-Control-Request-Headers": ""}):
            headers = {"Origin": APP, "Access-Control-Request-Method": "DELETE", **extra}
            answer = await proxy.ask(None, headers, method="OPTIONS")
            assert answer.status == 204
            assert "access-control-allow-headers" not in answer.names()


async def test_a_listed_page_may_come_in_from_a_public_network() -> None:
    """A browser that asks whether a page may call a private network is told yes; others are told nothing."""
    async with for_pages() as (proxy, _):
        asked = {**PREFLIGHT, "Access-Control-Request-Private-Network": "true"}
        answer = await proxy.ask(None, asked, method="OPTIONS")
        assert answer.header("access-control-allow-private-network") == "true"
        for unasked in (PREFLIGHT, {**PREFLIGHT, "Access-Control-Request-Private-Network": "false"}):
            answer = await proxy.ask(None, unasked, method="OPTIONS")
            assert "access-control-allow-private-network" not in answer.names()


# ---------------------------------------------------------------- responses

UPSTREAMS_OWN = (
    "Access-Control-Allow-Origin: *",
    "Access-Control-Allow-Credentials: true",
    "Access-Control-Expose-Headers: x-secret",
    "Cross-Origin-Resource-Policy: cross-origin",
    "Timing-Allow-Origin: *",
    "Vary: Accept-Encoding",
    "x-ratelimit-remaining-requests: 7",
    "openai-processing-ms: 12",
)


async def test_a_stream_can_be_read() -> None:
    """The head of a stream lets a page of the origin read the stream and the headers of the proxy."""
    async with for_pages() as (proxy, _):
        answer = await proxy.ask(ASK, {"Origin": APP})
        assert (answer.status, answer.body) == (200, b"".join(STREAM))
        readable(answer)
        exposed = set((answer.header("access-control-expose-headers") or "").split(", "))
        assert exposed >= {
            "x-request-id",
            "x-toolrelay-run",
            "x-toolrelay-restored",
            "x-toolrelay-approvals",
            "x-should-retry",
            "retry-after",
            "openai-processing-ms",
            "x-ratelimit-limit-requests",
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-reset-requests",
        }


async def test_what_the_upstream_says_of_origins_is_replaced() -> None:
    """The proxy, not the upstream, decides which pages read an answer: it replaces the upstream's headers."""
    async with for_pages(*whole(b"{}", *UPSTREAMS_OWN)) as (proxy, _):
        answer = await proxy.ask(ASK, {"Origin": APP})
        readable(answer)
        assert vary_of(answer) == {"origin", "accept-encoding"}
        assert answer.header("openai-processing-ms") == "12"
        assert "x-secret" not in (answer.header("access-control-expose-headers") or "")
        assert not {"cross-origin-resource-policy", "timing-allow-origin"} & set(answer.names())


async def test_who_is_no_page_hears_nothing_but_that_it_varies() -> None:
    """A response to a program has only ``Vary: Origin``, so that a cache does not give it to a page."""
    async with for_pages() as (proxy, _):
        answer = await proxy.ask(ASK)
        assert vary_of(answer) == {"origin"}
        assert not [name for name in answer.names() if name.startswith("access-control-")]


async def test_without_origins_nothing_is_said() -> None:
    """Rule W1: without listed origins a response has neither ``Vary`` nor a header of CORS."""
    async with for_pages(server={"cors_origins": ()}) as (proxy, _):
        assert not {"vary", "access-control-allow-origin"} & set((await proxy.ask(ASK)).names())


async def test_errors_can_be_read() -> None:
    """A listed page can read each error: refusals, limits, authentication and failures of the upstream."""
    async with for_pages(limits={"requests": ("1/minute",)}) as (proxy, _):
        origin = {"Origin": APP}
        readable(await proxy.ask(b"{", origin))
        limited = await proxy.ask(ASK, origin)
        assert limited.status == 429
        readable(limited)
        assert "retry-after" in limited.names()
        for answer in (
            await proxy.get("/nowhere", origin),
            await proxy.ask(None, origin, method="GET", path="/v1/../x"),
            await proxy.get("/healthz", origin),
            await proxy.get("/admin/runs", origin),
            await proxy.ask(ASK, {**origin, "Content-Type": "text/plain"}),
            await proxy.ask(None, origin, method="TRACE"),
        ):
            readable(answer)
    async with for_pages(overrides=Overrides(authenticator=ShutDoor())) as (proxy, _):
        refused = await proxy.ask(ASK, {"Origin": APP})
        assert refused.status == 401
        readable(refused)
    for script in ([RESET], whole(b'{"error":{"message":"no"}}', status="500 Oops")):
        async with for_pages(*script) as (proxy, _):
            failed = await proxy.ask(ASK, {"Origin": APP})
            assert failed.status in (500, 502)
            readable(failed)


async def test_a_stream_that_breaks_can_be_read_to_its_end() -> None:
    """Rule W3: a page can read the error event and the end mark of a stream that breaks."""
    broken: list[Step] = [
        head("Content-Type: text/event-stream", "Transfer-Encoding: chunked"),
        chunk(role() + content("hello")),
        RESET,
    ]
    async with for_pages(*broken) as (proxy, _):
        answer = await proxy.ask(ASK, {"Origin": APP})
        readable(answer)
        assert answer.body.endswith(DONE)
        assert b'"error"' in answer.body


async def test_a_run_with_tools_can_be_read() -> None:
    """A page can read a stream that the proxy composes with tools, and the header with the run's id."""
    async with for_pages(modules=("probe_tools",)) as (proxy, _):
        answer = await proxy.ask(ASK, {"Origin": LOCAL})
        readable(answer, LOCAL)
        assert answer.header("x-toolrelay-run")


async def test_a_page_of_another_origin_cannot_read_why() -> None:
    """The refusal of another origin has no header of CORS and names no listed origin."""
    async with for_pages() as (proxy, upstream):
        answer = await proxy.ask(ASK, {"Origin": "https://evil.example"})
        assert answer.status == 403
        assert APP not in json.dumps(answer.headers) + answer.body.decode()
        assert not [name for name in answer.names() if name.startswith("access-control-")]
        assert upstream.requests == []


async def test_options_that_is_no_preflight_goes_its_way() -> None:
    """The proxy forwards an OPTIONS request that is not a preflight to the upstream."""
    async with for_pages(*whole(b"{}")) as (proxy, upstream):
        assert (await proxy.ask(None, {"Origin": APP}, method="OPTIONS", path="/v1/models")).status == 200
        assert [request.method for request in upstream.requests] == ["OPTIONS"]
