"""The tools of Responses with a type of their own that the client runs, as one table.

Sources: OpenAI's API reference, "Create a model response" and "Streaming events"; the types of openai 3.57.0;
the guides "Shell", "Local shell", "Apply patch" and "Tool search". Adding a type is one entry of
:data:`TYPED_TOOLS`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from proxy.base.errors import RequestError
from proxy.json.splice import join_array
from proxy.wires.typed_tools.functions import with_grammar
from proxy.wires.typed_tools.shapes import Shape

NAMESPACE: Final = "namespace"
"""The type of a group of functions and custom tools. Their calls are ordinary ones with the group's name."""

ADDITIONAL_TOOLS: Final = "additional_tools"
"""The type of an item that declares tools in the middle of the input."""

BRINGING: Final = (ADDITIONAL_TOOLS, "tool_search_output")
"""The types of the items that bring tools, which the model has from then on."""

CUSTOM: Final = "custom"
"""The type of tools whose input is text. They have names, alone and in namespaces."""

Members = dict[str, Any]

NAMED: Final[Mapping[str, Shape]] = {
    "name": str,
    "description": str,
    "parameters": dict,
    "strict": bool,
    "defer_loading": bool,
    "format": {"type": ("text", "grammar"), "syntax": ("lark", "regex"), "definition": str},
}
"""The members of functions and custom tools, alone and in namespaces."""


@dataclass(frozen=True, slots=True, eq=False)
class TypedTool:
    """One type of tool, as a function.

    ``type`` is its type in ``tools`` and ``tool_choice``; ``call`` and ``output`` are the types of its items,
    and ``prefix`` begins the ids of its calls. ``description`` and ``parameters`` describe the function, if
    the declaration does not. ``members`` makes the members of a call's item from the function's arguments,
    however odd these are; ``arguments`` is its inverse. ``result`` makes the output of a function from the
    item of an output. ``opening`` makes the members with which a stream begins the item, and ``events`` the
    events between its beginning and its end, from the members of the whole call; those with an ``item_id``
    get the item's. ``is_local`` returns whether the client runs a tool that is declared so. ``statuses`` are
    those that the item may have. ``declared``, ``called`` and ``returned`` are the shapes of the members of a
    declaration, of a call and of an output. ``example`` are the members of a declaration, with which
    ``doctor`` asks. A request with such a tool may run twice, unless the member ``placed_by`` says that the
    provider runs the tool.
    """

    type: str
    call: str
    output: str
    prefix: str
    description: str
    parameters: Mapping[str, Any]
    members: Callable[[Mapping[str, Any]], Members]
    arguments: Callable[[Mapping[str, Any]], Members]
    result: Callable[[Mapping[str, Any]], Any]
    opening: Callable[[Members], Members]
    called: Mapping[str, Shape]
    returned: Mapping[str, Shape]
    declared: Mapping[str, Shape] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    placed_by: str | None = None
    events: Callable[[Members], Sequence[Members]] = lambda members: ()
    is_local: Callable[[Mapping[str, Any]], bool] = lambda tool: True
    statuses: frozenset[str] = frozenset({"in_progress", "completed", "incomplete"})


