"""OAuth tokens in the store: sealed, shared by processes, and refreshed by one process at a time."""

import asyncio
import contextlib
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web
from in_process import serving_app
from store_postgres import fetch
from store_records import T0, files_below, message, query, run

from proxy.base.errors import StoreError, StoreUnavailable
from proxy.store.base import PurgeFilter
from proxy.store.seal import Seal
from proxy.store.sql.migrate import load_migrations, migrate_sqlite
from proxy.store.sql.store import SqlStore
from proxy.store.sqlite.memory import MemoryStore
from proxy.store.tokens import SealedTokens

KEY = bytes(range(32))
SECRET = b"s3cret-token"
DAY = 86400.0

Make = Callable[..., SqlStore]

_PROCESS = """
import asyncio, json, sys
from proxy.store.factory import open_store
from proxy.tools.access.credentials import CredentialBroker
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.oauth_http import CheckedOAuthHttp
from proxy.tools.oauth.grants import OAuthToken

async def main(store_url, service, key, rounds):
    store = open_store(store_url, seal_key=key)
    await store.start()
    pool = EgressPool(allowed_networks=("127.0.0.0/8",), schemes=("http",))
    token = OAuthToken(service + "/token", "id", "configured")
    http = CheckedOAuthHttp(pool, pool, [service], "tools.networks")
    broker = CredentialBroker({"mail": token}, pool, lambda connection: http, vault=store.vault)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    client = broker.client("mail", [service.removeprefix("http://")])
    answers = [await client.get_json(service + "/api") for _ in range(int(rounds))]
    await pool.aclose()
    await store.aclose()
    print(json.dumps(answers), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Provider:
    """A token endpoint that takes each refresh token once, and rejects all of them once a spent one comes."""

    def __init__(self, expires_in: float) -> None:
        self.expires_in = expires_in
        self.newest = "configured"
        self.spent: list[str] = []
        self.asked = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()
        self.url = ""

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.asked.set()
        await self.release.wait()
        if request.transport is None:  # The process that asked has died.
            return web.Response(status=500)
        if form["refresh_token"] != self.newest:
            self.newest = ""
            return web.json_response({"error": "invalid_grant"}, status=400)
        self.spent.append(self.newest)
        self.newest = f"rotated-{len(self.spent)}"
        access = {"access_token": f"access-{len(self.spent)}", "refresh_token": self.newest}
        return web.json_response({**access, "token_type": "Bearer", "expires_in": self.expires_in})

    async def api(self, request: web.Request) -> web.Response:
        # An answer that repeats the credentials themselves would be blanked.
        return web.json_response(request.headers["Authorization"].replace("access-", "login "))


@contextlib.asynccontextmanager
async def providing(expires_in: float) -> AsyncIterator[Provider]:
    """A running provider."""
    provider = Provider(expires_in)
    app = web.Application()
    app.router.add_post("/token", provider.token)
    app.router.add_get("/api", provider.api)
    async with serving_app(app) as provider.url:
        yield provider


async def begin(url: str, provider: Provider, rounds: int = 1) -> asyncio.subprocess.Process:
    """Start a process with a store and a broker, which waits for a line on its input before it begins."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROCESS, url, provider.url, KEY.hex(), str(rounds),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def finish(process: asyncio.subprocess.Process) -> list[str]:
    """Let a process begin, and return the answers that it got from the service."""
    said, _ = await process.communicate(b"go\n")
    assert process.returncode == 0
    answers: list[str] = json.loads(said.splitlines()[-1])  # What comes before is the log.
    return answers


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that several processes share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/r.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


async def test_two_processes_spend_each_refresh_token_once(url: str) -> None:
    """Rule T6: two processes whose tokens expire at once take turns, and send each refresh token once."""
    async with providing(expires_in=0.001) as provider:
        both = [await begin(url, provider, 8) for _ in range(2)]
        answers = await asyncio.gather(*map(finish, both))
    assert provider.newest == f"rotated-{len(provider.spent)}", "a spent token has come again"
    assert len(provider.spent) > 1
    made = {f"Bearer login {number + 1}" for number in range(len(provider.spent))}
    assert [len(each) for each in answers] == [8, 8]
    assert set(answers[0]) | set(answers[1]) == made


async def test_two_processes_share_one_refresh(url: str) -> None:
    """Rule T6: one process refreshes the token, and another process and a later start use the result."""
    async with providing(expires_in=3600) as provider:
        both = [await begin(url, provider) for _ in range(2)]
        assert await asyncio.gather(*map(finish, both)) == [["Bearer login 1"]] * 2
        assert await finish(await begin(url, provider)) == ["Bearer login 1"]
    assert provider.spent == ["configured"]


async def test_a_process_that_dies_frees_the_lock(url: str) -> None:
    """If a process is killed while it refreshes a token, another process can refresh it."""
    async with providing(expires_in=3600) as provider:
        provider.release.clear()
        first = await begin(url, provider)
        assert first.stdin is not None
        first.stdin.write(b"go\n")
        await provider.asked.wait()
        first.kill()
        await first.communicate()
        second = await begin(url, provider)
        provider.release.set()
        assert await finish(second) == ["Bearer login 1"]


@pytest.fixture(params=["sqlite", "postgres"])
def make_sql(request: pytest.FixtureRequest) -> Make:
    """A function that makes stores, for SQLite and PostgreSQL in turn."""
    made: Make = request.getfixturevalue(f"make_{request.param}")
    return made


