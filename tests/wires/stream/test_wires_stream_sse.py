"""Events out of bytes: every way of ending a line, every way of cutting, nothing lost."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.errors import FrameTooLarge
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
    """All events, the tail, and what closing makes of it."""
    parser = SSEParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events, parser.tail, parser.close()


def bounded(chunks: list[bytes], max_held: int = 64 * 1024) -> tuple[bytes, bool]:
    """What leaves over the whole stream, and whether an end mark was seen in it."""
    boundary = EventBoundary(max_held=max_held)
    out = b"".join(boundary.feed(chunk) for chunk in chunks)
    return out + boundary.close(), boundary.done_seen


@given(cut_streams())
@example((b"a\r\r\nb\n\n", [b"a\r\r", b"\nb\n\n"]))
@example((b"a\r\n\r\nb", [b"a\r\n\r", b"\nb"]))
def test_events_do_not_depend_on_cutting(cut: tuple[bytes, list[bytes]]) -> None:
    """Rule W6: for every way of cutting a stream its events, tail and end are the same.

    How blank lines and comments are parted may differ.
    """
    stream, chunks = cut
    (events, *end), (others, *other_end) = parsed(chunks), parsed([stream])
    assert [event for event in events if not event.is_comment] == [
        event for event in others if not event.is_comment
    ]
    assert end == other_end


@given(cut_streams())
def test_no_byte_is_lost_or_added(cut: tuple[bytes, list[bytes]]) -> None:
    """The raw bytes of all events and the tail are the input."""
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
    """Rule W1: what leaves is the input, a missing blank line, and one end mark where there was none."""
    stream, chunks = cut
    out, done = bounded(chunks)
    assert out.startswith(stream)
    events, _, last = parsed([stream])
    has_mark = any(event.is_end_mark for event in [*events, *([last] if last else [])])
    assert done is has_mark
    assert out[len(stream) :] == missing_blank_line(stream) + (b"" if has_mark else END_MARK)


@given(cut_streams())
def test_forwarding_does_not_depend_on_cutting(cut: tuple[bytes, list[bytes]]) -> None:
    """Rule W6: neither the bytes nor the knowledge of an end mark depend on cutting."""
    stream, chunks = cut
    assert bounded(chunks) == bounded([stream])


@given(cut_streams())
def test_what_leaves_ends_on_an_event(cut: tuple[bytes, list[bytes]]) -> None:
    """Rule W6: everything that leaves before the end is whole events."""
    _, chunks = cut
    boundary = EventBoundary()
    sent = b""
    for chunk in chunks:
        sent += boundary.feed(chunk)
        assert missing_blank_line(sent) == b""


@given(cut_streams(), st.integers(16, 40))
def test_what_need_not_be_fed_changes_nothing(cut: tuple[bytes, list[bytes]], max_held: int) -> None:
    """Rule W1: between events, a chunk of whole events without the end mark is given back as it is."""
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
    """An event that is larger than the bound leaves as it comes, whole and in order."""
    stream, chunks = cut
    boundary = EventBoundary(max_held=max_held)
    sent = b""
    for chunk in chunks:
        sent += boundary.feed(chunk)
        assert len(boundary._held) <= max_held
    assert (sent + boundary.close()).startswith(stream)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_line_ends(end: bytes) -> None:
    """LF, CR and CRLF end lines alike, byte by byte too."""
    stream = end.join([b"event: a", b"data: 1", b"", b"data: 2", b"", b""])
    want = [(b"a", b"1"), (b"", b"2")]
    for chunks in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        events, tail, last = parsed(chunks)
        found = events if last is None else [*events, last]
        assert [(event.event, event.data) for event in found] == want
        assert b"".join(event.raw for event in events) + tail == stream


def test_bare_cr_does_not_wait() -> None:
    """A blank line in bare CR ends its event at once: no LF will come."""
    assert [event.data for event in SSEParser().feed(b"data: 1\r\r")] == [b"1"]
    assert EventBoundary().feed(b"data: 1\r\r") == b"data: 1\r\r"


def test_half_a_crlf_waits_for_the_other() -> None:
    """A blank line that may still get its LF does not end its event, or the LF would start the next."""
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
    """One blank after the colon goes, data lines join, other fields and odd line ends mean nothing."""
    (event,) = SSEParser().feed(text + b"\n\n")
    assert (event.data, event.event, event.raw) == (data, name, text + b"\n\n")


def test_byte_order_mark() -> None:
    """One leading byte order mark is not part of the first field; later ones are text."""
    parser = SSEParser()
    first, second = parser.feed(b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n")
    assert (first.data, first.raw) == (b"1", b"\xef\xbb\xbfdata: 1\n\n")
    assert second.data == b""
    (joined,) = SSEParser(at_start=False).feed(b"\xef\xbb\xbfdata: 1\n\n")
    assert joined.data == b""


def test_byte_order_mark_before_an_end_mark() -> None:
    """The end mark is found behind a leading byte order mark, and not behind a later one."""
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
    """Only a data field that is ``[DONE]`` and nothing but blanks after it ends a stream."""
    raw = text + b"\n\n"
    (event,) = SSEParser().feed(raw)
    assert event.is_end_mark is is_mark
    assert bounded([raw]) == (raw + (b"" if is_mark else END_MARK), is_mark)
    assert bounded([raw[i : i + 1] for i in range(len(raw))])[1] is is_mark


def test_two_end_marks_pass() -> None:
    """Rule W1: an upstream that ends twice does so to the client too."""
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
    """An event without its blank line gets just what it lacks, and its end mark counts."""
    assert missing_blank_line(tail) == added
    out, done = bounded([tail])
    assert out == tail + added + (b"" if tail else END_MARK)
    assert done is bool(tail)


def test_the_last_event_is_not_lost() -> None:
    """An event at the end of a stream counts without its blank line."""
    parser = SSEParser()
    assert parser.feed(b"data: 1\n\ndata: 2") == [SSEEvent(b"data: 1\n\n", b"1")]
    assert parser.tail == b"data: 2"
    assert parser.close() == SSEEvent(b"data: 2\n\n", b"2")
    assert parser.tail == b""
    assert parser.close() is None


def test_a_parser_goes_on_after_closing() -> None:
    """Closing leaves nothing behind that a later piece could be mixed with."""
    parser = SSEParser()
    parser.feed(b"data: 1234567")
    parser.close()
    assert [event.data for event in parser.feed(b"data: 2\n\n")] == [b"2"]


def test_comments_are_known() -> None:
    """Only an event of nothing but comment lines is one that any client skips."""
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
    """An event that never ends is an error when it passes the bound, in many pieces too."""
    parser = SSEParser(max_event_bytes=100)
    parser.feed(b"data: " + b"x" * 94)
    with pytest.raises(FrameTooLarge, match="100 bytes"):
        parser.feed(b"x")


def test_whole_events_may_come_in_one_large_piece() -> None:
    """The bound is for what waits, not for how much comes at once."""
    parser = SSEParser(max_event_bytes=20)
    assert len(parser.feed(b"data: 12345678\n\n" * 50)) == 50
    assert parser.tail == b""


def test_the_default_bound_takes_long_events() -> None:
    """Sixteen MiB in one event are read; one byte more is refused."""
    parser = SSEParser()
    assert parser.feed(b"x" * (16 * 1024 * 1024)) == []
    with pytest.raises(FrameTooLarge):
        parser.feed(b"x")


def test_a_long_event_is_let_through() -> None:
    """An event past 64 KiB leaves as it comes, and the stream is tidy again after it."""
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
    """The line end at which an event overflows may be half of its blank line."""
    boundary = EventBoundary(max_held=16)
    sent = boundary.feed(b"data: 12345678901234567890\r\n")
    assert boundary.overflowing is True
    assert sent == b"data: 1234567890123456789"
    assert boundary.feed(b"\r") == b"0"
    assert boundary.overflowing is True
    assert boundary.feed(b"\ndata: 2") == b"\r\n\r\n"
    assert boundary.overflowing is False


def test_a_long_event_that_is_cut_off() -> None:
    """A stream that ends inside an event that was let through gets its blank line and end mark."""
    boundary = EventBoundary(max_held=16)
    sent = boundary.feed(b"data: 12345678901234567890") + boundary.feed(b"1\n")
    assert sent + boundary.close() == b"data: 123456789012345678901\n" + b"\n\n" + END_MARK


def test_the_rest_of_a_long_event_is_no_end_mark() -> None:
    """Text inside an event that was let through does not end the stream, wherever it was cut."""
    boundary = EventBoundary(max_held=16)
    boundary.feed(b"data: 12345678901234567890")
    boundary.feed(b"data: [DONE]\n\n")
    assert boundary.done_seen is False
    assert boundary.feed(b"x: 12345678901234567890") != b""
    boundary.feed(b"\n\ndata: [DONE]\n\n")
    assert boundary.done_seen is True


def test_an_end_mark_counts_when_it_is_whole() -> None:
    """The end mark is seen with its blank line, in whatever pieces it comes."""
    boundary = EventBoundary()
    boundary.feed(b"data: [DO")
    assert (boundary.feed(b"NE]\n"), boundary.done_seen) == (b"", False)
    assert (boundary.feed(b"\n"), boundary.done_seen) == (END_MARK, True)
    assert boundary.close() == b""


def test_an_end_mark_is_not_forgotten() -> None:
    """Once seen, the end mark stays seen, whatever text follows it."""
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
    """Everything up to the last blank line leaves at once, and no half of a line end."""
    assert EventBoundary().feed(piece) == sent


def test_many_events_and_a_small_rest_do_not_overflow() -> None:
    """The bound is for the event that is not whole yet."""
    boundary = EventBoundary(max_held=16)
    assert boundary.feed(b"data: 1\n\n" * 9 + b"data: 2") == b"data: 1\n\n" * 9
    assert boundary.overflowing is False


def test_an_empty_piece_changes_nothing() -> None:
    """Nothing in, nothing out."""
    boundary = EventBoundary()
    assert boundary.feed(b"") == b""
    assert boundary.feed(b"data: 1") == b""
    assert boundary.feed(b"") == b""
    assert boundary.close() == b"data: 1\n\n" + END_MARK


class Counted(bytes):
    """Bytes that count how far ``find`` has to look."""

    looked = 0

    def find(self, sub: bytes, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        """The same, and the count."""
        found = super().find(sub, start)
        Counted.looked += (len(self) if found < 0 else found) - start
        return found


def test_one_large_piece_is_read_once() -> None:
    """A piece of many events is looked through a fixed number of times, not once for each event."""
    Counted.looked = 0
    stream = Counted(b"data: 123\n\n" * 2000)
    assert len(SSEParser().feed(stream)) == 2000
    assert Counted.looked <= 3 * len(stream)


def test_a_long_event_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece of a long event is searched once: the search goes on where it stopped."""
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
    """Rule W6: an event is written whole, with LF, and with a name only where it has one."""
    assert encode_event(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert encode_event(b"{}", b"error") == b"event: error\ndata: {}\n\n"
    assert encode_event(json.dumps("\n").encode()) == b'data: "\\n"\n\n'


def test_comment() -> None:
    """A comment is one event of plain ASCII, padded to the length that was asked for."""
    assert comment("hi") == b": hi\n\n"
    assert comment("h\u00e9") == b": h?\n\n"
    padded = comment("keep-alive", pad_to=2048)
    assert len(padded) == 2048
    (event,) = SSEParser().feed(padded)
    assert event.is_comment
    assert padded.startswith(b": keep-alive")
