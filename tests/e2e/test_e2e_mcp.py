"""Real MCP servers from npm, behind the process that talks to servers: they are listed and called."""

import shutil
from pathlib import Path

import pytest
from e2e_packages import installed_packages
from mcp_rig import hosted
from require import require
from waiting import LATE_S

from proxy.errors import ToolFailure
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
    """Text, structured content, an image and links come as what they are."""
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
    """A file is read; one outside of its folder is refused in the server's words."""
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
