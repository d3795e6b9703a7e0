"""A collector of traces that decodes what it gets, and one request of a proxy that sends it traces."""

import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from in_process import serving_app
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from raw_upstream import RawUpstream
from running_proxy import make_config, running

ASK: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "messages": [{"role": "user", "content": "canary-prompt"}],
}


class Collector:
    """A collector over HTTP that decodes what it gets."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.raw = b""
        self.url = ""
        self.status = 200

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        coding = request.headers.get("Content-Encoding", "")
        body = gzip.decompress(body) if coding == "gzip" else zlib.decompress(body) if coding else body
        self.raw += body
        if self.status == 200:
            self.requests.append(ExportTraceServiceRequest.FromString(body))
        return web.Response(status=self.status)

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    async with serving_app(app) as collector.url:
        yield collector


def attributes(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return found


async def trace(
    *scripts: Any, ask: Any = None, headers: Any = (), telemetry: Any = None, **config: Any
) -> tuple[Collector, Any]:
    """Send one request; return the collector, after the proxy has stopped, and the upstream.

    ``telemetry`` are further settings of that section.
    """
    async with collecting() as collector, RawUpstream(*scripts) as upstream:
        settings = make_config(
            upstream.url, telemetry={"otlp_endpoint": collector.url, **(telemetry or {})}, **config
        )
        async with running(settings) as proxy:
            await proxy.ask(ask or ASK, headers)
        return collector, upstream
