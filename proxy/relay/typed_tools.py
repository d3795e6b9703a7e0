"""Replaces tools of special types by functions, for an upstream that does not know these types."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import orjson
from msgspec import structs

from proxy.base.errors import RequestError
from proxy.base.events import SEARCH_TOOLS
from proxy.relay.ask import Ask
from proxy.relay.body import Body
from proxy.relay.routing.router import Route
from proxy.tools.access.catalog import Selection
from proxy.wires.typed_tools.functions import EVERY_TYPE, AsFunctions, UpstreamTypes
from proxy.wires.wire import Wire

_CUSTOM: Final = "custom"
"""The type of tools whose input is text."""
_WITH_CUSTOM: Final = ("chat", "responses")
"""The dialects that have this type, though few of their servers do."""


def as_functions(
    wire: Wire,
    payload: Mapping[str, Any],
    route: Route,
    selection: Selection,
    *,
    mixes: bool = False,
    earlier: str = "",
) -> AsFunctions | None:
    """Return a request of the client's ``wire`` as the upstream of a route is asked; ``None`` for unchanged.

    With ``mixes`` the model may call server tools in the same turn. If the catalog of ``selection`` has the
    tool that finds tools, it runs the search that a client declares. ``earlier`` are the items that brought
    tools to the response that the request continues (:meth:`.Wire.items_with_tools`). Raise
    :class:`~proxy.base.errors.RequestError` for a declaration that cannot be read.
    """
    native = route.served.native
    if route.served.text_calls is not None:
        native = ()
    elif route.wire:
        has_custom = route.wire in _WITH_CUSTOM and not {_CUSTOM, EVERY_TYPE}.isdisjoint(native)
        native = (_CUSTOM,) if has_custom else ()
    upstream = UpstreamTypes(native, bool(route.wire), mixes, earlier)
    if selection.catalog.get(SEARCH_TOOLS) is not None:
        found = wire.with_search(payload, upstream)
        if found is not None:
            return found
    return wire.as_functions(payload, upstream)


def with_functions(ask: Ask, route: Route, earlier: str = "") -> tuple[Ask, AsFunctions | None]:
    """Return the request as its upstream is asked, and what was replaced; see :func:`as_functions`."""
    served, permissions = route.served, ask.access.permissions
    selection = permissions.selections[served.upstream.name]
    mixes = bool(served.native and selection.offered)
    typed = as_functions(ask.wire, ask.body.payload, route, selection, mixes=mixes, earlier=earlier)
    if typed is None:
        return ask, None
    return structs.replace(ask, body=Body(orjson.dumps(typed.payload), typed.payload)), typed


@contextmanager
def naming_as_declared(typed: AsFunctions | None) -> Iterator[None]:
    """Let errors about what was replaced name the fields of the client's own request."""
    try:
        yield
    except RequestError as error:
        if typed is not None:
            typed.name_as_declared(error)
        raise
