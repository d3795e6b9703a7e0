"""Records that only memory holds: no caller's records make room for those of another (rule R3)."""

from pathlib import Path

import pytest
from store_records import T0, suspended

from proxy.base.caches import cache_sizes
from proxy.store.options import StoreOptions
from proxy.store.shelf import suspended_shelf
from proxy.store.sqlite.memory import MemoryStore
from proxy.store.sqlite.store import SqliteStore


def test_a_caller_pushes_out_its_own() -> None:
    """A caller with two thousand turns loses its own oldest ones; another caller keeps all of its turns."""
    shelf = suspended_shelf(lambda: 0.0)
    for number in range(3):
        shelf.put(suspended(f"ada{number}", caller="ada"))
    for number in range(2000):
        shelf.put(suspended(f"bob{number}", caller="bob"))
    assert all(shelf.find(f"ada{number}") for number in range(3))
    assert shelf.find("bob1999") is not None
    assert shelf.find("bob1002") is None


def test_a_caller_pushes_out_its_own_by_bytes() -> None:
    """A caller that uses up the bytes loses its own oldest turns; another caller keeps its turn."""
    shelf = suspended_shelf(lambda: 0.0, max_bytes=100_000)
    shelf.put(suspended("ada", caller="ada", payload=b"x" * 20_000))
    for number in range(50):
        shelf.put(suspended(f"bob{number}", caller="bob", payload=b"x" * 30_000))
    assert shelf.find("ada") is not None
    assert [shelf.find(f"bob{number}") is not None for number in (47, 48, 49)] == [False, True, True]


def test_end_users_made_up_by_one_key_push_out_that_keys() -> None:
    """All end users that one key names share the room of that key, and push out nobody else's turns."""
    shelf = suspended_shelf(lambda: 0.0)
    shelf.put(suspended("ada", caller="ada"))
    shelf.put(suspended("cleo", caller="team/cleo"))
    for number in range(3000):
        shelf.put(suspended(f"k{number}", caller=f"key/{number}"))
    assert shelf.find("ada") is not None
    assert shelf.find("cleo") is not None


def test_what_is_too_large_by_itself_pushes_out_nothing() -> None:
    """A record larger than the whole shelf is not kept, and the others stay."""
    shelf = suspended_shelf(lambda: 0.0, max_bytes=10_000)
    shelf.put(suspended("small", payload=b"x"))
    shelf.put(suspended("large", payload=b"x" * 10_000))
    assert shelf.find("small") is not None
    assert shelf.find("large") is None


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_waiting_turns_of_a_store_are_shared_out(where: str, tmp_path: Path) -> None:
    """With ``content = "none"`` the flood of one caller does not push out another caller's waiting turn."""
    options = StoreOptions(content="none", clock=lambda: T0)
    made = MemoryStore(options) if where == "memory" else SqliteStore(tmp_path / "r.db", options)
    await made.start()
    try:
        made.put_suspended(suspended("ada", caller="ada"))
        for number in range(1500):
            made.put_suspended(suspended(f"bob{number}", caller="bob"))
        assert await made.find_suspended("ada") is not None
        assert await made.find_suspended("bob1499") is not None
        size = cache_sizes()["waiting_turns"]
        assert 0 < size.held <= size.limit
    finally:
        await made.aclose()
