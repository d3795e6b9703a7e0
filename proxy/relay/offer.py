"""Which server tools one request offers, and whose call a name is.

A function the client declared is the client's, whatever its name, unless the name is an alias or
one of our reserved ids: then it means our tool, and our schema goes upstream under that name.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proxy.caches import Derived, text_bytes
from proxy.errors import RequestError
from proxy.events import ToolDefinition
from proxy.http.own_headers import TOOLS
from proxy.relay.choosing import Choice, choose
from proxy.tools.access.catalog import Selection
from proxy.tools.access.policy import Policy
from proxy.tools.contract.spec import ToolSpec
from proxy.wires.chosen import NOTHING_SHOWN, ShownTools
from proxy.wires.client_port import ClientRequest

__all__ = [
    "RESERVED_PREFIX",
    "Offer",
    "OfferRules",
    "Offers",
    "Wanted",
    "asking_too",
    "decide",
    "guard",
    "guarded_names",
    "is_reserved",
    "offered_only",
    "parse_wanted",
]

RESERVED_PREFIX = "core__"
_MAX_BYTES = 16 << 20
"""Offers that are held of a catalog: a few for each selection, and selections are few."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client chose with ``x-toolrelay-tools`` or in its body: nothing, everything, or names.

    ``param`` is the field that it chose them with.
    """

    every: bool = False
    names: tuple[str, ...] = ()
    param: str = TOOLS


def parse_wanted(header: str | None) -> Wanted | None:
    """Read ``x-toolrelay-tools``; ``None`` where the client says nothing.

    Raises :class:`RequestError` for a header that names nothing.
    """
    if header is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in header.split(",") if name.strip()))
    if not names:
        raise RequestError(400, f"{TOOLS} must be none, all or a list of tool names.", param=TOOLS)
    if names == ("none",):
        return Wanted()
    if names == ("all",):
        return Wanted(every=True)
    return Wanted(names=names)


@dataclass(frozen=True, slots=True)
class OfferRules:
    """What the operator set: whether tools are injected unasked, and names that stand for tools."""

    inject: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """The server tools of one request.

    ``added`` go in beside the client's own tools, ``replaced`` take the place of a declaration of
    the client's.  ``names`` maps a name on the wire to the tool's id, ``client_names`` are the
    names whose calls belong to the client; with ``open_names`` every name that is not ours does.
    ``withheld`` maps the tools that were left out to why.  ``fingerprint`` is a digest of the offered tools,
    their schemas too: it changes when a model would see something else.  ``guarded`` are names, of
    ``added`` and ``replaced``, that a model is not shown for what it has read; a call of one is still
    ours to refuse.  ``shown`` is what the client sees of the tools that it chose in its body, and ``asked``
    are the ids of those whose calls it wants to approve.  ``declared`` is every name that the model is
    offered.  Most requests share an offer, which is equal to itself alone.
    """

    added: tuple[ToolDefinition, ...] = ()
    replaced: tuple[ToolDefinition, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    client_names: frozenset[str] = frozenset()
    withheld: Mapping[str, str] = field(default_factory=dict)
    open_names: bool = False
    fingerprint: str = ""
    guarded: frozenset[str] = frozenset()
    shown: ShownTools = NOTHING_SHOWN
    asked: frozenset[str] = frozenset()
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
        """What it takes in memory, less the tools that the registry has anyway."""
        ours = len(self.added) + len(self.replaced) + len(self.withheld) + 2 * len(self.names)
        # A client's names stand in two sets.
        return 4000 + 300 * ours + text_bytes(self.client_names) + 250 * len(self.client_names)

    def is_hidden(self, name: str) -> bool:
        """Whether a call of this name must not reach the client: ours, or nobody's."""
        return name in self.names if self.open_names else name not in self.client_names

    def tool_ids(self) -> tuple[str, ...]:
        """The ids of the tools that a model is shown."""
        return self._tool_ids


