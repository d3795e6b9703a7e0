"""Resume streams whose run belongs to another worker of the port: that worker sends them over its own socket.

Only the worker that has the run decides who may resume it, which client receives it, and when it ends. The
worker that the client reached passes the bytes on. Workers are processes of one user on one machine, and the
folder of a socket is closed to other users.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable
from typing import Any, Final

import orjson
import structlog

from proxy.api.detached.resumable import KeptStream, ResumableRuns, not_resumable
from proxy.base.errors import ConfigError, RequestError
from proxy.http.headers import Headers
from proxy.net.channel import MAX_BODY, Channel, ChannelBroken
from proxy.net.socket_folder import SocketFolder
from proxy.relay.base import ClientStream, NoClientStream
from proxy.relay.starting.runs import StartedRun
from proxy.server.peers import Peers

_SOCKETS: Final = "resumable_runs"
"""The name under which workers publish the path of their socket; it is empty before a worker's first run."""
_PREFIX: Final = "toolrelay-runs-"
_SOCKET: Final = "runs.sock"
_ASK_S: Final = 5.0
"""Seconds in which another worker must send its request after it has connected."""
_MOST_UNREAD: Final = 256 << 10
"""Bytes that another worker has not yet read; above this, the run waits, as for a client that does not
read."""
_MOST_NAME: Final = 1000
"""The most bytes of a run's id and its caller as JSON."""


class _OtherWorker(NoClientStream):
    """A :class:`~proxy.relay.base.ClientStream` to the client of another worker, which does that client's
    waiting."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._headers: dict[str, str] = {}

    def set_header(self, name: str, value: str) -> None:
        self._headers[name] = value

    def start(self, status: int, headers: Headers) -> None:
        super().start(status, headers)
        self._send("start", orjson.dumps([status, list(headers), self._headers]))

    def flush(self) -> None:
        self._send("flush")

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        if self._secrets is not None:
            data = self._secrets.blanked(data)
        for at in range(0, len(data), MAX_BODY):
            if not self._send("data", data[at : at + MAX_BODY]):
                raise ConnectionResetError("the other worker has gone")
        return self._read() if self._channel.unread > _MOST_UNREAD else None

    async def _read(self) -> None:
        await self._channel.flush()
        if self._channel.is_closing:
            raise ConnectionResetError("the other worker has gone")

    def finish(self) -> None:
        self._send("finish")

    def abort(self) -> None:
        self._send("abort")

    def _send(self, kind: str, body: bytes = b"") -> bool:
        return self._channel.send(kind, body)


class SharedResumableRuns:
    """The resumable runs of all workers of a port. One per process."""

    def __init__(self, here: ResumableRuns, peers: Peers) -> None:
        """Create the registry. ``here`` holds the runs of this process."""
        self._here = here
        self._peers = peers
        self._folder: SocketFolder | None = None
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._failed = False
        self._sending: dict[asyncio.Task[None], _OtherWorker] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.server")
        self.check, self.keep = here.check, here.keep
        peers.publish(_SOCKETS, self._address)

    def _address(self) -> bytes:
        return b"" if self._server is None or self._folder is None else os.fsencode(self._folder.socket)

    async def serve(self, started: StartedRun, stream: KeptStream, request: bytes) -> None:
        """Serve a run of this process; see :meth:`ResumableRuns.serve`."""
        if self._peers.ask_others is not None:
            await self._open()
        await self._here.serve(started, stream, request)

    async def resume(self, run_id: str, caller: str, request: bytes, client: ClientStream) -> None:
        """Send a client the bytes of a run of any worker, from the first to the last.

        Raises what :meth:`ResumableRuns.resume` raises.
        """
        others = self._peers.ask_others is not None and _can_be_asked_for(run_id, caller)
        if others and not self._here.has(run_id, caller):
            own, answers = self._address(), await self._peers.ask_all(_SOCKETS)
            for address in answers.bodies:
                if address not in (b"", own) and await self._fetch(address, run_id, caller, request, client):
                    return
        await self._here.resume(run_id, caller, request, client)

    async def _fetch(
        self, address: bytes, run_id: str, caller: str, request: bytes, client: ClientStream
    ) -> bool:
        """Pass a run of another worker on to a client; return ``False`` if that worker has no such run.

        Raises what :meth:`ResumableRuns.resume` raises.
        """
        try:
            channel = Channel(*await asyncio.open_unix_connection(os.fsdecode(address)))
        except OSError:
            return False
        try:
            channel.send("resume", request, run=run_id, caller=caller)
            return await _pass_on(channel, client)
        except ChannelBroken as fault:
            raise ConnectionResetError(str(fault)) from None
        finally:
            channel.close()

    async def _open(self) -> None:
        """Open the socket on which other workers fetch runs, unless it is open or has failed."""
        async with self._opening:
            if self._server is not None or self._failed:
                return
            try:
                self._folder = SocketFolder(_PREFIX, _SOCKET)
                self._server = await asyncio.start_unix_server(self._answer, str(self._folder.socket))
            except (ConfigError, OSError) as fault:
                self._failed = True
                self._log.warning("resumable_runs_not_shared", reason=str(fault))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of another worker: send it the run that it asks for."""
        channel = Channel(reader, writer)
        if (own := asyncio.current_task()) is not None:
            self._answering.add(own)
            own.add_done_callback(self._answering.discard)
        try:
            async with asyncio.timeout(_ASK_S):
                message = await channel.receive()
            if message is not None:
                await self._send_run(channel, *message)
        except (TimeoutError, ChannelBroken) as fault:
            self._log.warning("resumable_run_not_sent", reason=str(fault) or "the other worker said nothing")
        finally:
            channel.close()

    async def _send_run(self, channel: Channel, header: dict[str, Any], request: bytes) -> None:
        other = _OtherWorker(channel)
        loop = asyncio.get_running_loop()
        sending = loop.create_task(
            self._here.resume(str(header.get("run")), str(header.get("caller")), request, other)
        )
        gone = loop.create_task(_until_gone(channel))
        self._sending[sending] = other
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            # The other worker sends nothing more, so `gone` means that its client has left.
            sending.cancel()
            await asyncio.wait({sending})
        finally:
            self._sending.pop(sending)
            gone.cancel()
            await asyncio.wait({gone})
        error = None if sending.cancelled() else sending.exception()
        if isinstance(error, RequestError):
            channel.send("refused", status=error.status, message=error.message)
        elif error is not None and not isinstance(error, ConnectionError):
            self._log.error("resumable_run_not_sent", exception=type(error).__name__)
        await channel.flush()

    async def drain(self, timeout_s: float) -> None:
        """Stop sending runs to other workers, whose clients get an error, and end this process's runs."""
        if self._server is not None:
            self._server.close()
        for sending, other in self._sending.items():
            other.stopped_by_server = True
            sending.cancel()
        if self._answering:
            _, late = await asyncio.wait(self._answering, timeout=max(timeout_s, 1.0))
            for answering in late:
                answering.cancel()
        await self._here.drain(timeout_s)
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)


