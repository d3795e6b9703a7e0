"""Stores for the tests, of every kind and on files of their own."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from store_records import T0

from proxy.store.memory import MemoryStore
from proxy.store.sqlite import SqliteStore

Make = Callable[..., "MemoryStore | SqliteStore"]


@pytest.fixture(params=["memory", "sqlite"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    """Makes a store of each kind; those that a test leaves open are closed."""
    made: list[MemoryStore | SqliteStore] = []

    def build(**options: Any) -> MemoryStore | SqliteStore:
        options.setdefault("clock", lambda: T0)
        store = (
            MemoryStore(**options) if request.param == "memory" else SqliteStore(tmp_path / "r.db", **options)
        )
        made.append(store)
        return store

    yield build
    for store in made:
        await store.aclose()


@pytest.fixture
async def store(make: Make) -> "MemoryStore | SqliteStore":
    """One started store with the default policy."""
    made = make()
    await made.start()
    return made


@pytest.fixture
async def make_sqlite(tmp_path: Path) -> AsyncIterator[Callable[..., SqliteStore]]:
    """Makes stores on one file and closes them, patiently only as long as the test asked for."""
    made: list[SqliteStore] = []

    def build(**options: Any) -> SqliteStore:
        made.append(SqliteStore(tmp_path / "r.db", **{"clock": lambda: T0, **options}))
        return made[-1]

    yield build
    for store in made:
        await store.aclose()
