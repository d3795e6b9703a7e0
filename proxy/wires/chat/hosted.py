"""The searches of the web that Chat requests declare, and that a server tool can run.

Sources: OpenAI's API reference, "Create chat completion" (``web_search_options``); OpenRouter's page "Server
tools".
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.base.conversation import Speaker, Spoken
from proxy.wires.hosted.spoken import spoken_in
from proxy.wires.hosted.tools import HostedTool, web_search

OPTIONS: Final = "web_search_options"
"""The member with which a request of OpenAI's declares a search beside its tools."""
_SEARCHES: Final = ("web_search", "openrouter:web_search")
_BESIDE: Final = -1
"""The place of a declaration that is not among the tools."""

_SPEAKERS: Final[Mapping[str, Speaker]] = {"assistant": "model", "tool": "result", "function": "result"}


def hosted_tools(payload: Mapping[str, Any]) -> dict[int, HostedTool]:
    """See :meth:`proxy.wires.wire.Wire.hosted_tools`; ``web_search_options`` has the place -1."""
    found: dict[int, HostedTool] = {}
    options = payload.get(OPTIONS)
    if isinstance(options, dict):
        declared = {**options, "type": "web_search"}  # By that type a choice names it, too.
        size, place = options.get("search_context_size"), options.get("user_location")
        found[_BESIDE] = web_search(OPTIONS, declared, size=size, place=place)
    tools = payload.get("tools")
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type") in _SEARCHES:
            inner = tool.get("parameters")
            given = {**tool, **inner} if isinstance(inner, dict) else tool
            found[place] = web_search(
                f"tools[{place}]",
                tool,
                allowed=given.get("allowed_domains"),
                blocked=given.get("excluded_domains"),
                within="parameters." if isinstance(inner, dict) else "",
                size=given.get("search_context_size"),
                place=given.get("user_location"),
            )
    return found


def spoken(payload: Mapping[str, Any]) -> Iterator[Spoken]:
    """See :meth:`proxy.wires.wire.Wire.spoken`."""
    messages = payload.get("messages")
    for message in messages if isinstance(messages, list) else ():
        yield from spoken_in(message, _SPEAKERS.get(str(message.get("role")), "client"))
