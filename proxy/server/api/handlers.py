"""What is served where: from an HTTP request to the relay, and back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
from aiohttp import hdrs, web

from proxy.errors import ModelMissing, RequestError
from proxy.http.headers import Headers
from proxy.relay.base import ClientStream
from proxy.relay.memory.history import History
from proxy.relay.memory.idempotency import Idempotency
from proxy.relay.memory.threads import Threads
from proxy.relay.offer import OfferRules
from proxy.relay.passthrough import ErrorEvent, passthrough
from proxy.relay.routing.fallback import BY_ID, STAYS, Candidates, NextUpstream
from proxy.relay.routing.prices import Prices
from proxy.relay.routing.router import Route
from proxy.relay.run.job import Job
from proxy.relay.run.model_turn import ToolMemory
from proxy.relay.run.orchestrator import Orchestrator
from proxy.relay.run.settling import Settling
from proxy.server.api.admin import Admin
from proxy.server.api.front_page import front_page, health, nothing_here
from proxy.server.api.models import list_models, show_model
from proxy.server.api.owned_stream import ClientStreams
from proxy.server.api.query_rules import check_query
from proxy.server.api.stored_responses import StoredResponses
from proxy.server.auth.authenticate import INFERENCE, TOKENS_PATH, Authenticator, credential
from proxy.server.auth.body_rights import (
    READS_IDS,
    check_references,
    check_rights,
    must_read,
)
from proxy.server.auth.minting import Minting
from proxy.server.auth.permissions import Permissions, PermissionSets
from proxy.server.callers import Caller
from proxy.server.metering import BY_BODY, ReadBody, counted_by_body, meter
from proxy.server.middleware.admission import AdmissionControl
from proxy.server.planning import Call, Planner, chooses_ours, trace_of, wanted_of, wants_history
from proxy.server.serving.azure_paths import name_deployment
from proxy.server.serving.body import body_here, check_counts, read_body, stream_body
from proxy.server.serving.errors import error_response
from proxy.server.serving.json_bodies import JsonBodies
from proxy.server.serving.request import EdgeRequest
from proxy.server.serving.response import HttpClientStream
from proxy.server.serving.target import Target, target_of
from proxy.server.serving.tee import Listen, TeeStream
from proxy.server.telemetry.instruments import Instruments
from proxy.server.telemetry.metrics import render
from proxy.store.base import Store
from proxy.upstreams.base import UpstreamRequest
from proxy.wires.base import Wire
from proxy.wires.dialects.table import ENDPOINTS
from proxy.wires.json.splice import join_object, members
from proxy.wires.responses.routes import is_own_operation, response_path

__all__ = ["Api", "ApiSettings"]

_ROUTED = frozenset(known.path for known in ENDPOINTS if known.body == "routed")
_FORMS = frozenset(known.path for known in ENDPOINTS if known.body == "form")
_FORM = "multipart/form-data"
"""Inference paths that take files, as forms; what else is sent to any of these paths must be JSON."""

_OURS = (b'"toolrelay"', b"_toolrelay")
_MAX_MINT_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What the operator set about requests."""

    max_body_bytes: int
    max_json_values: int
    max_upload_bytes: int
    body_timeout_s: float
    offer: OfferRules
    history: bool = True
    keep_requests: bool = False
    end_user: str = ""