def _texts(value: object, *, alone: Sequence[str] = ()) -> list[str]:
    """Return the texts of a list; for one text, ``alone`` and the text; ``[]`` for anything else."""
    if isinstance(value, str):
        return [*alone, value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _given(members: Mapping[str, Any], kinds: Mapping[str, type]) -> Members:
    """Return the members of these types."""
    return {name: members[name] for name, kind in kinds.items() if type(members.get(name)) is kind}


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _object(item: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = item.get(name)
    return value if isinstance(value, dict) else {}


def _text_or_json(item: Mapping[str, Any]) -> str:
    output = item.get("output")
    return output if isinstance(output, str) else _json(output)


# ---------------------------------------------------------------- local_shell

_EXEC: Final = {"timeout_ms": int, "working_directory": str, "user": str}
_ACTION: Final = {"command": [str], "env": dict, **_EXEC}


def _local_shell(arguments: Mapping[str, Any]) -> Members:
    env = {k: v for k, v in _object(arguments, "env").items() if isinstance(v, str)}
    command = _texts(arguments.get("command"), alone=("bash", "-lc"))
    return {"action": {"type": "exec", "command": command, "env": env, **_given(arguments, _EXEC)}}


def _local_shell_arguments(item: Mapping[str, Any]) -> Members:
    action = _object(item, "action")
    env = {"env": action["env"]} if action.get("env") else {}
    return {"command": _texts(action.get("command")), **env, **_given(action, _EXEC)}


# ---------------------------------------------------------------- shell

_LIMITS: Final = ("max_output_length", "timeout_ms")
_RAN: Final = {"stdout": str, "stderr": str, "outcome": {"type": ("exit", "timeout"), "exit_code": int}}


def _shell(arguments: Mapping[str, Any]) -> Members:
    commands = _texts(arguments.get("commands", arguments.get("command")))
    limits = {name: arguments[name] if type(arguments.get(name)) is int else None for name in _LIMITS}
    return {"action": {"commands": commands, **limits}}


def _shell_arguments(item: Mapping[str, Any]) -> Members:
    action = _object(item, "action")
    return {"commands": _texts(action.get("commands")), **_given(action, dict.fromkeys(_LIMITS, int))}


def _shell_events(members: Members) -> Sequence[Members]:
    found = []
    for place, command in enumerate(members["action"]["commands"]):
        at = {"command_index": place}
        found += [
            {"type": "response.shell_call_command.added", **at, "command": ""},
            {"type": "response.shell_call_command.delta", **at, "delta": command},
            {"type": "response.shell_call_command.done", **at, "command": command},
        ]
    return found


def _is_local_shell(tool: Mapping[str, Any]) -> bool:
    environment = tool.get("environment")
    return environment is None or (isinstance(environment, dict) and environment.get("type") == "local")


# ---------------------------------------------------------------- apply_patch

_OPERATIONS: Final = ("create_file", "update_file", "delete_file")


def _apply_patch(arguments: Mapping[str, Any]) -> Members:
    given = _object(arguments, "operation") or arguments
    kind = given.get("type") if given.get("type") in _OPERATIONS else "update_file"
    # Without a path a client can apply nothing, and says so.
    texts = {"path": "", **({} if kind == "delete_file" else {"diff": ""})}
    return {"operation": {"type": kind, **texts, **_given(given, dict.fromkeys(texts, str))}}


def _patch_opening(members: Members) -> Members:
    # Types of openai name no event for a diff, and the Node SDK's helper for streams refuses unknown events.
    operation = members["operation"]
    return {"operation": {**operation, "diff": ""} if "diff" in operation else operation}


# ---------------------------------------------------------------- custom


def described_input(tool: Mapping[str, Any]) -> str:
    """Return the description of a custom tool with the grammar that its input must have."""
    form = _object(tool, "format")
    return with_grammar(tool.get("description") or "", form if form.get("type") == "grammar" else None)


def _custom_events(members: Members) -> Sequence[Members]:
    kind, text = "response.custom_tool_call_input", members["input"]
    return (
        {"type": f"{kind}.delta", "item_id": "", "delta": text},
        {"type": f"{kind}.done", "item_id": "", "input": text},
    )


# ---------------------------------------------------------------- the table


def _schema(properties: Members, *required: str) -> Members:
    return {"type": "object", "properties": properties, "required": list(required)}


def _of(kind: str, description: str) -> Members:
    return {"type": kind, "description": description}


_MILLISECONDS: Final = _of("integer", "The most milliseconds that it may run.")
_STRINGS: Final = {"type": "array", "items": {"type": "string"}}

TYPED_TOOLS: Final[Sequence[TypedTool]] = (
    TypedTool(
        CUSTOM, "custom_tool_call", "custom_tool_call_output", "ctc", "",
        _schema({"input": {"type": "string"}}, "input"),
        members=lambda arguments: {"input": str(arguments.get("input") or "")},
        arguments=lambda item: {"input": item.get("input") or ""}, result=lambda item: item.get("output"),
        opening=lambda members: {"input": ""}, events=_custom_events,
        called={"name": str, "namespace": str, "input": str}, returned={},
        example={"name": "say", "description": "Says a text."},
    ),
    TypedTool(
        "local_shell", "local_shell_call", "local_shell_call_output", "lsh",
        "Run a command on the user's computer, and return its output.",
        _schema(
            {
                "command": {**_STRINGS, "description": 'The program and its arguments: ["ls", "-a"].'},
                "env": {
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                    "description": "Environment variables to set.",
                },
                "working_directory": _of("string", "The folder to run it in."),
                "timeout_ms": _MILLISECONDS,
                "user": _of("string", "The user to run it as."),
            },
            "command",
        ),
        members=_local_shell, arguments=_local_shell_arguments, result=_text_or_json,
        opening=lambda members: {"action": {"type": "exec", "command": [], "env": {}}},
        called={"action": _ACTION}, returned={"output": str},
    ),
    TypedTool(
        "shell", "shell_call", "shell_call_output", "sh",
        "Run shell commands, and return the output, the errors and the exit code of each.",
        _schema(
            {
                "commands": {**_STRINGS, "description": 'Shell commands to run one by one: ["ls -a"].'},
                "timeout_ms": _MILLISECONDS,
                "max_output_length": _of("integer", "The most characters of output to return."),
            },
            "commands",
        ),
        members=_shell, arguments=_shell_arguments, result=_text_or_json,
        opening=lambda members: {"action": {"commands": [], **dict.fromkeys(_LIMITS)}},
        events=_shell_events, is_local=_is_local_shell, declared={"environment": {"type": str}},
        example={"environment": {"type": "local"}}, placed_by="environment",
        called={"action": {"commands": [str], **dict.fromkeys(_LIMITS, int)}},
        returned={"output": [_RAN], "max_output_length": int},
    ),
    TypedTool(
        "apply_patch", "apply_patch_call", "apply_patch_call_output", "apc",
        "Create, change or delete one file. A diff has a line for each line of the file that it shows: after "
        "a space one that stays, after - one that goes, after + one that comes. A diff that creates a file "
        "has only + lines. One that changes a file shows some lines before and after each change; a line "
        "that begins with @@ precedes each place, and may name the function or class in which it is.",
        _schema(
            {
                "operation": _schema(
                    {
                        "type": {"type": "string", "enum": list(_OPERATIONS)},
                        "path": _of("string", "The path of the file."),
                        "diff": _of("string", "The diff, unless the file is deleted."),
                    },
                    "type", "path",
                )
            },
            "operation",
        ),
        members=_apply_patch, arguments=lambda item: {"operation": _object(item, "operation")},
        result=lambda item: _json({name: item[name] for name in ("status", "output") if item.get(name)}),
        opening=_patch_opening, statuses=frozenset({"in_progress", "completed"}),
        called={"operation": {"type": _OPERATIONS, "path": str, "diff": str}},
        returned={"status": ("completed", "failed"), "output": str},
    ),
    TypedTool(
        "tool_search", "tool_search_call", "tool_search_output", "tsc",
        "Find more tools by what they do. Those that are found can be called afterwards.",
        _schema({"query": _of("string", "What the tools should do.")}, "query"),
        members=lambda arguments: {"arguments": dict(arguments), "execution": "client"},
        arguments=lambda item: dict(_object(item, "arguments")),
        result=lambda item: _json({"tools": _names(item.get("tools"))}),
        opening=lambda members: {"arguments": {}, "execution": "client"},
        is_local=lambda tool: tool.get("execution") == "client",
        declared={"execution": ("client", "server"), "description": str, "parameters": dict},
        example={
            "execution": "client",
            "description": "Finds more tools.",
            "parameters": _schema({"query": {"type": "string"}}, "query"),
        },
        called={"arguments": dict}, returned={"tools": [dict]},
    ),
)  # fmt: skip
"""What a client may declare and runs itself."""


def check_direct(tool: Mapping[str, Any], place: str) -> None:
    """Raise :class:`~proxy.base.errors.RequestError` for a tool that programs may call, but cannot be called
    by programs of this server, since it is no plain function."""
    callers = tool.get("allowed_callers")
    if isinstance(callers, list) and "programmatic" in callers:
        name = f"{place}.allowed_callers"
        words = f'{name}: programs call only functions here, outside of namespaces. Write ["direct"].'
        raise RequestError(400, words, param=name)


def _names(tools: object) -> list[str]:
    """Return the names in the list of tools of an item that was translated."""
    listed = tools if isinstance(tools, list) else []
    return [str(tool.get("name")) for tool in listed if isinstance(tool, dict)]


TYPES: Final = frozenset({NAMESPACE, ADDITIONAL_TOOLS, *(tool.type for tool in TYPED_TOOLS)})
"""All types; what the upstream of a request understands itself is a part of them."""

_TYPE_OF: Final = {
    **{name: name for name in TYPES},
    **{item: tool.type for tool in TYPED_TOOLS for item in (tool.call, tool.output)},
}


def types_in(payload: Mapping[str, Any]) -> set[str]:
    """Return the types of this table of which a request has a tool or an item."""
    found: set[str] = set()
    _note_types(payload.get("tools"), found)
    _note_types(payload.get("input"), found)
    return found


def items_with_tools(payload: Mapping[str, Any], earlier: str) -> str:
    """Return the items that bring tools, those of ``earlier`` first, each once; ``""`` if there are none.

    Both texts are JSON arrays.
    """
    given = payload.get("input")
    items = given if isinstance(given, list) else []
    here = [item for item in items if isinstance(item, dict) and item.get("type") in BRINGING]
    if not here:
        return earlier
    before = [orjson.dumps(item) for item in orjson.loads(earlier or "[]")]
    return join_array(list(dict.fromkeys([*before, *map(orjson.dumps, here)]))).decode()


def _note_types(entries: object, found: set[str], *, inside: bool = False) -> None:
    """Add the types of a list of tools or items; ``inside`` an item, which brings no further items."""
    for entry in entries if type(entries) is list else ():
        if type(entry) is dict:
            kind = entry.get("type")
            if type(kind) is str and kind in _TYPE_OF:
                found.add(_TYPE_OF[kind])
                if kind in BRINGING and not inside:
                    _note_types(entry.get("tools"), found, inside=True)
            if "namespace" in entry:
                found.add(NAMESPACE)


def brought_names(payload: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the tools that namespaces and items of a request bring."""
    found: set[str] = set()
    _note_inner(payload.get("tools"), found, (NAMESPACE,))
    _note_inner(payload.get("input"), found, BRINGING)
    return frozenset(found)


def _note_inner(entries: object, found: set[str], kinds: Collection[str]) -> None:
    for entry in entries if type(entries) is list else ():
        if type(entry) is dict and entry.get("type") in kinds and type(entry.get("tools")) is list:
            names = (tool.get("name") for tool in entry["tools"] if type(tool) is dict)
            found.update(name for name in names if type(name) is str)
            _note_inner(entry["tools"], found, (NAMESPACE,))
