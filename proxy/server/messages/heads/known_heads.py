"""Recognize heads that came before, and reuse what the parser made of them.

A client sends the same head with each request; only the digits of its ``Content-Length`` change. aiohttp's
parser reads such a head once. This module does not parse. A head is known if all its bytes except those
digits came before, and the parser read them as one valid message. The digits only tell where the body ends.
A process has one :class:`KnownHeads`, and each connection has its :class:`KnownRequests`.

A head contains its client's key. So a head that is no longer sent is forgotten within two minutes. A head
that never comes again, for example because each one has an id of its own, is not kept at all.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiohttp import HttpVersion11, hdrs
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.base.caches import CacheSize, declare
from proxy.server.messages.heads.head import Head
from proxy.server.transport.aiohttp_seam import AiohttpConnection

Key = tuple[bytes, bytes]
"""A head's bytes before and after the digits of its length, without the blank line."""

HeadCut = tuple[Key, int, int]
"""A head's key, the offset of its body, and the length of the body in bytes as the head states it."""

MAX_HEAD_BYTES: Final = 4096
MOST_HEADS: Final = 128
"""The most heads in each of the two generations."""
MOST_SEEN: Final = 1024
AGE_S: Final = 60.0

READ_BUFFER_BYTES: Final = 64 * 1024
"""The buffer for a body that arrives faster than it is read; a fuller buffer pauses the parser."""

CHANCES: Final = 8
"""The number of unknown heads in a row after which a connection stops to look for known ones."""

_UNSURE: Final = -1

_HEAD_BYTES: Final = 4096
_LINE_BYTES: Final = 300
_MARK_BYTES: Final = 100
"""The memory that a head, each of its lines, and the mark of a seen head take, beside their text."""
_MOST_LINES: Final = 130

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\nContent-Length: "
_LOW_LENGTH: Final = b"\r\ncontent-length: "
_MOST_DIGITS: Final = 8
_NEVER_KNOWN: Final = (hdrs.TRANSFER_ENCODING, hdrs.EXPECT, hdrs.UPGRADE)
"""Headers of messages that are more than a head and a body of a fixed length."""


def head_cut(data: bytes) -> HeadCut | None:
    """Cut ``data`` after the head that it begins with; ``None`` unless the head has a usual
    ``Content-Length``."""
    end = data.find(_END, 0, MAX_HEAD_BYTES)
    if end < 0:
        return None
    at = data.find(_LENGTH, 0, end)
    if at < 0 and (at := data.find(_LOW_LENGTH, 0, end)) < 0:
        return None
    at += len(_LENGTH)
    stop = data.find(b"\r", at)
    digits = data[at:stop]
    if not digits.isdigit() or len(digits) > _MOST_DIGITS or digits.startswith(b"0"):
        return None
    return (data[:at], data[stop:end]), end + len(_END), int(digits)


def ends_once(head: bytes) -> bool:
    """Return whether every reader finds the end of a head at its last byte, and not before."""
    ends = head.count(b"\r\n")
    return head.find(_END) == len(head) - len(_END) and head.count(b"\r") == ends == head.count(b"\n")


class KnownMessage(NamedTuple):
    """Replaces the parser's message if the head was known already. ``length`` is the length of the body in
    bytes."""

    head: Head
    length: int


class WholeBody(StreamReader):
    """A body that has arrived completely, with only those methods of a stream that the server uses."""

    __slots__ = ("_failure", "_whole")

    def __init__(self, whole: bytes) -> None:
        # Does not call the base's initializer, which sets up a stream that is still to come.
        self._whole = whole
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._whole)} bytes>"

    def exception(self) -> BaseException | None:
        return self._failure

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        self._failure = exc

    def is_eof(self) -> bool:
        return True

    def at_eof(self) -> bool:
        return not self._whole

    def read_nowait(self, n: int = -1) -> bytes:
        """Return the whole body; no caller asks for a part."""
        if self._failure is not None:
            raise self._failure
        whole, self._whole = self._whole, b""
        return whole

    async def readany(self) -> bytes:
        return self.read_nowait()


class KnownHeads:
    """The heads that a process knows, for all of its connections.

    A head is kept when it arrives for the second time. Lookup uses a hash with a secret of this process, and
    compares bytes only if hashes are equal. So its duration reveals nothing about the heads of other
    clients.
    """

    def __init__(self) -> None:
        self._young: dict[Key, Head] = {}
        self._old: dict[Key, Head] = {}
        self._seen: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        declare("request_heads", self._cache_size)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def find(self, key: Key) -> Head | None:
        """Return a known head, or ``None``."""
        head = self._young.get(key)
        if head is None and (head := self._old.pop(key, None)) is not None:
            self._keep(key, head)
        return head

    def note(self, cut: HeadCut, message: RawRequestMessage) -> bool:
        """Note a head, and the message that the parser made of exactly these bytes.

        Returns whether the head is known now, or was before: the parser also reads a known head before a long
        body.
        """
        key = cut[0]
        mark = hash(key)
        if mark not in self._seen:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(mark)
            return False
        if not _is_plain(message):
            return False
        if self.find(key) is None:
            self._keep(key, Head(_lengthless(message)))
        return True

    def forget(self) -> None:
        """Forget all heads."""
        self._young, self._old = {}, {}
        self._seen.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cache_size(self) -> CacheSize:
        heads = sum(
            _HEAD_BYTES + 4 * (len(before) + len(behind)) + _LINE_BYTES * (before + behind).count(b"\n")
            for known in (self._young, self._old)
            for before, behind in known
        )
        most = 2 * MOST_HEADS * (_HEAD_BYTES + 4 * MAX_HEAD_BYTES + _LINE_BYTES * _MOST_LINES)
        return CacheSize(heads + _MARK_BYTES * len(self._seen), most + _MARK_BYTES * MOST_SEEN)

    def _keep(self, key: Key, head: Head) -> None:
        if len(self._young) >= MOST_HEADS:
            self._young, self._old = {}, self._young
        self._young[key] = head
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(AGE_S, self._age)

    def _age(self) -> None:
        """Forget the heads that no client sent since the last call."""
        self._timer = None
        self._young, self._old = {}, self._young
        if self._old:
            self._timer = asyncio.get_running_loop().call_later(AGE_S, self._age)


