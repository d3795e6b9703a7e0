"""Look-ups in a store that does not answer: the first one times out, the others fail at once."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from waiting import LATE_S, PATIENCE_S, until

from proxy.effect_records import EffectClaim
from proxy.errors import StoreError, StoreUnavailable
from proxy.store.look_ups import LookUps
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
    assert store._reader is not None
    hanging = asyncio.create_task(store._reader.run(lambda db: back.wait()))
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
        self.probes = self.asked = 0
        self.broken = False

    async def probe(self) -> None:
        self.probes += 1
        await self.answers.wait()
        if self.broken:
            raise StoreError("still broken")

    async def look(self) -> str:
        self.asked += 1
        await self.answers.wait()
        return "found"


async def test_one_probe_at_a_time_asks_a_silent_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a store does not answer, one look-up and one probe reach it, however many requests come."""
    monkeypatch.setattr("proxy.store.look_ups.LOOK_UP_S", 0.05)
    record = Record()
    look_ups = LookUps(record.probe)
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            await look_ups.run(record.look())
    assert (record.asked, look_ups.is_unresponsive) == (1, True)
    await until(lambda: record.probes == 1)
    await asyncio.sleep(0.3)
    assert record.probes == 1
    record.broken = True
    record.answers.set()
    await until(lambda: record.probes >= 3)
    assert look_ups.is_unresponsive
    record.broken = False
    await until(lambda: not look_ups.is_unresponsive)
    assert await look_ups.run(record.look()) == "found"


async def test_a_record_that_refuses_at_once_is_not_away() -> None:
    """A look-up that fails at once does not make the store count as unresponsive; the next one is tried."""
    record = Record()
    look_ups = LookUps(record.probe)

    async def refused() -> None:
        raise StoreUnavailable("refused")

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="refused"):
            await look_ups.run(refused())
    assert not look_ups.is_unresponsive


async def test_who_gives_up_on_several_look_ups_has_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the caller's deadline ends a look-up just before its own, the store counts as unresponsive."""
    monkeypatch.setattr("proxy.store.look_ups.LOOK_UP_S", 0.2)
    look_ups = LookUps(Record().probe)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15):
            await look_ups.run(Record().look())
    await until(lambda: look_ups.is_unresponsive)
    look_ups.close()


async def test_a_client_that_leaves_a_slow_record_does_not_decide_that_it_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look-up that is cancelled late causes one probe; if the store answers it, it counts as responsive."""
    monkeypatch.setattr("proxy.store.look_ups.LOOK_UP_S", LATE_S)
    loop = asyncio.get_running_loop()
    now = loop.time
    slow, asked = Record(), asyncio.Event()

    async def probe() -> None:
        asked.set()

    look_ups = LookUps(probe)
    tasks = [asyncio.create_task(look_ups.run(slow.look())) for _ in range(2)]
    await until(lambda: slow.asked == 2)
    with monkeypatch.context() as later:
        later.setattr(loop, "time", lambda: now() + 0.6 * LATE_S)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
    await asyncio.sleep(0)
    assert not look_ups.is_unresponsive
    look_ups.close()


async def test_a_client_that_leaves_at_once_says_nothing_of_the_record() -> None:
    """After a look-up that is cancelled early the store does not count as unresponsive."""
    look_ups = LookUps(Record().probe)
    task = asyncio.create_task(look_ups.run(Record().look()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not look_ups.is_unresponsive
    look_ups.close()


async def test_work_that_does_not_end_is_left_behind() -> None:
    """``HardTimeout`` does not wait for a slow cancellation, since a rollback may hang on the same disk."""
    from proxy.hard_timeout import HardTimeout

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
