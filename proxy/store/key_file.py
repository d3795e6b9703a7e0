"""The file with the seal key that a record generates for itself, beside its database.

A copy of the database alone then gives away no content. Both files together give away all of it, so only the
owner of the database may read the key file.
"""

import base64
import contextlib
import errno
import os
import secrets
import shlex
import stat
from pathlib import Path
from typing import Final

from proxy.base.errors import ConfigError
from proxy.store.seal import parse_seal_key

_SETTING: Final = "store.seal"
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_BYTES: Final = 4096
_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_IRREGULAR: Final = ("is not a regular file", "Move it away, or set store.seal_key")


class KeyFile:
    """The key file of the database at ``record``; if that is a link, beside the database itself.

    It has one line: 32 bytes in base64, in the format of ``store.seal_key``.
    """

    def __init__(self, record: Path) -> None:
        self._record = Path(os.path.realpath(record))
        self.path: Final = self._record.with_name(f"{self._record.name}.seal-key")

    def read(self) -> bytes | None:
        """Return the key, or ``None`` if there is no file. Blocks.

        Raises :class:`ConfigError` if other users can access the file, another user owns it or
        it holds no key. The message does not quote the file.
        """
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # From O_NOFOLLOW.
                raise self._error(*_IRREGULAR) from error
            raise self._error(
                f"cannot be read: {error.strerror}", "Let the user who runs toolrelay read it"
            ) from error
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
                "Restore the file from a backup. If there is none, move it away: the next start makes a new "
                "key, and says which content needs the lost one",
            ) from None

    def make(self) -> bytes:
        """Create the file with a new key, flushed to disk, and return the key. Blocks.

        If another process creates the file first, return the key of that process. Raises
        :class:`~proxy.base.errors.ConfigError` if the file cannot be written.
        """
        key = secrets.token_bytes(32)
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
        try:
            try:
                self._write(draft, base64.b64encode(key) + b"\n")
                try:
                    # Unlike a rename, a link does not replace a file that another process has made meanwhile.
                    os.link(draft, self.path, follow_symlinks=False)
                except FileExistsError:
                    raise
                except OSError:  # Some file systems do not support links.
                    self._write(self.path, base64.b64encode(key) + b"\n")
            finally:
                with contextlib.suppress(FileNotFoundError):
                    draft.unlink()
            self._sync_folder()
        except FileExistsError:
            other_key = self.read()
            if other_key is None:
                raise self._error("was deleted while toolrelay read it", "Start toolrelay again") from None
            return other_key
        except OSError as error:
            raise self._error(
                f"cannot be created: {error.strerror}",
                "Let the user who runs toolrelay write to its folder, set store.seal_key, or set "
                "store.seal = false to store content unencrypted",
            ) from error
        return key

    def _write(self, path: Path, content: bytes) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        try:
            # A command that root runs must not leave a key that the server cannot read.
            with contextlib.suppress(OSError):
                owner = self._record.stat()
                if os.geteuid() == 0 and owner.st_uid != 0:
                    os.fchown(file, owner.st_uid, owner.st_gid)
            os.write(file, content)
            os.fsync(file)
        finally:
            os.close(file)

    def _sync_folder(self) -> None:
        # Otherwise a power failure could lose the key but keep content that was sealed with it.
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise self._error(*_IRREGULAR)
        if status.st_mode & _OF_OTHERS:
            raise self._error(
                f"has mode {stat.S_IMODE(status.st_mode):04o}, so other users can access it",
                f"Run: chmod 600 {shlex.quote(str(self.path))}",
            )
        allowed = {os.geteuid()}
        with contextlib.suppress(OSError):
            allowed.add(self._record.stat().st_uid)
        if status.st_uid not in allowed:
            raise self._error(
                f"belongs to another user (uid {status.st_uid})",
                f"Run: chown {os.geteuid()} {shlex.quote(str(self.path))}",
            )

    def _error(self, problem: str, remedy: str) -> ConfigError:
        return ConfigError(_SETTING, f"the key file {self.path} {problem}", remedy)
