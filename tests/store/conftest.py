"""Fixtures that make stores of every kind, each in a place of its own."""

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_postgres import need_postgres, new_schema
from store_records import T0
from waiting import PATIENCE_S

from proxy.store.options import StoreOptions
from proxy.store.sql.store import SqlStore
from proxy.store.sqlite.memory import MemoryStore
from proxy.store.sqlite.store import SqliteStore

Make = Callable[..., SqlStore]


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that this process may read but not write, even if the tests run as root; it has an r.db."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "r.db").touch()
        folder.chmod(0o555)
        (folder / "r.db").chmod(0o444)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o700)


@pytest.fixture
async def postgres_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The URL of a schema for one test; the test is skipped if there is no PostgreSQL server."""
    need_postgres()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with new_schema() as url:
        yield url


@pytest.fixture
async def make_postgres(postgres_url: str) -> AsyncIterator[Callable[..., Any]]:
    """A function that makes stores on one schema; the fixture closes them at the end."""
    from proxy.store.postgres.lease import LEASE_S
    from proxy.store.postgres.store import PostgresStore

    made: list[PostgresStore] = []

    def build(lease_s: float = LEASE_S, **options: Any) -> PostgresStore:
        # A busy machine may need longer than a second for a connection, and longer than 5 s for a write.
        wanted = StoreOptions(**{"clock": lambda: T0, "lock_timeout_s": PATIENCE_S, **options})
        made.append(PostgresStore(postgres_url, wanted, lease_s=lease_s))
        return made[-1]

    yield build
    for store in made:
        await store.aclose()


@pytest.fixture
async def make_sqlite(tmp_path: Path) -> AsyncIterator[Callable[..., SqliteStore]]:
    """A function that makes stores on one file; the fixture closes them at the end."""
    made: list[SqliteStore] = []

    def build(**options: Any) -> SqliteStore:
        made.append(SqliteStore(tmp_path / "r.db", StoreOptions(**{"clock": lambda: T0, **options})))
        return made[-1]

    yield build
    for store in made:
        await store.aclose()


@pytest.fixture
async def make_memory() -> AsyncIterator[Callable[..., MemoryStore]]:
    """A function that makes stores in memory, each with its own database; the fixture closes them."""
    made: list[MemoryStore] = []

    def build(**options: Any) -> MemoryStore:
        made.append(MemoryStore(StoreOptions(**{"clock": lambda: T0, **options})))
        return made[-1]

    yield build
    for store in made:
        await store.aclose()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make(request: pytest.FixtureRequest) -> Make:
    """A function that makes stores, for each kind in turn; the fixture closes what a test leaves open."""
    made: Make = request.getfixturevalue(f"make_{request.param}")
    return made


@pytest.fixture(params=["sqlite", "postgres"])
def make_sql(request: pytest.FixtureRequest) -> Make:
    """Like ``make``, but only for the kinds of store that outlive the process."""
    made: Make = request.getfixturevalue(f"make_{request.param}")
    return made


@pytest.fixture
async def store(make: Make) -> SqlStore:
    """One started store with the default options, for each kind in turn."""
    made = make()
    await made.start()
    return made
