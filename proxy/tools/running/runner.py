"""The runner: every tool call runs through it (rule T1).

known → policy → budget and rate → size → parse → validate → policy bounds → credentials → row opened →
cached result, or run within its time limit (execution.py) → output as bounded text → redacted → row closed →
result (outcome.py). The decisions on the way have no side effect (plan.py). They lead to a ``PlannedCall``,
which only this module runs. Every refusal is a result that the model can read. The only exception that
leaves the runner is a cancellation.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from types import MappingProxyType

from msgspec.structs import replace

from proxy.base.errors import StoreError, ToolFailure, fault_facts
from proxy.base.events import ToolCall, ToolResult
from proxy.hooks.chain import HookChain
from proxy.records.effects import EarlierEffect, EffectClaim, EffectLog
from proxy.records.ids import row_ids
from proxy.records.rows import InvocationLog, KeptResults, Limiter
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Intersections, Policy
from proxy.tools.contract.capabilities import Clock, Credentials
from proxy.tools.contract.results.paging import PagedResults
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.running.cache import ResultCache
from proxy.tools.running.checks import Checks
from proxy.tools.running.effects import SharedEffects, claim_of
from proxy.tools.running.execution import Executor, OnCrash
from proxy.tools.running.granted import GrantedCall
from proxy.tools.running.hooking import hooked, hooked_failure, hooked_output
from proxy.tools.running.invocation import (
    Invocation,
    InvocationJournal,
    OnClosed,
    OnProgress,
    OnStart,
)
from proxy.tools.running.ledger import Claim, RunContext, fingerprint
from proxy.tools.running.order import groups_to_run, is_read_only
from proxy.tools.running.outcome import Outcomes, cancelled, client_gone, failed, mark_untrusted
from proxy.tools.running.plan import Approved, PlannedCall, Refusal, admit, plan
from proxy.tools.running.tasks.concurrency import Nesting, Slots
from proxy.tools.running.tasks.loop_watch import MAX_STEP_S, blocked_s, thread_use
from proxy.tools.running.tasks.tool_tasks import ToolTasks

__all__ = ["OnClosed", "OnCrash", "OnDone", "OnProgress", "OnStart", "Runner", "new_invocation_id"]

_GRACE_S = 2.0
"""Seconds after a tool's own time limit in which another process may still report the outcome."""

OnDone = Callable[[ToolCall, ToolResult], None]
"""Called when a call of a turn is done, in the order in which the calls end."""


def new_invocation_id() -> str:
    """Return the id of a new execution."""
    return next(row_ids("inv_", at_once=1))


