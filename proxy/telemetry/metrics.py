"""Count metrics for Prometheus in this process, and export them as snapshots for other processes and as text.

Counting takes a dictionary and a list, some tenths of a microsecond; ``prometheus_client`` only writes the
text. The values of each label come from a closed list. What clients, models and upstreams send becomes
``other`` if the configuration does not contain it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_args

import orjson
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from proxy.base.caches import CacheSize, cache_sizes, declare
from proxy.base.errors import ToolErrorCode
from proxy.base.events import FinishReason
from proxy.records.rows import ToolInvocationRecord
from proxy.telemetry.hooks import Observer, Operation, RequestFacts
from proxy.telemetry.metric_families import FAMILIES, Family, Labels
from proxy.telemetry.snapshots import read_snapshot
from proxy.tools.mcp.definitions import PROVIDER as MCP_PROVIDER

Sources = Callable[[], Mapping[str, float | Mapping[Labels, float]]]
"""Called when the metrics are read: returns values by family name, or for a family with labels, by labels."""

OTHER = "other"

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STATUSES = {int(status): str(int(status)) for status in HTTPStatus} | {0: "none", 499: "499"}
_UPSTREAM_ERRORS = frozenset(
    {"cancelled", "upstream_broken", "upstream_error", "upstream_malformed"}
    | {"upstream_timeout", "upstream_unreachable"}
)
_FINISH_REASONS = frozenset({"", *(reason.value for reason in FinishReason)})
_LIMITS = frozenset({"requests", "tool_calls", "tokens", "cost", "concurrent_streams", "streams"})
_OUTCOMES = frozenset(get_args(ToolErrorCode))
_RUN_STATUSES = frozenset({"completed", "suspended", "failed", "cancelled"})
_MOST_TALLIES = 1024
_MOST_KEPT = 64
_TALLY_BYTES = 2000 + 3 * 32 * _MOST_KEPT


class _Counter:
    """The values of a counter or gauge by labels, each in a list of its own."""

    __slots__ = ("cells",)

    def __init__(self) -> None:
        self.cells: dict[Labels, list[float]] = {}

    def cell(self, labels: Labels) -> list[float]:
        """Return the list that holds the value for these labels."""
        cell = self.cells.get(labels)
        if cell is None:
            cell = self.cells[labels] = [0]
        return cell

    def add(self, labels: Labels, amount: float = 1) -> None:
        """Add ``amount`` to the value for these labels."""
        self.cell(labels)[0] += amount


class _Histogram:
    """The cells of a histogram by labels: a count for each bucket, one for larger values, and the sum."""

    __slots__ = ("_buckets", "cells")

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = buckets
        self.cells: dict[Labels, list[float]] = {}

    def cell(self, labels: Labels) -> "_Cell":
        """Return the buckets, and the list of their counts for these labels."""
        cell = self.cells.get(labels)
        if cell is None:
            cell = self.cells[labels] = [0] * (len(self._buckets) + 2)
        return self._buckets, cell

    def observe(self, labels: Labels, value: float) -> None:
        buckets, counts = self.cell(labels)
        counts[bisect_left(buckets, value)] += 1
        counts[-1] += value


_Cell = tuple[Sequence[float], list[float]]


class _Tally:
    """The cells that count all requests which end in the same way: their number and their times.

    Times are those to the end, to the first byte, and for upstreams to the head. They are collected until
    there are enough or the metrics are read: sorting several and counting them together takes a fraction of a
    search for each.
    """

    __slots__ = ("_counts", "_first", "_firsts", "_head", "_heads", "_whole", "_wholes")

    def __init__(
        self,
        counts: Sequence[list[float]],
        whole: Sequence[_Cell],
        first: Sequence[_Cell] = (),
        head: Sequence[_Cell] = (),
    ) -> None:
        self._counts = counts
        self._whole = whole
        self._first = first
        self._head = head
        self._wholes: list[float] = []
        self._firsts: list[float] = []
        self._heads: list[float] = []

    def add(self, whole_s: float, first_s: float | None, head_s: float | None = None) -> None:
        """Count one request; a time is ``None`` if the request did not get that far."""
        wholes = self._wholes
        wholes.append(whole_s)
        if first_s is not None:
            self._firsts.append(first_s)
        if head_s is not None:
            self._heads.append(head_s)
        if len(wholes) >= _MOST_KEPT:
            self.settle()

    def settle(self) -> None:
        """Move the collected times into the cells."""
        for count in self._counts:
            count[0] += len(self._wholes)
        _count_in(self._whole, self._wholes)
        _count_in(self._first, self._firsts)
        _count_in(self._head, self._heads)


def _count_in(cells: Sequence[_Cell], values: list[float]) -> None:
    """Count values in cells, and clear the list of values."""
    values.sort()
    for buckets, counts in cells:
        below = 0
        for index, bound in enumerate(buckets):
            within = bisect_right(values, bound)
            counts[index] += within - below
            below = within
        counts[len(buckets)] += len(values) - below
        counts[-1] += sum(values)
    values.clear()


class Metrics(Observer):
    """Counts the events that the hooks report. One per process.

    Args:
        models: names that may become labels: those that the configuration spells out.
        tools: the ids that may be labels; this set may change.
        version: of this package.
        servers: names of MCP servers, by which calls of their tools are counted, too.
        sources: sources that are read only when the metrics are read.
    """

    def __init__(
        self,
        *,
        models: Collection[str] = (),
        tools: Container[str] = (),
        version: str = "",
        servers: Collection[str] = (),
        sources: Sequence[Sources] = (),
    ) -> None:
        self._models = frozenset(models)
        self._tools = tools
        self._servers = frozenset(servers)
        self._sources = [*sources]
        self._open = 0
        self._tallies: dict[tuple[Any, ...], _Tally] = {}
        declare("figures", self._cache_size)
        self._counters = {f.name: _Counter() for f in FAMILIES if f.kind != "histogram"}
        self._histograms = {f.name: _Histogram(f.buckets) for f in FAMILIES if f.kind == "histogram"}
        self._counters["toolrelay_build_info"].add((version,))
        self._process = ProcessCollector(registry=None)
        # The metrics of every request, looked up once.
        self._requests = self._counters["toolrelay_requests_total"]
        self._durations = self._histograms["toolrelay_request_duration_seconds"]
        self._first_bytes = self._histograms["toolrelay_time_to_first_byte_seconds"]
        self._asked = self._counters["toolrelay_upstream_requests_total"]
        self._heads = self._histograms["toolrelay_upstream_time_to_head_seconds"]
        self._operations = self._histograms["gen_ai_client_operation_duration_seconds"]
        self._first_chunks = self._histograms["gen_ai_client_operation_time_to_first_chunk_seconds"]
        self._tokens = self._histograms["gen_ai_client_token_usage"]
        self._served = self._histograms["gen_ai_server_request_duration_seconds"]
        self._first_tokens = self._histograms["gen_ai_server_time_to_first_token_seconds"]

    def add_source(self, source: Sources) -> None:
        """Also read ``source`` whenever the metrics are read."""
        self._sources.append(source)

    # The methods of an observer.

    def request_began(self, facts: RequestFacts, headers: Mapping[str, str]) -> None:
        self._open += 1

    def request_ended(self, facts: RequestFacts) -> None:
        self._open -= 1
        method = facts.method if facts.method in _METHODS else OTHER
        model = facts.model if facts.model in self._models else OTHER
        first = facts.first_byte_s
        key = (method, facts.endpoint, facts.status, model, first is None)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._keep(key, self._of_request(facts, method, model))
        tally.add(facts.seconds, first)

    def _of_request(self, facts: RequestFacts, method: str, model: str) -> _Tally:
        endpoint = facts.endpoint
        whole = [self._durations.cell((endpoint,))]
        began = facts.first_byte_s is not None
        first = [self._first_bytes.cell((endpoint,))] if began else []
        if operation := facts.operation_asked:
            whole.append(self._served.cell((operation, model)))
            if began and facts.status < 400:
                first.append(self._first_tokens.cell((operation, model)))
        return _Tally([self._requests.cell((method, endpoint, _status(facts.status)))], whole, first)

    def _cache_size(self) -> CacheSize:
        return CacheSize(_TALLY_BYTES * len(self._tallies), _TALLY_BYTES * _MOST_TALLIES)

    def _keep(self, key: tuple[Any, ...], tally: _Tally) -> _Tally:
        """Cache a tally; their number is limited, because an upstream may send any status."""
        if len(self._tallies) >= _MOST_TALLIES:
            self._settle()
            self._tallies.clear()
        self._tallies[key] = tally
        return tally

    def _settle(self) -> None:
        for tally in self._tallies.values():
            tally.settle()

    def operation_ended(self, operation: Operation) -> None:
        head, first = operation.head_s, operation.first_chunk_s
        model = operation.model if operation.model in self._models else OTHER
        key = (
            operation.name, operation.upstream, model, operation.status, operation.error_type,
            operation.stream, head is None, first is None,
        )  # fmt: skip
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._keep(key, self._of_operation(operation, model))
        tally.add(operation.seconds, first, head)
        if operation.turn or operation.cost or operation.input_tokens is not None:
            self._count_use(operation, (operation.name, operation.upstream, model))

    def _of_operation(self, operation: Operation, model: str) -> _Tally:
        upstream = operation.upstream
        error = _error_kind(operation.error_type) if operation.error_type else ""
        counts = [self._asked.cell((upstream, _status(operation.status)))]
        if error:
            counts.append(self._counters["toolrelay_upstream_errors_total"].cell((upstream, error)))
        head = [self._heads.cell((upstream,))] if operation.head_s is not None else []
        if not operation.name:
            return _Tally(counts, (), (), head)
        labels = (operation.name, upstream, model)
        streams = operation.stream and not error and operation.first_chunk_s is not None
        return _Tally(
            counts,
            whole=[self._operations.cell((*labels, error))],
            first=[self._first_chunks.cell(labels)] if streams else [],
            head=head,
        )

    def _count_use(self, operation: Operation, labels: Labels) -> None:
        """Count the turn of a run, if it is one, and the tokens and cost of an operation."""
        if operation.turn:
            reason = operation.finish_reason if operation.finish_reason in _FINISH_REASONS else OTHER
            self._counters["toolrelay_turns_total"].add((operation.upstream, reason))
        if operation.input_tokens is not None:
            self._tokens.observe((*labels, "input"), operation.input_tokens)
        if operation.output_tokens is not None:
            self._tokens.observe((*labels, "output"), operation.output_tokens)
        if operation.cost:
            self._counters["toolrelay_cost_total"].add((labels[-1],), operation.cost / 1e9)

    def invocation_ended(
        self, record: ToolInvocationRecord, seconds: float, facts: RequestFacts | None
    ) -> None:
        tool = record.tool if record.tool in self._tools else OTHER
        outcome = "success" if record.status == "success" else record.error_code or OTHER
        if outcome not in _OUTCOMES and outcome != "success":
            outcome = OTHER  # A tool may raise a code of its own.
        self._counters["toolrelay_tool_calls_total"].add((tool, outcome))
        if record.cost:
            self._counters["toolrelay_tool_cost_total"].add((tool,), record.cost / 1e9)
        if record.provider == MCP_PROVIDER:
            server = record.tool.split("__")[1]
            if server in self._servers:
                self._counters["toolrelay_mcp_calls_total"].add((server, outcome))
        if record.error_code == "rate_limited":
            self.limited("tool_calls")
        self._histograms["gen_ai_execute_tool_duration_seconds"].observe((tool,), seconds)

    def approval(self, tool: str, outcome: str) -> None:
        """Count a request for an approval, or its outcome."""
        tool = tool if tool in self._tools else OTHER
        self._counters["toolrelay_approvals_total"].add((tool, outcome))

    def approval_waited(self, seconds: float) -> None:
        """Count the seconds that a call waited for a decision."""
        self._histograms["toolrelay_approval_wait_seconds"].observe((), seconds)

    def run_ended(self, status: str) -> None:
        label = status if status in _RUN_STATUSES else OTHER
        self._counters["toolrelay_runs_total"].add((label,))

    def agent_ended(self, agent: str, status: str) -> None:
        label = status if status in _RUN_STATUSES else OTHER
        self._counters["toolrelay_agent_runs_total"].add((agent, label))

    def remembered(self, outcome: str, count: int) -> None:
        """Count the outcome of the search for the hidden turns of ``count`` earlier answers or calls."""
        self._counters["toolrelay_memory_total"].add((outcome,), count)

    def limited(self, limit: str) -> None:
        self._counters["toolrelay_rate_limit_hits_total"].add((limit if limit in _LIMITS else OTHER,))

    def late(self, what: str) -> None:
        """Count a record that was not committed in time for a client's next request."""
        self._counters["toolrelay_record_late_total"].add((what,))

    def orphaned(self, outcome: str) -> None:
        """Count the outcome of a background response whose process had died or was stopped."""
        self._counters["toolrelay_background_orphans_total"].add((outcome,))

    def hooked(self, point: str, name: str, outcome: str) -> None:
        """Count what a hook of the operator did; the operator chose its name."""
        self._counters["toolrelay_hooks_total"].add((point, name, outcome))

    def loop_held(self, seconds: float) -> None:
        """Count the seconds for which the event loop was held when its timer was due."""
        self._histograms["toolrelay_loop_held_seconds"].observe((), seconds)

    # The export.

    def snapshot(self) -> bytes:
        """Return everything counted so far as JSON, for :func:`merge` and :func:`render`."""
        read: dict[str, float | Mapping[Labels, float]]
        read = {"toolrelay_open_requests": float(self._open), **_process_figures(self._process)}
        for source in self._sources:
            read.update(source())
        self._settle()
        series: dict[str, list[tuple[Labels, Any]]] = {}
        for name, counter in self._counters.items():
            series[name] = [(labels, value) for labels, (value,) in counter.cells.items()]
        for name, histogram in self._histograms.items():
            series[name] = list(histogram.cells.items())
        for name, value in read.items():
            series[name] = list(value.items()) if isinstance(value, Mapping) else [((), value)]
        caches = cache_sizes().items()
        series["toolrelay_cache_bytes"] = [((name,), size.held) for name, size in caches]
        series["toolrelay_cache_limit_bytes"] = [((name,), size.limit) for name, size in caches]
        return orjson.dumps({name: values for name, values in series.items() if values})


