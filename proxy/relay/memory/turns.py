"""What is kept of a run for the client's next request, and what came back of it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from proxy.approval_records import Approval
from proxy.errors import RequestError, StoreError
from proxy.relay.memory.outcomes import Recall
from proxy.values import value_class
from proxy.wires.client_port import ClientRequest
from proxy.wires.upstream_port import Mask, SuspendedCall

__all__ = ["Answers", "LastTurn", "Restored", "Settle"]


@value_class
class LastTurn:
    """The last turn of a run, as it is kept for the client's next request.

    ``wire`` is the client's dialect and ``upstream`` who answered.  ``message`` is the model's, ``calls`` are
    those in it.  ``mask`` hides private arguments from what is written in the clear.  ``untrusted`` names a
    tool whose result was a stranger's text, if the model has read one.  ``waiting`` are the approvals that
    it waits for.
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


class Answers(Protocol):
    """What approvals came to: texts for the model by id, which of them nobody has decided about yet, and a
    tool whose result is a stranger's text, if one is among them."""

    @property
    def results(self) -> Mapping[str, str]: ...

    @property
    def waiting(self) -> Sequence[Approval]: ...

    @property
    def untrusted(self) -> str: ...


Settle = Callable[[Sequence[str]], Awaitable[Answers]]
"""Finds out what approvals came to; raises :class:`~proxy.errors.StoreError`."""


@value_class
class Restored:
    """How many hidden turns were put back, and whose word is in them.

    ``untrusted`` names a tool whose result was a stranger's text, if one is among them.  ``upstream``
    is the one that the newest of them came from; signatures and caches are its own.  ``bound`` says
    that the request goes on from a response by its id, which no other upstream knows.  ``unavailable`` says
    that the record did not answer, so that nobody knows what could have been put back.  ``waiting`` are
    approvals that nobody has decided about yet, whose calls are among them.  ``recall`` says what came of
    each answer and each call that was looked up.
    """

    turns: int = 0
    untrusted: str = ""
    upstream: str = ""
    bound: bool = False
    unavailable: bool = False
    waiting: tuple[Approval, ...] = ()
    recall: Recall = field(default_factory=Recall, compare=False)

    def __bool__(self) -> bool:
        return self.turns > 0

    def check_found(self, request: ClientRequest) -> None:
        """Raise for a response to go on from that is not here, where nobody else can know it either.

        Raises :class:`~proxy.errors.RequestError` (400) for one that is not on record, and
        :class:`~proxy.errors.StoreError` where the record cannot say.
        """
        if request.continues is None or self.bound:
            return
        if self.unavailable:
            raise StoreError("nobody else knows the response that the request goes on from")
        raise RequestError(
            400,
            f"Previous response with id {request.continues[:100]!r} not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
