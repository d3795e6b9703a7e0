"""Which tools of a request its upstream may run itself, with effects that must not happen twice."""

from typing import Any, Final

from proxy.wires.chosen import chooses

__all__ = ["acting_tool"]

_HARMLESS: Final = (
    "function", "custom", "namespace", "web_search", "file_search", "image_generation", "computer",
    "local_shell", "apply_patch", "tool_search", "bash", "text_editor", "memory", "browser", "web_fetch",
)  # fmt: skip
"""Prefixes of tool types that change nothing outside: the client runs them, or they only read.

Code that a provider runs (``code_interpreter``, ``code_execution``, ``shell``) is none of them: it may keep
files in its container and reach other hosts.
"""


def acting_tool(tools: Any) -> str | None:
    """Return the type of the first element of ``tools`` that may act at the provider; ``None`` if none may.

    A request with such a tool must not run twice. An unknown type may act. Elements that choose server
    tools are never sent to an upstream; the proxy runs these tools.
    """
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict) or chooses(tool):
            continue
        # In Messages, a client's own tool may have no type.
        kind = "function" if "input_schema" in tool else str(tool.get("type"))
        if not kind.startswith(_HARMLESS):
            return kind
    return None
