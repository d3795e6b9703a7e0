"""A login in a SQLite or PostgreSQL store: workers share it, even if one of them is killed."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from oauth_rig import log_in
from oauth_server import OAuthServer, running

from proxy.store.base import Store
from proxy.store.factory import open_store

KEY = bytes(range(32)).hex()

_PROCESS = """
import asyncio, json, sys
from proxy.store.factory import open_store
from proxy.tools.access.credentials import CredentialBroker
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.oauth_http import OAuthPools
from proxy.tools.access.credentials import ConnectionFailure
from proxy.tools.oauth.grants import LoggedIn

async def main(store_url, server_url, key, rounds):
    store = open_store(store_url, seal_key=key)
    await store.start()
    pools = OAuthPools(servers=["127.0.0.0/8"])
    egress = EgressPool()
    http = pools.http(server_url=server_url)
    login = LoggedIn(server_url=server_url)
    broker = CredentialBroker({"issues": login}, egress, lambda connection: http, vault=store.vault)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    said = []
    for _ in range(int(rounds)):
        try:
            said.append(await broker.authorize("issues", server_url))
        except ConnectionFailure as failure:
            said.append(failure.reason)
    await pools.aclose()
    await store.aclose()
    print(json.dumps(said), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that several processes share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/r.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """A started store."""
    store = open_store(url, seal_key=KEY)
    await store.start()
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def logged_in(url: str, expires_in: float) -> AsyncIterator[OAuthServer]:
    """A running OAuth server, and a login to it in the store."""
    async with running(OAuthServer(expires_in=expires_in)) as server:
        async with opened(url) as store:
            assert store.vault is not None
            await log_in(server, store.vault)
        yield server


async def begin(url: str, server: OAuthServer, rounds: int = 1) -> asyncio.subprocess.Process:
    """Start a worker, which waits for a line on its input before it begins."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROCESS, url, server.mcp, KEY, str(rounds),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def finish(process: asyncio.subprocess.Process) -> list[str]:
    """Let a worker begin; return the headers that it got, or why it got none."""
    said, _ = await process.communicate(b"go\n")
    assert process.returncode == 0
    found: list[str] = json.loads(said.splitlines()[-1])
    return found


async def killed_while_asking(url: str, server: OAuthServer) -> None:
    """Start a worker, and kill it while it waits for the token endpoint."""
    server.gate = asyncio.Event()
    server.arrived.clear()
    process = await begin(url, server)
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    await server.arrived.wait()
    process.kill()
    await process.communicate()


async def test_workers_take_turns(url: str) -> None:
    """Three workers with expiring tokens never send a refresh token twice, and each gets access tokens."""
    async with logged_in(url, expires_in=0.001) as server:
        workers = [await begin(url, server, 6) for _ in range(3)]
        said = await asyncio.gather(*map(finish, workers))
        (login,) = server.logins
        assert not login.ended
        sent = [form["refresh_token"] for form in server.forms[1:]]
        assert len(sent) == len(set(sent))
        assert all(header.startswith("Bearer s3cret-access-0-") for each in said for header in each)


async def test_a_worker_that_is_killed_before_it_is_heard_costs_nothing(url: str) -> None:
    """If a worker is killed before the server handled its request, the next worker gets a token."""
    async with logged_in(url, expires_in=0.001) as server:
        await killed_while_asking(url, server)
        assert server.gate is not None
        server.gate.set()
        (header,) = await finish(await begin(url, server))
        assert header == f"Bearer {server.logins[0].access_token}"


async def test_a_worker_that_is_killed_after_it_was_heard_costs_the_login(url: str) -> None:
    """If the server gave the next refresh token to a killed worker, the others report how to log in again.
    They send the spent refresh token only once."""
    async with logged_in(url, expires_in=0.001) as server:
        server.hears_the_dead = True
        await killed_while_asking(url, server)
        assert server.gate is not None
        server.gate.set()
        said = await finish(await begin(url, server, 3))
        assert set(said) == {"the login has ended (invalid_grant); run: toolrelay credentials login issues"}
        assert len(server.forms) == 3
        async with opened(url) as store:
            assert store.vault is not None
            await log_in(server, store.vault)
        (header,) = await finish(await begin(url, server))
        assert header == f"Bearer {server.logins[1].access_token}"
