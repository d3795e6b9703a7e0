"""The runner: every tool call runs through it (rule T1).

known → policy → budget and rate → size → parse → validate → bounds of policy → credentials → row opened →
kept result, or run within its time (execution.py) → output as text, bounded → redacted → row closed → result
(outcome.py).  The decisions on the way have no effect (plan.py).  Their result is a ``PlannedCall``, which
only this module runs.  Every refusal is a result that the model can read; the only exception that leaves the
runner is a cancellation.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from types import MappingProxyType

from proxy.effect_records import EarlierEffect, EffectClaim, EffectLog
from proxy.errors import StoreError, ToolFailure
from proxy.events import ToolCall, ToolResult
from proxy.records import InvocationLog, Limiter
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Intersections, Policy
from proxy.tools.contract.capabilities import Clock, Credentials
from proxy.tools.contract.paging import ResultShelf
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.running.cache import ResultCache
from proxy.tools.running.checks import Checks
from proxy.tools.running.concurrency import Nesting, Slots
from proxy.tools.running.effects import SharedEffects, claim_of
from proxy.tools.running.execution import Executor, OnCrash
from proxy.tools.running.granted import GrantedCall
from proxy.tools.running.invocation import (
    Invocation,
    InvocationJournal,
    OnClosed,
    OnProgress,
    OnStart,
    fault_facts,
)
from proxy.tools.running.ledger import Claim, RunContext, fingerprint
from proxy.tools.running.loop_watch import MAX_STEP_S, blocked_s, thread_use
from proxy.tools.running.order import is_read_only, side_by_side
from proxy.tools.running.outcome import Outcomes, failed, mark_untrusted
from proxy.tools.running.plan import Approved, PlannedCall, Refusal, admit, plan
from proxy.tools.running.tool_tasks import ToolTasks

__all__ = ["OnClosed", "OnCrash", "OnDone", "OnProgress", "OnStart", "Runner", "new_invocation_id"]

_GRACE_S = 2.0
"""Seconds beyond a tool's own time that another process may take to say how it ended."""

OnDone = Callable[[ToolCall, ToolResult], None]
"""Called as each call of a turn is done, in the order in which they are."""


def new_invocation_id() -> str:
    """A fresh random id."""
    return f"inv_{os.urandom(16).hex()}"


