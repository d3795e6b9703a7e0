"""Traces: what a collector gets, which trace a request belongs to, and what a dead collector costs."""

import asyncio
import re
import sys
import threading
from typing import Any

import pytest
import structlog
from chat_script import call, content, finish, reply, role, stream, usage
from closed_port import closed_port
from looping import ECHO
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from raw_upstream import RESET, RawUpstream, chunk, head, whole
from running_proxy import make_config, running
from span_collector import ASK, attributes, collecting, trace
from waiting import PATIENCE_S

from proxy.base.errors import ConfigError
from proxy.telemetry.tracing import _server_attributes, open_tracing, traces_url

TIME = "core__get_current_time"
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


async def test_a_run_is_one_trace() -> None:
    """A request is a server span; its turns and tool calls are spans below it, with the token usage."""
    first = stream(role(), call("c1", TIME, '{"timezone":"UTC"}'), finish("tool_calls"), usage(10, 5))
    second = stream(role(), content("canary-answer"), finish(), usage(20, 7))
    collector, upstream = await trace(first, second)
    (server,) = collector.named("POST /v1/chat/completions")
    assert server.kind == Span.SPAN_KIND_SERVER
    assert not server.parent_span_id
    about = attributes(server)
    assert about["http.response.status_code"] == 200
    assert about["toolrelay.run_id"].startswith("run_")
    assert len(about["toolrelay.prompt_hash"]) == 32
    turns = collector.named("chat m")
    (tool,) = collector.named(f"execute_tool {TIME}")
    assert {span.trace_id for span in collector.spans} == {server.trace_id}
    assert {span.parent_span_id for span in [*turns, tool]} == {server.span_id}
    one, two = (attributes(turn) for turn in turns)
    assert one == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "default",
        "toolrelay.upstream": "default",
        "gen_ai.request.stream": True,
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.response.time_to_first_chunk": one["gen_ai.response.time_to_first_chunk"],
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": upstream.port,
    }
    assert two["gen_ai.response.finish_reasons"] == ["stop"]
    assert all(turn.kind == Span.SPAN_KIND_CLIENT for turn in turns)
    called = attributes(tool)
    assert called["gen_ai.operation.name"] == "execute_tool"
    assert called["gen_ai.tool.name"] == TIME
    assert called["gen_ai.tool.call.id"] == "c1"
    assert "error.type" not in called
    assert server.start_time_unix_nano <= tool.start_time_unix_nano <= tool.end_time_unix_nano
    assert tool.end_time_unix_nano <= server.end_time_unix_nano


async def test_no_content_is_in_a_span() -> None:
    """The collector gets no prompt, answer or key, and no argument or result of a call, failed or not."""
    calls = [(TIME, '{"timezone":"Canary/Zone"}'), (ECHO, '{"text":"canary-argument"}')]
    turns = [
        stream(role(), call(f"c{number}", *one), finish("tool_calls")) for number, one in enumerate(calls)
    ]
    collector, upstream = await trace(
        *turns,
        stream(role(), content("canary-answer"), finish()),
        headers={"Authorization": "Bearer canary-key"},
        modules=("probe_tools",),
    )
    # The model got the arguments and the result of the call that succeeded.
    for words in (b"canary-argument", b"hidden-output"):
        assert words in upstream.requests[2].body
    assert len(collector.spans) == 6
    for words in (b"canary", b"hidden-output"):
        assert words not in collector.raw.lower()
    (failed,) = collector.named(f"execute_tool {TIME}")
    assert (attributes(failed)["error.type"], failed.status.code) == ("invalid_arguments", 2)
    (succeeded,) = collector.named(f"execute_tool {ECHO}")
    assert set(attributes(succeeded)) == {
        "gen_ai.operation.name",
        "gen_ai.tool.name",
        "gen_ai.tool.call.id",
        "gen_ai.tool.type",
        "toolrelay.run_id",
    }
    assert succeeded.status.code != 2


