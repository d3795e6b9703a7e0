"""Finds how many paced streams one process can hold: it opens more and more until a bound is passed.

The clients and the upstream also need CPU. On few cores they may be full before a fast proxy is. So the
result also has the number for which the proxy's CPU time would suffice.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bench.load import Load, Result
from bench.processes import Process

PAUSE_MS = 20
"""Milliseconds between two chunks, as fast models write their tokens."""
DELAY_MS = 50.0
"""The longest time from the upstream to the client that is allowed for 99 of 100 chunks."""
FULL = 0.95
"""The share of its core above which a process has no reserve."""

_PACE_KEPT = 1.15
_FIRST, _RISE, _MOST_STEPS = 0.5, 0.1, 12
_OPENING_MS = 3
"""Milliseconds between the starts of two streams, so that starting them does not fill the core."""

Bound = Literal["", "delay", "core", "instruments"]


@dataclass(frozen=True)
class Window:
    """Seconds until opened streams run evenly, and seconds for which they are then measured."""

    settle_s: float = 0.5
    measured_s: float = 2.0


@dataclass(frozen=True)
class Step:
    """A measurement with a number of streams at once.

    It has the 99th percentile of a chunk's delay (ms), the share of a core that the proxy used, and the pause
    between two chunks that the upstream achieved (ms).
    """

    streams: int
    delay_ms: float
    core: float
    pause_ms: float

    @property
    def passed(self) -> Bound:
        """The bound that was passed; ``instruments`` if the upstream itself was late."""
        if self.core >= FULL:
            return "core"
        if self.pause_ms > PAUSE_MS * _PACE_KEPT:
            return "instruments"
        return "delay" if self.delay_ms > DELAY_MS else ""

    @property
    def by_cpu(self) -> float:
        """The number of streams that would fill the core if each took as much CPU as it took here."""
        if self.core <= 0:
            return 0.0
        return self.streams * (PAUSE_MS / self.pause_ms) * FULL / self.core


@dataclass(frozen=True)
class Held:
    """The most streams that were held, the number that the CPU would allow, and the bound that was passed."""

    streams: int
    by_cpu: float
    bound: Bound


def climb(first: Step, measure: Callable[[int], Step]) -> Held:
    """Measure more and more streams until a bound is passed; begin well below the estimate of ``first``.

    A bound counts as passed if two measurements pass it, because the machine's other work may spoil one.
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
    """Build the load that keeps this number of streams open for a window, and a little longer."""
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
        # Reading every stamp would fill the clients' core before that of a fast proxy.
        each_noted=max(1, streams // 50),
    )


def hold(
    process: Process, streams: int, window: Window, run: Callable[[Load, Callable[[], None]], Result]
) -> Step:
    """Hold this number of streams and measure; ``run`` runs a load, and calls back when all are open."""
    shares: list[float] = []

    def look() -> None:
        time.sleep(window.settle_s)
        spent, began = process.cpu_s(), time.monotonic()
        time.sleep(window.measured_s)
        shares.append((process.cpu_s() - spent) / (time.monotonic() - began))

    load = load_of(process.port, streams, window)
    result = run(load, look)
    # There is no delay if the first stream ended before the last began.
    delay_ms = result.delay[1] or math.inf
    return Step(streams, delay_ms, shares[0] if shares else 0.0, result.latency[0] / load.count)
