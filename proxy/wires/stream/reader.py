"""The common part of turn readers: turns events into frames, and ends the calls."""

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import orjson
from msgspec import structs

from proxy.base.errors import Unreadable, WireError
from proxy.base.events import (
    Frame,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
)
from proxy.json.in_thread import LARGE_EVENT_BYTES
from proxy.json.lenient import (
    MALFORMED,
    UNREADABLE_EVENT,
    UNREADABLE_REPLY,
    HalfPairs,
    loads,
    may_be_reply,
    may_hold_call,
)
from proxy.wires.dialect import Event, EventParser
from proxy.wires.stream.fast_path import FastReader
from proxy.wires.stream.ndjson import LineParser, decode_line
from proxy.wires.stream.plain import PlainTurn
from proxy.wires.stream.sse import SSEParser, decode_event
from proxy.wires.stream.template import MOST_TEMPLATE_BYTES, Template
from proxy.wires.turn.assembler import Fragment, ToolCallAssembler, is_object

_TEXTS = (TextDelta, ReasoningDelta, RefusalDelta)
_MOST_S = 0.004
"""The time limit of one call of ``feed``, in seconds, for events that take unusually long."""
_BYTES_OF_WORK = 1024
"""An event counts as more than one unit of work for each of these bytes."""
_BYTES_TAKEN_UNREAD = 256
"""Bytes of events taken unread that count as one unit of work."""
_OBJECT_LINE = re.compile(rb"(?i)(?:^|[\r\n])[ \t\xef\xbb\xbf]*+(?:data[ \t]*:[ \t]*)?[{\[]")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64
"""What OpenAI accepts as the name of a function, also in a call that its own model has made."""
_MOST_VAIN = 8
"""After this many templates that no event fitted, make no more: all events of this stream differ."""


class StreamFormat(NamedTuple):
    """How a stream is cut into events: its parser, a decoder of one event, and the ends of events."""

    parser: Callable[[], EventParser[Any]]
    decode: Callable[[bytes], Any]
    ends: tuple[bytes, ...]


SSE = StreamFormat(SSEParser, decode_event, (b"\n\n", b"\r\n\r\n"))
LINES = StreamFormat(LineParser, decode_line, (b"\n", b"\r\n"))

E = TypeVar("E", bound=Event)


