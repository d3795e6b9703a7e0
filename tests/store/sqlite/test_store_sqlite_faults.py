"""The SQLite store when the disk, the file or another process fails."""

import asyncio
import logging
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from store_records import (
    T0,
    files_below,
    fill_disk,
    invocation,
    locked,
    message,
    query,
    quota,
    run,
    suspended,
    turn,
    until,
    until_failing,
)
from waiting import PATIENCE_S

from proxy.base.errors import StoreError, StoreTooNew, StoreUnavailable
from proxy.store.base import RunFilter
from proxy.store.sql.migrate import migrate_sqlite
from proxy.store.sqlite.store import SqliteStore

Make = Callable[..., SqliteStore]


@pytest.fixture
def make(make_sqlite: Make) -> Make:
    """Makes stores on one file."""
    return make_sqlite


async def test_a_durable_row_is_committed_when_the_call_returns(make: Make, tmp_path: Path) -> None:
    """Rule R1: another connection sees the row of a side effect as soon as open_invocation returns."""
    store = make()
    await store.start()
    store.put_run(run())
    await store.open_invocation(invocation(), durable=True)
    assert query(tmp_path / "r.db", "SELECT id, status FROM tool_invocations") == [("inv_1", "started")]
    assert query(tmp_path / "r.db", "SELECT id FROM runs") == [("run_1",)]


@pytest.mark.parametrize(("word", "level"), [("normal", 1), ("full", 2)])
async def test_synchronous_is_what_was_asked_for(make: Make, word: Any, level: int) -> None:
    """Rule R1: ``full`` syncs each commit (2), ``normal`` only checkpoints (1), both with a WAL."""
    store = make(synchronous=word)
    await store.start()
    assert store._db is not None
    assert [tuple(row) for row in await store._db.execute_fetchall("PRAGMA synchronous")] == [(level,)]
    assert [tuple(row) for row in await store._db.execute_fetchall("PRAGMA journal_mode")] == [("wal",)]
    assert [tuple(row) for row in await store._db.execute_fetchall("PRAGMA foreign_keys")] == [(1,)]


async def test_writes_that_wait_together_are_one_commit(make: Make, tmp_path: Path) -> None:
    """The writer commits many writes that were put at once in a few transactions, not in one each."""
    store = make()
    await store.start()
    with closing(sqlite3.connect(tmp_path / "r.db")) as watcher:
        before = watcher.execute("PRAGMA data_version").fetchone()
        for number in range(300):
            store.put_run(run(f"r{number}"))
            store.put_turn(turn(f"r{number}"))
        assert watcher.execute("PRAGMA data_version").fetchone() == before  # nothing was written yet
        assert store._db is not None
        commits = 0

        def traced(statement: str) -> None:
            nonlocal commits
            commits += statement == "COMMIT"

        await store._db.set_trace_callback(traced)
        await store.open_invocation(invocation(run_id="r1"), durable=True)
        assert 1 <= commits <= 3
    assert query(tmp_path / "r.db", "SELECT count(*) FROM turns") == [(300,)]


async def test_the_files_are_private(make: Make, tmp_path: Path) -> None:
    """Rule R3: database, log, shared memory and lock are readable by their owner alone."""
    previous = os.umask(0)
    try:
        store = make(reap=True)
        await store.start()
        await store.open_invocation(invocation(), durable=True)
    finally:
        os.umask(previous)
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in files_below(tmp_path)
    }
    lock = next(name for name in modes if name.endswith(".lock"))
    assert modes == {
        "r.db": 0o600, "r.db-wal": 0o600, "r.db-shm": 0o600, "r.db.owners": 0o700, lock: 0o600,
    }  # fmt: skip


async def test_reading_leaves_no_trace(make: Make, tmp_path: Path) -> None:
    """A store that only reads registers no owner and takes no lock."""
    first = make()
    await first.start()
    assert await first.list_runs(RunFilter()) == []
    assert await first.get_run("run_1") is None
    assert await first.find_suspended("key-1") is None
    await first.aclose()
    assert query(tmp_path / "r.db", "SELECT count(*) FROM owners") == [(0,)]
    assert not (tmp_path / "r.db.owners").exists()


