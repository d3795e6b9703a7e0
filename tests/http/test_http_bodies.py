"""How response bodies are decoded and secrets removed from them, alone and over a connection."""

import asyncio
import gzip
import json
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_upstream import HANG, KEEP, LAST_CHUNK, RawUpstream, Step, chunk, event, head, whole
from waiting import LATE_S, PATIENCE_S

from proxy.base.errors import UpstreamBroken
from proxy.http.bodies import Inflater, Scrubber, shapes_of_secrets
from proxy.upstreams.base import UpstreamRequest
from proxy.upstreams.http1.upstream import Http1Upstream
from proxy.upstreams.origin import long_secrets

KEY = "sk-server/0123456789abcdef"
ASKED = b'{"model":"gpt-4o-mini","messages":[{"role":"user","content":"hi"}],"stream":true}'
POST = UpstreamRequest("POST", "/chat/completions", body=ASKED, expect_stream=True)
EVENTS = b"".join(event(f'{{"n":{n},"text":"\u00e9"}}') for n in range(200))


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """The data in pieces of these sizes, repeated as often as needed."""
    pieces: list[bytes] = []
    while data:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def raw_deflate(data: bytes) -> bytes:
    """Deflate without zlib's header."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


CODED = {
    "gzip": gzip.compress(EVENTS),
    "x-gzip": gzip.compress(EVENTS),
    "deflate": zlib.compress(EVENTS),
    "bare deflate": raw_deflate(EVENTS),
    "two members": gzip.compress(EVENTS[:1000]) + gzip.compress(EVENTS[1000:]),
}


@pytest.mark.parametrize("case", CODED)
@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_decoding_does_not_depend_on_the_cuts(case: str, sizes: list[int]) -> None:
    """Rule W6: the decoded body is the same however the compressed bytes were cut."""
    inflater = Inflater("gzip" if case == "two members" else case.split()[-1])
    got = b"".join(p for piece in cut(CODED[case], sizes) for p in inflater.feed(piece))
    inflater.finish()
    assert got == EVENTS


def test_nothing_that_could_be_decoded_waits_for_more() -> None:
    """After each read the inflater returns everything that the bytes so far can be decoded to."""
    packed = gzip.compress(b"a" * 300_000)
    for size in range(len(packed)):
        given_out = sum(len(piece) for piece in Inflater("gzip").feed(packed[:size]))
        assert given_out == len(zlib.decompressobj(31).decompress(packed[:size]))


def test_a_body_without_a_byte_is_complete_and_half_a_body_is_not() -> None:
    """An empty coded body is complete; a body that is cut off raises UpstreamBroken."""
    Inflater("gzip").finish()
    inflater = Inflater("gzip")
    assert b"".join(inflater.feed(CODED["gzip"][:-9]))
    with pytest.raises(UpstreamBroken, match="incomplete"):
        inflater.finish()


def test_what_is_no_such_coding_is_refused() -> None:
    """Plain text that is marked as gzip raises UpstreamBroken."""
    with pytest.raises(UpstreamBroken, match="malformed"):
        list(Inflater("gzip").feed(b"data: {}\n\n"))


def test_well_packed_text_passes_and_a_bomb_does_not() -> None:
    """The limit on growth lets a repetitive stream of 40 MB pass, and stops a decompression bomb early."""
    chunks = b"".join(b'data: {"id":"x","n":%d}\n\n' % n for n in range(1_500_000))
    packer = zlib.compressobj(wbits=31)
    honest = Inflater("gzip")
    size = 0
    for piece in [packer.compress(chunks), packer.flush()]:
        size += sum(len(p) for p in honest.feed(piece))
    honest.finish()
    assert size == len(chunks)

    bomb = gzip.compress(b"\0" * (64 << 20))
    sizes: list[int] = []
    with pytest.raises(UpstreamBroken, match="too large once"):
        sizes.extend(len(piece) for piece in Inflater("gzip").feed(bomb))
    assert max(sizes, default=0) <= 64 * 1024
    assert sum(sizes) < 20 << 20


@given(
    words=st.lists(
        st.sampled_from(["a", KEY, KEY[:9], KEY[9:], "sk-", KEY.replace("/", "\\/")]), max_size=12
    ),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
def test_no_secret_survives_any_cut(words: list[str], sizes: list[int]) -> None:
    """Rule R3: a secret is replaced wherever the pieces were cut, and nothing else changes."""
    text = "".join(words)
    shapes = shapes_of_secrets([KEY, "abc"])
    scrubber = Scrubber(shapes)
    got = b"".join([scrubber.feed(piece) for piece in cut(text.encode(), sizes)]) + scrubber.finish()
    assert KEY.encode() not in got
    expected = text.replace(KEY, "[redacted]").replace(KEY.replace("/", "\\/"), "[redacted]")
    assert got == expected.encode()


# ---------------------------------------------------------------- over a connection


async def body_of(script: list[Step], key: str = KEY) -> tuple[dict[str, str], bytes]:
    """Lower-cased headers and body of one exchange."""
    async with RawUpstream(script) as raw:
        upstream = Http1Upstream("main", raw.url, key, idle_timeout_s=LATE_S)
        try:
            response = await upstream.open(POST)
            body = await response.read(64 << 20)
            return {name.lower(): value for name, value in response.headers}, body
        finally:
            await upstream.aclose()


@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZIP"])
async def test_an_event_stream_that_comes_compressed_is_decoded(coding: str) -> None:
    """A compressed event stream is decoded, without Content-Encoding and Content-Length."""
    packed = CODED[coding.lower()]
    headers, body = await body_of(
        whole(packed, f"Content-Encoding: {coding}", content_type="text/event-stream; charset=utf-8")
    )
    assert body == EVENTS
    assert "content-encoding" not in headers
    assert "content-length" not in headers


async def test_each_flushed_event_is_decoded_at_once() -> None:
    """If the upstream flushes its compressed stream after an event, the reader gets the event at once."""
    packer = zlib.compressobj(wbits=31)
    first = packer.compress(event("1")) + packer.flush(zlib.Z_SYNC_FLUSH)
    opening = head("Content-Type: text/event-stream", "Content-Encoding: gzip", "Transfer-Encoding: chunked")
    async with RawUpstream([opening, chunk(first), HANG]) as raw:
        upstream = Http1Upstream("main", raw.url, KEY)
        response = await upstream.open(POST)
        async with asyncio.timeout(PATIENCE_S):
            assert await anext(response.chunks()) == event("1")
        await response.aclose()
        await upstream.aclose()


@pytest.mark.parametrize("coding", ["br", "gzip, br", "made-up"])
async def test_an_unknown_coding_is_relayed_as_it_is(coding: str) -> None:
    """A stream in a coding that the proxy cannot decode keeps its bytes and its Content-Encoding."""
    headers, body = await body_of(
        whole(b"\x1b\x02", f"Content-Encoding: {coding}", content_type="text/event-stream")
    )
    assert body == b"\x1b\x02"
    assert headers["content-encoding"] == coding


async def test_a_bomb_ends_early_and_costs_no_memory() -> None:
    """A body of 400 kB that decodes to 400 MB is refused, takes little memory, and blocks no other task."""
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join([packer.compress(b"\0" * (1 << 20)) for _ in range(400)]) + packer.flush()
    opening = head(
        "Content-Type: text/event-stream", "Content-Encoding: gzip", f"Content-Length: {len(bomb)}"
    )
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async with RawUpstream([opening, bomb, HANG]) as raw:
        upstream = Http1Upstream("main", raw.url, KEY)
        response = await upstream.open(POST)
        ticking = asyncio.create_task(tick())
        tracemalloc.start()
        size = 0

        async def drink() -> None:
            nonlocal size
            async for piece in response.chunks():
                size += len(piece)

        try:
            with pytest.raises(UpstreamBroken):
                await drink()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            ticking.cancel()
        await raw.all_closed()
        await upstream.aclose()
    assert 8 << 20 <= size < 200 << 20
    assert peak < 4 << 20
    assert ticks > 100


ECHO = b'{"error":{"message":"bad key ' + KEY.encode() + b', bye"}}'
CLEAN = b'{"error":{"message":"bad key [redacted], bye"}}'


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
async def test_a_key_echoed_in_an_error_never_comes_back(size: int) -> None:
    """Rule R3: the key is removed from a 401, even across pieces, and Content-Length is dropped."""
    opening = head("Content-Type: application/json", "Transfer-Encoding: chunked", status="401 Unauthorized")
    pieces: list[Step] = []
    for piece in cut(ECHO, [size]):
        pieces += [chunk(piece), 0.0]
    _, body = await body_of([opening, *pieces, LAST_CHUNK, KEEP])
    assert body == CLEAN
    headers, body = await body_of(whole(ECHO, status="401 Unauthorized"))
    assert body == CLEAN
    assert "content-length" not in headers


async def test_a_key_in_a_compressed_error_is_found() -> None:
    """Rule R3: a compressed error is decoded to remove the key, whichever header line names its coding."""
    for before in ((), ("Content-Encoding: identity",), ("Content-Encoding:",)):
        script = whole(gzip.compress(ECHO), *before, "Content-Encoding: gzip", status="401 U")
        headers, body = await body_of(script)
        assert body == CLEAN
        assert "content-encoding" not in headers


async def test_an_error_that_cannot_be_read_is_withheld() -> None:
    """Rule R3: an error in an unknown coding might hold the key, so the proxy withholds its body."""
    headers, body = await body_of(whole(b"\x1b" + KEY.encode(), "Content-Encoding: br", status="401 U"))
    assert KEY.encode() not in body
    assert b"withheld" in body
    assert headers["content-type"] == "application/json"
    assert "content-encoding" not in headers


async def test_without_a_key_an_error_is_relayed_byte_for_byte() -> None:
    """If there is no key to hide, an error keeps its bytes, length and coding."""
    headers, body = await body_of(whole(b"\x1b\x02", "Content-Encoding: br", status="500 E"), key="")
    assert body == b"\x1b\x02"
    assert (headers["content-encoding"], headers["content-length"]) == ("br", "2")


def test_long_secrets_are_blanked_out() -> None:
    """Each spelling of a long secret is replaced by as many asterisks; short secrets are not searched for."""
    assert long_secrets("ollama", {"x-team": "a" * 30}) is None
    key = 'sk-a/"' + 20 * "b"
    for header, beginning, sign in (
        ("sk-" + 20 * "c", b"sk-", b"k"),
        ("az" + 20 * "b", b"", b"b"),
        (20 * "Z", b"", b""),
    ):
        secrets = long_secrets(key, {"api-key": header})
        assert secrets is not None
        assert secrets.beginning == beginning
        assert secrets.sign == (sign[0] if sign else sign)
        for form in (key, json.dumps(key)[1:-1], json.dumps(key)[1:-1].replace("/", "\\/"), header):
            assert secrets.blanked(f"a {form} b".encode()) == f"a {len(form) * '*'} b".encode()
        assert secrets.blanked(b"sk- and az") == b"sk- and az"
