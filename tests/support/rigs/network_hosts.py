"""Hosts in network namespaces of their own, which can die or lose their network.

They reach servers of the test through forwarders on the bridge between them.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from proxy_process import ProxyProcess, serving
from require import require


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


class Line:
    """Passes connections on from an address of the bridge to a port of this machine, until it is cut."""

    def __init__(self, gateway: str, port: int) -> None:
        self.port = 0
        self._gateway = gateway
        self._to = port
        self._server: asyncio.Server | None = None
        self._writers = set[asyncio.StreamWriter]()
        self._tasks = set[asyncio.Task[None]]()

    async def open(self) -> None:
        """Listen, on the same port as before the line was cut."""
        self._server = await asyncio.start_server(self._serve, self._gateway, self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def cut(self) -> None:
        """End all connections, and take no more."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writers.clear()
        self._tasks.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if (own := asyncio.current_task()) is not None:
            self._tasks.add(own)
        with contextlib.suppress(OSError):
            theirs, to_them = await asyncio.open_connection("127.0.0.1", self._to)
            self._writers.add(to_them)
            await asyncio.gather(_pump(reader, to_them), _pump(theirs, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class Network:
    """A bridge, and the hosts behind it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._id = secrets.token_hex(3)
        one, two = secrets.randbelow(250), secrets.randbelow(250)
        self._subnet = f"10.{one}.{two}"
        self._hosts: list[str] = []

    @property
    def gateway(self) -> str:
        """The test's own address on the bridge."""
        return f"{self._subnet}.1"

    def open(self) -> None:
        """Make the bridge; the test skips if it may not."""
        probe = ["unshare", "-n", "true"]
        allowed = (
            shutil.which("ip") and not subprocess.run(probe, capture_output=True, check=False).returncode
        )
        require("namespaces", bool(allowed), "this needs unshare(1) and ip(8), as root")
        bridge = f"trb{self._id}"
        _ip("link", "add", bridge, "type", "bridge")
        self._stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{self.gateway}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")

    def add_host(self) -> tuple[str, str]:
        """Make a host; return its name and its address."""
        number = len(self._hosts) + 2
        name, link = f"tr{self._id}h{number}", f"trv{self._id}{number}"
        _ip("netns", "add", name)
        self._stack.callback(_ip, "netns", "del", name)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", link, "master", f"trb{self._id}", "up")
        address = f"{self._subnet}.{number}"
        for device, more in (("lo", ()), ("eth0", (f"{address}/24",))):
            for each in more:
                _ip("-n", name, "addr", "add", each, "dev", device)
            _ip("-n", name, "link", "set", device, "up")
        self._hosts.append(link)
        return name, address

    def cut(self, number: int) -> None:
        """Take the network away from a host, by its place among the hosts; nobody gets a reset."""
        _ip("link", "set", self._hosts[number], "down")

    async def forward(self, port: int) -> int:
        """Let hosts reach a port of this machine; return the port at the gateway."""
        return (await self.line(port)).port

    async def line(self, port: int) -> Line:
        """Let hosts reach a port of this machine by a line that the test may cut."""
        line = Line(self.gateway, port)
        self._stack.push_async_callback(line.cut)
        await line.open()
        return line

    async def serve(self, name: str, folder: Path, env: dict[str, str]) -> ProxyProcess:
        """Start the server of a host."""
        inside = ("ip", "netns", "exec", name)
        return await self._stack.enter_async_context(serving(folder, env=env, inside=inside))


def kill(name: str) -> None:
    """Kill every process of a host at once."""
    for pid in _ip("netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    """Yield a network without hosts; it is taken down at the end."""
    async with AsyncExitStack() as stack:
        made = Network(stack)
        made.open()
        yield made
