"""Upgrades: a version runs beside the one before with all promises, or refuses to start with one line."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chat_script import reply as chat_reply
from looping import ASK
from process_tree import children
from proxy_process import serving, write_config
from raw_upstream import RawUpstream
from releases import POSTGRES_STEPS, ROOT, previous_release, release
from store_postgres import fetch
from store_records import run
from waiting import PATIENCE_S

pytest.importorskip("asyncpg")

from proxy.base.errors import StoreError, StoreTooNew, StoreUnavailable
from proxy.store.base import RunFilter
from proxy.store.factory import migrate_store
from proxy.store.options import StoreOptions
from proxy.store.postgres.db import LOCK_CLASS, connect
from proxy.store.postgres.migrate import migrate_postgres
from proxy.store.postgres.store import PostgresStore
from proxy.store.sql.migrate import (
    OLDEST_BESIDE,
    latest_schema,
    load_migrations,
    migrate_sqlite,
)
from proxy.store.sqlite.owners import OwnerLock
from proxy.store.sqlite.store import SqliteStore

STEPS = POSTGRES_STEPS
WITH_LOCKS = STEPS[:31]
"""The schemas in which a process that lived held an advisory lock; later ones have leases."""

REFUSED = (
    r"an earlier version of toolrelay still uses this record \(processes: 1, on old-host\).*stop the earlier"
)
OLD_OWNER = (
    "INSERT INTO owners (id, pid, host, lock_key, started_at, seen_at) VALUES ('o', 1, 'old-host', 5, 1, 1)"
)
NEW_OWNER = (
    "INSERT INTO owners (id, pid, host, started_at, seen_at, schema, lease_until) "
    "VALUES ('o', 1, 'old-host', 1, 1, $1, extract(epoch FROM clock_timestamp()) + $2::int)"
)


@asynccontextmanager
async def old_process(url: str) -> AsyncIterator[None]:
    """Be a process of the last version that held a lock: its row, and the lock of its session."""
    await fetch(url, OLD_OWNER)
    session = await connect(url)
    await session.execute("SELECT pg_advisory_lock($1::int, 5)", LOCK_CLASS)
    try:
        yield
    finally:
        await session.close()


async def test_a_start_beside_a_process_with_a_lock_is_refused(postgres_url: str) -> None:
    """While a process of the last version lives, start and migration are refused, and the schema stays; once
    it has died, the start succeeds, and its rows are kept."""
    await migrate_postgres(postgres_url, migrations=WITH_LOCKS)
    async with old_process(postgres_url):
        for attempt in (
            lambda: PostgresStore(postgres_url, StoreOptions(reap=True)).start(),
            lambda: migrate_store(postgres_url),
        ):
            with pytest.raises(StoreUnavailable, match=REFUSED) as refused:
                await attempt()
            assert "\n" not in str(refused.value)
        assert await fetch(postgres_url, "SELECT max(version) FROM toolrelay_schema") == [(len(WITH_LOCKS),)]
    store = PostgresStore(postgres_url)
    await store.start()
    await store.aclose()
    assert await fetch(postgres_url, "SELECT id FROM owners") == [("o",)]


@pytest.mark.parametrize(
    ("schema", "lease_s", "is_refused"),
    [
        (OLDEST_BESIDE - 1, 60, True),
        (OLDEST_BESIDE - 1, -60, False),
        (OLDEST_BESIDE, 60, False),
        (latest_schema("postgres"), 60, False),
    ],
)
async def test_a_start_beside_a_process_with_a_lease_goes_by_its_schema(
    postgres_url: str, schema: int, lease_s: int, is_refused: bool
) -> None:
    """Of processes whose lease lasts, only one that knows too old a schema prevents the start."""
    await migrate_postgres(postgres_url)
    await fetch(postgres_url, NEW_OWNER, schema, lease_s)
    store = PostgresStore(postgres_url)
    with pytest.raises(StoreUnavailable, match=REFUSED) if is_refused else contextlib.nullcontext():
        await store.start()
    await store.aclose()


async def test_a_process_of_the_last_version_cannot_write_after_the_migration(postgres_url: str) -> None:
    """A process that had written nothing yet, and so was not seen, is refused by the database later: it could
    repeat effects, since it keeps no lease."""
    import asyncpg

    await migrate_postgres(postgres_url)
    with pytest.raises(asyncpg.UndefinedColumnError):
        await fetch(postgres_url, OLD_OWNER)


async def test_each_server_says_which_schema_it_knows(postgres_url: str, tmp_path: Path) -> None:
    """The record says of each process that writes what the next version needs to know of it."""
    for store in (PostgresStore(postgres_url), SqliteStore(tmp_path / "r.db")):
        await store.start()
        store.put_run(run())
        await store.list_runs(RunFilter())
        await store.aclose()
    assert await fetch(postgres_url, "SELECT schema FROM owners") == [(latest_schema("postgres"),)]
    with contextlib.closing(sqlite3.connect(tmp_path / "r.db")) as db:
        assert db.execute("SELECT schema FROM owners").fetchall() == [(latest_schema(),)]


@pytest.mark.parametrize("before", [31, latest_schema()])
async def test_a_start_beside_an_older_process_on_one_file_is_refused(tmp_path: Path, before: int) -> None:
    """The same holds for a SQLite file: a lock that is held refuses the start, a free one does not."""
    path = tmp_path / "r.db"
    migrate_sqlite(path, migrations=load_migrations()[:before])
    old = OwnerLock(path)
    old.acquire()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        columns = "(id, pid, host, lock_file, started_at, seen_at)"
        put = f"INSERT INTO owners {columns} VALUES (?, 1, 'old-host', ?, 1, 1)"
        db.execute(put, (old.id, old.name))
    for attempt in (lambda: SqliteStore(path).start(), lambda: migrate_store(f"sqlite:///{path}")):
        with pytest.raises(StoreUnavailable, match=REFUSED):
            await attempt()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (before,)
    old.release(remove=False)
    store = SqliteStore(path, StoreOptions(reap=True))
    await store.start()
    await store.aclose()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM owners WHERE ended_at IS NULL").fetchone() == (0,)


async def test_a_worker_that_can_never_start_again_leaves_no_client_waiting(tmp_path: Path) -> None:
    """If the record was migrated by a newer version, and the only worker dies, ``serve`` ends with one line:
    its port refuses clients, who would wait on it for ever."""
    async with RawUpstream(chat_reply("Hello.")) as upstream:
        write_config(tmp_path, upstream.url, more='[store]\nurl = "sqlite:///r.db"\n')
        async with serving(tmp_path) as proxy:
            assert (await proxy.ask({**ASK, "stream": False})).status == 200
            with contextlib.closing(sqlite3.connect(tmp_path / "r.db")) as db:
                db.execute("PRAGMA user_version = 999")
            (worker,) = children(proxy.process.pid)
            os.kill(worker, signal.SIGKILL)
            assert await proxy.ended() == 1
            assert any("has schema 999, this version of toolrelay knows" in line for line in proxy.log)
            with pytest.raises(ConnectionRefusedError):
                await proxy.ask({**ASK, "stream": False})


async def test_a_release_that_would_break_promises_and_this_one(tmp_path: Path, postgres_url: str) -> None:
    """With the code of the last version that may not run beside this one: this one refuses to start while it
    serves, and it serves on; after it has stopped, this one starts, and then the earlier one does not."""
    earlier = await asyncio.to_thread(release, tmp_path / "earlier", OLDEST_BESIDE - 1)
    async with RawUpstream(*[chat_reply("Hello.")] * 2) as upstream:
        site, old, new = _site(tmp_path, earlier, upstream.url, postgres_url)
        async with serving(site, env=old) as proxy:
            assert (await proxy.ask({**ASK, "stream": False})).status == 200
            # A server of that version enters itself with its first write.
            await _command(site, old, "keys", "create", "web")
            with pytest.raises(
                AssertionError, match="an earlier version of toolrelay still uses this record"
            ):
                async with serving(site, env=new):
                    pass
            assert (await proxy.ask(method="GET", path="/readyz")).status == 200
            proxy.signal()
            assert await proxy.ended() == 0
        async with serving(site, env=new) as proxy:
            assert (await proxy.ask(method="GET", path="/readyz")).status == 200
            with pytest.raises(AssertionError, match="use the newer version that wrote it"):
                async with serving(site, env=old):
                    pass


async def test_the_previous_release_serves_beside_this_one(tmp_path: Path, postgres_url: str) -> None:
    """With the code of the version before, if that may run beside this one: both serve on one record, and the
    earlier one cannot start again."""
    earlier = await asyncio.to_thread(previous_release, tmp_path / "earlier")
    async with RawUpstream(*[chat_reply("Hello.")] * 4) as upstream:
        site, old, new = _site(tmp_path, earlier, upstream.url, postgres_url)
        async with serving(site, env=old) as before:
            assert (await before.ask({**ASK, "stream": False})).status == 200
            async with serving(site, env=new) as after:
                for proxy in (before, after):
                    assert (await proxy.ask({**ASK, "stream": False})).status == 200
                    assert (await proxy.ask(method="GET", path="/readyz")).status == 200
                with pytest.raises(AssertionError, match="use the newer version that wrote it"):
                    async with serving(site, env=old):
                        pass


def _site(
    folder: Path, earlier: Path, upstream: str, store: str
) -> tuple[Path, dict[str, str], dict[str, str]]:
    """Make a configuration; return its folder and the environments of the earlier release and of this one."""
    site = folder / "site"
    site.mkdir()
    write_config(site, upstream, more=f'[store]\nurl = "{store}"\n')
    state = {"XDG_STATE_HOME": str(folder / "state")}
    return site, {"PYTHONPATH": str(earlier)} | state, {"PYTHONPATH": str(ROOT)} | state


async def _command(folder: Path, env: dict[str, str], *words: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", *words, cwd=folder, env={**os.environ, **env}
    )
    async with asyncio.timeout(PATIENCE_S):
        assert await process.wait() == 0


def test_a_newer_record_is_refused_with_one_line(tmp_path: Path) -> None:
    """A process of an earlier version cannot start on a record that a newer one has migrated."""
    path = tmp_path / "r.db"
    migrate_sqlite(path)
    with pytest.raises(StoreTooNew, match="use the newer version that wrote it") as refused:
        migrate_sqlite(path, migrations=load_migrations()[:-1])
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, StoreError)
