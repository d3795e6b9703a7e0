"""Side effects that other processes may have caused for the same request (rule R5).

A run's ledger knows the effects of its own process. The record knows those of other workers, and of this one
before a restart: the row of each effect contains a claim. A call whose claim is taken waits for the result
of the first call, or reports that nobody knows it.

In a repeat the model may word a call differently. So the effects of each tool are numbered for a request,
and each number is a claim, too. A call of a repeat meets the effects of earlier attempts by that tool. A
different call does not run until the model has got the results of all these effects.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from proxy.base.errors import StoreError, ToolErrorCode, ToolFailure
from proxy.base.events import ToolResult
from proxy.records.effects import EarlierEffect, EffectClaim, EffectLog, EffectResult
from proxy.records.result_for_model import failure_text
from proxy.tools.contract.arguments import utf8_length
from proxy.tools.contract.results.results import cut_by, json_text, note_text
from proxy.tools.running.invocation import Invocation, InvocationJournal
from proxy.tools.running.ledger import NOT_KEPT, RunLedger
from proxy.tools.running.plan import UNKNOWN_END

_PAUSES_S: Final[Sequence[float]] = (0.05, 0.1, 0.2, 0.3, 0.35)
"""The pauses between checks on a run of another process that may just be ending: one second in all."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5

_ANOTHER = (
    "the client sent this request again, and an earlier attempt had already called this tool with other "
    "arguments (earlier_call); so this call did not run. Continue from the result of the earlier call, and "
    "call again only if you want both effects"
)
_RAN: Final[ToolErrorCode] = "already_ran"


def claim_of(invocation: Invocation, effect: str) -> EffectClaim:
    """Return the claim of a call: its place in the run, and ``effect`` for the client's request.

    ``effect`` is :attr:`~proxy.tools.running.plan.PlannedCall.equality`, which tells the calls of a request
    apart; it is empty if equal calls are to have separate effects.
    """
    context = invocation.context
    request = context.ledger.request
    place = f"place:{context.ledger.root or context.run_id}:{context.turn}:{invocation.call.index}"
    if not effect or request is None:
        approval = invocation.approval
        approved = "" if approval is None else approval.consumed_approval
        return EffectClaim(place, approval=approved, lease=context.ledger.lease)
    tool = effect.partition("\0")[0]
    return EffectClaim(
        place,
        f"request:{_digest(request.key.digest, effect)}",
        request.is_repeat,
        request.asked_at,
        f"tool:{_digest(request.key.digest, tool)}",
        lease=context.ledger.lease,
    )


