"""Limit how many read-only tools run at once, per process and per caller, and how tools call tools."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from proxy.base.errors import ToolFailure

MAX_NESTED = 8
"""The deepest nesting of tools that call tools."""

_INNER = 4
"""The number of places for the tools that one running tool calls."""


class Nesting:
    """The calls that the running code is nested in, since tools can call tools; one per runner."""

    def __init__(self) -> None:
        self._chain: ContextVar[tuple[str, ...]] = ContextVar("toolrelay_calls", default=())

    @contextmanager
    def inside(self, call: str) -> Iterator[None]:
        """Run the block, and tasks that it starts, as part of the call with the key ``call``.

        Raises :class:`ToolFailure` if tools call each other too deeply, or if a call is nested
        in itself and would wait for its own result.
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
    """One caller's places, kept while a task holds or waits for one."""

    free: asyncio.Semaphore
    users: int = 0


@dataclass(slots=True)
class _Place:
    """A place that a call holds, with inner places for the calls that it makes.

    An inner call waits only for its siblings, and these wait only for their own inner calls, so there is no
    deadlock. If inner calls took places from the shared pool, calls could hold all of them and each wait
    for one more.
    """

    held: bool = True
    inner: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_INNER))


class Slots:
    """Places for calls: ``total`` of them, and at most ``per_caller`` for one caller."""

    def __init__(self, total: int, per_caller: int) -> None:
        self._free = asyncio.Semaphore(total)
        self._per_caller = per_caller
        self._callers: dict[str, _Caller] = {}
        self._place: ContextVar[_Place | None] = ContextVar("toolrelay_place", default=None)

    def has_room(self, caller: str) -> bool:
        """Return whether :meth:`take` would get a place without waiting."""
        outer = self._place.get()
        if outer is not None and outer.held:
            return not outer.inner.locked()
        own = self._callers.get(caller)
        return not self._free.locked() and (own is None or not own.free.locked())

    @asynccontextmanager
    async def take(self, caller: str) -> AsyncIterator[None]:
        """Wait for a place and hold it. The caller's own limit is first, so its queue does not block others.
        A task that holds a place already takes one of its inner places."""
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
        """Mark the block, and tasks that it starts, as the holder of a place."""
        place = _Place()
        token = self._place.set(place)
        try:
            yield
        finally:
            place.held = False  # Tasks that a tool has left behind no longer hold the place.
            self._place.reset(token)
