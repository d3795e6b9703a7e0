"""The reader of a turn whose text may hold calls: text events become text and calls.

A frame goes on unchanged as soon as its text is certain to be text. Frames that may hold a call wait. From
the first call on, all frames wait until the turn has ended, because some servers also send the call
natively, at the end; then the text stays as it is. Otherwise the frames are then replaced by frames with
events only.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.base.conversation import (
    Conversation,
    CustomTool,
    FunctionTool,
    Message,
    Part,
    Text,
    Tool,
    ToolCallPart,
)
from proxy.base.events import (
    FinishReason,
    Frame,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
    TurnFinished,
)
from proxy.wires.text_calls.call import Declared, TextCall
from proxy.wires.text_calls.form import Form
from proxy.wires.text_calls.scanner import Scanner
from proxy.wires.turn.assembler import mint_call_id
from proxy.wires.upstream_port import ForwardingReader, Mask, TurnReader
from proxy.wires.wire import Wire

_CALLS: Final = (ToolCallStarted, ToolCallDelta, ToolCallFinished)
LARGEST_CALL: Final = 1024 * 1024
"""The largest call, in characters. A client's tools may get whole files; the runner bounds server tools."""


class TextTools:
    """The tools of one turn; ``declared`` are their names.

    ``asked`` returns the request. It is only called if more than the names is needed.
    """

    def __init__(self, declared: Collection[str], asked: Callable[[], Conversation | None]) -> None:
        self.declared = declared
        self._asked = asked
        self._read: Sequence[Tool] | None = None

    def _tools(self) -> Sequence[Tool]:
        if self._read is None:
            asked = self._asked()
            self._read = asked.tools if asked is not None else ()
        return self._read

    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON Schema of each function's arguments, by name."""
        return {tool.name: tool.parameters or {} for tool in self._tools() if isinstance(tool, FunctionTool)}

    def is_custom(self, name: str) -> bool:
        """Return whether the tool takes text instead of arguments."""
        return any(isinstance(tool, CustomTool) and tool.name == name for tool in self._tools())


class CallReading:
    """How to read the text of a turn: the form, and whether to repair mistakes.

    ``note`` is called at the end of a turn whose text was changed, or has something to report, with the
    facts.
    """

    def __init__(
        self, form: Form, *, repair: bool, note: Callable[[Mapping[str, Any]], None] = lambda facts: None
    ) -> None:
        self.form = form
        self.repair = repair
        self.note = note


