"""Similar events that the fast path takes unread: same stream, same message, same events."""

import json
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
from cases import each
from fixture_loader import Exchange, all_exchanges
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.base.events import (
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEvent,
    TurnFailed,
    TurnFinished,
    UsageReported,
)
from proxy.wires.chat.wire import ChatWire
from proxy.wires.client_port import ClientView
from proxy.wires.responses.wire import ResponsesWire
from proxy.wires.stream.fast_path import FastWriter
from proxy.wires.stream.reader import _MOST_VAIN, StreamReader
from proxy.wires.stream.sse import SSEParser
from proxy.wires.stream.template import MOST_KEPT
from proxy.wires.wire import Wire

CHAT, RESPONSES = ChatWire(), ResponsesWire()
WIRES: dict[str, Wire] = {"chat": CHAT, "responses": RESPONSES}
STREAMS = [e for e in all_exchanges() if e.wire in WIRES and any(turn.sse for turn in e.turns)]
DONE = b"data: [DONE]\n\n"
ASKS: dict[str, dict[str, Any]] = {"chat": {"messages": []}, "responses": {"input": "hi"}}
JSON_ASKS: dict[str, dict[str, Any]] = {
    "chat": {"messages": [], "response_format": {"type": "json_object"}},
    "responses": {"input": "hi", "text": {"format": {"type": "json_object"}}},
}
TOLD = (ToolCallStarted, ToolCallFinished, TurnFinished, UsageReported, TurnFailed)
TEXTS = (TextDelta, ReasoningDelta, RefusalDelta)


def cut(raw: bytes, cuts: set[int]) -> list[bytes]:
    """Return ``raw`` in pieces."""
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(raw)), len(raw)]
    return [raw[start:end] for start, end in pairwise(edges)]


def events_of(raw: bytes) -> list[bytes]:
    """Return the events of ``raw``, and the rest after the last one."""
    parser = SSEParser()
    return [*(event.raw for event in parser.feed(raw)), parser.tail]


def reader_of(
    wire: Wire, hidden: Callable[[str], bool] = lambda name: True, declared: Collection[str] = ("time",)
) -> StreamReader[Any]:
    """Return a reader that may take events unread."""
    reader = wire.reader(frozenset(declared), hidden, 8192)
    assert isinstance(reader, StreamReader)
    return reader


class Told:
    """The result of a turn: the client's bytes, the message, the text, the events for the run."""

    def __init__(
        self,
        chunks: Sequence[bytes],
        wire: Wire = CHAT,
        *,
        take_unread: bool,
        hidden: bool = True,
        usage_was_added: bool = False,
        json_answer: bool = False,
        broken: bool = False,
    ) -> None:
        asks = JSON_ASKS if json_answer else ASKS
        request = wire.parse({"model": "m", "stream": True, **asks[wire.dialect.name]})
        reader = wire.reader({"time"}, lambda name: hidden, 8192)
        assert isinstance(reader, StreamReader)
        writer = wire.writer(request, ClientView("m", lambda name: hidden, usage_was_added=usage_was_added))
        assert isinstance(writer, FastWriter)
        self.taken_unread = self.read = 0
        out: list[bytes] = []
        events: list[TurnEvent] = []
        frames = []
        for chunk in chunks:
            transform = writer.transform() if take_unread else None
            if transform is not None and reader.take_unread(chunk):
                self.taken_unread += 1
                out.append(transform(chunk))
                continue
            for frame in reader.feed(chunk, together=transform is not None):
                frames.append(frame)
                out.append(writer.write(frame))
        for frame in reader.catch_up() if broken else reader.close():
            frames.append(frame)
            out.append(writer.write(frame))
        for frame in frames:
            events += frame.events
        if not broken:
            out.append(writer.turn_ended("hidden" if writer.composing else "final"))
        out.append(writer.fail("gone", type="upstream_error", code=None))
        self.read = len(frames)
        self.out = b"".join(out)
        self.message = reader.message()
        self.text = reader.text
        self.visible = writer.visible
        self.events = [event for event in events if isinstance(event, TOLD)]
        self.texts = {
            kind: "".join(event.text for event in events if isinstance(event, kind)) for kind in TEXTS
        }

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Told)
        for name in ("out", "message", "text", "visible", "events", "texts"):
            assert getattr(self, name) == getattr(other, name), name
        return True


# Chat.


