"""Counters in a real Redis: processes share them, their entries expire, and they survive an outage."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from limit_clock import limit_clock
from own_servers import own_cluster, own_redis, own_sentinel
from redis_server import HURRY, SERVER, Cable, cable, own_prefix
from structlog.testing import capture_logs
from waiting import LATE_S, PATIENCE_S, until

from proxy.rights.limit_rules import Limit, LimitsUnavailable
from proxy.server.limits.redis import ANSWER_S, LEASE_S, RedisCounters

REQUESTS = Limit("requests", 100, 3600)
TOKENS = Limit("tokens", 1000, 3600)
WORKER = """
import asyncio, sys
from proxy.server.limits import redis as limits_redis
from proxy.rights.limit_rules import Limit
from proxy.server.limits.redis import RedisCounters

limits_redis.ANSWER_S = 30.0

async def main(url, prefix):
    counters = RedisCounters(url, prefix=prefix)
    limits = (Limit("requests", 100, 3600), Limit("requests", 500, 86400))
    for _ in sys.stdin:
        verdicts = await asyncio.gather(*(counters.take("a", limits, (), None, "") for _ in range(20)))
        print(sum(verdict.refused is None for verdict in verdicts), flush=True)
    await counters.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def prefix() -> AsyncIterator[str]:
    async with own_prefix() as made:
        yield made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for Redis."""
    monkeypatch.setattr(HURRY, PATIENCE_S)


async def lets_in(counters: RedisCounters, limit: Limit = REQUESTS) -> bool:
    return (await counters.take("a", (limit,), (), None, "")).refused is None


async def came_back(counters: RedisCounters) -> None:
    """Wait until the counters have noticed that Redis is available again."""
    await until(lambda: not counters.down)


def count_batches(counters: RedisCounters, patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of commands of every batch that the counters send from now on."""
    sent: list[int] = []
    send = counters._line._send

    async def counted(commands: Sequence[Any]) -> list[Any]:
        sent.append(len(commands))
        return await send(commands)

    patch.setattr(counters._line, "_send", counted)
    return sent


async def test_two_processes_share_one_limit_exactly(prefix: str) -> None:
    """Two processes that ask 400 times get 100 places in total, and a refused request counts for no limit."""
    workers = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            WORKER,
            SERVER,
            prefix,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        for _ in range(2)
    ]
    taken: list[list[int]] = [[], []]
    for _ in range(10):
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(b"go\n")
        for worker, counts in zip(workers, taken, strict=True):
            assert worker.stdout is not None
            counts.append(int(await worker.stdout.readline()))
    await asyncio.gather(*(worker.communicate(b"") for worker in workers))
    assert [worker.returncode for worker in workers] == [0, 0]
    assert taken[0][0] == taken[1][0] == 20
    assert sum(map(sum, taken)) == 100
    counters = RedisCounters(SERVER, prefix=prefix)
    verdict = await counters.take("a", (REQUESTS, Limit("requests", 500, 86400)), (), None, "")
    assert [limit_status.left for limit_status in verdict.limit_statuses] == [0, 400]
    await counters.aclose()


async def test_a_redis_that_forgot_its_scripts_counts_on(prefix: str) -> None:
    """If Redis has lost its scripts, the counters load them again and count every request exactly once."""
    from redis.asyncio import Redis

    counters = RedisCounters(SERVER, prefix=prefix)
    assert await lets_in(counters)
    async with Redis.from_url(SERVER) as client:
        await client.script_flush()
    verdicts = await asyncio.gather(*(counters.take("a", (REQUESTS,), (), None, "") for _ in range(5)))
    assert sorted(verdict.limit_statuses[0].left for verdict in verdicts) == [94, 95, 96, 97, 98]
    assert not counters.down
    await counters.aclose()


async def test_a_redis_that_goes_away_is_said_once_and_waited_for_by_nobody(prefix: str) -> None:
    """During an outage requests do not ask Redis; one log line reports its start, another its end."""
    async with cable() as wire:
        counters = RedisCounters(wire.url, prefix=prefix)
        assert await lets_in(counters)
        with capture_logs() as logs:
            wire.cut()
            for _ in range(20):
                with pytest.raises(LimitsUnavailable):
                    await lets_in(counters)
            counters.spend("a", [(TOKENS, 600)])
            asked = wire.accepted
            await asyncio.gather(
                *(counters.take("a", (REQUESTS,), (), None, "") for _ in range(50)), return_exceptions=True
            )
            assert wire.accepted == asked
            wire.mend()
            await came_back(counters)
        assert [line["event"] for line in logs] == ["limits_unavailable", "limits_available"]
        assert logs[1]["unanswered"] == counters.unanswered == 70
        assert "127.0.0.1" not in str(logs)
        verdict = await counters.take("a", (REQUESTS,), (TOKENS,), None, "")
        assert verdict.refused is None
        # The counters now add what the caller used during the outage.
        assert {limit_status.limit: limit_status.left for limit_status in verdict.limit_statuses} == {
            TOKENS: 400,
            REQUESTS: 98,
        }
        await counters.aclose()


