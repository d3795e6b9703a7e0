"""Questions and answers about approvals in Chat Completions: calls, and messages of the role ``tool``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.wires.approving.shown import (
    APPROVE,
    ApprovalConversation,
    ApprovalForm,
    ApprovalReading,
    Message,
    approval_of_call,
    function_name,
)


def _read(
    messages: Sequence[Message], raws: Sequence[bytes], payload: Mapping[str, Any]
) -> ApprovalConversation:
    """Read Chat Completions; see :class:`~proxy.wires.approving.shown.ApprovalForm`."""
    reading = ApprovalReading(messages)
    for place, (message, raw) in enumerate(zip(messages, raws, strict=True)):
        calls = message.get("tool_calls")
        if message.get("role") == "assistant" and isinstance(calls, list):
            asked = {at: _asked_by(call) for at, call in enumerate(calls) if _asked_by(call)}
            if asked:
                mentions = [
                    reading.show(
                        shown, f"messages[{place}].tool_calls[{at}]", calls[at]["function"].get("arguments")
                    )
                    for at, shown in asked.items()
                ]
                theirs = [call for at, call in enumerate(calls) if at not in asked]
                reading.keep(message, theirs, mentions)
                continue
        elif message.get("role") == "tool" and (approval_id := approval_of_call(message.get("tool_call_id"))):
            reading.answer(approval_id, place, f"messages[{place}]", message.get("content"))
            continue
        reading.left.append(raw)
    return reading.conversation


def _asked_by(call: Any) -> str:
    """Return the id of the approval that a call asks about; ``""`` for any other call."""
    return approval_of_call(call.get("id")) if function_name(call) == APPROVE else ""


CHAT_APPROVALS: Final = ApprovalForm(_read)
