"""What changes while a job runs, in parts that belong together."""

import sys
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field

from proxy.approval_records import Approval
from proxy.events import ToolCall
from proxy.http.headers import Headers
from proxy.relay.base import ClientStream
from proxy.relay.memory.agent_turns import wait_of
from proxy.relay.offer import Offer
from proxy.relay.run.job import ToolAccess
from proxy.relay.run.parallel_tool_use import is_wrapper, mask_parts
from proxy.relay.run.run import Run
from proxy.relay.run.usage import RunUsage
from proxy.tools.access.catalog import Catalog
from proxy.tools.contract.redaction import mask_written, redact_written
from proxy.tools.running.granted import GrantedCall
from proxy.tools.running.ledger import RunContext
from proxy.wires.approving.shown import APPROVE
from proxy.wires.client_port import StreamWriter
from proxy.wires.upstream_port import TranslatingReader, TurnReader

__all__ = ["Outcome", "Output", "RunClock", "State", "ToolState", "TurnProgress"]


@dataclass(slots=True)
class Output:
    """The client's response: what ``writer`` makes goes out by ``client``.

    ``head`` are the headers of the first response, the one that the client gets.
    """

    client: ClientStream
    writer: StreamWriter
    head: Headers = ()

    def push(self, data: bytes, *, last: bool = False) -> Awaitable[None] | None:
        """Send a piece of the stream; the first one takes the head with it, a ``last`` one the end."""
        if not data:
            return None
        if not self.client.started:
            self.client.start(200, self.head)
        return self.client.push(data, last=last)

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """The same, and wait for a client that does not read."""
        if (wait := self.push(data, last=last)) is not None:
            await wait

    async def keep_alive(self, silent: bool) -> None:
        """Let a client that reads a stream, and whatever buffers it, know that the run goes on."""
        if silent:
            await self.send(self.writer.keep_alive())


@dataclass(slots=True)
class ToolState:
    """The tools of a run as they are now: the offer changes when a model turns out to take no tools.

    ``withheld`` maps tools that the run offers, and its turns from here on do not, to the rule.  ``effects``
    says that a tool with side effects has been run.  ``sealed`` says that the record is encrypted, so that
    nothing of arguments need be masked.  ``asks_by_call`` says that the client is now asked about approvals
    by calls of a function; a model's calls of it are hidden.

    It knows nothing of the run.  What asks it belongs to the run, and a ring of them would keep each
    run's memory until the garbage collector comes.
    """

    access: ToolAccess
    context: RunContext
    sealed: bool
    offer: Offer = field(init=False)
    withheld: Mapping[str, str] = field(default_factory=dict)
    effects: bool = False
    asks_by_call: bool = False
    _masked: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.offer = self.access.offer

    @property
    def catalog(self) -> Catalog:
        """The tools that the run was planned with."""
        return self.access.selection.catalog

    def id_of(self, name: str) -> str:
        """The id of the tool that a name on the wire means; the name itself where it means none."""
        return self.offer.names.get(name, name)

    def is_hidden(self, name: str) -> bool:
        """Whether a call of that name is kept from the client."""
        if name == APPROVE:
            return not self.asks_by_call
        return self.offer.is_hidden(name)

    def needs_approval(self, call: ToolCall, turn: int) -> bool:
        """Whether policy asks for an approval of the call, which the model wrote in that turn."""
        access = self.access
        tool = self.id_of(call.name)
        if tool in access.selection.asking:
            return not access.selection.asks or tool in self.offer.names.values()
        untrusted = access.ledger.untrusted_before(turn)
        if not untrusted or tool not in self.offer.names.values():
            return False
        spec = self.catalog.get(tool)
        return (
            spec is not None and access.policy.decide(spec, untrusted=untrusted).outcome == "needs_approval"
        )

    def untrusted_read(self) -> str:
        """A tool whose untrusted result the model has read by the end of this run; empty if none."""
        return self.access.ledger.untrusted_before(sys.maxsize)

    def mask(self, name: str, arguments: str) -> str:
        """Arguments of a call as they may be written in the clear: without their private fields (rule R3)."""
        if self.sealed:
            return arguments
        known = self._masked.get((name, arguments))
        if known is None:
            known = self._masked[name, arguments] = self._without_private_fields(name, arguments)
        return known

    def _without_private_fields(self, name: str, arguments: str) -> str:
        if is_wrapper(name) and name not in self.offer.names:
            return mask_parts(arguments, self.mask)
        spec = self.catalog.get(self.id_of(name))
        if spec is not None:
            return redact_written(arguments, spec)
        # Of a tool that nobody knows nothing says which arguments are private.
        return mask_written(arguments) if self.is_hidden(name) else arguments


