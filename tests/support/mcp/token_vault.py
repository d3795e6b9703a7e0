"""A vault for the tokens of connections, in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.base.errors import StoreUnavailable


class Vault:
    """A vault in memory that several brokers share, as processes share a store."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.lock = asyncio.Lock()
        self.broken: set[str] = set()

    @asynccontextmanager
    async def exclusive(self, name: str) -> AsyncIterator[None]:
        """Lock the vault."""
        self.fail("exclusive")
        async with self.lock:
            yield

    async def load(self, name: str) -> bytes | None:
        """Return the stored tokens."""
        self.fail("load")
        return self.kept.get(name)

    async def save(self, name: str, tokens: bytes) -> None:
        """Store tokens."""
        self.fail("save")
        self.kept[name] = tokens

    async def forget(self, name: str) -> None:
        """Delete tokens."""
        self.fail("forget")
        self.kept.pop(name, None)

    def fail(self, what: str) -> None:
        """Fail as a store that cannot be reached, if this operation is broken."""
        if what in self.broken:
            raise StoreUnavailable("s3cret-path is locked")
