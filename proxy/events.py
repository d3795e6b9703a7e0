"""The events of one model turn, independent of any dialect.

A :class:`Frame` pairs the events decoded from one wire message with that message's exact bytes,
so that a writer of the same wire can forward instead of encode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from proxy.errors import ToolErrorCode
from proxy.values import value_class

__all__ = [
    "CitationAdded",
    "Frame",
    "InnerCall",
    "ReasoningDelta",
    "RefusalDelta",
    "ResultImage",
    "TextDelta",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallFinished",
    "ToolCallStarted",
    "ToolDefinition",
    "ToolProgress",
    "ToolResult",
    "TurnEvent",
    "TurnFailed",
    "TurnFinished",
    "TurnStarted",
    "Usage",
    "UsageReported",
    "left_out",
    "pauses",
]


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A server tool as a model sees it.  ``parameters`` is a JSON Schema of type object.

    ``written`` is how it was written for upstreams, by the form: each wire does that once.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False
    written: dict[str, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)


@value_class
class ToolCall:
    """One assembled call of one turn.

    ``call_id`` is the upstream's own id, repaired only where it was blank or repeated (rule W8).
    ``arguments`` is the raw JSON text the model produced, not yet parsed.  ``index`` is the
    position among the turn's calls, dense from 0.  ``item_id`` is the Responses item id, if any.
    ``legacy`` marks a Chat ``function_call``, whose result has no id to go back to.  ``native`` is the
    call as the upstream sent it, for the record alone: nothing is decided by it.
    """

    call_id: str
    name: str
    arguments: str
    index: int
    item_id: str = ""
    legacy: bool = False
    native: str = field(default="", repr=False, compare=False)

    def to_run(self, name: str, native: str) -> "ToolCall":
        """The same call under the id of its tool, with what the record is to have of it."""
        return ToolCall(self.call_id, name, self.arguments, self.index, self.item_id, self.legacy, native)


@value_class
class ResultImage:
    """An image of a tool's result, checked and within its bounds.

    ``url`` is a ``data:`` URL in base64 of ``size`` bytes of ``media_type``, or an ``https:`` address
    that whoever runs the model asks for; then ``size`` is 0 and ``media_type`` may be empty.
    """

    url: str = field(repr=False)
    media_type: str
    size: int
    title: str = ""

    @property
    def words(self) -> str:
        """One line for a model."""
        facts = [self.media_type, f"{self.size} bytes" if self.size else self.url]
        title = f'"{self.title}" ' if self.title else ""
        return f"{title}({', '.join(fact for fact in facts if fact)})"


def left_out(words: str, why: str = "only text can be passed on") -> str:
    """The line that takes an image's place; ``words`` are :attr:`ResultImage.words`."""
    return f"[toolrelay: an image {words} was left out; {why}]"


@value_class
class ToolProgress:
    """How far a call has come: ``done`` of ``total``, which is ``None`` where nobody knows it.

    ``message`` is a tool's own word on it, and may be a stranger's: it is for whoever sees the result.
    ``inner`` is a call that the tool, an agent, has made itself.
    """

    done: float
    total: float | None = None
    message: str = field(default="", repr=False)
    inner: "InnerCall | None" = None


@value_class
class ToolResult:
    """What a call came to.

    ``content`` is the text for the model: the tool's full output, or for a failure the JSON
    object ``{"ok": false, "error_code": …, "message": …}``.  ``images`` belong to it; a wire that
    cannot carry them says so in their place.  ``redacted`` is what everyone but the model may see.
    ``milliseconds`` is the time the call took, 0 where nothing ran.  ``waits`` says that the call has not
    come to its end: it goes on once a person has decided about what it called itself.
    """

    call_id: str
    ok: bool
    content: str
    error_code: ToolErrorCode | None = None
    safe_message: str = ""
    truncated: bool = False
    redacted: Any = None
    arguments_redacted: Any = None
    milliseconds: float = 0.0
    images: tuple[ResultImage, ...] = ()
    waits: bool = False

    def to_keep(self) -> "ToolResult":
        """The same with words for its images, as it is kept for a repeat of its request."""
        if not self.images:
            return self
        words = [left_out(image.words, "it was given to an earlier try") for image in self.images]
        return replace(self, content="\n".join(part for part in (self.content, *words) if part), images=())


