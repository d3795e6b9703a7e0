"""Servers that a test starts on a port of their own."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from waiting import until

__all__ = ["child_server", "reserved_port"]


@contextmanager
def reserved_port() -> Iterator[int]:
    """A TCP port of the loopback for a server that is told its port; nobody else gets it meanwhile.

    A socket holds it that does not listen.  Linux then gives the port to nobody who asks for any, and to
    whoever asks for this one with SO_REUSEADDR, as servers do.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


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
