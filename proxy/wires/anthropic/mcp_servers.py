"""Reads the server tools that a Messages request chooses, in the form of Anthropic's MCP connector::

    "mcp_servers": [{"type": "url", "name": "docs", "url": "toolrelay/files"}],
    "tools": [{"type": "mcp_toolset", "mcp_server_name": "docs", "configs": {"read": {"enabled": true}}}]

A server without a toolset is the connector's older form: it chooses all tools of the server, or those of its
``tool_configuration``. Elements of ``tools`` in the form that all dialects share also count.
Source: Anthropic's API reference, "MCP connector".
"""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.base.errors import RequestError
from proxy.wires.chosen import (
    ANY_TOOL,
    Chosen,
    ChosenServer,
    ToolFilter,
    check_labels,
    chooses,
    filter_of,
    is_our_url,
    no_secrets,
    read_chosen,
    server_name,
    text_of,
)

_Entry = tuple[int, Mapping[str, Any]]


def chosen_tools(payload: Mapping[str, Any], tools: Sequence[Any]) -> Chosen:
    """Return the server tools that a request chooses; ``tools`` are the elements of its own list.

    Raises :class:`~proxy.base.errors.RequestError` for an entry that names this proxy and is not valid.
    """
    chosen = read_chosen(tools)
    listed = payload.get("mcp_servers")
    ours = {
        place: server
        for place, server in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(server, dict) and is_our_url(server.get("url"))
    }
    if not ours:
        return chosen
    sets: dict[str, list[_Entry]] = {}
    for place, tool in enumerate(tools):
        if isinstance(tool, dict) and tool.get("type") == "mcp_toolset":
            sets.setdefault(str(tool.get("mcp_server_name")), []).append((place, tool))
    servers = list(chosen.servers)
    places = set(dict(chosen.places).get("tools", ()))
    for place, server in ours.items():
        at = f"mcp_servers[{place}]"
        no_secrets(server, at, ("authorization_token",))
        label = text_of(server.get("name"), f"{at}.name")
        found = sets.get(label, [])
        if len(found) > 1:
            raise RequestError(
                400,
                f"tools[{found[1][0]}] is a second toolset of the server {label[:64]!r}. Send one.",
                param=f"tools[{found[1][0]}]",
            )
        name = server_name(server["url"])
        if found:
            places.add(found[0][0])
            servers.append(_of_toolset(*found[0], at, label, name))
        elif (of_server := _of_server(server, at, label, name)) is not None:
            servers.append(of_server)
    check_labels(servers)
    both = (("tools", frozenset(places)), ("mcp_servers", frozenset(ours)))
    return Chosen(tuple(servers), chosen.tools, tuple((member, those) for member, those in both if those))


def defers_servers(payload: Mapping[str, Any], tools: Sequence[Any]) -> bool:
    """Return whether the model has to search for server tools that a request chooses: an element of ``tools``
    has ``defer_loading``, or the configuration of a toolset has it, for all of its tools or for one."""
    listed = payload.get("mcp_servers")
    servers = [server for server in (listed if isinstance(listed, list) else ()) if isinstance(server, dict)]
    ours = [server.get("name") for server in servers if is_our_url(server.get("url"))]
    for tool in tools:
        if chooses(tool):
            configs = [tool]
        elif (
            isinstance(tool, dict)
            and tool.get("type") == "mcp_toolset"
            and tool.get("mcp_server_name") in ours
        ):
            each = tool.get("configs")
            configs = [tool.get("default_config"), *(each.values() if isinstance(each, dict) else ())]
        else:
            continue
        if any(isinstance(config, dict) and config.get("defer_loading") is True for config in configs):
            return True
    return False


def _of_server(server: Mapping[str, Any], at: str, label: str, name: str) -> ChosenServer | None:
    """Read a server in the older form; ``None`` if it is disabled."""
    configuration = server.get("tool_configuration")
    param = f"{at}.tool_configuration"
    if configuration is not None and not isinstance(configuration, dict):
        raise RequestError(400, f"{param} must be an object.", param=param)
    configuration = configuration or {}
    if _enabled(configuration, param) is False:
        return None
    allowed = configuration.get("allowed_tools")
    return ChosenServer(
        at,
        url_at=f"{at}.url",
        names_at=f"{param}.allowed_tools",
        approval_at="",
        label=label,
        name=name,
        allowed=filter_of(allowed, f"{param}.allowed_tools"),
    )


def _of_toolset(place: int, toolset: Mapping[str, Any], at: str, label: str, name: str) -> ChosenServer:
    """Read a server with its toolset, which enables tools one by one or all of them."""
    where = f"tools[{place}]"
    default = toolset.get("default_config")
    configs = toolset.get("configs")
    for field, value in (("default_config", default), ("configs", configs)):
        if value is not None and not isinstance(value, dict):
            raise RequestError(400, f"{where}.{field} must be an object.", param=f"{where}.{field}")
    enabled = {tool: _enabled(config, f"{where}.configs.{tool}") for tool, config in (configs or {}).items()}
    by_default = _enabled(default or {}, f"{where}.default_config") is not False
    on = frozenset([tool for tool, is_on in enabled.items() if (by_default if is_on is None else is_on)])
    off = frozenset(enabled) - on
    return ChosenServer(
        at,
        url_at=f"{at}.url",
        names_at=f"{where}.configs",
        approval_at="",
        label=label,
        name=name,
        allowed=ANY_TOOL if by_default else ToolFilter(on),
        left_out=off if by_default else frozenset(),
    )


def _enabled(config: Any, param: str) -> bool | None:
    enabled = config.get("enabled") if isinstance(config, dict) else config
    if enabled is not None and not isinstance(enabled, bool):
        raise RequestError(400, f"{param}.enabled must be true or false.", param=f"{param}.enabled")
    return enabled
