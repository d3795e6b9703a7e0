"""The vault for tokens of tools' connections: sealed, shared by all processes, refreshed by one at a time.

Tokens are not content (rule R3), because they are no part of a conversation. So they neither expire with
content nor are deleted with a run. Without a key to seal them there is no vault, and each process keeps its
own tokens.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

from proxy.base.errors import StoreUnavailable
from proxy.store import rows
from proxy.store.seal import ContentTable, SealRing

if sys.platform != "win32":
    import fcntl

TOKENS: Final = ContentTable(
    "connection_tokens", tuple, ("id", "tokens"), ("id",), ("tokens",), "connection's token"
)

_PUT: Final = rows.upsert(TOKENS.name, ("updated_at", *TOKENS.columns, "sealed_by"), TOKENS.key)
_DELETE: Final = f"DELETE FROM {TOKENS.name} WHERE id = ?"
_MAX_WAIT_S: Final = 30.0
_ASK_EVERY_S: Final = 0.05


class SealedTokens:
    """A :class:`~proxy.records.rows.TokenVault` in a table of the record."""

    def __init__(
        self,
        ring: SealRing,
        *,
        read: Callable[[ContentTable[Any], str], Awaitable[list[rows.Row]]],
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
        return self._lock(name)

    async def load(self, name: str) -> bytes | None:
        result = await self._read(TOKENS, name)
        return result[0][1] if result else None

    async def save(self, name: str, tokens: bytes) -> None:
        await self._commit(_PUT, (self._clock(), *self._ring.close(TOKENS, (name, tokens))))

    async def forget(self, name: str) -> None:
        await self._commit(_DELETE, (name,))


async def retry_until_locked(attempt: Callable[[], Awaitable[bool]]) -> None:
    """Retry ``attempt`` until it gets the lock; raises StoreUnavailable after 30 seconds."""
    until = asyncio.get_running_loop().time() + _MAX_WAIT_S
    while not await attempt():
        if asyncio.get_running_loop().time() >= until:
            raise StoreUnavailable("another process holds the lock of a connection's tokens for too long")
        await asyncio.sleep(_ASK_EVERY_S)


@contextlib.asynccontextmanager
async def file_lock(path: Path) -> AsyncIterator[None]:
    """Hold an exclusive ``flock`` on a file of mode 0600; the kernel drops it when its holder dies.

    On a platform without ``flock`` nothing is locked.
    """
    if sys.platform == "win32":
        yield
        return

    def open_file() -> int:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    try:
        # In a thread: the disk may hang, and the event loop must not hang with it.
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
        await retry_until_locked(attempt)
        yield
    finally:
        os.close(descriptor)
