"""The events of one model turn, independent of any dialect.

A :class:`Frame` pairs the events of one wire message with the exact bytes of the message, so a writer of the
same wire can forward the bytes instead of encoding them again.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from proxy.base.caches import value_bytes
from proxy.base.errors import ToolErrorCode
from proxy.base.values import value_class


class FinishReason(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    PAUSE = "pause"
    """The turn only pauses, to be continued, as Anthropic's ``pause_turn`` does."""
    ERROR = "error"
    """The server broke the turn off, or said something that :func:`read_finish` does not know."""

    @property
    def is_complete(self) -> bool:
        """Whether the model wrote all that it meant to write, so that its calls may run (rule W7)."""
        return self is _STOP or self is _TOOL_CALLS or self is _PAUSE


_STOP, _TOOL_CALLS, _PAUSE = FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.PAUSE

_READ: Final[Mapping[FinishReason, str]] = {
    FinishReason.STOP: "stop stop_sequence end_turn eos eos_token complete completed finish_reason_stop load "
    "unload",
    FinishReason.TOOL_CALLS: "tool_calls tool_call tool_use function_call",
    FinishReason.LENGTH: "length max_tokens max_output_tokens model_length model_context_window_exceeded "
    "finish_reason_max_tokens",
    FinishReason.CONTENT_FILTER: "content_filter content_filtered refusal guardrail_intervened safety "
    "recitation blocklist prohibited_content spii",
    FinishReason.PAUSE: "pause_turn",
}
"""The words of all dialects in lower case: gateways mix them, and none means two things.

Sources: the API references of OpenAI (``finish_reason``, ``incomplete_details.reason``), Anthropic and AWS
Bedrock Converse (``stop_reason``), Mistral (``model_length``), Google Gemini (``FinishReason``, which some
gateways pass on in capitals) and Ollama (``done_reason``); Text Generation Inference (``eos_token``).
All others break a turn off, such as ``abort`` of vLLM and SGLang, ``error`` of OpenRouter, or Gemini's
``MALFORMED_FUNCTION_CALL``; so does a word that nobody knows.
"""

_WORDS: Final = {word: reason for reason, words in _READ.items() for word in words.split()}


def read_finish(word: str) -> FinishReason:
    """Return the reason that a server's word means, whatever its case; an unknown word is an ``ERROR``."""
    return _WORDS.get(word) or _WORDS.get(word.lower(), FinishReason.ERROR)


def aborted(word: str) -> dict[str, Any]:
    """Return the error object for a turn that ended with a word that means ``ERROR``."""
    said = "".join(char for char in word[:64] if char.isprintable())
    return {
        "message": f'The upstream broke off its answer with the finish reason "{said}".',
        "type": "upstream_error",
        "code": "upstream_broken",
    }


class FinishWords(Struct, frozen=True):
    """The words that one dialect writes.

    ``words`` has one for each reason but ``ERROR``, after which the client gets an error. ``others`` are
    more words of the dialect, which a stream of the proxy's own repeats.
    """

    words: Mapping[FinishReason, str]
    others: frozenset[str] = frozenset()

    def write(self, reason: FinishReason | None, said: str | None = None) -> str:
        """Return the word for a reason; with ``None``, and if it means the same, the upstream's own.

        ``said`` is the upstream's own word. A word that the dialect does not have is never written.
        """
        meant = read_finish(said) if said else FinishReason.STOP
        if said in self.others and reason in (None, meant):
            return said
        return self.words[meant if reason is None else reason]


SEARCH_TOOLS: Final = "core__search_tools"
"""The tool that finds tools. The proxy offers it itself, so no setting of the policy has to allow it."""

RUN_PROGRAM: Final = "core__run_program"
"""The tool that runs programs. The proxy offers it itself, too."""

PROXY_TOOLS: Final[Mapping[str, str]] = {SEARCH_TOOLS: "tools.search", RUN_PROGRAM: "tools.programs"}
"""The tools that the proxy offers by itself, with the setting of each. They reach nothing but what the
request offers."""


MIDDLE_LEFT_OUT: Final = "\n[toolrelay: the result was "
"""The beginning of the line in a result that is too large, where its middle was left out."""

GENERATE_IMAGE: Final = "images__generate"
"""The tool that makes images. It is offered only to clients that see them, or by its name."""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A server tool as a model sees it. ``parameters`` is a JSON Schema of type object.

    ``written`` caches its serialized forms for upstreams, by form, so that each wire writes it once.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False
    written: dict[str, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)


