"""Migrates a SQLite record to the schema that this code knows.

Migrations are numbered SQL files. Each is applied in a transaction of its own; ``PRAGMA user_version`` holds
the number of the last one. A file that already contains rows is copied first. Several processes may start at
once: each reads the version again inside the write lock, so one migrates and the others find the work done.
"""

import contextlib
import glob
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from msgspec import Struct

import proxy
from proxy.base.caches import declare_lru
from proxy.base.errors import StoreError, StoreTooNew, StoreUnavailable

APPLICATION_ID = 0x74726C79
"""``PRAGMA application_id`` of a record: the letters ``trly``."""

OLDEST_BESIDE: Final = 32
"""The oldest schema whose processes may write a record beside processes of this version.

Raise it with each change after which an older process would break a promise: it reads a column in another
way, takes no lease, or does not see a new claim. A version refuses to start beside older processes.
"""

_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_OLDEST_SQLITE = (3, 37, 0)  # the first with STRICT tables
_SIDE_FILES = ("", "-wal", "-shm", "-journal")


class Migration(Struct, frozen=True):
    """One step of the schema: its number (from 1), its file's name and its statements."""

    number: int
    name: str
    sql: str


class MigrationReport(Struct, frozen=True):
    """The result of a migration. ``copy`` is the path of the copy of the file before it, if one was kept."""

    before: int
    after: int
    applied: tuple[str, ...] = ()
    copy: Path | None = None


def find_migrations(dialect: str = "sqlite") -> Path:
    """Return the folder of a dialect's migrations, inside the installed package or beside it.

    Raises :class:`~proxy.base.errors.StoreError` if there is none.
    """
    package = Path(proxy.__file__).resolve().parent
    candidates = (package / "_data" / "migrations" / dialect, package.parent / "migrations" / dialect)
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise StoreError(f"the installation lacks its {dialect} migrations; install it again")


