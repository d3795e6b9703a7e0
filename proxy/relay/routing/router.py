"""Find the upstreams that serve a model, and the name that each of them has for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from proxy.base.errors import RequestError
from proxy.base.globs import fits
from proxy.http.secrets import Secrets
from proxy.relay.routing.breaker import Breaker
from proxy.relay.routing.deadlines import Deadlines
from proxy.relay.routing.prices import ModelPrices
from proxy.tools.access.policy import Policy
from proxy.upstreams.base import Upstream
from proxy.wires.providers import UpstreamProfiles
from proxy.wires.repairing import RepairHabit
from proxy.wires.text_calls.rules import TextCalls
from proxy.wires.upstream_port import StateHabit

_MAX_KNOWN = 64
"""The most models whose routes a router caches; the oldest entry is dropped. Every caller whose rights name
models or upstreams has a router, and so does every token that is narrowed in its own way."""

_MAX_KNOWN_CHARS = 100


def fits_all(model: str, lists: Sequence[Sequence[str]]) -> bool:
    """Return whether a model fits a pattern of each list."""
    return all(any(fits(model, pattern) for pattern in patterns) for patterns in lists)


@dataclass(frozen=True, slots=True)
class ServedUpstream:
    """One upstream and the models it serves.

    ``narrowing`` limits every caller's policy to the tool patterns of this upstream; ``None`` for no limit.

    ``models`` are patterns; ``renamed`` maps a client's name to the upstream's. ``responses_state`` and
    ``force_usage`` describe the provider's behaviour. With ``strict_bridge``, a request of another dialect
    is refused if this upstream's dialect cannot express a field; otherwise it is sent without the field.
    ``profiles`` say what its models take of such a request. ``repair`` says which defects of its streams are
    repaired. ``total`` limits the time of responses that pass through. ``max_tokens`` maps patterns of its
    models to the most output tokens to ask for, if a client of another dialect sets no limit. ``text_calls``
    says which of its models write calls into their text, ``None`` for none. ``breaker`` is its circuit
    breaker. ``secrets`` are the proxy's secrets that the upstream knows. ``query_names`` are the query
    parameters that it gets with inference requests, beside those that all upstreams get. ``native`` are the
    types of tools that it understands itself although the client runs them; ``*`` means all of its dialects.
    Its models cost nothing if it is ``free``, else what is configured, or what is ``listed``.
    """

    upstream: Upstream
    wires: frozenset[str]
    models: tuple[str, ...] = ("*",)
    renamed: Mapping[str, str] | None = None
    tools: bool = True
    narrowing: Policy | None = None
    force_usage: bool = False
    strict_bridge: bool = False
    profiles: UpstreamProfiles = field(default_factory=UpstreamProfiles)
    repair: RepairHabit = "auto"
    max_tokens: Sequence[tuple[str, int]] = ()
    text_calls: TextCalls | None = None
    retries: int = 2
    responses_state: StateHabit = "auto"
    native: tuple[str, ...] = ()
    total: Deadlines = field(default_factory=Deadlines, compare=False)
    secrets: Secrets | None = None
    query_names: frozenset[str] = frozenset()
    breaker: Breaker = field(default_factory=Breaker, compare=False)
    free: bool = False
    listed: ModelPrices | None = None

    def policy(self, base: Policy) -> Policy:
        """Return the part of a caller's policy that holds for requests that this upstream answers (rule
        T2)."""
        return base if self.narrowing is None else base.intersect(self.narrowing)

    def model_name(self, model: str) -> str | None:
        """Return the upstream's name for ``model``, or ``None`` if it does not serve it."""
        if self.renamed is not None:
            return self.renamed.get(model)
        if self.models == ("*",):
            return model
        return model if any(fits(model, pattern) for pattern in self.models) else None

    def output_limit(self, model: str) -> int | None:
        """Return the most output tokens to ask one of its models for, if the client sets no limit; ``None``
        for no limit."""
        return next((most for pattern, most in self.max_tokens if fits(model, pattern)), None)

    def shown_name(self, model: str) -> str | None:
        """Return the client's name for the upstream's ``model``, or ``None`` if it is not served."""
        if self.renamed is not None:
            return next((name for name, target in self.renamed.items() if target == model), None)
        return model if any(fits(model, pattern) for pattern in self.models) else None


class Route(Struct, frozen=True):
    """The upstream for one request. ``wire`` is the wire in which it is asked, empty for the request's
    own."""

    served: ServedUpstream
    model: str
    renamed: bool
    wire: str = ""


