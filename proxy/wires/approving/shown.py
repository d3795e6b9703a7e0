"""Shows a waiting call to a client that can be asked within the conversation.

There are two forms. A client that chose tools of a server with an ``mcp`` tool gets items of the type
``mcp_approval_request``. A client that declared the function ``toolrelay__approve`` gets a call of it.

Upstreams see neither. Before the proxy reads a request, it replaces each shown question by a fixed text
(:func:`~proxy.records.approvals.mention`), which leads to the held turn, and removes each answer.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

APPROVE: Final = "toolrelay__approve"
"""The function that a client declares so that the proxy can ask it by calling this function."""

_ITEM: Final = re.compile(r"mcpr_toolrelay([0-9a-f]{32})")
_CALL: Final = re.compile(r"call_(appr_[0-9a-f]{32})")
_SIGNS: Final = (APPROVE.encode(), b"mcpr_toolrelay")
_PART_OF_SIGNS: Final = b"toolrelay"
_SIGN_OF_CALL: Final = b"call_appr_"


def may_concern_approvals(raw: bytes) -> bool:
    """Return whether a request body may declare the function, or hold a question or an answer."""
    # Each search through a long body takes a tenth of a millisecond.
    if raw.find(_SIGN_OF_CALL) >= 0:
        return True
    return raw.find(_PART_OF_SIGNS) >= 0 and any(sign in raw for sign in _SIGNS)


def call_id_of(approval_id: str) -> str:
    """Return the id of the call that asks about an approval."""
    return f"call_{approval_id}"


def item_id_of(approval_id: str) -> str:
    """Return the id of the item that asks about an approval. Its prefix marks it as the proxy's own."""
    return "mcpr_toolrelay" + approval_id.removeprefix("appr_")


def approval_of_call(call_id: object) -> str:
    """Return the id of the approval that the call with this id asks about; ``""`` for any other call."""
    match = _CALL.fullmatch(call_id) if isinstance(call_id, str) else None
    return match[1] if match is not None else ""


def approval_of_item(item_id: object) -> str:
    """Return the id of the approval that the item with this id asks about; ``""`` for any other item."""
    match = _ITEM.fullmatch(item_id) if isinstance(item_id, str) else None
    return f"appr_{match[1]}" if match is not None else ""


class ApprovalQuestion(Struct, frozen=True):
    """A question that a client sends back.

    ``at`` is its path in the body. ``tool`` and ``arguments`` are what the client sends; ``None`` if it
    only refers to the question.
    """

    approval_id: str
    at: str
    tool: Any = None
    arguments: Any = None


class ApprovalAnswer(Struct, frozen=True):
    """A client's answer about one approval.

    ``at`` is its path in the body. ``is_new`` means that no model message follows, so the answer may still
    need processing. ``by_item`` distinguishes the two forms. ``arguments`` replace the model's arguments,
    and ``grant`` says which later calls may run, unless they are ``None``; both are as the client wrote
    them.
    """

    approval_id: str
    at: str
    is_new: bool
    by_item: bool
    approve: bool
    reason: str = ""
    arguments: Any = None
    grant: Any = None


class ApprovalMessages(Struct, frozen=True):
    """What a request contains about approvals.

    ``raw`` is its body without all of that. ``declares`` means that the client declared the function.
    """

    raw: bytes
    declares: bool
    questions: Sequence[ApprovalQuestion] = ()
    answers: Sequence[ApprovalAnswer] = ()
