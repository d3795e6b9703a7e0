"""Calls of server tools, and their results, as the operator's hooks leave them.

The order is: hooks, policy, validation of arguments, bounds, approvals, the tool, hooks, the result. A hook
can therefore change what is decided about, and decides nothing itself except to refuse.
"""

import json
from dataclasses import replace
from typing import Any, Final

from msgspec import structs

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolCall
from proxy.hooks.chain import HookChain, HookRefusal
from proxy.hooks.contract import ToolOutcome, ToolUse
from proxy.tools.contract.arguments import utf8_length
from proxy.tools.contract.results.results import Output
from proxy.tools.contract.spec import ToolSpec
from proxy.tools.running.invocation import Invocation
from proxy.tools.running.ledger import RunContext
from proxy.tools.running.plan import Refusal

_OF_THE_PROXY: Final = ("approval_required", "client_call_required")
"""Failures by which an agent or a program says what it waits for: words of the proxy, which it reads."""

_CHANGED: Final = "[changed by a hook]"
_MOST_SHOWN: Final = 200
"""The most values of a changed result that are looked for in its text."""


async def hooked_call(
    hooks: HookChain, call: ToolCall, spec: ToolSpec | None, context: RunContext
) -> tuple[ToolCall, str]:
    """Return a call as the hooks leave it, and the names of those that changed it.

    Raise :class:`~proxy.hooks.chain.HookRefusal`.
    """
    effect = "" if spec is None else str(spec.effect)
    use = ToolUse(context.run_id, context.caller, context.key, call.name, effect, call.arguments)
    left, names = await hooks.before_tool(use)
    return (call, "") if left is use else (replace(call, arguments=left.arguments), names)


async def hooked(hooks: HookChain, invocation: Invocation) -> Refusal | None:
    """Put the call that the hooks leave into an invocation; return their refusal if there is one."""
    if invocation.approval is not None:
        return None  # A person approved what the hooks had left.
    try:
        invocation.call, invocation.changed_by = await hooked_call(
            hooks, invocation.call, invocation.spec, invocation.context
        )
    except HookRefusal as failure:
        return refusal_of(failure)
    return None


def refusal_of(failure: HookRefusal) -> Refusal:
    """Return the refusal of a call that a hook refused, or could not check."""
    return Refusal(failure, f"refused: hook {failure.hook}")


async def hooked_output(hooks: HookChain, invocation: Invocation, output: Output) -> Output:
    """Return the output of a tool with the text that the hooks leave. The record shows nothing of it that
    they took out of the text.

    Raise :class:`~proxy.hooks.chain.HookRefusal` if one fails.
    """
    text = await hooks.after_tool(_outcome(invocation, output.text), invocation.context.originals)
    if text == output.text:
        return output
    shown = _still_there(output.redacted, text, [_MOST_SHOWN])
    return structs.replace(output, text=text, size=utf8_length(text), redacted=shown)


def _still_there(value: Any, text: str, left: list[int]) -> Any:
    """Return what the record may show of a result, without the values that its text does not have."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        pairs = ((name, _still_there(inner, text, left)) for name, inner in value.items())
        return {_still_there(name, text, left): inner for name, inner in pairs}
    if isinstance(value, list):
        return [_still_there(inner, text, left) for inner in value]
    left[0] -= 1
    written = value if isinstance(value, str) else json.dumps(value)
    there = left[0] >= 0 and (written in text or json.dumps(written, ensure_ascii=False)[1:-1] in text)
    return value if there else _CHANGED


async def hooked_failure(hooks: HookChain, invocation: Invocation, failure: ToolFailure) -> ToolFailure:
    """Return a failure with the message that the hooks leave."""
    if isinstance(failure, HookRefusal) or failure.code in _OF_THE_PROXY:
        return failure
    outcome = _outcome(invocation, failure.message, ok=False)
    try:
        message = await hooks.after_tool(outcome, invocation.context.originals)
    except HookRefusal as refusal:
        return refusal
    return ToolFailure(message, code=failure.code)


def _outcome(invocation: Invocation, text: str, *, ok: bool = True) -> ToolOutcome:
    context = invocation.context
    return ToolOutcome(context.run_id, context.caller, context.key, invocation.call.name, ok, text)
