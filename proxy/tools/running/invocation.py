"""The state of one call in the runner, and its row and log lines."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from proxy.base.chance import replayable
from proxy.base.errors import StoreError, ToolErrorCode
from proxy.base.events import ToolCall, ToolProgress
from proxy.records.effects import EarlierEffect, EffectClaim, EffectLog
from proxy.records.rows import (
    InvocationLog,
    InvocationStatus,
    NativeCall,
    ToolEffect,
    ToolInvocationRecord,
    operation_id,
    recorded_call_id,
)
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.contract.redaction import brief
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.running.granted import GrantedCall
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.plan import Approved, ApprovedCall, ContinuedCall

MAX_NATIVE = 65536
"""The most characters of an original call that is kept; a longer one is not, since half of it is not JSON."""

OnStart = Callable[[ToolCall, Any], None]
"""Called with a call and its redacted arguments when its row is open and before it takes effect."""

OnProgress = Callable[[ToolCall, ToolProgress], None]
"""Called with a call and its progress."""

OnClosed = Callable[[ToolInvocationRecord, float], None]
"""Called with the final record of each call, also of a refused one, and its duration in seconds."""


@dataclass(slots=True)
class Invocation:
    """The progress of one call. The call itself is a :class:`~proxy.tools.running.plan.PlannedCall`.

    ``deadline`` and ``started`` are monotonic seconds, ``started_at`` the time of day. ``source`` names the
    origin of a result that was not made for this call alone. ``claimed`` says that its effect is claimed
    in the record. ``begun`` says that the effect has begun, by this call or by another (``caused_by``, else
    empty). ``untrusted`` says that its result contains text from an untrusted source. ``connecting`` says
    that it waits for credentials, ``connected_s`` for how many seconds it did. ``price`` is what the call of
    the tool costs (billionths), ``None`` until it is made. ``catalog`` has the tools of its run.
    ``approved`` says whether a person approved the call, or is the exact approval. ``changed_by`` names the
    hooks that changed its arguments.
    """

    id: str
    call: ToolCall
    context: RunContext
    policy: Policy
    deadline: float | None
    catalog: Catalog
    spec: ToolSpec | None
    started_at: float
    started: float
    on_start: OnStart | None = None
    on_progress: OnProgress | None = None
    approved: Approved = False
    changed_by: str = ""
    decision: str = "unknown tool"
    arguments_redacted: Any = None
    opened: bool = False
    abandoned: bool = False
    claimed: bool = False
    begun: bool = False
    caused_by: str = ""
    connecting: bool = False
    connected_s: float = 0.0
    untrusted: bool = False
    source: str = ""
    price: int | None = None

    def decided(self, decision: str, arguments_redacted: Any) -> None:
        """Set the decision and the redacted arguments of the row."""
        self.decision = decision
        self.arguments_redacted = arguments_redacted

    def begins(self, price: int | None) -> None:
        """Note that the tool runs now; ``price`` is what that costs."""
        self.begun, self.price = True, price

    def progressed(self, progress: ToolProgress) -> None:
        """Report the call's progress if there is a callback for it."""
        if self.on_progress is not None:
            self.on_progress(self.call, progress)

    @property
    def approval(self) -> ApprovedCall | ContinuedCall | None:
        """The approval or continuation that allows exactly this call, once; ``None`` if there is none."""
        return self.approved if isinstance(self.approved, ApprovedCall | ContinuedCall) else None

    @property
    def grant(self) -> GrantedCall | None:
        """The grant by which the call runs without a new approval, if there is one."""
        return self.approved if isinstance(self.approved, GrantedCall) else None

    @property
    def read_only(self) -> bool:
        """Whether a cancellation may stop the call. A tool that does not exist changes nothing."""
        return self.spec is None or self.spec.effect is ToolEffect.READ_ONLY

    @property
    def max_result_bytes(self) -> int:
        """The most bytes of the result that the model gets."""
        own = self.spec.max_result_bytes if self.spec else None
        return min(self.policy.max_result_bytes, own or self.policy.max_result_bytes)

    @property
    def cost(self) -> int | None:
        """What the call cost so far, as the record has it: nothing if its result is an earlier call's."""
        return 0 if self.source and self.price is not None else self.price

    @property
    def took_ms(self) -> float:
        """The milliseconds since the call came in."""
        return (time.monotonic() - self.started) * 1000

    @property
    def shown_ms(self) -> float:
        """The milliseconds to show for the call; in a replay, the recorded ones."""
        return replayable(f"ms {recorded_call_id(self.call.call_id)}", lambda: self.took_ms)


