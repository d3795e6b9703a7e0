"""The program of the host process: it reads its settings from a socket pair and serves workers over a socket.

It ends, and ends its servers, when its parent process has ended. It has no keys of providers or clients: its
environment has only a short list of variables, and the secrets of servers come with the settings. No other
process of this user can read its memory.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import orjson

from proxy.net.channel import Channel, ChannelBroken
from proxy.net.own_process import hide_memory
from proxy.tools.mcp.host.connection import Connection, ConnectionState
from proxy.tools.mcp.host.left_behind import Groups, LeftBehind
from proxy.tools.mcp.host.sdk import quiet_sdk
from proxy.tools.mcp.host.service import Service
from proxy.tools.mcp.servers import HostSettings

_END_S = 8.0
_AGAIN_S = 5.0


def main(fd: int) -> int:
    """Serve until the other end of ``fd`` closes; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    hide_memory()
    quiet_sdk()
    asyncio.run(_serve(fd))
    return 0


async def _serve(fd: int) -> None:
    channel = await Channel.over(socket.socket(fileno=fd))
    first = await channel.receive()
    if first is None:
        return
    settings = HostSettings.read(orjson.loads(first[1]))
    _bound_memory(settings.memory_bytes)
    path = first[0]["path"]

    def on_group(runs: bool) -> None:
        """Tell the parent process which groups to kill if this process can no longer do so."""
        channel.send("groups", orjson.dumps(sorted(groups.marks)))
        if not runs:
            left_behind.server_ended()

    groups = Groups(on_group)
    left_behind = LeftBehind(groups)

    def on_state(name: str, before: ConnectionState, connection: Connection) -> None:
        """Tell the parent process what to log, because this process writes no log."""
        listing = connection.status.listing
        message = {
            "state": connection.status.state,
            "before": before,
            "protocol": connection.status.version,
            "tools": len(listing.definitions) if listing is not None else 0,
            "cause": connection.history.cause,
        }
        channel.send("server", orjson.dumps(message), name=name)

    def on_fault(name: str, error: Exception) -> None:
        """Tell the parent process of an error that ended work which goes on."""
        channel.send("fault", type(error).__name__.encode(), name=name)

    service = Service(settings, groups, on_state)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    listening = await asyncio.start_unix_server(service.serve, path, backlog=64)
    os.chmod(path, 0o600)
    kept = {name: c.run for name, c in service.connections.items()} | {"": left_behind.keep_reaping}
    working = [asyncio.create_task(_keep(partial(on_fault, name), work)) for name, work in kept.items()]
    channel.send("ready")
    gone = asyncio.create_task(_until_gone(channel))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        listening.close()
        with contextlib.suppress(OSError):
            os.unlink(path)
        tasks = [*working, gone, stopping]
        for task in tasks:
            task.cancel()
        # A server that does not end is killed with its process group well before that.
        await asyncio.wait(tasks, timeout=_END_S)
        await left_behind.end_all()
        channel.close()


async def _keep(on_fault: Callable[[Exception], None], work: Callable[[], Awaitable[None]]) -> None:
    """Run work that must not end until it is cancelled, whatever it raises.

    This is :func:`proxy.net.keep_running.keep_running` for a process that writes no log.
    """
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            try:
                await work()
            # The boundary of the task: a connection that is not kept would be lost without a word.
            except Exception as error:  # noqa: BLE001
                on_fault(error)
            await asyncio.sleep(_AGAIN_S)


async def _until_gone(channel: Channel) -> None:
    """Return when the parent process has closed the channel or ended."""
    with contextlib.suppress(ChannelBroken):
        while await channel.receive() is not None:
            pass


def _bound_memory(most: int) -> None:
    """Limit the address space of this process; its servers remove the limit for themselves."""
    if most:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
