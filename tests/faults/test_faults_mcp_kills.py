"""``kill -9`` at any moment for the process that hosts MCP servers, a server, or a worker.

One seed decides when each is killed; what must hold does not depend on it.
"""

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest
from mcp_proxy import FINE, ask, obedient, said
from mcp_rig import hosted
from mcp_script import calls_of, scripted, tool_definition
from process_tree import children
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import RawUpstream
from waiting import until

from proxy.tools.mcp.pins import write_pin_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SEED = 20261127
TAKES_S = 0.3
"""Seconds that each call takes; a process is killed within one and a half times as many."""
VICTIMS = ("host", "server", "worker")
ROUNDS = 4


def command_of(pid: int) -> str:
    """Return the command line of a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def runs(pid: int) -> bool:
    """Say whether a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def below(pid: int) -> Sequence[int]:
    """Return all processes that a process has started, directly or indirectly."""
    try:
        own = children(pid)
    except OSError:
        return []
    return [*own, *(one for child in own for one in below(child))]


def find(proxy: ProxyProcess, kind: str) -> int | None:
    """Return the process of a kind, if one runs now."""
    for pid in below(proxy.process.pid):
        command = command_of(pid)
        is_server, is_host = "toy.py" in command, "mcp.host.program" in command
        if (is_server, is_host) == (kind == "server", kind == "host"):
            return pid
    return None


async def answered(proxy: ProxyProcess, body: object, key: str) -> str:
    """Return the model's answer; if the connection is lost, ask again with the same idempotency key."""
    for _ in range(100):
        try:
            answer = await proxy.ask(body, {"Idempotency-Key": key})
        except (OSError, aiohttp.ClientError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.1)
            continue
        return said(answer) if answer.status == 200 else answer.body.decode()
    raise AssertionError("the proxy did not come back")


async def test_kills_at_any_moment(tmp_path: Path) -> None:
    """No tool call has an effect twice, an unknown outcome is reported as unknown, and no process is left."""
    chance = random.Random(SEED)
    victims = [victim for victim in VICTIMS for _ in range(ROUNDS)]
    chance.shuffle(victims)
    tools = [f"act{number}" for number in range(len(victims))]
    slow = {"sleep": TAKES_S, **FINE}
    server = scripted(tmp_path, [tool_definition(tool) for tool in tools], dict.fromkeys(tools, slow))
    async with hosted(server) as host:
        write_pin_file(tmp_path / "pins.json", await host.pins(server))
    more = '[mcp]\npins = "pins.json"\n[mcp.servers.toy]\n'
    more += f'command = "{server.command}"\nargs = {list(server.args)}\n'
    seen: set[int] = set()
    said_of: dict[str, str] = {}
    connected = 1
    async with RawUpstream(obedient) as upstream:
        write_config(tmp_path, upstream.url, allow=("mcp__*",), more=more)
        async with serving(tmp_path) as proxy:
            for tool, victim in zip(tools, victims, strict=True):
                await proxy.says("mcp_connected", times=connected)
                await until(lambda victim=victim: find(proxy, victim) is not None)  # type: ignore[misc]
                seen.update(below(proxy.process.pid))
                asking = asyncio.create_task(answered(proxy, ask(f"mcp__toy__{tool}"), tool))
                await asyncio.sleep(chance.uniform(0, 1.5 * TAKES_S))
                pid = find(proxy, victim)
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                connected += victim != "worker"
                said_of[f"{tool} ({victim})"] = await asking
                seen.update(below(proxy.process.pid))
            proxy.signal()
            assert await proxy.ended() == 0
    await until(lambda: not any(runs(pid) for pid in seen))
    made = calls_of(tmp_path)
    for told, words in said_of.items():
        times = made.count(told.split()[0])
        assert times <= 1, f"{told} was called {times} times: {made}"
        if words == "fine":
            assert times == 1, told
        else:
            not_made = times == 0 and "not connected" in words
            assert not_made or "may have taken effect" in words, f"{told}: {words}"