def _can_be_asked_for(run_id: str, caller: str) -> bool:
    """Return whether a message can hold the id and the caller; an id may be too long or not UTF-8."""
    try:
        return len(orjson.dumps([run_id, caller])) <= _MOST_NAME
    except orjson.JSONEncodeError:
        return False


async def _until_gone(channel: Channel) -> None:
    """Wait until the other worker closes the connection; it sends no more messages."""
    with contextlib.suppress(ChannelBroken):
        await channel.receive()


async def _pass_on(channel: Channel, client: ClientStream) -> bool:
    """Pass on to a client what another worker sends.

    Returns ``False`` if that worker has no such run, or left before the response began. Raises
    :class:`~proxy.base.errors.RequestError` if that worker refuses the request, and ``ConnectionError``.
    """
    while (message := await channel.receive()) is not None:
        header, body = message
        match header["kind"]:
            case "start":
                status, headers, told = orjson.loads(body)
                for name, value in told.items():
                    client.set_header(name, value)
                client.start(status, [(name, value) for name, value in headers])
            case "data":
                await client.write(body)
            case "flush":
                client.flush()
            case "finish":
                if (wait := client.before_finish()) is not None:
                    await wait
                client.finish()
                return True
            case "refused" if header["status"] == 404:
                return False
            case "refused":
                raise not_resumable(header["status"], header["message"])
            case "abort":
                break
    if not client.started:
        return False
    client.abort()
    raise ConnectionResetError("the worker with the run no longer sends it")
