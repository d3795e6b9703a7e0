"""Traces over OTLP, by the GenAI semantic conventions of OpenTelemetry; behind the extra ``otel``.

A request is a server span; each request to an upstream a client span below it (``chat MODEL``), each
tool call one more (``execute_tool NAME``).  No span holds content, arguments, results or a key.  Spans are
put into a bounded queue and sent by a thread of their own: a collector that is slow or away costs
spans, never a request its time.
"""

import asyncio
import contextlib
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from proxy.errors import ConfigError, how_to_install
from proxy.records import ToolInvocationRecord
from proxy.server.telemetry.hooks import OWN_PATHS, Observer, Operation, RequestFacts

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Span

__all__ = ["Tracing", "open_tracing", "traces_url"]

_SETTING = "telemetry.otlp_endpoint"
_TRACES_PATH = "/v1/traces"
_EXPORT_TIMEOUT_S = 5.0
_CLOSE_S = 3.0
"""Seconds that spans which wait at the end get; a collector that is away must not hold up the stop."""
_GIVE_UP_S = 1.0
"""Seconds that the sending thread then gets to end."""
_MAX_ATTRIBUTE = 256
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")

_Attributes = dict[str, str | int | float | list[str]]


def traces_url(endpoint: str) -> str:
    """Where spans go for a configured address: a collector's base, or the whole address.

    >>> traces_url("http://127.0.0.1:4318")
    'http://127.0.0.1:4318/v1/traces'
    """
    base = endpoint.rstrip("/")
    return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH


