"""C01 to C07: the client gets a stream's bytes, in whatever dialect, cuts or framing they come."""

import asyncio
import gzip
import zlib

import pytest
from faults_rig import SSE_HEAD, TIME, Allow, ask, before, cut, served_next
from raw_upstream import FIN, HALF, HANG, KEEP, LAST_CHUNK, Step, chunk, chunked, head, whole
from waiting import PATIENCE_S
from wire_kits import DONE, Kit


@pytest.mark.parametrize("seed", range(3))
async def test_random_cuts(kit: Kit, allow: Allow, seed: int) -> None:
    """C01: the client gets the same bytes, however the network cut them, from one upstream request."""
    data = kit.text("Grüße ", "🙂 ", "schön\r\n")
    pieces: list[Step] = []
    for piece in cut(data, seed):
        pieces += [chunk(piece), 0.0005]
    async with before([SSE_HEAD, *pieces, LAST_CHUNK, KEEP], allow=allow) as (proxy, upstream):
        answer = await ask(proxy, kit)
        assert answer.clean
        assert answer.body == data
        assert (answer.header("content-type") or "").startswith("text/event-stream")
        assert len(upstream.requests) == 1


async def test_a_reply_keeps_its_bytes(kit: Kit, allow: Allow) -> None:
    """C01: an answer that is not streamed keeps its bytes, even odd spacing and unknown fields."""
    body = kit.reply("Grüße").replace(b", ", b" ,  ").replace(b"{", b'{ "zz":1e2, ', 1)
    async with before(whole(body), allow=allow) as (proxy, upstream):
        answer = await ask(proxy, kit, stream=False)
        assert answer.body == body
        assert (answer.clean, len(upstream.requests)) == (True, 1)


ODD = [
    b"[]", b"null", b"7", b'"x"', b"", b"{", b"}", b"not json", b'{"choices":[null]}', b'{"choices":7}',
    b'{"type":7}', b'{"type":"response.output_item.added"}', b'{"type":"response.output_item.done","item":7}',
    b'{"type":"response.completed","response":null}', b'{"type":"response.function_call_arguments.delta"}',
    b'{"a":"\\ud800"}', b"\xff\xfe\x00", b"[" * 900 + b"]" * 900, b'{"sequence_number":-1}',
]  # fmt: skip
ODD_EVENTS = b"".join(b"data: " + data + b"\n\n" for data in ODD)


def _dialects(kit: Kit) -> dict[str, bytes]:
    data = kit.text("a", "b")
    opened, rest = data[: data.index(b"\n\n") + 2], data[data.index(b"\n\n") + 2 :]
    return {
        "crlf": data.replace(b"\n", b"\r\n"),
        "cr": data.replace(b"\n", b"\r"),
        "comments": b": hi\n\n" + opened + b": keep-alive\n\n:\n\n" + rest,
        "id and retry": b"id: 7\nretry: 10\n" + opened + b"id: 8\n" + rest,
        "no space": data.replace(b"data: ", b"data:").replace(b"event: ", b"event:"),
        "byte order mark": b"\xef\xbb\xbf" + data,
        "no utf-8 and nul": opened + b"data: \xff\xfe\x00\n\n" + rest,
        "two end marks": data + DONE,
        "after the end": data + b": bye\n\n",
        "odd json": opened + ODD_EVENTS + rest,
        "odd json first": ODD_EVENTS + data,
    }


DIALECTS = (
    "crlf", "cr", "comments", "id and retry", "no space", "byte order mark", "no utf-8 and nul",
    "two end marks", "after the end", "odd json", "odd json first",
)  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_dialects(kit: Kit, allow: Allow, dialect: str) -> None:
    """C02: odd line ends, comments, marks and invalid data reach the client unchanged."""
    data = _dialects(kit)[dialect]
    async with before(chunked(*cut(data, 1, 5)), allow=allow) as (proxy, upstream):
        answer = await ask(proxy, kit)
        assert answer.clean
        assert answer.body == data
        await served_next(proxy, upstream, kit)


@pytest.mark.parametrize(
    ("lacks", "given"), [(DONE, DONE), (DONE[-1:], b"\n"), (DONE[-2:], b"\n\n")], ids=["mark", "one", "two"]
)
async def test_a_missing_end(kit: Kit, allow: Allow, lacks: bytes, given: bytes) -> None:
    """C02: if the end mark or its line ends are missing, exactly these are added."""
    data = kit.text("a").removesuffix(lacks)
    async with before(chunked(data), allow=allow) as (proxy, _):
        answer = await ask(proxy, kit)
        assert answer.body == data + given


async def test_a_large_event(kit: Kit, allow: Allow) -> None:
    """C03: an event of 8 MB passes unchanged."""
    data = kit.begun("x" * (8 << 20)) + DONE
    async with before(chunked(*cut(data, 3, 60)), allow=allow) as (proxy, _):
        answer = await ask(proxy, kit)
        assert answer.body == data
        assert answer.clean


async def test_events_do_not_wait(kit: Kit, allow: Allow) -> None:
    """C04: each event reaches the client before the upstream sends the next one."""
    events = [event + b"\n\n" for event in kit.text("a", "b").split(b"\n\n")[:-1]]
    releases = [asyncio.Event() for _ in events]
    steps: list[Step] = []
    for event, release in zip(events, releases, strict=True):
        steps += [chunk(event), release]
    async with (
        asyncio.timeout(PATIENCE_S),
        before([SSE_HEAD, *steps, LAST_CHUNK, KEEP], allow=allow) as (proxy, _),
        proxy.sent(kit.ask(), path=kit.path) as conversation,
    ):
        answer = await conversation.head()
        pieces = conversation.pieces(answer)
        for event, release in zip(events, releases, strict=True):
            seen = b""
            while len(seen) < len(event):
                seen += await anext(pieces)
            assert seen == event
            release.set()
        assert [piece async for piece in pieces] == []
        assert answer.clean


