"""Run an admitted tool call: cached results, shared executions, places, retries, time limit and output.

Every error in here becomes a :class:`~proxy.base.errors.ToolFailure` that the model can read.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from proxy.base.errors import ToolErrorCode, ToolFailure, fault_facts
from proxy.tools.access.single_flight import WorkCancelled
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.redaction import mask_values, redact_output
from proxy.tools.contract.results.images import ImageBounds
from proxy.tools.contract.results.results import Output, to_output
from proxy.tools.contract.spec import Redaction, ToolSpec
from proxy.tools.running.cache import ResultCache, cache_key
from proxy.tools.running.invocation import Invocation, InvocationJournal
from proxy.tools.running.outcome import mark_untrusted
from proxy.tools.running.plan import PlannedCall
from proxy.tools.running.tasks.concurrency import Slots
from proxy.tools.running.tasks.loop_watch import watch_steps
from proxy.tools.running.tasks.tool_tasks import ToolCrashed, ToolTasks, ToolTimedOut

OnCrash = Callable[[ToolSpec, BaseException], None]
"""Called with what a tool raised, for its author. It may quote arguments: do not log or store it."""

_FIRST_WAIT_S = 0.1
_CODES: tuple[Any, ...] = get_args(ToolErrorCode)


class Executor:
    """The part of the runner that executes tools. Belongs to one event loop."""

    def __init__(
        self,
        tasks: ToolTasks,
        journal: InvocationJournal,
        cache: ResultCache,
        slots: Slots,
        *,
        default_timeout_s: float,
        on_crash: OnCrash | None = None,
    ) -> None:
        self._tasks = tasks
        self._journal = journal
        self._cache = cache
        self._slots = slots
        self._default_timeout_s = default_timeout_s
        self._on_crash = on_crash

    def limit_s(self, spec: ToolSpec) -> float:
        """Return the time limit of one call of a tool in seconds: the tool's own, or the default."""
        return spec.timeout_s or self._default_timeout_s

    def left_s(self, invocation: Invocation, spec: ToolSpec) -> float:
        """Return the seconds that this call may still take, by the tool's time limit and the run's."""
        left_s = self.limit_s(spec) - invocation.connected_s
        if invocation.deadline is not None:
            left_s = min(left_s, invocation.deadline - time.monotonic())
        return max(left_s, 0.0)

    async def run(self, invocation: Invocation, planned: PlannedCall) -> Output:
        """Return the output of one call; raise :class:`~proxy.base.errors.ToolFailure` if it fails."""
        left_s = self.left_s(invocation, planned.spec)
        if not planned.read_only:
            return await self._attempt(invocation, planned, left_s)
        if planned.spec.cache_ttl_s <= 0:
            return await self._in_a_slot(invocation, planned, left_s)
        return await self._shared(invocation, planned, left_s)

    async def _shared(self, invocation: Invocation, planned: PlannedCall, left_s: float) -> Output:
        """Return a cached result, or share one execution between equal calls at the same time.

        The execution has the tool's own time limit, not that of the first call. Each call waits only as long
        as its own run has time left.
        """
        key = cache_key(
            planned.caller,
            planned.connection,
            planned.spec.name,
            planned.spec.digest,
            planned.arguments.decode("ascii"),
            str(invocation.max_result_bytes),
            str(invocation.policy.max_image_bytes),
            str(planned.fetches or ""),
        )
        kept = self._cache.get(key)
        if kept is not None:
            invocation.source = "cached"
            return kept
        if self._cache.flights.is_under_way(key):
            invocation.source = "shared"
        try:
            async with asyncio.timeout(left_s):
                return await self._cache.flights.run(key, lambda: self._on_record(invocation, planned, key))
        except TimeoutError:
            raise _timed_out(invocation) from None
        except WorkCancelled:
            raise ToolFailure("the tool failed") from None

    async def _on_record(self, invocation: Invocation, planned: PlannedCall, key: str) -> Output:
        """Return a result that another process has put on record, or execute the tool."""
        kept = await self._cache.find(key, planned.caller)
        if kept is None:
            return await self._in_a_slot(invocation, planned, self.limit_s(planned.spec), key)
        invocation.source = "cached"
        return kept

    async def _in_a_slot(
        self, invocation: Invocation, planned: PlannedCall, limit_s: float, key: str = ""
    ) -> Output:
        """Execute a read-only tool when there is a place for it; the wait counts as part of the time."""
        until = time.monotonic() + limit_s
        taken = False
        # A key with many end users gets no more places than any other key.
        holder = invocation.context.key or planned.caller
        if self._slots.has_room(holder):
            async with self._slots.take(holder):
                return await self._attempt(invocation, planned, limit_s, key)
        try:
            async with asyncio.timeout(limit_s) as patience, self._slots.take(holder):
                taken = True
                patience.reschedule(None)
                left_s = max(until - time.monotonic(), 0.0)
                return await self._attempt(invocation, planned, left_s, key)
        except TimeoutError:
            if taken:
                raise
            raise ToolFailure("too many tools are running; try again later", code="rate_limited") from None

    async def _attempt(
        self, invocation: Invocation, planned: PlannedCall, limit_s: float, key: str = ""
    ) -> Output:
        """Execute the call once, retries included, within ``limit_s`` seconds."""
        spec = planned.spec
        context = CallContext(
            run_id=invocation.context.run_id,
            invocation_id=invocation.id,
            caller=planned.caller,
            call_id=planned.call.call_id,
            person=invocation.context.person,
            max_result_bytes=invocation.max_result_bytes,
            max_image_bytes=invocation.policy.max_image_bytes,
            idempotency_key=planned.idempotency_key,
            fetches=planned.fetches,
            images=invocation.context.images,
            on_progress=None if invocation.on_progress is None else invocation.progressed,
        )

        async def work() -> Output:
            # Reading the output runs code of the tool's own types, so the guard and the watch cover it too.
            return _output(spec, await self._call(invocation, planned, context), context)

        blocked = partial(self._journal.blocked, invocation)
        try:
            output = await self._tasks.run(
                spec.name, lambda: watch_steps(work(), blocked), limit_s, own_s=self.limit_s(spec)
            )
        except ToolTimedOut:
            raise _timed_out(invocation) from None
        except ToolCrashed as crash:
            raise self._failure(invocation, planned, crash.cause) from None
        if key:
            until, run_id = context.signals.cache.until, context.run_id
            self._cache.put(key, output, spec.cache_ttl_s, until)
            if invocation.context.keeps:
                self._cache.share(key, output, spec.cache_ttl_s, until, caller=planned.caller, run_id=run_id)
        return output

    async def _call(self, invocation: Invocation, planned: PlannedCall, context: CallContext) -> Any:
        """Call the tool, with retries, and return what it returned."""
        spec = planned.spec
        provider = invocation.catalog.provider(spec.name)
        for attempt in range(spec.retries + 1):
            value = planned.value if attempt == 0 else planned.fresh_value()
            try:
                return await provider.call_tool(spec, value, context)
            except (ToolFailure, ConnectionError, TimeoutError) as error:
                if attempt == spec.retries or not _is_transient(error):
                    raise
            await asyncio.sleep(_FIRST_WAIT_S * 2.0**attempt)
        raise ToolFailure("the tool failed")  # Never reached: the last try returns or raises.

    def crashed(self, invocation: Invocation, spec: ToolSpec, cause: BaseException) -> None:
        """Log a fault of the tool's own code, and report it to the tool's author."""
        self._journal.logger.warning("tool_crashed", **self._journal.facts(invocation), **fault_facts(cause))
        if self._on_crash is not None:
            self._on_crash(spec, cause)

    def _failure(self, invocation: Invocation, planned: PlannedCall, cause: BaseException) -> ToolFailure:
        """Return the failure for the model: a ``ToolFailure``'s own message, or else no details."""
        if isinstance(cause, ToolFailure):
            # Log, record and metrics use the code; an unknown one could contain an argument.
            known = cause.code in _CODES
            message = mask_values(str(cause.message), planned.private)
            if cause.untrusted:
                mark_untrusted(invocation, cause.untrusted)
            return ToolFailure(message, code=cause.code if known else "execution_failed")
        self.crashed(invocation, planned.spec, cause)
        return ToolFailure(f"the tool failed{_effect_warning(invocation)}")


