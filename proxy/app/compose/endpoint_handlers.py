"""Builds the handlers of endpoints."""

from collections.abc import Sequence

from msgspec import Struct

from proxy.api.detached.background import BackgroundRuns, BackgroundSettings
from proxy.api.detached.background_reader import BackgroundReader
from proxy.api.detached.logs.event_log import EventLogs, LocalLogs
from proxy.api.detached.resumable import ResumableRuns
from proxy.api.detached.runs import DetachedRuns
from proxy.api.detached.take_over import TakeOver
from proxy.api.generate.counting import Counting
from proxy.api.generate.forwarder import Forwarder, Passthrough
from proxy.api.generate.generate import Generate
from proxy.api.generate.owned_stream import ClientStreams
from proxy.api.generate.request_reader import RequestReader
from proxy.api.managed import Managed
from proxy.api.mcp.endpoint import McpHandler
from proxy.api.mcp.sessions import McpSessions
from proxy.api.models import Models
from proxy.api.pipeline import EndpointHandler
from proxy.api.stored.by_id import StoredResponseHandler
from proxy.api.stored.responses import StoredResponses
from proxy.app.compose.ask_again import StoredAskBuilder
from proxy.app.compose.overrides import Overrides
from proxy.app.compose.runs import create_runs
from proxy.app.compose.services import Services
from proxy.config.load import Config
from proxy.http.rules import HeaderRules
from proxy.relay.memory.commit_waiter import CommitWaiter
from proxy.relay.memory.deletion import UpstreamDeletion
from proxy.relay.routing.router import Router
from proxy.relay.run.tapes import Tapes
from proxy.relay.starting.direct_calls import DirectCalls
from proxy.relay.starting.runs import Runs
from proxy.server.auth.permissions import PermissionSets
from proxy.server.auth.principals import Principals
from proxy.server.auth.tickets import Tickets
from proxy.server.connections.draining import Draining
from proxy.server.messages.body import BodyBounds
from proxy.wires.dialect import Kind
from proxy.wires.registry.wires import built_in_wires, completion_wires
from proxy.wires.responses.body import upstream_ids
from proxy.wires.responses.dialect import DELETE
from proxy.wires.responses.item_events import stream_of_stored
from proxy.wires.wire import Wire


class HandlerDependencies(Struct, frozen=True):
    """The other parts of the server that handlers need: upstreams, draining, and the permissions and tickets
    of callers."""

    router: Router
    draining: Draining
    permissions: PermissionSets
    tickets: Tickets


def make_endpoint_handlers(
    services: Services,
    given: Overrides,
    dependencies: HandlerDependencies,
    item_keys: Sequence[bytes],
    tapes: Tapes,
) -> dict[Kind, EndpointHandler]:
    """Build the handlers of admitted requests by the kind of their endpoint; ``other`` handles all other
    kinds.

    ``item_keys`` are those of :func:`~proxy.wires.registry.wires.built_in_wires`.
    """
    draining = dependencies.draining
    config, store, principals = services.config, services.store, Principals(services.config.auth.end_user)
    wires = {**built_in_wires(item_keys), **given.wires}
    runs = create_runs(services, given, wires, item_keys, tapes)
    request_reader = RequestReader(_body_bounds(config), principals, store, runs.memory.commits)
    clients = ClientStreams(
        store, runs.memory.threads, runs.memory.commits, draining, principals, given.listen
    )
    hooks, reads = services.instruments.hooks, config.store.requests
    forwarder = Forwarder(request_reader, clients, runs.prices, hooks, wires, reads_usage=reads)
    passthrough = Passthrough(request_reader, forwarder, runs.prices, refuses_unread=_refuses(services))
    detached = _detached_runs(
        services, dependencies, runs, wires["responses"], request_reader, _event_logs(config, item_keys)
    )
    generate = Generate(
        {**wires, **completion_wires(item_keys)},
        runs,
        request_reader=request_reader,
        forwarder=forwarder,
        clients=clients,
        passthrough=passthrough,
        history=config.store.history,
        detached=detached,
    )
    stored = StoredResponseHandler(
        _stored_responses(services, runs.memory.commits, dependencies.router),
        request_reader,
        forwarder,
        clients,
        detached.reader,
    )
    mcp = McpHandler(
        _direct_calls(services, given, runs),
        McpSessions(item_keys[0]),
        request_reader=request_reader,
        clients=clients,
        keepalive_s=config.tools.keepalive_s,
    )
    return {
        "generate": generate,
        "complete": generate,
        "count": Counting(request_reader, forwarder, runs, wires=wires),
        "stored": stored,
        "models": Models(forwarder, request_reader, runs.prices),
        "manage": Managed(passthrough),
        "mcp": mcp,
        "other": passthrough,
    }


def _refuses(services: Services) -> bool:
    """Return whether requests whose texts no hook can see are refused."""
    return services.hooks.requests and services.config.hooks.unread == "refuse"


def _detached_runs(
    services: Services,
    dependencies: HandlerDependencies,
    runs: Runs,
    wire: Wire,
    request_reader: RequestReader,
    logs: EventLogs,
) -> DetachedRuns:
    """Build the runs that continue without their clients, and the component that takes over runs of ended
    processes."""
    config, store, hooks = services.config, services.store, services.instruments.hooks
    background = BackgroundRuns(runs, store, logs, _background_settings(config), hooks.run_context)
    resumable = ResumableRuns(logs, store, config.tools.resume_s)
    others = tuple(dict.fromkeys(one.dialect.wire for one in built_in_wires().values()))
    ask_again = StoredAskBuilder(
        wire,
        others,
        runs=runs,
        request_reader=request_reader,
        tickets=dependencies.tickets,
        permissions=dependencies.permissions,
        limiter=services.limiter,
    )
    take_over = TakeOver(background, store, ask_again, hooks.orphaned, lambda: dependencies.draining.closing)
    take_over.start()
    services.detached.extend((take_over.stop, background.drain, resumable.drain, lambda _: logs.aclose()))
    return DetachedRuns(
        background,
        BackgroundReader(background, store, logs, take_over.settle_orphans),
        resumable,
        dependencies.tickets,
    )


def _event_logs(config: Config, item_keys: Sequence[bytes]) -> EventLogs:
    """Open the logs of events: those of all processes if the limits are counted in Redis."""
    if (url := config.limits.storage_url) == "memory://":
        return LocalLogs()
    from proxy.api.detached.logs.redis_logs import RedisLogs

    return RedisLogs(url, item_keys)


def _direct_calls(services: Services, given: Overrides, runs: Runs) -> DirectCalls:
    return DirectCalls(
        services.runner,
        services.store,
        runs.memory.idempotency,
        services.instruments.run_events(given.on_run_event),
        budget_s=services.config.tools.request_timeout_s,
    )


def _stored_responses(services: Services, commits: CommitWaiter, router: Router) -> StoredResponses:
    forget = UpstreamDeletion(services.store, router, upstream_ids, DELETE)
    return StoredResponses(services.store, commits, stream_of_stored, forget)


def _background_settings(config: Config) -> BackgroundSettings:
    names = [name for upstream in config.upstreams.values() for name in upstream.forward_headers]
    return BackgroundSettings(
        per_caller=config.limits.background,
        total=config.limits.background_total,
        time_s=config.tools.background_s,
        keepalive_s=config.tools.keepalive_s,
        keeps=config.store.content != "none",
        headers=HeaderRules("*", names),
    )


def _body_bounds(config: Config) -> BodyBounds:
    server = config.server
    return BodyBounds(
        server.max_body_bytes, server.max_json_values, server.max_upload_bytes, server.body_timeout_s
    )
