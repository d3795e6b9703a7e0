"""Logs in Redis or Valkey Streams, which every worker of every host reads.

Each log is a stream: event N has the id ``N-0``, so an event that is sent twice is stored once. The process
with the run keeps its log in memory, too, and sends it again after an outage. A stream lives for
:data:`LEASE_S` seconds, which its process renews; the stream of a dead process goes with its lease. The bytes
of events are encrypted with a key that only the record has.
"""

import asyncio
import contextlib
import hashlib
import os
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from msgspec import Struct
from redis.exceptions import RedisError, ResponseError

from proxy.api.detached.logs.event_log import (
    GONE,
    KEEP_S,
    MAX_EVENTS,
    MAX_LOG_BYTES,
    Event,
    EventLog,
    LocalLogs,
    LogGone,
    LogReader,
)
from proxy.server.limits.redis import close_storage, open_storage

if TYPE_CHECKING:
    from limits.aio.storage.redis.redispy import RedispyBridge

LEASE_S: Final = 15.0
_RENEW_S: Final = 5.0
_ANSWER_S: Final = 5.0
"""The most seconds to wait for one answer of Redis."""
_BLOCK_S: Final = 2.0
"""The most seconds for which a reader waits in Redis at a time."""
_CLOSE_S: Final = 1.0
_PROBE_S: Final = (0.1, 5.0)
_BATCH: Final = 256
_BATCH_BYTES: Final = 1 << 20
"""A batch ends with the log that reaches so many bytes: after an outage every log is sent again, and one
answer of Redis may take only :data:`_ANSWER_S`."""
_MOST_READERS: Final = 256
"""The most logs that this process reads in Redis at a time; each takes a connection."""
_SEEN: Final = b"equal or smaller"
_NONCE_BYTES: Final = 12
_HEAD: Final = struct.Struct(">cq")
_EVENT, _ENDED, _BROKEN_OFF = b"e", b"f", b"p"


