"""Lets server tools run the tools that a client declares as its provider's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from proxy.relay.ask import Ask
from proxy.relay.offering.hosted import own_name
from proxy.relay.routing.router import Route
from proxy.wires.client_port import ClientRequest
from proxy.wires.hosted.tools import HostedTool
from proxy.wires.typed_tools.functions import EVERY_TYPE


def with_hosted(ask: Ask, route: Route, request: ClientRequest, serving: Mapping[str, str]) -> ClientRequest:
    """Return the request in which server tools run the provider's tools that the upstream does not run.

    ``serving`` are the ids of the server tools by what they serve.  What nobody serves, or only a tool that
    the caller may not use, stays as the client declared it.  Raise
    :class:`~proxy.base.errors.RequestError` for a declaration that cannot be read, or not be served so.
    """
    if not serving or not (declared := ask.wire.hosted_tools(ask.body.payload)):
        return request
    offered = ask.access.permissions.selections[route.served.upstream.name].offered
    available = {spec.name: spec for spec in offered}
    served: dict[int, tuple[HostedTool, str]] = {}
    for place, tool in declared.items():
        target = serving.get(tool.kind, "")
        if target not in available or _is_native(tool, route):
            continue
        tool.check(available[target].parameters.get("properties", {}), target)
        served[place] = (tool, target)
    if not served:
        return request
    tools = [tool for tool, _ in served.values()]
    names = [tool.declared.get("name") for tool in tools]  # They may be of any type.
    changes: dict[str, Any] = {
        "chosen": request.chosen.serving(served),
        "declared": [name for name in request.declared if name not in names],
    }
    if request.forced is not None:
        # A choice by type may be of the client's function that has this name; then both may be meant.
        called = {
            str(tool.declared.get("type")): own_name(tool, id_, changes["declared"])
            for tool, id_ in served.values()
        }
        mine = request.forced.difference(called).union(request.forced.intersection(changes["declared"]))
        changes["forced"] = mine.union([called[name] for name in request.forced if name in called])
    return replace(request, **changes)


def _is_native(tool: HostedTool, route: Route) -> bool:
    """Return whether the upstream of a route runs a tool itself: it speaks the dialect, and is said to."""
    native = () if route.wire or route.served.text_calls is not None else route.served.native
    return not {EVERY_TYPE, tool.kind, str(tool.declared.get("type"))}.isdisjoint(native)
