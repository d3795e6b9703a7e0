"""Read and cancel background responses, whichever process runs them.

A client never gets a mixture of two attempts. The next attempt has the same events up to its last complete
step, so a client that has seen no more than these goes on after them. So does a client that has seen nothing
of an answer. Any other client gets an error that asks it to start over.
A client whose events cannot be read any more gets the whole response in the last event.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import orjson
from msgspec.structs import replace

from proxy.api.detached.background import PREFIX, BackgroundRuns
from proxy.api.detached.background_stream import ENDED, LEADING
from proxy.api.detached.kept_states import (
    LAST_NUMBER,
    KeptState,
    KeptStates,
    attempt_of,
    first_number,
    log_name,
)
from proxy.api.detached.logs.event_log import EventLogs, LogGone
from proxy.api.detached.messages import DIED, RESTARTED, after_effects
from proxy.base.errors import RequestError
from proxy.records.background import BackgroundRecord, BackgroundState, Lease
from proxy.records.rows import ResponseRecord
from proxy.store.base import Store
from proxy.wires.responses.dialect import error_event
from proxy.wires.stream.sse import encode_event

_LOOK_AGAIN_S: Final = 0.5
"""Seconds between two looks at the record, if no log says how a response goes on."""
_LOOKS: Final = 10
"""The most looks for the first state of an attempt."""
_SILENT_S: Final = 2.0
"""Seconds without an event after which the record is asked whether another process runs the response."""
_UNSEEN_S: Final = 5.0
"""Seconds in which any process stores the end of a response."""
_CANCELLED_S: Final = 3.0
"""Seconds that a cancellation waits for the process that runs the response."""
_LEADING: Final = tuple(f"event: {kind}\n".encode() for kind in LEADING)


class BackgroundReader:
    """Reads the background responses of all processes. One per process."""

    def __init__(
        self, runs: BackgroundRuns, store: Store, logs: EventLogs, settle: Callable[[], Awaitable[None]]
    ) -> None:
        """Create the reader. ``settle`` ends or takes over the responses that no process runs."""
        self._runs = runs
        self._store = store
        self._logs = logs
        self._kept = KeptStates(store)
        self._settle = settle

    async def resource(self, response_id: str, caller: str) -> dict[str, Any] | None:
        """Return a background response of the caller as JSON values, or ``None`` if the record has none with
        this id.

        Raises :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """
        if not response_id.startswith(PREFIX):
            return None
        state = await self._state(response_id, caller)
        if state is None:
            return None
        resource = state.resource
        if resource["status"] in ("failed", "cancelled"):
            return resource
        kept = await self._store.find_response(response_id, caller)
        if resource["status"] in ENDED:
            # The client may have deleted it meanwhile.
            return None if kept is None else resource
        # The answer is on record before its client has the end, and the last state is later.
        return resource if kept is None else _answer(kept, resource)

    async def _state(self, response_id: str, caller: str) -> KeptState | None:
        if (run := self._runs.local_run(response_id, caller)) is not None:
            return self._runs.state(run)
        record = await self._store.find_background(response_id, caller)
        return None if record is None else await self._state_of(record)

    async def _state_of(self, record: BackgroundRecord) -> KeptState | None:
        """Return the progress of the last attempt of a response."""
        state = await self._kept.find(record.lease, record.caller)
        if state is None:
            if record.state is BackgroundState.ENDED or record.attempt == 1:
                return None
            # A process has claimed it, and stored nothing else yet.
            before = await self._kept.find(Lease(record.id, record.attempt - 1), record.caller)
            if before is None:
                return None
            return KeptState(before.resource | {"status": "queued", "output": []}, record.run_id)
        silent = self._store.now() - record.changed_at > _UNSEEN_S
        if record.state is BackgroundState.ENDED and state.resource["status"] not in ENDED and silent:
            return replace(state, resource=await self._ended_unseen(record, state.resource))
        return state

    async def _ended_unseen(self, record: BackgroundRecord, resource: dict[str, Any]) -> dict[str, Any]:
        """Return the resource of a response whose process died while it stored the end."""
        found = await self._store.find_response(record.id, record.caller)
        if found is not None:
            return _answer(found, resource)
        effects = await self._store.started_effects(record.run_id)
        return resource | {"status": "failed", "error": after_effects(DIED, effects)}

    async def cancel(self, response_id: str, caller: str) -> dict[str, Any] | None:
        """Cancel a response, whichever process runs it, and return its resource, or ``None`` if it does not
        exist.

        Raises :class:`~proxy.base.errors.StoreError` if the record cannot be read or written.
        """
        if not response_id.startswith(PREFIX):
            return None
        if (run := self._runs.local_run(response_id, caller)) is not None:
            run.cancelled = True
            if run.task is not None:
                await asyncio.wait({run.task}, timeout=_CANCELLED_S)
            return run.stream.resource
        state = await self._state(response_id, caller)
        if state is None or state.resource["status"] in ENDED:
            return None if state is None else state.resource
        # The process that runs it polls for this mark. If no process runs it, it is ended here.
        await self._store.cancel_background(response_id, caller)
        await self._settle()
        until = time.monotonic() + _CANCELLED_S
        while time.monotonic() < until and state is not None and state.resource["status"] not in ENDED:
            await asyncio.sleep(_LOOK_AGAIN_S)
            state = await self._state(response_id, caller)
        return None if state is None else state.resource

    async def can_stream(self, response_id: str, caller: str, after: int) -> bool:
        """Return whether the events of a response can be streamed; else it has ended, and its answer is on
        record.

        Raises :class:`RequestError` (400) if the client has events of an earlier attempt.
        """
        record = await self._store.find_background(response_id, caller)
        if record is None:
            return False
        if await self._goes_on_after(record.lease, caller, after) is None:
            raise _restarted()
        if after >= 0 or record.state is not BackgroundState.ENDED:
            return True
        try:
            async with self._logs.reader(log_name(record.lease, caller)) as reader:
                await reader.next(0.0)
        except LogGone:
            return await self._store.find_response(response_id, caller) is None
        return True

    async def _goes_on_after(self, lease: Lease, caller: str, seen: int) -> int | None:
        """Return the number after which a client that has seen the events up to ``seen`` goes on with an
        attempt.

        It is ``seen`` if the attempt has the same events, and before its first event if the client has seen
        nothing of an answer. Otherwise its events are void: ``None``.
        """
        number = attempt_of(seen)
        if seen < 0 or number >= lease.attempt:
            return seen
        state = await self._begun_state(lease, caller)
        if state is not None and seen <= state.kept.get(number, -1):
            return seen
        earlier = await self._kept.find(Lease(lease.response_id, number), caller)
        if earlier is not None and seen < first_number(number) + earlier.leading:
            return first_number(lease.attempt) - 1
        return None

    async def _begun_state(self, lease: Lease, caller: str) -> KeptState | None:
        """Return the progress of an attempt that another process may just have claimed."""
        if (run := self._runs.local_run(lease.response_id, caller)) is not None and run.lease == lease:
            return self._runs.state(run)
        for _ in range(_LOOKS):
            if (state := await self._kept.find(lease, caller)) is not None:
                return state
            await asyncio.sleep(_LOOK_AGAIN_S)
        return None

    async def events(self, response_id: str, caller: str, after: int) -> AsyncIterator[bytes]:
        """Yield the events of a response with numbers above ``after``, until it ends.

        Yields empty bytes after ``keepalive_s`` seconds without an event. If another attempt begins after a
        part of the answer was sent, those events are void; the stream then ends with an error event that says
        so.
        """
        follower = _Follower(after, self._runs.settings.keepalive_s)
        while (lease := await self._lease(response_id, caller)) is not None:
            goes_on_after = await self._goes_on_after(lease, caller, follower.seen)
            if goes_on_after is None and follower.only_leads:
                goes_on_after = first_number(lease.attempt) - 1
            if goes_on_after is None:
                said = _restarted()
                number = follower.seen + 1
                yield error_event(said.message, type=said.type, code=said.code, sequence_number=number)
                return
            follower.begin(goes_on_after)
            async for event in self._of_attempt(lease, caller, follower):
                yield event
            if follower.ended:
                return
            if await self._lease(response_id, caller) != lease:
                continue
            # The log was broken off, or cannot be read: the record says how the response goes on.
            resource = await self.resource(response_id, caller)
            if resource is None:
                return
            if resource["status"] in ENDED:
                if resource["status"] != "cancelled":
                    yield _last_event(resource, first_number(lease.attempt) + LAST_NUMBER)
                return
            await asyncio.sleep(_LOOK_AGAIN_S)
            if follower.is_silent():
                yield b""

    async def _lease(self, response_id: str, caller: str) -> Lease | None:
        """Return the lease of the last attempt of a response."""
        if (run := self._runs.local_run(response_id, caller)) is not None:
            return run.lease
        record = await self._store.find_background(response_id, caller)
        return None if record is None else record.lease

    async def _of_attempt(self, lease: Lease, caller: str, follower: "_Follower") -> AsyncIterator[bytes]:
        """Yield the new events of an attempt until its log ends, or another attempt has begun."""
        looked = time.monotonic()
        async with self._logs.reader(log_name(lease, caller)) as reader:
            while reader.end is None:
                try:
                    events = await reader.next(min(_SILENT_S, follower.keepalive_s))
                except LogGone:
                    return
                for number, event in events:
                    if follower.takes(number, event):
                        yield event
                if events:
                    looked = time.monotonic()
                elif reader.end is None:
                    if follower.is_silent():
                        yield b""
                    if time.monotonic() - looked >= _SILENT_S:
                        looked = time.monotonic()
                        record = await self._store.find_background(lease.response_id, caller)
                        if record is None or record.lease != lease or record.state is BackgroundState.ENDED:
                            return
            follower.ended = reader.end


class _Follower:
    """What a client of a stream has seen: the events up to the number ``seen``.

    ``only_leads`` says that this stream has sent all of them, and that they contain nothing of the answer.
    """

    def __init__(self, seen: int, keepalive_s: float) -> None:
        self.seen = seen
        self.only_leads = seen < 0
        self.keepalive_s = keepalive_s
        self.ended = False
        self._leads = False
        self._told = time.monotonic()

    def begin(self, after: int) -> None:
        """Go on after an event. A client that has seen leading events of another attempt does not get them
        again; they contain nothing of the answer."""
        if after != self.seen:
            self.seen, self._leads = after, True

    def takes(self, number: int, event: bytes) -> bool:
        """Return whether the client gets an event of the attempt."""
        leads = event.startswith(_LEADING)
        self._leads = self._leads and leads
        if number <= self.seen or self._leads:
            return False
        self.seen, self._told = number, time.monotonic()
        self.only_leads = self.only_leads and leads
        return True

    def is_silent(self) -> bool:
        """Return whether the client should get a comment, because it got nothing for a while."""
        if time.monotonic() - self._told < self.keepalive_s:
            return False
        self._told = time.monotonic()
        return True


def _last_event(resource: dict[str, Any], number: int) -> bytes:
    """Return the last event of a response that has ended."""
    kind = f"response.{resource['status']}"
    event = {"type": kind, "sequence_number": number, "response": resource}
    return encode_event(orjson.dumps(event), kind.encode())


def _answer(kept: ResponseRecord, resource: dict[str, Any]) -> dict[str, Any]:
    """Return the whole response, with the time of creation that its client knows from ``resource``."""
    answer: dict[str, Any] = orjson.loads(kept.response)
    return answer | {"created_at": resource["created_at"]}


def _restarted() -> RequestError:
    """Return the error for a client whose events are void."""
    return RequestError(400, RESTARTED, param="starting_after", code="response_restarted")
