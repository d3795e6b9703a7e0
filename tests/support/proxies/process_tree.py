"""The processes behind a command: ``serve`` is a supervisor, and the workers that it started."""

import contextlib
import os
import signal
from pathlib import Path

__all__ = ["children", "kill_tree"]


def children(pid: int) -> list[int]:
    """The processes that a process has started and not waited for yet."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (thread / "children").read_text("ascii").split()]
    return found


def kill_tree(pid: int) -> None:
    """Kill a process and its children as a machine does that loses its power."""
    started = children(pid)
    # None of them may do anything about the death of another.
    for one in (pid, *started):
        os.kill(one, signal.SIGSTOP)
    for one in (pid, *started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
