"""Opens the sources of tools and the capabilities that tools get."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from proxy.app.compose.credentials import OpenCredentials, open_credentials
from proxy.app.compose.overrides import Overrides
from proxy.app.compose.upstreams import own_authorities, served
from proxy.app.plugins import plugin_tools
from proxy.base.errors import Guard
from proxy.base.events import GENERATE_IMAGE, RUN_PROGRAM
from proxy.config.load import Config
from proxy.config.openapi import known_apis
from proxy.net.aiohttp_resolver import AiohttpResolver
from proxy.net.resolver import Resolver
from proxy.records.rows import TokenVault
from proxy.relay.offering.deferred import SearchRules
from proxy.relay.routing.images import UpstreamImages
from proxy.relay.routing.prices import to_nanos
from proxy.store.base import Store
from proxy.toolbox.calendar import CONNECTION as CALENDAR_CONNECTION
from proxy.toolbox.calendar import GOOGLE_CALENDAR_URL, calendar_provider
from proxy.toolbox.core import CoreLinks, core_provider
from proxy.toolbox.flights import CONNECTION as FLIGHTS_CONNECTION
from proxy.toolbox.flights import DUFFEL_URL, flights_provider
from proxy.toolbox.images import image_provider
from proxy.toolbox.run_program import run_program_tool
from proxy.toolbox.weather import FORECAST_URL, GEOCODING_URL
from proxy.toolbox.web.provider import web_provider
from proxy.tools.access.addresses import WayOut
from proxy.tools.access.call_prices import CallPrices
from proxy.tools.access.catalog import Registry
from proxy.tools.access.egress import EgressClient, EgressPool
from proxy.tools.access.placement import Placement
from proxy.tools.access.policy import Policy
from proxy.tools.agents.agent import Agent
from proxy.tools.agents.provider import AgentProvider
from proxy.tools.contract.bounds import ArgumentBound
from proxy.tools.contract.capabilities import Capabilities, Clock, HttpSource
from proxy.tools.contract.provider import Person, ToolProvider
from proxy.tools.contract.results.paging import PagedResults
from proxy.tools.mcp.authorization import ServerAuthorizer
from proxy.tools.mcp.host_client import HostClient
from proxy.tools.mcp.pinned import PinnedProvider
from proxy.tools.mcp.pins import FiledPins, PinSource, RecordedPins
from proxy.tools.mcp.provider import McpProvider
from proxy.tools.openapi.provider import OpenApiProvider
from proxy.tools.programs import racer
from proxy.tools.providers.modules import load_module
from proxy.upstreams.base import Upstream

_MAX_ANSWER = 8 << 20
"""The most bytes of a service's response to a tool: a search for flights has thousands of offers."""


async def load_registry(
    providers: Sequence[ToolProvider], given: Overrides, guard: Guard, prices: CallPrices
) -> Registry:
    wrap = given.wrap_provider or (lambda provider: provider)
    return await Registry.load(map(wrap, providers), guard, prices)


def pinned_providers(
    config: Config,
    given: Overrides,
    store: Store,
    credentials: OpenCredentials | None,
    egress: EgressPool | None,
    guard: Guard,
) -> Sequence[PinnedProvider]:
    """Build the providers of the tools of MCP servers and of the operations of APIs, as far as there are."""
    if given.providers is not None or not (config.mcp.servers or config.openapi):
        return ()
    pins = _pin_source(config, given, store, guard)
    return [
        *_mcp_provider(config, given, pins, credentials),
        *_api_provider(config, pins, credentials, egress),
    ]


def _mcp_provider(
    config: Config, given: Overrides, pins: PinSource, credentials: OpenCredentials | None
) -> Sequence[McpProvider]:
    """Build the provider of the tools of all MCP servers; none if no server is configured."""
    if not config.mcp.servers:
        return ()
    servers = config.mcp.known()
    host = None
    if given.mcp_socket is not None:
        authorize = ServerAuthorizer(credentials.broker, servers) if credentials is not None else None
        host = HostClient(given.mcp_socket, authorize)
    return (McpProvider(servers, pins, host, timeout_s=config.tools.timeout_s),)


def _api_provider(
    config: Config, pins: PinSource, credentials: OpenCredentials | None, egress: EgressPool | None
) -> Sequence[OpenApiProvider]:
    """Build the provider of the operations of all APIs; none if no API is configured."""
    if not config.openapi:
        return ()

    def client(
        connection: str, hosts: Sequence[str], place: Placement | None, person: Person | None
    ) -> EgressClient | None:
        if egress is None or credentials is None:
            return None
        if place is None:
            return egress.client(hosts)
        return credentials.broker.placing_client(connection, hosts, place, person)

    return (OpenApiProvider(known_apis(config.openapi), pins, client, timeout_s=config.tools.timeout_s),)


def _pin_source(config: Config, given: Overrides, store: Store, guard: Guard) -> PinSource:
    """Return where the pins of tools are: in the file that ``mcp.pins`` names, else in the record."""
    if given.pins is not None:
        return given.pins
    if config.mcp.pins:
        with guard():
            return FiledPins(Path(config.mcp.pins))
    return RecordedPins(store)


def agent_provider(
    config: Config, given: Overrides, others: Sequence[ToolProvider], policy: Policy
) -> Sequence[AgentProvider]:
    """Build the provider of the agents; none if no agent is configured. Agents use the tools of
    ``others``."""
    if not config.agents:
        return ()
    agents = [
        Agent(
            name=name,
            description=agent.description,
            instructions=agent.instructions,
            model=agent.model,
            tools=agent.tools,
            max_turns=agent.max_turns,
            max_calls=agent.max_calls,
            max_tokens=agent.max_tokens,
            max_cost=to_nanos(agent.max_cost),
            timeout_s=agent.timeout_s,
            max_result_bytes=agent.max_result_bytes,
            output_schema=agent.output_schema if isinstance(agent.output_schema, dict) else None,
        )
        for name, agent in config.agents.items()
    ]
    return (AgentProvider(agents, others, policy),)


