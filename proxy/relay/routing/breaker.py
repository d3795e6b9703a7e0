"""A circuit breaker: the proxy sends no requests to an upstream that keeps failing, for some time."""

import time
from collections.abc import Callable


class Breaker:
    """The circuit breaker of one upstream in one process.

    It is *closed* until ``failures`` requests in a row got no answer. Then it is *open*: for ``open_s``
    seconds the upstream gets no request. After that it is *half-open*: one request is a probe, and the next
    may follow only ``open_s`` seconds later, so a probe whose client leaves blocks nothing. An answer
    closes the breaker, and a failure opens it again. With ``failures`` of 0 it never opens. ``in_a_row``
    counts failures since the last answer; if it is 0, an answer changes nothing.
    """

    __slots__ = ("_clock", "_failures", "_open_s", "_until", "in_a_row")

    def __init__(
        self, failures: int = 5, open_s: float = 30.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = failures
        self._open_s = open_s
        self._clock = clock
        self.in_a_row = 0
        self._until: float | None = None

    @property
    def state(self) -> str:
        """The state: ``closed``, ``open`` or ``half_open``."""
        if self._until is None:
            return "closed"
        return "half_open" if self._clock() >= self._until else "open"

    @property
    def left_s(self) -> float:
        """Seconds until a request may be sent again; 0 if one may be sent now."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    @property
    def ready(self) -> bool:
        """Whether :meth:`admit` would permit a request now."""
        return self._until is None or self._clock() >= self._until

    def admit(self) -> bool:
        """Return whether a request may be sent; if the breaker is half-open, the request is the probe."""
        if self._until is None:
            return True
        now = self._clock()
        if now < self._until:
            return False
        self._until = now + self._open_s
        return True

    def succeeded(self) -> None:
        """Note that an answer came, whatever its status says about the request."""
        self.in_a_row = 0
        self._until = None

    def failed(self) -> bool:
        """Note that the upstream gave no answer, or one that shows its own fault; return whether the breaker
        opened."""
        self.in_a_row += 1
        if not self._failures or self.in_a_row < self._failures:
            return False
        opened = self._until is None
        self._until = self._clock() + self._open_s
        return opened
