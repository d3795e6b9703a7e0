"""Requests without a client and an application with one handler, for tests of the HTTP server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from aiohttp.test_utils import make_mocked_request

from proxy.server.connections.application import ConnectionBounds, Handler
from proxy.server.connections.connection import EdgeConnection
from proxy.server.connections.draining import Draining
from proxy.server.messages.heads.head import Head
from proxy.server.messages.request import EdgeRequest


@dataclass
class Behind:
    """An :class:`~proxy.server.connections.application.Application` that has only one handler."""

    handle: Handler
    bounds: ConnectionBounds = field(default_factory=ConnectionBounds)
    draining: Draining = field(default_factory=Draining)
    closed: bool = False

    async def aclose(self) -> None:
        self.closed = True


def edge_request(
    method: str = "GET", path: str = "/", headers: Mapping[str, str] | None = None
) -> EdgeRequest:
    """Return a request without a client or a connection."""
    mocked = make_mocked_request(method, path, headers)
    connection = cast(EdgeConnection, mocked.protocol)
    return EdgeRequest(Head(mocked._message), mocked.content, connection, mocked.task)
