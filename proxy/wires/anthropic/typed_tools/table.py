"""The tools of Messages with a type of their own that the client runs, as one table.

A call of one is an ordinary ``tool_use`` with the declared name, and its result an ordinary ``tool_result``.
So only the declaration is replaced. Sources: the types of anthropic 2.14.0; Anthropic's pages "Bash tool",
"Text editor tool" and "Memory tool".
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from proxy.base.errors import RequestError
from proxy.wires.typed_tools.functions import EVERY_TYPE, AsFunctions
from proxy.wires.typed_tools.shapes import check_members


def _schema(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _commands(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names), "description": "What to do."}


_LINES: Final = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "For view: the first and the last line to show, from 1; -1 as the last means the end.",
}
_EDITING: Final = {
    "path": _string("The path of the file or folder."),
    "view_range": _LINES,
    "file_text": _string("For create: the content of the file."),
    "old_str": _string("For str_replace: the text to replace, exactly as it is there; it must be unique."),
    "new_str": _string("For str_replace: the text to put in its place."),
    "insert_line": {"type": "integer", "description": "For insert: the line after which to insert."},
    "insert_text": _string("For insert: the text to insert."),
}


class TypedTool(NamedTuple):
    """One type of tool, as a function.

    ``type`` is its newest type and ``name`` the name that it has there, ``older_names`` those of older types.
    ``description`` and ``parameters`` are what the model is told of the function.
    """

    type: str
    name: str
    description: str
    parameters: Mapping[str, Any]
    older_names: Sequence[str] = ()


TYPED_TOOLS: Final[Mapping[str, TypedTool]] = {
    "bash": TypedTool(
        "bash_20250124", "bash",
        "Run a command in a bash session that stays open, and return its output.",
        _schema(
            {
                "command": _string("The command to run; not needed to restart."),
                "restart": {"type": "boolean", "description": "true to start a new session."},
            }
        ),
    ),
    "text_editor": TypedTool(
        "text_editor_20250728", "str_replace_based_edit_tool",
        "View, create and edit files.",
        _schema(
            {"command": _commands("view", "create", "str_replace", "insert"), **_EDITING}, "command", "path"
        ),
        older_names=("str_replace_editor",),
    ),
    "memory": TypedTool(
        "memory_20250818", "memory",
        "Keep notes in files below /memories that later conversations can read. Look there before you begin.",
        _schema(
            {
                "command": _commands("view", "create", "str_replace", "insert", "delete", "rename"),
                **_EDITING,
                "old_path": _string("For rename: the path of the file or folder."),
                "new_path": _string("For rename: its new path."),
            },
            "command",
        ),
    ),
}  # fmt: skip
"""The tools by the beginning of their type. Clients run them, so a request with one may run twice."""

_TYPE: Final = re.compile(rf"(?:{'|'.join(TYPED_TOOLS)})_\d{{8}}")

DECLARED: Final = {
    "max_characters": int, "cache_control": {"type": str, "ttl": str},
    "defer_loading": bool, "strict": bool, "allowed_callers": [str], "input_examples": [dict],
}  # fmt: skip
"""The members of a declaration beside its name."""

_ONLY_TYPED: Final = frozenset({"type", "max_characters", "strict"})
"""Members of a declaration that its function does not have. These schemas have optional arguments, which
other providers refuse in a strict function."""


def _kind(tool: Any) -> str:
    """Return the type of a typed tool; ``""`` for any other."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return kind if isinstance(kind, str) and _TYPE.fullmatch(kind) else ""


def has_typed_tools(payload: Mapping[str, Any]) -> bool:
    """Return whether a body declares a tool of a special type."""
    tools = payload.get("tools")
    return type(tools) is list and any(map(_kind, tools))


def as_functions(payload: Mapping[str, Any], native: Sequence[str]) -> AsFunctions | None:
    """Return a request with functions in place of its typed tools; ``None`` if it has none of them.

    ``native`` are the types that the upstream itself understands, with or without their date. Their calls are
    ordinary ones, so server tools in the same turn change nothing. Raises
    :class:`~proxy.base.errors.RequestError` (400), which names the field, for a declaration that cannot be
    read.
    """
    if EVERY_TYPE in native or not has_typed_tools(payload):
        return None
    tools = [
        _function(tool, kind, native, f"tools[{place}]") if (kind := _kind(tool)) else tool
        for place, tool in enumerate(payload["tools"])
    ]
    return AsFunctions({**payload, "tools": tools}) if tools != payload["tools"] else None


def _function(tool: Mapping[str, Any], kind: str, native: Sequence[str], place: str) -> Mapping[str, Any]:
    family = kind.rpartition("_")[0]
    if kind in native or family in native:
        return tool
    typed = TYPED_TOOLS[family]
    check_members(tool, {**DECLARED, "name": (typed.name, *typed.older_names)}, place)
    if tool.get("name") is None:
        raise RequestError(400, f"{place}.name must be {typed.name}.", param=f"{place}.name")
    kept = {name: value for name, value in tool.items() if name not in _ONLY_TYPED}
    return {**kept, "description": typed.description, "input_schema": typed.parameters}
