"""The one path by which a tool runs, whoever asks (rule T1).

known → policy → budget and rate → size → parse → validate → row opened → run with a time-out →
output as text, bounded → redacted → row closed → result.  Every step that says no ends in a
result that the model can read and go on with; nothing here raises but a cancellation.
"""

import asyncio
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any

import structlog

from proxy.errors import StoreError, ToolErrorCode, ToolFailure
from proxy.events import ToolCall, ToolResult
from proxy.records import InvocationLog, InvocationStatus, Limiter, ToolEffect, ToolInvocationRecord
from proxy.tools.arguments import ArgumentsMalformed, canonical_arguments, parse_arguments, utf8_length
from proxy.tools.capabilities import Clock
from proxy.tools.ledger import Claim, RunContext, fingerprint
from proxy.tools.policy import Policy
from proxy.tools.provider import ArgumentsInvalid, CallContext
from proxy.tools.redaction import mask_private_values, redact_arguments, redact_output
from proxy.tools.registry import Registry
from proxy.tools.results import Output, failure_text, safe_words, to_output
from proxy.tools.spec import Redaction, ToolSpec
from proxy.tools.supervisor import Supervisor, ToolCrashed, ToolTimedOut

__all__ = ["OnDone", "Runner", "new_invocation_id"]

OnDone = Callable[[ToolCall, ToolResult], None]
"""Called as each call of a turn is done, in the order in which they are."""


def new_invocation_id() -> str:
    """A fresh random id."""
    return f"inv_{uuid.uuid4().hex}"


@dataclass(slots=True)
class _Invocation:
    """One call on its way through the runner."""

    id: str
    call: ToolCall
    context: RunContext
    policy: Policy
    deadline: float | None
    spec: ToolSpec | None
    started_at: float
    started: float
    decision: str = "unknown tool"
    arguments: dict[str, Any] | None = None
    arguments_redacted: Any = None
    opened: bool = False
    abandoned: bool = False

    @property
    def read_only(self) -> bool:
        """Whether a cancellation may stop it.  A tool that does not exist changes nothing."""
        return self.spec is None or self.spec.effect is ToolEffect.READ_ONLY


