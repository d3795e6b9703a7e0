"""The requests that show which types of client-run tools an upstream understands.

Some servers leave out tools of types that they do not know, and answer as if nothing were wrong. So only a
call of the declared type shows that the upstream understands it. An answer without a call shows nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from proxy.commands.doctor.probing.exchange import Reply
from proxy.wires.anthropic.typed_tools import table as messages
from proxy.wires.responses.typed_tools.table import ADDITIONAL_TOOLS, NAMESPACE, TYPED_TOOLS

_CITY: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_ASKED: Final = {"role": "user", "content": "Call the tool now: list the files, or ask about Paris."}


class NativeQuestion(Struct, frozen=True):
    """A request with one tool of a type. ``more`` are members of its body, and ``made`` those of the call."""

    dialect: str
    type: str
    more: Mapping[str, Any]
    made: Mapping[str, str]

    def understood(self, reply: Reply) -> bool | None:
        """Return whether the upstream understands the type; ``None`` if its answer does not show it."""
        if not reply.ok:
            return False if reply.status in (400, 422, 501) else None
        calls = [part for payload in reply.payloads for part in _parts(payload) if _is_call(part)]
        if any(self.made.items() <= call.items() for call in calls):
            return True
        return False if calls else None


def _parts(payload: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the items, the blocks or the calls of a reply in any dialect."""
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    said = message.get("tool_calls") if isinstance(message, dict) else None
    for parts in (payload.get("output"), payload.get("content"), said):
        yield from (part for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()


def _is_call(part: Mapping[str, Any]) -> bool:
    kind = str(part.get("type"))
    return kind.endswith("_call") or kind in ("tool_use", "function", "custom")


def _responses(kind: str, made: Mapping[str, str], **members: Any) -> NativeQuestion:
    tool = {"type": kind, **members}
    if kind == ADDITIONAL_TOOLS:
        # Without tools in the request no call can be forced.
        return NativeQuestion("responses", kind, {"input": [{**tool, "role": "developer"}, _ASKED]}, made)
    tools = [tool]
    if kind == "tool_search":
        tools.append({**_FUNCTION, "defer_loading": True})
    more = {"tools": tools, "tool_choice": "required", "input": [_ASKED]}
    return NativeQuestion("responses", kind, more, made)


def _messages(kind: str, tool: messages.TypedTool) -> NativeQuestion:
    tools = [{"type": tool.type, "name": tool.name}]
    more = {"tools": tools, "tool_choice": {"type": "any"}, "messages": [_ASKED]}
    return NativeQuestion("anthropic", kind, more, {"type": "tool_use", "name": tool.name})


_FUNCTION: Final = {"type": "function", "name": "get_weather", "parameters": _CITY, "strict": False}

NATIVE_QUESTIONS: Final = (
    _responses(
        NAMESPACE, {"type": "function_call", "namespace": "weather"},
        name="weather", description="The weather.", tools=[_FUNCTION],
    ),
    _responses(ADDITIONAL_TOOLS, {"type": "function_call", "name": "get_weather"}, tools=[_FUNCTION]),
    *(_responses(tool.type, {"type": tool.call}, **tool.example) for tool in TYPED_TOOLS),
    *(_messages(kind, tool) for kind, tool in messages.TYPED_TOOLS.items()),
    NativeQuestion(
        "chat", "custom",
        {
            "tools": [{"type": "custom", "custom": {"name": "say", "description": "Says a text."}}],
            "tool_choice": "required",
            "messages": [_ASKED],
        },
        {"type": "custom"},
    ),
)  # fmt: skip
