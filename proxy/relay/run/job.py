"""The input of a run: one client request, planned for one upstream.  It does not change."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field

from proxy.approval_records import Approval
from proxy.events import ToolResult
from proxy.records import Meter
from proxy.relay.ask import Ask, Identity, RequestHead
from proxy.relay.memory.local import LocalResponses
from proxy.relay.memory.outcomes import Recall
from proxy.relay.nested import Purse
from proxy.relay.offer import Offer
from proxy.relay.routing.fallback import Candidates
from proxy.relay.routing.prices import Price
from proxy.relay.routing.router import Route
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy
from proxy.tools.running.ledger import RunLedger
from proxy.values import value_class
from proxy.wires.client_port import ClientPort, ClientRequest, Trace
from proxy.wires.upstream_port import BodyEditor, UpstreamPort

__all__ = [
    "Accounting",
    "ClientSide",
    "Continued",
    "Conversation",
    "Fallback",
    "Job",
    "Recording",
    "ToolAccess",
    "UpstreamSide",
]


@value_class
class ClientSide:
    """What the client asked, as it was planned, and how it is answered: in the dialect of ``port``."""

    ask: Ask
    port: ClientPort
    request: ClientRequest
    trace: Trace


@value_class
class UpstreamSide:
    """How the upstream is asked: in the dialect of ``port``, with the body of ``editor``.

    ``crossed`` says that the client's dialect is another one: then no byte passes as it came, and
    ``left_out`` are the fields of the client's that the upstream is not sent.  ``head`` goes with every turn.
    ``is_large`` says that the body is written anew in a thread.
    """

    route: Route
    port: UpstreamPort
    editor: BodyEditor
    head: RequestHead
    crossed: bool
    left_out: Sequence[str]
    is_large: bool


@value_class
class ToolAccess:
    """Which tools the run has, to its end: what it begins to ``offer``, and what the caller may use of them.

    ``policy`` is the caller's, already intersected, ``selection`` what it says of a catalog.  ``ledger``
    holds the effects, also those of a request that this one repeats.
    """

    offer: Offer
    policy: Policy
    selection: Selection
    ledger: RunLedger


@value_class
class Continued:
    """What became of calls of earlier turns that had waited for approvals.

    ``waiting`` are those that nobody has decided about: no model is asked before somebody has.  ``ran`` are
    those whose calls ran as this request was planned, ``asked_in`` the runs that asked for approvals in this
    very conversation, and ``purse`` is what agents used among them, ``None``
    where nothing was to decide.  ``waits`` are the names under which turns wait still.  ``asked`` are those
    of ``waiting`` that agents asked for as this request was planned; the client does not know them.
    """

    waiting: tuple[Approval, ...] = ()
    ran: tuple[tuple[Approval, ToolResult], ...] = ()
    purse: Purse | None = None
    asked_in: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    asked: tuple[Approval, ...] = ()


@value_class
class Conversation:
    """What earlier requests left for this one, and what it leaves for later ones.

    ``is_person`` says that the caller is one person, for whom a turn can be held.
    ``restored`` says that hidden parts of the conversation went into it that the client knows nothing of.
    ``notes_threads`` says that what the model reads is noted of the conversation and the response that the
    upstream keeps.  ``offer_fingerprint`` is that of the offer where the answer is to be remembered, else
    ``None``.  ``repeat_key`` is what a repeat of this request has in common with it, empty where none is
    recognised.  ``local`` keeps a response that the record must not have, where the client's connection may
    go on from it.  ``approvals`` says what became of calls that had waited for one.  ``recall`` says
    what was put back and what not.
    """

    restored: bool
    is_person: bool
    notes_threads: bool
    offer_fingerprint: str | None
    repeat_key: str
    local: LocalResponses | None
    approvals: Continued = field(default_factory=Continued)
    recall: Recall = field(default_factory=Recall, compare=False)


@value_class
class Accounting:
    """What counts the caller's use, ``None`` where nothing is limited, and the model's price, if any."""

    meter: Meter | None
    price: Price | None


@value_class
class Recording:
    """What the record is given of the request.

    ``request`` is the client's body where it is to be kept, else empty.  ``prompt_fingerprint`` is that
    of how the model is asked.
    """

    request: bytes
    prompt_fingerprint: str


@value_class
class Fallback:
    """The upstreams that may have the run until one has answered.

    ``next_job`` makes the job of the next of the ``candidates``, from the same request.
    """

    candidates: Candidates
    next_job: "Callable[[], Awaitable[Job]]"


@value_class
class Job:
    """One client request that server tools may take part in."""

    identity: Identity
    client: ClientSide
    upstream: UpstreamSide
    tools: ToolAccess
    conversation: Conversation
    accounting: Accounting
    recording: Recording
    fallback: Fallback

    @property
    def can_ask(self) -> bool:
        """Whether a person can be asked about calls of the run, if its request can wait."""
        nested = self.client.ask.nested
        if nested is not None and not nested.asking.can_ask:
            return False
        return self.tools.selection.asks and self.conversation.is_person

    @property
    def keeps(self) -> bool:
        """Whether the record may have content of the run: what its client, or that of an agent, asked for."""
        nested = self.client.ask.nested
        return self.client.request.keeps and (nested is None or nested.asking.keeps)
