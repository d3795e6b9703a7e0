"""Find the server tools that a request chooses in its body, among those that its caller may use.

A server is an MCP server of the configuration, or the group of tools whose ids begin with its name (``core``
of ``core__calculate``).
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from proxy.base.errors import RequestError
from proxy.records.rows import ToolEffect
from proxy.tools.contract.spec import ToolSpec
from proxy.wires.chosen import SERVER_URL, Chosen, ChosenServer, ServedTool, ShownServer, ShownTools

_MOST_NAMED = 20


class Choice(Struct, frozen=True):
    """The tools that a request chose: their ids, and how the client sees their servers.

    ``asked`` are the ids of the tools whose calls the client wants to approve.
    """

    ids: frozenset[str]
    shown: ShownTools
    asked: frozenset[str] = frozenset()


def choose(chosen: Chosen, available: Iterable[ToolSpec], *, asks: bool = False) -> Choice:
    """Find the tools that a request chooses among those that are ``available`` to it.

    ``asks`` says whether calls can wait for an approval. Raise :class:`RequestError` for a
    server or tool that is not available, and for an approval that the client wants but cannot give here.
    The message names the field and the accepted values. A denied tool gets the same message as one that
    does not exist.
    """
    specs = tuple(available)
    groups = _groups(specs)
    servers = [_shown(server, groups, specs) for server in chosen.servers]
    asked = frozenset(
        [
            tool.id
            for server, shown in zip(chosen.servers, servers, strict=True)
            for tool in shown.tools
            if server.approval.asks(tool.name, tool.reads)
        ]
    )
    if asked and not asks:
        raise _cannot_ask(chosen.servers, servers)
    ids = {tool.id for server in servers for tool in server.tools}
    known = {spec.name for spec in specs}
    for tool in chosen.tools:
        if tool.name not in known:
            raise _unknown(f"{tool.at}.type", tool.name, "tool", [f"{SERVER_URL}:{name}" for name in known])
        ids.add(tool.name)
    return Choice(frozenset(ids), ShownTools(tuple(servers), reports_calls=True), asked)


def _groups(specs: Sequence[ToolSpec]) -> Mapping[str, Sequence[ServedTool]]:
    """Return the tools of each server by its name; an MCP server takes precedence over a group of that
    name."""
    of_servers: dict[str, list[ServedTool]] = {}
    of_groups: dict[str, list[ServedTool]] = {}
    for spec in specs:
        if spec.origin is not None:
            of_servers.setdefault(spec.origin.server, []).append(_served(spec, spec.origin.name))
        else:
            group, _, name = spec.name.partition("__")
            of_groups.setdefault(group, []).append(_served(spec, name))
    return {**of_groups, **of_servers}


def _served(spec: ToolSpec, name: str) -> ServedTool:
    reads = spec.effect is ToolEffect.READ_ONLY
    return ServedTool(spec.name, name, spec.description, spec.parameters, reads)


def _shown(
    server: ChosenServer, groups: Mapping[str, Sequence[ServedTool]], specs: Sequence[ToolSpec]
) -> ShownServer:
    """Return one server with the tools that the request gets."""
    tools = groups.get(server.name) if server.name else [_served(spec, spec.name) for spec in specs]
    if not tools:
        addresses = [SERVER_URL, *(f"{SERVER_URL}/{name}" for name in groups)] if groups else []
        raise _unknown(server.url_at, server.name or SERVER_URL, "server", addresses)
    known = {tool.name for tool in tools}
    for name in sorted((server.allowed.names or frozenset()) | server.left_out):
        if name not in known:
            raise _unknown(server.names_at, name, "tool of this server", known)
    chosen = [
        tool
        for tool in tools
        if tool.name not in server.left_out and server.allowed.fits(tool.name, tool.reads)
    ]
    return ShownServer(server.label, tuple(chosen))


def _cannot_ask(servers: Sequence[ChosenServer], shown: Sequence[ShownServer]) -> RequestError:
    """Return the error for the first approval that the client wants."""
    param, name = next(
        (server.approval_at, tool.name)
        for server, one in zip(servers, shown, strict=True)
        for tool in one.tools
        if server.approval.asks(tool.name, tool.reads)
    )
    return RequestError(
        400,
        f"{param} asks for an approval of {name[:64]!r}, but no call can wait for one here: approvals are "
        'switched off, or this server keeps no content. Write "never".',
        param=param,
    )


def _unknown(param: str, name: str, kind: str, known: Iterable[str]) -> RequestError:
    """Return the error for a name that is denied or does not exist."""
    named = sorted(known)
    listed = ", ".join(named[:_MOST_NAMED]) + (", …" if len(named) > _MOST_NAMED else "")
    remedy = f"Write one of: {listed}." if named else "This key may not use any server tool."
    return RequestError(
        400, f"{param} names a {kind} that is not available: {name[:64]!r}. {remedy}", param=param
    )
