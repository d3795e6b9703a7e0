"""Responses in a SQLite file when the disk, the file or another process fails."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from store_records import (
    T0,
    files_below,
    fill_disk,
    locked,
    message,
    query,
    quota,
    response,
    run,
    suspended,
    until,
    until_failing,
)
from waiting import PATIENCE_S

from proxy.base.errors import StoreError, StoreUnavailable
from proxy.store.base import RunFilter
from proxy.store.sql.writing.writes import Write, batches_of
from proxy.store.sqlite.store import SqliteStore

Make = Callable[..., SqliteStore]


def _stored(path: Path) -> list[tuple[Any, ...]]:
    return query(path, "SELECT id, caller, response FROM responses ORDER BY id, caller")


async def _kept(store: SqliteStore, *names: str) -> None:
    for name in names:
        store.put_response(response(name))
    await store.list_runs(RunFilter())


async def test_responses_outlive_the_process(make_sqlite: Make, tmp_path: Path) -> None:
    """A second store reads and deletes a response that the first one wrote, only for its own caller."""
    first = make_sqlite()
    await first.start()
    first.put_response(response())
    await first.aclose()
    second = make_sqlite()
    await second.start()
    assert await second.find_response("resp_1", "key:b") is None
    assert await second.delete_response("resp_1", "key:b") is False
    assert await second.find_response("resp_1", "open") == response()
    assert await second.delete_response("resp_1", "open") is True
    assert _stored(tmp_path / "r.db") == []


async def test_looking_for_a_response_leaves_no_trace(make_sqlite: Make, tmp_path: Path) -> None:
    """A look-up or a deletion that finds nothing registers no owner and takes no lock."""
    store = make_sqlite()
    await store.start()
    with locked(tmp_path / "r.db"):
        assert await store.find_response("resp_1", "open") is None
        assert await store.delete_response("resp_1", "open") is False
    await store.aclose()
    assert query(tmp_path / "r.db", "SELECT count(*) FROM owners") == [(0,)]


async def test_while_locked_responses_are_kept_and_written_later(make_sqlite: Make, tmp_path: Path) -> None:
    """While the file is locked, puts do not wait and a find sees the last one, which is written later."""
    store = make_sqlite()
    await store.start()
    with locked(tmp_path / "r.db"):
        for number in range(3):
            store.put_response(response(response=b"%d" % number))
            await until_failing(store)
        found = await store.find_response("resp_1", "open")
        assert found is not None
        assert found.response == b"2"
    await store.list_runs(RunFilter())
    assert _stored(tmp_path / "r.db") == [("resp_1", "open", b"2")]
    assert store.lost == 0


async def test_while_locked_a_written_response_is_not_said_to_be_deleted(
    make_sqlite: Make, tmp_path: Path
) -> None:
    """If a lock outlasts the timeout, a deletion fails; the response stays and can be deleted later."""
    store = make_sqlite(lock_timeout_s=1.5)
    await store.start()
    await _kept(store, "resp_1")
    with locked(tmp_path / "r.db"):
        deleting = asyncio.create_task(store.delete_response("resp_1", "open"))
        await until(lambda: store._responses.has_latest(("resp_1", "open")))
        assert await store.find_response("resp_1", "open") is None  # while it is being deleted
        with pytest.raises(StoreUnavailable, match=r"within 1\.5 s"):
            await deleting
        assert await store.find_response("resp_1", "open") == response()
        await until_failing(store)
    await store.list_runs(RunFilter())
    assert len(_stored(tmp_path / "r.db")) == 1
    assert await store.delete_response("resp_1", "open") is True
    assert _stored(tmp_path / "r.db") == []


async def test_a_deletion_outlasts_a_short_lock(make_sqlite: Make, tmp_path: Path) -> None:
    """A deletion waits for a lock that ends in time, and keeps its order among puts of the same id."""
    store = make_sqlite(lock_timeout_s=30)
    await store.start()
    await _kept(store, "resp_1", "resp_2")
    with locked(tmp_path / "r.db"):
        for name in ("resp_1", "resp_2"):
            store.put_response(response(name, response=b"before"))
        await until_failing(store)
        deleting = [asyncio.create_task(store.delete_response(f"resp_{n}", "open")) for n in (1, 2)]
        await until(lambda: sum(write.in_order for write in store._writer._queue._needed) == 2)
        store.put_response(response("resp_2", response=b"after"))
        assert not any(task.done() for task in deleting)
    assert await asyncio.gather(*deleting) == [True, True]
    await store.list_runs(RunFilter())
    assert _stored(tmp_path / "r.db") == [("resp_2", "open", b"after")]


async def test_a_queued_response_that_is_deleted_never_reaches_the_file(
    make_sqlite: Make, tmp_path: Path
) -> None:
    """A deletion withdraws a queued response without a lock, and no byte of it is written later."""
    store = make_sqlite()
    await store.start()
    with locked(tmp_path / "r.db"):
        store.put_run(run())
        await until_failing(store)
        store.put_response(response(response=b"a secret sentence"))
        queued = store._writer._queue.bytes
        assert await store.delete_response("resp_1", "open") is True
        assert store._writer._queue.bytes < queued
        assert await store.find_response("resp_1", "open") is None
    await store.list_runs(RunFilter())
    assert store.lost == 0
    for path in files_below(tmp_path):
        if path.is_file():
            assert b"a secret sentence" not in path.read_bytes()


async def test_a_response_deleted_during_its_commit_is_deleted_after_it(
    make_sqlite: Make, tmp_path: Path
) -> None:
    """If a put is already being committed, its deletion is committed after it."""
    store = make_sqlite()
    await store.start()
    db = store._db
    assert db is not None
    deleting: list[asyncio.Task[bool]] = []
    real = db.run

    async def delete_then_write(work: Callable[[sqlite3.Connection], Any]) -> Any:
        if not deleting:
            deleting.append(asyncio.create_task(store.delete_response("resp_1", "open")))
            await until(lambda: any(write.in_order for write in store._writer._queue._needed))
        return await real(work)

    db.run = delete_then_write  # type: ignore[method-assign]
    await _kept(store, "resp_1", "resp_2")
    assert await deleting[0] is True
    assert [row[0] for row in _stored(tmp_path / "r.db")] == ["resp_2"]
    assert await store.find_response("resp_1", "open") is None
    assert store.lost == 0


async def test_a_deletion_reaches_past_the_newest_form(make_sqlite: Make, tmp_path: Path) -> None:
    """A deletion removes a form that is being written and a newer one that waits or was dropped."""
    store = make_sqlite(lock_timeout_s=30, max_queued_bytes=2000)
    await store.start()
    newer = {"waits": b"2", "lost": b"2" * 5000}
    with locked(tmp_path / "r.db"):
        for name in newer:
            store.put_response(response(name))
        await until(lambda: store._writer._inflight == 2)
        for name, content in newer.items():
            store.put_response(response(name, response=content))
        deleting = [asyncio.create_task(store.delete_response(name, "open")) for name in newer]
        await until(lambda: sum(write.in_order for write in store._writer._queue._needed) == 2)
    assert await asyncio.gather(*deleting) == [True, True]
    await store.list_runs(RunFilter())
    assert _stored(tmp_path / "r.db") == []
    for name in newer:
        assert await store.find_response(name, "open") is None
    assert store._responses._unsettled == {}


async def test_on_a_full_disk_responses_stay_in_memory(make_sqlite: Make, tmp_path: Path) -> None:
    """On a full disk queued and dropped responses can be found and deleted; the dropped are counted."""
    store = make_sqlite(max_queued=5)
    await store.start()
    await _kept(store, "old")
    await fill_disk(store)
    big = b"x" * 5000
    for number in range(20):
        store.put_response(response(f"resp_{number}", response=big))
    await until_failing(store)
    assert store.lost == 15
    for number in (0, 19):  # one waits, one was dropped
        found = await store.find_response(f"resp_{number}", "open")
        assert found is not None
        assert found.response == big
        assert await store.find_response(f"resp_{number}", "key:b") is None
        await until_failing(store)
        assert await store.delete_response(f"resp_{number}", "open") is True
        assert await store.find_response(f"resp_{number}", "open") is None
    await quota(store, 1_000_000)
    await store.list_runs(RunFilter())
    assert [row[0] for row in _stored(tmp_path / "r.db")] == ["old", *(f"resp_{n}" for n in range(1, 5))]
    assert await store.delete_response("old", "open") is True


async def test_a_lost_response_that_is_put_again_is_written(make_sqlite: Make, tmp_path: Path) -> None:
    """A newer form replaces a dropped one, first in memory and then in the file."""
    store = make_sqlite(max_queued_bytes=2000)
    await store.start()
    store.put_response(response(response=b"x" * 5000))
    assert store.lost == 1
    found = await store.find_response("resp_1", "open")
    assert found is not None
    await _kept(store, "resp_1")
    assert await store.find_response("resp_1", "open") == response()
    assert len(_stored(tmp_path / "r.db")) == 1


async def test_a_refused_response_takes_no_other_with_it(make_sqlite: Make, tmp_path: Path) -> None:
    """A response that the file refuses stays in memory and is counted; the rest of its group is written."""
    store = make_sqlite()
    await store.start()
    odd = response("odd", continuation="a text, where the file takes bytes alone")
    store.put_response(response("resp_1"))
    store.put_response(odd)
    await _kept(store, "resp_2")
    assert store.lost == 1
    assert await store.find_response("odd", "open") == odd
    assert [row[0] for row in _stored(tmp_path / "r.db")] == ["resp_1", "resp_2"]
    assert await store.healthy() is True


async def test_a_read_only_database_keeps_responses_in_memory(make_sqlite: Make) -> None:
    """On a read-only database a deletion fails with that reason, and the response can still be read."""
    store = make_sqlite()
    await store.start()
    await _kept(store, "resp_1")
    assert store._db is not None
    await store._db.execute("PRAGMA query_only = ON")  # every write fails with SQLITE_READONLY
    with pytest.raises(StoreUnavailable, match="read-only"):
        await store.delete_response("resp_1", "open")
    assert await store.find_response("resp_1", "open") == response()
    await store._db.execute("PRAGMA query_only = OFF")
    assert await store.delete_response("resp_1", "open") is True


async def test_a_closed_store_still_says_so(make_sqlite: Make) -> None:
    """After the close a find and a deletion raise StoreUnavailable instead of finding no response."""
    store = make_sqlite()
    await store.start()
    await _kept(store, "resp_1")
    await store.aclose()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.find_response("resp_1", "open")
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.delete_response("resp_1", "open")


async def test_a_damaged_table_is_a_store_error(make_sqlite: Make, tmp_path: Path) -> None:
    """If the table is missing, a find and a deletion raise StoreError instead of finding no response."""
    store = make_sqlite()
    await store.start()
    with closing(sqlite3.connect(tmp_path / "r.db")) as connection, connection:
        connection.execute("DROP TABLE responses")
    with pytest.raises(StoreError, match="no such table"):
        await store.find_response("resp_1", "open")
    with pytest.raises(StoreError, match="no such table"):
        await store.delete_response("resp_1", "open")


async def test_a_cancelled_deletion_is_over(make_sqlite: Make, tmp_path: Path) -> None:
    """After a deletion is cancelled, the response is still found and stays in the file."""
    store = make_sqlite(lock_timeout_s=30)
    await store.start()
    await _kept(store, "resp_1")
    with locked(tmp_path / "r.db"):
        deleting = asyncio.create_task(store.delete_response("resp_1", "open"))
        await until_failing(store)
        assert not deleting.done()
        deleting.cancel()
        await asyncio.gather(deleting, return_exceptions=True)
        assert await store.find_response("resp_1", "open") == response()
    await _kept(store, "resp_2")
    assert len(_stored(tmp_path / "r.db")) == 2
    assert store._responses._waiting == {}


async def test_content_none_and_ephemeral_turns_write_no_byte(make_sqlite: Make, tmp_path: Path) -> None:
    """Rule R3: with ``content = "none"`` responses never reach a file; ephemeral turns never do."""
    for content in ("none", "tools", "all"):
        store = make_sqlite(content=content)
        await store.start()
        store.put_run(run())
        store.put_suspended(suspended(payload=b"a secret sentence", ephemeral=True))
        store.put_response(response(response=b"a secret sentence" if content == "none" else b""))
        await store.list_runs(RunFilter())
        assert await store.find_suspended("key-1") is not None
        assert await store.find_response("resp_1", "open") is not None
        assert query(tmp_path / "r.db", "SELECT count(*) FROM suspended_turns") == [(0,)]
        assert len(_stored(tmp_path / "r.db")) == (0 if content == "none" else 1)
        for path in files_below(tmp_path):
            if path.is_file():
                assert b"a secret sentence" not in path.read_bytes()
        await store.aclose()


async def test_an_ephemeral_turn_takes_a_queued_one_back(make_sqlite: Make, tmp_path: Path) -> None:
    """An ephemeral turn replaces a queued turn of the same key, which is then never written."""
    store = make_sqlite()
    await store.start()
    store.put_run(run())
    store.put_suspended(suspended(payload=b"may be written"))
    store.put_suspended(suspended(payload=b"may not", ephemeral=True))
    await store.list_runs(RunFilter())
    assert query(tmp_path / "r.db", "SELECT count(*) FROM suspended_turns") == [(0,)]
    found = await store.find_suspended("key-1")
    assert found is not None
    assert found.payload == b"may not"
    assert store.lost == 0


async def test_a_turn_taken_back_under_way_is_not_tried_again(make_sqlite: Make, tmp_path: Path) -> None:
    """A write that fails under a lock is not retried if an ephemeral turn has replaced its turn."""
    store = make_sqlite()
    await store.start()
    with locked(tmp_path / "r.db"):
        store.put_run(run())
        store.put_suspended(suspended(payload=b"may be written"))
        await until(lambda: store._writer._inflight == 2)
        store.put_suspended(suspended(payload=b"may not", ephemeral=True))
        await until_failing(store)
    assert len(await store.list_runs(RunFilter())) == 1
    assert query(tmp_path / "r.db", "SELECT count(*) FROM suspended_turns") == [(0,)]
    assert store.lost == 0


async def test_expired_responses_leave_the_file(make_sqlite: Make, tmp_path: Path) -> None:
    """Rule R3: tidying deletes responses past ``keep_days`` and their bytes from the file."""
    now = [T0]
    store = make_sqlite(keep_days=1, clock=lambda: now[0])
    await store.start()
    for number in range(700):
        store.put_response(response(f"resp_{number}", response=b"find me not"))
    await store.aclose()
    now[0] = T0 + 86400 + 10
    keeper = make_sqlite(keep_days=1, clock=lambda: now[0], reap=True, tidy_every_s=0.01)
    await keeper.start()
    keeper.put_response(response("fresh", created_at=now[0]))
    path = tmp_path / "r.db"
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: [row[0] for row in _stored(path)] == ["fresh"])
    await keeper.aclose()
    assert b"find me not" not in path.read_bytes()


async def test_deleting_a_run_takes_its_responses(make_sqlite: Make, tmp_path: Path) -> None:
    """Rule R3: deleting a run deletes its responses, although their table has no foreign key."""
    store = make_sqlite()
    await store.start()
    store.put_run(run())
    store.put_run(run("run_2"))
    store.put_messages([message()])
    store.put_response(response("resp_1"))
    store.put_response(response("resp_2", run_id="run_2"))
    store.put_response(response("resp_3", run_id="run_lost"))
    store.put_run(run(status="completed"))  # replacing a row must not count as deleting it
    await store.list_runs(RunFilter())
    assert len(_stored(tmp_path / "r.db")) == 3
    with closing(sqlite3.connect(tmp_path / "r.db")) as connection, connection:
        connection.execute("DELETE FROM runs WHERE id = 'run_1'")
    assert [row[0] for row in _stored(tmp_path / "r.db")] == ["resp_2", "resp_3"]


def test_nothing_moves_past_a_write_that_is_in_order() -> None:
    """The writer groups rows by statement, but no row moves past a write that must keep its place."""
    group = [
        *(Write(statement, [(number,)]) for number, statement in enumerate(("a", "b", "a", "", "b"))),
        Write("d", [(5,)], in_order=True),
        Write("d", [(6,)], in_order=True),
        Write("a", [(7,)]),
        Write("d", [(8,)]),
        Write("a", [(9,), (10,)]),
    ]
    assert batches_of(group) == [
        ("a", [(0,), (2,)]), ("b", [(1,), (4,)]), ("d", [(5,)]), ("d", [(6,)]),
        ("a", [(7,), (9,), (10,)]), ("d", [(8,)]),
    ]  # fmt: skip