async def test_what_many_used_meanwhile_is_counted_afterwards(prefix: str) -> None:
    """After an outage the counters add what all callers used meanwhile, however many they are."""
    async with cable() as wire:
        counters = RedisCounters(wire.url, prefix=prefix)
        wire.cut()
        with pytest.raises(LimitsUnavailable):
            await lets_in(counters)
        for number in range(500):
            counters.spend(f"caller-{number}", [(TOKENS, number)])
        wire.mend()
        await came_back(counters)
        await counters.aclose()
        assert counters.lost == 0
    other = RedisCounters(SERVER, prefix=prefix)
    for number in (1, 250, 499):
        verdict = await other.take(f"caller-{number}", (), (TOKENS,), None, "")
        assert verdict.limit_statuses[0].left == 1000 - number
    await other.aclose()


async def test_a_redis_that_hangs_is_not_waited_for(prefix: str) -> None:
    """If Redis takes a batch and never answers, all waiting requests fail after one timeout."""
    async with cable() as wire:
        with pytest.MonkeyPatch.context() as patch:
            # The driver's own timeout is too long to end these requests in time.
            patch.setattr("proxy.server.limits.redis._PROBE_S", (0.05, LATE_S))
            counters = RedisCounters(wire.url, prefix=prefix)
        assert await lets_in(counters)
        wire.hang()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HURRY, ANSWER_S)
            sent = count_batches(counters, patch)
            async with asyncio.timeout(PATIENCE_S):
                results = await asyncio.gather(
                    *(lets_in(counters) for _ in range(200)), return_exceptions=True
                )
        assert {type(result) for result in results} == {LimitsUnavailable}
        # Requests that did not fit into the first batch fail without a second one.
        assert len(sent) == 1
        with pytest.raises(LimitsUnavailable):
            await lets_in(counters)
        wire.mend()
        await came_back(counters)
        # Redis may have counted the delayed requests, so this one has another limit.
        assert await lets_in(counters, Limit("requests", 5, 60))
        await counters.aclose()


async def test_a_redis_that_was_never_there(prefix: str) -> None:
    """The counters start without Redis, look for it in the background, and close without waiting for it."""
    async with cable() as wire:
        wire.cut()
        counters = RedisCounters(wire.url, prefix=prefix)
        with pytest.raises(LimitsUnavailable):
            await lets_in(counters)
        counters.spend("a", [(TOKENS, 1)])
        async with asyncio.timeout(PATIENCE_S):
            await counters.aclose()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_redis_that_only_refuses_is_away(prefix: str) -> None:
    """A Redis that answers with errors counts as unavailable; a key of the wrong type causes them here."""
    from redis.asyncio import Redis

    async with Redis.from_url(SERVER) as client:
        await client.set(f"{prefix}:requests/a/100/3600/second", "no list", ex=60)
        counters = RedisCounters(SERVER, prefix=prefix)
        with pytest.raises(LimitsUnavailable):
            await lets_in(counters)
        assert counters.unanswered == 1
        await client.delete(f"{prefix}:requests/a/100/3600/second")
        await came_back(counters)
        assert await lets_in(counters)
        await counters.aclose()


async def test_a_place_of_a_dead_process_is_free_again(prefix: str) -> None:
    """A lease that no process renews expires, and its place is free for all processes."""
    with limit_clock() as clock:
        dead, alive = [RedisCounters(SERVER, prefix=prefix, now=clock.time) for _ in range(2)]
        assert (await dead.take("a", (), (), 1, "x")).refused is None
        clock.now += LEASE_S - 1
        assert (await alive.take("a", (), (), 1, "y")).refused is not None
        clock.now += 2
        assert (await alive.take("a", (), (), 1, "y")).refused is None
        for counters in (dead, alive):
            await counters.aclose()


