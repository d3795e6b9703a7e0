"""Requests for a model's answer: planned for each upstream, then run with server tools or forwarded."""

import contextlib
from collections.abc import Mapping, Sequence

import orjson
import structlog
from aiohttp import web
from msgspec.structs import replace

from proxy.api.admin.grant_terms import read_terms
from proxy.api.context import Context
from proxy.api.detached.answers import send_events
from proxy.api.detached.resumable import resume_of, same_request
from proxy.api.detached.runs import DetachedRuns
from proxy.api.detached.stored_request import stored_request
from proxy.api.generate.forwarder import Forwarder, headers_of_runs
from proxy.api.generate.owned_stream import ClientStreams
from proxy.api.generate.request_options import decisions_of, request_options_of
from proxy.api.generate.request_reader import RequestReader
from proxy.api.pipeline import EndpointHandler
from proxy.api.routes import check_query, routes_of_model
from proxy.http.own_headers import RUN
from proxy.relay.approvals.answering import take_answers
from proxy.relay.approvals.rules import Decider
from proxy.relay.ask import Access, Ask, Identity, RequestHead, RequestOptions
from proxy.relay.base import ClientStream
from proxy.relay.body import Body, without_carried
from proxy.relay.routing.fallback import Candidates, NextUpstream
from proxy.relay.routing.router import Route
from proxy.relay.run.job import Job
from proxy.relay.starting.runs import Runs
from proxy.relay.typed_tools import as_functions, with_functions
from proxy.relay.warming import warm_up
from proxy.server.auth.principals import Principal
from proxy.server.messages.body import check_counts
from proxy.server.messages.request import WebSocketMessage, new_ids
from proxy.wires.approving.read import read_approvals
from proxy.wires.approving.shown import ApprovalMessages
from proxy.wires.registry.requests import background_of, continued_by
from proxy.wires.wire import CrossableWire, Wire

__all__ = ["Generate"]

_NAMED = b'"toolrelay'
"""Part of a body that repeats an item of the proxy or chooses a server tool."""
_OUR_ID = b"_toolrelay"
"""Part of a body that repeats an id of the proxy."""
_PART_OF_BOTH = b"toolrelay"


