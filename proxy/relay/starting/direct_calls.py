"""Run tool calls that clients make themselves, without a model, with the same runner and record."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from proxy.base.errors import ServerStopping, ToolFailure
from proxy.base.events import ToolCall, ToolResult
from proxy.records.rows import Meter, RunRecord, RunStatus, ToolEffect
from proxy.relay.ask import Identity
from proxy.relay.base import RunEvents
from proxy.relay.memory.commit_waiter import ROOM_WAIT_S
from proxy.relay.memory.idempotency import NO_REPEAT, Idempotency, Repeat
from proxy.store.base import Store
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.running.ledger import RunContext, RunLedger
from proxy.tools.running.runner import OnProgress, Runner

_MOST_NAME = 200


@dataclass(frozen=True, slots=True)
class DirectCall:
    """One call. ``tool`` is the name that the client wrote, and ``arguments`` is JSON text.

    ``wire`` is the name of the dialect in which the call came. ``policy`` is the caller's policy, and
    ``selection`` its result for the tools. ``repeat`` identifies the call for retries, if that is known.
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
        """The tool, if the caller is offered it."""
        return next((spec for spec in self.selection.offered if spec.name == self.tool), None)

    @property
    def may_have_effect(self) -> bool:
        """Whether the tool may change something."""
        spec = self.spec
        return spec is not None and spec.effect is not ToolEffect.READ_ONLY


class DirectCalls:
    """Runs calls that clients ask for. The process has one instance."""

    def __init__(
        self, runner: Runner, store: Store, idempotency: Idempotency, watch: RunEvents, *, budget_s: float
    ) -> None:
        """``watch`` gets the events of each call, as of a run; ``budget_s`` limits the time of one call."""
        self._runner = runner
        self._store = store
        self._idempotency = idempotency
        self._watch = watch
        self._budget_s = budget_s

    def open(self, call: DirectCall, stopped_by_server: Callable[[], bool]) -> "OpenCall":
        """Return a call that is about to run; ``stopped_by_server`` says whether the server cancels it."""
        ledger = (
            self._idempotency.begin(call.repeat.key, is_repeat=call.repeat.is_repeat)
            if call.repeat is not NO_REPEAT
            else RunLedger()
        )
        return OpenCall(self, call, ledger, stopped_by_server)


class OpenCall:
    """A call from :meth:`DirectCalls.open` until its client has the answer."""

    def __init__(
        self, calls: DirectCalls, call: DirectCall, ledger: RunLedger, stopped_by_server: Callable[[], bool]
    ) -> None:
        self._calls = calls
        self._call = call
        self._ledger = ledger
        self._stopped_by_server = stopped_by_server

    async def run(self, on_progress: OnProgress | None = None) -> ToolResult | None:
        """Run the call and return its result; the record has it as a run of one call, whatever its outcome.

        Return ``None`` for a tool that the caller is not offered; that is recorded too. A cancellation
        stops a tool that only reads; a tool with effects that has begun runs to its end. Until
        :meth:`answered` is called, an equal call repeats this one and causes no effect (rule R5).
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
        cost = 0
        try:
            if calls._store.crowded:
                await calls._store.wait_for_room(ROOM_WAIT_S)
            result = await self._result(on_progress)
            status, error = "completed", None
            cost = 0 if result is None else result.cost
            return result
        except asyncio.CancelledError:
            status, error = "cancelled", "client_gone"
            if self._stopped_by_server():
                status, error = "failed", ServerStopping.code
            raise
        finally:
            took_s = time.monotonic() - began
            # A monotonic duration, because the system clock may be set: no run must end before it began.
            ended_at = record.started_at + took_s
            calls._store.put_run(
                replace(
                    record,
                    status=status,
                    error_code=error,
                    tool_calls=1,
                    ended_at=ended_at,
                    cost=cost or None,
                )
            )
            if cost:
                call.meter.spend(0, cost)
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
        """Note that the client has the whole answer: from now on an equal call is a new call."""
        self._calls._idempotency.answered(self._call.repeat.key, self._ledger)

    async def _result(self, on_progress: OnProgress | None) -> ToolResult | None:
        calls, call = self._calls, self._call
        # The first call of the only turn. Its id is the run's, because a client may use its own id again.
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
            person=call.identity.person,
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
            started_at=self._calls._store.now(),
            offered=() if call.spec is None else (call.tool,),
        )
