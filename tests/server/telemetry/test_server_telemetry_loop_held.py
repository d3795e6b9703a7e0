"""How long the loop is held: what a timer makes of it, and where it is to be seen."""

import asyncio
import time

from running_proxy import make_config, running
from waiting import until

from proxy.server.telemetry.loop_held import LoopHeld


def work(seconds: float) -> None:
    """Use so much of the processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def seen(step: float, *, busy: bool) -> list[float]:
    """What is told of a step that works, or that only waits."""
    told: list[float] = []
    held = LoopHeld(told.append, every_s=0.02)
    held.start()
    await asyncio.sleep(0.1)
    told.clear()
    if busy:
        work(step)
    else:
        time.sleep(step)  # noqa: ASYNC251 - as another process that has the processor
    await until(lambda: bool(told))
    held.stop()
    count = len(told)
    await asyncio.sleep(0.1)
    assert len(told) == count
    return told


async def test_a_step_that_works_is_told() -> None:
    """The processor time of a step that was under way when the timer was due."""
    told = await seen(0.3, busy=True)
    assert 0.2 < max(told) < 0.4


async def test_a_busy_machine_holds_nothing() -> None:
    """A timer that is late since others had the processor tells of no step of ours."""
    told = await seen(0.3, busy=False)
    assert max(told) < 0.15


async def test_it_is_among_the_figures() -> None:
    """A step that holds a running proxy's loop is in its figures; nothing goes on after its end."""
    async with running(make_config("http://127.0.0.1:9/v1")) as proxy:
        await asyncio.sleep(0.25)
        work(0.4)
        await asyncio.sleep(0.25)
        text = (await proxy.ask(None, method="GET", path="/metrics")).body.decode()
        held = proxy.services.instruments.loop_held
        assert held is not None
        assert held._timer is not None
    assert held._timer is None
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("toolrelay_loop_held")]
    counts = {name: float(figure) for name, _, figure in lines}
    total = counts["toolrelay_loop_held_seconds_count"]
    assert total >= 2
    assert counts['toolrelay_loop_held_seconds_bucket{le="0.1"}'] < total
