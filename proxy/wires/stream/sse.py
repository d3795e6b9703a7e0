"""Server-sent events, with every byte kept.

Two readers of one grammar.  :class:`SSEParser` splits a stream into events for whoever has to look
inside.  :class:`EventBoundary` is for whoever only forwards: it finds the last event boundary of
each piece and looks at nothing else.  Both take LF, CR and CRLF, cut anywhere.

Grammar: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

import re

from proxy.errors import FrameTooLarge
from proxy.values import value_class
from proxy.wires.json.patterns import repeated

__all__ = [
    "CONTENT_TYPE",
    "DONE",
    "DONE_SIGN",
    "END_MARK",
    "KEEP_ALIVE",
    "EventBoundary",
    "SSEEvent",
    "SSEParser",
    "begins_events",
    "comment",
    "decode_event",
    "encode_event",
    "is_comment",
]

CONTENT_TYPE = "text/event-stream"
DONE = b"[DONE]"
END_MARK = b"data: [DONE]\n\n"
DONE_SIGN = DONE[1]
"""A byte of :data:`DONE` that few events have: a byte is found at a fifth of the price."""

_PLAIN_END = b"\n\n" + END_MARK
_BOM = b"\xef\xbb\xbf"
# Atomic groups: CR LF is one line end and must never be read as two.
_LINE_ENDS = re.compile(rb"[\r\n]+")
# CR CR ends an event at once, in every stream: an LF after it would begin the next one, harmlessly.
_BOUNDARY = re.compile(rb"\r\r|(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
# Events that say nothing, as many as there are: a burst of them is one step.  A run ends where an event
# does; what is odder is taken one by one.
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


@value_class
class SSEEvent:
    """One event and the exact bytes that carried it, its blank line included.

    ``data`` is the joined ``data`` fields; empty for a comment or an event without data.
    """

    raw: bytes
    data: bytes = b""
    event: bytes = b""

    @property
    def is_comment(self) -> bool:
        """Whether nothing but comment lines is in it, so that any client may be shown it."""
        return is_comment(self.raw)

    @property
    def is_end_mark(self) -> bool:
        return self.data[:6] == DONE and self.data.strip() == DONE


def is_comment(raw: bytes) -> bool:
    """Whether every line is blank or a comment."""
    return _ONLY_COMMENTS.fullmatch(raw) is not None


def begins_events(data: bytes) -> bool | None:
    """Whether these first bytes of a body begin an event stream; ``None`` while that is open.

    JSON may begin with blanks as well: some servers send them while they think.
    """
    word = data.lstrip(_BEFORE)
    if _BEGINNING.match(word):
        return True
    if not word or _BEGUN.fullmatch(word.rstrip(b" \t")):
        return None
    return False


class SSEParser:
    """Split a byte stream into events.

    Blank lines and comments that follow each other may come as one event that says nothing.

    For every way of cutting the input, ``b"".join(e.raw for e in events) + parser.tail`` is the
    input, and the events that say something are the same.  An event whose blank line ends in a CR that
    is the last byte so far waits for the next byte where the stream uses CRLF, and does not where it
    uses bare CR, since no LF will come.  ``at_start`` is false for a stream that is joined in its
    middle, where a byte order mark is not one.
    """

    def __init__(self, *, max_event_bytes: int = 16 * 1024 * 1024, at_start: bool = True) -> None:
        self.data = b""
        self.at = 0
        self.too_large = False
        self._has_cr = False
        self._end = 0
        self._pending = bytearray()
        self._searched = 0
        self._max = max_event_bytes
        self._at_start = at_start

    @property
    def tail(self) -> bytes:
        """The bytes after the last whole event."""
        return bytes(self._pending)

    @property
    def between(self) -> bool:
        """Whether the last event is whole and none has begun since."""
        return not self._pending and self.at >= len(self.data)

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """The events that ``chunk`` completes.  Raises :class:`FrameTooLarge`."""
        self.take(chunk)
        events = []
        while (event := self.next()) is not None:
            events.append(event)
        return events

    def take(self, chunk: bytes) -> None:
        """Take bytes in; :meth:`next` is then called until there is no event left.

        ``data`` are the bytes that wait, from ``at`` on, and begin with an event.  Whoever knows what
        whole events are there may skip them.  Raises :class:`FrameTooLarge`.
        """
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
        self._has_cr = b"\r" in self.data

    def next(self, most_bytes: int | None = None) -> SSEEvent | None:
        """The next event of those that were taken in.  Raises :class:`FrameTooLarge`.

        One of more than ``most_bytes`` stays where it is, and :attr:`too_large` is true until it is taken.
        """
        start = self.at
        if self.data[start : start + 1] in _FILLERS and (end := self._filler_end(start)):
            self.at = end
            return SSEEvent(self.data[start:end])
        # The end of an event that came in many pieces was found when its last piece came.
        end = self._end if self._end > start else _next_boundary(self.data, start, self._has_cr)
        if end < 0:
            self._pending += self.data[start:]
            self.data, self.at = b"", 0
            self._keep()
            return None
        self.too_large = most_bytes is not None and end - start > most_bytes
        if self.too_large:
            self._end = end
            return None
        self.at = end
        return self._event(self.data[start:end])

    def skip(self) -> bytes:
        """The bytes of the event that is :attr:`too_large`, which is taken without being read."""
        raw = self.data[self.at : self._end]
        self.at, self.too_large, self._at_start = self._end, False, False
        return raw

    def _filler_end(self, start: int) -> int:
        """The end of the blank lines or comments that begin here; 0 where that is not certain."""
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
        """Hold an event that has begun, within the bound."""
        if len(self._pending) > self._max:
            raise FrameTooLarge(f"an event grew past {self._max} bytes before its blank line")
        # A boundary is at most four bytes, so the last three may be the start of one.
        self._searched = max(0, len(self._pending) - 3)

    def close(self) -> SSEEvent | None:
        """The unfinished last event, its missing blank line completed; ``None`` where there is none.

        WIRE: clients lose an event without its blank line, and some upstreams send their last so.
        """
        tail = self.tail
        self._pending.clear()
        return self._event(tail + missing_blank_line(tail)) if tail else None

    def _event(self, raw: bytes) -> SSEEvent:
        if self._at_start:
            self._at_start = False
            if raw.startswith(_BOM):
                return _decode(raw, raw[3:])
        return decode_event(raw)


def _blank_events(run: bytes) -> int:
    """How many bytes of a run of line ends are whole events, where all its line ends are alike."""
    if b"\r" not in run or b"\n" not in run:
        return len(run) & ~1
    run = run.removesuffix(b"\r")  # It may be half of a line end.
    lines = run.count(b"\r\n")
    return 2 * (lines & ~1) if 2 * lines == len(run) else 0


def _next_boundary(data: bytes | bytearray, position: int, has_cr: bool) -> int:
    """The end of the first event boundary from ``position`` on, or -1."""
    if not has_cr:
        found = data.find(b"\n\n", position)
        return found + 2 if found >= 0 else -1
    match = _BOUNDARY.search(data, position)
    if match is None or _may_grow(data, match[0], match.end()):
        return -1
    return match.end()


def _may_grow(data: bytes | bytearray, boundary: bytes | bytearray, end: int) -> bool:
    """Whether the boundary's last CR may turn out to be half of a CRLF."""
    return end == len(data) and boundary[-1:] == b"\r" and boundary != b"\r\r"


