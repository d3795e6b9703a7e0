"""Streams that an upstream does not label as streams: the proxy recognises them by their first bytes."""

import asyncio
from typing import Any

import chat_script as chat
import pytest
import responses_script as responses
from looping import ANSWER, ASK, TIME, called, looping
from raw_upstream import KEEP, LAST_CHUNK, Step, chunk, chunked, head, whole
from waiting import PATIENCE_S

from proxy.wires.stream.sse import begins_events

TYPES = (
    "Content-Type: application/json",
    "Content-Type: text/plain",
    "X-None: 1",
    "Content-Type: text/x-sse",
)
RESPONSES_ASK: dict[str, Any] = {"model": "m", "stream": True, "input": "hi"}


def unlabelled(*pieces: bytes, label: str = TYPES[0]) -> list[Step]:
    """A whole stream with another content type."""
    opening = head(label, "Transfer-Encoding: chunked")
    return [opening, *[chunk(piece) for piece in pieces], LAST_CHUNK, KEEP]


def data_of(steps: Any) -> bytes:
    """The decoded body of a script that is in chunked encoding."""
    body = b"".join(step for step in steps[1:] if isinstance(step, bytes))
    out = b""
    while body and not body.startswith(LAST_CHUNK):
        size, _, rest = body.partition(b"\r\n")
        out += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    return out


@pytest.mark.parametrize("label", TYPES)
async def test_the_first_event_leaves_at_once(label: str) -> None:
    """Rule W2: whatever its label, the first event reaches the client before the upstream sends the next."""
    release = asyncio.Event()
    script: list[Step] = [
        head(label, "Transfer-Encoding: chunked"),
        chunk(chat.role() + chat.content("a")),
        release,
        chunk(chat.finish() + chat.DONE),
        LAST_CHUNK,
        KEEP,
    ]
    async with looping(script, allow=("core__*",)) as (proxy, _), proxy.sent(ASK) as conversation:
        async with asyncio.timeout(PATIENCE_S):
            answer = await conversation.head()
            pieces = conversation.pieces(answer)
            arrived, sent = b"", chat.role() + chat.content("a")
            while len(arrived) < len(sent):  # A busy machine may split what was sent at once.
                arrived += await anext(pieces)
            assert arrived == sent
        release.set()
        assert b"".join([piece async for piece in pieces]) == chat.finish() + chat.DONE
        assert answer.header("content-type") == "text/event-stream"


@pytest.mark.parametrize("label", TYPES)
@pytest.mark.parametrize("cut", [1, 3, 10_000])
@pytest.mark.parametrize("before", [b"", b": hi\n\n", b"\xef\xbb\xbf", b"\n\n", b"\r\n"])
async def test_a_server_tool_runs(label: str, cut: int, before: bytes) -> None:
    """A server tool runs in a stream without the right label, and the client gets one ordinary stream."""
    turns = [data_of(called(("call_1", TIME, '{"timezone":"UTC"}'))), data_of(ANSWER)]
    scripts = [
        unlabelled(*[data[at : at + cut] for at in range(0, len(data), cut)], label=label)
        for data in (before + turns[0], before + turns[1])
    ]
    async with looping(*scripts, allow=("core__*",)) as (proxy, upstream):
        answer = await proxy.ask(ASK)
        assert answer.clean
        assert answer.body.count(b"[DONE]") == 1
        body = answer.body.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
        assert chat.text_of(chat.payloads_of(body)) == "It is noon."
        assert TIME.encode() not in answer.body
        assert len(upstream.requests) == 2


async def test_on_responses_too() -> None:
    """The proxy recognises a Responses stream, whose first field is the name of an event."""
    data = responses.turn(responses.message("a")) + chat.DONE
    async with looping(unlabelled(data[:3], data[3:]), allow=("core__*",)) as (proxy, _):
        assert (await proxy.ask(RESPONSES_ASK, path="/v1/responses")).body == data


@pytest.mark.parametrize(
    "body", [b'{"id":"x","choices":[]}', b' \n {"x":1}', b"<html>log in</html>", b"dated", b"d", b"", b"\n"]
)
async def test_what_is_no_stream_passes(body: bytes) -> None:
    """Rule W2: if the client asked for a stream and the body is something else, it passes unchanged."""
    for script in (whole(body, content_type="text/plain"), unlabelled(*([body] if body else []))):
        async with looping(script, allow=("core__*",)) as (proxy, _):
            answer = await proxy.ask(ASK)
            assert (answer.status, answer.body, answer.clean) == (200, body, True)


async def test_a_stream_that_was_not_asked_for() -> None:
    """A stream that the client did not ask for passes unchanged if it calls no tool."""
    data = data_of(ANSWER)
    async with looping(chunked(data, content_type="text/plain"), allow=("core__*",)) as (proxy, _):
        assert (await proxy.ask({**ASK, "stream": False})).body == data


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b"", None), (b" \r\n", None), (b"\xef\xbb\xbf", None), (b"d", None), (b"dat", None), (b"data", None),
        (b"data:", True), (b"data :", True), (b":", True), (b"\n: x", True), (b"event: a", True),
        (b"retry:", True), (b"id:", True), (b"i", None), (b"{", False), (b"[", False), (b"<", False),
        (b"datax", False), (b"x", False), (b'"data:', False), (b"ideas: x", False),
    ],
)  # fmt: skip
def test_how_it_begins(data: bytes, verdict: bool | None) -> None:
    """A stream begins with a field name or a comment; until that is certain, the verdict is ``None``."""
    assert begins_events(data) is verdict
