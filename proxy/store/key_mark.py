"""A small file that shows that client keys were created, and counts their changes.

It is stored outside the record: if the record is lost, the server still knows that clients need a key. Beside
a SQLite file, its number also tells every process on this machine that keys changed. A request reads it with
one ``pread`` of eight bytes from the page cache.
"""

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

_SIZE: Final = 8
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW


def path_beside(record: Path) -> Path:
    """Return the path of the file for a record in a file: beside that file, even if ``record`` is a link."""
    real = Path(os.path.realpath(record))
    return real.with_name(f"{real.name}.keys")


def state_path(url: str) -> Path:
    """Return the path of the file for a record on a server: in this user's state folder (XDG)."""
    parts = urlsplit(url)
    server = parts.netloc.rpartition("@")[2].lower().removesuffix(":5432")
    place = "\0".join((server, parts.path, *parse_qs(parts.query).get("search_path", ())))
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "toolrelay" / f"{hashlib.blake2b(place.encode(), digest_size=12).hexdigest()}.keys"


class KeyMark:
    """The file at ``path``, readable only by its owner. It is empty until a key is created.

    Not safe for more than one thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def exists(self) -> bool:
        """Return whether keys were ever created. Blocks."""
        try:
            return self.path.stat().st_size > 0
        except OSError:
            return False

    @property
    def number(self) -> int:
        """A number that changes with each :meth:`touch` of any process; 0 before :meth:`attach`."""
        if self._file is None:
            return 0
        try:
            return int.from_bytes(os.pread(self._file, _SIZE, 0), "little")
        except OSError:
            return -1

    def attach(self) -> None:
        """Open the file, creating an empty one if necessary; open it again if it was replaced. Blocks.

        If that fails, this process notices changes of keys later.
        """
        with contextlib.suppress(OSError):
            if self._file is not None:
                present, held = os.stat(self.path), os.fstat(self._file)
                if (held.st_dev, held.st_ino) == (present.st_dev, present.st_ino):
                    return
        with contextlib.suppress(OSError):
            opened = os.open(self.path, os.O_RDONLY | os.O_CREAT | _FLAGS, 0o600)
            self.close()
            self._file = opened

    def touch(self) -> None:
        """Create the file if there is none, and count one change. Blocks; raises ``OSError``."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            number = int.from_bytes(os.pread(file, _SIZE, 0), "little") + 1
            os.pwrite(file, (number % 2**63).to_bytes(_SIZE, "little"), 0)
            os.fsync(file)
        finally:
            os.close(file)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)
