"""Lets server tools run the tools that a client declares as its provider's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from proxy.relay.ask import Ask, UpstreamPermissions
from proxy.relay.offering.hosted import own_name
from proxy.relay.offering.offer import OfferRules
from proxy.relay.routing.router import Route
from proxy.wires.client_port import ClientRequest
from proxy.wires.hosted.tools import HostedTool
from proxy.wires.typed_tools.functions import EVERY_TYPE
from proxy.wires.upstream_port import BodyEditor
from proxy.wires.wire import Wire

_CARRIED: Final = "searches that the client sent back"


def with_hosted(ask: Ask, route: Route, request: ClientRequest, rules: OfferRules) -> ClientRequest:
    """See :func:`served_by_tools`."""
    return served_by_tools(ask.wire, ask.body.payload, ask.access.permissions, route, request, rules)


def served_by_tools(
    wire: Wire,
    payload: Mapping[str, Any],
    permissions: UpstreamPermissions,
    route: Route,
    request: ClientRequest,
    rules: OfferRules,
) -> ClientRequest:
    """Return the request in which server tools run the provider's tools that the upstream does not run.

    What nobody serves, or only a tool that the caller may not use, stays as the client declared it.  Raise
    :class:`~proxy.base.errors.RequestError` for a declaration that cannot be read, or not be served so.
    """
    if not rules.hosted or not (declared := wire.hosted_tools(payload)):
        return request
    offered = permissions.selections[route.served.upstream.name].offered
    available = {spec.name: spec for spec in offered}
    served: list[tuple[HostedTool, str]] = []
    places: set[int] = set()
    for place, tool in declared.items():
        if _is_native(tool, route):
            continue
        found = [
            (one, target)
            for one in (tool, tool.beside)
            if one is not None and (target := rules.hosted.get(one.kind, "")) in available
        ]
        if not found or found[0][0] is not tool:
            continue
        for one, target in found:
            one.check(available[target].parameters.get("properties", {}), target)
        places.add(place)
        served += [(one.knowing(rules.known_hosts), target) for one, target in found]
    if not served:
        return request
    names = [tool.declared.get("name") for tool, _ in served]  # They may be of any type.
    changes: dict[str, Any] = {
        "chosen": request.chosen.serving(places, served),
        "declared": [name for name in request.declared if name not in names],
    }
    if request.forced is not None:
        # A choice by type may be of the client's function that has this name; then both may be meant.
        called = {
            str(tool.declared.get("type")): own_name(tool, id_, changes["declared"])
            for tool, id_ in served
            if tool.declared
        }
        mine = request.forced.difference(called).union(request.forced.intersection(changes["declared"]))
        changes["forced"] = mine.union([called[name] for name in request.forced if name in called])
    return replace(request, **changes)


def _is_native(tool: HostedTool, route: Route) -> bool:
    """Return whether the upstream of a route runs a tool itself: it speaks the dialect, and is said to."""
    native = () if route.wire or route.served.text_calls is not None else route.served.native
    return not {EVERY_TYPE, tool.kind, str(tool.declared.get("type"))}.isdisjoint(native)


def put_back_sealed(ask: Ask, request: ClientRequest, editor: BodyEditor) -> str:
    """Put back the turns with searches that the client carries and the record does not have.

    Return the source of the untrusted texts in them, empty for none.
    """
    if not request.has_proxy_calls:
        return ""
    found = ""
    for position, turn in ask.wire.sealed_turns(request, ask.identity.caller):
        if position not in editor.edits.restored:
            editor.restore(position, turn, needed=False)
            found = _CARRIED
    return found
