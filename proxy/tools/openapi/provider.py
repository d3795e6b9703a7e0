"""The provider of tools from OpenAPI documents: it offers operations as pinned, and calls their APIs.

It reads no document. What a request needs was pinned with the definition, so that a document which changes
changes nothing before an operator has seen it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.base.errors import ToolFailure
from proxy.net.public_addresses import may_carry_secrets
from proxy.records.rows import ToolEffect
from proxy.tools.access.egress import EgressClient, HttpFailure
from proxy.tools.access.placement import Placement
from proxy.tools.contract.capabilities import unconnected
from proxy.tools.contract.provider import CallContext, Person
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.mcp.definitions import UnusableDefinition
from proxy.tools.mcp.pinned import PinnedProvider
from proxy.tools.mcp.pins import PinSource
from proxy.tools.openapi.answers import explained, read_answer, secrets_in
from proxy.tools.openapi.api import PROVIDER, Api
from proxy.tools.openapi.requests import make_request

ApiClients = Callable[[str, Sequence[str], Placement | None, Person | None], EgressClient | None]
"""Called as ``(connection, hosts, place, person)``; returns a client that reaches only the hosts and carries
the connection's credentials in the place. ``None`` if there is no such connection; without a place, no
credentials are needed."""


class OpenApiProvider(PinnedProvider):
    """The :class:`~proxy.tools.contract.provider.ToolProvider` of the operations of all APIs."""

    def __init__(
        self, apis: Mapping[str, Api], pins: PinSource, clients: ApiClients | None, *, timeout_s: float = 30.0
    ) -> None:
        """``clients`` is ``None`` if tools are only listed; calls then fail.

        ``timeout_s`` is the default time limit of a call in seconds.
        """
        super().__init__(PROVIDER, apis, pins)
        self._apis = apis
        self._clients = clients
        self._timeout_s = timeout_s
        self._secrets = {name: secrets_in(api.headers.values()) for name, api in apis.items()}

    async def call_tool(self, spec: ToolSpec, arguments: Any, context: CallContext) -> Any:
        origin = spec.origin
        if origin is None or self._clients is None:
            raise RuntimeError("nothing was started that calls APIs")
        pinned = self._pin_of(spec, origin.digest).definition.request
        if pinned is None:
            raise RuntimeError(f"{spec.name} is no operation")
        try:
            request = make_request(pinned, arguments)
        except UnusableDefinition as fault:
            raise ToolFailure(str(fault)) from None
        api = self._apis[origin.server]
        if api.headers and not may_carry_secrets(request.url):
            raise ToolFailure("the headers of this API are not sent over plain HTTP")
        client = self._clients(api.connection, (request.host,), request.credentials, context.person)
        if client is None:
            raise unconnected(api.connection)
        timed = client.with_time(api.timeout_s or self._timeout_s)
        try:
            answer = await timed.exchange(
                request.method,
                request.url,
                {**request.headers, **api.headers},
                request.body,
                repeatable=spec.effect is ToolEffect.READ_ONLY,
            )
        except HttpFailure as failure:
            raise explained(failure, self._secrets[api.name]) from None
        return await read_answer(answer, self._secrets[api.name])
