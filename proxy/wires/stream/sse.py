"""Splits streams of server-sent events, and keeps every byte.

There are two readers of one grammar. :class:`SSEParser` splits a stream into events for code that reads
them. :class:`EventBoundary` serves code that only forwards: it finds the last event boundary of each piece
and reads nothing else. Both accept LF, CR and CRLF, cut anywhere.

Grammar: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

import re

from msgspec import Struct

from proxy.base.errors import FrameTooLarge
from proxy.json.patterns import repeated
from proxy.wires.dialect import EventParser

CONTENT_TYPE = "text/event-stream"
DONE = b"[DONE]"
END_MARK = b"data: [DONE]\n\n"
DONE_SIGN = DONE[1]
"""A byte of :data:`DONE` that few events contain. Searching one byte takes a fifth of the time."""

_PLAIN_END = b"\n\n" + END_MARK
_BOM = b"\xef\xbb\xbf"
# Atomic groups: CR LF is one line end and must never be read as two.
_LINE_ENDS = re.compile(rb"[\r\n]+")
# CR CR ends an event at once, in every stream: an LF after it would begin the next one, harmlessly.
_BOUNDARY = re.compile(rb"\r\r|(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
# These match many events without content at once, so that a burst of them is one step. Unusual events are
# taken one by one.
_MOST_FILLER = 64 * 1024
_BLANK_RUN = re.compile(rb"[\r\n]++")
_COMMENT_LINE = rb"(?>:[^\r\n]*+\r?\n)"
_COMMENT_EVENT = _COMMENT_LINE + repeated(_COMMENT_LINE) + rb"\r?\n"
_COMMENTS = re.compile(_COMMENT_EVENT + repeated(_COMMENT_EVENT))
_ONLY_COMMENTS = re.compile(rb"(?::[^\r\n]*+)?" + repeated(rb"[\r\n]++(?::[^\r\n]*+)?"))
_FILLERS = (b"\n", b":", b"\r")
_BEGINNING = re.compile(rb"(?:data|event|id|retry)?[ \t]*:")
_BEGUN = re.compile(rb"d(?:a(?:ta?)?)?|e(?:v(?:e(?:nt?)?)?)?|id?|r(?:e(?:t(?:ry?)?)?)?")
_BEFORE = b" \t\r\n\xef\xbb\xbf"
_LAST_BOUNDARY = re.compile(rb"(?s).*((?>\r\n|\n|\r)(?>\r\n|\n|\r))")


class SSEEvent(Struct, frozen=True):
    """One event with the exact bytes that carried it, including its blank line.

    ``data`` is the joined ``data`` fields; empty for a comment or an event without data.
    """

    raw: bytes
    data: bytes = b""
    event: bytes = b""

    @property
    def is_comment(self) -> bool:
        """Whether it consists of comment lines only, so that any client may get it."""
        return is_comment(self.raw)

    @property
    def is_end_mark(self) -> bool:
        return self.data[:6] == DONE and self.data.strip() == DONE


def is_comment(raw: bytes) -> bool:
    """Return whether every line is blank or a comment."""
    return _ONLY_COMMENTS.fullmatch(raw) is not None


def begins_events(data: bytes) -> bool | None:
    """Return whether the first bytes of a body begin an event stream; ``None`` while unknown.

    Blanks decide nothing: some servers also send them before JSON, while they compute.
    """
    word = data.lstrip(_BEFORE)
    if _BEGINNING.match(word):
        return True
    if not word or _BEGUN.fullmatch(word.rstrip(b" \t")):
        return None
    return False


class SSEParser(EventParser[SSEEvent]):
    """Splits a byte stream into events.

    Consecutive blank lines and comments may come as one event without content.

    However the input is cut, ``b"".join(e.raw for e in events) + parser.tail`` is the input, and the events
    with content are the same. If the blank line of an event ends in a CR that is the last byte so far, the
    parser waits for the next byte if the stream uses CRLF. It does not wait if the stream uses bare CR,
    since no LF will come. ``at_start`` is false for a stream that is joined in its middle, where a byte
    order mark has no meaning.
    """

    def __init__(self, *, max_event_bytes: int = 16 * 1024 * 1024, at_start: bool = True) -> None:
        super().__init__(max_event_bytes)
        self._has_cr = False
        self._searched = 0
        self._at_start = at_start

    def take(self, chunk: bytes) -> None:
        if self.at < len(self.data):
            chunk = self.data[self.at :] + chunk
        self.data, self.at, self._end = chunk, 0, 0
        if pending := self._pending:
            pending += chunk
            self.data = b""
            self._has_cr = pending.find(b"\r", self._searched) >= 0
            end = _next_boundary(pending, self._searched, self._has_cr)
            if end < 0:
                self._keep()
                return
            self._end = end
            self.data = bytes(pending)
            pending.clear()
        self._has_cr = self.data.find(b"\r") >= 0

    def next(self, most_bytes: int | None = None) -> SSEEvent | None:
        start = self.at
        if self.data[start : start + 1] in _FILLERS and (end := self._filler_end(start)):
            self.at = end
            return SSEEvent(self.data[start:end])
        # The end of an event that came in many pieces is known since its last piece came.
        if self._end > start:
            end = self._end
        elif self._has_cr:
            end = _next_boundary(self.data, start, True)
        else:
            end = self.data.find(b"\n\n", start) + 2
        if end < 2:  # No boundary was found.
            self._pending += self.data[start:]
            self.data, self.at = b"", 0
            self._keep()
            return None
        self.too_large = most_bytes is not None and end - start > most_bytes
        if self.too_large:
            self._end = end
            return None
        self.at = end
        raw = self.data[start:end]
        return self._event(raw) if self._at_start else _decode(raw, raw)

    def skip(self) -> bytes:
        self._at_start = False
        return super().skip()

    def _filler_end(self, start: int) -> int:
        """Return the end of the blank lines or comments that begin here; 0 if it is not certain."""
        if self._at_start:
            return 0
        data, most = self.data, start + _MOST_FILLER
        if data[start : start + 1] == b":":
            found = _COMMENTS.match(data, start, most)
            return found.end() if found is not None else 0
        run = _BLANK_RUN.match(data, start, most)
        size = _blank_events(run[0]) if run is not None else 0
        return start + size if size else 0

    def _keep(self) -> None:
        """Keep the beginning of an event, up to the maximum size."""
        if len(self._pending) > self._max:
            raise FrameTooLarge(f"an event grew past {self._max} bytes before its blank line")
        # A boundary is at most four bytes, so the last three may be the start of one.
        self._searched = max(0, len(self._pending) - 3)

    def close(self) -> SSEEvent | None:
        """Return the unfinished last event, its missing blank line added; ``None`` if there is none.

        WIRE: clients lose an event without its blank line, and some upstreams leave it out at the end.
        """
        tail = self.tail
        self._pending.clear()
        return self._event(tail + missing_blank_line(tail)) if tail else None

    def _event(self, raw: bytes) -> SSEEvent:
        if self._at_start:
            self._at_start = False
            if raw.startswith(_BOM):
                return _decode(raw, raw[3:])
        return _decode(raw, raw)


def _blank_events(run: bytes) -> int:
    """Return how many bytes of a run of equal line ends are whole events; 0 if they differ."""
    if b"\r" not in run or b"\n" not in run:
        return len(run) & ~1
    run = run.removesuffix(b"\r")  # It may be half of a line end.
    lines = run.count(b"\r\n")
    return 2 * (lines & ~1) if 2 * lines == len(run) else 0


def _next_boundary(data: bytes | bytearray, position: int, has_cr: bool) -> int:
    """Return the end of the first event boundary from ``position`` on, or -1."""
    if not has_cr:
        found = data.find(b"\n\n", position)
        return found + 2 if found >= 0 else -1
    match = _BOUNDARY.search(data, position)
    if match is None or _may_grow(data, match[0], match.end()):
        return -1
    return match.end()


def _may_grow(data: bytes | bytearray, boundary: bytes | bytearray, end: int) -> bool:
    """Return whether the boundary's last CR may turn out to be half of a CRLF."""
    return end == len(data) and boundary[-1:] == b"\r" and boundary != b"\r\r"


