"""What each upstream's part in a request would be: handed on as it is, or a run with a job.

The same bytes are planned for anew for each upstream that is asked: its tools, names and habits differ.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from multidict import istr

from proxy.caches import Memo
from proxy.errors import RequestError
from proxy.http.headers import HeaderSection
from proxy.http.rules import without
from proxy.in_thread import LARGE_BYTES, in_thread
from proxy.relay.headers import forwardable
from proxy.relay.memory.fingerprint import prompt_shape
from proxy.relay.memory.history import History, Restored
from proxy.relay.memory.idempotency import Idempotency, repeat_key
from proxy.relay.memory.threads import Threads
from proxy.relay.offer import OfferRules, Offers, Wanted, guard, is_reserved, parse_wanted
from proxy.relay.routing.fallback import Candidates
from proxy.relay.routing.prices import Prices
from proxy.relay.routing.router import Route
from proxy.relay.run.job import Job
from proxy.relay.run.model_turn import ToolMemory
from proxy.server.auth.permissions import TRACES, Permissions
from proxy.server.callers import person_name
from proxy.server.metering import check_switches, price_of
from proxy.server.serving.head import Head
from proxy.server.serving.request import EdgeRequest, new_ids
from proxy.server.serving.target import Target
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy
from proxy.tools.running.ledger import RunLedger
from proxy.wires.base import ClientRequest, Trace, Wire
from proxy.wires.turn.digest import people_named

__all__ = ["Call", "Plan", "Planner", "chooses_ours", "trace_of", "wanted_of", "wants_history"]

_HISTORY = istr("x-toolrelay-history")
_IDEMPOTENCY_KEY = istr("Idempotency-Key")
_RETRY_COUNT = istr("x-stainless-retry-count")
_TOOLS = istr("x-toolrelay-tools")
_TRACE = istr("x-toolrelay-trace")
_GUARDING_BYTES = 4 << 20


@dataclass(slots=True)
class Call:
    """One request of a wire with server tools, whoever answers it.

    ``recall`` says whether answers are looked up and remembered for it.
    """

    request: EdgeRequest
    target: Target
    wire: Wire
    view: Permissions
    raw: bytes
    payload: Mapping[str, Any]
    caller: str
    named: bool
    wanted: Wanted | None
    trace: Trace
    candidates: Candidates
    run_id: str
    recall: bool
    repeat: str = ""
    ledger: RunLedger | None = None
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What one upstream is to do with a request: a job, or to be handed it as it is."""

    route: Route
    job: Job | None