def tool_providers(
    config: Config,
    capabilities: Capabilities,
    clock: Clock,
    paged_results: PagedResults,
    links: CoreLinks,
    upstreams: Mapping[str, Upstream],
    guard: Guard,
) -> list[ToolProvider]:
    """Build the providers of the built-in tools and of the operator's own.

    ``upstreams`` may still be empty; they are looked up when a tool needs one.
    """
    if capabilities.http is None:
        raise RuntimeError("no HTTP source for tools")
    tools, urls = config.tools, config.tools.base_urls
    run_program = None
    if tools.programs != "off":
        with guard():
            run_program = run_program_tool(links.programs, tools.programs_timeout_s)
    providers: list[ToolProvider] = [
        core_provider(
            clock,
            capabilities.http,
            geocoding_url=urls.get("geocoding", GEOCODING_URL),
            forecast_url=urls.get("weather", FORECAST_URL),
            paged_results=paged_results,
            searches=links.searches if config.tools.search != "off" else None,
            run_program=run_program,
        ),
    ]
    if _has_account(config, FLIGHTS_CONNECTION, "flights"):
        url = urls.get("flights", DUFFEL_URL)
        providers.append(flights_provider(capabilities, base_url=url, timeout_s=tools.timeout_s))
    if _has_account(config, CALENDAR_CONNECTION, "calendar"):
        url = urls.get("calendar", GOOGLE_CALENDAR_URL)
        providers.append(calendar_provider(capabilities, base_url=url))
    if tools.web_hosts or tools.web_search:
        with guard():
            engine_url = urls.get("web_search", "")
            web = web_provider(
                capabilities, hosts=tools.web_hosts, engine=tools.web_search, engine_url=engine_url
            )
            providers.append(web)
    if (images := tools.images_at) is not None:
        name, model = images
        maker = UpstreamImages(cache(lambda: served(config, name, upstreams[name])), model)
        providers.append(image_provider(capabilities, maker))
    for module in tools.modules:
        with guard():
            loaded = load_module(module, base=Path.cwd(), capabilities=capabilities, guard=guard)
            providers.append(loaded)
    return [*providers, *plugin_tools(config, capabilities, guard)]


def _has_account(config: Config, connection: str, provider: str) -> bool:
    """Return whether the tools of a provider are loaded: their credentials exist, or ``policy.allow`` names
    them, so that what is missing is said."""
    named = any(pattern.startswith(f"{provider}__") for pattern in config.policy.allow)
    return named or connection in config.credentials


def serving_tools(config: Config) -> dict[str, str]:
    """Return the ids of the server tools that run tools of providers, by what they serve."""
    targets = {str(kind): target for kind, target in config.tools.hosted.items()}
    if config.tools.programs != "off":
        targets["code_execution"] = RUN_PROGRAM
        if racer.is_installed():
            targets["programmatic_tool_calling"] = RUN_PROGRAM
    return {**targets, "image_generation": GENERATE_IMAGE} if config.tools.images_at else targets


def search_rules(config: Config) -> SearchRules:
    """Return when models search for tools."""
    tools = config.tools
    return SearchRules(
        tools.search,
        tools.search_above_tools,
        tools.search_above_bytes,
        tuple(tools.search_shows),
        tools.search_finds,
    )


def way_of_tools(config: Config) -> WayOut:
    """Return how the requests of tools leave this network."""
    tools = config.tools
    rules = config.network.rules(tools.proxy, "tools.proxy")
    return WayOut(rules, tools.proxy_resolves, own_authorities(config.network))


def open_egress(config: Config, *, max_bytes: int = _MAX_ANSWER, timeout_s: float = 0.0) -> EgressPool:
    """Open the outgoing HTTP of tools. By default its timeout is a little shorter than a tool's, so that a
    tool can still report it."""
    networks = config.tools.networks
    return EgressPool(
        allowed_networks=networks,
        schemes=("https", "http") if networks else ("https",),
        timeout_s=timeout_s or 0.8 * config.tools.timeout_s,
        max_bytes=max_bytes,
        resolver=AiohttpResolver(Resolver("tools")),
        way=way_of_tools(config),
    )


def tool_capabilities(
    config: Config,
    clock: Clock,
    http: HttpSource | None,
    egress: EgressPool | None,
    vault: TokenVault | None,
    now: Callable[[], float],
) -> tuple[Capabilities, OpenCredentials | None]:
    """Return the capabilities of tools, and their open credentials; ``None`` if none are needed.

    ``now`` is the clock of the ``vault``, in seconds since the epoch.
    """
    if egress is None:
        given = http
        if given is None:
            raise RuntimeError("no HTTP source for tools")
        return Capabilities(clock, given, connected=lambda name, hosts: given(hosts)), None
    opened = open_credentials(config, egress, vault, now)
    return Capabilities(clock, egress.client, connected=opened.broker.client), opened


def call_prices(config: Config) -> CallPrices:
    return CallPrices({pattern: to_nanos(price) for pattern, price in config.tools.prices.items()})


def argument_bounds(config: Config) -> dict[str, dict[str, ArgumentBound]]:
    return {
        pattern: {path: bound.bound() for path, bound in bounds.items()}
        for pattern, bounds in config.policy.arguments.items()
    }
