"""``toolrelay tools allow`` and ``tools deny``: choose which tools of MCP servers may be offered."""

import difflib
import getpass
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from proxy.app.open_record import opened_record
from proxy.base.errors import ConfigError
from proxy.base.globs import fits
from proxy.base.plain_text import counted, plain_text
from proxy.commands.common import confirmed, say, say_error
from proxy.commands.mcp.looking import (
    InspectedServer,
    InspectedTool,
    current_pins,
    inspect,
    need_origins,
    not_ready,
)
from proxy.config.load import Config
from proxy.tools.access.policy import Policy
from proxy.tools.mcp.definitions import MAX_SHOWN, PROVIDER, Definition, pattern_of_server, pinned_tool_id
from proxy.tools.mcp.differences import difference, shown_lines, shown_text
from proxy.tools.mcp.pinned import Origin, spec_of, stays_there
from proxy.tools.mcp.pins import MOST_PINNED, Pin, read_pin_file, write_pin_file
from proxy.tools.openapi.api import PROVIDER as OPENAPI

_MAX_DIFF = 40
_MOST_NAMED = 8
_RELOAD = "running servers read the file when they reload (SIGHUP, or serve --reload)"


async def allow_tools(config: Config, pattern: str, *, yes: bool, file: Path | None) -> bool:
    """Show the tools that match ``pattern``, ask, and pin them; return whether everything succeeded.

    Pins go to ``file``, else to the record. Raises ConfigError if that is impossible.
    """
    if config.mcp.pins and file is None:
        raise ConfigError(
            "mcp.pins",
            f"names the file {config.mcp.pins}, so the proxy ignores pins in the store",
            f"Add --file {config.mcp.pins}",
        )
    servers = _may_have(need_origins(config), pattern)
    before = _pins_of(file) if file is not None else await current_pins(config)
    looks = await inspect(config, servers, before)
    well = _say_faults(looks)
    chosen = [(look.server, tool) for look in looks for tool in look.tools if fits(tool.id, pattern)]
    wanted = [(server, tool) for server, tool in chosen if tool.state in ("new", "changed", "moved")]
    for server, tool in wanted:
        for line in describe_tool(server, tool):
            say(line)
        say("")
    if not wanted and _unusable(looks, pattern):
        return False  # The reasons were printed.
    if not wanted:
        same = sum(tool.state == "pinned" for _, tool in chosen)
        say(f"{counted(same, 'tool')} already allowed; nothing is new" if same else _nothing(pattern, looks))
        return well and bool(same)
    if not yes and not confirmed(f"Allow {counted(len(wanted), 'tool')}?"):
        hint = "" if sys.stdin.isatty() else "; there is no terminal to ask at: add --yes"
        say_error(f"no tool was allowed{hint}")
        return False
    pins = [
        Pin(tool.live, server.identity, time.time(), who())
        for server, tool in wanted
        if tool.live is not None
    ]
    pins, beyond = within_bound(before, pins)
    if beyond:
        well = False
        named = ", ".join(pin.id for pin in beyond[:_MOST_NAMED])
        say_error(
            f"{counted(len(beyond), 'tool')} not allowed, since all servers together may have {MOST_PINNED}: "
            f"{named}{' and more' if len(beyond) > _MOST_NAMED else ''}; deny others, or name fewer in "
            "mcp.servers.NAME.tools"
        )
    if not pins:
        return False
    await keep_pins(config, file, before, pins)
    for line in _done(config, pins, file):
        say(line)
    return well


async def deny_tool(config: Config, name: str, *, file: Path | None) -> bool:
    """Remove the pin of one tool; return whether there was one."""
    if file is not None:
        pins = _pins_of(file)
        left = [pin for pin in pins if pin.id != name]
        write_pin_file(file, left)
        removed = len(left) < len(pins)
    else:
        async with opened_record(config) as store:
            removed = await store.delete_pin(name)
    if removed:
        notice = "running servers notice within seconds" if file is None else _RELOAD
        say(f"{name} is no longer allowed; {notice}")
    else:
        say_error(f"{name} was not allowed; see: toolrelay tools list")
    return removed


def needed_secrets(pattern: str) -> str:
    """Return the beginning of the settings whose secrets are needed to allow the tools of a pattern."""
    provider, _, rest = pattern.partition("*")[0].partition("__")
    server, separator, _ = rest.partition("__")
    if provider == OPENAPI:
        return f"openapi.{server}." if separator else "openapi."
    return f"mcp.servers.{server}." if provider == PROVIDER and separator else "mcp.servers."


