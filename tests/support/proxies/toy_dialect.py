"""A dialect that nobody speaks, to show what a dialect needs: clients, upstreams and server tools.

A request is ``{"model", "turns", "kit", "live"}``. A turn is ``{"by", "text", "calls", "ref"}``, by a user,
a model or a tool. A stream consists of the events ``{"text"}``, ``{"call": {"ref", "tool", "input"}}``,
``{"why", "spent"}`` and ``{"wrong", "code"}``, and ends with ``bye``; a reply is ``{"events": [...]}``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from proxy.base.conversation import (
    Conversation,
    FunctionTool,
    Image,
    Message,
    Text,
    ToolCallPart,
    ToolResultPart,
)
from proxy.base.errors import RequestError
from proxy.base.events import (
    FinishReason,
    Frame,
    TextDelta,
    ToolCall,
    ToolCallFinished,
    ToolDefinition,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    Usage,
    UsageReported,
)
from proxy.records.rows import MessageRecord
from proxy.wires.chat.dialect import CHAT
from proxy.wires.client_port import ClientRequest, ClientView, TurnEncoder
from proxy.wires.crossing.codec import ConversationCodec
from proxy.wires.crossing.ledger import Written
from proxy.wires.crossing.tables import FieldTable
from proxy.wires.dialect import Credential, Endpoint, Errors, ErrorText, RequestFields, UsageFields
from proxy.wires.message_list.body import MessageListBody
from proxy.wires.message_list.request import CallsWithIdsRequest
from proxy.wires.openai.dialect import FRAMING
from proxy.wires.profile import Profile
from proxy.wires.stream.reader import StreamReader
from proxy.wires.stream.sse import SSEEvent
from proxy.wires.turn.assembler import Fragment
from proxy.wires.turn.digest import canonical_arguments
from proxy.wires.turn.reply import ReplyWriter
from proxy.wires.turn.request_members import declared_names, listed_messages, listed_tools, model_name
from proxy.wires.upstream_port import Mask
from proxy.wires.wire import Wire

_BYE = b"data: bye\n\n"
_REASONS = {"done": FinishReason.STOP, "called": FinishReason.TOOL_CALLS, "full": FinishReason.LENGTH}
_WHY: dict[FinishReason | None, str] = {reason: why for why, reason in _REASONS.items()}
_ROLES = {"user": "user", "model": "assistant", "tool": "tool"}


def event(said: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + orjson.dumps(said) + b"\n\n"


def _wrong(message: str, *, param: str | None = None, code: str | None = None, **more: Any) -> dict[str, Any]:
    return {"wrong": message, "code": code, "where": param}


def _read_wrong(body: bytes) -> ErrorText:
    said = orjson.loads(body)
    return ErrorText(said["wrong"], said["code"])


TOY = replace(
    CHAT,
    name="toy",
    wire="toy",
    path="/toy",
    framing=replace(FRAMING, content_type="text/x-toy", end_mark=_BYE, end_text=b"bye", end_sign=b"b"[0]),
    errors=Errors(_wrong, lambda message, **more: event(_wrong(message, **more)), _read_wrong),
    credentials=(Credential("x-toy-key", ""),),
    usage=UsageFields("in", "out", "all"),
    fields=RequestFields(turns="turns", tools=("kit",), continues="after"),
)
TOY_ENDPOINTS = (
    Endpoint(TOY, "POST", "/toy", "generate", body="routed", model="named", streams=True, operation="chat"),
)


class ToyRequest(CallsWithIdsRequest):
    """What a client asked for. No library changes a turn before it sends the turn back."""

    dialect_name = "toy"

    def check_history(self, reserved: Callable[[str], bool]) -> None:
        """Allow results in any order."""

    @classmethod
    def speaker(cls, turn: Mapping[str, Any]) -> Any:
        return turn["by"]

    @classmethod
    def _identity(cls, turn: Mapping[str, Any]) -> list[Any]:
        return [turn["by"], turn.get("text") or None, turn.get("calls"), turn.get("ref")]

    @classmethod
    def _text(cls, turn: Mapping[str, Any]) -> str:
        return turn.get("text") or ""

    @classmethod
    def _calls(cls, turn: Mapping[str, Any]) -> list[tuple[str, Any]]:
        return [(call["ref"], call) for call in turn.get("calls", ())]

    @classmethod
    def _call_identity(cls, call: Any) -> Any:
        return call and (call["tool"], canonical_arguments(call["input"]))

    @classmethod
    def answered_ids(cls, turn: Mapping[str, Any]) -> list[str] | None:
        return [turn["ref"]] if turn["by"] == "tool" else None


class ToyWriter(ReplyWriter):
    """A writer of what a client sees: one object, or the same events as a stream."""

    def __init__(self, view: ClientView, *, stream: bool) -> None:
        super().__init__(view)
        self._stream = stream
        self._events: list[dict[str, Any]] = []
        self._spent = [0, 0]
        self._why = "done"

    @property
    def visible(self) -> str:
        return "".join(said.get("text", "") for said in self._events)

    def write(self, frame: Frame) -> bytes:
        super().write(frame)
        return b"".join(map(self._told, frame.events))

    def _told(self, one: TurnEvent) -> bytes:
        match one:
            case TextDelta(text=text):
                return self._tell({"text": text})
            case ToolCallFinished(call=call) if not self._is_hidden(call.name):
                self._client_ids[call.call_id] = call.call_id
                return self._tell({"call": _call(call.call_id, call.name, call.arguments)})
            case UsageReported(usage=usage):
                self._spent = [self._spent[0] + usage.input_tokens, self._spent[1] + usage.output_tokens]
            case TurnFinished(reason=reason):
                self._why = _WHY.get(reason, "done")
        return b""

    def _tell(self, said: dict[str, Any]) -> bytes:
        self._events.append(said)
        return event(said) if self._stream else b""

    def note(self, text: str) -> bytes:
        return self._tell({"text": text})

    def _say(self, text: str) -> None:
        self._tell({"text": text})

    def _take(self, payload: Mapping[str, Any], calls: Sequence[ToolCall]) -> None:
        """:meth:`write` takes the events."""

    def _think(self, text: str) -> None:
        """The dialect has no reasoning."""

    def _drop_texts(self) -> None:
        """No answer of this dialect must be JSON."""

    def finish(self, reason: FinishReason | None) -> bytes:
        end = self._tell({"why": _WHY.get(reason, self._why), "spent": self._spent})
        return end + _BYE if self._stream else orjson.dumps({"events": self._events})

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        return event(_wrong(message, code=code)) + _BYE


class ToyEncoder(TurnEncoder):
    """An encoder of frames whose bytes are empty, because :class:`ToyWriter` writes the events."""

    def __init__(self) -> None:
        self.left_out: set[str] = set()

    def encode(self, frame: Frame) -> list[Frame]:
        return [self.encode_reply(frame)]

    def encode_reply(self, frame: Frame) -> Frame:
        return Frame(b"", {}, frame.events, undecided=frame.undecided)

    def close(self) -> list[Frame]:
        return [Frame(b"", is_end_mark=True)]

    def note_forwarded(self, frame: Frame, text: str) -> None:
        """Note nothing: the events do not depend on each other."""


class ToyReader(StreamReader[SSEEvent]):
    """A reader of one response."""

    text = ""

    def _free_names(self, frame: Frame) -> None:
        return None

    def _read(self, event: SSEEvent, *, cut: bool = False) -> Frame:
        said = orjson.loads(event.data) if event.data.startswith(b"{") else {}
        events = tuple(self._events(said))
        return Frame(event.raw, said, events, event.data == b"bye", undecided=self._undecided)

    def _events(self, said: Mapping[str, Any]) -> Iterator[TurnEvent]:
        if text := said.get("text"):
            self.text += text
            yield TextDelta(text)
        if call := said.get("call"):
            yield from self._calls.add(Fragment(None, call["ref"], call["tool"], call["input"], {}))
        if "spent" in said:
            received, sent = said["spent"]
            yield UsageReported(Usage(received, sent, received + sent, {"spent": said["spent"]}))
        if why := said.get("why"):
            yield TurnFinished(_REASONS[why])
        if "wrong" in said:
            yield TurnFailed({"message": said["wrong"], "code": said["code"]})

    def _take_reply(self, payload: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[TurnEvent]]:
        return payload, [event for each in payload["events"] for event in self._events(each)]

    def message(self) -> bytes:
        calls = [self._repaired(finished.call) for finished in self._finished]
        made = [_call(call.call_id, call.name, call.arguments) for call in calls]
        return orjson.dumps({"by": "model", "text": self.text, "calls": made})

    def native(self, call: ToolCall, mask: Mask) -> str:
        return orjson.dumps(_call(call.call_id, call.name, mask(call.name, call.arguments))).decode()


def _call(ref: str, tool: str, arguments: str) -> dict[str, Any]:
    return {"ref": ref, "tool": tool, "input": arguments}


def _masked_turn(message: bytes, mask: Mask) -> bytes:
    turn = orjson.loads(message)
    for call in turn.get("calls", ()):
        call["input"] = mask(call["tool"], call["input"])
    return orjson.dumps(turn)


class ToyBody(MessageListBody):
    """The body of one run's requests."""

    _MESSAGES, _TOOLS, _RESULT_ID = "turns", "kit", "ref"

    def _tool(self, definition: ToolDefinition) -> bytes:
        return _tool(definition.name, definition.description, definition.parameters)

    def _declared_name(self, tool: Any) -> str:
        return str(tool["tool"])

    def _masked_turn(self, message: bytes, mask: Mask) -> bytes:
        return _masked_turn(message, mask)

    def _result(self, call: ToolCall, text: str, images: Sequence[Any]) -> bytes:
        return orjson.dumps({"by": "tool", "ref": call.call_id, "text": text})

    def _rows(self, run_id: str, turn: int, message: Mapping[str, Any]) -> list[MessageRecord]:
        return [MessageRecord(run_id, turn, 0, _ROLES[message["by"]], content=message["text"])]