class Planner:
    """Plans requests of the wires with server tools."""

    def __init__(
        self,
        *,
        history: History,
        threads: Threads,
        memory: ToolMemory,
        repeats: Idempotency,
        prices: Prices,
        offer: OfferRules,
        keep_requests: bool,
        end_user: str,
    ) -> None:
        """``keep_requests`` and ``end_user`` are the operator's settings."""
        self._history = history
        self._memory = memory
        self._repeats = repeats
        self._prices = prices
        self._offers = Offers(offer)
        self._keep_requests = keep_requests
        self._end_user = end_user
        self.threads = threads
        self._guarding: Memo[tuple[int, int], tuple[Selection, Policy, bool]] = Memo(
            "guarded_selections", _GUARDING_BYTES, lambda known: 4000 + 100 * len(known[0].offered)
        )
        self.run_ids = new_ids("run_")
        """A new one for each run."""

    def able(
        self, routes: Sequence[Route], asked: ClientRequest, view: Permissions, wanted: Wanted
    ) -> Sequence[Route]:
        """The upstreams that offer what a request names; all where none does, so that the first says so."""

        def able(route: Route) -> bool:
            selection = view.selections[route.served.upstream.name]
            takes = self._takes_tools(route)
            try:
                self._offers.decide(asked, selection, wanted, upstream_takes_tools=takes)
            except RequestError:
                return False
            return True

        return [route for route in routes if able(route)] or routes

    async def plan(self, call: Call, route: Route, *, in_run: bool = False) -> Plan:
        """What an upstream's part would be; no job where it only hands on, unless ``in_run``."""
        request, payload, wire, view, caller = call.request, call.payload, call.wire, call.view, call.caller
        asked = wire.parse(payload)
        selection = view.selections[route.served.upstream.name]
        takes = self._takes_tools(route)
        offer = self._offers.decide(asked, selection, call.wanted, upstream_takes_tools=takes)
        large = len(call.raw) > LARGE_BYTES
        made = partial(wire.editor, call.raw, asked, route.served.responses_state, caller=caller)
        editor = await in_thread(made) if large else made()
        if offer:
            asked.check_history(lambda name: is_reserved(name, offer, asked))
        named = call.named or bool(asked.people and not self._end_user)
        shape = offer.shape if offer and named and call.recall else None
        restored = await self._history.restore(asked, editor, caller, shape, named=named)
        if (restored.upstream or restored.bound) and not call.pinned:
            call.pinned = True
            if (home := call.candidates.pin(route, restored.upstream, bound=restored.bound)) is not route:
                return await self.plan(call, home, in_run=in_run)
        if not offer and not restored and not asked.brings_ours and not in_run:
            return Plan(route, None)
        check_switches(payload)
        ledger = self._ledger(call, asked, named=named)
        policy = view.policies[route.served.upstream.name]
        notes_threads = self._guards(selection, policy)
        if untrusted := restored.untrusted or (
            notes_threads and await self._read_in(asked, restored, caller)
        ):
            ledger.mark_untrusted(untrusted)
            offer = guard(offer, selection.offered, policy, untrusted)
        job = Job(
            run_id=call.run_id,
            request_id=request.facts.request_id,
            caller=caller,
            key=request.caller.name,
            wire=wire,
            request=asked,
            editor=editor,
            offer=offer,
            route=route,
            headers=request.head[_going_up_of_runs],
            policy=policy,
            trace=call.trace,
            query=call.target.query,
            put_back=bool(restored) or asked.brings_ours,
            notes_threads=notes_threads,
            named=named,
            shape=shape,
            repeat=call.repeat,
            ledger=ledger,
            prompt_shape=prompt_shape(payload, offer.shape),
            kept_request=call.raw if self._keep_requests else b"",
            large=large,
            meter=request.admission,
            price=price_of(request.admission, self._prices, route, payload),
            candidates=call.candidates,
            elsewhere=lambda: self._elsewhere(call),
        )
        return Plan(route, job)

    def _ledger(self, call: Call, asked: ClientRequest, *, named: bool) -> RunLedger:
        """What a request has caused: its own, or for a repeat that of the request that it repeats."""
        if call.ledger is None and not (call.view.acts and named):
            # There is no effect that a repeat could share, or nobody knows whose repeat it would be.
            call.ledger = RunLedger()
        elif call.ledger is None:
            of_repeats = call.request.head[_of_repeats]
            call.repeat, again = repeat_key(
                call.caller, asked.people, call.wire.dialect.path, call.raw, *of_repeats
            )
            call.ledger = self._repeats.begin(call.repeat, is_repeat=again)
        return call.ledger

    async def _read_in(self, asked: ClientRequest, restored: Restored, caller: str) -> str:
        """The tool whose untrusted result is in what only the upstream has of a conversation."""
        # A response of ours says itself what was read in it.
        continued = () if restored.bound else (asked.continues,)
        ids = [one for one in (asked.conversation, *continued, *asked.references) if one]
        return await self.threads.untrusted(ids, caller)

    def _guards(self, selection: Selection, policy: Policy) -> bool:
        """Whether an untrusted result would withhold one of the tools that an upstream's models may have."""
        key = (id(selection), id(policy))
        known = self._guarding.get(key)
        if known is None:
            found = any(not policy.decide(spec, untrusted="x").allowed for spec in selection.offered)
            # Both are held, so that no others get their identity.
            known = self._guarding.put(key, (selection, policy, found))
        return known[2]

    async def _elsewhere(self, call: Call) -> Job:
        """The job of the next upstream: its habits and its names, over the same request."""
        plan = await self.plan(call, call.candidates.next(), in_run=True)
        if plan.job is None:
            raise RuntimeError("a run that is under way was planned without a job")
        return plan.job

    def caller(self, request: EdgeRequest, payload: Mapping[str, Any]) -> tuple[str, bool]:
        """Who asks, and whether that is one person: a shared door needs the end user's name.

        Who came with a minted token is the person that it was made for, whatever the request says.
        Where the operator says nothing of end users, a body's own fields name people of a shared key; those
        are in the keys of what is put back, and the caller stays the key.
        """
        name_of_key = request.caller.name
        user: object = request.caller.end_user
        if not user and not self._end_user:
            return name_of_key, not request.caller.rights.shared
        if not user:
            place, _, name = self._end_user.partition(":")
            if place == "header":
                # One that came beside the one that somebody on the way added says nothing.
                given = request.headers.getall(name, ())
                user = given[0] if len(given) == 1 else None
            else:
                user = payload.get(name)
        if not isinstance(user, str) or not user:
            return name_of_key, False
        return f"{name_of_key}/{person_name(user)}", True

    def headers_up(
        self, request: EdgeRequest, payload: Mapping[str, Any] | None = None, *, identity: bool
    ) -> HeaderSection:
        """What of a request's headers an upstream may see; as :func:`forwardable`.

        ``payload`` is its body where that was read.
        """
        section = request.head[_going_up_read if identity else _going_up]
        if _IDEMPOTENCY_KEY not in request.headers or not request.caller.rights.keyed:
            return section
        # Many people come with one key of the provider's, which answers what has the same idempotency key
        # with what it answered before.
        caller, named = self.caller(request, payload or {})
        people = people_named(payload or {})
        if not named and not people:
            return HeaderSection.of(without(section, "idempotency-key"))
        return HeaderSection.of(
            [
                (name, _of_one(caller, people, value) if name.lower() == "idempotency-key" else value)
                for name, value in section
            ]
        )

    def _takes_tools(self, route: Route) -> bool:
        served = route.served
        return served.tools and not self._memory.refuses(served.upstream.name, route.model)


