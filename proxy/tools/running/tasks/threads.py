"""Run blocking functions beside the event loop, in a bounded number of threads.

The executors of the standard library wait for their threads when the interpreter exits, so one tool that
hangs would keep the process from stopping. The threads of this module are daemons.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any

_Outcome = tuple[Any, BaseException | None]


class ThreadBound:
    """A runner of functions in threads, at most ``limit`` at once; further ones wait."""

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)
        self._inside: contextvars.ContextVar[bool] = contextvars.ContextVar("toolrelay_thread", default=False)

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run ``function`` in a thread; return its result, or raise what it raised.

        A thread cannot be killed. So the first cancellation waits here until the function has returned, and
        the canceller can see that it still runs. A second cancellation, such as the event loop sends at its
        end, takes effect at once; the thread keeps its place until it returns.
        """
        # A call from inside such a thread takes no place: its caller could hold the last one and wait for it.
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
            # The boundary of a thread: whatever a tool raises, even SystemExit, is its outcome.
            except BaseException as error:  # noqa: BLE001
                outcome = (None, error)
            # RuntimeError: the loop has closed, and nothing waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._deliver, done, outcome, taken)

        threading.Thread(target=work, name="toolrelay-tool", daemon=True).start()
        result, error = await _outlast(done)
        if error is not None:
            raise error
        return result

    def _deliver(self, done: asyncio.Future[_Outcome], outcome: _Outcome, taken: bool) -> None:
        """Give a thread's outcome to its waiter, if it still waits, and free the place."""
        if taken:
            self._free.release()
        if not done.done():
            done.set_result(outcome)


async def _outlast(done: asyncio.Future[_Outcome]) -> _Outcome:
    """Wait for ``done``; after a cancellation, wait on and raise it once ``done`` is set."""
    try:
        await asyncio.wait({done})
    except asyncio.CancelledError:
        await asyncio.wait({done})
        raise
    return done.result()
