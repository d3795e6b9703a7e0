"""Records of side effects: who claimed each one, and how it ended (rule R5).

Times are seconds since the epoch (UTC).  Nothing here knows a database.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from proxy.background_records import Lease
from proxy.errors import ToolErrorCode
from proxy.records import InvocationStatus, ToolInvocationRecord
from proxy.values import value_class

__all__ = [
    "REPEATS_WITHIN_S",
    "UNANSWERED",
    "UNSAID_WITHIN_S",
    "EarlierAttempt",
    "EarlierEffect",
    "EffectClaim",
    "EffectLog",
    "EffectResult",
]

REPEATS_WITHIN_S: Final = 3600.0
"""Seconds for which a side effect is remembered, so that a repeated request does not cause it again."""

UNSAID_WITHIN_S: Final = 600.0
"""Seconds after a run without an answer in which the same request is taken for its repeat, though its client
does not say so.  Programs repeat at once, a person who asks again may do so after minutes."""

UNANSWERED: Final = ("failed", "cancelled", "interrupted")
"""How a run ends whose client did not get the whole answer."""


@value_class
class EffectClaim:
    """What a call takes for itself before it causes its effect (rule R5).

    ``place`` names the run, the turn and the place in it.  ``request`` is a digest of the client's
    request and of the call that it led to, ``tool`` one of the request and the tool alone, and ``number``
    says which of that tool's effects for the request it is, from 0; both digests are empty where equal
    calls are to have effects of their own.  ``is_repeat`` says that the client called the request a
    repeat, ``asked_at`` when it came.  ``approval`` is the id of the approval that is used up with the claim;
    empty for none.  ``lease`` is that of the background response whose run the call belongs to: nothing is
    committed once another attempt has begun.
    """

    place: str
    request: str = ""
    is_repeat: bool = False
    asked_at: float = 0.0
    tool: str = ""
    number: int = 0
    approval: str = ""
    lease: Lease | None = None

    @property
    def slot(self) -> str:
        """The tool's effect of this number, whatever its arguments; empty where they are not counted."""
        return f"{self.tool}:{self.number}" if self.tool else ""

    @property
    def keys(self) -> tuple[str, ...]:
        """All that is taken, what says most of an effect first."""
        return tuple(filter(None, (self.place, self.request, self.slot)))

    def yields_to(self, key: str, *, is_repeat: bool, asked_at: float) -> bool:
        """Whether what another request has taken under one of these keys is in the way of this claim.

        It is in the way of a repeat, and of a request that its own repeat overtook.  Nobody comes to a
        place twice with a right to it.
        """
        return key == self.place or self.is_repeat or (is_repeat and asked_at >= self.asked_at)


@value_class
class EffectResult:
    """What the model was given of an effect; this is content (rule R3).

    ``redacted`` is what everyone but the model may see, ``untrusted`` says that a stranger's text
    is in it.
    """

    content: str
    safe_message: str = ""
    truncated: bool = False
    redacted: Any = None
    untrusted: bool = False


@dataclass(frozen=True, slots=True)
class EarlierEffect:
    """The effect that somebody else has claimed, as far as it is known.

    ``started`` is under way, ``interrupted`` broke off with its process: nobody knows whether it
    happened.  ``result`` is ``None`` until it is over, and where it was not kept.  ``another`` says that
    it came of another call of the tool for the same request, with ``arguments_redacted``, if those are
    still known.
    """

    invocation_id: str
    status: InvocationStatus
    error_code: ToolErrorCode | None = None
    result: EffectResult | None = None
    another: bool = False
    arguments_redacted: Any = None


EarlierAttempt = Literal["none", "running", "unanswered"]
"""What is on record of a request that may be repeated: nothing, or it was answered in full; its run goes on;
its run ended less than :data:`UNSAID_WITHIN_S` ago without its client getting the whole answer."""


class EffectLog(Protocol):
    """Which side effects have been caused, for all processes that share a record (rule R5)."""

    async def claim_effect(self, record: ToolInvocationRecord, claim: EffectClaim) -> EarlierEffect | None:
        """Commit the row of an execution together with its claim, unless somebody has claimed it.

        ``None``: it is committed, and the effect is the caller's to cause, once.  Else nothing was
        written, and this is what there is already.  A claim is in the way for
        :data:`REPEATS_WITHIN_S`; that of a request alone is not in the way of a later request that
        is no repeat.  Where nothing but the tool's number is taken, it is by ``another`` call.  Raises
        :class:`~proxy.errors.StoreUnavailable` where nothing is committed.
        """
        ...

    async def number_effects(self, claim: EffectClaim) -> Mapping[int, str]:
        """The effects of the claim's tool for its request that are in its way: ids of their executions
        by their number, in the order of those.  Raises :class:`~proxy.errors.StoreError` where the record
        cannot be read.
        """
        ...

    async def find_effect(self, claim: EffectClaim) -> EarlierEffect | None:
        """What has become of the effect that this claim found taken; ``None`` where it was given back.

        Raises :class:`~proxy.errors.StoreError` where the record cannot be read.
        """
        ...

    async def earlier_attempt(self, claim: EffectClaim) -> EarlierAttempt:
        """How the run of an earlier request ended that is the same as the claim's, and in which its tool has
        had effects.  A run of this very process goes on for nobody: whoever asks knows of it.

        Raises :class:`~proxy.errors.StoreError` where the record cannot be read.
        """
        ...

    def settle_effects(self, invocation_ids: Collection[str]) -> None:
        """Queue that a client has the whole answer of a run in which its model was given what came of these
        effects.  Never waits."""
        ...

    def keep_effect(self, invocation_id: str, result: EffectResult) -> None:
        """Queue what the model was given, before the execution's row is closed.  Never waits."""
        ...

    def release_effect(self, invocation_id: str) -> None:
        """Queue that the claims of an execution are free again: it was never begun, or nobody repeats it.

        Never waits.
        """
        ...
