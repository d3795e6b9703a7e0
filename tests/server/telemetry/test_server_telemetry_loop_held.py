"""How long the loop is held: what a timer makes of it, and where it is to be seen."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from running_proxy import make_config, running
from waiting import until

from proxy.server.telemetry.loop_held import LoopHeld


class Machine:
    """A clock, a processor and a loop with one timer, all of which go as the test says."""

    def __init__(self) -> None:
        self.now = self.used = 0.0
        self.due = 0.0
        self.timer: Callable[[], None] | None = None

    def time(self) -> float:
        """The loop's clock."""
        return self.now

    def thread_time(self) -> float:
        """What the loop's thread has used of the processor."""
        return self.used

    def call_at(self, when: float, callback: Callable[..., None], *arguments: object) -> SimpleNamespace:
        """Set the timer."""
        self.due, self.timer = when, lambda: callback(*arguments)
        return SimpleNamespace(cancel=self.cancel)

    def cancel(self) -> None:
        """Take it back."""
        self.timer = None

    def step(self, seconds: float, *, busy: bool) -> None:
        """Let time pass in one step of the loop, which works or only waits; then the timer may go off."""
        self.now += seconds
        self.used += seconds if busy else 0.0
        if self.timer is not None and self.now >= self.due:
            self.timer()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """What the timer takes for the loop and the processor."""
    made = Machine()
    module = "proxy.server.telemetry.loop_held"
    monkeypatch.setattr(f"{module}.asyncio", SimpleNamespace(get_running_loop=lambda: made))
    monkeypatch.setattr(f"{module}.time", made)
    return made


def told(machine: Machine, *steps: tuple[float, bool]) -> list[float]:
    """What is told of steps that take so long, busy or not."""
    found: list[float] = []
    held = LoopHeld(found.append, every_s=0.25)
    held.start()
    for seconds, busy in steps:
        machine.step(seconds, busy=busy)
    held.stop()
    machine.step(10.0, busy=True)
    return found


def test_a_step_that_works_is_told(machine: Machine) -> None:
    """The processor time of a step that was under way when the timer was due; none after the stop."""
    assert told(machine, (0.25, False), (0.125, False), (0.5, True)) == [0.0, 0.375]


def test_a_busy_machine_holds_nothing(machine: Machine) -> None:
    """A timer that is late since others had the processor tells of no step of ours."""
    assert told(machine, (4.0, False), (0.25, True), (0.125, True), (4.0, False)) == [0.0, 0.0, 0.125]


async def test_it_is_among_the_figures() -> None:
    """A step that holds a running proxy's loop is in its figures; nothing goes on after its end."""
    async with running(make_config("http://127.0.0.1:9/v1")) as proxy:

        async def count(sample: str) -> float:
            text = (await proxy.ask(None, method="GET", path="/metrics")).body.decode()
            start = f"toolrelay_loop_held_seconds_{sample} "
            return sum(
                float(line.removeprefix(start)) for line in text.splitlines() if line.startswith(start)
            )

        async def ticks() -> bool:
            return await count("count") > 0

        async def tells() -> bool:
            return await count('bucket{le="0.1"}') < await count("count")

        await until(ticks)
        # Four times as long as the timer waits: it is due meanwhile, whenever it was set.
        end = time.thread_time() + 0.4
        while time.thread_time() < end:
            pass
        await until(tells)
        held = proxy.services.instruments.loop_held
        assert held is not None
        assert held._timer is not None
    assert held._timer is None
