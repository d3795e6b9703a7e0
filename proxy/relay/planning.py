"""Plans a request for one upstream: pass it through as it is, or make a run with a job.

The same bytes are planned anew for each upstream that is asked, because tools, names and habits differ.  This
module does not know HTTP: any code that fills an :class:`Ask` can start a run.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from proxy.approval_records import Approval
from proxy.errors import RequestError
from proxy.events import ToolResult
from proxy.in_thread import LARGE_BYTES, in_thread
from proxy.relay.approvals.approvals import Resuming
from proxy.relay.ask import Ask, RequestHead, UpstreamPermissions
from proxy.relay.base import RunSettings
from proxy.relay.body import check_switches
from proxy.relay.headers import of_any_dialect
from proxy.relay.memory.fingerprint import prompt_fingerprint
from proxy.relay.memory.history import Answers, Restored, Settle
from proxy.relay.memory.idempotency import repeat_of
from proxy.relay.memory.outcomes import MemoryOutcome
from proxy.relay.memory.references import item_not_found
from proxy.relay.memory.run_memory import RunMemory
from proxy.relay.metering import price_of
from proxy.relay.nested import AgentAsking, Purse
from proxy.relay.offer import Offer, OfferRules, Offers, Wanted, asking_too, guard, is_reserved
from proxy.relay.ports import port_of, text_call_rules
from proxy.relay.routing.fallback import Candidates
from proxy.relay.routing.prices import Prices
from proxy.relay.routing.router import Route
from proxy.relay.run.job import (
    Accounting,
    ClientSide,
    Continued,
    Conversation,
    Fallback,
    Job,
    Recording,
    ToolAccess,
    UpstreamSide,
)
from proxy.relay.run.parents import Parent, Parents, can_wait
from proxy.tools.running.ledger import RunLedger
from proxy.values import value_class
from proxy.wires.client_port import ClientRequest, LoadsModels, RefersToItems
from proxy.wires.crossed import CrossedEditor
from proxy.wires.text_calls.editor import PromptedEditor
from proxy.wires.upstream_port import BodyEditor, UpstreamPort
from proxy.wires.wire import Wire

__all__ = ["Plan", "PlanSettings", "Planner", "Planning"]


@dataclass(slots=True)
class Planning:
    """A request while it is planned for one upstream after the other.

    ``repeat_key`` and ``ledger`` are its job's.  ``pinned`` says that its conversation has been looked for,
    and with it the upstream that has it.  ``purse`` says what agents have used whose calls were approved.
    ``ran`` and ``asked`` are the approvals whose calls have run for this request, and those that its client
    does not know.
    """

    ask: Ask
    candidates: Candidates
    ledger: RunLedger | None = None
    repeat_key: str = ""
    pinned: bool = False
    purse: Purse | None = None
    ran: tuple[tuple[Approval, ToolResult], ...] = ()
    asked: tuple[Approval, ...] = ()

    def with_earlier(self, restored: Restored) -> Restored:
        """``restored``, with what approvals came to when the request was planned for another upstream.

        They are settled once, and found settled after that.
        """
        self.ran += restored.ran
        waiting = {approval.id for approval in restored.waiting}
        known = {approval.id: approval for approval in (*self.asked, *restored.asked)}
        self.asked = tuple(approval for id_, approval in known.items() if id_ in waiting)
        return replace(restored, ran=self.ran, asked=self.asked)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for one upstream: a job, or to pass the request through.  ``answer`` is a finished answer as
    JSON, if no upstream has to be asked."""

    route: Route
    job: Job | None
    answer: bytes | None = None


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What the operator set about requests that tools may take part in.

    ``keep_requests``: whether the record keeps their bodies.  ``people_in_bodies``: whether the fields in
    which a dialect names an end user name the person who asks.
    """

    offer: OfferRules = field(default_factory=OfferRules)
    keep_requests: bool = False
    people_in_bodies: bool = True


@value_class
class _Draft:
    """A request as one upstream would get it.

    ``offer_fingerprint`` is that of the offer where answers are looked up and remembered, else ``None``.
    ``must_run`` says that it cannot be handed on, whatever earlier requests left.
    """

    route: Route
    request: ClientRequest
    port: UpstreamPort
    editor: BodyEditor
    offer: Offer
    offer_fingerprint: str | None
    is_person: bool
    must_run: bool


class Planner:
    """Plans requests of the wires with server tools."""

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
        """``wires`` are those in which upstreams are asked, by their names.

        Approved calls of agents are known to ``parents`` while they run, with ``budgets`` of the request.
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

    def able(
        self,
        routes: Sequence[Route],
        request: ClientRequest,
        permissions: UpstreamPermissions,
        wanted: Wanted | None,
    ) -> Sequence[Route]:
        """The upstreams that offer what a request names; all where none does, so that the first says so."""

        def able(route: Route) -> bool:
            selection = permissions.selections[route.served.upstream.name]
            takes = self._takes_tools(route)
            try:
                self._offers.decide(request, selection, wanted, upstream_takes_tools=takes)
            except RequestError:
                return False
            return True

        return [route for route in routes if able(route)] or routes

    def with_tools(
        self, wire: Wire, raw: bytes, request: ClientRequest, permissions: UpstreamPermissions, route: Route
    ) -> bytes:
        """The body of a request with the server tools that its model would be offered."""
        selection = permissions.selections[route.served.upstream.name]
        offer = self._offers.decide(request, selection, None, upstream_takes_tools=self._takes_tools(route))
        less, sent = wire.without_chosen(raw, request, offer.shown)
        editor = wire.editor(less, sent)
        editor.offer(offer.added, offer.replaced)
        return editor.render()

    def takes_part(self, ask: Ask) -> bool:
        """Whether any upstream of a request is offered tools for it, or speaks another dialect.

        Raises :class:`~proxy.errors.RequestError` for a request that cannot be read.
        """
        request = ask.wire.parse(ask.body.payload)
        return any(
            route.wire
            or self._offers.decide(
                request,
                ask.access.permissions.selections[route.served.upstream.name],
                ask.options.wanted,
                upstream_takes_tools=self._takes_tools(route),
            )
            for route in ask.access.routes
        )

    @staticmethod
    def begin(ask: Ask) -> Planning:
        """Plan a request, which nobody has been asked yet."""
        return Planning(ask, Candidates.of(ask.access.routes, ask.body.payload))

    async def next(self, planning: Planning) -> Plan:
        """The part of the upstream that is asked next.

        Raises :class:`~proxy.errors.RequestError`; where that upstream is only asked because another one
        failed, and cannot be asked for this, the failure of the other.
        """
        return await self._next(planning, in_run=False)

    async def job(self, planning: Planning) -> Job:
        """The same as a run, also where the upstream would only hand on: its habits and its names."""
        plan = await self._next(planning, in_run=True)
        if plan.job is None:
            raise RuntimeError("a run was planned without a job")
        return plan.job

    async def _next(self, planning: Planning, *, in_run: bool) -> Plan:
        failure = planning.candidates.failure
        try:
            return await self._plan(planning, planning.candidates.next(), in_run=in_run)
        except RequestError as error:
            if failure is None or error.code != "not_translatable":
                raise
            raise failure from error

    async def _plan(self, planning: Planning, route: Route, *, in_run: bool) -> Plan:
        """What an upstream's part would be; no job where it only hands on, unless ``in_run``."""
        ask, read_before = await self._with_items(planning.ask, route)
        request = ask.wire.parse(ask.body.payload)
        if route.wire and isinstance(ask.wire, LoadsModels):
            answer = ask.wire.load_answer(ask.body.payload)
            if answer is not None:
                return Plan(route, None, answer)
        draft = await self._draft(ask, route, request)
        restored = await self._history.restore(
            request,
            draft.editor,
            ask.identity.caller,
            draft.offer_fingerprint,
            is_person=draft.is_person,
            local=ask.local,
            settle=self._settle(planning, draft),
            why_not=_why_not(draft),
        )
        if restored.ran or restored.asked or planning.ran or planning.asked:
            restored = planning.with_earlier(restored)
        if read_before and not restored.untrusted:
            restored = replace(restored, untrusted=read_before)
        if (restored.upstream or restored.bound) and not planning.pinned:
            planning.pinned = True
            home = planning.candidates.pin(route, restored.upstream, bound=restored.bound)
            if home is not route:
                return await self._plan(planning, home, in_run=in_run)
        if not (draft.must_run or restored or in_run):
            return Plan(route, None)
        return Plan(route, await self._job(planning, draft, restored))

    def _settle(self, planning: Planning, draft: _Draft) -> Settle | None:
        """What finds out about approvals of the one who asks; ``None`` where there are none."""
        if not self._approvals.enabled:
            return None
        ask, request, upstream = planning.ask, draft.request, draft.route.served.upstream.name
        permissions = ask.access.permissions
        selection = permissions.selections[upstream]

        async def settle(ids: Sequence[str], untrusted: str) -> Answers:
            ledger = RunLedger()
            if untrusted:
                ledger.mark_untrusted(untrusted)
            planning.purse = planning.purse or Purse.of(
                self._budgets.within(request.max_calls), time.monotonic
            )
            parent = Parent(
                ask,
                request.model,
                ledger,
                1,
                planning.purse,
                asking=AgentAsking(
                    selection.asks and draft.is_person and can_wait(request), keeps=request.keeps
                ),
            )
            resuming = Resuming(
                ask.identity,
                permissions.policies[upstream],
                selection.catalog,
                ask.access.meter,
                lambda agent: self._parents.continuing(agent, parent),
            )
            return await self._approvals.settle(ids, resuming)

        return settle

    async def _with_items(self, ask: Ask, route: Route) -> tuple[Ask, str]:
        """A request that says the items of our responses that it names, if its upstream cannot know them; and
        a tool whose untrusted result the model had read by then, empty for none.

        Raises :class:`~proxy.errors.RequestError` for an item that is not known here.
        """
        wire, is_own = ask.wire, not route.wire and route.served.text_calls is None
        if is_own or not isinstance(wire, RefersToItems):
            return ask, ""
        request = wire.parse(ask.body.payload)
        if not request.references:
            return ask, ""
        body, untrusted = await self._items.resolve(wire, request, ask.body, ask.identity.caller, ask.local)
        if unknown := wire.parse(body.payload).references:
            raise item_not_found(unknown[0])
        return replace(ask, body=body), untrusted

    async def _draft(self, ask: Ask, route: Route, request: ClientRequest) -> _Draft:
        """What the upstream would be offered, and how it would be asked."""
        selection = ask.access.permissions.selections[route.served.upstream.name]
        takes_tools = self._takes_tools(route)
        offer = self._offers.decide(request, selection, ask.options.wanted, upstream_takes_tools=takes_tools)
        rules = text_call_rules(route, request, offer)
        port = port_of(route, ask.wire, self._wires, request, rules)
        make = partial(_editor, ask, route, port, request, offer)
        editor = await in_thread(make) if len(ask.body.raw) > LARGE_BYTES else make()
        if offer:
            request.check_history(lambda name: is_reserved(name, offer, request))
        is_person = ask.identity.is_person or bool(request.people and self._settings.people_in_bodies)
        is_person = is_person or (
            ask.nested is not None and (ask.nested.asking.can_ask or ask.nested.asking.goes_on)
        )
        fingerprint = offer.fingerprint if offer and is_person and ask.options.history else None
        must_run = bool(route.wire or rules or offer or request.chosen or request.brings_ours)
        return _Draft(route, request, port, editor, offer, fingerprint, is_person, must_run)

    async def _job(self, planning: Planning, draft: _Draft, restored: Restored) -> Job:
        """The run of a request at one upstream."""
        ask, route, request, editor = planning.ask, draft.route, draft.request, draft.editor
        payload, is_large = ask.body.payload, len(ask.body.raw) > LARGE_BYTES
        is_crossed = isinstance(editor, CrossedEditor | PromptedEditor)
        if isinstance(editor, CrossedEditor | PromptedEditor):
            # All of the conversation is here now; no upstream of another dialect has a part of it.
            restored.check_found(request)
            await in_thread(editor.translate) if is_large else editor.translate()
        check_switches(payload)
        tools = await self._tools(planning, draft, restored)
        meter = ask.access.meter
        return Job(
            ask.identity,
            ClientSide(ask, ask.wire, request, ask.options.trace),
            UpstreamSide(
                route=route,
                port=draft.port,
                editor=editor,
                # What stands in a query is said in a dialect, too.
                head=RequestHead(of_any_dialect(ask.head.headers)) if route.wire else ask.head,
                crossed=is_crossed,
                left_out=_left_out(editor),
                is_large=is_large,
            ),
            tools,
            Conversation(
                restored=bool(restored) or request.brings_ours,
                is_person=draft.is_person,
                notes_threads=tools.selection.guards,
                offer_fingerprint=draft.offer_fingerprint,
                repeat_key=planning.repeat_key,
                local=ask.local,
                approvals=Continued(
                    restored.waiting,
                    restored.ran,
                    planning.purse,
                    restored.asked_in,
                    restored.waits,
                    restored.asked,
                ),
                recall=restored.recall,
            ),
            Accounting(meter, price_of(meter, self._prices, route, payload)),
            Recording(
                request=ask.body.raw if self._settings.keep_requests else b"",
                prompt_fingerprint=prompt_fingerprint(payload, tools.offer.fingerprint),
            ),
            Fallback(planning.candidates, lambda: self.job(planning)),
        )

    async def _tools(self, planning: Planning, draft: _Draft, restored: Restored) -> ToolAccess:
        """The tools of a run: of the offer what may be used after what the model has read."""
        permissions, upstream = planning.ask.access.permissions, draft.route.served.upstream.name
        policy, selection, offer = (
            permissions.policies[upstream],
            permissions.selections[upstream],
            draft.offer,
        )
        if offer.asked:
            policy, selection = asking_too(policy, selection, offer.asked)
        ledger = self._ledger(planning, draft)
        untrusted = restored.untrusted
        if not untrusted and selection.guards:
            untrusted = await self._untrusted_upstream(draft.request, restored, planning.ask.identity.caller)
        if untrusted:
            ledger.mark_untrusted(untrusted)
            offer = guard(offer, selection.offered, policy, untrusted, asks=selection.asks)
        return ToolAccess(offer, policy, selection, ledger)

    def _ledger(self, planning: Planning, draft: _Draft) -> RunLedger:
        """What a request has caused: its own, or for a repeat that of the request that it repeats."""
        ask = planning.ask
        if ask.nested is not None:
            # Whatever an agent causes is part of what the client's request causes.
            planning.ledger = ask.nested.ledger
        elif planning.ledger is None and not (ask.access.permissions.acts and draft.is_person):
            # There is no effect that a repeat could share, or nobody knows whose repeat it would be.
            planning.ledger = RunLedger()
        elif planning.ledger is None:
            path, attempt = ask.wire.dialect.path, ask.options.attempt
            repeat = repeat_of(ask.identity.caller, draft.request.people, path, ask.body.payload, attempt)
            planning.repeat_key = repeat.key
            planning.ledger = self._idempotency.begin(repeat.key, is_repeat=repeat.is_repeat)
        return planning.ledger

    async def _untrusted_upstream(self, request: ClientRequest, restored: Restored, caller: str) -> str:
        """The tool whose untrusted result is in what only the upstream has of a conversation."""
        # A response of ours says itself what was read in it.
        continued = () if restored.bound else (request.continues,)
        ids = [one for one in (request.conversation, *continued, *request.references) if one]
        return await self._threads.untrusted(ids, caller)

    def _takes_tools(self, route: Route) -> bool:
        served = route.served
        return served.tools and not self._refusals.refuses(served.upstream.name, route.model)


def _editor(ask: Ask, route: Route, port: UpstreamPort, request: ClientRequest, offer: Offer) -> BodyEditor:
    """What edits the body, less what in it chooses tools of ours: no upstream knows that."""
    raw, sent = ask.body.raw, request
    if request.chosen:
        raw, sent = ask.wire.without_chosen(raw, request, offer.shown)
    return port.editor(raw, sent, route.served.responses_state, caller=ask.identity.caller)


def _why_not(draft: _Draft) -> MemoryOutcome | None:
    """Why no answers are looked up for a request with tools, if that is so."""
    if not draft.offer or draft.offer_fingerprint is not None:
        return None
    return "off" if draft.is_person else "no_person"


def _left_out(editor: BodyEditor) -> Sequence[str]:
    """The fields of a client's request that an upstream of another dialect is not sent."""
    if isinstance(editor, CrossedEditor | PromptedEditor):
        return [left.field for left in editor.left_out]
    return ()
