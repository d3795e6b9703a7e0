"""A reload of ``serve`` adds, removes and changes MCP servers while runs are open."""

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from mcp_proxy import FINE, ask, obedient, offered, said
from mcp_rig import hosted
from mcp_script import calls_of, scripted, tool_definition
from process_tree import children
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import RawUpstream
from waiting import until

from proxy.tools.mcp.pins import write_pin_file
from proxy.tools.mcp.servers import Server


def configure(folder: Path, upstream: str, *servers: Server, more: str = "") -> None:
    """Write a configuration with these servers."""
    text = '[mcp]\npins = "pins.json"\n' + more
    for server in servers:
        text += f"[mcp.servers.{server.name}]\ncommand = {json.dumps(server.command)}\n"
        text += f"args = {json.dumps(list(server.args))}\n"
    write_config(folder, upstream, allow=("mcp__*",), more=text)


async def pin(folder: Path, *servers: Server) -> None:
    """Allow all tools of the servers."""
    async with hosted(*servers) as host:
        pins = [one for server in servers for one in await host.pins(server)]
    write_pin_file(folder / "pins.json", pins)


async def until_fine(proxy: ProxyProcess, tool: str) -> None:
    """Call a tool until its server is connected, which a proxy that begins to listen does not wait for."""

    async def is_fine() -> bool:
        return said(await proxy.ask(ask(tool))) == "fine"

    await until(is_fine)


async def test_a_reload_leaves_open_runs_their_servers(tmp_path: Path) -> None:
    """After a reload, new requests use the new MCP servers; an open call ends at its old server, which
    then stops."""
    waits = {"until": str(tmp_path / "go"), **FINE}
    old = scripted(tmp_path, [tool_definition("a")], {"a": waits}, name="old")
    kept = scripted(tmp_path, [tool_definition("a")], {"a": FINE}, name="kept")
    new = scripted(tmp_path, [tool_definition("a")], {"a": FINE}, name="new")
    moved = Server("kept", command=kept.command, args=(*kept.args, "--other"))
    await pin(tmp_path, old, kept, new)
    async with RawUpstream(obedient) as upstream:
        configure(tmp_path, upstream.url, old, kept)
        async with serving(tmp_path) as proxy:
            await until_fine(proxy, "mcp__kept__a")
            assert offered(upstream, 0) == ["mcp__kept__a", "mcp__old__a"]
            asking = asyncio.create_task(proxy.ask(ask("mcp__old__a")))
            await until(lambda: calls_of(tmp_path, "old") == ["a"])
            configure(tmp_path, upstream.url, moved, new)
            proxy.signal(signal.SIGHUP)
            await proxy.says("restarted")
            await until_fine(proxy, "mcp__new__a")
            # Another command line may be another server: its tools must be allowed again.
            assert offered(upstream, -2) == ["mcp__new__a"]
            assert "unknown_tool" in said(await proxy.ask(ask("mcp__kept__a")))
            hosts = len(children(proxy.process.pid))
            (tmp_path / "go").touch()
            assert said(await asking) == "fine"
            # One worker and one process for the MCP servers end.
            await until(lambda: len(children(proxy.process.pid)) == hosts - 2)
    assert calls_of(tmp_path, "old") == ["a"]
    assert calls_of(tmp_path, "kept") == ["a"]


async def test_a_reload_that_changes_no_server_keeps_their_process(tmp_path: Path) -> None:
    """If a reload changes no MCP server, the process for the servers stays and no other is started."""
    server = scripted(tmp_path, [tool_definition("a")], {"a": FINE}, name="kept")
    await pin(tmp_path, server)
    async with RawUpstream(obedient) as upstream:
        configure(tmp_path, upstream.url, server)
        async with serving(tmp_path) as proxy:
            await until_fine(proxy, "mcp__kept__a")
            before = set(children(proxy.process.pid))
            configure(tmp_path, upstream.url, server, more="max_tools = 200\n")
            proxy.signal(signal.SIGHUP)
            await proxy.says("restarted")
            await until_fine(proxy, "mcp__kept__a")
            await until(lambda: len(children(proxy.process.pid)) == len(before))
            assert len(before & set(children(proxy.process.pid))) == 1


@pytest.mark.parametrize("fault", ["in-the-configuration", "in-a-worker"])
async def test_a_reload_that_is_refused_changes_nothing(tmp_path: Path, fault: str) -> None:
    """If a reload fails, the log names the setting and all processes stay as they were."""
    server = scripted(tmp_path, [tool_definition("a")], {"a": FINE}, name="kept")
    await pin(tmp_path, server)
    async with RawUpstream(obedient) as upstream:
        configure(tmp_path, upstream.url, server)
        async with serving(tmp_path) as proxy:
            await until_fine(proxy, "mcp__kept__a")
            before = children(proxy.process.pid)
            if fault == "in-a-worker":
                (tmp_path / "pins.json").write_text("{")
                configure(tmp_path, upstream.url, server, replace(server, name="more"))
            else:
                configure(tmp_path, upstream.url, server, more="max_tools = 0\n")
            proxy.signal(signal.SIGHUP)
            await proxy.says("not restarted.*" + ("mcp.pins" if fault == "in-a-worker" else "mcp.max_tools"))
            await until_fine(proxy, "mcp__kept__a")
            await until(lambda: children(proxy.process.pid) == before)


async def test_a_file_that_is_imported_is_read_again(tmp_path: Path) -> None:
    """With ``--reload``, a changed file of ``mcp.import`` is read again; its servers replace the old ones."""
    old = scripted(tmp_path, [tool_definition("a")], {"a": FINE}, name="old")
    new = scripted(tmp_path, [tool_definition("a")], {"a": FINE}, name="new")
    await pin(tmp_path, old, new)
    file = tmp_path / "desktop.json"

    def write(server: Server) -> None:
        servers = {server.name: {"command": server.command, "args": list(server.args)}}
        file.write_text(json.dumps({"mcpServers": servers}))

    write(old)
    async with RawUpstream(obedient) as upstream:
        configure(tmp_path, upstream.url, more='import = ["desktop.json"]\n')
        async with serving(tmp_path, "--reload") as proxy:
            await until_fine(proxy, "mcp__old__a")
            write(new)
            await proxy.says("restarted")
            await until_fine(proxy, "mcp__new__a")
            assert offered(upstream, -2) == ["mcp__new__a"]
