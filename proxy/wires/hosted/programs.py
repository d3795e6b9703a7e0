"""What the dialects share whose clients declare a tool that runs programs."""

import hashlib
from collections.abc import Collection, Sequence
from typing import Final

import orjson

from proxy.base.events import ToolDefinition, ToolResult

FAILED: Final = "execution_failed"
"""The error code of a program that raised an exception."""


def is_paused(result: ToolResult) -> bool:
    """Return whether a program has not ended: it waits for its client, or for a person."""
    waits = result.error_code == "approval_required" and result.awaits_approval
    return result.error_code == "client_call_required" or waits


def code_of(arguments: str) -> str:
    """Return the code in the arguments of a call, or all that the model wrote if there is none."""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    code = given.get("code") if isinstance(given, dict) else None
    return code if isinstance(code, str) else arguments


def for_program(text: str, *, failed: bool = False) -> str:
    """Return a client's result as an engine takes it; see :class:`~proxy.tools.programs.engine.Session`."""
    if failed:
        return orjson.dumps({"ok": False, "message": text or "the tool of the client failed"}).decode()
    try:
        orjson.loads(text)
        return f'{{"ok":true,"value":{text}}}'
    except orjson.JSONDecodeError:
        return orjson.dumps({"ok": True, "value": text}).decode()


def programs_digest(tools: Sequence[ToolDefinition], only: Collection[str]) -> str:
    """Return a digest of what programs may call of their client."""
    told = [sorted(only), *([tool.name, tool.description, tool.parameters] for tool in tools)]
    return hashlib.blake2b(orjson.dumps(told), digest_size=16).hexdigest()
