"""What is asked of something stored by its id: from the record, or from the upstream that keeps it."""

from aiohttp import web

from proxy.relay.routing.fallback import FALLBACK_IF_ABSENT, Candidates
from proxy.relay.routing.router import Route
from proxy.server.api.forwarder import Forwarder
from proxy.server.api.request_reader import RequestReader
from proxy.server.api.stored_responses import StoredResponses
from proxy.server.auth.body_rights import not_found
from proxy.server.context import Context

__all__ = ["Stored"]


class Stored:
    """Answers for responses by their ids."""

    def __init__(
        self, responses: StoredResponses, request_reader: RequestReader, forwarder: Forwarder
    ) -> None:
        self._responses = responses
        self._request_reader = request_reader
        self._forwarder = forwarder

    async def answer(self, context: Context) -> web.StreamResponse:
        """One of ours, or what an upstream says; see :class:`~proxy.server.api.pipeline.EndpointHandler`."""
        request, target = context.request, context.target
        endpoint = target.endpoint
        own = await self._responses.own(
            endpoint,
            endpoint.stored_id(target.below or ""),
            target.query,
            self._request_reader.principal(context, None).name,
            [("Authorization", value) for value in request.headers.getall("Authorization", ())],
            keyed=context.caller.rights.keyed,
        )
        if own is not None:
            return own
        # Which upstream has it is not on record: they are asked in turn.
        served = context.permissions.router.served
        routes = [Route(one, "", renamed=False) for one in served if endpoint.dialect.wire in one.wires]
        if not routes:
            # Upstreams of other dialects keep no responses: what the record does not have, nobody has.
            raise not_found(endpoint.stored_id(target.below or ""))
        if len(routes) > 1 and not request.body_exists:
            return await self._forwarder.send(context, None, Candidates(routes, FALLBACK_IF_ABSENT))
        return await self._forwarder.send_by(context)
