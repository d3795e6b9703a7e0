"""Questions and answers about approvals in Messages: ``tool_use`` and ``tool_result`` blocks."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.wires.approving.shown import (
    APPROVE,
    ApprovalConversation,
    ApprovalForm,
    ApprovalReading,
    Message,
    approval_of_call,
    with_mentions,
)


def _read(
    messages: Sequence[Message], raws: Sequence[bytes], payload: Mapping[str, Any]
) -> ApprovalConversation:
    """Read Anthropic's Messages; see :class:`~proxy.wires.approving.shown.ApprovalForm`."""
    reading = ApprovalReading(messages)
    for place, (message, raw) in enumerate(zip(messages, raws, strict=True)):
        blocks = message.get("content")
        if not isinstance(blocks, list) or not any(_asked_by(block) for block in blocks):
            reading.left.append(raw)
            continue
        kept: list[Any] = []
        mentions: list[str] = []
        for at, block in enumerate(blocks):
            approval_id, path = _asked_by(block), f"messages[{place}].content[{at}]"
            if not approval_id:
                kept.append(block)
            elif block["type"] == "tool_use":
                mentions.append(reading.show(approval_id, path, block.get("input")))
            else:
                fails = block.get("is_error") is True
                reading.answer(approval_id, place, path, block.get("content"), fails=fails)
        if mentions := list(filter(None, mentions)):
            texts = [block for block in kept if _is_text(block)]
            text = {"type": "text", "text": with_mentions(texts, mentions)}
            kept = [*(block for block in kept if not _is_text(block)), text]
        if kept:
            reading.left.append(orjson.dumps({**message, "content": kept}))
    return reading.conversation


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text"


def _asked_by(block: Any) -> str:
    """Return the id of the approval that a block asks or answers about; ``""`` for any other block."""
    if not isinstance(block, dict):
        return ""
    if block.get("type") == "tool_use" and block.get("name") == APPROVE:
        return approval_of_call(block.get("id"))
    return approval_of_call(block.get("tool_use_id")) if block.get("type") == "tool_result" else ""


ANTHROPIC_APPROVALS: Final = ApprovalForm(_read)