class Router:
    """The upstreams in the order of the configuration; those that serve a model are asked in that order.

    ``models`` are lists of patterns; a model is served only if it fits a pattern of each list.
    """

    def __init__(self, served: Sequence[ServedUpstream], models: Sequence[Sequence[str]] = ()) -> None:
        self.served = tuple(served)
        self.models = models
        self._known: dict[tuple[str, str, Sequence[str]], Sequence[Route]] = {}

    def narrowed(self, upstreams: frozenset[str] | None, models: Sequence[Sequence[str]]) -> "Router":
        """Return a router for a caller who may use only these upstreams (``None``: all) and these models."""
        served = [s for s in self.served if upstreams is None or s.upstream.name in upstreams]
        return Router(served, (*self.models, *models))

    @property
    def default(self) -> ServedUpstream:
        """The upstream for requests that name no model; raises :class:`RequestError` (404) if there is
        none."""
        if not self.served:
            raise RequestError(404, "No upstream is served here.", code="not_found")
        return self.served[0]

    @property
    def is_plain(self) -> bool:
        """Whether every model goes to one upstream under its own name."""
        return (
            not self.models
            and len(self.served) == 1
            and self.default.renamed is None
            and self.default.models == ("*",)
        )

    def permits(self, model: str) -> bool:
        """Return whether a model may be served, by the name that clients use."""
        return fits_all(model, self.models)

    def serves(self, model: str) -> bool:
        """Return whether any upstream serves a model, in any dialect, by the name that clients use."""
        return self.permits(model) and any(one.model_name(model) is not None for one in self.served)

    def routes(self, model: str, wire: str, others: tuple[str, ...] = (), tag: str = "") -> Sequence[Route]:
        """Return the routes to all upstreams that serve a model, the first choice first.

        An upstream is asked in ``wire`` if it speaks that, else in the first of ``others`` that it speaks.
        Upstreams of the latter kind come last. ``tag`` belongs to ``wire``: with and without it, the name
        stands for the same model, but upstreams of other dialects do not know the tag. Raise
        :class:`RequestError` (404, as OpenAI does) if no upstream serves the model in this dialect.
        """
        # Chat and embeddings share a wire, but only chat may be asked in others.
        key = (model, wire, others)
        found = self._known.get(key)
        if found is None:
            wires = (wire, *others)
            names = _names(model, tag)
            routes = (
                Route(served, name, name != model, spoken if spoken != wire else "")
                for served in (self.served if self._permits_any(names) else ())
                if (spoken := next((one for one in wires if one in served.wires), None)) is not None
                and (name := _served_name(served, names, tagged=spoken == wire)) is not None
            )
            # Upstreams that speak the client's own dialect come first: their requests need no translation.
            found = tuple(sorted(routes, key=lambda route: route.wire != ""))
            # Clients choose the names: so a long name is not cached, and no name is cached for ever.
            if found and len(model) <= _MAX_KNOWN_CHARS:
                if len(self._known) >= _MAX_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[key] = found
        if found:
            return found
        names = _names(model, tag)
        elsewhere = self._permits_any(names) and any(
            _served_name(served, names, tagged=True) is not None for served in self.served
        )
        raise RequestError(
            404,
            f"No upstream serves the model {model[:100]!r} in this dialect: no upstream of the model has "
            f'"{wire}" among its wires.'
            if elsewhere
            else f"The model {model[:100]!r} does not exist or is not served here.",
            param="model",
            code="model_not_found",
        )

    def _permits_any(self, names: Sequence[str]) -> bool:
        return not self.models or any(map(self.permits, names))

    def order(self) -> Sequence[tuple[str, Sequence[Route]]]:
        """Return each model, or pattern of models, that several upstreams serve, with their routes in
        order."""
        names = dict.fromkeys(name for served in self.served for name in served.renamed or served.models)
        serving = [
            (
                name,
                [
                    Route(served, target, target != name)
                    for served in self.served
                    if (target := served.model_name(name)) is not None
                ],
            )
            for name in names
        ]
        return [(name, routes) for name, routes in serving if len(routes) > 1]


def _names(model: str, tag: str) -> Sequence[str]:
    """Return the names of a model: as it was asked for, then with or without the tag."""
    if not tag:
        return (model,)
    if model.endswith(tag):
        return (model, model.removesuffix(tag))
    return (model,) if tag[0] in model else (model, model + tag)


def _served_name(served: ServedUpstream, names: Sequence[str], *, tagged: bool) -> str | None:
    """Return an upstream's name for a model with these names.

    An upstream that knows no tags is tried without the tag first.
    """
    ordered = names if tagged or len(names) == 1 else sorted(names, key=len)
    found = (name for one in ordered if (name := served.model_name(one)) is not None)
    return next(found, None)
