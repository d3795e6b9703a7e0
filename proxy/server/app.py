"""The composition root: from a configuration to a running application.

Only here are concrete wires, stores, upstreams and tools named.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy import __version__
from proxy.errors import ConfigError, Guard
from proxy.net.aiohttp_resolver import AiohttpResolver
from proxy.net.resolver import Resolver
from proxy.records import TokenVault
from proxy.relay.base import RunSettings
from proxy.relay.memory.deletion import UpstreamDeletion
from proxy.relay.memory.history import History
from proxy.relay.memory.idempotency import Idempotency
from proxy.relay.offer import OfferRules
from proxy.relay.passthrough import ErrorEvent
from proxy.relay.routing.breaker import Breaker
from proxy.relay.routing.deadlines import Deadlines
from proxy.relay.routing.prices import Price, Prices, to_nanos
from proxy.relay.routing.router import Router, Served
from proxy.relay.run.model_turn import ToolMemory
from proxy.relay.run.orchestrator import Orchestrator
from proxy.relay.run.settling import Settling
from proxy.server.api.admin import Admin
from proxy.server.api.handlers import Api, ApiSettings
from proxy.server.api.stored_responses import StoredResponses
from proxy.server.auth.authenticate import (
    Authentication,
    Authenticator,
    ForwardAuthenticator,
    OpenAuthenticator,
    make_authentication,
)
from proxy.server.auth.key_spellings import KeyFinder
from proxy.server.auth.permissions import PermissionSets
from proxy.server.config.load import Config
from proxy.server.config.rules import is_loopback
from proxy.server.config.settings import CredentialConfig, UpstreamConfig
from proxy.server.config.tool_faults import misplaced_bounds, missing_connections, unconnected
from proxy.server.limits.limiter import RateLimiter
from proxy.server.limits.rules import ConcurrentStreams, KeyLimits, parse_cost_limits, parse_limits
from proxy.server.limits.storage import open_counters
from proxy.server.middleware.access import AccessMiddleware
from proxy.server.middleware.admission import AdmissionControl
from proxy.server.middleware.cors import Cors
from proxy.server.middleware.page_guard import HostRule, PageGuard
from proxy.server.open_record import open_record
from proxy.server.peers import Peers
from proxy.server.serving.client_address import TrustedProxies
from proxy.server.serving.draining import Draining, ends_unhurried
from proxy.server.serving.parser_check import check_http_parser
from proxy.server.serving.pending_heads import PendingHeads
from proxy.server.serving.served import ConnectionBounds, Handler
from proxy.server.serving.tee import Listen
from proxy.server.telemetry.instruments import Instruments, known_models, open_instruments
from proxy.server.telemetry.refused_keys import RefusedKeys
from proxy.server.telemetry.snapshots import METRICS, merge
from proxy.store.base import KeySource, Store
from proxy.toolbox.calendar import GOOGLE_CALENDAR_URL, calendar_provider
from proxy.toolbox.clock import SystemClock
from proxy.toolbox.core import core_provider
from proxy.toolbox.flights import DUFFEL_URL, flights_provider
from proxy.toolbox.weather import FORECAST_URL, GEOCODING_URL
from proxy.toolbox.web import web_provider
from proxy.tools.access.catalog import Registry
from proxy.tools.access.credentials import Connection, CredentialBroker, OAuthToken, StaticToken
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.policy import Policy
from proxy.tools.contract.bounds import ArgumentBound
from proxy.tools.contract.capabilities import Capabilities, Clock, HttpSource
from proxy.tools.contract.paging import ResultShelf
from proxy.tools.contract.provider import ToolProvider
from proxy.tools.providers.modules import load_module
from proxy.tools.running.runner import OnCrash, Runner
from proxy.upstreams.aiohttp.upstream import HttpUpstream
from proxy.upstreams.base import Upstream
from proxy.upstreams.http1.upstream import Http1Upstream
from proxy.upstreams.origin import long_secrets
from proxy.upstreams.recorded.replay import ReplayUpstream, packaged_fixtures
from proxy.wires.chat import ChatWire
from proxy.wires.dialect import Dialect
from proxy.wires.dialects.table import ENDPOINTS
from proxy.wires.responses import ResponsesWire
from proxy.wires.responses.body import upstream_ids
from proxy.wires.responses.retold import retell

__all__ = [
    "App",
    "Overrides",
    "Services",
    "create_app",
    "create_services",
    "open_entrance",
]

_MAX_ANSWER = 8 << 20
"""Bytes of a service's answer to a tool: a search for flights has thousands of offers."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a caller puts in place of the machine's own: the clock, the tools' HTTP, onlookers, what
    stands before every upstream and every source of tools, who lets callers in, and who listens to what
    they are answered.

    With ``http`` given, tools with a connection use it too, without credentials.  ``connect`` says
    whether credentials are fetched before a tool runs: not for tools that only repeat what they gave.
    """

    clock: Clock | None = None
    http: HttpSource | None = None
    on_run_event: Callable[[str, Mapping[str, Any]], None] | None = None
    wrap_upstream: Callable[[Upstream], Upstream] | None = None
    on_tool_crash: OnCrash | None = None
    wrap_provider: Callable[[ToolProvider], ToolProvider] | None = None
    door: Authenticator | None = None
    listen: Listen | None = None
    connect: bool = True


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that serves requests, made from one configuration."""

    config: Config
    registry: Registry
    policy: Policy
    runner: Runner
    store: Store
    upstreams: Mapping[str, Upstream]
    limiter: RateLimiter
    egress: EgressPool | None
    instruments: Instruments

    def missing_connections(self) -> list[ConfigError]:
        """One fault for each tool that is allowed by its very name and lacks its credentials."""
        return missing_connections(self.registry, self.policy)

    def misplaced_bounds(self, *, whole: bool = True) -> list[ConfigError]:
        """One fault for each bound of arguments that bounds nothing; ``whole``: no tool is missing."""
        keys = {f"keys.{name}.arguments": key.arguments for name, key in self.config.keys.items()}
        written = {self.policy.arguments_setting: self.policy.arguments, **keys}
        return [
            fault
            for where in written
            for fault in misplaced_bounds(self.registry, where, written[where], whole=whole)
        ]

    @property
    def paths(self) -> Mapping[str, str]:
        """Where each wire with server tools is served, below an upstream's base URL."""
        return {wire.dialect.name: wire.dialect.path for wire in (ChatWire, ResponsesWire)}

    def router(self) -> Router:
        """The upstreams in the order of the configuration."""
        return Router([_served(self, name) for name in self.upstreams])

    async def aclose(self, hurried: asyncio.Event | None = None) -> None:
        """Let effects end, unless somebody is in a hurry; then close everything, the record last."""
        if not await ends_unhurried(self.runner.drain(self.config.server.drain_s), hurried):
            await self.runner.drain(0.0)
        await self.registry.aclose()
        for upstream in self.upstreams.values():
            await upstream.aclose()
        if self.egress is not None:
            await self.egress.aclose()
        await self.limiter.aclose()
        await self.store.aclose()
        await self.instruments.aclose()


