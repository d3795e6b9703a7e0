"""Resume streams: a run continues for a while without its client, and the client can come back.

The bytes that a run sends go to a log as well. A client that sends the request again with the run's id gets
the bytes of the log, at any worker of any host if the logs are shared, and then the rest of the stream.
"""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import orjson
from msgspec import Struct
from multidict import istr

from proxy.api.detached.checkpoints import Checkpoint, find_steps
from proxy.api.detached.logs.event_log import Event, EventLog, EventLogs, LogGone, LogReader
from proxy.base.errors import RequestError, StoreError
from proxy.http.headers import Headers
from proxy.http.own_headers import RESUME
from proxy.http.secrets import Secrets
from proxy.relay.ask import Identity
from proxy.relay.base import ClientStream
from proxy.relay.memory.steps import AnyOutput, Step, Steps
from proxy.relay.starting.runs import StartedRun
from proxy.server.messages.heads.head import Head
from proxy.store.base import Store

__all__ = ["RESUME", "KeptStream", "ResumableRuns", "not_resumable", "resume_of", "same_request"]

_RESUME: Final = istr(RESUME)
_RUN_ID: Final = re.compile(r"run_[0-9a-f]{1,64}")
_MAX_BYTES: Final = 8 << 20
"""The largest number of bytes to keep of one run; a larger run cannot be resumed."""
_FOLLOWED_S: Final = 1.0
"""Seconds after which a run that waits for a slow client looks whether the client has come back."""
_BEGINS_S: Final = 0.5
"""Seconds within which a log has its first event."""
_WAIT_S: Final = 5.0
"""Seconds for which a reader waits for events at a time."""
_REQUEST, _HEAD, _DATA = range(3)
"""What an event of the log holds: the digest of the request, status and headers, or bytes of the body."""


def resume_of(head: Head) -> str:
    """Return the value of the resume header: ``on``, the id of the run to resume, or an empty string."""
    return head.sole(_RESUME) or ""


def same_request(path: str, body: bytes) -> bytes:
    """Return a SHA-256 digest of a request, to compare requests with."""
    return hashlib.sha256(path.encode() + b"\0" + body).digest()


def not_resumable(status: int, message: str) -> RequestError:
    """Return the error for a request whose run cannot be resumed."""
    return RequestError(status, message, param=RESUME, code="run_not_resumable")


class KeptStream:
    """A :class:`~proxy.relay.base.ClientStream` that writes to a log what it sends, with or without a client.

    ``client`` is the one that began the run, until it leaves. ``lost`` is true once there were too many bytes
    to keep. The run then ends when its client leaves, like any other run.
    """

    def __init__(
        self, client: ClientStream, log: EventLog, is_followed: Callable[[], Awaitable[bool]]
    ) -> None:
        """``is_followed`` returns whether another connection reads the log."""
        self.client: ClientStream | None = client
        self.log = log
        self._is_followed = is_followed
        self._extra_headers: dict[str, str] = {}
        self._secrets: Secrets | None = None
        self.started = False
        self.stopped_by_server = False

    @property
    def lost(self) -> bool:
        return self.log.full

    @property
    def origin(self) -> str:
        return "" if self.client is None else self.client.origin

    def blank_out(self, secrets: Secrets | None) -> None:
        self._secrets = secrets
        if self.client is not None:
            self.client.blank_out(secrets)

    def set_header(self, name: str, value: str) -> None:
        self._extra_headers[name] = value
        if self.client is not None:
            self.client.set_header(name, value)

    def start(self, status: int, headers: Headers) -> None:
        self.started = True
        self.log.put(_HEAD, orjson.dumps([status, list(headers), self._extra_headers]))
        if self.client is not None:
            self.client.start(status, headers)

    def flush(self) -> None:
        if self.client is not None:
            self.client.flush()

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        self.log.put(_DATA, data if self._secrets is None else self._secrets.blanked(data))
        if (client := self.client) is None:
            self._check()
            return None
        try:
            wait = client.push(data, last)
        except ConnectionError:
            self._drop_client(client)
            return None
        return None if wait is None else self._sent(client, wait)

    async def _sent(self, client: ClientStream, wait: Awaitable[None]) -> None:
        """Wait for a client that does not read, unless it has come back over another connection."""
        waiting = asyncio.ensure_future(wait)
        try:
            while not (await asyncio.wait({waiting}, timeout=_FOLLOWED_S))[0]:
                if await self._is_followed():
                    client.abort()
                    self._drop_client(client)
                    return
            waiting.result()
        except ConnectionError:
            self._drop_client(client)
        finally:
            waiting.cancel()

    async def write(self, data: bytes) -> None:
        if (wait := self.push(data)) is not None:
            await wait

    def before_finish(self) -> Awaitable[None] | None:
        return None if self.client is None else self.client.before_finish()

    def finish(self) -> None:
        self.log.close()
        if self.client is not None:
            with contextlib.suppress(ConnectionError):
                self.client.finish()

    def abort(self) -> None:
        self.log.close(ended=False)
        if self.client is not None:
            self.client.abort()

    def _drop_client(self, client: ClientStream) -> None:
        if self.client is client:
            self.client = None
        self._check()

    def _check(self) -> None:
        if self.lost:
            raise ConnectionResetError("the client has gone, and the run was too long to be resumed")


