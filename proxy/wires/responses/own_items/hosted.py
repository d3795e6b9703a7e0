"""The tools of OpenAI that server tools run in its place: how requests declare them, and the items of calls.

The id of an item marks it as the proxy's own. When it comes back, it is left out: the turn that it shows
returns from the record, with its call and its result.

Sources: OpenAI's API reference, "Create a model response" and "Streaming events"; the guide "Web search".
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.base.events import ToolResult
from proxy.wires.hosted.tools import HostedTool, found_pages, query_of, web_search
from proxy.wires.responses.items import own_item_id

Item = dict[str, Any]

_SEARCHES: Final = (
    *("web_search", "web_search_2025_08_26"),
    *("web_search_preview", "web_search_preview_2025_03_11"),
)
_SOURCES: Final = "web_search_call.action.sources"
"""The value of ``include`` with which a search lists the pages that it found."""


def hosted_tools(payload: Mapping[str, Any]) -> dict[int, HostedTool]:
    """See :meth:`proxy.wires.wire.Wire.hosted_tools`.

    A search that may see only what the provider stores is left alone: nobody else has that.
    """
    tools = payload.get("tools")
    found: dict[int, HostedTool] = {}
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        if not isinstance(tool, dict) or tool.get("type") not in _SEARCHES:
            continue
        if tool.get("external_web_access") is not False:
            filters = tool.get("filters")
            filters = filters if isinstance(filters, dict) else {}
            found[place] = web_search(
                f"tools[{place}]",
                tool,
                allowed=filters.get("allowed_domains"),
                blocked=filters.get("blocked_domains"),
                within="filters.",
                size=tool.get("search_context_size"),
            )
    return found


def begun_item(arguments: Any) -> Item:
    """Return the item of a search that begins; ``arguments`` are its redacted arguments."""
    return {
        "id": own_item_id("ws"),
        "type": "web_search_call",
        "status": "in_progress",
        "action": _action(arguments),
    }


def _action(arguments: Any) -> Item:
    query = query_of(arguments)
    return {"type": "search", "query": query, "queries": [query]}


def ended_item(begun: Item, result: ToolResult, include: Any) -> Item:
    """Return the item of a search that has ended; ``include`` is that of the request."""
    action = begun["action"]
    if isinstance(include, list) and _SOURCES in include:
        action = {**action, "sources": [{"type": "url", "url": page.url} for page in found_pages(result)]}
    return {**begun, "status": "completed" if result.ok else "failed", "action": action}


def begin_events(item: Item, index: int) -> Iterator[Item]:
    """Yield the events with which a search begins, as the item at an index of the output."""
    place = {"output_index": index}
    bare = {key: value for key, value in item.items() if key != "action"}
    yield {"type": "response.output_item.added", **place, "item": bare}
    for state in ("in_progress", "searching"):
        yield {"type": f"response.web_search_call.{state}", **place, "item_id": item["id"]}


def end_events(item: Item, index: int) -> Iterator[Item]:
    """Yield the events with which a search ends."""
    place = {"output_index": index}
    if item["status"] == "completed":
        yield {"type": "response.web_search_call.completed", **place, "item_id": item["id"]}
    yield {"type": "response.output_item.done", **place, "item": item}


def tool_usage(output: Sequence[Mapping[str, Any]]) -> Item:
    """Return the member ``tool_usage`` of a response with this output; all families are there."""
    ended = [item for item in output if item.get("status") == "completed"]
    searches = sum(item.get("type") == "web_search_call" for item in ended)
    zero = {"image_tokens": 0, "text_tokens": 0}
    images = {
        "input_tokens": 0,
        "input_tokens_details": zero,
        "output_tokens": 0,
        "output_tokens_details": zero,
        "total_tokens": 0,
    }
    return {"image_gen": images, "web_search": {"num_requests": searches}}
