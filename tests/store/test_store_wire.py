"""The raw bytes of runs: what the store keeps of them, for how long, and when it keeps none."""

from collections.abc import Callable

import pytest
from store_records import T0, run, wire

from proxy.store.base import PurgeFilter, RunFilter
from proxy.store.seal import Seal
from proxy.store.sql.store import SqlStore
from proxy.store.sqlite.store import SqliteStore

KEY = bytes(range(32))
DAY = 86400.0

Make = Callable[..., SqlStore]


async def test_the_bytes_of_a_run_are_found_by_its_whole_id(make: Make) -> None:
    """The store returns the last bytes put for a run, and tells their size, only for the whole run id."""
    store = make(seal=Seal(KEY))
    await store.start()
    store.put_wire(wire(payload=b"first"))
    kept = wire(size=7, cut=True, payload=b"\x00\xff" * 40_000)
    store.put_wire(kept)
    assert await store.find_wire("run_1") == kept
    assert await store.wire_size("run_1") == 7
    assert await store.find_wire("run_") is None
    assert await store.wire_size("run_2") is None
    assert await store.find_wire("run_\ud800") is None


async def test_bytes_go_with_their_days_and_with_their_run(make: Make) -> None:
    """Rule R3: the store returns no bytes after ``keep_days``, and a purge of the run deletes them."""
    now = [T0]
    store = make(seal=Seal(KEY), keep_days=1, clock=lambda: now[0])
    await store.start()
    for name in ("run_1", "run_2"):
        store.put_run(run(name, status="completed"))
        store.put_wire(wire(name))
    store.put_wire(wire("run_lost"))
    assert await store.purge(PurgeFilter(run_id="run_1")) == 1
    assert await store.find_wire("run_1") is None
    assert await store.find_wire("run_2") == wire("run_2")
    # The purge deletes content without a run in the batch after the last runs.
    now[0] = T0 + 60
    while await store.purge(PurgeFilter(before=T0 + 30)):
        pass
    assert await store.find_wire("run_lost") is None
    store.put_wire(wire("run_3"))
    now[0] = T0 + DAY + 61
    assert await store.find_wire("run_3") is None
    assert await store.wire_size("run_3") is None
    assert len(await store.list_runs(RunFilter())) == 0


@pytest.mark.parametrize(
    "options", [{"seal": None}, {"content": "none", "seal": Seal(KEY)}], ids=["open", "none"]
)
async def test_bytes_that_nobody_may_keep_are_not_written(make_sql: Make, options: dict[str, object]) -> None:
    """The store cannot mask bytes, so it writes none without a seal key or with ``content = "none"``."""
    store = make_sql(**options)
    await store.start()
    store.put_run(run())
    store.put_wire(wire())
    assert await store.find_wire("run_1") is None
    async with store._snapshot() as db:
        assert [tuple(row) for row in await db.execute_fetchall("SELECT count(*) FROM wire_bytes")] == [(0,)]


async def test_what_one_caller_keeps_is_bounded(make_sqlite: Callable[..., SqliteStore]) -> None:
    """A caller above ``max_per_caller`` loses the bytes of its oldest runs; others lose nothing."""
    store = make_sqlite(seal=Seal(KEY), max_per_caller=3, reap=True, tidy_every_s=3600.0)
    await store.start()
    for number in range(6):
        store.put_wire(wire(f"run_{number}", caller="ada", created_at=T0 + number))
    store.put_wire(wire("run_bob", caller="bob"))
    await store.list_runs(RunFilter())
    while await store._tidy() == 0.0:
        pass
    found = [number for number in range(6) if await store.find_wire(f"run_{number}") is not None]
    assert found == [3, 4, 5]
    assert await store.find_wire("run_bob") is not None
