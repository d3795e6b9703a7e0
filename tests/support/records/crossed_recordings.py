"""Every recorded answer, and its translation into each other dialect."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from fixture_loader import all_exchanges
from official_clients import FINISHES, Heard, parsed
from recording_files import recording_files

from proxy.base.events import Frame, RefusalDelta, TextDelta, ToolCallFinished, TurnFinished, UsageReported
from proxy.wires.client_port import ClientView
from proxy.wires.crossed_reader import CrossedReader
from proxy.wires.registry.wires import built_in_wires
from proxy.wires.wire import Wire

WIRES: dict[str, Wire] = dict(built_in_wires())
ASKED: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}], "stream_options": {"include_usage": True}},
    "responses": {"input": "hi"},
    "anthropic": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "ollama": {"messages": [{"role": "user", "content": "hi"}]},
}
"""The members of a client's request in each dialect."""

MOST_BYTES = 1 << 20


class Recording(NamedTuple):
    """A whole successful answer of an upstream."""

    name: str
    wire: str
    data: bytes
    stream: bool


def ours() -> Iterator[Recording]:
    """Yield the recordings that belong to the project."""
    yield from _of_fixtures()
    yield from _of_files(ours=True)


def _of_fixtures() -> Iterator[Recording]:
    for exchange in all_exchanges():
        for turn in exchange.turns:
            for data, stream in ((turn.sse, True), (turn.json_body, False)):
                if data and turn.status == 200 and exchange.wire in WIRES:
                    yield Recording(f"{exchange.name}-{turn.number}", exchange.wire, data, stream)


def _of_files(*, ours: bool) -> Iterator[Recording]:
    for file in recording_files():
        if file.ours is ours and file.status == 200:
            yield Recording(f"{file.wire}/{file.name}", file.wire, file.path.read_bytes(), file.streams)


def read(recording: Recording, *, size: int = 0) -> list[Frame]:
    """Return the frames of an answer that comes in pieces of ``size`` bytes; none if it broke off."""
    reader = WIRES[recording.wire].reader((), lambda name: False, MOST_BYTES)
    if not recording.stream:
        return [reader.read_reply(recording.data)]
    step = size or len(recording.data)
    pieces = [recording.data[at : at + step] for at in range(0, len(recording.data), step)]
    frames = [frame for piece in pieces for frame in reader.feed(piece)] + reader.close()
    return frames if reader.fault is None else []


def meant(frames: list[Frame]) -> Heard | None:
    """Summarize the events of a turn as a client hears them; ``None`` if there is no finish reason."""
    events = [event for frame in frames for event in frame.events]
    reasons = [event.reason for event in events if isinstance(event, TurnFinished)]
    if not reasons:
        return None
    calls = [event.call for event in events if isinstance(event, ToolCallFinished)]
    usage = [event.usage for event in events if isinstance(event, UsageReported)]
    return Heard(
        "".join(event.text for event in events if isinstance(event, TextDelta)),
        "".join(event.text for event in events if isinstance(event, RefusalDelta)),
        [(call.call_id, call.name, parsed(call.arguments)) for call in calls],
        finish_of(reasons[-1], called=bool(calls)),
        (usage[-1].input_tokens, usage[-1].output_tokens) if usage else None,
    )


def finish_of(reason: str, *, called: bool) -> str:
    """Return why a turn stopped, in the words of :class:`Heard`."""
    return "calls" if called and reason in ("stop", "function_call") else FINISHES.get(reason, reason)


@cache
def recordings() -> list[Recording]:
    """Return all recordings that can be read and that have a finish reason."""
    found = []
    for recording in (*ours(), *_of_files(ours=False)):
        try:
            whole = meant(read(recording)) is not None
        except Exception:  # noqa: BLE001
            continue  # This is not an answer of a model, but for example a list of models.
        if whole:
            found.append(recording)
    return found


def crossed(recording: Recording, client: str, *, size: int = 0) -> bytes:
    """Return the answer in another dialect, as the proxy sends it."""
    wire = WIRES[client]
    request = wire.parse({"model": "m", "stream": recording.stream, **ASKED[client]})
    inner = WIRES[recording.wire].reader((), lambda name: False, MOST_BYTES)
    reader = CrossedReader(inner, wire.encoder(request), {})
    writer = wire.writer(request, ClientView("m", lambda name: False))
    if recording.stream:
        step = size or len(recording.data)
        pieces = [recording.data[at : at + step] for at in range(0, len(recording.data), step)]
        frames = [frame for piece in pieces for frame in reader.feed(piece)] + list(reader.close())
    else:
        frames = [reader.read_reply(recording.data)]
    out = b"".join(writer.write(frame) for frame in frames)
    return out + writer.turn_ended("final") + writer.finish(None)


def comparable(said: Heard, recording: Recording, client: str) -> Heard:
    """Return what a client of this dialect can know of an answer, without ids that the proxy made."""
    cut = said.finish in ("length", "filter")
    calls = [
        (call_id if (call_id or "").encode() in recording.data else "", name, arguments)
        for call_id, name, arguments in said.calls
    ]
    if client not in ("anthropic", "ollama"):
        return replace(said, calls=calls)
    # In these dialects a refusal is text, and arguments are an object, which is empty for half a call.
    calls = [(i, name, _object(arguments, cut=cut)) for i, name, arguments in calls]
    said = replace(said, text=said.text + said.refusal, refusal="", calls=calls)
    if client == "anthropic":
        return replace(said, used=said.used or (0, 0))
    # Ollama's clients need no ids, get no call that was cut, and have no finish reason for a filter.
    calls = [] if cut else [("", name, arguments) for _, name, arguments in calls]
    finish = "length" if said.finish == "length" else "calls" if calls else "stop"
    return replace(said, calls=calls, finish=finish)


def _object(arguments: Any, *, cut: bool) -> Any:
    """Return arguments of :func:`parsed` as an object."""
    if not isinstance(arguments, str):
        return arguments
    return {} if cut else {"INVALID_JSON": arguments}
