"""Look-ups in a store that does not answer: the first one times out, the others fail at once."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from waiting import LATE_S, PATIENCE_S, until

from proxy.base.errors import StoreError, StoreUnavailable
from proxy.records.effects import EffectClaim
from proxy.store.look_ups import Answer, LookUps, QueryBatch
from proxy.store.sqlite.store import SqliteStore

LOOKS: dict[str, Callable[[SqliteStore], Any]] = {
    "a held turn": lambda store: store.find_suspended("key"),
    "hidden turns": lambda store: store.find_hidden(["key"]),
    "a response": lambda store: store.find_response("resp_1", "me"),
    "a deletion": lambda store: store.delete_response("resp_1", "me"),
    "an owner": lambda store: store.is_response_owner("resp_1", "me"),
    "a thread": lambda store: store.find_threads(["conv_1"], "me"),
    "a large result": lambda store: store.find_result("res_1", "me"),
    "an effect": lambda store: store.find_effect(EffectClaim("place:1")),
    "numbers of effects": lambda store: store.number_effects(EffectClaim("place:1", tool="tool:1")),
}


@pytest.mark.parametrize("look", sorted(LOOKS))
async def test_nothing_that_a_request_looks_up_waits_for_a_hung_disk(
    look: str, make_sqlite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a hung disk the first look-up times out, the next fails at once, and later ones work again."""
    monkeypatch.setattr("proxy.store.look_ups.LOOK_UP_S", 0.1)
    store: SqliteStore = make_sqlite()
    await store.start()
    back = threading.Event()
    assert store._looker is not None
    hanging = asyncio.create_task(store._looker.run(lambda db: back.wait()))
    try:
        for reason in ("did not answer within", "does not answer"):
            with pytest.raises(StoreUnavailable, match=reason):
                async with asyncio.timeout(LATE_S):
                    await LOOKS[look](store)
    finally:
        back.set()
    await hanging
    await until(lambda: not store._look_ups.is_unresponsive)
    await LOOKS[look](store)


class Record:
    """A test double of a store that answers when the test says so."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.probes = 0
        self.asked: list[list[str]] = []
        self.broken = False

    async def ask(self, batch: QueryBatch) -> Sequence[Answer]:
        """Answer each query with its own text."""
        asked = [query.sql for query in batch.queries]
        if "key_state" in asked[0]:
            self.probes += 1
        else:
            self.asked.append(asked)
        await self.answers.wait()
        if self.broken:
            raise StoreError("still broken")
        return [[sql] for sql in asked]


async def test_one_probe_at_a_time_asks_a_silent_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a store does not answer, one look-up and one probe reach it, however many requests come."""
    monkeypatch.setattr("proxy.store.look_ups.LOOK_UP_S", 0.05)
    record = Record()
    look_ups = LookUps(record.ask)
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            await look_ups.run("look", ())
    assert (record.asked, look_ups.is_unresponsive) == ([["look"]], True)
    await until(lambda: record.probes == 1)
    await asyncio.sleep(0.3)
    assert record.probes == 1
    record.broken = True
    record.answers.set()
    await until(lambda: record.probes >= 3)
    assert look_ups.is_unresponsive
    record.broken = False
    await until(lambda: not look_ups.is_unresponsive)
    assert await look_ups.run("look", ()) == ["look"]


async def test_what_waits_is_answered_together() -> None:
    """Look-ups that come while one is being answered are one batch, whatever they ask."""
    record = Record()
    look_ups = LookUps(record.ask)
    first = asyncio.create_task(look_ups.run("first", ()))
    await until(lambda: len(record.asked) == 1)
    others = [asyncio.create_task(look_ups.run(f"look {number}", ())) for number in range(250)]
    await asyncio.sleep(0)
    record.answers.set()
    assert await first == ["first"]
    assert await asyncio.gather(*others) == [[f"look {number}"] for number in range(250)]
    assert [len(batch) for batch in record.asked] == [1, 250]


