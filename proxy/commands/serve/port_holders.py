"""Finds the process that already listens on a port, for the message of a start that fails because of it."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

SUPERVISOR = "toolrelay"
WORKER = "toolrelay-work"
"""The names of this package's processes in the system's process list."""

_PROCESSES = Path("/proc")
_LISTENING = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that listens on the port."""

    pid: int
    name: str


def set_process_name(name: str) -> None:
    """Name this process in the system's process list, if the system supports that."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def find_holders(port: int) -> list[Holder]:
    """Return the processes that listen on a port, as far as this user may see them; else an empty list.

    Processes of this package hide their descriptors from others of their user. If the socket is of this
    user and only one supervisor runs, it is theirs.
    """
    listening = [inode for table in _TABLES for inode in _listening(table, port)]
    sockets = {f"socket:[{inode}]" for inode, _ in listening}
    if not sockets:
        return []
    holders, hidden = [], []
    for entry in _PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            holder = Holder(int(entry.name), (entry / "comm").read_text("utf-8", "replace").strip())
            try:
                if any(os.readlink(fd) in sockets for fd in _descriptors(entry)):
                    holders.append(holder)
            except PermissionError:
                hidden.append(holder)
    if not holders and any(uid == os.getuid() for _, uid in listening):
        ours = [holder for holder in hidden if holder.name in (SUPERVISOR, WORKER)]
        holders = ours if sum(holder.name == SUPERVISOR for holder in ours) == 1 else []
    return sorted(holders, key=lambda holder: holder.pid)


def _descriptors(process: Path) -> list[Path]:
    return [fd for fd in (process / "fd").iterdir() if fd.is_symlink()]


def _listening(table: str, port: int) -> list[tuple[str, int]]:
    """Return the inodes and users of the listening sockets of a port."""
    try:
        lines = Path(table).read_text("ascii").splitlines()[1:]
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [
        (field[9], int(field[7]))
        for field in fields
        if field[3] == _LISTENING and int(field[1].rpartition(":")[2], 16) == port
    ]


def explain_holders(holders: list[Holder]) -> tuple[str, str]:
    """Return which process has the port, and what to do about it; both are empty if that is unknown."""
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
