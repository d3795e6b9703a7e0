"""End the processes that a server leaves behind outside of its process group, for example by ``setsid``.

On Linux the host process is the subreaper of its servers (``prctl(2)``): a descendant whose parent has ended
becomes a child of the host process, in whatever session it is.  A variable in the environment says whose it
is.  A process that hides the variable ends with the next server that ends, at the latest with the host
process.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Final

from proxy.net.own_process import adopt_orphans

__all__ = ["MARK", "LeftBehind"]

MARK: Final = "TOOLRELAY_MCP_SERVER"
"""The variable with the server's name."""

_ROUNDS: Final = 10
_PAUSE_S: Final = 0.02
"""Together less than the wait before a server is started again, whose new process must not be met."""

_REAP_S: Final = 5.0
_SELF: Final = Path("/proc/self")


class LeftBehind:
    """The children of this process that it did not start itself.  Belongs to one event loop."""

    def __init__(self, servers: Collection[str], groups: Collection[int]) -> None:
        """``servers`` are the names of all servers; ``groups`` are the pids of those that run, kept up to
        date by the caller."""
        self._servers = servers
        self._groups = groups
        self._tasks: set[asyncio.Task[None]] = set()
        self._own = b""
        # Only root may read it, once the memory of this process is hidden, but then it is not needed either.
        with contextlib.suppress(OSError):
            self._own = (_SELF / "environ").read_bytes()
        adopt_orphans()

    def server_ended(self, server: str) -> None:
        """Begin to end what a server has left behind."""
        task = asyncio.create_task(self._end(server))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def keep_reaping(self) -> None:
        """Reap children that end by themselves, until cancelled."""
        while True:
            await asyncio.sleep(_REAP_S)
            for child in self._children():
                _reap(child)

    async def end_all(self) -> None:
        """End everything that any server has left behind."""
        await self._end(None)

    async def _end(self, server: str | None) -> None:
        """End what one server has left behind; ``None`` for all."""
        # A killed process hands its own children on to this one, so another look is needed.
        for _ in range(_ROUNDS):
            left = [child for child in self._children() if server is None or self._is_of(child, server)]
            if not left:
                return
            for child in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
                _reap(child)
            await asyncio.sleep(_PAUSE_S)

    def _children(self) -> list[int]:
        """Return the pids of this process's children but its servers; empty where the system has no list."""
        found: list[int] = []
        for thread in (_SELF / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in thread.read_text().split()]
        return [pid for pid in found if pid not in self._groups]

    def _is_of(self, child: int, server: str) -> bool:
        """Return whether a child is of a server, or of one that is not known."""
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes()
        except OSError:
            return False
        if environment == self._own:
            return False  # It is about to become a server.
        marks = [one for one in environment.split(b"\0") if one.startswith(f"{MARK}=".encode())]
        named = {one.partition(b"=")[2].decode("utf-8", "replace") for one in marks}
        return server in named or named.isdisjoint(self._servers)


def _reap(child: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, os.WNOHANG)
