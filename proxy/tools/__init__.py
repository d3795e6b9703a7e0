"""What a tool is and how it runs.  These names are all that the author of a tool needs."""

from proxy.errors import ToolFailure
from proxy.tools.capabilities import Clock, HttpClient
from proxy.tools.function import tool
from proxy.tools.provider import CallContext
from proxy.tools.spec import Redaction, ToolEffect

__all__ = ["CallContext", "Clock", "HttpClient", "Redaction", "ToolEffect", "ToolFailure", "tool"]
