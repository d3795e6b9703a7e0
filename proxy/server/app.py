"""The composition root: from a configuration to a running application.

Only here are concrete wires, stores, upstreams and tools named.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from proxy.errors import ConfigError, UpstreamError
from proxy.relay.base import RunSettings, no_events
from proxy.relay.forgetting import Forgetting
from proxy.relay.history import History
from proxy.relay.model_turn import ToolMemory
from proxy.relay.offer import OfferRules
from proxy.relay.orchestrator import Orchestrator
from proxy.relay.passthrough import ErrorEvent
from proxy.relay.repeats import Repeats
from proxy.relay.routing import Router, Served
from proxy.server.config import Config
from proxy.server.config_rules import is_loopback
from proxy.server.handlers import Api, ApiSettings
from proxy.server.limits import ConcurrentStreams, MemoryLimiter
from proxy.server.middleware import Gate, make_identify, make_refuse_pages
from proxy.server.settings import CredentialConfig, UpstreamConfig
from proxy.server.stored_responses import StoredResponses
from proxy.store.base import Store
from proxy.store.factory import open_store
from proxy.toolbox.calendar import GOOGLE_CALENDAR_URL, calendar_provider
from proxy.toolbox.clock import SystemClock
from proxy.toolbox.core import core_provider
from proxy.toolbox.flights import DUFFEL_URL, flights_provider
from proxy.toolbox.weather import FORECAST_URL, GEOCODING_URL
from proxy.toolbox.web import web_provider
from proxy.tools.capabilities import Capabilities, Clock, HttpSource
from proxy.tools.credentials import Connection, CredentialBroker, OAuthToken, StaticToken
from proxy.tools.egress import EgressPool
from proxy.tools.modules import load_module
from proxy.tools.paging import ResultShelf
from proxy.tools.policy import Policy
from proxy.tools.provider import ToolProvider
from proxy.tools.registry import Registry
from proxy.tools.runner import OnCrash, Runner
from proxy.upstreams.base import Upstream
from proxy.upstreams.http import HttpUpstream
from proxy.upstreams.replay import ReplayUpstream, packaged_fixtures
from proxy.wires.base import Wire
from proxy.wires.chat import ChatWire, error_event
from proxy.wires.responses import ResponsesWire
from proxy.wires.responses.body import upstream_ids
from proxy.wires.responses.retold import retell

__all__ = ["SERVICES", "Overrides", "Services", "create_app", "create_services"]

_MAX_ANSWER = 8 << 20
"""Bytes of a service's answer to a tool: a search for flights has thousands of offers."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a caller puts in place of the machine's own: the clock, the tools' HTTP, onlookers, and
    what stands before every upstream and every source of tools.

    With ``http`` given, tools with a connection use it too, without credentials.
    """

    clock: Clock | None = None
    http: HttpSource | None = None
    on_run_event: Callable[[str, Mapping[str, Any]], None] | None = None
    wrap_upstream: Callable[[Upstream], Upstream] | None = None
    on_tool_crash: OnCrash | None = None
    wrap_provider: Callable[[ToolProvider], ToolProvider] | None = None


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that serves requests, made from one configuration."""

    config: Config
    registry: Registry
    policy: Policy
    runner: Runner
    store: Store
    upstreams: Mapping[str, Upstream]
    wires: Mapping[str, Wire]
    limiter: MemoryLimiter
    egress: EgressPool | None

    def missing_connections(self) -> list[ConfigError]:
        """One fault for each tool that is allowed by its very name and lacks its credentials.

        One that only a pattern allows is withheld instead: ``*`` does not mean that there is an
        account for everything.
        """
        return [
            ConfigError(
                f"credentials.{spec.connection}",
                f"is missing, and {spec.name}, which policy.allow names, needs it",
                f"Write [credentials.{spec.connection}], or take the tool out of policy.allow",
            )
            for spec in self.registry.tools()
            if spec.name in self.policy.unavailable and spec.name in self.policy.allow
        ]

    async def aclose(self) -> None:
        """Let effects end, then close everything, the record last."""
        await self.runner.drain(self.config.server.drain_s)
        await self.registry.aclose()
        for upstream in self.upstreams.values():
            await upstream.aclose()
        if self.egress is not None:
            await self.egress.aclose()
        await self.limiter.aclose()
        await self.store.aclose()


SERVICES = web.AppKey("services", Services)