class Api:
    """The HTTP surface below one entry: it decides by the normal form of the target alone."""

    def __init__(
        self,
        *,
        views: PermissionSets,
        wires: Mapping[str, Wire],
        error_events: Mapping[str, ErrorEvent],
        orchestrator: Orchestrator,
        history: History,
        store: Store,
        settling: Settling,
        responses: StoredResponses,
        memory: ToolMemory,
        repeats: Idempotency,
        door: Authenticator,
        tokens: Minting | None,
        gate: AdmissionControl,
        instruments: Instruments,
        snapshot: Callable[[], Awaitable[bytes]] | None,
        admin: Admin,
        settings: ApiSettings,
        prices: Prices,
        listen: Listen | None = None,
    ) -> None:
        """``listen`` hears what is answered to requests whose bodies are read."""
        self._views = views
        self._wires = {wire.dialect.path: wire for wire in wires.values()}
        self._error_events = error_events
        self._orchestrator = orchestrator
        self._store = store
        self._settling = settling
        self._responses = responses
        self._door = door
        self._tokens = tokens
        self._gate = gate
        self._observing = instruments.observing
        self._snapshot = snapshot
        self._admin = admin
        self._settings = settings
        self._bodies = JsonBodies(settings.max_json_values)
        self._prices = prices
        self._listen = listen
        threads = Threads(store)
        self._planner = Planner(
            history=history,
            threads=threads,
            memory=memory,
            repeats=repeats,
            prices=prices,
            offer=settings.offer,
            keep_requests=settings.keep_requests,
            end_user=settings.end_user,
        )
        self._clients = ClientStreams(store, threads, settling, gate.draining, self._planner.caller)

    async def serve(self, request: EdgeRequest) -> web.StreamResponse:
        """Serve any request that may come from where it comes from."""
        target = request.head[target_of]
        below = target.below_v1
        facts = request.facts
        facts.endpoint = target.endpoint
        if below is None:
            return await self._own(request, target)
        if hdrs.UPGRADE in request.headers and "websocket" in request.head.listed(hdrs.UPGRADE):
            # What follows may be meant for another protocol, so it is not read as a request.
            return error_response(
                426,
                "WebSocket is not served; use HTTP with server-sent events.",
                headers={"Connection": "close"},
            )
        gate = self._gate
        gate.draining.check()
        caller = self._door.admit(request, below)
        if not isinstance(caller, Caller):
            caller = await caller
        request.caller = caller
        facts.caller = caller.name
        gate.enter(request)
        try:
            admission = gate.limiter.admit_now(caller) or await gate.limiter.admit(caller)
            request.admission = admission
            request.limit_headers = admission.headers
            try:
                return await self._api(request, target, below)
            finally:
                admission.release()
        except asyncio.CancelledError:
            excuse = gate.draining.excuse(request)
            if excuse is None:
                raise
            raise excuse from None
        finally:
            gate.leave(request)

    async def _own(self, request: EdgeRequest, target: Target) -> web.StreamResponse:
        """What the proxy says of itself."""
        if request.method in ("GET", "HEAD"):
            if target.path == "/":
                return front_page(request)
            if target.path == "/healthz":
                return health("ok")
            if target.path == "/readyz":
                if self._gate.draining.leaving:
                    return health("draining")
                return health("ok" if await self._store.healthy() else "store unavailable")
            if target.path == "/metrics" and self._snapshot is not None:
                await self._door.admit_scraper(request)
                text, kind = render(await self._snapshot(), request.headers.get("Accept", ""))
                return web.Response(body=text, headers={"Content-Type": kind})
        if f"{target.path}/".startswith("/admin/"):
            self._gate.draining.check()
            return await self._admin.answer(request, target)
        raise nothing_here(request, target.path)

    def _api(self, request: EdgeRequest, target: Target, below: str) -> Awaitable[web.StreamResponse]:
        """What answers a path below ``/v1``."""
        view = self._views.of(request.caller.rights)
        method = request.method
        if method == "POST" and (wire := self._wires.get(below)) is not None:
            return self._wire_call(request, target, wire, view)
        if below.startswith("/toolrelay/"):
            return self._mint(request, target, below)
        if is_own_operation(method, below):
            return self._response(request, target, below, view)
        if method == "GET" and (below == "/models" or below.startswith("/models/")):
            return self._models(request, target, below, view)
        return self._unspecific(request, target, below, view)

    async def _models(
        self, request: EdgeRequest, target: Target, below: str, view: Permissions
    ) -> web.StreamResponse:
        """What the caller may use of the upstreams' models."""
        if view.router.is_plain:
            return await self._pass_by(request, target, below, view)
        headers = self._planner.headers_up(request, identity=True)
        if below == "/models":
            return self._json(await list_models(view.router, headers))
        return self._json(await show_model(view.router, below[len("/models/") :], headers))

    async def _unspecific(
        self, request: EdgeRequest, target: Target, below: str, view: Permissions
    ) -> web.StreamResponse:
        """What has no server tools: read only as far as it takes to know where it goes."""
        reads = must_read(request.caller.rights, request, below)
        posts = request.method == "POST"
        if target.deployment and not posts:
            raise RequestError(404, f"Nothing is served at {target.path[:100]}.", code="not_found")
        if reads or (posts and (below in _ROUTED or counted_by_body(request, below))):
            raw, payload = await self._read(request, target)
            if reads and request.caller.rights.keyed:
                check_rights(request.caller.rights, view.router.permits, payload)
                if below in READS_IDS:
                    caller = self._planner.caller(request, payload)[0]
                    await check_references(
                        request.caller.rights, payload, caller, self._store, self._settling
                    )
            wire = "responses" if below.startswith("/responses") else "chat"
            model = payload.get("model")
            if (below in BY_BODY and not reads) or (below == "/responses/input_tokens" and model is None):
                # Limits do not change who answers, and only counting input needs no model.
                routes = [Route(view.router.default, "", renamed=False)]
            else:
                routes = list(self._routes(request, view, model, wire))
            if below == "/embeddings":
                # Vectors of two models cannot be compared: better none than some of another.
                routes = [route for route in routes if route.model == routes[0].model]
            check_query(target.query, routes)
            candidates = Candidates.of(routes, payload)
            held: list[ReadBody] = [(raw, payload)]
            del raw, payload
            return await self._pass(request, target, below, held, candidates)
        held = []
        if posts and below in INFERENCE:
            check_query(target.query, [Route(view.router.default, "", renamed=False)])
            if below not in _FORMS or request.content_type != _FORM:
                # Nothing goes up that two readers could take for two things.
                held = [((await self._read(request, target))[0], None)]
        return await self._pass_by(request, target, below, view, held)

    async def _mint(self, request: EdgeRequest, target: Target, below: str) -> web.StreamResponse:
        """A token for one of the caller's own users.  Nothing below this path goes upstream."""
        if self._tokens is None or (request.method, below) != ("POST", TOKENS_PATH):
            raise RequestError(404, f"Nothing is served at {target.path[:100]}.", code="not_found")
        body = await read_body(request, _MAX_MINT_BYTES, self._settings.body_timeout_s)
        made = await self._tokens.mint(credential(request), body)
        return web.json_response(made, headers={"Cache-Control": "no-store"})

    async def _response(
        self, request: EdgeRequest, target: Target, below: str, view: Permissions
    ) -> web.StreamResponse:
        """What is asked of one response by its id: from the record, or from the upstream that keeps it."""
        response_id, rest = response_path(below) or ("", "")
        caller = self._planner.caller(request, {})[0]
        key = [("Authorization", value) for value in request.headers.getall("Authorization", ())]
        own = await self._responses.own(
            request.method, response_id, rest, target.query, caller, key, keyed=request.caller.rights.keyed
        )
        if own is not None:
            return own
        # Which upstream has it is not on record: they are asked in turn.
        routes = [Route(s, "", renamed=False) for s in view.router.served if "responses" in s.wires]
        if len(routes) > 1 and not request.body_exists:
            return await self._pass(request, target, below, [], Candidates(routes, BY_ID))
        return await self._pass_by(request, target, below, view)

    async def _read(
        self, request: EdgeRequest, target: Target, whole: bytes | None = None
    ) -> tuple[bytes, dict[str, Any]]:
        """A JSON body as its bytes and what they say; ``whole`` is one that is here."""
        settings, raw = self._settings, whole
        if raw is None:
            raw = await read_body(request, settings.max_body_bytes, settings.body_timeout_s)
        caller = request.caller
        payload = await self._bodies.load(raw, caller.counted_as, caller.also_counted_as)
        return name_deployment(raw, payload, target.deployment)

    @staticmethod
    def _json(body: bytes) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    def _routes(self, request: EdgeRequest, view: Permissions, model: object, wire: str) -> Sequence[Route]:
        """Who serves a body's model.  One upstream that serves all leaves the judgement to itself."""
        if isinstance(model, str):
            request.facts.model = model[:200]
            routes = view.router.routes(model, wire)
            if len(routes) > 1 and request.admission.counts_cost:
                # What has no price cannot take over where cost is limited; if none has, the first says so.
                routes = [r for r in routes if self._prices.of(model, r.model) is not None] or routes
            return routes
        if view.router.is_plain:
            return [Route(view.router.default, "", renamed=False)]
        raise ModelMissing()

    # A wire with server tools.

    async def _wire_call(
        self, request: EdgeRequest, target: Target, wire: Wire, view: Permissions
    ) -> web.StreamResponse:
        whole = body_here(request, self._settings.max_body_bytes)
        said = None if not whole or target.deployment else self._bodies.load_now(whole)
        body = await self._read(request, target, whole) if not whole or said is None else (whole, said)
        raw, payload = body
        check_counts(payload, len(raw))
        caller, named = self._planner.caller(request, payload)
        if request.caller.rights.keyed:
            check_rights(request.caller.rights, view.router.permits, payload)
            if wire.dialect.path in READS_IDS:
                await check_references(request.caller.rights, payload, caller, self._store, self._settling)
        chooses = request.head[chooses_ours]
        wanted = wanted_of(request.head) if chooses else None
        routes = self._routes(request, view, payload.get("model"), wire.dialect.wire)
        if len(routes) > 1 and wanted and wanted.names:
            routes = self._planner.able(routes, wire.parse(payload), view, wanted)
        check_query(target.query, routes)
        candidates = Candidates.of(routes, payload)
        trace = trace_of(request, view) if chooses else view.trace
        recall = (not chooses or wants_history(request.head)) and self._settings.history
        # What earlier requests may have left with the client: an id of ours, or items.
        goes_on = payload.get("previous_response_id") is not None or _OURS[0] in raw or _OURS[1] in raw
        offers = view.offers and candidates.any(
            lambda route: bool(view.selections[route.served.upstream.name].offered)
        )
        if not offers and not (wanted and wanted.names) and not goes_on:
            held: list[ReadBody] = [body]
            del whole, raw, payload, body
            return await self._pass(request, target, wire.dialect.path, held, candidates, caller)
        run_id = next(self._planner.run_ids)
        call = Call(
            request, target, wire, view, raw, payload, caller, named, wanted, trace, candidates, run_id,
            recall,
        )  # fmt: skip
        while True:
            plan = await self._planner.plan(call, candidates.next())
            if plan.job is not None:
                return await self._orchestrate(call, plan.job)
            with contextlib.suppress(NextUpstream):
                return await self._pass_to(
                    request, target, wire.dialect.path, [body], plan.route, candidates, caller
                )

    async def _orchestrate(self, call: Call, job: Job) -> web.StreamResponse:
        request = call.request
        request.facts.run_id = job.run_id
        client = self._clients.stream(request, job.wire.dialect.path, job.caller)
        client.tell("x-toolrelay-run", job.run_id)
        bound = structlog.contextvars.bind_contextvars(run_id=job.run_id)
        try:
            await self._orchestrator.run(job, self._overheard(client, call.raw))
        finally:
            structlog.contextvars.reset_contextvars(**bound)
        if not client.started:
            raise ConnectionResetError("the client left before its response began")
        return client.response

    # Passing through.

    def _pass(
        self,
        request: EdgeRequest,
        target: Target,
        below: str,
        held: list[ReadBody],
        candidates: Candidates,
        caller: str = "",
    ) -> Awaitable[web.StreamResponse]:
        """Hand a request on to the first upstream that answers, and pump its answer back.

        ``held`` is its body, of which nothing else keeps anything; it is empty where the body is streamed.
        """
        route = candidates.next()
        # Where nobody is left to take its place there is nothing to try again.
        hand_on = self._pass_to if candidates.last else self._pass_on
        return hand_on(request, target, below, held, route, candidates, caller)

    async def _pass_on(
        self,
        request: EdgeRequest,
        target: Target,
        below: str,
        held: list[ReadBody],
        route: Route,
        candidates: Candidates,
        caller: str,
    ) -> web.StreamResponse:
        """:meth:`_pass_to` that upstream, or to the next one where it gives no answer."""
        while True:
            try:
                return await self._pass_to(request, target, below, held, route, candidates, caller)
            except NextUpstream:
                route = candidates.next()

    async def _pass_by(
        self,
        request: EdgeRequest,
        target: Target,
        below: str,
        view: Permissions,
        held: list[ReadBody] | None = None,
    ) -> web.StreamResponse:
        """Hand on what decides nothing: to the first upstream that the caller may use."""
        default = Route(view.router.default, "", renamed=False)
        return await self._pass(request, target, below, held or [], Candidates([default], STAYS))

    async def _pass_to(
        self,
        request: EdgeRequest,
        target: Target,
        below: str,
        held: list[ReadBody],
        route: Route,
        candidates: Candidates,
        caller: str,
    ) -> web.StreamResponse:
        """Hand a request on to one upstream; without a body in ``held`` the client's is streamed.

        A stream may stay open for long: once nobody else can be asked, its body is let go of.
        Raises :class:`NextUpstream` where another may answer.
        """
        posts = request.method == "POST"
        body = held[0] if held else None
        raw = None if body is None else body[0]
        metered = meter(request.admission, self._prices, below, route, body) if posts else None
        if metered is not None and metered.body is not None:
            raw = metered.body
        sent: bytes | AsyncIterator[bytes] | None = raw
        if raw is None and request.body_exists:
            sent = self._upload(request)
        elif raw is not None and route.renamed:
            sent = join_object({**members(raw), "model": orjson.dumps(route.model)})
        error_event = self._error_events.get(below) if posts else None
        streams = error_event is not None
        said, identity = None if body is None else body[1], streams or metered is not None
        headers: Headers = self._planner.headers_up(request, said, identity=identity)
        if raw is None and (length := request.content_length) is not None:
            headers = [*headers, ("Content-Length", str(length))]
        # By place, which takes half of the time that names take.
        sending = [UpstreamRequest(request.method, below, target.query, headers, sent, streams)]
        client = self._clients.stream(request, below, caller)
        relayed = client if body is None else self._overheard(client, body[0])
        del body, raw, said, sent
        if candidates.last:
            held.clear()
        try:
            await passthrough(
                route,
                sending.pop(),
                relayed,
                candidates=candidates,
                error_event=error_event,
                broken=self._observing.broken,
                tap=metered.tap if metered is not None else None,
                total=route.served.total,
            )
        finally:
            if metered is not None:
                metered.settle()
                self._observing.used(metered.tap.usage, metered.cost)
        return client.response

    def _upload(self, request: EdgeRequest) -> AsyncIterator[bytes]:
        """A body that is sent on while it arrives."""
        settings = self._settings
        return stream_body(
            request, settings.max_upload_bytes, settings.body_timeout_s, settings.max_body_bytes
        )

    def _overheard(self, client: HttpClientStream, asked: bytes) -> ClientStream:
        return client if self._listen is None else TeeStream(client, self._listen(asked))
