"""Plan a request for one upstream: pass it through unchanged, or make a run with a job.

The same bytes are planned again for each upstream that is asked, because tools, names and behaviour differ.
This module does not know HTTP: any code that fills an :class:`Ask` can start a run.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from msgspec import Struct, field, structs

from proxy.base.errors import RequestError
from proxy.json.in_thread import LARGE_BYTES, in_thread
from proxy.records.rows import join_sources
from proxy.relay.approval_outcomes import ApprovalOutcomes, Waited
from proxy.relay.approvals.approvals import Resuming
from proxy.relay.ask import Ask, RequestHead, UpstreamPermissions
from proxy.relay.base import RunSettings
from proxy.relay.body import Body
from proxy.relay.headers import of_any_dialect
from proxy.relay.hosted import (
    brings,
    check_programs,
    pause_of,
    put_back_sealed,
    served_by_tools,
    with_hosted,
    without_program_turns,
)
from proxy.relay.memory.hidden.history import Restored, SettleApprovals
from proxy.relay.memory.hidden.outcomes import MemoryOutcome
from proxy.relay.memory.idempotency import repeat_of
from proxy.relay.memory.prompt_hash import prompt_hash
from proxy.relay.nested import Purse
from proxy.relay.offering.hosted import Containing, contained_tools
from proxy.relay.offering.narrowing import with_required_approvals
from proxy.relay.offering.offer import Offer, OfferRules, Offers, guard, is_reserved
from proxy.relay.offering.tool_limits import NO_TOOLS, ToolLimits, limits_of
from proxy.relay.offering.wanted import Wanted
from proxy.relay.passing.metering import price_of
from proxy.relay.ports import editor_of, port_of, text_call_rules
from proxy.relay.routing.fallback import Candidates
from proxy.relay.routing.prices import Prices
from proxy.relay.routing.router import Route
from proxy.relay.run.hosted.limits import limited_later
from proxy.relay.run.job import (
    Accounting,
    ClientSide,
    Continuity,
    Fallback,
    Job,
    Recording,
    ToolAccess,
    UpstreamSide,
)
from proxy.relay.run.parents import Parents, ProgramAccess, continued_by
from proxy.relay.run_memory import RunMemory
from proxy.relay.typed_tools import naming_as_declared, with_functions
from proxy.tools.running.ledger import NO_KEY, RequestKey, RunLedger
from proxy.wires.client_port import ClientRequest
from proxy.wires.registry.requests import check_switches
from proxy.wires.typed_tools.functions import AsFunctions
from proxy.wires.typed_tools.searching import ClientSearch
from proxy.wires.upstream_port import BodyEditor, UpstreamPort
from proxy.wires.wire import Wire


class Planning(Struct):
    """The state of a request that is planned for one upstream after the other.

    ``repeat_key`` and ``ledger`` are those of its job. ``pinned`` says that the upstream that has its
    conversation was already looked for. ``with_tools`` are the items that have brought tools to the response
    that the request continues. ``waited`` is about the calls that have waited for this request.
    """

    ask: Ask
    candidates: Candidates
    ledger: RunLedger | None = None
    repeat_key: RequestKey = NO_KEY
    pinned: bool = False
    with_tools: str = ""
    waited: Waited = field(default_factory=Waited)


class Plan(Struct, frozen=True):
    """The plan for one upstream: a job, or ``None`` to pass the request through.

    ``answer`` is a finished answer as JSON, if no upstream has to be asked.
    """

    route: Route
    job: Job | None
    answer: bytes | None = None


class PlanSettings(Struct, frozen=True):
    """The operator's settings for requests in which tools may take part.

    ``keep_requests`` says whether the record keeps the bodies of requests. ``people_in_bodies`` says
    whether the fields in which a dialect names an end user identify the person who asks.
    """

    offer: OfferRules = field(default_factory=OfferRules)
    keep_requests: bool = False
    people_in_bodies: bool = True


_OF_THIS_UPSTREAM = ("not_translatable", "thread_unsupported_request")
"""The codes of errors about requests that another upstream could answer."""


class _Draft(Struct, frozen=True):
    """A request as one upstream would get it.

    ``offer_fingerprint`` is the fingerprint of the offer if answers are looked up and remembered, else
    ``None``.
    ``typed`` is what was replaced in the client's request.
    """

    route: Route
    request: ClientRequest
    port: UpstreamPort
    editor: BodyEditor
    offer: Offer
    offer_fingerprint: str | None
    is_person: bool
    typed: AsFunctions | None


class Planner:
    """Plans requests of the wires that have server tools."""

    def __init__(
        self,
        *,
        memory: RunMemory,
        prices: Prices,
        settings: PlanSettings,
        wires: Mapping[str, Wire] = MappingProxyType({}),
        parents: Parents | None = None,
        budgets: RunSettings | None = None,
    ) -> None:
        """``wires`` are the wires in which upstreams are asked, by name. ``parents`` holds the approved
        calls of agents while they run; ``budgets`` limit them.
        """
        self._wires = wires
        self._parents = parents or Parents()
        self._budgets = budgets or RunSettings()
        self._approvals = memory.approvals
        self._history = memory.history
        self._items = memory.items
        self._threads = memory.threads
        self._refusals = memory.refusals
        self._idempotency = memory.idempotency
        self._prices = prices
        self._settings = settings
        self._offers = Offers(settings.offer)
        self._containing = Containing()

    def routes_that_offer(
        self,
        wire: Wire,
        routes: Sequence[Route],
        request: ClientRequest,
        permissions: UpstreamPermissions,
        wanted: Wanted | None,
    ) -> Sequence[Route]:
        """Return the routes whose upstreams can offer what a request names.

        If none can, return all, so that the first one raises the error.
        """

        def can_offer(route: Route) -> bool:
            selection = permissions.selections[route.served.upstream.name]
            try:
                self._offers.decide(request, selection, wanted, limits=self._limits(route, wire))
            except RequestError:
                return False
            return True

        return [route for route in routes if can_offer(route)] or routes

    def with_tools(
        self,
        wire: Wire,
        body: Body,
        request: ClientRequest,
        permissions: UpstreamPermissions,
        route: Route,
        search: ClientSearch | None,
    ) -> bytes:
        """Return the body of a request with the tools of the server and of ``search`` that its model gets."""
        request = served_by_tools(wire, body.payload, permissions, route, request, self._settings.offer)
        if not request.chosen and search is None:
            return body.raw
        selection = permissions.selections[route.served.upstream.name]
        offer = self._offers.decide(request, selection, None, limits=self._limits(route, wire), search=search)
        offer = offer.with_loaded(search.loaded if search is not None else ())
        editor = wire.editor(*wire.without_chosen(body.raw, request, offer.shown))
        editor.offer(offer.added, offer.replaced)
        return editor.render()

    def takes_part(self, ask: Ask) -> bool:
        """Return whether any upstream of a request is offered tools for it, or speaks another dialect.

        Raise :class:`~proxy.base.errors.RequestError` for a request that cannot be read.
        """
        request = ask.wire.parse(ask.body.payload)
        return any(
            route.wire
            or with_functions(ask, route)[1] is not None
            or self._offers.decide(
                with_hosted(ask, route, request, self._settings.offer),
                ask.access.permissions.selections[route.served.upstream.name],
                ask.options.wanted,
                limits=self._limits(route, ask.wire),
            )
            for route in ask.access.routes
        )

    @staticmethod
    def begin(ask: Ask) -> Planning:
        """Return the planning state of a request for which no upstream has been asked yet."""
        return Planning(ask, Candidates.of(ask.access.routes, ask.body.payload))

    async def next(self, planning: Planning) -> Plan:
        """Return the plan for the upstream that is asked next.

        Raise :class:`RequestError`. If the upstream is asked only because another one failed,
        and its dialect cannot express the request, raise the failure of the other one.
        """
        return await self._next(planning, in_run=False)

    async def job(self, planning: Planning) -> Job:
        """Return the plan for the next upstream as a run, even if the request could pass through."""
        plan = await self._next(planning, in_run=True)
        if plan.job is None:
            raise RuntimeError("a run was planned without a job")
        return plan.job

    async def _next(self, planning: Planning, *, in_run: bool) -> Plan:
        failure = planning.candidates.failure
        try:
            return await self._plan(planning, planning.candidates.next(), in_run=in_run)
        except RequestError as error:
            if failure is None or error.code not in _OF_THIS_UPSTREAM:
                raise
            raise failure from error

    async def _plan(self, planning: Planning, route: Route, *, in_run: bool) -> Plan:
        """Return the plan for an upstream. It has no job if the request passes through, unless
        ``in_run``."""
        joined, planning.waited.programs = without_program_turns(planning.ask)
        is_own = not route.wire and route.served.text_calls is None
        body, read_before = await self._items.resolve(
            joined.wire, joined.body, joined.identity.caller, joined.local, only_ours=is_own
        )
        ask = joined if body is joined.body else structs.replace(joined, body=body)
        ask, typed = with_functions(ask, route, planning.with_tools)
        if typed is None:
            plan = await self._plan_as_sent(planning, route, ask, typed, read_before, in_run=in_run)
        else:
            with naming_as_declared(typed):
                plan = await self._plan_as_sent(planning, route, ask, typed, read_before, in_run=in_run)
        return plan if isinstance(plan, Plan) else await self._plan(planning, plan, in_run=in_run)

    async def _plan_as_sent(
        self,
        planning: Planning,
        route: Route,
        ask: Ask,
        typed: AsFunctions | None,
        read_before: str,
        *,
        in_run: bool,
    ) -> Plan | Route:
        """Return the plan for a request as its upstream would be asked.

        Return an upstream instead if the request has to be planned again for it: it has the conversation, or
        the response before has tools that the request does not name.
        """
        request = with_hosted(ask, route, ask.wire.parse(ask.body.payload), self._settings.offer)
        if route.wire:
            answer = ask.wire.load_answer(ask.body.payload)
            if answer is not None:
                return Plan(route, None, answer)
        draft = await self._draft(ask, route, request, typed)
        restored = await self._history.restore(
            request,
            draft.editor,
            ask.identity.caller,
            draft.offer_fingerprint,
            is_person=draft.is_person,
            local=ask.local,
            settle=self._settle(planning, draft),
            skip_reason=_skip_reason(draft),
            verified=lambda ids: ask.wire.verified(ids, ask.identity.caller),
        )
        check_programs(planning.waited.programs, request, restored, draft.editor)
        if planning.waited.purse is not None:
            planning.waited.approvals = restored.approvals.after(
                planning.waited.approvals, planning.waited.purse
            )
            restored = structs.replace(restored, approvals=planning.waited.approvals)
        if read_before := join_sources(read_before, put_back_sealed(ask, request, draft.editor)):
            restored = structs.replace(restored, untrusted=join_sources(restored.untrusted, read_before))
        if (restored.upstream or restored.bound) and not planning.pinned:
            planning.pinned = True
            home = planning.candidates.pin(route, restored.upstream, bound=restored.bound)
            if home is not route:
                return home
        if restored.with_tools != planning.with_tools:
            planning.with_tools = restored.with_tools
            return route
        changes = draft.port is not ask.wire or typed is not None or bool(draft.offer)
        if not (changes or request.chosen or request.has_proxy_calls or restored or in_run):
            return Plan(route, None)
        return Plan(route, await self._job(planning, draft, restored))

    def _settle(self, planning: Planning, draft: _Draft) -> SettleApprovals | None:
        """Return the function that settles what turns of the caller wait for; ``None`` if approvals are off
        and no program waits."""
        if not (self._approvals.enabled or planning.waited.programs.pending):
            return None
        ask, request, upstream = planning.ask, draft.request, draft.route.served.upstream.name
        selection = (permissions := ask.access.permissions).selections[upstream]

        async def settle(ids: Sequence[str], untrusted: str) -> ApprovalOutcomes:
            ledger = RunLedger()
            if untrusted:
                ledger.mark_untrusted(untrusted)
            budgets = self._budgets.within(request.max_calls)
            planning.waited.purse = planning.waited.purse or Purse.of(budgets, time.monotonic)
            access = ProgramAccess(permissions.policies[upstream], selection.catalog)
            pause = pause_of(planning.waited.programs, request) if draft.is_person else None
            asks = selection.asks and draft.is_person
            parent = continued_by(ask, request, ledger, planning.waited.purse, access, pause, asks=asks)
            resuming = Resuming(
                ask.identity,
                access.policy,
                access.catalog,
                ask.access.meter,
                partial(self._parents.continuing, parent=parent),
                partial(brings, planning.waited.programs, request),
                partial(limited_later, request.chosen.hosted),
                ask.options.originals,
            )
            return await self._approvals.settle(ids, resuming)

        return settle

    async def _draft(
        self, ask: Ask, route: Route, request: ClientRequest, typed: AsFunctions | None
    ) -> _Draft:
        """Return what the upstream would be offered, and how it would be asked."""
        selection = ask.access.permissions.selections[route.served.upstream.name]
        limits = self._limits(route, ask.wire)
        search = typed.search if typed is not None else None
        offer = self._offers.decide(request, selection, ask.options.wanted, limits=limits, search=search)
        rules = text_call_rules(route, request, offer)
        port = port_of(route, ask.wire, self._wires, request, rules)
        make = partial(editor_of, ask, route, port, request, offer)
        editor = await in_thread(make) if len(ask.body.raw) > LARGE_BYTES else make()
        if has_offer := bool(offer):
            request.check_history(lambda name: is_reserved(name, offer, request))
        is_person = ask.identity.is_person or bool(request.people and self._settings.people_in_bodies)
        is_person = is_person or (
            ask.nested is not None and (ask.nested.asking.can_ask or ask.nested.asking.continues)
        )
        fingerprint = offer.fingerprint if has_offer and is_person and ask.options.history else None
        return _Draft(route, request, port, editor, offer, fingerprint, is_person, typed)

    async def _job(self, planning: Planning, draft: _Draft, restored: Restored) -> Job:
        """Return the run of a request at one upstream."""
        ask, route, request, editor = planning.ask, draft.route, draft.request, draft.editor
        payload, is_large = ask.body.payload, len(ask.body.raw) > LARGE_BYTES
        is_crossed = editor.body.translates
        if is_crossed:
            # The whole conversation must be here now: an upstream of another dialect stores no part of it.
            restored.check_found(request)
            if not restored.approvals.stops:  # Else no model is asked.
                translate = partial(editor.body.left_out, editor.edits)
                await in_thread(translate) if is_large else translate()
        check_switches(payload)
        tools = await self._tools(planning, draft, restored)
        meter, answer = ask.access.meter, draft.typed.answer if draft.typed is not None else None
        return Job(
            ask.identity,
            ClientSide(ask, ask.wire, request, ask.options.trace, answer, restored.with_tools),
            UpstreamSide(
                route=route,
                port=draft.port,
                editor=editor,
                # The query belongs to the client's dialect, too.
                head=RequestHead(of_any_dialect(ask.head.headers)) if route.wire else ask.head,
                crossed=is_crossed,
                is_large=is_large,
            ),
            tools,
            Continuity(
                restored=bool(restored) or request.has_proxy_calls,
                is_person=draft.is_person,
                notes_threads=tools.selection.guards,
                offer_fingerprint=draft.offer_fingerprint,
                repeat_key=planning.repeat_key,
                connection_responses=ask.local,
                approvals=restored.approvals,
                recall=restored.recall,
            ),
            Accounting(meter, price_of(meter, self._prices, route, payload)),
            Recording(
                request=ask.body.raw if self._settings.keep_requests else b"",
                prompt_hash=prompt_hash(request, payload, tools.offer.fingerprint),
            ),
            Fallback(planning.candidates, lambda: self.job(planning)),
        )

    async def _tools(self, planning: Planning, draft: _Draft, restored: Restored) -> ToolAccess:
        """Return the tools of a run: the part of the offer that may be used after what the model has
        read."""
        permissions, upstream = planning.ask.access.permissions, draft.route.served.upstream.name
        policy, selection = permissions.policies[upstream], permissions.selections[upstream]
        offer = draft.offer
        if contained := contained_tools(offer.names, offer.shown, selection.catalog):
            policy = self._containing.of(policy, contained)
        if offer.asked:
            policy, selection = with_required_approvals(policy, selection, offer.asked)
        if offer.deferred.tools:
            search = draft.typed.search if draft.typed is not None else None
            offer = offer.with_loaded([*restored.loaded, *(search.loaded if search is not None else ())])
        ledger = self._ledger(planning, draft)
        untrusted = restored.untrusted
        if selection.guards:
            kept = await self._untrusted_upstream(draft.request, restored, planning.ask.identity.caller)
            untrusted = join_sources(untrusted, kept) if untrusted or kept else ""
        if untrusted:
            ledger.mark_untrusted(untrusted)
            offer = guard(offer, selection.offered, policy, untrusted, asks=selection.asks)
        return ToolAccess(offer, policy, selection, ledger)

    def _ledger(self, planning: Planning, draft: _Draft) -> RunLedger:
        """Return the ledger of a request's effects; a repeat shares that of the request that it repeats."""
        ask = planning.ask
        if ask.nested is not None:
            # The effects of an agent belong to the client's request.
            planning.ledger = ask.nested.ledger
        elif planning.ledger is None and not (ask.access.permissions.acts and draft.is_person):
            # No effect can occur that a repeat could share, or it is unknown whose repeat it would be.
            planning.ledger = RunLedger()
        elif planning.ledger is None:
            path, attempt = ask.wire.dialect.path, ask.options.attempt
            repeat = repeat_of(ask.identity.caller, draft.request.people, path, ask.body.payload, attempt)
            planning.repeat_key = repeat.key
            planning.ledger = self._idempotency.begin(repeat.key, is_repeat=repeat.is_repeat)
        return planning.ledger

    async def _untrusted_upstream(self, request: ClientRequest, restored: Restored, caller: str) -> str:
        """Return the sources of the untrusted results in the part of a conversation that only the upstream
        has."""
        # The proxy's own responses record what was read in them.
        continued = () if restored.bound else (request.continues,)
        ids = [*filter(None, (request.conversation, *continued, *request.references))]
        return await self._threads.untrusted(ids, caller) if ids else ""

    def _limits(self, route: Route, wire: Wire) -> ToolLimits:
        """Return what the model of a route takes of tools; ``wire`` is the client's."""
        served, place = route.served, (route.served.upstream.name, route.model)
        if not served.tools or self._refusals.refuses(*place):
            return NO_TOOLS
        dialect = self._wires[route.wire].dialect if route.wire else wire.dialect
        profile = served.profiles.of(dialect.wire, route.model)
        known = limits_of(dialect.refused_schemas, profile.max_tools, profile.schema_without)
        if not self._refusals.knows_tools:
            return known
        digests, most = self._refusals.refused_tools(*place)
        strict = not self._refusals.refuses(*place, "strict")
        return structs.replace(known, most=most or known.most, refused=digests, strict=strict)


def _skip_reason(draft: _Draft) -> MemoryOutcome | None:
    """Return why no answers are looked up for a request with tools, if that is so."""
    if draft.offer_fingerprint is not None or not draft.offer:
        return None
    return "off" if draft.is_person else "no_person"
