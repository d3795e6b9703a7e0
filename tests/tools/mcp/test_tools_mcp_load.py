"""Many clients, many tools, and a server that dies often: each call gets its own answer, only once."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from mcp_rig import hosted
from mcp_script import calls_of, scripted, tool_definition
from waiting import LATE_S, PATIENCE_S

from proxy.base.errors import ToolFailure
from proxy.tools.mcp.host_client import HostClient
from proxy.tools.mcp.results import read_result
from proxy.tools.mcp.servers import Server

OK = {"result": {"content": [{"type": "text", "text": "fine"}]}}
CLIENTS = 26


async def test_many_clients_share_one_server() -> None:
    """Concurrent clients of one server each get the answers to their own calls, without reconnects."""
    server = Server("units", command=sys.executable, args=("-P", "-m", "proxy.toolbox.demo.units_server"))
    async with hosted(server) as host:
        digest = (await host.definitions("units"))["convert"].digest
        clients = [HostClient(host.process.path) for _ in range(CLIENTS)]
        for client in clients:
            client.start()

        async def convert(client: HostClient, value: int) -> float:
            arguments = {"value": value, "from": "km", "to": "m"}
            result = await client.call("units", "convert", digest, arguments, LATE_S)
            return float(json.loads(read_result(result).text)["value"])

        async def several(number: int, client: HostClient) -> list[float]:
            return [await convert(client, 100 * number + turn) for turn in range(3)]

        try:
            found = await asyncio.gather(*(several(number, one) for number, one in enumerate(clients)))
            wanted = [[1000.0 * (100 * number + turn) for turn in range(3)] for number in range(CLIENTS)]
            assert found == wanted
            assert all(client.reconnects.get("units", 0) == 0 for client in clients)
        finally:
            for client in clients:
                await client.aclose()


async def test_a_server_that_dies_on_every_tenth_call(tmp_path: Path) -> None:
    """A call in which the server dies fails with an unknown outcome; no call is made twice."""
    server = scripted(tmp_path, [tool_definition("act")], {"act": OK}, dies_on=10)
    quiet = scripted(tmp_path, [tool_definition("a")], {"a": OK}, name="quiet")
    async with hosted(server, quiet) as host:
        digest = (await host.definitions("toy"))["act"].digest
        other = (await host.definitions("quiet"))["a"].digest
        for number in range(1, 31):
            call = host.client.call("toy", "act", digest, {}, LATE_S)
            if number % 10:
                assert read_result(await call).text == "fine"
                continue
            with pytest.raises(ToolFailure, match="it may have taken effect"):
                await call
            # The other server is not affected.
            assert read_result(await host.client.call("quiet", "a", other, {}, LATE_S)).text == "fine"
            await host.becomes("toy", "ready")
        assert calls_of(tmp_path) == ["act"] * 30


async def test_five_hundred_tools(tmp_path: Path) -> None:
    """A server may have 500 tools if ``mcp.max_tools`` allows it; else 200 are used, the others named."""
    tools = [tool_definition(f"tool-{number}") for number in range(500)]
    server = scripted(tmp_path, tools, {"tool-499": OK})
    async with hosted(server, max_tools=1000) as host:
        found = await host.definitions("toy")
        assert len(found) == 500
        result = await host.client.call("toy", "tool-499", found["tool-499"].digest, {}, LATE_S)
        assert read_result(result).text == "fine"
    async with hosted(server) as host:
        listing = await host.client.listing("toy", PATIENCE_S)
        assert len(listing.definitions) == 200
        assert any("mcp.max_tools" in one.reason for one in listing.status.left_out)