async def test_one_byte_at_a_time(kit: Kit, allow: Allow) -> None:
    """C04: if the upstream sends single bytes, the client gets whole events with the same bytes."""
    data = kit.text("é")
    async with before(chunked(*[bytes([byte]) for byte in data]), allow=allow) as (proxy, _):
        answer = await ask(proxy, kit)
        assert answer.body == data
        assert all(piece.endswith(b"\n\n") for piece in answer.pieces)


@pytest.mark.parametrize("framing", ["close", "length", "hints", "trailers", "extensions", "half close"])
async def test_framings(kit: Kit, allow: Allow, framing: str) -> None:
    """C05: with each framing of HTTP, the body ends cleanly and has the same bytes."""
    data = kit.text("a", "b")
    kind = "Content-Type: text/event-stream"
    pieces = [chunk(piece) for piece in cut(data, 5, 4)]
    script: dict[str, list[Step]] = {
        "close": [head(kind, "Connection: close") + data, FIN],
        "length": [head(kind, f"Content-Length: {len(data)}") + data, KEEP],
        "hints": [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + SSE_HEAD, *pieces, LAST_CHUNK, KEEP],
        "trailers": [SSE_HEAD, *pieces, b"0\r\nX-Checksum: 1\r\n\r\n", KEEP],
        "extensions": [SSE_HEAD, b"%x;a=b\r\n%s\r\n" % (len(data), data), LAST_CHUNK, KEEP],
        "half close": [SSE_HEAD, *pieces, LAST_CHUNK, HALF],
    }
    async with before(script[framing], allow=allow) as (proxy, upstream):
        answer = await ask(proxy, kit)
        assert answer.clean
        assert answer.body == data
        assert "x-checksum" not in answer.names()
        await served_next(proxy, upstream, kit)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", ["429 Slow", "404 No", "500 Oops", "503 Busy"])
async def test_refusals_pass(kit: Kit, allow: Allow, status: str, stream: bool) -> None:
    """C06: a refusal passes with its status, body and Retry-After, from one request."""
    html = status.startswith("5")
    body = b"<html>oops</html>" if html else b'{"error": {"message":"no","code":"x"}}'
    kind = "text/html" if html else "application/json"
    async with before(whole(body, "Retry-After: 7", content_type=kind, status=status), allow=allow) as (
        proxy,
        upstream,
    ):
        answer = await ask(proxy, kit, stream=stream)
        assert answer.status == int(status[:3])
        assert (answer.body, answer.header("retry-after"), answer.header("content-type")) == (body, "7", kind)
        assert len(upstream.requests) == 1


async def test_an_error_inside_a_stream_passes(kit: Kit, allow: Allow) -> None:
    """C06: an upstream's own error event, under status 200, passes unchanged."""
    data = kit.begun("a") + kit.error_event("overloaded") + DONE
    async with before(chunked(data), allow=allow) as (proxy, upstream):
        answer = await ask(proxy, kit)
        assert answer.body == data
        assert answer.clean
        await served_next(proxy, upstream, kit)


@pytest.mark.parametrize("wish", [{}, {"Accept-Encoding": "gzip"}], ids=["silent", "asks for gzip"])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_compressed_stream(kit: Kit, allow: Allow, wish: dict[str, str], coding: str) -> None:
    """C07: the proxy asks for no compression; a compressed stream is decoded all the same."""
    data = kit.text("a", "b")
    packed = gzip.compress(data) if coding == "gzip" else zlib.compress(data)
    opening = head("Content-Type: text/event-stream", f"Content-Encoding: {coding}", "Connection: close")
    async with before([opening, *cut(packed, 7, 8), FIN], allow=allow) as (proxy, upstream):
        answer = await ask(proxy, kit, headers=wish)
        assert answer.body == data
        assert "content-encoding" not in answer.names()
        assert upstream.requests[0].header("accept-encoding") == "identity"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "br"])
async def test_a_compressed_call(kit: Kit, stream: bool, coding: str) -> None:
    """C07: a call in a compressed answer is found, or nothing of the answer is passed on."""
    call = ("call_1", TIME, '{"timezone":"UTC"}')
    data = kit.calling(call) if stream else kit.reply("", call)
    packed = zlib.compress(data) if coding == "deflate" else gzip.compress(data)
    kind = "text/event-stream" if stream else "application/json"
    script = whole(packed, f"Content-Encoding: {coding}", content_type=kind)
    async with before(script, kit.result(stream, "It is noon.")) as (proxy, upstream):
        answer = await ask(proxy, kit, stream=stream)
        if coding == "br":  # The proxy does not decode it.
            assert (answer.status, answer.error["code"]) == (502, "upstream_malformed")
            return
        assert kit.said(stream, answer.body, (TIME, "call_1")).text == "It is noon."
        assert answer.header("content-encoding") is None
        assert len(upstream.requests) == 2


async def test_a_bomb_ends(kit: Kit, allow: Allow) -> None:
    """C07: a body that expands without end is ended with an error, and the next request is served."""
    packer = zlib.compressobj(wbits=31)
    bomb = packer.compress(kit.begun("a"))
    bomb += b"".join(packer.compress(b" " * (1 << 20)) for _ in range(48)) + packer.flush()
    opening = head("Content-Type: text/event-stream", "Content-Encoding: gzip", "Connection: close")
    async with before([opening, bomb, HANG], allow=allow) as (proxy, upstream):
        answer = await ask(proxy, kit)
        if answer.clean:
            kit.check_broken(answer.body, kit.begun("a"))
        await upstream.all_closed()
        await served_next(proxy, upstream, kit)
