"""Lists, sums and purges of runs, in every kind of store."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from store_records import (
    T0,
    hidden,
    hidden_of,
    invocation,
    kept,
    message,
    native_call,
    query,
    response,
    run,
    suspended,
    turn,
)

from proxy.store.base import PurgeFilter, RunFilter, Store, UsageFilter, UsageRow
from proxy.store.sql.migrate import load_migrations, migrate_sqlite
from proxy.store.sql.reports import PURGED_AT_ONCE
from proxy.store.sql.store import SqlStore
from proxy.store.sqlite.store import SqliteStore

DAY = 86400.0
TODAY = int(T0 // 86400)
TABLES = (
    *("runs", "turns", "messages", "tool_invocations", "suspended_turns", "hidden_turns", "responses"),
    *("native_calls", "kept_results", "run_tools"),
)

Make = Callable[..., SqlStore]


def ended(id: str, **changes: Any) -> Any:
    """A completed run with a few tokens."""
    values: dict[str, Any] = {
        "status": "completed", "ended_at": T0 + 4, "turns": 2, "tool_calls": 1,
        "input_tokens": 200, "output_tokens": 30, "total_tokens": 230,
    }  # fmt: skip
    return run(id, **(values | changes))


def whole_run(store: Store, id: str, **changes: Any) -> None:
    """Put a run with one row of everything that can belong to it."""
    store.put_run(ended(id, **changes))
    store.put_turn(turn(id))
    store.put_messages([message(id)])
    store.close_invocation(invocation(f"inv-{id}", id, status="success", ended_at=T0 + 2))
    store.put_suspended(suspended(f"key-{id}", id))
    store.put_hidden(hidden(f"key-{id}", run_id=id))
    store.put_response(response(f"resp-{id}", run_id=id))
    store.put_native_call(native_call(f"inv-{id}", id))
    store.put_result(kept(f"res-{id}", run_id=id))


async def test_a_run_keeps_trace_and_shape(store: Store) -> None:
    """The store returns what a client was shown of a run and the digest of its prompt unchanged."""
    store.put_run(run(trace="status", prompt_hash="sha256:ab"))
    (found,) = await store.list_runs(RunFilter())
    assert (found.trace, found.prompt_hash) == ("status", "sha256:ab")


async def test_runs_are_listed_between_two_times(store: Store) -> None:
    """A list includes runs that started at ``since``, and excludes runs that started at ``until``."""
    for number in range(4):
        store.put_run(run(f"run_{number}", started_at=T0 + number))
    found = await store.list_runs(RunFilter(since=T0 + 1, until=T0 + 3))
    assert [row.id for row in found] == ["run_2", "run_1"]


async def test_usage_is_one_sum_where_nothing_is_told_apart(store: Store) -> None:
    """Without groups, usage is one row for all runs of the time range; without runs it is all zeros."""
    assert list(await store.usage(UsageFilter())) == [UsageRow((), 0, 0, 0)]
    store.put_run(ended("run_1"))
    store.put_run(ended("run_2", status="failed", error_code="upstream_error", started_at=T0 + 10))
    store.put_run(ended("run_3", status="interrupted", started_at=T0 + 20))
    (row,) = await store.usage(UsageFilter())
    assert row == UsageRow((), 3, 3, 2, 6, 600, 90, 690, requests=3)
    (row,) = await store.usage(UsageFilter(since=T0 + 10, until=T0 + 20))
    assert row == UsageRow((), 1, 1, 1, 2, 200, 30, 230, requests=1)


async def test_usage_by_key_model_and_day(store: Store) -> None:
    """Usage has a sorted row for each group, and a day lasts from midnight to midnight in UTC."""
    midnight = TODAY * DAY
    store.put_run(ended("run_1", caller="b", model="m", started_at=midnight))
    store.put_run(ended("run_2", caller="a", model="m", started_at=midnight + DAY - 1))
    store.put_run(ended("run_3", caller="a", model="l", started_at=midnight + DAY))
    store.put_run(ended("run_4", caller="a", model="l", started_at=midnight - 1))
    by_key = await store.usage(UsageFilter(by=("key",)))
    assert [(row.group, row.runs) for row in by_key] == [(("a",), 3), (("b",), 1)]
    by_day = await store.usage(UsageFilter(by=("day", "model")))
    assert [(row.group, row.total_tokens) for row in by_day] == [
        ((TODAY - 1, "l"), 230),
        ((TODAY, "m"), 460),
        ((TODAY + 1, "l"), 230),
    ]


async def test_a_key_is_meant_with_its_end_users(store: Store) -> None:
    """A key's lists and sums include the runs of its end users, but not of keys with a longer name."""
    for number, caller in enumerate(["key_a", "key_a/alice", "key_a/bob", "key_ab", "key_a2/alice"]):
        store.put_run(ended(f"run_{number}", caller=caller, started_at=T0 + number))
    listed = {
        wanted: [row.id for row in await store.list_runs(RunFilter(caller=wanted))]
        for wanted in ("key_a", "key_a/alice", "key_a/", "key_ab", "key", "alice")
    }
    assert listed.pop("key_a") == ["run_2", "run_1", "run_0"]
    assert listed == {"key_a/alice": ["run_1"], "key_a/": [], "key_ab": ["run_3"], "key": [], "alice": []}
    page = await store.list_runs(RunFilter(caller="key_a", before="run_2", limit=1))
    assert [row.id for row in page] == ["run_1"]
    by_key = await store.usage(UsageFilter(by=("key",)))
    assert [(row.group, row.runs) for row in by_key] == [(("key_a",), 3), (("key_a2",), 1), (("key_ab",), 1)]
    by_caller = await store.usage(UsageFilter(by=("caller", "key")))
    assert [row.group for row in by_caller][1:3] == [("key_a/alice", "key_a"), ("key_a/bob", "key_a")]


