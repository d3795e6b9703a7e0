"""Everything that serves requests except the HTTP surface."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import structlog
from msgspec import Struct, field

from proxy import __version__
from proxy.api.admin.approval_webhook import ApprovalWebhook
from proxy.app.compose.approvals import make_approvals, make_figures, make_webhook
from proxy.app.compose.credentials import OpenCredentials
from proxy.app.compose.overrides import Overrides
from proxy.app.compose.tools import (
    agent_provider,
    argument_bounds,
    call_prices,
    load_registry,
    open_egress,
    pinned_providers,
    tool_capabilities,
    tool_providers,
)
from proxy.app.compose.upstreams import open_price_list, open_upstreams, served
from proxy.app.open_record import open_record
from proxy.app.plugins import load_hooks
from proxy.base.errors import ConfigError, Guard
from proxy.base.globs import fits
from proxy.config.checks.tool_faults import BoundFault, misplaced_bounds, missing_connections
from proxy.config.load import Config
from proxy.hooks.chain import HookChain
from proxy.http.bodies import shapes_of_secrets
from proxy.http.secrets import Secrets
from proxy.relay.approvals.approvals import Approvals
from proxy.relay.routing.router import Router
from proxy.rights.limit_rules import KeyLimits, parse_cost_limits, parse_limits
from proxy.server.connections.draining import wait_unless_hurried
from proxy.server.limits.limiter import RateLimiter
from proxy.server.limits.opening import open_counters
from proxy.store.base import Store
from proxy.telemetry.approval_figures import ApprovalFigures
from proxy.telemetry.content import ContentReader
from proxy.telemetry.instruments import Instruments, known_models, open_instruments
from proxy.telemetry.mcp_figures import mcp_metrics
from proxy.telemetry.refused_keys import RefusedKeys
from proxy.toolbox.clock import SystemClock
from proxy.toolbox.core import CoreLinks
from proxy.tools.access.catalog import MOST_OFFERED, Catalog, Registry, too_many_offered
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.policy import Policy
from proxy.tools.agents.provider import AgentProvider
from proxy.tools.contract.redaction import redact_written
from proxy.tools.contract.results.paging import PagedResults
from proxy.tools.mcp.overview import ServerOverview
from proxy.tools.mcp.pinned import PinnedProvider
from proxy.tools.mcp.provider import McpProvider
from proxy.tools.running.runner import Runner
from proxy.upstreams.base import Upstream
from proxy.wires.registry.table import EndpointTable
from proxy.wires.registry.wires import built_in_wires


class Services(Struct, frozen=True):
    """Everything that serves requests, built from one configuration."""

    config: Config
    registry: Registry
    policy: Policy
    runner: Runner
    store: Store
    upstreams: Mapping[str, Upstream]
    limiter: RateLimiter
    egress: EgressPool | None
    credentials: OpenCredentials | None
    instruments: Instruments
    approvals: Approvals
    webhook: ApprovalWebhook | None = None
    approval_figures: ApprovalFigures | None = None
    pinned: Sequence[PinnedProvider] = ()
    agents: Sequence[AgentProvider] = ()
    links: CoreLinks = field(default_factory=CoreLinks)
    hooks: HookChain = field(default_factory=HookChain)
    detached: list[Callable[[float], Awaitable[None]]] = field(default_factory=list)
    """Called as ``(seconds)``; each waits at most that long for runs that continue without their clients."""

    @property
    def mcp(self) -> Sequence[McpProvider]:
        """The provider of the tools of all MCP servers; none if no server is configured."""
        return [provider for provider in self.pinned if isinstance(provider, McpProvider)]

    async def mcp_overview(self) -> Sequence[ServerOverview]:
        """Return the state of each MCP server, and which of its tools are allowed. Raises StoreError."""
        return [server for provider in self.mcp for server in await provider.overview()]

    @property
    def catalog(self) -> Catalog:
        """The tools that are served now."""
        return self.registry.current

    async def refresh_tools(self) -> None:
        """Serve the present tools; log a warning if models are shown more than a provider accepts."""
        await self.registry.refresh()
        if self.config.tools.search != "off":
            return
        if offered := too_many_offered(self.catalog, self.policy):
            structlog.get_logger("proxy.tools").warning(
                "many_tools_offered",
                tools=offered,
                hint=f"OpenAI accepts {MOST_OFFERED} in a request: "
                'set tools.search = "auto", or name fewer in policy.allow',
            )

    def missing_connections(self) -> list[ConfigError]:
        """Return one fault for each tool that ``policy.allow`` names in full and that lacks its
        credentials."""
        return missing_connections(self.catalog, self.policy)

    def misplaced_bounds(self, *, whole: bool = True) -> list[ConfigError]:
        """Return one fault for each bound that limits no argument; ``whole`` says that all tools are
        loaded."""
        faults = self._misplaced_bounds(self.catalog, whole=whole)
        return [fault.error for fault in faults if not fault.passing]

    def idle_bounds(self) -> list[str]:
        """Return a line for each bound that limits no argument now, because of the tools of MCP servers that
        are allowed, and for each tool that is left out because of a bound."""
        left_out = self.registry.left_out
        return [
            *(
                str(fault.error)
                for fault in self._misplaced_bounds(self.catalog, whole=False)
                if fault.passing and not any(fits(tool, fault.pattern) for tool in left_out)
            ),
            *(f"{tool}: not offered: {reason}" for tool, reason in left_out.items()),
        ]

    def check_catalog(self, catalog: Catalog) -> Mapping[str, str]:
        """Return the new tools that do not fit the configuration, each with the reason.

        They lack an argument that the operator bounds, so that nobody knows what to bound. Tools that are
        served already stay: the one that had the argument may have gone. Policy withholds tools without
        their credentials.
        """
        served = self.registry.current
        new = {spec.name for spec in catalog.tools() if served.get(spec.name) is not spec}
        faults = self._misplaced_bounds(catalog, whole=False)
        return {tool: str(fault.error) for fault in faults for tool in fault.tools if tool in new}

    def _misplaced_bounds(self, catalog: Catalog, *, whole: bool) -> list[BoundFault]:
        keys = {f"keys.{name}.arguments": key.arguments for name, key in self.config.keys.items()}
        written = {self.policy.arguments_setting: self.policy.arguments, **keys}
        return [
            fault
            for where in written
            for fault in misplaced_bounds(
                catalog, where, written[where], whole=whole, pinned=self.config.pinned_patterns
            )
        ]

    @property
    def paths(self) -> Mapping[str, str]:
        """The path of each wire with server tools."""
        dialects = {name: wire.dialect for name, wire in built_in_wires().items()}
        return {name: dialect.shown(dialect.path) for name, dialect in dialects.items()}

    def router(self, wrap: Callable[[Upstream], Upstream] = lambda upstream: upstream) -> Router:
        """Build the router over the upstreams, in the order of the configuration, each wrapped by
        ``wrap``. Raises :class:`ConfigError` for a bad list of prices."""
        listed = open_price_list(self.config)
        return Router(
            [served(self.config, name, wrap(upstream), listed) for name, upstream in self.upstreams.items()]
        )

    async def aclose(self, hurried: asyncio.Event | None = None) -> None:
        """Wait for running effects, unless ``hurried`` is set; then close everything, the record last."""
        for drain in self.detached:
            await drain(0.0 if hurried is not None and hurried.is_set() else self.config.server.drain_s)
        if not await wait_unless_hurried(self.runner.drain(self.config.server.drain_s), hurried):
            await self.runner.drain(0.0)
        await self.registry.aclose()
        for upstream in self.upstreams.values():
            await upstream.aclose()
        for outgoing in (self.approval_figures, self.egress, self.credentials, self.webhook):
            if outgoing is not None:
                await outgoing.aclose()
        await self.limiter.aclose()
        await self.instruments.close_requests()
        await self.store.aclose()
        await self.instruments.aclose()


async def create_services(
    config: Config, *, overrides: Overrides | None = None, reap: bool = False, guard: Guard = nullcontext
) -> Services:
    """Build everything but the HTTP surface.

    ``reap`` marks runs that dead processes left open on record as interrupted; only the server sets it.
    ``guard`` wraps the loading of what the rest works without: each tool, module of tools, and upstream.
    Raises :class:`~proxy.base.errors.ConfigError` and :class:`~proxy.base.errors.StoreError`.
    """
    given, upstreams = (overrides or Overrides()).with_plugins(config, guard), dict[str, Upstream]()
    clock, store = given.clock or SystemClock(), open_record(config, reap=reap)
    egress = open_egress(config) if given.http is None else None
    paged_results, links = PagedResults(record=store, now=store.now), CoreLinks()
    capabilities, credentials = tool_capabilities(config, clock, given.http, egress, store.vault, store.now)
    policy = _policy(config, credentials)
    made = partial(tool_providers, config, capabilities, clock, paged_results, links, upstreams, guard)
    own, providers = given.providers is None, made() if given.providers is None else given.providers
    pinned = pinned_providers(config, given, store, credentials, egress, guard)
    agents = agent_provider(config, given, [*providers, *pinned], policy) if own else ()
    registry = await load_registry([*providers, *pinned, *agents], given, guard, call_prices(config))
    instruments = _instruments(config, registry, given.endpoints, store)
    # What is replayed was recorded after the hooks.
    hooks = load_hooks(config, guard, instruments.hooks.hooked) if own else HookChain()
    webhook, figures = make_webhook(config), make_figures(config, store, instruments.metrics)
    runner = Runner(
        registry,
        policy,
        store,
        None,
        clock,
        paged_results=paged_results,
        cached_results=store if store.sealed and config.store.content != "none" else None,
        on_crash=given.on_tool_crash,
        on_closed=instruments.hooks.invocation_ended,
        effects=store,
        credentials=credentials.broker if credentials is not None and given.fetch_credentials else None,
        now=store.now,
        hooks=hooks,
        **_runner_settings(config),
    )
    services = Services(
        config=config,
        registry=registry,
        policy=policy,
        runner=runner,
        store=store,
        upstreams=open_upstreams(config, given, instruments, guard, upstreams),
        limiter=_limiter(config, instruments, store.now),
        egress=egress,
        credentials=credentials,
        instruments=instruments,
        approvals=make_approvals(config, runner, store, figures, webhook),
        webhook=webhook,
        approval_figures=figures,
        pinned=pinned,
        agents=agents,
        links=links,
        hooks=hooks,
    )
    return await _start(services)


def _runner_settings(config: Config) -> dict[str, Any]:
    """Return the operator's settings for the runner of tools."""
    return {
        "default_timeout_s": config.tools.timeout_s,
        "max_read_only": config.limits.concurrent_tools,
        "max_read_only_per_caller": config.limits.concurrent_tools_per_caller,
        "max_parallel": config.tools.max_parallel,
        "log_arguments": config.store.content != "none",
    }


