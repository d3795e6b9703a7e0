"""The usage of a run as its caller's meter counts it."""

from typing import Literal

from proxy.base.events import FinishReason, TurnEvent, TurnFinished, Usage, UsageReported
from proxy.relay.base import RunSettings
from proxy.relay.routing.prices import Price
from proxy.relay.run.run import Run
from proxy.relay.run.usage import RunUsage

BODY = b'{"messages":"forty bytes of a request"}.'


class Counter:
    """A :class:`~proxy.records.rows.Meter` that keeps what it is told."""

    counts_cost = False

    def __init__(self, *, counts_usage: bool) -> None:
        self.counts_usage = counts_usage
        self.spent: list[tuple[int, int]] = []

    async def hit(self, kind: Literal["tool_calls"], caller: str) -> float | None:
        """Allow every tool call."""
        return None

    def spend(self, tokens: int, cost: int) -> None:
        """Note the usage that is counted."""
        self.spent.append((tokens, cost))


PRICE = Price(10**6, 10**6, 10**6, 10**6)


def a_run(*events: TurnEvent) -> Run:
    """Return a run whose first turn had these events; a token costs 1 billionth."""
    run = Run(RunSettings(), is_hidden=lambda name: True, clock=lambda: 0.0, price=PRICE)
    run.start()
    run.observe(events)
    return run


def test_each_use_is_told_once() -> None:
    """The meter gets the same usage only once, and later only what was added."""
    meter = Counter(counts_usage=False)
    usage = RunUsage(meter)
    run = a_run(UsageReported(Usage(5, 2, 7)), TurnFinished(FinishReason.STOP))
    for _ in range(2):
        usage.report(run, lambda: BODY, 3, answered=True)
    assert meter.spent == [(7, 7)]
    run.tools_ran()
    run.observe([UsageReported(Usage(1, 1, 2))])
    usage.report(run, lambda: BODY, 3, answered=True)
    assert meter.spent == [(7, 7), (2, 2)]


def test_use_that_nobody_reported_is_estimated_under_a_limit() -> None:
    """Under a limit, unreported usage is a token per four bytes of the request and one per event."""
    meter = Counter(counts_usage=True)
    usage = RunUsage(meter)
    run = a_run()
    assert usage.is_limited
    usage.report(run, lambda: BODY, 3, answered=False)
    assert meter.spent == []
    usage.report(run, lambda: BODY, 3, answered=True)
    assert meter.spent == [(len(BODY) // 4 + 3, len(BODY) // 4 + 3)]


def test_nothing_is_estimated_without_a_limit() -> None:
    """Without a limit the proxy estimates nothing: only reported usage counts."""
    meter = Counter(counts_usage=False)
    usage = RunUsage(meter)
    run = a_run()
    assert not usage.is_limited
    usage.report(run, lambda: BODY, 3, answered=True)
    assert (meter.spent, run.spent_tokens) == ([], 0)


def test_a_run_without_a_meter_still_counts_its_use() -> None:
    """A run without a meter counts its tokens, because its budgets depend on them."""
    usage = RunUsage(None)
    run = a_run(UsageReported(Usage(5, 2, 7)))
    usage.report(run, lambda: BODY, 3, answered=True)
    assert not usage.is_limited
    assert run.total_tokens == 7
