"""Logs of events, in one process and in a real Redis: readers get every event once and in order."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from own_servers import own_cluster
from redis_server import SERVER, Cable, cable, own_prefix
from waiting import LATE_S, PATIENCE_S, until

from proxy.api.detached.logs import event_log, redis_logs
from proxy.api.detached.logs.event_log import Event, EventLog, EventLogs, LocalLogs, LogGone, LogReader
from proxy.api.detached.logs.redis_logs import RedisLogs

KEYS = [b"k" * 32]


@pytest.fixture
async def prefix() -> AsyncIterator[str]:
    async with own_prefix() as made:
        yield made


@asynccontextmanager
async def processes(prefix: str, number: int = 2, url: str = SERVER, **more: Any) -> AsyncIterator[list[Any]]:
    """Yield the logs of several processes that share a Redis."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(number):
            logs = RedisLogs(url, more.get("keys", KEYS), prefix=prefix)
            stack.push_async_callback(logs.aclose)
            made.append(logs)
        yield made


async def all_of(reader: LogReader) -> list[Event]:
    """Return all events of a log up to its end."""
    events = list[Event]()
    async with asyncio.timeout(PATIENCE_S):
        while reader.end is None:
            events += await reader.next(LATE_S)
    return events


async def is_gone(logs: EventLogs, name: str) -> bool:
    """Return whether a log cannot be read."""
    async with logs.reader(name) as reader:
        try:
            await all_of(reader)
        except LogGone:
            return True
    return False


def pieces(number: int) -> list[Event]:
    """Return events that no other log has, with every kind of byte."""
    return [(place * 7, bytes([place % 256, 0, 255, 10]) + secrets.token_bytes(3)) for place in range(number)]


@pytest.fixture(params=["local", "redis", "other process"])
async def both(request: pytest.FixtureRequest) -> AsyncIterator[tuple[EventLogs, EventLogs]]:
    """The logs of the process that writes, and of one that reads."""
    if request.param == "local":
        local = LocalLogs()
        yield local, local
        await local.aclose()
        return
    async with own_prefix() as prefix, processes(prefix) as (one, two):
        yield one, one if request.param == "redis" else two


async def test_readers_get_every_event_once_and_in_order(both: tuple[EventLogs, EventLogs]) -> None:
    """A reader from before the first event, one in the middle and one after the end read the same."""
    writing, reading = both
    events = pieces(700)
    log = writing.open("a")
    async with reading.reader("a") as early, reading.reader("a") as middle:
        first = asyncio.create_task(all_of(early))
        for number, event in events[:300]:
            log.put(number, event)
        begun = list(await middle.next(LATE_S))
        for number, event in events[300:]:
            log.put(number, event)
            if number % 70 == 0:
                await asyncio.sleep(0)
        log.close()
        log.put(1, b"after the end")
        begun += await all_of(middle)
        assert (await first, begun) == (events, events)
        assert (early.end, middle.end) == (True, True)
    async with reading.reader("a") as late:
        assert await all_of(late) == events
        assert await late.next(0.0) == [] or late.end is not None


async def test_a_log_that_is_broken_off_says_so(both: tuple[EventLogs, EventLogs]) -> None:
    """The end of a log says whether its run has ended, too."""
    writing, reading = both
    log = writing.open("a")
    log.put(3, b"x")
    log.close(ended=False)
    async with reading.reader("a") as reader:
        assert await all_of(reader) == [(3, b"x")]
        assert reader.end is False


async def test_a_reader_waits_no_longer_than_it_wants(both: tuple[EventLogs, EventLogs]) -> None:
    """Without an event a reader gets none, and goes on."""
    writing, reading = both
    log = writing.open("a")
    log.put(0, b"x")
    async with reading.reader("a") as reader:
        assert await reader.next(LATE_S) == [(0, b"x")]
        assert list(await reader.next(0.01)) == []
        assert reader.end is None
        log.put(1, b"y")
        assert await reader.next(LATE_S) == [(1, b"y")]


async def test_a_long_log_is_kept_nowhere(both: tuple[EventLogs, EventLogs]) -> None:
    """A log above its size drops all its events, and its readers find it gone."""
    writing, reading = both
    log = writing.open("a", max_bytes=100)
    log.put(0, b"x" * 60)
    async with reading.reader("a") as reader:
        assert await reader.next(LATE_S)
        waiting = asyncio.create_task(reader.next(LATE_S))
        log.put(1, b"x" * 60)
        log.put(2, b"x")
        with contextlib.suppress(LogGone):
            await waiting
        with pytest.raises(LogGone):
            await all_of(reader)
    assert (log.full, log.events) == (True, [])
    assert await is_gone(reading, "a")


