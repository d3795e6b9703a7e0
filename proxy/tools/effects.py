"""Side effects that other processes may have caused already, for the same request (rule R5).

A run's ledger knows what its own process did.  What another worker did, or this one before it was
started again, only the record knows: a claim is committed with the row of each effect, and a call
that finds it taken waits for what comes of the first, or says that nobody knows.
"""

import asyncio
import hashlib
import time

from proxy.errors import StoreError, ToolFailure
from proxy.events import ToolResult
from proxy.records import EarlierEffect, EffectClaim, EffectLog, EffectResult
from proxy.tools.invocation import Invocation, InvocationJournal
from proxy.tools.results import failure_text, note_text

__all__ = ["SharedEffects", "claim_of", "repeated_result"]

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5

_UNKNOWN = (
    "an earlier attempt of this request began this very call and nobody knows how it ended; it may have "
    "taken effect, so it was not made again: find out what became of it, or ask the user"
)
_NOT_KEPT = (
    "an earlier attempt of this request made this very call and it succeeded; it was not made again, "
    "and its result was not kept"
)


def claim_of(invocation: Invocation, effect: str) -> EffectClaim:
    """What a call claims: its place in the run, and ``effect`` for the client's request.

    ``effect`` tells the calls of a request apart; empty where equal calls are to have effects of their own.
    """
    context = invocation.context
    request = context.ledger.request
    place = f"place:{context.run_id}:{context.turn}:{invocation.call.index}"
    if not effect or request is None:
        return EffectClaim(place)
    digest = hashlib.blake2b(digest_size=24)
    for part in (request.key.encode(), effect.encode("utf-8", "surrogatepass")):
        digest.update(len(part).to_bytes(8, "big") + part)
    return EffectClaim(place, f"request:{digest.hexdigest()}", request.is_repeat, request.asked_at)


class SharedEffects:
    """Claims effects on record, and finds out what became of those that others have claimed."""

    def __init__(self, log: EffectLog, journal: InvocationJournal) -> None:
        self._log = log
        self._journal = journal

    async def begin(
        self, invocation: Invocation, claim: EffectClaim, patience_s: float
    ) -> EarlierEffect | None:
        """Commit the row with its claim; ``None`` says that the effect is this call's to cause.

        Else what the first came to, after ``patience_s`` at the latest: then it may still be ``started``.
        Raises :class:`~proxy.errors.StoreError` where the row could not be committed.
        """
        until = time.monotonic() + patience_s
        pause_s = _FIRST_PAUSE_S
        earlier = await self._journal.claim(invocation, self._log, claim)
        while earlier is not None and earlier.status == "started":
            left_s = until - time.monotonic()
            if left_s <= 0 or invocation.abandoned:
                break
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                found = await self._log.find_effect(claim)
            except StoreError:
                break
            # Given back: the first never began, so that this one may.
            earlier = found or await self._journal.claim(invocation, self._log, claim)
        return earlier

    async def earlier(self, claim: EffectClaim) -> EarlierEffect | None:
        """What an earlier try of the request came to, for a call that cannot be made now itself.

        Raises :class:`~proxy.errors.StoreError` where nobody can say.
        """
        # An older effect is another request's where this one does not call itself a repeat.
        return await self._log.find_effect(claim if claim.is_repeat else EffectClaim(claim.place))

    def keep(self, invocation: Invocation, result: ToolResult, *, untrusted: bool) -> None:
        """Keep what the model was given, for whoever repeats the request."""
        if invocation.claimed:
            text = result.to_keep().content
            kept = EffectResult(text, result.safe_message, result.truncated, result.redacted, untrusted)
            self._log.keep_effect(invocation.id, kept)

    def release(self, invocation: Invocation) -> None:
        """Free what a call has claimed that never began."""
        if invocation.claimed:
            self._log.release_effect(invocation.id)
            invocation.claimed = False


def repeated_result(invocation: Invocation, earlier: EarlierEffect) -> ToolResult:
    """What the model is told of an effect that was caused before."""
    call_id, kept = invocation.call.call_id, earlier.result
    if earlier.status == "success":
        content = note_text(_NOT_KEPT) if kept is None else kept.content
        return ToolResult(
            call_id,
            ok=True,
            content=content,
            truncated=kept is not None and kept.truncated,
            redacted=kept.redacted if kept is not None else None,
            arguments_redacted=invocation.arguments_redacted,
        )
    if earlier.status == "error":
        message = kept.safe_message if kept is not None else "an earlier attempt of this very call failed"
        failure = ToolFailure(message, code=earlier.error_code or "execution_failed")
    else:
        failure = ToolFailure(_UNKNOWN)
    return ToolResult(
        call_id,
        ok=False,
        content=failure_text(failure.code, failure.message),
        error_code=failure.code,
        safe_message=failure.message,
        arguments_redacted=invocation.arguments_redacted,
    )