async def test_callers_take_turns() -> None:
    """A caller with many look-ups does not delay the one of another caller by more than a batch."""
    record = Record()
    look_ups = LookUps(record.ask)
    many = tuple(range(200))
    tasks = [asyncio.create_task(look_ups.run(f"busy {number}", many, "busy")) for number in range(20)]
    await until(lambda: len(record.asked) == 1)
    tasks.append(asyncio.create_task(look_ups.run("quiet", many, "quiet")))
    await asyncio.sleep(0)
    record.answers.set()
    await asyncio.gather(*tasks)
    assert record.asked[1] == ["busy 2", "quiet"]
    assert [sql for batch in record.asked for sql in batch if sql != "quiet"] == [
        f"busy {number}" for number in range(20)
    ]


async def test_a_long_queue_says_nothing_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups that wait in the queue far longer than the time limit are answered all the same."""
    monkeypatch.setattr("proxy.store.look_ups.LOOK_UP_S", 0.2)
    asked = 0

    async def slow(batch: QueryBatch) -> Sequence[Answer]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return [[query.sql] for query in batch.queries]

    look_ups = LookUps(slow)
    large = tuple(range(600))  # Each is a batch of its own.
    found = await asyncio.gather(*(look_ups.run(f"{number}", large) for number in range(12)))
    assert found == [[f"{number}"] for number in range(12)]
    assert (asked, look_ups.is_unresponsive) == (12, False)


async def test_a_batch_that_gets_on_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit starts anew with each step of the database, and ends a batch that stands still."""
    monkeypatch.setattr("proxy.store.look_ups.LOOK_UP_S", 0.2)
    given_up: list[QueryBatch] = []

    async def stepping(batch: QueryBatch) -> Sequence[Answer]:
        for _ in range(12):
            await asyncio.sleep(0.05)
            batch.steps += 1
        given_up.append(batch)
        if batch.queries[0].sql == "stuck":
            await asyncio.Event().wait()
        return [["row"] for _ in batch.queries]

    look_ups = LookUps(stepping)
    assert await look_ups.run("long", ()) == ["row"]
    assert not look_ups.is_unresponsive
    with pytest.raises(StoreUnavailable, match="did not answer within"):
        await look_ups.run("stuck", ())
    assert given_up[-1].given_up
    look_ups.close()


