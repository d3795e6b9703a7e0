"""How many paced streams one process holds: more and more of them until one of the bounds is passed.

The clients and the upstream are not free either, and on few cores they are full before a fast proxy is.
So beside the number that was held stands the one that its CPU time would do for.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bench.load import Load, Result
from bench.processes import Process

__all__ = ["DELAY_MS", "FULL", "PAUSE_MS", "Held", "Step", "Window", "climb", "hold", "load_of"]

PAUSE_MS = 20
"""One chunk each so many milliseconds, as fast models give their tokens."""
DELAY_MS = 50.0
"""What 99 of 100 chunks may take from the upstream to the client."""
FULL = 0.95
"""The share of its core above which a process has nothing left."""

_PACE_KEPT = 1.15
_FIRST, _RISE, _MOST_STEPS = 0.5, 0.1, 12
_OPENING_MS = 3
"""For each stream, so that their beginnings do not fill the core before they are all there."""

Bound = Literal["", "delay", "core", "instruments"]


@dataclass(frozen=True)
class Window:
    """Seconds: until what was opened goes evenly, and for how long it is measured then."""

    settle_s: float = 0.5
    measured_s: float = 2.0


@dataclass(frozen=True)
class Step:
    """So many streams at once: the 99th percentile of a chunk's delay (ms), the share of a core that the
    proxy used, and the pause between two chunks that the upstream kept (ms)."""

    streams: int
    delay_ms: float
    core: float
    pause_ms: float

    @property
    def passed(self) -> Bound:
        """The bound that it went over; of the ``instruments`` where the upstream was late itself."""
        if self.core >= FULL:
            return "core"
        if self.pause_ms > PAUSE_MS * _PACE_KEPT:
            return "instruments"
        return "delay" if self.delay_ms > DELAY_MS else ""

    @property
    def by_cpu(self) -> float:
        """The streams that fill the core if each of them takes what each took here."""
        if self.core <= 0:
            return 0.0
        return self.streams * (PAUSE_MS / self.pause_ms) * FULL / self.core


@dataclass(frozen=True)
class Held:
    """The most streams that were held, those that the CPU would do for, and what stood in the way."""

    streams: int
    by_cpu: float
    bound: Bound


def climb(first: Step, measure: Callable[[int], Step]) -> Held:
    """More and more streams, beginning well below what ``first`` says of the CPU, until a bound is passed.

    It is passed where it is passed twice: the machine's other work may spoil one step.
    """
    guess, held = first.by_cpu, first
    for number in range(_MOST_STEPS):
        streams = round(guess * (_FIRST + _RISE * number))
        if streams <= held.streams:
            continue
        step = measure(streams)
        if step.passed:
            step = measure(streams)
        if step.passed:
            return Held(held.streams, held.by_cpu, step.passed)
        held = step
    return Held(held.streams, held.by_cpu, "")


def load_of(port: int, streams: int, window: Window) -> Load:
    """The load that keeps so many streams open for as long as a window takes, and a little more."""
    opening_ms = _OPENING_MS * streams
    lasts_ms = opening_ms + 1000 * (window.settle_s + window.measured_s + 0.5)
    return Load(
        port,
        "paced",
        round(lasts_ms / PAUSE_MS),
        PAUSE_MS,
        connections=streams,
        requests=streams,
        hold=True,
        opening_ms=opening_ms,
        settle_s=window.settle_s,
        # To read each stamp would fill the clients' core before a fast proxy's.
        each_noted=max(1, streams // 50),
    )


def hold(
    process: Process, streams: int, window: Window, run: Callable[[Load, Callable[[], None]], Result]
) -> Step:
    """Hold so many streams and see what it takes; ``run`` runs a load and says when all of it is open."""
    shares: list[float] = []

    def look() -> None:
        time.sleep(window.settle_s)
        spent, began = process.cpu_s(), time.monotonic()
        time.sleep(window.measured_s)
        shares.append((process.cpu_s() - spent) / (time.monotonic() - began))

    load = load_of(process.port, streams, window)
    result = run(load, look)
    # Where none was seen while all were open, the first had ended before the last began.
    delay_ms = result.delay[1] or math.inf
    return Step(streams, delay_ms, shares[0] if shares else 0.0, result.latency[0] / load.count)
