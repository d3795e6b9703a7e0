"""Forwards requests without server tools: what an upstream gets, and how its answer returns to the client."""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence

import orjson
from aiohttp import web

from proxy.api.context import Context
from proxy.api.generate.owned_stream import ClientStreams
from proxy.api.generate.request_options import IDEMPOTENCY_KEY
from proxy.api.generate.request_reader import RequestReader
from proxy.api.routes import check_query, default_route, routes_of_model
from proxy.base.errors import RequestError
from proxy.hooks.chain import HookChain
from proxy.hooks.placeholders import Placeholders
from proxy.http.headers import Headers, HeaderSection
from proxy.http.rules import without
from proxy.json.splice import join_object, members
from proxy.relay.body import Body
from proxy.relay.headers import forwardable
from proxy.relay.passing.metering import Metered, meter
from proxy.relay.passing.passthrough import pump
from proxy.relay.passing.repairing import repair_of
from proxy.relay.routing.fallback import NO_FALLBACK, Candidates, NextUpstream
from proxy.relay.routing.prices import Prices
from proxy.relay.routing.router import Route
from proxy.relay.starting.hooking import Asker, hooked_body
from proxy.server.auth.body_rights import FORM, must_read
from proxy.server.messages.azure_paths import named_deployment
from proxy.server.messages.forms import Upload
from proxy.server.messages.heads.head import Head
from proxy.telemetry.hooks import Hooks
from proxy.upstreams.base import UpstreamRequest
from proxy.wires.stream.usage_tap import UsageTail
from proxy.wires.turn.digest import user_key
from proxy.wires.wire import Wire


class Forwarder:
    """The component that forwards requests unchanged and pumps the answers back."""

    def __init__(
        self,
        request_reader: RequestReader,
        clients: ClientStreams,
        prices: Prices,
        hooks: Hooks,
        wires: Mapping[str, Wire],
        *,
        reads_usage: bool = True,
    ) -> None:
        """``wires`` are those whose streams can be repaired, by the names of their dialects.

        ``reads_usage`` says that usage is read for reports, also where nothing is limited.
        """
        self._reads_usage = reads_usage
        self._wires = wires
        self._request_reader = request_reader
        self._clients = clients
        self._prices = prices
        self._hooks = hooks

    async def send(
        self,
        context: Context,
        body: Body | None,
        candidates: Candidates,
        caller: str = "",
        upload: Upload | None = None,
    ) -> web.StreamResponse:
        """Forward a request to the first upstream that answers.

        ``body`` is the body if it was read; ``None`` streams ``upload``, or else the client's body.
        ``caller`` is the owner of the response. Raises :class:`UpstreamError` if none of them
        answers.
        """
        while True:
            try:
                return await self.send_to(context, body, candidates.next(), candidates, caller, upload)
            except NextUpstream:
                continue

    async def send_to_default(self, context: Context) -> web.StreamResponse:
        """Forward a request that chooses no upstream, to the first one that the caller may use."""
        route = default_route(context.permissions.router, context.target.endpoint)
        return await self.send(context, None, Candidates([route], NO_FALLBACK))

    async def send_to(
        self,
        context: Context,
        body: Body | None,
        route: Route,
        candidates: Candidates,
        caller: str,
        upload: Upload | None = None,
    ) -> web.StreamResponse:
        """Forward a request to one upstream; raise :class:`NextUpstream` if another may answer."""
        endpoint = context.target.endpoint
        request, posts = context.request, context.request.method == "POST"
        if upload is None and body is None and request.body_exists:
            upload = Upload(self._request_reader.upload(context))
        metered = meter(context.admission, self._prices, endpoint, route, body) if posts else None
        tail = None
        if metered is None and posts and self._reads_usage and endpoint.usage != "none":
            tail = UsageTail(endpoint.dialect.usage)
        repair = None
        if body is not None and route.served.repair != "off":
            repair = repair_of(self._wires, endpoint, route, body.payload)
        client = self._clients.open(context, caller)
        relayed = client if body is None else self._clients.with_listener(client, endpoint.path, body.raw)
        relayed.blank_out(route.served.secrets)
        try:
            # A stream may stay open for long, so no reference keeps the request alive once it is answered.
            response = await candidates.ask(
                route,
                self._outgoing(
                    context,
                    body or upload,
                    route,
                    metered,
                    last=candidates.last,
                    reads=metered is not None or tail is not None,
                ),
            )
            try:
                await pump(
                    response,
                    relayed,
                    dialect=endpoint.dialect if endpoint.streams else None,
                    tap=metered.tap if metered is not None else None,
                    tail=tail,
                    repair=repair,
                    total=route.served.total,
                    broken=self._hooks.broken,
                    secrets=route.served.secrets,
                    upstream=route.served.upstream.name,
                )
            finally:
                await response.aclose()
        finally:
            if metered is not None:
                metered.settle()
                self._hooks.used(metered.tap.usage, metered.cost)
            elif tail is not None and (usage := tail.read()) is not None:
                price = self._prices.at(route.served, context.facts.model, route.model)
                self._hooks.used(usage, None if price is None else price.cost(usage))
        return client.response

    def _outgoing(
        self,
        context: Context,
        body: Body | Upload | None,
        route: Route,
        metered: Metered | None,
        *,
        last: bool,
        reads: bool,
    ) -> UpstreamRequest:
        """Build the request for an upstream; with ``last`` the body is released, since no other upstream will
        be asked. With ``reads`` the proxy reads the response, which must not be compressed."""
        request, target, streams = context.request, context.target, context.target.endpoint.streams
        read = body if isinstance(body, Body) else None
        headers: Headers = self.headers(context, read, identity=streams or reads)
        sent: bytes | AsyncIterator[bytes] | None
        if isinstance(body, Body):
            raw = body.release() if last else body.raw
            if metered is not None and metered.body is not None:
                raw = metered.body
            sent = join_object({**members(raw), "model": orjson.dumps(route.model)}) if route.renamed else raw
        else:
            sent = body.chunks if body is not None else None
            if (length := request.content_length) is not None:
                length += body.added if body is not None else 0
                headers = [*headers, ("Content-Length", str(length))]
        # Positional arguments take half the time of keyword arguments.
        rooted = target.endpoint.dialect.rooted
        return UpstreamRequest(
            request.method, target.below or "", target.query, headers, sent, streams, rooted
        )

    def headers(self, context: Context, body: Body | None, *, identity: bool) -> HeaderSection:
        """Return the request headers that an upstream may see; see :func:`forwardable`."""
        section = context.request.head[_going_up_read if identity else _going_up]
        if IDEMPOTENCY_KEY not in context.request.headers or not context.caller.rights.isolated:
            return section
        # Many people share one key of the provider. The provider answers a repeated idempotency key with its
        # earlier answer, so each person needs a different key.
        caller, is_person, _ = self._request_reader.principal(context, body)
        people = user_key(body.payload if body is not None else {})
        if not is_person and not people:
            return HeaderSection.of(without(section, "idempotency-key"))
        return HeaderSection.of(
            [
                (name, _of_one(caller, people, value) if name.lower() == "idempotency-key" else value)
                for name, value in section
            ]
        )


