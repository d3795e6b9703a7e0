"""Requests for a stored object by its id: answered from the record, or by the upstream that keeps it."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from proxy.api.context import Context
from proxy.api.detached.background import PREFIX
from proxy.api.detached.background_reader import BackgroundReader
from proxy.api.detached.background_stream import ENDED, send_events
from proxy.api.generate.forwarder import Forwarder
from proxy.api.generate.owned_stream import ClientStreams
from proxy.api.generate.request_reader import RequestReader
from proxy.api.stored.responses import StoredResponses, number_of, values_of
from proxy.base.errors import RequestError
from proxy.relay.routing.fallback import FALLBACK_IF_ABSENT, Candidates
from proxy.relay.routing.router import Route
from proxy.server.auth.body_rights import not_found


class StoredResponseHandler:
    """The handler of requests for responses by id."""

    def __init__(
        self,
        responses: StoredResponses,
        request_reader: RequestReader,
        forwarder: Forwarder,
        clients: ClientStreams,
        background: BackgroundReader,
    ) -> None:
        self._clients = clients
        self._background = background
        self._responses = responses
        self._request_reader = request_reader
        self._forwarder = forwarder

    async def answer(self, context: Context) -> web.StreamResponse:
        """Answer from the record or from an upstream; see
        :class:`~proxy.api.pipeline.EndpointHandler`."""
        request, target = context.request, context.target
        endpoint = target.endpoint
        if (answer := await self._of_background(context)) is not None:
            return answer
        own = await self._responses.own(
            endpoint,
            endpoint.stored_id(target.below or ""),
            target.query,
            self._request_reader.principal(context, None).name,
            [("Authorization", value) for value in request.headers.getall("Authorization", ())],
            isolated=context.caller.rights.isolated,
        )
        if own is not None:
            return own
        if endpoint.stored_id(target.below or "").startswith(PREFIX):
            raise not_found(endpoint.stored_id(target.below or ""))
        # The record does not say which upstream has it, so they are asked in turn.
        served = context.permissions.router.served
        routes = [Route(up, "", renamed=False) for up in served if endpoint.dialect.wire in up.wires]
        if not routes:
            # Upstreams of other dialects keep no responses: what the record does not have does not exist.
            raise not_found(endpoint.stored_id(target.below or ""))
        if len(routes) > 1 and not request.body_exists:
            return await self._forwarder.send(context, None, Candidates(routes, FALLBACK_IF_ABSENT))
        return await self._forwarder.send_to_default(context)

    async def _of_background(self, context: Context) -> web.StreamResponse | None:
        """Return the answer for a response that runs or ran in the background; ``None`` for any other.

        Raises :class:`RequestError` (400) for an action that such a response does not allow.
        """
        endpoint, background = context.target.endpoint, self._background
        response_id = endpoint.stored_id(context.target.below or "")
        caller = self._request_reader.principal(context, None).name
        resource = await background.resource(response_id, caller)
        if resource is None:
            return None
        if endpoint.action == "cancel":
            return _json(await background.cancel(response_id, caller) or resource)
        if endpoint.action == "delete" and resource["status"] not in ENDED:
            raise RequestError(400, "The response has not ended. Cancel it first.", param="response_id")
        if endpoint.action != "retrieve":
            return None
        query = values_of(context.target.query)
        if query.get("stream") != "true":
            return _json(resource)
        after = number_of(query, "starting_after")
        seen = -1 if after is None else after
        if not await background.can_stream(response_id, caller, seen):
            return None
        client = self._clients.open(context, caller)
        await send_events(client, background.events(response_id, caller, seen))
        return client.response


def _json(payload: Mapping[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(payload), content_type="application/json")
