"""The settings of MCP servers, and their conversion for the tools package."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from proxy.base.errors import ConfigError
from proxy.config.addresses import check_networks
from proxy.config.secret import Secret
from proxy.config.sections.network import ProxyAddress
from proxy.config.types import (
    HeaderValue,
    Patterns,
    Seconds,
    Section,
    Strings,
    check_headers,
    setting_fault,
)
from proxy.net.outgoing import ProxyRules
from proxy.records.rows import ToolEffect
from proxy.tools.contract.spec import Redaction
from proxy.tools.mcp.definitions import SERVER_NAME, pattern_of_server
from proxy.tools.mcp.masking import masked_url
from proxy.tools.mcp.servers import HostSettings, Server

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
Resolve = Callable[[str, Secret], Secret | None]


def _check_server_names(servers: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in servers:
        if not SERVER_NAME.fullmatch(name):
            raise setting_fault(
                f"{name[:80]!r} is not a valid server name; use 1 to 25 lower-case letters, digits and -"
            )
    return servers


def _check_env(env: Mapping[str, "str | Secret"]) -> Mapping[str, "str | Secret"]:
    for name in env:
        if not _ENV_NAME.fullmatch(name):
            raise setting_fault(f"{name[:80]!r} is not a valid name for an environment variable")
    return env


def _check_url(url: str) -> str:
    if url.startswith(("ws://", "wss://")):
        raise setting_fault(
            "is the address of a WebSocket, which MCP servers are not reached by; write the server's address "
            "for streamable HTTP, like https://mcp.example.com/mcp"
        )
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        known = False
    if url and (not known or "@" in parts.netloc or parts.fragment):
        raise setting_fault(
            "is not a valid address; write one like https://mcp.example.com/mcp, without a password"
        )
    return url


class RedactConfig(Section):
    """What traces, logs and records may show of a server's tools."""

    output: Strings = Field(
        default=(),
        description="Paths within results that logs and records may show: dotted, like items.*.name.",
    )
    private_arguments: Strings = Field(
        default=(), description="Paths within arguments that logs and records must not show."
    )


class McpServerConfig(Section):
    """One MCP server: a command that is started, or an address."""

    command: str = Field(default="", max_length=4096, description="The program to start as the server.")
    args: Strings = Field(default=(), description="Its arguments.")
    env: Annotated[
        dict[str, HeaderValue],
        AfterValidator(_check_env),
    ] = Field(
        default={},
        description='Environment variables for the program: {TOKEN = "env:TOKEN"}; write secrets as '
        "env:NAME or file:/path.",
    )
    cwd: str = Field(default="", max_length=4096, description="The folder to start the program in.")
    url: Annotated[str, AfterValidator(_check_url)] = Field(
        default="", max_length=2048, description="The address of a server over streamable HTTP."
    )
    headers: Annotated[
        dict[str, HeaderValue],
        AfterValidator(check_headers),
    ] = Field(
        default={},
        description='Headers of every request to the server: {authorization = "env:MCP_AUTHORIZATION"}.',
    )
    connection: str = Field(
        default="",
        max_length=64,
        description="The connection whose token each request carries: the NAME of [credentials.NAME].",
    )
    tools: Patterns = Field(
        default=("*",),
        description="Tools of this server that the operator may allow: the server's own names, or patterns.",
    )
    effects: dict[str, Literal["read_only", "state_change", "external_side_effect"]] = Field(
        default={},
        description='Effects of the tools, by the server\'s own names or patterns: {"read_*" = '
        '"read_only"}. Tools not listed: external_side_effect.',
    )
    results: Literal["trusted", "untrusted"] = Field(
        default="untrusted",
        description="Whether you vouch for all text in the results of this server, whoever wrote it: trusted "
        "or untrusted. After an untrusted result, policy.after_untrusted applies.",
    )
    redact: RedactConfig = Field(
        default=RedactConfig(),
        description="What logs and records may show of the tools: output, private_arguments.",
    )
    timeout_s: Seconds | None = Field(
        default=None, description="Seconds that one call may take. Empty: tools.timeout_s."
    )

    @model_validator(mode="after")
    def _one_way(self) -> "McpServerConfig":
        if bool(self.command) == bool(self.url):
            raise setting_fault(
                "needs command or url" if not self.command else "has both command and url; write one of them"
            )
        foreign = ("args", "env", "cwd") if self.url else ("headers", "connection")
        for key in foreign:
            if getattr(self, key):
                raise setting_fault(f"has {key}, which works only with {'command' if self.url else 'url'}")
        if self.connection and any(name.lower() == "authorization" for name in self.headers):
            raise setting_fault("has both connection and headers.authorization; write one of them")
        return self