def vault_of(store: SqlStore) -> SealedTokens:
    """The vault of a store that has one."""
    assert store.vault is not None
    return store.vault


async def test_tokens_come_back_after_a_restart(make_sql: Make) -> None:
    """The store keeps the last tokens of each name through a restart, a purge and more than a year."""
    now = [T0]
    store = make_sql(seal=Seal(KEY), content="none", clock=lambda: now[0])
    await store.start()
    vault = vault_of(store)
    assert await vault.load("a") is None
    await vault.save("a", b"1")
    await vault.save("a", SECRET)
    await vault.save("b", b"\xff\x00")
    await vault.save("c", SECRET)
    await vault.forget("c")
    await store.aclose()
    now[0] += 400 * DAY
    again = make_sql(seal=Seal(KEY), reap=True, clock=lambda: now[0])
    await again.start()
    again.put_run(run(status="completed"))
    await again.purge(PurgeFilter())
    assert await vault_of(again).load("a") == SECRET
    assert await vault_of(again).load("b") == b"\xff\x00"
    assert await vault_of(again).load("c") is None


async def test_no_file_has_a_token(make_sqlite: Make, tmp_path: Path) -> None:
    """Rule R3: no file holds a token in plain text, and a token copied to another row does not open."""
    store = make_sqlite(seal=Seal(KEY))
    await store.start()
    await vault_of(store).save("a", SECRET)
    assert all(SECRET not in path.read_bytes() for path in files_below(tmp_path) if path.is_file())
    await vault_of(store).save("b", b"other")
    query_write(tmp_path / "r.db", "UPDATE connection_tokens SET tokens = (SELECT tokens FROM "
                "connection_tokens WHERE id = 'a') WHERE id = 'b'")  # fmt: skip
    with pytest.raises(StoreError, match="does not open"):
        await vault_of(store).load("b")


def query_write(path: Path, sql: str) -> None:
    """Change the database without the store."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


async def test_no_column_has_a_token(make_postgres: Make, postgres_url: str) -> None:
    """Rule R3: no column in PostgreSQL holds a token in plain text."""
    store = make_postgres(seal=Seal(KEY))
    await store.start()
    await vault_of(store).save("a", SECRET)
    ((row,),) = await fetch(postgres_url, "SELECT t::text FROM connection_tokens t")
    assert SECRET.hex() not in row


async def test_without_a_key_there_is_no_vault(make_sql: Make) -> None:
    """Rule R3: a store without a seal key, or in memory, keeps no tokens at all."""
    store = make_sql()
    await store.start()
    assert store.vault is None
    assert MemoryStore().vault is None


async def test_another_key_is_refused_at_start(make_sql: Make) -> None:
    """A store that holds only sealed tokens does not start with another seal key."""
    first = make_sql(seal=Seal(KEY))
    await first.start()
    await vault_of(first).save("a", SECRET)
    await first.aclose()
    with pytest.raises(StoreError, match="cannot be read: the key"):
        await make_sql(seal=Seal(bytes(32))).start()


async def test_one_at_a_time(make_sql: Make) -> None:
    """``exclusive`` lets in one store at a time for a name, and does not wait for other names."""
    store, other = make_sql(seal=Seal(KEY)), make_sql(seal=Seal(KEY))
    await store.start()
    await other.start()
    inside = asyncio.Event()

    async def second() -> None:
        async with vault_of(other).exclusive("a"):
            inside.set()

    async with vault_of(store).exclusive("a"):
        task = asyncio.create_task(second())
        async with vault_of(other).exclusive("b"):
            await vault_of(other).save("b", SECRET)
        assert not inside.is_set()
    await task
    assert inside.is_set()


async def test_a_lock_that_does_not_come_is_an_error(
    make_sqlite: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``exclusive`` raises StoreUnavailable if it waits too long for the lock."""
    monkeypatch.setattr("proxy.store.tokens._MAX_WAIT_S", 0.0)
    store = make_sqlite(seal=Seal(KEY))
    await store.start()
    async with vault_of(store).exclusive("a"):
        with pytest.raises(StoreUnavailable, match="another process"):
            async with vault_of(store).exclusive("a"):
                raise AssertionError("two were in")


async def test_a_closed_record_says_so(make_sql: Make) -> None:
    """After the store is closed, its vault raises StoreUnavailable for every read and write."""
    store = make_sql(seal=Seal(KEY))
    await store.start()
    store.put_messages([message()])
    await store.aclose()
    with pytest.raises(StoreUnavailable):
        await vault_of(store).load("a")
    with pytest.raises(StoreUnavailable):
        await vault_of(store).save("a", SECRET)
    with pytest.raises(StoreUnavailable):
        await vault_of(store).forget("a")


async def test_migration_keeps_what_there_is(make_sqlite: Make, tmp_path: Path) -> None:
    """A start migrates a database from before the table of tokens, which can then hold tokens."""
    number = next(each.number for each in load_migrations() if each.name.endswith("_connection_tokens"))
    migrate_sqlite(tmp_path / "r.db", migrations=load_migrations()[: number - 1])
    store = make_sqlite(seal=Seal(KEY))
    await store.start()
    await vault_of(store).save("a", SECRET)
    assert query(tmp_path / "r.db", "SELECT id, sealed_by FROM connection_tokens") == [("a", Seal(KEY).id)]
