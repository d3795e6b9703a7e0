"""Tools that do not end when they are cancelled: when they count as stuck, and what happens then."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog
from runner_kit import MakeCall, MakeRunner, StillTime, echo, failure
from waiting import LATE_S, until

from proxy.tools import Redaction, tool
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.tasks.tool_tasks import ToolTasks

READ: dict[str, Any] = {"effect": "read_only", "redaction": Redaction(output=("*",))}


class Swallower:
    """Work that ignores its cancellation."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.began = asyncio.Event()
        self.told = asyncio.Event()

    async def work(self) -> None:
        """Go on until released."""
        self.began.set()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.told.set()


@contextmanager
def released(event: threading.Event) -> Iterator[None]:
    """Set the event at the end, so that a failed test leaves no thread behind."""
    try:
        yield
    finally:
        event.set()


async def test_stuck_tool_is_switched_off(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """A tool is switched off after three tasks ignored their cancellation, until these tasks end."""
    swallower = Swallower()

    @tool(timeout_s=0.01, **READ)
    async def stuck() -> None:
        """Never end."""
        await swallower.work()

    runner = await make_runner([stuck, echo])
    with structlog.testing.capture_logs() as lines:
        results = [await runner.run(call("stuck", "{}", seq), context) for seq in range(3)]
        await until(lambda: runner._tasks.is_disabled("t__stuck"))
        results.append(await runner.run(call("stuck", "{}", 3), context))
    assert [failure(one)["error_code"] for one in results] == ["timeout"] * 3 + ["execution_failed"]
    assert "switched off" in results[3].safe_message
    (line,) = (line for line in lines if line["event"] == "tool_switched_off")
    assert (line["log_level"], line["tool"], line["stuck"]) == ("error", "t__stuck", 3)
    assert "correct the tool" in line["hint"]
    assert (await runner.run(call("echo", '{"text":"a"}', 9), context)).ok
    assert await runner.drain(timeout_s=0.05) == 3
    swallower.release.set()
    with structlog.testing.capture_logs() as lines:
        assert await runner.drain() == 0
    assert [(line["event"], line["tool"]) for line in lines] == [("tool_switched_on", "t__stuck")]
    result = await runner.run(call("stuck", "{}", 10), context)
    assert result.ok, "a tool whose tasks have ended is on again"


async def test_stuck_threads_are_counted(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """A blocking tool that exceeds its timeout counts as stuck until its thread ends."""
    release = threading.Event()

    @tool(timeout_s=0.01, **READ)
    def stuck() -> None:
        """Never end."""
        release.wait(LATE_S)

    runner = await make_runner([stuck], max_stuck=2)
    with released(release):
        results = [await runner.run(call("stuck", "{}", seq), context) for seq in range(2)]
        await until(lambda: runner._tasks.is_disabled("t__stuck"))
        results.append(await runner.run(call("stuck", "{}", 2), context))
    assert [failure(one)["error_code"] for one in results] == ["timeout", "timeout", "execution_failed"]
    assert await runner.drain() == 0


async def test_clients_that_leave_switch_no_tool_off(
    make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule E4: a thread whose client has left is not stuck while it is within the tool's timeout."""
    begun = threading.Semaphore(0)
    release = threading.Event()

    @tool(timeout_s=LATE_S, **READ)
    def steady() -> str:
        """Take a while."""
        begun.release()
        release.wait(LATE_S)
        return "done"

    runner = await make_runner([steady], default_timeout_s=LATE_S)
    with released(release), structlog.testing.capture_logs() as lines:
        for seq in range(4):
            task = asyncio.create_task(runner.run(call("steady", "{}", seq), context))
            await until(lambda: begun.acquire(blocking=False))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert runner._tasks.stuck("t__steady") == 0
        release.set()
        assert (await runner.run(call("steady", "{}", 9), context)).content == "done"
        assert await runner.drain() == 0
    assert not [line for line in lines if line["event"] == "tool_switched_off"]


async def test_a_run_that_is_out_of_time_switches_no_tool_off(
    still_time: StillTime, make_runner: MakeRunner, context: RunContext, call: MakeCall
) -> None:
    """Rule T7: a thread that exceeds the run's remaining time, but not the tool's own, is not stuck."""
    release = threading.Event()

    @tool(timeout_s=LATE_S, **READ)
    def steady() -> str:
        """Take a while."""
        release.wait(LATE_S)
        return "done"

    runner = await make_runner([steady], default_timeout_s=LATE_S)
    with released(release):
        for seq in range(3):
            result = await runner.run(call("steady", "{}", seq), context, budget_s=0.02)
            assert result.error_code == "timeout"
        assert runner._tasks.stuck("t__steady") == 0
    assert (await runner.run(call("steady", "{}", 9), context)).content == "done"


async def test_who_leaves_early_hides_no_stuck_task() -> None:
    """A task whose client has left counts as stuck once it exceeds the tool's own timeout."""
    tasks = ToolTasks(max_stuck=1, grace_s=0.01)
    swallower = Swallower()
    task = asyncio.create_task(tasks.run("t__x", swallower.work, LATE_S, own_s=0.01))
    await swallower.began.wait()
    task.cancel()
    await swallower.told.wait()
    await until(lambda: tasks.is_disabled("t__x"))
    swallower.release.set()
    await until(lambda: not tasks.is_disabled("t__x"))


async def test_a_loop_that_was_held_up_costs_nobody_the_result() -> None:
    """Rule T7: a result that was ready in time counts, even if the event loop was blocked until later."""
    loop = asyncio.get_running_loop()
    release: asyncio.Future[int] = loop.create_future()

    async def work() -> int:
        await asyncio.wait({asyncio.ensure_future(asyncio.wait({release}))})
        return release.result()

    running = asyncio.create_task(ToolTasks().run("t__x", work, 0.05, own_s=0.05))
    for _ in range(10):
        await asyncio.sleep(0)
    release.set_result(7)
    time.sleep(0.1)  # noqa: ASYNC251  # This is what holds the loop up.
    assert await running == 7