class Generate:
    """The handler of the endpoints of dialects whose wires support server tools."""

    def __init__(
        self,
        wires: Mapping[str, Wire],
        runs: Runs,
        *,
        request_reader: RequestReader,
        forwarder: Forwarder,
        clients: ClientStreams,
        passthrough: EndpointHandler,
        history: bool,
        detached: DetachedRuns,
    ) -> None:
        """``wires`` are by the names of their dialects, or by the ``reader`` of their endpoints;
        ``passthrough`` answers all others.

        ``history`` says whether the operator lets the proxy look up and remember answers.
        """
        self._wires = wires
        crossable = {
            name: wire.dialect.wire for name, wire in wires.items() if isinstance(wire, CrossableWire)
        }
        others = tuple(dict.fromkeys(crossable.values()))
        self._others = {name: others if name in crossable else () for name in wires}
        self._request_reader = request_reader
        self._forwarder = forwarder
        self._planner = runs.planner
        self._orchestrator = runs.orchestrator
        self._clients = clients
        self._prices = runs.prices
        self._approvals = runs.memory.approvals
        self._passthrough = passthrough
        self._past = runs.memory.history
        self._history = history
        self._background = detached.background
        self._reader = detached.reader
        self._tickets = detached.tickets
        self._resumable = detached.resumable
        self._run_ids = new_ids("run_")

    async def answer(self, context: Context) -> web.StreamResponse:
        """Read and plan the request, then run or forward it; see
        :class:`~proxy.api.pipeline.EndpointHandler`."""
        endpoint = context.target.endpoint
        wire = self._wires.get(endpoint.reader or endpoint.dialect.name)
        if wire is None:
            return await self._passthrough.answer(context)
        body = await self._request_reader.read(context)
        check_counts(body.payload, len(body.raw))
        if endpoint.kind == "complete":
            # An upstream of this dialect gets the rest of the body unchanged.
            body = without_carried(wire, body)
        principal = self._request_reader.principal(context, body)
        if context.caller.rights.isolated:
            await self._request_reader.check_rights(context, body, principal)
        options = request_options_of(context, history=self._history)
        approval_messages = read_approvals(wire.approvals, body.raw, body.payload)
        if approval_messages is not None:
            body = Body(approval_messages.raw, orjson.loads(approval_messages.raw))
            options = replace(options, asks_by_call=approval_messages.declares)
        await self._decide(principal, context, approval_messages)
        routes = self._routes(context, wire, body, options)
        if _is_background(context, body):
            ask = self._ask(context, wire, body, principal, options, routes)
            if self._background.needs_run(ask):
                return await self._begin(context, ask)
        if (asked := context.request.head[resume_of]) and context.request.websocket is None:
            ask = self._ask(context, wire, body, principal, options, routes)
            return await self._resumed(context, ask, asked)
        if not _has_to_be_planned(context, wire, body, routes, options):
            candidates = Candidates.of(routes, body.payload)
            return await self._forwarder.send(context, body, candidates, principal.name)
        return await self._plan(context, self._ask(context, wire, body, principal, options, routes))

    async def _decide(
        self, principal: Principal, context: Context, approval_messages: ApprovalMessages | None
    ) -> None:
        """Apply the decisions in a request's header and conversation, in the name of its caller."""
        decider = Decider(principal.name, caller=principal.name, key=context.caller.name)
        for approval_id, verdict in decisions_of(context.request.head):
            await self._approvals.decide(approval_id, verdict, decider, "header")
        if approval_messages is not None and self._approvals.enabled:
            await take_answers(self._approvals, approval_messages, decider, read_terms)

    def _routes(self, context: Context, wire: Wire, body: Body, options: RequestOptions) -> Sequence[Route]:
        """Return the upstreams that may answer; if the request chose tools, those that offer them."""
        others = self._others[wire.dialect.name]
        routes = routes_of_model(context, self._prices, body.payload, others)
        if len(routes) > 1 and ((options.wanted and options.wanted.names) or _NAMED in body.raw):
            asked = wire.parse(body.payload)
            routes = self._planner.routes_that_offer(wire, routes, asked, context.permissions, options.wanted)
        check_query(context, routes)
        return routes

    def _ask(
        self,
        context: Context,
        wire: Wire,
        body: Body,
        principal: Principal,
        options: RequestOptions,
        routes: Sequence[Route],
    ) -> Ask:
        """Return the request without its HTTP."""
        request_id, key = context.facts.request_id, context.caller.name
        message = context.request.websocket
        return Ask(
            Identity(next(self._run_ids), request_id, principal.name, key, principal.is_person),
            wire,
            body,
            RequestHead(context.request.head[headers_of_runs], context.target.query),
            options,
            Access(context.permissions, routes, context.admission),
            None if message is None else message.local,
        )

    async def _plan(self, context: Context, ask: Ask) -> web.StreamResponse:
        """Return the answer of the first upstream that answers: run, composed or forwarded."""
        if (message := context.request.websocket) is not None:
            return await self._answer_message(context, ask, message)
        planning = self._planner.begin(ask)
        caller, candidates = ask.identity.caller, planning.candidates
        while True:
            plan = await self._planner.next(planning)
            if plan.job is not None:
                return await self._run(context, ask, plan.job)
            if plan.answer is not None:
                return web.Response(body=plan.answer, content_type="application/json")
            with contextlib.suppress(NextUpstream):
                return await self._forwarder.send_to(context, ask.body, plan.route, candidates, caller)

    async def _answer_message(
        self, context: Context, ask: Ask, message: WebSocketMessage
    ) -> web.StreamResponse:
        """Answer a message of a WebSocket, always with a run, because a run reports how it ended."""
        if message.generates:
            return await self._run(context, ask, await self._planner.job(self._planner.begin(ask)))
        client = self._clients.open(context, ask.identity.caller)
        ask, _ = with_functions(ask, ask.access.routes[0])
        await warm_up(ask, message.local, self._past, client)
        return client.response

    async def _begin(self, context: Context, ask: Ask) -> web.StreamResponse:
        """Start a background response; answer with its present state or its events."""
        ticket = await self._tickets.of(context.caller)
        request = stored_request(ask, ticket, self._background.settings.headers)
        run = await self._background.start(ask, request)
        context.facts.run_id = run.run_id
        if ask.body.payload.get("stream") is not True:
            body = orjson.dumps(run.stream.resource)
            headers = {RUN: run.run_id}
            return web.Response(body=body, content_type="application/json", headers=headers)
        client = self._clients.open(context, ask.identity.caller)
        client.set_header(RUN, run.run_id)
        await send_events(client, self._reader.events(run.id, ask.identity.caller, -1))
        return client.response

    async def _resumed(self, context: Context, ask: Ask, asked: str) -> web.StreamResponse:
        """Answer with a run that its client may leave and come back to; start or resume it."""
        resumable, caller = self._resumable, ask.identity.caller
        resumable.check()
        request = same_request(context.target.path, ask.body.raw)
        if asked != "on":
            context.facts.run_id = asked[:100]
            client = self._clients.open(context, caller)
            await resumable.resume(asked, caller, request, client)
            return client.response
        job = await self._planner.job(self._planner.begin(ask))
        run_id = _note_run(context, job)
        client = self._clients.open(context, caller)

        async def work(stream: ClientStream) -> None:
            stream.set_header(RUN, run_id)
            bound = structlog.contextvars.bind_contextvars(run_id=run_id)
            try:
                await self._orchestrator.run(job, self._clients.with_listener(stream, ask.body.raw))
            finally:
                structlog.contextvars.reset_contextvars(**bound)

        await resumable.serve(run_id, caller, request, client, work)
        if not client.started:
            raise ConnectionResetError("the client left before its response began")
        return client.response

    async def _run(self, context: Context, ask: Ask, job: Job) -> web.StreamResponse:
        """Answer with the response that a run composes."""
        run_id = _note_run(context, job)
        client = self._clients.open(context, job.identity.caller)
        client.set_header(RUN, run_id)
        bound = structlog.contextvars.bind_contextvars(run_id=run_id)
        try:
            await self._orchestrator.run(job, self._clients.with_listener(client, ask.body.raw))
        finally:
            structlog.contextvars.reset_contextvars(**bound)
        if not client.started:
            raise ConnectionResetError("the client left before its response began")
        return client.response


