"""``store.max_bytes``: what the store deletes when it is too large, in which order, and what it keeps."""

import asyncio
from collections.abc import Callable
from typing import Any

from store_records import T0, hidden, hidden_of, invocation, message, response, run, suspended, until
from waiting import PATIENCE_S

from proxy.config.settings import StoreConfig
from proxy.store.base import RunFilter
from proxy.store.sql.retention import AT_ONCE
from proxy.store.sql.store import SqlStore

DAY = 86400.0
NOW = T0 + 10 * DAY
KIB = b"x" * 1024

Make = Callable[..., Any]


async def _tidied(store: SqlStore) -> None:
    """Tidy until there is nothing left to do."""
    async with asyncio.timeout(PATIENCE_S):
        while await store._tidy() == 0.0:
            pass


async def _left(store: SqlStore, count: int) -> list[int]:
    """The numbers of the responses that are still there."""
    found = [await store.find_response(f"r{number}", "open") for number in range(count)]
    return [number for number, one in enumerate(found) if one is not None]


async def _fill(make_sql: Make, count: int, began: float) -> None:
    store = make_sql(clock=lambda: NOW)
    await store.start()
    for number in range(count):
        store.put_response(response(f"r{number}", response=KIB * 4, created_at=began + number))
    await store.aclose()


async def test_the_oldest_content_makes_room(make_sql: Make) -> None:
    """Rule R3: above ``max_bytes`` the store deletes the oldest content of every kind, and no run."""
    count = 6 * AT_ONCE
    await _fill(make_sql, count, T0)
    store = make_sql(clock=lambda: NOW, keep_days=0)
    await store.start()
    store.put_run(run(started_at=NOW))
    store.put_suspended(suspended(created_at=T0 - 1))
    store.put_hidden(hidden(created_at=T0 - 1))
    await store.list_runs(RunFilter())
    store._max_bytes = 3 * AT_ONCE * 4300
    await _tidied(store)
    left = await _left(store, count)
    assert left == list(range(count - len(left), count))
    assert len(left) > AT_ONCE
    assert len(left) * 4096 <= store._max_bytes
    assert await store.find_suspended("key-1") is None
    assert list(await hidden_of(store, "key-1")) == []
    assert len(await store.list_runs(RunFilter())) == 1
    before = len(left)
    await _tidied(store)
    assert len(await _left(store, count)) == before


async def test_within_its_bytes_a_record_loses_nothing(make_sql: Make) -> None:
    """Tidying deletes nothing if the store is below ``max_bytes`` or has no such limit."""
    await _fill(make_sql, 20, T0)
    for max_bytes in (0, 10**7):
        store = make_sql(clock=lambda: NOW, keep_days=0, max_bytes=max_bytes)
        await store.start()
        await _tidied(store)
        assert len(await _left(store, 20)) == 20


async def test_in_need_content_of_today_goes_too(make_sql: Make) -> None:
    """If all content is from today, the store still keeps to ``max_bytes`` and deletes the oldest first."""
    count = 4 * AT_ONCE
    await _fill(make_sql, count, NOW - count)
    store = make_sql(clock=lambda: NOW, keep_days=0, max_bytes=3 * AT_ONCE * 4300)
    await store.start()
    await _tidied(store)
    left = await _left(store, count)
    assert left == list(range(count - len(left), count))
    assert left
    assert len(left) * 4096 <= store._max_bytes


async def test_in_a_file_old_runs_go_before_content_of_today(make_sqlite: Make) -> None:
    """A SQLite store deletes old completed runs before content of today, and never a running run."""
    store = make_sqlite(clock=lambda: NOW, keep_days=0)
    await store.start()
    store.put_run(run("going-on", started_at=T0))
    for number in range(2000):
        store.put_run(run(f"old-{number}", started_at=T0 + number, status="completed", request_id="x" * 500))
        store.close_invocation(invocation(f"i-{number}", f"old-{number}", status="success"))
    store.put_run(run("today", started_at=NOW - 5, status="completed"))
    store.put_messages([message("today")])
    store.put_hidden(hidden(created_at=NOW - 5))
    await store.list_runs(RunFilter())
    store._max_bytes = 1_000_000
    await _tidied(store)
    assert list(await hidden_of(store, "key-1")) == [hidden(created_at=NOW - 5)]
    detail = await store.get_run("today")
    assert detail is not None
    assert len(detail.messages) == 1
    left = [found.id for found in await store.list_runs(RunFilter(limit=1000))]
    assert left[0] == "today"
    assert left[-1] == "going-on"
    assert left[1] == "old-1999"
    assert 100 < len(left) < 1000