def event(delta: Any, **more: Any) -> bytes:
    """Return one chunk with one choice."""
    payload = {"id": "c1", "created": 7, "model": "m", "choices": [{"index": 0, "delta": delta}], **more}
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def text(word: str) -> bytes:
    """Return one chunk of text."""
    return event({"content": word})


ROLE = event({"role": "assistant", "content": ""})
CALL_DELTA = {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "time", "arguments": "{}"}}]}
CALL = event(CALL_DELTA)
STOP = event({}).replace(b'"delta":{}', b'"delta":{},"finish_reason":"stop"')
CHAT_ENDS = [CALL + text("after"), STOP, STOP + DONE + text("late"), event(CALL_DELTA)[:-2], b""]

PIECES = st.one_of(
    st.text(max_size=6).map(lambda text: json.dumps(text).encode()[1:-1]),
    st.text(max_size=6).map(
        lambda text: json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace")
    ),
    st.sampled_from(
        [rb"\ud83d", rb"\ude00", b"\xf0\x9f", b"\x98\x80", b"\xff", rb"\x", b'"', b"\\", b"\n", b""]
    ),
)
"""Valid and invalid contents of a JSON string."""

CHAT_FORMS = [
    b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"delta":{"role":"assistant","content":"%b","tool_calls":null}}],"usage":null}\n\n',
    b'data: {"choices": [{"delta": {"content": "%b"}}], "usage": null, "obfuscation": "%b"}\n\n',
    b'data: {"choices": [{"delta": {"content": "%b"}}], "usage" : null, "p": "%b"}\n\n',
    b'data: {"choices":[{"delta":{"reasoning_content":"%b","content":null}}]}\r\n\r\n',
    b'data: {"choices":[{"delta":{"content":"","reasoning":"%b"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b","refusal":"%b"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b","unknown":"x","list":[1]}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b"}},{"delta":{"content":"%b"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b","cont\\u0065nt":"%b"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":[{"type":"text","text":"%b"}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b"},"logprobs":{"content":[{"token":"%b"}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b","tool\\u005fcalls":[{"index":0}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b"}}],"error":{"message":"%b"}}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b","tool_calls":[],"function_call":null}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b","tool_calls":[{"index":0,"function":{}}]}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b","function_call":{"name":"time","arguments":""}}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"%b"},"usage":null}]}\n\n',
    b': ,"usage":null\ndata: {"choices":[{"delta":{"content":"%b"}}]}\n\n',
    b'\xef\xbb\xbfdata: {"choices":[{"delta":{"content":"%b"}}]}\n\n',
    b": comment %b\n\n",
]


@st.composite
def runs(draw: st.DrawFn, forms: list[bytes]) -> bytes:
    """Events, some of which differ only in their text."""
    out = []
    for form in draw(st.lists(st.sampled_from(forms), max_size=4)):
        alike = draw(st.lists(st.lists(PIECES, min_size=2, max_size=2), min_size=1, max_size=5))
        out += [form % tuple(pieces[: form.count(b"%b")]) for pieces in alike]
    return b"".join(out)


@given(
    body=runs(CHAT_FORMS),
    end=st.sampled_from(CHAT_ENDS),
    cuts=st.sets(st.integers(1, 3000), max_size=10),
    whole=st.booleans(),
    hidden=st.booleans(),
    more=st.fixed_dictionaries(
        {"usage_was_added": st.booleans(), "json_answer": st.booleans(), "broken": st.booleans()}
    ),
)
@settings(max_examples=500)
def test_any_chat_stream_comes_to_the_same(
    body: bytes, end: bytes, cuts: set[int], whole: bool, hidden: bool, more: dict[str, Any]
) -> None:
    """Rule W6: the cuts decide which events are taken unread, but do not change the result."""
    raw = ROLE + body + end
    chunks = events_of(raw) if whole else cut(raw, cuts)
    with patch("proxy.wires.turn.assembler.mint_call_id", lambda prefix="call_": f"{prefix}minted"):
        taken_unread = Told(chunks, take_unread=True, hidden=hidden, **more)
        assert taken_unread == Told(events_of(raw), take_unread=False, hidden=hidden, **more)


