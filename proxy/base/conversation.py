"""A request to a model as a conversation, independent of any dialect.

A client may speak another dialect than the upstream that answers it. Then the proxy reads the client's
request into a :class:`Conversation`, and writes the body in the upstream's dialect from it. A request that
stays in one dialect needs none of this.

What these classes cannot express stays beside them as :class:`Native`, together with what another dialect
does about it. So nothing is lost without a report. A conversation refers to the request that it was read
from and copies nothing: mappings in it must not be changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any, Final, Literal

from proxy.base.values import value_class

Role = Literal["system", "developer", "user", "assistant", "tool"]

Speaker = Literal["client", "result", "model"]
"""Who brought a text into a conversation: the client, the result of a call, or the model."""
Spoken = tuple[Speaker, str]

Loss = Literal["unneeded", "omitted", "refused"]
"""What another dialect does about something that it cannot express.

``unneeded``: nothing, because the answer is the same without it. ``omitted``: the request is sent without
it, and the loss is reported. ``refused``: the proxy refuses the request.
"""


@value_class
class Native:
    """Something that only the dialect of a request can express.

    ``keys`` is the path to it from the object that holds it, ``path`` from the whole request
    (``messages[2].prefix``). ``value`` is its JSON text. ``loss`` says what other dialects do about it,
    and ``reason`` says why, in one sentence.
    """

    dialect: str
    keys: tuple[str, ...]
    path: str
    value: bytes = field(repr=False)
    loss: Loss
    reason: str


# ---------------------------------------------------------------- parts of messages


@value_class
class Inline:
    """Bytes that are part of the request.

    ``data`` is base64, or plain text if ``is_text``. ``media_type`` is empty if the request gives none.
    """

    media_type: str
    data: str = field(repr=False)
    is_text: bool = False


@value_class
class Remote:
    """An address from which the host of the model fetches the content."""

    url: str


@value_class
class Stored:
    """A file that a provider stores. ``file_id`` is its id there; ``keeper`` says which provider's id it
    is."""

    file_id: str
    keeper: str


Source = Inline | Remote | Stored


@value_class
class Text:
    """Text of a message; never empty."""

    text: str
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


@value_class
class Image:
    """A picture. ``detail`` is how closely the model looks at it; empty if the model decides."""

    source: Source
    detail: str = ""
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


@value_class
class File:
    """A document. ``name`` is its file name or title; ``context`` is information about it beside its
    content."""

    source: Source
    name: str = ""
    context: str = ""
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


@value_class
class Audio:
    """Sound: ``data`` in base64, of a ``format`` such as ``wav``."""

    data: str = field(repr=False)
    format: str
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


@value_class
class Reasoning:
    """The reasoning of a model before its answer or its calls.

    ``text`` is the reasoning itself, ``summary`` its summary. ``signature`` is the provider's signature of
    the text, ``redacted`` replaces a text that nobody may read, and ``encrypted`` is a text that only the
    upstream can read. Each is valid only at the provider that made it.
    """

    text: str = ""
    summary: tuple[str, ...] = ()
    signature: str = field(default="", repr=False)
    redacted: str = field(default="", repr=False)
    encrypted: str = field(default="", repr=False)
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


@value_class
class Refusal:
    """The text with which the model refused."""

    text: str
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


@value_class
class ToolCallPart:
    """A call of a tool.

    ``arguments`` is JSON text as the model wrote it; for a ``custom`` tool it is any text.
    """

    call_id: str
    name: str
    arguments: str
    custom: bool = False
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


@value_class
class NativePart:
    """A whole part or item that only one dialect knows, such as a hosted call or a video.

    ``kind`` is its type in that dialect. Its only :class:`Native` is the part itself, with no keys.
    """

    kind: str
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


Content = Text | Image | File | Audio | Refusal | NativePart
"""The content of a message beside reasoning and calls, and the content of a tool's result."""


@value_class
class ToolResultPart:
    """The result of a call. ``name`` is the tool's name, empty if the request does not repeat it."""

    call_id: str
    parts: tuple[Content, ...]
    is_error: bool = False
    name: str = ""
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


Part = Content | Reasoning | ToolCallPart | ToolResultPart


@value_class
class Message:
    """One message of the conversation.

    The results of a turn's calls are the parts of one message with the role ``tool`` that follows the turn.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


# ---------------------------------------------------------------- tools


@value_class
class FunctionTool:
    """A tool whose arguments are an object.

    ``parameters`` is a JSON Schema, ``None`` if the tool takes none. ``strict`` is ``None`` if the request
    leaves it to the default of its dialect.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


@value_class
class Grammar:
    """The grammar of a custom tool's input: a ``definition`` in the syntax ``lark`` or ``regex``."""

    syntax: str
    definition: str


