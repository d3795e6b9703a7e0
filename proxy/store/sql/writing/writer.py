"""The only writer of a record in SQL: a queue, and a task that commits it in groups.

Callers queue writes and continue without waiting for a disk. A group is one transaction: all writes that are
queued when it begins, in order. It begins at once if a caller waits for it or the group is full. Otherwise it
begins a moment after its first write, so that writes close together cost one commit.

If the database does not keep up, runs wait (:mod:`.back_pressure`), and what a client's next
request needs is written first (:mod:`.write_queue`). While the database cannot be written,
nobody waits, and writes stay queued up to a limit. Beyond the limit they are lost, which is counted and
logged once; what clients need is lost last.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from proxy.base.caches import CacheSize, declare
from proxy.base.errors import StoreUnavailable
from proxy.base.hard_timeout import ends_in_time
from proxy.store.rows import Row
from proxy.store.sql.writing.back_pressure import BackPressure
from proxy.store.sql.writing.write_queue import WriteQueue
from proxy.store.sql.writing.writes import Batch, Write, batches_of

_log = logging.getLogger(__name__)

_GROUP_WRITES = 1000
_GROUP_BYTES = 8 * 2**20
_LINGER_S = 0.02
_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 1.0
_TIDY_AGAIN_S = 60.0


class WriteError(Exception):
    """The error of a database for a group that it did not commit.

    ``failure`` is one word for a fault of the whole database; ``None`` if a row of the group is at fault. The
    message contains no value of a row.
    """

    def __init__(self, failure: str | None, message: str) -> None:
        self.failure = failure
        super().__init__(message)


class RowRefused(StoreUnavailable):
    """The database refused this particular write, although it can be written."""


class Database(Protocol):
    """The database in which groups are committed."""

    async def write(self, batches: Sequence[Batch]) -> None:
        """Commit all batches in one transaction; without any, check whether a commit would be possible.

        Raises :class:`WriteError` if nothing was committed, as far as that can be known. The group is then
        written again, so it must be safe to execute each statement twice.
        """


class WriterHooks(Struct, frozen=True):
    """The callbacks of the store for the writer.

    ``prepare`` runs before the first group and returns statements that begin it. They also begin later groups
    until one is committed, and again after a failure, as a heartbeat. ``tidy`` has the connection to itself
    while it runs, and returns the seconds until its next call.
    """

    prepare: Callable[[], Awaitable[Sequence[tuple[str, Row]]]]
    tidy: Callable[[], Awaitable[float]]


class GroupWriter:
    """Accepts writes in the event loop's thread and commits them in groups.

    ``lost`` counts the writes that never reached the database, ``lost_needed`` those of them that a client's
    next request needs. ``failure`` is one word while the database cannot be written, else ``None``.
    """

    def __init__(self, hooks: WriterHooks, *, max_writes: int, max_bytes: int, lock_timeout_s: float) -> None:
        self.lost = 0
        self.lost_needed = 0
        self.failure: str | None = None
        self._hooks = hooks
        self._max_writes = max_writes
        self._max_bytes = max_bytes
        self._lock_timeout_s = lock_timeout_s
        self._queue = WriteQueue()
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
        self._unexpected: type[Exception] | None = None
        self._committed = 0
        """The number of committed groups: the sign that the database is alive, however long the queue is."""
        self.pressure = BackPressure(self._progress, lock_timeout_s)
        declare("record_queue", self._cache_size)

    @property
    def waiting(self) -> int:
        """The number of writes that are queued or being committed."""
        return self._queue.count + self._inflight

    @property
    def prepared(self) -> bool:
        """Whether a group of writes was ever committed."""
        return self._prepared

    @property
    def running(self) -> bool:
        """Whether the writer accepts writes."""
        return self._task is not None and not self._task.done() and not self._closing

    def start(self, db: Database, *, tidy_in_s: float | None) -> None:
        """Begin to write to ``db``, which must have no other writer."""
        self._db = db
        self._task = asyncio.create_task(self._run(tidy_in_s), name="record-writer")
        self._task.add_done_callback(_report_crash)

    def note_failure(self, failure: str) -> None:
        """Note that the database is gone, and retry even while nothing is to be written."""
        if self.running and self.failure is None:
            self._fail(failure)
            self._work.set()

    def put(self, write: Write) -> None:
        """Queue a write, or lose it if there is no room. Never waits, never raises.

        Without room, writes that nobody needs are lost for a write that is needed.
        """
        if self._closing or self._task is None or self._task.done():
            self.drop_as_lost([write], "the record is closed")
            return
        if write.state_of is not None and self._queue.take_place(write):
            return
        while self._queue.count >= self._max_writes or self._held + write.size > self._max_bytes:
            fits = write.needed and write.size <= self._max_bytes
            dropped = self._queue.drop_last_unneeded() if fits else None
            self.drop_as_lost(
                [dropped or write], f"too many writes wait ({self.failure or 'the disk is too slow'})"
            )
            if dropped is None:
                return
        self._append(write)
        if self._queue.count * 2 > self._max_writes or self._queue.bytes * 2 > self._max_bytes:
            self.pressure.begin(self.failure)

    def withdraw(self, write: Write) -> bool:
        """Remove a queued write without settling it; return whether that was in time.

        A write that is being committed may still succeed and is settled, but it is not retried.
        """
        write.withdrawn = True
        return self._queue.remove(write)

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

        Raises :class:`StoreUnavailable` if it is not, at the latest after ``lock_timeout_s``;
        the subclass :class:`RowRefused` means that one of its rows is at fault. If the caller got such an
        error or was cancelled during a commit that then succeeds, the write that ``undo`` returns follows.
        """
        if self._queue.count >= 2 * self._max_writes:  # A full queue alone must not refuse it.
            raise StoreUnavailable(f"too many writes to the record wait ({self.failure or 'slow disk'})")
        done = asyncio.get_running_loop().create_future()
        write = Write(statement, rows, done=done, undo=undo, in_order=in_order, also=also)
        if self._held + write.size > 2 * self._max_bytes:
            raise StoreUnavailable(f"too many writes to the record wait ({self.failure or 'slow disk'})")
        await self._wait_for(write, self._lock_timeout_s)

    async def flush(self, timeout_s: float | None = None, *, needed: bool = False) -> None:
        """Return when every write queued before this call is committed, or every write that is ``needed``.

        Raises :class:`~proxy.base.errors.StoreUnavailable` if the database cannot be written.
        """
        if self._queue.count or self._inflight:
            await self.probe(timeout_s, needed=needed)

    async def probe(self, timeout_s: float | None = None, *, needed: bool = False) -> None:
        """Do the same as :meth:`flush`, but take the write lock even if nothing is queued."""
        mark = Write("", (), done=asyncio.get_running_loop().create_future(), needed=needed)
        await self._wait_for(mark, self._lock_timeout_s if timeout_s is None else timeout_s)

    async def settled(self, timeout_s: float, *, probing: bool = False) -> bool:
        """Return whether :meth:`flush`, or :meth:`probe`, of what is needed succeeds in time."""
        try:
            await (self.probe if probing else self.flush)(timeout_s, needed=True)
        except StoreUnavailable:
            return False
        return True

    async def aclose(self, timeout_s: float) -> bool:
        """Write what is queued, within ``timeout_s`` seconds; return whether all of it was written."""
        task, self._closing = self._task, True
        if task is None:
            return True
        self._hurry()
        if not await ends_in_time(task, timeout_s, self._progress):
            task.cancel()
            await asyncio.wait({task})
        self._rest()
        self.pressure.end()
        left = self._queue.clear()
        rest = [write for write in left if not write.abandoned]
        for write in left:
            if write.abandoned:
                _skip(write)
        self.drop_as_lost(rest, f"the record closes ({self.failure or 'the disk is too slow'})")
        if self._burst_lost:  # No later commit will log it.
            _log.error("the record is closed; %d writes were lost", self._burst_lost)
        self._task = None
        return not rest and self.failure is None

    async def _wait_for(self, write: Write, timeout_s: float) -> None:
        if write.done is None or not self.running:
            raise StoreUnavailable("the record is closed")
        self._append(write)
        self._hurry()
        try:
            # While groups before this one are committed, the database is alive, and this one's turn comes.
            in_time = await ends_in_time(write.done, timeout_s, self._progress)
        finally:
            write.done.cancel()  # Does nothing after its end.
        if not in_time:
            raise StoreUnavailable(
                f"the record could not be written within {timeout_s:g} s ({self.failure or 'slow disk'})"
            )
        write.done.result()

    def _progress(self) -> int:
        return self._committed

    def _append(self, write: Write) -> None:
        self._queue.append(write)
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(_LINGER_S, self._work.set)
        if self._queue.bytes > _GROUP_BYTES or self._queue.count >= _GROUP_WRITES:
            self._work.set()

    def _hurry(self) -> None:
        """Begin the next group now, also if it is a retry."""
        self._work.set()
        self._urgent.set()

    async def _run(self, tidy_in_s: float | None) -> None:
        """Run the writer: wait for writes, write a group, and tidy up from time to time."""
        loop = asyncio.get_running_loop()
        tidy_at = loop.time() + tidy_in_s if tidy_in_s is not None else math.inf
        retry_s = _FIRST_RETRY_S
        while self._queue.count or not self._closing:
            if self.failure is not None:
                await _sleep_until(self._urgent, retry_s)
                retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
            else:
                retry_s = _FIRST_RETRY_S
                await _sleep_until(self._work, tidy_at - loop.time())
            self._rest()
            try:
                if self._queue.count or self.failure is not None:
                    await self._group()
                if self.failure is None and not self._closing and loop.time() >= tidy_at:
                    tidy_at = loop.time() + _TIDY_AGAIN_S
                    wait_s = await self._hooks.tidy()
                    tidy_at = loop.time() + wait_s  # The time after the call: it may take long.
            # The boundary of the task: without it nothing more would be written until the next start.
            except Exception as error:  # noqa: BLE001
                self._note_unexpected(error)
            if self._closing and self.failure not in (None, "locked"):
                return  # A lock may be released in time, but a full disk will not recover.

    def _note_unexpected(self, error: Exception) -> None:
        """Log an error that no database should raise; for errors in a row of the same kind once."""
        if type(error) is not self._unexpected:
            _log.error("the writer of the record goes on after %s", type(error).__name__, exc_info=error)
        self._unexpected = type(error)

    def _rest(self) -> None:
        """Reset the wake-up events: all queued writes are about to be written."""
        self._work.clear()
        self._urgent.clear()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    async def _group(self) -> None:
        queued = self._queue.bytes
        group = self._take()
        self._inflight = len(group)
        self._inflight_bytes = queued - self._queue.bytes
        try:
            await self._transaction(group)
        except WriteError as error:
            if error.failure is not None:
                self._requeue(group, error.failure)
            elif group:
                await self._without_faults(group)
        except asyncio.CancelledError:
            self._queue.put_back(group)  # aclose counts them as lost.
            raise
        else:
            self._recovered()
            self._settle(group)
        finally:
            self._inflight = 0
            self._inflight_bytes = 0
            if self.pressure.crowded:
                self.pressure.ease(self._room())

    @property
    def _held(self) -> int:
        return self._queue.bytes + self._inflight_bytes

    def _room(self) -> int:
        """Return how many writes runs may add: until the queue is half full, or full if nothing is queued."""
        if self._held > self._max_bytes // 2:
            return 0
        return self._max_writes // 2 - self._queue.count if self._queue.count else self._max_writes

    def _cache_size(self) -> CacheSize:
        """Return the memory size: each row counts twice, because the record it was made of is kept too."""
        return CacheSize(2 * self._held, 4 * self._max_bytes)

    def _take(self) -> list[Write]:
        group: list[Write] = []
        for write in self._queue.take(_GROUP_WRITES, _GROUP_BYTES):
            if write.withdrawn or (write.done is not None and write.abandoned):
                _skip(write)
            else:
                group.append(write)
        if self._queue.count:
            self._work.set()  # The rest follows at once.
        return group

    async def _transaction(self, group: Iterable[Write]) -> None:
        db = self._db
        if db is None:
            raise ValueError("the writer was not started")
        batches = batches_of(group)
        opening: Sequence[Batch] = ()
        try:
            if self.failure is not None or (batches and not self._prepared):
                opening = [(statement, [row]) for statement, row in await self._hooks.prepare()]
            await db.write([*opening, *batches])
        except WriteError:
            raise
        # The boundary to the driver: perhaps one row is at fault, which is then found and lost alone.
        except Exception as error:
            self._note_unexpected(error)
            raise WriteError(None, type(error).__name__) from error
        self._committed += 1
        self._prepared = self._prepared or bool(opening)

    async def _without_faults(self, group: list[Write]) -> None:
        """Write a group with a refused row in halves, so that only that row is lost."""
        parts = [*_halves(group)] if len(group) > 1 else [group]  # The whole group has just failed.
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
                    parts += self._refuse(part[0], error)
                else:
                    parts += _halves(part)
            else:
                self._settle(part)
        self._recovered()

    def _refuse(self, write: Write, error: WriteError) -> list[list[Write]]:
        """Lose a write that the database refuses; return the part to write in its place, if any."""
        why = f"the database refuses the row ({error})"
        if write.before is not None:
            self.drop_as_lost([Write(write.statement, write.rows, needed=write.needed)], why)
            return [[Write(write.statement, write.before, settled=write.settled)]]
        if write.done is not None and not write.done.done():
            write.done.set_exception(RowRefused(f"the record refuses the row ({error})"))
            if write.settled is not None:
                write.settled(False)
        else:
            self.drop_as_lost([write], why)
        return []

    def _requeue(self, group: Sequence[Write], failure: str) -> None:
        """Queue a group again; fail callers that wait for a commit now, unless the database is only
        locked."""
        keep: list[Write] = []
        for write in group:
            if write.done is not None and failure != "locked":
                if not write.done.done():
                    write.done.set_exception(StoreUnavailable(f"the record cannot be written: {failure}"))
                if write.settled is not None:
                    write.settled(False)
            else:
                keep.append(write)
        self._queue.put_back(keep)
        self._fail(failure)

    def _fail(self, failure: str) -> None:
        if self.failure is None:
            _log.error(
                "the record cannot be written (%s): runs go on, tools with side effects are refused, "
                "%d writes wait",
                failure,
                self._queue.count,
            )
        self.failure = failure
        self.pressure.end()

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

    def drop_as_lost(self, writes: Sequence[Write], why: str) -> None:
        """Count writes as lost, and log the first of a burst as an error."""
        if not writes:
            return
        if self._burst_lost == 0:
            _log.error("writes to the record are being lost: %s", why)
        self._burst_lost += len(writes)
        self.lost += len(writes)
        for write in writes:
            self.lost_needed += write.needed
            if write.done is not None and not write.done.done():
                write.done.set_exception(StoreUnavailable(f"the record could not be written: {why}"))
            if write.settled is not None:
                write.settled(False)


def _halves(part: list[Write]) -> tuple[list[Write], list[Write]]:
    """Return the later half and the earlier one, in the order for a stack."""
    middle = len(part) // 2
    return part[middle:], part[:middle]


def _skip(write: Write) -> None:
    if write.settled is not None:
        write.settled(False)


def _report_crash(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("the writer of the record has died: %s", type(error).__name__, exc_info=error)


async def _sleep_until(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so many seconds: then the timer sets it. The caller must clear it."""
    if math.isinf(seconds):
        await event.wait()
        return
    timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
