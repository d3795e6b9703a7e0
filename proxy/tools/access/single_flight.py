"""Equal work at the same moment is made one piece of work."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["SingleFlight", "WorkCancelled"]

T = TypeVar("T")


class WorkCancelled(Exception):
    """Shared work was cancelled by something else than its waiters."""


@dataclass(slots=True)
class _Flight(Generic[T]):
    """One execution and how many wait for it."""

    task: asyncio.Task[T]
    waiting: int = 0


class SingleFlight(Generic[T]):
    """Makes equal work at the same moment one piece of work.  Belongs to one event loop."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    def is_under_way(self, key: str) -> bool:
        """Whether work of this key runs now."""
        return key in self._flights

    async def run(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return or raise what ``work`` does; equal calls at the same time share one execution.

        The work has a task of its own, so a cancelled caller does not cancel it for the others.  It is
        cancelled when no caller waits any more.  Raises :class:`WorkCancelled` if the work itself was
        cancelled, so that no caller takes that for a cancellation of its own.
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
                self._flights.pop(key, None)  # Nobody may join what is about to end.
                flight.task.cancel()
        if flight.task.cancelled():
            raise WorkCancelled
        return flight.task.result()

    def _landed(self, key: str, task: asyncio.Task[T]) -> None:
        """Forget a flight; look at its exception, which may have nobody left to look at it."""
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()
