"""Three hosts behind HAProxy, with a PostgreSQL and a Redis of their own, are one service under load."""

import asyncio
import signal
from pathlib import Path

import pytest
from network_hosts import kill
from own_servers import frozen
from releases import previous_release
from service_rig import Service, is_whole, load, service

pytest.importorskip("asyncpg")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIENTS = 8


async def serves(made: Service) -> None:
    """Check that requests which pass are answered, and that each host says that it serves."""
    passed = await asyncio.gather(*(made.ask() for _ in range(CLIENTS)))
    assert [answer.body for answer in passed if not is_whole(answer)] == []
    ready = [await host.server.ask(method="GET", path="/readyz") for host in made.hosts]
    assert [answer.status for answer in ready] == [200] * len(made.hosts)


async def test_a_deployment_breaks_no_stream(tmp_path: Path) -> None:
    """Three hosts of the previous release are replaced by this one, one after the other, and then restarted
    in place, while clients ask without a pause: each of them has a whole answer at its first attempt, and
    each effect happens once."""
    earlier = await asyncio.to_thread(previous_release, tmp_path / "earlier")
    async with service(tmp_path) as made:
        await asyncio.gather(*(made.start(host, earlier) for host in made.hosts))
        async with load(made, CLIENTS) as clients:
            await clients.more(CLIENTS)
            for host in made.hosts:
                host.server.signal(signal.SIGTERM)
                assert await host.server.ended() == 0
                await made.start(host)
                await clients.more(CLIENTS)
            for host in made.hosts:
                host.server.signal(signal.SIGHUP)
                await clients.more(CLIENTS)
        assert clients.broken == []
        clients.check()


async def test_a_host_that_dies_costs_its_own_streams_and_no_effect_twice(tmp_path: Path) -> None:
    """One host is killed, another loses its network.  A client whose stream broke asks again: it gets a whole
    answer from the third host, and each effect happens once at most."""
    async with service(tmp_path) as made:
        await asyncio.gather(*map(made.start, made.hosts))
        async with load(made, CLIENTS) as clients:
            await clients.more(CLIENTS)
            kill(made.hosts[0].name)
            await clients.more(CLIENTS)
            made.net.cut(1)
            await clients.more(2 * CLIENTS)
        assert len(clients.broken) <= 8 * CLIENTS
        clients.check(at_least=0)


async def test_an_outage_of_what_hosts_share_breaks_no_stream_that_passes(tmp_path: Path) -> None:
    """PostgreSQL stands still, then Redis, then one host loses its way to PostgreSQL: requests that need
    neither are answered all the time, and afterwards tools run as before."""
    async with service(tmp_path) as made:
        await asyncio.gather(*map(made.start, made.hosts))
        for shared in (made.postgres, made.redis):
            with frozen(shared):
                await serves(made)
        await made.hosts[2].record.cut()
        await serves(made)
        await made.hosts[2].record.open()
        async with load(made, CLIENTS) as clients:
            await clients.more(CLIENTS)
        clients.check()
