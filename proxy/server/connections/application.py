"""Define the application behind a server's connections, and the limits of each connection."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from proxy.server.connections.client_address import TrustedProxies
from proxy.server.connections.descriptors import Descriptors
from proxy.server.connections.draining import Draining
from proxy.server.messages.heads.pending_heads import OncePerMinute, PendingHeads
from proxy.server.messages.request import EdgeRequest


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The limits of connections: seconds for a client to send a head, and to read some of a response.

    ``pending_heads`` counts incomplete heads, except those of peers whose address is ``trusted``.
    ``descriptors`` tells whether file descriptors are left for another client. ``refusals`` limits the log
    lines about both.
    """

    header_timeout_s: float = 20.0
    send_timeout_s: float = 60.0
    pending_heads: PendingHeads = field(default_factory=PendingHeads, compare=False)
    trusted: TrustedProxies = field(default_factory=TrustedProxies, compare=False)
    descriptors: Descriptors = field(default_factory=Descriptors, compare=False)
    refusals: OncePerMinute = field(default_factory=OncePerMinute, compare=False)


Handler = Callable[[EdgeRequest], Awaitable[web.StreamResponse]]


class Application(Protocol):
    """The application that answers requests. ``handle`` raises nothing but cancellations."""

    @property
    def handle(self) -> Handler: ...

    @property
    def bounds(self) -> ConnectionBounds: ...

    @property
    def draining(self) -> Draining: ...

    async def aclose(self) -> None:
        """Close the application; called when all connections have ended."""
