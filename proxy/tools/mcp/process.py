"""Start the host process, which talks to MCP servers; restart it when it dies, and leave no orphans.

This module imports nothing of the SDK, so that a supervisor stays small.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import orjson
import structlog

from proxy.net.channel import Channel, ChannelBroken
from proxy.net.keep_running import keep_running
from proxy.net.socket_folder import SocketFolder

INHERITED: Final = (
    *("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"),
    *("SSL_CERT_DIR", "SSL_CERT_FILE"),
)
"""The environment variables that the host process and its servers inherit. Keys of providers are not among
them."""

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from proxy.tools.mcp.host.program import main; sys.exit(main(int(sys.argv[2])))"
)
_PREFIX: Final = "toolrelay-mcp-"
_SOCKET: Final = "host.sock"
_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 30.0
_STEADY_S: Final = 60.0
_END_S: Final = 10.0


def own_environment() -> dict[str, str]:
    """Return the part of the environment that every server gets."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


class HostProcess:
    """The host process, kept running from :meth:`start` to :meth:`aclose`. Belongs to one event loop.

    ``path`` is the socket at which it serves, in a folder that only this user can enter.
    """

    def __init__(self, settings: bytes, *, tells: bool = False) -> None:
        """``settings`` is a :class:`~proxy.tools.mcp.servers.HostSettings` as JSON. With ``tells`` the log
        says which servers were connected and which were lost."""
        self._settings = settings
        self._tells = tells
        self._folder = SocketFolder(_PREFIX, _SOCKET)
        self.path = self._folder.socket
        self._task: asyncio.Task[NoReturn] | None = None
        self._pid = 0
        self._groups: set[int] = set()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.mcp")

    def start(self) -> None:
        """Start the process and keep it running."""
        if self._task is None:
            self._task = asyncio.create_task(keep_running("mcp-host", self._run))

    async def aclose(self) -> None:
        """End the process and its servers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._folder.remove()

    async def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._once()
            except OSError as error:
                self._log.error("mcp_host_failed", reason=error.strerror)
            if loop.time() - began > _STEADY_S:
                wait_s = _FIRST_WAIT_S
            self._log.error("mcp_host_died", again_in_s=round(wait_s, 1))
            await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _once(self) -> None:
        """Run the process once, until it ends."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        ours, theirs = socket.socketpair()
        with theirs:
            self._pid, self._groups = _spawn(theirs.fileno()), set()
        channel = await Channel.over(ours)
        try:
            channel.send("settings", self._settings, path=str(self.path))
            await self._read_messages(channel)
        finally:
            channel.close()
            await asyncio.shield(self._end())

    async def _read_messages(self, channel: Channel) -> None:
        """Read the process groups that it starts and the states of servers, until it ends."""
        with contextlib.suppress(ChannelBroken):
            while (message := await channel.receive()) is not None:
                match message[0]["kind"]:
                    case "groups":
                        self._groups = set(orjson.loads(message[1]))
                    case "server" if self._tells:
                        self._tell(message[0]["name"], orjson.loads(message[1]))
                    case "fault" if self._tells:
                        self._log.error(
                            "background_work_failed",
                            task="mcp-host",
                            server=message[0]["name"],
                            exception=message[1].decode(),
                        )

    def _tell(self, name: str, message: Mapping[str, Any]) -> None:
        """Log that a server was connected, was lost, could not be reached, or wrote what is no message."""
        match message["before"], message["state"]:
            case before, state if before == state:
                self._log.warning("mcp_output_skipped", server=name)
            case _, "ready":
                facts = {"protocol": message["protocol"], "tools": message["tools"]}
                self._log.info("mcp_connected", server=name, **facts)
            case "ready", _:
                self._log.warning("mcp_lost", server=name, cause=message["cause"])
            case _:
                self._log.warning("mcp_unreachable", server=name, cause=message["cause"])

    async def _end(self) -> None:
        """Make sure that the process and everything it started have ended."""
        ended = await _ends_within(self._pid, _END_S)
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            await _ends_within(self._pid, _END_S)
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def _spawn(fd: int) -> int:
    """Start the process and return its pid."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _START, json.dumps(sys.path), str(fd)],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=own_environment(),
        start_new_session=True,
    )
    # A supervisor waits for all of its children itself, so this object must not.
    process.returncode = 0
    return process.pid


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, and reap it, unless other code has done so."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


async def _ends_within(pid: int, within_s: float) -> bool:
    """Return whether a child ends within so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while not (ended := _has_ended(pid)) and loop.time() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return ended
