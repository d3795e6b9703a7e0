"""Which MCP servers there are, and how each is reached: what the operator configured, and nothing else."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from proxy.globs import fits
from proxy.records import ToolEffect
from proxy.tools.contract.spec import Redaction

__all__ = ["HostSettings", "Server"]


@dataclass(frozen=True, slots=True)
class Server:
    """One server.

    Either ``command`` with ``args``, ``env`` and ``cwd``, or ``url`` with ``headers`` and the name of the
    ``connection`` whose token each request carries, empty for none.  ``tools`` are
    patterns of the server's own names of tools: what fits none can never be allowed.  ``effects`` are
    patterns with the effect that the operator says such a tool has.  ``timeout_s`` are the seconds of one
    call; ``None`` means the time that every tool has.  ``env`` and ``headers`` may hold secrets and are not
    shown.
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

    @property
    def identity(self) -> str:
        """SHA-256 in hex over what makes it this server: its command line, or its address.

        A secret is no part of it: a token may be replaced without the tools having to be allowed again.
        """
        if self.command:
            what = ["stdio", self.command, *self.args]
        else:
            parts = urlsplit(self.url)
            what = ["http", f"{parts.scheme}://{parts.netloc}{parts.path}"]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()

    @property
    def shown(self) -> str:
        """How it is reached, for a person."""
        return " ".join([self.command, *self.args]) if self.command else self.url

    def may_have(self, tool: str) -> bool:
        """Whether a tool of this name (the server's own) may be allowed at all."""
        return any(fits(tool, pattern) for pattern in self.tools)

    def effect_of(self, tool: str) -> ToolEffect:
        """What a tool of this name does, by the operator's word; the first pattern that fits decides.

        Without a word of the operator's it may do anything: what a server says of itself does not count.
        """
        for pattern, effect in self.effects.items():
            if fits(tool, pattern):
                return effect
        return ToolEffect.EXTERNAL_SIDE_EFFECT


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The settings of the process that talks to the servers.

    ``networks`` are ranges of addresses beyond the public ones that a ``url`` may lead to.  ``memory_bytes``
    bounds the address space of the process; 0 sets no bound.  If a server reports changed tools all the time,
    the process lists its tools once in ``list_every_s`` seconds.
    """

    servers: tuple[Server, ...] = ()
    connect_timeout_s: float = 30.0
    max_tools: int = 200
    networks: tuple[str, ...] = ()
    memory_bytes: int = 1 << 30
    list_every_s: float = 10.0

    def written(self) -> dict[str, Any]:
        """As JSON, secrets included: for the pipe to that process only."""
        written = asdict(self)
        for server in written["servers"]:
            del server["redaction"], server["effects"]
        return written

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "HostSettings":
        """Read the settings that :meth:`written` wrote."""
        servers = tuple(
            Server(**{**server, "args": tuple(server["args"]), "tools": tuple(server["tools"])})
            for server in written["servers"]
        )
        return cls(**{**written, "servers": servers, "networks": tuple(written["networks"])})
