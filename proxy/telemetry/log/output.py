"""Write the lines of the log, to a stream directly or to the queue in front of it."""

from collections.abc import Sequence
from typing import Any, BinaryIO, TextIO

import structlog
from structlog.typing import Processor

from proxy.telemetry.log.output_queue import QueuedStream


class LogLines:
    """structlog's output for one logger name: it writes each event as a line to a stream."""

    def __init__(self, name: str, out: TextIO | QueuedStream) -> None:
        self.name = name
        self._out = out
        # If the stream has a binary layer, bytes need not be decoded first.
        self._bytes: BinaryIO | None = getattr(out, "buffer", None)
        self._queue = out.queue if isinstance(out, QueuedStream) else None

    @property
    def dropped(self) -> int:
        """The number of lines that were dropped because their reader did not keep up."""
        return self._queue.dropped if self._queue is not None else 0

    def msg(self, line: str | bytes) -> None:
        """Write a line at once, or queue it; ignore errors, because a broken log must not stop the proxy.

        Bytes contain the line's end, text does not.
        """
        if self._queue is not None:
            self._queue.put(line if isinstance(line, bytes) else _encoded(line))
            return
        try:
            if isinstance(line, str):
                self._out.write(line + "\n")
                self._out.flush()
            elif self._bytes is not None:
                self._bytes.write(line)
                self._bytes.flush()
            else:
                self._out.write(line.decode())
                self._out.flush()
        except (OSError, ValueError):
            return

    debug = info = warning = warn = error = exception = critical = fatal = msg


def dropped_line(steps: Sequence[Processor], logger: LogLines, dropped: int) -> bytes:
    """Return the line that replaces dropped lines, made by the ``steps`` of the log."""
    made: Any = {
        "event": "log_lines_dropped",
        "dropped": dropped,
        "note": f"{dropped} log lines were dropped because the reader of the log did not keep up",
    }
    for step in steps:
        made = step(logger, "warning", made)
    return made if isinstance(made, bytes) else _encoded(made)


def count_dropped_lines() -> int:
    """Return how many log lines of this process were dropped because their reader did not keep up."""
    logger = structlog.get_config()["logger_factory"]("proxy.log")
    return logger.dropped if isinstance(logger, LogLines) else 0


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"
