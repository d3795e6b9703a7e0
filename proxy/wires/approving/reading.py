"""What dialects with messages share when they read questions and answers about approvals.

In Chat and Ollama a question is a call in an assistant message, and an answer is a message of the role
``tool``. In Anthropic they are a ``tool_use`` block and a ``tool_result`` block.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from proxy.records.approvals import mention
from proxy.wires.approving.answers import answer_of, loaded
from proxy.wires.approving.read import ApprovalConversation
from proxy.wires.approving.shown import ApprovalAnswer, ApprovalQuestion

Message = Mapping[str, Any]


class ApprovalReading:
    """What has been read of one conversation so far."""

    def __init__(self, messages: Sequence[Message]) -> None:
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

    def keep(self, message: Message, theirs: Sequence[Any], mentions: Sequence[str]) -> None:
        """Keep an assistant message with mentions in place of its questions, unless it becomes empty."""
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        rest["content"] = with_mentions(message.get("content"), list(filter(None, mentions)))
        if theirs:
            rest["tool_calls"] = theirs
        if theirs or rest["content"]:
            self.left.append(orjson.dumps(rest))

    @property
    def conversation(self) -> ApprovalConversation:
        """What is left of the messages, and the questions and answers."""
        return self.left, self.questions, self.answers


def with_mentions(content: Any, mentions: Sequence[str]) -> str:
    """Return the text of an assistant message with the mentions appended."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join([text for text in texts if isinstance(text, str)])
    text = content.strip() if isinstance(content, str) else ""
    return "\n\n".join(filter(None, [text, *mentions]))
