"""What a tool is and how it runs.  These names are all that the author of a tool needs."""

from proxy.errors import ToolFailure
from proxy.tools.capabilities import (
    CacheControl,
    Clock,
    HttpClient,
    HttpFailure,
    IdempotencyKey,
    TextPage,
)
from proxy.tools.declaration import tool
from proxy.tools.images import Image
from proxy.tools.provider import CallContext
from proxy.tools.results import ResourceLink, RichResult
from proxy.tools.spec import Redaction, ToolEffect
from proxy.tools.testing import ToolTester
from proxy.tools.url_argument import Url

__all__ = [
    "CacheControl",
    "CallContext",
    "Clock",
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