def _of_one(caller: str, people: str, value: str) -> str:
    """Return an idempotency key that belongs to one person: nobody with another name can send the same."""
    digest = hashlib.blake2b(digest_size=24)
    for part in (caller, people, value):
        said = part.encode("utf-8", "surrogatepass")
        digest.update(len(said).to_bytes(8, "big") + said)
    return digest.hexdigest()


def _going_up(head: Head) -> HeaderSection:
    # Names alone are not enough: the list of names may leave out one that stands twice, values do not.
    return forwardable(list(head.headers.items()), identity=False)


def _going_up_read(head: Head) -> HeaderSection:
    return forwardable(list(head.headers.items()), identity=True)


def headers_of_runs(head: Head) -> HeaderSection:
    """Return the request headers that an upstream sees with each turn of a run."""
    # A turn that continues from a tool call does not repeat the first one, but the same idempotency key would
    # say so.
    less = without(head[_going_up_read], "idempotency-key")
    return HeaderSection.of(less) if IDEMPOTENCY_KEY in head.headers else head[_going_up_read]


class Passthrough:
    """The handler of all endpoints that have no other handler."""

    def __init__(
        self,
        request_reader: RequestReader,
        forwarder: Forwarder,
        prices: Prices,
        *,
        hooks: HookChain | None = None,
        refuses_unread: bool = False,
    ) -> None:
        """``hooks`` see the requests whose texts are known; ``refuses_unread`` refuses all others that bring
        something to a model."""
        self._request_reader = request_reader
        self._forwarder = forwarder
        self._prices = prices
        self._hooks, self._refuses_unread = hooks or HookChain(), refuses_unread

    async def answer(self, context: Context) -> web.StreamResponse:
        """Forward a request; see :class:`~proxy.api.pipeline.EndpointHandler`."""
        request, target, endpoint = context.request, context.target, context.target.endpoint
        reads = must_read(context.caller.rights, request, target)
        if target.deployment and request.method != "POST":
            raise RequestError(404, f"There is no endpoint at {target.path[:100]}.", code="not_found")
        brings = request.body_exists or request.method not in ("GET", "HEAD", "DELETE", "OPTIONS")
        if self._refuses_unread and brings and endpoint.kind in ("infer", "other"):
            raise RequestError(
                403,
                "Requests are checked here, and those to this path cannot be read. Ask the operator "
                '(hooks.unread = "allow").',
                type="permission_error",
                code="refused_by_hook",
            )
        if endpoint.body == "form" and request.content_type.lower() == FORM:
            return await self._send_form(context)
        if endpoint.body == "opaque" and not reads:
            return await self._forwarder.send_to_default(context)
        # The body is read as strict JSON: two parsers must not read it in two ways.
        body = await self._request_reader.read(context)
        if self._hooks.requests and endpoint.kind == "count":
            asker = Asker(
                context.facts.request_id,
                self._request_reader.principal(context, body).name,
                context.caller.name,
            )
            body = await hooked_body(self._hooks, endpoint.dialect, body, asker, Placeholders())
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