class McpConfig(Section):
    """MCP servers whose tools models may use, and server tools for clients that speak MCP."""

    serve: bool = Field(
        default=False,
        description="Serve the server tools at /mcp to MCP clients. Each client gets the tools that its "
        "key may use.",
    )
    connect_timeout_s: Seconds = Field(
        default=30, description="Seconds to wait for a connection to a server."
    )
    max_tools: int = Field(
        default=200,
        ge=1,
        le=1000,
        description="Number of tools that the proxy reads from one server; it ignores the others.",
    )
    networks: Annotated[Strings, AfterValidator(check_networks)] = Field(
        default=(), description="Address ranges that a server's url may use in addition to public addresses."
    )
    proxy: ProxyAddress = Field(
        default="",
        description="Proxy for servers with a url, in place of those of network: http://HOST:PORT, env:NAME "
        "or file:/path; direct for none.",
    )
    pins: str = Field(
        default="",
        max_length=4096,
        description="A file of pinned tools, written by `toolrelay tools allow --file`. Empty: pins are "
        "in the store.",
    )
    imports: Strings = Field(
        default=(),
        alias="import",
        description="Configuration files of other programs (Claude Desktop, Claude Code, Cursor, VS Code, "
        "Codex, Gemini) whose MCP servers to use, too.",
    )
    memory_bytes: int = Field(
        default=2 << 30,
        ge=0,
        description="Largest address space, in bytes, of the process that connects to the servers; 0: no "
        "limit.",
    )
    servers: Annotated[dict[str, McpServerConfig], AfterValidator(_check_server_names)] = Field(
        default={},
        description="The MCP servers, by their names.",
        json_schema_extra={
            "shown_as": "files",
            "example": 'command = "npx"\n'
            'args = ["-y", "@modelcontextprotocol/server-filesystem", "/srv/docs"]\n'
            'effects = {"read_*" = "read_only", "list_*" = "read_only"}',
        },
    )

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of the servers' tools."""
        return tuple(map(pattern_of_server, self.servers))

    def known(self) -> dict[str, Server]:
        """Return the servers in the form of the tools package, with their secrets revealed."""
        return {name: _server(name, server) for name, server in self.servers.items()}

    def host_settings(self, proxies: ProxyRules, ca_file: str) -> HostSettings:
        """Return the settings for the process that connects to the servers."""
        return HostSettings(
            tuple(self.known().values()),
            self.connect_timeout_s,
            self.max_tools,
            self.networks,
            self.memory_bytes,
            proxies=proxies,
            ca_file=ca_file,
        )


def _server(name: str, config: McpServerConfig) -> Server:
    return Server(
        name=name,
        command=config.command,
        args=config.args,
        env={key: _revealed(value) for key, value in config.env.items()},
        cwd=config.cwd,
        url=config.url,
        headers={key: _revealed(value) for key, value in config.headers.items()},
        connection=config.connection,
        tools=config.tools,
        effects={pattern: ToolEffect(effect) for pattern, effect in config.effects.items()},
        redaction=Redaction(config.redact.output, config.redact.private_arguments),
        timeout_s=config.timeout_s,
        trusted_results=config.results == "trusted",
    )


def _revealed(value: str | Secret) -> str:
    return value.reveal() if isinstance(value, Secret) else value


def resolve_mcp_paths(config: McpConfig, folder: Path) -> McpConfig:
    """Return the settings with absolute paths; relative ones start at ``folder``."""

    def absolute(text: str) -> str:
        return str((folder / Path(text).expanduser()).absolute()) if text else ""

    servers = {}
    for name, server in config.servers.items():
        command = absolute(server.command) if "/" in server.command else server.command
        servers[name] = server.model_copy(update={"command": command, "cwd": absolute(server.cwd)})
    paths = {"pins": absolute(config.pins), "imports": tuple(map(absolute, config.imports))}
    return config.model_copy(update={"servers": servers, **paths})


def resolve_mcp(config: McpConfig, resolve: Resolve) -> McpConfig:
    """Return the settings with the values of their secrets. A server is left out if ``resolve`` has no value
    for one of them: a command that does not connect to the server does not need it."""
    servers = {}
    for name, server in config.servers.items():
        tables = {"env": server.env, "headers": server.headers}
        made: dict[str, dict[str, str | Secret | None]] = {
            table: {
                key: resolve(f"mcp.servers.{name}.{table}.{key}", value)
                if isinstance(value, Secret)
                else value
                for key, value in values.items()
            }
            for table, values in tables.items()
        }
        if not any(value is None for values in made.values() for value in values.values()):
            servers[name] = server.model_copy(update=made)
    return config.model_copy(update={"servers": servers})


def secrets_of(config: McpConfig) -> Iterator[Secret]:
    """Yield every secret of the servers."""
    for server in config.servers.values():
        for value in (*server.env.values(), *server.headers.values()):
            if isinstance(value, Secret):
                yield value


def find_mcp_conflicts(config: McpConfig) -> Iterator[ConfigError]:
    """Yield the faults of servers whose settings are valid alone but not together."""
    for name, server in config.servers.items():
        if server.url.startswith("http://") and not config.networks:
            yield ConfigError(
                f"mcp.servers.{name}.url",
                f"{masked_url(server.url)} is not encrypted; that is allowed only within mcp.networks",
                'Use https, or add the network: mcp.networks = ["127.0.0.0/8"]',
            )