async def test_usage_by_tool_counts_calls(store: Store) -> None:
    """Usage by tool has each tool's calls, failures and durations, but no tokens."""
    for number, (tool, status) in enumerate(
        [("core__a", "success"), ("core__a", "error"), ("core__b", "started")]
    ):
        store.put_run(ended(f"run_{number % 2}", caller="k"))
        close = T0 + 3.5 if status != "started" else None
        store.close_invocation(
            invocation(f"inv_{number}", f"run_{number % 2}", tool=tool, status=status, ended_at=close)
        )
    rows = await store.usage(UsageFilter(by=("tool",)))
    assert list(rows) == [
        UsageRow(("core__a",), 2, 2, 1, tool_seconds=4.0, tool_p50_s=2.0, tool_p95_s=2.0, requests=2),
        UsageRow(("core__b",), 1, 1, 0, requests=1),
    ]
    for number in range(100):  # 0.01 s, 0.02 s, … 1 s
        called = invocation(f"inv_c{number}", "run_0", tool="core__c", status="success", started_at=0.0)
        store.close_invocation(replace(called, ended_at=(number + 1) / 100))
    timed = [row for row in await store.usage(UsageFilter(by=("tool", "day"))) if row.group[0] == "core__c"]
    assert [(row.tool_p50_s, row.tool_p95_s) for row in timed] == [(0.5, 0.95)]
    rows = await store.usage(UsageFilter(by=("key", "tool")))
    assert [row.group for row in rows] == [("k", f"core__{letter}") for letter in "abc"]


async def test_cost_is_kept_and_added_up_exactly(store: Store) -> None:
    """Usage adds up the known costs of runs exactly; without any known cost it has none."""
    store.put_run(ended("run_1", cost=123_456_789_000_001))
    store.put_turn(turn("run_1", cost=123_456_789_000_001))
    store.put_run(ended("run_2", cost=1))
    store.put_run(ended("run_3", cost=0, caller="free"))
    store.put_run(ended("run_4", caller="unknown"))
    detail = await store.get_run("run_1")
    assert detail is not None
    assert detail.run.cost == detail.turns[0].cost == 123_456_789_000_001
    rows = await store.usage(UsageFilter(by=("key",)))
    assert {row.group[0]: row.cost for row in rows} == {
        "open": 123_456_789_000_002,
        "free": 0,
        "unknown": None,
    }
    (row,) = await store.usage(UsageFilter())
    assert row.cost == 123_456_789_000_002
    store.close_invocation(invocation("inv_1", "run_1", status="success", ended_at=T0 + 2))
    (row,) = await store.usage(UsageFilter(by=("tool",)))
    assert row.cost is None


