"""An API as the operator configured it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from proxy.base.globs import fits
from proxy.records.rows import ToolEffect
from proxy.tools.contract.spec import Redaction
from proxy.tools.mcp.masking import masked_url
from proxy.tools.mcp.servers import declared_effect

PROVIDER: Final = "openapi"
"""The part of every such tool id before the first double underscore."""

_READS: Final = ("GET ", "HEAD ")


@dataclass(frozen=True, slots=True)
class Api:
    """One API: the document ``file`` or ``url`` describes it.

    ``base_url`` replaces the address of the document's servers. ``operations`` are patterns of the operations
    that can be allowed: of their ids, or of ``METHOD /path``; ``effects`` maps such patterns to the effects
    that the operator declares. ``connection`` names the connection whose credentials requests carry. All
    requests have the ``headers``, which may contain secrets and are not shown. ``timeout_s``, ``redaction``
    and ``trusted_results`` are as those of :class:`~proxy.tools.mcp.servers.Server`.
    """

    name: str
    file: str = ""
    url: str = ""
    base_url: str = ""
    operations: tuple[str, ...] = ("*",)
    effects: Mapping[str, ToolEffect] = field(default_factory=dict)
    connection: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    redaction: Redaction = field(default_factory=Redaction)
    timeout_s: float | None = None
    trusted_results: bool = False

    @property
    def provider(self) -> str:
        """The provider of its tools."""
        return PROVIDER

    @property
    def setting(self) -> str:
        """The section of the configuration that declares it."""
        return f"openapi.{self.name}"

    @property
    def tools_setting(self) -> str:
        """The setting that names the operations which can be allowed."""
        return f"{self.setting}.operations"

    @property
    def identity(self) -> str:
        """The SHA-256, in hex, of where its requests go and whose they are, as far as the operator decides
        it.

        The rest, such as the document's own server, is a part of each definition. The document may be moved.
        """
        return hashlib.sha256(json.dumps([PROVIDER, self.base_url, self.connection]).encode()).hexdigest()

    @property
    def shown(self) -> str:
        """The place of its document, for a person, without what may be a secret."""
        return masked_url(self.url) if self.url else self.file

    def has_header(self, name: str) -> bool:
        """Return whether the operator sets this header of all requests."""
        return name.lower() in (header.lower() for header in self.headers)

    def may_have(self, *names: str) -> bool:
        """Return whether an operation with one of these names can be allowed at all."""
        return any(fits(name, pattern) for pattern in self.operations for name in names)

    def effect_of(self, *names: str) -> ToolEffect:
        """Return the effect that the operator declared for an operation, else that of its method.

        The last name is ``METHOD /path``. Source: RFC 9110, section 9.2.1, for safe methods.
        """
        by_method = names[-1].startswith(_READS)
        assumed = ToolEffect.READ_ONLY if by_method else ToolEffect.EXTERNAL_SIDE_EFFECT
        return declared_effect(self.effects, names) or assumed