class Runner:
    """Runs tool calls.  One for the process; what belongs to one run is in its ``RunContext``.

    Args:
        clock: the tools' time of day, by which they say how long a result may be kept.  The record has
            the machine's: one that stands still (the demo's) would put a call days before its run.
        shelf: where too large results are kept for ``core__read_result``; ``None`` for nowhere.
        max_read_only, max_read_only_per_caller: read-only tools that run at the same moment.
        max_parallel: of these, the calls of one run.
        on_crash: told what a tool raised that is no ``ToolFailure``.
        on_closed: told of every call that is over.
        effects: where effects are claimed, so that no other process repeats them; ``None`` for nowhere.
        credentials: of the connections that tools name; ``None`` where those need none.
        log_arguments: whether lines of the log have a call's redacted arguments, as its row has.
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
        max_parallel: int = 8,
        on_crash: OnCrash | None = None,
        on_closed: OnClosed | None = None,
        effects: EffectLog | None = None,
        credentials: Credentials | None = None,
        log_arguments: bool = True,
    ) -> None:
        self._registry = registry
        self._policy = policy
        self._limiter = limiter
        self._credentials = credentials
        self._ids = ids
        self._journal = InvocationJournal(log, on_closed, log_arguments=log_arguments)
        self._shared = None if effects is None else SharedEffects(effects, self._journal)
        self._outcomes = Outcomes(self._journal, shelf, self._shared)
        self._tasks = ToolTasks(max_stuck=max_stuck)
        self._executor = Executor(
            self._tasks,
            self._journal,
            ResultCache(monotonic=time.monotonic, wall=lambda: clock.now(UTC).timestamp()),
            Slots(max_read_only, max_read_only_per_caller),
            default_timeout_s=default_timeout_s,
            on_crash=on_crash,
        )
        self._max_parallel = max_parallel
        self._nesting = Nesting()
        self._intersections = Intersections()
        self.checks = Checks(registry, policy, self._intersections, self._tasks, self._executor, credentials)
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
        """Run one call; never raises but ``CancelledError``.

        ``policy`` narrows the configured one for this caller.  ``budget_s`` is how many seconds
        the run has left.  ``on_start`` is called when the call's row is open and before the tool
        runs; not for a call that is refused or answered with an earlier result.  ``approved`` says that
        somebody approved this call, where policy asks for that; an
        :class:`~proxy.tools.running.plan.ApprovedCall` lets run what it names alone, and once, whoever asks
        for it again; so does a :class:`~proxy.tools.running.plan.ContinuedCall`.  When the caller is
        cancelled a read-only tool is too; a tool with effects that has started runs to its end (see
        :meth:`drain`).
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
            started_at=time.time(),
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
                task.cancel()  # Nothing has begun that would have to come to its end.
            raise

    async def refuse(self, call: ToolCall, context: RunContext, failure: ToolFailure, decision: str) -> None:
        """Put a call on record that the run does not make; ``decision`` is the word of its row."""
        catalog = context.catalog or self._registry.current
        invocation = Invocation(
            id=self._ids(),
            call=call,
            context=context,
            policy=self._policy,
            deadline=None,
            catalog=catalog,
            spec=catalog.get(call.name),
            started_at=time.time(),
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
        """Run the calls of one turn; results stand in the order of the calls.

        Read-only calls run first and together, so many at once as a run may have, then the others
        one after the other in the order called; agents that stand side by side run together.  Without
        ``parallel`` all of them run in order.
        ``approved`` are the indices of calls that somebody approved, ``granted`` has what lets others run.
        """
        results: dict[int, ToolResult] = {}
        deadline = None if budget_s is None else time.monotonic() + budget_s

        async def one(at: int) -> None:
            left = None if deadline is None else deadline - time.monotonic()
            results[at] = await self.run(
                calls[at],
                context,
                policy=policy,
                budget_s=left,
                on_start=on_start,
                on_progress=on_progress,
                approved=granted.get(calls[at].index) or calls[at].index in approved,
            )
            if on_done is not None:
                on_done(calls[at], results[at])

        alone = list(range(len(calls)))
        if parallel and len(calls) > 1:
            room = asyncio.Semaphore(self._max_parallel)

            async def one_of_many(at: int) -> None:
                async with room:
                    await one(at)

            catalog = context.catalog or self._registry.current
            together = [at for at in alone if is_read_only(catalog.get(calls[at].name))]
            alone = [at for at in alone if at not in together]
            for neighbours in (together, *side_by_side(alone, calls, catalog)):
                if len(neighbours) == 1:
                    await one(neighbours[0])
                    continue
                async with asyncio.TaskGroup() as group:
                    for at in neighbours:
                        group.create_task(one_of_many(at))
        else:
            for at in alone:
                await one(at)
        return [results[at] for at in range(len(calls))]

    async def drain(self, timeout_s: float = 25.0) -> int:
        """Wait at shutdown for effects that outlived their caller; how many tasks are left."""
        pending: set[asyncio.Task[ToolResult]] = set(self._pending)
        if pending:
            _, pending = await asyncio.wait(pending, timeout=timeout_s)
        return len(pending) + await self._tasks.end(min(1.0, timeout_s))

    async def _answer_again(self, call: ToolCall, claim: Claim) -> ToolResult:
        """A place of a run that was asked for twice: the first answer, and nothing runs (rule R5)."""
        if claim.fingerprint != fingerprint(call):
            message = "another call has already run in this place of the turn"
            return failed(call, ToolFailure(message))
        return replace(await asyncio.shield(claim.result), call_id=call.call_id)

    async def _settle(self, invocation: Invocation, claim: Claim) -> ToolResult:
        """Run one claimed call and tell whoever waits for the same one."""
        result: ToolResult | None = None
        try:
            result = await self._process(invocation)
        # The boundary that keeps run() from raising: a fault of ours is the model's to read about,
        # and the log's to name.
        except Exception as error:  # noqa: BLE001
            self._journal.logger.error(
                "tool_runner_fault", **fault_facts(error), tool_invocation_id=invocation.id
            )
            result = self._outcomes.fail(invocation, ToolFailure("the tool could not be run"))
        finally:
            if not claim.result.done():
                claim.result.set_result(_cancelled(invocation.call) if result is None else result)
        return result

    async def _process(self, invocation: Invocation) -> ToolResult:
        """The path itself."""
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
                words = "this tool needs an approval, and the grant that covered it no longer holds"
                failure = ToolFailure(words, code="approval_required")
                return await self._outcomes.refuse(invocation, planned.refused(failure))
        once = planned.spec.cache_ttl_s > 0 if planned.read_only else not planned.spec.repeatable
        once = once and invocation.approval is None
        try:
            # What runs once for equal calls would wait for itself where it is called from inside.
            with self._nesting.inside(planned.equality if once else invocation.id):
                return await self._once(invocation, planned)
        except ToolFailure as failure:
            return await self._outcomes.refuse(invocation, planned.refused(failure))

    async def _decide(self, invocation: Invocation) -> PlannedCall | Refusal:
        """Everything that can be decided before anything happens; of it, only calls are counted here."""
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
            # The arguments are bounded: it is the tool's own validator that is slow.
            self._journal.blocked(invocation, took_s)
        if isinstance(planned, Refusal):
            if planned.cause is not None:
                self._executor.crashed(invocation, admitted.spec, planned.cause)
        elif invocation.approval is not None and (words := invocation.approval.mismatch(planned)):
            return planned.refused(ToolFailure(words, code="policy_denied"))
        elif invocation.grant is not None and (
            words := invocation.grant.mismatch(planned.spec, planned.arguments)
        ):
            return planned.refused(ToolFailure(words, code="approval_required"))
        return planned

    async def _count(self, invocation: Invocation, spec: ToolSpec) -> None:
        """Count the call; raises :class:`~proxy.errors.ToolFailure` where it is one too many."""
        if self._tasks.is_disabled(spec.name):
            raise ToolFailure("this tool has stopped responding and is switched off")
        if invocation.deadline is not None and time.monotonic() >= invocation.deadline:
            raise ToolFailure("the time for this request is used up", code="budget_exhausted")
        limiter = invocation.context.limiter or self._limiter
        wait_s = None if limiter is None else await limiter.hit("tool_calls", invocation.context.caller)
        if wait_s is not None:
            raise ToolFailure(f"too many tool calls; the next is free in {wait_s:.0f} s", code="rate_limited")

    async def _once(self, invocation: Invocation, planned: PlannedCall) -> ToolResult:
        """Run the call, unless it is an effect that the run has caused already (rule R5)."""
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
                return await self._outcomes.repeat(invocation, earlier, planned.spec.name)
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
        """Cause an effect, unless it has been caused for the same request already."""
        claim = claim_of(invocation, effect)
        failure = await self._connect(invocation, planned)
        if failure is not None:
            return await self._not_connected(invocation, planned, claim, failure)
        if self._shared is None:
            # Without a record nobody could tell whether an approved call has run already.
            once = invocation.approval is not None
            return self._outcomes.unrecorded(invocation) if once else await self._perform(invocation, planned)
        # Whoever has begun it has no longer than its tool has; then nobody knows what became of it.
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
        """An effect that cannot be caused now, unless an earlier try of the request caused it."""
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
        """Answer with what came of an effect elsewhere."""
        if not earlier.another:
            # Of one that is under way the next attempt asks the record again, which may know by then.
            invocation.begun = earlier.status != "started"
            invocation.caused_by = earlier.invocation_id
        return await self._outcomes.repeat_of(invocation, earlier, planned.spec.name)

    async def _connect(self, invocation: Invocation, planned: PlannedCall) -> ToolFailure | None:
        """Have the credentials of the call's connection at hand; why not, where there are none.

        Part of the tool's own time.  It ends with its caller, also for a tool with effects.
        """
        if self._credentials is None or not planned.connection:
            return None
        began = time.monotonic()
        invocation.connecting = True
        try:
            async with asyncio.timeout(self._executor.left_s(invocation, planned.spec)):
                await self._credentials.prepare(planned.connection)
        except TimeoutError:
            words = f'the connection "{planned.connection}" was not ready in time, so the call was not made'
            return ToolFailure(words, code="timeout")
        except ToolFailure as failure:
            return failure
        except asyncio.CancelledError:
            self._outcomes.fail(invocation, _gone())
            raise
        finally:
            invocation.connecting = False
            invocation.connected_s = time.monotonic() - began
        return None

    async def _perform(self, invocation: Invocation, planned: PlannedCall) -> ToolResult:
        """Open the row if it is not, run the tool, close the row."""
        try:
            if not invocation.claimed:
                await self._journal.open(invocation, durable=not planned.read_only)
        except StoreError:
            return self._outcomes.unrecorded(invocation)
        if invocation.abandoned:
            if self._shared is not None:
                self._shared.release(invocation)
            return self._outcomes.fail(invocation, _gone())
        invocation.begun = True
        self._journal.started(invocation)
        if invocation.on_start is not None:
            invocation.on_start(invocation.call, invocation.arguments_redacted)
        if planned.spec.untrusted_output:
            # Also where it fails: its words may quote what it read.
            mark_untrusted(invocation, planned.spec.name)
        try:
            output = await self._executor.run(invocation, planned)
        except ToolFailure as failure:
            return self._outcomes.fail(invocation, failure)
        except asyncio.CancelledError:
            self._outcomes.fail(invocation, _gone())
            raise
        if output.untrusted:
            mark_untrusted(invocation, planned.spec.name)
        return self._outcomes.succeed(invocation, output)


def _cancelled(call: ToolCall) -> ToolResult:
    return failed(call, ToolFailure("the call was cancelled", code="cancelled"))


def _gone() -> ToolFailure:
    return ToolFailure("the client has gone", code="cancelled")
