"""What one client request is while it runs: what is fixed, and what changes."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from proxy.http.headers import Headers
from proxy.records import Meter
from proxy.relay.base import ClientStream
from proxy.relay.offer import Offer
from proxy.relay.routing.fallback import Candidates
from proxy.relay.routing.prices import Price
from proxy.relay.routing.router import Route
from proxy.relay.run.run import Run
from proxy.tools.access.policy import Policy
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.wires.base import BodyEditor, ClientRequest, StreamWriter, Trace, TurnReader, Wire

__all__ = ["Job", "Offered", "State"]


@dataclass(slots=True)
class Job:
    """One client request that server tools may take part in; nothing of it changes while it runs.

    ``caller`` is who asks, ``key`` the client key that they came with, as callers are named.
    ``put_back`` says that hidden parts of the conversation went into it that the client knows
    nothing of.  ``notes_threads`` says that what the model reads is noted of the conversation and the
    response that the upstream keeps.  ``named`` says that the caller is one person, for whom a turn can
    be held.
    ``shape`` is a digest of the offered tools, for an answer that is to be remembered;
    ``None`` where it is not.  ``prompt_shape`` is a digest of how the model is asked, for the record.
    ``kept_request`` is the client's body where it is to be kept, else empty.  ``large`` says that its
    body is written anew in a thread.
    ``repeat`` is what a repeat of this request has in common with it, ``ledger`` holds the effects.
    ``headers`` are those an upstream may see, ``query`` goes with every turn; ``policy`` is the
    caller's, already intersected.  ``meter`` counts what the caller uses; ``price`` is the model's.
    ``candidates`` are the upstreams that may have the run until one has answered, and ``elsewhere``
    makes the job of the next one, from the same request.
    """

    run_id: str
    request_id: str
    caller: str
    key: str
    wire: Wire
    request: ClientRequest
    editor: BodyEditor
    offer: Offer
    route: Route
    headers: Headers
    policy: Policy
    trace: Trace = "silent"
    put_back: bool = False
    notes_threads: bool = False
    named: bool = True
    shape: str | None = None
    repeat: str = ""
    ledger: RunLedger = field(default_factory=RunLedger)
    query: str = ""
    prompt_shape: str = ""
    kept_request: bytes = b""
    large: bool = False
    meter: Meter | None = None
    price: Price | None = None
    candidates: Candidates | None = None
    elsewhere: "Callable[[], Awaitable[Job]] | None" = None


@dataclass(slots=True)
class Offered:
    """The offer of a run as it is now: it changes when a model turns out to take no tools.

    It knows nothing of the run.  What asks it belongs to the run, and a ring of them would keep each
    run's memory until the garbage collector comes.
    """

    offer: Offer

    def is_hidden(self, name: str) -> bool:
        """Whether a call of that name is kept from the client."""
        return self.offer.is_hidden(name)


@dataclass(slots=True)
class State:
    """What changes while a job runs.

    ``reader`` belongs to the turn that runs, and ``answers`` are that turn's result messages by call
    id.  ``first_chunk_at`` is when its stream began, 0 before.  ``told`` is the last turn that whoever
    watches was told of.  ``answer`` is the head of the first response, the one the client gets.
    ``effects`` says that a tool with side effects has been run.  ``began`` is ``started_at`` by the
    monotonic clock.  ``settled`` is what the meter has been told: tokens, cost.  ``metered``
    says that use is limited; then ``events`` counts those of the turn's stream.
    ``masked`` are arguments as they may be written in the clear, by the call's name and arguments.
    ``withheld`` maps tools that the run offers, and its turns from here on do not, to the rule.
    ``recovered`` says that what was changed last, for an upstream that had refused it, were fields.
    ``to_find`` says that the record is given something that the client's next request is looked up in.
    """

    run: Run
    writer: StreamWriter
    offered: Offered
    context: RunContext
    client: ClientStream
    started_at: float
    began: float = field(default_factory=time.monotonic)
    turn_started_at: float = 0.0
    first_chunk_at: float = 0.0
    told: int = 0
    reader: TurnReader | None = None
    answer: Headers = ()
    effects: bool = False
    finish_reason: str | None = None
    answers: dict[str, bytes] = field(default_factory=dict)
    settled: tuple[int, int] = (0, 0)
    metered: bool = False
    events: int = 0
    masked: dict[tuple[str, str], str] = field(default_factory=dict)
    withheld: Mapping[str, str] = field(default_factory=dict)
    to_find: bool = False
    recovered: bool = False

    @property
    def offer(self) -> Offer:
        """What is offered now."""
        return self.offered.offer

    def now(self) -> float:
        """The time of day as it was when the run began, and what has passed since then.

        Somebody may set the clock meanwhile; nothing in a run ends before it began.
        """
        return self.started_at + time.monotonic() - self.began

    def push(self, data: bytes, *, last: bool = False) -> Awaitable[None] | None:
        """Send a piece of the stream; the first one takes the head with it, a ``last`` one the end."""
        if not data:
            return None
        if not self.client.started:
            self.client.start(200, self.answer)
        return self.client.push(data, last=last)

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """The same, and wait for a client that does not read."""
        if (wait := self.push(data, last=last)) is not None:
            await wait

    async def keep_alive(self, silent: bool) -> None:
        """Let a client that reads a stream, and whatever buffers it, know that the run goes on."""
        if silent:
            await self.send(self.writer.keep_alive())

    def message(self) -> bytes:
        """The assistant message of the turn that was read last."""
        if self.reader is None:
            raise RuntimeError("no turn has been read yet")
        return self.reader.message()
