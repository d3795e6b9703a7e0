"""How a supervisor comes to be, and how it starts processes of its own kind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["SIGNALS_HELD", "become", "spawn"]

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from proxy.commands import {0}; "

SIGNALS_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They wait while one program takes another's place, until it listens to them."""


def _command(entry: str, fd: int) -> list[str]:
    """Run a function of :mod:`proxy.commands` with one file descriptor.

    Its modules come from where ours do, never from whatever folder it is started in (-P).
    """
    code = f"{_START.format(entry)}{entry}(int(sys.argv[2]))"
    return [sys.executable, "-P", "-c", code, json.dumps(sys.path), str(fd)]


def spawn(entry: str, channel: int, listeners: Sequence[int] = ()) -> int:
    """Start a process that inherits its end of the channel and the listening sockets; its number.

    It is in a session of its own: a signal from a terminal is for the supervisor, which passes it on.
    Raises OSError where the system has no room for it.
    """
    process = subprocess.Popen(
        _command(entry, channel),
        pass_fds=(channel, *listeners),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    # The supervisor waits for all of its children itself; this object must not.
    process.returncode = 0
    return process.pid


def become(entry: str, fd: int, inherited: Sequence[int]) -> NoReturn:
    """Go on as another program, under the same number; the descriptors stay open.  Raises OSError."""
    for one in (fd, *inherited):
        os.set_inheritable(one, True)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_HELD)
    try:
        # What was asked for stands behind it, for people who look at the list of processes.
        os.execv(sys.executable, [*_command(entry, fd), *sys.argv[1:]])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_HELD)
