"""Read and cancel background responses, whichever process runs them.

A client never gets a mixture of two attempts. A client that has seen nothing of an answer continues with the
next attempt. A client that has seen part of an earlier attempt gets an error that asks it to start over.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import orjson
from msgspec.structs import replace

from proxy.api.detached.background import PREFIX, BackgroundRun, BackgroundRuns
from proxy.api.detached.background_stream import ENDED, LEADING
from proxy.api.detached.kept_attempts import KeptAttempts, KeptState, attempt_of, first_number
from proxy.api.detached.messages import DIED, RESTARTED, after_effects
from proxy.base.errors import RequestError
from proxy.records.background import BackgroundRecord, BackgroundState, Lease
from proxy.records.rows import ResponseRecord
from proxy.store.base import Store
from proxy.wires.responses.dialect import error_event

_POLL_S: Final = 0.2
_SILENT_S: Final = 5.0
"""Seconds in which any process stores the end of a response."""
_CANCELLED_S: Final = 3.0
"""Seconds that a cancellation waits for the process that runs the response."""
_LEADING: Final = tuple(f"event: {kind}\n".encode() for kind in LEADING)


class BackgroundReader:
    """Reads the background responses of all processes. One per process."""

    def __init__(self, runs: BackgroundRuns, store: Store, settle: Callable[[], Awaitable[None]]) -> None:
        """Create the reader. ``settle`` ends or takes over the responses that no process runs."""
        self._runs = runs
        self._store = store
        self._kept = KeptAttempts(store)
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
        state = await self._kept.state(record.lease, record.caller)
        if state is None:
            if record.state is BackgroundState.ENDED or record.attempt == 1:
                return None
            # A process has claimed it, and stored nothing else yet.
            before = await self._kept.state(Lease(record.id, record.attempt - 1), record.caller)
            if before is None:
                return None
            return KeptState(before.resource | {"status": "queued", "output": []}, record.run_id)
        silent = self._store.now() - record.changed_at > _SILENT_S
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
            await asyncio.sleep(_POLL_S)
            state = await self._state(response_id, caller)
        return None if state is None else state.resource

    async def check_streamable(self, response_id: str, caller: str, after: int) -> None:
        """Raise :class:`RequestError` (400) if the events after a number cannot be streamed.

        Either there were too many to keep, or the client has events of an earlier attempt.
        """
        state = await self._state(response_id, caller)
        if state is None or state.full:
            raise RequestError(
                400,
                "The response is too long to be streamed again. Retrieve it without stream.",
                param="stream",
            )
        record = await self._store.find_background(response_id, caller)
        if record is not None and not await self._can_continue(record, after):
            raise _restarted()

    async def _can_continue(self, record: BackgroundRecord, seen: int) -> bool:
        """Return whether a client that has seen the events up to ``seen`` can continue with the last
        attempt."""
        if seen < 0 or attempt_of(seen) >= record.attempt:
            return True
        earlier = await self._kept.state(Lease(record.id, attempt_of(seen)), record.caller)
        return earlier is not None and seen < first_number(attempt_of(seen)) + earlier.leading

    async def events(self, response_id: str, caller: str, after: int) -> AsyncIterator[bytes]:
        """Yield the events of a response with numbers above ``after``, until it ends.

        Yields empty bytes after ``keepalive_s`` seconds without an event. If another attempt begins after a
        part of the answer was sent, those events are void; the stream then ends with an error event that says
        so.
        """
        seen = after
        if (run := self._runs.local_run(response_id, caller)) is not None:
            async for number, event in self._events_here(run, after):
                seen = max(seen, number)
                yield event
            if run.is_here:
                return
        async for event in self._events_on_record(response_id, caller, seen):
            yield event

    async def _events_here(self, run: BackgroundRun, after: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the events of a run of this process with their numbers; a keep-alive has the number -1."""
        log, place, silence_s = run.stream.log, 0, self._runs.settings.keepalive_s
        after, leads = _start_after(after, run.lease.attempt)
        while True:
            for number, event in log.since(place):
                place += 1
                leads = leads and event.startswith(_LEADING)
                if number > after and not leads:
                    yield number, event
            if log.ended or log.full:
                return
            await log.wait(place, silence_s)
            if len(log.events) <= place and not log.ended:
                yield -1, b""

    async def _events_on_record(self, response_id: str, caller: str, seen: int) -> AsyncIterator[bytes]:
        """Yield the events of a response as they appear on record, whichever process runs it."""
        attempt, piece, leads, told = 0, 0, False, time.monotonic()
        while (record := await self._store.find_background(response_id, caller)) is not None:
            if record.attempt != attempt:
                if not await self._can_continue(record, seen):
                    said = _restarted()
                    yield error_event(said.message, type=said.type, code=said.code, sequence_number=seen + 1)
                    return
                attempt, piece = record.attempt, 0
                seen, leads = _start_after(seen, attempt)
            state = await self._state_of(record)
            while state is not None and piece < state.pieces:
                found = await self._kept.events(record.lease, caller, piece)
                if found is None:
                    break
                piece += 1
                told = time.monotonic()
                for number, event in found:
                    leads = leads and event.startswith(_LEADING)
                    if number > seen and not leads:
                        seen = number
                        yield event
            if state is None or state.full or state.resource["status"] in ENDED:
                return
            if time.monotonic() - told >= self._runs.settings.keepalive_s:
                told = time.monotonic()
                yield b""
            await asyncio.sleep(_POLL_S)


def _answer(kept: ResponseRecord, resource: dict[str, Any]) -> dict[str, Any]:
    """Return the whole response, with the time of creation that its client knows from ``resource``."""
    answer: dict[str, Any] = orjson.loads(kept.response)
    return answer | {"created_at": resource["created_at"]}


def _restarted() -> RequestError:
    """Return the error for a client whose events are void."""
    return RequestError(400, RESTARTED, param="starting_after", code="response_restarted")


def _start_after(seen: int, attempt: int) -> tuple[int, bool]:
    """Return the number after which a client's events begin, and whether to skip the leading events.

    The client skips them if it has seen those of an earlier attempt; they contain nothing of the answer.
    """
    leads = seen >= 0 and attempt_of(seen) < attempt
    return (first_number(attempt) - 1 if leads else seen), leads
