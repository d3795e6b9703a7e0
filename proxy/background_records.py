"""Records of background responses: which process runs each one, and which may run it again.

Times are seconds since the epoch (UTC).  This module does not depend on a database.

A response is run by one process at a time.  Each time when a process begins to run it is an *attempt*, and
attempts are numbered from 1.  What one attempt writes is never mixed with what another one writes.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol

from proxy.transitions import Transitions
from proxy.values import value_class

__all__ = [
    "BACKGROUND_TRANSITIONS",
    "BackgroundEvent",
    "BackgroundLog",
    "BackgroundRecord",
    "BackgroundState",
    "Lease",
    "StartedEffect",
]


class BackgroundState(StrEnum):
    """``running``: a process runs the response, or did when it died.  ``released``: its process has given
    it up before its end, and any process may run it.  ``ended``: no process runs it any more."""

    RUNNING = "running"
    RELEASED = "released"
    ENDED = "ended"


class BackgroundEvent(StrEnum):
    """The events of a background response on record."""

    CLAIM = "claim"
    RELEASE = "release"
    END = "end"


BACKGROUND_TRANSITIONS: Final[Transitions[BackgroundState, BackgroundEvent]] = Transitions(
    {
        # Only if the process that has it is dead.
        (BackgroundState.RUNNING, BackgroundEvent.CLAIM): BackgroundState.RUNNING,
        (BackgroundState.RELEASED, BackgroundEvent.CLAIM): BackgroundState.RUNNING,
        (BackgroundState.RUNNING, BackgroundEvent.RELEASE): BackgroundState.RELEASED,
        (BackgroundState.RUNNING, BackgroundEvent.END): BackgroundState.ENDED,
        (BackgroundState.RELEASED, BackgroundEvent.END): BackgroundState.ENDED,
    }
)
"""``ended`` is final.  A claim and a release also need that no call with an effect has started."""


@value_class
class Lease:
    """The right to run a response: that of one attempt.  The next attempt's claim ends it."""

    response_id: str
    attempt: int


@value_class
class BackgroundRecord:
    """A background response on record.

    ``run_id`` is the run of its last attempt.  ``deaths`` counts the attempts that ended with their
    process.  ``cancelled`` says that its client has asked for its end.  ``asked_at`` is when it was created,
    ``changed_at`` when its last attempt began, or when it was released or ended.  ``orphaned_at`` is when
    its process was found dead; ``None`` while that lives.
    """

    id: str
    caller: str
    run_id: str
    asked_at: float
    attempt: int = 1
    deaths: int = 0
    state: BackgroundState = BackgroundState.RUNNING
    cancelled: bool = False
    changed_at: float = 0.0
    orphaned_at: float | None = None

    @property
    def lease(self) -> Lease:
        """The right to run its last attempt."""
        return Lease(self.id, self.attempt)

    @property
    def is_orphan(self) -> bool:
        """Whether no process runs it, though it has not ended."""
        if self.state is BackgroundState.RUNNING:
            return self.orphaned_at is not None
        return self.state is BackgroundState.RELEASED


@value_class
class StartedEffect:
    """A call with an effect that has started.  ``is_known`` says that its outcome is on record."""

    tool: str
    is_known: bool


class BackgroundLog(Protocol):
    """Background responses, shared by all processes that have the record open.

    Every change is committed on return, and of several processes that make one at the same moment one does.
    """

    async def put_background(self, record: BackgroundRecord, request: bytes) -> None:
        """Put a new response on record as this process's; ``request`` is what it is run again from.

        Raises :class:`~proxy.errors.StoreUnavailable`.
        """
        ...

    async def find_background(self, response_id: str, caller: str) -> BackgroundRecord | None:
        """The caller's own response of that id; raises :class:`~proxy.errors.StoreError`."""
        ...

    async def orphaned_background(self) -> Sequence[BackgroundRecord]:
        """Responses that no process runs, the oldest first; at most a hundred.  Raises StoreError."""
        ...

    async def background_request(self, response_id: str) -> bytes | None:
        """What was put as ``request``; ``None`` once the response has ended.  Raises StoreError."""
        ...

    async def started_effects(self, run_id: str) -> Sequence[StartedEffect]:
        """The calls with effects that have started in a run and in its agents' runs, in their order; at most
        a hundred.  Raises StoreError."""
        ...

    async def claim_background(self, lease: Lease, run_id: str) -> bool:
        """Begin the next attempt as this process, under a new ``run_id``; whether it was begun.

        It is not if the response is no orphan, has had another attempt since, is cancelled, or has started
        an effect.  Raises :class:`~proxy.errors.StoreError` if nobody can say.
        """
        ...

    async def release_background(self, lease: Lease) -> bool:
        """Give a response up, so that any process may run it; whether it was given up.

        It is not if it has started an effect, has ended, or has had another attempt.  Raises
        :class:`~proxy.errors.StoreError` if nobody can say.
        """
        ...

    async def end_background(self, lease: Lease) -> bool:
        """End a response as this process, and delete its request; whether it has ended by this call, or by
        an earlier one of this process.

        It has not if another process runs it or has ended it, or has begun another attempt.  Raises
        :class:`~proxy.errors.StoreError` if nobody can say.
        """
        ...

    async def cancel_background(self, response_id: str, caller: str) -> None:
        """Note that the caller wants the end of a response.  Raises StoreUnavailable."""
        ...
