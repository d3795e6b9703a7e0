"""An answer from the proxy itself, in place of the model's; no upstream is asked."""

from proxy.base.conversation import Message, Text
from proxy.base.errors import WireError
from proxy.base.events import (
    FinishReason,
    Frame,
    TextDelta,
    ToolCall,
    TurnEvent,
    TurnFinished,
    TurnStarted,
    Usage,
    UsageReported,
)
from proxy.relay.run.job import Job
from proxy.relay.run.state import State
from proxy.wires.crossed import Crossing
from proxy.wires.upstream_port import Mask, TurnReader
from proxy.wires.wire import Wire

_ENDED_BY = FinishReason.STOP


class _StandIn:
    """A turn reader for a turn that no model wrote."""

    fault: WireError | None = None
    has_unread = False
    large_next = False
    left_out = ()
    rewritten = False

    def __init__(self, text: str, message: bytes) -> None:
        self.text = text
        self._message = message

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        """Do nothing: there is no input."""
        return []

    def close(self) -> list[Frame]:
        """Do nothing: there is nothing to close."""
        return []

    def read_reply(self, body: bytes) -> Frame:
        """Do nothing: there is no input."""
        return Frame(body)

    def message(self) -> bytes:
        return self._message

    def native(self, call: ToolCall, mask: Mask) -> str:
        """Return nothing: there are no calls."""
        return ""


async def stand_in(job: Job, state: State, text: str) -> None:
    """Write ``text`` as the model's whole turn, in the way in which turns of another dialect are written.

    An empty text is an empty turn; another turn follows it in the same stream.
    """
    wire = job.client.port
    run, output = state.run, state.output
    encoder = wire.encoder(job.client.request)
    started, ended = TurnStarted("", job.client.request.model), TurnFinished(_ENDED_BY)
    used = UsageReported(Usage(0, 0, 0))
    said: tuple[TurnEvent, ...] = (started, TextDelta(text), used, ended) if text else (started, used, ended)
    run.turn.number = max(run.turn.number, 1)
    port = job.upstream.port
    if isinstance(port, Wire | Crossing):
        reader: TurnReader = _StandIn(
            text, port.write_turn(Message("assistant", (Text(text),) if text else ()))
        )
        state.outcome.read_by(reader)
    if job.client.request.stream:
        content_type = wire.dialect.framing.content_type
        output.head = [("Content-Type", content_type), ("Cache-Control", "no-cache")]
        frames = encoder.encode(Frame(b"", None, said if text else (started, used)))
        frames += encoder.close() if text else []
    else:
        output.head = [("Content-Type", "application/json")]
        frames = [encoder.encode_reply(Frame(b"", None, said))]
    for frame in frames:
        run.observe(frame.events)
        await output.send(output.writer.write(frame))
    run.saw_end_mark()
