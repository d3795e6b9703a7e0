"""Which upstreams may get a request, and which query parameters may go to them.

Some upstreams read their query like their body: they take ``?model=`` for the model, whatever the body says.
But rights, prices and limits depend on the body alone. So the query of an inference path may have listed
names only.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from proxy.api.context import Context
from proxy.base.errors import ModelMissing, RequestError
from proxy.relay.routing.prices import Prices
from proxy.relay.routing.router import Route, Router
from proxy.wires.dialect import Dialect, Endpoint
from proxy.wires.registry.table import BY_WIRE

_SEPARATOR = re.compile("[&;]")
"""Some servers end a parameter at a semicolon, too."""

_ROOTED_WIRES: Final = frozenset(wire for wire, dialect in BY_WIRE.items() if dialect.rooted)
_ROOTED_NAMES: Final = " or ".join(f'"{wire}"' for wire in sorted(_ROOTED_WIRES))


def default_route(router: Router, endpoint: Endpoint) -> Route:
    """Return the first upstream that a caller may use, for requests that choose none. If the dialect has
    paths of its own, return the first upstream that speaks it.

    A path that the proxy does not know goes to no upstream that speaks such a dialect: where the base URL
    ends before the prefix, it could be a path that changes the upstream (``/v1/pull`` below ``/api``).
    Raises :class:`~proxy.base.errors.RequestError` (404) if there is none.
    """
    dialect = endpoint.dialect
    if not dialect.rooted and endpoint.kind != "other":
        return Route(router.default, "", renamed=False)
    for served in router.served:
        if dialect.wire in served.wires if dialect.rooted else served.wires.isdisjoint(_ROOTED_WIRES):
            return Route(served, "", renamed=False)
    raise RequestError(
        404,
        f'No upstream of this proxy speaks this dialect: none has "{dialect.wire}" among its wires.'
        if dialect.rooted
        else "The proxy does not know this path. It passes unknown paths on, but to no upstream with "
        f"{_ROOTED_NAMES} among its wires, and this proxy has no other.",
        code="not_found",
    )


def routes_of_model(
    context: Context, prices: Prices, payload: Mapping[str, Any], others: tuple[str, ...] = ()
) -> Sequence[Route]:
    """Return the upstreams that serve the model of a request's body; see :func:`routes_for`."""
    router, model = context.permissions.router, payload.get("model")
    if isinstance(model, str):
        context.facts.model = model[:200]
    dialect, counts_cost = context.target.endpoint.dialect, context.admission.counts_cost
    return routes_for(router, dialect, prices, payload, others, counts_cost=counts_cost)


def routes_for(
    router: Router,
    dialect: Dialect,
    prices: Prices,
    payload: Mapping[str, Any],
    others: tuple[str, ...] = (),
    *,
    counts_cost: bool,
) -> Sequence[Route]:
    """Return the upstreams that serve the model of a body. A single upstream for all models judges the model
    itself.

    ``others`` are further wires in which an upstream may be asked. ``counts_cost`` says that the caller's
    cost is limited. Raises :class:`RequestError` if no upstream serves the model, or the body
    names none.
    """
    model = payload.get("model")
    if isinstance(model, str):
        routes = router.routes(model, dialect.wire, others, dialect.tag)
        if len(routes) > 1 and counts_cost:
            # An upstream without a price cannot take over if cost is limited. If none has a price, the first
            # reports that.
            priced = (each for each in routes if prices.at(each.served, model, each.model) is not None)
            routes = list(priced) or routes
        return routes
    if router.is_plain and dialect.wire in router.default.wires:
        return [Route(router.default, "", renamed=False)]
    raise ModelMissing()


def check_query(context: Context, routes: Iterable[Route]) -> None:
    """Check the query of an inference request against the names that each upstream accepts.

    Names are compared as the client sent them: an escaped name is on no list. Raises
    :class:`~proxy.base.errors.RequestError` (400) for a name that one of the upstreams does not list.
    """
    target = context.target
    if not target.query:
        return
    names = {part.partition("=")[0] for part in _SEPARATOR.split(target.query) if part}
    for route in routes:
        for name in sorted(names - target.endpoint.dialect.query - route.served.query_names):
            raise RequestError(
                400,
                f"The query parameter {name[:100]!r} is not accepted. Send it in the body, or ask the "
                f"proxy's operator to list it in upstreams.{route.served.upstream.name}.forward_query.",
                param=name[:100],
                code="unknown_query_parameter",
            )
