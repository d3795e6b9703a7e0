"""What is served where: from an HTTP request to the relay, and back."""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from proxy.errors import RequestError
from proxy.relay.headers import forwardable
from proxy.relay.history import History, Restored
from proxy.relay.job import Job
from proxy.relay.model_turn import ToolMemory
from proxy.relay.offer import RESERVED_PREFIX, OfferRules, decide, parse_wanted
from proxy.relay.orchestrator import Orchestrator
from proxy.relay.passthrough import ErrorEvent, passthrough
from proxy.relay.repeats import Repeats, repeat_key
from proxy.relay.routing import Route, Router
from proxy.relay.shape import prompt_shape
from proxy.server.body import read_body, stream_body
from proxy.server.client_stream import HttpClientStream
from proxy.server.http_errors import error_response
from proxy.server.middleware import REQUEST_ID, Gate
from proxy.server.models import list_models, show_model
from proxy.server.request_target import Target, parse_target
from proxy.server.stored_responses import StoredResponses, response_path
from proxy.store.base import Store
from proxy.tools.policy import Policy
from proxy.tools.registry import Registry, Selection
from proxy.upstreams.base import UpstreamRequest
from proxy.wires.base import Trace, Wire
from proxy.wires.rawjson import join_object, load_strict, members

__all__ = ["Api", "ApiSettings"]