@value_class
class CustomTool:
    """A tool whose input is text."""

    name: str
    description: str = ""
    grammar: Grammar | None = None
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


@value_class
class NativeTool:
    """A tool that only one dialect knows, such as one that the provider runs itself."""

    kind: str
    native: tuple[Native, ...] = field(default=(), kw_only=True)
    at: str = field(default="", kw_only=True, compare=False, repr=False)


Tool = FunctionTool | CustomTool | NativeTool


@value_class
class ToolChoice:
    """Which tools the model may or must call.

    ``auto``, ``none`` and ``required`` apply to all tools. ``named`` forces the one in ``names``.
    ``allowed`` limits the calls to ``names``; the model must call one of them if ``forced``.
    """

    kind: Literal["auto", "none", "required", "named", "allowed"]
    names: tuple[str, ...] = ()
    forced: bool = False


# ---------------------------------------------------------------- what is asked for


@value_class
class Sampling:
    """How the model chooses the next token; ``None`` means the upstream's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[str, Any] | None = None


@value_class
class OutputFormat:
    """The format that the answer must have: any JSON object, or one that fits ``schema``.

    ``name`` and ``description`` tell the model what the schema describes.
    """

    kind: Literal["json_object", "json_schema"]
    schema: Mapping[str, Any] | None = None
    name: str = ""
    description: str = ""
    strict: bool | None = None


@value_class
class Output:
    """What the answer must be like. ``max_tokens`` includes the reasoning."""

    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    format: OutputFormat | None = None
    verbosity: str | None = None
    choices: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


@value_class
class ReasoningSettings:
    """How much the model reasons, and how much of its reasoning the client gets.

    ``effort`` is one of ``none``, ``minimal``, ``low``, ``medium``, ``high``, ``xhigh``, ``max``.
    ``summary`` asks for a summary of the reasoning: ``auto``, ``concise`` or ``detailed``.
    """

    effort: str | None = None
    summary: str | None = None


@value_class
class Service:
    """What the client asks of the provider rather than of the model.

    ``store`` is ``None`` if the request leaves it to the default of its dialect.
    """

    user: str | None = None
    safety_identifier: str | None = None
    metadata: Mapping[str, Any] | None = None
    store: bool | None = None
    tier: str | None = None
    cache_key: str | None = None
    cache_retention: str | None = None
    moderation: Mapping[str, Any] | None = None


@value_class
class Conversation:
    """A request to continue a conversation.

    ``system`` holds the system and developer messages that come before any other message; later ones stay in
    their place in ``messages``. ``stream_usage`` asks for usage in the stream, ``stream_padding`` for
    padding of its events. ``max_tool_calls`` limits the calls of the whole run. ``truncate`` lets the
    upstream drop the beginning of a conversation that is too long for the model. ``names`` maps an aspect
    (see :data:`ASPECTS`) to the field of the client's request that it was read from.
    """

    model: str
    messages: tuple[Message, ...]
    system: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    sampling: Sampling = Sampling()
    output: Output = Output()
    reasoning: ReasoningSettings = ReasoningSettings()
    service: Service = Service()
    truncate: bool | None = None
    stream: bool = False
    stream_usage: bool = False
    stream_padding: bool | None = None
    native: tuple[Native, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


def _aspects(kind: type[Any], prefix: str = "") -> Iterable[str]:
    for member in fields(kind):
        inner = member.default
        if is_dataclass(inner) and not isinstance(inner, type):
            yield from _aspects(type(inner), f"{prefix}{member.name}.")
        elif member.name not in ("native", "names"):
            yield prefix + member.name


ASPECTS: Final = tuple(_aspects(Conversation))
"""The names of everything that a conversation can ask for, such as ``sampling.seed``. Each dialect declares
for each aspect what it does about it."""

ASPECT_DEFAULTS: Final[Mapping[str, object]] = {
    "parallel_tool_calls": True,
    "sampling.presence_penalty": 0,
    "sampling.frequency_penalty": 0,
    "sampling.logit_bias": {},
    "output.choices": 1,
    "output.logprobs": False,
    "output.top_logprobs": 0,
    "service.store": False,
    "service.tier": "auto",
    "service.metadata": {},
    "truncate": False,
    "stream": False,
    "stream_usage": False,
}
"""Values that ask for nothing: a dialect that cannot express them loses nothing."""


def split_system(messages: Iterable[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Split messages into the system and developer messages at the beginning, and the rest."""
    listed = tuple(messages)
    start = next(
        (place for place, message in enumerate(listed) if message.role not in ("system", "developer")),
        len(listed),
    )
    return listed[:start], listed[start:]
