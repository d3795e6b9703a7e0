"""Server-sent events parsed from bytes: every line ending and every cut, and nothing lost."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.base.errors import FrameTooLarge
from proxy.wires.stream import sse
from proxy.wires.stream.sse import (
    DONE,
    DONE_SIGN,
    END_MARK,
    EventBoundary,
    SSEEvent,
    SSEParser,
    comment,
    encode_event,
    missing_blank_line,
)

PIECES = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\n\n",
    b"\r\r",
    b"\r\n\r\n",
    b"data: x",
    b"data:y",
    b"data",
    b" z",
    b": note",
    b"event: ping",
    b"id: 7",
    b"retry: 9",
    b"data: [DONE]",
    b"[DONE]",
    b"\xef\xbb\xbf",
    "data: \u2028\u65e5\U0001f600".encode(),
    b"\x00",
    b'data: {"a":"data: [DONE]"}',
]
streams = st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream, and the same stream in pieces."""
    stream = draw(streams)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return stream, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def parsed(chunks: list[bytes]) -> tuple[list[SSEEvent], bytes, SSEEvent | None]:
    """Return all events, the tail, and the result of closing."""
    parser = SSEParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events, parser.tail, parser.close()


def bounded(chunks: list[bytes], max_held: int = 64 * 1024) -> tuple[bytes, bool]:
    """Return what leaves over the whole stream, and whether an end mark was in it."""
    boundary = EventBoundary(max_held=max_held)
    out = b"".join(boundary.feed(chunk) for chunk in chunks)
    return out + boundary.close(), boundary.done_seen


@given(cut_streams())
@example((b"a\r\r\nb\n\n", [b"a\r\r", b"\nb\n\n"]))
@example((b"a\r\n\r\nb", [b"a\r\n\r", b"\nb"]))
def test_events_do_not_depend_on_cutting(cut: tuple[bytes, list[bytes]]) -> None:
    """Rule W6: events, tail and end are the same for every way of cutting a stream.

    Only blank lines and comments may be split differently.
    """
    stream, chunks = cut
    (events, *end), (others, *other_end) = parsed(chunks), parsed([stream])
    assert [event for event in events if not event.is_comment] == [
        event for event in others if not event.is_comment
    ]
    assert end == other_end


@given(cut_streams())
def test_no_byte_is_lost_or_added(cut: tuple[bytes, list[bytes]]) -> None:
    """The raw bytes of all events and the tail are exactly the input."""
    stream, chunks = cut
    events, tail, last = parsed(chunks)
    assert b"".join(event.raw for event in events) + tail == stream
    if last is None:
        assert tail == b""
    else:
        assert last.raw == tail + missing_blank_line(tail)


@given(cut_streams())
@example((b"data: [DONE]\n\rdata: x\n\n", [b"data: [DON", b"E]\n\rdata: x\n", b"\n"]))
@example((b"d\n\n\xef\xbb\xbfdata: [DONE]\n\n", [b"d\n", b"\n\xef\xbb\xbfdata: [DONE]\n\n"]))
def test_forwarding_keeps_the_input_as_prefix(cut: tuple[bytes, list[bytes]]) -> None:
    """Rule W1: the boundary adds only a missing blank line and a missing end mark to the input."""
    stream, chunks = cut
    out, done = bounded(chunks)
    assert out.startswith(stream)
    events, _, last = parsed([stream])
    has_mark = any(event.is_end_mark for event in [*events, *([last] if last else [])])
    assert done is has_mark
    assert out[len(stream) :] == missing_blank_line(stream) + (b"" if has_mark else END_MARK)


@given(cut_streams())
def test_forwarding_does_not_depend_on_cutting(cut: tuple[bytes, list[bytes]]) -> None:
    """Rule W6: neither the bytes nor the detection of an end mark depend on the cuts."""
    stream, chunks = cut
    assert bounded(chunks) == bounded([stream])


