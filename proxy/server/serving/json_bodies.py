"""Parsing JSON bodies: small ones at once, large ones in a thread, one at a time for each caller.

Parsing takes up to 2 µs a value, including the check for repeated keys, and blocks the event loop.  Counting
the values takes a hundredth of that, and tells which bodies are large.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from proxy.errors import RequestError
from proxy.in_thread import in_thread
from proxy.json_size import SMALL_BYTES, count_values, is_large
from proxy.wires.json.splice import load_strict

__all__ = ["JsonBodies"]


class JsonBodies:
    """Parses the bodies of requests, each of ``most_values`` values at most.  Belongs to one event loop."""

    def __init__(self, most_values: int) -> None:
        self._most = most_values
        # So short a body is small, and holds fewer values than bytes.
        self._certain = min(SMALL_BYTES, most_values)
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    def load_now(self, raw: bytes) -> dict[str, Any] | None:
        """What a body says; ``None`` for a large one.  Raises as :func:`load_strict` does."""
        if len(raw) <= self._certain:
            return load_strict(raw)
        return None if is_large(raw) else self._load(raw)

    async def load(self, raw: bytes, caller: str, among: str | None = None) -> dict[str, Any]:
        """What a body says.  Of one caller one large body is parsed at a time, whatever it takes.

        And one of all those who are counted ``among`` others as well, in turns: anybody can make up
        credentials to be many callers of one address.  Raises as :func:`load_strict` does.
        """
        if not is_large(raw):
            return self._load(raw)
        # The narrower one first, so that each of them has one body in line for the other.
        async with self._alone(caller), self._alone(among) if among is not None else nullcontext():
            return await in_thread(self._load, raw)

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """Be the only one of a name who goes on; whoever asks first is first."""
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
        if count_values(raw, self._most) > self._most:
            raise RequestError(
                400,
                f"The request body contains more than {self._most} JSON values. Send fewer. The operator "
                "sets the limit in server.max_json_values.",
                code="too_many_entries",
            )
        return load_strict(raw)
