"""From ``store.url`` to a store."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxy.errors import ConfigError
from proxy.store.base import Store
from proxy.store.memory import MemoryStore
from proxy.store.migrate import MigrationReport, migrate_sqlite
from proxy.store.seal import Seal, parse_seal_key
from proxy.store.shelf import ContentPolicy
from proxy.store.sql import Synchronous
from proxy.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from proxy.store.postgres import PostgresStore

__all__ = ["migrate_store", "open_store", "sqlite_path"]

_SETTING: Final = "store.url"
_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql", "postgres")
_EXAMPLE: Final = (
    "Write sqlite:///toolrelay.db for a file, postgresql://USER@HOST/DATABASE, or memory: to keep nothing"
)


def sqlite_path(url: str, base: Path | None = None) -> Path | None:
    """The file that a ``sqlite:///`` URL names, or ``None`` for ``memory:`` and PostgreSQL.

    Three slashes and a relative path (from ``base``, else the current folder), or four for an
    absolute one.  Raises :class:`~proxy.errors.ConfigError` for every other URL.  The URL itself
    is not repeated in a message beyond its scheme: it may hold a password.
    """
    scheme = url.partition(":")[0]
    if url in ("memory:", "memory://") or scheme in _POSTGRES:
        return None
    if scheme != "sqlite":
        raise ConfigError(_SETTING, f"unknown kind of store {scheme[:40]!r}", _EXAMPLE)
    name = url.removeprefix(_SQLITE)
    if name == url or not name or name == "/":
        raise ConfigError(_SETTING, "it names no file", _EXAMPLE)
    if name == ":memory:":
        raise ConfigError(_SETTING, "SQLite in memory would be another record for each connection", _EXAMPLE)
    if "?" in name or "#" in name or "\0" in name:
        raise ConfigError(_SETTING, "a file name takes no '?', '#' or NUL here", _EXAMPLE)
    return (base or Path.cwd()) / name


def open_store(
    url: str,
    *,
    base: Path | None = None,
    content: ContentPolicy = "tools",
    keep_days: float = 30,
    synchronous: Synchronous = "normal",
    clock: Callable[[], float] = time.time,
    reap: bool = False,
    seal_key: str = "",
    max_bytes: int = 0,
    must_exist: bool = False,
) -> Store:
    """The store that ``url`` names, not started yet.

    ``base`` is the folder that a relative path starts from.  ``reap`` is for the server alone;
    ``must_exist`` for commands that read a record and shall not make an empty one.  ``seal_key``
    is 32 bytes in base64 or hexadecimal; with an empty one content is not sealed.  ``max_bytes``
    of 0 sets no bound, but that of memory.  Raises :class:`~proxy.errors.ConfigError` with what to
    do, before anything is created.
    """
    path = sqlite_path(url, base)
    seal = Seal(parse_seal_key(seal_key)) if seal_key else None
    if url.startswith(_POSTGRES):
        return _postgres()(
            url,
            content=content,
            keep_days=keep_days,
            synchronous=synchronous,
            clock=clock,
            reap=reap,
            must_exist=must_exist,
            seal=seal,
            max_bytes=max_bytes,
        )
    if path is None:
        if not max_bytes:
            return MemoryStore(content=content, keep_days=keep_days, clock=clock)
        # Each of the four kinds of content has its own shelf, and a quarter of the bytes.
        return MemoryStore(
            content=content, keep_days=keep_days, clock=clock, max_content_bytes=max(1, max_bytes // 4)
        )
    _check_place(path, must_exist=must_exist)
    return SqliteStore(
        path,
        content=content,
        keep_days=keep_days,
        synchronous=synchronous,
        clock=clock,
        reap=reap,
        seal=seal,
        max_bytes=max_bytes,
    )


async def migrate_store(url: str, base: Path | None = None) -> MigrationReport:
    """Bring the record that ``url`` names up to date.

    Raises :class:`~proxy.errors.ConfigError`, also for ``memory:``, which has nothing to migrate,
    and :class:`~proxy.errors.StoreError`.
    """
    path = sqlite_path(url, base)
    if url.startswith(_POSTGRES):
        _postgres()
        from proxy.store.migrate_postgres import migrate_postgres

        return await migrate_postgres(url)
    if path is None:
        raise ConfigError(_SETTING, "a store in memory has nothing to migrate", "Name a file")
    if not path.parent.is_dir():
        raise ConfigError(_SETTING, f"the folder {path.parent} does not exist", "Create it first")
    return await asyncio.to_thread(migrate_sqlite, path)


def _postgres() -> "type[PostgresStore]":
    """The store in PostgreSQL, whose driver is an extra that may not be installed."""
    try:
        from proxy.store.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigError(
            _SETTING, "PostgreSQL needs asyncpg, which is not installed", "pip install 'toolrelay[postgres]'"
        ) from None
    return PostgresStore


def _check_place(path: Path, *, must_exist: bool) -> None:
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(_SETTING, f"the folder {folder} does not exist", "Create it, or name another file")
    if path.is_dir():
        raise ConfigError(_SETTING, f"{path} is a folder", "Name a file in it")
    if must_exist and not path.exists():
        raise ConfigError(
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