def _read(payload: Mapping[str, Any]) -> Conversation:
    kit = listed_tools(payload, "kit")
    tools = tuple(FunctionTool(one["tool"], one["about"], one["takes"]) for one in kit)
    messages = tuple(map(_message, payload["turns"]))
    return Conversation(payload["model"], messages, tools=tools, stream=payload.get("live") is True)


def _write(conversation: Conversation, *_: Any) -> dict[str, Any]:
    said = (*conversation.system, *conversation.messages)
    functions = [tool for tool in conversation.tools if isinstance(tool, FunctionTool)]
    kit = [orjson.Fragment(_tool(one.name, one.description, one.parameters)) for one in functions]
    turns = [turn for message in said for turn in _turns(message)]
    return {"model": conversation.model, "turns": turns, "kit": kit, "live": conversation.stream}


def _tool(name: str, about: str | None, takes: Any) -> bytes:
    return orjson.dumps({"tool": name, "about": about, "takes": takes or {}})


def _message(turn: Mapping[str, Any]) -> Message:
    text = (Text(turn["text"]),) if turn.get("text") else ()
    if turn["by"] == "tool":
        return Message("tool", (ToolResultPart(turn["ref"], text),))
    calls = [ToolCallPart(call["ref"], call["tool"], call["input"]) for call in turn.get("calls", ())]
    return Message("assistant" if turn["by"] == "model" else "user", (*text, *calls))


