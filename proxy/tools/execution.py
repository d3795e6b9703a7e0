"""Runs a tool that was let through: kept results, equal calls, places, tries, time, and what it gave.

Whatever goes wrong in here comes out as a :class:`~proxy.errors.ToolFailure` that the model can read.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from proxy.errors import ToolFailure
from proxy.tools.arguments import canonical_arguments
from proxy.tools.cache import ResultCache, WorkCancelled, cache_key
from proxy.tools.concurrency import Slots
from proxy.tools.invocation import Invocation, InvocationJournal, fault_facts
from proxy.tools.loop_watch import watch_steps
from proxy.tools.provider import CallContext
from proxy.tools.redaction import mask_private_values, redact_output
from proxy.tools.registry import Registry
from proxy.tools.results import Output, to_output
from proxy.tools.spec import Redaction, ToolSpec
from proxy.tools.supervisor import Supervisor, ToolCrashed, ToolTimedOut

__all__ = ["Executor", "OnCrash"]

OnCrash = Callable[[ToolSpec, BaseException], None]
"""Told what a tool raised, for its author.  The exception may quote arguments: no log, no record."""

_FIRST_WAIT_S = 0.1


class Executor:
    """Runs tools for the runner.  Belongs to one event loop."""

    def __init__(
        self,
        registry: Registry,
        supervisor: Supervisor,
        journal: InvocationJournal,
        cache: ResultCache,
        slots: Slots,
        *,
        default_timeout_s: float,
        on_crash: OnCrash | None = None,
    ) -> None:
        self._registry = registry
        self._supervisor = supervisor
        self._journal = journal
        self._cache = cache
        self._slots = slots
        self._default_timeout_s = default_timeout_s
        self._on_crash = on_crash

    async def run(self, invocation: Invocation, spec: ToolSpec, value: Any) -> Output:
        """The output of one call; raises :class:`~proxy.errors.ToolFailure`."""
        limit_s = min(self._default_timeout_s, spec.timeout_s or self._default_timeout_s)
        left_s = limit_s
        if invocation.deadline is not None:
            left_s = min(limit_s, max(invocation.deadline - time.monotonic(), 0.0))
        if not invocation.read_only:
            return await self._attempt(invocation, spec, value, left_s)
        if spec.cache_ttl_s <= 0:
            return await self._in_a_slot(invocation, spec, value, left_s)
        return await self._shared(invocation, spec, value, limit_s, left_s)

    async def _shared(
        self, invocation: Invocation, spec: ToolSpec, value: Any, limit_s: float, left_s: float
    ) -> Output:
        """A kept result, or one execution for all who ask for the same now.

        The execution has the tool's own time, not that of whoever came first; each waits for as
        long as its own run has.
        """
        key = cache_key(
            invocation.context.caller,
            spec.connection,
            spec.name,
            spec.digest,
            canonical_arguments(invocation.arguments or {}),
            str(invocation.max_result_bytes),
        )
        kept = self._cache.get(key)
        if kept is not None:
            invocation.source = "cached"
            return kept
        if self._cache.flights.is_under_way(key):
            invocation.source = "shared"
        try:
            async with asyncio.timeout(left_s):
                return await self._cache.flights.run(
                    key, lambda: self._in_a_slot(invocation, spec, value, limit_s, key)
                )
        except TimeoutError:
            raise _too_long(invocation) from None
        except WorkCancelled:
            raise ToolFailure("the tool failed") from None

    async def _in_a_slot(
        self, invocation: Invocation, spec: ToolSpec, value: Any, limit_s: float, key: str = ""
    ) -> Output:
        """One execution of a read-only tool, when there is a place for it; waiting is time, too."""
        until = time.monotonic() + limit_s
        taken = False
        try:
            async with asyncio.timeout(limit_s) as patience, self._slots.take(invocation.context.caller):
                taken = True
                patience.reschedule(None)
                left_s = max(until - time.monotonic(), 0.0)
                return await self._attempt(invocation, spec, value, left_s, key)
        except TimeoutError:
            if taken:
                raise
            raise ToolFailure("too many tools are running; try again later", code="rate_limited") from None

    async def _attempt(
        self, invocation: Invocation, spec: ToolSpec, value: Any, limit_s: float, key: str = ""
    ) -> Output:
        """One execution, further tries included, within ``limit_s`` seconds."""
        context = CallContext(
            run_id=invocation.context.run_id,
            invocation_id=invocation.id,
            caller=invocation.context.caller,
            call_id=invocation.call.call_id,
            max_result_bytes=invocation.max_result_bytes,
        )

        async def work() -> Output:
            # Looking at the output runs code of the tool's own types: inside the guard, too.
            return _output(spec, await self._call(invocation, spec, value, context), context)

        try:
            output = await self._supervisor.run(spec.name, work, limit_s)
        except ToolTimedOut:
            raise _too_long(invocation) from None
        except ToolCrashed as crash:
            raise self._failure(invocation, spec, crash.cause) from None
        if key:
            self._cache.put(key, output, spec.cache_ttl_s, context.signals.cache.until)
        return output

    async def _call(self, invocation: Invocation, spec: ToolSpec, value: Any, context: CallContext) -> Any:
        """What the tool returned, at the first try or a later one."""
        provider = self._registry.provider(spec.name)

        def blocked(seconds: float) -> None:
            self._journal.logger.warning(
                "tool_blocked_event_loop",
                **self._journal.facts(invocation),
                blocked_ms=round(seconds * 1000, 1),
            )

        for attempt in range(spec.retries + 1):
            try:
                return await watch_steps(provider.call_tool(spec, value, context), blocked)
            except (ToolFailure, ConnectionError, TimeoutError) as error:
                if attempt == spec.retries or not _may_pass(error):
                    raise
            await asyncio.sleep(_FIRST_WAIT_S * 2.0**attempt)
        raise ToolFailure("the tool failed")  # Never reached: the last try returns or raises.

    def _failure(self, invocation: Invocation, spec: ToolSpec, cause: BaseException) -> ToolFailure:
        """What the model reads about an exception: a tool's own words, and of anything else nothing."""
        if isinstance(cause, ToolFailure):
            redaction = spec.redaction or Redaction()
            message = mask_private_values(str(cause.message), invocation.arguments or {}, redaction)
            return ToolFailure(message, code=cause.code)
        self._journal.logger.warning("tool_crashed", **self._journal.facts(invocation), **fault_facts(cause))
        if self._on_crash is not None:
            self._on_crash(spec, cause)
        return ToolFailure("the tool failed")


def _output(spec: ToolSpec, returned: Any, context: CallContext) -> Output:
    """What a tool returned as its output: as promised, bounded, redacted."""
    if spec.validate_output is not None:
        returned = spec.validate_output(returned)
    output = to_output(returned, context.max_result_bytes)
    return Output(
        text=output.text,
        value=None,
        size=output.size,
        truncated=output.truncated,
        redacted=redact_output(output.value, spec.redaction or Redaction()),
        untrusted=spec.untrusted_output or context.signals.untrusted,
    )


def _may_pass(error: BaseException) -> bool:
    """Whether the same call may go well a moment later."""
    return error.transient if isinstance(error, ToolFailure) else True


def _too_long(invocation: Invocation) -> ToolFailure:
    """A time-out in words."""
    doubt = "" if invocation.read_only else "; it may have taken effect all the same"
    return ToolFailure(f"the tool took too long{doubt}", code="timeout")
