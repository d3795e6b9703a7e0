"""Server processes that a test starts, each on its own port."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from waiting import until


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a TCP port of the loopback for a server that must be told its port.

    A socket that does not listen holds the port. Linux then assigns the port to nobody who asks for any free
    port, but gives it to a server that asks for this very port with SO_REUSEADDR.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


@asynccontextmanager
async def child_server(
    *command: str, port: int, user: str | None = None, stop: signal.Signals = signal.SIGKILL
) -> AsyncIterator[int]:
    """Run a server that listens on ``port`` and yield its process id; send it ``stop`` at the end."""
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
