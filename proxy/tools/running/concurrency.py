"""How many read-only tools run at once, in the process and for one caller, and how tools call tools."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from proxy.errors import ToolFailure

__all__ = ["MAX_NESTED", "Nesting", "Slots"]

MAX_NESTED = 8
"""How deep tools may call each other."""

_INNER = 4
"""Places that the tools have which one running tool calls."""


class Nesting:
    """Which calls the running code is inside of, as tools call tools; one for each runner."""

    def __init__(self) -> None:
        self._chain: ContextVar[tuple[str, ...]] = ContextVar("toolrelay_calls", default=())

    @contextmanager
    def inside(self, call: str) -> Iterator[None]:
        """What runs in this block, tasks that it starts too, belongs to the call of that key.

        Raises :class:`~proxy.errors.ToolFailure` where tools call each other too deeply, or for a
        call that is inside of itself and would wait for its own result.
        """
        chain = self._chain.get()
        if call in chain:
            raise ToolFailure("this tool has called itself with the same arguments and would never end")
        if len(chain) >= MAX_NESTED:
            raise ToolFailure("tools have called each other too deeply", code="budget_exhausted")
        token = self._chain.set((*chain, call))
        try:
            yield
        finally:
            self._chain.reset(token)


@dataclass(slots=True)
class _Caller:
    """One caller's places, kept while anybody holds or waits for one."""

    free: asyncio.Semaphore
    users: int = 0


@dataclass(slots=True)
class _Place:
    """A place that somebody holds, with room for what the holder calls in its turn.

    A call waits only for its siblings, and they for calls of their own: that always comes to an end.
    If it took a place of all, callers could hold every place and wait for one more each.
    """

    held: bool = True
    inner: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_INNER))


class Slots:
    """Places for work: so many for all, and of these so many for one caller."""

    def __init__(self, total: int, per_caller: int) -> None:
        self._free = asyncio.Semaphore(total)
        self._per_caller = per_caller
        self._callers: dict[str, _Caller] = {}
        self._place: ContextVar[_Place | None] = ContextVar("toolrelay_place", default=None)

    def has_room(self, caller: str) -> bool:
        """Whether :meth:`take` would have a place at once."""
        outer = self._place.get()
        if outer is not None and outer.held:
            return not outer.inner.locked()
        own = self._callers.get(caller)
        return not self._free.locked() and (own is None or not own.free.locked())

    @asynccontextmanager
    async def take(self, caller: str) -> AsyncIterator[None]:
        """Wait for a place.  The caller's own bound comes first, so its queue does not hold up others.  A
        task that holds a place already gets another at once."""
        outer = self._place.get()
        if outer is not None and outer.held:
            async with outer.inner:
                with self._placed():
                    yield
            return
        own = self._callers.setdefault(caller, _Caller(asyncio.Semaphore(self._per_caller)))
        own.users += 1
        try:
            async with own.free, self._free:
                with self._placed():
                    yield
        finally:
            own.users -= 1
            if own.users == 0:
                self._callers.pop(caller, None)

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Mark what runs in this block, tasks that it starts too, as the holder of a place."""
        place = _Place()
        token = self._place.set(place)
        try:
            yield
        finally:
            place.held = False  # Tasks that a tool has left behind hold nothing any more.
            self._place.reset(token)
