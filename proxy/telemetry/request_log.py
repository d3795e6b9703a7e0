"""Record the requests that have no run.

A request costs one call and one entry in a list. The rows are made in a thread and written in batches, so no
request waits for the record.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from proxy.records.ids import row_ids
from proxy.records.requests import RequestRecord
from proxy.telemetry.hooks import Observer, RequestFacts

EVERY_S: Final = 1.0
"""Seconds from the first request of a batch to its write."""

_MOST_WAITING: Final = 10_000
_MOST_UNKNOWN: Final = 60
_UNKNOWN_PER_S: Final = 1.0
"""Requests of nobody that are recorded in a row, and from then on in a second: anybody can send them."""


class RequestStore(Protocol):
    """The part of the record that takes the rows."""

    def now(self) -> float: ...

    async def add_requests(
        self, records: Iterable[RequestRecord], settled: Callable[[bool], None] | None = None
    ) -> None: ...


class RequestLog(Observer):
    """Collects the facts of requests without a run, and hands them to the record. One per process.

    ``unrecorded`` counts the requests that got no row: too many waited, too many came from nobody, or the
    record lost them.
    """

    def __init__(self, store: RequestStore, *, most: int = _MOST_WAITING) -> None:
        self.unrecorded = 0
        self._store = store
        self._most = most
        self._waiting: list[RequestFacts] = []
        self._allowance = float(_MOST_UNKNOWN)
        self._counted_at = 0.0
        self._writes: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def request_ended(self, facts: RequestFacts) -> None:
        if facts.has_run or not facts.dialect:
            return
        waiting = self._waiting
        if len(waiting) >= self._most or (not facts.caller and not self._admit_unknown(facts)):
            self.unrecorded += 1
            return
        # The other observers and the access line need them no more, and they hold the whole exchange.
        facts.client = facts.span = None
        waiting.append(facts)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._begin_write)

    def _admit_unknown(self, facts: RequestFacts) -> bool:
        """Return whether a request of nobody is recorded; its end is the clock."""
        now = facts.started + facts.seconds
        passed, self._counted_at = max(0.0, now - self._counted_at), max(now, self._counted_at)
        self._allowance = min(self._allowance + passed * _UNKNOWN_PER_S, float(_MOST_UNKNOWN))
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True

    def _begin_write(self) -> None:
        self._timer = None
        task = asyncio.get_running_loop().create_task(self._write())
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self) -> None:
        facts, self._waiting = self._waiting, []
        offset = self._store.now() - time.monotonic()
        # A generator: the store reads it in its thread.
        records = (_record(id_, each, offset) for id_, each in zip(row_ids("rq_"), facts, strict=False))

        def settled(committed: bool) -> None:
            if not committed:
                self.unrecorded += len(facts)

        await self._store.add_requests(records, settled)

    async def aclose(self) -> None:
        """Write what waits. The record must still be open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            await self._write()
        if self._writes:
            await asyncio.gather(*self._writes, return_exceptions=True)


def _record(row_id: str, facts: RequestFacts, offset: float) -> RequestRecord:
    """Return the row of a request; ``offset`` makes a time of the record of a monotonic one."""
    usage = facts.usage
    return RequestRecord(
        row_id,
        facts.request_id,
        facts.principal or facts.caller,
        facts.dialect,
        facts.operation_asked,
        facts.endpoint,
        facts.model,
        facts.upstream,
        facts.status,
        facts.started + offset,
        facts.seconds,
        facts.error_code or None,
        facts.first_byte_s,
        None if usage is None else usage.input_tokens,
        None if usage is None else usage.output_tokens,
        None if usage is None else usage.total_tokens,
        facts.cost,
    )
