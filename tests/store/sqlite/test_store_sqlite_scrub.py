"""Deleted content leaves the bytes of the database file and of its log, too (rule R3)."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from store_records import (
    T0,
    hidden,
    invocation,
    kept,
    message,
    native_call,
    query,
    response,
    run,
    suspended,
    turn,
    until,
)

from proxy.store.base import PurgeFilter
from proxy.store.options import StoreOptions
from proxy.store.sql.migrate import migrate_sqlite, migration_copies
from proxy.store.sqlite.store import SqliteStore

CANARY = "canary-3f1a9c"
DAY = 86_400.0


def _fill(store: SqliteStore, run_id: str = "run_1") -> None:
    """Put the canary in every place for content, and in what is shown of calls."""
    secret = CANARY.encode()
    store.put_run(run(run_id, status="completed", ended_at=T0))
    store.put_turn(turn(run_id))
    store.put_messages([message(run_id, content=CANARY * 3000)])
    store.close_invocation(invocation("inv_1", run_id, status="success", arguments_redacted={"text": CANARY}))
    store.put_native_call(native_call("inv_1", run_id, payload=CANARY))
    store.put_suspended(suspended("key-1", run_id, payload=secret))
    store.put_hidden(hidden("key-1", run_id=run_id, payload=secret))
    store.put_response(response("resp_1", run_id=run_id, response=secret, input_items=secret))
    store.put_result(kept("res_1", run_id=run_id, content=CANARY))


def _files_with_canary(path: Path) -> list[str]:
    return [
        file.name
        for file in sorted(path.parent.glob(f"{path.name}*"))
        if file.is_file() and CANARY.encode() in file.read_bytes()
    ]


async def test_a_purge_leaves_no_word_in_any_file_of_the_record(tmp_path: Path) -> None:
    """After ``purge`` and ``scrub`` by a command no file holds the content, while a server has it open."""
    path = tmp_path / "r.db"
    server = SqliteStore(path, StoreOptions(clock=lambda: T0))
    await server.start()
    command = SqliteStore(path, StoreOptions(clock=lambda: T0))
    try:
        _fill(server)
        assert await server.get_run("run_1") is not None
        assert "r.db-wal" in _files_with_canary(path)
        await command.start()
        assert await command.purge(PurgeFilter(run_id="run_1")) == 1
        assert await command.scrub() == ""
        assert _files_with_canary(path) == []
        assert (tmp_path / "r.db-wal").exists()
    finally:
        await command.aclose()
        await server.aclose()


async def test_a_purge_says_what_it_could_not_empty(tmp_path: Path) -> None:
    """If a long read keeps the log from being emptied, ``scrub`` says so."""
    path = tmp_path / "r.db"
    store = SqliteStore(path, StoreOptions(clock=lambda: T0, lock_timeout_s=0.2))
    await store.start()
    try:
        _fill(store)
        await store.get_run("run_1")
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM runs").fetchone()
            assert await store.purge(PurgeFilter(run_id="run_1")) == 1
            said = await store.scrub()
            assert "r.db-wal could not be emptied" in said
            reader.execute("ROLLBACK")
        assert await store.scrub() == ""
        assert _files_with_canary(path) == []
    finally:
        await store.aclose()


async def test_what_expires_leaves_the_log_of_a_server(tmp_path: Path) -> None:
    """While a server runs, content past ``keep_days`` leaves the database file and its log."""
    path, now = tmp_path / "r.db", [T0]
    store = SqliteStore(path, StoreOptions(clock=lambda: now[0], reap=True, keep_days=1, tidy_every_s=0.05))
    await store.start()
    try:
        store.put_run(run("run_1"))
        store.put_messages([message("run_1", content=CANARY * 3000)])
        await store.get_run("run_1")
        assert _files_with_canary(path) != []
        now[0] += 2 * DAY
        await until(lambda: not _files_with_canary(path))
        assert query(path, "SELECT count(*) FROM messages") == [(0,)]
    finally:
        await store.aclose()


async def test_a_table_that_a_migration_writes_anew_leaves_nothing_behind(tmp_path: Path) -> None:
    """A migration overwrites the pages of a table that it drops; only the reported copy still has them."""
    from proxy.store.sql.migrate import load_migrations

    path = tmp_path / "r.db"
    steps = load_migrations()
    await asyncio.to_thread(migrate_sqlite, path, migrations=steps[:1])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("CREATE TABLE gone (content TEXT)")
        db.executemany("INSERT INTO gone VALUES (?)", [(CANARY * 100,) for _ in range(50)])
    drop = _step(steps[1], "DROP TABLE gone;")
    report = await asyncio.to_thread(migrate_sqlite, path, migrations=(steps[0], drop))
    assert report.copy is not None
    assert migration_copies(path) == [report.copy]
    assert _files_with_canary(path) == [report.copy.name]


def _step(like: Any, sql: str) -> Any:
    return type(like)(like.number, like.name, sql)


async def test_a_server_of_postgres_says_what_it_keeps(make_postgres: Callable[..., Any]) -> None:
    """With PostgreSQL ``scrub`` tells the operator about VACUUM."""
    store = make_postgres()
    await store.start()
    assert "VACUUM" in await store.scrub()
