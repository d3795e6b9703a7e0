"""Fixtures for tests of several hosts that share one PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store_postgres import need_postgres, new_schema


@pytest.fixture
async def postgres_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The URL of a schema for one test; the test is skipped if there is no PostgreSQL server."""
    need_postgres()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with new_schema() as url:
        yield url
