"""How many requests begin in one turn of the event loop."""

import asyncio
from collections.abc import Awaitable

import pytest

from proxy.server.connections.fairness import MOST_STARTED, FairScheduler

pytestmark = pytest.mark.both_loops


async def _begin(turns: FairScheduler, begun: list[int], number: int) -> None:
    if (turn := turns.take()) is not None:
        await turn
    begun.append(number)


async def test_requests_that_come_at_once_begin_a_few_at_a_time() -> None:
    """Each turn of the event loop starts a few requests, in order, so that others are served in between."""
    turns, begun = FairScheduler(asyncio.get_running_loop()), list[int]()
    tasks = [asyncio.ensure_future(_begin(turns, begun, number)) for number in range(5 * MOST_STARTED)]
    seen = []
    while len(begun) < len(tasks):
        await asyncio.sleep(0)
        seen.append(len(begun))
    assert begun == list(range(len(tasks)))
    steps = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    assert max(steps) <= MOST_STARTED
    await asyncio.gather(*tasks)


async def test_a_client_that_has_gone_keeps_nobody_waiting() -> None:
    """A request that is cancelled while it waits does not delay the others."""
    turns = FairScheduler(asyncio.get_running_loop())
    for _ in range(MOST_STARTED):
        assert turns.take() is None
    waiting = [turns.take() for _ in range(3 * MOST_STARTED)]
    for turn in waiting[:-1]:
        assert isinstance(turn, asyncio.Future)
        turn.cancel()
    last: Awaitable[None] | None = waiting[-1]
    assert last is not None
    await last
    await asyncio.sleep(0)
    assert turns.take() is None
