"""The tools of Anthropic that server tools run in its place: their declarations, and the blocks of calls.

The id of a block marks it as the proxy's own. When it comes back, it is left out: the turn that it shows
returns from the record, with its call and its result.

Sources: Anthropic's page "Web search tool"; the types of anthropic 2.14.0.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from proxy.base.chance import replayable
from proxy.base.events import ToolResult
from proxy.wires.anthropic.blocks import OUR_CALL, OUR_SIGNATURE, Block
from proxy.wires.hosted.tools import HostedTool, found_pages, query_of, web_search

_SEARCH: Final = re.compile(r"web_search_\d{8}")
_ERRORS: Final = {
    "invalid_json": "invalid_tool_input",
    "invalid_arguments": "invalid_tool_input",
    "rate_limited": "too_many_requests",
    "budget_exhausted": "max_uses_exceeded",
}
"""Error codes of results, in the words of this dialect; all others are ``unavailable``."""


def hosted_tools(payload: Mapping[str, Any]) -> dict[int, HostedTool]:
    """See :meth:`proxy.wires.wire.Wire.hosted_tools`."""
    tools = payload.get("tools")
    return {
        place: web_search(
            f"tools[{place}]",
            tool,
            allowed=tool.get("allowed_domains"),
            blocked=tool.get("blocked_domains"),
            most=tool.get("max_uses"),
        )
        for place, tool in enumerate(tools if isinstance(tools, list) else ())
        if isinstance(tool, dict) and isinstance(tool.get("type"), str) and _SEARCH.fullmatch(tool["type"])
    }


def call_block(arguments: Any) -> Block:
    """Return the block of a search that begins; ``arguments`` are its redacted arguments."""
    call_id = OUR_CALL + replayable("own_call_id", lambda: secrets.token_hex(12))
    return {
        "type": "server_tool_use",
        "id": call_id,
        "name": "web_search",
        "input": {"query": query_of(arguments)},
    }


def result_block(call_id: str, result: ToolResult) -> Block:
    """Return the block with the result of a search: the pages that it found, or an error."""
    content: Any = {
        "type": "web_search_tool_result_error",
        "error_code": _ERRORS.get(result.error_code or "", "unavailable"),
    }
    if result.ok:
        content = [
            {
                "type": "web_search_result",
                "url": page.url,
                "title": page.title,
                "encrypted_content": OUR_SIGNATURE,
                "page_age": page.date or None,
            }
            for page in found_pages(result)
        ]
    return {"type": "web_search_tool_result", "tool_use_id": call_id, "content": content}


def hosted_usage(result: ToolResult) -> dict[str, Any]:
    """Return what a call adds to the usage of the message; a search that failed adds nothing."""
    return {"server_tool_use": {"web_search_requests": 1}} if result.ok else {}
