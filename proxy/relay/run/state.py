"""The parts of a job that change while it runs."""

import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from msgspec import Struct, field

from proxy.base.events import ToolCall, ToolDefinition
from proxy.http.headers import Headers
from proxy.records.approvals import Approval
from proxy.records.result_for_model import ResultForModel
from proxy.relay.base import ClientStream
from proxy.relay.memory.hidden.agent_turns import AgentTurn, wait_of
from proxy.relay.offering.offer import Offer
from proxy.relay.offering.tool_limits import ToolLesson
from proxy.relay.run.job import ToolAccess
from proxy.relay.run.keepalive import SilenceTimer
from proxy.relay.run.run import Run
from proxy.relay.run.usage import RunUsage
from proxy.tools.access.catalog import Catalog
from proxy.tools.contract.redaction import mask_written, redact_written
from proxy.tools.running.granted import GrantedCall
from proxy.tools.running.ledger import RunContext
from proxy.wires.approving.shown import APPROVE
from proxy.wires.client_port import StreamWriter
from proxy.wires.openai.parallel_tool_use import is_wrapper, mask_parts
from proxy.wires.stream.fast_path import FastWriter
from proxy.wires.stream.plain import PlainTurn
from proxy.wires.typed_tools.functions import TypedAnswer
from proxy.wires.upstream_port import TurnReader


class ClientOutput(Struct):
    """The client's response: ``client`` sends what ``writer`` makes, which ``make_writer`` returns.

    ``head`` has the headers of the first upstream response, which the client gets. ``typed`` turns calls of
    functions back into those of the client's typed tools. ``plain`` can read the first turn as long as it is
    plain text; its bytes reach the client without the writer. ``None`` if only a turn reader can.
    """

    client: ClientStream
    make_writer: Callable[[], StreamWriter]
    head: Headers = ()
    typed: TypedAnswer | None = None
    plain: PlainTurn | None = None
    _writer: StreamWriter | None = None
    _silence: SilenceTimer | None = None

    @property
    def writer(self) -> StreamWriter:
        """The writer of the stream. It is made when it is needed: a plain answer needs none."""
        writer = self._writer
        if writer is None:
            writer = self._writer = self.make_writer()
            if self.plain is not None and self.plain.whole and isinstance(writer, FastWriter):
                writer.note_plain(self.plain.text)
        return writer

    @property
    def passed(self) -> PlainTurn | None:
        """The plain turn that was the whole answer, if the client got it without the writer."""
        plain = self.plain
        return plain if plain is not None and plain.whole and self._writer is None else None

    @property
    def silence(self) -> SilenceTimer:
        """The timer of a stream that the proxy composes or holds back."""
        if self._silence is None:
            self._silence = SilenceTimer()
        return self._silence

    def push(self, data: bytes, *, last: bool = False) -> Awaitable[None] | None:
        """Send a piece of the stream, and return what to await if the client does not read.

        The first piece takes the head with it, and a ``last`` one the end.
        """
        if not data:
            return None
        if self.typed is not None and not (data := self.typed.stream(data)):
            return None
        if self._silence is not None:
            self._silence.quiet = 0
        if not self.client.started:
            self.client.start(200, self.head)
        return self.client.push(data, last=last)

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """Send a piece as :meth:`push` does, and wait for a client that does not read."""
        if (wait := self.push(data, last=last)) is not None:
            await wait

    async def keep_alive(self, silent: bool) -> None:
        """Show the client of a stream, and anything that buffers it, that the run goes on."""
        if silent:
            await self.send(self.writer.keep_alive())


class ToolState(Struct):
    """The tools of a run as they are now: the offer changes if the model turns out to take no tools.

    ``withheld`` maps tools that the run offers, but its later turns do not, to the rule. ``effects`` says
    that a tool with side effects has run. ``sealed`` says that the record is encrypted, so arguments need no
    masking. ``asks_by_call`` says that the proxy now asks the client about approvals by calls of a function;
    if the model calls that function, its calls are hidden.

    A ``ToolState`` holds no reference to the run, although the run calls its methods. A reference cycle
    would keep the memory of each run until the garbage collector comes.
    """

    access: ToolAccess
    context: RunContext
    sealed: bool
    offer: Offer
    withheld: Mapping[str, str] = {}
    effects: bool = False
    asks_by_call: bool = False
    _masked: dict[tuple[str, str], str] = {}

    @property
    def catalog(self) -> Catalog:
        """The catalog of tools with which the run was planned."""
        return self.access.selection.catalog

    def id_of(self, name: str) -> str:
        """Return the id of the tool with this name on the wire; the name itself if there is none."""
        return self.offer.names.get(name, name)

    def is_hidden(self, name: str) -> bool:
        """Return whether the client must not see a call of that name."""
        if name == APPROVE:
            return not self.asks_by_call
        return self.offer.is_hidden(name)

    def needs_approval(self, call: ToolCall, turn: int) -> bool:
        """Return whether the policy asks for an approval of a call that the model wrote in that turn."""
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

    def is_withheld(self, name: str) -> bool:
        """Return whether the model must not be shown the tool with this name after what it has read."""
        return name in self.offer.guarded or self.id_of(name) in self.withheld

    def find(self, query: str) -> Sequence[ToolDefinition]:
        """Return the tools that the model may be shown and that fit a query best."""
        return self.offer.search(query, self.is_withheld)

    def untrusted_read(self) -> str:
        """Return the sources of the untrusted results that the model has read by the end of this run."""
        return self.access.ledger.untrusted_before(sys.maxsize)

    def mask(self, name: str, arguments: str) -> str:
        """Return the arguments of a call without their private fields, for writing unencrypted (rule R3)."""
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
        # For an unknown tool it is unknown which arguments are private.
        return mask_written(arguments) if self.is_hidden(name) else arguments


