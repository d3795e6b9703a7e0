"""Client requests that have no run, in SQL."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from proxy.records.requests import RequestRecord
from proxy.store.base import RequestFilter
from proxy.store.sql.base import SqlBase
from proxy.store.sql.request_rows import DROP_OLDEST, PUT, REQUESTS, TABLE, requests_query, rows_of
from proxy.store.sql.writing.writes import Write


class SqlRequests(SqlBase):
    """The part of a SQL store that implements :class:`~proxy.store.base.Store`."""

    async def add_requests(
        self, records: Iterable[RequestRecord], settled: Callable[[bool], None] | None = None
    ) -> None:
        # In a thread: a second's requests of a busy server would hold up its streams.
        made = await asyncio.to_thread(rows_of, records)
        self._writer.put(Write(PUT, made, settled=settled, needed=False))

    async def list_requests(self, wanted: RequestFilter) -> Sequence[RequestRecord]:
        await self._writer.flush()
        async with self._snapshot() as db:
            result = await db.execute_fetchall(*requests_query(wanted))
        return [TABLE.record(tuple(row)) for row in result]

    async def _purge_requests(self, before: float) -> None:
        """Delete the requests that began before a time, in batches."""
        while True:
            async with self._snapshot() as db:
                left = await db.execute_fetchall(
                    f"SELECT 1 FROM {REQUESTS} WHERE created_at < ? LIMIT 1", (before,)
                )
            if not list(left):
                return
            await self._writer.commit(DROP_OLDEST, [(before,)])
