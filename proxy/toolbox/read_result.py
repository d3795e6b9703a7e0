"""``core__read_result``: the pages of a tool result that was too large to be shown at once."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from proxy.base.errors import StoreError, ToolFailure
from proxy.tools.contract.declaration import tool
from proxy.tools.contract.provider import CallContext
from proxy.tools.contract.results.paging import PagedResults
from proxy.tools.contract.spec import Redaction

_NOTE_BYTES = 120
"""The bytes that are reserved for the line at the end of a page."""


def read_result_tool(paged_results: PagedResults) -> Callable[..., Any]:
    """Build the tool that reads pages of ``paged_results``."""

    @tool(
        name="read_result",
        description="Read on in a tool result that was too large to be shown whole",
        effect="read_only",
        redaction=Redaction(private_arguments=("handle",)),
    )
    async def read_result(
        handle: Annotated[str, Field(description="The handle that the result gave", max_length=64)],
        call: CallContext,
        offset: Annotated[int, Field(description="Character to begin at", ge=0)] = 0,
    ) -> str:
        """Return a page of text and, in its last line, where the next one begins."""
        room = max(call.max_result_bytes - _NOTE_BYTES, 1)
        try:
            page = await paged_results.read(call.caller, handle, offset, room)
        except StoreError:
            raise ToolFailure("the record cannot be read now; try again later") from None
        if page is None:
            raise ToolFailure("there is no such result, or it is no longer kept; call its tool again")
        if page.untrusted:
            call.signals.untrusted, call.signals.sources = True, page.untrusted
        if page.end >= page.total:
            return f"{page.text}\n[toolrelay: this is the end, {page.total} characters in all]"
        return f"{page.text}\n[toolrelay: read on at offset {page.end} of {page.total}]"

    return read_result
