"""Questions and answers about approvals in Ollama's chat, whose calls have no ids: the order tells."""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.base.errors import RequestError
from proxy.records.approvals import APPROVAL_ID
from proxy.wires.approving.shown import (
    APPROVE,
    ApprovalConversation,
    ApprovalForm,
    ApprovalReading,
    Message,
    loaded,
)

_ID: Final = re.compile(APPROVAL_ID)


def _read(
    messages: Sequence[Message], raws: Sequence[bytes], payload: Mapping[str, Any]
) -> ApprovalConversation:
    """Read Ollama's chat; see :class:`~proxy.wires.approving.shown.ApprovalForm`."""
    reading, open_ones = ApprovalReading(messages), deque[str]()
    for place, (message, raw) in enumerate(zip(messages, raws, strict=True)):
        calls, at = message.get("tool_calls"), f"messages[{place}]"
        if message.get("role") == "assistant" and isinstance(calls, list):
            asked = [
                (call["function"].get("arguments"), _asked_by(call)) for call in calls if _asked_by(call)
            ]
            if asked:
                open_ones = deque(approval_id for _, approval_id in asked)
                mentions = [reading.show(approval_id, at, arguments) for arguments, approval_id in asked]
                reading.keep(message, [call for call in calls if not _asked_by(call)], mentions)
                continue
        elif message.get("role") == "tool" and APPROVE in (message.get("tool_name"), message.get("name")):
            if not open_ones:
                raise RequestError(400, f"{at} does not match a call of {APPROVE}. Leave it out.", param=at)
            reading.answer(open_ones.popleft(), place, at, message.get("content"))
            continue
        reading.left.append(raw)
    return reading.conversation


def _asked_by(call: Any) -> str:
    """Return the id of the approval that a call asks about, from its arguments; ``""`` for any other call."""
    inner = call.get("function") if isinstance(call, dict) else None
    if not isinstance(inner, dict) or inner.get("name") != APPROVE:
        return ""
    arguments = loaded(inner.get("arguments"))
    approval_id = arguments.get("approval_id") if isinstance(arguments, dict) else None
    return approval_id if isinstance(approval_id, str) and _ID.fullmatch(approval_id) else ""


OLLAMA_APPROVALS: Final = ApprovalForm(_read)