class RunClock(Struct):
    """When the run began: ``started_at`` in Unix time, ``began`` on the monotonic clock."""

    started_at: float
    began: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Return the Unix time at which the run began, plus the monotonic time since then.

        So no event of a run is earlier than its beginning, even if the system clock is set meanwhile.
        """
        return self.started_at + time.monotonic() - self.began


class TurnProgress(Struct):
    """The progress of the current turn; each turn has a new one.

    ``first_chunk_at`` is when its stream began, 0 before that. ``events`` counts the events of its stream if
    use is limited. ``results`` are its result messages by call id, and
    ``unfilled`` the results of calls that wait. ``fields_recovered`` says that the last
    change after the upstream's refusal was to leave out fields. ``lessons`` are what its refusals said about
    tools. ``waiting`` are the approvals that its calls
    wait for, by the indices of the calls; ``of_agents`` are those that its calls of agents wait for, and
    ``paused`` the programs that wait for the client.
    ``granted`` are the grants that let other calls run. ``asks_by_call`` says that the client is asked by
    calls of a function. ``checked`` says that the limits of the provider's tools were applied to its calls.
    ``text_sent_back`` is the answer's text as the client will send it back; it is empty if the client was
    asked in text.
    """

    started_at: float = 0.0
    first_chunk_at: float = 0.0
    events: int = 0
    results: dict[str, bytes] = {}
    unfilled: dict[str, ResultForModel] = {}
    fields_recovered: bool = False
    lessons: list[ToolLesson] = []
    waiting: dict[int, Approval] = {}
    of_agents: dict[int, Sequence[Approval]] = {}
    paused: dict[int, AgentTurn] = {}
    granted: dict[int, GrantedCall] = {}
    asks_by_call: bool = False
    checked: bool = False
    text_sent_back: str = ""

    @property
    def approvals(self) -> list[Approval]:
        """The approvals that the turn waits for, each once: equal calls share one."""
        asked = (one for approvals in self.of_agents.values() for one in approvals)
        return list({approval.id: approval for approval in (*self.waiting.values(), *asked)}.values())

    def wait_of(self, index: int) -> str:
        """Return the name under which the call at an index waits."""
        if (approval := self.waiting.get(index)) is not None:
            return approval.id
        if (paused := self.paused.get(index)) is not None:
            return paused.name
        return wait_of([approval.id for approval in self.of_agents[index]])


class Found(Struct):
    """What calls of the provider's tools found in a run.

    ``texts`` are those of searches and pages, whose addresses may be fetched; ``images`` were made, and are
    data URLs.
    """

    texts: list[str] = []
    images: Sequence[str] = ()


class Outcome(Struct):
    """The outcome of a run.

    ``turns_told`` is the last turn that the observers know. ``finish_reason`` is the one that the client
    got. ``has_data_for_next_request`` says that the record gets data for the client's next request.
    ``found`` is what calls of the provider's tools found. ``failure`` is the message with which the run
    failed.
    """

    turns_told: int = 0
    finish_reason: str | None = None
    has_data_for_next_request: bool = False
    failure: str = ""
    found: Found = field(default_factory=Found)
    _earlier: set[str] = set()
    _reader: TurnReader | None = None
    _noted: Callable[[], TurnReader] | None = None

    @property
    def reader(self) -> TurnReader | None:
        """The reader of the turn that was read last; ``None`` before the first."""
        if self._noted is not None:
            self._reader, self._noted = self._noted(), None
        return self._reader

    def read_by(self, reader: TurnReader) -> TurnReader:
        """Note the reader of the next turn, and return it."""
        self._earlier.update(self.left_out)
        self._reader = reader
        return reader

    def was_plain(self, reader: Callable[[], TurnReader]) -> None:
        """Note that the first turn was plain text, and what returns its reader if that is asked for."""
        self._noted = reader

    @property
    def left_out(self) -> Sequence[str]:
        """What the upstream sent in any turn that the client's dialect cannot express."""
        # In its own dialect, which a plain turn is in, nothing of an answer is left out.
        lost: Collection[str] = () if self._reader is None else self._reader.left_out
        return sorted({*self._earlier, *lost}) if lost or self._earlier else ()

    def message(self) -> bytes:
        """Return the assistant message of the turn that was read last. Raises RuntimeError before the first
        turn."""
        if (reader := self.reader) is None:
            raise RuntimeError("no turn has been read yet")
        return reader.message()


class State(Struct):
    """The data of a job that changes while it runs. Each turn gets a new ``turn``."""

    run: Run
    output: ClientOutput
    tools: ToolState
    clock: RunClock
    usage: RunUsage
    turn: TurnProgress = field(default_factory=TurnProgress)
    outcome: Outcome = field(default_factory=Outcome)
