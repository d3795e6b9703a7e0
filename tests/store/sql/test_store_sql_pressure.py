"""A database that does not keep up: who waits, what is written first, and what is lost first."""

import asyncio
from collections.abc import Sequence

import pytest
from waiting import LATE_S, PATIENCE_S, until

from proxy.base.errors import StoreUnavailable
from proxy.store.rows import Row, upsert
from proxy.store.sql.writing.back_pressure import BackPressure
from proxy.store.sql.writing.writer import GroupWriter, WriteError, WriterHooks
from proxy.store.sql.writing.writes import Batch, Write

PUT = upsert("t", ("id", "state"), ("id",))
LIMIT = 160


class _Database:
    """A database that needs many turns of the event loop for a commit; a test can make it fail or hang."""

    def __init__(self) -> None:
        self.groups: list[list[Row]] = []
        self.failure: str | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def write(self, batches: Sequence[Batch]) -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        await self.answers.wait()
        if self.failure is not None:
            raise WriteError(self.failure, "no")
        self.groups.append([row for _, rows in batches for row in rows])

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group]


async def _nothing_first() -> Sequence[tuple[str, Row]]:
    return ()


async def _never_again() -> float:
    return LATE_S


def _writer(database: _Database, *, stalls_after_s: float = LATE_S, max_bytes: int = 1 << 30) -> GroupWriter:
    hooks = WriterHooks(_nothing_first, _never_again)
    writer = GroupWriter(hooks, max_writes=LIMIT, max_bytes=max_bytes, lock_timeout_s=stalls_after_s)
    writer.start(database, tidy_in_s=None)
    return writer


