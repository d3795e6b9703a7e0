"""Responses and ephemeral turns, in every kind of store."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_records import T0, response, run, suspended

from proxy.base.errors import StoreUnavailable
from proxy.records.rows import ResponseRecord
from proxy.store.base import RunFilter, Store
from proxy.store.seal import RESPONSES
from proxy.store.shelf import Shelf
from proxy.store.sql.store import SqlStore

DAY = 86400.0

Make = Callable[..., SqlStore]

settled = pytest.mark.parametrize("settled", [False, True], ids=["queued", "written"])


async def _settle(store: Store, settled: bool) -> None:
    if settled:
        await store.list_runs(RunFilter())  # waits until everything queued is written


@settled
async def test_a_response_is_read_not_consumed_and_the_last_one_counts(store: Store, settled: bool) -> None:
    """Reads find a response any number of times, by its exact id, as it was put last."""
    store.put_run(run())
    store.put_response(response())
    await _settle(store, settled)
    for _ in range(2):
        assert await store.find_response("resp_1", "open") == response()
    newer = response(run_id="run_2", response=b"2", input_items=b"[]", continuation=b"", created_at=T0 - 5)
    store.put_response(newer)
    await _settle(store, settled)
    for _ in range(2):
        assert await store.find_response("resp_1", "open") == newer
    for name in ("resp_", "RESP_1", "resp_1 ", "%", ""):
        assert await store.find_response(name, "open") is None


@settled
async def test_callers_share_an_id_and_nothing_else(store: Store, settled: bool) -> None:
    """Two callers may have the same response id; neither reads, replaces or deletes the other's response."""
    store.put_response(response(caller="key:a", response=b"a"))
    store.put_response(response(caller="key:b", response=b"b"))
    await _settle(store, settled)

    async def seen(caller: str) -> bytes | None:
        found = await store.find_response("resp_1", caller)
        return found.response if found is not None else None

    assert [await seen(caller) for caller in ("key:a", "key:b", "key:", "KEY:A")] == [b"a", b"b", None, None]
    assert await store.delete_response("resp_1", "key:c") is False
    assert await store.delete_response("resp_1", "key:a") is True
    assert [await seen("key:a"), await seen("key:b")] == [None, b"b"]


async def test_names_that_are_no_text_are_still_told_apart(store: Store) -> None:
    """Ids and callers with different lone surrogates stay different, although a file cannot hold them."""
    callers = ["\ud800", "\udc00", "\ufffd"]
    for number, caller in enumerate(callers):
        store.put_response(response(caller=caller, response=b"%d" % number))
        store.put_response(response(id=caller, response=b"%d" % (10 + number)))
    await _settle(store, True)
    for number, caller in enumerate(callers):
        mine = await store.find_response("resp_1", caller)
        named = await store.find_response(caller, "open")
        assert mine is not None
        assert named is not None
        assert (mine.response, named.response) == (b"%d" % number, b"%d" % (10 + number))
    assert await store.delete_response("resp_1", "\ud800") is True
    assert await store.find_response("resp_1", "\ud800") is None
    assert await store.find_response("resp_1", "\udc00") is not None


async def test_a_response_needs_no_run(store: Store) -> None:
    """The store keeps a response even if the row of its run was never written."""
    store.put_response(response(run_id="run_lost"))
    await _settle(store, True)
    assert await store.find_response("resp_1", "open") == response(run_id="run_lost")
    assert store.lost == 0


@settled
async def test_a_deleted_response_is_gone_once(store: Store, settled: bool) -> None:
    """A deletion says whether it found a response, and also removes one that is still queued."""
    assert await store.delete_response("resp_1", "open") is False
    store.put_response(response())
    await _settle(store, settled)
    assert await store.delete_response("resp_1", "open") is True
    assert await store.find_response("resp_1", "open") is None
    await _settle(store, True)
    assert await store.find_response("resp_1", "open") is None
    assert await store.delete_response("resp_1", "open") is False
    assert store.lost == 0


@settled
async def test_a_response_put_again_after_its_deletion_is_there(store: Store, settled: bool) -> None:
    """A response that is put again after its deletion is found, whether the first was queued or written."""
    store.put_response(response())
    await _settle(store, settled)
    assert await store.delete_response("resp_1", "open") is True
    store.put_response(response(response=b"2"))
    await _settle(store, settled)
    found = await store.find_response("resp_1", "open")
    assert found is not None
    assert found.response == b"2"


