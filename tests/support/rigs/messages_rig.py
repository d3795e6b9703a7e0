"""Reads and writes the turns of one run with the Messages reader and writer, without the relay."""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from proxy.base.events import FinishReason, ToolCall, ToolCallFinished, ToolResult, TurnEvent
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.client_port import ClientView, StreamWriter, Trace
from proxy.wires.upstream_port import TurnReader

OURS = "core__now"
ASK: dict[str, Any] = {
    "model": "m", "max_tokens": 100, "stream": True, "messages": [{"role": "user", "content": "hi"}],
}  # fmt: skip
WIRE = AnthropicWire()


def hides(*theirs: str) -> Callable[[str], bool]:
    """Return a function that says whether a call is hidden; only the client's tools are not."""
    return lambda name: name not in theirs


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    """Cut the data into pieces at these positions."""
    places = [0, *sorted({place for place in at if 0 < place < len(data)}), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


def reader_of(*theirs: str, bound: int = 8192) -> TurnReader:
    """Return a reader for a request that declares ``theirs`` and is offered one server tool."""
    return WIRE.reader({*theirs, OURS}, hides(*theirs), bound)


def writer_of(ask: dict[str, Any] | None = None, trace: Trace = "silent") -> StreamWriter:
    """Return a writer for a request; the tools that it declares are the client's."""
    asked = WIRE.parse({**ASK, **(ask or {})})
    return WIRE.writer(asked, ClientView("m", hides(*asked.declared), trace=trace))


class Played:
    """What the reader and the writer made of one turn."""

    def __init__(self, reader: TurnReader, events: list[TurnEvent], out: bytes) -> None:
        self.reader = reader
        self.events = events
        self.out = out

    @property
    def calls(self) -> list[ToolCall]:
        """The turn's calls."""
        return [event.call for event in self.events if isinstance(event, ToolCallFinished)]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The blocks of the turn as the next request has them."""
        message = json.loads(self.reader.message())
        assert message["role"] == "assistant"
        return list(message["content"])

    def of(self, kind: type[TurnEvent]) -> list[Any]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


def play(data: bytes, writer: StreamWriter | None = None, *theirs: str, at: Iterable[int] = ()) -> Played:
    """Read one turn in pieces, and write it."""
    reader = reader_of(*theirs)
    events: list[TurnEvent] = []
    out = b""
    for frame in [frame for piece in cut(data, at) for frame in reader.feed(piece)] + reader.close():
        events += frame.events
        out += writer.write(frame) if writer is not None else frame.raw
    return Played(reader, events, out)


def compose(
    *turns: bytes,
    ask: dict[str, Any] | None = None,
    trace: Trace = "silent",
    results: Sequence[ToolResult] = (),
    reason: str | None = None,
    at: Iterable[int] = (),
) -> bytes:
    """Return the client's stream of a run in which every turn but the last has only server-tool calls."""
    writer = writer_of(ask, trace)
    theirs = WIRE.parse({**ASK, **(ask or {})}).declared
    out = b""
    for number, data in enumerate(turns):
        played = play(data, writer, *theirs, at=at)
        out += played.out
        if number < len(turns) - 1:
            out += writer.turn_ended("hidden")
            by_id = {result.call_id: result for result in results}
            for call in played.calls:
                if call.call_id in by_id:
                    out += writer.tool_started(call, by_id[call.call_id].arguments_redacted)
                    out += writer.tool_finished(call, by_id[call.call_id])
    return out + writer.turn_ended("final") + writer.finish(FinishReason(reason) if reason else None)