def _output(spec: ToolSpec, returned: Any, context: CallContext) -> Output:
    """Convert what a tool returned to its output: validated, bounded and redacted."""
    if spec.validate_output is not None:
        returned = spec.validate_output(returned)
    signals = context.signals
    untrusted = (signals.sources or spec.source) if spec.untrusted_output or signals.untrusted else ""
    bounds = ImageBounds(context.max_image_bytes, addresses=not untrusted)
    output = to_output(returned, context.max_result_bytes, bounds)
    redacted = redact_output(output.value, spec.redaction or Redaction())
    rest = (output.images, output.notes, output.note_bytes)  # ``replace`` would take ten times as long.
    return Output(output.text, None, output.size, output.truncated, redacted, untrusted, *rest)


def _is_transient(error: BaseException) -> bool:
    """Return whether a retry of the same call may succeed."""
    return error.transient if isinstance(error, ToolFailure) else True


def _timed_out(invocation: Invocation) -> ToolFailure:
    """Return the failure for a time-out."""
    return ToolFailure(f"the tool took too long{_effect_warning(invocation)}", code="timeout")


def _effect_warning(invocation: Invocation) -> str:
    """Return what to add to a failure's message if the tool may have had its effect."""
    return "" if invocation.read_only else "; it may have taken effect all the same"
