"""Opens the store that ``store.url`` names."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from proxy.base.errors import ConfigError, NoRecord, how_to_install
from proxy.records.rows import KeySet
from proxy.store.base import Store
from proxy.store.key_file import KeyFile
from proxy.store.key_mark import KeyMark, path_beside, state_path
from proxy.store.options import DEFAULTS, StoreOptions
from proxy.store.seal import Seal, parse_seal_key
from proxy.store.sql.migrate import (
    MigrationReport,
    latest_schema,
    migrate_sqlite,
    sqlite_version,
)
from proxy.store.sql.store import SqlStore
from proxy.store.sqlite.memory import MemoryStore
from proxy.store.sqlite.owners import refuse_older
from proxy.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from proxy.store.postgres.store import PostgresStore

_SETTING: Final = "store.url"
_OLD_KEYS: Final = "store.old_seal_keys"
_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql", "postgres")
_PLUGIN: Final = "plugin"
_EXAMPLE: Final = (
    "Write sqlite:///toolrelay.db for a file, postgresql://USER@HOST/DATABASE, or memory: to keep nothing"
)


def sqlite_path(url: str, base: Path | None = None) -> Path | None:
    """Return the file that a ``sqlite:///`` URL names, or ``None`` for ``memory:``, PostgreSQL and plugins.

    Three slashes come before a path relative to ``base`` (default: the current folder), four before an
    absolute path. Raises :class:`ConfigError` for every other URL. The message repeats only the
    scheme of the URL, because the rest may contain a password.
    """
    scheme = url.partition(":")[0]
    if url in ("memory:", "memory://") or scheme in (*_POSTGRES, _PLUGIN):
        return None
    if scheme != "sqlite":
        raise ConfigError(_SETTING, f"unknown kind of store {scheme[:40]!r}", _EXAMPLE)
    name = url.removeprefix(_SQLITE)
    if name == url or not name or name == "/":
        raise ConfigError(_SETTING, "does not name a file", _EXAMPLE)
    if name == ":memory:":
        raise ConfigError(_SETTING, "SQLite in memory has another name; write memory:", _EXAMPLE)
    if "?" in name or "#" in name or "\0" in name:
        raise ConfigError(_SETTING, "a file name must not contain '?', '#' or NUL", _EXAMPLE)
    return (base or Path.cwd()) / name


def open_store(
    url: str,
    options: StoreOptions = DEFAULTS,
    *,
    base: Path | None = None,
    seal_key: str = "",
    old_seal_keys: Sequence[str] = (),
    seal: bool = False,
    must_exist: bool = False,
) -> Store:
    """Create the store that ``url`` names, without starting it.

    ``base`` is the folder that a relative path starts from. ``must_exist`` is for commands that read a record
    and must not create an empty one or a key.

    ``seal_key`` is 32 bytes in base64 or hexadecimal. If it is empty, ``seal`` is true and the record is a
    file, content is sealed with the key in a file beside it; the start creates that file. ``old_seal_keys``,
    and otherwise the key in that file, only open what they sealed before. All these keys replace the seals in
    ``options``.

    A record in memory has its own size limit, which no option can raise, and is not sealed. Raises
    :class:`~proxy.base.errors.ConfigError` with what to do, before anything is created.
    """
    path = sqlite_path(url, base)
    options = sealing(options, seal_key, old_seal_keys)
    if path is not None:
        options = _with_key_file(options, path, seal=seal, makes=not must_exist)
    if path is None and not url.startswith(_POSTGRES):
        return MemoryStore(options)
    return _open_sql(url, path, options, must_exist=must_exist)


def open_sealed(
    url: str,
    *,
    base: Path | None = None,
    seal_key: str = "",
    old_seal_keys: Sequence[str] = (),
    seal: bool = False,
) -> SqlStore:
    """Create the store that ``url`` names, for work on its seals; it starts even if a key is missing.

    Raises :class:`~proxy.base.errors.ConfigError`, also for ``memory:``, where nothing is sealed.
    """
    path = sqlite_path(url, base)
    if path is None and not url.startswith(_POSTGRES):
        raise ConfigError(_SETTING, f"{url} has nothing that is sealed here", "Name a file")
    options = sealing(StoreOptions(needs_all_keys=False), seal_key, old_seal_keys)
    if path is not None:
        options = _with_key_file(options, path, seal=seal)
    return _open_sql(url, path, options, must_exist=True)


def sealing(options: StoreOptions, key: str, old_keys: Sequence[str]) -> StoreOptions:
    """Return the options with the seals of these keys; an empty ``key`` seals nothing."""
    return replace(
        options,
        seal=Seal(parse_seal_key(key)) if key else None,
        old_seals=[Seal(parse_seal_key(each, _OLD_KEYS)) for each in old_keys],
    )


def _with_key_file(options: StoreOptions, path: Path, *, seal: bool, makes: bool = True) -> StoreOptions:
    """Add the key file beside a database to the options: it seals, or only opens what it sealed before."""
    file = KeyFile(path)
    seals = seal and options.seal is None and (makes or file.path.exists())
    return replace(options, key_file=file, seals_by_file=seals)


def _open_sql(url: str, path: Path | None, options: StoreOptions, *, must_exist: bool) -> SqlStore:
    if path is None:
        return _postgres()(url, options, must_exist=must_exist)
    _check_place(path, must_exist=must_exist)
    return SqliteStore(path, options)


async def migrate_store(url: str, base: Path | None = None) -> MigrationReport:
    """Migrate the record that ``url`` names to the current schema.

    Raises :class:`~proxy.base.errors.ConfigError`, also for ``memory:``, which has nothing to migrate, and
    :class:`~proxy.base.errors.StoreError`.
    """
    path = sqlite_path(url, base)
    if url.startswith(_POSTGRES):
        _postgres()
        from proxy.store.postgres.migrate import migrate_postgres

        return await migrate_postgres(url)
    if path is None:
        raise ConfigError(_SETTING, f"{url} has nothing to migrate here", "Name a file")
    if not path.parent.is_dir():
        raise ConfigError(_SETTING, f"the folder {path.parent} does not exist", "Create it first")
    await asyncio.to_thread(refuse_older, path)
    return await asyncio.to_thread(migrate_sqlite, path)


async def peek_keys(
    url: str,
    base: Path | None = None,
    *,
    seal_key: str = "",
    old_seal_keys: Sequence[str] = (),
    seal: bool = False,
) -> KeySet | None:
    """Read the client keys of a record without creating or migrating anything.

    A record that does not exist has no keys. The result is ``None`` for a record with another schema, because
    its keys can be read only after a migration, and for that of a plugin. Raises the errors of
    :func:`open_store` and of the store's ``start``.
    """
    path = sqlite_path(url, base)
    if url.startswith(_POSTGRES):
        _postgres()
        from proxy.store.postgres.migrate import postgres_version

        version, latest = await postgres_version(url), latest_schema("postgres")
        mark = KeyMark(state_path(url))
    elif url.startswith(_PLUGIN):
        return None
    elif path is None:
        return KeySet(0, (), {}, ever_made=False)
    else:
        version, latest = await asyncio.to_thread(sqlite_version, path), latest_schema()
        mark = KeyMark(path_beside(path))
    if version == 0:
        return KeySet(0, (), {}, ever_made=mark.exists())
    if version != latest:
        return None
    store = open_store(
        url, base=base, seal_key=seal_key, old_seal_keys=old_seal_keys, seal=seal, must_exist=True
    )
    await store.start()
    try:
        return await store.read_keys()
    finally:
        await store.aclose()


def _postgres() -> "type[PostgresStore]":
    """Import the PostgreSQL store; raises ConfigError if its driver, an optional dependency, is missing."""
    try:
        from proxy.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigError(
            _SETTING, "PostgreSQL needs asyncpg, which is not installed", how_to_install("postgres")
        ) from None
    return PostgresStore


def _check_place(path: Path, *, must_exist: bool) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(_SETTING, f"the folder {folder} does not exist", "Create it, or name another file")
    if path.is_dir():
        raise ConfigError(_SETTING, f"{path} is a folder", "Name a file in it")
    if must_exist and not path.exists():
        raise NoRecord(
            _SETTING, f"there is no record at {path} yet", "Start the server once, or name its file"
        )
    # SQLite writes its log beside the file, so the folder must be writable too.
    if not _may_write(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            _SETTING, f"the folder {folder} is not writable", "Give this user the right, or name another"
        )
    if path.exists() and not _may_write(path, os.R_OK | os.W_OK):
        raise ConfigError(
            _SETTING, f"{path} is not writable", "Give this user the right, or name another file"
        )


def _may_write(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)
