"""Shared by the tests of encoders: summaries of the events of a turn, and recorded turns of dialects."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from fixture_loader import all_exchanges

from proxy.base.events import (
    FinishReason,
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    Usage,
    UsageReported,
)
from proxy.wires.client_port import TurnEncoder
from proxy.wires.upstream_port import UpstreamPort

TEXTS = (TextDelta, ReasoningDelta, RefusalDelta)
_CALLED = (["stop"], ["function_call"])
EVENTS = (
    TurnStarted("up_1", "model-1"),
    ReasoningDelta("Hm."),
    TextDelta("I "),
    TextDelta('say "so".\n'),
    RefusalDelta("No."),
    ToolCallStarted(0, "call_1", "look", {"type": "function_call", "signature": "secret"}),
    ToolCallDelta(0, '{"at": '),
    ToolCallDelta(0, '"it"}'),
    ToolCallFinished(0, ToolCall("call_1", "look", '{"at": "it"}', 0)),
    TurnFinished(FinishReason.STOP),
    UsageReported(Usage(7, 5, 12, {"odd": 1}, 3)),
)
"""A turn that has every kind of event."""


def told(events: Iterable[TurnEvent]) -> dict[str, Any]:
    """Summarize the events of a turn; the summary does not depend on how its text was cut."""
    found = list(events)
    usage = [event.usage for event in found if isinstance(event, UsageReported)]
    reasons = [event.reason for event in found if isinstance(event, TurnFinished)]
    calls = [event.call for event in found if isinstance(event, ToolCallFinished)]
    return {
        **{kind.__name__: "".join(e.text for e in found if isinstance(e, kind)) for kind in TEXTS},
        "calls": [(call.call_id, call.name, call.arguments) for call in calls],
        "reason": "tool_calls" if calls and reasons[-1:] in _CALLED else next(reversed(reasons), None),
        "failed": [event.error.get("message") for event in found if isinstance(event, TurnFailed)],
        "usage": [(one.input_tokens, one.output_tokens, one.cached_tokens) for one in usage[-1:]],
    }


def streamed_arguments(events: Iterable[TurnEvent]) -> dict[int, str]:
    """Return the arguments of each call, joined from their pieces."""
    found: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallDelta):
            found[event.seq] = found.get(event.seq, "") + event.arguments
    return found


def encoded(encoder: TurnEncoder, frames: Iterable[Frame]) -> list[Frame]:
    """Encode all frames of a turn."""
    return [*(made for frame in frames for made in encoder.encode(frame)), *encoder.close()]


def read_again(wire: UpstreamPort, pieces: Sequence[bytes]) -> list[TurnEvent]:
    """Return the events that the dialect's reader finds in a stream."""
    reader = wire.reader((), lambda name: False, 1 << 20)
    frames = [frame for piece in pieces for frame in reader.feed(piece)] + reader.close()
    assert reader.fault is None
    return [event for frame in frames for event in frame.events]


def cut(raw: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Cut ``raw`` into pieces at these positions."""
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(raw)), len(raw)]
    return [raw[start:end] for start, end in itertools.pairwise(edges)]


def recorded_turns(wires: dict[str, UpstreamPort]) -> list[tuple[str, list[Frame]]]:
    """Return name and frames of each recorded stream of these dialects that ended properly."""
    found = []
    for exchange in all_exchanges():
        for number, turn in enumerate(exchange.turns):
            if exchange.wire in wires and turn.sse:
                reader = wires[exchange.wire].reader((), lambda name: False, 1 << 20)
                frames = [*reader.feed(turn.sse), *reader.close()]
                events = [event for frame in frames for event in frame.events]
                if reader.fault is None and any(isinstance(event, TurnFinished) for event in events):
                    found.append((f"{exchange.name}-{number}", frames))
    return found
