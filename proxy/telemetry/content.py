"""What a model was sent and what it answered, as the GenAI conventions of OpenTelemetry write messages.

Nothing here runs unless the operator asks for content in traces (``telemetry.content``). A request's body and
the bytes of its answer are then kept, within bounds, until its span ends, and a thread of its own reads them
in the dialect of the upstream. The result is redacted as the record is: private arguments of the proxy's own
tools are masked, secrets of the configuration are blanked out, and base64 is left out.

Source of the form: the JSON schemas ``gen-ai-input-messages``, ``gen-ai-output-messages`` and
``gen-ai-system-instructions`` in ``model/gen-ai/`` of ``open-telemetry/semantic-conventions-genai``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct, field

from proxy.base.conversation import (
    Audio,
    File,
    Image,
    Inline,
    Message,
    NativePart,
    Part,
    Reasoning,
    Refusal,
    Remote,
    Stored,
    Text,
    ToolCallPart,
    ToolResultPart,
)
from proxy.base.errors import RequestError, UpstreamError, WireError
from proxy.base.events import FinishReason, TurnFinished
from proxy.http.headers import Headers, is_encoded
from proxy.http.secrets import Secrets, Sink
from proxy.upstreams.base import UpstreamRequest, UpstreamResponse
from proxy.wires.crossing.codec import read_exactly
from proxy.wires.registry.table import EndpointTable
from proxy.wires.wire import Wire

INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
INSTRUCTIONS: Final = "gen_ai.system_instructions"

_STORE: Final = b'"store"'
_MAX_BODY: Final = 4 << 20
_MAX_ANSWER: Final = 1 << 20
_MAX_ARGUMENTS: Final = 1 << 20
_LONGEST_SHARE: Final = 8
"""A text that takes more than this share of an attribute is cut before messages are left out."""
_WORDS: Final = {FinishReason.TOOL_CALLS: "tool_call", FinishReason.PAUSE: "stop"}
"""The conventions' words where they differ. Their newest schema has ``finish_reason`` of a message as
deprecated; that of version 1.41, by which collectors read messages, needs it."""
_UNREADABLE: Final = (
    *(RequestError, UpstreamError, WireError),
    *(ValueError, TypeError, KeyError, AttributeError, RecursionError),
)
_Json = dict[str, Any]

MaskCall = Callable[[str, str], str]
"""Returns the arguments of a call of the tool with this name, as JSON, without their private fields."""


class Exchange(Struct, eq=False):
    """What is kept of one request to a model. ``streams`` says that the answer is an event stream."""

    wire: str
    body: bytes
    answer: bytearray = field(default_factory=bytearray)
    streams: bool = False

    @property
    def size(self) -> int:
        """The bytes that it holds."""
        return len(self.body) + len(self.answer)

    def keep(self, piece: bytes) -> None:
        """Keep a piece of the answer, as far as there is room."""
        if (room := _MAX_ANSWER - len(self.answer)) > 0:
            self.answer += piece[:room]


class CopiedResponse:
    """A response whose body an exchange keeps as it passes."""

    def __init__(self, inner: UpstreamResponse, exchange: Exchange) -> None:
        self._inner = inner
        self._keep = exchange.keep
        self.status = inner.status
        self.headers: Headers = inner.headers
        self.content_type = inner.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body; see :meth:`proxy.upstreams.base.UpstreamResponse.chunks`."""
        async for piece in self._inner.chunks():
            self._keep(piece)
            yield piece

    def push(self, sink: Sink) -> Awaitable[None] | None:
        """Give the body to ``sink``; see :meth:`proxy.upstreams.base.UpstreamResponse.push`."""
        keep = self._keep

        def both(piece: bytes) -> Awaitable[None] | None:
            keep(piece)
            return sink(piece)

        return self._inner.push(both)

    async def read(self, limit: int) -> bytes:
        """Return the whole body; see :meth:`proxy.upstreams.base.UpstreamResponse.read`."""
        body = await self._inner.read(limit)
        self._keep(body)
        return body

    async def aclose(self) -> None:
        """Release the response."""
        await self._inner.aclose()