def _note_run(context: Context, job: Job) -> str:
    """Return the id of a run, which the access log and the span get with the prompt hash."""
    context.facts.run_id, context.facts.prompt_hash = job.identity.run_id, job.recording.prompt_hash
    return job.identity.run_id


def _is_background(context: Context, body: Body) -> bool:
    """Return whether a request asks for a response in the background."""
    creates = context.target.endpoint.creates == "response"
    background = background_of(body.payload) if creates and context.request.websocket is None else None
    return background is not None and background.value is True


def _has_to_be_planned(
    context: Context, wire: Wire, body: Body, routes: Sequence[Route], options: RequestOptions
) -> bool:
    """Return whether a request has to be planned.

    It has to be if an upstream has tools for it or does not know a type of its tools, or if it repeats ids or
    items that the proxy gave its client in earlier responses.
    """
    permissions = context.permissions
    if context.request.websocket is not None:
        return True
    if context.target.endpoint.kind == "complete":
        return any(route.wire for route in routes)
    for route in routes:
        # A request in another dialect has to be translated, and the model's text may have to be parsed.
        if (
            route.wire
            or route.served.text_calls is not None
            or (permissions.offers and permissions.selections[route.served.upstream.name].offered)
            or as_functions(wire, body.payload, route) is not None
        ):
            return True
    if options.wanted and options.wanted.names:
        return True
    raw = body.raw
    ours = _PART_OF_BOTH in raw and (_NAMED in raw or _OUR_ID in raw)
    return ours or continued_by(body.payload) is not None
