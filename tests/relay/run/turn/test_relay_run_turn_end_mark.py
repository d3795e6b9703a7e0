"""Reading one turn of the model as it arrives."""

import asyncio
import time
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.http.secrets import Sink
from proxy.relay.run.keepalive import SilenceTimer
from proxy.relay.run.state import Outcome, RunClock, TurnProgress
from proxy.relay.run.turn.stream import read_stream
from proxy.relay.run.usage import RunUsage
from proxy.wires.chat.dialect import CHAT

pytestmark = pytest.mark.both_loops


class _Frames:
    """Reader, writer and run of a composed turn: each chunk is one event, the first has the finish reason."""

    composing = True
    fault = None
    has_unread = False

    def __init__(self) -> None:
        self.turn = SimpleNamespace(reason=None)
        self.pushed: list[bytes] = []
        self.has_ended = False

    def feed(self, chunk: bytes, *, most: int) -> list[Any]:
        return [SimpleNamespace(events=chunk, is_end_mark=chunk == b"end")]

    def observe(self, events: bytes) -> None:
        self.turn.reason = "stop"

    def write(self, frame: Any) -> bytes:
        return bytes(frame.events)

    def flush(self) -> None: ...

    def push(self, data: bytes, *, last: bool = False) -> None:
        self.pushed.append(data)

    def saw_end_mark(self) -> None:
        self.has_ended = True

    def close(self) -> list[Any]:
        return []


class _AtTheLastMoment:
    """Sends the end mark in the iteration of the event loop in which the wait for it ends."""

    def push(self, sink: Sink) -> Awaitable[None]:
        return self._late(sink)

    async def _late(self, sink: Sink) -> None:
        sink(b"reason")
        asyncio.get_running_loop().call_later(0.02, sink, b"end")
        time.sleep(0.05)  # noqa: ASYNC251 - both times are to be up when the loop looks again
        await asyncio.Event().wait()


async def test_an_end_mark_at_the_last_moment_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets an end mark that arrives just as the wait after the finish reason ends."""
    monkeypatch.setattr("proxy.relay.run.turn.stream._AFTER_REASON_S", 0.01)
    frames: Any = _Frames()
    state: Any = SimpleNamespace(
        run=frames,
        output=SimpleNamespace(
            client=frames, writer=frames, push=frames.push, silence=SilenceTimer(), typed=None
        ),
        turn=TurnProgress(),
        clock=RunClock(0.0),
        usage=RunUsage(None),
        outcome=Outcome(),
    )
    response: Any = _AtTheLastMoment()
    await read_stream(state, lambda: frames, response, CHAT.framing)
    assert frames.pushed == [b"reason", b"end"]
    assert frames.has_ended
