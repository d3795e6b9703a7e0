"""Create the instruments: hooks, metrics, traces and the measurement of the event loop.

A long callback holds up all streams of a process. Measuring each callback would cost too much. So a timer
fires several times a second, and its delay shows how long the loop was held when it was due. On a busy
machine, other processes can delay the timer, too. So the result is at most the CPU time that the loop's
thread has used since.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from proxy.relay.base import RunEvents
from proxy.rights.limit_rules import ConcurrentStreams
from proxy.store.base import Store
from proxy.telemetry.content import ContentReader
from proxy.telemetry.hooks import Hooks
from proxy.telemetry.log.output import count_dropped_lines
from proxy.telemetry.metrics import Metrics, Sources
from proxy.telemetry.refused_keys import RefusedKeys
from proxy.telemetry.request_log import RequestLog, RequestStore
from proxy.telemetry.tracing import Tracing, open_tracing
from proxy.wires.registry.table import EndpointTable

EVERY_S: Final = 0.1


class LoopHeld:
    """Calls ``report`` with the seconds for which the loop was held, each time its timer fires."""

    def __init__(self, report: Callable[[float], None], *, every_s: float = EVERY_S) -> None:
        self._report = report
        self._every_s = every_s
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._used = 0.0

    def start(self) -> None:
        """Start to measure the running loop."""
        self._wait(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + self._every_s
        self._used = time.thread_time()
        self._timer = loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        late = loop.time() - self._due
        self._report(max(0.0, min(late, time.thread_time() - self._used)))
        self._wait(loop)


class Instruments(Struct, frozen=True):
    """The hooks, and the observers that they call; ``models`` are the names that may be labels."""

    hooks: Hooks
    models: Collection[str]
    metrics: Metrics | None = None
    tracing: Tracing | None = None
    loop_held: LoopHeld | None = None
    request_log: RequestLog | None = None

    @property
    def snapshot(self) -> Callable[[], bytes] | None:
        """The function that returns the counts so far; ``None`` if nothing is counted."""
        return self.metrics.snapshot if self.metrics is not None else None

    def run_events(self, also: RunEvents | None) -> RunEvents:
        """Return a receiver of a run's events that passes them to the hooks and to another receiver."""
        own = self.hooks.run_event
        if also is None:
            return own

        def tell(kind: str, facts: Mapping[str, Any]) -> None:
            own(kind, facts)
            also(kind, facts)

        return tell

    def watch_streams(self, streams: ConcurrentStreams) -> ConcurrentStreams:
        """Add the number of open streams to the metrics; return the same object."""
        if self.metrics is not None:
            self.metrics.add_source(lambda: {"toolrelay_open_streams": streams.open})
        return streams

    def watch_store(self, store: Store) -> None:
        """Add the store's waiting and lost writes to the metrics."""
        if self.metrics is not None:
            self.metrics.add_source(
                lambda: {
                    "toolrelay_store_waiting_writes": store.waiting,
                    "toolrelay_store_lost_writes_total": store.lost,
                }
            )

    def add_source(self, source: Sources) -> None:
        """Add the values of ``source`` to the metrics."""
        if self.metrics is not None:
            self.metrics.add_source(source)

    def watch_loop(self) -> None:
        """Start to measure for how long the running loop is held, for the metrics."""
        if self.loop_held is not None:
            self.loop_held.start()

    async def close_requests(self) -> None:
        """Write the rows of requests that wait, before the record is closed."""
        if self.request_log is not None:
            await self.request_log.aclose()

    async def aclose(self) -> None:
        """Stop the measurement, and send the waiting spans; call this after :meth:`close_requests`."""
        if self.loop_held is not None:
            self.loop_held.stop()
        if self.tracing is not None:
            await self.tracing.aclose()


def known_models(served: Iterable[Iterable[str]], priced: Iterable[str]) -> frozenset[str]:
    """Return the models that a configuration spells out, in its upstreams and its prices.

    A pattern is not the name of a model; in a table that renames models, the names are those that clients
    use.
    """
    named = (name for models in (*served, priced) for name in models)
    return frozenset(name for name in named if not set("*?[") & set(name))


def open_instruments(
    *,
    count: bool,
    otlp_endpoint: str,
    upstreams: Mapping[str, str],
    models: Collection[str],
    tools: Container[str],
    keys: RefusedKeys,
    endpoints: EndpointTable,
    version: str,
    servers: Collection[str] = (),
    requests: RequestStore | None = None,
    content: ContentReader | None = None,
) -> Instruments:
    """Create metrics if ``count`` is true, and traces if ``otlp_endpoint`` is set.

    ``upstreams`` are URLs by name, ``servers`` names of MCP servers. ``requests`` takes the rows of requests
    without a run; ``None`` records none. ``content`` reads what models are sent and answer, for traces;
    ``None`` keeps nothing of it. Raises
    :class:`~proxy.base.errors.ConfigError` if traces are wanted and the extra is not installed.
    """
    tracing = None
    if otlp_endpoint:
        tracing = open_tracing(otlp_endpoint, upstreams, version=version, content=content)
    metrics = Metrics(models=models, tools=tools, version=version, servers=servers) if count else None
    if metrics is not None:
        # The log lines that were dropped because their reader did not keep up.
        metrics.add_source(lambda: {"toolrelay_log_dropped_lines_total": count_dropped_lines()})
    request_log = RequestLog(requests) if requests is not None else None
    if metrics is not None and request_log is not None:
        metrics.add_source(lambda: {"toolrelay_unrecorded_requests_total": request_log.unrecorded})
    # The last of them: it drops what the others need.
    observers = [observer for observer in (metrics, tracing, request_log) if observer is not None]
    hooks = Hooks(endpoints, observers, keys, content if tracing is not None else None)
    held = LoopHeld(metrics.loop_held) if metrics is not None else None
    return Instruments(hooks, models, metrics, tracing, held, request_log)
