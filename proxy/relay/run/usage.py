"""Reports the use of a run to the caller's meter."""

from collections.abc import Callable

from msgspec import Struct

from proxy.records.rows import Meter
from proxy.relay.routing.prices import estimated_usage
from proxy.relay.run.run import Run


class Used(Struct):
    """Tokens and cost (in billionths)."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cost: int = 0


class RunUsage:
    """Reports the tokens and the cost (in billionths) of one run to a meter.

    ``is_limited`` says that use is limited, so the proxy estimates what an upstream does not report.
    """

    __slots__ = ("_meter", "_reported", "before", "is_limited")

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter
        self._reported = (0, 0)
        self.before = Used()
        """What the run used that this one goes on with: the record has it there."""
        self.is_limited = meter is not None and meter.counts_usage

    def was_reported(self, run: Run) -> None:
        """Note that another process has reported what was used so far."""
        if run.turn.usage is not None:
            run.count_usage()
        self._reported = (run.spent_tokens, run.spent_cost)

    def report(self, run: Run, body: Callable[[], bytes], events: int, *, answered: bool) -> None:
        """Report to the meter what was used since the last report, including that of a broken turn.

        ``answered`` says that the upstream's answer to the turn began. ``body`` returns the request that was
        sent, and ``events`` counts the events of the stream so far.
        """
        if run.turn.usage is not None:
            run.count_usage()
        if self.is_limited and answered:
            run.estimate_usage(lambda: estimated_usage(body(), events))
        used = (run.spent_tokens, run.spent_cost)
        if self._meter is not None and used != self._reported:
            self._meter.spend(used[0] - self._reported[0], used[1] - self._reported[1])
            self._reported = used