async def test_a_busy_event_loop_is_no_slow_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time in which this process could not have noticed an answer does not count."""
    monkeypatch.setattr("proxy.store.look_ups.LOOK_UP_S", 0.2)

    async def answers(batch: QueryBatch) -> Sequence[Answer]:
        for _ in range(5):  # So many turns of the loop, each longer than the time limit.
            await asyncio.sleep(0)
            time.sleep(0.25)  # noqa: ASYNC251 — the loop has to stand still
        return [["row"] for _ in batch.queries]

    look_ups = LookUps(answers)
    assert await look_ups.run("look", ()) == ["row"]
    assert not look_ups.is_unresponsive


async def test_a_record_that_refuses_at_once_is_not_away() -> None:
    """A look-up that fails at once does not make the store count as unresponsive; the next one is tried."""

    async def refuses(batch: QueryBatch) -> Sequence[Answer]:
        raise StoreUnavailable("refused")

    look_ups = LookUps(refuses)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="refused"):
            await look_ups.run("look", ())
    assert not look_ups.is_unresponsive


async def test_an_error_of_one_look_up_is_its_own() -> None:
    """If one query of a batch fails, the others are answered."""

    async def mixed(batch: QueryBatch) -> Sequence[Answer]:
        return [StoreError("no") if query.sql == "bad" else [query.sql] for query in batch.queries]

    look_ups = LookUps(mixed)
    results = await asyncio.gather(
        *(look_ups.run(sql, ()) for sql in ("a", "bad", "b")), return_exceptions=True
    )
    assert (results[0], str(results[1]), results[2]) == (["a"], "no", ["b"])


async def test_clients_that_leave_say_nothing_of_the_record() -> None:
    """A look-up whose client leaves is forgotten, and the record does not count as unresponsive."""
    record = Record()
    look_ups = LookUps(record.ask)
    tasks = [asyncio.create_task(look_ups.run("look", ())) for _ in range(3)]
    await until(lambda: len(record.asked) == 1)
    late = asyncio.create_task(look_ups.run("late", ()))
    await asyncio.sleep(0)
    for task in (*tasks, late):
        task.cancel()
    await asyncio.wait([*tasks, late])
    record.answers.set()
    assert await look_ups.run("next", ()) == ["next"]
    assert record.asked == [["look"] * 3, ["next"]]
    assert not look_ups.is_unresponsive


async def test_whoever_waits_when_the_record_closes_is_told() -> None:
    """A close fails the look-ups that run and those that wait; a later one fails too."""
    record = Record()
    look_ups = LookUps(record.ask)
    tasks = [asyncio.create_task(look_ups.run("look", ()))]
    await until(lambda: len(record.asked) == 1)
    tasks.append(asyncio.create_task(look_ups.run("look", ())))
    await asyncio.sleep(0)
    look_ups.close()
    for task in tasks:
        with pytest.raises(StoreUnavailable, match="closed"):
            async with asyncio.timeout(PATIENCE_S):
                await task


async def test_what_waits_behind_work_that_was_cancelled_is_answered() -> None:
    """If something cancels the work on a batch, those who wait for the next one get their answer."""
    record = Record()

    async def cancelled(batch: QueryBatch) -> Sequence[Answer]:
        found = await record.ask(batch)
        if batch.queries[0].sql == "first":
            raise asyncio.CancelledError
        return found

    look_ups = LookUps(cancelled)
    tasks = [asyncio.create_task(look_ups.run("first", ()))]
    await until(lambda: len(record.asked) == 1)
    tasks.append(asyncio.create_task(look_ups.run("next", ())))
    await asyncio.sleep(0)
    record.answers.set()
    with pytest.raises(StoreUnavailable, match="closed"):
        await tasks[0]
    async with asyncio.timeout(PATIENCE_S):
        assert await tasks[1] == ["next"]


async def test_nothing_is_looked_up_in_a_closed_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up behind a close fails at once, also in the moment before the running ones have ended."""
    monkeypatch.setattr("proxy.store.look_ups._QUEUE_S", 0.1)
    record = Record()
    look_ups = LookUps(record.ask)
    first = asyncio.create_task(look_ups.run("first", ()))
    await until(lambda: len(record.asked) == 1)
    look_ups.close()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="closed"):
            await look_ups.run("late", ())
    with pytest.raises(StoreUnavailable, match="closed"):
        await first
    assert record.asked == [["first"]]


async def test_a_report_delays_no_look_up(make_sqlite: Any) -> None:
    """While a report reads the record for long, look-ups and key checks are answered."""
    store: SqliteStore = make_sqlite()
    await store.start()
    async with store._snapshot(), asyncio.timeout(PATIENCE_S):
        for look in LOOKS.values():
            await look(store)
        await store.keys_version()
        await store.read_keys()


async def test_work_that_does_not_end_is_left_behind() -> None:
    """``HardTimeout`` does not wait for a slow cancellation, since a rollback may hang on the same disk."""
    from proxy.base.hard_timeout import HardTimeout

    ended = asyncio.Event()
    rolled_back = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await ended.wait()
            rolled_back.set()

    in_time = HardTimeout()
    with pytest.raises(TimeoutError):
        await in_time.run(stubborn(), 0.05)
    assert not rolled_back.is_set()
    ended.set()
    await until(rolled_back.is_set)


async def test_look_ups_go_on_after_an_error_that_they_do_not_know() -> None:
    """Those of the batch get an error, those that wait get their turn, and none waits for nothing."""
    batches = 0

    async def ask(batch: QueryBatch) -> Sequence[Answer]:
        nonlocal batches
        batches += 1
        if batches == 1:
            raise TypeError("odd")
        return [[query.sql] for query in batch.queries]

    looks = LookUps(ask)
    many = ("v",) * 400  # Two of these do not fit in one batch.
    first, second = (asyncio.create_task(looks.run(sql, many)) for sql in ("a", "b"))
    with pytest.raises(StoreUnavailable, match="TypeError"):
        await first
    async with asyncio.timeout(LATE_S):
        assert await second == ["b"]
    assert await looks.run("c", ()) == ["c"]
    looks.close()
