"""Streams of JSON in lines (``application/x-ndjson``), with every byte kept.

Two readers of one grammar, as in :mod:`proxy.wires.stream.sse`: :class:`LineParser` splits a stream into
lines for whoever has to look inside, :class:`LineBoundary` is for whoever only forwards.  A line ends in LF
or in CRLF; a blank one says nothing.
"""

import re
from abc import abstractmethod
from typing import Final

from proxy.errors import FrameTooLarge
from proxy.values import value_class

__all__ = ["CONTENT_TYPE", "Line", "LineBoundary", "LineParser", "begins_lines", "decode_line"]

CONTENT_TYPE: Final = "application/x-ndjson"
_BOM: Final = b"\xef\xbb\xbf"
_BLANKS: Final = b" \t\r\n"
_FIRST_LINE = re.compile(rb'\{[ \t]*"[^\r\n]*\}[ \t]*\r?\n')
_LARGE: Final = 256 * 1024
"""Bytes of a line of which only the beginning and the end are looked at."""
_LOOKED_AT: Final = 16 * 1024


@value_class
class Line:
    """One line and the exact bytes that carried it, its line end included; ``data`` is what it says."""

    raw: bytes
    data: bytes = b""

    @property
    def is_end_mark(self) -> bool:
        """Never: the last line of such a stream says more than that it is the last one."""
        return False


def decode_line(raw: bytes) -> Line:
    """One whole line."""
    return Line(raw, raw.removeprefix(_BOM).strip(_BLANKS))


def begins_lines(data: bytes) -> bool | None:
    """Whether these first bytes of a body begin with a JSON object in a line of its own; ``None`` while that
    is open."""
    word = data.removeprefix(_BOM).lstrip(_BLANKS)
    if word[:1] not in (b"", b"{"):
        return False
    return _FIRST_LINE.match(word) is not None if b"\n" in word else None


class LineParser:
    """Split a byte stream into lines; see :class:`proxy.wires.stream.sse.SSEParser`, which has the same
    methods."""

    def __init__(self, *, max_line_bytes: int = 16 * 1024 * 1024) -> None:
        self.data = b""
        self.at = 0
        self.too_large = False
        self._end = 0
        self._pending = bytearray()
        self._max = max_line_bytes

    @property
    def tail(self) -> bytes:
        """The bytes after the last whole line."""
        return bytes(self._pending)

    @property
    def between(self) -> bool:
        """Whether the last line is whole and none has begun since."""
        return not self._pending and self.at >= len(self.data)

    def feed(self, chunk: bytes) -> list[Line]:
        """The lines that ``chunk`` completes.  Raises :class:`FrameTooLarge`."""
        self.take(chunk)
        lines = []
        while (line := self.next()) is not None:
            lines.append(line)
        return lines

    def take(self, chunk: bytes) -> None:
        """Take bytes in; :meth:`next` is then called until there is no line left.

        ``data`` are the bytes that wait, from ``at`` on, and begin with a line.  Raises
        :class:`FrameTooLarge`.
        """
        if self.at < len(self.data):
            chunk = self.data[self.at :] + chunk
        self.data, self.at, self._end = chunk, 0, 0
        if pending := self._pending:
            # No line ends in what is held, so only what is new has to be looked at.
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
        """The next line of those that were taken in.  Raises :class:`FrameTooLarge`.

        One of more than ``most_bytes`` stays where it is, and :attr:`too_large` is true until it is taken.
        """
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

    def skip(self) -> bytes:
        """The bytes of the line that is :attr:`too_large`, which is taken without being read."""
        raw = self.data[self.at : self._end]
        self.at, self.too_large = self._end, False
        return raw

    def _check(self) -> None:
        if len(self._pending) > self._max:
            raise FrameTooLarge(f"a line grew past {self._max} bytes before its end")

    def close(self) -> Line | None:
        """The last line where its line end is missing; ``None`` where there is none."""
        tail = self.tail
        self._pending.clear()
        return decode_line(tail) if tail else None


class LineBoundary:
    """Forward a stream up to its last line end, and know how it ended; see
    :class:`proxy.wires.dialect.Boundary`.

    Bytes after the last line end are held back, ``max_held`` at most.  Nothing is put behind a stream that
    came to its end, and one that merely ends gets the line that its dialect has for that.
    """

    __slots__ = ("_head", "_held", "_max", "_over", "between", "done_seen", "overflowing")

    def __init__(self, *, max_held: int = 256 * 1024) -> None:
        self._held = b""
        self._max = max_held
        self._head = b""
        self._over = b""
        # Every piece may hold the last line, so each has to be looked at.
        self.between = False
        self.overflowing = False
        self.done_seen = False

    @abstractmethod
    def _ends(self, line: bytes) -> bool:
        """Whether a line, of which a part may be missing in its middle, is the last one."""

    @abstractmethod
    def _missing_end(self) -> bytes:
        """What ends a stream that lacks its last line."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may leave now."""
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
        """Look for the last line among whole ones, the first of which may have left in part."""
        if self.done_seen:
            return
        if self.overflowing:
            first, _, data = data.partition(b"\n")
            self.done_seen = self._ends(self._head + (self._over + first)[-_LOOKED_AT:])
        for line in data.split(b"\n") if data else ():
            whole = line if len(line) <= _LARGE else line[:_LOOKED_AT] + line[-_LOOKED_AT:]
            self.done_seen = self.done_seen or (bool(whole) and self._ends(whole))

    def close(self) -> bytes:
        """What is left of a stream that ended properly, and what it lacks; half a line is dropped."""
        tail, self._held = self._held, b""
        if tail and not self.done_seen and self._ends(tail):
            self.done_seen = True
            return tail
        if self.done_seen:
            return tail
        return (b"\n" if self.overflowing else b"") + self._missing_end()
