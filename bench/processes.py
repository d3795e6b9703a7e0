"""Processes under measurement: CPU time and memory of a whole process tree, read from /proc."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_READY_S = 60.0
_HOLDERS: list[socket.socket] = []


def free_port() -> int:
    """Return a port of the loopback that nobody else gets while this process runs.

    A socket that does not listen holds it. Linux then assigns the port to nobody who asks for any free port,
    but gives it to a server that asks for this very port with SO_REUSEADDR.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _HOLDERS.append(holder)
    return int(holder.getsockname()[1])


class Process:
    """A started process and all its descendants."""

    def __init__(self, name: str, port: int, child: "subprocess.Popen[bytes]") -> None:
        self.name = name
        self.port = port
        self._child = child

    def pids(self, without: str = "") -> list[int]:
        """Return the process and its descendants, except those whose command line contains ``without``."""
        found, waiting = [], [self._child.pid]
        while waiting:
            pid = waiting.pop()
            if without and without in _command_line(pid):
                continue
            found.append(pid)
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    waiting += map(int, (task / "children").read_text().split())
        return found

    def cpu_s(self, without: str = "") -> float:
        """Return the CPU seconds so far of every living thread; exact to nanoseconds if the kernel counts
        them.

        ``without`` is passed to :meth:`pids`.
        """
        total = 0
        for pid in self.pids(without):
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    total += int(task.read_text().split()[0])
        return total / 1e9 if total else self._ticks(without) / os.sysconf("SC_CLK_TCK")

    def _ticks(self, without: str) -> int:
        ticks = 0
        for pid in self.pids(without):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks

    def memory_kib(self) -> int:
        """Return the proportional set size: shared memory is divided among the processes that share it."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1])
        return total

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._child.send_signal(number)

    def stop(self) -> None:
        """End the process, finally by force."""
        self.send(signal.SIGTERM)
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


@contextlib.contextmanager
def started(
    name: str,
    port: int,
    command: Sequence[str],
    log: Path,
    *,
    core: int | None,
    env: Mapping[str, str] = {},
    ready_s: float = _READY_S,
) -> Iterator[Process]:
    """Run a process that listens on ``port`` during the block, after ``ready_s`` seconds at the latest;
    ``core`` pins it to one core.

    Raises RuntimeError with the end of its log if it does not come up.
    """
    before = os.sched_getaffinity(0)
    if core is not None and core in before:
        os.sched_setaffinity(0, {core})
    try:
        with log.open("wb") as sink:
            child = subprocess.Popen(
                command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, env={**os.environ, **env}
            )
    finally:
        os.sched_setaffinity(0, before)
    process = Process(name, port, child)
    try:
        _await_port(child, port, name, log, ready_s)
        yield process
    finally:
        process.stop()


def _await_port(child: "subprocess.Popen[bytes]", port: int, name: str, log: Path, ready_s: float) -> None:
    give_up = time.monotonic() + ready_s
    while time.monotonic() < give_up and child.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{name} did not come up:\n{log.read_text(errors='replace')[-2000:]}")


def python(*arguments: str) -> list[str]:
    """Return a command that runs this interpreter."""
    return [sys.executable, *arguments]
