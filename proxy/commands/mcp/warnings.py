"""What a person should check before models are offered a server's tools.

These warnings decide nothing: they match words that an attacker can avoid.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from proxy.app.compose.tools import search_rules
from proxy.base.events import SEARCH_TOOLS
from proxy.base.plain_text import plain_text
from proxy.commands.mcp.looking import InspectedServer, InspectedTool
from proxy.config.load import Config
from proxy.config.secret import Secret
from proxy.records.rows import ToolEffect
from proxy.relay.offering.deferred import defer
from proxy.tools.access.catalog import MOST_OFFERED, Catalog, too_many_offered
from proxy.tools.access.policy import Policy
from proxy.tools.mcp.definitions import MAX_SHOWN, PROVIDER, Definition, pattern_of_server
from proxy.tools.mcp.masking import is_secret_name, is_secret_value, masked_args, masked_url

_MOST_NAMED: Final = 8
_ORDERS: Final = re.compile(
    r"\b(?:ignore (?:all|any|the|previous|prior|other)|disregard (?:all|any|the|previous|prior)"
    r"|do not (?:tell|mention|inform|ask|reveal)|don't (?:tell|mention|inform|ask)"
    r"|without (?:telling|asking|informing)|system prompt|previous instructions"
    r"|before (?:using|calling|running) (?:any|this|other)|instead of (?:using|calling)"
    r"|(?:always|must) (?:first )?(?:call|use|read|send)|secretly|api[ _-]?keys?|\.ssh|<important>)",
    re.IGNORECASE,
)
"""Phrases that give orders to a model, as attacks in descriptions do."""


def unallowed_lines(config: Config, catalog: Catalog) -> list[str]:
    """Return, for each server without an allowed tool, the command that shows and allows its tools."""
    ids = [spec.name for spec in catalog.tools()]
    return [
        f"{_section_of(pattern)}: none of its tools is allowed; to see and allow them: "
        f"toolrelay tools allow '{pattern}'"
        for pattern in config.pinned_patterns
        if not any(tool_id.startswith(pattern.rstrip("*")) for tool_id in ids)
    ]


def _section_of(pattern: str) -> str:
    """Return the section of the server or API to whose tools a pattern belongs."""
    provider, name, _ = pattern.split("__")
    return f"mcp.servers.{name}" if provider == PROVIDER else f"{provider}.{name}"


def plain_secret_lines(config: Config) -> list[str]:
    """Return a line for each place of an MCP server where a secret stands as plain text; it has no value."""
    lines = []
    for name, server in config.mcp.servers.items():
        for variable, value in server.env.items():
            # A secret with another reference stands in an imported file.
            is_plain = isinstance(value, Secret) and not value.reference.startswith(("env:", "file:"))
            if is_plain and isinstance(value, Secret) and _may_be_secret(variable, value.reveal()):
                lines.append(
                    f"mcp.servers.{name}.env.{variable} is plain text in the imported file; better write "
                    f'[mcp.servers.{name}] here, with env.{variable} = "env:{variable}"'
                )
        if masked_args(server.args) != tuple(server.args):
            lines.append(
                f"mcp.servers.{name}.args may contain a secret, which others can see; better pass it in env"
            )
        if server.url and masked_url(server.url) != server.url:
            lines.append(
                f"mcp.servers.{name}.url may contain a secret, which logs can show; better pass it in headers"
            )
    return lines


def _may_be_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or is_secret_value(value)


def warnings_of(
    looks: Sequence[InspectedServer], offered: Mapping[str, int], *, searched: bool = False
) -> list[str]:
    """Return a line for each problem; ``offered`` is the number of offered tools by server.

    ``searched`` says that models search for tools if there are many.
    """
    lines = [line for look in looks for line in _of_server(look)]
    count = sum(offered.values())
    if count > MOST_OFFERED and not searched:
        lines.append(
            f"{count} tools of MCP servers are offered, but OpenAI accepts {MOST_OFFERED} in all: set "
            f'tools.search = "auto", or name fewer in policy.allow; most are of {_largest(offered)}'
        )
    return lines


def many_lines(config: Config, catalog: Catalog, policy: Policy) -> list[str]:
    """Return a line if models search for tools by default, or are offered more than OpenAI accepts."""
    if not config.tools.enabled:
        return []
    if (finder := catalog.get(SEARCH_TOOLS)) is not None:
        tools = catalog.select(policy).offered
        made = defer(tools, finder, search_rules(config), None, ())
        if made is None:
            return []
        seen = [tool.name for tool in made.shown if tool.name != SEARCH_TOOLS]
        return [
            f"{len(tools)} tools are offered: a model is shown {', '.join((SEARCH_TOOLS, *seen))}, "
            f'and finds the other {len(made.deferred.tools)} (tools.search = "{config.tools.search}")'
        ]
    offered = too_many_offered(catalog, policy)
    if not offered:
        return []
    origins = (spec.origin for spec in catalog.select(policy).offered)
    counts = Counter(origin.server for origin in origins if origin is not None)
    most = f"; most are of {_largest(counts)}" if counts else ""
    return [
        f'{offered} tools are offered, but OpenAI accepts {MOST_OFFERED}: set tools.search = "auto", or name '
        f"fewer in policy.allow{most}"
    ]


def _largest(counts: Mapping[str, int]) -> str:
    """Name the servers with the most tools, and the patterns that match them."""
    first = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:3]
    return ", ".join(f'{name} ({count}, "{pattern_of_server(name)}")' for name, count in first)


def _of_server(look: InspectedServer) -> Iterator[str]:
    where = look.server.setting
    live = [(tool, tool.live) for tool in look.tools if tool.live is not None]
    for tool, definition in live:
        yield from (f"{tool.id}: {what}" for what in _of_definition(definition))
    readers = [tool for tool, definition in live if _says_it_reads(look, tool, definition)]
    if readers:
        yield (
            f"{where}.effects: the server declares these tools read-only, but this setting does not: "
            f"{_named(readers)}"
        )
    changers = [tool for tool, definition in live if _says_it_changes(look, tool, definition)]
    if changers:
        yield (
            f"{where}.effects: this setting declares these tools read-only, but the server does not: "
            f"{_named(changers)}"
        )


def _of_definition(definition: Definition) -> Iterator[str]:
    if definition.has_hidden_text:
        yield "its texts contain invisible characters; tools allow shows them as escapes"
    match = next(filter(None, map(_ORDERS.search, definition.texts)), None)
    if match is not None:
        yield f'its definition gives orders to the model: "{plain_text(match[0], 80)}"'
    if len(definition.description) > MAX_SHOWN:
        yield f"its description is longer than the {MAX_SHOWN} characters that models are shown"
    if definition.request is None and not definition.id.endswith(f"__{definition.name}"):
        yield f"its server calls it {plain_text(definition.name, 200)!r}, which no model provider accepts"


def _says_it_reads(look: InspectedServer, tool: InspectedTool, definition: Definition) -> bool:
    own = look.server.effect_of(*definition.names)
    return definition.annotations.get("readOnlyHint") is True and own is not ToolEffect.READ_ONLY


def _says_it_changes(look: InspectedServer, tool: InspectedTool, definition: Definition) -> bool:
    hints = definition.annotations
    changes = hints.get("readOnlyHint") is False or hints.get("destructiveHint") is True
    own = look.server.effect_of(*definition.names)
    return changes and hints.get("readOnlyHint") is not True and own is ToolEffect.READ_ONLY


def _named(tools: Sequence[InspectedTool]) -> str:
    names = [plain_text(tool.name, 64) for tool in tools[:_MOST_NAMED]]
    more = f" and {len(tools) - _MOST_NAMED} more" if len(tools) > _MOST_NAMED else ""
    return ", ".join(names) + more
