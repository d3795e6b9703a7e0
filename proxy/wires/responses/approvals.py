"""Reads questions and answers about approvals from the items of the Responses API.

Source: OpenAI's API reference, "MCP approval request" and "MCP approval response".
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.errors import RequestError
from proxy.records.approvals import MOST_REASON, mention
from proxy.wires.approving.shown import (
    APPROVE,
    ApprovalAnswer,
    ApprovalConversation,
    ApprovalForm,
    ApprovalQuestion,
    answer_of,
    approval_of_call,
    approval_of_item,
    loaded,
)
from proxy.wires.responses.items import is_model_item, is_reference

_ELSEWHERE: Final = ("previous_response_id", "conversation")
"""Fields that refer to the beginning of the conversation."""

Item = Mapping[str, Any]


def _read(items: Sequence[Item], raws: Sequence[bytes], payload: Mapping[str, Any]) -> ApprovalConversation:
    """Read the items; see :class:`~proxy.wires.approving.shown.ApprovalForm`.

    If the items are the whole conversation, an answer whose question is missing stands for the question too:
    the Vercel AI SDK sends the answer alone if nothing is stored.

    Raises :class:`~proxy.base.errors.RequestError` (400) for an answer that is neither yes nor no.
    """
    whole = not any(payload.get(field) for field in _ELSEWHERE)
    last = max([at for at, item in enumerate(items) if is_model_item(item)], default=-1)
    left: list[bytes] = []
    questions: list[ApprovalQuestion] = []
    seen: set[str] = set()
    answers: list[ApprovalAnswer] = []
    # Whether an item left out since the last question shows that the next question begins another response.
    apart = False
    for place, (item, raw) in enumerate(zip(items, raws, strict=True)):
        at, kind = f"input[{place}]", item.get("type")
        if (question := _question(item, at)) is not None:
            if question.approval_id not in seen:
                seen.add(question.approval_id)
                left.append(_mention(question.approval_id, begins=apart))
                apart = False
            questions.append(question)
        elif kind == "mcp_approval_response" and (asked := approval_of_item(item.get("approval_request_id"))):
            answers.append(_response(item, asked, at, is_new=place > last))
            if whole and asked not in seen:
                # Answers alone do not show which approvals one response asked for together.
                seen.add(asked)
                left.append(_mention(asked, begins=apart))
                apart = False
            else:
                apart = True
        elif kind == "mcp_call" and approval_of_item(item.get("approval_request_id")) in seen:
            # The held turn has the call and its result.
            apart = True
        elif kind == "function_call_output" and (asked := approval_of_call(item.get("call_id"))):
            answers.append(ApprovalAnswer(asked, at, place > last, False, *answer_of(item.get("output"))))
            apart = True
        else:
            left.append(raw)
    return left, questions, answers


def _mention(approval_id: str, *, begins: bool) -> bytes:
    """Return the item that replaces a question. If a model's answer ``begins`` with it, it has a status."""
    content = {"type": "output_text", "text": mention(approval_id), "annotations": []}
    status = {"status": "completed"} if begins else {}
    return orjson.dumps({"type": "message", "role": "assistant", "content": [content], **status})


def _question(item: Item, at: str) -> ApprovalQuestion | None:
    """Return the question that an item repeats, whole or by its id; ``None`` for any other item."""
    approval_id = approval_of_item(item.get("id"))
    if approval_id and item.get("type") == "mcp_approval_request":
        return ApprovalQuestion(approval_id, at, item.get("name"), loaded(item.get("arguments")))
    if approval_id and is_reference(item):
        return ApprovalQuestion(approval_id, at)
    approval_id = approval_of_call(item.get("call_id"))
    if approval_id and item.get("type") == "function_call" and item.get("name") == APPROVE:
        arguments = loaded(item.get("arguments"))
        arguments = arguments if isinstance(arguments, dict) else {}
        return ApprovalQuestion(approval_id, at, arguments.get("tool"), arguments.get("arguments"))
    return None


def _response(item: Item, approval_id: str, at: str, *, is_new: bool) -> ApprovalAnswer:
    approve, reason = item.get("approve"), item.get("reason")
    if not isinstance(approve, bool):
        raise RequestError(400, f"{at}.approve must be present, and true or false.", param=f"{at}.approve")
    if reason is not None and (not isinstance(reason, str) or len(reason) > MOST_REASON):
        raise RequestError(
            400,
            f"{at}.reason must be a string of at most {MOST_REASON} characters.",
            param=f"{at}.reason",
        )
    return ApprovalAnswer(approval_id, at, is_new, True, approve, reason or "")


def _visible(visible: str, mentions: Sequence[str]) -> str:
    """Return the text of an answer with mentions; each message counts separately, with its length."""
    return visible + "".join(f"{len(text)}:{text}" for text in mentions)


RESPONSES_APPROVALS: Final = ApprovalForm(_read, "input", _visible)