class ToolDefinitions(tuple[ToolDefinition, ...]):
    """Server tools as a model sees them, in the order of their names; others may follow in any order.

    ``names`` are their names. ``written`` caches them serialized and joined, by form: most requests are
    offered the same tools.
    """

    names: frozenset[str]
    written: dict[str, bytes]

    def __new__(cls, tools: Iterable[ToolDefinition] = ()) -> "ToolDefinitions":
        if isinstance(tools, ToolDefinitions):
            return tools
        return cls._in_order(sorted(tools, key=attrgetter("name")))

    @classmethod
    def _in_order(cls, tools: Iterable[ToolDefinition]) -> "ToolDefinitions":
        made = super().__new__(cls, tools)
        made.names, made.written = frozenset([tool.name for tool in made]), {}
        return made

    def followed_by(self, tools: Iterable[ToolDefinition]) -> "ToolDefinitions":
        """Return these tools in their order, and then others in theirs."""
        return self._in_order([*self, *tools])

    def less(self, names: Collection[str]) -> "ToolDefinitions":
        """Return the tools whose names are not among these, in their order."""
        return self._in_order([tool for tool in self if tool.name not in names])

    def joined(self, form: str, write: Callable[[ToolDefinition], bytes]) -> bytes:
        """Return them as elements of a JSON array, as ``write`` serializes each of them."""
        joined = self.written.get(form)
        if joined is None:
            joined = self.written[form] = b",".join(map(write, self))
        return joined

    @property
    def kept_bytes(self) -> int:
        """The most memory that :attr:`written` takes, for the forms of two dialects."""
        return sum(2 * (300 + len(tool.description) + value_bytes(tool.parameters)) for tool in self)


@value_class
class ToolCall:
    """One assembled call of one turn.

    ``call_id`` is the upstream's own id, repaired only if it was blank or repeated (rule W8). ``arguments``
    is the raw JSON text that the model produced, not yet parsed. ``index`` is the position among the turn's
    calls, dense from 0. ``item_id`` is the Responses item id, if any. ``legacy`` marks a Chat
    ``function_call``, whose result refers to no id. ``native`` is the call as the upstream sent it. It is
    for the record alone; no decision depends on it.
    """

    call_id: str
    name: str
    arguments: str
    index: int
    item_id: str = ""
    legacy: bool = False
    native: str = field(default="", repr=False, compare=False)

    def to_run(self, name: str, native: str) -> "ToolCall":
        """Return the same call with the id of its tool as ``name``, and the text to record as ``native``."""
        return ToolCall(self.call_id, name, self.arguments, self.index, self.item_id, self.legacy, native)


@value_class
class ResultImage:
    """An image of a tool's result, checked and within its limits.

    ``url`` is a ``data:`` URL in base64 with ``size`` bytes of ``media_type``, or an ``https:`` address that
    the host of the model fetches. For an address ``size`` is 0 and ``media_type`` may be empty.
    """

    url: str = field(repr=False)
    media_type: str
    size: int
    title: str = ""

    @property
    def words(self) -> str:
        """A description of the image for a model, in one line."""
        facts = [self.media_type, f"{self.size} bytes" if self.size else self.url]
        title = f'"{self.title}" ' if self.title else ""
        return f"{title}({', '.join(fact for fact in facts if fact)})"


def left_out(words: str, why: str = "only text can be passed on") -> str:
    """Return the line that replaces an image; ``words`` are :attr:`ResultImage.words`."""
    return f"[toolrelay: an image {words} was left out; {why}]"


MOST_SOURCES = 16
"""The most images of a conversation that one call gets; OpenAI's edits take as many."""


class SourceImage(Struct, frozen=True):
    """An image with its media type, such as ``image/png``."""

    media_type: str
    data: bytes


class SourceImages(Struct, frozen=True):
    """Images in the order of the conversation, and the mask that says where the first one may change."""

    images: Sequence[SourceImage] = ()
    mask: SourceImage | None = None


ImageSource = Callable[[int], Awaitable[SourceImages]]
"""Returns the newest images of the conversation, as many as are asked for; with 0 those of the newest message
or result that has any. Raises :class:`~proxy.base.errors.ToolFailure` for images that cannot be used."""


@value_class
class ToolProgress:
    """The progress of a call: ``done`` of ``total``, which is ``None`` if nobody knows it.

    ``message`` is the tool's own text about it. It may come from an outside source, so only readers of the
    result may see it. ``inner`` is a call that the tool, an agent, made itself. ``image`` is the image so
    far, and ``facts`` are its ``size``, ``quality``, ``background`` and ``output_format`` if they are known.
    """

    done: float
    total: float | None = None
    message: str = field(default="", repr=False)
    inner: "InnerCall | None" = None
    image: ResultImage | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)