def decode_event(raw: bytes) -> SSEEvent:
    """One whole event, from the middle of a stream."""
    return _decode(raw, raw)


def _decode(raw: bytes, text: bytes) -> SSEEvent:
    if text[:6] == b"data: " and text.find(b"\n") == len(text) - 2 and b"\r" not in text:
        # One line of data, as nearly always.
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
    """What has to follow ``tail`` so that the event it ends in is whole."""
    if not tail.strip(b"\r\n") or _ends_event(tail):
        return b""
    # After a bare CR the first LF only completes that line end; it takes a second one.
    return b"\n" if tail.endswith(b"\n") else b"\n\n"


def _ends_event(data: bytes) -> bool:
    match = _LAST_BOUNDARY.match(data[-4:])
    return match is not None and match.end() == len(data[-4:])


def encode_event(data: bytes, event: bytes = b"") -> bytes:
    """One event in LF, whole, to leave in one write."""
    if event:
        return b"event: " + event + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


def comment(text: str, *, pad_to: int = 0) -> bytes:
    """A comment event, which every client skips; padded so that a buffering proxy lets it go."""
    line = b": " + text.encode("ascii", "replace")
    return line.ljust(pad_to - 2) + b"\n\n"


class EventBoundary:
    """Forward a stream up to its last event boundary, and know how it ended.

    Bytes after the last boundary are held back, ``max_held`` at most, so that a stream that
    breaks ends on a whole event.  An event that grows past the bound is let through as it
    comes; :attr:`overflowing` is then true until its end.

    While :attr:`between`, all that came was whole events: then a chunk that ends in two LF and has no
    :data:`DONE` in it may leave as it is, and need not be fed.

    A dialect that ends its streams otherwise says so in a class of its own: ``_sign`` is in every piece
    that may hold the end, and ``_missing_end`` ends a stream that lacks it.
    """

    _sign = DONE

    __slots__ = ("_at_start", "_held", "_max", "between", "done_seen", "overflowing")

    def __init__(self, *, max_held: int = 64 * 1024) -> None:
        self._held = b""
        self._max = max_held
        self._at_start = True
        self.between = False
        self.overflowing = False
        self.done_seen = False

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may leave now."""
        # No boundary lies in what is held, but one may begin in its last three bytes.
        searched = max(0, len(self._held) - 3)
        data = self._held + chunk if self._held else chunk
        end = len(data) if data[-2:] == b"\n\n" else max(_last_boundary(data, searched), 0)
        if end:
            if data.find(self._sign) >= 0:  # (`in` asks bytes for an index first, and raises inside.)
                # The rest of an event that overflowed is not an event.
                self._look_for_end_mark(data[:end], skip=int(self.overflowing))
            self._at_start = self.overflowing = False
        if len(data) - end > self._max:
            self.overflowing = True
        if self.overflowing:
            # Only what could be the start of a boundary stays, or the end would be missed.
            end = max(end, len(data) - 3 if data[-1:] in (b"\r", b"\n") else len(data))
        self._held = data[end:]
        self.between = not (self._held or self.overflowing or self._at_start)
        return data[:end]

    def _look_for_end_mark(self, data: bytes, skip: int = 0) -> None:
        if data.endswith(_PLAIN_END) or (data == END_MARK and not skip):
            # By far the most common: the mark as everybody writes it, an event by itself.
            self.done_seen = True
            return
        parser = SSEParser(at_start=self._at_start)
        # Where the data ends an event has ended, also on a CR that could be half of a CRLF.
        events = [*parser.feed(data), parser.close()][skip:]
        self.done_seen = self.done_seen or any(event is not None and event.is_end_mark for event in events)

    def close(self) -> bytes:
        """The held bytes of a stream that ended properly, and its end mark if it had none."""
        if self.done_seen and not self._held and not self.overflowing:
            return b""
        tail, self._held = self._held, b""
        completion = b"\n\n" if self.overflowing else missing_blank_line(tail)
        self._look_for_end_mark(tail + completion)
        return tail + completion + (b"" if self.done_seen else self._missing_end())

    def _missing_end(self) -> bytes:
        return END_MARK


def _last_boundary(data: bytes, start: int) -> int:
    """The end of the last event boundary that begins at ``start`` or later, or -1."""
    if data.find(b"\r", start) < 0:
        found = data.rfind(b"\n\n", start)
        return found + 2 if found >= 0 else -1
    match = _LAST_BOUNDARY.match(data, start)
    if match is not None and _may_grow(data, match[1], match.end()):
        match = _LAST_BOUNDARY.match(data, start, len(data) - 1)
    return match.end() if match is not None else -1


KEEP_ALIVE = comment("keep-alive", pad_to=2048)
"""Padded so that proxies that buffer pass it on."""
