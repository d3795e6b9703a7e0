"""Response heads that are read with a template give exactly what the parser gives."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from taped_line import Taped

from proxy.base.errors import UpstreamError
from proxy.http.rules import HeaderRules
from proxy.upstreams.http1 import response_heads
from proxy.upstreams.http1.exchange import ConnectionLost, Exchange
from proxy.upstreams.http1.response_heads import ResponseHeads, _template
from proxy.upstreams.http1.response_states import COMPLETE

SECRET = b"sk-secret-1"
RULES = HeaderRules("main", returned=["x-new-*", "x-a", "x-b"])

REAL = (
    b"HTTP/1.1 200 OK\r\nDate: Tue, 07 May 2026 10:00:00 GMT\r\nContent-Type: text/event-stream\r\n"
    b"Connection: keep-alive\r\nx-ratelimit-reset-tokens: 0s\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\n"
    b'alt-svc: h3=":443"; ma=86400\r\nX-Request-ID: req_1\r\n'
)


def knowing(head: bytes, *secrets: bytes) -> ResponseHeads:
    """ResponseHeads that has seen the names of this head before, and so has a template for it."""
    heads = ResponseHeads(RULES, secrets)
    names = [line.partition(b":")[0] for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]]
    for _ in range(2):
        heads.clean(names, [b"1"] * len(names))
    return heads


async def outcome(heads: ResponseHeads, reads: list[bytes], *, bodiless: bool, by_peer: bool) -> object:
    """All that can be seen of a response from outside."""
    line = Taped()
    loop = asyncio.get_running_loop()
    given_ = Exchange("main", line, heads, loop, first_byte_timeout_s=1, idle_timeout_s=2, bodiless=bodiless)
    body, pieces = b"", []
    for read in reads:
        if line.said and line.said[-1] != "pause":
            break  # The connection is gone, or serves another exchange.
        given_.feed(read)
        pieces.append(b"".join(given_._waiting))
    said = [*line.said]
    counted = 0 if given_._state is COMPLETE else given_._framing_bytes
    given_.lost(by_peer=by_peer)
    try:
        await given_.head
        while piece := await given_.next_piece():
            body += piece
    except UpstreamError as exc:
        received = exc.received if isinstance(exc, ConnectionLost) else True
        return given_.status, [*given_.headers], body, pieces, said, type(exc), str(exc), received
    return given_.status, [*given_.headers], body, pieces, said, given_.heard, counted


def both(reads: list[bytes], *, bodiless: bool = False, by_peer: bool = True) -> tuple[object, object]:
    """The outcome if the names of the head came before, and the outcome if they did not."""

    async def run() -> tuple[object, object]:
        known = knowing(b"".join(reads), SECRET)
        return (
            await outcome(known, reads, bodiless=bodiless, by_peer=by_peer),
            await outcome(ResponseHeads(RULES, (SECRET,)), reads, bodiless=bodiless, by_peer=by_peer),
        )

    return asyncio.run(run())


ODD_STATUS_LINES = [
    b"HTTP/1.1 404 Not Found", b"HTTP/1.1 200 ", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 None",
    b"HTTP/1.1 304 Not Modified", b"HTTP/1.1 103 Hints", b"HTTP/1.1 101 Other", b"HTTP/1.1 600 X",
    b"HTTP/1.1 2000 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 200 \xe4", b"HTTP/1.1 200 a\tb",
    b"HTTP/2.0 200 OK", b"http/1.1 200 OK", b"HTTP/1.1 20x OK", b"\r\nHTTP/1.1 200 OK",
    b"HTTP/1.1 205 Reset", b"HTTP/1.1 200 a\x00",
]  # fmt: skip
PLAIN_LINES = [
    b"A: b", b"X-Request-ID: req_1", b"Set-Cookie: a=b", b"Date: Tue, 07 May 2026 10:00:00 GMT",
    b"Content-Type: text/event-stream; charset=utf-8", b"Connection: keep-alive", b"Keep-Alive: timeout=5",
    b"Server: %", b"A: [x](y)\\1$^", b"a.b*c+d: e", b"Trailer: T", b"Content-Encoding: gzip",
]  # fmt: skip
ODD_LINES = [
    b"Connection: close", b"Connection: Keep-Alive", b"Connection: KEEP-ALIVE", b"Connection: x, close",
    b"Connection: keep-alive, A", b"Connection: upgrade", b"Upgrade: h2c", b"Proxy-Connection: close",
    b"A:b", b"A:  b", b"A: b ", b"A: ", b"A:", b"A : b", b" folded", b"\tfolded", b"A: b\tc", b"A: \tb",
    b"A: \xe4", b"A: b\x00c", b"A: b\rc", b"A: b\nB: c", b"A: b\r", b": b", b"A", b"A: \x7f", b"A B: c",
    b"A\xe4: b", b"X-Key: sk-secret-1", b"Connection: \xcfeep-alive",
]  # fmt: skip
FRAMING_LINES = [
    b"Content-Length: 5", b"Transfer-Encoding: chunked",
]  # fmt: skip
ODD_FRAMING_LINES = [
    b"Content-Length: 0", b"content-length: 05", b"Content-Length: +5", b"Content-Length: -5",
    b"Content-Length: 5_0", b"Content-Length: 5 ", b"Content-Length:  5", b"Content-Length: 5, 5",
    b"Content-Length: 0x5", b"Content-Length: 99999999999999999999", b"Content-Length: ",
    b"Content-Length: \xb2", b"Content-Length: 5;", b"TRANSFER-ENCODING: Chunked",
    b"Transfer-Encoding: CHUNKED", b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding:  chunked", b"Transfer-Encoding: chunked ", b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding : chunked", b"Content-Length : 5", b"Content-Length: 999999999999999",
]  # fmt: skip
PARTS = [
    b"5\r\nhello\r\n", b"A\r\n0123456789\r\n", b"0a\r\n0123456789\r\n", b"0\r\n\r\n", b"hello", b"hell",
    b"0_5\r\nhello\r\n", b" 5\r\nhello\r\n", b"+5\r\nhello\r\n", b"0x5\r\nhello\r\n", b"5 \r\nhello\r\n",
    b"5;x=1\r\nhello\r\n", b"5\nhello\n", b"5\r\nhello", b"0\r\nT: 1\r\n\r\n", b"ffffffffffffffffff\r\n",
    b"-1\r\n", b"\r\n", b"\n", b"\x00", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"evil",
]  # fmt: skip


def mostly(common: list[bytes], odd: list[bytes]) -> st.SearchStrategy[bytes]:
    """One of the common ones three times out of four."""
    usual = st.sampled_from(common)
    return st.one_of(usual, usual, usual, st.sampled_from(odd))


def heads() -> st.SearchStrategy[bytes]:
    """Response heads, a good part of them plain."""
    framing = st.lists(mostly(FRAMING_LINES, ODD_FRAMING_LINES), min_size=1, max_size=1)
    frames = st.one_of(framing, framing, framing, st.lists(st.sampled_from(FRAMING_LINES), max_size=2))
    lines = st.builds(
        lambda framing, more: framing + more, frames, st.lists(mostly(PLAIN_LINES * 4, ODD_LINES), max_size=4)
    ).flatmap(st.permutations)
    status_line = mostly([b"HTTP/1.1 200 OK"], ODD_STATUS_LINES)
    return st.builds(lambda first, rest: b"\r\n".join([first, *rest, b"", b""]), status_line, lines)


BODIES = st.one_of(
    st.sampled_from([b"hello", b"5\r\nhello\r\n0\r\n\r\n"]),
    st.lists(st.sampled_from(PARTS), max_size=5).map(b"".join),
)


@given(
    head=heads(),
    body=BODIES,
    cuts=st.sets(st.integers(-5, 40), max_size=4),
    bodiless=st.sampled_from([False] * 9 + [True]),
    by_peer=st.booleans(),
)
def test_a_known_head_changes_nothing(
    head: bytes, body: bytes, cuts: set[int], bodiless: bool, by_peer: bool
) -> None:
    """Rule W6: in whatever reads a response comes, a template gives the same outcome as the parser alone."""
    raw = head + body
    edges = [0, *sorted(len(head) + cut for cut in cuts if len(head) + cut < len(raw)), len(raw)]
    reads = [raw[start:end] for start, end in pairwise(edges)]
    event(f"plain {knowing(raw, SECRET).plain(reads[0]) is not None}")
    fast, slow = both(reads, bodiless=bodiless, by_peer=by_peer)
    assert fast == slow


def headers_of(heads: ResponseHeads, head: bytes) -> list[tuple[str, str]] | None:
    """The headers of a plain head; ``None`` if the parser has to read it."""
    found = heads.plain(head)
    return None if found is None else [*found.headers]


def test_a_head_like_the_one_before_needs_no_parser() -> None:
    """A head with known names is read without the parser; headers that are not listed are left out."""
    for framing, length in ((b"Content-Length: 2\r\n\r\n", 2), (b"Transfer-Encoding: chunked\r\n\r\n", None)):
        found = knowing(REAL + framing).plain(REAL + framing + b"\xff\xe4")
        assert found is not None
        assert (found.status, found.length, found.size) == (200, length, len(REAL + framing))
        assert [*found.headers] == [
            ("Content-Type", "text/event-stream"),
            ("x-ratelimit-reset-tokens", "0s"),
            ("X-Request-ID", "req_1"),
            *([("Content-Length", "2")] if length else []),
        ]


def test_a_secret_in_a_plain_head_is_taken_out() -> None:
    """A head with a secret in any name or value is not read with a template."""
    for line in (b"A: sk-secret-1", b"Set-Cookie: sk-secret-1", b"sk-secret-1: A"):
        head = b"HTTP/1.1 200 OK\r\n" + line + b"\r\nContent-Length: 0\r\n\r\n"
        assert headers_of(knowing(head), head) is not None
        assert headers_of(knowing(head, SECRET), head) is None


def test_a_value_that_holds_more_than_plain_text_is_the_parser_s() -> None:
    """A value with control characters or bytes beyond ASCII is left to the parser."""
    for byte in range(256):
        value = b"a%cb" % byte
        head = b"HTTP/1.1 200 OK\r\nX-A: %b\r\nContent-Length: 0\r\n\r\n" % value
        kept = headers_of(knowing(head), head)
        assert kept == ([("X-A", value.decode()), ("Content-Length", "0")] if 32 <= byte < 127 else None)


def test_a_head_that_goes_on_is_not_plain() -> None:
    """A head that is incomplete or too long is not read with a template."""
    head = REAL + b"Content-Length: 2\r\n\r\n"
    heads = knowing(head)
    assert all(heads.plain(head[:cut]) is None for cut in range(len(head)))
    assert heads.plain(head) is not None
    assert heads.plain(head.replace(b"req_1", b"r" * 8192)) is None


def test_few_templates_are_kept() -> None:
    """An upstream with ever new names fills no memory, and names that came once make no template."""
    heads = ResponseHeads(RULES, ())
    for number in range(1000):
        names = [b"Content-Length", b"X-%d" % number]
        for _ in range(2 if number % 2 else 1):
            heads.clean(names, [b"1", b"2"])
        assert len(heads._templates) == min((number + 1) // 2, 4)
    assert all(int(names[1][2:]) % 2 and int(names[1][2:]) > 800 for names in heads._templates)


def test_ever_new_names_make_few_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first templates at most one in 64 heads makes a new one, since a template is expensive."""
    made: list[object] = []

    def noted(names: Any, uses: Any) -> Any:
        made.append(names)
        return _template(names, uses)

    monkeypatch.setattr(response_heads, "_template", noted)
    heads = ResponseHeads(RULES, ())
    for number in range(500):
        for _ in range(2):
            heads.clean([b"Content-Length", b"X-New-%d" % number], [b"1", b"2"])
    assert len(made) <= 4 + 1000 // 64


def test_names_that_no_plain_head_has_make_no_template() -> None:
    """Unclear framing, some connection headers, and odd or too many names make no template."""
    for names in (
        [b"A"],
        [b"Content-Length", b"content-length"],
        [b"Content-Length", b"Transfer-Encoding"],
        [b"Content-Length", b"Upgrade"],
        [b"Content-Length", b"Proxy-Connection"],
        [b"Content-Length", b"Connection", b"connection"],
        [b"Content-Length", b"A B"],
        [b"Content-Length", b"\xe4"],
        [b"Content-Length", b""],
        [b"Content-Length", *[b"A"] * 64],
        [b"Content-Length", b"A" * 1011],
    ):
        heads = ResponseHeads(RULES, ())
        for _ in range(3):
            heads.clean(names, [b"1"] * len(names))
        assert heads._templates == {}