_TRACES: tuple[Trace, ...] = ("silent", "reasoning", "status", "events")
_JSON_PATHS = frozenset({"/chat/completions", "/responses", "/completions", "/embeddings"})
_CALLER = "open"
_OURS = (b'"toolrelay"', b"_toolrelay")


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What the operator set about requests."""

    max_body_bytes: int
    max_upload_bytes: int
    tools_enabled: bool
    trace: Trace
    trace_max: Trace
    offer: OfferRules
    history: bool = True
    keep_requests: bool = False
    end_user: str = ""


class Api:
    """The HTTP surface below one entry: it decides by the normal form of the target alone."""

    def __init__(
        self,
        *,
        router: Router,
        wires: Mapping[str, Wire],
        error_events: Mapping[str, ErrorEvent],
        orchestrator: Orchestrator,
        history: History,
        registry: Registry,
        policy: Policy,
        store: Store,
        responses: StoredResponses,
        memory: ToolMemory,
        repeats: Repeats,
        gate: Gate,
        settings: ApiSettings,
    ) -> None:
        self._router = router
        self._wires = {wire.path: wire for wire in wires.values()}
        self._error_events = error_events
        self._orchestrator = orchestrator
        self._history = history
        self._policy = policy
        self._store = store
        self._responses = responses
        self._memory = memory
        self._repeats = repeats
        self._gate = gate
        self._settings = settings
        self._selection = registry.select(policy) if settings.tools_enabled else Selection((), {})

    async def entry(self, request: web.Request) -> web.StreamResponse:
        """Serve any request."""
        target = parse_target(request.raw_path)
        below = target.below_v1
        if below is None:
            return await self._own(request, target)
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return error_response(426, "WebSocket is not served; use HTTP with server-sent events.")
        return await self._gate.enter(request, lambda r: self._api(r, target, below))

    async def _own(self, request: web.Request, target: Target) -> web.StreamResponse:
        """What the proxy says of itself."""
        if request.method in ("GET", "HEAD"):
            if target.path == "/healthz":
                return web.json_response({"status": "ok"})
            if target.path == "/readyz":
                ready = not self._gate.draining and await self._store.healthy()
                state = "ok" if ready else "draining" if self._gate.draining else "store unavailable"
                return web.json_response({"status": state}, status=200 if ready else 503)
        raise RequestError(
            404,
            f"Nothing is served at {target.path[:100]}. The API is below /v1, for example /v1/models.",
            code="not_found",
        )

    async def _api(self, request: web.Request, target: Target, below: str) -> web.StreamResponse:
        if request.method == "POST" and below in self._wires:
            return await self._wire_call(request, target, self._wires[below])
        if (named := response_path(below)) is not None:
            own = await self._responses.answer(
                request.method, *named, target.query, self._caller(request, {})[0]
            )
            if own is not None:
                return own
        if request.method == "GET" and not self._router.is_plain:
            if below == "/models":
                return self._json(await list_models(self._router, self._headers(request, identity=True)))
            if below.startswith("/models/"):
                headers = self._headers(request, identity=True)
                return self._json(await show_model(self._router, below[len("/models/") :], headers))
        if request.method == "POST" and below in _JSON_PATHS:
            raw = await read_body(request, self._settings.max_body_bytes)
            route = self._route(
                load_strict(raw).get("model"), "responses" if below == "/responses" else "chat"
            )
            return await self._pass(request, target, below, route, raw)
        return await self._pass(request, target, below, None, None)

    @staticmethod
    def _json(body: bytes) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    def _route(self, model: object, wire: str) -> Route:
        """Who serves a body's model.  One upstream that serves all leaves the judgement to itself."""
        if isinstance(model, str):
            return self._router.route(model, wire)
        if self._router.is_plain:
            return Route(self._router.default, "", renamed=False)
        raise RequestError(400, "You must provide a model parameter.", param="model")

    # A wire with server tools.

    async def _wire_call(self, request: web.Request, target: Target, wire: Wire) -> web.StreamResponse:
        raw = await read_body(request, self._settings.max_body_bytes)
        payload = load_strict(raw)
        route = self._route(payload.get("model"), wire.name)
        wanted = parse_wanted(request.headers.get("x-toolrelay-tools"))
        trace = self._trace(request.headers.get("x-toolrelay-trace"))
        # What earlier requests may have left with the client: an id of ours, or items.
        goes_on = payload.get("previous_response_id") is not None or any(mark in raw for mark in _OURS)
        if not self._selection.offered and not (wanted and wanted.names) and not goes_on:
            return await self._pass(request, target, wire.path, route, raw)
        asked = wire.parse(payload)
        offer = decide(
            asked,
            self._selection,
            self._settings.offer,
            wanted,
            upstream_takes_tools=self._takes_tools(route),
        )
        editor = wire.editor(raw, asked, route.served.responses_state)
        if offer:
            asked.check_history(lambda name: name.startswith(RESERVED_PREFIX) and name in offer.names)
        caller, named = self._caller(request, payload)
        shape = offer.shape if offer and named and self._remembers(request) else None
        restored = await self._history.restore(asked, editor, caller, shape)
        if not offer and not restored and not asked.brings_ours:
            return await self._pass(request, target, wire.path, route, raw)
        repeat, again = repeat_key(caller, wire.path, raw, request.headers)
        ledger = self._repeats.begin(repeat, is_repeat=again)
        if restored.untrusted:
            ledger.mark_untrusted(restored.untrusted)
        run_id = f"run_{uuid.uuid4().hex}"
        job = Job(
            run_id=run_id,
            request_id=request[REQUEST_ID],
            caller=caller,
            wire=wire,
            request=asked,
            editor=editor,
            offer=offer,
            route=route,
            headers=self._headers(request, identity=True),
            policy=self._policy,
            trace=trace,
            query=target.query,
            put_back=bool(restored) or asked.brings_ours,
            shape=shape,
            repeat=repeat,
            ledger=ledger,
            prompt_shape=prompt_shape(payload, offer.shape),
            kept_request=raw if self._settings.keep_requests else b"",
        )
        return await self._orchestrate(request, job, restored)

    def _caller(self, request: web.Request, payload: Mapping[str, Any]) -> tuple[str, bool]:
        """Who asks, and whether that is one person: a shared door needs the end user's name."""
        if not self._settings.end_user:
            return _CALLER, True
        place, _, name = self._settings.end_user.partition(":")
        user = request.headers.get(name) if place == "header" else payload.get(name)
        if not isinstance(user, str) or not user:
            return _CALLER, False
        return f"{_CALLER}/{hashlib.blake2b(user.encode(), digest_size=12).hexdigest()}", True

    def _remembers(self, request: web.Request) -> bool:
        """Whether answers are looked up and remembered for this request."""
        wish = request.headers.get("x-toolrelay-history", "on").strip().lower()
        if wish not in ("on", "off"):
            raise RequestError(400, "x-toolrelay-history must be on or off.", param="x-toolrelay-history")
        return self._settings.history and wish == "on"

    async def _orchestrate(self, request: web.Request, job: Job, restored: Restored) -> web.StreamResponse:
        headers = [("x-toolrelay-run", job.run_id)]
        if restored:
            headers.append(("x-toolrelay-restored", f"turns={restored.turns}, bytes={restored.size}"))
        client = self._client(request, *headers)
        await self._orchestrator.run(job, client)
        if not client.started:
            raise ConnectionResetError("the client left before its response began")
        return client.response

    def _takes_tools(self, route: Route) -> bool:
        served = route.served
        return served.tools and not self._memory.refuses(served.upstream.name, route.model)

    def _trace(self, header: str | None) -> Trace:
        """The trace a request gets: what it asks for, up to what the operator lets it."""
        settings = self._settings
        if header is None:
            return settings.trace
        for level, name in enumerate(_TRACES):
            if name == header.strip():
                return _TRACES[min(level, _TRACES.index(settings.trace_max))]
        raise RequestError(
            400,
            f"x-toolrelay-trace must be one of {', '.join(_TRACES)}.",
            param="x-toolrelay-trace",
        )

    # Passing through.

    async def _pass(
        self, request: web.Request, target: Target, below: str, route: Route | None, raw: bytes | None
    ) -> web.StreamResponse:
        """Forward a request and pump its response back."""
        served = route.served if route is not None else self._router.default
        if raw is not None and route is not None and route.renamed:
            raw = join_object({**members(raw), "model": orjson.dumps(route.model)})
        streams = below in self._error_events and request.method == "POST"
        has_body = request.body_exists and raw is None
        upstream_request = UpstreamRequest(
            request.method,
            below,
            query=target.query,
            headers=self._headers(request, identity=streams),
            body=raw
            if raw is not None
            else stream_body(request, self._settings.max_upload_bytes)
            if has_body
            else None,
            expect_stream=streams,
        )
        client = self._client(request)
        await passthrough(
            served.upstream,
            upstream_request,
            client,
            error_event=self._error_events.get(below) if streams else None,
        )
        return client.response

    def _client(self, request: web.Request, *headers: tuple[str, str]) -> HttpClientStream:
        return HttpClientStream(
            request, [("x-request-id", request[REQUEST_ID]), ("Server", "toolrelay"), *headers]
        )

    @staticmethod
    def _headers(request: web.Request, *, identity: bool) -> list[tuple[str, str]]:
        return forwardable(request.headers.items(), identity=identity)