@dataclass(frozen=True, slots=True)
class App:
    """Services with their HTTP surface: what :class:`~proxy.server.serving.runner.EdgeRunner` runs."""

    services: Services
    authentication: Authentication
    draining: Draining
    bounds: ConnectionBounds
    handle: Handler

    async def aclose(self) -> None:
        """Close the services; see :meth:`Services.aclose`."""
        await self.services.aclose(self.draining.hurried)


async def create_services(
    config: Config, *, overrides: Overrides | None = None, reap: bool = False, guard: Guard = nullcontext
) -> Services:
    """Make everything but the HTTP surface.

    ``reap`` marks what dead processes left open on record as interrupted; for the server alone.
    ``guard`` stands around each tool, module of tools and upstream, which nothing else needs.
    Raises :class:`~proxy.errors.ConfigError` and :class:`~proxy.errors.StoreError`.
    """
    given = overrides or Overrides()
    clock = given.clock or SystemClock()
    egress = _egress(config) if given.http is None else None
    store = open_record(config, reap=reap)
    shelf = ResultShelf(record=store)
    capabilities, broker = _capabilities(config, clock, given.http, egress, store.vault)
    wrap_provider = given.wrap_provider or (lambda provider: provider)
    providers = _providers(config, capabilities, clock, shelf, guard)
    registry = await Registry.load(map(wrap_provider, providers), guard)
    policy = Policy(
        **{**dict(config.policy), "arguments": _bounds(config)},
        unavailable=unconnected(registry, broker.names if broker is not None else None),
    )
    instruments = _instruments(config, registry)
    instruments.watch_store(store)
    limiter = _limiter(config, instruments)
    upstreams = _upstreams(config, given, instruments, guard)
    # Last of what may fail: nothing would close it.
    await store.start()
    runner = Runner(
        registry,
        policy,
        store,
        None,
        clock,
        default_timeout_s=config.tools.timeout_s,
        shelf=shelf,
        max_read_only=config.limits.concurrent_tools,
        max_read_only_per_caller=config.limits.concurrent_tools_per_caller,
        max_parallel=config.tools.max_parallel,
        on_crash=given.on_tool_crash,
        on_closed=instruments.observing.invocation_ended,
        effects=store,
        credentials=broker if given.connect else None,
        log_arguments=config.store.content != "none",
    )
    return Services(
        config=config,
        registry=registry,
        policy=policy,
        runner=runner,
        store=store,
        upstreams=upstreams,
        limiter=limiter,
        egress=egress,
        instruments=instruments,
    )


