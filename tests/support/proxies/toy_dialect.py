"""A dialect that nobody speaks, made of what a dialect needs and nothing else.

A request is ``{"model", "turns", "kit", "live"}``, each turn ``{"by", "text", "calls", "ref"}`` of a user, a
model or a tool; a reply is ``{"by": "model", "text", "calls", "why", "spent"}``.  A stream says the
same in events: ``{"text"}``, ``{"call": {"ref", "tool", "input"}}``, ``{"why", "spent"}``, and ``bye`` at its
end.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.conversation import Conversation, FunctionTool, Image, Message, Text, ToolCallPart, ToolResultPart
from proxy.errors import RequestError
from proxy.events import (
    Frame,
    ResultImage,
    TextDelta,
    ToolCall,
    ToolCallFinished,
    ToolDefinition,
    ToolProgress,
    ToolResult,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    Usage,
    UsageReported,
)
from proxy.records import MessageRecord
from proxy.wires.chosen import NOTHING_CHOSEN, Chosen, ShownTools
from proxy.wires.client_port import Answer, ClientRequest, ClientView, ReturnedCalls, TurnEnd
from proxy.wires.crossing.ledger import Written
from proxy.wires.crossing.tables import FieldTable
from proxy.wires.dialect import Credential, Dialect, Endpoint, Errors, Framing, UsageFields
from proxy.wires.dialects.model_lists import OPENAI_LISTS
from proxy.wires.dialects.openai import QUIRKS
from proxy.wires.past.clock import SystemRule
from proxy.wires.past.evidence import Evidence, Speaker
from proxy.wires.stream.reader import StreamReader
from proxy.wires.stream.sse import EventBoundary, SSEEvent, SSEParser, begins_events
from proxy.wires.turn.assembler import Fragment
from proxy.wires.turn.digest import PrefixDigests, canonical_arguments, conversation_digest
from proxy.wires.upstream_port import Mask, SuspendedCall

__all__ = ["TOY", "TOY_ENDPOINTS", "ToyWire", "event"]


def event(said: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + orjson.dumps(said) + b"\n\n"


_BYE = b"data: bye\n\n"


def _error_body(
    message: str,
    *,
    type: str,
    param: str | None = None,
    code: str | None = None,
    request_id: str = "",
    doc_url: str = "",
) -> dict[str, Any]:
    return {"wrong": message, "kind": type, "code": code, "where": param}


def _error_event(message: str, *, type: str, code: str | None) -> bytes:
    return event(_error_body(message, type=type, code=code))


def _read_error(body: bytes) -> tuple[str, str | None]:
    said = orjson.loads(body)
    return said.get("wrong", ""), said.get("code")


TOY = Dialect(
    name="toy",
    wire="toy",
    prefix="/v1",
    path="/toy",
    framing=Framing(
        content_type="text/x-toy",
        event_end=b"\n\n",
        event_sign=b"data:",
        end_mark=_BYE,
        end_text=b"bye",
        end_sign=b"b"[0],
        parser=SSEParser,
        boundary=EventBoundary,
        begins=begins_events,
    ),
    errors=Errors(_error_body, _error_event, _read_error),
    credentials=(Credential("x-toy-key", ""),),
    usage=UsageFields("in", "out", "all"),
    quirks=QUIRKS,
    models=OPENAI_LISTS,
)
TOY_ENDPOINTS = (
    Endpoint(TOY, "POST", "/toy", "generate", body="routed", model="named", streams=True, operation="chat"),
)


# ---------------------------------------------------------------- the client's side


@dataclass
class ToyRequest:
    """What a client asked for."""

    payload: Mapping[str, Any]
    choices: int = 1
    tools_forbidden: bool = False
    forced: frozenset[str] | None = None
    background: bool = False
    continues: str | None = None
    conversation: str = ""
    references: Sequence[str] = ()
    may_store: bool = True
    wants_json: bool = False
    max_calls: int | None = None
    open_names: bool = False
    has_proxy_calls: bool = False
    people: str = ""
    preview: str = ""
    returns_calls: bool = True
    chosen: Chosen = NOTHING_CHOSEN

    def __post_init__(self) -> None:
        if not isinstance(self.payload.get("turns"), list):
            raise RequestError(400, "turns must be a list.", param="turns")
        self.model: str = self.payload["model"]
        self.stream = self.payload.get("live") is True
        self.turns: list[dict[str, Any]] = self.payload["turns"]
        self.declared = tuple(tool["tool"] for tool in self.payload.get("kit", ()))
        self._beginnings = PrefixDigests(self.turns, _visible, _speaker, _asked)

    def check_history(self, reserved: Callable[[str], bool]) -> None:
        """Results stand behind their calls in whatever order."""

    def returned_calls(self) -> Sequence[ReturnedCalls]:
        return [
            ReturnedCalls(at, frozenset(call["ref"] for call in turn["calls"]))
            for at, turn in enumerate(self.turns)
            if turn.get("calls")
        ]

    def answers(self) -> Sequence[Answer]:
        return [
            Answer(at, turn["text"])
            for at, turn in enumerate(self.turns)
            if turn["by"] == "model" and not turn.get("calls")
        ]

    def answer_key(
        self, caller: str, shape: str, text: str, upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        words = ("toy answer", caller, shape, text.strip())
        return conversation_digest(words, self._beginnings.digest(upto, rule))

    def conversation_key(
        self, caller: str, call_ids: Collection[str], upto: int | None = None, rule: SystemRule = "clock"
    ) -> str:
        return conversation_digest(("toy", caller, *sorted(call_ids)), self._beginnings.digest(upto, rule))

    def identity_words(self, caller: str) -> Sequence[str]:
        return ("toy", caller, self.model)

    def evidence(self, upto: int | None = None, rule: SystemRule = "clock") -> Evidence | None:
        return self._beginnings.evidence(upto, rule)

    def fits(self, position: int, held: Mapping[str, Any], is_shown: Callable[[str], bool]) -> bool:
        made = {call["ref"]: _said(call) for turn in held["turns"] for call in turn.get("calls", ())}
        return all(
            _said(call) == made.get(held["ids"][call["ref"]])
            for call in self.turns[position].get("calls", ())
        )


def _said(call: Mapping[str, Any]) -> list[Any]:
    return [call["tool"], canonical_arguments(call["input"])]


def _speaker(turn: Mapping[str, Any]) -> Speaker:
    return "model" if turn["by"] == "model" else "user"


def _asked(turn: Mapping[str, Any]) -> str | None:
    return turn.get("text")


def _visible(turn: Mapping[str, Any]) -> list[Any]:
    calls = [[call["ref"], *_said(call)] for call in turn.get("calls", ())]
    return [turn["by"], turn.get("text") or None, calls, turn.get("ref")]


class ToyWriter:
    """What a client sees: everything but the calls of server tools, and the end of the last turn alone."""

    def __init__(self, *, is_hidden: Callable[[str], bool], stream: bool) -> None:
        self._is_hidden = is_hidden
        self._stream = stream
        self._shown: set[int] = set()
        self._ids: dict[str, str] = {}
        self._said: dict[str, Any] = {"by": "model", "text": "", "calls": []}
        self._spent = [0, 0]
        self._why = "done"
        self._ended = False
        self.composing = True

    @property
    def visible(self) -> str:
        return str(self._said["text"])

    def client_ids(self) -> Mapping[str, str]:
        return self._ids

    def result(self) -> dict[str, Any] | None:
        return None

    def transform(self) -> Callable[[bytes], bytes] | None:
        return None

    def write(self, frame: Frame) -> bytes:
        out = b""
        for said in frame.events:
            match said:
                case TextDelta(text=text):
                    self._said["text"] += text
                    out += event({"text": text})
                case ToolCallFinished(call=call) if not self._is_hidden(call.name):
                    self._ids[call.call_id] = call.call_id
                    shown = {"ref": call.call_id, "tool": call.name, "input": call.arguments}
                    self._said["calls"].append(shown)
                    out += event({"call": shown})
                case UsageReported(usage=usage):
                    self._spent[0] += usage.input_tokens
                    self._spent[1] += usage.output_tokens
                case TurnFinished(reason=reason):
                    self._why = _WHY.get(reason, "done")
                case _:
                    continue
        return out if self._stream else b""

    def turn_ended(self, end: TurnEnd) -> bytes:
        return b""

    def tool_started(self, call: ToolCall, arguments: Any) -> bytes:
        return b""

    def tool_progressed(self, call: ToolCall, progress: ToolProgress) -> bytes:
        return b""

    def tool_finished(self, call: ToolCall, result: ToolResult) -> bytes:
        return b""

    def note(self, text: str) -> bytes:
        self._said["text"] += text
        return event({"text": text}) if self._stream else b""

    def keep_alive(self) -> bytes:
        return b": \n\n" if self._stream else b""

    def finish(self, reason: str | None) -> bytes:
        end = {"why": _WHY.get(reason or "", self._why), "spent": self._spent}
        return event(end) + _BYE if self._stream else orjson.dumps({**self._said, **end})

    def fail(self, message: str, *, type: str, code: str | None) -> bytes:
        return _error_event(message, type=type, code=code) + _BYE


class ToyEncoder:
    """Frames whose events say all: the writer of this dialect looks at nothing else."""

    left_out: frozenset[str] = frozenset()

    def encode(self, frame: Frame) -> list[Frame]:
        return [Frame(b"", {}, frame.events, undecided=frame.undecided)]

    def close(self) -> list[Frame]:
        return [Frame(b"", is_end_mark=True)]

    def encode_reply(self, frame: Frame) -> Frame:
        return Frame(b"", {}, frame.events)


# ---------------------------------------------------------------- the upstream's side

_REASONS = {"done": "stop", "called": "tool_calls", "full": "length"}
_WHY = {reason: why for why, reason in _REASONS.items()}


class ToyReader(StreamReader[SSEEvent]):
    """One response."""

    def __init__(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> None:
        super().__init__(declared, is_hidden, max_argument_bytes)
        self._text = ""

    @property
    def text(self) -> str:
        return self._text

    def _free_names(self, frame: Frame) -> None:
        return None

    def _read(self, event: SSEEvent, *, cut: bool = False) -> Frame:
        if event.data == b"bye":
            return Frame(event.raw, is_end_mark=True)
        if not event.data:
            return Frame(event.raw)
        said = orjson.loads(event.data)
        return Frame(event.raw, said, tuple(self._events(said)), undecided=self._undecided)

    def _events(self, said: Mapping[str, Any]) -> list[TurnEvent]:
        found: list[TurnEvent] = []
        if text := said.get("text"):
            self._text += text
            found.append(TextDelta(text))
        for call in [said["call"]] if "call" in said else said.get("calls", ()):
            found += self._calls.add(Fragment(None, call["ref"], call.get("tool"), call.get("input", ""), {}))
        if "spent" in said:
            received, sent = said["spent"]
            found.append(UsageReported(Usage(received, sent, received + sent, {"spent": said["spent"]})))
        if "why" in said:
            found.append(TurnFinished(_REASONS[said["why"]]))
        if "wrong" in said:
            found.append(TurnFailed({"message": said["wrong"], "code": said.get("code")}))
        return found

    def read_reply(self, body: bytes) -> Frame:
        said = orjson.loads(body)
        return Frame(body, said, (*self._events(said), *self._finish()))

    def message(self) -> bytes:
        calls = [self._repaired(finished.call) for finished in self._finished]
        return _model_turn(self._text, [(call.call_id, call.name, call.arguments) for call in calls])

    def native(self, call: ToolCall, mask: Mask) -> str:
        return orjson.dumps([call.call_id, call.name, mask(call.name, call.arguments)]).decode()


def _model_turn(text: str, calls: Sequence[tuple[str, str, str]]) -> bytes:
    made = [{"ref": ref, "tool": name, "input": arguments} for ref, name, arguments in calls]
    return orjson.dumps({"by": "model", "text": text, "calls": made})


@dataclass
class ToyBody:
    """The body of one run's requests."""

    payload: dict[str, Any]
    images_refused: bool = False
    fields_refused: frozenset[str] = frozenset()
    added: list[bytes] = field(default_factory=list)
    withheld: frozenset[str] = frozenset()
    kit: Sequence[Any] = ()
    changed: dict[str, Any] = field(default_factory=dict)
    replaced_turns: dict[int, tuple[int, list[Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kit = self.payload.get("kit", ())

    def offer(self, added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]) -> None:
        ours = [{"tool": one.name, "about": one.description, "takes": one.parameters} for one in added]
        self.kit = [*self.payload.get("kit", ()), *ours]

    def withdraw(self) -> None:
        self.kit = self.payload.get("kit", ())

    def withhold(self, names: Collection[str]) -> None:
        self.withheld = frozenset(names)

    def rename_model(self, model: str) -> None:
        self.changed["model"] = model

    def ask_usage(self) -> None:
        """It is always told."""

    def restore(self, position: int, payload: bytes, *, needed: bool = True) -> None:
        held, turns = orjson.loads(payload), self.payload["turns"]
        end = position + 1
        given: dict[str, Any] = {}
        while end < len(turns) and turns[end]["by"] == "tool":
            given[held["ids"].get(turns[end]["ref"], "")] = turns[end]
            end += 1
        results = [{**turn, "ref": ref} for ref, turn in given.items()]
        self.replaced_turns[position] = end, [*held["turns"], *held["results"], *results]

    @property
    def restored(self) -> tuple[int, int]:
        return len(self.replaced_turns), 0

    def append_turn(self, message: bytes, results: Sequence[bytes]) -> None:
        self.added += [message, *results]

    def suspend(self, message: bytes, calls: Sequence[SuspendedCall], mask: Mask) -> bytes:
        turns = [orjson.loads(turn) for turn in (*self.added, message)]
        for call in [call for turn in turns for call in turn.get("calls", ())]:
            call["input"] = mask(call["tool"], call["input"])
        results = [orjson.loads(call.result) for call in calls if call.result is not None]
        ids = {call.client_id: call.call_id for call in calls if call.client_id is not None}
        return orjson.dumps({"turns": turns, "results": results, "ids": ids})

    def result_message(self, call: ToolCall, content: str, images: Sequence[ResultImage] = ()) -> bytes:
        return orjson.dumps({"by": "tool", "ref": call.call_id, "text": content})

    def leave_out_images(self) -> None:
        """There are none."""

    def leave_out_fields(self, names: Collection[str]) -> None:
        """There are none."""

    def relax_tool_choice(self, called: Collection[str]) -> None:
        """Nothing is ever forced."""

    def forbid_tools(self) -> bool:
        self.changed["kit"] = []
        return False

    def lower_token_limit(self, used: int) -> None:
        """There is no bound."""

    def render(self) -> bytes:
        turns = list(self.payload["turns"])
        for position, (end, restored) in sorted(self.replaced_turns.items(), reverse=True):
            turns[position:end] = restored
        turns += [orjson.loads(turn) for turn in self.added]
        kit = [tool for tool in self.kit if tool["tool"] not in self.withheld]
        return orjson.dumps({**self.payload, "turns": turns, "kit": kit, **self.changed})

    def recover(self, message: str, code: str | None) -> bool:
        return False

    def records(self, run_id: str, mask: Mask) -> Sequence[MessageRecord]:
        rows = [orjson.loads(turn) for turn in self.added]
        return [
            MessageRecord(run_id=run_id, turn=1, seq=seq, role=row["by"], content=row.get("text"))
            for seq, row in enumerate(rows)
        ]


class ToyCodec:
    """Requests as conversations, and conversations as requests."""

    fields = FieldTable("toy", read={}, written={})
    returns_reasoning = False

    def read(self, payload: Mapping[str, Any]) -> Conversation:
        tools = [FunctionTool(tool["tool"], tool["about"], tool["takes"]) for tool in payload.get("kit", ())]
        messages = tuple(map(_message, payload["turns"]))
        return Conversation(payload["model"], messages, tools=tuple(tools), stream=bool(payload.get("live")))

    def write(self, conversation: Conversation, *, strict: bool = False) -> Written:
        turns = [
            turn for message in (*conversation.system, *conversation.messages) for turn in _turns(message)
        ]
        kit = [
            {"tool": tool.name, "about": tool.description, "takes": dict(tool.parameters or {})}
            for tool in conversation.tools
            if isinstance(tool, FunctionTool)
        ]
        body = {"model": conversation.model, "turns": turns, "kit": kit, "live": conversation.stream}
        return Written(orjson.dumps(body))

    def repair_missing_reasoning(self, conversation: Conversation) -> Conversation:
        return conversation


class ToyWire:
    """Both ports."""

    dialect = TOY
    codec = ToyCodec()

    def parse(self, payload: Mapping[str, Any]) -> ClientRequest:
        return ToyRequest(payload)

    def without_chosen(
        self, raw: bytes, request: ClientRequest, shown: ShownTools
    ) -> tuple[bytes, ClientRequest]:
        return raw, request

    def writer(self, request: ClientRequest, view: ClientView) -> ToyWriter:
        return ToyWriter(is_hidden=view.is_hidden, stream=request.stream)

    def encoder(self, request: ClientRequest) -> ToyEncoder:
        return ToyEncoder()

    def editor(self, raw: bytes, request: ClientRequest, state: Any = "auto", *, caller: str = "") -> ToyBody:
        return ToyBody(orjson.loads(raw))

    def reader(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> ToyReader:
        return ToyReader(declared, is_hidden, max_argument_bytes)

    def read_turn(self, message: bytes) -> Message:
        return _message(orjson.loads(message))

    def write_turn(self, message: Message) -> bytes:
        return orjson.dumps(_turns(message)[0])


def _message(turn: Mapping[str, Any]) -> Message:
    text = (Text(turn["text"]),) if turn.get("text") else ()
    if turn["by"] == "tool":
        return Message("tool", (ToolResultPart(turn["ref"], text),))
    calls = [ToolCallPart(call["ref"], call["tool"], call["input"]) for call in turn.get("calls", ())]
    return Message("assistant" if turn["by"] == "model" else "user", (*text, *calls))


def _turns(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        results = [part for part in message.parts if isinstance(part, ToolResultPart)]
        return [{"by": "tool", "ref": part.call_id, "text": _text(part.parts)} for part in results]
    calls = [
        {"ref": part.call_id, "tool": part.name, "input": part.arguments}
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    turn = {"by": "model" if message.role == "assistant" else "user", "text": _text(message.parts)}
    return [{**turn, "calls": calls} if calls else turn]


def _text(parts: Sequence[Any]) -> str:
    for part in parts:
        if isinstance(part, Image):
            raise RequestError(400, "A toy sees nothing.", param=part.at, code="not_translatable")
    return "".join(part.text for part in parts if isinstance(part, Text))