def _policy(config: Config, credentials: OpenCredentials | None) -> Policy:
    """Build the operator's policy for tools."""
    return Policy(
        **{**dict(config.policy), "arguments": argument_bounds(config)},
        connections=credentials.broker.names if credentials is not None else None,
    )


async def _start(services: Services) -> Services:
    """Open the record, and serve the tools that are pinned there."""
    registry, mcp = services.registry, services.mcp
    registry.set_check(services.check_catalog)
    if mcp:
        services.instruments.add_source(
            mcp_metrics(lambda: [server for each in mcp for server in each.latest_overview])
        )
    await services.store.start()
    try:
        for provider in services.pinned:
            if await provider.begin():
                await registry.refresh(quiet=True)
            provider.follow(services.refresh_tools)
        if services.approval_figures is not None:
            services.approval_figures.start()
    except BaseException:  # A start that fails or is cancelled leaves nothing open.
        await services.aclose()
        raise
    return services


def _instruments(config: Config, registry: Registry, endpoints: EndpointTable, store: Store) -> Instruments:
    """Open metrics and traces; their labels come from the configuration and the registry."""
    instruments = open_instruments(
        count=config.telemetry.metrics,
        otlp_endpoint=config.telemetry.otlp_endpoint,
        upstreams={name: upstream.base_url for name, upstream in config.upstreams.items()},
        models=known_models(
            (
                *(upstream.models for upstream in config.upstreams.values()),
                [agent.model for agent in config.agents.values() if agent.model],
            ),
            config.prices,
        ),
        tools=registry,
        keys=RefusedKeys(config.key_settings()),
        endpoints=endpoints,
        version=__version__,
        servers=tuple(config.mcp.servers),
        requests=store if config.store.requests else None,
        content=_content(config, registry, endpoints) if config.telemetry.content else None,
    )
    instruments.watch_store(store)
    return instruments


def _content(config: Config, registry: Registry, endpoints: EndpointTable) -> ContentReader:
    """Build what reads the content of requests for traces."""
    aliases: dict[str, str] = dict((*config.tools.hosted.items(), *config.tools.aliases.items()))

    def mask(name: str, arguments: str) -> str:
        spec = registry.current.get(aliases.get(name, name))
        return arguments if spec is None else redact_written(arguments, spec)

    shapes = shapes_of_secrets(config.secrets())
    secrets = Secrets(shapes) if shapes else None
    return ContentReader(endpoints, built_in_wires(), mask, secrets, config.telemetry.content_max_chars)


def _limiter(config: Config, instruments: Instruments, now: Callable[[], float]) -> RateLimiter:
    limits = config.limits
    general = KeyLimits(
        requests=parse_limits("limits.requests", limits.requests),
        tool_calls=parse_limits("limits.tool_calls", limits.tool_calls),
        tokens=parse_limits("limits.tokens", limits.tokens),
        cost=parse_cost_limits("limits.cost", limits.cost),
    )
    return RateLimiter(
        general,
        open_counters(limits.storage_url, now),
        on_error=limits.on_error,
        limited=instruments.hooks.limited,
    )