def _instruments(config: Config, registry: Registry) -> Instruments:
    """Figures and traces; their labels are what the configuration and the registry name."""
    return open_instruments(
        count=config.telemetry.metrics,
        otlp_endpoint=config.telemetry.otlp_endpoint,
        upstreams={name: upstream.base_url for name, upstream in config.upstreams.items()},
        models=known_models((upstream.models for upstream in config.upstreams.values()), config.prices),
        tools=[spec.name for spec in registry.tools()],
        keys=RefusedKeys(config.key_settings()),
        version=__version__,
    )


def _providers(
    config: Config, capabilities: Capabilities, clock: Clock, shelf: ResultShelf, guard: Guard
) -> list[ToolProvider]:
    """The curated tools, and the operator's own."""
    if capabilities.http is None:
        raise RuntimeError("no HTTP source for tools")
    tools, urls = config.tools, config.tools.base_urls
    providers: list[ToolProvider] = [
        core_provider(
            clock,
            capabilities.http,
            geocoding_url=urls.get("geocoding", GEOCODING_URL),
            forecast_url=urls.get("weather", FORECAST_URL),
            shelf=shelf,
        ),
        flights_provider(capabilities, base_url=urls.get("flights", DUFFEL_URL), timeout_s=tools.timeout_s),
        calendar_provider(capabilities, base_url=urls.get("calendar", GOOGLE_CALENDAR_URL)),
    ]
    if tools.web_hosts:
        with guard():
            providers.append(web_provider(capabilities, hosts=tools.web_hosts))
    for module in tools.modules:
        with guard():
            loaded = load_module(module, base=Path.cwd(), capabilities=capabilities, guard=guard)
            providers.append(loaded)
    return providers


def _egress(config: Config) -> EgressPool:
    """Outgoing HTTP of tools, with a little less time than a tool has, so that it can still say why."""
    networks = config.tools.networks
    return EgressPool(
        allowed_networks=networks,
        schemes=("https", "http") if networks else ("https",),
        timeout_s=0.8 * config.tools.timeout_s,
        max_bytes=_MAX_ANSWER,
        resolver=AiohttpResolver(Resolver("tools")),
    )


