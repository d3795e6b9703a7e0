"""Servers that a test starts on a port of their own."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waiting import until

__all__ = ["child_server", "free_port"]


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@asynccontextmanager
async def child_server(
    *command: str, port: int, user: str | None = None, stop: signal.Signals = signal.SIGKILL
) -> AsyncIterator[int]:
    """Run a server that listens on ``port``, and send it ``stop`` at the end; its process id."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, user=user
    )

    async def listens() -> bool:
        assert process.returncode is None, f"{command[0]} ended with {process.returncode}"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await until(listens)
        yield process.pid
    finally:
        if process.returncode is None:
            process.send_signal(stop)
        await process.wait()
