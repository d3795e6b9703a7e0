"""The web UI, from the configuration and the services."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy import __version__
from proxy.server.api.admin import Admin
from proxy.server.auth.authenticate import Authentication, OpenAuthenticator
from proxy.server.compose.overrides import Overrides
from proxy.server.compose.services import Services
from proxy.server.config.load import Config
from proxy.server.config.rules import is_loopback
from proxy.server.ui.remedies import Lines
from proxy.server.ui.run_rows import RunRows
from proxy.server.ui.runs import Budget, OfferFacts, Runs
from proxy.server.ui.sessions import Session, Sessions, signing_key
from proxy.server.ui.sign_in import SignIn
from proxy.server.ui.static_files import StaticFiles
from proxy.server.ui.surface import Route, Ui

__all__ = ["WebUi", "make_sessions", "serves_ui"]


def serves_ui(config: Config, authentication: Authentication) -> bool:
    """Whether ``/ui`` is served: not where everybody on a network comes in without a key."""
    is_open = isinstance(authentication.authenticator, OpenAuthenticator)
    return config.ui.enabled and (not is_open or is_loopback(config.server.host))


def make_sessions(services: Services, authentication: Authentication, hash_key: bytes) -> Sessions:
    """Who is signed in; ``hash_key`` is the record's."""
    return Sessions(
        signing_key(hash_key), authentication.ring, services.store, lasts_s=services.config.ui.session_s
    )


class WebUi:
    """What the pages are answered with, put together."""

    def __init__(self, services: Services, sessions: Sessions, demo: Mapping[str, str] | None = None) -> None:
        self._services = services
        self.sessions = sessions
        self._demo = demo

    def open(self, admin: Admin, given: Overrides) -> Ui:
        """The surface; ``admin`` answers what ``/admin`` does."""
        services = self._services
        rows = RunRows(services.store)
        runs = Runs(
            admin,
            rows,
            OfferFacts(services.registry, services.policy, _lines(services.config)),
            _budgets(services.config),
            paths=services.paths,
            replay=given.replay,
        )
        routes = {"runs": Route(runs.answer), "compare": Route(runs.compare)}
        return Ui(StaticFiles(), SignIn(self.sessions, self._facts), routes)

    def _facts(self, session: Session) -> dict[str, Any]:
        config = self._services.config
        capture = None
        if config.ui.capture == "off":
            capture = 'ui.capture = "off"'
        elif config.store.content != "all":
            capture = f'store.content = "{config.store.content}"; a capture needs "all"'
        models = config.ui.playground_models
        return {
            "version": __version__,
            "content": config.store.content,
            "capture": {"allowed": capture is None, "reason": capture},
            "playground": {
                "allowed": bool(models),
                "reason": None if models else "ui.playground_models is empty",
            },
            "demo": None if self._demo is None else dict(self._demo),
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
    """The lists that decide on tools, by their settings."""
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
