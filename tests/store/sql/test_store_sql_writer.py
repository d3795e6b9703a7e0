"""When the writer commits a group of writes, and which of their rows it writes."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from store_records import invocation, run, turn
from waiting import LATE_S, PATIENCE_S, until

from proxy.base.errors import StoreUnavailable
from proxy.store import rows
from proxy.store.base import RunFilter
from proxy.store.rows import Row, upsert
from proxy.store.seal import CALLS
from proxy.store.sql.store import SqlStore
from proxy.store.sql.writing.writer import GroupWriter, WriterHooks
from proxy.store.sql.writing.writes import Batch, Write, batches_of

Make = Callable[..., SqlStore]

PUT = upsert("t", ("id", "state", "seen"), ("id",))
PUT_PAIR = upsert("p", ("id", "number", "state"), ("id", "number"))


class _Database:
    """A test double that keeps each group; a test can make its writes wait."""

    def __init__(self) -> None:
        self.groups: list[list[Batch]] = []
        self.release = asyncio.Event()
        self.release.set()

    async def write(self, batches: Sequence[Batch]) -> None:
        self.groups.append(list(batches))
        await self.release.wait()


async def _nothing_first() -> Sequence[tuple[str, Row]]:
    return ()


async def _never_again() -> float:
    return LATE_S


def _writer(database: _Database) -> GroupWriter:
    hooks = WriterHooks(_nothing_first, _never_again)
    writer = GroupWriter(hooks, max_writes=10_000, max_bytes=1 << 30, lock_timeout_s=LATE_S)
    writer.start(database, tidy_in_s=None)
    return writer


def _is_idle(writer: GroupWriter) -> bool:
    return not writer.waiting


def _has_written(database: _Database) -> bool:
    return bool(database.groups)


def _tell(told: list[tuple[str, bool]], state: str, done: bool) -> None:
    told.append((state, done))


@pytest.fixture
def lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the writer delay a write that nobody waits for until after the test."""
    monkeypatch.setattr("proxy.store.sql.writing.writer._LINGER_S", LATE_S)


async def test_a_write_that_nobody_waits_for_is_written() -> None:
    """The writer commits a single row by itself, and then a row that was put during that commit."""
    database = _Database()
    writer = _writer(database)
    database.release.clear()
    writer.put(Write("a", [(1,)]))
    await until(lambda: bool(database.groups))
    writer.put(Write("a", [(2,)]))
    database.release.set()
    await until(lambda: not writer.waiting)
    assert database.groups == [[("a", [(1,)])], [("a", [(2,)])]]
    assert await writer.aclose(LATE_S)


@pytest.mark.usefixtures("lingering")
async def test_who_waits_takes_all_that_lingers_along() -> None:
    """The writer holds rows back until somebody waits for a commit, then writes all in one group."""
    database = _Database()
    writer = _writer(database)
    for number in range(3):
        writer.put(Write("a", [(number,)]))
        await asyncio.sleep(0)
    assert database.groups == []
    await writer.commit("b", [(9,)])
    assert database.groups == [[("a", [(0,), (1,), (2,)]), ("b", [(9,)])]]
    writer.put(Write("a", [(3,)]))
    await writer.flush()
    assert database.groups[1:] == [[("a", [(3,)])]]
    assert await writer.aclose(LATE_S)


