"""Wait for the record: before a client continues from an answer, and while it cannot keep up.

The client's next request may come within a millisecond and reach another process. The data for it must be
committed by then, so the last bytes of the answer wait. For most answers they wait at most a second,
because the answer is useful without that data. A turn that waits for the client's results is useless
without its hidden part, even after a crash of this process. If its commit fails, the client gets an error.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Literal, TypeVar

import structlog

from proxy.base.errors import NotOnRecord, StoreError
from proxy.store.base import Store

T = TypeVar("T")

END_WAIT_S: Final = 1.0
"""The longest that the end of an answer waits for the data of the next request, in seconds."""

SUSPEND_WAIT_S: Final = 30.0
"""The longest that a turn which waits for its client waits for its commit, in seconds."""

ROOM_WAIT_S: Final = 10.0
"""The longest that a step of a run waits while the record cannot keep up, in seconds."""

_AGAIN_S: Final = 0.25
_PAUSES_S: Final[Sequence[float]] = (0.05, 0.1, 0.2, 0.3, 0.35)
"""The pauses between the look-ups of what another process may be writing: one second in all."""

Late = Literal["suspended", "answer", "owner"]
"""What the record did not have in time.

``suspended``: a turn that waits for its client. ``answer``: the data of an answer for the next request.
``owner``: the owner of a response.
"""

OnLate = Callable[[Late], None]
"""Called each time the record did not have something in time."""


def ignore_late(what: Late) -> None:
    """Ignore the event: the default when nothing counts it."""


class CommitWaiter:
    """Waits for commits. With ``shared``, another process may get the request that continues an answer."""

    def __init__(self, store: Store, *, shared: bool = False, late: OnLate = ignore_late) -> None:
        self.shared = shared
        self._store = store
        self._late = late
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.relay")

    @property
    def crowded(self) -> bool:
        """Whether the record cannot keep up, so that a run should wait before its next step."""
        return self._store.crowded

    async def wait_for_room(self) -> None:
        """Wait until the record has room for what a step of a run adds, at most :data:`ROOM_WAIT_S`.

        A record that fails or stands still stops no run.
        """
        await self._store.wait_for_room(ROOM_WAIT_S)

    async def wait_before_end(self, what: Late = "answer") -> None:
        """Wait until everything noted so far can be found by other processes, at most :data:`END_WAIT_S`.

        If it is late, this is logged and counted, and the answer is sent all the same.
        """
        if self.shared and not await self._store.wait_until_visible(END_WAIT_S):
            self._tell(what, f"not committed within {END_WAIT_S:g} s")

    async def wait_before_suspend(self, hold: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Hold a turn for its client: call ``hold``, and wait for the commit of what it queued, if anything.

        Raise :class:`NotOnRecord` if the commit does not come within :data:`SUSPEND_WAIT_S`,
        or certainly never will.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + SUSPEND_WAIT_S
        lost = self._store.lost_needed
        reason = "not committed in time"
        queued: bool | None = None
        while True:
            try:
                if queued is None:
                    queued = await hold()
                if not queued:
                    return
                # Lost writes are only in the memory of this process, and nothing waits for their commit.
                in_time = self._store.lost_needed == lost and await self._store.wait_until_visible(
                    until - loop.time()
                )
                if in_time and self._store.lost_needed == lost:
                    return
            except StoreError as error:
                reason = str(error)
            if self._store.lost_needed != lost:
                reason = "the record loses writes"
                break
            if loop.time() + _AGAIN_S >= until:
                break
            await asyncio.sleep(_AGAIN_S)
        self._tell("suspended", reason)
        raise NotOnRecord()

    async def look_again(self, look: Callable[[], Awaitable[T | None]]) -> T | None:
        """Return what ``look`` finds. If another process may be about to write it, look a few more
        times."""
        found = await look()
        for pause_s in _PAUSES_S if self.shared else ():
            if found is not None:
                break
            await asyncio.sleep(pause_s)
            found = await look()
        return found

    def _tell(self, what: Late, reason: str) -> None:
        self._log.error("record_late", what=what, reason=reason)
        self._late(what)
