"""The lease of a process on its rows: while it lasts, no other process takes them for those of a dead one.

It lasts by the clock of the database, so neither the clocks of machines nor their networks count. A process
that does not renew its lease has lost it, whether it was killed, stands still or is cut off.

After an outage of the database all leases may be over although all processes live. So a process ends leases
of others only after it has reached the database, without a gap, for as long as the others need to come back.
"""

import asyncio
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from proxy.base.errors import StoreError
from proxy.net.keep_running import keep_running
from proxy.store.postgres.clock import NOW, DatabaseClock
from proxy.store.postgres.db import DRIVER_ERRORS, Connection, PostgresConnections, numbered
from proxy.store.rows import Row

LEASE_S: Final = 10.0
"""Seconds that a lease lasts from its last renewal. It is renewed after half of them; a renewal that fails is
tried again after a tenth."""

_ANSWER_S: Final = 2.0
"""Seconds to wait for the database, until the next try uses another connection."""

_END_S: Final = 4.0
"""Seconds that it may take to end leases that are over; the own lease is not renewed meanwhile."""

_GAP: Final = 0.25
"""The part of a lease after which a process that did not reach the database may have missed an outage."""
_COME_BACK: Final = 0.6
"""The part of a lease in which every process that lives renews its own after an outage."""

PUT_OWNER: Final = (
    "INSERT INTO owners (id, pid, host, started_at, seen_at, schema, lease_until) "
    f"VALUES (?, ?, ?, {NOW}, {NOW}, ?, {NOW} + ?) ON CONFLICT (id) DO UPDATE SET "
    "seen_at = excluded.seen_at, lease_until = excluded.lease_until, ended_at = NULL"
)
"""Takes or renews a lease: the values of :meth:`OwnerLease.row`."""

_RENEW: Final = numbered(f"WITH renewed AS ({PUT_OWNER}) SELECT {NOW}")
_OVER: Final = f"ended_at IS NULL AND lease_until < {NOW}"
_ANY_OVER: Final = f"SELECT EXISTS (SELECT 1 FROM owners WHERE {_OVER})"
_END: Final = (
    "UPDATE owners SET ended_at = $1 WHERE id IN "
    f"(SELECT id FROM owners WHERE {_OVER} AND id <> $2 FOR UPDATE SKIP LOCKED)"
)


class OwnerLease:
    """The lease of one process, its search for leases that are over, and what else must be looked at now and
    then."""

    def __init__(
        self,
        owner_id: str,
        schema: int,
        connections: PostgresConnections,
        clock: DatabaseClock,
        *,
        lasts_s: float,
        looks: bool,
        now: Callable[[], float],
        interrupt: Callable[[Connection], Awaitable[None]],
        each_minute: Callable[[Connection], Awaitable[None]],
    ) -> None:
        """Create the lease of ``owner_id``, who knows the schema with the number ``schema``.

        With ``looks`` the process takes it at its start, and ends those of others that are over at ``now``.
        ``interrupt`` marks what ended owners left open, in the transaction that ends them.
        """
        self.row: Final[Row] = (owner_id, os.getpid(), socket.gethostname(), schema, lasts_s)
        self.taken = looks
        self._connections = connections
        self._clock = clock
        self._lasts_s = lasts_s
        self._looks = looks
        self._now = now
        self._interrupt = interrupt
        self._each_minute = each_minute
        self._task: asyncio.Task[NoReturn] | None = None
        self._renewed_at = self._reached_at = self._back_at = self._minute_at = -math.inf

    def take(self) -> None:
        """Begin to renew the lease, which the caller puts on record."""
        self.taken = True
        self.start()

    def start(self) -> None:
        """Begin to renew the lease if it is taken, and to look for others. Idempotent."""
        if self._task is None:
            self._minute_at = time.monotonic()
            work = keep_running("record-lease", self._beat, every_s=self._lasts_s / 10, after_failure_s=0.0)
            self._task = asyncio.get_running_loop().create_task(work)

    async def stop(self) -> None:
        """Stop to renew the lease. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _beat(self) -> None:
        """Do what is due; without an answer of the database, leave it to the next beat."""
        try:
            async with asyncio.timeout(_ANSWER_S), self._connections.lend() as connection:
                await self._renew(connection)
                may_end = await self._look(connection)
            if may_end:
                async with asyncio.timeout(_END_S), self._connections.lend() as connection:
                    await self._end(connection)
        except (StoreError, *DRIVER_ERRORS):
            return

    async def _renew(self, connection: Connection) -> None:
        begun = time.monotonic()
        if self.taken and begun - self._renewed_at >= self._lasts_s / 2:
            await self._clock.ask(connection, _RENEW, *self.row)
            self._renewed_at = begun
        if begun - self._minute_at >= 60.0:
            self._minute_at = begun
            await self._each_minute(connection)

    async def _look(self, connection: Connection) -> bool:
        """Return whether leases are over, and that cannot be the fault of an outage."""
        any_over = self._looks and await connection.fetchval(_ANY_OVER)
        now = time.monotonic()
        if now - self._reached_at > self._lasts_s * _GAP:
            self._back_at = now
        self._reached_at = now
        return bool(any_over) and now - self._back_at >= self._lasts_s * _COME_BACK

    async def _end(self, connection: Connection) -> None:
        """End the leases that are over, and what their owners left open."""
        async with connection.transaction():
            await connection.execute(_END, self._now(), self.row[0])
            await self._interrupt(connection)
