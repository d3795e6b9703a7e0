"""Send traces over OTLP, by the GenAI semantic conventions of OpenTelemetry; needs the extra ``otel``.

The names are those of the repository ``open-telemetry/semantic-conventions-genai``
(``model/gen-ai/spans.yaml``), which took over from ``semantic-conventions`` after its version 1.41.

A request is a server span. Below it, each request to an upstream is a client span (``chat MODEL``), each
tool call is a span (``execute_tool NAME``), and so is each run of an agent (``invoke_agent NAME``), with the
agent's own requests and calls below it. No span holds a key, and none holds content, arguments or results
unless the operator asks for them (:mod:`proxy.telemetry.content`). Spans go into a bounded queue, and a
separate thread sends them. If the collector is slow or away, spans are lost, but requests are not delayed.
"""

import asyncio
import contextlib
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson
import structlog

from proxy.base.errors import ConfigError, how_to_install
from proxy.records.rows import ToolInvocationRecord
from proxy.telemetry.content import ContentReader, Exchange
from proxy.telemetry.hooks import OWN_PATHS, Observer, Operation, RequestFacts
from proxy.wires.providers import provider_at

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Span

_SETTING = "telemetry.otlp_endpoint"
_TRACES_PATH = "/v1/traces"
_EXPORT_TIMEOUT_S = 5.0
_CLOSE_S = 3.0
"""Seconds to send waiting spans when the process stops; an absent collector must not delay the stop."""
_GIVE_UP_S = 1.0
"""Seconds that the sending thread may then take to end."""
_MAX_ATTRIBUTE = 256
_MOST_WAITING = 32 << 20
"""The most bytes of content that wait to be read."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")

_Attributes = dict[str, str | int | float | list[str]]

_PROVIDERS = {
    "anthropic": "anthropic",
    "azure": "azure.ai.openai",
    "deepseek": "deepseek",
    "google": "gcp.gemini",
    "groq": "groq",
    "mistral": "mistral_ai",
    "openai": "openai",
    "xai": "x_ai",
}
"""The names of providers in the conventions (``gen_ai.provider.name``), by those of this proxy."""


def traces_url(endpoint: str) -> str:
    """Return the URL for spans from a configured address: a collector's base URL, or the whole URL.

    >>> traces_url("http://127.0.0.1:4318")
    'http://127.0.0.1:4318/v1/traces'
    """
    base = endpoint.rstrip("/")
    return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH


def open_tracing(
    endpoint: str, upstreams: Mapping[str, str], *, version: str, content: ContentReader | None = None
) -> "Tracing":
    """Start to send spans to the collector at ``endpoint``; ``upstreams`` are base URLs by name.

    ``content`` reads what models are sent and answer; with ``None`` spans hold no content.

    Raises :class:`~proxy.base.errors.ConfigError` if the extra is not installed.
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
    return Tracing(exporter, upstreams, version=version, content=content)


def _is_set(*names: str) -> bool:
    """Return whether the operator has set one of the SDK's variables; it then overrides the proxy's
    default."""
    return any(os.environ.get(name, "").strip() for name in names)


class _Reporting:
    """An exporter that logs once when its collector accepts no spans, and once when it accepts them again."""

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
        # The provider closes the exporter, too, and the exporter logs a warning about a second time.
        if not self._closed:
            self._closed = True
            self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _ContentThread:
    """Reads exchanges in a thread of its own, and then ends their spans with the time of their end."""

    def __init__(self, reader: ContentReader) -> None:
        self._reader = reader
        self._later = ThreadPoolExecutor(1, thread_name_prefix="trace-content")
        self._lock = threading.Lock()
        self._waiting = 0
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tracing")
        self._told = False

    def end(self, span: "Span", exchange: Exchange) -> bool:
        """End a span with its content, in a moment; return ``False`` if too much waits already."""
        size = exchange.size
        with self._lock:
            if self._waiting + size > _MOST_WAITING:
                if not self._told:
                    self._told = True
                    self._log.warning(
                        "trace_content_dropped", note="spans have no content while the proxy is busy"
                    )
                return False
            self._waiting += size
        try:
            self._later.submit(self._end, span, exchange, time.time_ns(), size)
        except RuntimeError:  # The process stops.
            return False
        return True

    def close(self) -> None:
        """Read what waits, and end the thread."""
        self._later.shutdown(wait=True)

    def _end(self, span: "Span", exchange: Exchange, ended: int, size: int) -> None:
        try:
            span.set_attributes(self._reader.attributes(exchange))
        except Exception:  # noqa: BLE001
            # The boundary of this thread: a span without content is better than none.
            self._log.exception("trace_content_failed")
        finally:
            span.end(ended)
            with self._lock:
                self._waiting -= size


