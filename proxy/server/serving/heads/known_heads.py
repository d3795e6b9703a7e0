"""Heads that came before, with what the parser made of them.

A client sends the same head with each request, and nothing of it changes but the digits of its
``Content-Length``.  aiohttp's parser reads such a head once.  Nothing here parses: a head is known where
each of its bytes but those digits came before and the parser took them for one good message, and its
digits say no more than where the body ends.  :class:`KnownHeads` are a process's; with them each connection
has its :class:`KnownRequests`.

A head holds its client's key.  So one that comes no more is forgotten within two minutes, and one that
never comes again, as where each has an id of its own, is not kept at all.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiohttp import HttpVersion11, hdrs
from aiohttp.http import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.caches import CacheSize, declare
from proxy.server.serving.aiohttp_seam import AiohttpConnection
from proxy.server.serving.heads.head import Head

__all__ = [
    "CHANCES",
    "READ_BUFFER_BYTES",
    "HeadCut",
    "Key",
    "KnownHeads",
    "KnownMessage",
    "KnownRequests",
    "WholeBody",
    "ends_once",
    "head_cut",
]

Key = tuple[bytes, bytes]
"""A head's bytes before and behind the digits of its length, without the blank line."""

HeadCut = tuple[Key, int, int]
"""A head's key, where its body begins, and how long in bytes the head says that it is."""

MAX_HEAD_BYTES: Final = 4096
MOST_HEADS: Final = 128
"""In each of the two generations."""
MOST_SEEN: Final = 1024
AGE_S: Final = 60.0

READ_BUFFER_BYTES: Final = 64 * 1024
"""Of a body that comes faster than it is read; one that is filled past it pauses the parser."""

CHANCES: Final = 8
"""Heads in a row that a connection may send and none of them known, before it is taken for one of those
whose heads all differ, and nobody looks any more."""

_UNSURE: Final = -1

_HEAD_BYTES: Final = 4096
_LINE_BYTES: Final = 300
_MARK_BYTES: Final = 100
"""What a head, each line of it, and the mark of one that was seen take beside their text."""
_MOST_LINES: Final = 130

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\nContent-Length: "
_LOW_LENGTH: Final = b"\r\ncontent-length: "
_MOST_DIGITS: Final = 8
_NEVER_KNOWN: Final = (hdrs.TRANSFER_ENCODING, hdrs.EXPECT, hdrs.UPGRADE)
"""Headers that make more of a message than a head and a body of so many bytes."""


def head_cut(data: bytes) -> HeadCut | None:
    """Where the head that ``data`` begins with ends, if it has a length as programs write it."""
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
    """Whether every reader sees the end of a head where its bytes end, and nowhere before."""
    ends = head.count(b"\r\n")
    return head.find(_END) == len(head) - len(_END) and head.count(b"\r") == ends == head.count(b"\n")


class KnownMessage(NamedTuple):
    """Replaces the parser's message if the head was known already.  ``length`` is the length of the body in
    bytes."""

    head: Head
    length: int


class WholeBody(StreamReader):
    """A body that is here.  It has what is asked of bodies at the edge, and no more of a stream's parts."""

    __slots__ = ("_failure", "_whole")

    def __init__(self, whole: bytes) -> None:
        # Without the base's own, which makes a stream that has yet to come.
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
        """All of it: nobody asks for a part."""
        if self._failure is not None:
            raise self._failure
        whole, self._whole = self._whole, b""
        return whole

    async def readany(self) -> bytes:
        return self.read_nowait()


class KnownHeads:
    """The heads that a process knows, for all of its connections.

    A head is kept when it comes for the second time.  They are looked up by a hash with a key of the
    process's own, and compared only where the hash is the same: how long that takes says nothing of the heads
    that others sent.
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
        """What is known of a head."""
        head = self._young.get(key)
        if head is None and (head := self._old.pop(key, None)) is not None:
            self._keep(key, head)
        return head

    def note(self, cut: HeadCut, message: RawRequestMessage) -> bool:
        """A head has come from which the parser, and no byte besides, made this message.

        Returns whether it is known from now on, or was: the parser reads a known one before a long body.
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
        """Know nothing any more."""
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
        """Forget those that nobody sent since this was last called."""
        self._timer = None
        self._young, self._old = {}, self._young
        if self._old:
            self._timer = asyncio.get_running_loop().call_later(AGE_S, self._age)


