"""Reads questions and answers about approvals in the dialects with messages.

In Chat and Ollama a question is a call in an assistant message, and an answer is a message of the role
``tool``. In Anthropic they are a ``tool_use`` block and a ``tool_result`` block. Ollama's calls have no
ids, so its answers are matched by their order.
"""

import re
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.base.errors import RequestError
from proxy.records.approvals import APPROVAL_ID, mention
from proxy.wires.approving.answers import answer_of, function_name, loaded
from proxy.wires.approving.shown import APPROVE, ApprovalAnswer, ApprovalQuestion, approval_of_call

__all__ = ["read_anthropic", "read_chat", "read_ollama"]

_ID: Final = re.compile(APPROVAL_ID)
Message = Mapping[str, Any]


class _Reading:
    """What has been read of one conversation so far."""

    def __init__(self, messages: list[Message]) -> None:
        roles = [message.get("role") for message in messages]
        self._last = max([at for at, role in enumerate(roles) if role == "assistant"], default=-1)
        self.left: list[bytes] = []
        self.questions: list[ApprovalQuestion] = []
        self.answers: list[ApprovalAnswer] = []
        self._seen: set[str] = set()

    def show(self, approval_id: str, at: str, arguments: Any) -> str:
        """Add a question. Return its mention; ``""`` if the conversation already had the question."""
        parsed = loaded(arguments)
        parsed = parsed if isinstance(parsed, dict) else {}
        self.questions.append(ApprovalQuestion(approval_id, at, parsed.get("tool"), parsed.get("arguments")))
        if approval_id in self._seen:
            return ""
        self._seen.add(approval_id)
        return mention(approval_id)

    def answer(self, approval_id: str, place: int, at: str, content: Any, *, fails: bool = False) -> None:
        """Add an answer. One that ``fails`` (the client reports an error) refuses."""
        answer = answer_of("" if fails else content)
        self.answers.append(ApprovalAnswer(approval_id, at, place > self._last, False, *answer))


def _with_mentions(content: Any, mentions: list[str]) -> str:
    """Return the text of an assistant message with the mentions appended."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join([text for text in texts if isinstance(text, str)])
    text = content.strip() if isinstance(content, str) else ""
    return "\n\n".join(filter(None, [text, *mentions]))


def read_chat(
    messages: list[Message], raws: list[bytes]
) -> tuple[list[bytes], list[ApprovalQuestion], list[ApprovalAnswer]]:
    """Read Chat Completions; see :data:`proxy.wires.approving.read.ApprovalConversation`."""
    reading = _Reading(messages)
    for place, (message, raw) in enumerate(zip(messages, raws, strict=True)):
        calls = message.get("tool_calls")
        if message.get("role") == "assistant" and isinstance(calls, list):
            asked = {at: _chat_id(call) for at, call in enumerate(calls) if _chat_id(call)}
            if asked:
                mentions = [
                    reading.show(
                        shown, f"messages[{place}].tool_calls[{at}]", calls[at]["function"].get("arguments")
                    )
                    for at, shown in asked.items()
                ]
                theirs = [call for at, call in enumerate(calls) if at not in asked]
                _keep(reading, message, theirs, mentions)
                continue
        elif message.get("role") == "tool" and (approval_id := approval_of_call(message.get("tool_call_id"))):
            reading.answer(approval_id, place, f"messages[{place}]", message.get("content"))
            continue
        reading.left.append(raw)
    return reading.left, reading.questions, reading.answers


def _chat_id(call: Any) -> str:
    """Return the id of the approval that a call asks about; ``""`` for any other call."""
    return approval_of_call(call.get("id")) if function_name(call) == APPROVE else ""


def _keep(reading: _Reading, message: Message, theirs: list[Any], mentions: list[str]) -> None:
    """Keep an assistant message with mentions in place of its questions, unless it becomes empty."""
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    rest["content"] = _with_mentions(message.get("content"), list(filter(None, mentions)))
    if theirs:
        rest["tool_calls"] = theirs
    if theirs or rest["content"]:
        reading.left.append(orjson.dumps(rest))


def read_ollama(
    messages: list[Message], raws: list[bytes]
) -> tuple[list[bytes], list[ApprovalQuestion], list[ApprovalAnswer]]:
    """Read Ollama's chat; see :data:`proxy.wires.approving.read.ApprovalConversation`."""
    reading, open_ones = _Reading(messages), deque[str]()
    for place, (message, raw) in enumerate(zip(messages, raws, strict=True)):
        calls, at = message.get("tool_calls"), f"messages[{place}]"
        if message.get("role") == "assistant" and isinstance(calls, list):
            asked = [
                (call["function"].get("arguments"), _ollama_id(call)) for call in calls if _ollama_id(call)
            ]
            if asked:
                open_ones = deque(approval_id for _, approval_id in asked)
                mentions = [reading.show(approval_id, at, arguments) for arguments, approval_id in asked]
                _keep(reading, message, [call for call in calls if not _ollama_id(call)], mentions)
                continue
        elif message.get("role") == "tool" and APPROVE in (message.get("tool_name"), message.get("name")):
            if not open_ones:
                raise RequestError(400, f"{at} does not match a call of {APPROVE}. Leave it out.", param=at)
            reading.answer(open_ones.popleft(), place, at, message.get("content"))
            continue
        reading.left.append(raw)
    return reading.left, reading.questions, reading.answers


def _ollama_id(call: Any) -> str:
    """Return the id of the approval that a call asks about, from its arguments; ``""`` for any other call."""
    inner = call.get("function") if isinstance(call, dict) else None
    if not isinstance(inner, dict) or inner.get("name") != APPROVE:
        return ""
    arguments = loaded(inner.get("arguments"))
    approval_id = arguments.get("approval_id") if isinstance(arguments, dict) else None
    return approval_id if isinstance(approval_id, str) and _ID.fullmatch(approval_id) else ""


def read_anthropic(
    messages: list[Message], raws: list[bytes]
) -> tuple[list[bytes], list[ApprovalQuestion], list[ApprovalAnswer]]:
    """Read Anthropic's Messages; see :data:`proxy.wires.approving.read.ApprovalConversation`."""
    reading = _Reading(messages)
    for place, (message, raw) in enumerate(zip(messages, raws, strict=True)):
        blocks = message.get("content")
        if not isinstance(blocks, list) or not any(_block_id(block) for block in blocks):
            reading.left.append(raw)
            continue
        kept: list[Any] = []
        mentions: list[str] = []
        for at, block in enumerate(blocks):
            approval_id, path = _block_id(block), f"messages[{place}].content[{at}]"
            if not approval_id:
                kept.append(block)
            elif block["type"] == "tool_use":
                mentions.append(reading.show(approval_id, path, block.get("input")))
            else:
                fails = block.get("is_error") is True
                reading.answer(approval_id, place, path, block.get("content"), fails=fails)
        if mentions := list(filter(None, mentions)):
            texts = [block for block in kept if _is_text(block)]
            text = {"type": "text", "text": _with_mentions(texts, mentions)}
            kept = [*(block for block in kept if not _is_text(block)), text]
        if kept:
            reading.left.append(orjson.dumps({**message, "content": kept}))
    return reading.left, reading.questions, reading.answers


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text"


def _block_id(block: Any) -> str:
    """Return the id of the approval that a block asks or answers about; ``""`` for any other block."""
    if not isinstance(block, dict):
        return ""
    if block.get("type") == "tool_use" and block.get("name") == APPROVE:
        return approval_of_call(block.get("id"))
    return approval_of_call(block.get("tool_use_id")) if block.get("type") == "tool_result" else ""
