"""A scripted upstream in a thread of its own, for a test of a command that takes this thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raw_upstream import RawRequest, RawUpstream, Script
from waiting import PATIENCE_S

__all__ = ["upstream_in_thread"]


@contextmanager
def upstream_in_thread(*scripts: Script) -> Iterator[tuple[str, Callable[[], list[RawRequest]]]]:
    """Run a scripted upstream in a thread; yield its address and a function that returns its requests."""
    ready, stop = threading.Event(), threading.Event()
    found: list[RawUpstream] = []

    async def serve() -> None:
        async with RawUpstream(*scripts) as scripted:
            found.append(scripted)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield found[0].url, lambda: found[0].requests
    finally:
        stop.set()
        thread.join(PATIENCE_S)
