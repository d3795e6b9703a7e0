"""The tools of Anthropic that server tools run in its place: their declarations, and the blocks of calls.

The id of a block marks it as the proxy's own. When it comes back, it is left out: the turn that it shows
returns from the record, with its call and its result.

Sources: Anthropic's pages "Web search tool" and "Web fetch tool"; the types of anthropic 2.14.0.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from proxy.base.chance import epoch_s
from proxy.base.conversation import Speaker, Spoken
from proxy.base.errors import RequestError
from proxy.base.events import ToolCall, ToolResult
from proxy.wires.anthropic.blocks import OUR_CALL, OUR_SIGNATURE, Block, blocks_of
from proxy.wires.anthropic.hosted.code import NAME as CODE
from proxy.wires.anthropic.hosted.code import code_execution
from proxy.wires.anthropic.hosted.sealed_results import SealedResults
from proxy.wires.hosted.forms import SignedForm
from proxy.wires.hosted.spoken import spoken_in
from proxy.wires.hosted.tools import (
    HostedTool,
    fetched_page,
    found_pages,
    query_of,
    url_of,
    web_fetch,
    web_search,
)

_TYPE: Final = re.compile(r"([a-z_]+)_\d{8}")
_ERRORS: Final = {
    "invalid_json": "invalid_tool_input",
    "invalid_arguments": "invalid_tool_input",
    "rate_limited": "too_many_requests",
    "budget_exhausted": "max_uses_exceeded",
    "url_not_in_prior_context": "url_not_in_prior_context",
    "url_not_allowed": "url_not_allowed",
    "result_too_large": "content_too_large",
}
"""Error codes of results, in the words of this dialect; all others are ``unavailable``."""


class HostedForm(SignedForm):
    """Shows the calls of one tool as a ``server_tool_use`` block and the block of its result.

    ``name`` is Anthropic's name of the tool, from which it derives the types of blocks.
    """

    name: ClassVar[str]

    def begun(self, call: ToolCall, arguments: Any) -> Block:
        return {
            "type": "server_tool_use",
            "id": self.ids.make(OUR_CALL),
            "name": self.name,
            "input": self._input(arguments),
        }

    def ended(self, begun: Block | None, call: ToolCall, result: ToolResult) -> Sequence[Block]:
        begun = begun or self.begun(call, None)
        content = self._content(begun, result) if result.ok else self._error(result)
        return [{"type": f"{self.name}_tool_result", "tool_use_id": begun["id"], "content": content}]

    def usage(self, result: ToolResult) -> dict[str, Any]:
        """Return the count of a call; one that failed is not counted."""
        return {"server_tool_use": {f"{self.name}_requests": 1}} if result.ok else {}

    def _error(self, result: ToolResult) -> Block:
        code = _ERRORS.get(result.error_code or "", "unavailable")
        return {"type": f"{self.name}_tool_result_error", "error_code": code}

    @abstractmethod
    def _input(self, arguments: Any) -> Block:
        """Return the ``input`` of a call with these redacted arguments."""

    @abstractmethod
    def _content(self, begun: Block, result: ToolResult) -> Any:
        """Return the ``content`` of the result of a call that has not failed."""


class SearchForm(HostedForm):
    """Shows searches of the web with the pages that they found, whose texts the client carries in a form
    that only the proxy can read."""

    name = "web_search"

    def __init__(self, results: SealedResults | None = None) -> None:
        self._results = results

    def sealing(self, results: SealedResults) -> "SearchForm":
        """Return the form for the caller of these results."""
        return SearchForm(results)

    def _input(self, arguments: Any) -> Block:
        return {"query": query_of(arguments)}

    def _content(self, begun: Block, result: ToolResult) -> Any:
        return [
            {
                "type": "web_search_result",
                "url": page.url,
                "title": page.title,
                "encrypted_content": self._results.close(begun["id"], page)
                if self._results
                else OUR_SIGNATURE,
                "page_age": page.date or None,
            }
            for page in found_pages(result)
        ]


class FetchForm(HostedForm):
    """Shows fetches with the text of the page; ``cites``: the client wants to have it cited."""

    name = "web_fetch"

    def __init__(self, *, cites: bool) -> None:
        self._cites = cites

    def _input(self, arguments: Any) -> Block:
        return {"url": url_of(arguments)}

    def _error(self, result: ToolResult) -> Block:
        if result.error_code == "execution_failed":
            return {"type": "web_fetch_tool_result_error", "error_code": "url_not_accessible"}
        return super()._error(result)

    def _content(self, begun: Block, result: ToolResult) -> Any:
        page = fetched_page(result, begun["input"]["url"])
        return {
            "type": "web_fetch_result",
            "url": page.url,
            "retrieved_at": datetime.fromtimestamp(epoch_s(), UTC).isoformat(),
            "content": {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": page.text},
                "title": page.title,
                "citations": {"enabled": self._cites},
            },
        }


def _fetch(at: str, tool: Mapping[str, Any]) -> HostedTool:
    """Read a fetch. A limit of where its addresses may come from is refused: the proxy has one rule for
    all (:mod:`proxy.tools.access.prior_addresses`)."""
    sources, citations = tool.get("url_sources"), tool.get("citations")
    if isinstance(sources, dict) and any(source != {"type": "all"} for source in sources.values()):
        field = f"{at}.url_sources"
        raise RequestError(400, f"{field} must allow all sources here. Leave it out.", param=field)
    return web_fetch(
        at,
        tool,
        FetchForm(cites=isinstance(citations, dict) and citations.get("enabled") is True),
        allowed=tool.get("allowed_domains"),
        blocked=tool.get("blocked_domains"),
        most=tool.get("max_uses"),
        most_tokens=tool.get("max_content_tokens"),
    )


def _search(at: str, tool: Mapping[str, Any]) -> HostedTool:
    return web_search(
        at,
        tool,
        SearchForm(),
        place=tool.get("user_location"),
        allowed=tool.get("allowed_domains"),
        blocked=tool.get("blocked_domains"),
        most=tool.get("max_uses"),
    )


_READERS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], HostedTool]]] = {
    "web_search": _search,
    "web_fetch": _fetch,
}
"""How a declaration is read, by its type without the date."""


def hosted_tools(payload: Mapping[str, Any]) -> dict[int, HostedTool]:
    """See :meth:`proxy.wires.wire.Wire.hosted_tools`."""
    tools = payload.get("tools")
    found: dict[int, HostedTool] = {}
    runs_code = None
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        dated = _TYPE.fullmatch(kind) if isinstance(kind, str) else None
        if dated is not None and (read := _READERS.get(dated[1])) is not None:
            found[place] = read(f"tools[{place}]", tool)
        elif dated is not None and dated[1] == CODE:
            if runs_code is not None:
                # Each declaration is read with all tools. Anthropic takes no name twice, and this has one.
                field, other = f"tools[{place}]", f"tools[{runs_code}]"
                message = f"{field}: {other} declares {CODE} already. Declare it once."
                raise RequestError(400, message, param=field)
            if (made := code_execution(place, payload)) is not None:
                found[place], runs_code = made, place
    return found


def spoken(payload: Mapping[str, Any]) -> Iterator[Spoken]:
    """See :meth:`proxy.wires.wire.Wire.spoken`."""
    yield from spoken_in(payload.get("system"), "client")
    messages = payload.get("messages")
    for message in messages if isinstance(messages, list) else ():
        theirs: Speaker = "model" if message.get("role") == "assistant" else "client"
        for block in blocks_of(message.get("content")):
            is_result = str(block.get("type")).endswith("tool_result")
            yield from spoken_in(block, "result" if is_result else theirs)
