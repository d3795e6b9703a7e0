"""Headers that matter and stand twice: two readers may disagree on which line counts."""

import json
from typing import Any

import pytest
from client_keys import ALICE, OK, bearer, keyed
from raw_upstream import RawUpstream
from responses_script import message, reply
from running_proxy import make_config, running

Lines = list[tuple[str, str]]

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BODY = json.dumps(ASK).encode()
ACTS = ("probe_tools__*",)


def lines(name: str, *values: str) -> Lines:
    """Return one header in several lines."""
    return [(name, value) for value in values]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/moderations", "/v1/files"])
@pytest.mark.parametrize(
    "codings", [("identity", "gzip"), ("", "br"), ("identity, gzip",), ("GZIP", "identity")]
)
async def test_no_line_hides_a_compressed_body(path: str, codings: tuple[str, ...]) -> None:
    """Rule E1: a body is refused if any line of ``Content-Encoding`` names a coding."""
    async with RawUpstream(OK) as upstream, running(make_config(upstream.url)) as proxy:
        answer = await proxy.ask(ASK, lines("Content-Encoding", *codings), path=path)
        assert (answer.status, answer.error["code"]) == (415, "unsupported_content_encoding")
        assert upstream.requests == []


async def test_a_body_that_says_twice_that_it_is_plain_is_taken() -> None:
    """``identity`` is no coding, so a body whose headers repeat it is accepted."""
    async with RawUpstream(OK) as upstream, running(make_config(upstream.url, allow=())) as proxy:
        given = lines("Content-Encoding", "identity", "Identity, identity")
        assert (await proxy.ask(ASK, given)).status == 200
        assert upstream.requests[0].body == BODY


@pytest.mark.parametrize("name", ["Content-Type", "Host", "Content-Length", "Transfer-Encoding"])
async def test_what_frames_a_request_stands_once(name: str) -> None:
    """Rule E1: a header that gives the host, the length or the type gets a 400 if it stands twice."""
    async with RawUpstream(OK) as upstream, running(make_config(upstream.url)) as proxy:
        values = {
            "Content-Type": "application/json",
            "Host": f"127.0.0.1:{proxy.port}",
            "Content-Length": str(len(BODY)),
        }
        sent = [pair for pair in values.items() if pair[0] != name]
        sent += lines(name, *[values.get(name, "chunked")] * 2)
        head = "".join(f"{key}: {value}\r\n" for key, value in sent)
        async with proxy.connect() as conversation:
            opening = f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n"
            conversation.writer.write(opening.encode() + BODY)
            answer = await conversation.answer()
        assert (answer.status, answer.error["code"]) == (400, "invalid_http")
        assert upstream.requests == []


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("x-toolrelay-tools", ("none", "all")),
        ("x-toolrelay-trace", ("silent", "events")),
        ("x-toolrelay-history", ("on", "off")),
        ("Idempotency-Key", ("a", "b")),
        ("x-toolrelay-tools", ("none", "none")),
    ],
)
async def test_a_wish_is_said_once(name: str, values: tuple[str, ...]) -> None:
    """Rule E1: a client's option that stands twice gets a 400 that names its header."""
    config = make_config("http://127.0.0.1:9/v1", allow=ACTS, modules=("probe_tools",))
    async with running(config) as proxy:
        answer = await proxy.ask(ASK, lines(name, *values))
        assert (answer.status, answer.error["param"]) == (400, name)


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "api-key"])
async def test_who_shows_two_keys_shows_none(name: str) -> None:
    """Rule E1: a request with two keys gets a 401, also on a connection that served one with one key."""
    key = f"Bearer {ALICE}" if name == "Authorization" else ALICE
    async with keyed() as (proxy, upstream), proxy.connect() as conversation:
        for given, status in (
            (lines(name, key), 200),
            (lines(name, key, "x"), 401),
            (lines(name, key, key), 401),
        ):
            conversation.writer.write(proxy.request(ASK, given))
            assert (await conversation.answer()).status == status
        assert len(upstream.requests) == 1


async def test_one_line_that_says_another_site_is_enough() -> None:
    """A request is refused if any line of ``Sec-Fetch-Site`` names another site."""
    async with RawUpstream(OK) as upstream, running(make_config(upstream.url)) as proxy:
        own = [("Host", "localhost:8080"), ("Origin", "http://localhost:8080")]
        for first in ([], own):
            for sites in (("none", "cross-site"), ("cross-site", "none"), ("same-origin, same-site",)):
                answer = await proxy.ask(ASK, [*first, *lines("Sec-Fetch-Site", *sites)])
                assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
        assert upstream.requests == []


@pytest.mark.parametrize("values", [("100-continue", "x"), ("", "x"), ("100-continue, x",)])
async def test_one_line_of_another_expectation_is_enough(values: tuple[str, ...]) -> None:
    """Rule E1: another expectation beside ``100-continue`` gets a 417."""
    async with RawUpstream(OK) as upstream, running(make_config(upstream.url)) as proxy:
        answer = await proxy.ask(ASK, lines("Expect", *values))
        assert (answer.status, answer.error["code"]) == (417, "expectation_failed")
        assert upstream.requests == []


@pytest.mark.parametrize("values", [("h2c", "websocket"), ("h2c, WebSocket",)])
async def test_one_line_that_offers_websocket_is_enough(values: tuple[str, ...]) -> None:
    """Rule E1: an upgrade to WebSocket gets a 426, also among other offers."""
    async with RawUpstream(OK) as upstream, running(make_config(upstream.url)) as proxy:
        given = [("Connection", "Upgrade"), *lines("Upgrade", *values)]
        assert (await proxy.ask(ASK, given)).status == 426
        assert upstream.requests == []


async def test_two_names_of_an_end_user_are_none() -> None:
    """Rule R4: a request that names two end users gets neither one's response."""
    config = {"allow": (), "auth": {"end_user": "header:x-user"}}
    async with keyed(reply(message("hello")), **config) as (proxy, upstream):
        key = list(bearer(ALICE).items())
        await proxy.ask({"model": "m", "input": "hi"}, [*key, ("x-user", "ann")], path="/v1/responses")
        for names in (("ann", "bea"), ("bea", "ann"), ("ann", "ann")):
            both = [*key, *lines("x-user", *names)]
            answer = await proxy.get("/v1/responses/resp_1", both)
            assert answer.status == 404
        assert len(upstream.requests) == 1
