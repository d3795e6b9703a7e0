"""Background work that must not end."""

import asyncio
import contextlib

from structlog.testing import capture_logs

from proxy.net.keep_running import keep_running


async def test_work_that_fails_goes_on_and_says_so() -> None:
    """Whatever the work raises, it begins again; the log names it once for failures of one kind in a row."""
    outcomes = [None, KeyError("a"), KeyError("b"), TypeError(), None, OSError(), None]
    left = iter(outcomes)
    done = asyncio.Event()

    async def work() -> None:
        outcome = next(left, done)
        if outcome is done:
            done.set()
            await asyncio.Event().wait()
        if isinstance(outcome, Exception):
            raise outcome

    with capture_logs() as lines:
        task = asyncio.create_task(keep_running("x", work, after_failure_s=0.0))
        await done.wait()
    assert [(line["event"], line["task"]) for line in lines] == [
        ("background_work_failed", "x"),
        ("background_work_failed", "x"),
        ("background_work_goes_on", "x"),
        ("background_work_failed", "x"),
        ("background_work_goes_on", "x"),
    ]
    assert all(line["exc_info"] for line in lines if line["event"] == "background_work_failed")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
