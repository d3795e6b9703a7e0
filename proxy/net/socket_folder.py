"""Creates folders for local sockets that only their user can enter."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from proxy.base.errors import ConfigError

_MOST_ADDRESS_BYTES: Final = 100
"""The longest path of a socket: systems allow 104 or 108 bytes, with a zero at the end."""
_LOCK: Final = "lock"
_NEW_S: Final = 60.0
"""Seconds for which a folder without a lock counts as one that another process is just creating."""


class SocketFolder:
    """A folder that only this user can enter, with a path short enough for a socket called ``name``.

    The folder's own name begins with ``prefix``, and :meth:`remove` removes it. If the process is killed,
    the next process that creates a folder with this prefix removes it: each owner holds a lock as long as it
    lives.
    """

    def __init__(self, prefix: str, name: str) -> None:
        """Create the folder. Raises :class:`~proxy.base.errors.ConfigError` if that is impossible."""
        self.path, self._lock = _create(prefix, name)
        """The folder, and the descriptor that holds its lock."""
        self.socket = self.path / name
        """The path of the socket."""
        _remove_abandoned(self.path, prefix)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _create(prefix: str, name: str) -> tuple[Path, int]:
    """Create a new folder and lock it. The usual folder for temporary files may have too long a path."""
    own = len(f"/{prefix}01234567/{name}")
    for base in (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/var/tmp"):
        if base and len(os.fsencode(base)) + own <= _MOST_ADDRESS_BYTES:
            with contextlib.suppress(OSError):
                folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
                try:
                    return folder, _locked(folder)
                except OSError:
                    shutil.rmtree(folder, ignore_errors=True)
    raise ConfigError(
        "TMPDIR",
        "names no folder in which a socket can be made: its path is too long, or it cannot be written",
        f"Set it to a folder with a path of at most {_MOST_ADDRESS_BYTES - own} bytes",
    )


def _locked(folder: Path) -> int:
    """Lock a folder; return the descriptor that holds the lock. Raises OSError if that is impossible."""
    unfinished = folder / f"{_LOCK}.new"
    lock = os.open(unfinished, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Other processes look for the final name, so they never see a lock that nobody holds yet.
        unfinished.rename(folder / _LOCK)
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove_abandoned(own: Path, prefix: str) -> None:
    """Remove this user's folders beside ``own`` whose owner no longer holds the lock."""
    for folder in own.parent.glob(f"{prefix}????????"):
        # Another process may remove the same folder, or this one, at the same time.
        with contextlib.suppress(OSError):
            if folder != own and folder.lstat().st_uid == os.getuid() and _is_abandoned(folder):
                shutil.rmtree(folder)


def _is_abandoned(folder: Path) -> bool:
    """Return whether nobody holds the lock of a folder. Raises OSError if the folder cannot be read."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - folder.lstat().st_mtime > _NEW_S
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
