"""Put standard error and standard output behind a bounded queue, so that no reader can stop the event loop.

A pipe that nobody reads blocks its writer. So one thread writes, and all other code appends to a queue that
is limited in lines and in bytes. Lines above the limit are dropped and counted. When the reader reads
again, one line says how many were dropped.
"""

import atexit
import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TextIO

from proxy.base.caches import CacheSize, declare

MAX_LINES: Final = 10_000
MAX_BYTES: Final = 8 << 20
"""The most bytes that wait for a reader, including those that are being written."""
MAX_WRITE: Final = select.PIPE_BUF
"""The most bytes of one write, unless a single line is longer. A pipe accepts this many in one piece, so the
lines of several workers on one pipe do not mix."""
MAX_PART: Final = 64 << 10
"""The most bytes of an unfinished line that wait for its rest."""
GATHER_S: Final = 0.002
"""Seconds that the writer waits after it was woken; under load one write then contains many lines."""
CLOSE_S: Final = 1.0
"""Seconds to write waiting lines at the end of the process."""


def _dropped_line(lines: int) -> bytes:
    return b"toolrelay: %d lines were dropped because the reader of the log did not keep up\n" % lines


class OutputQueue:
    """A queue of lines to a file descriptor; one thread writes them in order.

    ``put`` may be called from any thread. The writing thread starts with the first line, and again in a
    forked process. The parent process writes the lines that waited before the fork.
    """

    def __init__(self, fd: int, *, max_lines: int = MAX_LINES, max_bytes: int = MAX_BYTES) -> None:
        self._fd = fd
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self.dropped = 0
        """The number of lines that were dropped since the start of the process."""
        self.make_dropped_line: Callable[[int], bytes] = _dropped_line
        """Makes the line about dropped lines from their number."""
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        declare("log_lines", self._cache_size)

    def _cache_size(self) -> CacheSize:
        lines = 100 * len(self._lines)
        return CacheSize(self._size + lines, self._max_bytes + 100 * self._max_lines + 4096)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Semaphore(0)
        self._empty = threading.Condition(self._lock)
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._unreported = 0
        self._asleep = True
        self._closing = False
        self._thread: threading.Thread | None = None

    def put(self, line: bytes) -> None:
        """Queue a line that contains its end; never waits for the reader, never raises."""
        with self._lock:
            if self._size + len(line) > self._max_bytes or len(self._lines) >= self._max_lines:
                self.dropped += 1
                self._unreported += 1
                return
            if self._unreported:
                self._report_dropped()
            self._lines.append(line)
            self._size += len(line)
            if not self._asleep:
                return
            self._asleep = False
        if self._thread is None:
            self._begin()
        self._wake.release()

    def _begin(self) -> None:
        if sys.is_finalizing():
            # A thread that starts now never runs, and the start would wait for it for ever.
            self._asleep = True
            return
        # A daemon thread, because a stuck reader must not keep the process alive.
        self._thread = threading.Thread(target=self._write_all, name="output", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # No thread is left, or the interpreter is about to end.
            self._thread = None
            self._asleep = True

    def _report_dropped(self) -> None:
        """Queue the line about the dropped lines in their place. The caller holds the lock."""
        line = self.make_dropped_line(self._unreported)
        self._unreported = 0
        self._lines.append(line)
        self._size += len(line)

    def _write_all(self) -> None:
        while True:
            self._wake.acquire()
            if self._closing:
                return
            time.sleep(GATHER_S)
            while piece := self._take():
                self._write(piece)
                with self._lock:
                    self._size -= len(piece)

    def _take(self) -> bytes:
        """Return the next lines to write; if there are none, return empty bytes and mark the writer as
        asleep."""
        with self._lock:
            if not self._lines and self._unreported:
                self._report_dropped()
            taken: list[bytes] = []
            room = MAX_WRITE
            while self._lines and (not taken or len(self._lines[0]) <= room):
                line = self._lines.popleft()
                taken.append(line)
                room -= len(line)
            if not taken:
                self._asleep = True
                self._empty.notify_all()
        return b"".join(taken)

    def _write(self, data: bytes) -> None:
        """Write all of ``data``; drop it if the output is closed, because that must not stop the proxy."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:  # Other code made the descriptor non-blocking.
                time.sleep(0.05)
            except OSError:
                return

    def flush(self, within_s: float = CLOSE_S) -> bool:
        """Wait up to ``within_s`` seconds until everything is written; return whether it is."""
        deadline = time.monotonic() + within_s
        with self._lock:
            while not self._asleep or self._lines:
                left = deadline - time.monotonic()
                if left <= 0 or self._thread is None:
                    return False
                self._empty.wait(left)
        return True

    def close(self, within_s: float = CLOSE_S) -> None:
        """Write the waiting lines for up to ``within_s`` seconds, and end the thread; a later line starts
        another."""
        if self.flush(within_s) and (thread := self._thread) is not None:
            self._closing = True
            self._wake.release()
            thread.join(within_s)
            self._closing, self._thread = False, None


class QueuedStream:
    """A text stream that writes through an :class:`OutputQueue`, and is its own ``buffer``.

    Text without a line end waits for the rest of its line, so that lines of several threads do not mix.
    """

    def __init__(self, inner: TextIO, queue: OutputQueue) -> None:
        self.queue = queue
        self.encoding = inner.encoding
        self.errors = inner.errors
        self._inner = inner
        self._parts: list[bytes] = []
        self._part_lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    @property
    def buffer(self) -> "QueuedStream":
        return self

    def _forget(self) -> None:
        """Drop an unfinished line in a forked process; the parent process writes it."""
        self._part_lock = threading.Lock()
        self._parts = []

    def put(self, line: bytes) -> None:
        """Queue a whole line, including its end."""
        self.queue.put(line)

    def write(self, text: str | bytes) -> int:
        """Queue text, or bytes if the caller uses ``buffer``."""
        if isinstance(text, str):
            data = text.encode(self.encoding or "utf-8", "backslashreplace")
        else:
            data = bytes(text)
        with self._part_lock:
            whole, end, rest = data.rpartition(b"\n")
            if not end:
                self._parts.append(data)
                if sum(map(len, self._parts)) < MAX_PART:
                    return len(text)
                whole, rest = b"", b""
            else:
                self._parts.append(whole + end)
            ready = b"".join(self._parts)
            self._parts = [rest] if rest else []
        self.queue.put(ready)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can."""

    def close_out(self) -> None:
        """Write all remaining lines, even an unfinished one, and wait a short time for the thread."""
        with self._part_lock:
            rest, self._parts = b"".join(self._parts), []
        if rest:
            self.queue.put(rest)
        self.queue.close()

    def isatty(self) -> bool:
        return self._inner.isatty()

    def fileno(self) -> int:
        return self._inner.fileno()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    @property
    def closed(self) -> bool:
        return False


def queue_output() -> None:
    """Put standard error and standard output behind a queue for the rest of the process.

    If both are the same file, they share one queue, which keeps the order of their lines. A stream that is
    not a file, or is already queued, does not change.
    """
    queues: dict[tuple[int, int], OutputQueue] = {}
    for name in ("stderr", "stdout"):
        stream = getattr(sys, name)
        if stream is None or isinstance(stream, QueuedStream):
            continue
        try:
            fd = stream.fileno()
            status = os.fstat(fd)
        except (OSError, ValueError, AttributeError):
            continue
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
        queue = queues.setdefault((status.st_dev, status.st_ino), OutputQueue(fd))
        queued = QueuedStream(stream, queue)
        setattr(sys, name, queued)
        atexit.register(queued.close_out)
