"""Look-ups in a record that may not answer.

Requests look things up, and the record can hang: a disk is gone, a server is frozen or behind a dead network.
Each look-up has one time limit. The first that exceeds it starts a probe. Until the probe is answered, all
other look-ups fail at once instead of waiting.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from proxy.errors import StoreError, StoreUnavailable
from proxy.hard_timeout import HardTimeout
from proxy.store.base import LOOK_UP_S

__all__ = ["LookUps"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_ALMOST_ALL: Final = 0.9
"""A look-up that waited for this fraction of its time limit proves that the record does not answer."""
_FIRST_PROBE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class LookUps:
    """Runs look-ups with a time limit, and fails them at once while the record does not answer.

    ``probe`` sends the record a small query; it may take long, and raises StoreError.
    """

    def __init__(self, probe: Callable[[], Awaitable[object]]) -> None:
        self._ask = probe
        self._prober: asyncio.Task[None] | None = None
        self._doubt: asyncio.Task[None] | None = None
        self._hard_timeout = HardTimeout()

    @property
    def is_unresponsive(self) -> bool:
        """Whether the record is known not to answer."""
        return self._prober is not None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a look-up.

        Raises :class:`~proxy.errors.StoreUnavailable` after :data:`~proxy.store.base.LOOK_UP_S`, or at once
        while the record is unresponsive. Errors of the look-up itself pass through.
        """
        if self._prober is not None:
            work.close()
            raise StoreUnavailable("the record does not answer")
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await self._hard_timeout.run(work, LOOK_UP_S)
        except TimeoutError:
            self._went_away()
            raise StoreUnavailable(f"the record did not answer within {LOOK_UP_S:g} s") from None
        except (StoreUnavailable, asyncio.CancelledError):
            # The look-up's own time limit or that of its caller came first, or the client left.
            self._given_up(after_s=loop.time() - began)
            raise

    def close(self) -> None:
        """Cancel all probes."""
        for task in (self._prober, self._doubt):
            if task is not None:
                task.cancel()
        self._hard_timeout.close()

    def _given_up(self, after_s: float) -> None:
        """Judge the record by a look-up that ended early; if it was slow, probe for the rest of its time."""
        if after_s >= _ALMOST_ALL * LOOK_UP_S:
            self._went_away()
        elif after_s >= LOOK_UP_S / 2 and self._doubt is None:
            rest = self._ask_within(LOOK_UP_S - after_s)
            self._doubt = asyncio.get_running_loop().create_task(rest, name="record-doubt")

    async def _ask_within(self, seconds: float) -> None:
        async def asked() -> None:
            await self._ask()

        try:
            await self._hard_timeout.run(asked(), seconds)
        except TimeoutError:
            self._went_away()
        except StoreError:
            pass  # An error is an answer too.
        finally:
            self._doubt = None

    def _went_away(self) -> None:
        if self._prober is None:
            _log.error("the record does not answer: nothing is looked up in it until it does")
            self._prober = asyncio.get_running_loop().create_task(self._probe(), name="record-probe")

    async def _probe(self) -> None:
        """Probe until an answer comes in time. Only one probe runs at a time, however long it takes."""
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
