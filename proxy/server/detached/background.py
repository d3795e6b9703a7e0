"""Background responses: runs without a client, which any process can read and cancel.

The process that runs a response keeps the resource and its events in the record, as far as they have come.
All other processes read them there.  If a process dies, the record marks its runs as interrupted; a process
that is asked for such a response answers that it failed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

import orjson
import structlog

from proxy.errors import RequestError, StoreError
from proxy.records import KeptResult
from proxy.relay.ask import Ask, Detached
from proxy.relay.body import Body
from proxy.relay.runs import Runs
from proxy.server.detached.background_stream import ENDED, BackgroundStream
from proxy.server.detached.event_log import EventLog
from proxy.store.base import Store
from proxy.wires.json.splice import join_object, members

__all__ = ["PREFIX", "BackgroundRun", "BackgroundRuns", "BackgroundSettings"]

Apart = Callable[[str, str], AbstractContextManager[None]]
"""Makes the context to serve a run in that has no open request; takes the ids of the run and the model."""

PREFIX: Final = "resp_toolrelay_bg"
"""The prefix of the ids of background responses."""

_KEEP_EVERY_S: Final = 0.25
_POLL_S: Final = 0.2
_SILENT_S: Final = 5.0
"""Seconds in which any process puts the row of a new run, or the end of one, on record."""
_GIVE_UP_S: Final = 5.0
"""Seconds that a run may take to end after its time is over."""
_CANCELLED_S: Final = 3.0
"""Seconds that a cancellation waits for the process with the run."""

_DIED: Final = {
    "code": "server_error",
    "message": "The server process that ran this response ended before the response was finished.",
}
_TOO_LONG: Final = {
    "code": "server_error",
    "message": "The response took longer than this server allows (tools.background_s).",
}
_STOPPED: Final = {
    "code": "server_error",
    "message": "The server was stopped before the response was finished.",
}


@dataclass(frozen=True, slots=True)
class BackgroundSettings:
    """Limits of background responses.

    One process runs at most ``total`` at a time, ``per_caller`` of them for one caller, each for ``time_s``
    seconds.  A client that follows one gets a comment after ``keepalive_s`` seconds without an event.
    ``keeps`` says whether the record keeps content; without it no response could be read later.
    """

    per_caller: int = 8
    total: int = 64
    time_s: float = 3600.0
    keepalive_s: float = 10.0
    keeps: bool = True


@dataclass(eq=False, slots=True)
class BackgroundRun:
    """A background response that runs in this process."""

    id: str
    run_id: str
    caller: str
    stream: BackgroundStream
    task: asyncio.Task[None] | None = None
    dirty: bool = True
    kept: int = 0
    pieces: int = 0
    cancelled: bool = False


class BackgroundRuns:
    """Runs the background responses of this process, and reads those of all processes.  One per process."""

    def __init__(self, runs: Runs, store: Store, settings: BackgroundSettings, apart: Apart) -> None:
        self._planner = runs.planner
        self._orchestrator = runs.orchestrator
        self._store = store
        self._settings = settings
        self._apart = apart
        self._open: dict[tuple[str, str], BackgroundRun] = {}
        self._starting: list[str] = []

    def takes(self, ask: Ask) -> bool:
        """Whether the proxy runs a request: it offers server tools, or the upstream has another dialect."""
        return self._planner.takes_part(self._foreground(ask))

    async def start(self, ask: Ask) -> BackgroundRun:
        """Start a response.

        Raises :class:`~proxy.errors.RequestError`: 400 if it cannot run in the background, 429 over
        a limit.
        """
        caller = ask.identity.caller
        self._check(ask, caller)
        response_id = f"{PREFIX}{uuid4().hex}"
        options = replace(ask.options, detached=Detached(response_id, self._settings.time_s))
        ask = replace(self._foreground(ask), options=options)
        self._starting.append(caller)  # Planning waits for the record; others may start meanwhile.
        try:
            job = await self._planner.job(self._planner.begin(ask))
        finally:
            self._starting.remove(caller)
        run: BackgroundRun

        def changed() -> None:
            run.dirty = True

        resource = _queued(response_id, ask)
        run = BackgroundRun(
            response_id, ask.identity.run_id, caller, BackgroundStream(resource, EventLog(), changed)
        )
        self._open[response_id, caller] = run
        self._keep(run)

        async def serve() -> None:
            with self._apart(run.run_id, job.client.request.model):
                bound = structlog.contextvars.bind_contextvars(run_id=run.run_id)
                try:
                    async with asyncio.timeout(self._settings.time_s + _GIVE_UP_S):
                        await self._orchestrator.run(job, run.stream)
                finally:
                    structlog.contextvars.reset_contextvars(**bound)

        run.task = asyncio.get_running_loop().create_task(self._attend(run, serve))
        return run

    def _check(self, ask: Ask, caller: str) -> None:
        payload = ask.body.payload
        if payload.get("store") is False:
            raise RequestError(
                400,
                "A background response must be stored. Leave store out, or set it to true.",
                param="store",
            )
        if not self._settings.keeps:
            raise RequestError(
                400,
                "This server stores no responses, so it cannot run them in the background (store.content is "
                "none). Leave background out.",
                param="background",
            )
        callers = [*(one for _, one in self._open), *self._starting]
        own = callers.count(caller)
        if own >= self._settings.per_caller or len(callers) >= self._settings.total:
            setting = "background" if own >= self._settings.per_caller else "background_total"
            raise RequestError(
                429,
                f"Too many background responses are running (limits.{setting}). Wait until one has ended, or "
                "cancel one.",
                type="rate_limit_error",
                code="rate_limit_exceeded",
                headers={"Retry-After": "5"},
            )

    @staticmethod
    def _foreground(ask: Ask) -> Ask:
        """The request as upstreams get it: an ordinary one that streams."""
        parts = {key: value for key, value in members(ask.body.raw).items() if key != "background"}
        payload = {key: value for key, value in ask.body.payload.items() if key != "background"}
        return replace(ask, body=Body(join_object({**parts, "stream": b"true"}), {**payload, "stream": True}))

    async def _attend(self, run: BackgroundRun, serve: Callable[[], Any]) -> None:
        """Put the output of a run on record as it comes, and end the run if it is cancelled."""
        serving = asyncio.get_running_loop().create_task(serve())
        asked = time.monotonic()
        try:
            while not serving.done():
                await asyncio.wait({serving}, timeout=_KEEP_EVERY_S)
                self._keep(run)
                if not serving.done() and time.monotonic() - asked >= 2 * _KEEP_EVERY_S:
                    asked = time.monotonic()
                    if await self._is_cancelled(run):
                        run.cancelled = True
                if run.cancelled and not serving.done():
                    serving.cancel()
        except asyncio.CancelledError:
            # The server stops.
            run.stream.fail(_STOPPED)
            raise
        finally:
            if not serving.done():
                serving.cancel()
                await asyncio.wait({serving})
            self._ended(run, serving)

    def _ended(self, run: BackgroundRun, serving: "asyncio.Task[None]") -> None:
        error = None if serving.cancelled() else serving.exception()
        if run.cancelled:
            run.stream.cancel()
        elif isinstance(error, TimeoutError):
            run.stream.fail(_TOO_LONG)
        elif error is not None:
            log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.server")
            log.error("background_run_failed", run_id=run.run_id, exception=type(error).__name__)
        run.stream.finish()
        run.dirty = True
        self._keep(run)
        self._open.pop((run.id, run.caller), None)

    async def _is_cancelled(self, run: BackgroundRun) -> bool:
        try:
            return await self._store.find_result(f"{run.id}:cancel", run.caller) is not None
        except StoreError:
            return False

    def _keep(self, run: BackgroundRun) -> None:
        """Put what is new in a response on record."""
        if not run.dirty:
            return
        run.dirty = False
        log = run.stream.log
        if fresh := log.since(run.kept):
            run.kept += len(fresh)
            events = [[number, event.decode("utf-8", "replace")] for number, event in fresh]
            self._put(run, str(run.pieces), events)
            run.pieces += 1
        state = {"resource": run.stream.resource, "run": run.run_id, "pieces": run.pieces, "full": log.full}
        self._put(run, "state", state)

    def _put(self, run: BackgroundRun, name: str, value: Any) -> None:
        text = orjson.dumps(value).decode()
        self._store.put_result(
            KeptResult(
                f"{run.id}:{name}", run.run_id, run.caller, text, untrusted=False, created_at=time.time()
            )
        )

    # For the responses of all processes.

    async def resource(self, response_id: str, caller: str) -> dict[str, Any] | None:
        """A background response of the caller as JSON values; ``None`` if the record has none with this id.

        Raises :class:`~proxy.errors.StoreError` if the record cannot be read.
        """
        if not response_id.startswith(PREFIX):
            return None
        state = await self._state(response_id, caller)
        if state is None:
            return None
        resource: dict[str, Any] = state["resource"]
        if resource["status"] in ("completed", "incomplete"):
            # The client may have deleted it since.
            kept = await self._store.find_response(response_id, caller)
            return None if kept is None else resource
        return resource

    async def _state(self, response_id: str, caller: str) -> dict[str, Any] | None:
        if (run := self._open.get((response_id, caller))) is not None:
            log = run.stream.log
            return {"resource": run.stream.resource, "pieces": run.pieces, "full": log.full}
        found = await self._store.find_result(f"{response_id}:state", caller)
        if found is None:
            return None
        state: dict[str, Any] = orjson.loads(found.content)
        if state["resource"]["status"] not in ENDED and await self._has_died(state["run"], found.created_at):
            state["resource"] |= {"status": "failed", "error": _DIED}
            text = orjson.dumps(state).decode()
            self._store.put_result(replace(found, content=text, created_at=time.time()))
        return state

    async def _has_died(self, run_id: str, kept_at: float) -> bool:
        """Whether the process of a run has died."""
        detail = await self._store.get_run(run_id)
        if detail is None:
            return time.time() - kept_at > _SILENT_S
        # A run that ended properly may not have put its last state on record yet.
        return detail.run.status == "interrupted" or (
            detail.run.status != "running" and time.time() - kept_at > _SILENT_S
        )

    async def cancel(self, response_id: str, caller: str) -> dict[str, Any] | None:
        """Cancel a response, whichever process runs it, and return it.  ``None`` if there is none."""
        if not response_id.startswith(PREFIX):
            return None
        state = await self._state(response_id, caller)
        if state is None or state["resource"]["status"] in ENDED:
            return None if state is None else state["resource"]
        if (run := self._open.get((response_id, caller))) is not None:
            run.cancelled = True
            if run.task is not None:
                await asyncio.wait({run.task}, timeout=_CANCELLED_S)
            return run.stream.resource
        # The process that runs it polls for this row.
        self._store.put_result(
            KeptResult(
                f"{response_id}:cancel", state["run"], caller, "1", untrusted=False, created_at=time.time()
            )
        )
        until = time.monotonic() + _CANCELLED_S
        while time.monotonic() < until and state is not None and state["resource"]["status"] not in ENDED:
            await asyncio.sleep(_POLL_S)
            state = await self._state(response_id, caller)
        return None if state is None else state["resource"]

    async def events(self, response_id: str, caller: str, after: int) -> AsyncIterator[bytes]:
        """The events of a response with numbers above ``after``, until it ends.

        Yields empty bytes after ``keepalive_s`` seconds without an event.
        """
        silence_s = self._settings.keepalive_s
        if (run := self._open.get((response_id, caller))) is not None:
            log, place = run.stream.log, 0
            while True:
                for number, event in log.since(place):
                    place += 1
                    if number > after:
                        yield event
                if log.ended or log.full:
                    return
                await log.wait(place, silence_s)
                if len(log.events) <= place and not log.ended:
                    yield b""
        piece, said = 0, time.monotonic()
        while (state := await self._state(response_id, caller)) is not None:
            over = state["resource"]["status"] in ENDED
            while piece < state["pieces"]:
                found = await self._store.find_result(f"{response_id}:{piece}", caller)
                if found is None:
                    break
                piece += 1
                said = time.monotonic()
                for number, text in orjson.loads(found.content):
                    if number > after:
                        yield text.encode()
            if over:
                return
            if time.monotonic() - said >= silence_s:
                said = time.monotonic()
                yield b""
            await asyncio.sleep(_POLL_S)

    async def is_streamable(self, response_id: str, caller: str) -> bool:
        """Whether all events of a response so far are kept."""
        state = await self._state(response_id, caller)
        return state is not None and not state["full"]

    async def drain(self, timeout_s: float) -> None:
        """Wait ``timeout_s`` seconds for the responses to end; the rest end as failed."""
        tasks = {run.task for run in self._open.values() if run.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def _queued(response_id: str, ask: Ask) -> dict[str, Any]:
    """The resource of a response that has not started."""
    asked = ask.body.payload
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued",
        "background": True,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.get("instructions"),
        "max_output_tokens": asked.get("max_output_tokens"),
        "metadata": asked.get("metadata") or {},
        "model": asked.get("model"),
        "output": [],
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "previous_response_id": asked.get("previous_response_id"),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools") or [],
        "usage": None,
    }
