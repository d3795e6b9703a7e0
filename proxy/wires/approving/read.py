"""Removes questions and answers about approvals from a request body, in each dialect."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from proxy.json.splice import elements, join_array, join_object, members
from proxy.wires.approving.answers import leave_out_function
from proxy.wires.approving.items import read_items
from proxy.wires.approving.messages import read_anthropic, read_chat, read_ollama
from proxy.wires.approving.shown import (
    ApprovalAnswer,
    ApprovalMessages,
    ApprovalQuestion,
    may_concern_approvals,
)

__all__ = ["read_approvals"]

ApprovalConversation = tuple[list[bytes], list[ApprovalQuestion], list[ApprovalAnswer]]
"""The raw messages or items that are left, and the questions and answers that were removed."""

_READERS: Final[Mapping[str, Callable[[list[Mapping[str, Any]], list[bytes]], ApprovalConversation]]] = (
    MappingProxyType({"chat": read_chat, "anthropic": read_anthropic, "ollama": read_ollama})
)
_ELSEWHERE: Final = ("previous_response_id", "conversation")
"""Fields of a Responses request that refer to the beginning of its conversation."""


def read_approvals(dialect: str, raw: bytes, payload: Mapping[str, Any]) -> ApprovalMessages | None:
    """Return the questions and answers in a request body; ``None`` if it has none, as nearly always.

    ``payload`` is ``raw``, parsed. Raises :class:`RequestError` (400) for an invalid answer.
    """
    has_items = dialect == "responses"
    if not (has_items or dialect in _READERS) or not may_concern_approvals(raw):
        return None
    field = "input" if has_items else "messages"
    parts = members(raw)
    declares = leave_out_function(parts, payload)
    items = payload.get(field)
    questions: list[ApprovalQuestion] = []
    answers: list[ApprovalAnswer] = []
    if isinstance(items, list) and all(isinstance(item, dict) for item in items):
        raws = elements(parts[field])
        if has_items:
            whole = not any(payload.get(field) for field in _ELSEWHERE)
            left, questions, answers = read_items(items, raws, whole=whole)
        else:
            left, questions, answers = _READERS[dialect](items, raws)
        if questions or answers:
            parts[field] = join_array(left)
    if not (declares or questions or answers):
        return None
    return ApprovalMessages(join_object(parts), declares, questions, answers)