def load_migrations(folder: Path | None = None) -> tuple[Migration, ...]:
    """Read the numbered files of a folder, in order.

    Raises :class:`~proxy.base.errors.StoreError` if a number is missing, occurs twice or is not a number.
    """
    where = folder if folder is not None else find_migrations()
    steps: list[Migration] = []
    for path in sorted(where.glob("*.sql")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise StoreError(f"{path.name} is not a migration: its name must be like 0001_record.sql")
        steps.append(Migration(int(match[1]), path.stem, path.read_text(encoding="utf-8")))
    if not steps or [step.number for step in steps] != list(range(1, len(steps) + 1)):
        raise StoreError(f"the migrations in {where} are not numbered 1, 2, 3, … without a gap")
    return tuple(steps)


@lru_cache(maxsize=2)
def latest_schema(dialect: str = "sqlite") -> int:
    """Return the number of the newest migration that this version knows."""
    return len(load_migrations(find_migrations(dialect)))


declare_lru("latest_schema", latest_schema, 200)


def older_processes(hosts: Sequence[str]) -> StoreUnavailable:
    """Build the error for a start beside processes of an earlier version; ``hosts`` has the host of each."""
    return StoreUnavailable(
        f"an earlier version of toolrelay still uses this record (processes: {len(hosts)}, on "
        f"{', '.join(sorted(set(hosts)))}). This one cannot keep its promises beside it: stop the earlier "
        "version on all hosts, then start this one"
    )


def create_private(path: Path) -> bool:
    """Create an empty file that only its owner can read; return ``False`` if it exists already.

    The mode is right from the first moment, whatever the umask. An existing file is never opened here,
    because closing a descriptor of a database would drop this process's locks on it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    os.close(descriptor)
    return True


def sqlite_version(path: Path) -> int:
    """Return the schema version of a file without changing it; 0 if it has no record. Blocks.

    Raises :class:`~proxy.base.errors.StoreError` if it cannot be read.
    """
    if not path.exists():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            return int(version)
    except sqlite3.Error as error:
        raise store_error(error, path) from error


def migrate_sqlite(
    path: Path,
    *,
    migrations: Sequence[Migration] | None = None,
    lock_timeout_s: float = 30.0,
    clock: Callable[[], float] = time.time,
) -> MigrationReport:
    """Create the database if there is none, and apply every migration that it lacks. Blocks.

    Only the owner can read the file and SQLite's files beside it. Raises :class:`StoreTooNew`
    for a schema newer than ``migrations``. Raises :class:`StoreUnavailable` if the file cannot
    be created, or another process holds the write lock for longer than ``lock_timeout_s``. Raises
    :class:`~proxy.base.errors.StoreError` for a file that is not a record.
    """
    _check_sqlite()
    steps = tuple(migrations) if migrations is not None else load_migrations()
    real = Path(os.path.realpath(path))
    try:
        create_private(real)
        for suffix in _SIDE_FILES:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(f"{real}{suffix}", 0o600)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be created or made private: {error.strerror}; name another file in store.url"
        ) from error
    try:
        connection = sqlite3.connect(real, timeout=lock_timeout_s, isolation_level=None)
        with contextlib.closing(connection):
            # Rewriting a table frees its old pages, which would otherwise keep their content.
            connection.execute("PRAGMA secure_delete = ON")
            return _migrate(connection, real, steps, lock_timeout_s, clock)
    except sqlite3.Error as error:
        raise store_error(error, path) from error


def make_schema(connection: sqlite3.Connection) -> None:
    """Apply every migration to a new database that no other process uses; raises StoreError."""
    _check_sqlite()
    for step in load_migrations():
        connection.execute("BEGIN")
        _apply(connection, step)
        connection.execute("COMMIT")


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 or later is needed")


def store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Translate an error into a message for the operator: which file, what went wrong, and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(f"{path} is locked by another process; find out which one holds it")
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailable(f"{path}: the disk or the database's quota is full; make room")
    if code == sqlite3.SQLITE_READONLY:
        return StoreUnavailable(f"{path} is read-only; give this user the right to write it and its folder")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return StoreUnavailable(f"{path} cannot be read or written: {error}; check its folder and disk")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(f"{path} is damaged or not a SQLite database; move it away or restore a copy")
    return StoreError(f"{path}: {error}")


def _migrate(
    connection: sqlite3.Connection,
    path: Path,
    steps: Sequence[Migration],
    lock_timeout_s: float,
    clock: Callable[[], float],
) -> MigrationReport:
    before = _version(connection, path, steps)
    if before == 0 and connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None:
        # Only possible before the first table. Purging can then return pages to the file system.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _use_wal(connection, lock_timeout_s)
    applied: list[str] = []
    copy: Path | None = None
    for step in steps[before:]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have migrated while this one waited for the lock.
            if _version(connection, path, steps) < step.number:
                if copy is None and _has_rows(connection):
                    copy = _keep_copy(path, step.number, clock())
                _apply(connection, step)
                applied.append(step.name)
            connection.execute("COMMIT")
        except BaseException:  # A migration that fails or is interrupted leaves nothing behind.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return MigrationReport(before, _version(connection, path, steps), tuple(applied), copy)


def _version(connection: sqlite3.Connection, path: Path, steps: Sequence[Migration]) -> int:
    """Return the number of the last applied migration; raises StoreError if the file is foreign or newer."""
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if application not in (0, APPLICATION_ID):
        raise StoreError(f"{path} belongs to another program; name another file in store.url")
    if version > len(steps):
        raise StoreTooNew(
            f"{path} has schema {version}, this version of toolrelay knows {len(steps)}; "
            "use the newer version that wrote it, or name another file in store.url"
        )
    return version


def _has_rows(connection: sqlite3.Connection) -> bool:
    """Return whether there is data to lose; a schema that another process has just created contains none."""
    # An index of words has rows of its own from the beginning, in tables of the type "shadow".
    tables = connection.execute(
        "SELECT name FROM pragma_table_list "
        "WHERE schema = 'main' AND type = 'table' AND name <> 'sqlite_schema'"
    ).fetchall()
    quoted = ['"' + name.replace('"', '""') + '"' for (name,) in tables]
    return any(connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() for name in quoted)


def _use_wal(connection: sqlite3.Connection, lock_timeout_s: float) -> None:
    """Switch to the write-ahead log, with retries, because SQLite does not wait for this lock."""
    deadline = time.monotonic() + lock_timeout_s
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreError(
                f"this file system does not support SQLite's write-ahead log (SQLite says {mode!r}); use a "
                "local disk"
            )
        return


def migration_copies(path: Path) -> list[Path]:
    """Return the copies of a record that migrations left beside it, the older ones first."""
    real = Path(os.path.realpath(path))
    return sorted(real.parent.glob(f"{glob.escape(real.name)}.before-*"))


def _keep_copy(path: Path, number: int, now: float) -> Path:
    """Copy the database before migration ``number``; the caller holds the write lock."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    for attempt in range(100):
        target = path.with_name(
            f"{path.name}.before-{number:04d}-{stamp}" + (f"-{attempt}" if attempt else "")
        )
        if create_private(target):
            break
    else:
        raise StoreError(f"there is no free name for a copy of {path}; delete old copies")
    try:
        # A separate connection reads, because the migrating connection holds the lock.
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # One file, without files beside it.
    except BaseException:  # An incomplete copy must not be taken for a complete one.
        target.unlink(missing_ok=True)
        raise
    return target


def _apply(connection: sqlite3.Connection, step: Migration) -> None:
    for statement in _statements(step.sql):
        try:
            connection.execute(statement)
        except sqlite3.Warning as error:  # Python 3.11 raises this for two statements on one line.
            raise StoreError(f"migration {step.name}: {error}") from error
        if not connection.in_transaction:
            raise StoreError(f"migration {step.name} ends its own transaction")
    broken = connection.execute("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise StoreError(f"migration {step.name} leaves rows of {broken[0]} without the rows they refer to")
    connection.execute(f"PRAGMA user_version = {step.number:d}")


def _statements(sql: str) -> Iterator[str]:
    """Split a script into statements; ``executescript`` would commit the transaction around it."""
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if ";" in line and sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if re.sub(r"--[^\n]*", "", pending).strip():
        raise StoreError("a migration ends within a statement")