async def test_content_none_keeps_responses_as_long_as_the_process(make: Make) -> None:
    """Rule R3: with ``content = "none"`` memory holds a response, so that a conversation can go on."""
    store = make(content="none")
    await store.start()
    store.put_response(response())
    await _settle(store, True)
    assert await store.find_response("resp_1", "open") == response()
    assert await store.find_response("resp_1", "key:b") is None
    assert await store.delete_response("resp_1", "key:b") is False
    assert await store.delete_response("resp_1", "open") is True
    assert await store.find_response("resp_1", "open") is None


@settled
@pytest.mark.parametrize("content", ["tools", "none"])
async def test_a_response_past_its_days_is_out_of_reach(make: Make, settled: bool, content: str) -> None:
    """Rule R3: after ``keep_days`` a response and a suspended turn are no longer found."""
    now = [T0]
    store = make(keep_days=2, content=content, clock=lambda: now[0])
    await store.start()
    store.put_response(response())
    store.put_suspended(suspended(ephemeral=True))
    await _settle(store, settled)
    now[0] = T0 + 2 * DAY - 1
    assert await store.find_response("resp_1", "open") is not None
    assert await store.find_suspended("key-1") is not None
    now[0] = T0 + 2 * DAY + 1
    assert await store.find_response("resp_1", "open") is None
    assert await store.find_suspended("key-1") is None
    assert await store.delete_response("resp_1", "open") is False


@pytest.mark.parametrize("content", ["all", "tools", "none"])
async def test_an_ephemeral_turn_is_held_like_any_other(make: Make, content: str) -> None:
    """Reads find an ephemeral turn like any other; the last turn put for a key replaces the earlier one."""
    store = make(content=content)
    await store.start()
    store.put_run(run())
    ephemeral, lasting = suspended(ephemeral=True, payload=b"e"), suspended(payload=b"l")
    for before, after in ((ephemeral, lasting), (lasting, ephemeral)):
        for settled in (False, True):
            store.put_suspended(before)
            await _settle(store, settled)
            assert await store.find_suspended("key-1") == before
            store.put_suspended(after)
            assert await store.find_suspended("key-1") == after
            await _settle(store, True)
            assert await store.find_suspended("key-1") == after


async def test_outside_its_life_a_store_keeps_no_response(make: Make) -> None:
    """The store drops and counts responses put before its start or after its close; a deletion then fails."""
    store = make()
    store.put_response(response())
    assert store.lost == 1
    await store.start()
    await store.aclose()
    store.put_response(response("resp_2"))
    assert store.lost == 2
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.delete_response("resp_3", "open")


def _shelf(now: list[float]) -> Shelf[str, ResponseRecord]:
    return Shelf(
        "test",
        lambda record: record.id,
        lambda record: len(record.response),
        lambda: now[0] - 100,
        max_records=4,
        max_bytes=40_000,
    )


_put = st.tuples(st.sampled_from("abcdef"), st.integers(0, 50))


@given(puts=st.lists(_put, max_size=30), passed=st.lists(st.integers(0, 40), min_size=30, max_size=30))
@settings(max_examples=200, deadline=None)
def test_a_shelf_keeps_the_newest_within_every_bound(puts: list[tuple[str, int]], passed: list[int]) -> None:
    """Rule R3: a shelf stays within its records, bytes and days, and has the newest that fits."""
    now = [0.0]
    shelf = _shelf(now)
    latest: dict[str, ResponseRecord] = {}
    for (name, size), seconds in zip(puts, passed, strict=False):
        now[0] += seconds
        record = response(name, response=b"x" * (1000 * size), created_at=now[0])
        latest[name] = record
        shelf.put(record)
        held = [found for key in "abcdef" if (found := shelf.find(key)) is not None]
        assert (record in held) == (size < 40)  # the overhead of an entry counts, too
        assert len(held) <= 4
        assert sum(len(each.response) for each in held) <= 40_000
        assert all(each is latest[each.id] and each.created_at >= now[0] - 100 for each in held)
    for name in "abcdef":
        shelf.drop(name)
    assert shelf._bytes == 0


@given(name=st.text(), content=st.binary(), more=st.binary())
@settings(max_examples=100, deadline=None)
def test_a_response_survives_the_way_into_a_row_and_back(name: str, content: bytes, more: bytes) -> None:
    """A response with any id and any bytes as its three contents comes back from a row unchanged."""
    record = response(name, response=content, input_items=more, continuation=content + more)
    assert RESPONSES.record(RESPONSES.row(record)) == record
