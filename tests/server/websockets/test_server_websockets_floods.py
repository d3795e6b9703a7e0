"""Clients and upstreams that send very many small things over a WebSocket: others are served meanwhile."""

import asyncio
import json
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import responses_script as responses
from hypothesis import given
from hypothesis import strategies as st
from raw_upstream import LAST_CHUNK, RawUpstream, Step, chunk, head
from running_proxy import Proxy, make_config, running
from waiting import PATIENCE_S, until
from websocket_client import WebSocketClient, connected
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol

from proxy.server.transport.websocket import FrameCutter, WebSocket

pytestmark = pytest.mark.both_loops

MOST_A_TURN = 16
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
CREATE = b'{"type":"response.create","model":"m","input":"hi"}'
HELLO = responses.stream(responses.message("Hello."))
SSE_HEAD = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")


def frame(data: bytes, opcode: Opcode = Opcode.CONT, *, fin: bool = False) -> bytes:
    """Return a client's frame."""
    return bytes(Frame(opcode, data, fin).serialize(mask=True))


BEGUN = frame(b"", Opcode.TEXT)
FLOODS: dict[str, tuple[bytes, bytes]] = {
    "empty fragments": (BEGUN, frame(b"")),
    "small fragments": (BEGUN, frame(b" ")),
    "pings": (b"", frame(b"", Opcode.PING, fin=True)),
    "pings within a message": (BEGUN, frame(b"x", Opcode.PING, fin=True)),
    "pongs": (b"", frame(b"", Opcode.PONG, fin=True)),
    "messages": (b"", frame(b"{}", Opcode.TEXT, fin=True)),
    "empty messages": (b"", frame(b"", Opcode.BINARY, fin=True)),
}


@asynccontextmanager
async def proxied(*scripts: Any) -> AsyncIterator[Proxy]:
    """Run a proxy in front of a scripted upstream of Responses."""
    async with (
        RawUpstream(*scripts) as upstream,
        running(make_config({"base_url": upstream.url, "wires": ("responses",)}, allow=())) as proxy,
    ):
        yield proxy


