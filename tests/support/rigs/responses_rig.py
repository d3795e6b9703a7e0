"""Reads and writes the turns of one run with the Responses reader and writer, without the relay."""

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from proxy.base.events import FinishReason, ToolCall, ToolCallFinished, ToolResult, TurnEvent
from proxy.wires.client_port import ClientView, StreamWriter, Trace
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.upstream_port import BodyEditor, Mask, ResponseChain, SuspendedCall, TurnReader

OURS = "core__now"
HIDDEN = (OURS, '"call_h"', "fc_call_h")
ASK: dict[str, Any] = {"model": "m", "stream": True, "input": "hi"}
WIRE = ResponsesWire()


def hides(*theirs: str) -> Callable[[str], bool]:
    """Return a function that says whether a call is hidden; only the client's functions are not."""
    return lambda name: name not in theirs


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    """Cut the data into pieces at these positions."""
    places = [0, *sorted({place for place in at if 0 < place < len(data)}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


def reader_of(*theirs: str, ours: Collection[str] = (OURS,), bound: int = 8192) -> TurnReader:
    """Return a reader for a request that declares ``theirs`` and is offered the server tools ``ours``."""
    return WIRE.reader({*theirs, *ours}, hides(*theirs), bound)


def writer_of(ask: dict[str, Any] | None = None, trace: Trace = "silent") -> StreamWriter:
    """Return a writer for a request; the functions that it declares are the client's."""
    asked = WIRE.parse({**ASK, **(ask or {})})
    return WIRE.writer(asked, ClientView("m", hides(*asked.declared), trace=trace))


def chain_of(editor: BodyEditor) -> ResponseChain:
    """Return how later requests continue the response of a run."""
    assert editor.body.chain is not None
    return editor.body.chain


def continued(editor: BodyEditor, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
    """Return what a request that continues the response needs."""
    return chain_of(editor).continuation(editor.edits, message, calls, mask)


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
    def message(self) -> dict[str, Any]:
        """The turn as the next request needs it."""
        return dict(json.loads(self.reader.message()))


def play(data: bytes, writer: StreamWriter | None = None, *theirs: str, at: Iterable[int] = ()) -> Played:
    """Read one turn in pieces, and write it."""
    reader = reader_of(*theirs)
    events: list[TurnEvent] = []
    out = b""
    for frame in [frame for piece in cut(data, at) for frame in reader.feed(piece)] + reader.close():
        events += frame.events
        out += writer.write(frame) if writer is not None else frame.raw
    return Played(reader, events, out)


def read(data: bytes, *theirs: str) -> Played:
    """Read one turn without a writer."""
    return play(data, None, *theirs)


def calls_of(data: bytes, *theirs: str) -> list[tuple[str, str, str]]:
    """Return (call id, name, arguments) of each call of a turn."""
    return [(call.call_id, call.name, call.arguments) for call in read(data, *theirs).calls]


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
