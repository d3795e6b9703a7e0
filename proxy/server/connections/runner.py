"""Run the server: every connection that a socket accepts is an :class:`EdgeConnection`."""

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from proxy.server.connections.application import Application
from proxy.server.connections.connection import EdgeConnection
from proxy.server.messages.heads.known_heads import KnownHeads


class EdgeRunner(web.ServerRunner):
    """Serves an application over :class:`EdgeConnection`, and closes the application at the end."""

    def __init__(self, served: Application, *, shutdown_timeout: float = 60.0) -> None:
        self._known = KnownHeads()
        super().__init__(_EdgeServer(served, self._known), shutdown_timeout=shutdown_timeout)
        self._served = served

    async def shutdown(self) -> None:
        """Refuse new requests on open connections; the sockets are closed already."""
        self._served.draining.refuse()

    async def cleanup(self) -> None:
        """End all connections, then close the application."""
        await super().cleanup()
        self._known.forget()
        await self._served.aclose()


class _EdgeServer(web.Server):
    def __init__(self, served: Application, known: KnownHeads) -> None:
        # handler_cancellation: a client that leaves must end its upstream call and its tools (rule E4).
        # The requests are EdgeConnection's own, so they are what the handler takes.
        super().__init__(served.handle, handler_cancellation=True)  # type: ignore[arg-type]
        self._served = served
        self._known = known
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.access")

    def __call__(self) -> RequestHandler:
        return EdgeConnection(self, self._served.handle, self._served.bounds, self._known, self._log)
