"""The names that ``proxy.tools`` offers to authors of tools."""

from proxy.base.errors import ToolFailure
from proxy.tools.contract.capabilities import (
    CacheControl,
    Clock,
    HttpClient,
    HttpFailure,
    IdempotencyKey,
    TextPage,
)
from proxy.tools.contract.declaration import Definition, tool
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.results.images import Image
from proxy.tools.contract.results.results import ResourceLink, RichResult
from proxy.tools.contract.schemas.url_argument import Url
from proxy.tools.contract.spec import Redaction, ToolEffect
from proxy.tools.testing import ToolTester

__all__ = [
    "CacheControl",
    "CallContext",
    "Clock",
    "Definition",
    "HttpClient",
    "HttpFailure",
    "IdempotencyKey",
    "Image",
    "Redaction",
    "ResourceLink",
    "RichResult",
    "TextPage",
    "ToolEffect",
    "ToolFailure",
    "ToolTester",
    "Url",
    "tool",
]
