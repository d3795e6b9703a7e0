"""Which process listens on a port already: for the message of a start that cannot have it."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SUPERVISOR", "WORKER", "Holder", "call_process", "explain_holders", "find_holders"]

SUPERVISOR = "toolrelay"
WORKER = "toolrelay-work"
"""How this package calls its processes in the list of processes."""

_LISTENING = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that listens on the port."""

    pid: int
    name: str


def call_process(name: str) -> None:
    """Give this process a name in the list of processes, where the system has such names."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def find_holders(port: int) -> list[Holder]:
    """The processes that listen on a port, as far as this user may look at them; none where nobody knows."""
    sockets = {f"socket:[{inode}]" for table in _TABLES for inode in _listening(table, port)}
    if not sockets:
        return []
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(fd) in sockets for fd in _descriptors(entry)):
                found.append(Holder(int(entry.name), (entry / "comm").read_text("utf-8", "replace").strip()))
    return sorted(found, key=lambda holder: holder.pid)


def _descriptors(process: Path) -> list[Path]:
    return [fd for fd in (process / "fd").iterdir() if fd.is_symlink()]


def _listening(table: str, port: int) -> list[str]:
    """The inodes of the listening sockets of a port."""
    try:
        lines = Path(table).read_text("ascii").splitlines()[1:]
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [
        field[9]
        for field in fields
        if field[3] == _LISTENING and int(field[1].rpartition(":")[2], 16) == port
    ]


def explain_holders(holders: list[Holder]) -> tuple[str, str]:
    """Which process has the port, and what to do about it; empty if that is unknown."""
    ours = [holder for holder in holders if holder.name in (SUPERVISOR, WORKER)]
    supervisors = [holder for holder in ours if holder.name == SUPERVISOR]
    if supervisors:
        pid = supervisors[0].pid
        return f" by another toolrelay (process {pid})", f"Stop it (kill {pid})"
    if ours:
        pids = " ".join(str(holder.pid) for holder in ours)
        return (
            f" by an earlier toolrelay whose supervisor is gone (process {pids})",
            f"Wait until it has finished its open requests, or end it now (kill -9 {pids})",
        )
    if holders:
        first = holders[0]
        return f" by process {first.pid} ({first.name})", f"Stop it (kill {first.pid})"
    return "", ""
