"""The parts of a run that are stored for the client's next request, and what was put back into it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct, field

from proxy.base.errors import StoreError
from proxy.relay.approval_outcomes import NOTHING_SETTLED, ApprovalOutcomes
from proxy.relay.memory.hidden.outcomes import Recall
from proxy.relay.memory.hidden.shown import asked_in_note
from proxy.wires.client_port import ClientRequest
from proxy.wires.responses.dialect import RESPONSES, response_not_found
from proxy.wires.upstream_port import Mask, SuspendedCall


def unchanged(name: str, arguments: str) -> str:
    """Return the arguments of a call as they are."""
    return arguments


class LastTurn(Struct, frozen=True):
    """The last turn of a run, as it is stored for the client's next request.

    ``wire`` is the client's dialect and ``upstream`` the upstream that answered. ``message`` is the model's
    message and ``calls`` the calls in it. ``mask`` hides private arguments from what is written
    unencrypted; ``returned`` makes the arguments of a call as the client sends them back. ``untrusted`` has
    the sources of the untrusted results that the model has read. ``asked_in`` are the runs of this
    conversation that asked for approvals, including this one and its agents'. ``loaded`` are the tools that
    searches have shown the model, in their order. ``with_tools`` are the items that have brought tools so
    far. ``input_items`` are those of the request, if the upstream got them in another form
    (:class:`.TypedAnswer`). ``part_ids`` are the ids of the parts of the answer that show calls of the
    provider's tools.
    """

    run_id: str
    caller: str
    wire: str
    message: bytes
    mask: Mask
    calls: Sequence[SuspendedCall] = ()
    returned: Mask = unchanged
    untrusted: str = ""
    upstream: str = ""
    asked_in: Sequence[str] = ()
    loaded: Sequence[str] = ()
    with_tools: str = ""
    input_items: bytes | None = None
    part_ids: Sequence[str] = ()

    def notes(self) -> Mapping[str, str]:
        """Return what is noted beside a stored turn; see :func:`~.shown.with_notes`."""
        return {
            "upstream": self.upstream,
            "asked_in": asked_in_note(self.asked_in),
            "loaded": " ".join(self.loaded),
            "with_tools": self.with_tools,
        }

    def stored(self, name: str, arguments: str) -> str:
        """Return the arguments of a call as they are stored, to be compared with what the client returns."""
        return self.mask(name, self.returned(name, arguments))


SettleApprovals = Callable[[Sequence[str], str], Awaitable[ApprovalOutcomes]]
"""Gets ids of approvals and returns their outcomes; raises :class:`~proxy.base.errors.StoreError`.

The second argument has the sources whose untrusted results the model had read by then, empty for none.
"""


class Restored(Struct, frozen=True):
    """What was put back into a request: ``turns`` is the number of hidden turns.

    ``untrusted`` has the sources of the untrusted results among them. ``upstream`` made the newest of
    them; no other upstream accepts its signatures or has its caches. ``bound`` says that the request
    continues a response by its id, which no other upstream knows. ``unavailable`` says that the record did
    not answer. ``loaded`` are the tools that searches had shown the model, in their order. ``with_tools``
    are the items that have brought tools to the continued response. ``approvals`` has the outcomes of the
    approvals that these turns wait for. ``recall`` holds the result of each look-up.
    """

    turns: int = 0
    untrusted: str = ""
    upstream: str = ""
    bound: bool = False
    unavailable: bool = False
    with_tools: str = ""
    loaded: Sequence[str] = ()
    approvals: ApprovalOutcomes = NOTHING_SETTLED
    recall: Recall = field(default_factory=Recall)

    def __bool__(self) -> bool:
        return self.turns > 0

    def check_found(self, request: ClientRequest) -> None:
        """Check that the response that the request continues was found, if it names one.

        Call this if the upstream cannot know that response. Raise :class:`RequestError` (400)
        if it is not on record, and :class:`~proxy.base.errors.StoreError` if the record did not answer.
        """
        if request.continues is None or self.bound:
            return
        if self.unavailable:
            field = RESPONSES.fields.continues
            raise StoreError(f"the response that {field} names cannot be looked up")
        raise response_not_found(400, request.continues)
