"""The one path by which a tool runs, whoever asks (rule T1).

known → policy → budget and rate → size → parse → validate → row opened → kept result, or run within
its time (execution.py) → output as text, bounded → redacted → row closed → result.  Every step that
says no ends in a result that the model can read and go on with; nothing here raises but a
cancellation.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any

from proxy.errors import StoreError, ToolFailure
from proxy.events import ToolCall, ToolResult
from proxy.records import InvocationLog, InvocationStatus, Limiter, ToolEffect
from proxy.tools.arguments import ArgumentsMalformed, canonical_arguments, parse_arguments, utf8_length
from proxy.tools.cache import ResultCache
from proxy.tools.capabilities import Clock
from proxy.tools.concurrency import Slots
from proxy.tools.execution import Executor, OnCrash
from proxy.tools.invocation import Invocation, InvocationJournal, OnStart, fault_facts
from proxy.tools.ledger import Claim, RunContext, fingerprint
from proxy.tools.paging import READ_RESULT, ResultShelf
from proxy.tools.policy import Policy
from proxy.tools.provider import ArgumentsInvalid
from proxy.tools.redaction import redact_arguments
from proxy.tools.registry import Registry
from proxy.tools.results import Output, failure_text, fit, safe_words
from proxy.tools.spec import ToolSpec
from proxy.tools.supervisor import Supervisor

__all__ = ["OnCrash", "OnDone", "OnStart", "Runner", "new_invocation_id"]

OnDone = Callable[[ToolCall, ToolResult], None]
"""Called as each call of a turn is done, in the order in which they are."""


def new_invocation_id() -> str:
    """A fresh random id."""
    return f"inv_{uuid.uuid4().hex}"


class Runner:
    """Runs tool calls.  One for the process; what belongs to one run is in its ``RunContext``.

    Args:
        shelf: where results too large to be shown are kept for ``core__read_result``; ``None`` for
            nowhere.
        max_read_only, max_read_only_per_caller: read-only tools that run at the same moment.
        on_crash: told what a tool raised that is no ``ToolFailure``.
    """

    def __init__(
        self,
        registry: Registry,
        policy: Policy,
        log: InvocationLog,
        limiter: Limiter | None,
        clock: Clock,
        *,
        default_timeout_s: float = 10.0,
        ids: Callable[[], str] = new_invocation_id,
        max_stuck: int = 3,
        shelf: ResultShelf | None = None,
        max_read_only: int = 64,
        max_read_only_per_caller: int = 16,
        on_crash: OnCrash | None = None,
    ) -> None:
        self._registry = registry
        self._policy = policy
        self._limiter = limiter
        self._clock = clock
        self._ids = ids
        self._shelf = shelf
        self._journal = InvocationJournal(log, clock)
        self._supervisor = Supervisor(max_stuck=max_stuck)
        self._executor = Executor(
            registry,
            self._supervisor,
            self._journal,
            ResultCache(monotonic=time.monotonic, wall=lambda: clock.now(UTC).timestamp()),
            Slots(max_read_only, max_read_only_per_caller),
            default_timeout_s=default_timeout_s,
            on_crash=on_crash,
        )
        self._effects: set[asyncio.Task[ToolResult]] = set()

    async def run(
        self,
        call: ToolCall,
        context: RunContext,
        *,
        policy: Policy | None = None,
        budget_s: float | None = None,
        on_start: OnStart | None = None,
    ) -> ToolResult:
        """Run one call; never raises but ``CancelledError``.

        ``policy`` narrows the configured one for this caller.  ``budget_s`` is how many seconds
        the run has left.  ``on_start`` is called when the call's row is open and before the tool
        runs; not for a call that is refused or answered with an earlier result.  When the caller is
        cancelled a read-only tool is too; a tool with effects that has started runs to its end (see
        :meth:`drain`).
        """
        ledger = context.ledger
        claim = ledger.place(context.turn, call.index)
        if claim is not None:
            return await self._answer_again(call, claim)
        loop = asyncio.get_running_loop()
        invocation = Invocation(
            id=self._ids(),
            call=call,
            context=context,
            policy=self._policy if policy is None else self._policy.intersect(policy),
            deadline=None if budget_s is None else time.monotonic() + budget_s,
            spec=self._registry.get(call.name),
            started_at=self._clock.now(UTC).timestamp(),
            started=time.monotonic(),
            on_start=on_start,
        )
        if ledger.full:
            return await self._refuse(
                invocation, ToolFailure("this run has made too many calls", code="budget_exhausted")
            )
        claim = Claim(invocation.id, fingerprint(call), loop.create_future())
        ledger.take_place(context.turn, call.index, claim)
        if invocation.read_only:
            return await self._settle(invocation, claim)
        task = asyncio.create_task(self._settle(invocation, claim))
        self._effects.add(task)
        task.add_done_callback(self._effects.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            invocation.abandoned = True
            raise

    async def run_many(
        self,
        calls: Sequence[ToolCall],
        context: RunContext,
        *,
        policy: Policy | None = None,
        budget_s: float | None = None,
        parallel: bool = True,
        max_parallel: int = 8,
        on_start: OnStart | None = None,
        on_done: OnDone | None = None,
    ) -> list[ToolResult]:
        """Run the calls of one turn; results stand in the order of the calls.

        Read-only calls run first and together, at most ``max_parallel`` at once, then the others
        one after the other in the order called.  Without ``parallel`` all of them run in order.
        """
        results: dict[int, ToolResult] = {}
        deadline = None if budget_s is None else time.monotonic() + budget_s
        room = asyncio.Semaphore(max(1, max_parallel))

        async def one(at: int) -> None:
            left = None if deadline is None else deadline - time.monotonic()
            results[at] = await self.run(calls[at], context, policy=policy, budget_s=left, on_start=on_start)
            if on_done is not None:
                on_done(calls[at], results[at])

        async def one_of_many(at: int) -> None:
            async with room:
                await one(at)

        alone = list(range(len(calls)))
        if parallel:
            together = [at for at in alone if self._is_read_only(calls[at].name)]
            alone = [at for at in alone if at not in together]
            async with asyncio.TaskGroup() as group:
                for at in together:
                    group.create_task(one_of_many(at))
        for at in alone:
            await one(at)
        return [results[at] for at in range(len(calls))]

    async def drain(self, timeout_s: float = 25.0) -> int:
        """Wait at shutdown for effects that outlived their caller; how many tasks are left."""
        pending: set[asyncio.Task[ToolResult]] = set(self._effects)
        if pending:
            _, pending = await asyncio.wait(pending, timeout=timeout_s)
        return len(pending) + await self._supervisor.end(min(1.0, timeout_s))

    def _is_read_only(self, name: str) -> bool:
        """Whether a call of this name may run beside others."""
        spec = self._registry.get(name)
        return spec is None or spec.effect is ToolEffect.READ_ONLY

    async def _answer_again(self, call: ToolCall, claim: Claim) -> ToolResult:
        """A place of a run that was asked for twice: the first answer, and nothing runs (rule R5)."""
        if claim.fingerprint != fingerprint(call):
            message = "another call has already run in this place of the turn"
            return _failed(call, ToolFailure(message))
        return replace(await asyncio.shield(claim.result), call_id=call.call_id)

    async def _settle(self, invocation: Invocation, claim: Claim) -> ToolResult:
        """Run one claimed call and tell whoever waits for the same one."""
        result = _failed(invocation.call, ToolFailure("the call was cancelled", code="cancelled"))
        try:
            result = await self._process(invocation)
        # The boundary that keeps run() from raising: a fault of ours is the model's to read about,
        # and the log's to name.
        except Exception as error:  # noqa: BLE001
            self._journal.logger.error(
                "tool_runner_fault", **fault_facts(error), tool_invocation_id=invocation.id
            )
            result = self._finish(invocation, failure=ToolFailure("the tool could not be run"))
        finally:
            if not claim.result.done():
                claim.result.set_result(result)
        return result

    async def _process(self, invocation: Invocation) -> ToolResult:
        """The path itself."""
        try:
            value = await self._admit(invocation)
        except ToolFailure as failure:
            return await self._refuse(invocation, failure)
        spec, arguments = invocation.spec, invocation.arguments
        if spec is None or arguments is None:  # _admit lets neither through; said for the reader.
            return await self._refuse(invocation, ToolFailure("the tool could not be run"))
        if invocation.read_only or spec.repeatable:
            return await self._perform(invocation, spec, value)
        ledger = invocation.context.ledger
        key = f"{spec.name}\0{canonical_arguments(arguments)}"
        earlier = ledger.effect(key)
        if earlier is not None:
            return await self._repeat(invocation, earlier)
        claim = Claim(invocation.id, "", asyncio.get_running_loop().create_future())
        ledger.take_effect(key, claim)
        result = _failed(invocation.call, ToolFailure("the tool failed"))
        try:
            result = await self._perform(
                invocation, spec, value, never_started=lambda: ledger.release_effect(key)
            )
        finally:
            claim.result.set_result(result)
        return result

    async def _admit(self, invocation: Invocation) -> Any:
        """Everything that can be decided before anything happens; the validated arguments.

        Raises :class:`~proxy.errors.ToolFailure` with the code of the first step that says no.
        """
        spec, policy = invocation.spec, invocation.policy
        if spec is None:
            raise ToolFailure("there is no tool of this name", code="unknown_tool")
        context = invocation.context
        decision = policy.decide(spec, untrusted=context.ledger.untrusted_before(context.turn))
        invocation.decision = f"{decision.outcome}: {decision.rule}"
        if decision.outcome == "denied":
            raise ToolFailure("this tool is not allowed here", code="policy_denied")
        if decision.outcome == "needs_approval":
            raise ToolFailure(
                "this tool needs an approval, and none can be given here", code="approval_required"
            )
        if spec.redaction is None:
            raise ToolFailure("this tool is not set up to be run", code="redaction_missing")
        if self._supervisor.is_disabled(spec.name):
            raise ToolFailure("this tool has stopped responding and is switched off")
        if invocation.deadline is not None and time.monotonic() >= invocation.deadline:
            raise ToolFailure("the time for this request is used up", code="budget_exhausted")
        if self._limiter is not None:
            wait_s = await self._limiter.hit("tool_calls", invocation.context.caller)
            if wait_s is not None:
                raise ToolFailure(
                    f"too many tool calls; the next is free in {wait_s:.0f} s", code="rate_limited"
                )
        if utf8_length(invocation.call.arguments) > policy.max_argument_bytes:
            raise ToolFailure(
                f"the arguments are larger than {policy.max_argument_bytes} bytes", code="invalid_arguments"
            )
        try:
            arguments = parse_arguments(invocation.call.arguments)
            value = spec.validate(arguments)
        except ArgumentsMalformed as error:
            raise ToolFailure(str(error), code="invalid_json") from None
        except ArgumentsInvalid as error:
            raise ToolFailure(str(error), code="invalid_arguments") from None
        invocation.arguments = arguments
        invocation.arguments_redacted = redact_arguments(arguments, spec.redaction)
        return value

    async def _perform(
        self,
        invocation: Invocation,
        spec: ToolSpec,
        value: Any,
        *,
        never_started: Callable[[], None] = lambda: None,
    ) -> ToolResult:
        """Open the row, run the tool, close the row."""
        try:
            await self._journal.open(invocation, durable=not invocation.read_only)
        except StoreError:
            never_started()
            return self._finish(
                invocation, failure=ToolFailure("the call could not be put on record, so it was not made")
            )
        if invocation.abandoned:
            never_started()
            return self._finish(invocation, failure=ToolFailure("the client has gone", code="cancelled"))
        self._journal.started(invocation)
        if invocation.on_start is not None:
            invocation.on_start(invocation.call, invocation.arguments_redacted)
        if spec.untrusted_output:
            # Also where it fails: its words may quote what it read.
            invocation.context.ledger.mark_untrusted(spec.name, invocation.context.turn)
        try:
            output = await self._executor.run(invocation, spec, value)
        except ToolFailure as failure:
            return self._finish(invocation, failure=failure)
        except asyncio.CancelledError:
            self._finish(invocation, failure=ToolFailure("the client has gone", code="cancelled"))
            raise
        if output.untrusted:
            invocation.context.ledger.mark_untrusted(spec.name, invocation.context.turn)
        return self._finish(invocation, output=output)

    async def _repeat(self, invocation: Invocation, earlier: Claim) -> ToolResult:
        """An identical call with an effect: on record, answered with the first one's result (rule R5)."""
        invocation.decision = f"repeat of {earlier.invocation_id}"
        first = await asyncio.shield(earlier.result)
        await self._journal.open(invocation, durable=False)
        self._journal.close(
            invocation, "success" if first.ok else "error", first.error_code, first.redacted, 0
        )
        return replace(first, call_id=invocation.call.call_id, milliseconds=0.0)

    async def _refuse(self, invocation: Invocation, failure: ToolFailure) -> ToolResult:
        """A call that never started is on record all the same."""
        await self._journal.open(invocation, durable=False)
        return self._finish(invocation, failure=failure)

    def _finish(
        self, invocation: Invocation, *, output: Output | None = None, failure: ToolFailure | None = None
    ) -> ToolResult:
        """Close the row and say what became of the call."""
        if output is None:
            failure = failure or ToolFailure("the tool failed")
            status: InvocationStatus = "cancelled" if failure.code == "cancelled" else "error"
            self._journal.close(invocation, status, failure.code, None, 0)
            return replace(
                _failed(invocation.call, failure),
                arguments_redacted=invocation.arguments_redacted,
                milliseconds=invocation.took_ms,
            )
        text, truncated = fit(
            output, invocation.max_result_bytes, lambda whole: self._keep(invocation, whole, output.untrusted)
        )
        self._journal.close(invocation, "success", None, output.redacted, output.size)
        return ToolResult(
            call_id=invocation.call.call_id,
            ok=True,
            content=text,
            truncated=truncated,
            redacted=output.redacted,
            arguments_redacted=invocation.arguments_redacted,
            milliseconds=invocation.took_ms,
        )

    def _keep(self, invocation: Invocation, text: str, untrusted: bool) -> str | None:
        """A handle for a result that is too large, where this caller may read pages."""
        reader = self._registry.get(READ_RESULT)
        if self._shelf is None or reader is None or not invocation.policy.decide(reader).allowed:
            return None
        if invocation.spec is not None and invocation.spec.name == READ_RESULT:
            return None
        return self._shelf.keep(invocation.context.caller, text, untrusted=untrusted)


def _failed(call: ToolCall, failure: ToolFailure) -> ToolResult:
    """A failure as a result."""
    message = safe_words(failure.message)
    return ToolResult(
        call_id=call.call_id,
        ok=False,
        content=failure_text(failure.code, message),
        error_code=failure.code,
        safe_message=message,
    )
