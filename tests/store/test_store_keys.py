"""Client keys in every kind of store: how they are kept, revoked for every process, and remembered."""

import asyncio
import logging
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from store_postgres import fetch
from store_records import T0, files_below, locked, query, spawn
from waiting import LATE_S, PATIENCE_S

from proxy.base.errors import StoreError, StoreUnavailable
from proxy.records.rows import ClientKey, KeySet
from proxy.store.base import Store
from proxy.store.factory import peek_keys
from proxy.store.key_mark import KeyMark, state_path
from proxy.store.seal import Seal
from proxy.store.sqlite.memory import MemoryStore
from proxy.store.sqlite.store import SqliteStore

Make = Callable[..., Any]


def key(name: str = "webui", **changes: Any) -> ClientKey:
    """A key as it is stored."""
    made = ClientKey(
        id=f"key_{name}",
        name=name,
        digest=b"\x01\xff" * 16,
        hashed_by="pepper",
        grants={"models": ["gpt-*"], "admin": False},
        created_at=T0,
    )
    return replace(made, **changes)


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Make, str]:
    """A function that makes stores on one database that several processes can open, and its URL."""
    if request.param == "sqlite":
        return request.getfixturevalue("make_sqlite"), f"sqlite:///{tmp_path / 'r.db'}"
    return request.getfixturevalue("make_postgres"), request.getfixturevalue("postgres_url")


async def told(store: Store, before: int) -> None:
    """Wait until a store has heard of a change."""
    async with asyncio.timeout(PATIENCE_S):
        # What comes from another process has no event to wait for here.
        while store.keys_change_counter == before:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_key_comes_back_as_it_was_put(store: Store) -> None:
    """Every field of a key is kept, and the oldest key comes first."""
    full = key("b", verify_key=b"\x00" * 32, expires_at=T0 + 5, created_at=T0 + 1)
    await store.put_key(full)
    await store.put_key(key("a"))
    found = await store.read_keys()
    assert found.keys == (key("a"), full)
    assert found.ever_made
    assert found.version == await store.keys_version()


async def test_a_store_without_keys_says_so(store: Store) -> None:
    """Neither reading keys nor making a hash key counts as having made a key."""
    await store.hash_key()
    found = await store.read_keys()
    assert (found.keys, found.ever_made) == ((), False)


async def test_declared_keys_are_remembered(store: Store) -> None:
    """After ``note_keys``, called once or twice, the store says that keys were made, although it has none."""
    await store.hash_key()
    for _ in range(2):
        await store.note_keys()
        found = await store.read_keys()
        assert (found.keys, found.ever_made) == ((), True)


@pytest.mark.parametrize("lost", ["mark", "record"])
async def test_declared_keys_are_remembered_twice(
    shared: tuple[Make, str], tmp_path: Path, lost: str
) -> None:
    """The database and the mark file each remember declared keys if the other one is lost."""
    make, url = shared
    store = make()
    await store.start()
    await store.note_keys()
    await store.aclose()
    for path in files_below(tmp_path):
        if path.is_file() and (path.suffix == ".keys") == (lost == "mark"):
            path.unlink()
    if lost == "record" and url.startswith("postgres"):
        await fetch(url, "DELETE FROM key_state")
    found = await peek_keys(url)
    assert found is not None
    assert (found.keys, found.ever_made) == ((), True)


