"""A request's body: its timeout, the length of its lists, and ``100-continue``."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from raw_upstream import RawUpstream, whole
from running_proxy import make_config, running
from waiting import PATIENCE_S

from proxy.base.errors import RequestError
from proxy.server.messages.body import check_counts

OK = whole(b'{"ok":true}')
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
both = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/files"])


@both
async def test_a_body_has_a_time_in_all(path: str) -> None:
    """A body that is not complete in time gets a 408 and ends the connection, even if bytes keep coming."""
    async with RawUpstream(OK) as upstream, running(_config(upstream, body_timeout_s=0.3)) as proxy:
        async with asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
            conversation.writer.write(
                proxy.request(None, {"Content-Type": "application/json", "Content-Length": "5000"}, path=path)
            )
            drip = asyncio.create_task(_drip(conversation.writer))
            answer = await conversation.answer()
            assert (answer.status, answer.error["code"]) == (408, "request_timeout")
            with contextlib.suppress(ConnectionResetError):
                assert await conversation.reader.read() == b""
            drip.cancel()
            await asyncio.wait([drip])
        await upstream.all_closed()
        assert upstream.requests == []


async def _drip(writer: asyncio.StreamWriter) -> None:
    for _ in range(1000):
        writer.write(b" ")
        await asyncio.sleep(0.01)


async def test_an_upload_that_comes_on_earns_its_time() -> None:
    """A large upload may take longer than the timeout as long as its bytes come fast enough."""
    async with RawUpstream(OK) as upstream:
        config = _config(upstream, body_timeout_s=0.5, max_body_bytes=2_000)
        async with running(config) as proxy, asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
            conversation.writer.write(
                proxy.request(
                    None, {"Content-Type": "application/json", "Content-Length": "200000"}, path="/v1/files"
                )
            )
            for _ in range(20):
                conversation.writer.write(b"x" * 10_000)
                await asyncio.sleep(0.05)
            assert (await conversation.answer()).status == 200
        assert len(upstream.requests[0].body) == 200_000


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": "99999999999"}, 413),
        ({"Content-Length": "5", "Content-Encoding": "gzip"}, 415),
        ({"Content-Length": "5", "Host": "evil.example"}, 403),
    ],
)
async def test_a_refusal_comes_instead_of_100_continue(headers: dict[str, str], status: int) -> None:
    """Rule E1: a client that expects ``100-continue`` gets a refusal at once in its place."""
    async with RawUpstream(OK) as upstream, running(_config(upstream)) as proxy:
        async with proxy.sent(
            None, {"Content-Type": "application/json", **headers, "Expect": "100-continue"}
        ) as conversation:
            opening = await conversation.reader.readuntil(b"\r\n")
            assert opening.startswith(b"HTTP/1.1 %d " % status)
        assert upstream.requests == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
async def test_100_continue_comes_where_the_body_is_wanted(path: str) -> None:
    """The client gets ``100 Continue``, sends its body and gets its answer, twice on one connection."""
    async with RawUpstream(OK) as upstream, running(_config(upstream)) as proxy:
        body = json.dumps(ASK).encode()
        async with asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
            for _ in range(2):
                headers = {
                    "Content-Length": str(len(body)),
                    "Expect": "100-Continue",
                    "Content-Type": "application/json",
                }
                conversation.writer.write(proxy.request(None, headers, path=path))
                assert (await conversation.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
                conversation.writer.write(body)
                assert (await conversation.answer()).status == 200
        assert [json.loads(request.body)["messages"] for request in upstream.requests] == [
            ASK["messages"]
        ] * 2
        assert "expect" not in upstream.requests[0].names()


async def test_a_body_that_was_not_asked_for_ends_its_connection() -> None:
    """After a refusal in place of ``100-continue`` the connection ends, as the next bytes are ambiguous."""
    async with RawUpstream(OK) as upstream, running(_config(upstream)) as proxy:
        behind = proxy.request(method="GET", path="/v1/models")
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(behind)),
            "Expect": "100-continue",
        }
        async with (
            asyncio.timeout(PATIENCE_S),
            proxy.sent(None, headers, path="/v2/none") as conversation,
        ):
            answer = await conversation.answer()
            assert (answer.status, answer.header("connection")) == (404, "close")
            conversation.writer.write(behind * 2)
            assert await conversation.reader.read() == b""
        assert upstream.requests == []


async def test_any_other_expectation_is_refused() -> None:
    """Rule E1: an unknown expectation gets a 417 in OpenAI's shape, and the upstream gets nothing."""
    async with RawUpstream(OK) as upstream, running(_config(upstream)) as proxy:
        answer = await proxy.ask(ASK, {"Expect": "200-maybe"})
        assert (answer.status, answer.error["code"]) == (417, "expectation_failed")
        assert upstream.requests == []


@pytest.mark.parametrize(
    ("field", "most"), [("messages", 20_000), ("input", 20_000), ("tools", 2_000), ("functions", 2_000)]
)
def test_long_lists_have_a_bound(field: str, most: int) -> None:
    """Rule E1: a list with more entries than any model takes gets a 400 that names its field."""
    size = 5 * (most + 1)
    check_counts({field: [None] * most}, size)
    with pytest.raises(RequestError) as caught:
        check_counts({field: [None] * (most + 1)}, size)
    assert (caught.value.status, caught.value.param) == (400, field)
    check_counts({field: "x" * (most + 1)}, size)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_the_bound_holds_on_every_wire(path: str) -> None:
    """Rule E1: both dialects refuse a list with too many entries, and the upstream gets nothing."""
    async with RawUpstream(OK) as upstream, running(_config(upstream)) as proxy:
        field = "messages" if "chat" in path else "input"
        answer = await proxy.ask({"model": "m", field: [1] * 20_001}, path=path)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            400,
            "too_many_entries",
            field,
        )
        assert upstream.requests == []


async def test_the_tokens_of_a_text_are_no_messages() -> None:
    """The limit does not apply to an embedding's input, which may be a long list of numbers."""
    async with RawUpstream(OK) as upstream, running(_config(upstream)) as proxy:
        answer = await proxy.ask({"model": "m", "input": [1] * 32_768}, path="/v1/embeddings")
        assert answer.status == 200
        assert len(upstream.requests) == 1


def _config(upstream: RawUpstream, **server: Any) -> Any:
    return make_config(upstream.url, server=server)