@value_class
class InnerCall:
    """A call that an agent has made: it starts, or has come to ``result``.  Both are redacted."""

    call: ToolCall
    arguments: Any
    result: ToolResult | None = None


@value_class
class Usage:
    """Tokens of one turn.  ``native`` is the upstream's own usage object, every field of it.

    ``cached_tokens`` are those of ``input_tokens`` that the upstream had read before, ``reasoning_tokens``
    those of ``output_tokens`` that the model spent on reasoning."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    native: Mapping[str, Any] = field(default_factory=dict)
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def all_tokens(self) -> int:
        """What counts against a limit, also where the upstream gives no total."""
        return max(self.total_tokens, self.input_tokens + self.output_tokens)


@value_class
class TurnStarted:
    """The upstream named its response."""

    id: str
    model: str


@value_class
class TextDelta:
    """Text of the answer."""

    text: str


@value_class
class ReasoningDelta:
    """Text of the model's reasoning."""

    text: str


@value_class
class RefusalDelta:
    """Text of a refusal."""

    text: str


@value_class
class CitationAdded:
    """A source of the answer's text, told once that text has been told.

    ``start`` and ``end`` bound what it is the source of, in characters of the turn's whole text: all of its
    :class:`TextDelta` joined.  ``end`` is not greater than ``start`` where the upstream does not say.
    ``url`` is the address of the source, empty where only the upstream's dialect has a form for it.
    ``cited`` are words of the source itself.
    """

    start: int
    end: int
    url: str
    title: str = ""
    cited: str = field(default="", repr=False)


@value_class
class ToolCallStarted:
    """A call whose name is known for certain.  ``seq`` is its place in the turn, dense from 0."""

    seq: int
    call_id: str
    name: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@value_class
class ToolCallDelta:
    """A piece of a call's arguments.  Sent only after its :class:`ToolCallStarted`."""

    seq: int
    arguments: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@value_class
class ToolCallFinished:
    """A call is whole.  ``call.arguments`` is the last word on its arguments."""

    seq: int
    call: ToolCall


@value_class
class UsageReported:
    """Tokens so far in this turn; the last report of a turn is the one that counts."""

    usage: Usage


@value_class
class TurnFinished:
    """The model said why it stopped, in the neutral words of the Chat wire."""

    reason: str


@value_class
class TurnFailed:
    """The upstream reported an error inside its response.  ``error`` is its error object."""

    error: Mapping[str, Any]


TurnEvent = (
    TurnStarted
    | TextDelta
    | ReasoningDelta
    | RefusalDelta
    | CitationAdded
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallFinished
    | UsageReported
    | TurnFinished
    | TurnFailed
)


def pauses(events: Sequence[TurnEvent]) -> bool:
    """Whether a turn stops here only so that it is gone on with, as Anthropic's ``pause_turn`` does."""
    for event in events:
        if type(event) is TurnFinished:
            return event.reason == "pause"
    return False


@value_class
class Frame:
    """One wire message: its exact bytes, its decoded payload, what it means.

    ``payload`` is ``None`` for a comment, an end mark, or data that is not a JSON object.
    ``undecided`` counts the tool calls that have begun but whose owner is not certain yet.
    ``count`` is how many messages it tells of.  Messages that are alike but for their text may go out
    before they are told: then a frame of none has the bytes, and one of many has no bytes and a payload
    in which their texts are joined.
    """

    raw: bytes
    payload: dict[str, Any] | None = None
    events: tuple[TurnEvent, ...] = ()
    is_end_mark: bool = False
    undecided: int = 0
    count: int = 1
