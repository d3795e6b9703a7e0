"""How many read-only tools run at once, in the process and for one caller."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

__all__ = ["Slots"]


@dataclass(slots=True)
class _Caller:
    """One caller's places, kept while anybody holds or waits for one."""

    free: asyncio.Semaphore
    users: int = 0


class Slots:
    """Places for work: so many for all, and of these so many for one caller."""

    def __init__(self, total: int, per_caller: int) -> None:
        self._free = asyncio.Semaphore(total)
        self._per_caller = per_caller
        self._callers: dict[str, _Caller] = {}

    @asynccontextmanager
    async def take(self, caller: str) -> AsyncIterator[None]:
        """A place, waited for; a caller's own bound first, so that its queue holds up nobody else."""
        own = self._callers.setdefault(caller, _Caller(asyncio.Semaphore(self._per_caller)))
        own.users += 1
        try:
            async with own.free, self._free:
                yield
        finally:
            own.users -= 1
            if own.users == 0:
                self._callers.pop(caller, None)
