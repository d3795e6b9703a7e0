"""Builds the web UI from the configuration and the services."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from proxy import __version__
from proxy.api.admin.admin import Admin
from proxy.api.taping.taping import Taping
from proxy.app.compose.services import Services
from proxy.config.checks.rules import is_loopback
from proxy.config.key_grants import KeyGrants
from proxy.config.load import Config
from proxy.config.shown import shown_address, shown_settings
from proxy.relay.routing.router import Router
from proxy.rights.callers import PLAYGROUND, Caller, Rights
from proxy.rights.limit_rules import KeyLimits, parse_limits
from proxy.server.auth.authenticate import Authentication, OpenAuthenticator
from proxy.server.auth.key_ring import KeyRing
from proxy.server.connections.draining import Draining
from proxy.server.messages.target import Targets
from proxy.server.peers import Peers
from proxy.ui.feed import Feed
from proxy.ui.live import Live
from proxy.ui.login.openid import OpenIdLogin
from proxy.ui.login.pages import LoginPages
from proxy.ui.pages.approvals import ApprovalPages
from proxy.ui.pages.leading_up import LeadingUp
from proxy.ui.pages.server import ServerFacts, ServerPages
from proxy.ui.pages.tools import ToolPages
from proxy.ui.playground import Playground, ServeAs
from proxy.ui.remedies import Lines
from proxy.ui.runs.capturing import Capturing
from proxy.ui.runs.run_rows import RunRows
from proxy.ui.runs.runs import Budget, OfferFacts, Replay, RunPages
from proxy.ui.runs.searching import RunSearch
from proxy.ui.sessions import Sessions, UiSession, signing_key
from proxy.ui.sign_in import SignIn
from proxy.ui.static_files import StaticFiles
from proxy.ui.surface import Ui, UiRoute
from proxy.wires.registry.wires import built_in_wires


def serves_ui(config: Config, authentication: Authentication) -> bool:
    """Return whether ``/ui`` is served: not if everybody on a network is let in without a key."""
    is_open = isinstance(authentication.authenticator, OpenAuthenticator)
    return config.ui.enabled and (not is_open or is_loopback(config.server.host))


def make_sessions(services: Services, authentication: Authentication, hash_key: bytes) -> Sessions:
    """Build the sessions of signed-in people; ``hash_key`` is the record's."""
    store, config = services.store, services.config
    # Without a table everybody with a valid token is let in, and sees their own runs.
    roles: Mapping[str, KeyGrants] = config.auth.jwt.roles or {"*": KeyGrants()}
    return Sessions(
        signing_key(hash_key),
        authentication.ring,
        store,
        lasts_s=config.ui.session_s,
        roles=roles if config.ui.login.client_id else None,
        realm=f"{config.auth.jwt.issuer} {config.ui.login.client_id}",
        now=store.now,
    )


class UiDependencies(Struct, frozen=True):
    """The parts of the HTTP surface that the pages need besides the services."""

    admin: Admin
    router: Router
    ring: KeyRing
    draining: Draining
    targets: Targets
    peers: Peers


