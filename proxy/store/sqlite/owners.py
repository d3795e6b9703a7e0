"""The owner of rows, a process, and how other processes can prove that it has died.

Each process that writes holds an exclusive ``flock`` on its own file beside the database. The kernel drops
that lock when the process ends, however it ends, and never before. So a lock that can be taken proves that
the owner is dead. A process id proves nothing, because it is reused within minutes.
"""

import contextlib
import logging
import os
import re
import socket
import sqlite3
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from proxy.store.sql.migrate import OLDEST_BESIDE, older_processes

if sys.platform != "win32":
    import fcntl

_log = logging.getLogger(__name__)
_LOCK_NAME = re.compile(r"[0-9a-f]{32}\.lock")


def lock_folder(database: Path) -> Path:
    """Return the folder of the owners' lock files of a database."""
    return database.with_name(f"{database.name}.owners")


class OwnerLock:
    """The lock of this process, which shows that it is alive.

    ``name`` is the lock file's name. It is ``None`` while no lock is held, also if the platform or the file
    system has no locks; such an owner is never taken for dead.
    """

    def __init__(self, database: Path) -> None:
        self.id = uuid.uuid4().hex
        self.pid = os.getpid()
        self.host = socket.gethostname()
        self.name: str | None = None
        self._folder = lock_folder(database)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, before the owner's row is written. Blocks on the disk; idempotent."""
        if self._descriptor is not None or sys.platform == "win32":
            return
        path = self._folder / f"{self.id}.lock"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            _log.warning(
                "no lock beside the record (%s): if this process dies, its open runs cannot be marked as "
                "interrupted",
                error.strerror,
            )
            return
        self._descriptor = descriptor
        self.name = path.name

    def release(self, *, remove: bool) -> None:
        """Release the lock; ``remove`` its file only if the record says that the owner has ended."""
        if self._descriptor is None:
            return
        if remove:
            with contextlib.suppress(OSError):
                (self._folder / f"{self.id}.lock").unlink()
        os.close(self._descriptor)
        self._descriptor = None
        self.name = None


def refuse_older(database: Path) -> None:
    """Raise :class:`~proxy.base.errors.StoreUnavailable` if a process of a version that must not write beside
    this one writes to the database. Blocks.

    A damaged or foreign file is left to the migration, which says what is wrong with it.
    """
    if not database.exists():
        return
    hosts: list[str] = []
    source = f"{database.absolute().as_uri()}?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(source, uri=True)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        # Older records do not say which schema a process knows: it is one of theirs.
        known = "schema" if version >= OLDEST_BESIDE else "0"
        found = db.execute(f"SELECT host, lock_file, {known} FROM owners WHERE ended_at IS NULL").fetchall()
        hosts = [
            host
            for host, name, schema in found
            if schema < OLDEST_BESIDE
            and name
            and _is_held(lock_folder(Path(os.path.realpath(database))) / name)
        ]
    if hosts:
        raise older_processes(hosts)


def _is_held(path: Path) -> bool:
    """Return whether a process holds the lock of this file."""
    if sys.platform == "win32" or not _LOCK_NAME.fullmatch(path.name):
        return False
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def proven_dead(database: Path, lock_file: str | None) -> Iterator[bool]:
    """Yield whether the owner of ``lock_file`` is provably dead, and hold its lock meanwhile.

    If several processes ask at once, only one gets ``True``. A missing lock file proves nothing, because
    its owner may still hold it. If the block ends without an error, the file is removed.
    """
    if lock_file is None or sys.platform == "win32" or not _LOCK_NAME.fullmatch(lock_file):
        yield False
        return
    path = lock_folder(database) / lock_file
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
        with contextlib.suppress(OSError):
            path.unlink()
    finally:
        os.close(descriptor)