@given(cut_streams())
def test_what_leaves_ends_on_an_event(cut: tuple[bytes, list[bytes]]) -> None:
    """Rule W6: everything that leaves before the end consists of complete events."""
    _, chunks = cut
    boundary = EventBoundary()
    sent = b""
    for chunk in chunks:
        sent += boundary.feed(chunk)
        assert missing_blank_line(sent) == b""


@given(cut_streams(), st.integers(16, 40))
def test_what_need_not_be_fed_changes_nothing(cut: tuple[bytes, list[bytes]], max_held: int) -> None:
    """Rule W1: between events, a chunk of complete events without the end mark is returned unchanged."""
    _, chunks = cut
    boundary = EventBoundary(max_held=max_held)
    for chunk in [b"data: 1\n\n", *chunks]:
        skipped = boundary.at_boundary and chunk[-2:] == b"\n\n" and DONE not in chunk
        before = [getattr(boundary, name) for name in EventBoundary.__slots__]
        fed = boundary.feed(chunk)
        if skipped:
            assert fed == chunk
            assert before == [getattr(boundary, name) for name in EventBoundary.__slots__]
    assert DONE_SIGN in DONE


@given(cut_streams(), st.integers(16, 40))
def test_small_bounds_lose_nothing(cut: tuple[bytes, list[bytes]], max_held: int) -> None:
    """An event that is larger than the limit leaves in pieces, complete and in order."""
    stream, chunks = cut
    boundary = EventBoundary(max_held=max_held)
    sent = b""
    for chunk in chunks:
        sent += boundary.feed(chunk)
        assert len(boundary._held) <= max_held
    assert (sent + boundary.close()).startswith(stream)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_line_ends(end: bytes) -> None:
    """LF, CR and CRLF all end lines, also when the stream comes byte by byte."""
    stream = end.join([b"event: a", b"data: 1", b"", b"data: 2", b"", b""])
    want = [(b"a", b"1"), (b"", b"2")]
    for chunks in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        events, tail, last = parsed(chunks)
        found = events if last is None else [*events, last]
        assert [(event.event, event.data) for event in found] == want
        assert b"".join(event.raw for event in events) + tail == stream


def test_bare_cr_does_not_wait() -> None:
    """A blank line of bare CRs ends its event at once, without waiting for an LF."""
    assert [event.data for event in SSEParser().feed(b"data: 1\r\r")] == [b"1"]
    assert EventBoundary().feed(b"data: 1\r\r") == b"data: 1\r\r"


def test_half_a_crlf_waits_for_the_other() -> None:
    """After CRLF, a CR waits for its LF, which would otherwise begin the next event."""
    parser = SSEParser()
    assert parser.feed(b"data: 1\r\n\r") == []
    assert [event.raw for event in parser.feed(b"\n")] == [b"data: 1\r\n\r\n"]
    boundary = EventBoundary()
    assert boundary.feed(b"data: 1\r\n\r") == b""
    assert boundary.feed(b"\n") == b"data: 1\r\n\r\n"


@pytest.mark.parametrize(
    ("text", "data", "name"),
    [
        (b"data:1", b"1", b""),
        (b"data: 1", b"1", b""),
        (b"data:  1", b" 1", b""),
        (b"data", b"", b""),
        (b"data: 1\ndata: 2\ndata:\ndata", b"1\n2\n\n", b""),
        (b": note\ndata: 1", b"1", b""),
        (b"id: 4\nretry: 10\nfoo: bar\ndata: 1", b"1", b""),
        (b"event: ping\ndata: 1", b"1", b"ping"),
        (b"event:ping", b"", b"ping"),
        (b"event:  ping", b"", b" ping"),
        (b" data: 1", b"", b""),
        (b"data : 1", b"", b""),
        ("data: a\u2028b\u2029c\x85d".encode(), "a\u2028b\u2029c\x85d".encode(), b""),
        (b"data: a\x0bb\x0cc\x1cd", b"a\x0bb\x0cc\x1cd", b""),
        (b"data: a\x00b", b"a\x00b", b""),
        (b"data: a: b", b"a: b", b""),
    ],
)
def test_fields(text: bytes, data: bytes, name: bytes) -> None:
    """One space after the colon is dropped, data lines are joined, and unknown fields are ignored."""
    (event,) = SSEParser().feed(text + b"\n\n")
    assert (event.data, event.event, event.raw) == (data, name, text + b"\n\n")


