"""Creates folders for local sockets that only their user can enter."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from proxy.errors import ConfigError

__all__ = ["socket_folder"]

_MOST_ADDRESS_BYTES: Final = 100
"""The longest path of a socket: systems allow 104 or 108 bytes, with a zero at the end."""


def socket_folder(prefix: str, name: str) -> Path:
    """Create a folder that only this user can enter, with a path short enough for a socket called ``name``.

    The folder's own name begins with ``prefix``.  A socket's address has some 100 bytes, and the usual folder
    for temporary files may have a longer path.  Raises :class:`~proxy.errors.ConfigError` if no folder can be
    created.
    """
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