@pytest.mark.usefixtures("lingering")
async def test_a_full_group_does_not_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer writes a group at once when it is full by its number of writes or its bytes."""
    monkeypatch.setattr("proxy.store.sql.writing.writer._GROUP_WRITES", 10)
    monkeypatch.setattr("proxy.store.sql.writing.writer._GROUP_BYTES", 5000)
    for number, value in ((10, 1), (1, "x" * 5000)):
        database = _Database()
        writer = _writer(database)
        for _ in range(number):
            writer.put(Write("a", [(value,)]))
        await until(partial(_is_idle, writer))
        assert len(database.groups) == 1
        assert await writer.aclose(LATE_S)


@pytest.mark.usefixtures("lingering")
async def test_an_orderly_end_loses_nothing_that_lingers() -> None:
    """Closing the writer writes rows that were put just before, even while it writes another group."""
    for busy in (False, True):
        database = _Database()
        writer = _writer(database)
        if busy:
            database.release.clear()
            flushing = asyncio.ensure_future(writer.probe())
            await until(partial(_has_written, database))
        writer.put(Write("a", [(1,)]))
        closing = asyncio.ensure_future(writer.aclose(LATE_S))
        await asyncio.sleep(0)
        database.release.set()
        assert await closing
        if busy:
            await flushing
        assert database.groups[-1] == [("a", [(1,)])]
        assert writer.lost == 0


def test_of_rows_with_one_key_the_last_is_written() -> None:
    """Of upserts with one key only the last is written; none moves past a write that must keep its place."""
    group = [
        Write(PUT, [("r1", "began", 1), ("r2", "began", 1)]),
        Write(PUT_PAIR, [("r1", 1, "x"), ("r1", 2, "x")]),
        Write(PUT, [("r1", "ended", 2)]),
        Write(PUT_PAIR, [("r1", 1, "y")]),
        Write("plain", [(1,), (1,)]),
        Write("DELETE", [("r1",)], in_order=True),
        Write(PUT, [("r1", "again", 3)]),
    ]
    assert batches_of(group) == [
        (PUT, [("r1", "ended", 2), ("r2", "began", 1)]),
        (PUT_PAIR, [("r1", 1, "y"), ("r1", 2, "x")]),
        ("plain", [(1,), (1,)]),
        ("DELETE", [("r1",)]),
        (PUT, [("r1", "again", 3)]),
    ]


@pytest.mark.usefixtures("lingering")
async def test_a_row_that_another_took_the_place_of_counts_as_written() -> None:
    """If a later upsert replaces a queued one, both are reported as committed."""
    told: list[tuple[str, bool]] = []
    database = _Database()
    writer = _writer(database)
    for state in ("began", "ended"):
        writer.put(Write(PUT, [("r1", state, 1)], settled=partial(_tell, told, state)))
    await writer.flush()
    assert database.groups == [[(PUT, [("r1", "ended", 1)])]]
    assert told == [("began", True), ("ended", True)]
    assert await writer.aclose(LATE_S)


@pytest.mark.usefixtures("lingering")
async def test_a_refused_state_does_not_take_an_earlier_one_with_it(make_sql: Make) -> None:
    """If the database refuses the last state of a row, the writer still writes the state before it."""
    store = make_sql()
    await store.start()
    store.put_run(run())
    store.put_turn(turn())
    store.put_run(run(status="no such status"))
    [found] = await store.list_runs(RunFilter())
    assert (found.status, store.lost) == ("running", 1)


@pytest.mark.usefixtures("lingering")
async def test_a_run_that_ends_as_the_store_closes_is_whole(make_sql: Make) -> None:
    """Closing the store writes a run and its turn in their last state, and another process reads them."""
    store = make_sql()
    await store.start()
    store.put_run(run())
    store.put_turn(turn())
    store.put_run(run(status="completed"))
    await store.aclose()
    assert store.lost == 0
    other = make_sql()
    await other.start()
    detail = await other.get_run("run_1")
    assert detail is not None
    assert (detail.run.status, len(detail.turns)) == ("completed", 1)


class _Slow(_Database):
    """A database that needs the same time for each group."""

    async def write(self, batches: Sequence[Batch]) -> None:
        await asyncio.sleep(0.1)
        await super().write(batches)


async def test_a_long_queue_that_is_written_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for a commit behind many groups lasts as long as they are committed, and so does a close."""
    monkeypatch.setattr("proxy.store.sql.writing.writer._GROUP_WRITES", 1)
    database = _Slow()
    writer = _writer(database)
    for number in range(8):
        writer.put(Write("a", [(number,)]))
    await writer.flush(0.4)
    assert len(database.groups) >= 8
    for number in range(8):
        writer.put(Write("a", [(number,)]))
    assert await writer.aclose(0.4)
    assert (len(database.groups) >= 16, writer.lost, writer.failure) == (True, 0, None)


async def test_a_commit_that_never_ends_is_a_failure() -> None:
    """If the database stands still, a wait for a commit ends."""
    database = _Database()
    database.release.clear()
    writer = _writer(database)
    with pytest.raises(StoreUnavailable, match="could not be written within"):
        await writer.probe(0.1)
    database.release.set()
    assert await writer.aclose(LATE_S)