def _capabilities(
    config: Config,
    clock: Clock,
    http: HttpSource | None,
    egress: EgressPool | None,
    vault: TokenVault | None,
) -> tuple[Capabilities, CredentialBroker | None]:
    """What tools are handed, and who has their credentials; ``None`` where none are needed."""
    if egress is None:
        given = http
        if given is None:
            raise RuntimeError("no HTTP source for tools")
        return Capabilities(clock, given, connected=lambda name, hosts: given(hosts)), None
    broker = CredentialBroker(
        {name: _connection(connection) for name, connection in config.credentials.items()},
        egress,
        vault=vault,
    )
    return Capabilities(clock, egress.client, connected=broker.client), broker


def _connection(config: CredentialConfig) -> Connection:
    if config.token is not None:
        return StaticToken(config.token.reveal())
    return OAuthToken(
        token_url=config.token_url,
        client_id=config.client_id.reveal() if config.client_id else "",
        refresh_token=config.refresh_token.reveal() if config.refresh_token else "",
        client_secret=config.client_secret.reveal() if config.client_secret else "",
    )


def _upstreams(
    config: Config, given: Overrides, instruments: Instruments, guard: Guard
) -> dict[str, Upstream]:
    wrap = given.wrap_upstream or (lambda upstream: upstream)
    names = Resolver("upstreams")
    forwards = config.auth.mode == "forward"
    made: dict[str, Upstream] = {}
    for name, upstream in config.upstreams.items():
        with guard():
            found = wrap(_upstream(name, upstream, names, forwards=forwards))
            made[name] = instruments.observing.upstream(found)
    return made


def _upstream(name: str, config: UpstreamConfig, resolver: Resolver, *, forwards: bool) -> Upstream:
    if config.base_url.startswith("replay:"):
        folder = config.base_url.removeprefix("replay:")
        return ReplayUpstream([Path(folder) if folder else packaged_fixtures()], name)
    client = Http1Upstream if config.http_client == "lean" else HttpUpstream
    return client(
        name,
        config.base_url,
        config.api_key.reveal() if config.api_key and not forwards else "",
        headers=dict(config.header_pairs()),
        forward_headers=config.forward_headers,
        forward_response_headers=config.forward_response_headers,
        connect_timeout_s=config.connect_timeout_s,
        first_byte_timeout_s=config.first_byte_timeout_s,
        idle_timeout_s=config.idle_timeout_s,
        retries=config.retries,
        forward_authorization=forwards,
        resolver=resolver,
    )


def _stored_responses(services: Services, settling: Settling, router: Router) -> StoredResponses:
    forget = UpstreamDeletion(services.store, router, upstream_ids)
    return StoredResponses(services.store, settling, retell, forget)


async def create_app(
    config: Config, *, overrides: Overrides | None = None, peers: Peers | None = None
) -> App:
    """The application; closing it closes its services.  ``peers`` are other processes of the same port.

    Raises what :func:`create_services` raises, and ConfigError for an allowed tool without its
    credentials or a bound that bounds nothing, for a door that would be open to other machines
    unasked, and for an aiohttp that cannot serve safely.
    """
    check_http_parser()
    services, authentication, item_key = await _checked_services(config, overrides)
    given = overrides or Overrides()
    door = given.door or authentication.door
    memory, repeats = ToolMemory(), Idempotency(forget=services.store.release_effect)
    history = History(services.store, time.time)
    settling = _settling(services)
    orchestrator = Orchestrator(
        registry=services.registry,
        runner=services.runner,
        store=services.store,
        history=history,
        settings=_run_settings(config),
        memory=memory,
        repeats=repeats,
        settling=settling,
        watch=services.instruments.run_events(given.on_run_event),
        broken=services.instruments.observing.broken,
    )
    router = services.router()
    draining = Draining()
    api = Api(
        views=_views(services, router),
        wires={"chat": ChatWire(), "responses": ResponsesWire(item_key)},
        error_events=_error_events(),
        orchestrator=orchestrator,
        history=history,
        store=services.store,
        settling=settling,
        responses=_stored_responses(services, settling, router),
        memory=memory,
        repeats=repeats,
        door=door,
        tokens=authentication.tokens,
        gate=_gate(services, draining),
        instruments=services.instruments,
        snapshot=_snapshot_of_all(services.instruments, peers or Peers()),
        admin=_admin(services, door),
        settings=_api_settings(config),
        prices=_prices(config),
        listen=given.listen,
    )
    return App(
        services=services,
        authentication=authentication,
        draining=draining,
        bounds=_bounds_of_connections(config),
        handle=_edge(config, services.instruments, draining, api, door, authentication.finder).handle,
    )