def decide(
    request: ClientRequest,
    selection: Selection,
    rules: OfferRules,
    wanted: Wanted | None,
    *,
    upstream_takes_tools: bool,
) -> Offer:
    """What this request offers.

    Raises :class:`RequestError` where the client asked by name for what cannot be had.
    """
    available = {spec.name: spec for spec in selection.offered}
    withheld = dict(selection.withheld)
    wanted, shown, asked = _with_body(request, selection, wanted)
    named = frozenset(request.declared)
    nothing = Offer(client_names=named, withheld=withheld, open_names=request.open_names, shown=shown)
    if wanted is not None and not wanted.every and not wanted.names:
        return nothing
    chosen = _chosen(available, rules, wanted)
    replaced = _replaced(request, available, rules)
    by_name = bool(wanted and wanted.names) or bool(replaced)
    client_names = named - frozenset(replaced)
    obstacle = _obstacle(request, client_names, upstream_takes_tools)
    if obstacle is not None:
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
        if wanted and wanted.names and not upstream_takes_tools:
            raise RequestError(400, "The upstream of this model does not accept tools.", param=wanted.param)
        if not replaced or not upstream_takes_tools:
            return replace(nothing, withheld={**withheld, **{spec.name: obstacle for spec in chosen}})
        chosen = []
    added = []
    # A tool goes in once, under the name that the client knows it by.
    declared = {spec.name for spec in replaced.values()}
    for spec in chosen:
        if spec.name in client_names:
            withheld[spec.name] = "the client declared a function of this name"
        elif spec.name not in declared:
            added.append(spec)
    return Offer(
        added=tuple(spec.definition() for spec in added),
        replaced=tuple(spec.definition(name) for name, spec in replaced.items()),
        names={**{spec.name: spec.name for spec in added}, **{n: spec.name for n, spec in replaced.items()}},
        client_names=client_names,
        withheld=withheld,
        open_names=request.open_names,
        fingerprint=_fingerprint({**{spec.name: spec for spec in added}, **replaced}),
        shown=shown.renamed({spec.name: name for name, spec in replaced.items()}),
        asked=asked,
    )


def _with_body(
    request: ClientRequest, selection: Selection, wanted: Wanted | None
) -> tuple[Wanted | None, ShownTools, frozenset[str]]:
    """What a request chose with its header and in its body, what its client sees of the latter, and the ids
    of the tools whose calls it wants to approve."""
    if not request.chosen:
        return wanted, NOTHING_SHOWN, frozenset()
    choice = choose(request.chosen, selection.offered, asks=selection.asks)
    return _joined(choice, wanted), choice.shown, choice.asked


def _joined(choice: Choice, wanted: Wanted | None) -> Wanted:
    """The tools that the body chose, and those of the header.

    Raises :class:`RequestError` where the header wants no tool at all.
    """
    if wanted is None:
        return Wanted(names=tuple(sorted(choice.ids)), param="tools")
    if wanted.every:
        return wanted
    if not wanted.names:
        raise RequestError(
            400,
            f"{TOOLS} is none, but the body chooses server tools. Leave one of the two out.",
            param=TOOLS,
        )
    return Wanted(names=tuple(sorted(choice.ids.union(wanted.names))))


def is_reserved(name: str, offer: Offer, request: ClientRequest) -> bool:
    """Whether only the proxy may answer calls of this name in a client's history.

    That is each server tool that is offered.  Under a name that the client declares its own history may
    hold calls of its own function; not under our reserved ids.
    """
    return name in offer.names and (name.startswith(RESERVED_PREFIX) or name not in request.declared)


def offered_only(policy: Policy, offer: Offer, asking: Sequence[str]) -> Policy:
    """A policy, and of what it allows only what was offered, and what is ``asking`` for an approval."""
    offered = Policy(
        allow=(*offer.names.values(), *asking),
        max_argument_bytes=policy.max_argument_bytes,
        max_result_bytes=policy.max_result_bytes,
        max_image_bytes=policy.max_image_bytes,
        settings=("this request", "this request", "this request"),
    )
    return policy.intersect(offered)


def asking_too(policy: Policy, selection: Selection, asked: frozenset[str]) -> tuple[Policy, Selection]:
    """A policy and what it says of a catalog, where calls of the tools ``asked`` need an approval too."""
    wish = Policy(
        allow=("*",),
        approve=tuple(sorted(asked)),
        max_argument_bytes=policy.max_argument_bytes,
        max_result_bytes=policy.max_result_bytes,
        max_image_bytes=policy.max_image_bytes,
        settings=("this request", "require_approval of this request", "this request"),
    )
    return policy.intersect(wish), replace(selection, asking=selection.asking | asked)


