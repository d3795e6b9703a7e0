"""The tools of Anthropic that server tools run in its place: their declarations, and the blocks of calls.

The id of a block marks it as the proxy's own. When it comes back, it is left out: the turn that it shows
returns from the record, with its call and its result.

Sources: Anthropic's page "Web search tool"; the types of anthropic 2.14.0.
"""

import re
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from proxy.base.chance import replayable
from proxy.base.events import ToolCall, ToolResult
from proxy.wires.anthropic.blocks import OUR_CALL, OUR_SIGNATURE, Block
from proxy.wires.hosted.forms import CallForm
from proxy.wires.hosted.tools import HostedTool, found_pages, query_of, web_search

_TYPE: Final = re.compile(r"([a-z_]+)_\d{8}")
_ERRORS: Final = {
    "invalid_json": "invalid_tool_input",
    "invalid_arguments": "invalid_tool_input",
    "rate_limited": "too_many_requests",
    "budget_exhausted": "max_uses_exceeded",
}
"""Error codes of results, in the words of this dialect; all others are ``unavailable``."""


class HostedForm(CallForm):
    """Shows the calls of one tool as a ``server_tool_use`` block and the block of its result.

    ``name`` is Anthropic's name of the tool, from which it derives the types of blocks.
    """

    name: ClassVar[str]

    def begun(self, call: ToolCall, arguments: Any) -> Block:
        call_id = OUR_CALL + replayable("own_call_id", lambda: secrets.token_hex(12))
        return {"type": "server_tool_use", "id": call_id, "name": self.name, "input": self._input(arguments)}

    def ended(self, begun: Block | None, call: ToolCall, result: ToolResult) -> Sequence[Block]:
        content = self._content(result) if result.ok else self._error(result)
        call_id = (begun or {}).get("id")
        return [{"type": f"{self.name}_tool_result", "tool_use_id": call_id, "content": content}]

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
    def _content(self, result: ToolResult) -> Any:
        """Return the ``content`` of a result that is no error."""


class SearchForm(HostedForm):
    """Shows searches of the web with the pages that they found."""

    name = "web_search"

    def _input(self, arguments: Any) -> Block:
        return {"query": query_of(arguments)}

    def _content(self, result: ToolResult) -> Any:
        return [
            {
                "type": "web_search_result",
                "url": page.url,
                "title": page.title,
                "encrypted_content": OUR_SIGNATURE,
                "page_age": page.date or None,
            }
            for page in found_pages(result)
        ]


def _search(at: str, tool: Mapping[str, Any]) -> HostedTool:
    return web_search(
        at,
        tool,
        SearchForm(),
        allowed=tool.get("allowed_domains"),
        blocked=tool.get("blocked_domains"),
        most=tool.get("max_uses"),
    )


_READERS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], HostedTool]]] = {"web_search": _search}
"""How a declaration is read, by its type without the date."""


def hosted_tools(payload: Mapping[str, Any]) -> dict[int, HostedTool]:
    """See :meth:`proxy.wires.wire.Wire.hosted_tools`."""
    tools = payload.get("tools")
    found: dict[int, HostedTool] = {}
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        dated = _TYPE.fullmatch(kind) if isinstance(kind, str) else None
        if dated is not None and (read := _READERS.get(dated[1])) is not None:
            found[place] = read(f"tools[{place}]", tool)
    return found