class Tracing(Observer):
    """Makes spans from what the hooks report.

    A client's well-formed ``traceparent`` is continued. But its flag decides nothing: every request gets a
    span, so that no client can hide one or choose what is kept. The operator can set another sampler, and
    everything else, by the variables of the SDK (``OTEL_…``). Health checks and ``/metrics`` get no span:
    they are frequent and carry no information.
    """

    def __init__(
        self,
        exporter: "SpanExporter | _Reporting",
        upstreams: Mapping[str, str],
        *,
        version: str,
        content: ContentReader | None = None,
    ) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._api = trace
        self._propagator = TraceContextTextMapPropagator()
        # Values given here override the SDK's variables, so they are given only if those are not set.
        given = OTELResourceDetector().detect().attributes
        own = {"service.name": "toolrelay", "service.version": version}
        bounded = _is_set("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
        longest = _MAX_ATTRIBUTE if content is None else content.most
        self._provider = TracerProvider(
            sampler=None if _is_set("OTEL_TRACES_SAMPLER") else ALWAYS_ON,
            resource=Resource.create({name: value for name, value in own.items() if name not in given}),
            span_limits=SpanLimits(max_attribute_length=None if bounded else longest),
            shutdown_on_exit=False,
        )
        self._exporter = exporter
        processor = BatchSpanProcessor(exporter)  # type: ignore[arg-type]
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("toolrelay", version)
        self._upstreams = {name: _server_attributes(name, url) for name, url in upstreams.items()}
        self._content = _ContentThread(content) if content is not None else None

    async def aclose(self) -> None:
        """Send the waiting spans, for a short time; then drop the rest and end the threads."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def close() -> None:
            if self._content is not None:
                self._content.close()
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        # A daemon thread, because a collector that does not answer must not keep the process alive.
        threading.Thread(target=close, name="trace-export-close", daemon=True).start()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await done.wait()
        except TimeoutError:
            # End the exporter's pause between two attempts; the provider would wait for its end.
            self._exporter.shutdown()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GIVE_UP_S):
                    await done.wait()

    # The methods of an observer.

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
        if facts.prompt_hash:
            attributes["toolrelay.prompt_hash"] = facts.prompt_hash
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
            context=self._child_context(facts),
            kind=self._api.SpanKind.CLIENT,
            start_time=operation.started_at,
        )
        context = span.get_span_context()
        if context.is_valid:  # Invalid if the operator has switched the SDK off.
            flags = context.trace_flags & context.trace_flags.SAMPLED
            operation.context = f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"

    def operation_ended(self, operation: Operation) -> None:
        span: Span = operation.span
        attributes: _Attributes = {"gen_ai.provider.name": operation.upstream}
        attributes |= self._upstreams.get(operation.upstream, {})
        if operation.name:
            attributes["gen_ai.operation.name"] = operation.name
        for key, value in (
            ("gen_ai.request.model", operation.model),
            ("gen_ai.response.id", operation.response_id),
            ("gen_ai.response.model", operation.response_model),
            ("gen_ai.usage.input_tokens", operation.input_tokens),
            ("gen_ai.usage.output_tokens", operation.output_tokens),
            ("gen_ai.usage.cache_read.input_tokens", operation.cached_tokens or None),
            ("gen_ai.usage.cache_creation.input_tokens", operation.cache_write_tokens or None),
            ("gen_ai.usage.reasoning.output_tokens", operation.reasoning_tokens or None),
            ("gen_ai.conversation.id", operation.conversation[:_MAX_ATTRIBUTE]),
            ("gen_ai.request.stream", True if operation.stream and operation.name else None),
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
        exchange = operation.exchange
        if exchange is None or self._content is None or not self._content.end(span, exchange):
            span.end()

    def invocation_ended(
        self, record: ToolInvocationRecord, seconds: float, facts: RequestFacts | None
    ) -> None:
        ended = time.time_ns()
        span = self._tracer.start_span(
            f"execute_tool {record.tool}",
            context=self._child_context(facts),
            start_time=ended - round(seconds * 1e9),
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": record.tool,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": record.call_id[:_MAX_ATTRIBUTE],
                "toolrelay.run_id": record.run_id,
            },
        )
        if self._content is not None and not (facts is not None and facts.unstored):
            for name, value in (("arguments", record.arguments_redacted), ("result", record.result_redacted)):
                if value is not None:
                    span.set_attribute(f"gen_ai.tool.call.{name}", orjson.dumps(value).decode())
        if record.error_code:
            span.set_attribute("error.type", record.error_code)
            span.set_status(self._api.StatusCode.ERROR)
        span.end(ended)

    def agent_began(self, facts: RequestFacts, agent: str) -> None:
        facts.span = self._tracer.start_span(
            f"invoke_agent {agent}",
            context=self._child_context(facts),
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": agent,
                "gen_ai.request.model": facts.model,
                "toolrelay.run_id": facts.run_id,
            },
        )

    def agent_left(self, facts: RequestFacts) -> None:
        if facts.conversation:
            facts.span.set_attribute("gen_ai.conversation.id", facts.conversation)
        if facts.error_code:
            facts.span.set_attribute("error.type", facts.error_code)
            facts.span.set_status(self._api.StatusCode.ERROR)
        facts.span.end()

    def _client_context(self, headers: Mapping[str, str]) -> "Context":
        """Return the trace of the client's ``traceparent``, or a new one. Its ``tracestate`` is ignored."""
        from opentelemetry.context import Context

        given = headers.get("traceparent", "")
        if not _TRACEPARENT.match(given):
            return Context()
        return self._propagator.extract({"traceparent": given}, Context())

    def _child_context(self, facts: RequestFacts | None) -> "Context":
        from opentelemetry.context import Context

        if facts is None or facts.span is None:
            return Context()
        return self._api.set_span_in_context(facts.span, Context())


def _server_attributes(name: str, base_url: str) -> dict[str, Any]:
    """Return what the spans of an upstream say about its place, and its provider if that is known."""
    known = _PROVIDERS.get(provider_at(base_url))
    provider = {"gen_ai.provider.name": known} if known else {}
    return {"toolrelay.upstream": name, **provider, **_place(base_url)}


def _place(base_url: str) -> dict[str, Any]:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return {}
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname, "server.port": port}