class KnownRequests:
    """Recognizes the requests of one connection that the parser need not see.

    It counts the bytes that arrive, so it knows where a head begins. If it becomes unsure, it leaves all
    further bytes to the parser. If :meth:`take` returns no request for a read, the parser gets this read,
    and :meth:`learn` gets the parser's result.
    """

    __slots__ = ("_chances", "_cut", "_heads", "_left", "filling")

    def __init__(self, heads: KnownHeads) -> None:
        self._heads = heads
        self._chances = CHANCES
        # What :meth:`take` found out about the read that :meth:`learn` gets next.
        self._cut: HeadCut | None = None
        # How many bytes of a body are still to come; 0 between messages. _UNSURE if that is unknown: from
        # then on, the parser gets all bytes.
        self._left = 0
        self.filling: StreamReader | None = None
        """The body of a known head that is still arriving; the parser does not see it."""

    def take(
        self, data: bytes, connection: AiohttpConnection, *, idle: bool
    ) -> tuple[KnownMessage, StreamReader] | None:
        """Return the request at the start of a read, if its head is known and nothing else came with it.

        The parser can be bypassed only if ``connection`` is ``idle``: it waits for a request, so all earlier
        requests were answered and their bodies have ended.
        """
        if self._left:
            return None
        self._cut = cut = head_cut(data)
        if cut is None or not idle:
            return None
        key, start, length = cut
        left = length - (len(data) - start)
        # A stream with a full buffer would pause the parser, which does not handle this body.
        if left < 0 or (left > 0 and length > READ_BUFFER_BYTES):
            return None
        head = self._heads.find(key)
        if head is None:
            return None
        body: StreamReader
        if left == 0:
            body = WholeBody(data[start:])
        else:
            body = self.filling = StreamReader(connection, READ_BUFFER_BYTES, loop=connection.loop)
            body.feed_data(data[start:])
            self._left = left
        self._chances = CHANCES
        self._cut = None
        return KnownMessage(head, length), body

    def fill(self, body: StreamReader, data: bytes) -> bytes:
        """Add bytes to the body of a known head; return the bytes that follow the body."""
        behind = data[self._left :]
        piece = data[: self._left]
        self._left -= len(piece)
        body.feed_data(piece)
        if self._left == 0:
            self.filling = None
            body.feed_eof()
        return behind

    def learn(self, data: bytes, made: Sequence[tuple[Any, StreamReader]]) -> None:
        """Remember the head of a read, if it is a plain one that came before.

        ``made`` are the messages that the parser made of this read, with their bodies.
        """
        cut, self._cut = self._cut, None
        if self._left > 0:
            self._left = self._left - len(data) if len(data) <= self._left else _UNSURE
        elif self._left == 0 and data:
            self._left = self._left_after(data, cut, made)

    def _left_after(self, data: bytes, cut: HeadCut | None, made: Sequence[tuple[Any, StreamReader]]) -> int:
        """Return how many bytes of a body are missing, if one message began with this read; else
        ``_UNSURE``."""
        if len(made) != 1:
            return _UNSURE
        message, body = made[0]
        if not isinstance(message, RawRequestMessage) or message.upgrade:
            return _UNSURE
        said = message.headers.getall(hdrs.CONTENT_LENGTH, [])
        if cut is None:
            # For a length of 2**64 - 1, the parser makes no body and reads all that follows as the body.
            return 0 if body is EMPTY_PAYLOAD and said in ([], ["0"]) and ends_once(data) else _UNSURE
        _, start, length = cut
        here = len(data) - start
        if here > length or body.total_bytes != here or said != [str(length)] or not ends_once(data[:start]):
            return _UNSURE
        if not self._heads.note(cut, message):
            self._chances -= 1
        return length - here if self._chances else _UNSURE


def _is_plain(message: RawRequestMessage) -> bool:
    """Return whether a message is a head and a body of a fixed length, and another message may follow."""
    ends = message.should_close or message.upgrade or message.chunked
    more = any(name in message.headers for name in _NEVER_KNOWN)
    return message.version == HttpVersion11 and not ends and not more


def _lengthless(message: RawRequestMessage) -> RawRequestMessage:
    """Return a message without its ``Content-Length``, and without raw headers, which are not used."""
    headers = CIMultiDict(message.headers)
    del headers[hdrs.CONTENT_LENGTH]
    return message._replace(headers=CIMultiDictProxy(headers), raw_headers=())
