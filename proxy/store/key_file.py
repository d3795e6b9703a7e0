"""The seal key that a record makes for itself, in a file beside its database.

A copy of the database alone then opens no content.  Whoever can read both files can read all of it, so the
file belongs to the user of the database, and nobody else may read it.
"""

import base64
import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from proxy.errors import ConfigError
from proxy.store.seal import parse_seal_key

__all__ = ["KeyFile"]

_SETTING: Final = "store.seal"
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_BYTES: Final = 4096
_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class KeyFile:
    """The file for the database at ``record``: beside it, by whatever link it was named.

    It holds one line, 32 bytes in base64, as ``store.seal_key`` takes them.
    """

    def __init__(self, record: Path) -> None:
        self._record = Path(os.path.realpath(record))
        self.path: Final = self._record.with_name(f"{self._record.name}.seal-key")

    def read(self) -> bytes | None:
        """The key, ``None`` where there is no file.  Blocks.

        Raises :class:`~proxy.errors.ConfigError` for a file that others can read, that is another user's or
        that holds no key.  The message repeats nothing of what is in it.
        """
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}", "Give this user the right") from error
        try:
            self._check(os.fstat(file))
            text = os.read(file, _MOST_BYTES)
        finally:
            os.close(file)
        try:
            return parse_seal_key(text.decode("ascii", "replace").strip())
        except ConfigError:
            raise self._error(
                "does not hold 32 bytes in base64 or hexadecimal",
                "Put the file back from a backup. If there is none, move it away: the next start makes a new "
                "key, and says what only the lost one opens",
            ) from None

    def make(self) -> bytes:
        """A new key, which is on the disk on return; the key of another process that was first.  Blocks.

        Raises :class:`~proxy.errors.ConfigError` where the file cannot be written.
        """
        key = secrets.token_bytes(32)
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
        try:
            try:
                self._write(draft, base64.b64encode(key) + b"\n")
                try:
                    # Unlike a rename, a link does not replace what another process has made meanwhile.
                    os.link(draft, self.path, follow_symlinks=False)
                except FileExistsError:
                    raise
                except OSError:  # Some file systems have no links.
                    self._write(self.path, base64.b64encode(key) + b"\n")
            finally:
                with contextlib.suppress(FileNotFoundError):
                    draft.unlink()
            self._sync_folder()
        except FileExistsError:
            found = self.read()
            if found is None:
                raise self._error("was deleted while it was read", "Start again") from None
            return found
        except OSError as error:
            raise self._error(
                f"cannot be made: {error.strerror}",
                "Give this user the right to write into its folder, set store.seal_key, or write "
                "store.seal = false to keep content unencrypted",
            ) from error
        return key

    def _write(self, path: Path, content: bytes) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        try:
            # A command of the administrator's must not leave a key that the server cannot read.
            with contextlib.suppress(OSError):
                owner = self._record.stat()
                if os.geteuid() == 0 and owner.st_uid != 0:
                    os.fchown(file, owner.st_uid, owner.st_gid)
            os.write(file, content)
            os.fsync(file)
        finally:
            os.close(file)

    def _sync_folder(self) -> None:
        # Without this a power failure could leave content that was sealed with a key that is gone.
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._error("is no regular file", "Move it away, or set store.seal_key")
        if found.st_mode & _OF_OTHERS:
            raise self._error(
                f"has mode {stat.S_IMODE(found.st_mode):04o}, so that other users can read or change it",
                f"Run: chmod 600 {self.path}",
            )
        allowed = {os.geteuid()}
        with contextlib.suppress(OSError):
            allowed.add(self._record.stat().st_uid)
        if found.st_uid not in allowed:
            raise self._error(
                f"belongs to the user with the number {found.st_uid}, who can read it",
                f"Run: chown {os.geteuid()} {self.path}",
            )

    def _error(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(_SETTING, f"the key file {self.path} {problem}", remedy)