async def test_an_unknown_log_is_gone(both: tuple[EventLogs, EventLogs]) -> None:
    """Nothing is read of a log that does not exist, nor of one that ended too long ago."""
    writing, reading = both
    assert await is_gone(reading, "b")
    log = writing.open("a", keep_s=0.01)
    log.put(0, b"x")
    log.close()

    async def gone() -> bool:
        return await is_gone(reading, "a")

    await until(gone)


async def test_the_writer_knows_that_it_is_read(both: tuple[EventLogs, EventLogs]) -> None:
    """A process learns that somebody reads its log, whichever process does."""
    writing, reading = both
    writing.open("a").put(0, b"x")
    assert not await writing.is_read("a")
    async with reading.reader("a") as reader:
        await reader.next(LATE_S)
        assert await writing.is_read("a")


async def test_all_logs_of_a_process_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended logs make room for others, the oldest first; without room a log keeps nothing."""
    monkeypatch.setattr(event_log, "_MAX_TOTAL", 100)
    logs = LocalLogs()
    for name in "ab":
        log = logs.open(name)
        log.put(0, b"x" * 40)
        log.close()
    third = logs.open("c")
    third.put(0, b"x" * 40)
    assert [await is_gone(logs, name) for name in "ab"] == [True, False]
    fourth = logs.open("d")
    fourth.put(0, b"x" * 70)
    assert (third.full, fourth.full, await is_gone(logs, "b")) == (False, True, True)
    await logs.aclose()


async def test_redis_alone_shows_nothing_of_a_log(prefix: str) -> None:
    """Keys and events hide names and bytes; another key reads nothing; nor is an event of another place."""
    from redis.asyncio import Redis

    async with processes(prefix, 1) as (one,), processes(prefix, 1, keys=[b"o" * 32]) as (stranger,):
        log = one.open("resp_1 alice")
        for number in (0, 1):
            log.put(number, b"a secret")
        log.close()
        async with Redis.from_url(SERVER) as client:

            async def stored() -> bool:
                return bool([key async for key in client.scan_iter(f"{prefix}:events:*")])

            await until(stored)
            (key,) = [key async for key in client.scan_iter(f"{prefix}:events:*")]
            await until(lambda: not one._mirrors)
            entries: Any = await client.xrange(key)
            assert b"alice" not in key
            assert b"secret" not in repr(entries).encode()
            assert 0 < await client.pttl(key) <= 600_000
            assert await is_gone(stranger, "resp_1 alice")
            assert not await is_gone(one, "resp_1 alice")
            await client.delete(key)
            for (id_, _), (_, fields) in zip(entries, reversed(entries), strict=True):
                await client.xadd(key, fields, id=id_)
            assert await is_gone(one, "resp_1 alice")


async def test_an_older_key_still_reads(prefix: str) -> None:
    """A key that was replaced still opens what it has closed."""
    async with processes(prefix, 1) as (one,), processes(prefix, 1, keys=[b"n" * 32, *KEYS]) as (newer,):
        log = one.open("a")
        log.put(0, b"x")
        log.close()
        async with newer.reader("a") as reader:
            assert await all_of(reader) == [(0, b"x")]


async def test_a_dead_process_leaves_no_log(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log lives as long as its process renews it, and a reader finds it gone afterwards."""
    monkeypatch.setattr(redis_logs, "LEASE_S", 0.4)
    monkeypatch.setattr(redis_logs, "_RENEW_S", 0.1)
    async with processes(prefix) as (one, two):
        one.open("a").put(0, b"x")
        async with two.reader("a") as reader:
            assert await reader.next(LATE_S) == [(0, b"x")]
            for _ in range(8):
                assert not await reader.next(0.1)
            one._renewer.cancel()
            with pytest.raises(LogGone):
                await all_of(reader)