def _crowded(writer: GroupWriter) -> bool:
    return writer.pressure.crowded


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes groups of ten writes."""
    monkeypatch.setattr("proxy.store.sql.writing.writer._GROUP_WRITES", 10)


async def _run(writer: GroupWriter, number: int, *, steps: int = 3) -> None:
    """Act as a run: before each step wait for room, then put rows that only people read."""
    for step in range(steps):
        await writer.pressure.wait(LATE_S)
        for row in range(4):
            writer.put(Write("a", [(number, step, row)], needed=row == 0))
            await asyncio.sleep(0)


async def test_a_slow_database_that_commits_loses_nothing() -> None:
    """Of twenty runs at a time that write far more than the queue holds, every row is committed."""
    database = _Database()
    writer = _writer(database)

    async def client(number: int) -> None:
        for each in range(10):
            await _run(writer, 100 * number + each)

    await asyncio.gather(*map(client, range(20)))
    assert writer.lost == 0
    assert await writer.aclose(LATE_S)
    assert writer.lost == 0
    assert len(set(database.rows)) == 20 * 10 * 3 * 4 > 10 * LIMIT


async def test_without_the_wait_rows_are_lost() -> None:
    """The same rows are more than the queue holds."""
    database = _Database()
    writer = _writer(database)
    for number in range(LIMIT + 20):
        writer.put(Write("a", [(number,)]))
    assert (writer.lost, writer.pressure.crowded) == (20, True)
    assert await writer.aclose(LATE_S)
    assert not _crowded(writer)


async def test_a_database_that_hangs_stops_no_run() -> None:
    """If no group is committed any more, runs go on, and the queue stays within its limit."""
    database = _Database()
    database.answers.clear()
    writer = _writer(database, stalls_after_s=0.2)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(_run(writer, number) for number in range(40)))
    assert writer.lost > 0
    assert writer.waiting <= LIMIT + 10
    assert not _crowded(writer)
    assert len(writer.pressure._waiting) == 0
    await writer.pressure.wait(LATE_S)  # Nobody waits a second time.
    await _run(writer, 41)
    database.answers.set()
    await until(lambda: not writer.waiting)
    for number in range(LIMIT):
        writer.put(Write("a", [(number,)]))
    assert _crowded(writer)  # The database gets on, so runs wait again.
    assert await writer.aclose(LATE_S)


async def test_a_database_that_fails_stops_no_run() -> None:
    """While the database cannot be written nobody waits, and who waits goes on when that is known."""
    database = _Database()
    database.answers.clear()
    writer = _writer(database)
    for number in range(LIMIT // 2 + 10):
        writer.put(Write("a", [(number,)]))
    assert _crowded(writer)
    waiting = [asyncio.ensure_future(writer.pressure.wait(LATE_S)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    database.failure = "disk full"
    database.answers.set()
    await asyncio.gather(*waiting)
    writer.put(Write("a", [(0,)]))
    assert not _crowded(writer)
    database.failure = None
    assert await writer.aclose(LATE_S) or writer.failure == "disk full"


async def test_a_run_that_is_given_up_makes_no_other_wait() -> None:
    """A cancelled run leaves the line, and a wait ends at the end of its own time."""
    database = _Database()
    database.answers.clear()
    writer = _writer(database)
    for number in range(LIMIT):
        writer.put(Write("a", [(number,)]))
    first, second = (asyncio.ensure_future(writer.pressure.wait(LATE_S)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await writer.pressure.wait(0.05)
    assert (first.cancelled(), second.done()) == (True, False)
    database.answers.set()
    await second
    assert await writer.aclose(LATE_S)


async def test_what_clients_need_is_written_first() -> None:
    """A write that a client's next request needs passes those that only people read; each line keeps its
    order."""
    database = _Database()
    database.answers.clear()
    writer = _writer(database)
    writer.put(Write("a", [("first",)]))
    await until(lambda: writer._inflight == 1)
    for number in range(12):
        writer.put(Write("a", [("read", number)], needed=False))
    for number in range(12):
        writer.put(Write("a", [("needed", number)]))
    database.answers.set()
    await writer.flush(needed=True)
    committed = database.rows
    assert committed[1:13] == [("needed", number) for number in range(12)]
    await writer.flush()
    assert database.rows[13:] == [("read", number) for number in range(12)]
    assert await writer.aclose(LATE_S)


@pytest.mark.parametrize("full", ["writes", "bytes"])
async def test_what_only_people_read_is_lost_first(full: str) -> None:
    """In a full queue the newest write that only people read makes room for one that is needed; a report that
    waits for its place in the queue is not lost."""
    database = _Database()
    database.answers.clear()
    size = Write("a", [(0,)]).size
    writer = _writer(database, max_bytes=LIMIT * size if full == "bytes" else 1 << 30)
    if full == "bytes":
        writer._max_writes = 10 * LIMIT
    writer.put(Write("a", [(-1, 0)]))
    await until(lambda: writer._inflight == 1)
    held = 1 if full == "bytes" else 0
    for number in range(LIMIT - held):
        writer.put(Write("a", [(number, 0)], needed=number % 2 == 0))
    flushing = asyncio.ensure_future(writer.flush())
    await asyncio.sleep(0)
    writer.put(Write("a", [(LIMIT, 0)], needed=False))
    assert writer.lost == 1
    for number in range(LIMIT, LIMIT + 10):
        writer.put(Write("a", [(2 * number, 0)]))
    assert writer.lost >= 11
    database.answers.set()
    await flushing
    assert await writer.aclose(LATE_S)
    written = {number for number, _ in database.rows[1:]}
    assert written >= {*range(0, LIMIT - held, 2), *range(2 * LIMIT, 2 * LIMIT + 20, 2)}
    assert {1, 3, 5} <= written


async def test_a_later_state_takes_the_place_of_one_that_waits() -> None:
    """A row whose state changes while it waits is one write, in the place of the first, also without room."""
    database = _Database()
    database.answers.clear()
    writer = _writer(database)
    writer.put(Write("a", [("first", 0)]))
    await until(lambda: writer._inflight == 1)
    writer.put(Write(PUT, [("r1", "began")], state_of=("t", "r1")))
    while writer._queue.count < LIMIT:
        writer.put(Write("a", [(writer._queue.count, 0)]))
    size = writer._queue.bytes
    writer.put(Write(PUT, [("r1", "ended well")], state_of=("t", "r1"), needed=False))
    assert (writer._queue.count, writer._queue.bytes, writer.lost) == (LIMIT, size + 5, 0)
    database.answers.set()
    await writer.flush()
    assert database.groups[1][0] == ("r1", "ended well")
    writer.put(Write(PUT, [("r1", "once more")], state_of=("t", "r1")))
    await writer.flush()
    assert database.rows[-1] == ("r1", "once more")
    assert await writer.aclose(LATE_S)


async def test_runs_go_on_in_order() -> None:
    """After a commit only the first runs go on, as many as there is room for; later runs wait behind the
    others."""
    pressure = BackPressure(lambda: 0, LATE_S)
    pressure.begin(None)
    waiting = [asyncio.ensure_future(pressure.wait(LATE_S)) for _ in range(4)]
    await asyncio.sleep(0)
    pressure.ease(0)
    pressure.ease(16)
    await asyncio.wait(waiting[:2])
    assert ([one.done() for one in waiting], pressure.crowded) == ([True, True, False, False], True)
    pressure.ease(17)
    await asyncio.wait(waiting)
    assert not pressure.crowded
    await pressure.wait(LATE_S)


async def test_a_closed_writer_makes_nobody_wait() -> None:
    """Runs that wait go on when the record closes; nothing is queued any more."""
    database = _Database()
    database.answers.clear()
    writer = _writer(database)
    for number in range(LIMIT):
        writer.put(Write("a", [(number,)]))
    waiting = asyncio.ensure_future(writer.pressure.wait(LATE_S))
    await asyncio.sleep(0)
    assert not await writer.aclose(0.05)
    await waiting
    with pytest.raises(StoreUnavailable):
        await writer.probe()
