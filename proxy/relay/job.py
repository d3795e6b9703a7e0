"""What one client request is while it runs: what is fixed, and what changes."""

from dataclasses import dataclass, field

from proxy.relay.base import ClientStream
from proxy.relay.offer import Offer
from proxy.relay.routing import Route
from proxy.relay.run import Run
from proxy.tools.ledger import RunContext, RunLedger
from proxy.tools.policy import Policy
from proxy.upstreams.base import Headers
from proxy.wires.base import BodyEditor, ClientRequest, StreamWriter, Trace, TurnReader, Wire

__all__ = ["Job", "State"]


@dataclass(frozen=True, slots=True)
class Job:
    """One client request that server tools may take part in.

    ``put_back`` says that hidden parts of the conversation went into it that the client knows
    nothing of.  ``shape`` is a digest of the offered tools, for an answer that is to be remembered;
    ``None`` where it is not.  ``prompt_shape`` is a digest of how the model is asked, for the record.
    ``kept_request`` is the client's body where it is to be kept, else empty.
    ``repeat`` is what a repeat of this request has in common with it, ``ledger`` holds the effects.
    ``headers`` are those an upstream may see, ``query`` goes with every turn; ``policy`` is the
    caller's, already intersected.
    """

    run_id: str
    request_id: str
    caller: str
    wire: Wire
    request: ClientRequest
    editor: BodyEditor
    offer: Offer
    route: Route
    headers: Headers
    policy: Policy
    trace: Trace = "silent"
    put_back: bool = False
    shape: str | None = None
    repeat: str = ""
    ledger: RunLedger = field(default_factory=RunLedger)
    query: str = ""
    prompt_shape: str = ""
    kept_request: bytes = b""


@dataclass(slots=True)
class State:
    """What changes while a job runs.

    ``reader`` belongs to the turn that runs, and ``answers`` are that turn's result messages by call
    id.  ``answer`` is the head of the first response, the one the client gets.  ``effects`` says that
    a tool with side effects has been run.
    """

    run: Run
    writer: StreamWriter
    offer: Offer
    context: RunContext
    client: ClientStream
    started_at: float
    turn_started_at: float = 0.0
    reader: TurnReader | None = None
    answer: Headers = ()
    effects: bool = False
    finish_reason: str | None = None
    answers: dict[str, bytes] = field(default_factory=dict)

    async def send(self, data: bytes) -> None:
        """Send a piece of the stream; the first one takes the head with it."""
        if not data:
            return
        if not self.client.started:
            await self.client.start(200, self.answer)
        await self.client.write(data)

    async def keep_alive(self, silent: bool) -> None:
        """Let a client that reads a stream, and whatever buffers it, know that the run goes on."""
        if silent:
            await self.send(self.writer.keep_alive())

    def message(self) -> bytes:
        """The assistant message of the turn that was read last."""
        if self.reader is None:
            raise RuntimeError("no turn has been read yet")
        return self.reader.message()