def _of_one(caller: str, people: str, value: str) -> str:
    """A key that requests of one person alone have: who is called otherwise cannot send the same."""
    digest = hashlib.blake2b(digest_size=24)
    for part in (caller, people, value):
        said = part.encode("utf-8", "surrogatepass")
        digest.update(len(said).to_bytes(8, "big") + said)
    return digest.hexdigest()


def wants_history(head: Head) -> bool:
    """Whether a request has its answers looked up and remembered, where the operator lets that be.

    Raises :class:`RequestError` for a wish that is neither on nor off.
    """
    given = head.sole(_HISTORY)
    wish = "on" if given is None else given.strip().lower()
    if wish not in ("on", "off"):
        raise RequestError(400, "x-toolrelay-history must be on or off.", param="x-toolrelay-history")
    return wish == "on"


def _of_repeats(head: Head) -> tuple[str, Sequence[str]]:
    """What a request is called by its client, and what it says of its attempts."""
    return head.sole(_IDEMPOTENCY_KEY) or "", head.listed(_RETRY_COUNT)


def chooses_ours(head: Head) -> bool:
    """Whether a request chooses tools, a trace or a history: nearly none does."""
    headers = head.headers
    return _TOOLS in headers or _TRACE in headers or _HISTORY in headers


def wanted_of(head: Head) -> Wanted | None:
    """The tools that a request chose; raises as :func:`~proxy.relay.offer.parse_wanted` does."""
    return parse_wanted(head.sole(_TOOLS))


def trace_of(request: EdgeRequest, view: Permissions) -> Trace:
    """The trace a request gets: what it asks for, or ``silent`` where that is more than it may.

    The level below would do something else than was asked for: who wants ``events``, which stand beside
    the answer, wants no line of ``status`` in its text.  The response says which it is.
    """
    header = request.head.sole(_TRACE)
    if header is None:
        return view.trace
    for level, name in enumerate(TRACES):
        if name == header.strip():
            granted = name if level <= TRACES.index(view.trace_max) else "silent"
            request.page_headers = {**request.page_headers, _TRACE: granted}
            return granted
    raise RequestError(
        400,
        f"x-toolrelay-trace must be one of {', '.join(TRACES)}.",
        param="x-toolrelay-trace",
    )


def _going_up(head: Head) -> HeaderSection:
    # Never by the names' own view: it may leave out one that stands twice, and values do not.
    return forwardable(list(head.headers.items()), identity=False)


def _going_up_read(head: Head) -> HeaderSection:
    return forwardable(list(head.headers.items()), identity=True)


def _going_up_of_runs(head: Head) -> HeaderSection:
    # A turn that goes on from a call is no repeat of the first, which is what a key on both would say.
    less = without(head[_going_up_read], "idempotency-key")
    return HeaderSection.of(less) if _IDEMPOTENCY_KEY in head.headers else head[_going_up_read]
