"""The stream of one turn to a client that reads slowly."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, cast

import chat_script as chat
import pytest

from proxy.relay.base import RunSettings
from proxy.relay.offering.offer import Offer
from proxy.relay.run.job import ToolAccess
from proxy.relay.run.run import Run
from proxy.relay.run.state import ClientOutput, RunClock, State, ToolState
from proxy.relay.run.turn import stream as turn_stream
from proxy.relay.run.usage import RunUsage
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.upstreams.base import PulledResponse
from proxy.wires.chat.wire import ChatWire
from proxy.wires.client_port import ClientView

ASK: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "hi"}],
}


class SlowClient:
    """Takes each piece of data, and makes the sender wait."""

    started = True

    def __init__(self, takes_s: float) -> None:
        self._takes_s = takes_s
        self.got = b""

    def push(self, data: bytes, last: bool = False) -> Awaitable[None]:
        """Take a piece."""
        self.got += data
        return asyncio.sleep(self._takes_s)

    def flush(self) -> None:
        """Do nothing: no data waits here."""


class Chunks(PulledResponse):
    """A response of an upstream whose chunks are all there at once."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the chunks."""
        for piece in self._pieces:
            yield piece


@pytest.mark.parametrize("many", [1, 200], ids=["in pieces", "in a burst"])
async def test_a_slow_client_costs_no_usage(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """Rule W4: usage is read even if the client takes longer than the wait after the finish reason."""
    monkeypatch.setattr(turn_stream, "_AFTER_REASON_S", 0.05)
    wire = ChatWire()
    request = wire.parse(ASK)
    policy, catalog = Policy(), Catalog()
    access = ToolAccess(Offer(), policy, catalog.select(policy), RunLedger())
    tools = ToolState(access, cast("RunContext", None), sealed=False, offer=access.offer)
    writer = wire.writer(request, ClientView("m", tools.is_hidden))
    writer.turn_ended("hidden")  # From here on the writer composes.
    run = Run(RunSettings(), is_hidden=tools.is_hidden, clock=lambda: 0.0)
    run.start()
    client = SlowClient(0.3)
    state = State(
        run, ClientOutput(cast("Any", client), lambda: writer), tools, RunClock(0.0), RunUsage(None)
    )
    first = chat.role() + chat.content("a") + chat.finish()
    last = chat.content("") * many + chat.usage(3, 4) + chat.DONE
    pieces = (first, last) if many == 1 else (chat.role() + chat.content("a" * 5000) * many + first + last,)
    reader = wire.reader(tools.offer.declared, tools.is_hidden, 8192)
    await turn_stream.read_stream(state, lambda: reader, cast("Any", Chunks(*pieces)), wire.dialect.framing)
    assert run.turn.usage is not None
    assert (run.turn.usage.input_tokens, run.turn.usage.output_tokens) == (3, 4)
    assert run.turn.ended
