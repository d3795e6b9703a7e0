"""A real PgBouncer between the record and PostgreSQL."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from own_servers import pgbouncer
from store_postgres import fetch, new_schema
from store_records import T0, hidden, hidden_of, run

asyncpg = pytest.importorskip("asyncpg")

from proxy.base.errors import StoreError, StoreUnavailable  # noqa: E402
from proxy.store.base import RunFilter  # noqa: E402
from proxy.store.options import StoreOptions  # noqa: E402
from proxy.store.postgres.db import connect, store_error  # noqa: E402
from proxy.store.postgres.migrate import postgres_version  # noqa: E402
from proxy.store.postgres.store import PostgresStore  # noqa: E402

pytestmark = pytest.mark.slow

Make = Callable[[str], PostgresStore]


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> AsyncIterator[Make]:
    """Make stores for URLs, and close them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made: list[PostgresStore] = []

    def new(url: str) -> PostgresStore:
        made.append(PostgresStore(url, StoreOptions(clock=lambda: T0)))
        return made[-1]

    yield new
    for store in made:
        await store.aclose()


async def test_a_pooler_that_keeps_sessions_is_enough(make: Make, postgres_url: str) -> None:
    """Through PgBouncer with nothing set but ``pool_mode = session``, two processes share a record."""
    async with pgbouncer(postgres_url, "session") as url:
        first, second = make(url), make(url)
        await first.start()
        await second.start()
        first.put_run(run())
        first.put_hidden(hidden())
        assert await first.wait_until_visible(30)
        assert len(await hidden_of(second, hidden().key)) == 1
        assert [each.id for each in await second.list_runs(RunFilter())] == ["run_1"]
        # The settings are those of the session, and so is the schema.
        connection = await connect(url)
        try:
            assert await connection.fetchval("SHOW lock_timeout") == "1s"
            assert await connection.fetchval("SHOW tcp_keepalives_idle") == "4"
            schema = await connection.fetchval("SELECT current_schema()")
        finally:
            await connection.close()
        assert f"search_path={schema}" in postgres_url
        for store in (first, second):
            await store.aclose()
        assert await fetch(postgres_url, "SELECT count(*) FROM owners WHERE ended_at IS NULL") == [(0,)]


@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_pooler_that_shares_sessions_is_named(make: Make, postgres_url: str, mode: str) -> None:
    """Behind PgBouncer in another mode, the start ends with one line that names the setting; sessions that
    others use keep their settings, and no table is made."""
    async with pgbouncer(postgres_url, mode) as url:
        for attempt in (lambda: make(url).start(), lambda: postgres_version(url)):
            with pytest.raises(StoreError, match="set pool_mode = session"):
                await attempt()
        bare = url.partition("?")[0]
        other = await asyncpg.connect(bare, statement_cache_size=0)
        try:
            told = await other.execute("SELECT 1 WHERE current_setting('lock_timeout') = '0'")
            assert told == "SELECT 1"
        finally:
            await other.close()
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()"
    assert await fetch(postgres_url, tables) == [(0,)]


async def test_a_pooler_with_one_connection_is_named(
    make: Make, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the pooler has no second connection to give, the start says how many are needed."""
    monkeypatch.setattr("proxy.store.postgres.migrate.CONNECT_S", 1.0)
    async with pgbouncer(postgres_url, "session", size=1) as url:
        with pytest.raises(StoreUnavailable, match="gave no second connection"):
            await make(url).start()


async def test_what_a_pooler_refuses_is_said(make: Make) -> None:
    """If the pooler refuses a start-up parameter of the URL, the message names it."""
    async with new_schema() as schema, pgbouncer(schema, "session") as url:
        with pytest.raises(StoreUnavailable, match=r"unsupported startup parameter: statement_timeout"):
            await make(f"{url}&statement_timeout=1000").start()


def test_a_refusal_quotes_no_more_than_a_line() -> None:
    """The message of a pooler is cut."""
    assert len(str(store_error(asyncpg.ProtocolViolationError("x" * 5000)))) < 400