def _turns(message: Message) -> list[dict[str, Any]]:
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    if results:
        return [{"by": "tool", "ref": part.call_id, "text": _text(part.parts)} for part in results]
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    made = [_call(part.call_id, part.name, part.arguments) for part in calls]
    turn = {"by": "model" if message.role == "assistant" else "user", "text": _text(message.parts)}
    return [{**turn, "calls": made} if made else turn]


def _text(parts: Sequence[Any]) -> str:
    for part in parts:
        if isinstance(part, Image):
            raise RequestError(400, "A toy sees nothing.", param=part.at, code="not_translatable")
    return "".join(part.text for part in parts if isinstance(part, Text))


class _ToyCodec(ConversationCodec, frozen=True):
    """The dialect has no fields of its own, so it leaves nothing out."""

    def write(
        self, conversation: Conversation, profile: Profile | None = None, *, strict: bool = False
    ) -> Written:
        return Written(orjson.dumps(_write(conversation)))


class ToyWire(Wire):
    """Both ports."""

    dialect = TOY
    body_class = ToyBody
    codec = _ToyCodec(FieldTable("toy", read={}, written={}), _read, _write)

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        turns, kit = listed_messages(payload, "turns"), listed_tools(payload, "kit")
        declared = declared_names(kit, lambda tool: tool["tool"], "kit[{}].tool")
        return ToyRequest(
            tuple(payload),
            turns,
            model=model_name(payload),
            stream=payload.get("live") is True,
            declared=declared,
        )

    def writer(self, request: ClientRequest, view: ClientView) -> ToyWriter:
        return ToyWriter(view, stream=request.stream)

    def encoder(self, request: ClientRequest) -> ToyEncoder:
        return ToyEncoder()

    def reader(self, declared: Collection[str], is_hidden: Any, max_argument_bytes: int) -> ToyReader:
        return ToyReader(declared, is_hidden, max_argument_bytes)

    def masked_turn(self, message: bytes, mask: Mask) -> bytes:
        return _masked_turn(message, mask)

    def write_turn(self, message: Message) -> bytes:
        return orjson.dumps(_turns(message)[0])
