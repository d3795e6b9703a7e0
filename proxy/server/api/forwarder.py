"""Handing a request on: what an upstream sees of it, and the way of its answer back to the client."""

import hashlib
from collections.abc import AsyncIterator, Mapping

import orjson
from aiohttp import web

from proxy.http.headers import Headers, HeaderSection
from proxy.http.rules import without
from proxy.relay.body import Body
from proxy.relay.headers import forwardable
from proxy.relay.metering import Metered, meter
from proxy.relay.passthrough import pump
from proxy.relay.repairing import repair_of
from proxy.relay.routing.fallback import NO_FALLBACK, Candidates, NextUpstream
from proxy.relay.routing.prices import Prices
from proxy.relay.routing.router import Route
from proxy.server.api.owned_stream import ClientStreams
from proxy.server.api.request_options import IDEMPOTENCY_KEY
from proxy.server.api.request_reader import RequestReader
from proxy.server.api.routes import default_route
from proxy.server.context import Context
from proxy.server.serving.heads.head import Head
from proxy.server.telemetry.hooks import Hooks
from proxy.upstreams.base import UpstreamRequest
from proxy.wires.json.splice import join_object, members
from proxy.wires.turn.digest import people_named
from proxy.wires.wire import Wire

__all__ = ["Forwarder", "headers_of_runs"]


class Forwarder:
    """Hands requests on as they are, and pumps their answers back."""

    def __init__(
        self,
        request_reader: RequestReader,
        clients: ClientStreams,
        prices: Prices,
        hooks: Hooks,
        wires: Mapping[str, Wire],
    ) -> None:
        """``wires`` are those in which streams can be repaired, by the names of their dialects."""
        self._wires = wires
        self._request_reader = request_reader
        self._clients = clients
        self._prices = prices
        self._hooks = hooks

    async def send(
        self, context: Context, body: Body | None, candidates: Candidates, caller: str = ""
    ) -> web.StreamResponse:
        """Hand a request on to the first upstream that answers.

        ``body`` is what was read of it, and ``None`` where the client's is streamed.  ``caller`` is whose the
        response will be.  Raises :class:`~proxy.errors.UpstreamError` where none of them answers.
        """
        while True:
            try:
                return await self.send_to(context, body, candidates.next(), candidates, caller)
            except NextUpstream:
                continue

    async def send_by(self, context: Context, body: Body | None = None) -> web.StreamResponse:
        """Hand on what decides nothing: to the first upstream that the caller may use."""
        route = default_route(context.permissions.router, context.target.endpoint.dialect)
        return await self.send(context, body, Candidates([route], NO_FALLBACK))

    async def send_to(
        self, context: Context, body: Body | None, route: Route, candidates: Candidates, caller: str
    ) -> web.StreamResponse:
        """Hand a request on to one upstream; raises :class:`NextUpstream` where another may answer."""
        endpoint = context.target.endpoint
        request, posts = context.request, context.request.method == "POST"
        upload = self._request_reader.upload(context) if body is None and request.body_exists else None
        metered = meter(context.admission, self._prices, endpoint, route, body) if posts else None
        repair = None
        if body is not None and route.served.repair != "off":
            repair = repair_of(self._wires, endpoint, route, body.payload)
        client = self._clients.open(context, caller)
        relayed = client if body is None else self._clients.heard(client, body.raw)
        relayed.blank_out(route.served.secrets)
        try:
            # A stream may stay open for long: what was asked is kept by nobody once it is answered.
            response = await candidates.ask(
                route, self._outgoing(context, body or upload, route, metered, last=candidates.last)
            )
            try:
                await pump(
                    response,
                    relayed,
                    dialect=endpoint.dialect if endpoint.streams else None,
                    tap=metered.tap if metered is not None else None,
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
        return client.response

    def _outgoing(
        self,
        context: Context,
        body: Body | AsyncIterator[bytes] | None,
        route: Route,
        metered: Metered | None,
        *,
        last: bool,
    ) -> UpstreamRequest:
        """What an upstream is sent; with ``last`` a body is taken, since nobody else will be asked."""
        request, target, streams = context.request, context.target, context.target.endpoint.streams
        read = body if isinstance(body, Body) else None
        headers: Headers = self.headers(context, read, identity=streams or metered is not None)
        sent: bytes | AsyncIterator[bytes] | None
        if isinstance(body, Body):
            raw = body.take() if last else body.raw
            if metered is not None and metered.body is not None:
                raw = metered.body
            sent = join_object({**members(raw), "model": orjson.dumps(route.model)}) if route.renamed else raw
        else:
            sent = body
            if (length := request.content_length) is not None:
                headers = [*headers, ("Content-Length", str(length))]
        # By place, which takes half of the time that names take.
        rooted = target.endpoint.dialect.rooted
        return UpstreamRequest(
            request.method, target.below or "", target.query, headers, sent, streams, rooted
        )

    def headers(self, context: Context, body: Body | None, *, identity: bool) -> HeaderSection:
        """What of a request's headers an upstream may see; as :func:`forwardable`."""
        section = context.request.head[_going_up_read if identity else _going_up]
        if IDEMPOTENCY_KEY not in context.request.headers or not context.caller.rights.keyed:
            return section
        # Many people come with one key of the provider's, which answers what has the same idempotency key
        # with what it answered before.
        caller, is_person = self._request_reader.principal(context, body)
        people = people_named(body.payload if body is not None else {})
        if not is_person and not people:
            return HeaderSection.of(without(section, "idempotency-key"))
        return HeaderSection.of(
            [
                (name, _of_one(caller, people, value) if name.lower() == "idempotency-key" else value)
                for name, value in section
            ]
        )


def _of_one(caller: str, people: str, value: str) -> str:
    """A key that requests of one person alone have: who is called otherwise cannot send the same."""
    digest = hashlib.blake2b(digest_size=24)
    for part in (caller, people, value):
        said = part.encode("utf-8", "surrogatepass")
        digest.update(len(said).to_bytes(8, "big") + said)
    return digest.hexdigest()


def _going_up(head: Head) -> HeaderSection:
    # Never by the list of names itself: it may leave out one that stands twice, and values do not.
    return forwardable(list(head.headers.items()), identity=False)


def _going_up_read(head: Head) -> HeaderSection:
    return forwardable(list(head.headers.items()), identity=True)


def headers_of_runs(head: Head) -> HeaderSection:
    """What of a request's headers an upstream sees with each turn of a run."""
    # A turn that goes on from a call is no repeat of the first, which is what a key on both would say.
    less = without(head[_going_up_read], "idempotency-key")
    return HeaderSection.of(less) if IDEMPOTENCY_KEY in head.headers else head[_going_up_read]
