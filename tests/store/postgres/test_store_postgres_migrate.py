"""Migrations of the PostgreSQL schema: from an empty one, from each earlier one, and by many processes."""

import asyncio

import pytest
from store_postgres import fetch, locked_table
from store_records import ROWS, hidden, response, spawn
from waiting import LATE_S

pytest.importorskip("asyncpg")

from proxy.base.errors import ConfigError, StoreError, StoreTooNew, StoreUnavailable
from proxy.store.base import RunFilter
from proxy.store.options import StoreOptions
from proxy.store.postgres.migrate import migrate_postgres
from proxy.store.postgres.store import PostgresStore
from proxy.store.sql.migrate import Migration, find_migrations, load_migrations

STEPS = load_migrations(find_migrations("postgres"))
LATEST = len(STEPS)
_COLUMNS = (
    "SELECT column_name::text FROM information_schema.columns "
    "WHERE table_schema = current_schema() AND table_name = $1 ORDER BY ordinal_position"
)


@pytest.mark.parametrize("before", range(LATEST))
async def test_each_schema_is_brought_up_to_date_with_its_rows(postgres_url: str, before: int) -> None:
    """Each earlier schema, empty or with rows, is migrated to the latest one, and every row stays."""
    report = await migrate_postgres(postgres_url, migrations=STEPS[:before])
    assert (report.before, report.after, len(report.applied)) == (0, before, before)
    held = {}
    for table, row in (ROWS | {"owners": ("o", 1, "h", 5, 1.0, 1.0, 2.0)}).items():
        # Columns that a later ALTER TABLE added are the last ones, and have defaults.
        names = [name for (name,) in await fetch(postgres_url, _COLUMNS, table)][: len(row)]
        if names:
            held[f"SELECT {', '.join(names)} FROM {table}"] = row
            marks = ", ".join(f"${place + 1}" for place in range(len(row)))
            await fetch(postgres_url, f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", *row)
    assert bool(held) == bool(before)
    report = await migrate_postgres(postgres_url)
    assert (report.before, report.after, len(report.applied)) == (before, LATEST, LATEST - before)
    again = await migrate_postgres(postgres_url)
    assert (again.before, again.after, again.applied) == (LATEST, LATEST, ())
    for query, row in held.items():
        if "lock_key" in query:  # Leases have replaced it.
            query, row = query.replace("lock_key, ", ""), (*row[:3], *row[4:])
        assert await fetch(postgres_url, query) == [row]
    store = PostgresStore(postgres_url, StoreOptions(keep_days=0, needs_all_keys=False))
    await store.start()
    try:
        detail = await store.get_run("run_1")
        assert [one.content for one in detail.messages] == ["Let me look."] if detail else before == 0
        assert len(await store.list_runs(RunFilter(tool="core__f"))) == (1 if before else 0)
        store.put_hidden(hidden())
        store.put_response(response())
        await store.list_runs(RunFilter())
        assert store.lost == 0
    finally:
        await store.aclose()


def test_both_databases_have_the_same_steps() -> None:
    """The migrations of PostgreSQL and of SQLite have the same numbers and names."""
    assert [step.name for step in STEPS] == [step.name for step in load_migrations()]


async def test_a_schema_that_is_not_ours_is_left_alone(postgres_url: str) -> None:
    """The store refuses another program's tables, a later schema and, if told so, an empty database."""
    await fetch(postgres_url, "CREATE TABLE runs (theirs INTEGER)")
    with pytest.raises(StoreError, match="another program"):
        await migrate_postgres(postgres_url)
    await fetch(postgres_url, "DROP TABLE runs")
    with pytest.raises(ConfigError, match="no record in this database"):
        await PostgresStore(postgres_url, must_exist=True).start()
    assert await fetch(postgres_url, "SELECT to_regclass('runs') IS NULL") == [(True,)]
    await migrate_postgres(postgres_url)
    await fetch(postgres_url, "INSERT INTO toolrelay_schema VALUES (999)")
    with pytest.raises(StoreTooNew, match="has schema 999, this version of toolrelay knows") as caught:
        await PostgresStore(postgres_url).start()
    assert "\n" not in str(caught.value)


async def test_a_failed_migration_changes_nothing(postgres_url: str) -> None:
    """A failed migration is rolled back and does not raise the schema version."""
    await migrate_postgres(postgres_url)
    for sql in (
        "CREATE TABLE half (a INTEGER); CREATE TABLE half (a INTEGER);",
        "CREATE TABLE half (a INTEGER); "
        "INSERT INTO turns (run_id, number, upstream_id, started_at, ended_at) VALUES ('none', 1, '', 0, 0);",
    ):
        with pytest.raises(StoreError, match="migration broken"):
            await migrate_postgres(postgres_url, migrations=[*STEPS, Migration(LATEST + 1, "broken", sql)])
        assert await fetch(postgres_url, "SELECT to_regclass('half') IS NULL") == [(True,)]
        assert await fetch(postgres_url, "SELECT max(version) FROM toolrelay_schema") == [(LATEST,)]


_STARTER = """
import asyncio, sys
from proxy.store.postgres.migrate import migrate_postgres
sys.stdin.readline()
report = asyncio.run(migrate_postgres(sys.argv[1]))
print(len(report.applied), report.after)
"""


async def test_processes_that_start_at_once_do_not_fight(postgres_url: str) -> None:
    """If four processes migrate at once, each migration is applied once and all four succeed."""
    children = [spawn(_STARTER, postgres_url) for _ in range(4)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [(await asyncio.to_thread(child.communicate, timeout=LATE_S))[0].split() for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert sum(int(applied) for applied, _ in answers) == LATEST
    assert {int(after) for _, after in answers} == {LATEST}


async def test_a_migration_that_somebody_holds_up_is_named(postgres_url: str) -> None:
    """If another process holds the migration lock for too long, StoreUnavailable says so."""
    await migrate_postgres(postgres_url, migrations=STEPS[:1])
    async with locked_table(postgres_url, "toolrelay_schema"):
        with pytest.raises(StoreUnavailable, match="locked"):
            await migrate_postgres(postgres_url, lock_timeout_s=0.2)
    assert (await migrate_postgres(postgres_url)).after == LATEST
