"""The processes behind a command: ``serve`` is a supervisor that starts workers."""

import contextlib
import os
import signal
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started and has not waited for yet."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (thread / "children").read_text("ascii").split()]
    return found


def kill_tree(pid: int) -> None:
    """Kill a process and its children at the same moment, as a power failure does."""
    started = children(pid)
    # All are stopped first, so that none of them can react to the death of another.
    for one in (pid, *started):
        os.kill(one, signal.SIGSTOP)
    for one in (pid, *started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