async def test_absurd_counts_break_no_report(store: Store) -> None:
    """Upstreams choose token counts and costs, so a sum may exceed 64 bits without an error."""
    for number in range(2):
        store.put_run(ended(f"run_{number}", total_tokens=2**70, cost=2**70))
    (row,) = await store.usage(UsageFilter(by=("model",)))
    assert row.total_tokens > 2**63
    assert row.cost is not None
    assert row.cost > 2**63


async def test_a_purged_run_takes_everything_with_it(make: Make, tmp_path: Path) -> None:
    """A purge deletes the rows of its run from every table, and keeps those of another run."""
    store = make()
    await store.start()
    whole_run(store, "run_1")
    whole_run(store, "run_2")
    assert await store.purge(PurgeFilter(run_id="run_1")) == 1
    assert await store.purge(PurgeFilter(run_id="run_1")) == 0
    assert await store.get_run("run_1") is None
    assert await store.find_suspended("key-run_1") is None
    assert list(await hidden_of(store, "key-run_1")) == []
    assert await store.find_response("resp-run_1", "open") is None
    detail = await store.get_run("run_2")
    assert detail is not None
    assert len(detail.turns) == len(detail.messages) == len(detail.invocations) == 1
    assert await store.find_suspended("key-run_2") is not None
    assert len(await hidden_of(store, "key-run_2")) == 1
    assert await store.find_response("resp-run_2", "open") is not None
    if isinstance(store, SqliteStore):
        assert [query(tmp_path / "r.db", f"SELECT count(*) FROM {table}") for table in TABLES] == [
            [(1,)] for _ in TABLES
        ]


async def test_a_purge_takes_a_call_whose_execution_is_not_on_record(store: Store) -> None:
    """Rule R3: a purge of a run deletes its upstream call, even if the row of the execution was lost."""
    for name in ("run_1", "run_2"):
        store.put_run(ended(name))
        store.put_native_call(native_call(f"inv-{name}", name))
    assert await store.purge(PurgeFilter(run_id="run_1")) == 1
    for name in ("run_1", "run_2"):
        store.put_run(ended(name))
    gone, stays = [await store.get_run(name) for name in ("run_1", "run_2")]
    assert gone is not None
    assert stays is not None
    assert (len(gone.native_calls), len(stays.native_calls)) == (0, 1)


async def test_a_purge_takes_content_whose_run_is_not_on_record(make_sql: Make) -> None:
    """Rule R3: a purge by time deletes older content whose run was never written, and no later content."""
    now = [T0]
    store = make_sql(clock=lambda: now[0])
    await store.start()
    for name, at in (("old", T0), ("new", T0 + 9)):
        now[0] = at
        store.put_hidden(hidden(name, run_id=name, created_at=at))
        store.put_response(response(name, run_id=name, created_at=at))
        store.put_result(kept(name, run_id=name, created_at=at))
        store.put_native_call(native_call(f"inv-{name}", name))
    assert await store.purge(PurgeFilter(run_id="run_1")) == 0
    assert len(await hidden_of(store, "old")) == 1
    assert await store.purge(PurgeFilter(before=T0 + 5)) == 0
    for name, there in (("old", False), ("new", True)):
        store.put_run(ended(name))
        detail = await store.get_run(name)
        assert detail is not None
        assert bool(detail.native_calls) == there
        assert bool(await hidden_of(store, name)) == there
        assert (await store.find_response(name, "open") is not None) == there
        assert (await store.find_result(name, "open") is not None) == there


async def test_content_that_is_in_memory_alone_goes_too(make: Make) -> None:
    """With ``content = "none"`` a purge deletes the content of a run that only memory holds."""
    store = make(content="none")
    await store.start()
    whole_run(store, "run_1")
    assert await store.purge(PurgeFilter()) == 1
    assert await store.find_suspended("key-run_1") is None
    assert list(await hidden_of(store, "key-run_1")) == []
    assert await store.find_response("resp-run_1", "open") is None