def test_text_with_a_piece_of_a_call_is_read_each_time() -> None:
    """Text with a piece of a call is never taken unread, since it may name a hidden tool (rule W5)."""
    turn = reader_of(CHAT, lambda name: name == "time", {"time", "theirs"})
    opened = {"index": 0, "id": "call_1", "function": {"name": "theirs", "arguments": "{"}}
    again = event({"content": "a", "tool_calls": [{"index": 0, "function": {"arguments": "}"}}]})
    named = event({"content": "a", "tool_calls": [{"index": 0, "function": {"name": "time"}}]})
    turn.feed(ROLE + event({"tool_calls": [opened]}) + again)
    assert not turn.take_unread(again)
    turn.feed(again)
    assert not turn.take_unread(named)
    assert not turn.feed(named, together=True)
    assert turn.fault is not None
    assert not turn.take_unread(again)


# Responses.


def said(kind: str, number: int, **more: Any) -> bytes:
    """Return one event of a response."""
    payload = {"type": f"response.{kind}", "sequence_number": number, **more}
    return f"event: response.{kind}\ndata: {json.dumps(payload, separators=(',', ':'))}\n\n".encode()


PLACE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
OPENING = said("created", 0, response={"id": "resp_1", "created_at": 7, "model": "m"}) + said(
    "output_item.added", 1, output_index=0, item=MESSAGE
)
FUNCTION = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "time", "arguments": "{}"}
CALLED = said("output_item.added", 90, output_index=1, item=FUNCTION) + said(
    "output_item.done", 91, output_index=1, item=FUNCTION
)
COMPLETED = said("completed", 99, response={"id": "resp_1", "status": "completed", "output": []})
RESPONSES_ENDS = [CALLED, CALLED + COMPLETED, COMPLETED, said("output_item.done", 98, item=MESSAGE), b""]
RESPONSES_FORMS = [
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":4,'
    b'"item_id":"msg_1","output_index":0,"content_index":0,"delta":"%b","obfuscation":"%b"}\n\n',
    b'event: response.output_text.delta\ndata: {"output_index":0,"delta":"%b"}\n\n',
    b'data: {"type":"response.output_text.delta","item_id":"msg_1","delta":"%b","logprobs":[]}\r\n\r\n',
    b'data: {"type":"response.refusal.delta","sequence_number": 5 ,"item_id":"msg_1","delta":"%b"}\n\n',
    b'data: {"type":"response.reasoning_text.delta","sequence_number":0,"output_index":3,"delta":"%b"}\n\n',
    b'data: {"type":"response.reasoning_summary_text.delta","summary_index":1,"delta":"%b"}\n\n',
    b'data: {"type":"response.output_text.delta","item_id":"msg_1","delta":"%b","d\\u0065lta":"%b"}\n\n',
    b'data: {"type":"response.function_call_arguments.delta","item_id":"fc_1","delta":"%b"}\n\n',
    b'data: {"type":"response.output_text.done","item_id":"msg_1","text":"%b"}\n\n',
    b'data: {"type":"error","message":"%b"}\n\n',
    b'data: {"type":"response.output_text.delta","delta":"%b","item":{"type":"message"}}\n\n',
    b'data: {"type":"response.output_text.delta","delta":"%b","sequence_number":1e3,"item_id":"fc_1"}\n\n',
    b'data: {"type":"response.output_text.delta","delta":"%b","sequence_number":9007199254740993}\n\n',
    b": comment %b\n\n",
]


@given(
    before=runs(RESPONSES_FORMS),
    after=runs(RESPONSES_FORMS),
    end=st.sampled_from(RESPONSES_ENDS),
    cuts=st.sets(st.integers(1, 3000), max_size=10),
    whole=st.booleans(),
    hidden=st.booleans(),
    more=st.fixed_dictionaries({"json_answer": st.booleans(), "broken": st.booleans()}),
)
@settings(max_examples=500)
def test_any_responses_stream_comes_to_the_same(
    before: bytes,
    after: bytes,
    end: bytes,
    cuts: set[int],
    whole: bool,
    hidden: bool,
    more: dict[str, Any],
) -> None:
    """Rule W6: numbers, items and texts are the same, whether events are taken unread or read."""
    raw = OPENING + before + end + after
    chunks = events_of(raw) if whole else cut(raw, cuts)
    taken_unread = Told(chunks, RESPONSES, take_unread=True, hidden=hidden, **more)
    assert taken_unread == Told(events_of(raw), RESPONSES, take_unread=False, hidden=hidden, **more)


# Both.


