"""Tool search that a client declares: its deferred tools, and how it is shown what a search found."""

from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from proxy.base.events import ToolCall, ToolDefinition, ToolResult
from proxy.base.values import value_class
from proxy.wires.hosted.forms import CallForm


@value_class
class ClientSearch:
    """The search that a client declared.

    ``deferred`` are its own tools that the model has to find, by name; ``loaded`` are those of them that its
    conversation already found or called, in their order. ``form`` shows the
    searches. With ``by_pattern`` the model searches by regular
    expressions. With ``defers_servers`` it has to find the server tools, too.
    """

    deferred: Mapping[str, ToolDefinition]
    loaded: Sequence[str]
    form: CallForm
    by_pattern: bool = False
    defers_servers: bool = False


_SHORT: Final = 64


def may_defer(name: str, *, crosses: bool) -> bool:
    """Return whether a tool of this name can wait for a search. One whose name is longer than some dialects
    take is shown from the beginning: only what a request declares is renamed for another dialect."""
    return len(name) <= _SHORT or not crosses


def loaded_text(name: str) -> str:
    """Return what a model reads in place of a reference to a tool that a client's own search has loaded."""
    return f"The tool {name} can be called now."


def found_in(result: ToolResult) -> Sequence[str]:
    """Return the names in the result of a search; none if it failed."""
    try:
        said = orjson.loads(result.content) if result.ok else {}
        return [str(tool["name"]) for tool in said["tools"]]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ()


def query_of(call: ToolCall) -> str:
    """Return what a search looked for; empty if it cannot be read."""
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return ""
    query = arguments.get("query") if isinstance(arguments, dict) else None
    return query if isinstance(query, str) else ""
