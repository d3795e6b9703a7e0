"""End the processes that a server leaves behind outside of its process group, for example by ``setsid``.

On Linux the host process is the subreaper of its servers (``prctl(2)``): a descendant whose parent has ended
becomes a child of the host process, in whatever session it is. A variable in the environment says whose it
is. A process that hides the variable ends with the next server that ends, at the latest with the host
process.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from proxy.net.own_process import adopt_orphans

MARK: Final = "TOOLRELAY_MCP_SERVER"
"""The variable with the mark of a server: a value that no other start of a server has."""

_ROUNDS: Final = 10
_PAUSE_S: Final = 0.02
_REAP_S: Final = 5.0
_SELF: Final = Path("/proc/self")


class Groups(Struct, frozen=True):
    """The process groups of the servers that run.

    ``changed`` is called after one was added, with true, or removed, with false. ``marks`` has the servers'
    marks by the numbers of their groups, which are the pids of the servers. ``starting`` is held until the
    group of a new server is in ``marks``, because nobody else can tell the server from what is left behind.
    """

    changed: Callable[[bool], None]
    marks: dict[int, str] = field(default_factory=dict)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)


class LeftBehind:
    """The children of this process that it did not start itself. Belongs to one event loop."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._tasks: set[asyncio.Task[None]] = set()
        adopt_orphans()

    def server_ended(self) -> None:
        """Begin to end what a server that has ended has left behind."""
        task = asyncio.create_task(self._end(self._is_of_none))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def keep_reaping(self) -> None:
        """Reap children that end by themselves, until cancelled."""
        while True:
            await asyncio.sleep(_REAP_S)
            async with self._groups.starting:
                for child in self._children():
                    _reap(child)

    async def end_all(self) -> None:
        """End everything that any server has left behind."""
        await self._end(lambda child: True)

    async def _end(self, is_left: Callable[[int], bool]) -> None:
        # A killed process hands its own children on to this one, so another look is needed.
        for _ in range(_ROUNDS):
            async with self._groups.starting:
                left = list(filter(is_left, self._children()))
                for child in left:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(child, signal.SIGKILL)
                    _reap(child)
            if not left:
                return
            await asyncio.sleep(_PAUSE_S)

    def _children(self) -> list[int]:
        """Return the pids of this process's children but its servers; empty where the system has no list."""
        pids: list[int] = []
        for thread in (_SELF / "task").glob("*/children"):
            with contextlib.suppress(OSError):
                pids += [int(pid) for pid in thread.read_text().split()]
        return [pid for pid in pids if pid not in self._groups.marks]

    def _is_of_none(self, child: int) -> bool:
        """Return whether a child is of no server that runs."""
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes()
        except OSError:
            return False
        marks = {f"{MARK}={mark}".encode() for mark in self._groups.marks.values()}
        return marks.isdisjoint(environment.split(b"\0"))


def _reap(child: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, os.WNOHANG)