class Runner:
    """The runner of tool calls. There is one per process; the state of a run is in its ``RunContext``.

    Args:
        clock: the tools' time of day; with ``CacheControl`` a tool sets an expiry by it.
        now: the record's clock, in seconds since the epoch; ``clock`` may stand still, as the demo's does.
        paged_results: keeps results that are too large, for ``core__read_result``; ``None`` keeps none.
        cached_results: the sealed record that shares cached results with other processes, or ``None``.
        max_read_only, max_read_only_per_caller: how many read-only tools run at the same time.
        max_parallel: how many of these one run may have at the same time.
        on_crash: called with what a tool raised, unless it is a ``ToolFailure``.
        on_closed: called with every call that has ended.
        effects: where effects are claimed, so that no other process repeats them; ``None`` for nowhere.
        credentials: prepares the connections that tools name; ``None`` if no tool needs one.
        log_arguments: whether log lines have a call's redacted arguments, as its row has.
        hooks: the operator's, which see calls before anything is decided, and results before a model does.
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
        paged_results: PagedResults | None = None,
        cached_results: KeptResults | None = None,
        max_read_only: int = 64,
        max_read_only_per_caller: int = 16,
        max_parallel: int = 8,
        on_crash: OnCrash | None = None,
        on_closed: OnClosed | None = None,
        effects: EffectLog | None = None,
        credentials: Credentials | None = None,
        log_arguments: bool = True,
        now: Callable[[], float] = time.time,
        hooks: HookChain | None = None,
    ) -> None:
        self._now, self._ids, self._hooks = now, ids, hooks or HookChain()
        self._registry, self._policy = registry, policy
        self._limiter, self._credentials = limiter, credentials
        self._journal = InvocationJournal(log, on_closed, log_arguments=log_arguments)
        self._shared = None if effects is None else SharedEffects(effects, self._journal)
        self._outcomes = Outcomes(self._journal, paged_results, self._shared)
        self._tasks = ToolTasks(max_stuck=max_stuck)
        self._executor = Executor(
            self._tasks,
            self._journal,
            ResultCache(
                monotonic=time.monotonic, wall=lambda: clock.now(UTC).timestamp(), record=cached_results
            ),
            Slots(max_read_only, max_read_only_per_caller),
            default_timeout_s=default_timeout_s,
            on_crash=on_crash,
        )
        self._max_parallel, self._nesting = max_parallel, Nesting()
        self._intersections = Intersections()
        self.checks = Checks(
            registry, policy, self._intersections, self._tasks, self._executor, credentials, self._hooks
        )
        self._pending: set[asyncio.Task[ToolResult]] = set()

    async def run(
        self,
        call: ToolCall,
        context: RunContext,
        *,
        policy: Policy | None = None,
        budget_s: float | None = None,
        on_start: OnStart | None = None,
        on_progress: OnProgress | None = None,
        approved: Approved = False,
    ) -> ToolResult:
        """Run one call; the only exception that it raises is ``CancelledError``.

        ``policy`` narrows the configured one for this caller. ``budget_s`` is how many seconds the run has
        left. ``on_start`` is called when the call's row is open and before the tool runs, but not for a call
        that is refused or answered with an earlier result. ``approved`` says that a person approved this
        call, if policy requires that. An :class:`~proxy.tools.running.plan.ApprovedCall` or a
        :class:`~proxy.tools.running.plan.ContinuedCall` allows exactly the call that it names, and only once.
        If the caller is cancelled, so is a read-only tool; a tool with effects that has started runs to its
        end (see :meth:`drain`).
        """
        ledger = context.ledger
        claim = ledger.place(context.turn, call.index)
        if claim is not None:
            return await self._answer_again(call, claim)
        loop = asyncio.get_running_loop()
        catalog = context.catalog or self._registry.current
        invocation = Invocation(
            id=self._ids(),
            call=call,
            context=context,
            policy=self._policy if policy is None else self._intersections.of(self._policy, policy),
            deadline=None if budget_s is None else time.monotonic() + budget_s,
            catalog=catalog,
            spec=catalog.get(call.name),
            started_at=self._now(),
            started=time.monotonic(),
            on_start=on_start,
            on_progress=on_progress,
            approved=approved,
        )
        if ledger.full:
            failure = ToolFailure("this run has made too many calls", code="budget_exhausted")
            return await self._outcomes.refuse(invocation, Refusal(failure, invocation.decision))
        claim = Claim(invocation.id, fingerprint(call), loop.create_future())
        ledger.take_place(context.turn, call.index, claim)
        if invocation.read_only and invocation.approval is None:
            return await self._settle(invocation, claim)
        task = asyncio.create_task(self._settle(invocation, claim))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            invocation.abandoned = True
            if invocation.connecting:
                task.cancel()  # No effect has begun that would have to be completed.
            raise

    async def refuse(self, call: ToolCall, context: RunContext, failure: ToolFailure, decision: str) -> None:
        """Record a call that the run does not make; ``decision`` is the decision in its row."""
        catalog = context.catalog or self._registry.current
        invocation = Invocation(
            id=self._ids(),
            call=call,
            context=context,
            policy=self._policy,
            deadline=None,
            catalog=catalog,
            spec=catalog.get(call.name),
            started_at=self._now(),
            started=time.monotonic(),
            on_start=None,
        )
        await self._outcomes.refuse(invocation, Refusal(failure, decision))

    async def run_many(
        self,
        calls: Sequence[ToolCall],
        context: RunContext,
        *,
        policy: Policy | None = None,
        budget_s: float | None = None,
        parallel: bool = True,
        on_start: OnStart | None = None,
        on_progress: OnProgress | None = None,
        on_done: OnDone | None = None,
        approved: frozenset[int] = frozenset(),
        granted: Mapping[int, GrantedCall] = MappingProxyType({}),
    ) -> list[ToolResult]:
        """Run the calls of one turn and return their results in the order of the calls.

        Read-only calls run first and at the same time, up to the limit for a run. Then the others run one
        after the other in the order of the calls; adjacent agents run at the same time. Without ``parallel``
        all calls run in order. ``approved`` are the indices of the calls that a person approved; ``granted``
        has the grants for others, by index.
        """
        results: dict[int, ToolResult] = {}
        deadline = None if budget_s is None else time.monotonic() + budget_s

        async def one(index: int) -> None:
            left = None if deadline is None else deadline - time.monotonic()
            results[index] = await self.run(
                calls[index],
                context,
                policy=policy,
                budget_s=left,
                on_start=on_start,
                on_progress=on_progress,
                approved=granted.get(calls[index].index) or calls[index].index in approved,
            )
            if on_done is not None:
                on_done(calls[index], results[index])

        alone = list(range(len(calls)))
        if parallel and len(calls) > 1:
            room = asyncio.Semaphore(self._max_parallel)

            async def one_of_many(index: int) -> None:
                async with room:
                    await one(index)

            catalog = context.catalog or self._registry.current
            together = [index for index in alone if is_read_only(catalog.get(calls[index].name))]
            alone = [index for index in alone if index not in together]
            for neighbours in (together, *groups_to_run(alone, calls, catalog)):
                if len(neighbours) == 1:
                    await one(neighbours[0])
                    continue
                async with asyncio.TaskGroup() as group:
                    for index in neighbours:
                        group.create_task(one_of_many(index))
        else:
            for index in alone:
                await one(index)
        return [results[index] for index in range(len(calls))]

    async def drain(self, timeout_s: float = 25.0) -> int:
        """Wait at shutdown for effects whose callers have gone; return how many tasks still run."""
        pending: set[asyncio.Task[ToolResult]] = set(self._pending)
        if pending:
            _, pending = await asyncio.wait(pending, timeout=timeout_s)
        return len(pending) + await self._tasks.end(min(1.0, timeout_s))

    async def _answer_again(self, call: ToolCall, claim: Claim) -> ToolResult:
        """Answer a second call for the same place of a run with the first result; run nothing (rule R5)."""
        if claim.fingerprint != fingerprint(call):
            message = "another call has already run in this place of the turn"
            return failed(call, ToolFailure(message))
        return replace(await asyncio.shield(claim.result), call_id=call.call_id, cost=0)

    async def _settle(self, invocation: Invocation, claim: Claim) -> ToolResult:
        """Run one claimed call and give its result to all that wait for the same one."""
        result: ToolResult | None = None
        try:
            result = await self._process(invocation)
        # The boundary that keeps run() from raising: the model reads that there was a fault of the proxy,
        # and the log names it.
        except Exception as error:  # noqa: BLE001
            self._journal.logger.error(
                "tool_runner_fault", **fault_facts(error), tool_invocation_id=invocation.id
            )
            result = self._outcomes.fail(invocation, ToolFailure("the tool could not be run"))
        finally:
            if not claim.result.done():
                claim.result.set_result(cancelled(invocation.call) if result is None else result)
        return result

    async def _process(self, invocation: Invocation) -> ToolResult:
        """Decide about the call and run it."""
        if self._hooks.calls and (refused := await hooked(self._hooks, invocation)) is not None:
            return await self._outcomes.refuse(invocation, refused)
        planned = await self._decide(invocation)
        if isinstance(planned, Refusal):
            return await self._outcomes.refuse(invocation, planned)
        invocation.decided(planned.decision, planned.arguments_redacted)
        if (grant := invocation.grant) is not None:
            try:
                holds = await grant.use()
            except StoreError:
                return self._outcomes.unrecorded(invocation)
            if not holds:
                reason = "this tool needs an approval, and the grant that covered it no longer holds"
                failure = ToolFailure(reason, code="approval_required")
                return await self._outcomes.refuse(invocation, planned.refused(failure))
        once = planned.spec.cache_ttl_s > 0 if planned.read_only else not planned.spec.repeatable
        once = once and invocation.approval is None
        try:
            # Equal calls share one execution, so a call nested in an equal one would wait for itself.
            with self._nesting.inside(planned.equality if once else invocation.id):
                return await self._once(invocation, planned)
        except ToolFailure as failure:
            return await self._outcomes.refuse(invocation, planned.refused(failure))

    async def _decide(self, invocation: Invocation) -> PlannedCall | Refusal:
        """Decide all that can be decided before the call has an effect; the only side effect is its count."""
        context = invocation.context
        untrusted = context.ledger.untrusted_before(context.turn)
        admitted = admit(
            invocation.call,
            invocation.spec,
            invocation.policy,
            untrusted=untrusted,
            approved=invocation.approved,
        )
        if isinstance(admitted, Refusal):
            return admitted
        try:
            await self._count(invocation, admitted.spec)
        except ToolFailure as failure:
            return Refusal(failure, admitted.decision)
        began = thread_use()
        planned = plan(admitted, caller=context.caller, key=invocation.id)
        took_s = blocked_s(began, thread_use())
        if took_s > MAX_STEP_S:
            # The size of arguments is bounded, so the tool's own validator must be slow.
            self._journal.blocked(invocation, took_s)
        if isinstance(planned, Refusal):
            if planned.cause is not None:
                self._executor.crashed(invocation, admitted.spec, planned.cause)
        elif invocation.approval is not None and (reason := invocation.approval.mismatch(planned)):
            return planned.refused(ToolFailure(reason, code="policy_denied"))
        elif invocation.grant is not None and (
            reason := invocation.grant.mismatch(planned.spec, planned.arguments)
        ):
            return planned.refused(ToolFailure(reason, code="approval_required"))
        return planned

    async def _count(self, invocation: Invocation, spec: ToolSpec) -> None:
        """Count the call; raise :class:`~proxy.base.errors.ToolFailure` if it exceeds a limit."""
        if self._tasks.is_disabled(spec.name):
            raise ToolFailure("this tool has stopped responding and is switched off")
        if invocation.deadline is not None and time.monotonic() >= invocation.deadline:
            raise ToolFailure("the time for this request is used up", code="budget_exhausted")
        limiter = invocation.context.limiter or self._limiter
        wait_s = None if limiter is None else await limiter.hit("tool_calls", invocation.context.caller)
        if wait_s is not None:
            raise ToolFailure(f"too many tool calls; the next is free in {wait_s:.0f} s", code="rate_limited")

    async def _once(self, invocation: Invocation, planned: PlannedCall) -> ToolResult:
        """Run the call, unless the run has already caused this effect (rule R5)."""
        if invocation.approval is not None:
            return await self._begin(invocation, planned, "")
        if planned.read_only:
            failure = await self._connect(invocation, planned)
            if failure is not None:
                return await self._outcomes.refuse(invocation, planned.unconnected(failure))
            return await self._perform(invocation, planned)
        if planned.spec.repeatable:
            return await self._begin(invocation, planned, "")
        ledger, equality = invocation.context.ledger, planned.equality
        while (earlier := ledger.effect(equality)) is not None:
            await asyncio.shield(earlier.result)
            if earlier.begun:
                return await self._outcomes.repeat(invocation, earlier, planned.spec.source)
        claim = Claim(invocation.id, "", asyncio.get_running_loop().create_future())
        ledger.take_effect(equality, claim)
        result: ToolResult | None = None
        try:
            result = await self._begin(invocation, planned, equality)
        finally:
            if not invocation.begun:
                ledger.release_effect(equality)
            claim.begun, claim.untrusted = invocation.begun, invocation.untrusted
            claim.invocation_id = invocation.caused_by or invocation.id
            if result is None:
                result = failed(invocation.call, ToolFailure("the tool failed"))
            claim.result.set_result(result)
        return result

    async def _begin(self, invocation: Invocation, planned: PlannedCall, effect: str) -> ToolResult:
        """Cause an effect, unless it was already caused for the same request."""
        claim = claim_of(invocation, effect)
        failure = await self._connect(invocation, planned)
        if failure is not None:
            return await self._not_connected(invocation, planned, claim, failure)
        if self._shared is None:
            # Without a record, the proxy cannot know whether an approved call has already run.
            once = invocation.approval is not None
            return self._outcomes.unrecorded(invocation) if once else await self._perform(invocation, planned)
        # The first call has no more time than its tool's limit; after that its outcome stays unknown.
        patience_s = _GRACE_S + self._executor.limit_s(planned.spec)
        if invocation.deadline is not None:
            patience_s = min(patience_s, max(invocation.deadline - time.monotonic(), 0.0))
        try:
            earlier = await self._shared.begin(invocation, claim, patience_s)
        except StoreError:
            return self._outcomes.unrecorded(invocation)
        if earlier is None:
            return await self._perform(invocation, planned)
        return await self._repeat(invocation, planned, earlier)

    async def _not_connected(
        self, invocation: Invocation, planned: PlannedCall, claim: EffectClaim, failure: ToolFailure
    ) -> ToolResult:
        """Refuse a call without credentials, unless an earlier attempt of the request caused its effect."""
        try:
            earlier = None if self._shared is None else await self._shared.earlier(claim)
        except StoreError:
            return self._outcomes.unrecorded(invocation)
        if earlier is None:
            return await self._outcomes.refuse(invocation, planned.unconnected(failure))
        return await self._repeat(invocation, planned, earlier)

    async def _repeat(
        self, invocation: Invocation, planned: PlannedCall, earlier: EarlierEffect
    ) -> ToolResult:
        """Answer with the outcome of an effect that another attempt caused."""
        if not earlier.another:
            # If the effect is still in progress, the next equal call reads the record again.
            invocation.begun = earlier.status != "started"
            invocation.caused_by = earlier.invocation_id
        return await self._outcomes.repeat_of(invocation, earlier, planned.spec.source)

    async def _connect(self, invocation: Invocation, planned: PlannedCall) -> ToolFailure | None:
        """Load the credentials of the call's connection; return the failure if there are none, else ``None``.

        This counts as part of the tool's own time. It is cancelled with the caller, also for a tool with
        effects.
        """
        if self._credentials is None or not planned.connection:
            return None
        began = time.monotonic()
        invocation.connecting = True
        try:
            async with asyncio.timeout(self._executor.left_s(invocation, planned.spec)):
                await self._credentials.prepare(planned.connection)
        except TimeoutError:
            reason = f'the connection "{planned.connection}" was not ready in time, so the call was not made'
            return ToolFailure(reason, code="timeout")
        except ToolFailure as failure:
            return failure
        except asyncio.CancelledError:
            self._outcomes.fail(invocation, client_gone())
            raise
        finally:
            invocation.connecting = False
            invocation.connected_s = time.monotonic() - began
        return None

    async def _perform(self, invocation: Invocation, planned: PlannedCall) -> ToolResult:
        """Open the row unless it is open, run the tool, and close the row."""
        try:
            if not invocation.claimed:
                await self._journal.open(invocation, durable=not planned.read_only)
        except StoreError:
            return self._outcomes.unrecorded(invocation)
        if invocation.abandoned:
            if self._shared is not None:
                self._shared.release(invocation)
            return self._outcomes.fail(invocation, client_gone())
        invocation.begins(self._registry.prices.of(planned.spec.name))
        self._journal.started(invocation)
        if invocation.on_start is not None:
            invocation.on_start(invocation.call, invocation.arguments_redacted)
        if planned.spec.untrusted_output:
            # Also if it fails: the message may quote the untrusted text.
            mark_untrusted(invocation, planned.spec.source)
        try:
            output = await self._executor.run(invocation, planned)
            if self._hooks.results:
                output = await hooked_output(self._hooks, invocation, output)
        except ToolFailure as failure:
            left = await hooked_failure(self._hooks, invocation, failure) if self._hooks.results else failure
            return self._outcomes.fail(invocation, left)
        except asyncio.CancelledError:
            self._outcomes.fail(invocation, client_gone())
            raise
        if output.untrusted:
            mark_untrusted(invocation, output.untrusted)
        return self._outcomes.succeed(invocation, output)
