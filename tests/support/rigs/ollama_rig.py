"""Reads and writes the turns of one run with the Ollama reader and writer, without the relay."""

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

from ollama_script import user

from proxy.base.events import ToolCall, ToolCallFinished, TurnEvent
from proxy.wires.client_port import ClientView, StreamWriter, Trace
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.upstream_port import TurnReader

OURS = "core__now"
ASK: dict[str, Any] = {"model": "m", "messages": [user("hi")]}
WIRE = OllamaWire()


def hides(*theirs: str) -> Callable[[str], bool]:
    """Return a function that says whether a call is hidden; only the client's tools are not."""
    return lambda name: name not in theirs


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    """Cut the data into pieces at these positions."""
    places = [0, *sorted({place for place in at if 0 < place < len(data)}), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


def reader_of(*theirs: str) -> TurnReader:
    """Return a reader for a request that declares ``theirs`` and is offered one server tool."""
    return WIRE.reader({*theirs, OURS}, hides(*theirs), 8192)


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
    def message(self) -> dict[str, Any]:
        """The message of the turn as the next request has it."""
        return dict(json.loads(self.reader.message()))

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
    *turns: bytes, ask: dict[str, Any] | None = None, trace: Trace = "silent", at: Iterable[int] = ()
) -> bytes:
    """Return the client's stream of a run in which every turn but the last has only server-tool calls."""
    writer = writer_of(ask, trace)
    theirs = WIRE.parse({**ASK, **(ask or {})}).declared
    out = b""
    for number, data in enumerate(turns):
        out += play(data, writer, *theirs, at=at).out
        out += writer.turn_ended("hidden") if number < len(turns) - 1 else b""
    return out + writer.turn_ended("final") + writer.finish(None)