class Offers:
    """What requests offer; for those that bring no tools of their own it is decided once."""

    def __init__(self, rules: OfferRules) -> None:
        self._rules = rules
        self._known: Derived[tuple[Selection, str | None, bool], Offer] = Derived(
            "offers", _MAX_BYTES, lambda _, offer: offer.kept_bytes
        )

    def decide(
        self,
        request: ClientRequest,
        selection: Selection,
        wanted: Wanted | None,
        *,
        upstream_takes_tools: bool,
    ) -> Offer:
        """See :func:`decide`."""
        if request.declared or wanted is not None or request.chosen:
            return decide(request, selection, self._rules, wanted, upstream_takes_tools=upstream_takes_tools)
        # All of such a request that an offer hangs on.
        obstacle = _obstacle(request, frozenset(), upstream_takes_tools)
        key = (selection, obstacle, request.open_names)
        offers = self._known.of(selection.catalog)
        known = offers.get(key)
        if known is None:
            offer = decide(request, selection, self._rules, wanted, upstream_takes_tools=upstream_takes_tools)
            known = offers.put(key, offer)
        return known


def guard(
    offer: Offer, specs: Iterable[ToolSpec], policy: Policy, untrusted: str, *, asks: bool = False
) -> Offer:
    """The offer of a request that begins behind what ``untrusted`` gave: see :func:`guarded_names`."""
    by_id = {spec.name: spec for spec in specs}
    rules = guarded_names(offer, by_id.get, policy, untrusted, asks=asks)
    if not rules:
        return offer
    return replace(
        offer,
        withheld={**offer.withheld, **{offer.names[name]: rule for name, rule in rules.items()}},
        fingerprint=_fingerprint(
            {name: by_id[tool] for name, tool in offer.names.items() if name not in rules}
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
    """The names of an offer whose tools need an approval after what ``untrusted`` gave, with the rule.

    Those too that a client declared and that mean a tool of ours.  ``find`` gives the tool of an id.
    A tool of a guarded name runs no more, whatever a model is shown: the runner asks policy itself.
    None is guarded where somebody is asked about its calls (``asks``).
    """
    if not untrusted or asks:
        return {}
    found = {name: spec for name, tool in offer.names.items() if (spec := find(tool)) is not None}
    rules = {name: policy.decide(spec, untrusted=untrusted) for name, spec in found.items()}
    return {name: decision.rule for name, decision in rules.items() if not decision.allowed}


def _fingerprint(offered: Mapping[str, ToolSpec]) -> str:
    """A digest of the tools by the names they are offered under."""
    lines = (f"{name}={spec.digest}" for name, spec in sorted(offered.items()))
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def _chosen(available: Mapping[str, ToolSpec], rules: OfferRules, wanted: Wanted | None) -> list[ToolSpec]:
    """The tools to inject.  A name that cannot be had is refused alike, whether denied or unknown."""
    if wanted is None:
        return list(available.values()) if rules.inject else []
    if wanted.every:
        return list(available.values())
    for name in wanted.names:
        if name not in available:
            raise RequestError(
                400, f"{TOOLS} names a tool that is not available: {name[:64]!r}.", param=TOOLS
            )
    return [available[name] for name in sorted(wanted.names)]


def _replaced(
    request: ClientRequest, available: Mapping[str, ToolSpec], rules: OfferRules
) -> dict[str, ToolSpec]:
    """Functions of the client's that mean a tool of ours: aliases, and reserved ids."""
    found = {}
    for name in request.declared:
        target = rules.aliases.get(name, name if name.startswith(RESERVED_PREFIX) else None)
        if target is not None and target in available:
            found[name] = available[target]
    return found


def _obstacle(request: ClientRequest, client_names: frozenset[str], upstream_takes_tools: bool) -> str | None:
    """Why nothing may be injected, in words; ``None`` where it may."""
    if not upstream_takes_tools:
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
