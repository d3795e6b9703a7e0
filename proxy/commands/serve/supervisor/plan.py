"""The part of a configuration that a supervisor knows, and the data with which it starts.

A supervisor does not load the configuration, because the library that checks it would more than double its
memory. The process that reads the configuration makes a :class:`ServePlan` of it.
"""

import os
import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from proxy.telemetry.log.setup import LogFormat


@dataclass(frozen=True, slots=True)
class ServePlan:
    """The data with which workers are started.

    ``config`` is the whole configuration, pickled, for the workers only. It contains secrets, and so do
    ``secrets``, the values that the log must not show. ``mcp`` are the settings of the process that talks to
    MCP servers, empty if there are none. ``--reload`` watches ``files``, and the Python files below
    ``folders``.
    """

    config: bytes
    mcp: bytes
    host: str
    port: int
    workers: int
    drain_s: float
    notice_s: float
    log_format: LogFormat | None
    log_level: str
    secrets: tuple[str, ...]
    files: tuple[Path, ...]
    folders: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Handover:
    """The data that the process which reads the configuration hands to the supervisor it becomes.

    ``source`` says, pickled, from where to read the configuration again. ``listeners`` and ``channel`` are
    file descriptors: of the bound sockets, and of the channel to the first worker, whose process is ``pid``.
    """

    plan: ServePlan
    source: bytes
    reload: bool
    listeners: tuple[int, ...]
    pid: int
    channel: int


def write_handover(handover: Handover) -> int:
    """Return a file descriptor from which the handover can be read.

    The handover contains secrets, so it is in memory or, on systems without such files, in an unnamed file.
    """
    with _unnamed() as file:
        file.write(pickle.dumps(handover))
        file.flush()
        file.seek(0)
        return os.dup(file.fileno())


def _unnamed() -> IO[bytes]:
    if (in_memory := getattr(os, "memfd_create", None)) is not None:
        return os.fdopen(in_memory("toolrelay-handover"), "w+b")
    return tempfile.TemporaryFile()


def read_handover(fd: int) -> Handover:
    """Read the handover that :func:`write_handover` wrote."""
    with os.fdopen(fd, "rb") as file:
        handover: Handover = pickle.load(file)
    return handover