@pytest.mark.parametrize("hidden", [True, False])
@each("exchange", STREAMS, lambda e: e.name)
def test_recorded_streams_come_to_the_same(
    exchange: Exchange, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule W2: a recorded stream has the same result with and without the fast path."""
    monkeypatch.setattr("proxy.wires.turn.assembler.mint_call_id", lambda prefix="call_": f"{prefix}minted")
    monkeypatch.setattr("proxy.wires.chat.composer.mint_call_id", lambda prefix="call_": f"{prefix}minted")
    monkeypatch.setattr("proxy.wires.responses.reader.mint_call_id", lambda prefix="call_": f"{prefix}minted")
    monkeypatch.setattr("proxy.wires.responses.writer.mint_item_id", lambda kind: f"{kind}_minted")
    monkeypatch.setattr("time.time", lambda: 7.0)
    wire = WIRES[exchange.wire]
    for turn in exchange.turns:
        if not turn.sse:
            continue
        read = Told(events_of(turn.sse), wire, take_unread=False, hidden=hidden)
        for chunks in (events_of(turn.sse), [turn.sse]):
            assert Told(chunks, wire, take_unread=True, hidden=hidden) == read


WORDS = {
    "chat": [ROLE, *map(text, "abcd"), STOP, DONE],
    "responses": [
        OPENING,
        *(said("output_text.delta", number, **PLACE, delta=word) for number, word in enumerate("abcd", 2)),
        COMPLETED,
    ],
}


@pytest.mark.parametrize("wire", WIRES)
def test_plain_text_is_read_once(wire: str) -> None:
    """After the first event of text, similar events are taken unread, also several in one chunk."""
    first, one, two, three, four, *rest = WORDS[wire]
    told = Told([first, one, two, three + four, *rest], WIRES[wire], take_unread=True)
    assert told.taken_unread == 2
    assert told.text == told.visible == "abcd" if wire == "chat" else told.text == "abcd"


@pytest.mark.parametrize("wire", WIRES)
def test_a_whole_stream_at_once_is_read_where_it_differs(wire: str) -> None:
    """Similar events in one chunk become one frame, and their bytes stay."""
    first, one, *more = WORDS[wire]
    raw = b"".join([first, one, *[more[0]] * 500, *more[-1:]])
    told = Told([raw], WIRES[wire], take_unread=True)
    assert (
        told.read == len(events_of(raw)) - 1 - 500 + 3
    )  # similar events: their bytes, their texts; and the end
    assert told.out.startswith(raw)


@pytest.mark.parametrize("wire", WIRES)
def test_nothing_is_taken_unread_in_the_middle_of_an_event(wire: str) -> None:
    """Events are taken unread only if the event before them is complete."""
    first, one, two, *_ = WORDS[wire]
    reader = reader_of(WIRES[wire])
    reader.feed(first + one)
    assert reader.take_unread(two)
    reader.feed(b"data: {")
    assert not reader.take_unread(two)


def test_what_is_taken_unread_is_bounded() -> None:
    """After a number of unread events, the reader must read one, so that it keeps no more than that."""
    reader = reader_of(CHAT)
    reader.feed(ROLE + text("a"))
    taken = 0
    while reader.take_unread(text("b")):
        taken += 1
    assert taken == MOST_KEPT
    assert [frame.count for frame in reader.feed(text("b"), together=True)] == [MOST_KEPT, 0]
    assert reader.take_unread(text("c"))


def test_a_stream_whose_events_all_differ_is_not_tried_for_ever() -> None:
    """After many templates that never fit, the reader makes no more; a fit resets the count."""
    reader = reader_of(CHAT)
    for created in range(3 * _MOST_VAIN):
        for _ in range(2):
            told = event({"content": "a"}, created=created)
            assert reader.take_unread(told) or reader.feed(told)
    assert reader.take_unread(told)
    for created in range(_MOST_VAIN + 1):
        assert not reader.take_unread(event({"content": "a"}, created=-created))
        reader.feed(event({"content": "a"}, created=-created))
    assert not reader.take_unread(event({"content": "b"}, created=-_MOST_VAIN))


def test_after_an_end_mark_nothing_is_taken_unread() -> None:
    """Rule W6: events after the end mark do not belong to the turn and are not taken unread."""
    chunks = [ROLE, text("a"), text("b"), DONE, text("c"), text("d")]
    told = Told(chunks, take_unread=True)
    assert told == Told(chunks, take_unread=False)
    assert (told.taken_unread, told.text) == (1, "ab")