class _Run(Struct, eq=False):
    """A run of this process that continues without its client."""

    name: str
    stream: KeptStream
    task: asyncio.Task[None]
    timer: asyncio.TimerHandle | None = None
    leaving: asyncio.Task[None] | None = None


class ResumableRuns:
    """The runs that can be resumed. One per process."""

    def __init__(self, logs: EventLogs, store: Store, keep_s: float, *, keeps: bool = True) -> None:
        """Create the registry. ``keep_s``: seconds that a run continues without a client, and is kept after
        its end. ``keeps`` says whether the record keeps content, so that another process can go on with a
        run."""
        self._keeps = keeps
        self._logs = logs
        self._store = store
        self._keep_s = keep_s
        self._runs: dict[str, _Run] = {}

    def check(self) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` (400) if this server does not resume runs."""
        if self._keep_s <= 0:
            raise RequestError(
                400,
                "This server does not resume streams (tools.resume_s is 0). Leave x-toolrelay-resume out.",
                param=RESUME,
            )

    async def steps(self, identity: Identity, request: bytes, goes_on: str) -> Steps | None:
        """Return the steps of a new run, which goes on with the run ``goes_on`` if its steps are on record;
        ``None`` if none are kept."""
        if not self._keeps:
            return None
        known: Sequence[Step] | None = None
        if goes_on:
            with contextlib.suppress(StoreError):  # Then it is run from the start.
                known = await find_steps(
                    self._store, _steps_name(goes_on, identity.caller, request), identity.caller
                )
        log = self._log_of(identity.run_id, identity.caller, request)
        return Steps(identity.run_id, AnyOutput(), log, known or ())

    def _log_of(self, run_id: str, caller: str, request: bytes) -> Checkpoint:
        return Checkpoint(self._store, run_id, _steps_name(run_id, caller, request), caller)

    def keep(self, client: ClientStream, run_id: str, caller: str, request: bytes) -> KeptStream:
        """Return a stream to a client, which may leave and come back; ``request`` is its
        :func:`same_request`."""
        name = _log_name(run_id, caller)
        log = self._logs.open(name, keep_s=self._keep_s, max_bytes=_MAX_BYTES)
        log.put(_REQUEST, request)
        return KeptStream(client, log, lambda: self._logs.is_read(name))

    async def serve(
        self, started: StartedRun, stream: KeptStream, goes_on: str = "", request: bytes = b""
    ) -> None:
        """Serve a run whose output goes to a stream of :meth:`keep`. ``goes_on`` is the run of the same
        ``request`` that it goes on with.

        Raises what the run raises, and ``ConnectionError`` if the client has left.
        """
        identity, client = started.job.identity, stream.client
        name = _log_name(identity.run_id, identity.caller)
        task = asyncio.get_running_loop().create_task(
            self._go_on(started, stream, goes_on, request) if goes_on else started.serve()
        )
        run = self._runs[name] = _Run(name, stream, task)
        task.add_done_callback(lambda _: self._ended(run))
        if client is not None:
            await self._accompany(run, client)

    async def _go_on(self, started: StartedRun, stream: KeptStream, goes_on: str, request: bytes) -> None:
        """Serve a run that goes on with another; if it cannot do the steps again, nobody else may try."""
        steps, given_up = started.job.client.ask.options.steps, True
        try:
            await started.serve()
        except (asyncio.CancelledError, ConnectionError):
            given_up = False  # Whoever is not interrupted may still go on with them.
            raise
        finally:
            if given_up and not stream.stopped_by_server and steps is not None and steps.replaying:
                self._log_of(goes_on, started.job.identity.caller, request).void()

    async def _accompany(self, run: _Run, client: ClientStream) -> None:
        """Wait until a run ends, on behalf of the client that began it."""
        try:
            await asyncio.wait({run.task})
        except asyncio.CancelledError:
            if not client.stopped_by_server:
                # The run may have noticed the closed connection first, and dropped the client.
                run.stream.client = None
                self._leave(run)
                raise
            # The server stops: the run sends its client an error.
            run.stream.stopped_by_server = True
            run.task.cancel()
            await asyncio.wait({run.task})
            if (own := asyncio.current_task()) is not None:
                own.uncancel()
        if not run.task.cancelled() and (error := run.task.exception()) is not None:
            raise error
        if run.stream.client is not client:
            raise ConnectionResetError("the client has left its run")

    def _leave(self, run: _Run) -> None:
        """End a run without a client after ``keep_s`` seconds, unless somebody reads it then."""
        if run.task.done():
            return
        if run.stream.lost:
            run.task.cancel()
            return
        loop = asyncio.get_running_loop()

        def look() -> None:
            run.leaving = loop.create_task(self._end_unread(run))

        run.timer = loop.call_later(self._keep_s, look)

    async def _end_unread(self, run: _Run) -> None:
        if await self._logs.is_read(run.name):
            self._leave(run)
        else:
            run.task.cancel()

    def _ended(self, run: _Run) -> None:
        """Let the log of a run end with it. A log without its end is dropped at once."""
        self._runs.pop(run.name, None)
        if run.timer is not None:
            run.timer.cancel()
        if run.stream.log.end is None:
            run.stream.log.forget()

    async def resume(self, run_id: str, caller: str, request: bytes, client: ClientStream) -> None:
        """Send a client the bytes of a run from the first to the last.

        Raises :class:`RequestError`: 404 if there is no log of such a run of the caller, 400 if the request
        is not the one that started the run. Raises ``ConnectionError`` if the client leaves, or if the run
        was broken off.
        """
        async with self._logs.reader(_log_name(run_id, caller)) as reader:
            try:
                events = await reader.next(_BEGINS_S)
                if not events:
                    raise LogGone
                if events[0] != (_REQUEST, request):
                    raise _another_request()
                await _send(client, events[1:], reader)
            except LogGone:
                if not client.started:
                    raise _unknown_run() from None
                # Without the dropped bytes the stream has a gap, and would look complete.
                client.abort()
                raise ConnectionResetError("the run can no longer be resumed") from None
        await _end(client, complete=reader.end is True)

    async def was_interrupted(self, run_id: str, caller: str) -> bool:
        """Return whether the process of a run of this caller died before the run had ended.

        Raises :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """
        if not _RUN_ID.fullmatch(run_id):
            return False
        detail = await self._store.get_run(run_id)
        return detail is not None and (detail.run.id, detail.run.caller, detail.run.status) == (
            run_id,
            caller,
            "interrupted",
        )

    async def drain(self, timeout_s: float) -> None:
        """End the runs that have not ended; who reads them gets an error."""
        alone = []
        for run in self._runs.values():
            run.stream.stopped_by_server = True
            run.task.cancel()
            alone.append(run.task)
        if alone:
            await asyncio.wait(alone, timeout=max(timeout_s, 1.0))


async def _send(client: ClientStream, events: Sequence[Event], reader: LogReader) -> None:
    """Send a client what a log holds, up to its end."""
    while True:
        for kind, body in events:
            if kind == _HEAD:
                status, headers, extra = orjson.loads(body)
                for name, value in extra.items():
                    client.set_header(name, value)
                client.start(status, [(name, value) for name, value in headers])
            else:
                await client.write(body)
        client.flush()
        if reader.end is not None:
            return
        events = await reader.next(_WAIT_S)


async def _end(client: ClientStream, *, complete: bool) -> None:
    if not complete or not client.started:
        client.abort()
        raise ConnectionResetError("the run was broken off")
    if (wait := client.before_finish()) is not None:
        await wait
    client.finish()


def _another_request() -> RequestError:
    return not_resumable(
        400, "The request differs from the one that the run answers. Send the same path and body."
    )


def _unknown_run() -> RequestError:
    return not_resumable(
        404,
        "No run with this id can be resumed here: it ended too long ago, was too large to keep, was lost "
        "when its process ended, or another process has it that shares no Redis with this one. Send the "
        "request again with x-toolrelay-resume: on.",
    )


def _steps_name(run_id: str, caller: str, request: bytes) -> str:
    """Return the name of a run's steps; no other caller or request has it."""
    return f"{_log_name(run_id, caller)} {request.hex()}"


def _log_name(run_id: str, caller: str) -> str:
    """Return the name of a run's log; no other pair has it, whatever id a client sends."""
    return f"{len(run_id)} {run_id} {caller}"