async def create_services(
    config: Config, *, overrides: Overrides | None = None, reap: bool = False
) -> Services:
    """Make everything but the HTTP surface.

    ``reap`` marks what dead processes left open on record as interrupted; for the server alone.
    Raises :class:`~proxy.errors.ConfigError` and :class:`~proxy.errors.StoreError`.
    """
    given = overrides or Overrides()
    clock = given.clock or SystemClock()
    egress = _egress(config) if given.http is None else None
    shelf = ResultShelf()
    capabilities, connections = _capabilities(config, clock, given.http, egress)
    wrap_provider = given.wrap_provider or (lambda provider: provider)
    registry = await Registry.load(map(wrap_provider, _providers(config, capabilities, clock, shelf)))
    policy = Policy(**dict(config.policy), unavailable=_unconnected(registry, connections))
    limiter = MemoryLimiter(requests=config.limits.requests, tool_calls=config.limits.tool_calls)
    store = open_store(
        config.store.url,
        content=config.store.content,
        keep_days=config.store.keep_days,
        synchronous=config.store.synchronous,
        reap=reap,
        seal_key=config.store.seal_key.reveal() if config.store.seal_key else "",
        max_bytes=config.store.max_bytes,
    )
    await store.start()
    runner = Runner(
        registry,
        policy,
        store,
        limiter,
        clock,
        default_timeout_s=config.tools.timeout_s,
        shelf=shelf,
        max_read_only=config.limits.concurrent_tools,
        max_read_only_per_caller=config.limits.concurrent_tools_per_caller,
        on_crash=given.on_tool_crash,
    )
    wrap = given.wrap_upstream or (lambda upstream: upstream)
    upstreams = {name: wrap(_upstream(name, upstream)) for name, upstream in config.upstreams.items()}
    return Services(
        config=config,
        registry=registry,
        policy=policy,
        runner=runner,
        store=store,
        upstreams=upstreams,
        wires={"chat": ChatWire(), "responses": ResponsesWire()},
        limiter=limiter,
        egress=egress,
    )


def _providers(
    config: Config, capabilities: Capabilities, clock: Clock, shelf: ResultShelf
) -> list[ToolProvider]:
    """The curated tools, and the operator's own."""
    if capabilities.http is None:
        raise RuntimeError("no HTTP source for tools")
    tools, urls = config.tools, config.tools.base_urls
    return [
        core_provider(
            clock,
            capabilities.http,
            geocoding_url=urls.get("geocoding", GEOCODING_URL),
            forecast_url=urls.get("weather", FORECAST_URL),
            shelf=shelf,
        ),
        flights_provider(capabilities, base_url=urls.get("flights", DUFFEL_URL), timeout_s=tools.timeout_s),
        calendar_provider(capabilities, base_url=urls.get("calendar", GOOGLE_CALENDAR_URL)),
        *([web_provider(capabilities, hosts=tools.web_hosts)] if tools.web_hosts else ()),
        *(load_module(module, base=Path.cwd(), capabilities=capabilities) for module in tools.modules),
    ]


def _egress(config: Config) -> EgressPool:
    """Outgoing HTTP of tools, with a little less time than a tool has, so that it can still say why."""
    networks = config.tools.networks
    return EgressPool(
        allowed_networks=networks,
        schemes=("https", "http") if networks else ("https",),
        timeout_s=0.8 * config.tools.timeout_s,
        max_bytes=_MAX_ANSWER,
    )


def _unconnected(registry: Registry, connections: frozenset[str] | None) -> dict[str, str]:
    """Each tool whose credentials are not configured, with what is missing."""
    if connections is None:
        return {}
    return {
        spec.name: f"credentials.{spec.connection} is missing"
        for spec in registry.tools()
        if spec.connection and spec.connection not in connections
    }


def _capabilities(
    config: Config, clock: Clock, http: HttpSource | None, egress: EgressPool | None
) -> tuple[Capabilities, frozenset[str] | None]:
    """What tools are handed, and the connections among it; ``None`` where none is needed."""
    if egress is None:
        given = http
        if given is None:
            raise RuntimeError("no HTTP source for tools")
        return Capabilities(clock, given, connected=lambda name, hosts: given(hosts)), None
    broker = CredentialBroker(
        {name: _connection(connection) for name, connection in config.credentials.items()}, egress
    )
    return Capabilities(clock, egress.client, connected=broker.client), broker.names


