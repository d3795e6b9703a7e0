"""How much a caller may do: moving windows over the ``limits`` library, and open requests counted."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from limits import RateLimitItem, parse_many
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter

from proxy.errors import ConfigError, RequestError

__all__ = ["ConcurrentStreams", "MemoryLimiter", "parse_limits"]

LimitKind = Literal["requests", "tool_calls"]


def parse_limits(setting: str, texts: Sequence[str]) -> tuple[RateLimitItem, ...]:
    """Limits as written (``"600/minute"``, ``"5 per second"``), all of which hold at once.

    Raises :class:`~proxy.errors.ConfigError` naming ``setting``.
    """
    items: list[RateLimitItem] = []
    for text in texts:
        try:
            parsed = parse_many(text)
        except ValueError:
            parsed = []
        if not parsed or any(item.amount < 1 for item in parsed):
            raise ConfigError(setting, f"{text[:80]!r} is no limit", 'Write it like "600/minute"')
        items.extend(parsed)
    return tuple(items)


class MemoryLimiter:
    """A :class:`~proxy.records.Limiter` that counts in this process.

    A request that is refused counts against none of its limits.
    """

    def __init__(self, *, requests: Sequence[str] = (), tool_calls: Sequence[str] = ()) -> None:
        self._limits: dict[LimitKind, tuple[RateLimitItem, ...]] = {
            "requests": parse_limits("limits.requests", requests),
            "tool_calls": parse_limits("limits.tool_calls", tool_calls),
        }
        self._storage = MemoryStorage()
        self._window = MovingWindowRateLimiter(self._storage)

    async def hit(self, kind: LimitKind, caller: str) -> float | None:
        """Count one; ``None`` if within every limit, else seconds until all of them have one free."""
        items = self._limits[kind]
        if len(items) == 1:
            taken = await self._window.hit(items[0], kind, caller)
            return None if taken else await self._wait(items[0], kind, caller)
        waits = [
            await self._wait(item, kind, caller)
            for item in items
            if not await self._window.test(item, kind, caller)
        ]
        if waits:
            return max(waits)
        for item in items:
            # Another task may have taken the last one between the test and here.
            if not await self._window.hit(item, kind, caller):
                return await self._wait(item, kind, caller)
        return None

    async def _wait(self, item: RateLimitItem, kind: LimitKind, caller: str) -> float:
        stats = await self._window.get_window_stats(item, kind, caller)
        return max(stats.reset_time - time.time(), 0.001)

    async def aclose(self) -> None:
        """Stop the storage's housekeeping."""
        if self._storage.timer is not None:
            self._storage.timer.cancel()


class ConcurrentStreams:
    """How many requests are open at one time in this process.

    >>> streams = ConcurrentStreams(256)
    >>> async with streams.lease(): ...
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ConfigError("limits.concurrent_streams", "must be 1 or more")
        self.limit = limit
        self._open = 0

    @property
    def open(self) -> int:
        """Leases held now."""
        return self._open

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        """Hold one place; raises :class:`~proxy.errors.RequestError` (429) where none is free."""
        if self._open >= self.limit:
            raise RequestError(
                429,
                "Too many requests are open at the same time. Try again when one has ended.",
                type="rate_limit_error",
                code="rate_limit_exceeded",
                headers={"retry-after": "1"},
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