async def test_one_timer_keeps_all_places_of_a_process(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task renews all leases of a process, and a released place is free at once."""
    from redis.asyncio import Redis

    monkeypatch.setattr("proxy.server.limits.redis.LEASE_S", 3.0)
    with limit_clock() as clock:
        counters = RedisCounters(SERVER, prefix=prefix, now=clock.time)
        before = len(asyncio.all_tasks())
        for lease in ("x", "y", "z"):
            assert (await counters.take("a", (), (), 3, lease)).refused is None
        assert len(asyncio.all_tasks()) <= before + 2
        places = f"{prefix}:streams/a"
        clock.now += 2
        async with Redis.from_url(SERVER) as client, asyncio.timeout(PATIENCE_S):
            while float((await client.zrange(places, 0, 0, withscores=True))[0][1]) < clock.now + 2.9:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            clock.now += 2
            assert (await counters.take("a", (), (), 3, "w")).refused is not None
            for lease in ("x", "y", "z"):
                counters.release("a", lease)
            for lease in ("1", "2", "3"):
                assert (await counters.take("a", (), (), 3, lease)).refused is None
            await counters.aclose()
            assert await client.zcard(places) == 0


async def test_who_leaves_while_waiting_leaves_no_place_behind(prefix: str) -> None:
    """A request that is cancelled while Redis is asked about its limits holds no place afterwards."""
    async with cable() as wire:
        counters = RedisCounters(wire.url, prefix=prefix)
        assert await lets_in(counters)
        task = asyncio.create_task(counters.take("a", (), (), 1, "x"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await counters.take("a", (), (), 1, "y")).refused is None
        await counters.aclose()


async def test_memory_in_redis_is_bounded_and_ends(prefix: str) -> None:
    """However many requests and amounts Redis counts, its entries are bounded in number, and all expire."""
    from redis.asyncio import Redis

    small, spent = Limit("requests", 5, 60), Limit("tokens", 10**9, 60)
    with limit_clock() as clock:
        counters = RedisCounters(SERVER, prefix=prefix)
        for _ in range(100):
            await counters.take("a", (small,), (spent,), 100, "")
            counters.spend("a", [(spent, 7)])
            clock.now += 1
        await counters.take("a", (), (spent,), None, "")
    async with Redis.from_url(SERVER) as client:
        assert await client.llen(f"{prefix}:requests/a/5/60/second") == 5
        assert await client.get(f"{prefix}:tokens/a/1000000000/60/second") == b"700"
        keys = [key async for key in client.scan_iter(f"{prefix}:*")]
        assert len(keys) == 3
        for key in keys:
            assert 0 < await client.pttl(key) <= 60_000
    await counters.aclose()


async def test_a_callers_name_cannot_leave_its_keys(prefix: str) -> None:
    """A caller's name with special characters makes valid keys in Redis, and each name has its own."""
    from redis.asyncio import Redis

    counters = RedisCounters(SERVER, prefix=prefix)
    for name in ("a/b", "a b", "\udc80", "ok.1"):
        assert (await counters.take(name, (REQUESTS,), (), None, "")).limit_statuses[0].left == 99
    async with Redis.from_url(SERVER, decode_responses=True) as client:
        keys = [key async for key in client.scan_iter(f"{prefix}:*")]
    assert len(keys) == 4
    assert all(key.count("/") == 4 and " " not in key for key in keys)
    await counters.aclose()


@pytest.mark.parametrize(
    ("hits", "spending", "streams", "trips"),
    [
        ((REQUESTS,), (), None, 1),
        ((), (TOKENS,), None, 1),
        ((REQUESTS,), (TOKENS,), None, 2),
        ((REQUESTS, Limit("requests", 500, 86400)), (TOKENS,), None, 3),
        ((REQUESTS,), (TOKENS,), 5, 3),
    ],
)
async def test_a_request_takes_few_round_trips(
    hits: tuple[Limit, ...], spending: tuple[Limit, ...], streams: int | None, trips: int, prefix: str
) -> None:
    """One limit takes one round trip, several take two or three, and all requests of a moment share them."""
    counters = RedisCounters(SERVER, prefix=prefix)
    with pytest.MonkeyPatch.context() as patch:
        sent = count_batches(counters, patch)
        await counters.take("a", hits, spending, streams, "x")
        assert len(sent) == trips
        await asyncio.gather(*(counters.take(f"c{n}", hits, spending, streams, str(n)) for n in range(20)))
        assert len(sent) == 2 * trips
    await counters.aclose()


async def counts(url: str) -> None:
    """Count everything in a Redis, by two processes' counters."""
    one, other = RedisCounters(url), RedisCounters(url)
    tight = Limit("requests", 2, 3600)
    for counters in (one, other):
        assert (await counters.take("a", (tight, REQUESTS), (TOKENS,), 2, "x")).refused is None
    assert (await one.take("a", (tight, REQUESTS), (TOKENS,), None, "")).refused == tight
    one.spend("a", [(TOKENS, 1200)])
    await one.aclose()  # This counts the use.
    assert (await other.take("a", (REQUESTS,), (TOKENS,), None, "")).refused == TOKENS
    # The same name of a lease holds one place.
    assert (await other.take("a", (), (), 2, "y")).refused is None
    assert (await other.take("b", (REQUESTS,), (), None, "")).limit_statuses[0].left == 99
    assert (other.unanswered, other.lost) == (0, 0)
    await other.aclose()


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_a_cluster_counts(tmp_path: Path, scheme: str, patient: None) -> None:
    """In a cluster every caller and every limit is counted, wherever their keys are."""
    async with own_cluster(tmp_path) as port:
        await counts(f"{scheme}+cluster://127.0.0.1:{port}")


async def test_one_valkey_server_counts(tmp_path: Path, patient: None) -> None:
    """A server is the same whether its address says Redis or Valkey."""
    async with own_redis(tmp_path, "--save", "", "--requirepass", "p/w d") as (url, _):
        port = url.rpartition(":")[2]
        await counts(f"valkey://:p%2Fw%20d@127.0.0.1:{port}")


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_sentinels_name_the_server_that_counts(tmp_path: Path, scheme: str, patient: None) -> None:
    """The counters ask the Sentinels for the server; one that does not answer is passed over."""
    async with own_redis(tmp_path, "--save", "") as (url, _):
        watched = urlsplit(url).port or 0
        async with own_sentinel(tmp_path, watched, "main") as port:
            await counts(f"{scheme}+sentinel://127.0.0.1:1,127.0.0.1:{port}/main")


async def test_the_counters_follow_a_failover(tmp_path: Path, patient: None) -> None:
    """If the server is gone and the Sentinels name another one, the counters go on there."""
    from redis.asyncio import Redis

    folders = [tmp_path / name for name in ("first", "second", "sentinel")]
    for folder in folders:
        folder.mkdir()
    async with own_redis(folders[1], "--save", "") as (second, _), AsyncExitStack() as stack:
        first, _ = await stack.enter_async_context(own_redis(folders[0], "--save", ""))
        async with own_sentinel(folders[2], urlsplit(first).port or 0, "main") as port:
            counters = RedisCounters(f"redis+sentinel://127.0.0.1:{port}/main")
            assert await lets_in(counters)
            async with Redis.from_url(f"redis://127.0.0.1:{port}") as made:
                sentinel: Any = made
                await sentinel.sentinel_remove("main")
                await sentinel.sentinel_monitor("main", "127.0.0.1", urlsplit(second).port, 1)
            await stack.aclose()
            with contextlib.suppress(LimitsUnavailable):
                await lets_in(counters)
            await came_back(counters)
            assert await lets_in(counters)
            await counters.aclose()
            async with Redis.from_url(second) as client:
                assert await client.llen("toolrelay:requests/a/100/3600/second") in (1, 2)


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
async def test_a_group_that_is_away_is_waited_for_by_nobody(kind: str) -> None:
    """Without any Sentinel or node, requests are refused at once, and closing leaves nothing behind."""
    path = "/main" if kind == "sentinel" else ""
    counters = RedisCounters(f"redis+{kind}://127.0.0.1:1,127.0.0.1:2{path}")
    for _ in range(2):
        with pytest.raises(LimitsUnavailable):
            await lets_in(counters)
    assert (counters.down, counters.unanswered) == (True, 2)
    await counters.aclose()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.mark.parametrize(
    "url",
    [
        "rediss://:p%2Fw@x",
        "valkeys://:p%2Fw@x:6380/1",
        "rediss+sentinel://:p%2Fw@x:26379/main",
        "valkeys+cluster://:p%2Fw@x:6379",
    ],
)
async def test_tls_and_passwords_reach_every_kind(url: str) -> None:
    """An address with TLS makes connections with TLS, with the password that it encodes."""
    from redis.asyncio import RedisCluster, SSLConnection

    counters = RedisCounters(url)
    client: Any = counters._client
    if isinstance(client, RedisCluster):
        made = [(SSLConnection, client.nodes_manager.connection_kwargs)]
        assert client.nodes_manager.connection_kwargs["connection_class"] is SSLConnection
    else:
        pool = client.connection_pool
        made = [(pool.connection_class, pool.connection_kwargs)]
        for sentinel in getattr(getattr(counters._opened.bridge, "sentinel", None), "sentinels", ()):
            pool = sentinel.connection_pool
            made.append((pool.connection_class, pool.connection_kwargs))
    for connection_class, options in made:
        assert issubclass(connection_class, SSLConnection)
        assert options["password"] == "p/w"
    await counters.aclose()


def test_a_cable_is_what_it_says() -> None:
    """The tests' own cable forwards connections from the start."""
    assert Cable().mode == "through"
