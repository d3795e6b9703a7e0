"""Share one execution between equal pieces of work that are requested at the same time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class WorkCancelled(Exception):
    """Shared work was cancelled, but not because its waiters left."""


class _Flight(Struct, Generic[T]):
    """One execution and the number of its waiters."""

    task: asyncio.Task[T]
    waiting: int = 0


class SingleFlight(Generic[T]):
    """The executions in progress, by key; equal work shares one. Belongs to one event loop."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    def is_under_way(self, key: str) -> bool:
        """Return whether work with this key runs now."""
        return key in self._flights

    async def run(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return or raise what ``work`` does; calls with the same key at the same time share one execution.

        The work runs in a task of its own, so a cancelled caller does not cancel it for the others. The task
        is cancelled when its last waiter leaves. Raises :class:`WorkCancelled` if the work itself was
        cancelled, so that no caller mistakes it for its own cancellation.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.create_task(work()))
            self._flights[key] = flight
            flight.task.add_done_callback(lambda task: self._landed(key, task))
        flight.waiting += 1
        try:
            await asyncio.wait({flight.task})
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.task.done():
                self._flights.pop(key, None)  # No caller may join an execution that is being cancelled.
                flight.task.cancel()
        if flight.task.cancelled():
            raise WorkCancelled
        return flight.task.result()

    def _landed(self, key: str, task: asyncio.Task[T]) -> None:
        """Remove a flight and retrieve its exception, because no waiter may be left to do so."""
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()