class WebUi:
    """The builder of the web UI's pages."""

    def __init__(
        self,
        services: Services,
        sessions: Sessions,
        taping: Taping,
        demo: Mapping[str, Any] | None = None,
        login: OpenIdLogin | None = None,
    ) -> None:
        self._services = services
        self.login = login
        self.sessions = sessions
        self._taping = taping
        self._demo = demo
        self._playground: Playground | None = None

    def open(self, dependencies: UiDependencies, replay: Replay) -> Ui:
        """Build the surface; its playground answers only after :meth:`serve_playground`."""
        services, config, store = self._services, self._services.config, self._services.store
        rows = RunRows(store)
        offer = OfferFacts(services.registry, services.policy, _lines(config))
        capturing = Capturing(
            self._taping,
            dependencies.peers,
            store,
            config.keys,
            wires={served.upstream.name: tuple(served.wires) for served in dependencies.router.served},
            tables={name: wire.codec.fields for name, wire in built_in_wires().items()},
            secrets=config.secrets(),
        )
        codecs = {name: wire.codec for name, wire in built_in_wires().items()}
        runs = RunPages(
            RunSearch(dependencies.admin, rows, store),
            offer,
            _budgets(config),
            paths=services.paths,
            codecs=codecs,
            replay=replay,
            wire=capturing,
        )
        tools = ToolPages(
            dependencies.admin,
            store,
            offer,
            dependencies.router,
            dependencies.ring,
            tools_enabled=config.tools.enabled,
        )
        decisions = dependencies.admin.approvals
        approvals = ApprovalPages(decisions, rows, LeadingUp(decisions.decisions, store, codecs))
        feed = Feed(store, rows, secrets.token_hex(4), approvals.news)
        sign_in = SignIn(self.sessions, self._facts, self.login.end_address if self.login else None)
        live = Live(feed, sign_in.still_valid, dependencies.draining)
        pages = ServerPages(
            store, dependencies.ring, dependencies.router, _server_facts(config), lambda: feed.listeners
        )
        self._playground = Playground(_player(config), dependencies.targets.read)
        routes = {
            "runs": UiRoute(runs.answer, own=True),
            "capture": UiRoute(capturing.answer),
            "compare": UiRoute(runs.compare),
            "approvals": UiRoute(approvals.answer, approvers=True),
            "events": UiRoute(live.answer, approvers=True, own=True, streams=True),
            "tools": UiRoute(tools.tools),
            "mcp": UiRoute(tools.servers),
            "explain": UiRoute(tools.explain),
            "keys": UiRoute(pages.keys),
            "usage": UiRoute(pages.usage),
            "upstreams": UiRoute(pages.upstreams),
            "settings": UiRoute(pages.settings),
            "health": UiRoute(pages.health),
            "play": UiRoute(self._playground.answer, streams=True),
        }
        return Ui(StaticFiles(), sign_in, LoginPages(self.login, self.sessions), routes)

    def serve_playground(self, serve: ServeAs) -> None:
        """Answer the playground's requests with ``serve``."""
        if self._playground is not None:
            self._playground.serve = serve

    def _facts(self, session: UiSession) -> dict[str, Any]:
        config = self._services.config
        capture = self._taping.captures.refused
        models = config.ui.playground_models
        return {
            "version": __version__,
            "content": config.store.content,
            "approvals": {"edit": config.approvals.edit},
            "capture": {
                "allowed": capture is None,
                "reason": capture,
                "keeps": not self._taping.not_kept,
                "not_kept": self._taping.not_kept or None,
            },
            "playground": {
                "allowed": bool(models),
                "reason": None if models else "ui.playground_models is empty",
            },
            "demo": None if self._demo is None else dict(self._demo),
            "currency": config.billing.currency,
        }


def _budgets(config: Config) -> tuple[Budget, ...]:
    tools = config.tools
    return (
        Budget("turns", tools.max_turns, "tools.max_turns"),
        Budget("calls", tools.max_calls, "tools.max_calls"),
        Budget("tokens", tools.max_tokens, "tools.max_tokens"),
        Budget("cost", tools.max_cost, "tools.max_cost"),
        Budget("time", tools.request_timeout_s, "tools.request_timeout_s", "s"),
    )


def _lines(config: Config) -> Lines:
    """Return the lists that decide on tools, by their settings."""
    policy = config.policy
    lists: dict[str, Sequence[str]] = {
        "policy.allow": policy.allow,
        "policy.approve": policy.approve,
        "policy.approve_effects": policy.approve_effects,
        "policy.approve_safety": policy.approve_safety,
    }
    lists |= {f"keys.{name}.tools": key.tools for name, key in config.keys.items()}
    for name, upstream in config.upstreams.items():
        if isinstance(upstream.tools, tuple):
            lists[f"upstreams.{name}.tools"] = upstream.tools
    return Lines(lists)


def _player(config: Config) -> Caller | None:
    """Return the caller of the playground: one with few rights, whoever uses the page; ``None`` if it is
    off."""
    ui = config.ui
    if not ui.playground_models:
        return None
    every = ("*",)
    return Caller(
        name=PLAYGROUND,
        counted_as=PLAYGROUND,
        limits=KeyLimits(requests=parse_limits("ui.playground_requests", ui.playground_requests)),
        rights=Rights(
            models=() if ui.playground_models == every else (ui.playground_models,),
            tools=() if ui.playground_tools == every else (("ui.playground_tools", ui.playground_tools),),
            isolated=True,
            shared=True,
        ),
    )


def _server_facts(config: Config) -> ServerFacts:
    return ServerFacts(
        settings=shown_settings(config),
        declared={
            name: {word: getattr(key, word) for word in KeyGrants.model_fields}
            for name, key in config.keys.items()
        },
        addresses={name: shown_address(upstream.base_url) for name, upstream in config.upstreams.items()},
        health={
            "version": __version__,
            "workers": config.server.workers,
            "content": config.store.content,
            "record": {"kind": config.store.url.partition(":")[0]},
        },
    )
