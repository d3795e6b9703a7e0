"""Heads that came before, with what the parser made of them.

A client sends the same head with each request, and nothing of it changes but the digits of its
``Content-Length``.  aiohttp's parser reads such a head once.  Nothing here parses: a head is known where
each of its bytes but those digits came before and the parser took them for one good message, and its
digits say no more than where the body ends.

A head holds its client's key.  So one that comes no more is forgotten within two minutes, and one that
never comes again, as where each has an id of its own, is not kept at all.
"""

import asyncio
from typing import Final, NamedTuple

from aiohttp import HttpVersion11, hdrs
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.caches import CacheSize, declare
from proxy.server.serving.head import Head

__all__ = ["HeadCut", "Key", "KnownHeads", "KnownMessage", "WholeBody", "ends_once", "head_cut"]

Key = tuple[bytes, bytes]
"""A head's bytes before and behind the digits of its length, without the blank line."""

HeadCut = tuple[Key, int, int]
"""A head's key, where its body begins, and how long in bytes the head says that it is."""

MAX_HEAD_BYTES: Final = 4096
MOST_HEADS: Final = 128
"""In each of the two generations."""
MOST_SEEN: Final = 1024
AGE_S: Final = 60.0

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
    """What stands for the parser's message where the head was known; ``length`` is its body's, in bytes."""

    head: Head
    length: int


class WholeBody(StreamReader):
    """A body that is here.  It has what is asked of bodies at the edge, and no more of a stream's parts."""

    __slots__ = ("_whole",)

    def __init__(self, whole: bytes) -> None:
        # Without the base's own, which makes a stream that has yet to come.
        self._whole = whole
        self._exception = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._whole)} bytes>"

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        self._exception = exc

    def is_eof(self) -> bool:
        return True

    def at_eof(self) -> bool:
        return not self._whole

    def read_nowait(self, n: int = -1) -> bytes:
        """All of it: nobody asks for a part."""
        if self._exception is not None:
            raise self._exception
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
