"""A whole proxy with one scripted MCP server, and a model that calls the tools that the user names."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from chat_script import reply
from mcp_rig import Hosted, hosted
from raw_upstream import RawRequest, RawUpstream, Step
from running_proxy import Proxy, make_config, running

from proxy.app.app import Overrides
from proxy.tools.mcp.pins import GivenPins, Pin, PinSource
from proxy.tools.mcp.servers import Server

FINE = {"result": {"content": [{"type": "text", "text": "fine"}]}}
"""An answer that a scripted server may give."""


class Pins:
    """A source of pins that a test may change."""

    def __init__(self, pins: Sequence[Pin]) -> None:
        self.listed = list(pins)

    async def pins(self) -> Sequence[Pin]:
        """Return the current pins."""
        return list(self.listed)


def obedient(request: RawRequest) -> list[Step]:
    """Answer as a model that calls the named tools, one in each turn, and then repeats their results."""
    messages = json.loads(request.body)["messages"]
    (user,) = [message["content"] for message in messages if message["role"] == "user"]
    results = [str(message["content"]) for message in messages if message["role"] == "tool"]
    called = user.split()
    if len(results) == len(called):
        return reply(" / ".join(results))
    return reply(None, (f"call_{len(results)}", called[len(results)], "{}"))


def ask(*tools: str, **more: Any) -> dict[str, Any]:
    """Return a request whose model calls these tools, one after the other."""
    return {"model": "m", "messages": [{"role": "user", "content": " ".join(tools)}], **more}


def said(answer: Any) -> str:
    """Return the model's last text."""
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


def offered(upstream: RawUpstream, number: int = -1) -> list[str]:
    """Return the tools in one of the upstream requests, by default in the last."""
    body = json.loads(upstream.requests[number].body)
    return [tool["function"]["name"] for tool in body.get("tools", ())]


@asynccontextmanager
async def mcp_proxy(
    toy: Server,
    /,
    pins: Sequence[Pin] | None = None,
    allow: Sequence[str] = ("mcp__toy__*",),
    *,
    source: PinSource | None = None,
    others: Sequence[Server] = (),
    model: Any = obedient,
    **sections: Any,
) -> AsyncIterator[tuple[Proxy, Hosted, RawUpstream]]:
    """Run a proxy with one MCP server, ``toy``, and ``others``; all of their tools are pinned unless ``pins``
    are given.

    ``source`` are pins that a test may change.
    """
    servers = {server.name: _table(server) for server in (toy, *others)}
    sections["mcp"] = {**sections.get("mcp", {}), "servers": servers}
    async with hosted(toy, *others) as host, RawUpstream(model) as upstream:
        if source is None and pins is None:
            pins = [pin for server in (toy, *others) for pin in await host.pins(server)]
        if source is None:
            source = GivenPins(pins or ())
        else:
            await host.definitions(toy.name)  # A call waits only a short time for a server that still starts.
        overrides = Overrides(mcp_socket=host.process.path, pins=source)
        config = make_config(upstream.url, allow=allow, **sections)
        async with running(config, overrides) as proxy:
            yield proxy, host, upstream


def _table(server: Server) -> dict[str, Any]:
    """Return the section of a server in a configuration."""
    table: dict[str, Any] = {"command": server.command, "args": server.args}
    if server.timeout_s is not None:
        table["timeout_s"] = server.timeout_s
    if server.effects:
        table["effects"] = {pattern: str(effect) for pattern, effect in server.effects.items()}
    if server.redaction.output:
        table["redact"] = {"output": server.redaction.output}
    if server.trusted_results:
        table["results"] = "trusted"
    return table