def decode_event(raw: bytes) -> SSEEvent:
    """Return one whole event from the middle of a stream."""
    return _decode(raw, raw)


def _decode(raw: bytes, text: bytes) -> SSEEvent:
    if text[:6] == b"data: " and text.find(b"\n") == len(text) - 2 and text.find(b"\r") < 0:
        # One line of data: the usual case.
        return SSEEvent(raw, text[6:-2])
    data: list[bytes] = []
    name = b""
    for line in _LINE_ENDS.split(text):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return SSEEvent(raw, b"\n".join(data), name)


def missing_blank_line(tail: bytes) -> bytes:
    """Return the bytes that must follow ``tail`` to complete its last event."""
    if not tail.strip(b"\r\n") or _ends_event(tail):
        return b""
    # After a bare CR the first LF only completes that line end, so a second one is needed.
    return b"\n" if tail.endswith(b"\n") else b"\n\n"


def _ends_event(data: bytes) -> bool:
    match = _LAST_BOUNDARY.match(data[-4:])
    return match is not None and match.end() == len(data[-4:])


def encode_event(data: bytes, event: bytes = b"") -> bytes:
    """Return one whole event with LF line ends, to be sent in one write."""
    if event:
        return b"event: " + event + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


def comment(text: str, *, pad_to: int = 0) -> bytes:
    """Return a comment event, which clients skip, padded so that buffering intermediaries pass it on."""
    line = b": " + text.encode("ascii", "replace")
    return line.ljust(pad_to - 2) + b"\n\n"


