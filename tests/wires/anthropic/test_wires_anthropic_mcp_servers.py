"""Server tools that a Messages request chooses in the form of Anthropic's MCP connector."""

import json
from typing import Any

import pytest

from proxy.base.errors import RequestError
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chosen import ChosenServer, ShownTools

WIRE = AnthropicWire()
OURS = {"type": "url", "name": "docs", "url": "toolrelay/files"}
THEIRS = {"type": "url", "name": "deep", "url": "https://mcp.example.com/mcp", "authorization_token": "t"}


def ask(*servers: Any, tools: Any = ()) -> dict[str, Any]:
    """Return a request with these servers and tools."""
    said = [{"role": "user", "content": "hi"}]
    return {
        "model": "m",
        "max_tokens": 9,
        "messages": said,
        "mcp_servers": list(servers),
        "tools": list(tools),
    }


def toolset(name: str = "docs", **more: Any) -> dict[str, Any]:
    """Return a toolset of a server."""
    return {"type": "mcp_toolset", "mcp_server_name": name, **more}


def chosen(*servers: Any, tools: Any = ()) -> ChosenServer:
    """Return the only server that a request chooses."""
    (server,) = WIRE.parse(ask(*servers, tools=tools)).chosen.servers
    return server


def gets(server: ChosenServer, *names: str) -> list[str]:
    """Return which of these tools a request gets."""
    return [name for name in names if name not in server.left_out and server.allowed.fits(name, False)]


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, ["a", "b"]),
        ({"default_config": {"enabled": True}, "configs": {"a": {"enabled": False}}}, ["b"]),
        ({"configs": {"a": {"enabled": False}, "b": {}}}, ["b"]),
        ({"default_config": {"enabled": False}, "configs": {"a": {"enabled": True}, "b": {}}}, ["a"]),
        ({"default_config": {"enabled": False}}, []),
    ],
)
def test_a_toolset(more: dict[str, Any], found: list[str]) -> None:
    """A toolset enables tools by their names, or all but some."""
    server = chosen(OURS, tools=[toolset(**more)])
    assert (server.label, server.name) == ("docs", "files")
    assert gets(server, "a", "b") == found
    assert not server.approval.asks("a", False)


@pytest.mark.parametrize(
    ("configuration", "found"),
    [(None, ["a", "b"]), ({"enabled": True}, ["a", "b"]), ({"allowed_tools": ["b"]}, ["b"])],
)
def test_the_older_form(configuration: Any, found: list[str]) -> None:
    """A server without a toolset uses ``tool_configuration`` to choose its tools."""
    assert gets(chosen({**OURS, "tool_configuration": configuration}), "a", "b") == found


def test_a_server_that_is_switched_off() -> None:
    """A disabled server chooses no tools, and the proxy removes it from the request."""
    asked = WIRE.parse(payload := ask({**OURS, "tool_configuration": {"enabled": False}}))
    assert asked.chosen
    assert asked.chosen.servers == ()
    raw, _ = WIRE.without_chosen(json.dumps(payload).encode(), asked, ShownTools())
    assert b"mcp_servers" not in raw


def test_servers_of_others_stay() -> None:
    """The proxy keeps other servers with their toolsets, for Anthropic to call."""
    mine = {"name": "mine", "input_schema": {"type": "object"}}
    payload = ask(THEIRS, OURS, tools=[toolset("deep"), mine, toolset()])
    raw, asked = WIRE.without_chosen(json.dumps(payload).encode(), WIRE.parse(payload), ShownTools())
    left = json.loads(raw)
    assert left["mcp_servers"] == [THEIRS]
    assert left["tools"] == [toolset("deep"), mine]
    assert not asked.chosen
    assert not WIRE.parse(ask(THEIRS, tools=[toolset("deep")])).chosen


def test_the_form_of_all_dialects_counts_too() -> None:
    """A request may choose one server in each of the two forms."""
    entry = {
        "type": "mcp",
        "server_label": "more",
        "server_url": "toolrelay/more",
        "require_approval": "never",
    }
    servers = WIRE.parse(ask(OURS, tools=[entry])).chosen.servers
    assert [server.label for server in servers] == ["more", "docs"]


@pytest.mark.parametrize(
    ("server", "tools", "param"),
    [
        ({"authorization_token": "t"}, [], "mcp_servers[0].authorization_token"),
        ({"name": ""}, [], "mcp_servers[0].name"),
        ({"name": None}, [], "mcp_servers[0].name"),
        ({"tool_configuration": "all"}, [], "mcp_servers[0].tool_configuration"),
        (
            {"tool_configuration": {"allowed_tools": "a"}},
            [],
            "mcp_servers[0].tool_configuration.allowed_tools",
        ),
        ({}, [toolset(), toolset()], "tools[1]"),
        ({}, [toolset(configs=[])], "tools[0].configs"),
        ({}, [toolset(default_config=True)], "tools[0].default_config"),
        ({}, [toolset(configs={"a": {"enabled": "yes"}})], "tools[0].configs.a.enabled"),
    ],
)
def test_a_field_that_is_wrong_is_named(server: Any, tools: Any, param: str) -> None:
    """Rule E1: the error names the invalid field together with its position."""
    with pytest.raises(RequestError) as caught:
        WIRE.parse(ask({**OURS, **server}, tools=tools))
    assert (caught.value.status, caught.value.param) == (400, param)
