"""Threads that upstreams keep, as every kind of store knows them."""

from typing import Any

from store_records import T0

from proxy.records.rows import join_sources
from proxy.store.base import Store


async def test_threads_are_known_by_their_caller(store: Any) -> None:
    """The store finds a thread only for the caller that put it, and leaves out unknown ids."""
    store.put_threads(["conv_1", "resp_1"], "ann", "")
    store.put_threads(["conv_1"], "bob", "web__fetch_page")
    assert await store.find_threads(["conv_1", "resp_1", "conv_2"], "ann") == {"conv_1": "", "resp_1": ""}
    assert await store.find_threads(["conv_1", "resp_1"], "bob") == {"conv_1": "web__fetch_page"}
    assert await store.find_threads([], "ann") == {}


async def test_what_was_read_stays_read(store: Any) -> None:
    """A thread keeps the sources of untrusted content, joined as in a run, whatever is put later."""
    put: list[str] = []
    for untrusted in ("", "mcp__a__*", "", "mcp__a__*", "web__fetch_page", "mcp__a__*", "b, c", ""):
        put.append(untrusted)
        store.put_threads(["conv_1"], "ann", untrusted)
        assert await store.find_threads(["conv_1"], "ann") == {"conv_1": join_sources(*put)}
    store.put_threads(["conv_2"], "ann", "mcp__a__*")
    store.put_threads(["conv_2"], "ann", "b, c")
    found = await store.find_threads(["conv_2"], "ann")
    assert found["conv_2"] not in ("", "mcp__a__*")


async def test_odd_ids_stay_unknown_or_are_kept(store: Any) -> None:
    """Clients choose the ids of threads: an odd id causes no error and is never taken for another one."""
    odd = ["", "\0", "\ud800", "x" * 300, "'; DROP TABLE threads; --"]
    store.put_threads(odd, "ann", "t__t")
    found = await store.find_threads([*odd, "x" * 200], "ann")
    assert set(found) <= set(odd)
    assert found["'; DROP TABLE threads; --"] == "t__t"
    store.put_threads(["conv_1"], "\ud800", "")
    assert isinstance(await store.find_threads(["conv_1"], "\ud800"), dict)


async def test_threads_go_with_their_days(make: Any) -> None:
    """The store forgets a thread ``store.keep_days`` after it was put last."""
    now = [T0]
    store: Store = make(clock=lambda: now[0], keep_days=1)
    await store.start()
    try:
        store.put_threads(["conv_1", "conv_2"], "ann", "")
        now[0] += 80_000
        store.put_threads(["conv_2"], "ann", "")
        now[0] += 10_000
        assert await store.find_threads(["conv_1", "conv_2"], "ann") == {"conv_2": ""}
    finally:
        await store.aclose()