async def test_a_process_that_stood_still_sends_its_log_again(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Redis has lost a log, its process sends it again from the start."""
    from redis.asyncio import Redis

    monkeypatch.setattr(redis_logs, "_RENEW_S", 0.05)
    async with processes(prefix) as (one, two), Redis.from_url(SERVER) as client:
        log = one.open("a")
        log.put(0, b"x")
        await until(lambda: one._mirrors["a"].sent == 1)
        await client.delete(one._key("a"))
        log.put(1, b"y")

        async def readable() -> bool:
            async with two.reader("a") as reader:
                try:
                    return list(await reader.next(LATE_S)) == [(0, b"x"), (1, b"y")]
                except LogGone:
                    return False

        await until(readable)


async def test_renewals_do_not_shorten_the_life_of_an_ended_log(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log can be read as long after its end as its run wants, even if it ends while lives are renewed."""
    from redis.asyncio import Redis

    def is_sent(mirror: Any) -> bool:
        return bool(mirror.sent)

    monkeypatch.setattr(redis_logs, "_RENEW_S", 0.0)
    async with processes(prefix, 1) as (one,), Redis.from_url(SERVER) as client:
        names = [str(number) for number in range(200)]
        for name in names:
            log = one.open(name, keep_s=600.0)
            log.put(0, b"x")
            await until(partial(is_sent, one._mirrors[name]))
            log.close()
        await until(lambda: not one._mirrors)
        lives = [await client.pttl(one._key(name)) for name in names]
        assert min(lives) > 500_000


async def test_a_batch_of_many_logs_is_bounded(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many logs have news, one answer of Redis waits for few bytes, and no log waits for ever."""
    monkeypatch.setattr(redis_logs, "_BATCH_BYTES", 1000)
    async with processes(prefix) as (one, two):
        sizes: list[int] = [0]
        close: Callable[..., bytes] = one._seal.close
        send = one._send_batch

        def sealed(text: bytes, *place: Any) -> bytes:
            sizes[-1] += len(text)
            return close(text, *place)

        async def counted(batch: Any) -> None:
            sizes.append(0)
            await send(batch)

        monkeypatch.setattr(one._seal, "close", sealed)
        monkeypatch.setattr(one, "_send_batch", counted)
        logs = {str(number): one.open(str(number)) for number in range(40)}
        for name, log in logs.items():
            for number in range(5):
                log.put(number, name.encode() * 200)
            log.close()
        await until(lambda: not one._mirrors)
        for name in logs:
            async with two.reader(name) as reader:
                assert await all_of(reader) == [(number, name.encode() * 200) for number in range(5)]
        assert max(sizes) < 3000


async def test_a_log_that_is_dropped_while_it_is_sent_leaves_redis(prefix: str) -> None:
    """No other process reads the beginning of a log whose events were dropped."""
    async with processes(prefix, 1) as (one,):
        send = one._send_batch

        async def dropped(batch: Any) -> None:
            sending = asyncio.ensure_future(send(batch))
            await asyncio.sleep(0)  # Its events are on their way.
            if not log.full:
                log.forget()
            await sending

        one._send_batch = dropped
        log = one.open("a")
        log.put(0, b"x")
        await until(lambda: one._sender.done())
        assert not await one._client.exists(one._key("a"))


@pytest.mark.parametrize("how", ["cut", "hang"])
async def test_an_outage_of_redis_breaks_no_run(
    prefix: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Redis is away, the run writes and its own process reads; others read nothing. Afterwards they
    read all of it."""
    monkeypatch.setattr(redis_logs, "_ANSWER_S", 0.5)
    events = pieces(40)
    wire: Cable
    async with cable() as wire, processes(prefix, url=wire.url) as (one, two):
        log: EventLog = one.open("a")
        for number, event in events[:10]:
            log.put(number, event)
        await until(lambda: one._mirrors["a"].sent == 10)
        getattr(wire, how)()
        for number, event in events[10:20]:
            log.put(number, event)
            await asyncio.sleep(0)
        assert await is_gone(two, "a")
        async with one.reader("a") as reader:
            assert list(await reader.next(LATE_S)) == events[:20]
        wire.mend()
        for number, event in events[20:]:
            log.put(number, event)
        log.close()

        async def readable() -> bool:
            async with two.reader("a") as reader:
                try:
                    return await all_of(reader) == events
                except LogGone:
                    return False

        await until(readable)


async def test_few_logs_are_read_at_a_time(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound of connections a reader finds its log gone instead of waiting."""
    monkeypatch.setattr(redis_logs, "_MOST_READERS", 1)
    async with processes(prefix) as (one, two):
        log = one.open("a")
        log.put(0, b"x")
        log.close()
        async with two.reader("a") as first:
            assert await all_of(first) == [(0, b"x")]
            assert await is_gone(two, "a")
        assert not await is_gone(two, "a")


async def test_logs_are_in_a_cluster(tmp_path: Path) -> None:
    """The logs of a Redis cluster are read at another process, as those of one server are."""
    async with (
        own_cluster(tmp_path) as port,
        processes("test", url=f"redis+cluster://127.0.0.1:{port}") as both,
    ):
        one, two = both
        events = pieces(20)
        for name in "abc":
            log = one.open(name)
            for number, event in events:
                log.put(number, event)
            log.close()
        await until(lambda: not one._mirrors)
        for name in "abc":
            async with two.reader(name) as reader:
                assert await all_of(reader) == events
