"""Real MCP servers in everyday use: a model reads on in one of them, and carries nothing to another."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_script import reply
from e2e_packages import installed_packages
from mcp_proxy import mcp_proxy
from mcp_real import python_server
from raw_upstream import RawRequest, Step
from require import require

from proxy.records.rows import ToolEffect
from proxy.tools.mcp.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

READS = {"*": ToolEffect.READ_ONLY}
ASK = {"model": "m", "messages": [{"role": "user", "content": "go"}]}


def calling(*calls: tuple[str, dict[str, Any]]) -> Any:
    """A model that makes these calls, one in each turn."""

    def model(request: RawRequest) -> list[Step]:
        messages = json.loads(request.body)["messages"]
        done = sum(message["role"] == "tool" for message in messages)
        if done == len(calls):
            return reply("Done.")
        name, arguments = calls[done]
        return reply(None, (f"call_{done}", name, json.dumps(arguments)))

    return model


async def statuses(server: Server, *calls: tuple[str, dict[str, Any]], others: Sequence[Server] = ()) -> Any:
    """The outcome of each call of a run, in order."""
    async with mcp_proxy(server, others=others, allow=("mcp__*",), model=calling(*calls)) as (proxy, _, _):
        await proxy.ask(ASK)
        return [call.status for call in (await proxy.only_run()).invocations]


async def test_a_folder_is_listed_and_its_files_are_read(tmp_path: Path) -> None:
    """With the filesystem server, ``read_text_file`` runs after ``list_directory`` without an approval."""
    node, npm = shutil.which("node"), shutil.which("npm")
    require("node", bool(node and npm), "node and npm are not installed")
    packages, trouble = installed_packages(str(npm))
    require("node", packages is not None, f"the npm packages cannot be installed: {trouble}")
    assert packages is not None
    (tmp_path / "hello.txt").write_text("hello")
    command = str(packages / "node_modules" / ".bin" / "mcp-server-filesystem")
    reads = {"read_*": ToolEffect.READ_ONLY, "list_*": ToolEffect.READ_ONLY}
    files = Server("files", command=command, args=(str(tmp_path),), effects=reads)
    path = str(tmp_path / "hello.txt")
    assert await statuses(
        files,
        ("mcp__files__list_directory", {"path": str(tmp_path)}),
        ("mcp__files__read_text_file", {"path": path}),
        ("mcp__files__write_file", {"path": path, "content": "changed"}),
    ) == ["success", "success", "error"]
    assert (tmp_path / "hello.txt").read_text() == "hello"


async def test_a_clock_is_asked_twice_and_nothing_is_fetched() -> None:
    """The time server is called again after its own result; ``fetch``, which only reads too, is not."""
    time = Server("time", command=python_server("time"), effects=READS)
    fetch = Server("fetch", command=python_server("fetch"), effects=READS)
    convert = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    assert await statuses(
        time,
        ("mcp__time__get_current_time", {"timezone": "UTC"}),
        ("mcp__time__convert_time", convert),
        ("mcp__fetch__fetch", {"url": "http://127.0.0.1:9/?q=secret"}),
        others=[fetch],
    ) == ["success", "success", "error"]
