"""The one way to start a run: plan an ask, open its output, and serve it to its end."""

from collections.abc import Callable

import msgspec
import structlog
from msgspec import Struct

from proxy.hooks.chain import HookChain
from proxy.relay.ask import Ask
from proxy.relay.base import ClientStream
from proxy.relay.planning import Planner
from proxy.relay.routing.prices import Prices
from proxy.relay.run.job import Job
from proxy.relay.run.orchestrator import Orchestrator
from proxy.relay.run_memory import RunMemory


class StartedRun(Struct, frozen=True):
    """A run that is planned, and whose output is open."""

    job: Job
    output: ClientStream
    orchestrator: Orchestrator

    async def serve(self, **context: str) -> None:
        """Serve the run to its end; its log lines have its id and ``context``."""
        bound = structlog.contextvars.bind_contextvars(run_id=self.job.identity.run_id, **context)
        try:
            await self.orchestrator.run(self.job, self.output)
        finally:
            structlog.contextvars.reset_contextvars(**bound)


class Runs(Struct, frozen=True):
    """Starts runs, for any part of the server: requests over HTTP and WebSockets, background and resumable
    responses, and agents."""

    planner: Planner
    orchestrator: Orchestrator
    prices: Prices
    memory: RunMemory
    hooks: HookChain = msgspec.field(default_factory=HookChain)

    async def start(
        self, ask: Ask, output: Callable[[Job], ClientStream], job: Job | None = None
    ) -> StartedRun:
        """Plan a request as a run, unless its ``job`` is planned already, and open its ``output``.

        Nothing runs before :meth:`StartedRun.serve`. Raise :class:`~proxy.base.errors.RequestError` and
        :class:`~proxy.base.errors.StoreError` as planning does, and what ``output`` raises.
        """
        if job is None:
            job = await self.planner.job(self.planner.begin(ask))
        return StartedRun(job, output(job), self.orchestrator)