class TextCallReader(ForwardingReader):
    """Wraps a reader of the upstream's dialect, and finds calls in the text of its turn.

    ``rewritten`` means that frames were replaced by ones with events only, without the upstream's bytes.
    ``passed`` is the number of frames, of those returned last, that came before that.
    """

    left_out = ()
    rewritten: bool = False

    def __init__(
        self,
        reader: TurnReader,
        reading: CallReading,
        tools: TextTools,
        wire: Wire,
        max_argument_bytes: int,
        target: Wire | None = None,
        *,
        reads: bool = True,
    ) -> None:
        """Take ``wire``, the reader's dialect, and ``target``, the dialect of the returned turn, ``wire``
        by default. If ``reads`` is false, look for no calls."""
        super().__init__(reader)
        self._reading = reading
        self._tools = tools
        self._wire = wire
        self._target = target or wire
        self._declared = Declared(tools.declared, tools.schemas, repair=reading.repair)
        self._scanner = Scanner(reading.form, self._declared, max(LARGEST_CALL, max_argument_bytes))
        self._waiting: list[tuple[Frame, int]] = []
        self._text: list[str] = []
        self._fed = 0
        self._reads = reads
        self._calls: list[tuple[TextCall, ToolCall]] = []
        self.passed = 0

    def feed(self, chunk: bytes, *, most: int = 0, large: bool = False) -> list[Frame]:
        return self.take(self._reader.feed(chunk, most=most, large=large))

    def take(self, frames: Sequence[Frame]) -> list[Frame]:
        """Take frames that were read, and return those that may go on."""
        self.passed = 0
        going: list[Frame] = []
        for frame in frames:
            if self._reads:
                self._read(frame, going)
            else:
                going.append(self._anew(frame) if self.rewritten else frame)
        if not self.rewritten:
            self.passed = len(going)
        return going

    def close(self) -> list[Frame]:
        frames = self.take(self._reader.close())
        if self._reads:
            # It broke off before a finish reason, so what the model wrote is not a call.
            self._leave(frames)
            self.passed = len(frames)
        if self._calls:
            frames.append(Frame(b"", events=tuple(self._finished())))
        return frames

    def read_reply(self, body: bytes) -> Frame:
        return self._reply(self._reader.read_reply(body))

    def _reply(self, frame: Frame) -> Frame:
        """Take a whole reply, and return it with its calls."""
        going: list[Frame] = []
        self._read(frame, going)
        if self._reads:
            self._leave(going)
        if not self.rewritten:
            return frame
        return Frame(
            b"", frame.payload, self._with_finished([event for frame in going for event in frame.events])
        )

    def _with_finished(self, events: Sequence[TurnEvent]) -> tuple[TurnEvent, ...]:
        """Return the events of a reply with the complete calls before its end."""
        end = next((at for at, event in enumerate(events) if isinstance(event, TurnFinished)), len(events))
        return (*events[:end], *self._finished(), *events[end:])

    @property
    def text(self) -> str:
        return "".join(self._visible_texts()) if self.rewritten else self._reader.text

    def message(self) -> bytes:
        raw = self._reader.message()
        if not self.rewritten and self._target is self._wire:
            return raw
        turn = self._wire.read_turn(raw)
        if self.rewritten:
            turn = Message(turn.role, tuple(self._parts(turn)), native=turn.native)
        written = self._target.write_turn(turn)
        if self._target is not self._wire:
            return written
        return _with_more(written, raw)

    def native(self, call: ToolCall, mask: Mask) -> str:
        if not self._calls:
            return super().native(call, mask)
        detail = {"form": self._reading.form.name, "name": call.name}
        repaired = {"repaired": list(self._declared.repaired)} if self._declared.repaired else {}
        arguments = mask(call.name, call.arguments)
        return orjson.dumps({"text_call": {**detail, "arguments": arguments, **repaired}}).decode()

    # Calls in the text.

    @property
    def signs(self) -> frozenset[str]:
        """The characters that matter in a text, wherever they stand."""
        return self._scanner.signs

    @property
    def idle(self) -> bool:
        """Whether text goes on at once, unless it contains one of :attr:`signs`."""
        return not (self._reads and (self._waiting or self._scanner.is_undecided)) and not self.rewritten

    def _read(self, frame: Frame, going: list[Frame]) -> None:
        """Take a frame of an undecided turn, and add the frames that may go on to ``going``."""
        end = frame.is_end_mark
        reason = FinishReason.STOP if end else None
        text = ""
        for event in frame.events:
            if type(event) is TextDelta:
                text += event.text
            elif type(event) is TurnFinished:
                reason = event.reason
            elif isinstance(event, _CALLS) or type(event) is TurnFailed:
                # The turn has native calls, or failed: its text stays as it is.
                self._waiting.append((frame, self._fed))
                self._leave(going)
                return
        if frame.undecided:
            self._waiting.append((frame, self._fed))
            self._leave(going)
            return
        if text:
            self._fed += len(text)
            self._scanner.feed(text)
            if not self._waiting and reason is None and self._scanner.settled == self._fed:
                going.append(frame)
                return
            self._text.append(text)
        self._waiting.append((frame, self._fed))
        if reason is not None:
            self._decide(reason, going)
        else:
            self._release(going)

    def _release(self, going: list[Frame]) -> None:
        """Let frames go on whose text is certain to be text."""
        settled = self._scanner.settled
        if self._scanner.has_call:
            return
        count = 0
        while count < len(self._waiting) and self._waiting[count][1] <= settled:
            going.append(self._waiting[count][0])
            count += 1
        if count:
            del self._waiting[:count]
            self._text[:] = [text for frame, _ in self._waiting for text in _texts(frame)]

    def _leave(self, going: list[Frame]) -> None:
        """Stop looking for calls. All waiting frames go on unchanged."""
        self._reads = False
        going += [frame for frame, _ in self._waiting]
        self._waiting.clear()
        self._text.clear()

    def _decide(self, reason: FinishReason, going: list[Frame]) -> None:
        """End the turn: waiting frames go on unchanged, or become events with the calls."""
        scanner = self._scanner
        scanner.close(cut=not reason.is_complete)
        self._tell_notes()
        if not scanner.has_call:
            self._leave(going)
            return
        self.rewritten, self._reads = True, False
        self.passed = len(going)
        held = "".join(self._text)
        start = self._fed - len(held)
        parts: list[str | TextCall] = [held[: scanner.settled - start], *scanner.parts]
        events = [event for part in parts if part for event in self._events_of(part)]
        waiting, self._waiting = self._waiting, []
        for frame, _ in waiting:
            going.append(self._anew(frame, events))
            if _texts(frame):
                events = []

    def _events_of(self, part: str | TextCall) -> list[TurnEvent]:
        """Return a piece of text, or a call, as events."""
        if isinstance(part, str):
            return [TextDelta(part)]
        number = len(self._calls)
        arguments, kind = part.arguments, {}
        if self._tools.is_custom(part.name):
            arguments, kind = _input_of(arguments), {"type": "custom"}
        taken = {call.call_id for _, call in self._calls}
        call_id = part.call_id if part.call_id and part.call_id not in taken else mint_call_id()
        call = ToolCall(call_id, part.name, arguments, number)
        self._calls.append((part, call))
        return [ToolCallStarted(number, call_id, part.name, kind), ToolCallDelta(number, arguments)]

    def _anew(self, frame: Frame, told: Sequence[TurnEvent] | None = None) -> Frame:
        """Return a frame with the same events but no bytes; ``told`` are the events that replace its text."""
        events: list[TurnEvent] = []
        for event in frame.events:
            if type(event) is TextDelta and told is not None:
                events += told
                told = ()
            elif isinstance(event, _CALLS):
                continue  # Its calls in the text were taken, so it has no others.
            elif type(event) is TurnFinished and self._calls and event.reason.is_complete:
                events.append(TurnFinished(FinishReason.TOOL_CALLS))
            else:
                events.append(event)
        raw = frame.raw if frame.payload is None and not frame.is_end_mark else b""
        return Frame(raw, None, tuple(events), is_end_mark=frame.is_end_mark, undecided=frame.undecided)

    def _finished(self) -> list[ToolCallFinished]:
        return [ToolCallFinished(call.index, call) for _, call in self._calls]

    def _visible_texts(self) -> list[str]:
        """Return the turn's text without its calls."""
        before = self._reader.text[: self._scanner.settled]
        return [before, *(part for part in self._scanner.parts if isinstance(part, str))]

    def _parts(self, turn: Message) -> list[Part]:
        """Return the parts of the turn, with its calls as call parts."""
        kept: list[Part] = [part for part in turn.parts if not isinstance(part, Text)]
        text = "".join(self._visible_texts())
        if text:
            kept.append(Text(text))
        for _, call in self._calls:
            custom = self._tools.is_custom(call.name)
            kept.append(ToolCallPart(call.call_id, call.name, call.arguments, custom=custom))
        return kept

    def _tell_notes(self) -> None:
        calls = sum(isinstance(part, TextCall) for part in self._scanner.parts)
        self._note(calls, self._scanner.notes)

    def _note(self, calls: int, notes: Sequence[str]) -> None:
        """Report the number of calls and what else was done, if anything was."""
        if calls or notes:
            facts: dict[str, Any] = {"form": self._reading.form.name, "calls": calls}
            if self._declared.repaired and calls:
                facts["repaired"] = list(self._declared.repaired)
            if notes:
                facts["notes"] = list(dict.fromkeys(notes))
            self._reading.note(facts)


def _texts(frame: Frame) -> list[str]:
    return [event.text for event in frame.events if type(event) is TextDelta]


def _input_of(arguments: str) -> str:
    """Return the input of a tool that takes text: models see it as one argument called ``input``."""
    value: Any = orjson.loads(arguments)
    return value["input"] if set(value) == {"input"} and isinstance(value["input"], str) else arguments


def _with_more(written: bytes, raw: bytes) -> bytes:
    """Return the rewritten turn, plus the members that only the upstream's own message has."""
    turn, before = orjson.loads(written), orjson.loads(raw)
    return orjson.dumps({**before, **turn})
