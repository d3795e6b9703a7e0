"""Requests do not get slower as the database grows: every statement of a request uses an index."""

import asyncio
import re
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from store_records import (
    T0,
    hidden,
    hidden_of,
    invocation,
    kept,
    message,
    query,
    response,
    run,
    suspended,
    turn,
)

from proxy.records.effects import EffectClaim, EffectResult
from proxy.store.base import RunFilter
from proxy.store.options import StoreOptions
from proxy.store.rows import runs_query
from proxy.store.sql.migrate import migrate_sqlite
from proxy.store.sqlite.store import SqliteStore

sys.path.insert(0, str(Path(__file__).parents[3]))
from bench.big_record import END, FILTERS, fill


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with so many rows that the query planner has a choice."""
    path = tmp_path_factory.mktemp("growth") / "r.db"
    fill(path, 3000, 10_000)
    return path


def _plan(path: Path, sql: str, values: tuple[object, ...] = ()) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


def _slow(plan: list[str], *, may_sort: bool = True) -> list[str]:
    """The steps of a plan that read every row of a table, or sort the rows that they found.

    The few rows of one key may be sorted; a list may not be, or SQLite reads all of it for each page. A scan
    along an index in the wanted order ends with the page.
    """
    harmless = re.compile(r"USING|CONSTANT ROW|^SCAN (newest|\(subquery)")  # rows that a subquery found
    scans = [step for step in plan if step.startswith("SCAN") and not harmless.search(step)]
    return scans + ([] if may_sort else [step for step in plan if "TEMP B-TREE" in step])


def test_a_filled_record_is_a_sound_one(filled: Path, tmp_path: Path) -> None:
    """The benchmark's database is valid, has the schema of a migrated one, and a store can list its runs."""
    assert query(filled, "PRAGMA integrity_check") == [("ok",)]
    assert query(filled, "PRAGMA foreign_key_check") == []
    migrate_sqlite(tmp_path / "r.db")
    schema = "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name"
    assert query(filled, schema) == query(tmp_path / "r.db", schema)
    assert query(filled, "SELECT count(*) FROM runs") == [(3000,)]
    assert query(filled, "SELECT count(*) FROM tool_invocations") == [(10_000,)]

    async def listed() -> list[int]:
        store = SqliteStore(filled)
        await store.start()
        try:
            return [len(await store.list_runs(wanted)) for wanted in FILTERS.values()]
        finally:
            await store.aclose()

    assert asyncio.run(listed()) == [50] * len(FILTERS)


@pytest.mark.parametrize("name", FILTERS)
def test_each_list_goes_by_an_index(filled: Path, name: str) -> None:
    """SQLite reads each filter of ``runs list``, and its next page, in order from an index."""
    wanted = FILTERS[name]
    for each in (wanted, replace(wanted, before="run_000000000100")):
        plan = _plan(filled, *runs_query(each))
        assert plan
        assert _slow(plan, may_sort=False) == []


@pytest.fixture
async def traced(filled: Path, tmp_path: Path) -> AsyncIterator[tuple[SqliteStore, list[str]]]:
    """A store on a copy of the filled database, and every statement that it executes."""
    copy = shutil.copyfile(filled, tmp_path / "traced.db")
    store = SqliteStore(copy, StoreOptions(keep_days=30, clock=lambda: END))
    await store.start()
    statements: list[str] = []
    for db in (store._db, store._reader, store._looker):
        assert db is not None
        await db.set_trace_callback(statements.append)
    yield store, statements
    await store.aclose()


async def test_each_statement_of_a_tool_turn_goes_by_an_index(
    filled: Path, traced: tuple[SqliteStore, list[str]]
) -> None:
    """No statement for the rows, claims, look-ups and results of a turn scans a whole table."""
    store, statements = traced
    store.put_run(run())
    claim = EffectClaim("place:1", "request:1", True, T0, "tool:1")
    await store.claim_effect(invocation(), claim)
    store.keep_effect("inv_1", EffectResult("done"))
    store.close_invocation(invocation(status="success"))
    store.put_turn(turn())
    store.put_messages([message()])
    store.put_suspended(suspended(created_at=END))
    store.put_hidden(hidden(created_at=END))
    store.put_response(response(created_at=END))
    store.put_result(kept(created_at=END))
    await store.list_runs(RunFilter())
    await store.find_effect(claim)
    assert await store.number_effects(claim) == {0: "inv_1"}
    await store.find_suspended("key-1")
    await hidden_of(store, "key-1")
    await store.find_response("resp_1", "open")
    await store.find_result("res_1", "open")
    await store.get_run("run_1")
    await store.delete_response("resp_1", "open")
    store.release_effect("inv_1")
    await store.healthy()
    work = [sql for sql in statements if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)", sql)]
    tables = {word for sql in work for word in re.findall(r"(?:FROM|INTO|UPDATE|JOIN) (\w+)", sql)}
    assert {"runs", "turns", "messages", "tool_invocations", "effect_claims", "kept_results"} <= tables
    assert {"suspended_turns", "hidden_turns", "responses"} <= tables
    assert {sql: slow for sql in work if (slow := _slow(await asyncio.to_thread(_plan, filled, sql)))} == {}


def test_each_statement_of_a_trigger_goes_by_an_index(filled: Path) -> None:
    """No statement of a trigger scans a whole table, so puts and deletions use an index, too."""
    checked = 0
    for (sql,) in query(filled, "SELECT sql FROM sqlite_schema WHERE type = 'trigger'"):
        body = sql[sql.index("BEGIN") + len("BEGIN") : sql.rindex("END")]
        for statement in filter(str.strip, body.split(";")):
            plain = re.sub(r"\b(NEW|OLD)\.\w+", "'x'", statement)
            assert _slow(_plan(filled, plain)) == [], statement
            checked += 1
    assert checked >= 6