class _Seal:
    """Encrypts events with AES-256-GCM; each is bound to its log and its place there."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._ciphers = [
            AESGCM(hashlib.blake2b(key=key, digest_size=32, person=b"event logs").digest()) for key in keys
        ]

    def close(self, text: bytes, key: str, place: int) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._ciphers[0].encrypt(nonce, text, f"{key} {place}".encode())

    def open(self, sealed: bytes, key: str, place: int) -> bytes:
        """Return the text; raises :class:`LogGone` if no key opens it."""
        from cryptography.exceptions import InvalidTag

        for cipher in self._ciphers:
            with contextlib.suppress(InvalidTag):
                return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], f"{key} {place}".encode())
        raise LogGone


class _Mirror(Struct, eq=False):
    """A log of this process, and how much of it is in Redis."""

    name: str
    key: str
    log: EventLog
    keep_s: float
    sent: int = 0


class RedisLogs:
    """The logs of all processes that share a Redis; see
    :class:`~proxy.api.detached.logs.event_log.EventLogs`."""

    def __init__(self, url: str, keys: Sequence[bytes], *, prefix: str = "toolrelay") -> None:
        """``keys`` are 32 bytes each: the first encrypts, all of them decrypt."""
        self._prefix = prefix
        self._seal = _Seal(keys)
        self._storage = open_storage(url, prefix, _ANSWER_S)
        self._client: Any = cast("RedispyBridge", self._storage.bridge).get_connection()
        self._local = LocalLogs(self._dropped)
        self._mirrors: dict[str, _Mirror] = {}
        self._news: dict[str, None] = {}
        self._to_delete: list[str] = []
        self._failures = 0
        self._sender: asyncio.Task[None] | None = None
        self._renewer: asyncio.Task[None] | None = None
        self._places = asyncio.Semaphore(_MOST_READERS)
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.server")

    def open(self, name: str, *, keep_s: float = KEEP_S, max_bytes: int = MAX_LOG_BYTES) -> EventLog:
        log = self._local.open(name, keep_s=keep_s, max_bytes=max_bytes)
        self._mirrors[name] = _Mirror(name, self._key(name), log, keep_s)
        log.on_change.append(lambda: self._changed(name))
        if self._renewer is None or self._renewer.done():
            self._renewer = asyncio.get_running_loop().create_task(self._renew())
        return log

    @asynccontextmanager
    async def reader(self, name: str) -> AsyncIterator[LogReader]:
        if self._local.get(name) is not None:
            async with self._local.reader(name) as local:
                yield local
            return
        if self._places.locked():
            yield GONE
            return
        async with self._places:
            yield _Reader(self._client, self._seal, self._key(name))

    async def is_read(self, name: str) -> bool:
        if await self._local.is_read(name):
            return True
        try:
            return bool(await self._client.exists(_readers_of(self._key(name))))
        except (RedisError, OSError, TimeoutError):
            return False

    def drop(self, name: str) -> None:
        self._local.drop(name)

    async def aclose(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                if self._sender is not None:
                    await self._sender
        tasks = [task for task in (self._sender, self._renewer) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._mirrors.clear()
        await self._local.aclose()
        await close_storage(self._storage)

    def _key(self, name: str) -> str:
        """Return the key of a log. It shows nothing of the name, which may hold a caller's."""
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
        return f"{self._prefix}:events:{digest}"

    def _dropped(self, name: str) -> None:
        """Forget a log, in Redis too if its events were dropped before its end was sent."""
        mirror = self._mirrors.pop(name, None)
        if mirror is not None and mirror.log.full:
            self._to_delete.append(mirror.key)

    def _changed(self, name: str) -> None:
        self._news[name] = None
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        """Send what is new in all logs, batch by batch, until nothing is."""
        await asyncio.sleep(0)  # What a run writes next goes into the first batch, too.
        while self._news or self._to_delete:
            names, self._news = list(self._news), {}
            batch = [mirror for name in names if (mirror := self._mirrors.get(name)) is not None]
            try:
                await self._send_batch(batch)
            # Whatever the client raises: if this task died, no log would be sent any more.
            except Exception as error:  # noqa: BLE001
                await self._wait_for_redis(error)

    async def _send_batch(self, batch: Sequence[_Mirror]) -> None:
        async with asyncio.timeout(_ANSWER_S), self._client.pipeline(transaction=False) as pipe:
            reached = []
            size = 0
            for mirror in batch:
                if size >= _BATCH_BYTES:  # The next batch begins with it.
                    self._news[mirror.name] = None
                    continue
                sent, closed, added = self._put_into(pipe, mirror)
                size += added
                reached.append((mirror, sent, closed, len(pipe)))
            deleted = self._to_delete[:_BATCH]
            for key in deleted:
                pipe.delete(key)
            answers = await pipe.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and not _is_known(answer):
                raise answer
        del self._to_delete[: len(deleted)]
        before = 0
        for mirror, sent, closed, after in reached:
            own, before = answers[before:after], after
            # This process stood still, or Redis lost its data.
            is_lost = sent > 0 and (None in own or not own[-1])
            mirror.sent = 0 if is_lost else sent
            if is_lost:
                self._news[mirror.name] = None
            elif closed:
                # From here on it is read in Redis, by this process as well.
                self.drop(mirror.name)
            elif sent < len(mirror.log.events) or mirror.log.end is not None:
                self._news[mirror.name] = None
        self._failures = 0

    def _put_into(self, pipe: Any, mirror: _Mirror) -> tuple[int, bool, int]:
        """Add the commands for the next events of a log; return the events sent then, whether its end is, and
        the bytes added."""
        log, key, place, size = mirror.log, mirror.key, mirror.sent, 0
        last = min(len(log.events), place + _BATCH)
        while place < last and size < _BATCH_BYTES:
            number, event = log.events[place]
            place += 1
            size += len(event)
            self._add(pipe, key, place, _HEAD.pack(_EVENT, number) + event)
        closes = log.end is not None and place == len(log.events)
        if closes:
            self._add(pipe, key, place + 1, _HEAD.pack(_ENDED if log.end else _BROKEN_OFF, 0))
        pipe.pexpire(key, int(1000 * (mirror.keep_s if closes else LEASE_S)))
        return place, closes, size

    def _add(self, pipe: Any, key: str, place: int, text: bytes) -> None:
        sealed = self._seal.close(text, key, place)
        # Only the first event makes a stream: a stream without its beginning could not be read.
        exists = ("NOMKSTREAM",) if place > 1 else ()
        pipe.execute_command("XADD", key, *exists, "MAXLEN", "~", MAX_EVENTS + 1, f"{place}-0", "e", sealed)

    async def _wait_for_redis(self, error: Exception) -> None:
        """Wait until Redis answers again, and then send every log from its start."""
        # Log the kind only: messages of connection errors contain addresses, and maybe more.
        self._log.warning("event_logs_unavailable", error=type(error).__name__)
        first, longest = _PROBE_S
        wait = min(first * 2**self._failures, longest)
        self._failures = min(self._failures + 1, 10)
        began = time.monotonic()
        while True:
            await asyncio.sleep(wait)
            wait = min(2 * wait, longest)
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await self._client.set(f"{self._prefix}:events:probe", "1", px=1000)
                break
        self._log.info("event_logs_available", seconds=round(time.monotonic() - began, 1))
        for mirror in self._mirrors.values():
            mirror.sent = 0
            self._news[mirror.name] = None

    async def _renew(self) -> None:
        """Renew the lives of the logs of this process, with one timer for all of them.

        The sender does it: a renewal beside it could reach Redis after the end of a log, and shorten its
        life.
        """
        while self._mirrors:
            await asyncio.sleep(_RENEW_S)
            for mirror in list(self._mirrors.values()):
                if mirror.sent:
                    self._changed(mirror.name)


