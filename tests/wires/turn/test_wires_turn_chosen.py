"""A request body without the elements that choose server tools, in every dialect."""

import json
from typing import Any

import pytest

from proxy.base.errors import RequestError
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.chosen import ServedTool, ShownServer, ShownTools
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.wire import Wire

ENTRY = {"type": "mcp", "server_label": "docs", "server_url": "toolrelay/files", "require_approval": "never"}
VENDOR = {"type": "mcp", "server_label": "deep", "server_url": "https://mcp.example.com/mcp"}
READ = ServedTool("mcp__files__read", "read", "", {}, True)
LIST = ServedTool("mcp__files__list", "list", "", {}, True)
SHOWN = ShownTools((ShownServer("docs", (LIST, READ)),), reports_calls=True)
WIRES: dict[str, Wire] = {
    "chat": ChatWire(),
    "responses": ResponsesWire(),
    "anthropic": AnthropicWire(),
    "ollama": OllamaWire(),
}
ASK: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "responses": {"model": "m", "input": "hi"},
    "anthropic": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "ollama": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
}

each_wire = pytest.mark.parametrize("wire", WIRES)


def less(wire: str, **fields: Any) -> dict[str, Any]:
    """Return the request without the elements that choose server tools."""
    payload = {**ASK[wire], **fields}
    port = WIRES[wire]
    raw, asked = port.without_chosen(json.dumps(payload).encode(), port.parse(payload), SHOWN)
    left = json.loads(raw)
    assert asked.model == "m"
    return dict(left)


@each_wire
def test_only_what_is_ours_goes(wire: str) -> None:
    """The proxy removes only elements that choose server tools; other bytes and their spaces stay."""
    port = WIRES[wire]
    rest = json.dumps(ASK[wire])[1:-1]
    raw = f'{{"tools": [{json.dumps(ENTRY)}, {{"x":  1}}, {{"type": "toolrelay:core__t"}}], {rest}}}'.encode()
    left, _ = port.without_chosen(raw, port.parse(json.loads(raw)), SHOWN)
    assert left.startswith(b'{"tools":[{"x":  1}],"model":"m"')
    assert b"toolrelay" not in left


@each_wire
def test_a_list_without_elements_goes(wire: str) -> None:
    """The proxy removes an empty list of tools, because some servers refuse it."""
    assert less(wire, tools=[ENTRY]) == ASK[wire]


def test_a_forced_server_of_responses() -> None:
    """A forced server becomes a required choice among its tools, or its named tool."""
    forced = {"type": "mcp", "server_label": "docs"}
    named = [{"type": "function", "name": tool.id} for tool in (LIST, READ)]
    choice = less("responses", tools=[ENTRY], tool_choice=forced)["tool_choice"]
    assert choice == {"type": "allowed_tools", "mode": "required", "tools": named}
    choice = less("responses", tools=[ENTRY], tool_choice={**forced, "name": "read"})["tool_choice"]
    assert choice == {"type": "function", "name": READ.id}


def test_a_server_among_allowed_tools() -> None:
    """Its tools replace a server among the allowed tools; a vendor's server stays."""
    mine, theirs = {"type": "function", "name": "mine"}, {"type": "mcp", "server_label": "deep"}
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [mine, {"type": "mcp", "server_label": "docs", "name": "read"}, theirs],
    }
    left = less("responses", tools=[ENTRY, VENDOR], tool_choice=allowed)
    assert left["tools"] == [VENDOR]
    assert left["tool_choice"]["tools"] == [mine, {"type": "function", "name": READ.id}, theirs]
    only = {"type": "allowed_tools", "mode": "auto", "tools": [theirs]}
    assert less("responses", tools=[ENTRY, VENDOR], tool_choice=only)["tool_choice"] == only


def test_a_forced_tool_of_chat() -> None:
    """A choice that forces one server tool, or a server, becomes a choice of functions."""
    single = {"type": "toolrelay:core__t"}
    choice = less("chat", tools=[single], tool_choice=single)["tool_choice"]
    assert choice == {"type": "function", "function": {"name": "core__t"}}
    server = less("chat", tools=[ENTRY], tool_choice={"type": "mcp", "server_label": "docs"})["tool_choice"]
    assert server["allowed_tools"]["mode"] == "required"
    assert [one["function"]["name"] for one in server["allowed_tools"]["tools"]] == [LIST.id, READ.id]


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "mcp", "server_label": "docs", "name": "write"}, "tool_choice.name"),
        ({"type": "toolrelay:core__other"}, "tool_choice.type"),
    ],
)
def test_a_forced_tool_that_was_not_chosen(choice: dict[str, Any], param: str) -> None:
    """Rule E1: the proxy refuses a forced tool that was not chosen, and names the field."""
    with pytest.raises(RequestError) as caught:
        less("responses", tools=[ENTRY], tool_choice=choice)
    assert caught.value.param == param


@pytest.mark.parametrize("choice", ["auto", "required", None, {"type": "function", "name": "mine"}])
def test_any_other_choice_stays(choice: Any) -> None:
    """The proxy does not change a choice that names no server tool."""
    assert less("responses", tools=[ENTRY], tool_choice=choice)["tool_choice"] == choice


def test_a_choice_of_nothing_goes_with_the_last_tool() -> None:
    """The proxy removes the choice with the last tool, since providers refuse a choice without tools."""
    assert "tool_choice" not in less("chat", tools=[ENTRY], tool_choice="none", parallel_tool_calls=False)
    assert "tool_choice" not in less("anthropic", tools=[ENTRY], tool_choice={"type": "none"})
