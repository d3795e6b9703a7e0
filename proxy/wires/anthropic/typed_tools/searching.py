"""``tool_search_tool_bm25`` and ``tool_search_tool_regex``, and tools with ``defer_loading``, for models that
know neither.

The deferred tools leave the request; the model gets the proxy's own search, and what it finds is added to its
tools. The client sees Anthropic's blocks. Those that it sends back say which tools were found; the calls
themselves are put back from the record. Sources: Anthropic's page "Tool search tool"; the types of anthropic
2.14.0.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.base.errors import RequestError
from proxy.base.events import SEARCH_TOOLS, ToolCall, ToolDefinition, ToolResult
from proxy.wires.anthropic.mcp_servers import defers_servers
from proxy.wires.anthropic.request import declared_name
from proxy.wires.hosted.forms import CallForm
from proxy.wires.turn.assembler import mint_call_id
from proxy.wires.turn.request_members import declared_names
from proxy.wires.typed_tools.functions import EVERY_TYPE, AsFunctions, UpstreamTypes
from proxy.wires.typed_tools.searching import ClientSearch, found_in, loaded_text, may_defer, query_of

_TYPE: Final = re.compile(r"tool_search_tool_(bm25|regex)(_\d{8})?")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_RESULT: Final = "tool_search_tool_result"
_USE: Final = "server_tool_use"
_ERRORS: Final = {
    "invalid_arguments": "invalid_tool_input",
    "invalid_json": "invalid_tool_input",
    "rate_limited": "too_many_requests",
    "budget_exhausted": "too_many_requests",
    "timeout": "execution_time_exceeded",
}

Block = dict[str, Any]


class _Form(CallForm):
    """Shows searches as Anthropic's API does."""

    def __init__(self, name: str, declared: Mapping[str, ToolDefinition]) -> None:
        self._name = name
        self._declared = declared

    def begun(self, call: ToolCall, arguments: Any) -> Block:
        argument = "pattern" if self._name.endswith("regex") else "query"
        shown = {argument: query_of(call)}
        return {"type": _USE, "id": mint_call_id("srvtoolu_"), "name": self._name, "input": shown}

    def ended(self, begun: Block | None, call: ToolCall, result: ToolResult) -> Sequence[Block]:
        return [{"type": _RESULT, "tool_use_id": (begun or {}).get("id"), "content": self._content(result)}]

    def _content(self, result: ToolResult) -> Block:
        if not result.ok:
            code = _ERRORS.get(result.error_code or "", "unavailable")
            said = result.safe_message or None
            return {"type": "tool_search_tool_result_error", "error_code": code, "error_message": said}
        names = [name for name in found_in(result) if name in self._declared]
        found = [{"type": "tool_reference", "tool_name": name} for name in names]
        return {"type": "tool_search_tool_search_result", "tool_references": found}


def with_search(
    payload: Mapping[str, Any], upstream: UpstreamTypes, read: Callable[[], AsFunctions | None]
) -> AsFunctions | None:
    """Return a request whose deferred tools the model finds by the proxy's search.

    ``read`` returns the request with functions in place of other typed tools. Return ``None`` if it declares
    no search, or one that the upstream runs itself.
    """
    tools = payload.get("tools")
    if type(tools) is not list or not (kinds := [kind for tool in tools if (kind := _kind(tool))]):
        return None
    family = _family(kinds[0])
    if not {EVERY_TYPE, kinds[0], family}.isdisjoint(upstream.native):
        return None
    _check_names(tools)
    typed = read() or AsFunctions(payload)
    left, deferred = _divided(typed.payload["tools"], crosses=upstream.crosses)
    changed = {**typed.payload, "tools": left}
    messages = typed.payload.get("messages")
    loaded: list[str] = []
    if isinstance(messages, list):
        loaded = [name for name in _used(messages) if name in deferred]
        changed["messages"] = [_without_searches(one) for one in messages if not _only_searches(one)]
    choice = changed.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "tool" and choice.get("name") == family:
        changed["tool_choice"] = {**choice, "name": SEARCH_TOOLS}
    search = ClientSearch(
        deferred,
        tuple(dict.fromkeys(loaded)),
        _Form(family, deferred),
        by_pattern=family.endswith("regex"),
        defers_servers=defers_servers(payload, tools),
    )
    return AsFunctions(changed, typed.answer, typed.places, search)


