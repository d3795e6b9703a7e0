"""Builds the layers that every request passes before a handler answers it."""

from collections.abc import Awaitable, Callable, Sequence

from proxy.api.admin.admin import Admin
from proxy.api.admin.approvals import AdminApprovals
from proxy.api.connect import ConnectPages
from proxy.api.pipeline import Pipeline
from proxy.app.compose.services import Services
from proxy.config.checks.rules import is_loopback
from proxy.config.load import Config
from proxy.relay.routing.router import Router
from proxy.rights.limit_rules import ConcurrentStreams
from proxy.server.auth.authenticate import Authenticator, ForwardAuthenticator, OpenAuthenticator
from proxy.server.auth.key_spellings import KeyFinder
from proxy.server.auth.permissions import PermissionSets
from proxy.server.connections.application import ConnectionBounds
from proxy.server.connections.client_address import TrustedProxies
from proxy.server.connections.draining import Draining
from proxy.server.messages.heads.pending_heads import PendingHeads
from proxy.server.messages.target import Targets
from proxy.server.middleware.access import AccessMiddleware
from proxy.server.middleware.admission import AdmissionControl
from proxy.server.middleware.cors import Cors
from proxy.server.middleware.page_guard import HostRule, PageGuard
from proxy.server.peers import Peers
from proxy.server.websockets.session import WebSocketBounds
from proxy.telemetry.instruments import Instruments
from proxy.telemetry.snapshots import METRICS, merge


def make_access(
    services: Services,
    targets: Targets,
    draining: Draining,
    pipeline: Pipeline,
    authenticator: Authenticator,
    finder: KeyFinder,
) -> AccessMiddleware:
    """Build the outermost layer around each request."""
    server, instruments = services.config.server, services.instruments
    cors = Cors(server.cors_origins)
    # Whether callers send keys of this proxy.
    needs_key = not isinstance(authenticator, (OpenAuthenticator, ForwardAuthenticator))
    loopback_only = is_loopback(server.host)
    hosts = None
    if loopback_only or server.allowed_hosts or not needs_key:
        hosts = HostRule(loopback_only, (server.host.lower(), *server.allowed_hosts))
    return AccessMiddleware(
        pipeline.serve,
        targets,
        guard=PageGuard(
            targets,
            cors=cors,
            hosts=hosts,
            needs_key=needs_key,
            proxies=TrustedProxies(server.trusted_proxies),
        ),
        cors=cors,
        draining=draining,
        hooks=instruments.hooks,
        models=instruments.models,
        holds_key=finder.in_target,
    )


def make_admission(services: Services, draining: Draining) -> AdmissionControl:
    """Build the admission control, which counts the open requests."""
    instruments = services.instruments
    streams = instruments.watch_streams(ConcurrentStreams(services.config.limits.concurrent_streams))
    return AdmissionControl(services.limiter, streams, draining, instruments.hooks.limited)


def make_permissions(services: Services, router: Router) -> PermissionSets:
    tools = services.config.tools
    return PermissionSets(
        router,
        services.registry,
        services.policy,
        tools_enabled=tools.enabled,
        traces=(tools.trace, tools.trace_max),
        direct=services.config.mcp.serve,
        agents={tool: agent for provider in services.agents for tool, agent in provider.agents.items()},
        asks=services.approvals.enabled,
    )


def make_admin(services: Services, authenticator: Authenticator) -> Admin:
    return Admin(
        authenticator=authenticator,
        store=services.store,
        registry=services.registry,
        policy=services.policy,
        tools_enabled=services.config.tools.enabled,
        declared=services.config.keys,
        servers=services.mcp_overview,
        approvals=AdminApprovals(services.approvals, services.registry),
    )


def make_connect(services: Services, keys: Sequence[bytes]) -> ConnectPages | None:
    """Build the pages at which end users log in, whose links ``keys`` seal; ``None`` if no connection has
    logins of end users."""
    logins = services.credentials.logins if services.credentials is not None else None
    if logins is None:
        return None
    logins.open_with(keys)
    return ConnectPages(logins, secure=services.config.server.public_url.startswith("https://"))


def snapshot_of_all(instruments: Instruments, peers: Peers) -> Callable[[], Awaitable[bytes]] | None:
    """Return a function that sums the metrics of all processes of this port; ``None`` if there are no
    metrics."""
    own = instruments.snapshot
    if own is None:
        return None
    peers.publish(METRICS, own)

    async def of_all() -> bytes:
        answers = await peers.ask_all(METRICS)
        return merge(answers.bodies, answers.ended)

    return of_all


def websocket_bounds(config: Config) -> WebSocketBounds:
    """Return how many WebSocket connections are served, for how long, and how much each may send."""
    server, limits = config.server, config.limits
    return WebSocketBounds(
        server.max_body_bytes,
        server.max_json_values,
        limits.websockets,
        limits.websockets_per_caller,
        server.websocket_idle_s,
        server.websocket_lifetime_s,
    )


def connection_bounds(config: Config) -> ConnectionBounds:
    server = config.server
    return ConnectionBounds(
        server.header_timeout_s,
        server.send_timeout_s,
        PendingHeads(server.max_pending_heads, server.max_pending_heads_per_address),
        TrustedProxies(server.trusted_proxies),
    )
