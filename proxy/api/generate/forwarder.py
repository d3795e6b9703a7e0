"""Forwards requests: what an upstream gets of a request, and how its answer returns to the client."""

import hashlib
from collections.abc import AsyncIterator, Mapping

import orjson
from aiohttp import web

from proxy.api.context import Context
from proxy.api.generate.owned_stream import ClientStreams
from proxy.api.generate.request_options import IDEMPOTENCY_KEY
from proxy.api.generate.request_reader import RequestReader
from proxy.api.routes import default_route
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
from proxy.server.messages.forms import Upload
from proxy.server.messages.heads.head import Head
from proxy.telemetry.hooks import Hooks
from proxy.upstreams.base import UpstreamRequest
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
    ) -> None:
        """``wires`` are those whose streams can be repaired, by the names of their dialects."""
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
        repair = None
        if body is not None and route.served.repair != "off":
            repair = repair_of(self._wires, endpoint, route, body.payload)
        client = self._clients.open(context, caller)
        relayed = client if body is None else self._clients.with_listener(client, endpoint.path, body.raw)
        relayed.blank_out(route.served.secrets)
        try:
            # A stream may stay open for long, so no reference keeps the request alive once it is answered.
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
        body: Body | Upload | None,
        route: Route,
        metered: Metered | None,
        *,
        last: bool,
    ) -> UpstreamRequest:
        """Build the request for an upstream; with ``last`` the body is released, since no other upstream will
        be asked."""
        request, target, streams = context.request, context.target, context.target.endpoint.streams
        read = body if isinstance(body, Body) else None
        headers: Headers = self.headers(context, read, identity=streams or metered is not None)
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
        caller, is_person = self._request_reader.principal(context, body)
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