def _may_have(servers: Mapping[str, Origin], pattern: str) -> Mapping[str, Origin]:
    """Return the servers whose tools may fit a pattern; others are not asked. Raises ConfigError if there is
    none."""
    head = pattern.partition("*")[0]
    patterns = {name: pattern_of_server(name, server.provider) for name, server in servers.items()}
    ids = {name: whole.rstrip("*") for name, whole in patterns.items()}
    hits = {name: servers[name] for name, id_ in ids.items() if id_.startswith(head) or head.startswith(id_)}
    if not hits:
        raise ConfigError(
            "PATTERN",
            f'no configured MCP server or API can have the tool "{pattern[:80]}"',
            f"Name a tool or a pattern of one of: {', '.join(patterns.values())}",
        )
    return hits


def within_bound(before: Sequence[Pin], pins: Sequence[Pin]) -> tuple[list[Pin], list[Pin]]:
    """Split the pins into those with room and those without; replacing a pin needs no room."""
    known = {pin.id for pin in before}
    room = MOST_PINNED - len(known)
    kept: list[Pin] = []
    beyond: list[Pin] = []
    for pin in pins:
        room -= pin.id not in known
        (kept if pin.id in known or room >= 0 else beyond).append(pin)
    return kept, beyond


def _pins_of(file: Path) -> Sequence[Pin]:
    return read_pin_file(file) if file.exists() else ()


async def keep_pins(config: Config, file: Path | None, before: Sequence[Pin], pins: Sequence[Pin]) -> None:
    if file is not None:
        merged = {pin.id: pin for pin in (*before, *pins)}
        write_pin_file(file, merged.values())
        return
    async with opened_record(config) as store:
        await store.put_pins({pin.id: json.dumps(pin.written()) for pin in pins})


def _say_faults(looks: Sequence[InspectedServer]) -> bool:
    """Print unreachable servers and tools that cannot be used; return whether all servers are ready."""
    well = True
    for look in looks:
        if not look.is_ready:
            well = False
            say_error(f"{look.server.setting}: {not_ready(look.server)}: {look.listing.status.reason}")
        for omitted in look.listing.status.left_out:
            say_error(f"{look.server.setting}: cannot use the tool {omitted.name}: {omitted.reason}")
    return well


def _unusable(looks: Sequence[InspectedServer], pattern: str) -> bool:
    """Return whether the pattern names tools, and none of them can be used."""
    if any(fits(tool.id, pattern) for look in looks for tool in look.tools):
        return False
    return any(
        fits(pinned_tool_id(look.server.name, omitted.name, look.server.provider), pattern)
        for look in looks
        for omitted in look.listing.status.left_out
    )


def describe_tool(server: Origin, tool: InspectedTool) -> Iterator[str]:
    """Yield lines with what a person must know before allowing a tool."""
    live = tool.live
    if live is None:
        return
    word = {
        "new": "new",
        "changed": "CHANGED since it was allowed",
        "moved": "of a server whose command or url has changed",
    }
    yield f"{tool.id}  ({word[tool.state]})"
    if live.request is None:
        yield f"  the server's name: {shown_text(live.name)}"
    else:
        yield from _request(server, live.request)
    effect = server.effect_of(*live.names)
    yield f"  effect:            {effect} ({_whose(server, live)}{_declared(live)})"
    yield f"  results:           {_trust_of(server)}"
    yield f"  after untrusted:   {_after_text(server, live)}"
    if not server.may_have(*live.names):
        yield f"  note:              {server.tools_setting} does not name it, so it is not offered"
    if live.title and live.description:
        yield f"  title:             {shown_text(live.title)}"
    yield f"  description:       {shown_text(live.description or live.title)}"
    if len(live.description) > MAX_SHOWN:
        yield f"  note:              models read the first {MAX_SHOWN} characters of it"
    if live.has_hidden_text:
        yield "  WARNING:           it contains invisible characters; they are shown as escapes"
    for name, about in _arguments(live):
        yield f"  argument {shown_text(name)}: {about}"
    if _has_more(live.input_schema):
        yield "  the whole schema, all of which models read:"
        yield from (f"    {line}" for line in shown_lines(live.input_schema))
    if tool.state == "changed" and tool.pin is not None:
        yield "  changes:"
        yield from (f"    {line}" for line in difference(tool.pin.definition, live, _MAX_DIFF))


