"""Splits streams of JSON lines (``application/x-ndjson``), and keeps every byte.

There are two readers of one grammar, as in :mod:`proxy.wires.stream.sse`. :class:`LineParser` splits a
stream into lines for code that reads them; :class:`LineBoundary` serves code that only forwards. A line
ends in LF or CRLF; a blank line means nothing.
"""

import re
from abc import abstractmethod
from typing import Final

from msgspec import Struct

from proxy.base.errors import FrameTooLarge
from proxy.wires.dialect import EventParser

CONTENT_TYPE: Final = "application/x-ndjson"
_BOM: Final = b"\xef\xbb\xbf"
_BLANKS: Final = b" \t\r\n"
_FIRST_LINE = re.compile(rb'\{[ \t]*"[^\r\n]*\}[ \t]*\r?\n')
_LARGE: Final = 256 * 1024
"""The size, in bytes, above which only the beginning and the end of a line are searched."""
_LOOKED_AT: Final = 16 * 1024


class Line(Struct, frozen=True):
    """One line with the exact bytes that carried it, including its line end; ``data`` is its content."""

    raw: bytes
    data: bytes = b""

    @property
    def is_end_mark(self) -> bool:
        """Always false: the last line of such a stream has other content, too."""
        return False


def decode_line(raw: bytes) -> Line:
    """Return one whole line."""
    return Line(raw, raw.removeprefix(_BOM).strip(_BLANKS))


def begins_lines(data: bytes) -> bool | None:
    """Return whether a body begins with a JSON object on its own line; ``None`` while unknown."""
    word = data.removeprefix(_BOM).lstrip(_BLANKS)
    if word[:1] not in (b"", b"{"):
        return False
    return _FIRST_LINE.match(word) is not None if b"\n" in word else None


class LineParser(EventParser[Line]):
    """Splits a byte stream into lines."""

    def take(self, chunk: bytes) -> None:
        if self.at < len(self.data):
            chunk = self.data[self.at :] + chunk
        self.data, self.at, self._end = chunk, 0, 0
        if pending := self._pending:
            # The held bytes contain no line end, so only the new ones are searched.
            end = chunk.find(b"\n")
            held = len(pending)
            pending += chunk
            self.data = b""
            if end < 0:
                self._check()
                return
            self._end = held + end + 1
            self.data = bytes(pending)
            pending.clear()

    def next(self, most_bytes: int | None = None) -> Line | None:
        start = self.at
        end = self._end if self._end > start else self.data.find(b"\n", start) + 1
        if not end:
            self._pending += self.data[start:]
            self.data, self.at = b"", 0
            self._check()
            return None
        self.too_large = most_bytes is not None and end - start > most_bytes
        if self.too_large:
            self._end = end
            return None
        self.at = end
        return decode_line(self.data[start:end])

    def _check(self) -> None:
        if len(self._pending) > self._max:
            raise FrameTooLarge(f"a line grew past {self._max} bytes before its end")

    def close(self) -> Line | None:
        tail = self.tail
        self._pending.clear()
        return decode_line(tail) if tail else None


class LineBoundary:
    """Forwards a stream up to its last line end, and knows how it ended.

    See :class:`proxy.wires.dialect.Boundary`. It holds back the bytes after the last line end, at most
    ``max_held``. It adds nothing to a complete stream. A stream that stops without its last line gets the
    line that its dialect has for that.
    """

    __slots__ = ("_head", "_held", "_max", "_over", "at_boundary", "done_seen", "overflowing")

    def __init__(self, *, max_held: int = 256 * 1024) -> None:
        self._held = b""
        self._max = max_held
        self._head = b""
        self._over = b""
        # Any piece may hold the last line, so each one is searched.
        self.at_boundary = False
        self.overflowing = False
        self.done_seen = False

    @abstractmethod
    def _ends(self, line: bytes) -> bool:
        """Return whether a line is the last one of the stream. A part of its middle may be missing."""

    @abstractmethod
    def _missing_end(self) -> bytes:
        """Return what ends a stream that lacks its last line."""

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that may leave now."""
        data = self._held + chunk if self._held else chunk
        end = data.rfind(b"\n") + 1
        if end:
            self._look(data[:end])
            self.overflowing, self._head, self._over = False, b"", b""
        rest = data[end:]
        if len(rest) > self._max or self.overflowing:
            self._head = self._head or rest[:_LOOKED_AT]
            self._over = (self._over + rest)[-_LOOKED_AT:]
            self.overflowing = True
            self._held = b""
            return data
        self._held = rest
        return data[:end]

    def _look(self, data: bytes) -> None:
        """Look for the last line among complete ones. Part of the first may have left already."""
        if self.done_seen:
            return
        if self.overflowing:
            first, _, data = data.partition(b"\n")
            self.done_seen = self._ends(self._head + (self._over + first)[-_LOOKED_AT:])
        for line in data.split(b"\n") if data else ():
            whole = line if len(line) <= _LARGE else line[:_LOOKED_AT] + line[-_LOOKED_AT:]
            self.done_seen = self.done_seen or (bool(whole) and self._ends(whole))

    def close(self) -> bytes:
        """Return the rest of a stream that ended properly, and a missing last line. Drop half a line."""
        tail, self._held = self._held, b""
        if tail and not self.done_seen and self._ends(tail):
            self.done_seen = True
            return tail
        if self.done_seen:
            return tail
        return (b"\n" if self.overflowing else b"") + self._missing_end()
