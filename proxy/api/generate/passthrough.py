"""Requests without server tools: read only as far as routing needs it, and forwarded."""

from collections.abc import Sequence

from aiohttp import web

from proxy.api.context import Context
from proxy.api.generate.forwarder import Forwarder
from proxy.api.generate.request_reader import RequestReader
from proxy.api.routes import check_query, default_route, routes_of_model
from proxy.base.errors import RequestError
from proxy.relay.body import Body
from proxy.relay.routing.fallback import NO_FALLBACK, Candidates
from proxy.relay.routing.prices import Prices
from proxy.relay.routing.router import Route
from proxy.server.auth.body_rights import FORM, must_read
from proxy.server.messages.azure_paths import named_deployment


class Passthrough:
    """The handler of all endpoints that have no other handler."""

    def __init__(self, request_reader: RequestReader, forwarder: Forwarder, prices: Prices) -> None:
        self._request_reader = request_reader
        self._forwarder = forwarder
        self._prices = prices

    async def answer(self, context: Context) -> web.StreamResponse:
        """Forward a request; see :class:`~proxy.api.pipeline.EndpointHandler`."""
        request, target, endpoint = context.request, context.target, context.target.endpoint
        reads = must_read(context.caller.rights, request, target)
        if target.deployment and request.method != "POST":
            raise RequestError(404, f"There is no endpoint at {target.path[:100]}.", code="not_found")
        if endpoint.body == "form" and request.content_type.lower() == FORM:
            return await self._send_form(context)
        if endpoint.body == "opaque" and not reads:
            return await self._forwarder.send_to_default(context)
        # The body is read as strict JSON: two parsers must not read it in two ways.
        body = await self._request_reader.read(context)
        if reads:
            await self._request_reader.check_rights(
                context, body, self._request_reader.principal(context, body)
            )
        routes = self._routes(context, body)
        body = self._prepared(context, body, routes[0])
        return await self._forwarder.send(context, body, Candidates.of(routes, body.payload))

    async def _send_form(self, context: Context) -> web.StreamResponse:
        """Forward a form to the upstream of the model that it names, or to the first one if it names none.

        Its files are streamed, so no other upstream can take over.
        """
        router, models = context.permissions.router, context.caller.rights.models
        if router.is_plain and not models and not context.target.deployment:
            check_query(context, [default_route(router, context.target.endpoint)])
            return await self._forwarder.send_to_default(context)
        form = self._request_reader.form(context, strict=bool(models))
        model = await form.read_model(self._request_reader.most_held)
        named = named_deployment(model, context.target.deployment)
        if named is None:
            routes: Sequence[Route] = [default_route(router, context.target.endpoint)]
        else:
            routes = routes_of_model(context, self._prices, {"model": named})
        route = next((one for one in routes if one.served.breaker.ready), routes[0])
        check_query(context, [route])
        upload = form.upload(route.model if route.renamed else None)
        return await self._forwarder.send(context, None, Candidates([route], NO_FALLBACK), upload=upload)

    def _prepared(self, context: Context, body: Body, route: Route) -> Body:
        """Return the body for the upstream, in place of the one that was read."""
        return body

    def _routes(self, context: Context, body: Body) -> Sequence[Route]:
        """Return the upstreams that may answer: those that serve the model of the body."""
        endpoint, router = context.target.endpoint, context.permissions.router
        if endpoint.model == "optional" and body.payload.get("model") is None:
            routes = [default_route(router, endpoint)]
        else:
            try:
                routes = list(routes_of_model(context, self._prices, body.payload))
            except RequestError:
                # These need not name a model, and lists of an upstream's models often leave out theirs.
                if endpoint.body not in ("json", "form") or router.models:
                    raise
                routes = [default_route(router, endpoint)]
        if endpoint.same_model:
            # Vectors of two models cannot be compared, so no other model takes over.
            routes = [route for route in routes if route.model == routes[0].model]
        check_query(context, routes)
        return routes
