"""Tokens of tools' connections: sealed, shared by every process of a record, and refreshed by one at a time.

No content (rule R3): they are nobody's words, so they neither expire with it nor go with a run.
Without a key to seal them there is no such place, and each process keeps its tokens to itself.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from proxy.errors import StoreUnavailable
from proxy.store import rows
from proxy.store.seal import ContentTable, SealRing

if sys.platform != "win32":
    import fcntl

__all__ = ["TOKENS", "SealedTokens", "file_lock", "waiting"]

TOKENS: Final = ContentTable(
    "connection_tokens", ("id", "tokens"), ("id",), ("tokens",), "connection's token"
)

_PUT: Final = rows.upsert(TOKENS.name, ("updated_at", *TOKENS.columns, "sealed_by"), TOKENS.key)
_DELETE: Final = f"DELETE FROM {TOKENS.name} WHERE id = ?"
_MAX_WAIT_S: Final = 30.0
_ASK_EVERY_S: Final = 0.05


class SealedTokens:
    """:class:`~proxy.records.TokenVault` in a table of the record."""

    def __init__(
        self,
        ring: SealRing,
        *,
        read: Callable[[ContentTable, str], Awaitable[list[rows.Row]]],
        commit: Callable[[str, rows.Row], Awaitable[None]],
        lock: Callable[[str], AbstractAsyncContextManager[None]],
        clock: Callable[[], float],
    ) -> None:
        self._ring = ring
        self._read = read
        self._commit = commit
        self._lock = lock
        self._clock = clock

    def exclusive(self, name: str) -> AbstractAsyncContextManager[None]:
        """A block that one process at a time is in for each name, until it ends or the process dies.

        Raises :class:`~proxy.errors.StoreUnavailable` where it cannot be entered in time.
        """
        return self._lock(name)

    async def load(self, name: str) -> bytes | None:
        """What was saved last under a name, by any process; raises StoreError."""
        found = await self._read(TOKENS, name)
        return found[0][1] if found else None

    async def save(self, name: str, tokens: bytes) -> None:
        """Keep the tokens, sealed and committed on return; raises StoreUnavailable."""
        await self._commit(_PUT, (self._clock(), *self._ring.close(TOKENS, (name, tokens))))

    async def forget(self, name: str) -> None:
        """Delete what is kept under a name, committed on return; raises StoreUnavailable."""
        await self._commit(_DELETE, (name,))


async def waiting(attempt: Callable[[], Awaitable[bool]]) -> None:
    """Try to get a lock until it is had; raises StoreUnavailable where that takes too long."""
    until = asyncio.get_running_loop().time() + _MAX_WAIT_S
    while not await attempt():
        if asyncio.get_running_loop().time() >= until:
            raise StoreUnavailable("another process holds the lock of a connection's tokens for too long")
        await asyncio.sleep(_ASK_EVERY_S)


@contextlib.asynccontextmanager
async def file_lock(path: Path) -> AsyncIterator[None]:
    """An exclusive ``flock`` on a file of mode 0600, which the kernel drops when its holder dies.

    Where the platform has none, nobody is kept out.
    """
    if sys.platform == "win32":
        yield
        return

    def open_file() -> int:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    try:
        # In a thread: the disk may hang, and everybody else is not to hang with it.
        descriptor = await asyncio.to_thread(open_file)
    except OSError as error:
        raise StoreUnavailable(f"the lock file beside the record cannot be used: {error.strerror}") from error

    async def attempt() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StoreUnavailable(
                f"the lock file beside the record cannot be used: {error.strerror}"
            ) from error
        return True

    try:
        await waiting(attempt)
        yield
    finally:
        os.close(descriptor)
