"""``python -m bench.mcp_servers``: what a chat without MCP costs where MCP servers are configured.

Two proxies stand side by side: one with no server, one with five, of which one ends again and again as soon
as it was connected.  No tool of them is offered.  Counted is the CPU of the processes that serve clients; the
one that talks to MCP servers, and the servers, are not theirs.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.contestants import INSTRUMENT_CORE, PROXY_CORE, toolrelay
from bench.load import Load
from bench.measure import run_load
from bench.processes import Process, free_port, python, started

__all__ = ["main"]

_SERVERS = 5
_HOST = "mcp.host.program"
"""In the command line of the process that talks to MCP servers."""

_SETTLE_S = 4.0
_CHUNKS = 100
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
    """The servers, as TOML."""
    program = folder / "server.py"
    program.write_text(_PROGRAM)
    text = ""
    for number in range(_SERVERS):
        arguments = [str(program), "flaps" if number == 0 else "stays"]
        text += f"[mcp.servers.bench-{number}]\ncommand = {json.dumps(sys.executable)}\n"
        text += f"args = {json.dumps(arguments)}\n"
    return text


def rows(process: Process, core: int | None, factor: float) -> dict[str, float]:
    """CPU of one round, in microseconds for each request, stream and paced chunk."""

    def cost(load: Load) -> float:
        before = process.cpu_s(_HOST)
        result = run_load(load, core)
        if result.failed:
            raise RuntimeError(f"{process.name}: {result.failed} of {result.done} {load.kind} failed")
        return (process.cpu_s(_HOST) - before) / result.done * 1e6

    stream = cost(Load(process.port, "burst", requests=round(1200 * factor)))
    paced = cost(Load(process.port, "paced", _CHUNKS, 10, connections=50, requests=50))
    return {
        "request": cost(Load(process.port, requests=round(3000 * factor))),
        "stream of one chunk": stream,
        "chunk, paced": (paced - stream) / _CHUNKS,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.mcp_servers", description="MCP servers, unused.")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of every row (7)")
    parser.add_argument("--quick", action="store_true", help="one round of little: a look, no figures")
    given = parser.parse_args(arguments)
    factor, count = (0.1, 1) if given.quick else (1.0, given.rounds)
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="toolrelay-bench-") as name, contextlib.ExitStack() as stack:
        folder, port = Path(name), free_port()
        command = python("-m", "bench.mock", str(port))
        stack.enter_context(started("mock", port, command, folder / "mock.log", core=INSTRUMENT_CORE))
        both = [
            stack.enter_context(toolrelay(label, folder, port, tools=False, core=PROXY_CORE, more=more))
            for label, more in (("no server", ""), ("five servers", configured(folder)))
        ]
        time.sleep(_SETTLE_S)
        for process in both:
            rows(process, INSTRUMENT_CORE, 0.1)  # What is paid once is not counted.
        for number in range(count):
            for process in both if number % 2 == 0 else reversed(both):
                for row, value in rows(process, INSTRUMENT_CORE, factor).items():
                    found.setdefault(row, {}).setdefault(process.name, []).append(value)
    print("| CPU, µs | no server | five servers, one of them flapping | ratio of the rounds |")
    print("|---|---|---|---|")
    for row, values in found.items():
        without, beside = values["no server"], values["five servers"]
        ratios = [much / little for little, much in zip(without, beside, strict=True)]
        print(
            f"| {row} | {statistics.median(without):.1f} | {statistics.median(beside):.1f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) |"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
