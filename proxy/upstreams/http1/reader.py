"""Head, body and end of a response, read with httptools' parser, within bounds that it has not."""

from collections.abc import Callable
from typing import Protocol

from httptools import HttpResponseParser

from proxy.http.headers import by_names

__all__ = ["MAX_HEADERS", "MAX_HEADER_BYTES", "BodyReader", "HttpReader", "LengthReader", "ResponseReader"]

MAX_HEADERS = 256
MAX_HEADER_BYTES = 64 * 1024
"""Names and values together."""

MAX_INTERIM = 16
"""Interim responses (RFC 9110, section 15.2) before the one that counts."""

_FRAMING = (b"content-length", b"transfer-encoding")


_CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_LENGTH_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


class HttpReader(Protocol):
    """Reads one response, or what is behind its head; whoever feeds it takes the pieces out.

    ``news`` becomes true with the end of the head and that of the message, which is then ``complete``;
    ``reusable`` says whether its connection can serve another request.
    """

    pieces: list[bytes]
    news: bool
    complete: bool
    reusable: bool

    @property
    def feed(self) -> Callable[[bytes], object]:
        """Takes what a read brought.  Raises what httptools' parser does for what is no HTTP."""
        ...

    def close(self) -> None:
        """Let go of what would wait for the garbage collector."""
        ...


class BodyReader:
    """Reads a body with the parser, behind a head that frames it as the response's own did."""

    __slots__ = ("complete", "feed", "news", "on_body", "parser", "pieces", "reusable")

    def __init__(self, length: int | None) -> None:
        """``length`` of the body in bytes; ``None``: it comes in chunks."""
        self._start()
        self.feed(_CHUNKED_HEAD if length is None else _LENGTH_HEAD % length)

    def _start(self) -> None:
        self.complete = self.news = False
        self.reusable = True
        self.pieces: list[bytes] = []
        # A piece costs no call of ours; none comes from behind the end, where no second response is read.
        self.on_body = self.pieces.append
        self.parser = HttpResponseParser(self)
        # What servers were seen to write, and other clients read.
        self.parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self.feed: Callable[[bytes], object] = self.parser.feed_data

    def close(self) -> None:
        del self.parser, self.feed

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.complete:
            self.reusable = False
            raise ValueError("a second response to one request")

    def on_message_complete(self) -> None:
        if not self.complete:
            self.complete = self.news = True
            # The parser forgets this with the message.
            self.reusable = self.parser.should_keep_alive()


class LengthReader:
    """Counts a body whose length is known."""

    __slots__ = ("_left", "complete", "news", "pieces", "reusable")

    def __init__(self, length: int) -> None:
        """``length`` in bytes."""
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
        """What stands behind the end is the parser's to judge."""
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
    """Reads a response from its first byte on.

    When ``head_done`` there are ``status``, ``raw_names`` and ``raw_values``; ``until_eof`` says that
    only the connection's end ends the body.
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
        """``bodiless``: the response has no body whatever its head says (HEAD)."""
        self._start()
        self.bodiless = bodiless
        """Whether whatever comes behind the head is no body."""
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
        # Of a head that never ends the bytes are bounded as framing.
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
        for at in framing:
            framed = _ends_a_body(names[at], values[at]) or framed
        status = self.parser.get_status_code()
        if status < 200:
            self._interim += 1
            # None has a body (RFC 9110, section 15.2).  The parser would read one that is announced, and what
            # reads it otherwise takes its bytes for a response: to this request, or to another's.
            if status < 100 or status == 101 or framing or self._interim > MAX_INTERIM:
                raise ValueError("no response")
            names.clear()
            values.clear()
            return
        self.status = status
        self.head_done = self.news = True
        if self.bodiless or status in (204, 304):
            # The parser knows nothing of HEAD and may wait for a body; its connection is not kept.
            self.reusable = not self.bodiless and self.parser.should_keep_alive()
            self.complete = self.bodiless = True
        else:
            self.until_eof = not framed

    def on_message_complete(self) -> None:
        if self.head_done:  # interim responses end too
            super().on_message_complete()


@by_names
def _framing(names: tuple[bytes, ...]) -> tuple[int, ...]:
    """Where the headers stand that say how a body is framed."""
    return tuple([at for at, name in enumerate(names) if name.lower() in _FRAMING])


def _ends_a_body(name: bytes, value: bytes) -> bool:
    """Whether a framing header says where the body ends; raises ValueError for an unknown coding."""
    if name.lower() == b"content-length":
        return True
    coding = value.strip().lower()
    if coding not in (b"chunked", b"identity"):
        raise ValueError("an unknown transfer coding")
    return coding == b"chunked"
