"""The parts of a run that are stored for the client's next request, and what was put back into it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from msgspec import Struct

from proxy.base.errors import StoreError
from proxy.base.events import ToolResult
from proxy.base.values import value_class
from proxy.records.approvals import Approval
from proxy.relay.memory.hidden.marks import WAITING
from proxy.relay.memory.hidden.outcomes import Recall
from proxy.relay.memory.hidden.shown import asked_in_note
from proxy.wires.client_port import ClientRequest
from proxy.wires.responses.dialect import RESPONSES, response_not_found
from proxy.wires.upstream_port import Mask, SuspendedCall

__all__ = ["ApprovalResults", "LastTurn", "Restored", "SettleApprovals"]


class LastTurn(Struct, frozen=True):
    """The last turn of a run, as it is stored for the client's next request.

    ``wire`` is the client's dialect and ``upstream`` the upstream that answered. ``message`` is the model's
    message and ``calls`` the calls in it. ``mask`` hides private arguments from what is written
    unencrypted. ``untrusted`` has the sources of the untrusted results that the model has read. ``waiting``
    are the ids of the approvals that the turn waits for, and the names of the turns of agents. ``asked_in``
    are the runs of this conversation that asked for approvals, including this one and its agents'.
    """

    run_id: str
    caller: str
    wire: str
    message: bytes
    mask: Mask
    calls: Sequence[SuspendedCall] = ()
    untrusted: str = ""
    upstream: str = ""
    waiting: Sequence[str] = ()
    asked_in: Sequence[str] = ()

    @property
    def waits(self) -> dict[str, str]:
        """The notes on what the turn waits for, and which runs have asked."""
        return {WAITING: " ".join(self.waiting), "asked_in": asked_in_note(self.asked_in)}


class ApprovalResults(Protocol):
    """The outcomes of approvals.

    ``results`` are texts for the model by approval id, ``waiting`` are the undecided approvals, and
    ``untrusted`` has the sources of untrusted results among them. ``ran`` are the approvals whose
    calls have run, with their results. ``renewed`` maps what turns waited for to what they wait for now:
    agents that continued, and ask again. ``asked`` are the new approvals of these agents.
    """

    @property
    def results(self) -> Mapping[str, str]: ...

    @property
    def waiting(self) -> Sequence[Approval]: ...

    @property
    def untrusted(self) -> str: ...

    @property
    def ran(self) -> Sequence[tuple[Approval, ToolResult]]: ...

    @property
    def renewed(self) -> Mapping[str, str]: ...

    @property
    def asked(self) -> Sequence[Approval]: ...


SettleApprovals = Callable[[Sequence[str], str], Awaitable[ApprovalResults]]
"""Gets ids of approvals and returns their outcomes; raises :class:`~proxy.base.errors.StoreError`.

The second argument has the sources whose untrusted results the model had read by then, empty for none.
"""


@value_class
class Restored:
    """What was put back into a request: ``turns`` is the number of hidden turns.

    ``untrusted`` has the sources of the untrusted results among them. ``upstream`` made the newest of
    them; no other upstream accepts its signatures or has its caches. ``bound`` says that the request
    continues a response by its id, which no other upstream knows. ``unavailable`` says that the record did
    not answer. ``waiting`` are the undecided approvals of calls in these turns, and ``asked`` those that
    the client does not know yet. ``waits`` are the names under which the turns wait. ``ran`` are the
    approvals whose calls ran just now, with their results. ``asked_in`` are the runs that asked for
    approvals in exactly this conversation. ``recall`` holds the result of each look-up.
    """

    turns: int = 0
    untrusted: str = ""
    upstream: str = ""
    bound: bool = False
    unavailable: bool = False
    waiting: tuple[Approval, ...] = ()
    asked: tuple[Approval, ...] = ()
    waits: tuple[str, ...] = ()
    ran: tuple[tuple[Approval, ToolResult], ...] = ()
    asked_in: tuple[str, ...] = ()
    recall: Recall = field(default_factory=Recall, compare=False)

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
