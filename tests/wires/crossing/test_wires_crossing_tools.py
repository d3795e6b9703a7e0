"""Tools and the choice among them in translated requests: what most servers refuse is not sent."""

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from proxy.base.events import ToolDefinition
from proxy.wires.anthropic.wire import AnthropicWire
from proxy.wires.chat.wire import ChatWire
from proxy.wires.crossed import Crossing
from proxy.wires.ollama.wire import OllamaWire
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.wire import CrossableWire

WIRES: Final[Mapping[str, CrossableWire]] = {
    "chat": ChatWire(), "responses": ResponsesWire(), "anthropic": AnthropicWire(), "ollama": OllamaWire()
}  # fmt: skip
PAIRS = [(client, upstream) for client in WIRES for upstream in WIRES if client != upstream]
CHOOSING = [pair for pair in PAIRS if "ollama" not in pair]
NOW = ToolDefinition("now", "The time.", {"type": "object", "properties": {}})


def asking(client: str, *schemas: Any, choice: Any = None) -> dict[str, Any]:
    """A request of a client with a tool for each schema, and with a choice among them."""
    said = {"messages": [{"role": "user", "content": "hi"}]}
    ask: dict[str, Any] = {"model": "m", **({"input": "hi"} if client == "responses" else said)}
    tools: list[Any] = []
    for place, schema in enumerate(schemas):
        name = f"f{place}"
        match client:
            case "responses":
                tools.append({"type": "function", "name": name, "parameters": schema, "strict": False})
            case "anthropic":
                tools.append({"name": name, "input_schema": schema})
            case _:
                tools.append({"type": "function", "function": {"name": name, "parameters": schema}})
    ask["tools"] = tools
    if client == "anthropic":
        ask["max_tokens"] = 100
        chosen = {"required": "any"}.get(choice, choice)
        kept = {} if choice == "none" else {"disable_parallel_tool_use": True}
        return {**ask, "tool_choice": {"type": chosen, **kept}} if choice else ask
    return {**ask, "tool_choice": choice, "parallel_tool_calls": False} if choice else ask


def sent(client: str, upstream: str, ask: Mapping[str, Any], *offered: ToolDefinition) -> dict[str, Any]:
    """The body that an upstream of another dialect gets."""
    request = WIRES[client].parse(ask)
    editor = Crossing(WIRES[client], WIRES[upstream], request).editor(json.dumps(ask).encode(), request)
    editor.offer(offered, [])
    body: dict[str, Any] = json.loads(editor.render())
    return body


def schemas_of(body: Mapping[str, Any]) -> list[Any]:
    """The schemas of the tools in a body of any dialect."""
    functions = (tool.get("function", tool) for tool in body["tools"])
    return [one.get("parameters", one.get("input_schema")) for one in functions]


@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize(("client", "upstream"), CHOOSING)
def test_a_choice_needs_tools(client: str, upstream: str, choice: str) -> None:
    """A choice without tools, as Codex sends it to compact a conversation, is left out; so is the empty
    list of tools."""
    body = sent(client, upstream, asking(client, choice=choice))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()


@pytest.mark.parametrize(("client", "upstream"), CHOOSING)
def test_a_choice_among_server_tools_is_kept(client: str, upstream: str) -> None:
    """The proxy's own tools are tools: the client's wish for one call at a time holds for them, too."""
    body = sent(client, upstream, asking(client, choice="auto"), NOW)
    assert len(body["tools"]) == 1
    serial = body.get("parallel_tool_calls") is False
    assert serial or body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


@pytest.mark.parametrize(("client", "upstream"), CHOOSING)
def test_a_demand_without_tools_stays(client: str, upstream: str) -> None:
    """A call that is demanded and impossible is an error, which the upstream gives."""
    assert sent(client, upstream, asking(client, choice="required"))["tool_choice"]


@pytest.mark.parametrize("client", ["chat", "responses"])
def test_no_calls_means_no_serial_calls(client: str) -> None:
    """Anthropic refuses ``disable_parallel_tool_use`` beside the choice ``none``."""
    body = sent(client, "anthropic", asking(client, {"type": "object"}, choice="none"))
    assert body["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
def test_schemas_get_what_has_one_meaning(client: str, upstream: str) -> None:
    """OpenAI refuses an object without ``properties`` and an array without ``items``, which Anthropic and MCP
    allow."""
    lists = {"type": "object", "properties": {"a": {"type": "array"}}}
    body = sent(client, upstream, asking(client, {"type": "object"}, lists))
    empty, filled = schemas_of(body)
    assert empty == {"type": "object", "properties": {}}
    assert filled == {"type": "object", "properties": {"a": {"type": "array", "items": {}}}}


@pytest.mark.parametrize("upstream", ["responses", "anthropic", "ollama"])
def test_no_schema_is_the_schema_of_no_arguments(upstream: str) -> None:
    """An empty schema of a function means that it takes an object."""
    body = sent("chat", upstream, asking("chat", {}))
    assert schemas_of(body) == [{"type": "object", "properties": {}}]
