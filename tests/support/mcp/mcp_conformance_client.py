"""The client that the conformance suite runs: it uses the process that talks to MCP servers.

The suite gives the address of its server as the last argument. The client calls every tool of the server
once, with the same number for each numeric argument.
"""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from mcp_rig import hosted
from waiting import LATE_S

from proxy.tools.mcp.results import read_result
from proxy.tools.mcp.servers import Server


def arguments_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a number for each numeric argument."""
    found = schema.get("properties", {})
    return {name: 2 for name, what in found.items() if what.get("type") in ("number", "integer")}


async def main(url: str) -> None:
    """Connect, list the tools, and call each of them."""
    server = Server("suite", url=url)
    async with hosted(server, networks=("127.0.0.0/8", "::1/128")) as host:
        await host.becomes("suite", "ready")
        for name, definition in (await host.definitions("suite")).items():
            arguments = arguments_of(definition.input_schema)
            result = await host.client.call("suite", name, definition.digest, arguments, LATE_S)
            print(read_result(result).text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
