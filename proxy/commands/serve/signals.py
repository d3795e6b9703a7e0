"""What ends a server: signals, and the requests that they stand for."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""The signals that end a server: the first one gracefully, a second one at once."""


class Signals:
    """The requests to a serving process: ``stop``, then ``hurry``; or ``retire`` if other processes continue.

    ``abandoned`` is set if its supervisor has ended, and another server may need the port now.
    """

    def __init__(self) -> None:
        self.abandoned = asyncio.Event()
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.retire = asyncio.Event()

    def signalled(self) -> None:
        """Handle a signal: the first sets ``stop``, a further one ``hurry``."""
        (self.hurry if self.stop.is_set() else self.stop).set()


async def first_of(*works: Coroutine[Any, Any, Any], within_s: float | None = None) -> bool:
    """Wait for the first of these to end and cancel the others; return whether one ended in time."""
    tasks = {asyncio.ensure_future(work) for work in works}
    try:
        done, _ = await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    return bool(done)


@contextlib.contextmanager
def on_signals(actions: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Inside the block, call the function for each signal when the signal arrives."""
    loop = asyncio.get_running_loop()
    for number, act in actions.items():
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in actions:
            loop.remove_signal_handler(number)


def has_terminal() -> bool:
    """Return whether this process has a terminal that could close."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
