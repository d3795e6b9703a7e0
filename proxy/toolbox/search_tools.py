"""``core__search_tools``: finds the tools that a model is not shown at first."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import orjson
from pydantic import Field

from proxy.base.events import ToolDefinition
from proxy.json.in_thread import in_thread
from proxy.tools.contract.declaration import tool
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.spec import Redaction
from proxy.tools.searching.index import MOST_QUERY
from proxy.tools.searching.listing import Searches, shortened

_DESCRIPTIONS: Final = (200, 80, 0)
"""The most characters of each description, in the order in which they are tried."""


def search_tools_tool(searches: Searches) -> Callable[..., Any]:
    """Build the tool that searches the tools of the run that calls it."""

    @tool(
        name="search_tools",
        description="Find further tools by words. Most tools are not shown until a search has found them; "
        "those that it finds can be called in the next step.",
        effect="read_only",
        redaction=Redaction(output=("*",)),
    )
    async def search_tools(
        query: Annotated[
            str,
            Field(description="What the tool should do, in a few words, or its name", max_length=MOST_QUERY),
        ],
        call: CallContext,
    ) -> dict[str, Any]:
        """Return the names and short descriptions of the tools that fit best."""
        # A client may have declared thousands of tools, whose index is made for this search.
        found = await in_thread(searches.find, call.run_id, query)
        if not found:
            return {
                "tools": [],
                "message": "No tool fits. Try other words, or answer without a further tool.",
            }
        return _fitting(found, call.max_result_bytes)

    return search_tools


def _fitting(found: Sequence[ToolDefinition], max_bytes: int) -> dict[str, Any]:
    """Return the tools with as much about each as there is room for; the last are left out if not even all
    names have room.

    A result that is cut in its middle would say nothing about what to show the model.
    """
    for most in _DESCRIPTIONS:
        said = {"tools": [_entry(one, most) for one in found]}
        if len(orjson.dumps(said)) <= max_bytes:
            return said
    while len(said["tools"]) > 1 and len(orjson.dumps(said)) > max_bytes:
        said["tools"].pop()
    return said


def _entry(tool: ToolDefinition, most: int) -> dict[str, str]:
    about = {"description": shortened(tool.description, most)} if most else {}
    return {"name": tool.name, **about}
