"""How a supervisor starts a worker, a Python process of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.server.config import Config

__all__ = ["WorkerSpec", "spawn"]

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from proxy.commands import work; "


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is told at its start.  ``listeners`` are file descriptors that it inherits."""

    number: int
    config: Config
    listeners: tuple[int, ...]


def spawn(channel: int, listeners: Sequence[int]) -> "subprocess.Popen[bytes]":
    """Start a worker that inherits its end of the channel and the listening sockets.

    It is in a session of its own: a signal from a terminal is for the supervisor, which passes it on.
    """
    # Its modules come from where ours do, never from whatever folder it is started in (-P).
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            f"{_START}work(int(sys.argv[2]))",
            json.dumps(sys.path),
            str(channel),
        ],
        pass_fds=(channel, *listeners),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
