"""Code execution of Anthropic, run by the tool that runs programs: its declaration, and the blocks of calls.

A program may call functions of the client, those whose ``allowed_callers`` name the tool. Such a call is a
``tool_use`` block with a ``caller``. The answer then ends, and the next request brings the results.

Sources: Anthropic's pages "Code execution tool" and "Programmatic tool calling"; the types of anthropic
2.14.0 (``CodeExecutionTool20260120Param``, ``ServerToolCaller20260120``, ``CodeExecutionToolResultBlock``);
the recorded stream ``anthropic-programmatic-tool-calling.1`` of vercel/ai.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.chance import replayable
from proxy.base.errors import RequestError
from proxy.base.events import ToolCall, ToolDefinition, ToolResult
from proxy.json.splice import elements, join_array, join_object, members
from proxy.wires.anthropic.blocks import OUR_CALL, Block
from proxy.wires.hosted.forms import CallForm
from proxy.wires.hosted.programs import FAILED, code_of, is_paused, programs_digest
from proxy.wires.hosted.tools import ClientPrograms, HostedTool

NAME: Final = "code_execution"
_DIRECT: Final = "direct"
_CALLERS: Final[Mapping[str, str]] = {
    "code_execution_20250522": "code_execution_20250825",
    "code_execution_20250825": "code_execution_20250825",
    "code_execution_20260120": "code_execution_20260120",
    "code_execution_20260521": "code_execution_20260120",
}
"""The declared types, each with the one that the ``caller`` of a call then has: the SDK knows two of them."""
_ERRORS: Final = {
    "invalid_json": "invalid_tool_input",
    "invalid_arguments": "invalid_tool_input",
    "rate_limited": "too_many_requests",
    "timeout": "execution_time_exceeded",
}


class CodeForm(CallForm):
    """Shows a program as a ``server_tool_use`` block and, once it has ended, the block of its result.

    It belongs to one request. ``caller`` is the type by which calls of the program name it.
    """

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self._key = ""

    def part_id(self, call_id: str) -> str:
        # Upstreams use ids of calls again, but no two blocks of a conversation may have the same id.
        self._key = self._key or replayable("own_call_id", lambda: secrets.token_hex(12))
        made = hashlib.blake2b(call_id.encode("utf-8", "replace"), key=self._key.encode(), digest_size=12)
        return OUR_CALL + made.hexdigest()

    def call_id(self) -> str:
        return replayable("client_call_id", lambda: f"toolu_{secrets.token_hex(12)}")

    def begun(self, call: ToolCall, arguments: Any) -> Block:
        # The client gets the code as the model wrote it: it is the author's side of the conversation.
        return {
            "type": "server_tool_use",
            "id": self.part_id(call.call_id),
            "name": NAME,
            "input": {"code": code_of(call.arguments)},
            "caller": {"type": _DIRECT},
        }

    def ended(self, begun: Block | None, call: ToolCall, result: ToolResult) -> Sequence[Block]:
        return () if is_paused(result) else [result_block(self.part_id(call.call_id), result)]


def result_block(part_id: str, result: ToolResult) -> Block:
    """Return the block of a program's result.

    What it printed and its value are its output. An exception is one of the program, so it is told as an
    exit code; what else went wrong is an error of the tool.
    """
    if result.ok:
        content = _output(_stdout(result.content), "", 0)
    elif result.error_code == FAILED:
        content = _output("", result.safe_message, 1)
    else:
        code = _ERRORS.get(result.error_code or "", "unavailable")
        content = {"type": f"{NAME}_tool_result_error", "error_code": code}
    return {"type": f"{NAME}_tool_result", "tool_use_id": part_id, "content": content}


def _output(stdout: str, stderr: str, return_code: int) -> Block:
    return {
        "type": f"{NAME}_result",
        "stdout": stdout,
        "stderr": stderr,
        "return_code": return_code,
        "content": [],
    }


def _stdout(text: str) -> str:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if isinstance(value, dict) and value.keys() == {"printed", "value"}:
        return f"{value['printed']}{_shown(value['value'])}"
    return _shown(value)


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()


# ---------------------------------------------------------------- declarations


def code_execution(place: int, payload: Mapping[str, Any]) -> HostedTool | None:
    """Read a declaration at a place in ``tools``, with what its programs may call; ``None`` for one of an
    unknown version.

    Raise :class:`RequestError` for ``allowed_callers`` that are wrong, and for a choice of a tool that only
    programs may call.
    """
    tools: Sequence[Any] = payload["tools"]
    caller = _CALLERS.get(str(tools[place]["type"]))
    if caller is None:
        return None
    found, places = [], []
    for at, tool in enumerate(tools):
        callers = _callers(tool, f"tools[{at}]")
        if callers is None or at == place or not callers.intersection(_CALLERS):
            continue
        found.append(_definition(tool, f"tools[{at}]"))
        if _DIRECT not in callers:
            places.append(at)
    only = frozenset([str(tools[at]["name"]) for at in places])
    _check_choice(payload.get("tool_choice"), only)
    programs = ClientPrograms(tuple(found), only, frozenset(places), programs_digest(found, only))
    return HostedTool(NAME, f"tools[{place}]", tools[place], CodeForm(caller), programs=programs)


def _callers(tool: Any, at: str) -> frozenset[str] | None:
    """Return who may call a tool; ``None`` if it does not say."""
    callers = tool.get("allowed_callers") if isinstance(tool, dict) else None
    if callers is None:
        return None
    known = isinstance(callers, list) and all(one == _DIRECT or one in _CALLERS for one in map(str, callers))
    if not known or not callers:
        field = f"{at}.allowed_callers"
        words = ", ".join(f'"{one}"' for one in (_DIRECT, *_CALLERS))
        raise RequestError(400, f"{field} must be a list of at least one of {words}.", param=field)
    return frozenset(callers)


def _definition(tool: Mapping[str, Any], at: str) -> ToolDefinition:
    name, schema = tool.get("name"), tool.get("input_schema")
    if tool.get("type") not in (None, "custom") or not isinstance(name, str) or not isinstance(schema, dict):
        field = f"{at}.allowed_callers"
        raise RequestError(
            400,
            f'{field}: programs call only functions with an input_schema here. Write ["{_DIRECT}"].',
            param=field,
        )
    about = tool.get("description")
    return ToolDefinition(name, about if isinstance(about, str) else "", schema)


def _check_choice(choice: Any, only: frozenset[str]) -> None:
    name = choice.get("name") if isinstance(choice, dict) else None
    if isinstance(name, str) and name in only:  # Nobody has checked the choice yet.
        raise RequestError(
            400,
            "tool_choice names a tool that only programs may call (allowed_callers). Choose "
            f'{NAME}, or add "{_DIRECT}" to its callers.',
            param="tool_choice",
        )


def without_callers(raw: bytes) -> bytes:
    """Return a body without ``allowed_callers`` and ``container``, which only Anthropic's models know."""
    parts = members(raw)
    parts.pop("container", None)
    if "tools" in parts:
        parts["tools"] = join_array(map(_without_callers, elements(parts["tools"])))
    return join_object(parts)


def _without_callers(tool: bytes) -> bytes:
    if b'"allowed_callers"' not in tool:
        return tool
    return join_object({key: value for key, value in members(tool).items() if key != "allowed_callers"})
