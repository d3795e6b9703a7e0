"""End a call: close its row and build the result for the model."""

from msgspec.structs import replace

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolCall, ToolResult
from proxy.records.effects import EarlierEffect
from proxy.records.result_for_model import failure_text
from proxy.records.rows import InvocationStatus
from proxy.tools.contract.results.paging import READ_RESULT, PagedResults
from proxy.tools.contract.results.results import Output, cut_to_limit, safe_message
from proxy.tools.running.effects import SharedEffects, repeated_result
from proxy.tools.running.invocation import Invocation, InvocationJournal
from proxy.tools.running.ledger import Claim
from proxy.tools.running.plan import Refusal


def failed(call: ToolCall, failure: ToolFailure) -> ToolResult:
    """Convert a failure to a result."""
    message = safe_message(failure.message)
    return ToolResult(
        call_id=call.call_id,
        ok=False,
        content=failure_text(failure.code, message),
        error_code=failure.code,
        safe_message=message,
    )


def cancelled(call: ToolCall) -> ToolResult:
    """Return the result of a call that was cancelled."""
    return failed(call, ToolFailure("the call was cancelled", code="cancelled"))


def client_gone() -> ToolFailure:
    """Return the failure of a call whose client has gone."""
    return ToolFailure("the client has gone", code="cancelled")


def mark_untrusted(invocation: Invocation, sources: str) -> None:
    """Note that the result of this call contains text from untrusted sources."""
    invocation.untrusted = True
    invocation.context.ledger.mark_untrusted(sources, invocation.context.turn)


class Outcomes:
    """The part of the runner that ends each call, once, whatever its outcome."""

    def __init__(
        self,
        journal: InvocationJournal,
        paged_results: PagedResults | None,
        shared: SharedEffects | None,
    ) -> None:
        self._journal = journal
        self._paged_results = paged_results
        self._shared = shared

    async def refuse(self, invocation: Invocation, refusal: Refusal) -> ToolResult:
        """Record a call that never started, and return its failure."""
        invocation.decided(refusal.decision, refusal.arguments_redacted)
        await self._journal.open(invocation, durable=False)
        return self.fail(invocation, refusal.failure)

    def unrecorded(self, invocation: Invocation) -> ToolResult:
        """End a call that was not made because its row could not be committed first (rule R1).

        Its closed row is queued like any other, so it gets into the record when writes work again.
        """
        invocation.decision += "; not made, the record could not be written"
        invocation.opened = True
        return self.fail(invocation, ToolFailure("the call could not be put on record, so it was not made"))

    def fail(self, invocation: Invocation, failure: ToolFailure) -> ToolResult:
        """Close the row of a failed call, if it has one, and return the result."""
        status: InvocationStatus = "cancelled" if failure.code == "cancelled" else "error"
        result = replace(
            failed(invocation.call, failure),
            arguments_redacted=invocation.arguments_redacted,
            milliseconds=invocation.shown_ms,
            cost=invocation.cost or 0,
        )
        self._keep_effect(invocation, result)
        self._journal.close(invocation, status, failure.code, None, 0)
        return result

    def succeed(self, invocation: Invocation, output: Output) -> ToolResult:
        """Close the row of a successful call and return the result."""
        text, truncated = cut_to_limit(
            output, invocation.max_result_bytes, lambda whole: self._keep(invocation, whole, output.untrusted)
        )
        result = ToolResult(
            call_id=invocation.call.call_id,
            ok=True,
            content=text,
            truncated=truncated,
            redacted=output.redacted,
            arguments_redacted=invocation.arguments_redacted,
            milliseconds=invocation.shown_ms,
            images=output.images,
            cost=invocation.cost or 0,
        )
        self._keep_effect(invocation, result)
        self._journal.close(invocation, "success", None, output.redacted, output.weight)
        return result

    async def repeat(self, invocation: Invocation, earlier: Claim, source: str) -> ToolResult:
        """Record an identical call with an effect, and return the first call's result (rule R5)."""
        if earlier.untrusted:
            mark_untrusted(invocation, source)
        invocation.context.ledger.answer_for(earlier.invocation_id)
        return await self._repeated(invocation, earlier.result.result(), f"repeat of {earlier.invocation_id}")

    async def repeat_of(self, invocation: Invocation, earlier: EarlierEffect, source: str) -> ToolResult:
        """Do the same for a call that another process made, or this one before a restart."""
        if earlier.result is not None and earlier.result.untrusted:
            mark_untrusted(invocation, source)
        how = "not made after" if earlier.another else "repeat of"
        result = repeated_result(invocation, earlier)
        return await self._repeated(invocation, result, f"{how} {earlier.invocation_id}")

    async def _repeated(self, invocation: Invocation, first: ToolResult, decision: str) -> ToolResult:
        """Record a call that had no effect because another call had caused it."""
        invocation.decision = decision
        await self._journal.open(invocation, durable=False)
        self._journal.close(
            invocation, "success" if first.ok else "error", first.error_code, first.redacted, 0
        )
        return replace(first, call_id=invocation.call.call_id, milliseconds=0.0, cost=0)

    def _keep_effect(self, invocation: Invocation, result: ToolResult) -> None:
        """Store the result of an effect before its row is closed, so that readers of a closed row find it."""
        if self._shared is not None:
            self._shared.keep(invocation, result, untrusted=invocation.untrusted)

    def _keep(self, invocation: Invocation, text: str, untrusted: str) -> str | None:
        """Keep a too large result and return its handle; ``None`` if the caller may not read pages."""
        reader = invocation.catalog.get(READ_RESULT)
        if self._paged_results is None or reader is None or not invocation.policy.decide(reader).allowed:
            return None
        if invocation.spec is not None and invocation.spec.name == READ_RESULT:
            return None
        context = invocation.context
        return self._paged_results.keep(context.caller, text, untrusted=untrusted, run_id=context.run_id)
