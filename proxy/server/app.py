"""The composition root: from a configuration to a running application.

Only here are concrete wires, stores, upstreams and tools named.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from proxy.errors import UpstreamError
from proxy.relay.base import RunSettings, no_events
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
from proxy.server.settings import UpstreamConfig
from proxy.server.stored_responses import StoredResponses
from proxy.store.base import Store
from proxy.store.factory import open_store
from proxy.toolbox.clock import SystemClock
from proxy.toolbox.core import core_provider
from proxy.tools.capabilities import Capabilities, Clock, HttpSource
from proxy.tools.egress import EgressPool
from proxy.tools.modules import load_module
from proxy.tools.policy import Policy
from proxy.tools.provider import ToolProvider
from proxy.tools.registry import Registry
from proxy.tools.runner import Runner
from proxy.upstreams.base import Upstream
from proxy.upstreams.http import HttpUpstream
from proxy.upstreams.replay import ReplayUpstream, packaged_fixtures
from proxy.wires.base import Wire
from proxy.wires.chat import ChatWire, error_event
from proxy.wires.responses import ResponsesWire
from proxy.wires.responses.retold import retell

__all__ = ["SERVICES", "Overrides", "Services", "create_app", "create_services"]


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a caller puts in place of the machine's own: the clock, the tools' HTTP, an onlooker, and
    what stands before every upstream and every source of tools."""

    clock: Clock | None = None
    http: HttpSource | None = None
    on_run_event: Callable[[str, Mapping[str, Any]], None] | None = None
    wrap_upstream: Callable[[Upstream], Upstream] | None = None
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
    egress = EgressPool() if given.http is None else None
    http = given.http or (egress.client if egress is not None else None)
    if http is None:
        raise RuntimeError("no HTTP source for tools")
    capabilities = Capabilities(clock=clock, http=http)
    providers = [
        core_provider(clock, http),
        *(load_module(module, base=Path.cwd(), capabilities=capabilities) for module in config.tools.modules),
    ]
    registry = await Registry.load(map(given.wrap_provider, providers) if given.wrap_provider else providers)
    policy = Policy(
        allow=config.policy.allow,
        approve=config.policy.approve,
        approve_effects=config.policy.approve_effects,
        max_argument_bytes=config.policy.max_argument_bytes,
        max_result_bytes=config.policy.max_result_bytes,
    )
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
    runner = Runner(registry, policy, store, limiter, clock, default_timeout_s=config.tools.timeout_s)
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
    """The application; closing it closes its services."""
    services = await create_services(config, overrides=overrides, reap=True)
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
    gate = Gate(services.limiter, ConcurrentStreams(config.limits.concurrent_streams))
    api = Api(
        router=Router([_served(services, name) for name in config.upstreams]),
        wires=services.wires,
        error_events=_error_events(),
        orchestrator=orchestrator,
        history=history,
        registry=services.registry,
        policy=services.policy,
        store=services.store,
        responses=StoredResponses(services.store, retell),
        memory=memory,
        repeats=repeats,
        gate=gate,
        settings=ApiSettings(
            max_body_bytes=config.server.max_body_bytes,
            max_upload_bytes=config.server.max_upload_bytes,
            tools_enabled=config.tools.enabled,
            trace=config.tools.trace,
            trace_max=config.tools.trace_max,
            history=config.store.history,
            keep_requests=config.store.content == "all",
            end_user=config.auth.end_user,
            offer=OfferRules(inject=config.tools.inject, aliases=dict(config.tools.aliases)),
        ),
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