def render(snapshot: bytes, accept: str = "") -> tuple[bytes, str]:
    """Return a snapshot as text for a scraper that sent ``accept``, and its content type.

    Raises ``ValueError`` for bytes that are not a snapshot.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Exposition(read_snapshot(snapshot))), content_type


class _Exposition:
    """A snapshot in the form that ``prometheus_client`` reads."""

    def __init__(self, values: Mapping[str, list[tuple[list[str], Any]]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """Yield the families in the order of their declaration."""
        for family in FAMILIES:
            entries = self._values.get(family.name)
            if not entries:
                continue
            if family.kind == "counter":
                counter = CounterMetricFamily(family.name, family.help, labels=family.labels)
                for labels, value in entries:
                    counter.add_metric(labels, value)
                yield counter
            elif family.kind == "gauge":
                gauge = GaugeMetricFamily(family.name, family.help, labels=family.labels)
                for labels, value in entries:
                    gauge.add_metric(labels, value)
                yield gauge
            else:
                yield _histogram_family(family, entries)


def _histogram_family(family: Family, entries: list[tuple[list[str], Any]]) -> HistogramMetricFamily:
    histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = [*(repr(bound) for bound in family.buckets), "+Inf"]
    for labels, (*counts, total) in entries:
        below, buckets = 0, []
        for bound, count in zip(bounds, counts, strict=True):
            below += count
            buckets.append((bound, below))
        histogram.add_metric(labels, buckets, total)
    return histogram


def _process_figures(collector: ProcessCollector) -> dict[str, float]:
    """Return the system's metrics of this process; empty if there is no /proc."""
    known = {family.name for family in FAMILIES}
    return {
        sample.name: sample.value
        for metric in collector.collect()
        for sample in metric.samples
        if sample.name in known
    }


def _status(status: int) -> str:
    """Return a status as a label: the number if it is a known status, else its class; ``none`` for 0."""
    return _STATUSES.get(status) or f"{min(status // 100, 9)}xx"


def _error_kind(kind: str) -> str:
    if kind.isdigit():
        return _status(int(kind))
    return kind if kind in _UPSTREAM_ERRORS else OTHER
