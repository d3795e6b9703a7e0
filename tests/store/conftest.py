"""Stores for the tests, of every kind and in places of their own."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from store_postgres import need_postgres, new_schema
from store_records import T0

from proxy.store.options import StoreOptions
from proxy.store.sql.store import SqlStore
from proxy.store.sqlite.memory import MemoryStore
from proxy.store.sqlite.store import SqliteStore

Make = Callable[..., SqlStore]


@pytest.fixture
async def postgres_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A schema of the test's own; the test is skipped where there is no server."""
    need_postgres()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with new_schema() as url:
        yield url


@pytest.fixture
async def make_postgres(postgres_url: str) -> AsyncIterator[Callable[..., Any]]:
    """Makes stores on one schema and closes them, patiently only as long as the test asked for."""
    from proxy.store.postgres.store import PostgresStore

    made: list[PostgresStore] = []

    def build(grace_s: float = 15.0, **options: Any) -> PostgresStore:
        wanted = StoreOptions(**{"clock": lambda: T0, **options})
        made.append(PostgresStore(postgres_url, wanted, grace_s=grace_s))
        return made[-1]

    yield build
    for store in made:
        await store.aclose()


@pytest.fixture
async def make_sqlite(tmp_path: Path) -> AsyncIterator[Callable[..., SqliteStore]]:
    """Makes stores on one file and closes them, patiently only as long as the test asked for."""
    made: list[SqliteStore] = []

    def build(**options: Any) -> SqliteStore:
        made.append(SqliteStore(tmp_path / "r.db", StoreOptions(**{"clock": lambda: T0, **options})))
        return made[-1]

    yield build
    for store in made:
        await store.aclose()


@pytest.fixture
async def make_memory() -> AsyncIterator[Callable[..., MemoryStore]]:
    """Makes stores in memory, each with a database of its own, and closes them."""
    made: list[MemoryStore] = []

    def build(**options: Any) -> MemoryStore:
        made.append(MemoryStore(StoreOptions(**{"clock": lambda: T0, **options})))
        return made[-1]

    yield build
    for store in made:
        await store.aclose()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a store of each kind; those that a test leaves open are closed."""
    made: Make = request.getfixturevalue(f"make_{request.param}")
    return made


@pytest.fixture(params=["sqlite", "postgres"])
def make_sql(request: pytest.FixtureRequest) -> Make:
    """Makes a store of each kind that writes things down; those that a test leaves open are closed."""
    made: Make = request.getfixturevalue(f"make_{request.param}")
    return made


@pytest.fixture
async def store(make: Make) -> SqlStore:
    """One started store with the default policy."""
    made = make()
    await made.start()
    return made
