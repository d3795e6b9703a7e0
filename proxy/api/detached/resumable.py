"""Resume streams: a run continues for a while without its client, and the client can come back.

This process keeps the bytes that a run sends. A client that sends the request again with the run's id gets
these bytes, and then the rest of the stream.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable
from typing import Final

from msgspec import Struct
from multidict import istr

from proxy.base.errors import RequestError
from proxy.http.headers import Headers
from proxy.http.own_headers import RESUME
from proxy.http.secrets import Secrets
from proxy.relay.base import ClientStream
from proxy.relay.starting.runs import StartedRun
from proxy.server.messages.heads.head import Head

__all__ = ["RESUME", "KeptStream", "ResumableRuns", "not_resumable", "resume_of", "same_request"]

_RESUME: Final = istr(RESUME)
_MAX_BYTES: Final = 8 << 20
_MAX_TOTAL: Final = 64 << 20
"""The largest number of bytes to keep of one run, and of all runs of this process; a larger run cannot be
resumed."""


def resume_of(head: Head) -> str:
    """Return the value of the resume header: ``on``, the id of the run to resume, or an empty string."""
    return head.sole(_RESUME) or ""


def same_request(path: str, body: bytes) -> bytes:
    """Return a SHA-256 digest of a request, to compare requests with."""
    return hashlib.sha256(path.encode() + b"\0" + body).digest()


def not_resumable(status: int, message: str) -> RequestError:
    """Return the error for a request whose run cannot be resumed."""
    return RequestError(status, message, param=RESUME, code="run_not_resumable")


class _Room:
    """The number of bytes that all runs of this process keep together."""

    def __init__(self) -> None:
        self.used = 0


class KeptStream:
    """A :class:`~proxy.relay.base.ClientStream` that keeps the bytes it sends, with or without a client.

    ``lost`` is true once there were too many bytes to keep. The run then ends when its client leaves, like
    any other run.
    """

    def __init__(self, room: _Room) -> None:
        self._room = room
        self._extra_headers: dict[str, str] = {}
        self._secrets: Secrets | None = None
        self._head: tuple[int, Headers] | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self.client: ClientStream | None = None
        self._catching_up: ClientStream | None = None
        """The newest client, while it receives the bytes that were sent before it connected."""
        self.stopped_by_server = False
        self.lost = False
        self.ended = self.broken = False

    @property
    def started(self) -> bool:
        return self._head is not None

    @property
    def alone(self) -> bool:
        """Whether no client receives the stream."""
        return self.client is None and self._catching_up is None

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
        self._head = (status, headers)
        if self.client is not None:
            self.client.start(status, headers)

    def flush(self) -> None:
        if self.client is not None:
            self.client.flush()

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        self._keep(data)
        if (client := self.client) is None:
            if self.lost:
                raise ConnectionResetError("the client has gone, and the run was too long to be resumed")
            return None
        try:
            wait = client.push(data, last)
        except ConnectionError:
            self._drop_client(client)
            return None
        return None if wait is None else self._sent(client, wait)

    async def _sent(self, client: ClientStream, wait: Awaitable[None]) -> None:
        try:
            await wait
        except ConnectionError:
            self._drop_client(client)

    async def write(self, data: bytes) -> None:
        if (wait := self.push(data)) is not None:
            await wait

    def before_finish(self) -> Awaitable[None] | None:
        return None if self.client is None else self.client.before_finish()

    def finish(self) -> None:
        self.ended = True
        if self.client is not None:
            with contextlib.suppress(ConnectionError):
                self.client.finish()

    def abort(self) -> None:
        self.ended = self.broken = True
        if self.client is not None:
            self.client.abort()

    def _keep(self, data: bytes) -> None:
        if self.lost:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._room.used += len(data)
        if self._size > _MAX_BYTES or self._room.used > _MAX_TOTAL:
            self.forget()

    def forget(self) -> None:
        """Drop the kept bytes; the run can no longer be resumed."""
        self.lost = True
        self._room.used -= self._size
        self._size = 0
        self._pieces.clear()

    def _drop_client(self, client: ClientStream) -> None:
        if self.client is client:
            self.client = None
        if self.lost:
            raise ConnectionResetError("the client has gone, and the run was too long to be resumed")

    async def replay(self, client: ClientStream) -> None:
        """Send a client all bytes so far, and then connect it to the rest of the stream.

        A run has one client at a time, the newest. The connection of the previous client may be dead, so it
        is closed. Raises ``ConnectionError`` if the client leaves, if a newer client connects, or if the run
        becomes too long to be resumed.
        """
        for before in (self.client, self._catching_up):
            if before is not None:
                before.abort()
        self.client, self._catching_up = None, client
        try:
            await self._catch_up(client)
        finally:
            if self._catching_up is client:
                self._catching_up = None
        if self.broken:
            client.abort()
        elif self.ended:
            client.finish()
        else:
            client.flush()
            self.client = client

    async def _catch_up(self, client: ClientStream) -> None:
        """Send a client the kept bytes; raises as :meth:`replay` does."""
        client.blank_out(self._secrets)
        for name, value in self._extra_headers.items():
            client.set_header(name, value)
        place = 0
        if self._head is not None:
            client.start(*self._head)
        while place < len(self._pieces):
            wait = client.push(self._pieces[place])
            place += 1
            if wait is None:
                continue
            await wait
            if self._catching_up is not client:
                raise ConnectionResetError("another connection has resumed the run")
            if self.lost:
                # Without the dropped bytes the stream has a gap, and would look complete.
                client.abort()
                raise ConnectionResetError("the run was too long to be resumed")


class _Run(Struct, eq=False):
    """A run that its caller can resume with the same request."""

    caller: str
    request: bytes
    stream: KeptStream
    task: asyncio.Task[None]
    timer: asyncio.TimerHandle | None = None


class ResumableRuns:
    """The runs of this process that can be resumed. One per process."""

    def __init__(self, keep_s: float) -> None:
        """Create the registry. ``keep_s``: seconds that a run continues without a client, and is kept after
        its end."""
        self._keep_s = keep_s
        self._room = _Room()
        self._runs: dict[str, _Run] = {}

    def check(self) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` (400) if this server does not resume runs."""
        if self._keep_s <= 0:
            raise RequestError(
                400,
                "This server does not resume streams (tools.resume_s is 0). Leave x-toolrelay-resume out.",
                param=RESUME,
            )

    def keep(self, client: ClientStream) -> KeptStream:
        """Return a stream to a client, which may leave and come back."""
        stream = KeptStream(self._room)
        stream.client = client
        return stream

    async def serve(self, started: StartedRun, stream: KeptStream, request: bytes) -> None:
        """Serve a run whose output goes to a stream of :meth:`keep`; ``request`` is its :func:`same_request`.

        Raises what the run raises, and ``ConnectionError`` if the client has left or another connection took
        over the run.
        """
        identity, client = started.job.identity, stream.client
        task = asyncio.get_running_loop().create_task(started.serve())
        run = self._runs[identity.run_id] = _Run(identity.caller, request, stream, task)
        task.add_done_callback(lambda _: self._expire(identity.run_id, run))
        if client is not None:
            await self._accompany(identity.run_id, run, client)

    def has(self, run_id: str, caller: str) -> bool:
        """Return whether this process has this run of the caller, and it can be resumed."""
        return self._of(run_id, caller) is not None

    def _of(self, run_id: str, caller: str) -> _Run | None:
        run = self._runs.get(run_id)
        return None if run is None or run.caller != caller or run.stream.lost else run

    async def resume(self, run_id: str, caller: str, request: bytes, client: ClientStream) -> None:
        """Send a client the bytes of a run from the first to the last.

        Raises :class:`RequestError`: 404 if this process has no such run of the caller, 400 if
        the request is not the one that started the run.
        """
        run = self._of(run_id, caller)
        if run is None:
            raise not_resumable(
                404,
                "No run with this id can be resumed here: it ended too long ago, was too large to keep, was "
                "lost when its process ended, or another host has it. Send the request again with "
                "x-toolrelay-resume: on.",
            )
        if run.request != request:
            raise not_resumable(
                400, "The request differs from the one that the run answers. Send the same path and body."
            )
        if run.timer is not None and not run.task.done():
            run.timer.cancel()
            run.timer = None
        try:
            await run.stream.replay(client)
        except BaseException:  # The client left during the replay: the run has none now.
            self._leave(run_id, run)
            raise
        if not run.stream.ended:
            await self._accompany(run_id, run, client)

    async def _accompany(self, run_id: str, run: _Run, client: ClientStream) -> None:
        """Wait until a run ends, on behalf of one of its clients."""
        try:
            await asyncio.wait({run.task})
        except asyncio.CancelledError:
            if not client.stopped_by_server:
                if run.stream.client is client:
                    run.stream.client = None
                # The run may have noticed the closed connection first, and dropped the client.
                self._leave(run_id, run)
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

    def _leave(self, run_id: str, run: _Run) -> None:
        """End a run without a client after ``keep_s`` seconds, unless a client comes back."""
        if run.task.done() or not run.stream.alone:
            return
        if run.stream.lost:
            run.task.cancel()
            return
        if run.timer is not None:
            run.timer.cancel()
        run.timer = asyncio.get_running_loop().call_later(self._keep_s, run.task.cancel)

    def _expire(self, run_id: str, run: _Run) -> None:
        """Keep an ended run for ``keep_s`` seconds, but drop it at once if its stream is incomplete."""
        if run.timer is not None:
            run.timer.cancel()
        if not run.stream.ended:
            self._drop(run_id)
            return
        run.timer = asyncio.get_running_loop().call_later(self._keep_s, self._drop, run_id)

    def _drop(self, run_id: str) -> None:
        if (run := self._runs.pop(run_id, None)) is not None:
            run.stream.forget()

    async def drain(self, timeout_s: float) -> None:
        """Cancel the runs that have not ended, and drop all runs."""
        alone = [run.task for run in self._runs.values() if not run.task.done()]
        for task in alone:
            task.cancel()
        if alone:
            await asyncio.wait(alone, timeout=max(timeout_s, 1.0))
        for run_id in list(self._runs):
            if (timer := self._runs[run_id].timer) is not None:
                timer.cancel()
            self._drop(run_id)
