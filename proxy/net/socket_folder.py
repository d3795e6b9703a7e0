"""Creates folders for local sockets that only their user can enter."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from proxy.errors import ConfigError

__all__ = ["SocketFolder"]

_MOST_ADDRESS_BYTES: Final = 100
"""The longest path of a socket: systems allow 104 or 108 bytes, with a zero at the end."""
_LOCK: Final = "lock"
_NEW_S: Final = 60.0
"""Seconds for which a folder without a lock counts as one that another process is just creating."""


class SocketFolder:
    """A folder that only this user can enter, with a path short enough for a socket called ``name``.

    The folder's own name begins with ``prefix``, and :meth:`remove` removes it.  If the process is killed,
    the next process that creates a folder with this prefix removes it: each owner holds a lock as long as it
    lives.
    """

    def __init__(self, prefix: str, name: str) -> None:
        """Create the folder.  Raises :class:`~proxy.errors.ConfigError` if that is impossible."""
        base = _create(prefix, name)
        self.path = base
        """The folder."""
        self.socket = base / name
        """The place of the socket."""
        self._lock = os.open(base / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        _remove_abandoned(base, prefix)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _create(prefix: str, name: str) -> Path:
    """Create a new folder.  The usual folder for temporary files may have too long a path for a socket."""
    own = len(f"/{prefix}01234567/{name}")
    for base in (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/var/tmp"):
        if base and len(os.fsencode(base)) + own <= _MOST_ADDRESS_BYTES:
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    raise ConfigError(
        "TMPDIR",
        "names no folder in which a socket can be made: its path is too long, or it cannot be written",
        f"Set it to a folder with a path of at most {_MOST_ADDRESS_BYTES - own} bytes",
    )


def _remove_abandoned(own: Path, prefix: str) -> None:
    """Remove this user's folders beside ``own`` whose owner no longer holds the lock."""
    for folder in own.parent.glob(f"{prefix}????????"):
        # Another process may remove the same folder, or this one, at the same time.
        with contextlib.suppress(OSError):
            if folder != own and folder.lstat().st_uid == os.getuid() and _is_abandoned(folder):
                shutil.rmtree(folder)


def _is_abandoned(folder: Path) -> bool:
    """Return whether nobody holds the lock of a folder.  Raises OSError if the folder cannot be read."""
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