def _settling(services: Services) -> Settling:
    """Waits for the record where a client's next request may reach another process, or this one restarted."""
    config = services.config
    return Settling(
        services.store,
        shared=config.server.workers > 1 or config.store.url.startswith("postgres"),
        late=services.instruments.observing.late,
    )


def _bounds_of_connections(config: Config) -> ConnectionBounds:
    server = config.server
    return ConnectionBounds(
        server.header_timeout_s,
        server.send_timeout_s,
        PendingHeads(server.max_pending_heads, server.max_pending_heads_per_address),
        TrustedProxies(server.trusted_proxies),
    )


def _snapshot_of_all(instruments: Instruments, peers: Peers) -> Callable[[], Awaitable[bytes]] | None:
    """The metrics of every process of this port, as one; ``None`` where there are none."""
    own = instruments.snapshot
    if own is None:
        return None
    peers.tell(METRICS, own)

    async def of_all() -> bytes:
        answers = await peers.ask_all(METRICS)
        return merge(answers.bodies, answers.ended)

    return of_all


def _gate(services: Services, draining: Draining) -> AdmissionControl:
    """The way in."""
    instruments = services.instruments
    streams = instruments.watch_streams(ConcurrentStreams(services.config.limits.concurrent_streams))
    return AdmissionControl(services.limiter, streams, draining, instruments.observing.limited)


async def _checked_services(
    config: Config, overrides: Overrides | None
) -> tuple[Services, Authentication, bytes]:
    """What serves, who comes in, and what signs the items that clients are shown; nothing stays open
    where one of them cannot be had."""
    services = await create_services(config, overrides=overrides, reap=True)
    try:
        faults = [*services.missing_connections(), *services.misplaced_bounds()]
        if faults:
            raise faults[0]
        authentication = await open_entrance(config, services.store)
        if config.keys:
            # Their names may be gone from the configuration at the next start; that must open nothing.
            await services.store.note_keys()
        _, hash_key = await services.store.hash_key()
        item_key = hashlib.blake2b(b"toolrelay shown items", key=hash_key, digest_size=32).digest()
        services.instruments.watch_loop()
        return services, authentication, item_key
    except BaseException:  # A start that is cancelled leaves nothing open either.
        await services.aclose()
        raise


async def open_entrance(config: Config, store: KeySource) -> Authentication:
    """How clients come in; raises what :func:`~proxy.server.auth.authenticate.make_authentication` raises."""
    return await make_authentication(
        config.auth.mode,
        store,
        {name: (key.secret.reveal(), key) for name, key in config.keys.items()},
        loopback=is_loopback(config.server.host),
        start_token=config.start_token,
    )


def _views(services: Services, router: Router) -> PermissionSets:
    tools = services.config.tools
    return PermissionSets(
        router,
        services.registry,
        services.policy,
        tools_enabled=tools.enabled,
        trace=tools.trace,
        trace_max=tools.trace_max,
    )


def _limiter(config: Config, instruments: Instruments) -> RateLimiter:
    limits = config.limits
    general = KeyLimits(
        requests=parse_limits("limits.requests", limits.requests),
        tool_calls=parse_limits("limits.tool_calls", limits.tool_calls),
        tokens=parse_limits("limits.tokens", limits.tokens),
        cost=parse_cost_limits("limits.cost", limits.cost),
    )
    return RateLimiter(
        general,
        open_counters(limits.storage_url),
        on_error=limits.on_error,
        limited=instruments.observing.limited,
    )