class ContentReader:
    """Reads exchanges with models. ``most`` is the longest attribute, in characters."""

    def __init__(
        self,
        endpoints: EndpointTable,
        wires: Mapping[str, Wire],
        mask: MaskCall,
        secrets: Secrets | None,
        most: int,
    ) -> None:
        self._endpoints = endpoints
        self._wires = wires
        self._mask = mask
        self._secrets = secrets
        self.most = most

    def begin(self, request: UpstreamRequest) -> Exchange | None:
        """Return an exchange for a request to a model; ``None`` for any other."""
        endpoint = self._endpoints.find(request.method, request.path)
        known = endpoint.kind == "generate" and endpoint.dialect.wire in self._wires
        if not known or not isinstance(request.body, bytes) or len(request.body) > _MAX_BODY:
            return None
        return Exchange(endpoint.dialect.wire, request.body)

    def copied(self, response: UpstreamResponse, exchange: Exchange) -> UpstreamResponse:
        """Return the response, of which the exchange keeps a copy if it can be read."""
        if response.status >= 300 or is_encoded(response.headers):
            return response
        framing = self._wires[exchange.wire].dialect.framing
        exchange.streams = response.content_type == framing.content_type
        return CopiedResponse(response, exchange)

    def attributes(self, exchange: Exchange) -> dict[str, str]:
        """Return the attributes of a span, as far as the exchange can be read. Takes some milliseconds."""
        wire = self._wires[exchange.wire]
        found: dict[str, str] = {}
        try:
            if _is_unstored(exchange.body):
                return {}
            asked = read_exactly(wire.codec, self._blanked(exchange.body))
        except _UNREADABLE:
            pass
        else:
            parts = [part for message in asked.system for part in self._parts(message.parts)]
            found[INSTRUCTIONS] = bounded(parts, self.most) if parts else ""
            found[INPUT] = bounded([self._message(message) for message in asked.messages], self.most)
        try:
            answered, reason = self._answered(wire, exchange)
        except _UNREADABLE:
            pass
        else:
            said = self._message(answered) | {"finish_reason": _WORDS.get(reason, str(reason))}
            found[OUTPUT] = bounded([said], self.most) if answered.parts else ""
        return {name: text for name, text in found.items() if text}

    def _answered(self, wire: Wire, exchange: Exchange) -> tuple[Message, FinishReason]:
        """Return the answer, and why it ended; that of a stream which broke off is an error."""
        answer = self._blanked(bytes(exchange.answer))
        reader = wire.reader((), _is_hidden, _MAX_ARGUMENTS)
        if exchange.streams:
            frames = [*reader.feed(answer, large=True), *reader.close()]
        else:
            frames = [reader.read_reply(answer)]
        ends = (event.reason for frame in frames for event in frame.events if isinstance(event, TurnFinished))
        return wire.read_turn(reader.message()), next(ends, FinishReason.ERROR)

    def _blanked(self, data: bytes) -> bytes:
        return data if self._secrets is None else self._secrets.blanked(data)

    def _message(self, message: Message) -> _Json:
        role = "system" if message.role == "developer" else message.role
        return {"role": role, "parts": self._parts(message.parts)}

    def _parts(self, parts: Iterable[Part]) -> list[_Json]:
        return [made for part in parts if (made := self._part(part)) is not None]

    def _part(self, part: Part) -> _Json | None:
        match part:
            case Text():
                return {"type": "text", "content": part.text}
            case Refusal():
                return {"type": "refusal", "content": part.text}
            case Reasoning():
                text = part.text or "\n\n".join(part.summary)
                return {"type": "reasoning", "content": text} if text else None
            case Image():
                return _media("image", part.source)
            case File():
                return _media("document", part.source)
            case Audio():
                return {"type": "omitted", "modality": "audio", "bytes": _size(part.data)}
            case ToolCallPart():
                arguments = _value(self._mask(part.name, part.arguments))
                return {"type": "tool_call", "id": part.call_id, "name": part.name, "arguments": arguments}
            case ToolResultPart():
                texts = [one.text for one in part.parts if isinstance(one, Text)]
                others = self._parts(one for one in part.parts if not isinstance(one, Text))
                response: Any = "\n".join(texts)
                if others:
                    response = [*({"type": "text", "content": text} for text in texts), *others]
                return {"type": "tool_call_response", "id": part.call_id, "response": response}
            case NativePart():
                # Its value may be encrypted, or bytes in a form that is not known here.
                return {"type": "omitted", "kind": part.kind}


def _is_unstored(body: bytes) -> bool:
    """Return whether a client asked that nothing be stored (rule R3), also in a request that is not
    understood otherwise; then its answer is not to be shown either."""
    if _STORE not in body and b"\\u" not in body:  # The name may be written with escapes.
        return False
    try:
        asked = orjson.loads(body)
    except ValueError:
        return True
    return isinstance(asked, dict) and asked.get("store") is False


def bounded(entries: Sequence[_Json], most: int) -> str:
    """Return messages or parts as JSON of at most ``most`` characters: long texts are cut, and then the
    oldest entries left out."""
    text = orjson.dumps(entries).decode()
    if len(text) <= most:
        return text
    cut = [_cut(entry, most // _LONGEST_SHARE) for entry in entries]
    sizes = [len(orjson.dumps(entry).decode()) + 1 for entry in cut]
    left, total = 0, sum(sizes) + 100
    while total > most and left < len(sizes):
        total -= sizes[left]
        left += 1
    gone: list[_Json] = [{"role": "system", "parts": [{"type": "omitted", "count": left}]}]
    if entries and "role" not in entries[0]:
        gone = [{"type": "omitted", "count": left}]
    text = orjson.dumps([*(gone if left else ()), *cut[left:]]).decode()
    return text if len(text) <= most else orjson.dumps(gone).decode()


def _cut(value: Any, most: int) -> Any:
    """Return a JSON value with texts of at most ``most`` characters."""
    if isinstance(value, str):
        return value if len(value) <= most else f"{value[:most]}… [{len(value) - most} more characters]"
    if isinstance(value, list):
        return [_cut(each, most) for each in value]
    if isinstance(value, dict):
        return {name: _cut(each, most) for name, each in value.items()}
    return value


def _media(modality: str, source: Inline | Remote | Stored) -> _Json:
    """Return a picture or document without its bytes."""
    match source:
        case Inline():
            size = len(source.data) if source.is_text else _size(source.data)
            about = {"mime_type": source.media_type} if source.media_type else {}
            return {"type": "omitted", "modality": modality, **about, "bytes": size}
        case Remote():
            return {"type": "uri", "modality": modality, "uri": source.url}
        case Stored():
            return {"type": "file", "modality": modality, "file_id": source.file_id}


def _size(data: str) -> int:
    """Return how many bytes a base64 text stands for."""
    return len(data) * 3 // 4 - data[-2:].count("=")


def _value(arguments: str) -> Any:
    """Return the arguments as a JSON value; the text itself if they are none."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def _is_hidden(name: str) -> bool:
    return False
