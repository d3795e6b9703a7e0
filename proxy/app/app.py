"""The composition root: builds a running application from a configuration.

Only this module and ``app/compose/`` name concrete wires, stores, upstreams and tools.
"""

import hashlib
from collections.abc import Sequence

import structlog
from msgspec import Struct

from proxy.api.own_paths import OwnPaths
from proxy.api.pipeline import Pipeline
from proxy.api.tokens import Tokens
from proxy.app.compose.edge import (
    connection_bounds,
    make_access,
    make_admin,
    make_admission,
    make_connect,
    make_permissions,
    snapshot_of_all,
    websocket_bounds,
)
from proxy.app.compose.endpoint_handlers import HandlerDependencies, make_endpoint_handlers
from proxy.app.compose.overrides import Overrides
from proxy.app.compose.runs import create_runs
from proxy.app.compose.services import Services, create_services
from proxy.app.compose.taping import make_taping
from proxy.app.compose.ui import UiDependencies, WebUi, make_sessions, serves_ui
from proxy.app.open_authentication import open_authentication
from proxy.app.open_login import open_login
from proxy.app.replaying.offline import OfflineReplay
from proxy.config.load import Config
from proxy.server.auth.authenticate import Authentication
from proxy.server.auth.tickets import Tickets
from proxy.server.connections.application import ConnectionBounds, Handler
from proxy.server.connections.draining import Draining
from proxy.server.messages.target import Targets
from proxy.server.peers import Peers
from proxy.server.transport.aiohttp_seam import check_http_parser
from proxy.server.websockets.session import WebSockets
from proxy.store.base import KeySource
from proxy.ui.sessions import Sessions
from proxy.wires.mcp.dialect import ENDPOINTS as MCP_ENDPOINTS

__all__ = [
    "App",
    "Overrides",
    "Services",
    "create_app",
    "create_runs",
    "create_services",
]


class App(Struct, frozen=True):
    """Services with their HTTP surface, run by :class:`~proxy.server.connections.runner.EdgeRunner`.

    ``ui`` is ``None`` if the web UI is not served.
    """

    services: Services
    authentication: Authentication
    draining: Draining
    bounds: ConnectionBounds
    handle: Handler
    ui: WebUi | None = None

    @property
    def sessions(self) -> Sessions | None:
        """The sessions of the web UI; ``None`` if it is not served."""
        return self.ui.sessions if self.ui is not None else None

    async def aclose(self) -> None:
        """Close the services; see :meth:`Services.aclose`."""
        if self.ui is not None and self.ui.login is not None:
            await self.ui.login.aclose()
        await self.authentication.aclose()
        await self.services.aclose(self.draining.hurried)


async def create_app(
    config: Config, *, overrides: Overrides | None = None, peers: Peers | None = None
) -> App:
    """Build the application; closing it closes its services. ``peers`` are other processes of the same port.

    Raises what :func:`create_services` raises. Raises ConfigError if an allowed tool lacks its credentials or
    a bound has no effect. Raises it too if the server would admit other machines without a key and the
    configuration does not say so, and if aiohttp cannot serve safely.
    """
    check_http_parser()
    services, authentication, hash_key = await _checked_services(config, overrides)
    item_keys = await _item_keys(services.store, hash_key)
    given = (overrides or Overrides()).with_plugins(config)
    authenticator = given.authenticator or authentication.authenticator
    endpoints = given.endpoints.extended_with(MCP_ENDPOINTS) if config.mcp.serve else given.endpoints
    targets, draining = Targets(endpoints), Draining()
    peers, web_ui, has_ui = peers or Peers(), None, serves_ui(config, authentication)
    admin = make_admin(services, authenticator)
    taping = make_taping(services, given, peers, captures_allowed=has_ui)
    if has_ui:
        sessions = make_sessions(services, authentication, hash_key)
        web_ui = WebUi(services, sessions, taping, given.demo, open_login(config, services.store, hash_key))
    router = services.router(taping.wrap)
    ui_parts = UiDependencies(admin, router, authentication.ring, draining, targets, peers)
    own = OwnPaths(
        authenticator=authenticator,
        draining=draining,
        store=services.store,
        snapshot=snapshot_of_all(services.instruments, peers),
        admin=admin,
        ui=web_ui.open(ui_parts, _replays(services)) if web_ui is not None else None,
        connect=make_connect(services, item_keys),
        needs_record=config.server.ready_needs_record,
    )
    permissions = make_permissions(services, router)
    dependencies = HandlerDependencies(router, draining, permissions, Tickets(authentication))
    stages = make_endpoint_handlers(services, given, dependencies, item_keys, taping)
    pipeline = Pipeline(
        targets=targets,
        authenticator=authenticator,
        admission=make_admission(services, draining),
        permissions=permissions,
        own=own,
        tokens=Tokens(authentication.tokens, config.server.body_timeout_s),
        stages=stages,
        sockets=WebSockets(websocket_bounds(config), draining),
    )
    if web_ui is not None:
        web_ui.serve_playground(pipeline.serve_as)
    access = make_access(services, targets, draining, pipeline, authenticator, authentication.finder)
    return App(
        services=services,
        authentication=authentication,
        draining=draining,
        bounds=connection_bounds(config),
        handle=access.handle,
        ui=web_ui,
    )


def _replays(services: Services) -> OfflineReplay:
    """Return an object that replays recorded runs for the web UI, each with its own server."""

    async def make(config: Config, overrides: Overrides) -> App:
        return await create_app(config, overrides=overrides)

    return OfflineReplay(make, services.config, services.registry, services.store)


async def _checked_services(
    config: Config, overrides: Overrides | None
) -> tuple[Services, Authentication, bytes]:
    """Return the services, the authentication and the record's hash key; close everything if one of them
    fails."""
    services = await create_services(config, overrides=overrides, reap=True)
    try:
        faults = [*services.missing_connections(), *services.misplaced_bounds()]
        if faults:
            raise faults[0]
        for line in services.idle_bounds():
            structlog.get_logger("proxy.tools").warning("bound_without_effect", reason=line)
        authentication = await open_authentication(config, services.store)
        if config.keys:
            # The next start may no longer have these names in its configuration; that must not open the
            # server.
            await services.store.note_keys()
        _, hash_key = await services.store.hash_key()
        services.instruments.watch_loop()
        return services, authentication, hash_key
    except BaseException:  # A cancelled start leaves nothing open either.
        await services.aclose()
        raise


async def _item_keys(store: KeySource, hash_key: bytes) -> Sequence[bytes]:
    """Return the keys that sign and encrypt the items that clients carry: the present key first, then the old
    ones.

    Raises :class:`~proxy.base.errors.StoreError`.
    """
    known = (await store.read_keys()).hash_keys.values()
    each = dict.fromkeys((hash_key, *known))
    return [hashlib.blake2b(b"toolrelay shown items", key=key, digest_size=32).digest() for key in each]