class InvocationJournal:
    """The rows and the log lines of invocations; everything in them is redacted.

    Without ``log_arguments`` only the rows have the redacted arguments.
    """

    def __init__(
        self,
        log: InvocationLog,
        on_closed: OnClosed | None = None,
        *,
        log_arguments: bool = True,
    ) -> None:
        self._log = log
        self._on_closed = on_closed
        self._log_arguments = log_arguments
        # Bound once: an unbound logger is created again for each line, which takes half of the line's time.
        self.logger: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools").bind()
        # Checked once: a check takes a third of the time of a line.
        self._tells_starts = self.logger.is_enabled_for(logging.DEBUG)

    async def open(self, invocation: Invocation, *, durable: bool) -> None:
        """Write the row; with ``durable``, return after its commit or raise StoreError."""
        try:
            await self._log.open_invocation(self._record(invocation, "started"), durable=durable)
        except StoreError:
            if durable:
                raise
            self.logger.warning("tool_invocation_unrecorded", **self.facts(invocation))
            return
        self._opened(invocation)

    def _opened(self, invocation: Invocation) -> None:
        invocation.opened = True
        native = invocation.call.native
        if native and len(native) <= MAX_NATIVE:
            self._log.put_native_call(NativeCall(invocation.id, invocation.context.run_id, native))

    async def claim(self, invocation: Invocation, log: EffectLog, claim: EffectClaim) -> EarlierEffect | None:
        """Commit the row with its claim; return the earlier effect if it is taken. Raises StoreError."""
        earlier = await log.claim_effect(self._record(invocation, "started"), claim)
        if earlier is None:
            invocation.claimed = True
            self._opened(invocation)
        return earlier

    def started(self, invocation: Invocation) -> None:
        """Log at debug level that the tool is about to run; the line at a higher level comes at the end."""
        if self._tells_starts:
            facts = self.facts(invocation) | self._arguments(invocation)
            self.logger.debug("tool_invocation_started", **facts)

    def blocked(self, invocation: Invocation, seconds: float) -> None:
        """Log that a tool's code has blocked the event loop for so many seconds."""
        self.logger.warning(
            "tool_blocked_event_loop", **self.facts(invocation), blocked_ms=round(seconds * 1000, 1)
        )

    def close(
        self,
        invocation: Invocation,
        status: InvocationStatus,
        error_code: ToolErrorCode | None,
        redacted: Any,
        size: int,
    ) -> None:
        """Close the row if there is one, and log the call's outcome."""
        took_ms = invocation.took_ms
        record = self._record(
            invocation,
            status,
            error_code=error_code,
            result_redacted=redacted,
            result_bytes=size,
            # By the monotonic clock, which nobody sets: so a call cannot end before it began, or days later.
            ended_at=invocation.started_at + took_ms / 1000,
            cost=invocation.cost,
        )
        if invocation.opened:
            self._log.close_invocation(record)
        if self._on_closed is not None:
            self._on_closed(record, took_ms / 1000)
        facts = self.facts(invocation) | self._arguments(invocation)
        facts |= {"latency_ms": round(took_ms, 3), "result_bytes": size}
        if invocation.source:
            facts["source"] = invocation.source
        if status == "success":
            self.logger.info("tool_invocation_success", **facts)
        else:
            self.logger.warning("tool_invocation_error", **facts, error_code=error_code)

    def facts(self, invocation: Invocation) -> dict[str, Any]:
        """Return the fields that every log line about a call has.

        ``correlation_id`` is the run, ``operation_id`` the place of the call in it.
        """
        context = invocation.context
        return {
            "correlation_id": context.run_id,
            "operation_id": operation_id(context.run_id, context.turn, invocation.call.index),
            "request_id": context.request_id,
            "tool_invocation_id": invocation.id,
            "tool": invocation.spec.name if invocation.spec else _printable(invocation.call.name, 64),
        }

    def _arguments(self, invocation: Invocation) -> dict[str, Any]:
        """Return the redacted arguments for a log line; they are ``None`` if they could not be read."""
        return {"arguments": brief(invocation.arguments_redacted)} if self._log_arguments else {}

    @staticmethod
    def _record(invocation: Invocation, status: InvocationStatus, **outcome: Any) -> ToolInvocationRecord:
        """Return the row as far as it is known; ``outcome`` are the fields about the end of the call."""
        spec = invocation.spec
        source = f"; arguments changed by hook {invocation.changed_by}" if invocation.changed_by else ""
        source += f"; {invocation.source}" if invocation.source else ""
        return ToolInvocationRecord(
            id=invocation.id,
            run_id=invocation.context.run_id,
            turn=invocation.context.turn,
            seq=invocation.call.index,
            call_id=recorded_call_id(invocation.call.call_id),
            tool=spec.name if spec else _printable(invocation.call.name, 64),
            provider=spec.provider if spec else "",
            spec_digest=spec.digest if spec else "",
            effect=spec.effect if spec else ToolEffect.READ_ONLY,
            decision=invocation.decision + source,
            status=status,
            started_at=invocation.started_at,
            arguments_redacted=invocation.arguments_redacted,
            **outcome,
        )


def _printable(text: str, limit: int) -> str:
    """Return a model's text in a form for logs and rows: printable ASCII, bounded."""
    text = text[:limit]
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
