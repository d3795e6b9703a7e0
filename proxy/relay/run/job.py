"""The immutable input of a run: one client request, planned for one upstream."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct, field

from proxy.records.rows import Meter
from proxy.relay.approval_outcomes import NOTHING_SETTLED, ApprovalOutcomes
from proxy.relay.ask import Ask, Identity, RequestHead
from proxy.relay.memory.hidden.outcomes import Recall
from proxy.relay.memory.local import LocalResponses
from proxy.relay.offering.offer import Offer
from proxy.relay.routing.fallback import Candidates
from proxy.relay.routing.prices import Price
from proxy.relay.routing.router import Route
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy
from proxy.tools.running.ledger import RequestKey, RunLedger
from proxy.wires.client_port import ClientRequest, Trace
from proxy.wires.typed_tools.functions import TypedAnswer
from proxy.wires.upstream_port import BodyEditor, UpstreamPort
from proxy.wires.wire import Wire


class ClientSide(Struct, frozen=True):
    """What the client asked, as it was planned. The answer is written in the dialect of ``port``.

    ``typed`` turns it back into the form in which the client declared its tools; ``None`` for its own form.
    ``with_tools`` are the items that have brought tools to the response that the request continues.
    """

    ask: Ask
    port: Wire
    request: ClientRequest
    trace: Trace
    typed: TypedAnswer | None = None
    with_tools: str = ""


class UpstreamSide(Struct, frozen=True):
    """How the proxy asks the upstream: in the dialect of ``port``, with the body of ``editor``.

    ``crossed`` says that the client speaks another dialect. Then no byte passes unchanged. ``head`` goes
    with every turn. ``is_large`` says that a thread serializes the body.
    """

    route: Route
    port: UpstreamPort
    editor: BodyEditor
    head: RequestHead
    crossed: bool
    is_large: bool

    @property
    def left_out(self) -> Sequence[str]:
        """The client's fields that the upstream gets with another value, or not at all."""
        return self.editor.body.left_out(self.editor.edits)


class ToolAccess(Struct, frozen=True):
    """The tools of a run: ``offer`` is what it offers at first, the rest is what the caller may use.

    ``policy`` is the caller's effective policy, and ``selection`` is its result for a catalog. ``ledger``
    holds the effects of the run, and those of the request that this one repeats.
    """

    offer: Offer
    policy: Policy
    selection: Selection
    ledger: RunLedger


class Continuity(Struct, frozen=True):
    """What earlier requests left for this one, and what it leaves for later ones.

    ``is_person`` says that the caller is one person, for whom a turn can be held. ``restored`` says that
    hidden parts of the conversation, unknown to the client, were put back into it. ``notes_threads`` says
    that untrusted results are noted for conversations and responses that the upstream keeps.
    ``offer_fingerprint`` is the fingerprint of the offer if the answer is to be stored, else ``None``.
    ``repeat_key`` is the same for a repeat of this request, and empty if repeats are not recognized.
    ``connection_responses`` keeps a response that must not be stored, if the client's connection may continue
    it. ``approvals`` has the outcome of calls that waited for approvals. ``recall`` says what was put back
    into the request, and why other things were not.
    """

    restored: bool
    is_person: bool
    notes_threads: bool
    offer_fingerprint: str | None
    repeat_key: RequestKey
    connection_responses: LocalResponses | None
    approvals: ApprovalOutcomes = NOTHING_SETTLED
    recall: Recall = field(default_factory=Recall)


class Accounting(Struct, frozen=True):
    """The meter of the caller's use (``None`` without limits) and the model's price (``None`` if unknown)."""

    meter: Meter | None
    price: Price | None


class Recording(Struct, frozen=True):
    """What the record gets of the request.

    ``request`` is the client's body if it is to be stored, else empty. ``prompt_hash`` is a digest
    of the prompt (:mod:`proxy.relay.memory.prompt_hash`).
    """

    request: bytes
    prompt_hash: str


class Fallback(Struct, frozen=True):
    """The upstreams that may still serve the run as long as none has answered.

    ``next_job`` plans the same request for the next of the ``candidates``.
    """

    candidates: Candidates
    next_job: "Callable[[], Awaitable[Job]]"


class Job(Struct, frozen=True):
    """One client request that may use server tools."""

    identity: Identity
    client: ClientSide
    upstream: UpstreamSide
    tools: ToolAccess
    continuity: Continuity
    accounting: Accounting
    recording: Recording
    fallback: Fallback

    @property
    def can_ask(self) -> bool:
        """Whether a person can be asked about calls of the run, if the request can wait."""
        nested = self.client.ask.nested
        if nested is not None and not nested.asking.can_ask:
            return False
        return self.tools.selection.asks and self.continuity.is_person

    @property
    def keeps(self) -> bool:
        """Whether content of the run may be stored. For an agent's run, the calling run must allow it
        too."""
        nested = self.client.ask.nested
        return self.client.request.may_store and (nested is None or nested.asking.keeps)
