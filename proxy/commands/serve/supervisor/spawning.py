"""Starts processes of this program, and replaces the current process with one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from proxy.commands import {0}; "

SIGNALS_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that are blocked while one program replaces another, until the new one handles them."""


def _command(entry: str, fd: int) -> list[str]:
    """Return the command that runs a function of :mod:`proxy.commands` with one file descriptor.

    With ``-P`` and this ``sys.path``, its modules come from the same places as here, never from the current
    folder.
    """
    code = f"{_START.format(entry)}{entry}(int(sys.argv[2]))"
    return [sys.executable, "-P", "-c", code, json.dumps(sys.path), str(fd)]


def spawn(entry: str, channel: int, listeners: Sequence[int] = ()) -> int:
    """Start a process that inherits its end of the channel and the listening sockets; return its id.

    It has its own session: signals from a terminal go only to the supervisor, which forwards them. Raises
    OSError if the system cannot start it.
    """
    process = subprocess.Popen(
        _command(entry, channel),
        pass_fds=(channel, *listeners),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    # The supervisor waits for all of its children itself, so this object must not.
    process.returncode = 0
    return process.pid


def become(entry: str, fd: int, inherited: Sequence[int]) -> NoReturn:
    """Replace this process with another program, with the same id and open descriptors. Raises OSError."""
    for number in (fd, *inherited):
        os.set_inheritable(number, True)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_HELD)
    try:
        # The original arguments follow, for people who read the process list.
        os.execv(sys.executable, [*_command(entry, fd), *sys.argv[1:]])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_HELD)
