"""Requests for a model's answer: planned for each upstream, then run with server tools or forwarded."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

import orjson
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from proxy.api.admin.grant_terms import read_terms
from proxy.api.context import Context
from proxy.api.detached.background_stream import send_events
from proxy.api.detached.resumable import KeptStream, resume_of, same_request
from proxy.api.detached.runs import DetachedRuns
from proxy.api.detached.stored_request import stored_request
from proxy.api.generate.forwarder import Forwarder, headers_of_runs
from proxy.api.generate.owned_stream import AnyClientStream, ClientStreams
from proxy.api.generate.request_options import decisions_of, request_options_of
from proxy.api.generate.request_reader import RequestReader
from proxy.api.generate.restored_stream import RestoredStream
from proxy.api.pipeline import EndpointHandler
from proxy.api.routes import check_query, routes_of_model
from proxy.base.errors import RequestError
from proxy.hooks.placeholders import Placeholders
from proxy.http.own_headers import RUN
from proxy.records.ids import row_ids
from proxy.relay.approvals.answering import take_answers
from proxy.relay.approvals.decisions import Verdict
from proxy.relay.approvals.rules import Decider
from proxy.relay.ask import Access, Ask, Identity, RequestHead, RequestOptions
from proxy.relay.base import ClientStream
from proxy.relay.body import Body, without_carried
from proxy.relay.routing.fallback import Candidates, NextUpstream
from proxy.relay.routing.router import Route
from proxy.relay.run.job import Job
from proxy.relay.starting.hooking import Asker, hooked_body
from proxy.relay.starting.runs import Runs
from proxy.relay.typed_tools import as_functions
from proxy.relay.warming import warm_up
from proxy.server.auth.principals import Principal
from proxy.server.messages.body import check_counts
from proxy.wires.approving.shown import ApprovalMessages, read_approvals
from proxy.wires.registry.requests import background_of, continued_by, named_conversation
from proxy.wires.wire import Wire

_NAMED = b'"toolrelay'
"""Part of a body that repeats an item of the proxy or chooses a server tool."""
_OUR_ID = b"_toolrelay"
"""Part of a body that repeats an id of the proxy."""
_PART_OF_BOTH = b"toolrelay"


class _Asked(Struct, frozen=True):
    """A request as it was read, with the upstreams that may answer it."""

    wire: Wire
    body: Body
    principal: Principal
    options: RequestOptions
    routes: Sequence[Route]


_Start = Callable[[Context, Ask], Awaitable[web.StreamResponse]]


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
        self._others = tuple(dict.fromkeys(wire.dialect.wire for wire in wires.values()))
        self._request_reader = request_reader
        self._forwarder = forwarder
        self._planner = runs.planner
        self._runs = runs
        self._clients = clients
        self._prices = runs.prices
        self._approvals = runs.memory.approvals
        self._passthrough = passthrough
        self._past = runs.memory.history
        self._history = history
        self._hooks = runs.hooks
        self._background = detached.background
        self._reader = detached.reader
        self._tickets = detached.tickets
        self._resumable = detached.resumable
        self._run_ids = row_ids("run_")

    async def answer(self, context: Context) -> web.StreamResponse:
        """Read the request, then start a run for it, or forward it; see
        :class:`~proxy.api.pipeline.EndpointHandler`."""
        endpoint = context.target.endpoint
        wire = self._wires.get(endpoint.reader or endpoint.dialect.name)
        if wire is None:
            return await self._passthrough.answer(context)
        asked = await self._read(context, wire)
        if (start := self._start_of(context, asked)) is not None:
            return await start(context, self._ask(context, asked))
        candidates = Candidates.of(asked.routes, asked.body.payload)
        return await self._forwarder.send(context, asked.body, candidates, asked.principal.name)

    async def _read(self, context: Context, wire: Wire) -> "_Asked":
        """Read a request, check the rights of its caller, and apply the decisions that it carries."""
        body = await self._request_reader.read(context)
        check_counts(body.payload, len(body.raw))
        if context.target.endpoint.kind == "complete":
            # An upstream of this dialect gets the rest of the body unchanged.
            body = without_carried(wire, body)
        principal = self._request_reader.principal(context, body)
        context.facts.principal = principal.name
        context.facts.conversation = named_conversation(body.payload)
        originals = None
        if self._hooks.requests or self._hooks.results:
            originals = Placeholders()
            body = await self._hooked(context, wire, body, principal, originals)
        if context.caller.rights.isolated:
            await self._request_reader.check_rights(context, body, principal)
        options = request_options_of(context, history=self._history)
        if originals is not None:
            options = replace(options, originals=originals)
        approval_messages = read_approvals(wire.approvals, body.raw, body.payload)
        if approval_messages is not None:
            body = Body(approval_messages.raw, orjson.loads(approval_messages.raw))
            options = replace(options, asks_by_call=approval_messages.declares)
        decisions = decisions_of(context.request.head)
        if decisions or approval_messages is not None:
            await self._decide(principal, context, decisions, approval_messages)
        return _Asked(wire, body, principal, options, self._routes(context, wire, body, options))

    async def _hooked(
        self, context: Context, wire: Wire, body: Body, principal: Principal, originals: Placeholders
    ) -> Body:
        """Return the body of a request as the operator's hooks leave it.

        Raise :class:`~proxy.base.errors.RequestError` if a hook refuses it, or if its answer could not be
        restored.
        """
        if not self._hooks.requests:
            return body
        asker = Asker(context.facts.request_id, principal.name, context.caller.name)
        body = await hooked_body(self._hooks, wire.dialect, body, asker, originals)
        if originals and _is_background(context, body):
            raise RequestError(
                400,
                "Parts of this request are masked here, and only an answer that its client waits for is "
                "restored. Leave background out.",
                param="background",
            )
        return body

    def _start_of(self, context: Context, asked: "_Asked") -> _Start | None:
        """Return the method that starts a request; ``None`` if it passes through."""
        is_message = context.request.websocket is not None
        if _is_background(context, asked.body) and self._background.needs_run(self._ask(context, asked)):
            return self._begin
        if not is_message and context.request.head[resume_of]:
            return self._resumed
        if is_message:
            return self._answer_message
        if asked.options.originals:
            return self._run  # Only the answer of a run is restored.
        return self._plan if _has_to_be_planned(context, asked) else None

    async def _decide(
        self,
        principal: Principal,
        context: Context,
        decisions: Sequence[tuple[str, Verdict]],
        approval_messages: ApprovalMessages | None,
    ) -> None:
        """Apply the decisions in a request's header and conversation, in the name of its caller."""
        decider = Decider(principal.name, caller=principal.name, key=context.caller.name)
        for approval_id, verdict in decisions:
            await self._approvals.decide(approval_id, verdict, decider, "header")
        if approval_messages is not None and self._approvals.enabled:
            await take_answers(self._approvals, approval_messages, decider, read_terms)

    def _routes(self, context: Context, wire: Wire, body: Body, options: RequestOptions) -> Sequence[Route]:
        """Return the upstreams that may answer; if the request chose tools, those that offer them."""
        routes = routes_of_model(context, self._prices, body.payload, self._others)
        if len(routes) > 1 and ((options.wanted and options.wanted.names) or _NAMED in body.raw):
            asked = wire.parse(body.payload)
            routes = self._planner.routes_that_offer(wire, routes, asked, context.permissions, options.wanted)
        check_query(context, routes)
        return routes

    def _ask(self, context: Context, asked: "_Asked") -> Ask:
        """Return the request without its HTTP."""
        request_id, key, principal = context.facts.request_id, context.caller.name, asked.principal
        message = context.request.websocket
        return Ask(
            Identity(
                next(self._run_ids), request_id, principal.name, key, principal.is_person, principal.shown
            ),
            asked.wire,
            asked.body,
            RequestHead(context.request.head[headers_of_runs], context.target.query),
            asked.options,
            Access(context.permissions, asked.routes, context.admission),
            None if message is None else message.local,
        )

    async def _plan(self, context: Context, ask: Ask) -> web.StreamResponse:
        """Return the answer of the first upstream that answers: run, composed or forwarded."""
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

    async def _answer_message(self, context: Context, ask: Ask) -> web.StreamResponse:
        """Answer a message of a WebSocket, always with a run, because a run reports how it ended."""
        message = context.request.websocket
        if message is None or message.generates:
            return await self._run(context, ask)
        client = self._clients.open(context, ask.identity.caller)
        await warm_up(ask, message.local, self._past, client)
        return client.response

    async def _begin(self, context: Context, ask: Ask) -> web.StreamResponse:
        """Start a background response; answer with its present state or its events."""
        ticket = await self._tickets.of(context.caller)
        request = stored_request(ask, ticket, self._background.settings.headers)
        run = await self._background.start(ask, request)
        context.facts.run_id, context.facts.has_run = run.run_id, True
        if ask.body.payload.get("stream") is not True:
            body = orjson.dumps(run.stream.resource)
            headers = {RUN: run.run_id}
            return web.Response(body=body, content_type="application/json", headers=headers)
        client = self._clients.open(context, ask.identity.caller)
        client.set_header(RUN, run.run_id)
        await send_events(client, self._reader.events(run.id, ask.identity.caller, -1))
        return client.response

    async def _resumed(self, context: Context, ask: Ask) -> web.StreamResponse:
        """Answer with a run that its client may leave and come back to; start or resume it."""
        resumable, caller = self._resumable, ask.identity.caller
        resumable.check()
        request = same_request(context.target.path, ask.body.raw)
        goes_on = ""
        if (run_id := context.request.head[resume_of]) != "on":
            context.facts.run_id = run_id[:100]
            client = self._clients.open(context, caller)
            try:
                await resumable.resume(run_id, caller, request, client)
                return client.response
            except RequestError as error:
                if error.status != 404 or not await resumable.was_interrupted(run_id, caller):
                    raise
            # Its process died. A new run of the same request goes on with it, and repeats no effect.
            goes_on = run_id
        steps = await resumable.steps(ask.identity, request, goes_on)
        ask = replace(ask, options=replace(ask.options, steps=steps))
        return await self._run(context, ask, request=request, goes_on=goes_on)

    async def _run(
        self,
        context: Context,
        ask: Ask,
        job: Job | None = None,
        *,
        request: bytes = b"",
        goes_on: str = "",
    ) -> web.StreamResponse:
        """Answer with the response that a run composes; ``job`` is its plan, if it is planned already.

        With the digest of a ``request`` its client may leave and come back with the same request. ``goes_on``
        is the run that it goes on with.
        """
        client: AnyClientStream | None = None
        kept: KeptStream | None = None

        def output(job: Job) -> ClientStream:
            nonlocal client, kept
            # The access log and the span get both.
            facts = context.facts
            facts.run_id, facts.prompt_hash = job.identity.run_id, job.recording.prompt_hash
            facts.has_run = True
            client = self._clients.open(context, job.identity.caller)
            stream: ClientStream = client
            if request:
                stream = kept = self._resumable.keep(
                    client, job.identity.run_id, job.identity.caller, request
                )
            stream.set_header(RUN, job.identity.run_id)
            if ask.options.originals is not None:
                dialect, wants_json = ask.wire.dialect, job.client.request.wants_json
                stream = RestoredStream(stream, dialect, ask.options.originals, json_answer=wants_json)
            return self._clients.with_listener(stream, context.target.endpoint.path, ask.body.raw)

        run = await self._runs.start(ask, output, job)
        if kept is None:
            await run.serve()
        else:
            await self._resumable.serve(run, kept, goes_on, request)
        if client is None or not client.started:
            raise ConnectionResetError("the client left before its response began")
        return client.response


def _is_background(context: Context, body: Body) -> bool:
    """Return whether a request asks for a response in the background."""
    creates = context.target.endpoint.creates == "response"
    background = background_of(body.payload) if creates and context.request.websocket is None else None
    return background is not None and background.value is True


def _has_to_be_planned(context: Context, asked: "_Asked") -> bool:
    """Return whether a request has to be planned.

    It has to be if an upstream has tools for it or does not know a type of its tools, or if it repeats ids or
    items that the proxy gave its client in earlier responses.
    """
    permissions = context.permissions
    if context.target.endpoint.kind == "complete":
        return any(route.wire for route in asked.routes)
    for route in asked.routes:
        selection = permissions.selections[route.served.upstream.name]
        # A request in another dialect has to be translated, and the model's text may have to be parsed.
        if (
            route.wire
            or route.served.text_calls is not None
            or (permissions.offers and selection.offered)
            or as_functions(asked.wire, asked.body.payload, route, selection) is not None
        ):
            return True
    if asked.options.wanted and asked.options.wanted.names:
        return True
    raw = asked.body.raw
    ours = raw.find(_PART_OF_BOTH) >= 0 and (_NAMED in raw or _OUR_ID in raw)
    return ours or continued_by(asked.body.payload) is not None
