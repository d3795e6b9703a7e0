"""Hidden turns: what every store does with them, and what a file does when it does not behave."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_records import (
    T0,
    files_below,
    fill_disk,
    hidden,
    hidden_of,
    locked,
    query,
    quota,
    run,
    until_failing,
)

from proxy.errors import StoreError, StoreUnavailable
from proxy.records import HiddenTurns
from proxy.store.base import RunFilter, Store
from proxy.store.options import StoreOptions
from proxy.store.rows import hidden_row, read_hidden
from proxy.store.shelf import hidden_shelf
from proxy.store.sqlite.store import SqliteStore

DAY = 86400.0

Make = Callable[..., Any]

settled = pytest.mark.parametrize("settled", [False, True], ids=["queued", "written"])


async def _settle(store: Store, settled: bool) -> None:
    if settled:
        await store.list_runs(RunFilter())  # everything queued is written now


async def _variants(store: Store, key: str = "key-1") -> str:
    return "".join(turns.variant for turns in await hidden_of(store, key))


@settled
async def test_hidden_turns_are_read_not_consumed(store: Store, settled: bool) -> None:
    """Hidden turns are found again and again by their exact key, also where their run is not on record."""
    store.put_hidden(hidden(run_id="run_lost"))
    await _settle(store, settled)
    for _ in range(2):
        assert list(await hidden_of(store, "key-1")) == [hidden(run_id="run_lost")]
    for name in ("key-", "KEY-1", "key-1 ", "%", ""):
        assert list(await hidden_of(store, name)) == []
    assert store.lost == 0


@settled
async def test_the_same_hidden_turns_twice_are_one_variant(store: Store, settled: bool) -> None:
    """A variant put again is one variant, with the later time and run, before and after the commit."""
    store.put_hidden(hidden())
    await _settle(store, settled)
    again = hidden(run_id="run_2", created_at=T0 + 5)
    store.put_hidden(again)
    assert list(await hidden_of(store, "key-1")) == [again]
    await _settle(store, True)
    assert list(await hidden_of(store, "key-1")) == [again]


@pytest.mark.parametrize("first", [False, True], ids=["queued", "written"])
@settled
async def test_two_ways_to_one_conversation_are_both_found(store: Store, first: bool, settled: bool) -> None:
    """Rule R4: that a key is ambiguous is seen wherever its variants are, and two of them are enough."""
    store.put_hidden(hidden(variant="a"))
    await _settle(store, first)
    store.put_hidden(hidden(variant="b", created_at=T0 + 1))
    store.put_hidden(hidden("key-2", variant="z"))
    await _settle(store, settled)
    assert await _variants(store) == "ba"
    assert await _variants(store, "key-2") == "z"
    for number, name in enumerate("cde"):
        store.put_hidden(hidden(variant=name, created_at=T0 + 2 + number))
        await _settle(store, settled)
    assert await _variants(store) == "ed"
    await _settle(store, True)
    assert await _variants(store) == "ed"


async def test_content_none_keeps_hidden_turns_as_long_as_the_process(make: Make) -> None:
    """Rule R3: under ``none`` hidden turns are held in memory, so that history still works."""
    store = make(content="none")
    await store.start()
    store.put_hidden(hidden(variant="a"))
    store.put_hidden(hidden(variant="b"))
    await _settle(store, True)
    assert await _variants(store) == "ab"
    assert await _variants(store, "key-2") == ""


@settled
@pytest.mark.parametrize("content", ["tools", "none"])
async def test_hidden_turns_past_their_days_are_out_of_reach(make: Make, settled: bool, content: str) -> None:
    """Rule R3: hidden turns are kept for keep_days at most; a variant that is over confuses no more."""
    now = [T0]
    store = make(keep_days=2, content=content, clock=lambda: now[0])
    await store.start()
    store.put_hidden(hidden(variant="a"))
    store.put_hidden(hidden(variant="b", created_at=T0 + 10))
    await _settle(store, settled)
    now[0] = T0 + 2 * DAY - 1
    assert await _variants(store) == "ba"
    now[0] = T0 + 2 * DAY + 1
    assert await _variants(store) == "b"
    now[0] = T0 + 2 * DAY + 11
    assert await _variants(store) == ""


async def test_outside_its_life_a_store_keeps_no_hidden_turns(make: Make) -> None:
    """Before start and after close a put is lost and counted."""
    store = make()
    store.put_hidden(hidden())
    assert store.lost == 1
    await store.start()
    await store.aclose()
    store.put_hidden(hidden("key-2"))
    assert store.lost == 2


@given(content=st.binary(), name=st.text())
@settings(max_examples=50, deadline=None)
def test_hidden_turns_survive_the_way_into_a_row_and_back(content: bytes, name: str) -> None:
    """A payload is bytes, kept as they are."""
    record = hidden(payload=content, wire=name)
    assert read_hidden(hidden_row(record)) == record


_step = st.tuples(st.sampled_from(["put", "drop", "wait"]), st.sampled_from("kl"), st.sampled_from("abc"))


@given(steps=st.lists(_step, max_size=30))
@settings(max_examples=200, deadline=None)
def test_a_shelf_finds_all_of_a_group_and_no_more(steps: list[tuple[str, str, str]]) -> None:
    """Whatever was put, dropped or has expired: a group is what its keys are found as one by one."""
    now = [0.0]
    shelf = hidden_shelf(lambda: now[0] - 3, max_bytes=5)
    for step, key, variant in steps:
        if step == "put":
            shelf.put(hidden(key, variant, payload=b"xx", created_at=now[0]))
        elif step == "drop":
            shelf.drop((key, variant))
        else:
            now[0] += 1
        for group in "kl":
            alone = [found for name in "abc" if (found := shelf.find((group, name))) is not None]
            together = shelf.find_all(group)
            assert sorted(together, key=lambda turns: turns.variant) == alone
            assert [turns.created_at for turns in together] == sorted(turns.created_at for turns in together)
    for key in "kl":
        for variant in "abc":
            shelf.drop((key, variant))
    assert shelf._groups == {}


def _stored(path: Path) -> list[tuple[Any, ...]]:
    return query(path, "SELECT key, variant FROM hidden_turns ORDER BY key, variant")


async def _kept(store: SqliteStore, *records: HiddenTurns) -> None:
    for record in records:
        store.put_hidden(record)
    await store.list_runs(RunFilter())


async def test_the_file_keeps_two_variants_of_a_key(
    make_sqlite: Callable[..., SqliteStore], tmp_path: Path
) -> None:
    """However often a conversation came about, two rows are all that it takes."""
    store = make_sqlite()
    await store.start()
    await _kept(store, *(hidden(variant=f"v{number}", created_at=T0 + number) for number in range(9)))
    await _kept(store, hidden("key-2"))
    assert _stored(tmp_path / "r.db") == [("key-1", "v7"), ("key-1", "v8"), ("key-2", "v1")]


async def test_hidden_turns_outlive_the_process(make_sqlite: Callable[..., SqliteStore]) -> None:
    """What one store wrote another one reads."""
    first = make_sqlite()
    await first.start()
    first.put_hidden(hidden())
    await first.aclose()
    second = make_sqlite()
    await second.start()
    assert list(await hidden_of(second, "key-1")) == [hidden()]


async def test_two_workers_make_a_key_ambiguous(make_sqlite: Callable[..., SqliteStore]) -> None:
    """Rule R4: a variant in the file and one that waits here are two, whoever wrote the first."""
    first, second = make_sqlite(), make_sqlite()
    await first.start()
    await second.start()
    await _kept(first, hidden(variant="a"))
    second.put_hidden(hidden(variant="b", created_at=T0 + 1))
    assert await _variants(second) == "ba"
    assert await _variants(first) in ("a", "ba")
    await _settle(second, True)
    assert await _variants(first) == "ba"


async def test_while_locked_hidden_turns_are_found_and_written_later(
    make_sqlite: Callable[..., SqliteStore], tmp_path: Path
) -> None:
    """Under a lock a put does not wait, a find sees it beside what is written, and nothing is lost."""
    store = make_sqlite()
    await store.start()
    await _kept(store, hidden(variant="a"))
    with locked(tmp_path / "r.db"):
        store.put_hidden(hidden(variant="b", created_at=T0 + 1))
        await until_failing(store)
        assert await _variants(store) == "ba"
        store.put_hidden(hidden(variant="a", created_at=T0 + 2))
        assert await _variants(store) == "ab"
    await _settle(store, True)
    assert await _variants(store) == "ab"
    assert _stored(tmp_path / "r.db") == [("key-1", "a"), ("key-1", "b")]
    assert store.lost == 0


async def test_on_a_full_disk_hidden_turns_stay_in_memory(
    make_sqlite: Callable[..., SqliteStore], tmp_path: Path
) -> None:
    """What a full disk keeps waiting or loses is found, and the lost are counted."""
    store = make_sqlite(max_queued=5)
    await store.start()
    await _kept(store, hidden("old"))
    await fill_disk(store)
    for number in range(12):
        store.put_hidden(hidden(f"k{number}", payload=b"x" * 5000))
    await until_failing(store)
    assert store.lost == 7
    for number in range(12):  # some wait, some are lost to the file
        assert [len(turns.payload) for turns in await hidden_of(store, f"k{number}")] == [5000]
    await quota(store, 1_000_000)
    await _settle(store, True)
    assert len(_stored(tmp_path / "r.db")) == 6


async def test_content_none_writes_no_hidden_turns(
    make_sqlite: Callable[..., SqliteStore], tmp_path: Path
) -> None:
    """Rule R3: hidden turns under ``none`` never reach a file."""
    store = make_sqlite(content="none")
    await store.start()
    store.put_run(run())
    await _kept(store, hidden(payload=b"a secret sentence"))
    assert _stored(tmp_path / "r.db") == []
    assert await _variants(store) == "v1"
    files = [path for path in files_below(tmp_path) if path.is_file()]
    assert files
    assert all(b"a secret sentence" not in path.read_bytes() for path in files)


async def test_hidden_turns_go_with_their_run(
    make_sqlite: Callable[..., SqliteStore], tmp_path: Path
) -> None:
    """Rule R3: no content outlives its run."""
    store = make_sqlite()
    await store.start()
    store.put_run(run())
    store.put_run(run(status="completed"))  # a row that is replaced is not a row that goes
    await _kept(store, hidden("k1"), hidden("k2", run_id="run_2"))
    assert len(_stored(tmp_path / "r.db")) == 2
    with closing(sqlite3.connect(tmp_path / "r.db")) as connection, connection:
        connection.execute("DELETE FROM runs WHERE id = 'run_1'")
    assert _stored(tmp_path / "r.db") == [("k2", "v1")]


async def test_expired_hidden_turns_leave_the_file(
    make_sqlite: Callable[..., SqliteStore], tmp_path: Path
) -> None:
    """Rule R3: the tidying at start deletes hidden turns past their days."""
    now = [T0]
    first = make_sqlite(keep_days=1, clock=lambda: now[0])
    await first.start()
    await _kept(first, hidden("old"), hidden("new", created_at=T0 + DAY))
    await first.aclose()
    now[0] = T0 + DAY + 1
    second = make_sqlite(keep_days=1, clock=lambda: now[0], reap=True)
    await second.start()
    assert _stored(tmp_path / "r.db") == [("new", "v1")]


async def test_a_closed_or_damaged_record_says_so(
    make_sqlite: Callable[..., SqliteStore], tmp_path: Path
) -> None:
    """Hidden turns that cannot be read are an error, not missing ones."""
    store = make_sqlite()
    await store.start()
    with closing(sqlite3.connect(tmp_path / "r.db")) as connection, connection:
        connection.execute("DROP TABLE hidden_turns")
    with pytest.raises(StoreError, match="no such table"):
        await hidden_of(store, "key-1")
    await store.aclose()
    with pytest.raises(StoreUnavailable, match="closed"):
        await hidden_of(store, "key-1")


_race = st.lists(st.tuples(st.sampled_from(["put", "settle"]), st.sampled_from("abcd")), max_size=12)


@given(steps=_race)
@settings(max_examples=25, deadline=None)
async def test_any_order_of_puts_and_commits_reads_alike(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    """A file with a queue before it answers with the two variants that came last, at every step."""
    path = tmp_path_factory.mktemp("hidden") / "r.db"
    store, known = SqliteStore(path, StoreOptions(clock=lambda: T0)), dict[str, HiddenTurns]()
    await store.start()
    try:
        for number, (step, variant) in enumerate(steps):
            if step == "put":
                known.pop(variant, None)
                known[variant] = hidden(variant=variant, created_at=T0 + number)
                store.put_hidden(known[variant])
            else:
                await _settle(store, True)
            assert list(await hidden_of(store, "key-1")) == [*known.values()][:-3:-1]
    finally:
        await store.aclose()


async def test_many_keys_are_one_look(make: Make) -> None:
    """Rule R4: each key has its own two newest variants, whether they are written or wait."""
    store = make(clock=lambda: 100.0, keep_days=0)
    await store.start()
    for number in range(12):
        record = hidden(key=f"k{number % 3}", variant=f"v{number}", created_at=float(number))
        store.put_hidden(record)
        if number == 7:
            assert await store.wait_until_visible(5.0)
    keys = ["k2", "k0", "nobody", "k1"]
    found = await store.find_hidden(keys)
    assert {key: [turns.variant for turns in found[key]] for key in keys} == {
        "k0": ["v9", "v6"],
        "k1": ["v10", "v7"],
        "k2": ["v11", "v8"],
        "nobody": [],
    }
    assert await store.wait_until_visible(5.0)
    assert await store.find_hidden(keys) == found
