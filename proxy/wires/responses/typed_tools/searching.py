"""``tool_search`` that the server runs, and tools with ``defer_loading``, for models that know neither.

The deferred tools leave the request; the model gets the proxy's own search, and what it finds is added to its
tools. The client sees the items of OpenAI's API. Those that it sends back say which tools were found; the
calls themselves are put back from the record. Sources: OpenAI's guide "Tool search"; the types of openai
3.57.0.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.base.events import SEARCH_TOOLS, ToolCall, ToolDefinition, ToolResult
from proxy.base.values import value_class
from proxy.wires.chosen import chooses
from proxy.wires.hosted.forms import CallForm
from proxy.wires.responses.items import own_item_id
from proxy.wires.responses.typed_tools.answer import ResponsesAnswer
from proxy.wires.responses.typed_tools.request import as_functions
from proxy.wires.responses.typed_tools.table import NAMESPACE
from proxy.wires.typed_tools.functions import EVERY_TYPE, AsFunctions, UpstreamTypes
from proxy.wires.typed_tools.searching import ClientSearch, found_in, may_defer
from proxy.wires.typed_tools.shapes import check_name

_TYPE: Final = "tool_search"
_CALL, _OUTPUT = "tool_search_call", "tool_search_output"

Item = dict[str, Any]


@value_class
class _Declared:
    """A deferred tool as the client declared it, alone or in a ``namespace``."""

    tool: Mapping[str, Any]
    namespace: Mapping[str, Any] | None = None


class _Form(CallForm):
    """Shows searches as OpenAI's API does."""

    def __init__(self, declared: Mapping[str, _Declared]) -> None:
        self._declared = declared

    def ended(self, begun: Item | None, call: ToolCall, result: ToolResult) -> Sequence[Item]:
        tools = self._tools(found_in(result))
        server = {"call_id": None, "execution": "server"}
        return [
            {
                "id": own_item_id("tsc"),
                "type": _CALL,
                "status": "completed",
                "arguments": {"paths": [tool["name"] for tool in tools]},
                **server,
            },
            {"id": own_item_id("tso"), "type": _OUTPUT, "status": "completed", "tools": tools, **server},
        ]

    def _tools(self, names: Sequence[str]) -> list[Item]:
        """Return the declarations of the client's tools among these, those of a namespace together."""
        found: dict[str, Item] = {}
        for name in names:
            if (declared := self._declared.get(name)) is None:
                continue
            if (space := declared.namespace) is None:
                found[name] = dict(declared.tool)
            else:
                group = found.setdefault(f"{space['name']}.", {**space, "tools": []})
                group["tools"].append(dict(declared.tool))
        return list(found.values())


def with_search(payload: Mapping[str, Any], upstream: UpstreamTypes) -> AsFunctions | None:
    """Return a request whose deferred tools the model finds by the proxy's search.

    Return ``None`` if it declares no search, or one that the upstream runs itself. See
    :func:`~proxy.wires.responses.typed_tools.request.as_functions`.
    """
    tools = payload.get("tools")
    if type(tools) is not list or not any(map(_is_search, tools)):
        return None
    if _TYPE in upstream.native or EVERY_TYPE in upstream.native:
        return None
    given = payload.get("input")
    items = [item for item in given if not _is_shown(item)] if isinstance(given, list) else given
    known = tuple(kind for kind in upstream.native if kind != NAMESPACE)
    typed = as_functions({**payload, "input": items}, upstream._replace(native=known))
    if typed is None or not isinstance(typed.answer, ResponsesAnswer):
        return None
    functions = typed.answer.functions
    named = _deferred(tools, functions)
    declared = {name: one for name, one in named if may_defer(name, crosses=upstream.crosses)}
    left, deferred = _divided(typed.payload["tools"], declared)
    changed: dict[str, Any] = {**typed.payload, "tools": left}
    if (choice := changed.get("tool_choice")) is not None:
        changed["tool_choice"] = _choice(choice)
    # As OpenAI does for functions that its search has loaded: openai-agents finds them by that name alone.
    typed.answer.name_as_namespaces(name for name, one in declared.items() if one.namespace is None)
    loaded = [name for name in _used(given, functions) if name in deferred]
    search = ClientSearch(
        deferred,
        tuple(dict.fromkeys(loaded)),
        _Form(declared),
        defers_servers=any(chooses(tool) and tool.get("defer_loading") is True for tool in tools),
    )
    return AsFunctions(changed, typed.answer, typed.places, search)


def _is_search(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == _TYPE and tool.get("execution") != "client"


def _is_shown(item: Any) -> bool:
    """Return whether an item shows a search that the server ran."""
    kind = item.get("type") if isinstance(item, dict) else None
    return kind in (_CALL, _OUTPUT) and item.get("execution") != "client"


def _deferred(
    tools: Sequence[Any], functions: Mapping[tuple[str, str], str]
) -> Iterator[tuple[str, _Declared]]:
    """Yield the deferred tools under the names of their functions.

    Raises :class:`~proxy.base.errors.RequestError` for a name that OpenAI refuses: no upstream sees it before
    a search has found it.
    """
    for at, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind == NAMESPACE:
            for inner in tool["tools"]:
                name = functions.get((tool["name"], inner["name"]))
                if name is not None and inner.get("defer_loading") is True:
                    yield name, _Declared(inner, tool)
        elif kind in ("function", "custom") and tool.get("defer_loading") is True:
            check_name(tool["name"], f"tools[{at}].name")
            yield str(tool.get("name")), _Declared(tool)


def _divided(
    tools: Sequence[Any], declared: Mapping[str, _Declared]
) -> tuple[list[Any], dict[str, ToolDefinition]]:
    """Return the tools that the model is shown, and the deferred ones."""
    left: list[Any] = []
    deferred: dict[str, ToolDefinition] = {}
    for tool in tools:
        if _is_search(tool):
            continue
        if not isinstance(tool, dict) or "defer_loading" not in tool:
            left.append(tool)
        elif tool.get("type") == "function" and tool.get("name") in declared:
            schema = tool.get("parameters")
            deferred[tool["name"]] = ToolDefinition(
                tool["name"],
                str(tool.get("description") or ""),
                schema if isinstance(schema, dict) else {"type": "object", "properties": {}},
                tool.get("strict") is True,
            )
        else:
            left.append({name: value for name, value in tool.items() if name != "defer_loading"})
    return left, deferred


def _choice(choice: Any) -> Any:
    """Return a ``tool_choice`` that names the proxy's search in place of the client's."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == _TYPE:
        return {"type": "function", "name": SEARCH_TOOLS}
    if isinstance(tools := choice.get("tools"), list):
        return {**choice, "tools": [_choice(tool) for tool in tools]}
    return choice


def _used(items: Any, functions: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Yield the names of the functions that a conversation found or called, in its order."""
    for item in items if isinstance(items, list) else ():
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == _OUTPUT and isinstance(item.get("tools"), list):
            for tool in item["tools"]:
                if isinstance(tool, dict):
                    space = str(tool.get("name")) if tool.get("type") == NAMESPACE else ""
                    inner = tool.get("tools") if space else [tool]
                    for one in inner if isinstance(inner, list) else ():
                        if isinstance(one, dict):
                            yield _function(space, str(one.get("name")), functions)
        elif kind in ("function_call", "custom_tool_call"):
            yield _function(str(item.get("namespace") or ""), str(item.get("name")), functions)


def _function(space: str, name: str, functions: Mapping[tuple[str, str], str]) -> str:
    """Return the name of the function that stands for a tool.

    A function that OpenAI's search loaded has its own name as its namespace.
    """
    return functions.get((space, name)) or name
