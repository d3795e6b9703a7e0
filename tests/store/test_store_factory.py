"""``store.url``: which store it names, and the error if that store cannot be opened."""

import os
import sys
from pathlib import Path

import pytest

from proxy.base.errors import ConfigError
from proxy.store.factory import migrate_store, open_store, sqlite_path
from proxy.store.options import StoreOptions
from proxy.store.sqlite.memory import MemoryStore
from proxy.store.sqlite.store import SqliteStore


def test_a_relative_file_starts_from_the_base(tmp_path: Path) -> None:
    """Three slashes name a file below the base folder; four slashes name an absolute path."""
    assert sqlite_path("sqlite:///toolrelay.db", tmp_path) == tmp_path / "toolrelay.db"
    assert sqlite_path("sqlite:///a b/ü.db", tmp_path) == tmp_path / "a b" / "ü.db"
    assert sqlite_path("sqlite:////data/r.db", tmp_path) == Path("/data/r.db")
    assert sqlite_path("sqlite:///r.db") == Path.cwd() / "r.db"


async def test_each_url_opens_its_kind_of_store(tmp_path: Path) -> None:
    """``memory:`` opens a store in memory, ``sqlite:///`` one whose file is created at the start."""
    assert isinstance(open_store("memory:"), MemoryStore)
    assert isinstance(open_store("memory://"), MemoryStore)
    store = open_store(
        "sqlite:///r.db", StoreOptions(content="all", keep_days=1, synchronous="full"), base=tmp_path
    )
    assert isinstance(store, SqliteStore)
    assert not store.path.exists()
    await store.start()
    assert store.path.exists()
    await store.aclose()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://:hunter2@host", "unknown kind of store 'redis'"),
        ("toolrelay.db", "unknown kind of store"),
        ("", "unknown kind of store"),
        ("sqlite:///:memory:", "SQLite in memory"),
        ("sqlite://", "does not name a file"),
        ("sqlite:///", "does not name a file"),
        ("sqlite:////", "does not name a file"),
        ("sqlite:r.db", "does not name a file"),
        ("sqlite://hunter2/r.db", "does not name a file"),
        ("sqlite:///r.db?mode=ro", "must not contain '?'"),
        ("sqlite:///none/r.db", "does not exist"),
        ("sqlite:///folder", "is a folder"),
    ],
)
def test_a_url_that_names_no_store_is_one_clear_line(tmp_path: Path, url: str, problem: str) -> None:
    """The error has one line with the setting, the problem and the remedy, and no password."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError) as caught:
        open_store(url, base=tmp_path)
    assert caught.value.setting == "store.url"
    assert problem in caught.value.problem
    assert caught.value.remedy
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_command_that_reads_makes_no_empty_record(tmp_path: Path) -> None:
    """With ``must_exist`` a missing file is a ConfigError, and is not created."""
    with pytest.raises(ConfigError, match="no record at"):
        open_store("sqlite:///r.db", base=tmp_path, must_exist=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "r.db").touch()
    assert isinstance(open_store("sqlite:///r.db", base=tmp_path, must_exist=True), SqliteStore)


def test_a_folder_or_file_without_the_right_to_write_is_named(closed_folder: Path) -> None:
    """A folder without write permission is a ConfigError, for a new file and for an existing one."""
    for name in ("new.db", "r.db"):
        with pytest.raises(ConfigError, match=r"store\.url: the folder .* is not writable"):
            open_store(f"sqlite:///{name}", base=closed_folder)


def test_a_file_without_the_right_to_write_is_named(closed_folder: Path) -> None:
    """A read-only file in a writable folder is a ConfigError that names the file."""
    if os.geteuid() != 0 and os.getuid() == 0:
        os.seteuid(0)
        closed_folder.chmod(0o777)
        os.seteuid(65534)
    else:
        closed_folder.chmod(0o777)
    with pytest.raises(ConfigError, match=r"r\.db is not writable"):
        open_store("sqlite:///r.db", base=closed_folder)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_postgres_url_opens_a_store_there(scheme: str) -> None:
    """Both schemes name PostgreSQL; opening the store does not connect yet."""
    pytest.importorskip("asyncpg")
    from proxy.store.postgres.store import PostgresStore

    assert sqlite_path(f"{scheme}://u:hunter2@host/db") is None
    assert isinstance(open_store(f"{scheme}://u:hunter2@host/db"), PostgresStore)


async def test_without_its_driver_postgres_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """If asyncpg is not installed, a PostgreSQL URL is a ConfigError that says what to install."""
    for name in [name for name in sys.modules if name.startswith(("asyncpg", "proxy.store.postgres.store"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match=r"asyncpg.*\.\[postgres\]") as caught:
        open_store("postgresql://u:hunter2@host/db")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"asyncpg.*\.\[postgres\]"):
        await migrate_store("postgresql://u:hunter2@host/db")


async def test_migrating_needs_something_to_migrate(tmp_path: Path) -> None:
    """``migrate_store`` migrates a file once, and refuses a store in memory and a missing folder."""
    first = await migrate_store("sqlite:///r.db", tmp_path)
    assert (first.before, first.after) == (0, len(first.applied))
    second = await migrate_store("sqlite:///r.db", tmp_path)
    assert (second.before, second.applied) == (first.after, ())
    for url, words in (("memory:", "nothing to migrate"), ("sqlite:///none/r.db", "does not exist")):
        with pytest.raises(ConfigError, match=words):
            await migrate_store(url, tmp_path)
