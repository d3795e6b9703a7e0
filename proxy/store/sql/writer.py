"""The one writer of a record in SQL: a queue, and a task that commits it in groups.

Callers put writes down and go on; nothing they do waits for a disk.  A group is one transaction:
everything that is waiting when it begins, in order.  It begins at once where somebody waits for it or
where it is full, and else a moment after its first write, so that what comes together costs one commit.
A database that cannot be written keeps its writes waiting, up to a bound; only past the bound are they
lost, which is counted and said once.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.caches import CacheSize, declare
from proxy.errors import StoreUnavailable
from proxy.store.rows import Row
from proxy.store.sql.writes import Batch, Write, batches_of

__all__ = [
    "Database",
    "GroupWriter",
    "RowRefused",
    "WriteError",
    "WriterHooks",
]

_log = logging.getLogger(__name__)

_GROUP_WRITES = 1000
_GROUP_BYTES = 8 * 2**20
_LINGER_S = 0.02
_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 1.0


class WriteError(Exception):
    """What a database says of a group that it did not commit.

    ``failure`` is one word for a fault of the database as a whole; ``None`` where a row of the
    group is at fault.  The message shows no value of a row.
    """

    def __init__(self, failure: str | None, message: str) -> None:
        self.failure = failure
        super().__init__(message)


class RowRefused(StoreUnavailable):
    """The database did not take this very write; others it takes."""


class Database(Protocol):
    """Where groups are committed."""

    async def write(self, batches: Sequence[Batch]) -> None:
        """Commit all of it in one transaction; without any, find out whether one could be committed.

        Raises :class:`WriteError` with nothing committed, as far as that can be told: a group that
        fails is written again, so that each statement must bear to be executed twice.
        """
        ...


@dataclass(frozen=True, slots=True)
class WriterHooks:
    """What the store adds to the writer.

    ``prepare`` runs before the first group and gives the statements that open it; they open each
    group until one is committed, and again after a failure, as a sign of life.  ``tidy`` has the
    connection to itself while it runs, and returns the seconds after which it wants to run again.
    """

    prepare: Callable[[], Awaitable[Sequence[tuple[str, Row]]]]
    tidy: Callable[[], Awaitable[float]]


class GroupWriter:
    """Takes writes from the event loop's thread and commits them in groups.

    ``lost`` counts the writes that never reached the database.  ``failure`` is one word while
    the database cannot be written, else ``None``.
    """

    def __init__(self, hooks: WriterHooks, *, max_writes: int, max_bytes: int, lock_timeout_s: float) -> None:
        self.lost = 0
        self.failure: str | None = None
        self._hooks = hooks
        self._max_writes = max_writes
        self._max_bytes = max_bytes
        self._lock_timeout_s = lock_timeout_s
        self._queue: deque[Write] = deque()
        self._bytes = 0
        self._inflight = 0
        self._inflight_bytes = 0
        self._db: Database | None = None
        self._task: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()
        self._closing = False
        self._prepared = False
        self._burst_lost = 0
        declare("record_queue", self._cache_size)

    @property
    def waiting(self) -> int:
        """Writes that are queued or under way."""
        return len(self._queue) + self._inflight

    @property
    def prepared(self) -> bool:
        """Whether anything was ever committed."""
        return self._prepared

    @property
    def running(self) -> bool:
        """Whether writes are taken."""
        return self._task is not None and not self._task.done() and not self._closing

    def start(self, db: Database, *, tidy_in_s: float | None) -> None:
        """Begin to write to ``db``, which nobody else writes to."""
        self._db = db
        self._task = asyncio.create_task(self._run(tidy_in_s), name="record-writer")
        self._task.add_done_callback(_report_crash)

    def notice(self, failure: str) -> None:
        """Take note that the database has gone, and look for it even while nothing is to be written."""
        if self.running and self.failure is None:
            self._fail(failure)
            self._work.set()

    def put(self, write: Write) -> None:
        """Queue a write, or lose it where there is no room.  Never waits, never raises."""
        if self._closing or self._task is None or self._task.done():
            self.lose([write], "the record is closed")
        elif len(self._queue) >= self._max_writes or self._held + write.size > self._max_bytes:
            self.lose([write], f"too many writes wait ({self.failure or 'the disk is too slow'})")
        else:
            self._append(write)

    def withdraw(self, write: Write) -> bool:
        """Take a queued write back, and never settle it; whether it was in time.

        One that is under way may still be committed, but is not tried again; it is settled.
        """
        write.withdrawn = True
        try:
            self._queue.remove(write)
        except ValueError:
            return False
        self._bytes -= write.size
        return True

    async def commit(
        self,
        statement: str,
        rows: Sequence[Row],
        *,
        undo: Callable[[], Write] | None = None,
        in_order: bool = False,
        also: Sequence[Batch] = (),
    ) -> None:
        """Queue a write and return when it is committed.

        Raises :class:`~proxy.errors.StoreUnavailable` where it is not, at the latest after
        ``lock_timeout_s``, and of these :class:`RowRefused` where a row of it is at fault.  Where the
        caller was told so, or was cancelled, while the commit was already under way and then
        succeeds, what ``undo`` makes follows it.
        """
        if len(self._queue) >= 2 * self._max_writes:  # a full queue of the others keeps none of these out
            raise StoreUnavailable(f"too many writes to the record wait ({self.failure or 'slow disk'})")
        done = asyncio.get_running_loop().create_future()
        write = Write(statement, rows, done=done, undo=undo, in_order=in_order, also=also)
        if self._held + write.size > 2 * self._max_bytes:
            raise StoreUnavailable(f"too many writes to the record wait ({self.failure or 'slow disk'})")
        await self._wait_for(write, self._lock_timeout_s)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return when every write queued before this call is committed.

        Raises :class:`~proxy.errors.StoreUnavailable` where the database cannot be written.
        """
        if self._queue or self._inflight:
            await self.probe(timeout_s)

    async def probe(self, timeout_s: float | None = None) -> None:
        """Like :meth:`flush`, but takes the write lock even where nothing waits."""
        mark = Write("", (), done=asyncio.get_running_loop().create_future())
        await self._wait_for(mark, self._lock_timeout_s if timeout_s is None else timeout_s)

    async def settled(self, timeout_s: float, *, probing: bool = False) -> bool:
        """Whether :meth:`flush`, or :meth:`probe`, comes to its end in time."""
        try:
            await (self.probe(timeout_s) if probing else self.flush(timeout_s))
        except StoreUnavailable:
            return False
        return True

    async def aclose(self, timeout_s: float) -> bool:
        """Write what is queued, within ``timeout_s``; whether all of it was written."""
        task, self._closing = self._task, True
        if task is None:
            return True
        self._hurry()
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        self._rest()
        rest = [write for write in self._queue if not write.abandoned]
        for write in self._queue:
            if write.abandoned:
                _skip(write)
        self._queue.clear()
        self._bytes = 0
        self.lose(rest, f"the record closes ({self.failure or 'the disk is too slow'})")
        if self._burst_lost:  # nobody will say so later
            _log.error("the record is closed; %d writes were lost", self._burst_lost)
        self._task = None
        return not rest and self.failure is None

    async def _wait_for(self, write: Write, timeout_s: float) -> None:
        if write.done is None or not self.running:
            raise StoreUnavailable("the record is closed")
        self._append(write)
        self._hurry()
        try:
            async with asyncio.timeout(timeout_s):
                await write.done
        except TimeoutError:
            raise StoreUnavailable(
                f"the record could not be written within {timeout_s:g} s ({self.failure or 'slow disk'})"
            ) from None

    def _append(self, write: Write) -> None:
        self._queue.append(write)
        self._bytes += write.size
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(_LINGER_S, self._work.set)
        if self._bytes > _GROUP_BYTES or len(self._queue) >= _GROUP_WRITES:
            self._work.set()

    def _hurry(self) -> None:
        """Have what waits written now, and a database looked for that could not be written."""
        self._work.set()
        self._urgent.set()

    async def _run(self, tidy_in_s: float | None) -> None:
        """The writer's life: wait, write a group, tidy up now and then."""
        loop = asyncio.get_running_loop()
        tidy_at = loop.time() + tidy_in_s if tidy_in_s is not None else math.inf
        retry_s = _FIRST_RETRY_S
        while self._queue or not self._closing:
            if self.failure is not None:
                await _sleep_until(self._urgent, retry_s)
                retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
            else:
                retry_s = _FIRST_RETRY_S
                await _sleep_until(self._work, tidy_at - loop.time())
            self._rest()
            if self._queue or self.failure is not None:
                await self._group()
            if self._closing and self.failure not in (None, "locked"):
                return  # a lock may end in time, a full disk will not
            if self.failure is None and not self._closing and loop.time() >= tidy_at:
                wait_s = await self._hooks.tidy()
                tidy_at = loop.time() + wait_s

    def _rest(self) -> None:
        """Wait for the next write that comes, now that all that wait are about to be written."""
        self._work.clear()
        self._urgent.clear()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    async def _group(self) -> None:
        group = self._take()
        self._inflight = len(group)
        self._inflight_bytes = sum(write.size for write in group)
        try:
            await self._transaction(group)
        except WriteError as error:
            if error.failure is not None:
                self._requeue(group, error.failure)
            else:
                await self._without_faults(group)
        except asyncio.CancelledError:
            self._queue.extendleft(reversed(group))  # aclose counts them as lost
            raise
        else:
            self._recovered()
            self._settle(group)
        finally:
            self._inflight = 0
            self._inflight_bytes = 0

    @property
    def _held(self) -> int:
        return self._bytes + self._inflight_bytes

    def _cache_size(self) -> CacheSize:
        """A row, and beside it the record that it was made of."""
        return CacheSize(2 * self._held, 4 * self._max_bytes)

    def _take(self) -> list[Write]:
        group: list[Write] = []
        size, room = 0, _GROUP_WRITES
        while self._queue and room and size < _GROUP_BYTES:
            write = self._queue.popleft()
            self._bytes -= write.size
            if write.withdrawn or (write.done is not None and write.abandoned):
                _skip(write)
                continue
            group.append(write)
            size += write.size
            room -= 1
        if self._queue:
            self._work.set()  # the rest follows at once
        return group

    async def _transaction(self, group: Iterable[Write]) -> None:
        db = self._db
        if db is None:
            raise ValueError("the writer was not started")
        batches = batches_of(group)
        opening: Sequence[Batch] = ()
        if self.failure is not None or (batches and not self._prepared):
            opening = [(statement, [row]) for statement, row in await self._hooks.prepare()]
        await db.write([*opening, *batches])
        self._prepared = self._prepared or bool(opening)

    async def _without_faults(self, group: list[Write]) -> None:
        """Write a group that holds a row the database refuses, in halves, so that only that row is lost."""
        parts = [*_halves(group)] if len(group) > 1 else [group]  # the whole of it has just failed
        while parts:
            part = parts.pop()
            try:
                await self._transaction(part)
            except WriteError as error:
                if error.failure is not None:
                    self._requeue(
                        [write for each in (part, *reversed(parts)) for write in each], error.failure
                    )
                    return
                if len(part) == 1:
                    self._refuse(part[0], error)
                else:
                    parts += _halves(part)
            else:
                self._settle(part)
        self._recovered()

    def _refuse(self, write: Write, error: WriteError) -> None:
        if write.done is not None and not write.done.done():
            write.done.set_exception(RowRefused(f"the record refuses the row ({error})"))
            if write.settled is not None:
                write.settled(False)
        else:
            self.lose([write], f"the database refuses the row ({error})")

    def _requeue(self, group: Sequence[Write], failure: str) -> None:
        """Keep a group for later; whoever waits for a commit is told now, unless it is only locked."""
        keep: list[Write] = []
        for write in group:
            if write.done is not None and failure != "locked":
                if not write.done.done():
                    write.done.set_exception(StoreUnavailable(f"the record cannot be written: {failure}"))
                if write.settled is not None:
                    write.settled(False)
            else:
                keep.append(write)
        self._queue.extendleft(reversed(keep))
        self._bytes += sum(write.size for write in keep)
        self._fail(failure)

    def _fail(self, failure: str) -> None:
        if self.failure is None:
            _log.error(
                "the record cannot be written (%s): runs go on, tools with side effects are refused, "
                "%d writes wait",
                failure,
                len(self._queue),
            )
        self.failure = failure

    def _settle(self, group: Iterable[Write]) -> None:
        for write in group:
            if write.undo is not None and write.abandoned:
                self._append(write.undo())
            elif write.done is not None and not write.done.done():
                write.done.set_result(None)
            if write.settled is not None:
                write.settled(True)

    def _recovered(self) -> None:
        if self.failure is not None or self._burst_lost:
            _log.warning("the record is written again; %d writes were lost", self._burst_lost)
        self.failure = None
        self._burst_lost = 0

    def lose(self, writes: Sequence[Write], why: str) -> None:
        """Count writes as lost; the first of a burst is said loudly."""
        if not writes:
            return
        if self._burst_lost == 0:
            _log.error("writes to the record are being lost: %s", why)
        self._burst_lost += len(writes)
        self.lost += len(writes)
        for write in writes:
            if write.done is not None and not write.done.done():
                write.done.set_exception(StoreUnavailable(f"the record could not be written: {why}"))
            if write.settled is not None:
                write.settled(False)


def _halves(part: list[Write]) -> tuple[list[Write], list[Write]]:
    """The later half and the earlier one, as they go on a stack."""
    middle = len(part) // 2
    return part[middle:], part[:middle]


def _skip(write: Write) -> None:
    if write.settled is not None:
        write.settled(False)


def _report_crash(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("the writer of the record has died: %s", type(error).__name__, exc_info=error)


async def _sleep_until(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, which is set by itself after so many seconds; it is the waiter's to clear."""
    if math.isinf(seconds):
        await event.wait()
        return
    timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