class ToolResult(Struct, frozen=True):
    """The result of a call.

    ``content`` is the text for the model: the tool's full output, or for a failure the JSON object ``{"ok":
    false, "error_code": …, "message": …}``. ``images`` belong to it; a wire that cannot carry them writes a
    note in their place. ``redacted`` is what everyone but the model may see. ``milliseconds`` is the
    duration of the call, 0 if nothing ran. ``cost`` is in billionths of the currency of the prices, 0 if the
    tool has no price or did not run. ``awaits_approval`` says that the call is not complete: it
    continues after a person has decided about calls that it made itself.
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
    awaits_approval: bool = False
    cost: int = 0

    def without_images(self) -> "ToolResult":
        """Return the same result with text in place of its images, as it is stored for a repeated
        request."""
        if not self.images:
            return self
        words = [left_out(image.words, "it was given to an earlier try") for image in self.images]
        return replace(self, content="\n".join(part for part in (self.content, *words) if part), images=())


class InnerCall(Struct, frozen=True):
    """A call that an agent makes: it starts if ``result`` is ``None``, else it has ended.

    ``arguments`` and ``result`` are redacted.
    """

    call: ToolCall
    arguments: Any
    result: ToolResult | None = None


class Usage(Struct, frozen=True):
    """The tokens of one turn. ``native`` is the upstream's own usage object with all its fields.

    ``cached_tokens`` are those of ``input_tokens`` that the upstream had cached, ``cache_write_tokens`` those
    that it wrote to its cache. ``reasoning_tokens`` are those of ``output_tokens`` that the model spent on
    reasoning.
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    native: Mapping[str, Any] = msgspec.field(default_factory=dict)
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def all_tokens(self) -> int:
        """The tokens that count against a limit, even if the upstream gives no total."""
        return max(self.total_tokens, self.input_tokens + self.output_tokens)


class TurnStarted(Struct, frozen=True):
    """The upstream sent the id of its response."""

    id: str
    model: str


class TextDelta(Struct, frozen=True):
    """Text of the answer."""

    text: str


class ReasoningDelta(Struct, frozen=True):
    """Text of the model's reasoning."""

    text: str


class RefusalDelta(Struct, frozen=True):
    """Text of a refusal."""

    text: str


@value_class
class CitationAdded:
    """A source of the answer's text. It comes after the text that it belongs to.

    ``start`` and ``end`` delimit that text, in characters of the turn's whole text: all of its
    :class:`TextDelta` joined. ``end`` is not greater than ``start`` if the upstream does not give the
    range. ``url`` is the address of the source, empty if only the upstream's dialect has a form for it.
    ``cited`` is text of the source itself.
    """

    start: int
    end: int
    url: str
    title: str = ""
    cited: str = field(default="", repr=False)


class ToolCallStarted(Struct, frozen=True):
    """A call whose name is certain. ``seq`` is its place in the turn, dense from 0."""

    seq: int
    call_id: str
    name: str
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ToolCallDelta(Struct, frozen=True):
    """A piece of a call's arguments. Sent only after its :class:`ToolCallStarted`."""

    seq: int
    arguments: str
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ToolCallFinished(Struct, frozen=True):
    """A call is complete. ``call.arguments`` are its final arguments."""

    seq: int
    call: ToolCall


class UsageReported(Struct, frozen=True):
    """The tokens so far in this turn. Only the last report of a turn counts."""

    usage: Usage


class TurnFinished(Struct, frozen=True):
    """The model gave its reason to stop. ``word`` is the upstream's own word for ``ERROR``, else empty."""

    reason: FinishReason
    word: str = ""


class TurnFailed(Struct, frozen=True):
    """The upstream reported an error inside its response. ``error`` is its error object."""

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
    """Return whether a turn only pauses, to be continued."""
    for event in events:
        if type(event) is TurnFinished:
            return event.reason is FinishReason.PAUSE
    return False


def finished(word: str) -> TurnFinished:
    """Return the event for a server's word for why the model stopped."""
    return _FINISHED.get(word) or _FINISHED.get(word.lower()) or TurnFinished(FinishReason.ERROR, word)


_FINISHED: Final = {word: TurnFinished(reason) for word, reason in _WORDS.items()}


class Frame(Struct, frozen=True):
    """One wire message: its exact bytes, its decoded payload, and the events that it means.

    ``payload`` is ``None`` for a comment, an end mark, or data that is not a JSON object. ``undecided``
    counts the tool calls that have begun but whose owner is not certain yet. ``count`` is the number of
    messages whose events the frame reports. The proxy may send messages that differ only in their text
    before it reports their events. Then a frame with count 0 has the bytes, and a later one has no bytes,
    their count, and a payload in which their texts are joined.
    """

    raw: bytes
    payload: dict[str, Any] | None = None
    events: tuple[TurnEvent, ...] = ()
    is_end_mark: bool = False
    undecided: int = 0
    count: int = 1
