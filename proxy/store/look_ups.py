"""Look-ups in a record that may not answer.

Requests look things up, and a record hangs: a disk that is gone, a server that is frozen or behind a dead
network.  Each look-up has one deadline.  The first that reaches it finds out for all: until a probe is
answered nobody else waits, but is told at once that the record is away.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from proxy.errors import StoreError, StoreUnavailable
from proxy.in_time import InTime
from proxy.store.base import LOOK_UP_S

__all__ = ["LookUps"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_FIRST_PROBE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class LookUps:
    """``probe`` asks the record for something small; it may take long, and raises StoreError."""

    def __init__(self, probe: Callable[[], Awaitable[object]]) -> None:
        self._ask = probe
        self._prober: asyncio.Task[None] | None = None
        self._in_time = InTime()

    @property
    def away(self) -> bool:
        """Whether the record is known not to answer."""
        return self._prober is not None

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """What a look-up finds.

        Raises :class:`~proxy.errors.StoreUnavailable` after :data:`~proxy.store.base.LOOK_UP_S`, and at
        once while the record is away; and what the look-up raises.
        """
        if self._prober is not None:
            work.close()
            raise StoreUnavailable("the record does not answer")
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await self._in_time.of(work, LOOK_UP_S)
        except TimeoutError:
            self._went_away()
            raise StoreUnavailable(f"the record did not answer within {LOOK_UP_S:g} s") from None
        except (StoreUnavailable, asyncio.CancelledError):
            # Its own time-out came first, or that of who asked for several things.
            if loop.time() - began >= LOOK_UP_S / 2:
                self._went_away()
            raise

    def close(self) -> None:
        """Ask no more."""
        if self._prober is not None:
            self._prober.cancel()
        self._in_time.close()

    def _went_away(self) -> None:
        if self._prober is None:
            _log.error("the record does not answer: nothing is looked up in it until it does")
            self._prober = asyncio.get_running_loop().create_task(self._probe(), name="record-probe")

    async def _probe(self) -> None:
        """Ask until there is an answer in time; one question at a time, however long it takes."""
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PROBE_S
        try:
            while True:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                began = loop.time()
                try:
                    await self._ask()
                except StoreError:
                    continue
                if loop.time() - began < LOOK_UP_S:
                    break
        finally:
            self._prober = None
        _log.warning("the record answers again")
