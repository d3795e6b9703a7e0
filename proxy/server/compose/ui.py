"""The web UI, from the configuration and the services."""

from typing import Any

from proxy import __version__
from proxy.server.auth.authenticate import Authentication, OpenAuthenticator
from proxy.server.compose.services import Services
from proxy.server.config.load import Config
from proxy.server.config.rules import is_loopback
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

    def __init__(self, services: Services, sessions: Sessions) -> None:
        self._config = services.config
        self.sessions = sessions

    def open(self, routes: dict[str, Route]) -> Ui:
        """The surface with these routes."""
        return Ui(StaticFiles(), SignIn(self.sessions, self._facts), routes)

    def _facts(self, session: Session) -> dict[str, Any]:
        config = self._config
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
            "demo": None,
        }
