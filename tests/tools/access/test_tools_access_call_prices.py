"""The prices of tool calls: which tools have one, and which calls cost it."""

import asyncio
from typing import Any

import pytest
from runner_kit import MakeCall, MakeRunner, MemoryLog, echo

from proxy.base.errors import ToolFailure
from proxy.tools import Redaction, tool
from proxy.tools.access.call_prices import CallPrices
from proxy.tools.access.policy import Policy
from proxy.tools.running.ledger import RunContext

READ: dict[str, Any] = {"effect": "read_only", "redaction": Redaction(output=("*",))}


@pytest.mark.parametrize(
    ("name", "price"),
    [("web__search", 5), ("web__fetch", 3), ("core__now", None), ("web__free", 0)],
)
def test_an_exact_name_comes_before_patterns(name: str, price: int | None) -> None:
    """The entry of exactly this name applies, then the first pattern that fits; others have no price."""
    prices = CallPrices({"web__*": 3, "*b__*": 4, "web__search": 5, "web__free": 0})
    assert prices.of(name) == price
    assert CallPrices().of(name) is None


async def test_a_call_costs_once_its_tool_runs(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """A call that ran costs its price, also if it failed. A refused one has no cost, a cached one costs 0."""

    @tool(name="fails", **READ)
    async def fails() -> dict[str, int]:
        """Fail."""
        raise ToolFailure("no")

    @tool(name="cached", cache_ttl_s=60, **READ)
    async def cached() -> dict[str, int]:
        """Answer."""
        return {"a": 1}

    policy = Policy(allow=("t__fails", "t__cached"))
    runner = await make_runner([fails, cached, echo], policy=policy, prices=CallPrices({"t__*": 7}))
    calls = [call("fails"), call("cached", "{}", 1), call("cached", "{}", 2), call("echo", "{}", 3)]
    results = [await runner.run(one, context) for one in calls]
    assert [result.cost for result in results] == [7, 7, 0, 0]
    assert [row.cost for row in log.closed] == [7, 7, 0, None]


async def test_a_call_that_ends_early_has_its_price(
    make_runner: MakeRunner, log: MemoryLog, context: RunContext, call: MakeCall
) -> None:
    """The client that goes while the tool runs saves no money."""
    began = asyncio.Event()

    @tool(name="slow", **READ)
    async def slow() -> dict[str, int]:
        """Wait."""
        began.set()
        await asyncio.sleep(60)
        return {}

    runner = await make_runner([slow], prices=CallPrices({"t__slow": 7}))
    task = asyncio.create_task(runner.run(call("slow"), context))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(row.status, row.cost) for row in log.closed] == [("cancelled", 7)]
