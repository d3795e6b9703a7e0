"""How many calls a step takes: the same on every machine, however busy."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp

__all__ = ["CALLS_PER_CALLBACK_OF_A_BURST", "Count"]

COUNTED = (
    str(Path(__file__).resolve().parents[3] / "proxy") + "/",
    str(Path(aiohttp.__file__).parent) + "/",
)

CALLS_PER_CALLBACK_OF_A_BURST = 14_000  # 12,541 to 13,082: 128 events, each a piece of arguments, at 98 calls
"""Where a machine is quick enough to read so many events in the 4 ms that a callback may take."""


class Count:
    """Calls made while :meth:`counting`.

    A call is one of Python's own functions entered, or one built in C called, from the proxy's code or
    from aiohttp's.  ``most`` is those of the callback that made the most, ``which`` that callback.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.most = 0
        self.which = ""
        self._known: dict[str, bool] = {}

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """What the interpreter tells of each call, as :func:`sys.setprofile` has it."""
        if event in ("call", "c_call"):
            name = frame.f_code.co_filename
            counted = self._known.get(name)
            if counted is None:
                counted = self._known[name] = name.startswith(COUNTED)
            self.calls += counted

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count what this thread calls."""
        before = sys.getprofile()
        sys.setprofile(self.see)
        try:
            yield
        finally:
            sys.setprofile(before)

    @contextlib.contextmanager
    def counting_callbacks(self) -> Iterator[None]:
        """Count, and note the callback of asyncio's loop that makes the most calls."""
        run = asyncio.events.Handle._run

        def counted_run(handle: asyncio.Handle) -> None:
            before = self.calls
            run(handle)
            if self.calls - before > self.most:
                self.most, self.which = self.calls - before, repr(handle)[:400]

        asyncio.events.Handle._run = counted_run  # type: ignore[method-assign,assignment]
        try:
            with self.counting():
                yield
        finally:
            asyncio.events.Handle._run = run  # type: ignore[method-assign]
