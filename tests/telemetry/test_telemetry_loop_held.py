"""How long one step holds the event loop: the timer that measures it, and the metric."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from running_proxy import make_config, running
from waiting import until

from proxy.telemetry.instruments import LoopHeld


class Machine:
    """A clock, a processor and an event loop with one timer, all controlled by the test."""

    def __init__(self) -> None:
        self.now = self.used = 0.0
        self.due = 0.0
        self.timer: Callable[[], None] | None = None

    def time(self) -> float:
        """Return the loop's time."""
        return self.now

    def thread_time(self) -> float:
        """Return the processor time of the loop's thread."""
        return self.used

    def call_at(self, when: float, callback: Callable[..., None], *arguments: object) -> SimpleNamespace:
        """Set the timer."""
        self.due, self.timer = when, lambda: callback(*arguments)
        return SimpleNamespace(cancel=self.cancel)

    def cancel(self) -> None:
        """Cancel the timer."""
        self.timer = None

    def step(self, seconds: float, *, busy: bool) -> None:
        """Let time pass in one step of the loop, busy or idle; then call the timer if it is due."""
        self.now += seconds
        self.used += seconds if busy else 0.0
        if self.timer is not None and self.now >= self.due:
            self.timer()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Give the timer a loop and a processor that the test controls."""
    made = Machine()
    module = "proxy.telemetry.instruments"
    monkeypatch.setattr(f"{module}.asyncio", SimpleNamespace(get_running_loop=lambda: made))
    monkeypatch.setattr(f"{module}.time", made)
    return made


def told(machine: Machine, *steps: tuple[float, bool]) -> list[float]:
    """Return what the timer reports of steps of these lengths, busy or idle."""
    found: list[float] = []
    held = LoopHeld(found.append, every_s=0.25)
    held.start()
    for seconds, busy in steps:
        machine.step(seconds, busy=busy)
    held.stop()
    machine.step(10.0, busy=True)
    return found


def test_a_step_that_works_is_told(machine: Machine) -> None:
    """The timer reports how long a busy step delayed it, and nothing after the stop."""
    assert told(machine, (0.25, False), (0.125, False), (0.5, True)) == [0.0, 0.375]


def test_a_busy_machine_holds_nothing(machine: Machine) -> None:
    """A timer that is late because other processes had the processor reports no step of the loop."""
    assert told(machine, (4.0, False), (0.25, True), (0.125, True), (4.0, False)) == [0.0, 0.0, 0.125]


async def test_it_is_among_the_figures() -> None:
    """A step that holds a running proxy's loop is in its metrics, and the timer ends with the proxy."""
    async with running(make_config("http://127.0.0.1:9/v1")) as proxy:

        async def count(sample: str) -> float:
            text = (await proxy.get("/metrics")).body.decode()
            start = f"toolrelay_loop_held_seconds_{sample} "
            return sum(
                float(line.removeprefix(start)) for line in text.splitlines() if line.startswith(start)
            )

        async def ticks() -> bool:
            return await count("count") > 0

        async def tells() -> bool:
            return await count('bucket{le="0.1"}') < await count("count")

        await until(ticks)
        # This is four times the timer's interval, so the timer becomes due meanwhile.
        end = time.thread_time() + 0.4
        while time.thread_time() < end:
            pass
        await until(tells)
        held = proxy.services.instruments.loop_held
        assert held is not None
        assert held._timer is not None
    assert held._timer is None