class StreamReader(FastReader, Generic[E]):
    """The part of a turn reader that splits its stream into events and ends its calls.

    After it has read an event that holds only text, it makes a template. Events that fit are *taken
    unread*: before the next event is read, one frame reports all their text as one event. ``stream_format``
    is the format of the dialect's streams.
    """

    stream_format: ClassVar[StreamFormat] = SSE
    left_out: ClassVar[Collection[str]] = ()
    rewritten: ClassVar[bool] = False
    _finds_by_name: ClassVar[bool] = False
    """Whether a result is for the call of its name, not of its id."""

    def __init__(
        self, declared: Collection[str], is_hidden: Callable[[str], bool], max_argument_bytes: int
    ) -> None:
        self._declared = declared
        self._is_hidden = is_hidden
        self._bound = max_argument_bytes
        self._calls = ToolCallAssembler(
            declared, is_hidden=is_hidden, kept_bytes=max(1024 * 1024, max_argument_bytes)
        )
        self._finished: list[ToolCallFinished] = []
        self._parser = self.stream_format.parser()
        self._halves = HalfPairs()
        self._template: Template | None = None
        self._template_text: type[TurnEvent] | None = None
        self._ready: Template | None = None
        self._example: Frame | None = None
        self._vain = 0
        self._pieces: tuple[Template, int | None, dict[str, Any] | None] | None = None
        self._stopped = False
        self._plain: PlainTurn | None = None
        self.has_unread = False
        self.large_next = False
        self.fault: WireError | None = None

    @property
    def _undecided(self) -> int:
        """The number of calls that have begun and whose name is not certain yet."""
        return self._calls.undecided

    @abstractmethod
    def _read(self, event: E, *, cut: bool = False) -> Frame:
        """Return the frame of one event. ``cut``: the stream ended before the event did."""

    @abstractmethod
    def _free_names(self, frame: Frame) -> tuple[Sequence[str], Sequence[str]] | None:
        """Return the members of a text event that may differ: its texts, and members without meaning.

        Several such events must mean the same as one event with their texts joined. Return ``None`` if this
        is not certain.
        """

    def read_reply(self, body: bytes) -> Frame:
        payload = loads(body, "a reply")
        if not isinstance(payload, dict):
            if may_be_reply(body):
                raise Unreadable(UNREADABLE_REPLY)
            raise WireError("the upstream's reply is not a JSON object")
        payload, events = self._take_reply(payload, body)
        events += self._finish()
        if self.fault is not None:
            raise self.fault
        return Frame(body, payload, tuple(events))

    @abstractmethod
    def _take_reply(self, payload: dict[str, Any], body: bytes) -> tuple[dict[str, Any], list[TurnEvent]]:
        """Return the events of a whole reply, and the reply as the client gets it."""

    def _piece(self, frame: Frame) -> tuple[str, Sequence[str], int | None] | None:
        """Return the name of the member with a piece of a call's arguments, the members without meaning, and
        the index of the call.

        Return ``None`` if it is not certain that the event means nothing else.
        """
        return None

    def feed(
        self, chunk: bytes, *, together: bool = False, most: int = 0, large: bool = False
    ) -> list[Frame]:
        if self._stopped:
            return []
        frames: list[Frame] = []
        try:
            self._feed(chunk, frames, together, most, None if large or not most else LARGE_EVENT_BYTES)
        except WireError as fault:
            # The frames before it in the same chunk still go out (rule W6).
            self._stop(fault)
        return frames

    def _feed(
        self, chunk: bytes, frames: list[Frame], together: bool, most: int, most_bytes: int | None
    ) -> None:
        """Read ``chunk`` into ``frames``, up to an event of more than ``most_bytes``."""
        parser = self._parser
        read: Callable[..., Frame] = self._read
        self._ready = None
        if chunk or not self.has_unread:
            parser.take(chunk)
        self.has_unread = self.large_next = False
        work = 0
        until = perf_counter() + _MOST_S if most else 0.0
        while True:
            if together and (self._template is not None or self._example is not None):
                start = parser.at
                frames += self._take_unread_events(most and most - work)
                work += (parser.at - start) // _BYTES_TAKEN_UNREAD
            if self._pieces is not None:
                start = parser.at
                frames += self._take_pieces(*self._pieces, most and most - work)
                work += (parser.at - start) // _BYTES_TAKEN_UNREAD
            if 0 < most <= work:
                self.has_unread = True
                return
            event = parser.next(most_bytes)
            if event is None:
                self.has_unread = self.large_next = parser.too_large
                return
            if self._template is not None and self._template.found:
                frames += self.catch_up()
            frame = read(event)
            if self.fault is not None:
                return
            frames.append(frame)
            self._note(frame)
            if most:
                work += 1 + len(event.raw) // _BYTES_OF_WORK
                if work >= most or perf_counter() > until:
                    self.has_unread = True
                    return
            # After a call begins, the writer may have to write the following frames itself.
            together = together and not (frame.undecided or ToolCallStarted in map(type, frame.events))

    def take_unread(self, chunk: bytes) -> bool:
        template = self._ready or self._get_ready()
        return template is not None and template.take(chunk)

    def take_texts(
        self, chunk: bytes, is_open: Callable[[type[TurnEvent]], bool]
    ) -> tuple[type[TurnEvent], list[bytes]] | None:
        template = self._ready or self._get_ready()
        kind = self._template_text
        if template is None or kind is None or not is_open(kind):
            return None
        start = len(template.found)
        return (kind, template.texts(start)) if template.take(chunk) else None

    def _get_ready(self) -> Template | None:
        """Return the template for the next bytes. It stays the same until an event must be read."""
        if self._example is not None:
            self._make_template(self._example)
        if self._parser.at_boundary:
            self._ready = self._template
        return self._ready

    def catch_up(self) -> list[Frame]:
        template = self._template
        if template is None or not template.found:
            return []
        self._vain = 0
        count = template.count
        frame = self._read(self.stream_format.decode(template.merge()))
        return [structs.replace(frame, raw=b"", count=count)]

    def note_plain(self, turn: PlainTurn) -> None:
        self._plain = turn

    def _read_plain(self) -> None:
        """Read what was noted of a whole turn without frames, now that its message is asked for."""
        if self._plain is not None:
            turn, self._plain = self._plain, None
            self.feed(turn.taken())
            self.close()

    def close(self) -> list[Frame]:
        if self._stopped:
            return []
        frames = self.catch_up()
        if (event := self._parser.close()) is not None:
            try:
                frame = self._read(cast("E", event), cut=True)
            except WireError as fault:
                self._stop(fault)
                return frames
            if self.fault is not None:
                return frames
            frames.append(frame)
        frames.append(Frame(b"", events=tuple(self._finish())))
        return frames

    def _stop(self, fault: WireError) -> None:
        """Stop reading, and let nothing more pass."""
        self.fault = fault
        self._stopped = True
        self._template = self._ready = self._example = None

    def _unread(self, event: E, *, cut: bool) -> Frame:
        """Return the frame of an event that the proxy cannot read as a JSON object, though a client might.

        If it may hold a call, it goes no further (rule W5). Otherwise a piece of the turn is lost, so none
        of its calls can be trusted. Some clients read lines of JSON in a stream without ``data:``.
        """
        if may_hold_call(event.data) or (not event.data and _may_be_lines(event)):
            self._stop(Unreadable(UNREADABLE_EVENT))
            return Frame(b"")
        lost = event.data[:1] == b"{" and not cut
        return Frame(
            event.raw,
            events=(TurnFailed(MALFORMED),) if lost else (),
            is_end_mark=event.is_end_mark,
            undecided=self._undecided,
        )

    def _finish(self) -> list[TurnEvent]:
        """End the calls and return their events. Keep the finished calls for the next request."""
        events = self._calls.finish()
        self._finished = [event for event in events if isinstance(event, ToolCallFinished)]
        return events

    def _repaired(self, call: ToolCall) -> ToolCall:
        """Return a call to send back: a hidden one gets ``{}`` if its arguments are no JSON object or too
        long, and a name that providers accept if no tool can have its own.

        The model reads the error result instead. A client's call goes back as it came (rule W8).
        """
        if not self._is_hidden(call.name):
            return call
        fits = len(call.arguments.encode()) <= self._bound and is_object(call.arguments)
        # A function of the older form is found by its name, and so is each of Ollama's.
        named = call.legacy or self._finds_by_name or call.name in self._declared
        name = call.name if named else _NOT_IN_NAMES.sub("_", call.name)[:_LONGEST_NAME]
        return replace(call, name=name, arguments=call.arguments if fits else "{}")

    def _take_unread_events(self, most: int) -> list[Frame]:
        """Take the waiting events that fit, at most as many as take the time of reading ``most`` events."""
        parser = self._parser
        start = at = parser.at
        if self._example is not None and start < len(parser.data):
            self._make_template(self._example)
        template = self._template
        if template is None:
            return []
        frames = self.catch_up() if template.full else []
        limit = start + most * _BYTES_TAKEN_UNREAD if most else len(parser.data)
        while at < limit and (end := template.fit(parser.data, at)) >= 0:
            at = end
        if at > start:
            parser.at = at
            frames.append(Frame(parser.data[start:at], count=0))
        return frames

    def _take_pieces(
        self, template: Template, index: int | None, payload: dict[str, Any] | None, most: int
    ) -> list[Frame]:
        """Take the waiting events that only continue a server tool's call.

        Their frames have the payload of the event that the template is made of. It differs from theirs in
        the arguments alone, which nobody reads there: no client sees this call.
        """
        parser, data = self._parser, self._parser.data
        start = at = parser.at
        limit = start + most * _BYTES_TAKEN_UNREAD if most else len(data)
        raws: list[bytes] = []
        while at < limit and not self._halves.waiting and (end := template.fit(data, at)) >= 0:
            raws.append(data[at:end])
            at = end
        if not raws:
            return []
        parser.at, self._vain = at, 0
        texts, template.found = template.texts(0), []
        pieces = [Fragment(index, arguments=orjson.loads(b'"%b"' % text)) for text in texts]
        return [
            Frame(raw, payload, tuple(self._calls.add(piece)), undecided=self._undecided)
            for raw, piece in zip(raws, pieces, strict=True)
        ]

    def _note_piece(self, frame: Frame) -> None:
        """Make a template of an event with a piece of a server tool's call, for those that come next."""
        self._pieces = None
        if len(frame.events) != 1 or not isinstance(event := frame.events[0], ToolCallDelta):
            return
        if (
            self._vain >= _MOST_VAIN
            or len(frame.raw) > MOST_TEMPLATE_BYTES
            or not self._calls.hides(event.seq)
        ):
            return
        self._vain += 1
        if (known := self._piece(frame)) is not None:
            name, loose, index = known
            template = Template.of(frame.raw, [name], loose, ends=self.stream_format.ends)
            self._pieces = None if template is None else (template, index, frame.payload)

    def _note(self, frame: Frame) -> None:
        """Remember a text event. Its template is made when another event comes."""
        if self._pieces is not None or ToolCallDelta in map(type, frame.events):
            self._note_piece(frame)
        if frame.is_end_mark:
            # Events after the end mark may be read differently from those before it.
            self._template = self._example = None
            self._vain = _MOST_VAIN
        elif (
            frame.events
            and isinstance(frame.events[0], _TEXTS)
            and self._vain < _MOST_VAIN
            and len(frame.raw) <= MOST_TEMPLATE_BYTES
        ):
            self._example = frame

    def _make_template(self, example: Frame) -> None:
        self._example = None
        if not all(isinstance(event, _TEXTS) for event in example.events):
            return
        self._vain += 1
        names = self._free_names(example)
        template = (
            Template.of(example.raw, *names, ends=self.stream_format.ends) if names is not None else None
        )
        if template is not None:
            self._template = template
            only_text = len(example.events) == 1 and template.has_one_text
            self._template_text = type(example.events[0]) if only_text else None


def _may_be_lines(event: Event) -> bool:
    return may_hold_call(event.raw) and _OBJECT_LINE.search(event.raw) is not None