def _prices(config: Config) -> Prices:
    return Prices(
        {
            model: Price(
                input=to_nanos(price.input),
                cached_input=to_nanos(price.input if price.cached_input is None else price.cached_input),
                output=to_nanos(price.output),
            )
            for model, price in config.prices.items()
        }
    )


def _edge(
    config: Config,
    instruments: Instruments,
    draining: Draining,
    api: Api,
    door: Authenticator,
    finder: KeyFinder,
) -> AccessMiddleware:
    """What every request passes first."""
    server = config.server
    cors = Cors(server.cors_origins)
    # Whether callers show keys of ours.
    keyed = not isinstance(door, (OpenAuthenticator, ForwardAuthenticator))
    loopback_only = is_loopback(server.host)
    hosts = None
    if loopback_only or server.allowed_hosts or not keyed:
        hosts = HostRule(loopback_only, (server.host.lower(), *server.allowed_hosts))
    return AccessMiddleware(
        api.serve,
        guard=PageGuard(cors=cors, hosts=hosts, keyed=keyed, proxies=TrustedProxies(server.trusted_proxies)),
        cors=cors,
        draining=draining,
        observing=instruments.observing,
        models=instruments.models,
        holds_key=finder.in_target,
    )


def _admin(services: Services, door: Authenticator) -> Admin:
    return Admin(
        door=door,
        store=services.store,
        registry=services.registry,
        policy=services.policy,
        tools_enabled=services.config.tools.enabled,
        declared=services.config.keys,
    )


def _api_settings(config: Config) -> ApiSettings:
    return ApiSettings(
        max_body_bytes=config.server.max_body_bytes,
        max_json_values=config.server.max_json_values,
        max_upload_bytes=config.server.max_upload_bytes,
        body_timeout_s=config.server.body_timeout_s,
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
        max_cost=to_nanos(tools.max_cost),
        request_timeout_s=tools.request_timeout_s,
        keepalive_s=tools.keepalive_s,
        parallel=tools.parallel,
        max_argument_bytes=config.policy.max_argument_bytes,
    )


def _bounds(config: Config) -> dict[str, dict[str, ArgumentBound]]:
    return {
        pattern: {path: bound.bound() for path, bound in bounds.items()}
        for pattern, bounds in config.policy.arguments.items()
    }


def _narrowing(name: str, config: Config) -> Policy | None:
    """What the tool patterns of an upstream leave of a policy; everything else is the policy's own."""
    patterns = config.upstreams[name].tools
    if isinstance(patterns, bool):
        return None
    setting = f"upstreams.{name}.tools"
    return Policy(
        allow=patterns,
        max_argument_bytes=config.policy.max_argument_bytes,
        max_result_bytes=config.policy.max_result_bytes,
        max_image_bytes=config.policy.max_image_bytes,
        settings=(setting, setting, setting),
    )


def _served(services: Services, name: str) -> Served:
    config = services.config.upstreams[name]
    renamed = config.models if isinstance(config.models, dict) else None
    return Served(
        upstream=services.upstreams[name],
        wires=frozenset(config.wires),
        models=() if isinstance(config.models, dict) else config.models,
        renamed=renamed,
        tools=config.tools is not False,
        narrowing=_narrowing(name, services.config),
        force_usage=config.force_usage,
        retries=config.retries,
        responses_state=config.responses_state,
        total=Deadlines(config.total_timeout_s),
        secrets=long_secrets(config.api_key.reveal() if config.api_key else "", dict(config.header_pairs())),
        query_names=frozenset(config.forward_query),
        breaker=Breaker(config.breaker_failures, config.breaker_open_s),
    )


def _error_events() -> dict[str, ErrorEvent]:
    """The error event of each path whose event streams end with an end mark."""

    def told_by(dialect: Dialect) -> ErrorEvent:
        return lambda error: dialect.errors.event(error.message, type=error.type, code=error.code)

    return {known.path: told_by(known.dialect) for known in ENDPOINTS if known.streams}
