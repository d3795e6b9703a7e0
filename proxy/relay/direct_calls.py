"""Tool calls that clients make themselves: runs without a model, by the same runner, on the same record."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from proxy.errors import ServerStopping, ToolFailure
from proxy.events import ToolCall, ToolResult
from proxy.records import Meter, RunRecord, RunStatus, ToolEffect
from proxy.relay.ask import Identity
from proxy.relay.base import RunEvents
from proxy.relay.memory.idempotency import NO_REPEAT, Idempotency, Repeat
from proxy.store.base import Store
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.tools.running.runner import OnProgress, Runner

__all__ = ["DirectCall", "DirectCalls", "OpenCall"]

_MOST_NAME = 200


@dataclass(frozen=True, slots=True)
class DirectCall:
    """One call.  ``tool`` is whatever the client wrote, ``arguments`` JSON text.

    ``wire`` is the name of the dialect that it came in.  ``policy`` is the caller's, and ``selection`` what
    it says of the tools.  ``repeat`` says which call it is, where that is known.
    """

    identity: Identity
    wire: str
    tool: str
    arguments: str = field(repr=False)
    policy: Policy
    selection: Selection
    meter: Meter
    repeat: Repeat = NO_REPEAT

    @property
    def spec(self) -> ToolSpec | None:
        """The tool, if its caller is offered it."""
        return next((spec for spec in self.selection.offered if spec.name == self.tool), None)


class DirectCalls:
    """Makes calls that clients ask for.  One for the process."""

    def __init__(
        self, runner: Runner, store: Store, idempotency: Idempotency, watch: RunEvents, *, budget_s: float
    ) -> None:
        """``watch`` is told of each call as of a run; ``budget_s`` is the longest that one may take."""
        self._runner = runner
        self._store = store
        self._idempotency = idempotency
        self._watch = watch
        self._budget_s = budget_s

    def open(self, call: DirectCall, cut_off: Callable[[], bool]) -> "OpenCall":
        """A call that is about to be made; ``cut_off`` says whether a cancellation of it is the server's own
        end."""
        ledger = (
            self._idempotency.begin(call.repeat.key, is_repeat=call.repeat.is_repeat)
            if call.repeat.key
            else RunLedger()
        )
        return OpenCall(self, call, ledger, cut_off)


class OpenCall:
    """A call from :meth:`DirectCalls.open` until its client has the answer."""

    def __init__(
        self, calls: DirectCalls, call: DirectCall, ledger: RunLedger, cut_off: Callable[[], bool]
    ) -> None:
        self._calls = calls
        self._call = call
        self._ledger = ledger
        self._cut_off = cut_off

    async def run(self, on_progress: OnProgress | None = None) -> ToolResult | None:
        """What the call comes to; it is on record as a run of one call, whatever becomes of it.

        ``None`` for a tool that its caller is not offered; that is on record too.  A cancellation ends a tool
        that only reads; one with effects that has begun runs to its end.  Until :meth:`answered` is called,
        the same call again is a repeat of this one and causes nothing (rule R5).
        """
        calls, call = self._calls, self._call
        record = self._record()
        calls._store.put_run(record)
        calls._watch(
            "run_started", {"run_id": call.identity.run_id, "model": "", "preview": call.tool[:_MOST_NAME]}
        )
        began = time.monotonic()
        status: RunStatus = "failed"
        error: str | None = "internal_error"
        try:
            result = await self._result(on_progress)
            status, error = "completed", None
            return result
        except asyncio.CancelledError:
            status, error = "cancelled", "client_gone"
            if self._cut_off():
                status, error = "failed", ServerStopping.code
            raise
        finally:
            took_s = time.monotonic() - began
            # By the clock that nobody sets: no run ends before it began.
            ended_at = record.started_at + took_s
            calls._store.put_run(
                replace(record, status=status, error_code=error, tool_calls=1, ended_at=ended_at)
            )
            calls._idempotency.ended(call.repeat.key, self._ledger)
            calls._watch(
                "run_finished",
                {
                    "run_id": call.identity.run_id,
                    "status": status,
                    "error_code": error,
                    "turns": 0,
                    "tool_calls": 1,
                    "ms": took_s * 1000,
                },
            )

    def answered(self) -> None:
        """The client has the whole answer: whoever makes this call again wants it made once more."""
        self._calls._idempotency.answered(self._call.repeat.key, self._ledger)

    async def _result(self, on_progress: OnProgress | None) -> ToolResult | None:
        calls, call = self._calls, self._call
        # The first call of its only turn; its id is the run's, since the client's own may come again.
        asked = ToolCall(call.identity.run_id, call.tool, call.arguments, 0)
        context = RunContext(
            call.identity.run_id,
            1,
            call.identity.caller,
            call.identity.request_id,
            self._ledger,
            call.meter,
            call.identity.key,
            call.selection.catalog,
        )
        if call.spec is None:
            rule = call.selection.withheld.get(call.tool, "it is not offered")
            failure = ToolFailure("there is no tool of this name", code="unknown_tool")
            await calls._runner.refuse(asked, context, failure, f"refused: {rule}")
            return None
        if call.spec.effect is not ToolEffect.READ_ONLY:
            calls._idempotency.caused(call.repeat.key, self._ledger)
        result = await calls._runner.run(
            asked, context, policy=call.policy, budget_s=calls._budget_s, on_progress=on_progress
        )
        calls._watch(
            "tool_finished",
            {
                "run_id": call.identity.run_id,
                "name": call.tool[:_MOST_NAME],
                "ok": result.ok,
                "ms": result.milliseconds,
                "arguments_redacted": result.arguments_redacted,
                "result_redacted": result.redacted,
                "error_code": result.error_code,
            },
        )
        return result

    def _record(self) -> RunRecord:
        call = self._call
        return RunRecord(
            id=call.identity.run_id,
            request_id=call.identity.request_id,
            caller=call.identity.caller,
            wire=call.wire,
            model="",
            upstream="",
            stream=False,
            status="running",
            started_at=time.time(),
            offered=() if call.spec is None else (call.tool,),
        )
