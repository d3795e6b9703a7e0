"""The processes that a supervisor has started, and others that become its children.

In a container the supervisor may be process 1. Then every process whose parent has ended becomes its child,
and stays in the process table until it is waited for.
"""

import asyncio
import os
import signal


class Child:
    """One started process. When it ends, the future ``ended`` gets its exit status, negative for a signal."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        """Kill the process unless it has ended, because its id may then belong to another process."""
        if not self.ended.done():
            os.kill(self.pid, signal.SIGKILL)


class Children:
    """Waits for every child of this process; call :meth:`reap` whenever SIGCHLD arrives."""

    def __init__(self) -> None:
        self._known: dict[int, Child] = {}

    def add(self, pid: int) -> Child:
        """Register a process, which may have ended already."""
        child = self._known[pid] = Child(pid)
        return child

    def reap(self) -> None:
        """Wait for all children that have ended, including those that were not started here."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._known.pop(pid, None)
            if child is not None:
                child.ended.set_result(os.waitstatus_to_exitcode(status))
