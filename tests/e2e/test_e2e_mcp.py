"""Real MCP servers are listed and called through the process that hosts them."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from aiohttp import web
from child_server import reserved_port
from e2e_packages import installed_packages
from in_process import serving_app
from mcp_real import LOOPBACK_ONLY, python_server
from mcp_rig import hosted
from require import require
from waiting import LATE_S

from proxy.base.errors import ToolFailure
from proxy.tools.mcp.results import read_result
from proxy.tools.mcp.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder with the programs of the servers, which are installed once."""
    node, npm = shutil.which("node"), shutil.which("npm")
    require("node", bool(node and npm), "node and npm are not installed")
    packages, trouble = installed_packages(str(npm))
    require("node", packages is not None, f"the npm packages cannot be installed: {trouble}")
    assert packages is not None
    return packages / "node_modules" / ".bin"


async def test_server_everything(programs: Path) -> None:
    """Text, structured content, an image and links of the server's results are read."""
    server = Server("every", command=str(programs / "mcp-server-everything"))
    async with hosted(server) as host:
        found = await host.definitions("every")

        async def call(tool: str, **arguments: object) -> object:
            return await host.client.call("every", tool, found[tool].digest, arguments, LATE_S)

        assert read_result(await call("echo", message="hello")).text == "Echo: hello"
        assert "3" in read_result(await call("get-sum", a=1, b=2)).text
        (image,) = read_result(await call("get-tiny-image")).images
        assert image.media_type == "image/png"
        assert read_result(await call("get-resource-links", count=2)).links
        assert "temperature" in read_result(await call("get-structured-content", location="Chicago")).text


async def test_server_filesystem(programs: Path, tmp_path: Path) -> None:
    """The server reads a file in its folder; for one outside, the failure has the server's message."""
    (tmp_path / "hello.txt").write_text("hello")
    server = Server("files", command=str(programs / "mcp-server-filesystem"), args=(str(tmp_path),))
    async with hosted(server) as host:
        found = await host.definitions("files")
        read = found["read_text_file"].digest
        path = str(tmp_path / "hello.txt")
        result = await host.client.call("files", "read_text_file", read, {"path": path}, LATE_S)
        assert read_result(result).text == "hello"
        refused = await host.client.call("files", "read_text_file", read, {"path": "/etc/passwd"}, LATE_S)
        with pytest.raises(ToolFailure, match="outside allowed directories"):
            read_result(refused)


async def test_server_everything_over_http(programs: Path) -> None:
    """Over HTTP, the server answers eight calls at once, and a slow one."""
    with reserved_port() as port:
        env = {**os.environ, "PORT": str(port), "NODE_OPTIONS": f"--require={LOOPBACK_ONLY}"}
        process = await asyncio.create_subprocess_exec(
            str(programs / "mcp-server-everything"),
            "streamableHttp",
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        server = Server("every", url=f"http://127.0.0.1:{port}/mcp")
        try:
            async with hosted(server, networks=("127.0.0.0/8",)) as host:
                await host.becomes("every", "ready")
                found = await host.definitions("every")

                async def call(tool: str, **arguments: object) -> str:
                    result = await host.client.call("every", tool, found[tool].digest, arguments, LATE_S)
                    return read_result(result).text

                calls = [call("echo", message=str(number)) for number in range(8)]
                assert await asyncio.gather(*calls) == [f"Echo: {number}" for number in range(8)]
                done = await call("trigger-long-running-operation", duration=1, steps=2)
                assert "completed" in done.lower()
        finally:
            process.kill()
            await process.wait()


async def test_server_memory(programs: Path, tmp_path: Path) -> None:
    """The server's environment names its file, and the next process reads what was written."""
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    server = Server("memory", command=str(programs / "mcp-server-memory"), env=env)
    entity = {"name": "toolrelay", "entityType": "proxy", "observations": ["relays tools"]}
    async with hosted(server) as host:
        found = await host.definitions("memory")
        made = found["create_entities"].digest
        await host.client.call("memory", "create_entities", made, {"entities": [entity]}, LATE_S)
    async with hosted(server) as host:
        found = await host.definitions("memory")
        read = await host.client.call("memory", "read_graph", found["read_graph"].digest, {}, LATE_S)
        assert "relays tools" in read_result(read).text


async def test_server_time() -> None:
    """The server converts a time; for an unknown zone, the failure has the server's message."""
    server = Server("time", command=python_server("time"))
    async with hosted(server) as host:
        found = await host.definitions("time")
        convert = found["convert_time"].digest
        told = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        result = await host.client.call("time", "convert_time", convert, told, LATE_S)
        assert "+9.0h" in read_result(result).text
        wrong = {**told, "target_timezone": "Asia/Nowhere"}
        with pytest.raises(ToolFailure, match="Asia/Nowhere"):
            read_result(await host.client.call("time", "convert_time", convert, wrong, LATE_S))


def git(repository: Path, *command: str) -> str:
    """Run a Git command and return its output."""
    done = subprocess.run(
        ["git", "-C", str(repository), *command], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


async def test_server_git(tmp_path: Path) -> None:
    """The server adds and commits a file once; a call outside of its repository fails."""
    program = python_server("git")
    repository = tmp_path / "repository"
    repository.mkdir()
    for command in (
        ("init", "--quiet"),
        ("config", "user.email", "a@example.com"),
        ("config", "user.name", "a"),
    ):
        git(repository, *command)
    (repository / "hello.txt").write_text("hello")
    server = Server("git", command=program, args=("--repository", str(repository)))
    async with hosted(server) as host:
        found = await host.definitions("git")

        async def call(tool: str, **arguments: object) -> str:
            told = {"repo_path": str(repository), **arguments}
            return read_result(await host.client.call("git", tool, found[tool].digest, told, LATE_S)).text

        assert "hello.txt" in await call("git_status")
        await call("git_add", files=["hello.txt"])
        await call("git_commit", message="Say hello")
        assert "Say hello" in await call("git_log")
        with pytest.raises(ToolFailure):
            await call("git_status", repo_path=str(tmp_path))
    assert git(repository, "log", "--oneline").count("Say hello") == 1


async def test_server_fetch() -> None:
    """The server returns a page on loopback as text; if the page is missing, only the call fails."""
    app = web.Application()

    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(text="the page's own words", content_type="text/plain")

    app.router.add_get("/page", page)
    server = Server(
        "fetch", command=python_server("fetch"), args=("--ignore-robots-txt", "--allow-private-ips")
    )
    async with serving_app(app) as url, hosted(server) as host:
        fetch = (await host.definitions("fetch"))["fetch"].digest
        fine = await host.client.call("fetch", "fetch", fetch, {"url": f"{url}/page"}, LATE_S)
        assert "the page's own words" in read_result(fine).text
        missing = await host.client.call("fetch", "fetch", fetch, {"url": f"{url}/none"}, LATE_S)
        with pytest.raises(ToolFailure, match="404"):
            read_result(missing)