def test_byte_order_mark() -> None:
    """Only a byte order mark at the start of the stream is skipped; later ones are text."""
    parser = SSEParser()
    first, second = parser.feed(b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n")
    assert (first.data, first.raw) == (b"1", b"\xef\xbb\xbfdata: 1\n\n")
    assert second.data == b""
    (joined,) = SSEParser(at_start=False).feed(b"\xef\xbb\xbfdata: 1\n\n")
    assert joined.data == b""


def test_byte_order_mark_before_an_end_mark() -> None:
    """The end mark is found after a leading byte order mark, but not after a later one."""
    assert bounded([b"\xef\xbb\xbfdata: [DONE]\n\n"]) == (b"\xef\xbb\xbfdata: [DONE]\n\n", True)
    assert bounded([b": x\n\n", b"\xef\xbb\xbfdata: [DONE]\n\n"])[1] is False


@pytest.mark.parametrize(
    ("text", "is_mark"),
    [
        (b"data: [DONE]", True),
        (b"data:[DONE]", True),
        (b"data: [DONE] ", True),
        (b"data: [DONE]\t ", True),
        (b"event: done\ndata: [DONE]", True),
        (b"data:  [DONE]", False),
        (b'data: {"content":"[DONE]"}', False),
        (b'data: {"content":"data: [DONE]"}', False),
        (b"data: [DONE] really", False),
        (b"data: [DONE]\ndata: x", False),
        (b": [DONE]", False),
        (b"data: x\ndata: [DONE]", False),
        (b"done: [DONE]", False),
    ],
)
def test_end_mark(text: bytes, is_mark: bool) -> None:
    """Only a data field with ``[DONE]``, and blanks at most, ends a stream."""
    raw = text + b"\n\n"
    (event,) = SSEParser().feed(raw)
    assert event.is_end_mark is is_mark
    assert bounded([raw]) == (raw + (b"" if is_mark else END_MARK), is_mark)
    assert bounded([raw[i : i + 1] for i in range(len(raw))])[1] is is_mark


def test_two_end_marks_pass() -> None:
    """Rule W1: if an upstream sends two end marks, the client gets both."""
    stream = b"data: 1\n\n" + END_MARK + END_MARK
    assert bounded([stream]) == (stream, True)


@pytest.mark.parametrize(
    ("tail", "added"),
    [
        (b"", b""),
        (b"data: [DONE]", b"\n\n"),
        (b"data: [DONE]\n", b"\n"),
        (b"data: [DONE]\r", b"\n\n"),
        (b"data: [DONE]\r\n", b"\n"),
        (b"data: [DONE]\n\n", b""),
        (b"data: [DONE]\r\r", b""),
        (b"data: [DONE]\r\n\r", b""),
        (b"data: [DONE]\n\r\n", b""),
        (b": x\n\ndata: [DONE]", b"\n\n"),
        (b": \n\ndata:[DONE]\n", b"\n"),
    ],
)
def test_missing_blank_line(tail: bytes, added: bytes) -> None:
    """An event without its blank line gets the missing part, and its end mark counts."""
    assert missing_blank_line(tail) == added
    out, done = bounded([tail])
    assert out == tail + added + (b"" if tail else END_MARK)
    assert done is bool(tail)


def test_the_last_event_is_not_lost() -> None:
    """The last event of a stream counts without its blank line."""
    parser = SSEParser()
    assert parser.feed(b"data: 1\n\ndata: 2") == [SSEEvent(b"data: 1\n\n", b"1")]
    assert parser.tail == b"data: 2"
    assert parser.close() == SSEEvent(b"data: 2\n\n", b"2")
    assert parser.tail == b""
    assert parser.close() is None


def test_a_parser_goes_on_after_closing() -> None:
    """After closing, the parser has no data left that could mix with later data."""
    parser = SSEParser()
    parser.feed(b"data: 1234567")
    parser.close()
    assert [event.data for event in parser.feed(b"data: 2\n\n")] == [b"2"]


def test_comments_are_known() -> None:
    """Only an event of nothing but comment lines and blank lines is a comment."""
    known = {
        b": x\n\n": True,
        b":\r\n: y\r\n\r\n": True,
        b"\n\n": True,
        b": x\ndata: 1\n\n": False,
        b"event: ping\n\n": False,
    }
    for raw, is_comment in known.items():
        parser = SSEParser()
        events = parser.feed(raw)
        event = events[0] if events else parser.close()
        assert len(events) <= 1
        assert event is not None
        assert event.is_comment is is_comment


def test_an_event_has_a_bound() -> None:
    """An event larger than the limit is an error, also if it comes in many pieces."""
    parser = SSEParser(max_event_bytes=100)
    parser.feed(b"data: " + b"x" * 94)
    with pytest.raises(FrameTooLarge, match="100 bytes"):
        parser.feed(b"x")


def test_whole_events_may_come_in_one_large_piece() -> None:
    """The limit counts only the incomplete event, not everything that comes at once."""
    parser = SSEParser(max_event_bytes=20)
    assert len(parser.feed(b"data: 12345678\n\n" * 50)) == 50
    assert parser.tail == b""


def test_the_default_bound_takes_long_events() -> None:
    """An event may have 16 MiB; one more byte is an error."""
    parser = SSEParser()
    assert parser.feed(b"x" * (16 * 1024 * 1024)) == []
    with pytest.raises(FrameTooLarge):
        parser.feed(b"x")


def test_a_long_event_is_let_through() -> None:
    """An event larger than 64 KiB leaves in pieces, and later events leave complete again."""
    boundary = EventBoundary()
    head = b"data: " + b"x" * (64 * 1024 - 6)
    assert (boundary.feed(head), boundary.overflowing) == (b"", False)
    assert (boundary.feed(b"y"), boundary.overflowing) == (head + b"y", True)
    assert boundary.feed(b"zz") == b"zz"
    assert (boundary.feed(b"z\n"), boundary.overflowing) == (b"", True)
    assert (boundary.feed(b"\ndata: 1"), boundary.overflowing) == (b"z\n\n", False)
    assert boundary.feed(b"\n\n") == b"data: 1\n\n"
    assert boundary.close() == END_MARK


def test_a_long_event_that_ends_in_a_line_end() -> None:
    """A line end at which an event exceeds the limit is held, as it may be half of a blank line."""
    boundary = EventBoundary(max_held=16)
    sent = boundary.feed(b"data: 12345678901234567890\r\n")
    assert boundary.overflowing is True
    assert sent == b"data: 1234567890123456789"
    assert boundary.feed(b"\r") == b"0"
    assert boundary.overflowing is True
    assert boundary.feed(b"\ndata: 2") == b"\r\n\r\n"
    assert boundary.overflowing is False


def test_a_long_event_that_is_cut_off() -> None:
    """A stream that ends inside an oversized event gets its blank line and end mark."""
    boundary = EventBoundary(max_held=16)
    sent = boundary.feed(b"data: 12345678901234567890") + boundary.feed(b"1\n")
    assert sent + boundary.close() == b"data: 123456789012345678901\n" + b"\n\n" + END_MARK


def test_the_rest_of_a_long_event_is_no_end_mark() -> None:
    """Text inside an oversized event is no end mark, wherever it is cut."""
    boundary = EventBoundary(max_held=16)
    boundary.feed(b"data: 12345678901234567890")
    boundary.feed(b"data: [DONE]\n\n")
    assert boundary.done_seen is False
    assert boundary.feed(b"x: 12345678901234567890") != b""
    boundary.feed(b"\n\ndata: [DONE]\n\n")
    assert boundary.done_seen is True


def test_an_end_mark_counts_when_it_is_whole() -> None:
    """The end mark counts when its blank line has come, in whatever pieces."""
    boundary = EventBoundary()
    boundary.feed(b"data: [DO")
    assert (boundary.feed(b"NE]\n"), boundary.done_seen) == (b"", False)
    assert (boundary.feed(b"\n"), boundary.done_seen) == (END_MARK, True)
    assert boundary.close() == b""


def test_an_end_mark_is_not_forgotten() -> None:
    """An end mark that was seen stays seen, whatever follows it."""
    boundary = EventBoundary()
    boundary.feed(END_MARK)
    boundary.feed(b'data: {"content":"[DONE]"}\n\n')
    assert boundary.done_seen is True


@pytest.mark.parametrize(
    ("piece", "sent"),
    [
        (b"\n\nx", b"\n\n"),
        (b"a\r\n\r\n\r", b"a\r\n\r\n"),
        (b"a\n\n\r", b"a\n\n"),
        (b"a\r\rb\n\nc", b"a\r\rb\n\n"),
        (b"a\n\nb\r\rc", b"a\n\nb\r\r"),
    ],
)
def test_all_that_is_whole_leaves(piece: bytes, sent: bytes) -> None:
    """Everything up to the last blank line leaves at once, but never half of a line end."""
    assert EventBoundary().feed(piece) == sent


def test_many_events_and_a_small_rest_do_not_overflow() -> None:
    """The limit counts only the event that is not complete yet."""
    boundary = EventBoundary(max_held=16)
    assert boundary.feed(b"data: 1\n\n" * 9 + b"data: 2") == b"data: 1\n\n" * 9
    assert boundary.overflowing is False


def test_an_empty_piece_changes_nothing() -> None:
    """An empty piece gives nothing and changes nothing."""
    boundary = EventBoundary()
    assert boundary.feed(b"") == b""
    assert boundary.feed(b"data: 1") == b""
    assert boundary.feed(b"") == b""
    assert boundary.close() == b"data: 1\n\n" + END_MARK


class Counted(bytes):
    """Bytes that count how far ``find`` has to look."""

    looked = 0

    def find(self, sub: bytes, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        """Find as usual, and count the bytes that were searched."""
        found = super().find(sub, start)
        Counted.looked += (len(self) if found < 0 else found) - start
        return found


def test_one_large_piece_is_read_once() -> None:
    """A piece with many events is searched a fixed number of times, not once for each event."""
    Counted.looked = 0
    stream = Counted(b"data: 123\n\n" * 2000)
    assert len(SSEParser().feed(stream)) == 2000
    assert Counted.looked <= 3 * len(stream)


def test_a_long_event_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search in a long event continues where it stopped, so it sees each piece once."""
    starts = []
    inner = sse._next_boundary

    def noted(data: bytes | bytearray, position: int, has_cr: bool) -> int:
        starts.append(len(data) - position)
        return inner(data, position, has_cr)

    monkeypatch.setattr(sse, "_next_boundary", noted)
    parser = SSEParser()
    for _ in range(1000):
        parser.feed(b"0123456789")
    assert max(starts) <= 13


def test_encoding() -> None:
    """Rule W6: an event is encoded completely, with LF, and with a name only if it has one."""
    assert encode_event(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert encode_event(b"{}", b"error") == b"event: error\ndata: {}\n\n"
    assert encode_event(json.dumps("\n").encode()) == b'data: "\\n"\n\n'


def test_comment() -> None:
    """A comment is one event of plain ASCII, padded to the requested length."""
    assert comment("hi") == b": hi\n\n"
    assert comment("h\u00e9") == b": h?\n\n"
    padded = comment("keep-alive", pad_to=2048)
    assert len(padded) == 2048
    (event,) = SSEParser().feed(padded)
    assert event.is_comment
    assert padded.startswith(b": keep-alive")
