"""Records of side effects: who claimed each one, and how it ended (rule R5).

Times are seconds since the epoch (UTC). This module does not depend on a database.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from proxy.base.errors import ToolErrorCode
from proxy.records.background import Lease
from proxy.records.rows import InvocationStatus, ToolInvocationRecord

REPEATS_WITHIN_S: Final = 3600.0
"""Seconds for which a side effect is remembered, so that a repeated request does not cause it again."""

UNMARKED_REPEAT_WITHIN_S: Final = 600.0
"""The proxy treats the same request as a repeat for this many seconds after a run without an answer. It
does so even if the client does not mark the request as one. Programs retry at once; a person may ask again
minutes later."""

UNANSWERED: Final = ("failed", "cancelled", "interrupted")
"""The final states of a run whose client did not get the whole answer."""


class EffectClaim(Struct, frozen=True):
    """What a call claims before it causes its effect (rule R5).

    ``place`` names the run, the turn and the place in the turn. ``request`` is a digest of the client's
    request and the call that it led to. ``tool`` is a digest of the request and the tool alone. ``number``
    counts that tool's effects for the request, from 0. Both digests are empty if equal calls are to have
    separate effects. ``is_repeat`` says that the client marked the request as a repeat; ``asked_at`` is
    when the request came. ``approval`` is the id of the approval that the claim uses up; empty for none.
    ``lease`` is the lease of the background response whose run the call belongs to. Nothing is committed
    once another attempt has begun.
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
        """The key of the tool's effect with this number, whatever its arguments; empty if effects are not
        counted."""
        return f"{self.tool}:{self.number}" if self.tool else ""

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that are claimed, the most specific first."""
        return tuple(filter(None, (self.place, self.request, self.slot)))

    def is_blocked_by(self, key: str, *, is_repeat: bool, asked_at: float) -> bool:
        """Return whether another request's claim of one of these keys blocks this claim.

        It blocks a repeat, and a request that its own repeat overtook. A place always blocks: only one call
        has a right to it.
        """
        return key == self.place or self.is_repeat or (is_repeat and asked_at >= self.asked_at)


class EffectResult(Struct, frozen=True):
    """The result of an effect as the model got it; this is content (rule R3).

    ``redacted`` is what everyone but the model may see. ``untrusted`` says that it contains text from an
    outside source.
    """

    content: str
    safe_message: str = ""
    truncated: bool = False
    redacted: Any = None
    untrusted: bool = False


class EarlierEffect(Struct, frozen=True):
    """The effect that another call has claimed, as far as it is known.

    Status ``started`` means that it is under way. ``interrupted`` means that its process died during it, so
    nobody knows whether it happened. ``result`` is ``None`` until the effect is over, and if the result was
    not kept. ``another`` says that a different call of the tool for the same request caused it;
    ``arguments_redacted`` are that call's, if they are still known.
    """

    invocation_id: str
    status: InvocationStatus
    error_code: ToolErrorCode | None = None
    result: EffectResult | None = None
    another: bool = False
    arguments_redacted: Any = None


EarlierAttempt = Literal["none", "running", "unanswered"]
"""What is on record about a request that may be repeated.

``none``: nothing, or it was answered in full. ``running``: its run has not ended. ``unanswered``: its run
ended less than :data:`UNMARKED_REPEAT_WITHIN_S` ago, and its client did not get the whole answer.
"""


class EffectLog(Protocol):
    """The side effects that were caused, for all processes that share a record (rule R5)."""

    async def claim_effect(self, record: ToolInvocationRecord, claim: EffectClaim) -> EarlierEffect | None:
        """Commit the row of an execution together with its claim, unless the effect is already claimed.

        Return ``None`` if it is committed; then the caller must cause the effect, once. Otherwise nothing
        was written, and the result is the earlier effect. A claim blocks others for
        :data:`REPEATS_WITHIN_S`. A claim of the request alone does not block a later request that is no
        repeat. If only the tool's number is taken, the earlier effect is of ``another`` call. Raise
        :class:`~proxy.base.errors.StoreUnavailable` if nothing is committed.
        """

    async def number_effects(self, claim: EffectClaim) -> Mapping[int, str]:
        """Return the effects of the claim's tool, for its request, that block the claim.

        The mapping goes from their numbers, in order, to the ids of their executions. Raise
        :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """

    async def find_effect(self, claim: EffectClaim) -> EarlierEffect | None:
        """Return the present state of the effect that blocked this claim; ``None`` if it was released.

        Raise :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """

    async def earlier_attempt(self, claim: EffectClaim) -> EarlierAttempt:
        """Return how the run of an earlier, equal request ended in which the claim's tool had effects.

        Runs that go on in this same process are left out, because the caller knows about them. Raise
        :class:`~proxy.base.errors.StoreError` if the record cannot be read.
        """

    def settle_effects(self, invocation_ids: Collection[str]) -> None:
        """Queue a note that the client got the whole answer of a run whose model saw the results of these
        effects. Never wait."""

    def keep_effect(self, invocation_id: str, result: EffectResult) -> None:
        """Queue the result that the model got, before the execution's row is closed. Never wait."""

    def release_effect(self, invocation_id: str) -> None:
        """Queue the release of the claims of an execution, because it never began or nobody repeats it.

        Never wait.
        """
