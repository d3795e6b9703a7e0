"""A clock for the counters of limits: it stands still until a test moves it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from redis_server import SERVER

MODULES = (
    "limits.aio.storage.memory",
    "limits.aio.storage.redis.redispy",
    "proxy.server.limits.counters",
    "proxy.server.limits.memory",
    "proxy.server.limits.redis",
)


@dataclass
class LimitClock:
    """The time that the counters see, in seconds."""

    now: float = 1_800_000_000.0
    monotonic = staticmethod(time.monotonic)

    def time(self) -> float:
        """Return the time, as the module ``time`` does."""
        return self.now

    async def move(self, seconds: float, prefix: str = "") -> None:
        """Move on; ``prefix`` names the keys in Redis whose time to live, which is Redis's own, is cut."""
        from redis.asyncio import Redis

        self.now += seconds
        if not prefix:
            return
        async with Redis.from_url(SERVER) as client:
            async for key in client.scan_iter(f"{prefix}:*", count=1000):
                left = await client.pttl(key) - round(seconds * 1000)
                await (client.pexpire(key, left) if left > 0 else client.delete(key))


@contextmanager
def limit_clock(now: float = 1_800_000_000.0) -> Iterator[LimitClock]:
    """Give the counters a clock, also within the library."""
    clock = LimitClock(now)
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(f"{module}.time", clock)
        yield clock
