"""Removes questions and answers about approvals from a request body, in the form of its dialect."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from proxy.json.splice import elements, join_array, join_object, members
from proxy.records.approvals import mention
from proxy.wires.approving.answers import leave_out_function
from proxy.wires.approving.shown import (
    ApprovalAnswer,
    ApprovalMessages,
    ApprovalQuestion,
    may_concern_approvals,
)

ApprovalConversation = tuple[list[bytes], list[ApprovalQuestion], list[ApprovalAnswer]]
"""The raw messages or items that are left, and the questions and answers that were removed."""


def _joined(visible: str, mentions: Sequence[str]) -> str:
    return "\n\n".join([*filter(None, [visible.strip()]), *mentions])


class ApprovalForm(Struct, frozen=True):
    """How the conversations of a dialect hold questions and answers about approvals.

    ``read`` takes the messages or items, their bytes and the whole body. ``field`` is the member of the body
    that has them. ``visible`` joins the text of an answer and the mentions of questions.
    """

    read: Callable[[Sequence[Mapping[str, Any]], Sequence[bytes], Mapping[str, Any]], ApprovalConversation]
    field: str = "messages"
    visible: Callable[[str, Sequence[str]], str] = _joined


def read_approvals(
    form: ApprovalForm | None, raw: bytes, payload: Mapping[str, Any]
) -> ApprovalMessages | None:
    """Return the questions and answers in a request body; ``None`` if it has none, as nearly always.

    ``payload`` is ``raw``, parsed. Raises :class:`RequestError` (400) for an invalid answer.
    """
    if form is None or not may_concern_approvals(raw):
        return None
    parts = members(raw)
    declares = leave_out_function(parts, payload)
    items = payload.get(form.field)
    questions: list[ApprovalQuestion] = []
    answers: list[ApprovalAnswer] = []
    if isinstance(items, list) and all(isinstance(item, dict) for item in items):
        left, questions, answers = form.read(items, elements(parts[form.field]), payload)
        if questions or answers:
            parts[form.field] = join_array(left)
    if not (declares or questions or answers):
        return None
    return ApprovalMessages(join_object(parts), declares, questions, answers)


def visible_with(form: ApprovalForm | None, visible: str, approval_ids: Sequence[str]) -> str:
    """Return the text of an answer as its client sends it back, with mentions in place of the questions.

    ``visible`` is the text that the client saw, as the writer of its dialect returns it.
    """
    visible_text = _joined if form is None else form.visible
    return visible_text(visible, [mention(approval_id) for approval_id in approval_ids])