@pytest.mark.parametrize(
    ("method", "path", "body", "route", "client"),
    [
        ("POST", "/v1/chat/completions", {**ASK, "stream": False}, "/v1/chat/completions", "chat m"),
        ("POST", "/v1/embeddings", {"model": "m", "input": "x"}, "/v1/embeddings", "embeddings m"),
        ("POST", "/v1/moderations", {"input": "x"}, "/v1/moderations", "upstream request"),
        ("POST", "/v1/files", {}, "/v1/files", "upstream request"),
        ("GET", "/v1/files/file-canary/content", None, "/v1/files/*", "upstream request"),
        ("GET", "/v1/models", None, "/v1/models", "upstream request"),
    ],
)
async def test_what_passes_through_is_drawn_too(
    method: str, path: str, body: Any, route: str, client: str
) -> None:
    """A request without tools is a server span with a client span below it, on each path, without its ids."""
    async with collecting() as collector, RawUpstream(whole(b'{"data":[]}')) as upstream:
        settings = make_config(upstream.url, allow=(), telemetry={"otlp_endpoint": collector.url})
        async with running(settings) as proxy:
            assert (await proxy.ask(body, method=method, path=path)).status == 200
    (server,) = collector.named(f"{method} {route}")
    (asked,) = collector.named(client)
    assert len(collector.spans) == 2
    assert (server.kind, asked.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
    assert (asked.trace_id, asked.parent_span_id) == (server.trace_id, server.span_id)
    about = attributes(server)
    assert (about["http.request.method"], about["http.route"]) == (method, route)
    assert [attributes(span)["http.response.status_code"] for span in (server, asked)] == [200, 200]
    assert attributes(asked)["server.port"] == upstream.port
    assert b"canary" not in collector.raw


async def test_a_stream_that_breaks_says_so() -> None:
    """The client span of a broken stream has the type of the error."""
    opening = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    for allow in ((), ("core__*",)):
        collector, _ = await trace([opening, chunk(role()), RESET], allow=allow)
        (asked,) = collector.named("chat m")
        assert attributes(asked)["error.type"] == "upstream_broken"
        assert asked.status.code == 2


async def test_a_turn_asked_again_is_two_spans() -> None:
    """Each request to an upstream has a span of its own, also one that is refused and repeated."""
    first = stream(role(), call("c1", TIME, '{"timezone":"UTC"}'), finish("tool_calls"))
    refusal = whole(b'{"error":{"message":"slow down"}}', "Retry-After: 0", status="429 Too Many Requests")
    collector, _ = await trace(first, refusal, stream(role(), content("x"), finish()))
    assert [attributes(span).get("error.type") for span in collector.named("chat m")] == [None, "429", None]


@pytest.mark.parametrize("flags", ["00", "01"])
async def test_a_client_s_trace_is_continued_whatever_its_flag(flags: str) -> None:
    """A valid ``traceparent`` gives the trace, and the request has spans whatever the sampled flag says."""
    given = GIVEN[:-2] + flags
    collector, upstream = await trace(
        reply("hi"), ask={**ASK, "stream": False}, headers={"traceparent": given, "tracestate": "a=b"}
    )
    (server,) = collector.named("POST /v1/chat/completions")
    assert server.trace_id.hex() == given.split("-")[1]
    assert server.parent_span_id.hex() == given.split("-")[2]
    (asked,) = collector.named("chat m")
    sent = [value for name, value in upstream.requests[0].headers if name.lower() == "traceparent"]
    assert sent == [f"00-{asked.trace_id.hex()}-{asked.span_id.hex()}-01"]


@pytest.mark.parametrize(
    "given",
    [
        "",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-" + "x" * 4000,
        "nonsense",
    ],
)
async def test_a_malformed_trace_is_ignored(given: str) -> None:
    """With a malformed ``traceparent`` a new trace begins, and the upstream gets only the new one."""
    collector, upstream = await trace(reply("hi"), headers={"traceparent": given}, allow=())
    (server,) = collector.named("POST /v1/chat/completions")
    assert not server.parent_span_id
    sent = [value for name, value in upstream.requests[0].headers if name.lower() == "traceparent"]
    assert len(sent) == 1
    assert re.fullmatch(f"00-{server.trace_id.hex()}-[0-9a-f]{{16}}-01", sent[0])


async def test_without_traces_a_client_s_header_passes() -> None:
    """A proxy without tracing passes the client's ``traceparent`` to the upstream unchanged."""
    async with RawUpstream(reply("hi")) as upstream, running(make_config(upstream.url)) as proxy:
        await proxy.ask({**ASK, "stream": False}, {"traceparent": "whatever"})
        assert upstream.requests[0].header("traceparent") == "whatever"


@pytest.mark.parametrize("patience_s", [0.05, 3.0])
async def test_a_dead_collector_costs_no_answer(patience_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a collector requests are served, and the stop does not wait for long and leaves no thread."""
    monkeypatch.setattr("proxy.telemetry.tracing._CLOSE_S", patience_s)
    monkeypatch.setattr("proxy.telemetry.tracing._EXPORT_TIMEOUT_S", 3600.0)
    before = set(threading.enumerate())
    with closed_port() as port:
        async with RawUpstream(reply("hi")) as upstream:
            config = make_config(upstream.url, telemetry={"otlp_endpoint": f"http://127.0.0.1:{port}"})
            async with asyncio.timeout(PATIENCE_S), running(config) as proxy:
                for _ in range(3):
                    assert (await proxy.ask({**ASK, "stream": False})).status == 200
                sending = [each for each in set(threading.enumerate()) - before if "Span" in each.name]
    assert len(sending) == 1
    # The exporter alone would retry for half a minute.
    await asyncio.to_thread(sending[0].join, 15.0)
    assert not sending[0].is_alive()


class _Exporter:
    """An exporter with scripted results."""

    def __init__(self, *results: str) -> None:
        self.results = list(results)

    def export(self, spans: Any) -> Any:
        return type("Result", (), {"name": self.results.pop(0)})

    def shutdown(self) -> None:
        return

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


def test_a_collector_s_absence_is_told_once() -> None:
    """The log has one line when the collector stops taking spans, and one when it takes them again."""
    from proxy.telemetry.tracing import _Reporting

    with structlog.testing.capture_logs() as lines:
        exporter = _Reporting(_Exporter("FAILURE", "FAILURE", "FAILURE", "SUCCESS", "FAILURE"), "c:4318")  # type: ignore[arg-type]
        for _ in range(5):
            exporter.export([])
    assert [line["event"] for line in lines] == [
        "trace_export_failed",
        "trace_export_recovered",
        "trace_export_failed",
    ]


def test_a_missing_extra_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the libraries the setting is an error that names what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"telemetry\.otlp_endpoint: .*pip install '\.\[otel\]'"):
        open_tracing("http://127.0.0.1:4318", {}, version="1")


@pytest.mark.parametrize(
    "endpoint", ["http://h:4318", "http://h:4318/", "http://h:4318/v1/traces", "http://h:4318/v1/traces/"]
)
def test_an_address_may_be_the_base_or_the_whole(endpoint: str) -> None:
    """The endpoint may be the base URL or the whole URL of the collector."""
    assert traces_url(endpoint) == "http://h:4318/v1/traces"


async def test_the_variables_of_the_sdk_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's variables for service name, attributes and sampler win over the proxy's defaults."""

    async def service() -> tuple[dict[str, str], list[Span]]:
        collector, _ = await trace(stream(role(), content("x"), finish()))
        resources = [one.resource for request in collector.requests for one in request.resource_spans]
        found = {pair.key: pair.value.string_value for one in resources for pair in one.attributes}
        return found, collector.spans

    found, spans = await service()
    assert (found["service.name"], len(spans)) == ("toolrelay", 2)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "frontdoor")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=9,team=a")
    found, _ = await service()
    assert (found["service.name"], found["service.version"], found["team"]) == ("frontdoor", "9", "a")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    collector, upstream = await trace(stream(role(), content("x"), finish()))
    assert collector.spans == []
    # The upstream is told that nobody keeps this trace.
    (given,) = [value for name, value in upstream.requests[0].headers if name.lower() == "traceparent"]
    assert given.endswith("-00")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    collector, upstream = await trace(stream(role(), content("x"), finish()), headers={"traceparent": GIVEN})
    assert collector.spans == []
    assert ("traceparent", GIVEN) in [(n.lower(), v) for n, v in upstream.requests[0].headers]


async def test_health_checks_and_figures_are_not_traced() -> None:
    """Health checks and scrapes of metrics make no span, but another request does."""
    async with collecting() as collector:
        settings = make_config("http://127.0.0.1:9/v1", telemetry={"otlp_endpoint": collector.url})
        async with running(settings) as proxy:
            for path in ("/healthz", "/readyz", "/metrics"):
                assert (await proxy.ask(method="GET", path=path)).status == 200
            assert (await proxy.get("/nowhere")).status == 404
    assert [span.name for span in collector.spans] == ["GET other"]


async def test_an_agent_s_run_is_a_span_of_its_own() -> None:
    """An agent's run is a span ``invoke_agent``, and its own requests to the model are below it."""
    asks = stream(role(), call("c1", "agent__helper", '{"task":"look"}'), finish("tool_calls"), usage(10, 5))
    details: Any = {"prompt_tokens_details": {"cached_tokens": 4}}
    reports = stream(role(), content("found"), finish(), usage(6, 2, **details))
    answers = stream(role(), content("done"), finish(), usage(20, 7))
    agents = {"helper": {"description": "Looks.", "instructions": "Look.", "tools": ()}}
    collector, _ = await trace(asks, reports, answers, agents=agents, allow=("agent__*",))
    (server,) = collector.named("POST /v1/chat/completions")
    (agent,) = collector.named("invoke_agent helper")
    assert agent.parent_span_id == server.span_id
    about = attributes(agent)
    assert (about["gen_ai.operation.name"], about["gen_ai.agent.name"]) == ("invoke_agent", "helper")
    turns = collector.named("chat m")
    (own,) = (turn for turn in turns if turn.parent_span_id == agent.span_id)
    assert attributes(own)["gen_ai.usage.cache_read.input_tokens"] == 4
    assert len(turns) == 3


async def test_a_named_conversation_and_a_known_provider_are_told() -> None:
    """A request of Responses that names its conversation has the id in its span."""
    async with (
        collecting() as collector,
        RawUpstream(whole(b'{"id":"resp_1","object":"response"}')) as upstream,
    ):
        config = make_config(upstream.url, telemetry={"otlp_endpoint": collector.url}, allow=())
        async with running(config) as proxy:
            await proxy.ask(
                {"model": "m", "input": "hi", "conversation": {"id": "conv_1"}}, path="/v1/responses"
            )
    (span,) = [span for span in collector.spans if span.kind == Span.SPAN_KIND_CLIENT]
    about = attributes(span)
    assert about["gen_ai.conversation.id"] == "conv_1"
    assert (about["gen_ai.provider.name"], about["toolrelay.upstream"]) == ("default", "default")
    assert _server_attributes("own", "https://api.openai.com/v1")["gen_ai.provider.name"] == "openai"
