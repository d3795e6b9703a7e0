"""``core__search_tools``: finds the tools that a model is not shown at first."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from proxy.json.in_thread import in_thread
from proxy.tools.contract.declaration import tool
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.spec import Redaction
from proxy.tools.searching.index import MOST_QUERY
from proxy.tools.searching.listing import shortened
from proxy.tools.searching.searches import Searches


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
        return {
            "tools": [{"name": one.name, "description": shortened(one.description, 200)} for one in found]
        }

    return search_tools