@dataclass(slots=True)
class RunClock:
    """When the run began: ``started_at`` by the day's clock, ``began`` by the monotonic one."""

    started_at: float
    began: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """The time of day as it was when the run began, and what has passed since then.

        Somebody may set the clock meanwhile; nothing in a run ends before it began.
        """
        return self.started_at + time.monotonic() - self.began


@dataclass(slots=True)
class TurnProgress:
    """How far the turn that runs is; made anew for each.

    ``first_chunk_at`` is when its stream began, 0 before.  ``events`` counts those of its stream where use is
    limited.  ``results`` are its result messages by call id.  ``fields_recovered`` says that what was changed
    last, for an upstream that had refused it, were fields.  ``waiting`` are the approvals that its calls wait
    for, by the places of these in it, ``of_agents`` those that calls of agents wait for, and ``granted`` is
    what lets others run.
    ``asks_by_call`` says that the client is asked about them by calls, and ``seen`` is the text of the answer
    as the client sends it back where it is not asked in text.
    """

    started_at: float = 0.0
    first_chunk_at: float = 0.0
    events: int = 0
    results: dict[str, bytes] = field(default_factory=dict)
    fields_recovered: bool = False
    waiting: dict[int, Approval] = field(default_factory=dict)
    of_agents: dict[int, Sequence[Approval]] = field(default_factory=dict)
    granted: dict[int, GrantedCall] = field(default_factory=dict)
    asks_by_call: bool = False
    seen: str = ""

    @property
    def approvals(self) -> list[Approval]:
        """What it waits for, each once: equal calls share one."""
        asked = (one for approvals in self.of_agents.values() for one in approvals)
        return list({approval.id: approval for approval in (*self.waiting.values(), *asked)}.values())

    def wait_of(self, index: int) -> str:
        """The name under which the call at a place waits."""
        if (approval := self.waiting.get(index)) is not None:
            return approval.id
        return wait_of([approval.id for approval in self.of_agents[index]])

    @property
    def waits(self) -> list[str]:
        """The names under which its calls wait, each once."""
        return list(dict.fromkeys(map(self.wait_of, (*self.waiting, *self.of_agents))))


@dataclass(slots=True)
class Outcome:
    """The outcome of a run.

    ``reader`` has the turn that was read last, ``None`` before the first.  ``turns_told`` is the last turn
    that observers know.  ``finish_reason`` is the one that the client got.  ``to_find`` says that the record
    gets data for the client's next request.
    """

    _earlier: set[str] = field(default_factory=set, init=False)

    reader: TurnReader | None = None
    turns_told: int = 0
    finish_reason: str | None = None
    to_find: bool = False

    def read_by(self, reader: TurnReader) -> TurnReader:
        """Note what reads the next turn."""
        self._earlier.update(self.left_out)
        self.reader = reader
        return reader

    @property
    def left_out(self) -> Sequence[str]:
        """What the upstream said in any turn and the client's dialect has no form for."""
        lost = self.reader.left_out if isinstance(self.reader, TranslatingReader) else ()
        return sorted({*self._earlier, *lost})

    def message(self) -> bytes:
        """The assistant message of the turn that was read last."""
        if self.reader is None:
            raise RuntimeError("no turn has been read yet")
        return self.reader.message()


@dataclass(slots=True)
class State:
    """The data of a job that changes while it runs.  Each turn gets a new ``turn``."""

    run: Run
    output: Output
    tools: ToolState
    clock: RunClock
    usage: RunUsage
    turn: TurnProgress = field(default_factory=TurnProgress)
    outcome: Outcome = field(default_factory=Outcome)
