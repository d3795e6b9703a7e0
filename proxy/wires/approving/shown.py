"""Shows a waiting call to a client that can be asked withwithin the conversation, and reads the answers.

There are two forms. A client that chose tools of a server with an ``mcp`` tool gets items of the type
``mcp_approval_request``. A client that declared the function ``toolrelay__approve`` gets a call of it.

Upstreams see neither. Before the proxy reads a request, it replaces each shown question by a fixed text
(:func:`~proxy.records.approvals.mention`), which leads to the held turn, and removes each answer.

Only the JSON value ``true`` approves. Libraries also answer for a person whom they never asked: with an
error text, an empty string, or ``"true"`` as a text. All of these refuse.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.json.objects import unambiguous
from proxy.json.splice import elements, join_array, join_object, members
from proxy.records.approvals import mention

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


NO_ANSWER: Final = "The client gave no clear answer."
"""The reason of a refusal for which the client gave none."""
_MOST_BYTES: Final = 256 * 1024
_CHOICES: Final = ("tool_choice", "parallel_tool_calls")


def answer_of(content: object) -> tuple[bool, str, Any, Any]:
    """Return what the result of a call answers: whether it approves, the reason, the arguments that replace
    the model's, and the grant to give.

    The content must be one JSON object without duplicate members, as a text or as the only part of a list.
    """
    answer = loaded(text_of(content))
    if not isinstance(answer, dict) or answer.get("approve") is not True:
        reason = answer.get("reason") if isinstance(answer, dict) and answer.get("approve") is False else None
        return False, reason if isinstance(reason, str) else "" if reason is None else NO_ANSWER, None, None
    if not answer.keys() <= {"approve", "reason", "arguments", "grant"}:
        return False, NO_ANSWER, None, None
    reason, arguments, grant = answer.get("reason"), answer.get("arguments"), answer.get("grant")
    if not isinstance(reason, str | None) or not isinstance(arguments, dict | None):
        return False, NO_ANSWER, None, None
    if not isinstance(grant, dict | None):
        return False, NO_ANSWER, None, None
    return True, reason or "", arguments, grant


def text_of(content: object) -> str:
    """Return a text, or the text of the only part of a list; ``""`` for anything else."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text")
    return content if isinstance(content, str) and len(content) <= _MOST_BYTES else ""


def loaded(text: object) -> Any:
    """Return JSON text as values; ``None`` if it is not JSON or repeats a member."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text, object_pairs_hook=unambiguous)
    except (ValueError, RecursionError):
        return None


def function_name(tool: object) -> object:
    """Return the name of the function in a tool, or in the choice of one, in any dialect."""
    if not isinstance(tool, dict):
        return None
    inner = tool.get("function")
    return inner.get("name") if isinstance(inner, dict) else tool.get("name")


def leave_out_function(parts: dict[str, bytes], payload: Mapping[str, Any]) -> bool:
    """Remove the function from the members of a body. Return whether the client declared it."""
    tools = payload.get("tools")
    if not isinstance(tools, list) or not any(function_name(tool) == APPROVE for tool in tools):
        return False
    raws = zip(tools, elements(parts["tools"]), strict=True)
    left = [raw for tool, raw in raws if function_name(tool) != APPROVE]
    parts["tools"] = join_array(left)
    choice = payload.get("tool_choice")
    chosen = _without(choice, lambda tool: function_name(tool) == APPROVE)
    if chosen is None:
        parts.pop("tool_choice", None)
    elif chosen != choice:
        parts["tool_choice"] = orjson.dumps(chosen)
    if not left:
        for name in ("tools", *_CHOICES):
            parts.pop(name, None)
    return True


def _without(choice: Any, is_ours: Callable[[object], bool]) -> Any:
    """Return a choice of tools without the function; ``None`` if nothing is left."""
    if not isinstance(choice, dict):
        return choice
    if is_ours(choice):
        return None
    kept: dict[str, Any] = {}
    for key, value in choice.items():
        if isinstance(value, list):
            value = [item for item in value if not is_ours(item)]
            if not value and choice[key]:
                return None
        elif isinstance(value, dict):
            value = _without(value, is_ours)
            if value is None:
                return None
        kept[key] = value
    return kept


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
