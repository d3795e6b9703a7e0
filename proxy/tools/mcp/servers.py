"""The MCP servers as the operator configured them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from proxy.base.globs import fits
from proxy.net.outgoing import NO_PROXIES, ProxyRules
from proxy.records.rows import ToolEffect
from proxy.tools.contract.spec import Redaction
from proxy.tools.mcp.definitions import PROVIDER
from proxy.tools.mcp.masking import masked_args, masked_url


def declared_effect(effects: Mapping[str, ToolEffect], names: Sequence[str]) -> ToolEffect | None:
    """Return the effect of the first pattern that fits one of a tool's names; ``None`` if none does."""
    fitting = (effect for pattern, effect in effects.items() if any(fits(name, pattern) for name in names))
    return next(fitting, None)


@dataclass(frozen=True, slots=True)
class Server:
    """One MCP server.

    It has either ``command`` with ``args``, ``env`` and ``cwd``, or ``url`` with ``headers``. ``connection``
    names the connection whose token each HTTP request has; empty for none. ``tools`` are patterns of the
    server's own tool names; a tool that fits none can never be allowed. ``effects`` maps such patterns to
    the effects that the operator declares. ``timeout_s`` is the time limit of one call in seconds; ``None``
    means the default of all tools. With ``trusted_results`` the operator vouches for all text in the
    results; without, it counts as untrusted. ``env`` and ``headers`` may contain secrets and are not shown.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connection: str = ""
    tools: tuple[str, ...] = ("*",)
    effects: Mapping[str, ToolEffect] = field(default_factory=dict)
    redaction: Redaction = field(default_factory=Redaction)
    timeout_s: float | None = None
    trusted_results: bool = False

    @property
    def provider(self) -> str:
        """The provider of its tools."""
        return PROVIDER

    @property
    def identity(self) -> str:
        """The SHA-256, in hex, of the server's command line or URL.

        It does not depend on secrets, so a token can be replaced without allowing the tools again.
        """
        if self.command:
            what = ["stdio", self.command, *self.args]
        else:
            parts = urlsplit(self.url)
            what = ["http", f"{parts.scheme}://{parts.netloc}{parts.path}"]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()

    @property
    def shown(self) -> str:
        """The server's command line or URL, for a person, without what may be a secret."""
        if self.command:
            return " ".join([self.command, *masked_args(self.args)])
        return masked_url(self.url)

    @property
    def setting(self) -> str:
        """The section of the configuration that declares it."""
        return f"mcp.servers.{self.name}"

    @property
    def tools_setting(self) -> str:
        """The setting that names the tools which can be allowed."""
        return f"{self.setting}.tools"

    def may_have(self, *names: str) -> bool:
        """Return whether a tool with one of these names (the server's own) can be allowed at all."""
        return any(fits(name, pattern) for pattern in self.tools for name in names)

    def effect_of(self, *names: str) -> ToolEffect:
        """Return the effect that the operator declared for a tool; the first pattern that fits decides.

        If none fits, the worst effect is assumed: a server's own hints do not count.
        """
        return declared_effect(self.effects, names) or ToolEffect.EXTERNAL_SIDE_EFFECT


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The settings of the host process.

    ``networks`` are IP ranges that a ``url`` may lead to beside the public ones. ``memory_bytes`` bounds the
    address space of the process; 0 sets no bound. If a server keeps reporting changed tools, the process
    lists its tools at most once in ``list_every_s`` seconds. ``proxies`` are the forward proxies on the way
    to a ``url``, and ``ca_file`` names further authorities (empty: none).
    """

    servers: tuple[Server, ...] = ()
    connect_timeout_s: float = 30.0
    max_tools: int = 200
    networks: tuple[str, ...] = ()
    memory_bytes: int = 1 << 30
    list_every_s: float = 10.0
    proxies: ProxyRules = NO_PROXIES
    ca_file: str = ""

    def written(self) -> dict[str, Any]:
        """Return the settings as JSON values, secrets included; only for the pipe to the host process."""
        written = asdict(self)  # The rules, too, are a dataclass.
        for server in written["servers"]:
            del server["redaction"], server["effects"], server["trusted_results"]
        return written

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "HostSettings":
        """Read the settings that :meth:`written` wrote."""
        servers = tuple(
            Server(**{**server, "args": tuple(server["args"]), "tools": tuple(server["tools"])})
            for server in written["servers"]
        )
        read = {
            "servers": servers,
            "networks": tuple(written["networks"]),
            "proxies": ProxyRules.read(written["proxies"]),
        }
        return cls(**{**written, **read})
