"""When somebody sets the system clock, the store loses no content, and lists of runs stay complete."""

from collections.abc import Callable
from typing import Any

from store_records import T0, hidden, hidden_of, message, response, run, suspended

from proxy.store.base import PurgeFilter, RunFilter

Make = Callable[..., Any]
DAY = 86_400.0


async def test_a_clock_that_goes_back_takes_no_content(make: Make) -> None:
    """Rule R3: when the clock goes back, content stays; its days count from the time it was stored."""
    now = [T0]
    store = make(clock=lambda: now[0], keep_days=10)
    await store.start()
    store.put_run(run(status="completed"))
    store.put_messages([message()])
    store.put_suspended(suspended())
    store.put_hidden(hidden())
    store.put_response(response())
    for at, kept in ((T0 - 400 * DAY, True), (T0 + 9 * DAY, True), (T0 + 11 * DAY, False)):
        now[0] = at
        detail = await store.get_run("run_1")
        assert (len(detail.messages) == 1) == kept
        assert (await store.find_suspended("key-1") is not None) == kept
        assert (len(await hidden_of(store, "key-1")) == 1) == kept
        assert (await store.find_response("resp_1", "open") is not None) == kept


async def test_a_server_whose_clock_went_back_deletes_nothing(make_sqlite: Make) -> None:
    """Rule R3: with a clock in the past neither the tidying at start nor a purge deletes anything."""
    first = make_sqlite()
    await first.start()
    first.put_run(run(status="completed"))
    first.put_suspended(suspended())
    await first.aclose()
    second = make_sqlite(clock=lambda: T0 - 400 * DAY, keep_days=1, reap=True)
    await second.start()
    assert await second.purge(PurgeFilter(before=T0 - DAY)) == 0
    await second.aclose()
    third = make_sqlite(keep_days=1, reap=True)
    await third.start()
    assert await third.find_suspended("key-1") is not None


async def test_lists_are_whole_whatever_the_clock_does(make: Make) -> None:
    """Pages list runs by their start times and leave none out, while the clock jumps and runs are added."""
    store = make()
    await store.start()
    jumps = [0.0, 5.0, 2.0, 2.0, -DAY, DAY, 3.0, -1.0, 4.0, 2.0]
    for number, jump in enumerate(jumps):
        store.put_run(run(f"run_{number}", started_at=T0 + jump))
    wanted = sorted(((T0 + jump, f"run_{number}") for number, jump in enumerate(jumps)), reverse=True)
    found: list[Any] = []
    while page := await store.list_runs(RunFilter(limit=3, before=found[-1].id if found else None)):
        found += page
        store.put_run(run(f"late_{len(found)}", started_at=T0 + 2 * DAY + len(found)))  # newer than all pages
    assert [(each.started_at, each.id) for each in found] == wanted
