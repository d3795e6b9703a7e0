"""Decide which server tools a request offers, and who owns the calls of each name.

A function that the client declares belongs to the client, whatever its name. The exceptions are aliases and
the proxy's reserved ids: such a name means a server tool, and the schema of the server tool goes upstream
under it.
"""

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import msgspec
from msgspec import Struct, structs

from proxy.base.caches import Derived, text_bytes
from proxy.base.errors import RequestError
from proxy.base.events import (
    GENERATE_IMAGE,
    RUN_PROGRAM,
    SEARCH_TOOLS,
    ToolDefinition,
    ToolDefinitions,
)
from proxy.http.own_headers import TOOLS
from proxy.relay.offering.choosing import Choice, choose
from proxy.relay.offering.deferred import (
    NOTHING_DEFERRED,
    Deferred,
    OfferedTools,
    SearchRules,
    defer,
    with_room_for,
)
from proxy.relay.offering.hosted import (
    NONE_BUT,
    declared_tools,
    names_in_programs,
    program_of,
    refuse_hosted,
    serving_tools,
    shown_with,
)
from proxy.relay.offering.programs import ProgramRules
from proxy.relay.offering.tool_limits import ANY_TOOLS, ToolLimits, too_many
from proxy.relay.offering.wanted import Wanted
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy
from proxy.tools.contract.spec import ToolSpec
from proxy.wires.chosen import NOTHING_SHOWN, ShownTools
from proxy.wires.client_port import ClientRequest
from proxy.wires.hosted.tools import HostedTool
from proxy.wires.typed_tools.searching import ClientSearch

RESERVED_PREFIX = "core__"
_MAX_BYTES = 16 << 20
"""The most bytes of offers that are cached for a catalog: a few for each selection, and selections are
few."""