def _connection(config: CredentialConfig) -> Connection:
    if config.token is not None:
        return StaticToken(config.token.reveal())
    return OAuthToken(
        token_url=config.token_url,
        client_id=config.client_id.reveal() if config.client_id else "",
        refresh_token=config.refresh_token.reveal() if config.refresh_token else "",
        client_secret=config.client_secret.reveal() if config.client_secret else "",
    )


def _upstream(name: str, config: UpstreamConfig) -> Upstream:
    if config.base_url.startswith("replay:"):
        folder = config.base_url.removeprefix("replay:")
        return ReplayUpstream([Path(folder) if folder else packaged_fixtures()], name)
    return HttpUpstream(
        name,
        config.base_url,
        config.api_key.reveal() if config.api_key else "",
        headers=dict(config.header_pairs()),
        connect_timeout_s=config.connect_timeout_s,
        first_byte_timeout_s=config.first_byte_timeout_s,
        idle_timeout_s=config.idle_timeout_s,
        retries=config.retries,
    )


async def create_app(config: Config, *, overrides: Overrides | None = None) -> web.Application:
    """The application; closing it closes its services.

    Raises what :func:`create_services` raises, and ConfigError for an allowed tool without its
    credentials.
    """
    services = await create_services(config, overrides=overrides, reap=True)
    faults = services.missing_connections()
    if faults:
        await services.aclose()
        raise faults[0]
    given = overrides or Overrides()
    memory = ToolMemory()
    repeats = Repeats()
    history = History(services.store, time.time)
    orchestrator = Orchestrator(
        registry=services.registry,
        runner=services.runner,
        store=services.store,
        history=history,
        settings=_run_settings(config),
        memory=memory,
        repeats=repeats,
        watch=given.on_run_event or no_events,
    )
    router = Router([_served(services, name) for name in config.upstreams])
    gate = Gate(services.limiter, ConcurrentStreams(config.limits.concurrent_streams))
    api = Api(
        router=router,
        wires=services.wires,
        error_events=_error_events(),
        orchestrator=orchestrator,
        history=history,
        registry=services.registry,
        policy=services.policy,
        store=services.store,
        responses=StoredResponses(services.store, retell, Forgetting(services.store, router, upstream_ids)),
        memory=memory,
        repeats=repeats,
        gate=gate,
        settings=_api_settings(config),
    )
    app = web.Application(
        middlewares=[make_identify(), make_refuse_pages(loopback_only=is_loopback(config.server.host))]
    )
    app.router.add_route("*", "/{tail:.*}", api.entry)
    app[SERVICES] = services

    async def drain(_: web.Application) -> None:
        gate.draining = True

    async def close(_: web.Application) -> None:
        await services.aclose()

    app.on_shutdown.append(drain)
    app.on_cleanup.append(close)
    return app


def _api_settings(config: Config) -> ApiSettings:
    return ApiSettings(
        max_body_bytes=config.server.max_body_bytes,
        max_upload_bytes=config.server.max_upload_bytes,
        tools_enabled=config.tools.enabled,
        trace=config.tools.trace,
        trace_max=config.tools.trace_max,
        history=config.store.history,
        keep_requests=config.store.content == "all",
        end_user=config.auth.end_user,
        offer=OfferRules(inject=config.tools.inject, aliases=dict(config.tools.aliases)),
    )


def _run_settings(config: Config) -> RunSettings:
    tools = config.tools
    return RunSettings(
        max_turns=tools.max_turns,
        max_calls=tools.max_calls,
        max_tokens=tools.max_tokens,
        request_timeout_s=tools.request_timeout_s,
        keepalive_s=tools.keepalive_s,
        parallel=tools.parallel,
        max_argument_bytes=config.policy.max_argument_bytes,
    )


def _served(services: Services, name: str) -> Served:
    config = services.config.upstreams[name]
    renamed = config.models if isinstance(config.models, dict) else None
    return Served(
        upstream=services.upstreams[name],
        wires=frozenset(config.wires),
        models=() if isinstance(config.models, dict) else config.models,
        renamed=renamed,
        tools=config.tools,
        force_usage=config.force_usage,
        retries=config.retries,
        responses_state=config.responses_state,
    )


def _error_events() -> dict[str, ErrorEvent]:
    """The error event of each path whose event streams end with an end mark."""

    def chat(error: UpstreamError) -> bytes:
        return error_event(error.message, type="upstream_error", code=error.code)

    def response(error: UpstreamError) -> bytes:
        return ResponsesWire().error_event(error.message, type="upstream_error", code=error.code)

    return {"/chat/completions": chat, "/completions": chat, "/responses": response}
