"""The service of the host process for workers: it calls tools, reports statuses and lists definitions."""

import asyncio
import contextlib
import math
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import orjson

from proxy.net.channel import MAX_BODY, Channel, ChannelBroken
from proxy.tools.mcp.definitions import visible_text
from proxy.tools.mcp.host.authorization import Authorizations
from proxy.tools.mcp.host.connection import CallFailed, Connection, ConnectionState
from proxy.tools.mcp.host.left_behind import Groups
from proxy.tools.mcp.host.sdk import OnProgress
from proxy.tools.mcp.servers import HostSettings

_MAX_CALLS: Final = 1024
"""The most open calls of one worker."""

OnState = Callable[[str, ConnectionState, Connection], None]
"""Called with a server's name, its previous state, and its connection."""

_MAX_WAITING: Final = 32 << 20
"""The most bytes of results of one server that wait until one worker reads them."""

_CREDENTIALS: Final = struct.Struct("iII")
"""``struct ucred`` of ``unix(7)``: process, user and group."""

_PROGRESS_EVERY_S: Final = 0.25
_MAX_WORDS: Final = 200
_MOST_PROGRESS: Final = 1e15
"""A bound below which every JSON parser reads a number without loss."""


class _Worker(Channel):
    """The channel to one worker. Results wait until the worker reads, within a bound for each server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._waiting: Counter[str] = Counter()

    async def deliver(self, server: str, number: int, result: bytes) -> None:
        """Send the result of a call. Raises :class:`CallFailed` if the worker cannot get it."""
        size = len(result)
        if size > MAX_BODY:
            raise CallFailed("error", f"the tool ran, but its result is larger than {MAX_BODY} bytes")
        if self._waiting[server] + size > _MAX_WAITING:
            text = f"the tool ran, but over {_MAX_WAITING} bytes of results of its server wait to be read"
            raise CallFailed("error", text)
        self._waiting[server] += size
        try:
            await self.send_in_turn("result", result, id=number)
        finally:
            self._waiting[server] -= size


class Service:
    """The connections to all servers, and the workers that use them."""

    def __init__(self, settings: HostSettings, groups: Groups, on_state: OnState) -> None:
        """``on_state`` is called when a server was connected, was lost, cannot be reached, or has written a
        line that is no message for the first time; then its state is the previous one."""
        self._on_state = on_state
        self._states: dict[str, tuple[ConnectionState, bool]] = {}
        self._authorizations = Authorizations()
        self.connections = {
            server.name: Connection(
                server,
                settings,
                partial(self._changed, server.name),
                groups,
                partial(self._authorizations.ask, server.name),
            )
            for server in settings.servers
        }
        self._workers: set[_Worker] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one worker until it closes the connection; its open calls are then cancelled.

        The folder of the socket lets only this user in; a process of another user is refused all the same.
        """
        if not _is_own(writer):
            writer.close()
            return
        channel = _Worker(reader, writer)
        calls: dict[int, asyncio.Task[None]] = {}
        self._workers.add(channel)
        self._tell_all(channel)
        try:
            while (message := await channel.receive()) is not None:
                self._handle(channel, calls, *message)
        except ChannelBroken:
            pass
        finally:
            self._workers.discard(channel)
            self._authorizations.left(channel)
            for task in calls.values():
                task.cancel()
            channel.close()

    def _handle(
        self, channel: _Worker, calls: dict[int, asyncio.Task[None]], header: dict[str, Any], body: bytes
    ) -> None:
        number = header.get("id", 0)
        match header["kind"]:
            case "call" if len(calls) < _MAX_CALLS:
                self._begin(calls, number, self._call(channel, number, header, body))
            case "call":
                channel.send("failed", _written(CallFailed("busy", "too many calls are open")), id=number)
            case "list":
                self._begin(calls, number, self._list(channel, number, header))
            case "cancel" if number in calls:
                calls[number].cancel()
            case "authorizes":
                self._authorizations.joined(channel)
            case "authorization":
                self._authorizations.on_answer(channel, number, body)

    @staticmethod
    def _begin(calls: dict[int, asyncio.Task[None]], number: int, work: Awaitable[None]) -> None:
        async def run() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await work

        task = calls[number] = asyncio.create_task(run())
        task.add_done_callback(lambda _: calls.pop(number, None))

    async def _call(self, channel: _Worker, number: int, header: dict[str, Any], body: bytes) -> None:
        try:
            connection = self.connections.get(header["server"])
            if connection is None:
                raise CallFailed("away", "the server is not configured")
            result = await connection.call(
                header["tool"],
                orjson.loads(body),
                digest=header["digest"],
                timeout_s=header["within_s"],
                on_progress=_progress(channel, number) if header["progress"] else None,
            )
            await channel.deliver(header["server"], number, orjson.dumps(result))
            return
        except CallFailed as caught:
            failure = caught
        except (orjson.JSONEncodeError, RecursionError):
            failure = CallFailed("error", "the result cannot be read")
        # The boundary to the SDK: whatever it raises, the worker must not have to wait for its time-out.
        except Exception:  # noqa: BLE001
            failure = CallFailed("lost", f"the connection to the server {header['server']} failed")
        await channel.send_in_turn("failed", _written(failure), id=number)

    async def _list(self, channel: _Worker, number: int, header: dict[str, Any]) -> None:
        """Send a server's listing, or the part that ``only`` names, once it is connected or has failed."""
        connection = self.connections.get(header["server"])
        if connection is None:
            failure = CallFailed("away", "the server is not configured")
            await channel.send_in_turn("failed", _written(failure), id=number)
            return
        await connection.wait(header["within_s"])
        listing = connection.status.listing
        definitions = listing.definitions if listing is not None else ()
        if (only := header.get("only")) is not None:
            definitions = [definition for definition in definitions if definition.name in only]
        message: dict[str, Any] = {
            "status": self._status_of(connection),
            "stderr": connection.stderr[-2000:],
            "definitions": [definition.written() for definition in definitions],
        }
        written = orjson.dumps(message)
        if len(written) > MAX_BODY:
            failure = CallFailed("error", "the server's tools are too large")
            await channel.send_in_turn("failed", _written(failure), id=number)
            return
        await channel.send_in_turn("result", written, id=number)

    def _changed(self, name: str) -> None:
        """Report the changed status of a server."""
        connection = self.connections[name]
        before = self._states.get(name, ("starting", False))
        self._states[name] = now = connection.status.state, bool(connection.history.skipped)
        if now != before:
            self._on_state(name, before[0], connection)
        # Send this status alone: others may have hundreds of tools, and this one may change all the time.
        message = orjson.dumps({name: self._status_of(connection)})
        for channel in self._workers:
            channel.send("status", message)

    def _tell_all(self, channel: Channel) -> None:
        message = {name: self._status_of(connection) for name, connection in self.connections.items()}
        channel.send("status", orjson.dumps(message))

    @staticmethod
    def _status_of(connection: Connection) -> dict[str, Any]:
        """Return a server's status as JSON values; ``digests`` maps the server's names of its tools to their
        digests and is ``None`` before the first list."""
        status, listing = connection.status, connection.status.listing
        return {
            "state": status.state,
            "reason": status.reason,
            "version": status.version,
            "server_info": list(status.server_info),
            "digests": None if listing is None else {tool.name: tool.digest for tool in listing.definitions},
            "reconnects": max(0, connection.history.connects - 1),
            "last_error": connection.history.last_error,
            "skipped": connection.history.skipped,
            "list_ms": round(connection.history.list_ms, 1),
            "left_out": [] if listing is None else [[tool.name, tool.reason] for tool in listing.left_out],
        }


def _is_own(writer: asyncio.StreamWriter) -> bool:
    """Return whether the other end of a local socket is of this user; true where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = writer.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())


def _written(failure: CallFailed) -> bytes:
    return orjson.dumps({"kind": failure.kind, "words": failure.words, "error": failure.error})


def _progress(channel: Channel, number: int) -> OnProgress:
    """Return a callback that reports a call's progress to a worker, a few times a second at most.

    A server may send any values; only increasing numbers are passed on.
    """
    loop = asyncio.get_running_loop()
    told_at, last = -math.inf, -math.inf

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        nonlocal told_at, last
        if not _is_number(progress) or progress <= last or loop.time() - told_at < _PROGRESS_EVERY_S:
            return
        told_at, last = loop.time(), progress
        text = visible_text(message[: 4 * _MAX_WORDS])[:_MAX_WORDS] if isinstance(message, str) else ""
        whole = total if _is_number(total) else None
        channel.send("progress", orjson.dumps([progress, whole, text]), id=number)

    return tell


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST_PROGRESS
