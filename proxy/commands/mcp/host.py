"""Runs the process that talks to MCP servers, for servers and commands."""

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from proxy.base.errors import ConfigError, how_to_install
from proxy.config.load import Config
from proxy.tools.mcp.process import HostProcess


def mcp_settings(config: Config) -> bytes:
    """Return the settings for that process; empty if no MCP server is configured.

    Raises :class:`~proxy.base.errors.ConfigError` if the SDK that it needs is not installed.
    """
    if not config.mcp.servers:
        return b""
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError(
            "mcp.servers", "MCP servers need a library that is not installed", how_to_install("mcp")
        )
    rules = config.network.rules(config.mcp.proxy, "mcp.proxy")
    return orjson.dumps(config.mcp.host_settings(rules, config.network.ca_file).written())


@asynccontextmanager
async def mcp_host(config: Config | None) -> AsyncIterator[Path | None]:
    """Run the process; yield the path of its socket, ``None`` if no MCP server is configured."""
    settings = mcp_settings(config) if config is not None else b""
    if not settings:
        yield None
        return
    host = HostProcess(settings)
    host.start()
    try:
        yield host.path
    finally:
        await host.aclose()
