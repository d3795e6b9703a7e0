"""The one module that uses private names of the official SDK.

:class:`~mcp.client.session.ClientSession` validates a whole list of tools at once and a whole result. So one
bad definition would hide all tools of its server, and an unknown kind of content would lose the result. This
module sends requests through the session's dispatcher, marked with the negotiated protocol revision, and
returns unchanged answers. ``tests/tools/mcp/host/test_tools_mcp_host_sdk.py`` fails if an update of the SDK
changes any of this.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.client._probe import negotiate_auto
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

from proxy import __version__
from proxy.tools.mcp.host.stdio import Streams

OnProgress = ProgressFnT
"""Called with the progress of a request: how much is done, the total if known, and a message."""


class McpClientSession:
    """A session over the streams of a transport; one task must enter and leave it."""

    def __init__(self, streams: Streams, on_changed: Callable[[], None]) -> None:
        """``on_changed`` is called when the server reports that its list of tools has changed."""
        self._on_changed = on_changed
        self._dispatcher = JSONRPCDispatcher(*streams)
        self._session = ClientSession(
            dispatcher=self._dispatcher,
            client_info=types.Implementation(name="toolrelay", version=__version__),
            message_handler=self._on_message,
        )

    async def __aenter__(self) -> "McpClientSession":
        await self._session.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await self._session.__aexit__(*exception)

    async def negotiate(self) -> None:
        """Negotiate the protocol revision: the newest, or else by the handshake of earlier ones.

        Raises MCPError and whatever a transport raises.
        """
        await negotiate_auto(self._session)

    @property
    def version(self) -> str:
        """The negotiated protocol revision; ``""`` if there is none yet."""
        return self._session.protocol_version or ""

    @property
    def server_info(self) -> tuple[str, str]:
        """The server's own name and version; empty if it does not send them."""
        info = self._session.server_info
        return (info.name, info.version) if info is not None else ("", "")

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        timeout_s: float,
        on_progress: OnProgress | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return a request's unvalidated result; raise MCPError for an error, time-out or lost connection.

        ``headers`` are HTTP headers of this request, beside the protocol's own.
        """
        data: dict[str, Any] = {"method": method, "params": dict(params)}
        options: CallOptions = {"timeout": timeout_s}
        if headers:
            options["headers"] = dict(headers)
        if on_progress is not None:
            options["on_progress"] = on_progress
        self._session._stamp(data, options)
        return await self._dispatcher.send_raw_request(method, data["params"], options)

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_changed()


def quiet_sdk() -> None:
    """Silence the SDK's loggers, because they print what servers send, word for word."""
    for name in ("mcp", "client", "httpx2", "httpcore2"):
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)