async def test_what_still_goes_on_is_not_purged(store: Store) -> None:
    """A purge keeps a running run, and an ended run with a tool call that still runs."""
    store.put_run(run("run_1"))
    store.put_run(ended("run_2", status="cancelled"))
    store.close_invocation(invocation("inv_2", "run_2"))
    store.put_run(ended("run_3"))
    assert await store.purge(PurgeFilter(run_id="run_1")) == 0
    assert await store.purge(PurgeFilter()) == 1
    assert await store.purge(PurgeFilter()) == 0
    assert [row.id for row in await store.list_runs(RunFilter())] == ["run_2", "run_1"]


async def test_old_runs_are_purged_and_later_ones_not(store: Store) -> None:
    """A purge deletes the runs that started before ``before``, and keeps a run of that very time."""
    for number in range(4):
        store.put_run(ended(f"run_{number}", started_at=T0 + number))
    assert await store.purge(PurgeFilter(before=T0 + 2)) == 2
    assert [row.id for row in await store.list_runs(RunFilter())] == ["run_3", "run_2"]


async def test_a_file_is_purged_in_batches(make_sqlite: Make, tmp_path: Path) -> None:
    """Each purge deletes one batch, oldest runs first; ended calls without a run are deleted last."""
    store = make_sqlite()
    await store.start()
    for number in range(PURGED_AT_ONCE + 3):
        store.put_run(ended(f"run_{number}", started_at=T0 + number))
    store.close_invocation(invocation("inv_lost", "run_lost", status="success", started_at=T0 - 5))
    store.close_invocation(invocation("inv_open", "run_lost", status="started", started_at=T0 - 5))
    assert await store.purge(PurgeFilter()) == PURGED_AT_ONCE
    left = {row.id for row in await store.list_runs(RunFilter())}
    assert left == {f"run_{PURGED_AT_ONCE + number}" for number in range(3)}
    assert await store.purge(PurgeFilter()) == 3
    assert await store.purge(PurgeFilter()) == 0
    assert query(tmp_path / "r.db", "SELECT id FROM tool_invocations") == [("inv_open",)]


@pytest.mark.parametrize("before", [2, 3])
async def test_runs_of_an_earlier_schema_have_neither_trace_nor_shape(tmp_path: Path, before: int) -> None:
    """A run from before these columns existed has an empty trace and shape, and can be purged."""
    path = tmp_path / "r.db"
    migrate_sqlite(path, migrations=load_migrations()[:before])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO owners VALUES ('o', 1, 'h', NULL, 1.0, 1.0, NULL)")
        connection.execute(
            "INSERT INTO runs (id, owner_id, request_id, caller, wire, model, upstream, stream, status, "
            "started_at) VALUES ('run_1', 'o', 'r', 'open', 'chat', 'm', 'u', 1, 'completed', 1.0)"
        )
    store = SqliteStore(path)
    await store.start()
    try:
        (found,) = await store.list_runs(RunFilter())
        assert (found.trace, found.prompt_hash) == ("", "")
        assert await store.purge(PurgeFilter()) == 1
    finally:
        await store.aclose()


async def test_what_was_not_reported_is_told_from_zero(store: Store) -> None:
    """A turn without usage from the upstream has no token counts; its run and sums count such turns."""
    silent = turn("run_1", 2, input_tokens=None, output_tokens=None, total_tokens=None)
    nothing = turn("run_1", 3, input_tokens=0, output_tokens=0, total_tokens=0)
    store.put_run(ended("run_1", turns=3, unreported=1, spent="tools.max_turns", left_out=("seed", "user")))
    for each in (turn("run_1"), silent, nothing):
        store.put_turn(each)
    store.put_run(ended("run_2", model="other"))
    detail = await store.get_run("run_1")
    assert detail is not None
    assert list(detail.turns) == [turn("run_1"), silent, nothing]
    assert (detail.run.unreported, detail.run.spent) == (1, "tools.max_turns")
    assert detail.run.left_out == ("seed", "user")
    sums = await store.usage(UsageFilter(("model",)))
    assert {row.group[0]: (row.total_tokens, row.unreported) for row in sums} == {
        detail.run.model: (230, 1),
        "other": (230, 0),
    }
    assert [row.unreported for row in await store.usage(UsageFilter(("tool",)))] == []