class SharedEffects:
    """The claims of effects in the record; it also finds the outcomes of effects that others have claimed."""

    def __init__(self, log: EffectLog, journal: InvocationJournal) -> None:
        self._log = log
        self._journal = journal

    async def begin(
        self, invocation: Invocation, claim: EffectClaim, patience_s: float
    ) -> EarlierEffect | None:
        """Commit the row with its claim; return ``None`` if this call must cause the effect.

        Otherwise return the earlier effect, at the latest after ``patience_s`` seconds: it may then still be
        ``started``. An equal call caused it, or ``another`` call whose outcome the model does not know yet.
        Raises :class:`~proxy.base.errors.StoreError` if the row could not be committed.
        """
        until = time.monotonic() + patience_s
        pause_s = _FIRST_PAUSE_S
        lock = invocation.context.ledger.claiming
        claiming = (
            self._claim(invocation, claim) if lock is None else self._claim_in_turn(invocation, claim, lock)
        )
        earlier, claim = await claiming
        while earlier is not None and earlier.status == "started":
            left_s = until - time.monotonic()
            if left_s <= 0 or invocation.abandoned:
                break
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                known = await self._find(claim, earlier)
            except StoreError:
                break
            if known is None:
                # The claim was released: the first call never began, so this one may.
                earlier, claim = await self._claim(invocation, claim)
            else:
                earlier = known
        return earlier

    async def _claim_in_turn(
        self, invocation: Invocation, claim: EffectClaim, lock: asyncio.Lock
    ) -> tuple[EarlierEffect | None, EffectClaim]:
        """Claim under the lock: agents that run at the same time number their effects one by one."""
        async with lock:
            return await self._claim(invocation, claim)

    async def _claim(
        self, invocation: Invocation, claim: EffectClaim
    ) -> tuple[EarlierEffect | None, EffectClaim]:
        """Claim the effect with its number, or return the earlier effect that blocks the claim.

        The model gets the outcome of that earlier effect, so the next different call meets the next one.
        """
        ledger = invocation.context.ledger
        number = ledger.next_number(claim.tool)
        if not number and await self._is_unmarked_repeat(ledger, claim):
            ledger.mark_repeat()
            claim = replace(claim, is_repeat=True)
        if claim.tool and claim.is_repeat:
            number = await self._next_number(invocation, claim)
        while True:
            if claim.number != number:
                claim = replace(claim, number=number)
            earlier = await self._journal.claim(invocation, self._log, claim)
            if earlier is None:
                ledger.take_number(claim.tool, number)
                ledger.answer_for(invocation.id)
                return None, claim
            if not (earlier.another and ledger.answered(earlier.invocation_id)):
                ledger.answer_for(earlier.invocation_id)
                return earlier, claim
            number = await self._next_number(invocation, claim)

    async def _is_unmarked_repeat(self, ledger: RunLedger, claim: EffectClaim) -> bool:
        """Return whether another process called this tool for the same request and left it unanswered.

        This is checked before the first effect of a tool in a run. Raises
        :class:`~proxy.base.errors.StoreError` if the record cannot tell.
        """
        request = ledger.request
        if not claim.tool or claim.is_repeat or request is None or request.is_known:
            return False
        for pause_s in (*_PAUSES_S, None):
            attempt = await self._log.earlier_attempt(claim)
            if attempt != "running" or pause_s is None:
                return attempt == "unanswered"
            # The run may have just ended, with its end not yet in the record.
            await asyncio.sleep(pause_s)
        return False

    async def _next_number(self, invocation: Invocation, claim: EffectClaim) -> int:
        """Return the first number whose effect the model does not know yet: the claim is then refused, unless
        an equal call has it. If there is none, return the first free number."""
        ledger = invocation.context.ledger
        taken = await self._log.number_effects(claim)
        free = max(taken, default=-1) + 1
        return next((number for number, id_ in taken.items() if not ledger.answered(id_)), free)

    async def _find(self, claim: EffectClaim, earlier: EarlierEffect) -> EarlierEffect | None:
        """Return the present state of an effect that blocked a claim; ``None`` if it no longer exists."""
        if not earlier.another:
            return await self._log.find_effect(claim)
        known = await self._log.find_effect(EffectClaim(claim.slot))
        if known is None or known.invocation_id != earlier.invocation_id:
            return None
        return replace(known, another=True, arguments_redacted=earlier.arguments_redacted)

    async def earlier(self, claim: EffectClaim) -> EarlierEffect | None:
        """Return the effect of an earlier attempt, for a call that cannot run now. Raises
        :class:`~proxy.base.errors.StoreError` if the record cannot tell."""
        # Unless the request is marked as a repeat, an older effect belongs to another request.
        return await self._log.find_effect(claim if claim.is_repeat else EffectClaim(claim.place))

    def keep(self, invocation: Invocation, result: ToolResult, *, untrusted: bool) -> None:
        """Store the result that the model got, for a repeat of the request."""
        if invocation.claimed:
            text = result.without_images().content
            kept = EffectResult(text, result.safe_message, result.truncated, result.redacted, untrusted)
            self._log.keep_effect(invocation.id, kept)

    def release(self, invocation: Invocation) -> None:
        """Release the claim of a call that never began."""
        if invocation.claimed:
            self._log.release_effect(invocation.id)
            invocation.claimed = False


def repeated_result(invocation: Invocation, earlier: EarlierEffect) -> ToolResult:
    """Return the result for the model if an earlier attempt caused this effect."""
    if earlier.another:
        return _not_made(invocation, earlier)
    call_id, kept = invocation.call.call_id, earlier.result
    if earlier.status == "success":
        content = note_text(NOT_KEPT) if kept is None else kept.content
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
        failure = ToolFailure(UNKNOWN_END)
    return ToolResult(
        call_id,
        ok=False,
        content=failure_text(failure.code, failure.message),
        error_code=failure.code,
        safe_message=failure.message,
        arguments_redacted=invocation.arguments_redacted,
    )


def _not_made(invocation: Invocation, earlier: EarlierEffect) -> ToolResult:
    """Return the result for the model if a different call of the tool caused an effect before."""
    kept = earlier.result
    outcome = {"success": "succeeded", "error": "failed"}.get(
        earlier.status, "unknown, it may have taken effect"
    )
    call: dict[str, Any] = {"arguments": earlier.arguments_redacted, "outcome": outcome}
    if kept is not None:
        call["result"] = kept.content
    elif earlier.status in ("success", "error"):
        call["result"] = "not kept"
    told_model: dict[str, Any] = {"ok": False, "error_code": _RAN, "message": _ANOTHER, "earlier_call": call}
    content = json_text(told_model)
    excess = utf8_length(content) - invocation.max_result_bytes
    if kept is not None and excess > 0:
        call["result"] = cut_by(kept.content, excess)
        content = json_text(told_model)
    return ToolResult(
        invocation.call.call_id,
        ok=False,
        content=content,
        error_code=_RAN,
        safe_message=_ANOTHER,
        truncated=kept is not None and (kept.truncated or excess > 0),
        arguments_redacted=invocation.arguments_redacted,
    )


def _digest(*parts: str) -> str:
    """Return a digest of these parts and of their boundaries."""
    digest = hashlib.blake2b(digest_size=24)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
