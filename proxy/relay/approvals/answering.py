"""Take the decisions that a client makes within its conversation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from proxy.base.errors import RequestError
from proxy.records.approvals import Approval, ApprovalStatus
from proxy.relay.approvals.decisions import Decisions, Verdict
from proxy.relay.approvals.grants import GrantTerms
from proxy.relay.approvals.rules import Decider
from proxy.wires.approving.shown import ApprovalAnswer, ApprovalMessages, ApprovalQuestion

_MOST_ANSWERS: Final = 64
"""The most approvals that one request answers; each is looked up."""


ReadTerms = Callable[[Any, str], GrantTerms]
"""Parses the grant in an answer; the text is its place in the body. Raises ``RequestError`` (400)."""


async def take_answers(
    decisions: Decisions, messages: ApprovalMessages, decider: Decider, read_terms: ReadTerms
) -> None:
    """Record a client's answers; check all of them before the first decision is recorded.

    A client sends its conversation again with each request, including answers that were already taken. So
    only answers after the last message of a model are taken. An answer about a call that has been decided
    changes nothing: the first decision counts.

    Raise :class:`~proxy.base.errors.RequestError`: 400 for too many answers, for contradicting ones, for a
    question that was changed and for an invalid grant; 403 if ``decider`` may not decide; 404 for an unknown
    approval. Raise :class:`~proxy.base.errors.StoreError` if the record fails.
    """
    answers = _one_each([one for one in messages.answers if one.is_new])
    questions = {one.approval_id: one for one in messages.questions}
    open_ones: list[tuple[ApprovalAnswer, Approval, GrantTerms | None]] = []
    for answer in answers.values():
        approval = await decisions.find(answer.approval_id, decider)
        if (question := questions.get(answer.approval_id)) is not None:
            _check_unchanged(question, approval)
        if approval.status is ApprovalStatus.PENDING:
            decider.check(approval, decisions.rules)
            terms = None if answer.grant is None else read_terms(answer.grant, f"{answer.at}.grant")
            open_ones.append((answer, approval, terms))
    for answer, approval, terms in open_ones:
        verdict = Verdict(answer.approve, answer.reason, answer.arguments, terms)
        try:
            await decisions.decide(
                approval.id, verdict, decider, "item" if answer.by_item else "tool message"
            )
        except RequestError as error:
            if error.code != "approval_decided":  # Otherwise another decision was recorded first, and counts.
                raise


def _one_each(answers: Sequence[ApprovalAnswer]) -> Mapping[str, ApprovalAnswer]:
    """Return the answers by approval; the same answer may come twice, a contradicting one may not."""
    found: dict[str, ApprovalAnswer] = {}
    for answer in answers:
        first = found.setdefault(answer.approval_id, answer)
        if first.approve is not answer.approve:
            raise RequestError(
                400,
                f"{first.at} and {answer.at} answer {answer.approval_id} with yes and with no. "
                "Nothing was decided. Send one answer.",
                param=answer.at,
                code="approval_changed",
            )
    if len(found) > _MOST_ANSWERS:
        raise RequestError(
            400,
            f"The request answers {len(found)} approvals. Answer at most {_MOST_ANSWERS} in one request.",
            param=answers[-1].at,
        )
    return found


def _check_unchanged(question: ApprovalQuestion, approval: Approval) -> None:
    """Refuse an answer to a question that differs from the one that was shown."""
    if question.tool is None and question.arguments is None:
        return
    tool = approval.tool
    same_tool = isinstance(question.tool, str) and (
        tool == question.tool or tool.endswith(f"__{question.tool}")
    )
    if not same_tool or question.arguments != approval.arguments_shown:
        raise RequestError(
            400,
            f"{question.at} is not the call that {approval.id} is about: its tool or its arguments were "
            "changed. Nothing was decided. Send the call back as it was shown.",
            param=question.at,
            code="approval_changed",
        )