def _request(server: Origin, request: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the request of an operation is: its address, and where it carries what."""
    address = f"{request['method']} {request['base']}{request['path']}"
    yield f"  request:           {shown_text(address)}"
    if body := request["body"]:
        yield f"  body:              {shown_text(body['type'])}"
    if place := request["credentials"]:
        kind = "" if place["form"] == "token" else f", {place['form']}"
        where = f"{place['where']} {place['name']}{kind}"
        yield f"  credentials:       of the connection {server.connection}, in the {shown_text(where)}"


def _declared(live: Definition) -> str:
    """Return what a server says itself about the effect; an operation's method was looked at already."""
    hinted = live.request is None and live.annotations.get("readOnlyHint")
    return "; the server declares it read-only" if hinted else ""


def _whose(server: Origin, live: Definition) -> str:
    """Return which setting determines the effect of a tool."""
    for pattern in server.effects:
        if any(fits(name, pattern) for name in live.names):
            return f'{server.setting}.effects."{pattern}"'
    default = "default" if live.request is None else "by its method"
    return f"{default}; set it in {server.setting}.effects"


def _trust_of(server: Origin) -> str:
    word = "trusted" if server.trusted_results else "untrusted"
    return f"{word} ({server.setting}.results)"


def _after_text(server: Origin, live: Definition) -> str:
    """Return what an untrusted result means for later calls of a tool (``policy.after_untrusted``)."""
    if stays_there(live, server):
        return "runs, if only this server's results were read: it says that it reaches nothing else"
    return "needs an approval (policy.after_untrusted)"


def _arguments(live: Definition) -> Iterator[tuple[str, str]]:
    properties = live.input_schema.get("properties")
    required = live.input_schema.get("required")
    for name, schema in (properties if isinstance(properties, dict) else {}).items():
        kind = schema.get("type", "any") if isinstance(schema, dict) else "any"
        need = ", required" if isinstance(required, list) and name in required else ""
        about = schema.get("description") if isinstance(schema, dict) else None
        description = f": {shown_text(about)}" if isinstance(about, str) else ""
        yield name, f"{shown_text(str(kind))}{need}{description}"


_SHOWN: Final = frozenset({"$schema", "additionalProperties", "properties", "required", "type"})
"""Keywords of a schema without a text of its own, or whose texts the lines about arguments show."""


def _has_more(schema: Mapping[str, Any]) -> bool:
    """Return whether a model reads more in a schema than the lines about its arguments show."""
    arguments = schema.get("properties", {}).values()
    return (
        not schema.keys() <= _SHOWN
        or not isinstance(schema.get("additionalProperties", True), bool)
        or any(not isinstance(a, Mapping) or not a.keys() <= {"type", "description"} for a in arguments)
        or not set(schema.get("required", ())) <= set(schema.get("properties", {}))
    )


def _nothing(pattern: str, looks: Sequence[InspectedServer]) -> str:
    known = [tool.id for look in looks for tool in look.tools]
    near = difflib.get_close_matches(pattern, known, n=1, cutoff=0.5)
    if near:
        return f'no tool matches "{plain_text(pattern)}"; did you mean {near[0]}?'
    all_of_them = (
        f"toolrelay mcp list and openapi list show all tools; {PROVIDER}__SERVER__* matches all of a server, "
        f"{OPENAPI}__NAME__* all of an API"
    )
    return f'no tool matches "{plain_text(pattern)}"; {all_of_them}'


def _done(config: Config, pins: Sequence[Pin], file: Path | None) -> Iterator[str]:
    """Yield lines about what was done, and what is still missing before models are offered these tools."""
    where = str(file) if file is not None else "the record"
    yield f"allowed: {', '.join(pin.id for pin in pins)} (in {where})"
    if file is not None:
        yield f"  {_RELOAD}"
    policy = Policy(allow=config.policy.allow)
    known = need_origins(config)
    held_back = [
        pin.id for pin in pins if not policy.decide(spec_of(pin, known[pin.definition.server])).allowed
    ]
    if held_back:
        yield f"not offered yet: policy.allow does not name {', '.join(held_back)}"
        yield f"  to offer them, write: [policy] allow = {json.dumps([*config.policy.allow, *held_back])}"


def who() -> str:
    """Return the name of the local user, for the pin."""
    try:
        return getpass.getuser()[:64]
    except (KeyError, OSError):
        return ""