def _kind(tool: Any) -> str:
    """Return the type of a search that a client declares; ``""`` for any other tool."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return kind if isinstance(kind, str) and _TYPE.fullmatch(kind) else ""


def _divided(tools: Sequence[Any], *, crosses: bool) -> tuple[list[Any], dict[str, ToolDefinition]]:
    """Return the tools that the model is shown, and the deferred ones."""
    left: list[Any] = []
    deferred: dict[str, ToolDefinition] = {}
    for tool in tools:
        if _kind(tool):
            continue
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        if not isinstance(schema, dict) or not isinstance(name := tool.get("name"), str):
            left.append(tool)
        elif tool.get("defer_loading") is True and may_defer(name, crosses=crosses):
            about = str(tool.get("description") or "")
            deferred[name] = ToolDefinition(name, about, schema, tool.get("strict") is True)
        else:
            left.append({member: value for member, value in tool.items() if member != "defer_loading"})
    return left, deferred


def _check_names(tools: Sequence[Any]) -> None:
    """Raise :class:`RequestError` for what Anthropic refuses of deferred tools and of searches: no upstream
    sees them before a search has found them."""
    declared_names(tools, declared_name, "tools[{}].name")
    for at, tool in enumerate(tools):
        name, path = declared_name(tool), f"tools[{at}].name"
        if (kind := _kind(tool)) and name != _family(kind):
            raise RequestError(400, f"{path} must be {_family(kind)}.", param=path)
        deferred = name is not None and tool.get("defer_loading") is True
        if deferred and not _NAME.fullmatch(name or ""):
            said = f"tools.{at}.custom.name: String should match pattern '^{_NAME.pattern}$'"
            raise RequestError(400, said, param=path)


def _family(kind: str) -> str:
    """Return a type without its date, which is also the name of the tool."""
    return kind if not kind[-1].isdigit() else kind.rpartition("_")[0]


def _is_search(block: Any) -> bool:
    """Return whether a block shows a search that the server ran."""
    kind = block.get("type") if isinstance(block, dict) else None
    return kind == _RESULT or (kind == _USE and bool(_TYPE.fullmatch(str(block.get("name")))))


def _only_searches(message: Any) -> bool:
    """Return whether a message has nothing but blocks of searches."""
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and bool(content) and all(map(_is_search, content))


def _without_searches(message: Any) -> Any:
    """Return a message without the blocks of searches."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [_as_text(block) for block in content if not _is_search(block)]}


def _as_text(block: Any) -> Any:
    """Return a result of a client's tool with text in place of its references to tools."""
    content = block.get("content") if isinstance(block, dict) else None
    if not isinstance(content, list) or not any(_reference(part) for part in content):
        return block
    said = [
        {"type": "text", "text": loaded_text(name)} if (name := _reference(part)) else part
        for part in content
    ]
    return {**block, "content": said}


def _reference(part: Any) -> str:
    """Return the name in a reference to a tool; ``""`` for anything else."""
    is_reference = isinstance(part, dict) and part.get("type") == "tool_reference"
    return str(part.get("tool_name")) if is_reference else ""


def _used(messages: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the tools that a conversation found or called, in its order."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if not isinstance(block, dict):
                continue
            inner = block.get("content")
            if block.get("type") == "tool_use":
                yield str(block.get("name"))
            elif block.get("type") == _RESULT and isinstance(inner, dict):
                references = inner.get("tool_references")
                yield from map(_reference, references if isinstance(references, list) else ())
            elif isinstance(inner, list):
                yield from filter(None, map(_reference, inner))
