"""Hidden turns in every kind of store, and in a file that is locked, full or damaged."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
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

from proxy.base.errors import StoreError, StoreUnavailable
from proxy.records.rows import HiddenTurns
from proxy.store.base import RunFilter, Store
from proxy.store.options import StoreOptions
from proxy.store.seal import HIDDEN
from proxy.store.shelf import hidden_shelf
from proxy.store.sqlite.store import SqliteStore

DAY = 86400.0

Make = Callable[..., Any]

settled = pytest.mark.parametrize("settled", [False, True], ids=["queued", "written"])


async def _settle(store: Store, settled: bool) -> None:
    if settled:
        await store.list_runs(RunFilter())  # waits until everything queued is written


async def _variants(store: Store, key: str = "key-1") -> str:
    return "".join(turns.variant for turns in await hidden_of(store, key))


@settled
async def test_hidden_turns_are_read_not_consumed(store: Store, settled: bool) -> None:
    """Reads find hidden turns any number of times by their exact key, even if their run was never written."""
    store.put_hidden(hidden(run_id="run_lost"))
    await _settle(store, settled)
    for _ in range(2):
        assert list(await hidden_of(store, "key-1")) == [hidden(run_id="run_lost")]
    for name in ("key-", "KEY-1", "key-1 ", "%", ""):
        assert list(await hidden_of(store, name)) == []
    assert store.lost == 0


@settled
async def test_the_same_hidden_turns_twice_are_one_variant(store: Store, settled: bool) -> None:
    """A variant that is put again replaces its earlier form, before and after the commit."""
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
    """Rule R4: a read returns the two newest variants of a key, whether they are queued or written."""
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
    """Rule R3: with ``content = "none"`` memory holds hidden turns, so that history still works."""
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
    """Rule R3: a read returns no variant that is older than ``keep_days``, and still the newer ones."""
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
    """The store drops and counts hidden turns that are put before its start or after its close."""
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
    """Hidden turns with any payload and wire come back from a row unchanged."""
    record = hidden(payload=content, wire=name)
    assert HIDDEN.records(HIDDEN.row(record)) == [record]
    assert HIDDEN.records(HIDDEN.row(record, "second", "third")) == [
        replace(record, key=key) for key in (record.key, "second", "third")
    ]


def _note(name: str, asked: str, alone: str, at: float) -> list[HiddenTurns]:
    """What is noted of an answer with nothing hidden behind it: the same under three keys."""
    return [hidden(key, "plain", payload=name.encode(), created_at=T0 + at) for key in (name, asked, alone)]


async def _notes(store: Store, *keys: str) -> dict[str, list[str]]:
    """The notes that are found under keys that may be loose."""
    found = await store.find_hidden(keys, loosely=True)
    return {key: [turns.payload.decode() for turns in found[key]] for key in keys}


@settled
async def test_a_note_is_found_by_each_of_its_keys(store: Store, settled: bool) -> None:
    """Rule R4: a note is found by its exact key and its loose keys; of a loose key the newest note counts."""
    store.put_hidden(*_note("first", "q", "a", 0))
    await _settle(store, settled)
    assert await _notes(store, "first", "q", "a", "b") == {
        "first": ["first"],
        "q": ["first"],
        "a": ["first"],
        "b": [],
    }
    store.put_hidden(*_note("second", "r", "a", 1))
    store.put_hidden(hidden("a", "hidden", payload=b"other", created_at=T0 + 2))
    await _settle(store, settled)
    keys = ("first", "second", "q", "r", "a")
    after = {"first": ["first"], "second": ["second"], "q": ["first"], "r": ["second"]}
    assert await _notes(store, *keys) == after | {"a": ["other", "second"]}
    store.put_hidden(*_note("first", "q", "a", 3))
    await _settle(store, settled)
    assert await _notes(store, *keys) == after | {"a": ["first", "other"]}
    assert store.lost == 0


async def test_a_note_is_one_row(tmp_path: Path) -> None:
    """A note takes one row for all of its keys, and no older note stays under a loose key of a newer one."""
    store = SqliteStore(tmp_path / "r.db", StoreOptions(keep_days=0))
    await store.start()
    for number in range(5):
        store.put_hidden(*_note(f"n{number}", "q", f"a{number % 2}", number))
        await _settle(store, settled=number % 2 == 0)
    await store.aclose()
    rows = query(tmp_path / "r.db", "SELECT key, asked, alone FROM hidden_turns ORDER BY key")
    taken = [(f"n{number}", None, None) for number in range(3)]
    assert rows == [*taken, ("n3", None, "a1"), ("n4", "q", "a0")]


_step = st.tuples(st.sampled_from(["put", "drop", "wait"]), st.sampled_from("kl"), st.sampled_from("abc"))


@given(steps=st.lists(_step, max_size=30))
@settings(max_examples=200, deadline=None)
def test_a_shelf_finds_all_of_a_group_and_no_more(steps: list[tuple[str, str, str]]) -> None:
    """After any puts, drops and expiries a group is exactly what single look-ups find of it."""
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
    """The file keeps only the two newest variants of a key."""
    store = make_sqlite()
    await store.start()
    await _kept(store, *(hidden(variant=f"v{number}", created_at=T0 + number) for number in range(9)))
    await _kept(store, hidden("key-2"))
    assert _stored(tmp_path / "r.db") == [("key-1", "v7"), ("key-1", "v8"), ("key-2", "v1")]


async def test_hidden_turns_outlive_the_process(make_sqlite: Callable[..., SqliteStore]) -> None:
    """A second store on the same file reads the hidden turns that the first one wrote."""
    first = make_sqlite()
    await first.start()
    first.put_hidden(hidden())
    await first.aclose()
    second = make_sqlite()
    await second.start()
    assert list(await hidden_of(second, "key-1")) == [hidden()]


async def test_two_workers_make_a_key_ambiguous(make_sqlite: Callable[..., SqliteStore]) -> None:
    """Rule R4: a worker finds a variant that another wrote together with one that it has queued."""
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
    """While the file is locked, a read finds written and queued variants; later all are written."""
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
    """On a full disk reads find all hidden turns, and the store counts those that it could not queue."""
    store = make_sqlite(max_queued=5)
    await store.start()
    await _kept(store, hidden("old"))
    await fill_disk(store)
    for number in range(12):
        store.put_hidden(hidden(f"k{number}", payload=b"x" * 5000))
    await until_failing(store)
    assert store.lost == 7
    for number in range(12):  # some wait in the queue, some never reach the file
        assert [len(turns.payload) for turns in await hidden_of(store, f"k{number}")] == [5000]
    await quota(store, 1_000_000)
    await _settle(store, True)
    assert len(_stored(tmp_path / "r.db")) == 6


async def test_content_none_writes_no_hidden_turns(
    make_sqlite: Callable[..., SqliteStore], tmp_path: Path
) -> None:
    """Rule R3: with ``content = "none"`` hidden turns never reach a file."""
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
    """Rule R3: deleting the row of a run deletes its hidden turns; replacing the row does not."""
    store = make_sqlite()
    await store.start()
    store.put_run(run())
    store.put_run(run(status="completed"))  # replacing a row must not count as deleting it
    await _kept(store, hidden("k1"), hidden("k2", run_id="run_2"))
    assert len(_stored(tmp_path / "r.db")) == 2
    with closing(sqlite3.connect(tmp_path / "r.db")) as connection, connection:
        connection.execute("DELETE FROM runs WHERE id = 'run_1'")
    assert _stored(tmp_path / "r.db") == [("k2", "v1")]


async def test_expired_hidden_turns_leave_the_file(
    make_sqlite: Callable[..., SqliteStore], tmp_path: Path
) -> None:
    """Rule R3: a store with ``reap`` deletes hidden turns past ``keep_days`` when it starts."""
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
    """If hidden turns cannot be read, the store raises an error instead of finding none."""
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
    """After any order of puts and commits a read returns the two variants that were put last."""
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
    """Rule R4: one look-up of many keys finds the two newest variants of each, queued or written."""
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