class _Reader:
    """A :class:`LogReader` of a log in Redis, which waits there on a connection of its own."""

    def __init__(self, client: Any, seal: _Seal, key: str) -> None:
        self._client = client
        self._seal = seal
        self._key = key
        self._place = 0
        self._told = 0.0
        self.end: bool | None = None

    async def next(self, wait_s: float) -> Sequence[Event]:
        if self.end is not None:
            return ()
        try:
            await self._tell()
            block = max(1, int(1000 * min(wait_s, _BLOCK_S)))
            streams = {self._key: f"{self._place}-0"}
            async with asyncio.timeout(_ANSWER_S):
                answer = await self._client.xread(streams, count=_BATCH, block=block)
                if not answer and not await self._client.exists(self._key):
                    raise LogGone
        except (RedisError, OSError, TimeoutError):
            raise LogGone from None
        return [] if not answer else self._read(answer[0][1])

    async def _tell(self) -> None:
        """Let the process with the run know that somebody reads it."""
        if time.monotonic() - self._told >= LEASE_S / 3 or not self._told:
            self._told = time.monotonic()
            await self._client.set(_readers_of(self._key), "1", px=int(1000 * LEASE_S))

    def _read(self, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> Sequence[Event]:
        events = list[Event]()
        for id_, fields in entries:
            if id_ != b"%d-0" % (self._place + 1):
                raise LogGone  # Redis has dropped the events before it.
            self._place += 1
            text = self._seal.open(fields[b"e"], self._key, self._place)
            kind, number = _HEAD.unpack_from(text)
            if kind != _EVENT:
                self.end = kind == _ENDED
                break
            events.append((number, text[_HEAD.size :]))
        return events


def _readers_of(key: str) -> str:
    return f"{key}:read"


def _is_known(answer: Exception) -> bool:
    """Return whether Redis refused an event because it has it already."""
    return isinstance(answer, ResponseError) and _SEEN in str(answer).encode()
