"""Reads head, body and end of a response with httptools' parser, within limits that the parser lacks."""

from collections.abc import Callable
from typing import Protocol

from httptools import HttpResponseParser

from proxy.http.headers import by_names

MAX_HEADERS = 256
MAX_HEADER_BYTES = 64 * 1024
"""The most bytes of names and values together."""

MAX_INTERIM = 16
"""The most interim responses (RFC 9110, section 15.2) before the final one."""

_FRAMING = (b"content-length", b"transfer-encoding")


_CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_LENGTH_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


class HttpReader(Protocol):
    """Reads one response, or what follows its head. The caller of ``feed`` takes the pieces out.

    ``news`` becomes true at the end of the head and at the end of the message, which is then ``complete``.
    ``reusable`` says whether the connection can serve another request.
    """

    pieces: list[bytes]
    news: bool
    complete: bool
    reusable: bool

    @property
    def feed(self) -> Callable[[bytes], object]:
        """Takes the bytes of one read. Raises the errors of httptools' parser if they are not HTTP."""

    def close(self) -> None:
        """Break reference cycles, which would wait for the garbage collector."""


class BodyReader:
    """Reads a body with the parser, which first gets a head with the same framing as the response's own."""

    __slots__ = ("complete", "feed", "news", "on_body", "parser", "pieces", "reusable")

    def __init__(self, length: int | None) -> None:
        """``length`` is that of the body in bytes; with ``None`` the body is chunked."""
        self._start()
        self.feed(_CHUNKED_HEAD if length is None else _LENGTH_HEAD % length)

    def _start(self) -> None:
        self.complete = self.news = False
        self.reusable = True
        self.pieces: list[bytes] = []
        # A piece costs no Python call. No piece follows the end, because no second response is read.
        self.on_body = self.pieces.append
        self.parser = HttpResponseParser(self)
        # Some servers write this, and other clients accept it.
        self.parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self.feed: Callable[[bytes], object] = self.parser.feed_data

    def close(self) -> None:
        del self.parser, self.feed

    # The callbacks of the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False
            raise ValueError("a second response to one request")

    def on_message_complete(self) -> None:
        if not self.complete:
            self.complete = self.news = True
            # The parser forgets this after the message.
            self.reusable = self.parser.should_keep_alive()


class LengthReader:
    """Counts the bytes of a body whose length is known."""

    __slots__ = ("_left", "complete", "news", "pieces", "reusable")

    def __init__(self, length: int) -> None:
        """``length`` is that of the body in bytes."""
        self._left = length
        self.complete = self.news = False
        self.reusable = True
        self.pieces: list[bytes] = []

    def feed(self, data: bytes) -> None:
        if len(data) > self._left:
            self._feed_beyond(data)
            return
        if data:
            self.pieces.append(data)
            self._left -= len(data)
        if not self._left:
            self.complete = self.news = True

    def _feed_beyond(self, data: bytes) -> None:
        """Let the parser judge what follows the end of the body."""
        reader = BodyReader(self._left)
        try:
            reader.feed(data)
        finally:
            reader.close()
            self.pieces += reader.pieces
            self.reusable = reader.reusable
            self.complete = self.news = True

    def close(self) -> None:
        return


class ResponseReader(BodyReader):
    """Reads a response from its first byte.

    After ``head_done``, ``status``, ``raw_names`` and ``raw_values`` are set. ``until_eof`` says that only
    the end of the connection ends the body.
    """

    __slots__ = (
        "_header_bytes",
        "_interim",
        "bodiless",
        "head_done",
        "raw_names",
        "raw_values",
        "status",
        "until_eof",
    )

    def __init__(self, *, bodiless: bool) -> None:
        """``bodiless`` says that the response has no body, even if its head announces one (HEAD)."""
        self._start()
        self.bodiless = bodiless
        """Whether bytes after the head are no body."""
        self.status = 0
        self.raw_names: list[bytes] = []
        self.raw_values: list[bytes] = []
        self.head_done = False
        self.until_eof = False
        self._header_bytes = 0
        self._interim = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_done:
            return  # a trailer
        # The exchange limits the bytes of a head that never ends.
        if len(self.raw_names) >= MAX_HEADERS:
            raise ValueError("more headers than are taken")
        self.raw_names.append(name)
        self.raw_values.append(value)

    def on_headers_complete(self) -> None:
        if self.head_done:
            return
        names, values = self.raw_names, self.raw_values
        self._header_bytes += sum(map(len, names)) + sum(map(len, values))
        if self._header_bytes > MAX_HEADER_BYTES:
            raise ValueError("more headers than are taken")
        framing = _framing(tuple(names))
        framed = False
        for index in framing:
            framed = _ends_a_body(names[index], values[index]) or framed
        status = self.parser.get_status_code()
        if status < 200:
            self._interim += 1
            # None has a body (RFC 9110, section 15.2). The parser would read an announced one, but another
            # reader would take its bytes for a response: to this request, or to another.
            if status < 100 or status == 101 or framing or self._interim > MAX_INTERIM:
                raise ValueError("no response")
            names.clear()
            values.clear()
            return
        self.status = status
        self.head_done = self.news = True
        if self.bodiless or status in (204, 304):
            # The parser does not know about HEAD and may wait for a body, so the connection is not kept.
            self.reusable = not self.bodiless and self.parser.should_keep_alive()
            self.complete = self.bodiless = True
        else:
            self.until_eof = not framed

    def on_message_complete(self) -> None:
        if self.head_done:  # interim responses end too
            super().on_message_complete()


@by_names
def _framing(names: tuple[bytes, ...]) -> tuple[int, ...]:
    """Return the indices of the headers that say how a body is framed."""
    return tuple([index for index, name in enumerate(names) if name.lower() in _FRAMING])


def _ends_a_body(name: bytes, value: bytes) -> bool:
    """Return whether a framing header says where the body ends; raise ValueError for an unknown coding."""
    if name.lower() == b"content-length":
        return True
    coding = value.strip().lower()
    if coding not in (b"chunked", b"identity"):
        raise ValueError("an unknown transfer coding")
    return coding == b"chunked"
