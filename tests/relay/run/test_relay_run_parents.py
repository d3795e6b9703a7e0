"""Requests that continue the same turn, and the agents that run for them."""

import asyncio
from typing import Any

from proxy.base.events import ToolCall
from proxy.relay.memory.hidden.agent_turns import AgentCall
from proxy.relay.nested import Purse
from proxy.relay.run.parents import Parent, Parents
from proxy.tools.running.ledger import RunLedger

CALL = AgentCall("run_1", 1, ToolCall("call_1", "agent__researcher", "{}", 0), "digest")


def parent() -> Parent:
    """Return a request that continues a turn."""
    purse = Purse(turns=1, calls=1, tokens=None, cost=None, seconds_left=lambda: 1.0)
    ask: Any = None
    return Parent(ask, "m", RunLedger(), 1, purse)


async def test_an_agent_runs_for_the_next_request_when_the_first_one_leaves() -> None:
    """An agent goes on as long as a request waits for it, and is cancelled when the last one leaves."""
    parents = Parents()
    running = asyncio.create_task(asyncio.Event().wait())
    with parents.continuing(CALL, parent()):
        with parents.continuing(CALL, parent()):
            first = parents.of("run_1", "call_1")
            assert first is not None
            first.running.add(running)
        assert first is parents.of("run_1", "call_1")
        second = parents.continuing(CALL, parent())
        second.__enter__()
    await asyncio.sleep(0)
    assert not running.done()
    assert (left := parents.of("run_1", "call_1")) is not None
    assert left.running == {running}
    second.__exit__(None, None, None)
    await asyncio.wait([running])
    assert running.cancelled()
    assert parents.of("run_1", "call_1") is None
