"""Records of background responses: which process runs each one, and which may run it again.

Times are seconds since the epoch (UTC). This module does not depend on a database.

One process at a time runs a response. Each time a process begins to run it is an *attempt*; attempts are
numbered from 1. The output of one attempt is never mixed with that of another.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct


class BackgroundState(StrEnum):
    """The state of a background response.

    ``running``: a process runs it, or did so when the process died. ``released``: its process gave it up
    before its end, and any process may run it. ``ended``: no process runs it any more. This state
    is final. A claim or a release is possible only if no other calls with effects have started than those
    that it knows of.
    """

    RUNNING = "running"
    RELEASED = "released"
    ENDED = "ended"


class Lease(Struct, frozen=True):
    """The right of one attempt to run a response. The claim of the next attempt ends it."""

    response_id: str
    attempt: int


class BackgroundRecord(Struct, frozen=True):
    """A background response on record.

    ``run_id`` is the run of its last attempt. ``deaths`` counts the attempts whose process died.
    ``cancelled`` says that the client asked to end it. ``asked_at`` is when it was created. ``changed_at``
    is when its last attempt began, or when it was released or ended. ``orphaned_at`` is when its process
    was found dead; ``None`` while the process lives.
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


class StartedEffect(Struct, frozen=True):
    """A call with an effect that has started, in a turn of a run. ``is_known`` says whether its outcome is on
    record."""

    tool: str
    is_known: bool
    id: str = ""
    run_id: str = ""
    turn: int = 0


class BackgroundLog(Protocol):
    """Background responses, shared by all processes that have the record open.

    Every change is committed on return. If several processes try the same change at once, only one
    succeeds.
    """

    async def put_background(self, record: BackgroundRecord, request: bytes) -> None:
        """Put a new response on record as run by this process; ``request`` is the request to run it again
        from.

        Raise :class:`~proxy.base.errors.StoreUnavailable` if it could not be committed.
        """

    async def find_background(self, response_id: str, caller: str) -> BackgroundRecord | None:
        """Return the response of that id if it is the caller's; raise :class:`StoreError`."""

    async def orphaned_background(self) -> Sequence[BackgroundRecord]:
        """Return the responses that no process runs, oldest first, at most a hundred. Raise StoreError."""

    async def background_request(self, response_id: str) -> bytes | None:
        """Return the stored ``request``; ``None`` once the response has ended. Raise StoreError."""

    async def started_effects(self, run_id: str) -> Sequence[StartedEffect]:
        """Return the calls with effects that have started in a run and in its agents' runs, in order.

        At most a hundred are returned. Raise StoreError if the record cannot be read.
        """

    async def claim_background(self, lease: Lease, run_id: str, effects: int = 0) -> bool:
        """Begin the next attempt in this process, under a new ``run_id``; return whether it began.

        It does not begin if the response is no orphan, has had another attempt since, is cancelled, or has
        started another number of effects than ``effects``. Raise
        :class:`~proxy.base.errors.StoreError` if the outcome is unknown.
        """

    async def release_background(self, lease: Lease, effects: int = 0) -> bool:
        """Give a response up, so that any process may run it; return whether it was given up.

        It is not given up if it has started another number of effects than ``effects``, has ended, or has had
        another attempt. Raise :class:`~proxy.base.errors.StoreError` if the outcome is unknown.
        """

    async def end_background(self, lease: Lease) -> bool:
        """End a response in this process, and delete its request.

        Return whether this call, or an earlier one of this process, ended it. The result is ``False`` if
        another process runs it, has ended it, or has begun another attempt. Raise
        :class:`~proxy.base.errors.StoreError` if the outcome is unknown.
        """

    async def cancel_background(self, response_id: str, caller: str) -> None:
        """Record that the caller wants to end a response. Raise StoreUnavailable."""
