"""Check whether a call would run if a person approved it. Nothing here runs, counts or records a call."""

import asyncio

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolCall
from proxy.hooks.chain import HookChain, HookRefusal
from proxy.tools.access.catalog import Registry
from proxy.tools.access.policy import Intersections, Policy
from proxy.tools.contract.capabilities import Credentials
from proxy.tools.running.execution import Executor
from proxy.tools.running.hooking import hooked_call, refusal_of
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.plan import PlannedCall, Refusal, admit, plan
from proxy.tools.running.tasks.tool_tasks import ToolTasks


class Checks:
    """The checks that the proxy makes before it asks a person for an approval."""

    def __init__(
        self,
        registry: Registry,
        policy: Policy,
        intersections: Intersections,
        tasks: ToolTasks,
        executor: Executor,
        credentials: Credentials | None,
        hooks: HookChain,
    ) -> None:
        self._hooks = hooks
        self._registry = registry
        self._policy = policy
        self._intersections = intersections
        self._tasks = tasks
        self._executor = executor
        self._credentials = credentials

    async def check(
        self, call: ToolCall, context: RunContext, *, policy: Policy | None = None
    ) -> PlannedCall | Refusal:
        """Return what would run if a person approved the call, or why it would not run."""
        catalog = context.catalog or self._registry.current
        spec = catalog.get(call.name)
        if self._hooks.calls:
            try:
                call, _ = await hooked_call(self._hooks, call, spec, context)
            except HookRefusal as failure:
                return refusal_of(failure)
        whole = self._policy if policy is None else self._intersections.of(self._policy, policy)
        untrusted = context.ledger.untrusted_before(context.turn)
        admitted = admit(call, spec, whole, untrusted=untrusted, approved=True)
        if isinstance(admitted, Refusal):
            return admitted
        if self._tasks.is_disabled(admitted.spec.name):
            return admitted.refused("this tool has stopped responding and is switched off")
        planned = plan(admitted, caller=context.caller, key="")
        if isinstance(planned, Refusal) or self._credentials is None or not planned.connection:
            return planned
        try:
            # Do not ask a person to approve a call that would then fail because it has no account.
            async with asyncio.timeout(self._executor.limit_s(admitted.spec)):
                await self._credentials.prepare(planned.connection)
        except TimeoutError:
            reason = f'the connection "{planned.connection}" was not ready in time, so the call was not made'
            return planned.unconnected(ToolFailure(reason, code="timeout"))
        except ToolFailure as failure:
            return planned.unconnected(failure)
        return planned

    def check_arguments(self, tool: str, arguments: str) -> PlannedCall | Refusal:
        """Return what would run with other arguments, by the configured policy; ``arguments`` is JSON."""
        call = ToolCall("", tool, arguments, 0)
        admitted = admit(call, self._registry.current.get(tool), self._policy, untrusted="", approved=True)
        return admitted if isinstance(admitted, Refusal) else plan(admitted, caller="", key="")
