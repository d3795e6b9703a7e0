"""One call on its way through the runner, and its row and log lines."""

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from proxy.chance import drawn
from proxy.effect_records import EarlierEffect, EffectClaim, EffectLog
from proxy.errors import StoreError, ToolErrorCode
from proxy.events import ToolCall, ToolProgress
from proxy.records import (
    InvocationLog,
    InvocationStatus,
    NativeCall,
    ToolEffect,
    ToolInvocationRecord,
    operation_id,
)
from proxy.tools.access.catalog import Catalog
from proxy.tools.access.policy import Policy
from proxy.tools.contract.redaction import brief
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.running.granted import GrantedCall
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.plan import Approved, ApprovedCall, ContinuedCall

__all__ = [
    "MAX_NATIVE",
    "Invocation",
    "InvocationJournal",
    "OnClosed",
    "OnProgress",
    "OnStart",
    "fault_facts",
]

MAX_NATIVE = 65536
"""Characters of a call as it came that are kept; a longer one is not, since half of it is no JSON."""

OnStart = Callable[[ToolCall, Any], None]
"""Called with a call and its redacted arguments when its row is open and before it takes effect."""

OnProgress = Callable[[ToolCall, ToolProgress], None]
"""Called with a call and how far it has come."""

OnClosed = Callable[[ToolInvocationRecord, float], None]
"""Called with each call's last record, also of one that was refused, and the seconds it took."""


@dataclass(slots=True)
class Invocation:
    """The progress of one call.  The call itself is a :class:`~proxy.tools.running.plan.PlannedCall`.

    ``deadline`` and ``started`` are monotonic seconds, ``started_at`` the time of day.  ``source`` names the
    origin of a result that was not made for this call alone.  ``claimed`` says that its effect is claimed on
    record, ``begun`` that it has begun, by this call or by another (``caused_by``, else empty), ``untrusted``
    that its result contains a stranger's text.  ``connecting`` says that it waits for credentials,
    ``connected_s`` for how many seconds it did.  ``catalog`` has the tools of its run.  ``approved`` says
    whether somebody approved the call, or holds the exact approval.
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

    def decided(self, decision: str, arguments_redacted: Any) -> None:
        """What the row says of it, once that is known."""
        self.decision = decision
        self.arguments_redacted = arguments_redacted

    def progressed(self, progress: ToolProgress) -> None:
        """Tell whoever wants to know how far the call has come."""
        if self.on_progress is not None:
            self.on_progress(self.call, progress)

    @property
    def approval(self) -> ApprovedCall | ContinuedCall | None:
        """What was approved, where the call may run by that alone and once."""
        return self.approved if isinstance(self.approved, ApprovedCall | ContinuedCall) else None

    @property
    def grant(self) -> GrantedCall | None:
        """The grant by which the call runs without a question, if there is one."""
        return self.approved if isinstance(self.approved, GrantedCall) else None

    @property
    def read_only(self) -> bool:
        """Whether a cancellation may stop it.  A tool that does not exist changes nothing."""
        return self.spec is None or self.spec.effect is ToolEffect.READ_ONLY

    @property
    def max_result_bytes(self) -> int:
        """How much of the result the model is shown."""
        own = self.spec.max_result_bytes if self.spec else None
        return min(self.policy.max_result_bytes, own or self.policy.max_result_bytes)

    @property
    def took_ms(self) -> float:
        """Milliseconds since the call came in."""
        return (time.monotonic() - self.started) * 1000

    @property
    def shown_ms(self) -> float:
        """The same for whoever is shown the call; in a replay, what was shown then."""
        return drawn(f"ms {self.call.call_id}", lambda: self.took_ms)


class InvocationJournal:
    """Opens and closes the rows of invocations and logs them; everything in it is redacted.

    Without ``log_arguments`` the redacted arguments are in the rows alone.
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
        # Bound once: a logger that is not is made anew for each line, which takes half of its time.
        self.logger: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools").bind()
        # To ask it each time takes a third of what a line does.
        self._tells_starts = self.logger.is_enabled_for(logging.DEBUG)

    async def open(self, invocation: Invocation, *, durable: bool) -> None:
        """Write the row; with ``durable`` it is committed on return, else StoreError is raised."""
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
        """Commit the row with what it claims; where that is taken, by whom.  Raises StoreError."""
        earlier = await log.claim_effect(self._record(invocation, "started"), claim)
        if earlier is None:
            invocation.claimed = True
            self._opened(invocation)
        return earlier

    def started(self, invocation: Invocation) -> None:
        """Log that the tool is about to run; the one line that everybody sees comes at the end."""
        if self._tells_starts:
            facts = self.facts(invocation) | self._arguments(invocation)
            self.logger.debug("tool_invocation_started", **facts)

    def blocked(self, invocation: Invocation, seconds: float) -> None:
        """Log that a tool's code has kept the event loop from everybody else for so long."""
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
        """Close the row if there is one, and log how it ended."""
        took_ms = invocation.took_ms
        record = self._record(
            invocation,
            status,
            error_code=error_code,
            result_redacted=redacted,
            result_bytes=size,
            # By the clock that no one sets: a call is not over before it began, or days after.
            ended_at=invocation.started_at + took_ms / 1000,
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
        """What every log line about a call says.

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
        """The redacted arguments as a line may have them; ``None`` of what was not understood."""
        return {"arguments": brief(invocation.arguments_redacted)} if self._log_arguments else {}

    @staticmethod
    def _record(invocation: Invocation, status: InvocationStatus, **outcome: Any) -> ToolInvocationRecord:
        """The row as far as it is known; ``outcome`` are the fields that say how the call ended."""
        spec = invocation.spec
        source = f"; {invocation.source}" if invocation.source else ""
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
            decision=invocation.decision + source,
            status=status,
            started_at=invocation.started_at,
            arguments_redacted=invocation.arguments_redacted,
            **outcome,
        )


def fault_facts(error: BaseException) -> dict[str, str]:
    """Where and what an exception was, without its text: that may hold arguments or secrets."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return {"exception": type(error).__name__, "raised_at": place}


def _printable(text: str, limit: int) -> str:
    """A model's own word as a log or row may hold it: printable ASCII, bounded."""
    text = text[:limit]
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