async def test_while_locked_streams_go_on_and_side_effects_are_refused(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule R1: under a lock puts return at once and a durable write times out; no queued write is lost."""
    store = make(lock_timeout_s=1.5)
    await store.start()
    with locked(tmp_path / "r.db"):
        store.put_run(run())
        store.put_turn(turn())
        store.put_suspended(suspended())
        await store.open_invocation(invocation("inv_read"), durable=False)
        with pytest.raises(StoreUnavailable, match=r"within 1\.5 s"):
            await store.open_invocation(invocation("inv_effect"), durable=True)
        assert await store.healthy() is False
        assert await store.find_suspended("key-1") == suspended()
        with pytest.raises(StoreUnavailable):
            await store.list_runs(RunFilter())
        await until_failing(store)
        assert query(tmp_path / "r.db", "SELECT count(*) FROM runs") == [(0,)]
    await until(lambda: store._writer.failure is None)
    detail = await store.get_run("run_1")
    assert detail is not None
    assert [row.id for row in detail.invocations] == ["inv_read"]
    assert len(detail.turns) == 1
    assert await store.healthy() is True
    assert store.lost == 0
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(loud) == 1
    assert "(locked)" in loud[0]


async def test_a_durable_write_outlasts_a_short_lock(make: Make, tmp_path: Path) -> None:
    """A durable write waits for a lock that ends within the timeout."""
    store = make(lock_timeout_s=30)
    await store.start()
    with locked(tmp_path / "r.db"):
        opening = asyncio.create_task(store.open_invocation(invocation(), durable=True))
        await until_failing(store)
        assert not opening.done()
    await opening
    assert query(tmp_path / "r.db", "SELECT id FROM tool_invocations") == [("inv_1",)]


async def test_the_event_loop_turns_while_the_database_is_locked(make: Make, tmp_path: Path) -> None:
    """A durable write that waits for a lock does not block the event loop; other tasks keep running."""
    store = make(lock_timeout_s=0.5)
    await store.start()
    turns = 0
    with locked(tmp_path / "r.db"):
        opening = asyncio.create_task(store.open_invocation(invocation(), durable=True))
        while not opening.done():
            turns += 1
            await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        opening.result()
    assert turns > 100


async def test_a_refused_row_is_never_written_later_as_started(make: Make, tmp_path: Path) -> None:
    """Rule R1: a cancelled opening leaves no row that claims that a side effect began."""
    store = make(lock_timeout_s=30)
    await store.start()
    with locked(tmp_path / "r.db"):
        opening = asyncio.create_task(store.open_invocation(invocation(), durable=True))
        await until_failing(store)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    await store.open_invocation(invocation("inv_2"), durable=True)
    assert query(tmp_path / "r.db", "SELECT id FROM tool_invocations") == [("inv_2",)]


async def test_an_opening_cancelled_during_its_commit_is_withdrawn(make: Make, tmp_path: Path) -> None:
    """Rule R1: if an opening is cancelled too late to stop its commit, its row is closed as ``cancelled``."""
    store = make()
    await store.start()
    db = store._db
    assert db is not None
    opening: list[asyncio.Task[None]] = []
    real = db.run

    def cancel_then_write(work: Callable[[sqlite3.Connection], Any]) -> Any:
        opening[0].cancel()
        return real(work)

    db.run = cancel_then_write  # type: ignore[method-assign]
    opening.append(asyncio.create_task(store.open_invocation(invocation(), durable=True)))
    with pytest.raises(asyncio.CancelledError):
        await opening[0]
    db.run = real  # type: ignore[method-assign]
    await store.open_invocation(invocation("inv_2"), durable=True)
    await store.list_runs(RunFilter())
    rows = query(tmp_path / "r.db", "SELECT id, status FROM tool_invocations ORDER BY id")
    assert rows == [("inv_1", "cancelled"), ("inv_2", "started")]


async def test_a_full_disk_refuses_side_effects_and_counts_what_it_loses(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk puts return, side effects are refused, and losses are counted and logged per burst."""
    store = make(max_queued=20)
    await store.start()
    store.put_run(run())
    await store.list_runs(RunFilter())
    await fill_disk(store)
    for number in range(15):
        store.put_messages([message(seq=number, content="x" * 5000)])
    with pytest.raises(StoreUnavailable, match="disk full"):
        await store.open_invocation(invocation(), durable=True)
    assert await store.healthy() is False
    for number in range(100):
        store.put_messages([message(turn=2, seq=number, content="x" * 5000)])
        store.put_suspended(suspended(f"key-{number}"))
    assert store.lost == 200 - 5
    assert (await store.find_suspended("key-99")) is not None  # not in the file, but in memory
    burst = [record.getMessage() for record in caplog.records if "being lost" in record.getMessage()]
    assert len(burst) == 1

    await quota(store, 1_000_000)
    await store.open_invocation(invocation("inv_2"), durable=True)
    assert await store.healthy() is True
    detail = await store.get_run("run_1")
    assert detail is not None
    assert [row.id for row in detail.invocations] == ["inv_2"]
    assert len(detail.messages) == 0  # Only people read them, so the turns had their places.
    assert query(tmp_path / "r.db", "SELECT count(*) FROM suspended_turns") == [(20,)]
    assert any("195 writes were lost" in record.getMessage() for record in caplog.records)
    store.put_suspended(suspended("key-99", payload=b"newer"))
    await store.list_runs(RunFilter())
    held = await store.find_suspended("key-99")
    assert held is not None
    assert held.payload == b"newer"
    store.put_turn(turn("nobody"))  # a later burst is logged again
    await store.list_runs(RunFilter())
    assert [record.getMessage() for record in caplog.records if "being lost" in record.getMessage()][1:] == [
        "writes to the record are being lost: the database refuses the row (FOREIGN KEY constraint failed)"
    ]
    assert query(tmp_path / "r.db", "PRAGMA integrity_check") == [("ok",)]


async def test_a_store_that_closes_on_a_full_disk_counts_the_rest_as_lost(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """``aclose`` ends although nothing can be written, and logs how many writes were lost."""
    store = make()
    await store.start()
    await fill_disk(store)
    for number in range(50):
        store.put_run(run(f"r{number}", model="m" * 4000))
    async with asyncio.timeout(PATIENCE_S):
        await store.aclose()
    assert store.lost == 50
    assert "the record is closed; 50 writes were lost" in caplog.messages


async def test_a_queue_is_bounded_in_bytes_too(make: Make, tmp_path: Path) -> None:
    """While the database is locked, the store drops writes that exceed the byte limit of its queue."""
    store = make(max_queued_bytes=100_000, lock_timeout_s=0.05)
    await store.start()
    with locked(tmp_path / "r.db"):
        for number in range(10):
            store.put_messages([message(seq=number, content="x" * 30_000)])
    assert store.lost == 7


async def test_one_row_that_the_database_refuses_takes_no_other_with_it(make: Make) -> None:
    """The store counts rows that the database refuses, and writes the rest of their group."""
    store = make()
    await store.start()
    store.put_run(run("r1"))
    store.put_turn(turn("nobody"))
    store.put_turn(turn("r1"))
    store.put_run(run("r2", status="no such status"))
    store.put_run(run("r3", turns="many"))
    await store.open_invocation(invocation(run_id="r1"), durable=True)
    with pytest.raises(StoreUnavailable, match="refuses the row"):
        await store.open_invocation(invocation("inv_2", status="odd"), durable=True)
    assert store.lost == 3
    detail = await store.get_run("r1")
    assert detail is not None
    assert len(detail.turns) == 1
    assert [row.id for row in detail.invocations] == ["inv_1"]
    assert await store.healthy() is True


async def test_a_read_only_database_refuses_and_goes_on(make: Make) -> None:
    """On a read-only database durable writes fail with that reason, reads work, and puts wait."""
    store = make(lock_timeout_s=2.0)
    await store.start()
    store.put_run(run())
    await store.list_runs(RunFilter())
    assert store._db is not None
    await store._db.execute("PRAGMA query_only = ON")  # every write fails with SQLITE_READONLY
    with pytest.raises(StoreUnavailable, match="read-only"):
        await store.open_invocation(invocation(), durable=True)
    store.put_turn(turn())
    assert await store.healthy() is False
    assert await store.find_suspended("key-1") is None
    await store._db.execute("PRAGMA query_only = OFF")
    await store.open_invocation(invocation(), durable=True)
    detail = await store.get_run("run_1")
    assert detail is not None
    assert len(detail.turns) == 1


async def test_a_store_that_cannot_open_says_why_and_leaves_nothing_open(make: Make, tmp_path: Path) -> None:
    """A damaged file, a newer schema and a missing folder each stop the start with their own error."""
    path = tmp_path / "r.db"
    path.write_bytes(b"SQLite format 3\x00" + b"\xa5" * 5000)
    with pytest.raises(StoreError, match="damaged or not a SQLite database"):
        await make().start()
    path.unlink()
    migrate_sqlite(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")
    with pytest.raises(StoreTooNew):
        await make().start()
    with pytest.raises(StoreUnavailable):
        await SqliteStore(tmp_path / "none" / "r.db").start()


async def test_a_damaged_page_is_a_store_error(make: Make, tmp_path: Path) -> None:
    """A read that meets a damaged page of the file raises StoreError."""
    store = make()
    await store.start()
    for number in range(200):
        store.put_run(run(f"r{number}"))
    await store.list_runs(RunFilter())
    await store.aclose()
    path = tmp_path / "r.db"
    ((page, size),) = query(
        path, "SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = 'runs_by_time'"
    )
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    again = make()
    await again.start()
    with pytest.raises(StoreError, match="damaged"):
        await again.list_runs(RunFilter())


async def test_a_start_under_a_lock_succeeds_and_reaps_later(make: Make, tmp_path: Path) -> None:
    """A server starts under another process's lock; once that is gone, it marks a dead owner's runs."""
    path = tmp_path / "r.db"
    dead = make()
    await dead.start()
    await dead.open_invocation(invocation(), durable=True)
    await dead._disconnect()
    dead._owner.release(remove=False)  # as the kernel does when a process dies
    store = make(reap=True, tidy_every_s=0.02)
    with locked(path):
        async with asyncio.timeout(PATIENCE_S):
            await store.start()
        assert query(path, "SELECT status FROM tool_invocations") == [("started",)]
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: query(path, "SELECT status FROM tool_invocations") == [("interrupted",)])
    store.put_run(run("run_2"))
    assert "run_2" in [listed.id for listed in await store.list_runs(RunFilter())]


async def test_expired_content_leaves_the_file_in_batches(make: Make, tmp_path: Path) -> None:
    """Rule R3: tidying deletes content past ``keep_days`` from the file; runs and invocations stay."""
    now = [T0]
    store = make(keep_days=1, clock=lambda: now[0])
    await store.start()
    store.put_run(run())
    store.put_messages([message(seq=number, content="find me not") for number in range(1200)])
    store.put_suspended(suspended())
    await store.open_invocation(invocation(), durable=True)
    await store.aclose()
    now[0] = T0 + 86400 + 10
    keeper = make(keep_days=1, clock=lambda: now[0], reap=True, tidy_every_s=0.01)
    await keeper.start()
    keeper.put_messages([message(turn=2)])
    path = tmp_path / "r.db"
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: query(path, "SELECT count(*) FROM messages") == [(1,)])
        await until(lambda: query(path, "SELECT count(*) FROM suspended_turns") == [(0,)])
    assert query(path, "SELECT count(*) FROM runs") == [(1,)]
    assert query(path, "SELECT count(*) FROM tool_invocations") == [(1,)]
    await keeper.aclose()
    assert b"find me not" not in path.read_bytes()


async def test_content_none_writes_no_byte_of_it(make: Make, tmp_path: Path) -> None:
    """Rule R3: with ``content = "none"`` no byte of content ever reaches a file."""
    store = make(content="none")
    await store.start()
    store.put_run(run())
    store.put_messages([message(content="a secret sentence")])
    store.put_suspended(suspended(payload=b"a secret sentence"))
    await store.open_invocation(invocation(), durable=True)
    for path in files_below(tmp_path):
        if path.is_file():
            assert b"a secret sentence" not in path.read_bytes()


async def test_deleting_a_run_takes_its_content_and_turns(make: Make, tmp_path: Path) -> None:
    """Rule R3: deleting a run deletes its turns and content, but not an invocation that still runs."""
    store = make()
    await store.start()
    store.put_run(run())
    store.put_turn(turn())
    store.put_messages([message()])
    store.put_suspended(suspended())
    await store.open_invocation(invocation(), durable=True)
    with closing(sqlite3.connect(tmp_path / "r.db")) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM runs")
    counts = [
        query(tmp_path / "r.db", f"SELECT count(*) FROM {table}")[0][0]
        for table in ("turns", "messages", "suspended_turns", "tool_invocations")
    ]
    assert counts == [0, 0, 0, 1]


async def test_a_cancelled_read_leaves_the_reader_usable(make: Make) -> None:
    """After a read is cancelled at any point the next one works; a close lets a running read finish."""
    store = make()
    await store.start()
    store.put_run(run())
    await store.get_run("run_1")
    for steps in range(30):
        reading = asyncio.create_task(store.get_run("run_1"))
        for _ in range(steps):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert await store.get_run("run_1") is not None
    reading = asyncio.create_task(store.get_run("run_1"))
    await asyncio.sleep(0)
    assert store._reading.locked()
    await store.aclose()
    assert await reading is not None
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get_run("run_1")


async def test_a_lock_that_never_ends_does_not_hold_up_the_close(make: Make, tmp_path: Path) -> None:
    """``aclose`` gives up after the lock timeout, counts the rest as lost, and releases the owner's lock."""
    store = make(lock_timeout_s=0.1)
    await store.start()
    with locked(tmp_path / "r.db"):
        store.put_run(run())
        await until_failing(store)
        async with asyncio.timeout(PATIENCE_S):
            await store.aclose()
    assert store.lost == 1
    assert store._owner.name is None
