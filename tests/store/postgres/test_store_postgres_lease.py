"""Leases: a process that renews its own is alive, whatever the clocks say, and one that does not is dead."""

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from store_postgres import fetch, network_to
from store_records import T0, invocation, run, spawn
from waiting import PATIENCE_S, until

pytest.importorskip("asyncpg")

from proxy.base.errors import StoreUnavailable
from proxy.store.base import RunFilter
from proxy.store.options import StoreOptions
from proxy.store.postgres.db import connect
from proxy.store.postgres.lease import LEASE_S
from proxy.store.postgres.migrate import migrate_postgres
from proxy.store.postgres.store import PostgresStore

Make = Callable[..., PostgresStore]

_WORKER = """
import asyncio, sys
from store_records import invocation, run
from proxy.store.postgres.store import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], lease_s=float(sys.argv[3]))
    await store.start()
    store.put_run(run(sys.argv[2]))
    await store.open_invocation(invocation(sys.argv[2], sys.argv[2]), durable=True)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await store.aclose()

asyncio.run(main())
"""


@asynccontextmanager
async def _process(url: str, name: str, lease_s: float = LEASE_S) -> "AsyncIterator[subprocess.Popen[str]]":
    """Run a process that has an open run and an open call with this name; close its record at the end."""

    def begin() -> "subprocess.Popen[str]":
        child = spawn(_WORKER, url, name, str(lease_s))
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    child = await asyncio.to_thread(begin)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGCONT)
        with contextlib.suppress(OSError, ValueError):
            await asyncio.to_thread(child.communicate, "\n", timeout=PATIENCE_S)


async def _statuses(url: str) -> dict[str, str]:
    return dict(await fetch(url, "SELECT id, status FROM runs"))


async def _becomes(url: str, name: str, status: str) -> None:
    async def is_so() -> bool:
        return (await _statuses(url))[name] == status

    await until(is_so)


async def test_only_the_rows_of_the_dead_are_interrupted(make_postgres: Make, postgres_url: str) -> None:
    """Rule R1: after kill -9 the open rows of that process become ``interrupted``, and no other rows."""
    await migrate_postgres(postgres_url)
    async with _process(postgres_url, "dead", 1.0) as dead, _process(postgres_url, "alive"):
        keeper = make_postgres(reap=True, lease_s=4.0, clock=lambda: T0 + 99)
        await keeper.start()
        dead.kill()
        await _becomes(postgres_url, "dead", "interrupted")
        assert await _statuses(postgres_url) == {"dead": "interrupted", "alive": "running"}
        found = await fetch(postgres_url, "SELECT id, status, ended_at FROM tool_invocations ORDER BY id")
        assert found == [("alive", "started", None), ("dead", "interrupted", T0 + 99)]
    assert await _statuses(postgres_url) == {"dead": "interrupted", "alive": "interrupted"}  # it has closed
    await keeper.aclose()
    assert await fetch(postgres_url, "SELECT count(*) FROM owners WHERE ended_at IS NULL") == [(0,)]


async def test_a_process_that_stands_still_loses_its_lease_and_takes_it_again(
    make_postgres: Make, postgres_url: str
) -> None:
    """Rule R1: a stopped process counts as dead although its session lives; once it goes on, it is alive."""
    await migrate_postgres(postgres_url)
    async with _process(postgres_url, "still", 1.0) as still:
        await make_postgres(reap=True, lease_s=4.0).start()
        still.send_signal(signal.SIGSTOP)
        await _becomes(postgres_url, "still", "interrupted")
        still.send_signal(signal.SIGCONT)
        alive = "SELECT count(*) FROM owners WHERE ended_at IS NULL AND pid = $1"

        async def is_back() -> bool:
            return await fetch(postgres_url, alive, still.pid) == [(1,)]

        await until(is_back)


async def test_a_dead_network_costs_no_more_than_a_dead_process(
    make_postgres: Make, postgres_url: str
) -> None:
    """Rule R1: a host that is cut off, while the server sees its connections open, loses its lease; its calls
    with effects are refused meanwhile. When the network is back, it takes the lease again."""
    await migrate_postgres(postgres_url)
    async with network_to(postgres_url) as (wire, url):
        cut_off = PostgresStore(url, StoreOptions(lock_timeout_s=1.0), lease_s=2.0)
        await cut_off.start()
        cut_off.put_run(run())
        await cut_off.open_invocation(invocation(), durable=True)
        await make_postgres(reap=True, lease_s=4.0).start()
        wire.flows.clear()
        await _becomes(postgres_url, "run_1", "interrupted")
        with pytest.raises(StoreUnavailable):
            await cut_off.open_invocation(invocation("inv_2"), durable=True)
        wire.flows.set()
        alive = "SELECT count(*) FROM owners WHERE ended_at IS NULL AND id = $1"

        async def is_back() -> bool:
            return await fetch(postgres_url, alive, cut_off._owner_id) == [(1,)]

        await until(is_back)
        await cut_off.aclose()


