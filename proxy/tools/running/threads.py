"""Blocking functions beside the event loop, in a bounded number of threads.

The executors of the standard library wait for their threads when the interpreter ends, so that
one tool that hangs would keep the whole process from stopping.  These threads are daemons.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["ThreadBound"]

_Outcome = tuple[Any, BaseException | None]


class ThreadBound:
    """Runs functions in threads, at most ``limit`` at once; more wait their turn."""

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)
        self._inside: contextvars.ContextVar[bool] = contextvars.ContextVar("toolrelay_thread", default=False)

    async def run(self, function: Callable[[], Any]) -> Any:
        """The function's result, or whatever it raised.

        A thread cannot be killed: the first cancellation waits here until the function has
        returned, so that whoever cancelled can see that it has not.  A second one, as the end of
        the event loop sends it, is obeyed at once; the thread keeps its place until it returns.
        """
        # A function that waits for another of these would hold the last place and wait for one.
        taken = not self._inside.get()
        if taken:
            await self._free.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Outcome] = loop.create_future()
        context = contextvars.copy_context()
        context.run(self._inside.set, True)

        def work() -> None:
            outcome: _Outcome
            try:
                outcome = (context.run(function), None)
            # The boundary of a thread: whatever a tool raises, SystemExit too, is its result.
            except BaseException as error:  # noqa: BLE001
                outcome = (None, error)
            # RuntimeError: the loop has closed, and nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._deliver, done, outcome, taken)

        threading.Thread(target=work, name="toolrelay-tool", daemon=True).start()
        result, error = await _outlast(done)
        if error is not None:
            raise error
        return result

    def _deliver(self, done: asyncio.Future[_Outcome], outcome: _Outcome, taken: bool) -> None:
        """Hand a thread's outcome to whoever still waits, and its place to the next."""
        if taken:
            self._free.release()
        if not done.done():
            done.set_result(outcome)


async def _outlast(done: asyncio.Future[_Outcome]) -> _Outcome:
    """Wait for ``done`` through one cancellation, and pass that on afterwards."""
    try:
        await asyncio.wait({done})
    except asyncio.CancelledError:
        await asyncio.wait({done})
        raise
    return done.result()