class _Odd(_Database):
    """A test double that raises what no database should for one value, or for everything."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    async def write(self, batches: Sequence[Batch]) -> None:
        if self.fault == "always" or any(self.fault in row for _, rows in batches for row in rows):
            raise TypeError("odd")
        await super().write(batches)


async def test_the_writer_goes_on_after_an_error_that_it_does_not_know() -> None:
    """Only the row at fault is lost; other rows of its group and later ones are written."""
    database = _Odd("bad")
    writer = _writer(database)
    for value in ("a", "bad", "b"):
        writer.put(Write("put", [(value,)]))
    with pytest.raises(StoreUnavailable, match="TypeError"):
        await writer.commit("put", [("bad",)])
    await writer.commit("put", [("c",)])
    assert sorted(row for group in database.groups for _, rows in group for row in rows) == [
        ("a",),
        ("b",),
        ("c",),
    ]
    assert (writer.running, writer.lost) == (True, 1)
    database.fault = "always"
    with pytest.raises(StoreUnavailable, match="TypeError"):
        await writer.commit("put", [("d",)])
    database.fault = "none"
    await writer.commit("put", [("e",)])


async def test_the_writer_outlives_its_tidying(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that tidying does not expect leaves the writer running, and tidying is tried again."""
    monkeypatch.setattr("proxy.store.sql.writing.writer._TIDY_AGAIN_S", 0.01)
    tidied = 0

    async def tidy() -> float:
        nonlocal tidied
        tidied += 1
        if tidied == 1:
            raise OSError("a lock file")
        return LATE_S

    database = _Database()
    hooks = WriterHooks(_nothing_first, tidy)
    writer = GroupWriter(hooks, max_writes=10, max_bytes=1 << 20, lock_timeout_s=LATE_S)
    writer.start(database, tidy_in_s=0.0)
    await until(lambda: tidied == 2)
    await writer.commit("put", [("a",)])
    assert writer.running


async def test_an_odd_first_statement_loses_no_write() -> None:
    """Writes whose group failed before it reached the database are written, and whoever waits is told."""
    asked = 0

    async def prepare() -> Sequence[tuple[str, Row]]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise TypeError("odd")
        return []

    async def tidy() -> float:
        return LATE_S

    database = _Database()
    hooks = WriterHooks(prepare, tidy)
    writer = GroupWriter(hooks, max_writes=10, max_bytes=1 << 20, lock_timeout_s=LATE_S)
    writer.start(database, tidy_in_s=None)
    writer.put(Write("put", [("a",)]))
    async with asyncio.timeout(PATIENCE_S):
        await writer.commit("put", [("b",)])
    rows = [row for group in database.groups for _, rows in group for row in rows]
    assert (sorted(rows), writer.lost) == ([("a",), ("b",)], 0)


async def test_an_odd_heartbeat_ends_nothing() -> None:
    """With nothing to write, an unknown error while the database is probed is no row's fault."""
    database = _Odd("always")
    writer = _writer(database)
    writer.note_failure("unreachable")
    writer.put(Write("put", [("lost",)]))
    await until(lambda: writer.lost == 1)
    database.fault = "none"
    await writer.commit("put", [("a",)])
    assert writer.failure is None


async def test_a_row_that_is_replaced_before_its_commit_is_never_made(
    make_sqlite: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first state of a run and of a call is encoded only if it is still queued when its group is
    committed."""
    monkeypatch.setattr("proxy.store.sql.writing.writer._LINGER_S", 600.0)
    made: list[str] = []

    def noting(encode: Callable[[Any], Row]) -> Callable[[Any], Row]:
        def encoded(record: Any) -> Row:
            made.append(record.status)
            return encode(record)

        return encoded

    for table in (rows.RUNS, CALLS):
        monkeypatch.setattr(table, "row", noting(table.row))
    store = make_sqlite()
    await store.start()
    started = invocation(status="started", arguments_redacted=None, result_redacted=None, ended_at=None)
    store.put_run(run(status="running", ended_at=None))
    await store.open_invocation(started, durable=False)
    store.close_invocation(replace(started, status="success"))
    store.put_run(run(status="completed"))
    store.put_run(run("run_2", status="running", ended_at=None))
    assert await store.get_run("run_1") is not None
    await store.aclose()
    assert sorted(made) == ["completed", "running", "success"]


async def test_a_late_row_that_cannot_be_made_is_lost_alone(
    make_sqlite: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A first state that does not encode when its group is committed is counted as lost, and the others are
    written."""
    store = make_sqlite()
    await store.start()
    store.put_run(run("run_bad", status="running", caller=7))
    store.put_run(run("run_good", status="running"))
    assert await store.get_run("run_bad") is None
    assert await store.get_run("run_good") is not None
    assert store.lost == 1
    assert "does not encode" in caplog.text
    await store.aclose()
