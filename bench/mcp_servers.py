"""``python -m bench.mcp_servers``: the cost of a chat without MCP if MCP servers are configured.

Two proxies run side by side: one has no server, the other has five. One of the five ends again and again,
soon after each connection. None of their tools is offered. Only the CPU of the processes that serve clients
counts, not that of the MCP servers and of the process that talks to them.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.contestants import PROXY_CORE, toolrelay
from bench.pairs import Pair, compare

_SERVERS = 5
_HOST = "mcp.host.program"
"""A word in the command line of the process that talks to MCP servers."""

_SETTLE_S = 4.0
_PROGRAM = """
import json, sys, threading, os
if sys.argv[1:] == ["flaps"]:
    threading.Timer(0.5, os._exit, (3,)).start()
schema = {"type": "object", "properties": {"text": {"type": "string"}}}
tools = [{"name": f"tool_{n}", "description": "Does something.", "inputSchema": schema} for n in range(20)]
info = {"name": "bench", "version": "1"}
known = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info},
    "tools/list": {"tools": tools},
}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = known.get(asked["method"])
        told = {"result": result} if result else {"error": {"code": -32601, "message": "not known"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}), flush=True)
"""


def configured(folder: Path) -> str:
    """Return the configuration of the servers, as TOML."""
    program = folder / "server.py"
    program.write_text(_PROGRAM)
    text = ""
    for number in range(_SERVERS):
        arguments = [str(program), "flaps" if number == 0 else "stays"]
        text += f"[mcp.servers.bench-{number}]\ncommand = {json.dumps(sys.executable)}\n"
        text += f"args = {json.dumps(arguments)}\n"
    return text


@contextlib.contextmanager
def proxies(folder: Path, upstream: int) -> Iterator[Pair]:
    """Run a proxy without servers, and one with five."""
    with (
        toolrelay("no server", folder, upstream, tools=False, core=PROXY_CORE) as without,
        toolrelay(
            "five servers", folder, upstream, tools=False, core=PROXY_CORE, more=configured(folder)
        ) as beside,
    ):
        time.sleep(_SETTLE_S)
        yield without, beside


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    return compare(
        "bench.mcp_servers",
        "Measure the cost of unused MCP servers.",
        ("no server", "five servers, one of them flapping"),
        proxies,
        arguments,
        uncounted=_HOST,
    )


if __name__ == "__main__":
    raise SystemExit(main())