def open_tracing(endpoint: str, upstreams: Mapping[str, str], *, version: str) -> "Tracing":
    """Send spans to the collector at ``endpoint``; ``upstreams`` are base URLs by name.

    Raises :class:`~proxy.errors.ConfigError` where the extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise ConfigError(
            _SETTING,
            "traces need the OpenTelemetry SDK, which is not installed",
            f'{how_to_install("otel")}. Or set {_SETTING} = ""',
        ) from None
    url = traces_url(endpoint)
    timeout = (
        None
        if _is_set("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
        else (_EXPORT_TIMEOUT_S)
    )
    exporter = _Reporting(OTLPSpanExporter(url, timeout=timeout), urlsplit(url).netloc)
    return Tracing(exporter, upstreams, version=version)


def _is_set(*names: str) -> bool:
    """Whether the operator has set one of the variables that the SDK reads: then ours is not used."""
    return any(os.environ.get(name, "").strip() for name in names)


class _Reporting:
    """An exporter that says once that its collector does not take spans, and once that it does again."""

    def __init__(self, inner: "SpanExporter", collector: str) -> None:
        self._inner = inner
        self._closed = False
        self._collector = collector
        self._failing = False
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tracing")

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        result = self._inner.export(spans)
        failed = result.name != "SUCCESS"
        if failed and not self._failing:
            self._log.warning(
                "trace_export_failed",
                collector=self._collector,
                note="spans are lost until the collector answers",
            )
        elif self._failing and not failed:
            self._log.info("trace_export_recovered", collector=self._collector)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        # The exporter complains of a second time, and the provider closes it too.
        if not self._closed:
            self._closed = True
            self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class Tracing(Observer):
    """Draws spans.

    A client's ``traceparent`` is continued where it is well-formed.  It decides nothing: every request
    is drawn, whatever the client's flag says, so that nobody can hide one or choose what is kept.  The
    operator may choose another sampler, and everything else, by the variables of the SDK (``OTEL_…``).
    Health checks and the figures are not drawn: they come all day and tell nothing.
    """

    def __init__(self, exporter: "SpanExporter | _Reporting", upstreams: Mapping[str, str], *, version: str):
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._propagator = TraceContextTextMapPropagator()
        # What is given here wins over the SDK's variables, so it is given only where they are silent.
        given = OTELResourceDetector().detect().attributes
        own = {"service.name": "toolrelay", "service.version": version}
        bounded = _is_set("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
        self._provider = TracerProvider(
            sampler=None if _is_set("OTEL_TRACES_SAMPLER") else ALWAYS_ON,
            resource=Resource.create({name: value for name, value in own.items() if name not in given}),
            span_limits=SpanLimits(max_attribute_length=None if bounded else _MAX_ATTRIBUTE),
            shutdown_on_exit=False,
        )
        self._exporter = exporter
        processor = BatchSpanProcessor(exporter)  # type: ignore[arg-type]
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("toolrelay", version)
        self._upstreams = {name: _server_attributes(url) for name, url in upstreams.items()}

    async def aclose(self) -> None:
        """Send what waits, for a short time; what is not sent by then is lost, and the threads end."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def close() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        # A daemon, since a collector that does not answer must not keep the process alive.
        threading.Thread(target=close, name="trace-export-close", daemon=True).start()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await done.wait()
        except TimeoutError:
            # Ends the exporter's pause between two attempts, which the provider would wait out.
            self._exporter.shutdown()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GIVE_UP_S):
                    await done.wait()

    # What an observer is told.

    def request_began(self, facts: RequestFacts, headers: Mapping[str, str]) -> None:
        if facts.path in OWN_PATHS:
            return
        facts.span = self._tracer.start_span(
            facts.method, context=self._client_context(headers), kind=self._api.SpanKind.SERVER
        )

    def request_ended(self, facts: RequestFacts) -> None:
        span: Span | None = facts.span
        if span is None:
            return
        span.update_name(f"{facts.method} {facts.endpoint}")
        attributes: _Attributes = {
            "http.request.method": facts.method,
            "http.route": facts.endpoint,
            "http.response.status_code": facts.status,
            "toolrelay.request_id": facts.request_id,
        }
        if facts.run_id:
            attributes["toolrelay.run_id"] = facts.run_id
        if facts.status >= 500 or facts.status == 499:
            attributes["error.type"] = str(facts.status)
        span.set_attributes(attributes)
        if facts.status >= 500:
            span.set_status(self._api.StatusCode.ERROR)
        span.end()

    def operation_began(self, operation: Operation, facts: RequestFacts | None) -> None:
        name = f"{operation.name} {operation.model}".rstrip() if operation.name else "upstream request"
        span = operation.span = self._tracer.start_span(
            name,
            context=self._below(facts),
            kind=self._api.SpanKind.CLIENT,
            start_time=operation.started_at,
        )
        context = span.get_span_context()
        if context.is_valid:  # It is not where the operator has switched the SDK off.
            flags = context.trace_flags & context.trace_flags.SAMPLED
            operation.context = f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"

    def operation_ended(self, operation: Operation) -> None:
        span: Span = operation.span
        attributes: _Attributes = dict(self._upstreams.get(operation.upstream, {}))
        attributes["gen_ai.provider.name"] = operation.upstream
        if operation.name:
            attributes["gen_ai.operation.name"] = operation.name
        for key, value in (
            ("gen_ai.request.model", operation.model),
            ("gen_ai.response.id", operation.response_id),
            ("gen_ai.response.model", operation.response_model),
            ("gen_ai.usage.input_tokens", operation.input_tokens),
            ("gen_ai.usage.output_tokens", operation.output_tokens),
            ("gen_ai.response.time_to_first_chunk", operation.first_chunk_s if operation.stream else None),
            ("http.response.status_code", operation.status or None),
            ("error.type", operation.error_type),
        ):
            if value is not None and value != "":
                attributes[key] = value
        if operation.finish_reason:
            attributes["gen_ai.response.finish_reasons"] = [operation.finish_reason]
        span.set_attributes(attributes)
        if operation.error_type:
            span.set_status(self._api.StatusCode.ERROR)
        span.end()

    def invocation_ended(
        self, record: ToolInvocationRecord, seconds: float, facts: RequestFacts | None
    ) -> None:
        ended = time.time_ns()
        span = self._tracer.start_span(
            f"execute_tool {record.tool}",
            context=self._below(facts),
            start_time=ended - round(seconds * 1e9),
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": record.tool,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": record.call_id,
                "toolrelay.run_id": record.run_id,
            },
        )
        if record.error_code:
            span.set_attribute("error.type", record.error_code)
            span.set_status(self._api.StatusCode.ERROR)
        span.end(ended)

    def _client_context(self, headers: Mapping[str, str]) -> "Context":
        """The trace that a client says it is in, or a new one.  Its ``tracestate`` is not taken over."""
        from opentelemetry.context import Context

        given = headers.get("traceparent", "")
        if not _TRACEPARENT.match(given):
            return Context()
        return self._propagator.extract({"traceparent": given}, Context())

    def _below(self, facts: RequestFacts | None) -> "Context":
        from opentelemetry.context import Context

        if facts is None or facts.span is None:
            return Context()
        return self._api.set_span_in_context(facts.span, Context())


def _server_attributes(base_url: str) -> dict[str, Any]:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return {}
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname, "server.port": port}