class EventBoundary:
    """Forwards a stream up to its last event boundary, and knows how it ended.

    It holds back the bytes after the last boundary, at most ``max_held``, so that a stream that breaks ends
    with a whole event. A larger event passes in pieces as it comes; :attr:`overflowing` is then true until
    its end.

    While :attr:`at_boundary` is true, all bytes so far were whole events. Then a chunk that ends in two LF
    and has no :data:`DONE` in it may leave unchanged, without :meth:`feed`.

    A dialect whose streams end otherwise has a subclass. ``_sign`` occurs in every piece that may hold the
    end, and ``_missing_end`` returns the end for a stream that lacks it.
    """

    _sign = DONE

    __slots__ = ("_at_start", "_held", "_max", "at_boundary", "done_seen", "overflowing")

    def __init__(self, *, max_held: int = 64 * 1024) -> None:
        self._held = b""
        self._max = max_held
        self._at_start = True
        self.at_boundary = False
        self.overflowing = False
        self.done_seen = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that may leave now."""
        # The held bytes contain no boundary, but one may begin in their last three bytes.
        searched = max(0, len(self._held) - 3)
        data = self._held + chunk if self._held else chunk
        end = len(data) if data[-2:] == b"\n\n" else max(_last_boundary(data, searched), 0)
        if end:
            if data.find(self._sign) >= 0:  # (`in` first tries bytes as an index, and raises inside.)
                # The rest of an event that overflowed is not an event.
                self._look_for_end_mark(data[:end], skip=int(self.overflowing))
            self._at_start = self.overflowing = False
        if len(data) - end > self._max:
            self.overflowing = True
        if self.overflowing:
            # Hold back only the possible start of a boundary, or the end would be missed.
            end = max(end, len(data) - 3 if data[-1:] in (b"\r", b"\n") else len(data))
        self._held = data[end:]
        self.at_boundary = not (self._held or self.overflowing or self._at_start)
        return data[:end]

    def _look_for_end_mark(self, data: bytes, skip: int = 0) -> None:
        if data.endswith(_PLAIN_END) or (data == END_MARK and not skip):
            # The usual case: the mark in its usual form, as an event of its own.
            self.done_seen = True
            return
        parser = SSEParser(at_start=self._at_start)
        # The data ends with an event, even if its last CR could be half of a CRLF.
        events = [*parser.feed(data), parser.close()][skip:]
        self.done_seen = self.done_seen or any(event is not None and event.is_end_mark for event in events)

    def close(self) -> bytes:
        """Return the held bytes of a stream that ended properly, and the end mark if it had none."""
        if self.done_seen and not self._held and not self.overflowing:
            return b""
        tail, self._held = self._held, b""
        completion = b"\n\n" if self.overflowing else missing_blank_line(tail)
        self._look_for_end_mark(tail + completion)
        return tail + completion + (b"" if self.done_seen else self._missing_end())

    def _missing_end(self) -> bytes:
        return END_MARK


def _last_boundary(data: bytes, start: int) -> int:
    """Return the end of the last event boundary that begins at ``start`` or later, or -1."""
    if data.find(b"\r", start) < 0:
        found = data.rfind(b"\n\n", start)
        return found + 2 if found >= 0 else -1
    match = _LAST_BOUNDARY.match(data, start)
    if match is not None and _may_grow(data, match[1], match.end()):
        match = _LAST_BOUNDARY.match(data, start, len(data) - 1)
    return match.end() if match is not None else -1


KEEP_ALIVE = comment("keep-alive", pad_to=2048)
"""A comment, padded so that buffering intermediaries pass it on."""