@asynccontextmanager
async def opened(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a WebSocket whose bytes the test writes itself."""
    async with proxy.sent(None, HANDSHAKE, method="GET", path="/v1/responses") as conversation:
        answer = await asyncio.wait_for(conversation.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert answer.startswith(b"HTTP/1.1 101 ")
        yield conversation.reader, conversation.writer


@pytest.fixture
def frames_by_turn(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count the frames that a server takes, by the turn of the event loop."""
    counted: Counter[int] = Counter()
    taken = Protocol.recv_frame
    turn, ticking = 0, False

    def tick() -> None:
        nonlocal turn, ticking
        turn, ticking = turn + 1, False

    def counting(self: Protocol, received: Frame) -> None:
        nonlocal ticking
        counted[turn] += 1
        if not ticking:
            ticking = True
            asyncio.get_running_loop().call_soon(tick)
        taken(self, received)

    monkeypatch.setattr(Protocol, "recv_frame", counting)
    return counted


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_of_small_frames_has_few_in_each_turn_and_ends(
    kind: str, frames_by_turn: Counter[int]
) -> None:
    """Small frames without measure are read a few at a time, and end their connection with code 1008."""
    first, rest = FLOODS[kind]
    async with proxied() as proxy, opened(proxy) as (reader, writer):
        said = asyncio.ensure_future(reader.read())
        with suppress(ConnectionError):
            writer.write(first + 40_000 * rest)
            await asyncio.wait_for(writer.drain(), PATIENCE_S)
        with suppress(ConnectionError):
            told = await asyncio.wait_for(said, PATIENCE_S)
            assert b"small frames" in told
        assert max(frames_by_turn.values()) <= MOST_A_TURN
        assert 1000 <= frames_by_turn.total() < 2000


async def test_others_are_served_while_one_client_sends_without_end(frames_by_turn: Counter[int]) -> None:
    """While one WebSocket floods the proxy with fragments, the requests of other clients are answered."""
    fragments, stop = 64 * frame(bytes(1024)), False
    async with proxied(HELLO) as proxy, opened(proxy) as (_, attack), connected(proxy) as other:
        attack.write(BEGUN)

        async def flood() -> None:
            while not stop:
                attack.write(fragments)
                await attack.drain()

        flooding = asyncio.ensure_future(flood())
        try:
            await until(lambda: frames_by_turn.total() > 100)
            for _ in range(20):
                answer = await proxy.get("/healthz")
                assert answer.status == 200
            assert (await asyncio.wait_for(other.ask(input="hi"), PATIENCE_S)).text == "Hello."
        finally:
            stop = True
            attack.transport.abort()
            with suppress(ConnectionError):
                await flooding
    # A turn may go on with what waits, read what has come, and see the other connection or an end.
    assert max(frames_by_turn.values()) <= 3 * MOST_A_TURN


async def test_fragments_take_little_more_memory_than_their_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of 1 MiB in 900 fragments of one byte and many larger ones takes three times its size."""
    size, peak = 1 << 20, 0
    message = CREATE[:-1] + b',"instructions":"' + size * b"y" + b'"}'
    small, large = message[:900], message[900:]
    parts = [small[at : at + 1] for at in range(900)]
    parts += [large[at : at + 1100] for at in range(0, len(large), 1100)]
    sent = BEGUN + b"".join(map(frame, parts)) + frame(b"", fin=True)
    receive = WebSocket.receive

    async def received(self: WebSocket) -> bytes | None:
        nonlocal peak
        said = await receive(self)
        peak = peak or tracemalloc.get_traced_memory()[1]
        return said

    monkeypatch.setattr(WebSocket, "receive", received)
    async with proxied(HELLO) as proxy, opened(proxy) as (reader, writer):
        tracemalloc.start()
        try:
            for at in range(0, len(sent), 1 << 16):
                writer.write(sent[at : at + (1 << 16)])
                await writer.drain()
            told = await asyncio.wait_for(reader.readuntil(b"response.completed"), PATIENCE_S)
        finally:
            tracemalloc.stop()
    assert b"Hello." in told
    assert size < peak < 4 * size


MALFORMED: dict[str, bytes] = {
    "no JSON": b"data: hello\n\n",
    "a list": b"data: []\n\n",
    "named, no JSON": b"event: response.output_text.delta\ndata: {oops}\n\n",
    "cut": b'data: {"type":"response.output_text.delta","delta":"ab\n\n',
    "cut, with an end": b'data: {"type":"response.output_text.delta","delta":"ab}\n\n',
    "no UTF-8": b'data: {"type":"response.output_text.delta","delta":"\xff"}\n\n',
    "large and cut": b'data: {"type":"response.output_text.delta","delta":"' + 70_000 * b"x" + b"\n\n",
    "large, no UTF-8": b'data: {"type":"response.x","delta":"' + 70_000 * b"x" + b'\xff"}\n\n',
    "created, no JSON": b'event: response.created\ndata: {"type":"response.created",}\n\n',
    "completed, no JSON": b'event: response.completed\ndata: {"type":"response.completed","response":{}\n\n',
}
OPENING = responses.encode(responses.opening())
CLOSING = responses.encode([responses.closing()])


@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("lane", [{}, {"stream_id": "a"}])
async def test_a_malformed_event_of_an_upstream_fails_its_response_alone(
    kind: str, together: bool, lane: dict[str, str]
) -> None:
    """An event that is not JSON ends its response with an error, never a success; the socket goes on."""
    parts = [OPENING, MALFORMED[kind], CLOSING]
    steps: list[Step] = [chunk(b"".join(parts))] if together else [*map(chunk, parts)]
    async with proxied([SSE_HEAD, *steps, LAST_CHUNK], HELLO) as proxy, connected(proxy) as client:
        turn = await asyncio.wait_for(client.ask(input="hi", **lane), PATIENCE_S)
        failed = turn.last if turn.last["type"] == "error" else turn.last["response"]
        assert turn.last["type"] in ("error", "response.failed")
        assert failed["error"]["code"] == "upstream_broken"
        assert {event.get("stream_id") for event in turn.events} == {lane.get("stream_id")}
        assert (await asyncio.wait_for(client.ask(input="hi"), PATIENCE_S)).text == "Hello."


async def test_an_event_without_members_keeps_its_lane() -> None:
    """An empty object of an upstream gets its lane as its only member."""
    script = [SSE_HEAD, chunk(OPENING + b"data: {}\n\n" + CLOSING), LAST_CHUNK]
    async with proxied(script) as proxy, connected(proxy) as client:
        await client.send(input="hi", stream_id="a")
        events = [json.loads(await client.connection.recv()) for _ in range(2)]
        while events[-1].get("type") == "response.in_progress":
            events.append(json.loads(await client.connection.recv()))
    assert events[-1] == {"stream_id": "a"}


async def with_burst(client: WebSocketClient, size: int) -> int:
    """Ask, and return how many of the burst's events came; there are ``size`` of them."""
    await client.send(input="hi")
    events = 0
    while True:
        said = json.loads(await client.connection.recv())
        events += 1 if said.get("type") == "x" else 0
        if said.get("type") == "response.completed":
            return events
        assert events <= size


@pytest.mark.parametrize(("event", "arrive"), [(b"x\n\n", 0), (b'data:{"type":"x"}\n\n', 4000)])
async def test_an_upstreams_burst_is_sent_in_parts(
    event: bytes, arrive: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of events or comments in one read do not stop the others, and cause few pings."""
    counted: Counter[int] = Counter()
    turn, pings = 0, 0
    sent, pinged = Protocol.send_text, Protocol.send_ping

    def tick() -> None:
        nonlocal turn
        turn += 1

    def sending(self: Protocol, *said: Any, **how: Any) -> None:
        counted[turn] += 1
        asyncio.get_running_loop().call_soon(tick)
        sent(self, *said, **how)

    def pinging(self: Protocol, data: Any) -> None:
        nonlocal pings
        pings += 1
        pinged(self, data)

    burst = 4000 * event
    script = [SSE_HEAD, chunk(OPENING), chunk(burst), chunk(CLOSING), LAST_CHUNK]
    async with proxied(script, HELLO) as proxy, connected(proxy) as client:
        monkeypatch.setattr(Protocol, "send_text", sending)
        monkeypatch.setattr(Protocol, "send_ping", pinging)
        assert await asyncio.wait_for(with_burst(client, 4000), PATIENCE_S) == arrive
        assert (await asyncio.wait_for(client.ask(input="hi"), PATIENCE_S)).text == "Hello."
    assert max(counted.values()) <= 130
    assert pings <= 20


WHOLE_FRAMES = st.lists(
    st.tuples(
        st.sampled_from([Opcode.TEXT, Opcode.CONT, Opcode.PING]),
        st.sampled_from([0, 1, 2, 125, 126, 127, 65_535, 65_536]),
        st.booleans(),
    ),
    max_size=12,
)


@given(WHOLE_FRAMES, st.lists(st.integers(1, 70_000), max_size=40), st.integers(1, 4), st.booleans())
def test_parts_are_the_bytes_in_whole_frames(
    frames: list[tuple[Opcode, int, bool]], cuts: list[int], most: int, by_bytes: bool
) -> None:
    """However the bytes come, the parts are the bytes, and each begins at most so many frames."""
    encoded = [
        bytes(
            Frame(opcode, bytes(min(size, 125) if opcode is Opcode.PING else size), True).serialize(mask=mask)
        )
        for opcode, size, mask in frames
    ]
    sent = b"".join(encoded)
    begins = set()
    at = 0
    for one in encoded:
        begins.add(at)
        at += len(one)
    cutter, given_out, at = FrameCutter(), b"", 0
    for cut in [*([1] * 20 if by_bytes else ()), *cuts, len(sent) + 1]:
        cutter.take(sent[at : at + cut])
        at += cut
        while part := cutter.next(most):
            end = len(given_out) + len(part)
            assert sum(len(given_out) <= begin < end for begin in begins) <= most
            given_out += part
    assert given_out == sent
    assert not cutter
