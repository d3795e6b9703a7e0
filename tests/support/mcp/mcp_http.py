"""An MCP server of the official SDK over streamable HTTP on the loopback."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from pydantic import Field
from waiting import until


@asynccontextmanager
async def real_server() -> AsyncIterator[tuple[str, list[dict[str, str]]]]:
    """Run the SDK's server on a free port; yield its URL and the headers of each request."""
    server = MCPServer("real")
    seen: list[dict[str, str]] = []

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def route(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
        urgent: Annotated[bool, Field(json_schema_extra={"x-mcp-header": "Urgent"})] = False,
        note: str = "",
    ) -> str:
        """Say where it went."""
        return f"{region} {urgent} {note}"

    app = server.streamable_http_app()

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await app(scope, receive, send)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        config = uvicorn.Config(noting, log_level="critical", lifespan="on")
        running = uvicorn.Server(config)
        task = asyncio.create_task(running.serve([listener]))
        await until(lambda: running.started)
        try:
            yield f"http://127.0.0.1:{port}/mcp", seen
        finally:
            running.should_exit = True
            await task
