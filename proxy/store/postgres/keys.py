"""Receives notifications of changed client keys from PostgreSQL, over a connection of its own."""

import asyncio
from typing import Any, Final

import asyncpg

from proxy.base.errors import StoreUnavailable
from proxy.store.postgres.db import DRIVER_ERRORS, connect, store_error

_CHANNEL: Final = "toolrelay_keys"


class KeyListener:
    """Listens for changed keys, from the first :meth:`version` on; that also reconnects after a failure.

    Each notification of the server increases ``told``. Without a connection no notification arrives, so
    callers ask for the version from time to time.
    """

    def __init__(self, url: str) -> None:
        self.told = 0
        self._url = url
        self._connection: asyncpg.Connection[Any] | None = None
        self._asking = asyncio.Lock()
        self._closed = False

    async def version(self) -> int:
        """Start to listen for changes if necessary, then return the version of the keys.

        Raises :class:`~proxy.base.errors.StoreError` if the server does not answer.
        """
        async with self._asking:
            if self._closed:
                raise StoreUnavailable("the record is closed")
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(self._url)
                    await self._connection.add_listener(_CHANNEL, self._hear)
                version: int | None = await self._connection.fetchval("SELECT version FROM key_state")
            except DRIVER_ERRORS as error:
                self._drop()
                raise store_error(error) from error
            except BaseException:  # A cancelled query leaves its answer unread on the connection.
                self._drop()
                raise
            return version or 0

    async def aclose(self) -> None:
        """Stop listening. Idempotent."""
        self._closed = True
        self._drop()

    def _hear(self, *_: Any) -> None:
        # A notification from another schema of this database costs one unnecessary read.
        self.told += 1

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()