async def test_a_server_looks_after_its_bound_by_itself(make_sql: Make) -> None:
    """A store with ``reap`` deletes content above ``max_bytes`` by itself while it runs."""
    count = 4 * AT_ONCE
    await _fill(make_sql, count, T0)
    store = make_sql(
        clock=lambda: NOW, keep_days=0, max_bytes=3 * AT_ONCE * 4300, reap=True, tidy_every_s=0.05
    )
    await store.start()
    async with asyncio.timeout(PATIENCE_S):
        while await store.find_response("r0", "open") is not None:  # noqa: ASYNC110 - a database
            await asyncio.sleep(0.02)
    await until(lambda: store._writer.failure is None)
    assert (await _left(store, count))[-1] == count - 1


async def test_a_caller_loses_its_own_oldest_content_past_its_bytes(make_sql: Make) -> None:
    """A caller above ``max_bytes_per_caller`` loses its own oldest content; others lose nothing."""
    now = [NOW]
    store = make_sql(clock=lambda: now[0], max_bytes_per_caller=50_000, content="all")
    await store.start()
    for caller in ("ada", "bob"):
        store.put_run(run(f"run_{caller}", caller=caller, started_at=NOW))
    store.put_messages([message("run_ada", seq=0, content="a" * 20_000)])
    store.put_response(response("ada", caller="ada", response=KIB * 20, created_at=NOW))
    for number in range(20):
        now[0] = NOW + number + 1
        store.put_messages([message("run_bob", turn=number + 1, content="b" * 10_000)])
        store.put_response(response(f"r{number}", caller="bob", response=KIB * 10, created_at=now[0]))
    await store.list_runs(RunFilter())
    await _tidied(store)
    (ada, bob) = [await store.get_run(f"run_{caller}") for caller in ("ada", "bob")]
    assert [each.turn for each in bob.messages] == [17, 18, 19, 20]
    assert len(ada.messages) == 1
    assert await store.find_response("ada", "ada") is not None
    found = [await store.find_response(f"r{number}", "bob") for number in range(20)]
    assert [number for number, one in enumerate(found) if one] == [16, 17, 18, 19]


async def test_what_one_caller_may_have_is_not_measured_for_each_record(make_sql: Make) -> None:
    """The store measures a caller's bytes only when a tenth of the limit has come since the last time."""
    store = make_sql(clock=lambda: NOW, max_bytes_per_caller=1_000_000)
    await store.start()
    seen: list[str] = []
    trim = store._cap._trim

    async def watched(keeper: Any, *more: Any) -> bool:
        fetch = keeper.fetch

        async def noted(sql: str, values: Any) -> Any:
            seen.append(sql)
            return await fetch(sql, values)

        keeper.fetch = noted
        more_to_do: bool = await trim(keeper, *more)
        return more_to_do

    store._cap._trim = watched
    for number in range(30):
        store.put_response(response(f"r{number}", response=KIB * 10, created_at=NOW + number))
        await store.list_runs(RunFilter())
        if hasattr(store, "_expire_at"):
            store._expire_at = 0.0  # PostgreSQL checks owners more often than content
        await _tidied(store)
    assert 1 <= len([sql for sql in seen if "OVER" in sql]) <= 3


async def test_bounds_are_there_by_default() -> None:
    """By default a store is limited to 8 GiB, and each caller to 1 GiB of it."""
    settings = StoreConfig()
    assert settings.max_bytes == 8 * 2**30
    assert settings.max_bytes_per_caller == 2**30
