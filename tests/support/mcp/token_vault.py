"""Where connections keep their tokens, in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.errors import StoreUnavailable

__all__ = ["Vault"]


class Vault:
    """A vault in memory that several brokers share, as processes share a record."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.lock = asyncio.Lock()
        self.broken: set[str] = set()

    @asynccontextmanager
    async def exclusive(self, name: str) -> AsyncIterator[None]:
        """One at a time."""
        self.fail("exclusive")
        async with self.lock:
            yield

    async def load(self, name: str) -> bytes | None:
        """What was kept."""
        self.fail("load")
        return self.kept.get(name)

    async def save(self, name: str, tokens: bytes) -> None:
        """Keep it."""
        self.fail("save")
        self.kept[name] = tokens

    async def forget(self, name: str) -> None:
        """Delete it."""
        self.fail("forget")
        self.kept.pop(name, None)

    def fail(self, what: str) -> None:
        """As a record that cannot be reached."""
        if what in self.broken:
            raise StoreUnavailable("s3cret-path is locked")