class OfferRules(Struct, frozen=True):
    """The operator's settings: whether tools are injected unasked, their aliases, the tools that serve the
    provider's own (``hosted``), hosts whose pages such a fetch may open unmentioned, tool search, and
    programs."""

    inject: bool = True
    aliases: Mapping[str, str] = msgspec.field(default_factory=dict)
    hosted: Mapping[str, str] = msgspec.field(default_factory=dict)
    known_hosts: tuple[str, ...] = ()
    search: SearchRules = SearchRules()
    programs: ProgramRules = ProgramRules()


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """The server tools of one request.

    ``added`` are offered beside the client's own tools; ``replaced`` replace declarations of the client.
    ``names`` maps a name on the wire to the tool's id. ``client_names`` are the names whose calls belong to
    the client. With ``open_names``, every name that is not the proxy's belongs to the client. ``withheld``
    maps the tools that were left out to the reason. ``fingerprint`` is a digest of the offered tools with
    their schemas; it changes if a model would see something else. ``guarded`` are names of ``added`` and
    ``replaced`` that a model is not shown because of what it has read; the proxy still refuses a call of
    one. ``shown`` is what the client sees of the tools that it chose in its body. ``asked`` are the ids of
    those whose calls it wants to approve. ``deferred`` are tools that the model is offered but not shown; it
    finds them with a search. ``loaded`` are the names of those that ``added`` has meanwhile, at its end, in
    the order in which they were found. ``declared`` is every name that the model is offered. Most
    requests share an offer; it is equal only to itself.
    """

    added: ToolDefinitions = field(default_factory=ToolDefinitions)
    replaced: tuple[ToolDefinition, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    client_names: frozenset[str] = frozenset()
    withheld: Mapping[str, str] = field(default_factory=dict)
    open_names: bool = False
    fingerprint: str = ""
    guarded: frozenset[str] = frozenset()
    shown: ShownTools = NOTHING_SHOWN
    asked: frozenset[str] = frozenset()
    deferred: Deferred = NOTHING_DEFERRED
    loaded: tuple[str, ...] = ()
    declared: frozenset[str] = field(init=False, repr=False, compare=False)
    _tool_ids: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shown = {tool for name, tool in self.names.items() if name not in self.guarded}
        object.__setattr__(self, "declared", self.client_names | frozenset(self.names))
        object.__setattr__(self, "_tool_ids", tuple(sorted(shown)))

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def kept_bytes(self) -> int:
        """The memory that it takes, in bytes, without the tools themselves, which the registry holds
        anyway."""
        ours = len(self.added) + len(self.replaced) + len(self.withheld) + 2 * len(self.names)
        # The client's names are in two sets.
        mine = text_bytes(self.client_names) + 250 * len(self.client_names)
        return 4000 + 300 * ours + mine + self.added.kept_bytes + self.deferred.kept_bytes

    def is_hidden(self, name: str) -> bool:
        """Return whether a call of this name must not reach the client: it is the proxy's, or of no known
        tool."""
        return name in self.names if self.open_names else name not in self.client_names

    def without(self, names: Collection[str], reason: str) -> "Offer":
        """Return the offer without these names. A name that the client declared means its own tool again."""
        left = {name: tool for name, tool in self.names.items() if name not in names}
        mine = [tool.name for tool in self.replaced if tool.name in names]
        return replace(
            self,
            added=self.added.less(names),
            replaced=tuple(tool for tool in self.replaced if tool.name not in names),
            names=left,
            client_names=self.client_names.union(mine),
            withheld={**self.withheld, **{self.names[name]: reason for name in names if name in self.names}},
            guarded=self.guarded.difference(names),
            deferred=self.deferred.less(names) if self.deferred.tools else self.deferred,
            loaded=tuple(name for name in self.loaded if name not in names),
        )

    def search(self, query: str, is_withheld: Callable[[str], bool]) -> Sequence[ToolDefinition]:
        """Return the deferred tools that fit a query best, less those that the model may not be shown.

        If there is no room for more, they are those that it is shown already.
        """
        is_full = len(self.loaded) >= self.deferred.room
        return self.deferred.find(
            query, lambda name: not is_withheld(name) and (not is_full or name in self.loaded)
        )

    def with_loaded(self, names: Sequence[str]) -> "Offer":
        """Return the offer that also shows these of its deferred tools, after all others."""
        fresh = self.deferred.to_load(names, self.loaded)
        if not fresh:
            return self
        added = self.added.followed_by(self.deferred.tools[name] for name in fresh)
        return replace(self, added=added, loaded=(*self.loaded, *fresh))

    def with_declared(self, request: ClientRequest) -> "Offer":
        """Return the same offer for a request that declares the same tools of its provider in its own way."""
        return self._serving(declared_tools(request, self.shown))

    def without_declarations(self) -> "Offer":
        """Return the same offer without what the client has written in its declarations."""
        return self._serving(
            {name: HostedTool(tool.kind, "", {}) for name, tool in self.shown.hosted.items()}
        )

    def _serving(self, tools: Mapping[str, HostedTool]) -> "Offer":
        made = copy(self)  # ``replace`` would take four times as long.
        object.__setattr__(made, "shown", NOTHING_SHOWN.serving(tools))
        return made

    def listing_without(self, names: Collection[str]) -> "Offer":
        """Return the offer whose search does not list these of its deferred tools."""
        added = self.deferred.listed_in(self.added, names)
        return self if added is self.added else replace(self, added=added)

    def loosened(self) -> "Offer":
        """Return the offer with the same tools, none of them ``strict``."""
        return replace(
            self,
            added=ToolDefinitions().followed_by(replace(tool, strict=False) for tool in self.added),
            deferred=self.deferred.loosened(),
            replaced=tuple(replace(tool, strict=False) for tool in self.replaced),
        )

    def tool_ids(self) -> tuple[str, ...]:
        """Return the ids of the tools that a model is shown, or can find."""
        return self._tool_ids


def decide(
    request: ClientRequest,
    selection: Selection,
    rules: OfferRules,
    wanted: Wanted | None,
    *,
    limits: ToolLimits = ANY_TOOLS,
    search: ClientSearch | None = None,
) -> Offer:
    """Return what this request offers. ``search`` is the tool search that its client declared.

    If an upstream takes no more tools, the model searches those of the proxy; without search, those that come
    last by id are withheld.

    Raise :class:`RequestError` if the client named a tool that it cannot have.
    """
    refused = limits.refusals(selection.offered)
    available = {spec.name: spec for spec in selection.offered if spec.name not in refused}
    withheld = {**selection.withheld, **refused}
    wanted, shown, asked = _with_body(request, selection, wanted)
    nothing = _nothing(request, limits, search, Offer(withheld=withheld, shown=shown))
    if wanted is not None and not wanted.every and not wanted.names:
        refuse_hosted(request)
        return nothing
    chosen, replaced = _chosen(available, rules, wanted), _replaced(request, available, rules)
    program = rules.programs.tool(selection)
    hosted, serving = serving_tools(request, available, program)
    by_name = bool(wanted and wanted.names) or bool(replaced) or bool(hosted)
    client_names = (nothing.client_names - frozenset(replaced)) | request.brought
    obstacle = _obstacle(request, client_names, limits)
    if obstacle is not None:
        _refuse_named(request, wanted, by_name=by_name, takes=limits.takes)
        if not replaced or not limits.takes:
            return replace(nothing, withheld={**withheld, **{spec.name: obstacle for spec in chosen}})
        chosen = []
    taken = client_names | names_in_programs(client := program_of(serving))
    chosen, clashing = _named_once(chosen, renamed := {**replaced, **hosted}, taken)
    finder = selection.catalog.get(SEARCH_TOOLS) if SEARCH_TOOLS not in taken else None
    found, left_out = _with_room(chosen, finder, request, rules.search, limits, search)
    writes = search is None and RUN_PROGRAM not in client_names and (wanted is None or wanted.programs)
    if program is not None and (writes or client is not None):
        forced = request.forced or ()
        found, left_out = rules.programs.offered(found, left_out, chosen, program, forced, client)
    left_out |= dict.fromkeys(clashing, "the client declared a function of this name")
    ours = {**{spec.name: spec for spec in found.specs}, **renamed}
    made = replace(
        nothing,
        added=shown_with(found.shown, {name: spec for name, spec in hosted.items() if spec is not program}),
        replaced=tuple(spec.definition(name) for name, spec in replaced.items()),
        names={name: spec.name for name, spec in ours.items()},
        client_names=client_names,
        withheld={**withheld, **left_out},
        fingerprint=_fingerprint(ours),
        shown=nothing.shown.renamed({spec.name: n for n, spec in replaced.items()}).serving(serving),
        asked=asked,
        deferred=found.deferred,
    )
    if search is not None:
        made = made.with_loaded([name for name in search.deferred if name in (request.forced or ())])
    return made if limits.strict else made.loosened()


def _named_once(
    chosen: Sequence[ToolSpec], renamed: Mapping[str, ToolSpec], client_names: frozenset[str]
) -> tuple[list[ToolSpec], set[str]]:
    """Return the tools that are offered by their ids, and the ids that the client declared as its own.

    A tool is offered once, under the name that the client knows.
    """
    declared = {spec.name for spec in renamed.values()} - client_names
    left = [spec for spec in chosen if spec.name not in declared]
    clashing = {spec.name for spec in left if spec.name in client_names}
    return [spec for spec in left if spec.name not in clashing], clashing


def _nothing(request: ClientRequest, limits: ToolLimits, search: ClientSearch | None, of: Offer) -> Offer:
    """Return ``of`` as the offer of no server tool. Without these nothing searches, so that the client's own
    deferred tools are all shown."""
    made = replace(of, client_names=frozenset(request.declared), open_names=request.open_names)
    if search is None:
        return made
    mine = with_room_for(search.deferred, limits.room_beside(request.tool_count), request.forced or ())
    return replace(
        made,
        added=ToolDefinitions().followed_by(mine if limits.takes else ()),
        client_names=made.client_names.union(search.deferred),
        shown=structs.replace(of.shown, forms={SEARCH_TOOLS: search.form}),
    )


def _refuse_named(request: ClientRequest, wanted: Wanted | None, *, by_name: bool, takes: bool) -> None:
    """Raise :class:`RequestError` for a request that names server tools and cannot have any."""
    if (by_name or wanted) and request.background:
        raise RequestError(
            400,
            "Server tools do not run in the background yet. Leave background out, or the tools.",
            param="background",
        )
    if by_name and request.choices > 1:
        raise RequestError(
            400, "Server tools answer one choice only. Ask for n = 1, or leave them out.", param="n"
        )
    if not takes and (request.chosen.hosted or (wanted and wanted.names)):
        param = wanted.param if wanted else "tools"
        raise RequestError(400, "The upstream of this model does not accept tools.", param=param)


def _with_room(
    chosen: Sequence[ToolSpec],
    finder: ToolSpec | None,
    request: ClientRequest,
    rules: SearchRules,
    limits: ToolLimits,
    search: ClientSearch | None,
) -> tuple[OfferedTools, dict[str, str]]:
    """Return the tools that a request offers, and those that it has no room for, with the reason."""
    room = limits.room_beside(request.tool_count)
    found = defer(chosen, finder, rules, room, request.forced or (), search)
    if found is not None:
        return found, {}
    mine = () if search is None else with_room_for(search.deferred, room, request.forced or ())
    added = chosen[: None if room is None else room - len(mine)]
    shown = ToolDefinitions(spec.definition() for spec in added).followed_by(mine)
    left_out = dict.fromkeys((spec.name for spec in chosen[len(added) :]), too_many(limits.most or 0))
    return OfferedTools(added, shown), left_out


def _with_body(
    request: ClientRequest, selection: Selection, wanted: Wanted | None
) -> tuple[Wanted | None, ShownTools, frozenset[str]]:
    """Join the choices in the header and the body of a request.

    Return the wanted tools, what the client sees of those from the body, and the ids of the tools whose
    calls it wants to approve.
    """
    if not (request.chosen.servers or request.chosen.tools):
        return wanted, NOTHING_SHOWN, frozenset()
    choice = choose(request.chosen, selection.offered, asks=selection.asks)
    return _joined(choice, wanted), choice.shown, choice.asked


def _joined(choice: Choice, wanted: Wanted | None) -> Wanted:
    """Return the tools that the body chose, together with those of the header.

    Raise :class:`RequestError` if the header asks for no tools.
    """
    if wanted is None:
        return Wanted(names=tuple(sorted(choice.ids)), param="tools")
    if wanted.every:
        return wanted
    if not wanted.names:
        raise RequestError(400, NONE_BUT.format("chooses server tools"), param=TOOLS)
    return Wanted(names=tuple(sorted(choice.ids.union(wanted.names))))


def is_reserved(name: str, offer: Offer, request: ClientRequest) -> bool:
    """Return whether only the proxy may answer calls of this name in a client's history.

    This holds for each offered server tool. If the client declares the name, its history may hold calls of
    its own function, except under the proxy's reserved ids.
    """
    return name in offer.names and (name.startswith(RESERVED_PREFIX) or name not in request.declared)


class Offers:
    """Decides what requests offer, and caches the offers: a client declares the same tools each time."""

    def __init__(self, rules: OfferRules) -> None:
        self._rules = rules
        self._known: Derived[Hashable, Offer] = Derived(
            "offers", _MAX_BYTES, lambda _, offer: offer.kept_bytes
        )

    def decide(
        self,
        request: ClientRequest,
        selection: Selection,
        wanted: Wanted | None,
        *,
        limits: ToolLimits = ANY_TOOLS,
        search: ClientSearch | None = None,
    ) -> Offer:
        """See :func:`decide`."""
        chosen = request.chosen
        if chosen.servers or chosen.tools or search is not None:
            return decide(request, selection, self._rules, wanted, limits=limits, search=search)
        # An offer for such a request depends on nothing else of it.
        key = (
            selection,
            limits,
            wanted,
            tuple(request.declared),
            request.brought,
            request.forced,
            request.tool_count,
            request.open_names,
            request.background,
            request.choices > 1,
            request.tools_forbidden,
            tuple([(tool.kind, id_, tool.digest) for tool, id_ in chosen.hosted]),
        )
        offers = self._known.of(selection.catalog)
        known = offers.get(key)
        if known is None:
            offer = decide(request, selection, self._rules, wanted, limits=limits)
            known = offers.put(key, offer.without_declarations() if chosen.hosted else offer)
        return known.with_declared(request) if chosen.hosted else known


def guard(
    offer: Offer, specs: Iterable[ToolSpec], policy: Policy, untrusted: str, *, asks: bool = False
) -> Offer:
    """Return the offer for a request that begins after the model has read untrusted results of the sources
    ``untrusted``.

    See :func:`guarded_names`.
    """
    by_id = {spec.name: spec for spec in specs}
    rules = guarded_names(offer, by_id.get, policy, untrusted, asks=asks)
    if not rules:
        return offer
    return replace(
        offer.listing_without(rules),
        withheld={**offer.withheld, **{offer.names[name]: rule for name, rule in rules.items()}},
        fingerprint=_fingerprint(
            {name: by_id[tool] for name, tool in offer.names.items() if tool in by_id and name not in rules}
        ),
        guarded=frozenset(rules),
    )


def guarded_names(
    offer: Offer,
    find: Callable[[str], ToolSpec | None],
    policy: Policy,
    untrusted: str,
    *,
    asks: bool = False,
) -> dict[str, str]:
    """Return the names of an offer whose tools need an approval after an untrusted result, with the rule.

    ``untrusted`` are the sources of the results, empty for none. Names that a client declared, but that
    mean a server tool, are included. ``find`` returns the tool of an id. A tool of a guarded name can no
    longer run, even if a model is shown it, because the runner itself asks the policy. No name is guarded
    if somebody can be asked about its calls (``asks``).
    """
    if not untrusted or asks:
        return {}
    found = {name: spec for name, tool in offer.names.items() if (spec := find(tool)) is not None}
    rules = {name: policy.decide(spec, untrusted=untrusted) for name, spec in found.items()}
    return {name: decision.rule for name, decision in rules.items() if not decision.allowed}


def _fingerprint(offered: Mapping[str, ToolSpec]) -> str:
    """Return a digest of the tools under the names that they are offered by."""
    lines = (f"{name}={spec.digest}" for name, spec in sorted(offered.items()))
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def _chosen(available: Mapping[str, ToolSpec], rules: OfferRules, wanted: Wanted | None) -> list[ToolSpec]:
    """Return the tools to inject. A denied name gets the same error as an unknown one."""
    if wanted is None or wanted.every:
        # Only a client that declares its provider's tool would see the images.
        every = [spec for spec in available.values() if spec.name != GENERATE_IMAGE]
        return every if wanted is not None or rules.inject else []
    for name in wanted.names:
        if name not in available:
            raise RequestError(
                400, f"{TOOLS} names a tool that is not available: {name[:64]!r}.", param=TOOLS
            )
    return [available[name] for name in sorted(wanted.names)]


def _replaced(
    request: ClientRequest, available: Mapping[str, ToolSpec], rules: OfferRules
) -> dict[str, ToolSpec]:
    """Return the client's functions that mean a server tool: aliases and reserved ids."""
    found = {}
    for name in request.declared:
        target = rules.aliases.get(name, name if name.startswith(RESERVED_PREFIX) else None)
        if target is not None and target in available:
            found[name] = available[target]
    return found


def _obstacle(request: ClientRequest, client_names: frozenset[str], limits: ToolLimits) -> str | None:
    """Return the reason why nothing may be injected, as text; ``None`` if there is none."""
    if not limits.takes:
        return "the upstream takes no tools"
    if request.background:
        return "the request runs in the background"
    if request.choices > 1:
        return "the request asks for more than one choice"
    if request.tools_forbidden:
        return "the request forbids tool calls"
    if request.forced is not None and request.forced <= client_names:
        return "the request forces a tool of the client's own"
    return None