async def test_connections_notice_a_dead_server(postgres_url: str) -> None:
    """Each connection probes the server's machine, and ends before the lease of its process does."""
    connection = await connect(postgres_url)
    transport: asyncio.Transport = getattr(connection, "_transport")  # noqa: B009 - asyncpg declares no such name
    sock: socket.socket = transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    idle, interval, probes, user = [
        sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    ]
    await connection.close()
    assert idle + interval * probes <= LEASE_S
    assert 0 < user <= LEASE_S * 1000


async def test_a_lock_that_a_dead_host_holds_delays_no_search(make_postgres: Make, postgres_url: str) -> None:
    """A row that a session still locks is passed over, and the others whose lease is over are ended."""
    await migrate_postgres(postgres_url)
    put = "INSERT INTO owners (id, pid, host, started_at, seen_at) VALUES ($1, 1, 'h', 1, 1)"
    for name in ("locked", "free"):
        await fetch(postgres_url, put, name)
    holder = await connect(postgres_url, idle_in_transaction_session_timeout="0")
    async with holder.transaction():
        await holder.execute("SELECT 1 FROM owners WHERE id = 'locked' FOR UPDATE")
        await make_postgres(reap=True, lease_s=4.0).start()
        ended = "SELECT id FROM owners WHERE ended_at IS NOT NULL"

        async def is_ended(*names: str) -> bool:
            return await fetch(postgres_url, f"{ended} ORDER BY id") == [(name,) for name in names]

        await until(lambda: is_ended("free"))
    await holder.close()
    await until(lambda: is_ended("free", "locked"))


async def test_a_session_left_in_a_transaction_is_ended_by_the_server(postgres_url: str) -> None:
    """The server itself ends a session that is silent within a transaction, and so frees its locks, although
    its connection seems to live."""
    connection = await connect(postgres_url, idle_in_transaction_session_timeout="100")
    await connection.execute("BEGIN")
    await until(connection.is_closed)
    plain = await connect(postgres_url)
    limits = await plain.fetch(
        "SELECT name, setting::int FROM pg_settings WHERE name IN "
        "('tcp_user_timeout', 'idle_in_transaction_session_timeout') ORDER BY name"
    )
    await plain.close()
    assert all(0 < each["setting"] < LEASE_S * 1000 for each in limits)
    assert len(limits) == 2


async def test_after_an_outage_nobody_who_lives_is_taken_for_dead(
    make_postgres: Make, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All leases ended during an outage; who looks for them waits until the others can have come back."""
    stores: Sequence[PostgresStore] = [make_postgres(reap=True, lease_s=2.0) for _ in range(2)]
    ended: list[str] = []
    for store in stores:
        await store.start()

        async def noted(connection: object, store: PostgresStore = store) -> None:
            ended.append(store._owner_id)

        monkeypatch.setattr(store._lease, "_interrupt", noted)
    both = "SELECT count(*) FROM owners WHERE ended_at IS NULL"

    async def are_both() -> bool:
        return await fetch(postgres_url, both) == [(2,)]

    await until(are_both)
    for store in stores:
        await store._lease.stop()
    await fetch(
        postgres_url, "UPDATE owners SET lease_until = 1"
    )  # as it is after an hour without a database
    for store in stores:
        store._lease._reached_at = store._lease._renewed_at = -1e9
        store._lease.start()
    renewed = "SELECT count(*) FROM owners WHERE lease_until > 1"

    async def are_renewed() -> bool:
        return await fetch(postgres_url, renewed) == [(2,)]

    await until(are_renewed)
    assert ended == []


async def test_an_owner_that_comes_back_keeps_its_rows(make_postgres: Make, postgres_url: str) -> None:
    """Rule R1: a live process that was declared dead enters itself again, and closes its rows."""
    alive = make_postgres(lease_s=0.5)
    await alive.start()
    alive.put_run(run())
    await alive.open_invocation(invocation(), durable=True)
    await fetch(postgres_url, "UPDATE owners SET ended_at = 1")

    async def is_back() -> bool:
        return await fetch(postgres_url, "SELECT ended_at FROM owners") == [(None,)]

    await until(is_back)
    alive.put_run(run(status="completed"))
    assert [found.status for found in await alive.list_runs(RunFilter())] == ["completed"]


def test_a_dead_host_costs_at_most_twelve_seconds() -> None:
    """The lease, the search for it and the search for what it ran together are at most 12 s."""
    from proxy.api.detached.take_over import _LOOK_EVERY_S

    assert LEASE_S + LEASE_S / 10 + _LOOK_EVERY_S <= 12
