"""``toolrelay mcp list`` and ``mcp test``: show the state of servers, and their tools."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.base.plain_text import counted, plain_text
from proxy.commands.common import MAX_LINE, console, print_table, say, say_error, say_json, text
from proxy.commands.mcp.looking import (
    InspectedServer,
    InspectedTool,
    current_pins,
    inspect,
    inspect_servers,
    need_apis,
    need_servers,
    not_ready,
)
from proxy.commands.mcp.warnings import warnings_of
from proxy.config.load import Config
from proxy.tools.access.policy import Policy
from proxy.tools.mcp.definitions import UnusableDefinition
from proxy.tools.mcp.pinned import spec_of

_OFFERED = "offered"
_STATES: Mapping[str, str] = {
    "new": "new: not allowed yet",
    "changed": "changed since it was allowed",
    "moved": "its server's command or url, or its API's base_url, has changed since it was allowed",
    "gone": "the server or document no longer lists it",
}


async def list_servers(config: Config, *, as_json: bool) -> bool:
    """Print every server with its tools, one line each; return whether all are connected."""
    looks = await inspect_servers(config, need_servers(config), await current_pins(config))
    return _listed(config, looks, _print_servers, as_json=as_json)


async def list_apis(config: Config, name: str, *, as_json: bool) -> bool:
    """Print every API, or the one with this name, with its operations; return whether all documents can be
    read."""
    looks = await inspect(config, need_apis(config, name), await current_pins(config))
    return _listed(config, looks, _print_apis, as_json=as_json)


async def api_faults(config: Config) -> list[str]:
    """Read the document of every API and print its state; return a line for each that cannot be used."""
    looks = await inspect(config, need_apis(config), await current_pins(config))
    _print_apis(looks)
    for line in _details(config, looks):
        say(line)
    console().print()
    return _unreachable(looks)


async def test_server(config: Config, name: str) -> bool:
    """Connect to one server and print the result; return whether it is connected."""
    (look,) = await inspect_servers(config, need_servers(config, name), await current_pins(config))
    status = look.listing.status
    say(f"{name}: {plain_text(look.server.shown, MAX_LINE)}")
    if look.is_ready:
        server, version = status.server_info
        says = f"protocol {status.version}, calls itself {server or '?'} {version}".rstrip()
        tools = counted(len(look.listing.definitions), "tool")
        say(f"connected, {plain_text(says, MAX_LINE)}, {tools}")
        _print_tools(config, look)
        for line in _remarks(config, [look]):
            say(f"  {line}")
    if look.listing.stderr:
        say("the last lines that the server wrote to standard error:")
        for line in look.listing.stderr.splitlines()[-10:]:
            say(f"  {plain_text(line, MAX_LINE)}")
    return _say_unreachable([look])


async def mcp_faults(config: Config) -> list[str]:
    """Connect to every server and print its state; return a line for each that cannot be used."""
    looks = await inspect_servers(config, need_servers(config), await current_pins(config))
    _print_servers(looks)
    for line in _details(config, looks):
        say(line)
    console().print()
    return _unreachable(looks)


def _details(config: Config, looks: Sequence[InspectedServer]) -> list[str]:
    """Return lines about unusable tools, allowed tools that are withheld, and warnings."""
    lines = []
    for look in looks:
        lines += [
            f"{look.server.name}: cannot use {t.name}: {t.reason}" for t in look.listing.status.left_out
        ]
        for tool in look.tools:
            if tool.state not in ("pinned", "new"):
                lines.append(f"{tool.id}: {_what_of(config, look, tool)}")
    return [*lines, *_remarks(config, looks)]


def _print_tools(config: Config, look: InspectedServer, whose: str = "") -> None:
    for tool in look.tools:
        say(f"  {tool.id}: {_what_of(config, look, tool)}")
    for omitted in look.listing.status.left_out:
        say(f"  {whose}cannot use {omitted.name}: {omitted.reason}")


def _remarks(config: Config, looks: Sequence[InspectedServer]) -> list[str]:
    return [
        *warnings_of(looks, _offered(config, looks), searched=config.tools.search != "off"),
        *_lacking(looks),
        *_skipped(looks),
    ]


def _offered(config: Config, looks: Sequence[InspectedServer]) -> Counter[str]:
    """Count the tools of each server that models are offered."""
    return Counter(
        look.server.name for look in looks for tool in look.tools if _what_of(config, look, tool) == _OFFERED
    )


def _lacking(looks: Sequence[InspectedServer]) -> list[str]:
    """Return lines about connected servers that need more than the login has, such as a scope."""
    return [
        f"{look.server.name}: {plain_text(look.listing.status.reason, MAX_LINE)}"
        for look in looks
        if look.is_ready and look.listing.status.reason
    ]


def _skipped(looks: Sequence[InspectedServer]) -> list[str]:
    """Return lines about servers that write to their standard output what belongs to standard error."""
    return [
        f"{look.server.name}: skipped a line of its standard output, which is for messages only; "
        f"a log belongs to standard error: {look.listing.status.skipped}"
        for look in looks
        if look.listing.status.skipped
    ]


def _unreachable(looks: Sequence[InspectedServer]) -> list[str]:
    return [
        f"{look.server.setting}: {not_ready(look.server)}: {look.listing.status.reason}"
        for look in looks
        if not look.is_ready
    ]


def _listed(
    config: Config,
    looks: Sequence[InspectedServer],
    print_heads: Callable[[Sequence[InspectedServer]], None],
    *,
    as_json: bool,
) -> bool:
    """Print servers or APIs, each with its tools; return whether all could be read."""
    if as_json:
        say_json(*(_written(config, look) for look in looks))
    else:
        print_heads(looks)
        for look in looks:
            _print_tools(config, look, f"{look.server.name}: ")
        for line in _remarks(config, looks):
            say(f"  {line}")
    return _say_unreachable(looks)


def _say_unreachable(looks: Sequence[InspectedServer]) -> bool:
    away = _unreachable(looks)
    for line in away:
        say_error(line)
    return not away


def _print_servers(looks: Sequence[InspectedServer]) -> None:
    rows: list[Sequence[object]] = []
    for look in looks:
        status, counts = look.listing.status, Counter(tool.state for tool in look.tools)
        rows.append(
            (
                look.server.name,
                text(status.state, "green" if look.is_ready else "red"),
                status.version,
                " ".join(status.server_info).strip(),
                f"{status.list_ms:.0f} ms" if look.is_ready else "",
                counts["pinned"],
                counts["new"],
                counts["changed"] + counts["moved"] + counts["gone"],
                _results_of(look),
                look.server.shown,
            )
        )
    titles = ("server", "state", "protocol", "calls itself", "list", "allowed", "new", "changed", "results")
    print_table((*titles, "reached by"), rows)


def _print_apis(looks: Sequence[InspectedServer]) -> None:
    rows: list[Sequence[object]] = []
    for look in looks:
        state, counts = look.listing.status.state, Counter(tool.state for tool in look.tools)
        changed = counts["changed"] + counts["moved"] + counts["gone"]
        shown = text(state, "green" if look.is_ready else "red")
        rows.append(
            (
                look.server.name,
                shown,
                counts["pinned"],
                counts["new"],
                changed,
                _results_of(look),
                look.server.shown,
            )
        )
    print_table(("API", "document", "allowed", "new", "changed", "results", "described by"), rows)


def _results_of(look: InspectedServer) -> str:
    """Return whether the results of a server are trusted, as in the setting."""
    return "trusted" if look.server.trusted_results else "untrusted"


def _what_of(config: Config, look: InspectedServer, tool: InspectedTool) -> str:
    """Return whether a tool is offered, and if not, why."""
    if tool.state != "pinned" or tool.pin is None:
        return f"{_STATES[tool.state]}; to allow it: toolrelay tools allow {tool.id}"
    if not look.server.may_have(*tool.pin.definition.names):
        return f"off: {look.server.tools_setting} does not name it"
    try:
        spec = spec_of(tool.pin, look.server)
    except UnusableDefinition as fault:
        return f"off: it was allowed, but {plain_text(str(fault), MAX_LINE)}"
    decision = Policy(allow=config.policy.allow).decide(spec)
    return _OFFERED if decision.allowed else f"allowed, but not offered: {decision.rule}"


def _written(config: Config, look: InspectedServer) -> dict[str, Any]:
    status = look.listing.status
    return {
        "server": look.server.name,
        "state": status.state,
        "reason": status.reason,
        "protocol": status.version,
        "results": _results_of(look),
        "tools": [
            {"id": tool.id, "state": tool.state, "says": _what_of(config, look, tool)} for tool in look.tools
        ],
        "left_out": [{"name": omitted.name, "reason": omitted.reason} for omitted in status.left_out],
    }
