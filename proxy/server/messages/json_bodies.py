"""Parse JSON bodies: small ones at once, large ones in a thread, one at a time for each caller.

Parsing takes up to 2 µs per value, including the check for repeated keys, and blocks the event loop.
Counting the values takes a hundredth of that, and shows which bodies are large.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from proxy.base.errors import RequestError
from proxy.json.in_thread import in_thread
from proxy.json.size import SMALL_BYTES, count_values, is_large
from proxy.json.splice import load_strict


class JsonBodies:
    """Parses the bodies of requests, each with at most ``most_values`` values. Belongs to one event loop."""

    def __init__(self, most_values: int) -> None:
        self._most = most_values
        # A body this short counts as small, and has fewer values than bytes.
        self._certain = min(SMALL_BYTES, most_values)
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    def load_now(self, raw: bytes) -> dict[str, Any] | None:
        """Return the parsed body; ``None`` for a large one. Raises as :func:`load_strict` does."""
        if len(raw) > self._certain:
            if is_large(raw):
                return None
            if self._most < SMALL_BYTES:
                self._check(raw)
        # A body that is not large has at most as many values as a small one has bytes.
        return load_strict(raw)

    async def load(self, raw: bytes, caller: str, among: str | None = None) -> dict[str, Any]:
        """Return a large body, parsed in a thread. For each caller, only one is parsed at a time.

        If ``among`` names a group, only one large body of the group is parsed at a time, too: one client
        could make up credentials and appear as many callers of one address. Raises as :func:`load_strict`
        does.
        """
        # Take the caller's lock first, so that each caller has only one body in line for the group's lock.
        async with self._alone(caller), self._alone(among) if among is not None else nullcontext():
            return await in_thread(self._load, raw)

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of a name; waiting tasks get it in the order in which they asked."""
        lock, waiting = self._turns.get(name) or (asyncio.Lock(), 0)
        self._turns[name] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns[name]
            if waiting > 1:
                self._turns[name] = (lock, waiting - 1)
            else:
                del self._turns[name]

    def _load(self, raw: bytes) -> dict[str, Any]:
        self._check(raw)
        return load_strict(raw)

    def _check(self, raw: bytes) -> None:
        """Raise :class:`RequestError` (400) for a body with too many values."""
        if count_values(raw, self._most) > self._most:
            raise RequestError(
                400,
                f"The request body contains more than {self._most} JSON values. Send fewer. The operator "
                "sets the limit in server.max_json_values.",
                code="too_many_entries",
            )