async def test_a_note_that_cannot_be_written_is_said(
    make_sqlite: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the database takes no write, ``note_keys`` logs a warning and still writes the mark file."""
    store: SqliteStore = make_sqlite(lock_timeout_s=0.05)
    await store.start()
    with locked(store.path), caplog.at_level(logging.WARNING):
        await store.note_keys()
    assert "client keys are declared" in caplog.text
    assert (tmp_path / "r.db.keys").stat().st_size > 0


async def test_a_revoked_key_stays_and_frees_its_name(store: Store) -> None:
    """A revoked key stays in the store with its time, cannot be revoked again, and frees its name."""
    await store.put_key(key())
    with pytest.raises(StoreUnavailable):
        await store.put_key(key(id="key_2"))
    assert await store.revoke_key("key_webui")
    assert not await store.revoke_key("key_webui")
    assert not await store.revoke_key("key_nobody\ud800")
    await store.put_key(key(id="key_2", created_at=T0 + 1))
    first, second = (await store.read_keys()).keys
    assert (first.revoked_at, second.revoked_at) == (T0, None)


async def test_every_change_is_a_new_version_and_is_told(store: Store) -> None:
    """Putting or revoking a key raises the version, and the change counter tells of it without a look-up."""
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: store.put_key(key()),
        lambda: store.put_key(key("other")),
        lambda: store.revoke_key("key_webui"),
    ]
    for change in changes:
        version = (await store.read_keys()).version
        assert await store.keys_version() == version
        before = store.keys_change_counter
        await change()
        await told(store, before)
        assert await store.keys_version() > version


async def test_the_hash_key_is_made_once(make: Make) -> None:
    """The hash key has 32 bytes, and every process that opens the database gets the same one."""
    store = make()
    await store.start()
    name, made = await store.hash_key()
    assert len(made) == 32
    assert await store.hash_key() == (name, made)
    assert (await store.read_keys()).hash_keys == {name: made}
    if not isinstance(store, MemoryStore):
        other = make()
        await other.start()
        assert await other.hash_key() == (name, made)


async def test_the_seal_key_takes_part_where_there_is_one(shared: tuple[Make, str]) -> None:
    """With a seal key the store derives its hash key from that, and still knows its earlier hash key."""
    make, _ = shared
    store = make()
    await store.start()
    own = await store.hash_key()
    sealed = make(seal=Seal(b"k" * 32))
    await sealed.start()
    name, derived = await sealed.hash_key()
    assert name.startswith("seal:")
    assert (await sealed.read_keys()).hash_keys == {own[0]: own[1], name: derived}
    assert derived not in (b"k" * 32, own[1])


async def test_owners_of_responses(store: Store) -> None:
    """A response that was noted belongs to its caller alone, and an odd id causes no error."""
    store.put_response_owner("resp_1", "key_a")
    store.put_response_owner("resp_1", "key_a")
    assert await store.is_response_owner("resp_1", "key_a")
    assert not await store.is_response_owner("resp_1", "key_b")
    assert not await store.is_response_owner("resp_2", "key_a")
    for odd in ("resp_\ud800", "resp_\0", "r" * 5000):
        store.put_response_owner(odd, "key_a")
        assert isinstance(await store.is_response_owner(odd, "key_a"), bool)
    assert store.lost == 0


async def test_owners_go_after_their_days(shared: tuple[Make, str]) -> None:
    """After ``keep_days`` the store no longer knows the owner of a response, and deletes the row."""
    make, url = shared
    store = make(keep_days=1)
    await store.start()
    store.put_response_owner("resp_1", "key_a")
    assert await store.is_response_owner("resp_1", "key_a")
    later = make(keep_days=1, clock=lambda: T0 + 2 * 86400, reap=True)
    await later.start()
    assert not await later.is_response_owner("resp_1", "key_a")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if isinstance(store, SqliteStore):
                rows = query(store.path, "SELECT id FROM response_owners")
            else:
                rows = await fetch(url, "SELECT id FROM response_owners")
            if not rows:
                break
            await asyncio.sleep(0.01)


_REVOKER = """
import asyncio, sys
from proxy.store.factory import open_store
async def main():
    store = open_store(sys.argv[1])
    await store.start()
    sys.stdin.readline()
    print(await store.revoke_key("key_webui"), flush=True)
    await store.aclose()
asyncio.run(main())
"""


async def test_another_process_revokes(shared: tuple[Make, str]) -> None:
    """Once another process has revoked a key, this store hears of it and reads the key as revoked."""
    make, url = shared
    store = make()
    await store.start()
    await store.put_key(key())
    await store.keys_version()
    before = store.keys_change_counter
    child = spawn(_REVOKER, url)
    output, _ = await asyncio.to_thread(child.communicate, "go\n", timeout=LATE_S)
    assert output.strip() == "True"
    if isinstance(store, SqliteStore):
        assert store.keys_change_counter != before
    else:
        await told(store, before)
    assert [one.revoked_at is not None for one in (await store.read_keys()).keys] == [True]


async def test_keys_in_postgres_are_heard_of_again_after_a_break(
    make_postgres: Make, postgres_url: str
) -> None:
    """If the server ends the listening connection, the store opens a new one and misses no change."""
    store = make_postgres()
    await store.start()
    await store.put_key(key())
    version = await store.keys_version()
    listening = store._keys._connection.get_server_pid()
    await fetch(postgres_url, "SELECT pg_terminate_backend($1)", listening)
    await fetch(postgres_url, "UPDATE client_keys SET revoked_at = 1")
    found = version
    async with asyncio.timeout(PATIENCE_S):
        while found == version:
            try:
                found = await store.keys_version()
            except StoreError:
                await asyncio.sleep(0.01)
    before = store.keys_change_counter
    await fetch(postgres_url, "UPDATE client_keys SET revoked_at = 2")
    await told(store, before)


async def test_keys_are_looked_at_without_a_trace(shared: tuple[Make, str], tmp_path: Path) -> None:
    """``peek_keys`` creates no database, and returns nothing for a database with another schema."""
    make, url = shared
    assert await peek_keys(url) == KeySet(0, (), {}, ever_made=False)
    assert not [path for path in files_below(tmp_path) if path.is_file()]
    assert await peek_keys("memory:") == KeySet(0, (), {}, ever_made=False)
    store = make()
    await store.start()
    await store.put_key(key())
    found = await peek_keys(url)
    assert found is not None
    assert (found.keys, found.ever_made) == ((key(),), True)
    await store.aclose()
    if isinstance(store, SqliteStore):
        query(store.path, "PRAGMA user_version = 1")
    else:
        await fetch(url, "DELETE FROM toolrelay_schema WHERE version > 1")
    assert await peek_keys(url) is None


# ---------------------------------------------------------------- the mark file


async def test_a_lost_record_does_not_forget_that_there_were_keys(make_sqlite: Make, tmp_path: Path) -> None:
    """The mark file of a SQLite store is private, and still says that keys were made if the store is lost."""
    store = make_sqlite()
    await store.start()
    await store.put_key(key())
    await store.aclose()
    mark = tmp_path / "r.db.keys"
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600
    for path in files_below(tmp_path):
        if path.is_file() and path != mark:
            path.unlink()
    again = make_sqlite()
    await again.start()
    found = await again.read_keys()
    assert (found.keys, found.ever_made) == ((), True)


async def test_a_look_finds_the_mark_behind_a_link(make_sqlite: Make, tmp_path: Path) -> None:
    """If a database is lost, ``peek_keys`` still finds its mark file, even through a link."""
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "r.db")
    store = make_sqlite()
    await store.start()
    await store.put_key(key())
    await store.aclose()
    for path in files_below(tmp_path):
        if path.is_file() and path not in (link, tmp_path / "r.db.keys"):
            path.unlink()
    assert await peek_keys(f"sqlite:///{link}") == KeySet(0, (), {}, ever_made=True)


async def test_a_lost_mark_is_made_again(make_sqlite: Make, tmp_path: Path) -> None:
    """Reading keys makes a lost mark file again, and the store still hears of changes through it."""
    store = make_sqlite()
    await store.start()
    await store.put_key(key())
    (tmp_path / "r.db.keys").unlink()
    await store.read_keys()
    assert (tmp_path / "r.db.keys").exists()
    await store.keys_version()
    before = store.keys_change_counter
    other = make_sqlite()
    await other.start()
    await other.revoke_key("key_webui")
    assert store.keys_change_counter != before


async def test_a_mark_that_cannot_be_written_is_said(
    make_sqlite: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the mark file cannot be written, the key is still made, and a warning names ``auth.mode``."""
    (tmp_path / "r.db.keys").symlink_to(tmp_path / "elsewhere")
    store: SqliteStore = make_sqlite()
    await store.start()
    with caplog.at_level(logging.WARNING):
        await store.put_key(key())
    assert 'auth.mode = "keys"' in caplog.text
    assert not (tmp_path / "elsewhere").exists()
    assert (await store.read_keys()).ever_made


async def test_keys_in_postgres_leave_a_mark_on_this_machine(make_postgres: Make, postgres_url: str) -> None:
    """If a PostgreSQL database loses its keys, the local mark file still says that keys were made."""
    store = make_postgres()
    await store.start()
    await store.put_key(key())
    await fetch(postgres_url, "DELETE FROM client_keys")
    found = await store.read_keys()
    assert (found.keys, found.ever_made) == ((), True)


def test_the_mark_of_a_distant_store_shows_no_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The name of a mark file depends on server, database and schema alone, and shows no password."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one = state_path("postgresql://u:sesame@db.example/one?search_path=s")
    assert one.parent == tmp_path / "toolrelay"
    assert "sesame" not in str(one)
    assert one == state_path("postgres://other@db.example:5432/one?search_path=s")
    others = ("postgresql://db.example/two?search_path=s", "postgresql://db.example/one", "postgresql:///one")
    assert len({one, *map(state_path, others)}) == 4
    monkeypatch.delenv("XDG_STATE_HOME")
    assert str(state_path("postgresql://h/d")).startswith(str(Path.home() / ".local" / "state"))


def test_a_mark_counts_every_touch(tmp_path: Path) -> None:
    """The number of a mark file changes with every touch, even if the file was replaced meanwhile."""
    mark, other = KeyMark(tmp_path / "x.keys"), KeyMark(tmp_path / "x.keys")
    assert (mark.exists(), mark.number) == (False, 0)
    mark.attach()
    assert (mark.exists(), mark.number) == (False, 0)
    other.touch()
    assert mark.exists()
    seen = {mark.number}
    other.touch()
    seen.add(mark.number)
    os.unlink(other.path)
    other.touch()
    other.touch()
    other.touch()
    mark.attach()
    seen.add(mark.number)
    assert seen == {1, 2, 3}
    mark.close()
    assert mark.number == 0