class KnownRequests:
    """The requests of one connection that the parser need not see.

    It counts the bytes that come, and so knows where a head begins; where it is not sure of that, it leaves
    all that is still to come to the parser.  A read that :meth:`take` made no request of is the parser's, and
    :meth:`learn` is told what came of it.
    """

    __slots__ = ("_chances", "_cut", "_heads", "_left", "filling")

    def __init__(self, heads: KnownHeads) -> None:
        self._heads = heads
        self._chances = CHANCES
        # What :meth:`take` found out about the read that :meth:`learn` will be told of.
        self._cut: HeadCut | None = None
        # How many bytes of a body are still to come; 0 between messages, and _UNSURE where that cannot be
        # said: then nothing is kept from the parser any more.
        self._left = 0
        self.filling: StreamReader | None = None
        """A body of a known head that is still coming, which the parser does not see."""

    def take(
        self, data: bytes, connection: AiohttpConnection, *, idle: bool
    ) -> tuple[KnownMessage, StreamReader] | None:
        """The request that one read begins, if its head is known and nothing else came with it.

        The parser can be passed by only where ``connection`` is ``idle``: it waits for a request, so all
        before it were answered, and their bodies came to their ends.
        """
        if self._left:
            return None
        self._cut = cut = head_cut(data)
        if cut is None or not idle:
            return None
        key, start, length = cut
        left = length - (len(data) - start)
        # A stream that is filled past its buffer pauses the parser, which has no part in it.
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
        """Put what came into the body of a known head; returns what is behind that."""
        behind = data[self._left :]
        piece = data[: self._left]
        self._left -= len(piece)
        body.feed_data(piece)
        if self._left == 0:
            self.filling = None
            body.feed_eof()
        return behind

    def learn(self, data: bytes, made: Sequence[tuple[Any, StreamReader]]) -> None:
        """Know the head of one read from now on, if it is a plain one that came before.

        ``made`` are the messages that the parser made of this read, with their bodies.
        """
        cut, self._cut = self._cut, None
        if self._left > 0:
            self._left = self._left - len(data) if len(data) <= self._left else _UNSURE
        elif self._left == 0 and data:
            self._left = self._left_after(data, cut, made)

    def _left_after(self, data: bytes, cut: HeadCut | None, made: Sequence[tuple[Any, StreamReader]]) -> int:
        """What is still to come of the body of one message, with which a read began; or ``_UNSURE``."""
        if len(made) != 1:
            return _UNSURE
        message, body = made[0]
        if not isinstance(message, RawRequestMessage) or message.upgrade:
            return _UNSURE
        said = message.headers.getall(hdrs.CONTENT_LENGTH, [])
        if cut is None:
            # For 2**64 - 1 bytes the parser gives no body, and takes all that comes for it.
            return 0 if body is EMPTY_PAYLOAD and said in ([], ["0"]) and ends_once(data) else _UNSURE
        _, start, length = cut
        here = len(data) - start
        if here > length or body.total_bytes != here or said != [str(length)] or not ends_once(data[:start]):
            return _UNSURE
        if not self._heads.note(cut, message):
            self._chances -= 1
        return length - here if self._chances else _UNSURE


def _is_plain(message: RawRequestMessage) -> bool:
    """Whether a message is a head and a body of so many bytes, and the next one may follow it."""
    ends = message.should_close or message.upgrade or message.chunked
    more = any(name in message.headers for name in _NEVER_KNOWN)
    return message.version == HttpVersion11 and not ends and not more


def _lengthless(message: RawRequestMessage) -> RawRequestMessage:
    """A message less what it says of one body's length, and its headers in bytes, which nobody asks for."""
    headers = CIMultiDict(message.headers)
    del headers[hdrs.CONTENT_LENGTH]
    return message._replace(headers=CIMultiDictProxy(headers), raw_headers=())
