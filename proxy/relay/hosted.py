"""Lets server tools run the tools that a client declares as its provider's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson
from msgspec import structs

from proxy.base.errors import RequestError, StoreError
from proxy.relay.ask import Ask, UpstreamPermissions
from proxy.relay.body import Body
from proxy.relay.memory.hidden.agent_turns import AgentTurn
from proxy.relay.memory.hidden.turns import Restored
from proxy.relay.offering.hosted import own_name
from proxy.relay.offering.offer import OfferRules
from proxy.relay.routing.router import Route
from proxy.relay.run.parents import ClientPause
from proxy.wires.client_port import NO_PROGRAM_RESULTS, ClientRequest, ProgramResults
from proxy.wires.hosted.tools import HostedTool
from proxy.wires.typed_tools.functions import EVERY_TYPE
from proxy.wires.upstream_port import BodyEditor
from proxy.wires.wire import Wire

_UNDECLARED: Final = (
    "tools: a program waits for the results in this request, but its tool is not declared. Declare "
    "it as in the request before."
)
_NO_PROGRAM: Final = (
    "messages: no program of yours waits for these results. It is too old, or the messages before them are "
    "not those of the conversation. Send the conversation without the program's messages."
)
_OTHER_CONTAINER: Final = (
    "container: the program that waits for these results runs in another one. Write that of its answer."
)
_CARRIED: Final = "searches that the client sent back"


def without_program_turns(ask: Ask) -> tuple[Ask, ProgramResults]:
    """Return a request without what passed between its client and programs, and what it brings for them.

    Raise :class:`~proxy.base.errors.RequestError` for a container that is wrong or missing.
    """
    found = ask.wire.joined_programs(ask.body.raw)
    if found is None:
        return ask, NO_PROGRAM_RESULTS
    raw, results = found
    if results.pending:
        ask.wire.check_container(ask.body.payload, ask.identity.caller, needed=True)
    return structs.replace(ask, body=Body(raw, orjson.loads(raw))), results


def check_programs(
    programs: ProgramResults, request: ClientRequest, restored: Restored, editor: BodyEditor
) -> None:
    """Raise :class:`~proxy.base.errors.RequestError` if a request continues a program that is not there, and
    :class:`~proxy.base.errors.StoreError` if the record did not answer."""
    if not programs.pending:
        return
    if restored.unavailable:
        raise StoreError("the program that waits cannot be looked up")
    if not any(tool.programs is not None for tool, _ in request.chosen.hosted):
        raise RequestError(400, _UNDECLARED, param="tools")
    if not programs.places.issubset(editor.edits.restored):
        raise RequestError(400, _NO_PROGRAM, param="messages")


def pause_of(programs: ProgramResults, request: ClientRequest) -> ClientPause | None:
    """Return how a program that goes on waits for the client of this request again."""
    form = next((tool.form for tool, _ in request.chosen.hosted if tool.programs is not None), None)
    if form is None:
        return None
    # An earlier answer has shown the program already.
    return ClientPause(lambda call: "", lambda: request.container, form.call_id, programs.results)


def brings(programs: ProgramResults, request: ClientRequest, turn: AgentTurn) -> bool:
    """Return whether a request brings what a program waits for.

    A request that is sent again brings what the program has read already. Raise
    :class:`~proxy.base.errors.RequestError` for a container of another program.
    """
    if not programs.results.keys() >= set(turn.client_calls):
        return False
    if turn.container and turn.container != request.container:
        raise RequestError(400, _OTHER_CONTAINER, param="container")
    return True


def with_hosted(ask: Ask, route: Route, request: ClientRequest, rules: OfferRules) -> ClientRequest:
    """See :func:`served_by_tools`. Also raise for a container of programs that is not the caller's."""
    served = served_by_tools(ask.wire, ask.body.payload, ask.access.permissions, route, request, rules)
    if any(tool.programs is not None for tool, _ in served.chosen.hosted):
        ask.wire.check_container(ask.body.payload, ask.identity.caller, needed=False)
    return served


def served_by_tools(
    wire: Wire,
    payload: Mapping[str, Any],
    permissions: UpstreamPermissions,
    route: Route,
    request: ClientRequest,
    rules: OfferRules,
) -> ClientRequest:
    """Return the request in which server tools run the provider's tools that the upstream does not run.

    What nobody serves, or only a tool that the caller may not use, stays as the client declared it. Raise
    :class:`~proxy.base.errors.RequestError` for a declaration that cannot be read, or not be served so.
    """
    if not rules.hosted or not (declared := wire.hosted_tools(payload)):
        return request
    offered = permissions.selections[route.served.upstream.name].offered
    available = {spec.name: spec for spec in offered}
    if (program := rules.programs.tool(permissions.selections[route.served.upstream.name])) is not None:
        available[program.name] = program
    served: list[tuple[HostedTool, str]] = []
    places: set[int] = set()
    only: set[str] = set()
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
        if tool.programs is not None:
            places |= tool.programs.places
            only |= tool.programs.only
        served += [(one.knowing(rules.known_hosts), target) for one, target in found]
    if not served:
        return request
    names = [tool.declared.get("name") for tool, _ in served]  # They may be of any type.
    changes: dict[str, Any] = {
        "chosen": request.chosen.serving(places, served),
        "declared": [name for name in request.declared if name not in names and name not in only],
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
