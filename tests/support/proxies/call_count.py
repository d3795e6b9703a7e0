"""Counts function calls, which measures a step independently of the machine and its load."""

import asyncio
import contextlib
import selectors
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp

from proxy.store.seal import Seal
from proxy.store.sqlite.db import SqliteWriting

COUNTED = (
    str(Path(__file__).resolve().parents[3] / "proxy") + "/",
    str(Path(aiohttp.__file__).parent) + "/",
)

CALLS_PER_CALLBACK_OF_A_BURST = 14_000  # 12,541 to 13,082 for 128 pieces of arguments, 98 calls each
"""The most calls that one callback makes if the machine reads all these events within its limit of 4 ms."""


PEERS = (
    str(Path(asyncio.__file__).parent) + "/",
    str(Path(selectors.__file__)),
    str(Path(__file__).resolve().parents[2]) + "/",
)
"""The code of the loop and of the peers, which is not the request's."""


@dataclass
class Spent:
    """What was spent while :meth:`counting`: Python's own frames, whoever's code that is, with generated and
    library code; JSON texts that were read or written; rows that were given to SQLite; and sealed values."""

    frames: int = 0
    json: int = 0
    rows: int = 0
    seals: int = 0

    def _see(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "call":
            code = frame.f_code
            self.frames += not code.co_filename.startswith(PEERS)
            self.seals += code is Seal._close.__code__
            if code is SqliteWriting.write.__code__ and frame.f_lasti <= 4:  # Not where it goes on.
                self.rows += sum(len(rows) for _, rows in frame.f_locals["batches"])
        elif event == "c_call":
            self.json += getattr(what, "__module__", "") in ("orjson", "_json")

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count what this thread spends."""
        before = sys.getprofile()
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(before)


class Count:
    """The number of calls made while :meth:`counting`.

    A call counts if code of the proxy or of aiohttp enters a Python function or calls one that is built in C.
    ``most`` is the number of calls of the callback that made the most, and ``which`` is that callback.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.most = 0
        self.which = ""
        self._known: dict[str, bool] = {}

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Count one call; the interpreter calls this as :func:`sys.setprofile` says."""
        if event in ("call", "c_call"):
            name = frame.f_code.co_filename
            counted = self._known.get(name)
            if counted is None:
                counted = self._known[name] = name.startswith(COUNTED)
            self.calls += counted

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls that this thread makes."""
        before = sys.getprofile()
        sys.setprofile(self.see)
        try:
            yield
        finally:
            sys.setprofile(before)

    @contextlib.contextmanager
    def counting_callbacks(self) -> Iterator[None]:
        """Count calls, and note the callback of asyncio's loop that makes the most."""
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
