"""The official MCP SDK's client uses ``/mcp`` with each version of the protocol."""

import httpx2
import pytest
from client_keys import ALICE, bearer, declared
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from running_proxy import make_config, running


@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_the_sdks_client(mode: str, version: str) -> None:
    """The client connects, lists and calls tools, and sees a failed call as an error."""
    config = make_config(
        "http://127.0.0.1:9",
        allow=("probe_tools__*",),
        modules=("probe_tools",),
        keys={"alice": declared(ALICE)},
        mcp={"serve": True},
    )
    async with running(config) as proxy, httpx2.AsyncClient(headers=bearer(ALICE)) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{proxy.port}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            assert client.protocol_version == version
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            hints = tools["probe_tools__echo"].annotations
            assert hints is not None
            assert hints.read_only_hint is True
            result = await client.call_tool("probe_tools__echo", {"text": "hello"})
            assert not result.is_error
            assert "hello" in repr(result.content)
            failed = await client.call_tool("probe_tools__fail", {})
            assert failed.is_error
            assert "the shop is closed" in repr(failed.content)