class Runner:
    """Runs tool calls.  One for the process; what belongs to one run is in its ``RunContext``."""

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
    ) -> None:
        self._registry = registry
        self._policy = policy
        self._log = log
        self._limiter = limiter
        self._clock = clock
        self._default_timeout_s = default_timeout_s
        self._ids = ids
        self._supervisor = Supervisor(max_stuck=max_stuck)
        self._effects: set[asyncio.Task[ToolResult]] = set()
        self._logger: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")

    async def run(
        self,
        call: ToolCall,
        context: RunContext,
        *,
        policy: Policy | None = None,
        budget_s: float | None = None,
    ) -> ToolResult:
        """Run one call; never raises but ``CancelledError``.

        ``policy`` narrows the configured one for this caller.  ``budget_s`` is how many seconds
        the run has left.  When the caller is cancelled a read-only tool is too; a tool with
        effects that has started runs to its end (see :meth:`drain`).
        """
        ledger = context.ledger
        claim = ledger.place(context.turn, call.index)
        if claim is not None:
            return await self._answer_again(call, claim)
        loop = asyncio.get_running_loop()
        invocation = _Invocation(
            id=self._ids(),
            call=call,
            context=context,
            policy=self._policy if policy is None else self._policy.intersect(policy),
            deadline=None if budget_s is None else time.monotonic() + budget_s,
            spec=self._registry.get(call.name),
            started_at=self._clock.now(UTC).timestamp(),
            started=time.monotonic(),
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
            results[at] = await self.run(calls[at], context, policy=policy, budget_s=left)
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

    async def _settle(self, invocation: _Invocation, claim: Claim) -> ToolResult:
        """Run one claimed call and tell whoever waits for the same one."""
        result = _failed(invocation.call, ToolFailure("the call was cancelled", code="cancelled"))
        try:
            result = await self._process(invocation)
        # The boundary that keeps run() from raising: a fault of ours is the model's to read about,
        # and the log's to name.
        except Exception as error:  # noqa: BLE001
            self._logger.error("tool_runner_fault", **_fault(error), tool_invocation_id=invocation.id)
            result = self._finish(invocation, failure=ToolFailure("the tool could not be run"))
        finally:
            if not claim.result.done():
                claim.result.set_result(result)
        return result

    async def _process(self, invocation: _Invocation) -> ToolResult:
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

    async def _admit(self, invocation: _Invocation) -> Any:
        """Everything that can be decided before anything happens; the validated arguments.

        Raises :class:`~proxy.errors.ToolFailure` with the code of the first step that says no.
        """
        spec, policy = invocation.spec, invocation.policy
        if spec is None:
            raise ToolFailure("there is no tool of this name", code="unknown_tool")
        decision = policy.decide(spec)
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
        invocation: _Invocation,
        spec: ToolSpec,
        value: Any,
        *,
        never_started: Callable[[], None] = lambda: None,
    ) -> ToolResult:
        """Open the row, run the tool, close the row."""
        try:
            await self._open(invocation, durable=not invocation.read_only)
        except StoreError:
            never_started()
            return self._finish(
                invocation, failure=ToolFailure("the call could not be put on record, so it was not made")
            )
        if invocation.abandoned:
            never_started()
            return self._finish(invocation, failure=ToolFailure("the client has gone", code="cancelled"))
        self._logger.info(
            "tool_invocation_started", **self._facts(invocation), arguments=invocation.arguments_redacted
        )
        try:
            output = await self._execute(invocation, spec, value)
        except ToolFailure as failure:
            return self._finish(invocation, failure=failure)
        except asyncio.CancelledError:
            self._finish(invocation, failure=ToolFailure("the client has gone", code="cancelled"))
            raise
        return self._finish(invocation, output=output)

    async def _execute(self, invocation: _Invocation, spec: ToolSpec, value: Any) -> Output:
        """Run the tool within its time and bounds; whatever goes wrong is a ToolFailure."""
        limits = [self._default_timeout_s, spec.timeout_s or self._default_timeout_s]
        if invocation.deadline is not None:
            limits.append(max(invocation.deadline - time.monotonic(), 0.0))
        max_bytes = min(invocation.policy.max_result_bytes, spec.max_result_bytes or 1 << 40)
        provider = self._registry.provider(spec.name)
        context = CallContext(
            run_id=invocation.context.run_id,
            invocation_id=invocation.id,
            caller=invocation.context.caller,
            call_id=invocation.call.call_id,
        )

        async def work() -> Output:
            # Writing the output out runs code of the tool's own types: inside the guard, too.
            return to_output(await provider.call_tool(spec, value, context), max_bytes)

        try:
            return await self._supervisor.run(spec.name, work, min(limits))
        except ToolTimedOut:
            doubt = "" if invocation.read_only else "; it may have taken effect all the same"
            raise ToolFailure(f"the tool took too long{doubt}", code="timeout") from None
        except ToolCrashed as crash:
            if isinstance(crash.cause, ToolFailure):
                redaction = spec.redaction or Redaction()
                message = mask_private_values(str(crash.cause.message), invocation.arguments or {}, redaction)
                raise ToolFailure(message, code=crash.cause.code) from None
            self._logger.warning("tool_crashed", **self._facts(invocation), **_fault(crash.cause))
            raise ToolFailure("the tool failed") from None

    async def _repeat(self, invocation: _Invocation, earlier: Claim) -> ToolResult:
        """An identical call with an effect: on record, answered with the first one's result (rule R5)."""
        invocation.decision = f"repeat of {earlier.invocation_id}"
        first = await asyncio.shield(earlier.result)
        await self._open(invocation, durable=False)
        self._close(invocation, "success" if first.ok else "error", first.error_code, first.redacted, 0)
        return replace(first, call_id=invocation.call.call_id, milliseconds=0.0)

    async def _refuse(self, invocation: _Invocation, failure: ToolFailure) -> ToolResult:
        """A call that never started is on record all the same."""
        await self._open(invocation, durable=False)
        return self._finish(invocation, failure=failure)

    def _finish(
        self, invocation: _Invocation, *, output: Output | None = None, failure: ToolFailure | None = None
    ) -> ToolResult:
        """Close the row and say what became of the call."""
        took_ms = (time.monotonic() - invocation.started) * 1000
        if output is None:
            failure = failure or ToolFailure("the tool failed")
            status: InvocationStatus = "cancelled" if failure.code == "cancelled" else "error"
            self._close(invocation, status, failure.code, None, 0)
            return replace(
                _failed(invocation.call, failure),
                arguments_redacted=invocation.arguments_redacted,
                milliseconds=took_ms,
            )
        redaction = (invocation.spec.redaction if invocation.spec else None) or Redaction()
        redacted = redact_output(output.value, redaction)
        self._close(invocation, "success", None, redacted, output.size)
        return ToolResult(
            call_id=invocation.call.call_id,
            ok=True,
            content=output.text,
            truncated=output.truncated,
            redacted=redacted,
            arguments_redacted=invocation.arguments_redacted,
            milliseconds=took_ms,
        )

    async def _open(self, invocation: _Invocation, *, durable: bool) -> None:
        """Write the row; with ``durable`` it is committed on return, else StoreError is raised."""
        try:
            await self._log.open_invocation(self._record(invocation, "started"), durable=durable)
        except StoreError:
            if durable:
                raise
            self._logger.warning("tool_invocation_unrecorded", **self._facts(invocation))
            return
        invocation.opened = True

    def _close(
        self,
        invocation: _Invocation,
        status: InvocationStatus,
        error_code: ToolErrorCode | None,
        redacted: Any,
        size: int,
    ) -> None:
        """Close the row if there is one, and log how it ended."""
        record = replace(
            self._record(invocation, status),
            error_code=error_code,
            result_redacted=redacted,
            result_bytes=size,
            ended_at=self._clock.now(UTC).timestamp(),
        )
        if invocation.opened:
            self._log.close_invocation(record)
        took_ms = round((time.monotonic() - invocation.started) * 1000, 3)
        facts = self._facts(invocation) | {"latency_ms": took_ms, "result_bytes": size}
        if status == "success":
            self._logger.info("tool_invocation_success", **facts)
        else:
            self._logger.warning("tool_invocation_error", **facts, error_code=error_code)

    def _record(self, invocation: _Invocation, status: InvocationStatus) -> ToolInvocationRecord:
        """The row as far as it is known."""
        spec = invocation.spec
        return ToolInvocationRecord(
            id=invocation.id,
            run_id=invocation.context.run_id,
            turn=invocation.context.turn,
            seq=invocation.call.index,
            call_id=_printable(invocation.call.call_id, 256),
            tool=spec.name if spec else _printable(invocation.call.name, 64),
            provider=spec.provider if spec else "",
            spec_digest=spec.digest if spec else "",
            effect=spec.effect if spec else ToolEffect.READ_ONLY,
            decision=invocation.decision,
            status=status,
            started_at=invocation.started_at,
            arguments_redacted=invocation.arguments_redacted,
        )

    def _facts(self, invocation: _Invocation) -> dict[str, Any]:
        """What every log line about a call says."""
        return {
            "correlation_id": invocation.context.run_id,
            "request_id": invocation.context.request_id,
            "tool_invocation_id": invocation.id,
            "tool": invocation.spec.name if invocation.spec else _printable(invocation.call.name, 64),
        }


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


def _fault(error: BaseException) -> dict[str, str]:
    """Where and what an exception was, without its text: that may hold arguments or secrets."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return {"exception": type(error).__name__, "raised_at": place}


def _printable(text: str, limit: int) -> str:
    """A model's own word as a log or row may hold it: printable ASCII, bounded."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:limit])
